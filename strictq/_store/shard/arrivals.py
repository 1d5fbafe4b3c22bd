"""The unresolved messages of a shard in the order of arrival. The first one is found without reading the resolved ones again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw

from ..._sql import LOOKS, TABLES
from ..lane.memory import ShardMemory
from ..tables import gone, mark, parcels

FIRST_STEP: Final = 16
STEP: Final = 1_000


class Arrivals:
    """Finds unresolved messages, over one connection.

    A resolved message stays resolved, and a dead letter comes back only by a redrive. So where the first unresolved message was
    found before, the next search begins. The same holds for the first one without an attempt, while no attempt is taken back.
    """

    def __init__(self, db: apsw.Connection, memory: ShardMemory) -> None:
        self._db = db
        self._memory = memory
        self._state = (-1, -1)
        self._low = 0
        self._attempts = -1
        self._attempted = 0
        self._gone: list[tuple[int, list[int]]] = []
        self._n_gone = 0
        self._fresh: set[int] = set()
        self._left: set[int] = set()
        """Messages on their way to another shard. Memory is built anew when some leave."""

    def _follow(self) -> set[int]:
        """Return the resolved messages that are not in `gone` yet."""
        memory = self._memory
        state = (memory.rebuilds, memory.redrives)
        if state != self._state:
            self._state, self._low, self._attempts = state, 0, -1
            self._left = parcels.all_arrivals(self._db) if memory.mark.features & mark.RANGES else set()
        if self._gone is not memory.gone:
            self._gone, self._n_gone, self._fresh = memory.gone, 0, set()
        for _, ids in self._gone[self._n_gone :]:
            self._fresh.update(ids)
        self._n_gone = len(self._gone)
        return self._fresh

    @property
    def attempted(self) -> int:
        """The arrival number up to which every unresolved message has an attempt, as far as is known."""
        self._follow()
        return self._attempted if self._attempts == self._memory.taken_back else 0

    def note_attempted(self, before: int | None) -> None:
        """Note that every unresolved message before an arrival number has an attempt. None: every one has."""
        self._attempts = self._memory.taken_back
        self._attempted = (self._memory.top + 1 if before is None else before) - 1

    def unresolved(self, begin: int = 0) -> Iterator[tuple[int, bytes, int]]:
        """Return arrival number, key and seq. The key of a parked message is that of the lane that it was sent to.

        Args:
            begin: messages up to this one are left out.
        """
        run: Any = self._db.execute
        fresh, is_first = self._follow(), begin <= self._low
        after, limit, bucket, bits = max(self._low, begin), FIRST_STEP, -1, 0
        while rows := run(TABLES.some_messages, (after, limit)).fetchall():
            after, limit = rows[-1][0], STEP
            dead = {i for (i,) in run(LOOKS.dead_between, (rows[0][0], after))} if self._memory.totals.dead else ()
            for i, key, seq in rows:
                if i >> gone.BUCKET_BITS != bucket:
                    bucket = i >> gone.BUCKET_BITS
                    bits = gone.bits_of(self._db, self._memory.shard, bucket)
                if i in fresh or i in dead or i in self._left or bits >> (i & gone.BUCKET_MASK) & 1:
                    if is_first:
                        self._low = i
                    continue
                is_first = False
                yield i, key, seq


__all__ = ["Arrivals"]
