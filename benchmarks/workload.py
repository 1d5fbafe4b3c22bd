"""The work that strictq does: messages to send, existing lanes, backlogs, and a message's whole life."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Final

import strictq
from strictq.bench import measure
from strictq.bench.measure import drain as drain

from .measure import Durability

BODY: Final = random.Random(100).randbytes(100)
"""The body of every message: 100 bytes that do not compress."""


def key_name(number: int) -> str:
    return f"customer-{number}"


def messages(number: int, keys: int, seed: int = 1) -> list[strictq.Message]:
    """Return messages over `keys` keys, uniformly random. Each has its own key object, like a program's messages."""
    pick = random.Random(seed).randrange
    return [strictq.Message(BODY, key=key_name(pick(keys))) for _ in range(number)]


def open_queue(
    path: Path | str, durability: Durability, *, lease_seconds: float = 3600.0, shards: int | None = None
) -> strictq.Queue:
    """Open a queue with leases long enough that none ends during a measurement."""
    config = strictq.QueueConfig(lease_seconds=lease_seconds)
    return strictq.open(path, durability=durability, config=config, shards=shards)


def warm(q: strictq.Queue, keys: int) -> None:
    """Create every lane and grow the WAL to its full size. Leave the queue empty."""
    measure.warm(q, [key_name(n) for n in range(keys)])


def fill(q: strictq.Queue, number: int, keys: int) -> None:
    """Send a backlog. The messages are built in pieces, to save memory."""
    for start in range(0, number, 10_000):
        q.send_many(messages(min(10_000, number - start), keys, seed=start))


def fill_lane(q: strictq.Queue, number: int, key: str) -> None:
    """Send a backlog to one lane."""
    for start in range(0, number, 10_000):
        q.send_many([strictq.Message(BODY, key=key)] * min(10_000, number - start))


def life(q: strictq.Queue, todo: list[strictq.Message], batch: int) -> None:
    """Send, receive and ack, batch by batch. Received messages may be older than the sent ones."""
    for start in range(0, len(todo), batch):
        part = todo[start : start + batch]
        q.send_many(part)
        missing = len(part)
        while missing:
            ds = q.receive(missing)
            if not ds:
                raise RuntimeError(f"{missing} messages were sent and are not ready")
            q.ack_many(ds)
            missing -= len(ds)


def life_one_by_one(q: strictq.Queue, todo: list[strictq.Message]) -> None:
    """Send, receive and ack one message at a time, through the calls for single messages."""
    for m in todo:
        q.send(m.body, m.key)
        (d,) = q.receive(1)
        d.ack()


def life_in_transactions(q: strictq.Queue, todo: list[strictq.Message]) -> None:
    """Send, receive and ack one message at a time, in a transaction that also writes the state of its key."""
    for m in todo:
        q.send(m.body, m.key)
        (d,) = q.receive(1)
        with q.transaction(d) as tx:
            tx.key_state = b"%d" % d.seq


def send_one_by_one(q: strictq.Queue, todo: list[strictq.Message]) -> None:
    """Send each message with one call."""
    for m in todo:
        q.send(m.body, m.key)


def busy_messages(keys: int, batch: int, seed: int) -> list[strictq.Message]:
    """Return the messages that `keep_busy` sends."""
    return messages(100 * batch, keys, seed)


def keep_busy(q: strictq.Queue, todo: list[strictq.Message], batch: int, stop: threading.Event) -> None:
    """Send, receive and ack batches until stopped. Receives twice as many, so that the sends of others are drained, too."""
    at = 0
    while not stop.is_set():
        q.send_many(todo[at : at + batch])
        at = (at + batch) % len(todo)
        if ds := q.receive(2 * batch):
            q.ack_many(ds)
