"""persist-queue's SQLiteAckQueue: a table in SQLite, with get and ack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .peer import BUSY_SECONDS, SYNCHRONOUS, About, Opening, SqlitePeer, pragmas

CLEAR_EVERY: Final = 1000
"""Acked messages stay in the table until `clear_acked_data` is called, and slow down gets."""


class PersistQueue(SqlitePeer):
    about = About(
        name="persist-queue",
        distributions=("persist-queue",),
        kind="SQLite",
        sends="one call each",
        receives="one call each",
        acks="one call each",
        offers=frozenset({"ack", "nack", "dead letters"}),
        remark="SQLiteAckQueue(multithreading=True), which can't do without auto-commit; no option for synchronous, so it is "
        f"set on its connections; get(next_in_order=True) within a batch; clear_acked_data() every {CLEAR_EVERY:,} acks",
    )

    def __init__(self, opening: Opening) -> None:
        from persistqueue import SQLiteAckQueue

        # auto_resume returns all held messages to the opener, so only a restart may use it.
        self.q = SQLiteAckQueue(str(opening.directory), auto_resume=opening.recover, multithreading=True, timeout=BUSY_SECONDS)
        self._connections: list[Any] = [self.q._getter, self.q._putter]
        for db in self._connections:
            db.execute(f"pragma synchronous={SYNCHRONOUS[opening.durability]}")
        self._acked = 0

    def settings(self) -> dict[str, str]:
        getter, putter = (pragmas(db.execute) for db in self._connections)
        return putter if putter == getter else {"journal_mode": "differs", "synchronous": "differs"}

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        return list(pairs)

    @staticmethod
    def content(handed: dict[str, Any]) -> tuple[str, bytes]:
        return handed["data"]  # type: ignore[no-any-return]

    def send(self, todo: Sequence[tuple[str, bytes]]) -> None:
        for item in todo:
            self.q.put(item)

    def receive(self, number: int) -> list[dict[str, Any]]:
        from persistqueue import Empty

        handed: list[dict[str, Any]] = []
        try:
            handed.append(self.q.get(block=False, raw=True))
            while len(handed) < number:
                # The last id is where to continue. Without it, every get reads all held messages.
                handed.append(self.q.get(block=False, raw=True, id=handed[-1], next_in_order=True))  # type: ignore[arg-type]
        except Empty:
            pass
        return handed

    def ack(self, handed: Sequence[dict[str, Any]]) -> None:
        for item in handed:
            self.q.ack(id=item["pqid"])
        self._acked += len(handed)
        if self._acked >= CLEAR_EVERY:
            self.q.clear_acked_data(max_delete=0, keep_latest=0)
            self._acked = 0

    def close(self) -> None:
        self.q.close()

    def nack(self, handed: dict[str, Any]) -> None:
        self.q.nack(id=handed["pqid"])

    def reject(self, handed: dict[str, Any]) -> None:
        self.q.ack_failed(id=handed["pqid"])
