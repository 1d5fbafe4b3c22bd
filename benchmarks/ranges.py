"""`python -m benchmarks ranges`: how fast half of a shard moves to a new one, and what callers notice."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import strictq
from strictq import Message, Queue

SHAPES: Final = ((1_000, 100), (20_000, 1), (20, 5_000))
"""Keys, and messages of each."""
SHORT_SHAPES: Final = ((100, 100), (2_000, 1), (2, 5_000))
BODY: Final = b"x" * 100
BATCH: Final = 1_000


class Measured(NamedTuple):
    """One move.

    Attributes:
        messages, lanes: what moved.
        seconds: how long it took. `cpu`: of this process meanwhile, with the sender.
        longest_pause: of a lane, as the queue reports it.
        longest_send: of a sender to keys of the range meanwhile. `sends`: how many there were.
    """

    messages: int
    lanes: int
    seconds: float
    cpu: float
    longest_pause: float
    longest_send: float
    sends: int


def fill(q: Queue, keys: int, each: int) -> None:
    """Send messages to keys in turn."""
    for _ in range(each):
        for begin in range(0, keys, BATCH):
            q.send_many([Message(BODY, key=key) for key in range(begin, min(begin + BATCH, keys))])


def move(directory: Path, keys: int, each: int, *, sends: bool) -> Measured:
    """Split the only shard of a new queue, while another thread sends to its keys, if asked."""
    with strictq.open(directory / f"{keys}-{each}-{sends}", durability="process") as q:
        fill(q, keys, each)
        durations: list[float] = []
        over = threading.Event()

        def send() -> None:
            key = 0
            while not over.wait(0.002):
                began = time.monotonic()
                q.send(BODY, key=key % keys)
                durations.append(time.monotonic() - began)
                key += 1

        sender = threading.Thread(target=send)
        if sends:
            sender.start()
        cpu = time.process_time()
        moved = q.split(0)
        cpu = time.process_time() - cpu
        over.set()
        if sends:
            sender.join()
        assert q.check() == []
    longest = max(durations, default=0.0)
    return Measured(moved.messages, moved.lanes, moved.seconds, cpu, moved.longest_pause, longest, len(durations))


def main(arguments: Sequence[str]) -> int:
    """Run a command line, and print a table. Return 0."""
    parser = argparse.ArgumentParser("python -m benchmarks ranges", description=__doc__)
    parser.add_argument("--short", action="store_true", help="A tenth of the messages.")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="strictq-ranges-"))
    print(
        "| keys × messages | sends | moved | messages/s | lanes/s | µs of CPU a message | longest pause, ms | longest send, ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    try:
        for keys, each in SHORT_SHAPES if options.short else SHAPES:
            for sends in (False, True):
                m = move(directory, keys, each, sends=sends)
                print(
                    f"| {keys:,} × {each:,} | {m.sends:,} | {m.messages:,} | {m.messages / m.seconds:,.0f} | "
                    f"{m.lanes / m.seconds:,.0f} | {m.cpu / max(m.messages, 1) * 1e6:.0f} | {m.longest_pause * 1e3:.0f} | "
                    f"{m.longest_send * 1e3:.0f} |",
                    flush=True,
                )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0
