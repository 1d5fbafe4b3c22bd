"""The work that every peer does, through the same calls."""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.workload import key_name

from .peer import Peer

BODY: Final = base64.b64encode(random.Random(100).randbytes(75))
"""The body of every message: 100 bytes of text, because some peers accept only text."""
EMPTY_MAX: Final = 100
"""Number of empty receives in a row after which a consumer beside others assumes that no message is left."""
EMPTY_SECONDS: Final = 0.003
"""Seconds between them. Remaining messages are held by other consumers."""


def pairs(number: int, keys: int, seed: int = 1) -> list[tuple[str, bytes]]:
    """Return (key, body) of messages over `keys` keys, uniformly random."""
    pick = random.Random(seed).randrange
    return [(key_name(pick(keys)), BODY) for _ in range(number)]


def look(peer: Peer, handed: Sequence[Any]) -> None:
    """Read key and body of each message, as any consumer does. Some peers decode them only then."""
    content = peer.content
    for h in handed:
        content(h)


def life(peer: Peer, todo: Sequence[Any], batch: int) -> None:
    """Send, receive, read and ack, batch by batch. Received messages may be older than the sent ones."""
    for start in range(0, len(todo), batch):
        part = todo[start : start + batch]
        peer.send(part)
        missing = len(part)
        while missing:
            handed = peer.receive(missing)
            if not handed:
                raise RuntimeError(f"{missing} messages were sent and are not ready")
            look(peer, handed)
            peer.ack(handed)
            missing -= len(handed)


def drain(peer: Peer, batch: int, until: Callable[[], bool] = lambda: False) -> int:
    """Receive and ack until none is left. Return the number of messages."""
    done = 0
    while not until() and (handed := peer.receive(batch)):
        peer.ack(handed)
        done += len(handed)
    return done


def life_beside_others(peer: Peer, todo: Sequence[Any], batch: int) -> tuple[int, float]:
    """Send, receive, read and ack together with other consumers, until no message is left.

    Returns:
        The number of acked messages, and the perf_counter time of the last ack.
    """
    acked, ended = 0, time.perf_counter()

    def once() -> bool:
        nonlocal acked, ended
        handed = peer.receive(batch)
        if not handed:
            return False
        look(peer, handed)
        peer.ack(handed)
        acked += len(handed)
        ended = time.perf_counter()
        return True

    for start in range(0, len(todo), batch):
        peer.send(todo[start : start + batch])
        once()
    empty = 0
    while empty < EMPTY_MAX:
        if once():
            empty = 0
        else:
            empty += 1
            time.sleep(EMPTY_SECONDS)
    return acked, ended


def in_threads(workers: Sequence[Callable[[], tuple[int, float]]]) -> tuple[float, int]:
    """Run the workers concurrently.

    Returns:
        Seconds from the start to the last ack, and the number of acked messages.
    """
    start = threading.Barrier(len(workers) + 1)
    results: list[tuple[int, float]] = []
    failed: list[BaseException] = []

    def work(worker: Callable[[], tuple[int, float]]) -> None:
        start.wait()
        try:
            results.append(worker())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(w,)) for w in workers]
    for t in threads:
        t.start()
    start.wait()
    started = time.perf_counter()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
    return max(ended for _, ended in results) - started, sum(acked for acked, _ in results)
