"""huey's SqliteStorage: the storage under its task queue, which removes a task when it hands it out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Durability
from strictq import Clock

from .peer import BUSY_SECONDS, SYNCHRONOUS, About, SqlitePeer, joined, parted, pragmas


class Huey(SqlitePeer):
    about = About(
        name="huey",
        distributions=("huey",),
        kind="SQLite",
        sends="one call each",
        receives="one call each",
        acks="none: a receive removes",
        offers=frozenset({"several processes"}),
        remark="SqliteStorage(strict_fifo=True) alone, without its tasks and consumer; its option fsync knows only FULL and OFF, "
        "so synchronous is set on its connection",
    )

    def __init__(
        self,
        directory: Path,
        durability: Durability,
        *,
        lease_seconds: float = 3600.0,
        recover: bool = False,
        clock: Clock | None = None,
    ) -> None:
        from huey.storage import SqliteStorage

        del lease_seconds, recover, clock
        self.q = SqliteStorage("queue", str(directory / "queue.db"), strict_fifo=True, timeout=BUSY_SECONDS)
        self.q.conn.execute(f"pragma synchronous={SYNCHRONOUS[durability]}")

    def settings(self) -> dict[str, str]:
        return pragmas(self.q.conn.execute)

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[bytes]:
        return joined(pairs)

    @staticmethod
    def content(handed: bytes) -> tuple[str, bytes]:
        return parted(handed)

    def send(self, todo: Sequence[bytes]) -> None:
        for data in todo:
            self.q.enqueue(data)

    def receive(self, number: int) -> list[bytes]:
        handed: list[bytes] = []
        while len(handed) < number and (data := self.q.dequeue()) is not None:
            handed.append(data)
        return handed

    def ack(self, handed: Sequence[bytes]) -> None:
        pass

    def close(self) -> None:
        self.q.close()
