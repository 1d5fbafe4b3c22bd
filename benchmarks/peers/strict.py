"""strictq behind the protocol of its peers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import strictq
from strictq.bench.floor import sqlite_version

from .peer import FEATURES, SYNCHRONOUS_NAMES, About, Opening, SqlitePeer


def shards_for(writers: int) -> int:
    """Return the number of shards for this many processes that write batches at once: see docs/howto/web-workers.md."""
    return 1 if writers == 1 else 2 * min(writers, os.cpu_count() or 1)


class Strictq(SqlitePeer):
    about = About(
        name="strictq",
        distributions=("strictq", "apsw"),
        kind="strictq",
        sends="in one call",
        receives="in one call",
        acks="in one call",
        offers=frozenset(FEATURES),
    )

    def __init__(self, opening: Opening) -> None:
        path = opening.directory / "queue.strictq"
        # No retry delay, because the scenarios receive again at once.
        config = strictq.QueueConfig(lease_seconds=opening.lease_seconds, retry_delay_seconds=0.0)
        shards = None if path.exists() else shards_for(opening.writers)
        self.q = strictq.open(path, shards=shards, durability=opening.durability, config=config, clock=opening.clock)

    def settings(self) -> dict[str, str]:
        found = self.q._storage.sqlite_settings
        return {
            "synchronous": SYNCHRONOUS_NAMES[found.synchronous],
            "journal_mode": found.journal_mode,
            "sqlite": sqlite_version(),
        }

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[strictq.Message]:
        return [strictq.Message(body, key=key) for key, body in pairs]

    @staticmethod
    def content(handed: strictq.Delivery) -> tuple[str, bytes]:
        return handed.key, handed.body  # type: ignore[return-value]

    def send(self, todo: Sequence[strictq.Message]) -> None:
        if len(todo) == 1:
            self.q.send(todo[0].body, todo[0].key)
        else:
            self.q.send_many(todo)

    def receive(self, number: int) -> list[strictq.Delivery]:
        return self.q.receive(number)

    def ack(self, handed: Sequence[strictq.Delivery]) -> None:
        if len(handed) == 1:
            handed[0].ack()
        else:
            self.q.ack_many(handed)

    def rest(self) -> None:
        while self.q._storage.checkpointing:
            time.sleep(0.0005)

    def close(self) -> None:
        self.q.close()

    def receive_again(self, number: int) -> list[strictq.Delivery]:
        return self.q.receive(number)

    def nack(self, handed: strictq.Delivery) -> None:
        handed.nack()

    def attempt(self, handed: strictq.Delivery) -> int:
        return handed.attempt

    def reject(self, handed: strictq.Delivery) -> None:
        handed.reject("failed")

    def redrive(self) -> None:
        self.q.redrive()

    def send_once(self, message: strictq.Message, dedup_id: str) -> None:
        self.q.send(message.body, message.key, dedup_id=dedup_id)

    def purge(self) -> None:
        self.q.purge()

    def finish(self, handed: strictq.Delivery, message: Any, *, fail: bool = False) -> None:
        with self.q.transaction(handed) as tx:
            tx.send(message.body, message.key)
            if fail:
                raise ZeroDivisionError
