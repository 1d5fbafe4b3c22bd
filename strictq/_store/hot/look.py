"""Reads of a shard that has hot lanes: a read-only connection sees the tables as if every lane had cooled.

The rows that hot lanes would have are in temporary tables of the connection. Temporary views with the names of the shard's tables
show both. So every statement that reads lanes, messages and leases works on hot lanes, too, and nothing is written.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import apsw

from ..._sql import HOT, SHARD
from ..commit.tx import Totals
from ..lanes import resolution
from ..lanes.leases import ID
from .memory import Memory

_COUNTER: Final = SHARD.read_counter.replace("FROM counter", "FROM main.counter")
"""Reads the counter row itself even if a view of that name is shown."""


class Shadows:
    """The hot lanes of a shard in the temporary tables of one connection. Used inside its read transactions, one at a time."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._known: apsw.Connection | None = None
        """The connection whose temporary tables and views are known."""
        self._made = False
        self._shown = False
        self._filled: tuple[int, int, int, int] | None = None

    def prepare(self, db: apsw.Connection, wanted: bool | None) -> bool:
        """Update the views to what this read transaction sees.

        Args:
            wanted: False: the caller reads the tables alone. None: it reads neither, so nothing is prepared.
        Returns:
            Whether temporary tables changed, which a rollback would undo.
        """
        if wanted is None:
            return self._known is db and self._hide(db)
        changed = self._known is not db
        if changed:
            db.execute(HOT.drop_shadows).fetchall()  # drops what a failed read left behind
            self._known, self._made, self._shown, self._filled = db, False, False, None
        totals = self._agree(db) if wanted else None
        if totals is None or not self._memory.ids:
            return self._hide(db) or changed
        state = (self._memory.seen, self._memory.top, self._memory.gate, totals.last_lane)
        if self._filled != state:
            changed = True
            if not self._made:
                db.execute(HOT.make_shadows).fetchall()
                self._made = True
            db.execute(HOT.empty_shadows).fetchall()
            unnumbered = self._fill(db, totals.last_lane)
            totals.next_deadline = min(totals.next_deadline, self._memory.next_deadline)
            totals.last_lane += unnumbered
            totals.lanes += unnumbered
            db.execute(HOT.shadow_counter, totals.values())
            self._filled = state
        if not self._shown:
            changed = self._shown = True
            db.execute(HOT.show_shadows).fetchall()
        return changed

    def _hide(self, db: apsw.Connection) -> bool:
        shown, self._shown = self._shown, False
        if shown:
            db.execute(HOT.hide_shadows).fetchall()
        return shown

    def _agree(self, db: apsw.Connection) -> Totals | None:
        row = db.execute(_COUNTER).get
        if row is None:
            return None  # check() reports it
        totals = Totals(*row)
        self._memory.agree(db, totals)
        return totals

    def forget(self) -> None:
        """Discard the state: what was prepared was rolled back."""
        self._known = None
        self._memory.unsure = True

    def _fill(self, db: apsw.Connection, last_lane: int) -> int:
        """Fill the temporary tables.

        Return the number of lanes without a row, which are shown with numbers after the last one, in the order of their keys:
        every process that reads this state gives them the same ones.
        """
        unnumbered = 0
        messages: list[tuple[Any, ...]] = []
        for lane in sorted(self._memory.lanes.values(), key=attrgetter("key")):
            number = db.execute(HOT.shadow_known, (lane.key,)).get
            if number is None:
                unnumbered += 1
                number = last_lane + unnumbered
                db.execute(HOT.shadow_lane, (number, lane.key))
            db.execute(HOT.shadow_state, lane.state_row(number))
            messages += lane.message_rows(number)
            if lane.done is not None:
                token, _, seqs = lane.done
                db.execute(HOT.shadow_done, (token, seqs[0], seqs[-1], resolution.gaps(seqs), number))
            if lease := lane.lease_row(number):
                db.execute(HOT.shadow_lease, lease)
            elif lane.rows:
                db.execute(HOT.shadow_ready, (lane.rows[0][ID], number))
        db.executemany(HOT.shadow_message, messages)
        return unnumbered
