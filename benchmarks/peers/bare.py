"""The bare database: rows are inserted one by one, read and deleted, without the other work of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strictq.bench.floor import Floor, Row

from .peer import About, Opening, SqlitePeer, pragmas

BARE: Final = "bare SQLite"

Read = tuple[int, int, int, int, bytes]


class Bare(SqlitePeer):
    """The floor in the table of peers. It is not a queue, and takes no part in the conformance scenarios."""

    about = About(
        name=BARE,
        distributions=("apsw",),
        kind="floor",
        sends="in one transaction",
        receives="in one SELECT",
        acks="in one DELETE",
        offers=frozenset(),
        remark="one table; appended, read from the oldest on by one reader, and deleted; two commits a life, no keys",
    )

    def __init__(self, opening: Opening) -> None:
        self.floor = Floor(opening.directory / "floor", opening.durability)

    def settings(self) -> dict[str, str]:
        return pragmas(self.floor.connection.execute)

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[Row]:
        return [(n % 1000, n // 1000, n, body) for n, (_, body) in enumerate(pairs)]

    @staticmethod
    def content(handed: Read) -> tuple[str, bytes]:
        return "", handed[4]

    def send(self, todo: Sequence[Row]) -> None:
        self.floor.append(todo)

    def receive(self, number: int) -> list[Read]:
        return self.floor.read(number)

    def ack(self, handed: Sequence[Read]) -> None:
        self.floor.delete(len(handed))

    def close(self) -> None:
        self.floor.close()
