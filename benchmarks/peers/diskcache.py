"""diskcache.Deque: a list on disk; what is taken from its left end is removed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.measure import Durability
from strictq import Clock

from .peer import BUSY_SECONDS, SYNCHRONOUS, SYNCHRONOUS_NAMES, About, SqlitePeer, joined, parted, pragmas


class Diskcache(SqlitePeer):
    about = About(
        name="diskcache",
        distributions=("diskcache",),
        kind="SQLite",
        sends="in one transaction",
        receives="in one transaction",
        acks="none: a receive removes",
        offers=frozenset({"several processes", "atomic hand-on"}),
        remark="Deque.fromcache(Cache(eviction_policy='none', cull_limit=0, sqlite_synchronous=...))",
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
        from diskcache import Cache, Deque

        del lease_seconds, recover, clock
        self.cache = Cache(
            str(directory),
            timeout=BUSY_SECONDS,
            eviction_policy="none",
            cull_limit=0,
            sqlite_synchronous=SYNCHRONOUS_NAMES.index(SYNCHRONOUS[durability]),
        )
        self.q = Deque.fromcache(self.cache)

    def settings(self) -> dict[str, str]:
        return pragmas(self.cache._sql)

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[bytes]:
        return joined(pairs)

    @staticmethod
    def content(handed: bytes) -> tuple[str, bytes]:
        return parted(handed)

    def send(self, todo: Sequence[bytes]) -> None:
        if len(todo) == 1:
            self.q.append(todo[0])
            return
        with self.q.transact():
            self.q.extend(todo)

    def receive(self, number: int) -> list[bytes]:
        handed: list[bytes] = []
        if number == 1:
            with suppress(IndexError):
                handed.append(self.q.popleft())
            return handed
        # Caught inside: the exception of an empty deque would undo what was taken before it.
        with self.q.transact(), suppress(IndexError):
            while len(handed) < number:
                handed.append(self.q.popleft())
        return handed

    def ack(self, handed: Sequence[bytes]) -> None:
        pass

    def close(self) -> None:
        self.cache.close()

    def hand_on(self, message: bytes, *, fail: bool) -> None:
        with self.q.transact():
            self.q.popleft()
            self.q.append(message)
            if fail:
                raise ZeroDivisionError
