"""litequeue: a table in SQLite, with pop and done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .peer import BUSY_SECONDS, SYNCHRONOUS, About, Opening, SqlitePeer, pragmas

PRUNE_EVERY: Final = 1000
"""Done messages stay in the table until `prune` is called, and slow down pops."""


class Litequeue(SqlitePeer):
    about = About(
        name="litequeue",
        distributions=("litequeue",),
        kind="SQLite",
        sends="in one transaction",
        receives="one call each (pop opens a transaction of its own)",
        acks="in one transaction",
        offers=frozenset({"ack", "nack", "lease", "dead letters", "redrive", "atomic hand-on", "several processes"}),
        shared=False,
        remark=f"synchronous is set on its public connection, after it has set its own; prune() every {PRUNE_EVERY:,} acks",
    )

    def __init__(self, opening: Opening) -> None:
        from litequeue import LiteQueue

        self.lease_seconds = 0.0 if opening.recover else opening.lease_seconds
        self.q = LiteQueue(opening.directory / "queue.db", timeout=BUSY_SECONDS)
        self.q.conn.execute(f"pragma synchronous={SYNCHRONOUS[opening.durability]}")
        self._done = 0

    def settings(self) -> dict[str, str]:
        return pragmas(self.q.conn.execute)

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[str]:
        return [f"{key}\0{body.decode('ascii')}" for key, body in pairs]

    @staticmethod
    def content(handed: Any) -> tuple[str, bytes]:
        key, _, body = handed.data.partition("\0")
        return key, body.encode("ascii")

    def send(self, todo: Sequence[str]) -> None:
        put = self.q.put
        if len(todo) == 1:
            put(todo[0])
            return
        with self.q.transaction(mode="IMMEDIATE"):
            for data in todo:
                put(data)

    def receive(self, number: int) -> list[Any]:
        handed: list[Any] = []
        while len(handed) < number and (m := self.q.pop()) is not None:
            handed.append(m)
        return handed

    def ack(self, handed: Sequence[Any]) -> None:
        done = self.q.done
        if len(handed) == 1:
            done(handed[0].message_id)
        else:
            with self.q.transaction(mode="IMMEDIATE"):
                for m in handed:
                    done(m.message_id)
        self._done += len(handed)
        if self._done >= PRUNE_EVERY:
            self.q.prune(include_failed=False)
            self._done = 0

    def close(self) -> None:
        self.q.close()

    def receive_again(self, number: int) -> list[Any]:
        for m in list(self.q.list_locked(self.lease_seconds)):
            self.q.retry(m.message_id)
        return self.receive(number)

    def nack(self, handed: Any) -> None:
        self.q.retry(handed.message_id)

    def reject(self, handed: Any) -> None:
        self.q.mark_failed(handed.message_id)

    def redrive(self) -> None:
        for m in list(self.q.list_failed()):
            self.q.retry(m.message_id)

    def finish(self, handed: Any, message: str, *, fail: bool = False) -> None:
        with self.q.transaction(mode="IMMEDIATE"):
            self.q.done(handed.message_id)
            self.q.put(message)
            if fail:
                raise ZeroDivisionError
