"""The unresolved messages of a shard in the order of arrival. The first one is found without reading the resolved ones again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw

from ..._sql import LOOKS, TABLES
from ..lane.memory import ShardMemory
from ..tables import gone

FIRST_STEP: Final = 16
STEP: Final = 1_000


class Arrivals:
    """Finds unresolved messages, over one connection.

    A resolved message stays resolved, and a dead letter comes back only by a redrive. So where the first unresolved message was
    found before, the next search begins.
    """

    def __init__(self, db: apsw.Connection, memory: ShardMemory) -> None:
        self._db = db
        self._memory = memory
        self._state = (-1, -1)
        self._low = 0
        self._gone: list[tuple[int, list[int]]] = []
        self._n_gone = 0
        self._fresh: set[int] = set()

    def _follow(self) -> set[int]:
        """Return the resolved messages that are not in `gone` yet."""
        memory = self._memory
        state = (memory.rebuilds, memory.redrives)
        if state != self._state:
            self._state, self._low = state, 0
        if self._gone is not memory.gone:
            self._gone, self._n_gone, self._fresh = memory.gone, 0, set()
        for _, ids in self._gone[self._n_gone :]:
            self._fresh.update(ids)
        self._n_gone = len(self._gone)
        return self._fresh

    def unresolved(self) -> Iterator[tuple[int, bytes, int]]:
        """Return arrival number, key and seq. The key of a parked message is that of the lane that it was sent to."""
        run: Any = self._db.execute
        fresh, is_first = self._follow(), True
        after, limit, bucket, bits = self._low, FIRST_STEP, -1, 0
        while rows := run(TABLES.some_messages, (after, limit)).fetchall():
            after, limit = rows[-1][0], STEP
            dead = {i for (i,) in run(LOOKS.dead_between, (rows[0][0], after))}
            for i, key, seq in rows:
                if i >> gone.BUCKET_BITS != bucket:
                    bucket = i >> gone.BUCKET_BITS
                    bits = gone.bits_of(self._db, self._memory.shard, bucket)
                if i in fresh or i in dead or bits >> (i & gone.BUCKET_MASK) & 1:
                    if is_first:
                        self._low = i
                    continue
                is_first = False
                yield i, key, seq


__all__ = ["Arrivals"]
