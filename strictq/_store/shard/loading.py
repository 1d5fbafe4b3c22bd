"""Bring lanes from their rows into memory, and find the lanes and messages that an entry names.

A lane may be loaded at any moment, also from a row that is ahead of memory: what its row includes has no effect on it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import apsw

from ..._values.errors import StoreCorrupt
from ..._values.keys import ASIDE, KEYLESS, is_keyless
from ..lane import entries as kinds
from ..lane.damage import is_of_values
from ..lane.entries import Entry, decode_groups, decode_keys, unpack
from ..lane.live_lane import LaneAtRest, LiveLane
from ..lane.memory import M_DUE, M_ID, M_KEY, M_SEQ, Group, MessageRow, ShardMemory
from ..lane.ranges import hash_of
from ..tables.lane_rows import LaneRows
from ..tables.log_rows import LogRows

KINDS_WITH_KEYS = frozenset((kinds.HOLD, kinds.RELEASE_HOLD, kinds.FORGET))
KINDS_WITHOUT_LANES = frozenset((kinds.NOTE, kinds.VOID, kinds.FOLD))
ASKED, CREATED, EMPTY = range(3)
"""What a key without a lane gets. ASKED: a lane, unless another shard may have one. CREATED: a lane. EMPTY: an empty one that
memory does not keep, for a look that asks no other shard: a send of this process would take it for one that is here."""
PLAIN_KINDS = frozenset((kinds.CLAIM, kinds.MORE, kinds.ACK, kinds.ACK_FIRST, kinds.NACK, kinds.DEFER, kinds.START))
"""The common ones of those whose data are messages of live lanes."""


def parked_key(key: bytes, seq: int) -> bytes:
    """Return the key of the lane that a keyless message is parked in. Those of format 2 have an arrival number and no letter."""
    return key + ASIDE + b"s%d" % seq


class NeedsTransactionError(Exception):
    """A plan must read rows, or write more than one, so a single statement can't do it. Never leaves this package."""


