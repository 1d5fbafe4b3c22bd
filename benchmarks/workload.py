"""What strictq is made to do: messages to send, lanes that exist, backlogs, and a message's whole life."""

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
    """Messages over `keys` keys, uniformly random. Each has a key object of its own, as a program's messages have."""
    pick = random.Random(seed).randrange
    return [strictq.Message(BODY, key=key_name(pick(keys))) for _ in range(number)]


def open_queue(
    path: Path | str, durability: Durability, *, lease_seconds: float = 3600.0, shards: int | None = None
) -> strictq.Queue:
    """A queue with leases long enough that none ends during a measurement."""
    config = strictq.QueueConfig(lease_seconds=lease_seconds)
    return strictq.open(path, durability=durability, config=config, shards=shards)


def warm(q: strictq.Queue, keys: int) -> None:
    """Make every lane exist and the WAL as large as it gets; leave it empty."""
    measure.warm(q, [key_name(n) for n in range(keys)])


def fill(q: strictq.Queue, number: int, keys: int) -> None:
    """Send a backlog. The messages are built piece by piece, so that they take no memory of note."""
    for start in range(0, number, 10_000):
        q.send_many(messages(min(10_000, number - start), keys, seed=start))


def fill_lane(q: strictq.Queue, number: int, key: str) -> None:
    """Send a backlog to one lane."""
    for start in range(0, number, 10_000):
        q.send_many([strictq.Message(BODY, key=key)] * min(10_000, number - start))


def life(q: strictq.Queue, todo: list[strictq.Message], batch: int) -> None:
    """Send, receive and ack as many as there are, batch by batch. What is received may be older than what was sent."""
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
    """The same for one message at a time, through the calls for one message."""
    for m in todo:
        q.send(m.body, m.key)
        (d,) = q.receive(1)
        d.ack()


def life_in_transactions(q: strictq.Queue, todo: list[strictq.Message]) -> None:
    """One message at a time, acked by a transaction that also writes the state of its key."""
    for m in todo:
        q.send(m.body, m.key)
        (d,) = q.receive(1)
        with q.transaction(d) as tx:
            tx.key_state = b"%d" % d.seq


def send_one_by_one(q: strictq.Queue, todo: list[strictq.Message]) -> None:
    """One send each."""
    for m in todo:
        q.send(m.body, m.key)


def busy_messages(keys: int, batch: int, seed: int) -> list[strictq.Message]:
    """What `keep_busy` sends."""
    return messages(100 * batch, keys, seed)


def keep_busy(q: strictq.Queue, todo: list[strictq.Message], batch: int, stop: threading.Event) -> None:
    """Send, receive and ack batches until told to stop, receiving twice as much, so that others' sends drain too."""
    at = 0
    while not stop.is_set():
        q.send_many(todo[at : at + batch])
        at = (at + batch) % len(todo)
        if ds := q.receive(2 * batch):
            q.ack_many(ds)
