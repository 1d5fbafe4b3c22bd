"""huey's SqliteStorage: the storage of its task queue, which removes a task when it delivers it."""

from __future__ import annotations

from collections.abc import Sequence

from .peer import BUSY_SECONDS, SYNCHRONOUS, About, Opening, TakingPeer, pragmas


class Huey(TakingPeer):
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

    def __init__(self, opening: Opening) -> None:
        from huey.storage import SqliteStorage

        self.q = SqliteStorage("queue", str(opening.directory / "queue.db"), strict_fifo=True, timeout=BUSY_SECONDS)
        self.q.conn.execute(f"pragma synchronous={SYNCHRONOUS[opening.durability]}")

    def settings(self) -> dict[str, str]:
        return pragmas(self.q.conn.execute)

    def send(self, todo: Sequence[bytes]) -> None:
        for data in todo:
            self.q.enqueue(data)

    def receive(self, number: int) -> list[bytes]:
        handed: list[bytes] = []
        while len(handed) < number and (data := self.q.dequeue()) is not None:
            handed.append(data)
        return handed

    def close(self) -> None:
        self.q.close()
