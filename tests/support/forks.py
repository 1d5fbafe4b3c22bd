"""Two histories of one queue: a directory that went on, and the queue that took its place."""

from __future__ import annotations

from pathlib import Path

import strictq
from strictq import Queue
from tests.support.replicas import FAST, is_shipped
from tests.support.shipping import until


def fork(q: Queue, into: Path) -> Path:
    """Make a queue of what this one has now, which goes on as if it had not."""
    target = into.with_name(f"{into.name}.target")
    q.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(q))
    q.detach()
    strictq.restore(target, into, alone=True)
    return into


def drained(path: Path) -> dict[str | bytes | int | None, list[bytes]]:
    """What a queue delivers, by key, and nothing is wrong with it. All of it is acked."""
    found: dict[str | bytes | int | None, list[bytes]] = {}
    with strictq.open(path) as q:
        assert q.check() == []
        while batch := q.receive(1000):
            for d in batch:
                found.setdefault(d.key, []).append(d.body)
            q.ack_many(batch)
        assert q.check() == []
    return found
