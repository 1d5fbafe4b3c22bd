"""Fold: write the rows of lanes that changed, delete resolved messages, and cut the journal. No state changes.

A generation is the set of lanes that were first changed up to a position, in the order of keys. A slice writes some of them, and
its entry says up to which key. Every process derives the same set, so any writer continues a generation that another one began.
Once all lanes are written, the last slices delete the messages that were resolved up to the position, some each, and cut the
journal below what is still needed. Both happen in one transaction, so a process that lacks a deleted row finds that the journal
was cut, and begins anew.
"""

from __future__ import annotations

from typing import Final

import apsw

from ..lane.entries import FOLD
from ..tables import gone, mark, tenant_depths, turn_rows
from ..tables.lane_rows import LaneRows
from ..tables.log_rows import LogRows
from .loading import Loader

BEHIND_ALL: Final = b"\xff"
"""Behind every key: of a slice that writes no lane, because all are written."""
FREED_TOGETHER: Final = 256
"""On a full disk, so many resolved messages are worth a slice, and so many buckets of `gone` are emptied at once."""


class Folder:
    """Folds one shard. When it does is a policy; its entries say what was folded.

    Attributes:
        dirty_max: from so many changed lanes on, each write transaction folds.
    """

    def __init__(self, db: apsw.Connection, loader: Loader, log: LogRows, rows: LaneRows) -> None:
        self._db = db
        self._loader = loader
        self._memory = memory = loader.memory
        self._log = log
        self._rows = rows
        self.dirty_max = memory.limits.work // 2

    @property
    def is_due(self) -> bool:
        """Return whether the next write transaction folds."""
        memory = self._memory
        return memory.work >= memory.fold_at or len(memory.dirty) >= self.dirty_max

    def fold(self, work: int, now: int) -> None:
        """Write the slices that are due, at the end of a call's transaction.

        Args:
            work: the call's arrivals and messages of entries. Each may have changed another lane, so as many lanes are written at
                most: with fewer, large calls to many keys would leave the folds behind for ever.
        """
        left = 1 + work // self._memory.limits.slice
        while left and self.is_due:
            self.slice(now)
            left -= 1

    def free(self, now: int) -> None:
        """Delete resolved messages, in one bounded step. On a full disk they take the room of new ones."""
        memory = self._memory
        resolved = sum(len(ids) for _, ids in memory.gone)
        if memory.fold_to or resolved >= FREED_TOGETHER or (resolved and resolved >= memory.totals.pending):
            self.slice(now)
        while memory.fold_to and not memory.totals.pending:
            self.slice(now)  # no later call may come to do it
        gone.empty(self._db, self._log, memory.shard, memory.top, FREED_TOGETHER)

    def slice(self, now: int) -> None:
        """Write one slice."""
        self._loader.place_all()  # a row says where its lane is listed
        memory = self._memory
        to = memory.fold_to or memory.seen + memory.top
        keys, last = memory.next_slice(to)
        entry_id, at = memory.seen + 1, max(now, memory.at)
        lanes = [memory.lanes[key] for key in keys]
        self._rows.write(lanes, entry_id)
        if memory.tenancy is not None and memory.tenancy.separator:
            turn_rows.write(self._db, lanes, memory.tenancy.separator)
        stored = memory.mark
        deleted, last_key = None, keys[-1] if keys else BEHIND_ALL
        if last:
            upto, resolved = memory.resolved_up_to(to)
            gone.delete(self._db, self._log, memory.shard, resolved, memory.top)
            found = self._log.last_before(stored.cut, memory.cut_position(to, upto))
            if found is not None:
                stored.cut, stored.mid = found
                self._log.cut(stored.cut)
            stored.fold_position = max(stored.fold_position, upto)
            last = upto == to
            deleted = None if last else str(upto)
        self.store_mark(entry_id)
        entry = (entry_id, FOLD, at, memory.top, 0, to, deleted, None if last else last_key)
        self._log.append(entry)
        memory.apply(entry, ())

    def store_mark(self, entry: int) -> None:
        """Write `mark` as of an entry that is about to be appended."""
        memory = self._memory
        stored = memory.mark
        stored.counted, stored.counted_top = entry, memory.top
        stored.last_token, stored.seq_floor = memory.last_token, memory.floor
        mark.write(self._db, stored, memory.totals)
        if memory.counts is not None:
            tenant_depths.store(self._db, memory.counts)
