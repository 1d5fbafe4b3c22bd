"""One consumer of the demo: a process of its own, started by the runner and, for one of them, killed by it.

It talks to the runner through its pipes: lines on stdout say what it is doing, anything on stdin lets it go on after a
pause, and the end of stdin tells it to stop. So it also stops when the runner dies, however that happens.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, TypeVar

import attrs

import strictq
from strictq.demo.events import Chain

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS app_demo (
    id       INTEGER PRIMARY KEY,   -- the order in which this shard's events were processed
    key      TEXT    NOT NULL,      -- as JSON, so that 1 and "1" differ
    line     INTEGER NOT NULL,      -- where it was in the input
    digest   INTEGER NOT NULL,      -- of the body as it arrived
    linked   INTEGER NOT NULL,      -- 1: it follows the event before it; 0: the chain is broken here
    consumer TEXT    NOT NULL,
    attempt  INTEGER NOT NULL
) STRICT
"""
RECORD: Final = "INSERT INTO app_demo (key, line, digest, linked, consumer, attempt) VALUES (?, ?, ?, ?, ?, ?)"
LINE_HEADER: Final = "line"

POLL_SECONDS: Final = 0.2
PAUSE_SECONDS: Final = 5.0
RETRIES: Final = 6

T = TypeVar("T")


@attrs.frozen
class Task:
    """What a consumer is told when it starts.

    Attributes:
        batch: messages to receive at a time.
        pause_after: after so many events, wait for a moment inside a transaction, to be killed there; None: never.
    """

    queue: str
    name: str
    durability: Literal["full", "process"]
    batch: int
    lease_seconds: float
    chain: Chain | None
    pause_after: int | None = None

    def to_json(self) -> str:
        """The form in which it is passed to the process."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        chain = values.pop("chain")
        return cls(**values, chain=Chain(**chain) if chain else None)


def digest(body: bytes) -> int:
    """64 bits that tell two bodies apart, as SQLite stores an integer."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "big", signed=True)


@attrs.frozen
class Orders:
    """What the runner wants."""

    stop: threading.Event = attrs.field(factory=threading.Event)
    go: threading.Event = attrs.field(factory=threading.Event)


class Consumer:
    """Receives batches and processes each event in one transaction, until told to stop."""

    def __init__(self, q: strictq.Queue, task: Task, orders: Orders) -> None:
        self._q = q
        self._task = task
        self._orders = orders
        self._done = 0
        self._pause_after = task.pause_after

    def run(self) -> None:
        while not self._orders.stop.is_set():
            self._process(_patiently(self._receive))

    def _receive(self) -> list[strictq.Delivery]:
        task = self._task
        return self._q.receive(task.batch, wait=POLL_SECONDS, lease_seconds=task.lease_seconds, consumer=task.name)

    def _process(self, batch: list[strictq.Delivery]) -> None:
        lost: set[Any] = set()
        for i, d in enumerate(batch):
            if self._orders.stop.is_set():
                _give_back(batch[i:])
                return
            if d.key in lost:
                continue
            try:
                if d.lease.expires_in < self._task.lease_seconds / 2:
                    d.extend(self._task.lease_seconds)
                _patiently(partial(self._handle, d, len(batch) - i))
                self._done += 1
            except strictq.LeaseLost:
                lost.add(d.key)

    def _handle(self, d: strictq.Delivery, left: int) -> None:
        with self._q.transaction(d) as tx:
            handle(d, tx, self._task.chain, self._task.name)
            self._pause_here(left)

    def _pause_here(self, left: int) -> None:
        if self._pause_after is not None and self._done >= self._pause_after and left > 1:
            self._pause_after = None
            _say(f"paused {left}")
            self._orders.go.wait(PAUSE_SECONDS)


def handle(
    message: strictq.Delivery | strictq.Job, effects: strictq.Transaction | strictq.Job, chain: Chain | None, name: str
) -> None:
    """Check that an event follows the one before it, and record it, in the transaction that resolves its message."""
    linked = True
    if chain:
        old, new = chain.links(message.json())
        before = effects.key_state
        # Without a state this is the key's first event, and a chain with one beginning must begin there.
        linked = chain.first in (None, old) if before is None else before == old.encode()
        effects.key_state = new.encode()
    line = int(message.headers[LINE_HEADER])
    effects.execute(RECORD, (json.dumps(message.key), line, digest(message.body), int(linked), name, message.attempt))


def _give_back(batch: list[strictq.Delivery]) -> None:
    for lease in {id(d.lease): d.lease for d in batch}.values():
        try:
            lease.release()
        except strictq.StrictqError:
            return  # it lapses by itself; the process is on its way out


def _patiently(call: Callable[[], T]) -> T:
    """Repeat a call that failed for a passing reason; the transaction's token makes that safe."""
    for attempt in range(RETRIES):
        try:
            return call()
        except strictq.StrictqError as e:
            if not e.transient or attempt == RETRIES - 1:
                raise
            time.sleep(0.05 * 2**attempt)
    raise AssertionError("unreachable")


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _listen(orders: Orders) -> None:
    # os.read and not sys.stdin: a daemon thread that holds sys.stdin's lock is fatal when the interpreter exits.
    while os.read(0, 4096):
        orders.go.set()
    orders.stop.set()


def main() -> None:
    """Entry point of the process: `python -m strictq.demo.consumer TASK`."""
    task = Task.from_json(sys.argv[1])
    orders = Orders()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with strictq.open(task.queue, create=False, durability=task.durability) as q:
        _say("ready")
        Consumer(q, task, orders).run()


if __name__ == "__main__":
    main()