class Loader:
    """Loads lanes of one shard.

    Attributes:
        alone: the plan of a single statement is running. It may read nothing, because it has no snapshot.
        unknown: what keys without lanes get. CREATED while entries are applied: their processes had the right to create lanes.
    """

    def __init__(self, db: apsw.Connection, memory: ShardMemory, log: LogRows, rows: LaneRows) -> None:
        self._db = db
        self.memory = memory
        self.log = log
        self.rows = rows
        self.alone = False
        self.unknown = ASKED

    def require_snapshot(self) -> None:
        if self.alone:
            raise NeedsTransactionError

    # ---- lanes

    def load(self, keys: Iterable[bytes]) -> None:
        """Bring lanes into memory. The heads of those that were evicted stay at rest."""
        memory = self.memory
        lanes, tails = memory.lanes, memory.tails
        missing: list[bytes] = []
        for key in keys:
            if key in lanes:
                continue
            tail = tails.get(key)
            if tail is None:
                missing.append(key)
            elif tail >= 0:
                del tails[key]
                lanes[key] = lane = LiveLane(key, tail)
                lane.bare = True
            else:
                del tails[key]
                lanes[key] = lane = LiveLane(key, -tail)
                lane.rest = lane.split = True
        if not missing:
            return
        self.require_snapshot()
        for row in self.rows.load(missing):
            self.adopt(row)
        new = [] if self.unknown == EMPTY else [key for key in missing if key not in lanes]
        if memory.ranges is not None and self.unknown == ASKED:
            for key in new:
                self.require_mine(key)
        for key in new:
            lanes[key] = LiveLane(key, 0)

    def require_mine(self, key: bytes) -> None:
        """Refuse to create a lane that another shard may have.

        Raises:
            Rerouted: nothing changed.
        """
        ranges = self.memory.ranges
        if ranges is not None and not ranges.may_create(hash_of(key)):
            raise ranges.reroute(key, self.memory.shard, self.memory.floor)

    def new_lane(self, key: bytes) -> LiveLane | None:
        """Return a lane that no message was sent to. None: it has a row, or ranges have moved, so a transaction must look.

        The read is valid if no process writes between it and the statement that follows.
        """
        if self.memory.ranges is not None or self.rows.load((key,)):
            return None
        lane = self.memory.lanes[key] = LiveLane(key, 0)
        return lane

    def lane(self, key: bytes) -> LiveLane:
        """Return a lane with its head."""
        lane = self.memory.lanes.get(key)
        if lane is None:
            self.load((key,))
            is_empty = self.unknown == EMPTY and key not in self.memory.lanes
            lane = LiveLane(key, 0) if is_empty else self.memory.lanes[key]
        if lane.rest:
            self.fill(lane)
        return lane

    def beside(self, lane: LiveLane, seq: int) -> LiveLane:
        """Return the lane that a message is parked in. It is created beside the message's lane, even if the range is leaving."""
        with self.giving(CREATED):
            return self.lane(parked_key(lane.key, seq))

    @contextmanager
    def giving(self, unknown: int) -> Iterator[None]:
        """Let keys without lanes get this in the block."""
        before, self.unknown = self.unknown, unknown
        try:
            yield
        finally:
            self.unknown = before

    def adopt(self, row: LaneAtRest) -> LiveLane:
        """Make a lane what its row says, with a window at its head."""
        want = max(self.memory.limits.head, row.held or 0)
        ids = self.rows.window(row, row.first, want)
        return self.memory.adopt(row, ids[:want])

    def fill(self, lane: LiveLane) -> None:
        """Read the head of a lane of which only the tail is loaded."""
        self.require_snapshot()
        self.adopt(self.rows.row(lane.key))

    def extend(self, lane: LiveLane, want: int = 0) -> bool:
        """Read more ids of a deep lane. Return False if its row was newer than memory: then the row replaced the lane."""
        self.require_snapshot()
        memory = self.memory
        row = self.rows.row(lane.key)
        if row.lsn > max(memory.seen, lane.lsn):
            self.adopt(row)
            return False
        want = min(max(memory.limits.head, want), lane.deep)
        ids = self.rows.window(row, lane.first + len(lane.ids or ()), want)[:want]
        if not ids:
            raise StoreCorrupt(f"the row of lane {lane.key!r} lacks {lane.deep} messages", shard=memory.shard)
        memory.extend_window(lane, ids)
        return True

    def fill_heads(self, keys: Iterable[bytes]) -> None:
        """Load lanes that an index lists, with their heads."""
        lanes = self.memory.lanes
        wanted = [key for key in keys if (lane := lanes.get(key)) is None or lane.rest]
        for row in self.rows.load(wanted):
            self.adopt(row)

    def place_all(self) -> None:
        """List the lanes whose heads are not in memory."""
        memory = self.memory
        while memory.unplaced:
            self.require_snapshot()
            lane = memory.unplaced.pop()
            if memory.lanes.get(lane.key) is not lane or lane.grant is not None:
                continue
            if lane.rest:
                self.fill(lane)
            elif not lane.ids and lane.split:
                if self.extend(lane):
                    memory.place(lane)
            else:
                if lane.ids and lane.ids[0] and memory.due_of(lane, lane.ids[0], lane.first) is None:
                    self.read_dues(lane, [lane.ids[0]])
                memory.place(lane)

    def read_dues(self, lane: LiveLane, arrivals: Sequence[int]) -> None:
        """Read the ends of delays of messages that were sent with one."""
        self.require_snapshot()
        times = self.log.times(arrivals)
        dues = lane.with_rare_state().dues
        for i in arrivals:
            dues[i] = times.get(i, (0, 0))[0] or 0

    # ---- what an entry names

    def groups(self, entry: Entry) -> list[Group]:
        """Return the lanes that an entry concerns and that do not include it yet, with its messages.

        If the row of a message is gone, so is the journal up to the entry that resolved it, and its lane's row includes both.

        Raises:
            StoreCorrupt: the data is not that of an entry.
        """
        kind, holder = entry[1], entry[6]
        try:
            if kind in PLAIN_KINDS and holder != kinds.DEAD and (plain := self._plain_groups(entry)) is not None:
                return plain
            if kind in KINDS_WITHOUT_LANES or (kind in kinds.OF_DEAD and holder == kinds.DEAD):
                return []  # a dead letter is not in its lane any more
            if kind in KINDS_WITH_KEYS or (holder is not None and kind in (kinds.RELEASE, kinds.EXTEND)):
                return [(lane, []) for lane in self._behind(decode_keys(entry[7]), entry)]
            named = decode_groups(entry[7])
        except ValueError as e:
            if not is_of_values(e):
                raise
            shard = self.memory.shard
            raise StoreCorrupt(f"row {entry[0]} of its journal has invalid data: {e}", shard=shard, cause=e) from e
        if kind == kinds.REDRIVE:
            return self._with_seqs(named, entry)
        if kind == kinds.PARK:
            return self._parked(named[0][0], entry)
        keys = self.keys_of([ids[0] for ids in named], entry[0])
        known = [(key, ids) for ids in named if (key := keys.get(ids[0])) is not None]
        behind = {lane.key: lane for lane in self._behind([key for key, _ in known], entry)}
        found: list[Group] = []
        for key, ids in known:
            lane = behind.get(key)
            if lane is not None and self.cover(lane, ids):
                found.append((lane, ids))
        return found

    def _plain_groups(self, entry: Entry) -> list[Group] | None:
        """Return what `groups` does if all of it is in memory, in one pass: the common case. None: it is another."""
        memory = self.memory
        rows, old_rows, lanes, entry_id = memory.rows, memory.old_rows, memory.lanes, entry[0]
        found: list[Group] = []
        ids: list[int] = []
        for i in unpack(entry[7] or b""):
            if i < 0 and found:
                ids.append(-i)
                continue
            row = rows.get(i) or old_rows.get(i)
            if row is None or (lane := lanes.get(key := row[M_KEY])) is None:
                return None
            if lane.rest or lane.deep or lane.lsn >= entry_id or key.startswith(KEYLESS):
                return None
            ids = [i]
            found.append((lane, ids))
        return found or None

    def keys_of(self, arrivals: Sequence[int], entry: int = kinds.NEVER) -> dict[int, bytes]:
        """Return the keys of the lanes that messages are in. Those whose rows were deleted are missing.

        Args:
            entry: the id of the one that names them, if memory may be behind.
        """
        places = self.memory.places_of(arrivals)
        if len(places) < len(arrivals):
            places |= self.log.keys(set(arrivals).difference(places))
        return {i: key if not is_keyless(key) else self._lane_of(i, key, seq, entry) for i, (key, seq) in places.items()}

    def _lane_of(self, arrival: int, key: bytes, seq: int, entry: int) -> bytes:
        """Return the key of the lane of a keyless message, which may be parked."""
        lanes = self.memory.lanes
        if ASIDE in key or ((first := lanes.get(key)) is not None and first.has(seq, arrival)):
            return key
        aside = parked_key(key, seq)
        if aside not in lanes and aside not in self.memory.tails:
            for row in self.rows.load([aside]):
                self.adopt(row)
            if aside not in lanes:
                return key
        parked = self.lane(aside)
        if not parked.tail:
            return key
        if parked.lsn < entry:
            return aside
        # The parked lane's row is ahead of memory. If memory still has the message in its first lane, it is not parked yet.
        first = self.lane(key)
        if first.lsn < entry and self.cover(first, [arrival]) and first.has(seq, arrival):
            return key
        return aside

    def _parked(self, arrival: int, entry: Entry) -> list[Group]:
        places = self.log.keys([arrival])
        if arrival not in places:
            return []
        key, seq = places[arrival]
        found: list[Group] = []
        for lane in self._behind([key, parked_key(key, seq)], entry):
            if lane.key != key:
                found.append((lane, [seq, arrival]))
            elif (lane.new and arrival in lane.new) or self.cover(lane, [arrival]):
                found.append((lane, [arrival]))
        return found

    def _behind(self, keys: Sequence[bytes], entry: Entry) -> list[LiveLane]:
        """Return the lanes of keys that do not include an entry."""
        self.load(keys)
        lanes = self.memory.lanes
        found = []
        for key in keys:
            lane = lanes[key]
            if lane.rest:
                self.fill(lane)
            if lane.lsn < entry[0]:
                found.append(lane)
        return found

    def _with_seqs(self, named: list[list[int]], entry: Entry) -> list[Group]:
        rows = self.log.keys([i for ids in named for i in ids])
        found: list[Group] = []
        for ids in named:
            some = [(i, *rows[i]) for i in ids if i in rows]
            if not some:
                continue
            _, key, seq = some[0]
            is_parked = entry[6] == kinds.PARKED and ASIDE not in key
            if lanes := self._behind([parked_key(key, seq) if is_parked else key], entry):
                found.append((lanes[0], [number for i, _, seq in some for number in (seq, i)]))
        return found

    def cover(self, lane: LiveLane, ids: list[int]) -> bool:
        """Read ids of a lane until these are in its window. Return False if its row was newer, and so includes the entry."""
        last = ids[-1]
        while lane.deep and (not lane.ids or lane.ids[-1] < last):
            if not self.extend(lane, len(ids)):
                return False
        return True

    def fill_delayed(self, arriving: Iterable[tuple[bytes, int | None]]) -> None:
        """Read the heads of lanes that get delayed messages, because their rows must say so.

        Before any of the messages is applied: the row may be ahead, and include some of them.
        """
        lanes = self.memory.lanes
        for key, due in arriving:
            if due is not None and lanes[key].rest:
                self.fill(lanes[key])

    def arrive(self, rows: Sequence[MessageRow]) -> None:
        """Add messages of other processes to memory."""
        memory = self.memory
        lanes, totals = memory.lanes, memory.totals
        self.load({row[M_KEY] for row in rows}.difference(lanes))
        if delayed := [(row[M_KEY], row[M_DUE]) for row in rows if row[M_DUE] is not None]:
            self.fill_delayed(delayed)
        memory.keep_bodies(rows)
        some: list[LiveLane] = []
        new: list[MessageRow] = []
        for row in rows:
            lane, seq = lanes[row[M_KEY]], row[M_SEQ]
            if seq <= lane.tail:
                continue  # its row includes it
            if not lane.tail:
                totals.lanes += row[M_ID] > memory.mark.counted_top
                lane.first = seq
            elif seq != lane.tail + 1:
                raise StoreCorrupt(f"row {row[M_ID]} of its messages has seq {seq} after {lane.tail}", shard=memory.shard)
            lane.tail = seq
            some.append(lane)
            new.append(row)
        memory.arrived(some, new)
        memory.top = max(memory.top, rows[-1][M_ID])
