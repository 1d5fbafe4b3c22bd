"""Programs around a named consumer, to be killed: `python -m tests.support.recorded_batch_programs NAME PLACE`.

They record what they saw in their own files: a ledger by number, like an idempotent sink, and a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import strictq
from strictq.spark import _recorded_batches
from tests.support.recorded_batches import holder, read

MOST = 7


def open_queue(place: Path) -> strictq.Queue:
    return strictq.open(place / "queue", durability="process")


def publish(file: Path, value: object) -> None:
    """Write a file atomically."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(value))
    os.replace(part, file)


def stream(place: Path, *, deferring: bool = False, ahead: bool = False) -> None:
    """Take a batch, write it to the ledger and the checkpoint, and repeat for ever. A repeated batch must be the same."""
    with open_queue(place) as q:
        h = holder(q, keep=3, deferring=deferring)
        checkpoint = place / "checkpoint.json"
        start = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
        print("going", flush=True)
        while True:
            n = h.take(start, messages_max=MOST, ahead=ahead)
            if n == start:
                continue
            rows = [list(r) for r in read(q, h, n)]
            file = place / f"{n}.ledger"
            assert not file.exists() or json.loads(file.read_text()) == rows, f"recorded batch {n} came again with other messages"
            publish(file, rows)
            publish(checkpoint, n)
            start = n


def defer(place: Path) -> None:
    """The same with a holder that acks a batch, however small, after it has recorded the next one."""
    _recorded_batches.DEFERRED_MIN = 1  # type: ignore[misc]
    stream(place, deferring=True)


def ahead(place: Path) -> None:
    """The same, and it records batches, however small, before it wants them."""
    _recorded_batches.DEFERRED_MIN = 1  # type: ignore[misc]
    stream(place, deferring=True, ahead=True)


def work(place: Path) -> None:
    """Receive and ack beside it, one by one. Each ack is recorded in advance, and counts if the queue confirms it."""
    with open_queue(place) as q, open(place / f"worker-{os.getpid()}.jsonl", "a", encoding="utf-8") as notes:
        print("going", flush=True)
        while True:
            for d in q.receive(3, wait=0.1, lease_seconds=0.3):
                notes.write(json.dumps([d.key, d.seq]) + "\n")
                notes.flush()
                try:
                    d.ack()
                except strictq.LeaseLost:
                    break


if __name__ == "__main__":
    {"stream": stream, "defer": defer, "ahead": ahead, "work": work}[sys.argv[1]](Path(sys.argv[2]))
