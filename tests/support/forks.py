"""Two histories of one queue: a directory that continued, and the queue that took its place."""

from __future__ import annotations

from pathlib import Path

import strictq
from strictq import Queue
from tests.support.replicas import FAST, is_shipped
from tests.support.running import until


def fork(q: Queue, into: Path) -> Path:
    """Create a queue from the present state of this one, which continues independently."""
    target = into.with_name(f"{into.name}.target")
    q.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(q))
    q.detach()
    strictq.restore(target, into, alone=True)
    return into


def drained(path: Path) -> dict[str | bytes | int | None, list[bytes]]:
    """Return what a queue delivers, by key. Acks all of it, and verifies the queue."""
    found: dict[str | bytes | int | None, list[bytes]] = {}
    with strictq.open(path) as q:
        assert q.check() == []
        while batch := q.receive(1000):
            for d in batch:
                found.setdefault(d.key, []).append(d.body)
            q.ack_many(batch)
        assert q.check() == []
    return found
