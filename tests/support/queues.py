"""Open queues in tests, and perform the common operations on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import attrs

import strictq
from strictq import Event, Queue, QueueConfig
from strictq._values.keys import Key
from strictq.testing import FakeClock
from tests.support.second_process import SecondProcess

Hook = Callable[[Event], None]


AT_ONCE: dict[str, Any] = {"retry_delay_seconds": 0.0, "retry_for_seconds": 0.0}
"""Settings for tests whose time stands still: failures are retried at once, and `max_attempts` alone ends that."""


@attrs.frozen
class Kind:
    """A kind of queue. Every test with the fixture `make` or `q` runs on each of KINDS.

    Attributes:
        shards: the number of shards of a new queue, unless the test says another.
        durability: the same for `strictq.open`.
        in_memory: nothing is on disk.
        second_process: a second process writes between the calls of the test.
        foreign_messages: that process sends messages, receives and acks them. Otherwise it writes to a table of its own.
    """

    name: str
    shards: int = 1
    durability: Literal["full", "process"] = "process"
    in_memory: bool = False
    second_process: bool = False
    foreign_messages: bool = True


DISK = Kind("disk")
KINDS = (
    Kind("memory", in_memory=True),
    DISK,
    Kind("shared", shards=4, durability="full", second_process=True),
)


class Opener:
    """Opens queues at one place with one clock, and closes open ones when the test ends.

    Given settings become the queue's configuration; without any, the stored one is used. Other settings are as in AT_ONCE and
    otherwise default.
    """

    def __init__(self, path: str, clock: FakeClock, kind: Kind = DISK, second: SecondProcess | None = None) -> None:
        self.path = path
        self.clock = clock
        self.kind = kind
        self.second = second
        self.opened: list[Queue] = []

    def __call__(self, *, shards: int | None = None, on_event: Hook | None = None, **settings: Any) -> Queue:
        config = QueueConfig(**(AT_ONCE | settings)) if settings or self.is_new() else None
        return self.open(shards=shards, on_event=on_event, config=config)

    def open(self, **options: Any) -> Queue:
        """Call `strictq.open` at this place. Shards and durability default to the kind's.

        A disk's durability is "process", because tests cut no power.
        """
        options.setdefault("durability", self.kind.durability)
        if options.get("shards") is None and self.is_new():
            options["shards"] = self.kind.shards
        q = strictq.open(self.path, clock=self.clock, **options)
        self.opened.append(q)
        if self.second is not None:
            self.second.write_between(
                q,
                self.clock,
                messages=self.kind.foreign_messages,
                is_last=lambda: all(o is q or o._storage.closed for o in self.opened),
            )
        return q

    def is_new(self) -> bool:
        return self.path == ":memory:" or not os.path.exists(self.path)

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()


def fill(q: Queue, key: Key | None, count: int, **options: Any) -> list[strictq.Receipt]:
    """Send `count` messages with bodies b"1", b"2" … to one key."""
    return [q.send(b"%d" % n, key, **options) for n in range(1, count + 1)]


def labels(deliveries: Iterable[Any]) -> list[tuple[Any, int]]:
    return [(d.key, d.seq) for d in deliveries]


def seqs(deliveries: Iterable[Any]) -> list[int]:
    """Return the seq of each, in order."""
    return [d.seq for d in deliveries]


def ack_all(deliveries: Iterable[Any]) -> None:
    for d in deliveries:
        d.ack()


def drain(q: Queue, limit: int = 1_000) -> list[tuple[Any, int]]:
    """Receive and ack until nothing is ready. Return (key, seq) of each message in order."""
    got: list[tuple[Any, int]] = []
    for _ in range(limit):
        batch = q.receive(100)
        if not batch:
            return got
        got += labels(batch)
        ack_all(batch)
    raise AssertionError("the queue does not run dry")


def keys_by_shard(shards: int) -> dict[int, str]:
    """Return a key for every shard of a new queue with this many. Asks a queue created for that."""
    with strictq.open(":memory:", shards=shards) as scratch:
        scratch.send_many([strictq.Message(b"", key=f"key-{n}") for n in range(32 * shards)])
        found: dict[int, str] = {}
        for d in scratch.receive(32 * shards):
            found.setdefault(d.shard, str(d.key))
    assert sorted(found) == list(range(shards)), "the hash leaves a shard empty"
    return dict(sorted(found.items()))


def shard_file(q_path: str | Path, number: int = 0) -> Path:
    return Path(q_path) / f"shard-{number:04d}.db"
