"""What every peer is made to do, through the same calls."""

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
"""The body of every message: 100 bytes, of text, because not every peer takes others."""
EMPTY_MAX: Final = 100
"""How often nothing must come before a consumer beside others believes that there is nothing left."""
EMPTY_SECONDS: Final = 0.003
"""How long it waits in between: what is left is in the hands of a neighbour."""


def pairs(number: int, keys: int, seed: int = 1) -> list[tuple[str, bytes]]:
    """(key, body) of messages over `keys` keys, uniformly random."""
    pick = random.Random(seed).randrange
    return [(key_name(pick(keys)), BODY) for _ in range(number)]


def look(peer: Peer, handed: Sequence[Any]) -> None:
    """Read key and body of each, as any consumer does; some peers decode them only then."""
    content = peer.content
    for h in handed:
        content(h)


def life(peer: Peer, todo: Sequence[Any], batch: int) -> None:
    """Send, receive, read and ack as many as there are, batch by batch. What is received may be older than what was sent."""
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
    """Receive and ack until nothing comes; how many that were."""
    done = 0
    while not until() and (handed := peer.receive(batch)):
        peer.ack(handed)
        done += len(handed)
    return done


def life_beside_others(peer: Peer, todo: Sequence[Any], batch: int) -> tuple[int, float]:
    """The same beside others that do it too, until nothing is left.

    Returns:
        How many were acked, and when the last one was, by perf_counter.
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
    """Run them at once.

    Returns:
        Seconds from the start to the last ack of all, and how many were acked.
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
