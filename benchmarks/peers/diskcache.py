"""diskcache.Deque: a list on disk. A receive removes items from its left end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from .peer import BUSY_SECONDS, SYNCHRONOUS, SYNCHRONOUS_NAMES, About, Opening, TakingPeer, pragmas


class Diskcache(TakingPeer):
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

    def __init__(self, opening: Opening) -> None:
        from diskcache import Cache, Deque

        self.cache = Cache(
            str(opening.directory),
            timeout=BUSY_SECONDS,
            eviction_policy="none",
            cull_limit=0,
            sqlite_synchronous=SYNCHRONOUS_NAMES.index(SYNCHRONOUS[opening.durability]),
        )
        self.q = Deque.fromcache(self.cache)

    def settings(self) -> dict[str, str]:
        return pragmas(self.cache._sql)

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
        # Caught inside, because the exception of an empty deque would roll back the earlier pops.
        with self.q.transact(), suppress(IndexError):
            while len(handed) < number:
                handed.append(self.q.popleft())
        return handed

    def close(self) -> None:
        self.cache.close()

    def hand_on(self, message: bytes, *, fail: bool) -> None:
        with self.q.transact():
            self.q.popleft()
            self.q.append(message)
            if fail:
                raise ZeroDivisionError
