"""All loaded lanes of a shard, and `apply`, the one function by which an entry changes them.

Memory is a function of the tables. It is the same for this process's entries, for those of others, and for a process that begins.
What depends on the present time, such as the end of a delay or an expired lease, is no part of it: a plan lists such lanes.

`unsure` is set before the first change of memory and cleared once it agrees with the file again. Whatever finds it set builds
memory anew: an interrupt, or a failed statement, may have left a part of a change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final

import attrs

from ..._values.errors import SchemaMismatch, StoreCorrupt
from ..._values.tenants import COMMON, TenantRules
from . import entries as kinds
from .damage import is_of_values
from .entries import HOLDER, TOKEN_BITS, Entry
from .live_lane import Grant, LaneAtRest, LiveLane, lease_of_row, parse_done
from .order import PLACE_BITS, LaneOrder, place_of_arrival, place_of_retry
from .ranges import Ranges
from .tenant_counts import COUNTED, TenantCounts
from .totals import RunningTotals, StoredMark
from .turns import TenantTurns

MessageRow = tuple[Any, ...]
"""A row of `message`: id, key, seq, sent_at, due, expires, opts, and its body; None: it was not read, or is not kept."""
M_ID, M_KEY, M_SEQ, M_SENT_AT, M_DUE, M_EXPIRES, M_OPTS, M_BODY = range(8)
BODY_BYTES_KEPT: Final = 16 * 1024 * 1024
"""How many bytes of bodies of messages are kept between two folds."""
FOREIGN_BODY_BYTES: Final = 256
"""The length of the bodies that are read with the messages of other processes. Longer ones are read when they are claimed."""
Group = tuple[LiveLane, list[int]]
"""A lane, and its messages that an entry names."""
_ID_OF: Final = itemgetter(M_ID)
_BODY_OF: Final = itemgetter(M_BODY)
_OPTS_OF: Final = itemgetter(M_OPTS)
_run_all: Final = deque[Any](maxlen=0).extend
"""Exhausts an iterator, without a step of Python for each element."""


@attrs.define
class StoreLimits:
    """How much is loaded, and when it is written. Policies: other processes may use other values.

    Attributes:
        window: a fold is due after twice so many lives of messages.
        slice: lanes that a slice of a fold writes.
        deleted: resolved messages whose rows a slice deletes, about.
        head: ids of a deep lane that stay loaded.
        chunk: ids of a lane that are sealed as one row of `pending`.
        loaded_max: ids, and lanes, that stay loaded.
        tails_max: evicted lanes whose tails are kept.
    """

    window: int = 12_288
    slice: int = 1_024
    deleted: int = 4_096
    head: int = 64
    chunk: int = 512
    loaded_max: int = 65_536
    tails_max: int = 131_072

    @property
    def work(self) -> int:
        """Arrivals and messages of entries after which a fold is due: three for a message's life."""
        return 6 * self.window


def without_body(row: MessageRow) -> MessageRow:
    """Return a row without its body and its options, which are read again together."""
    return (*row[:M_OPTS], None, None)


class ShardMemory:
    """The loaded lanes of one shard. Only the holder of the shard's lock uses it.

    Attributes:
        seen, top: the newest entry and message that memory has.
        at: the newest time of an entry.
        lanes: the loaded ones. `tails`: of evicted ones; negative: it has state at rest.
        rows: messages that arrived since the last fold, a cache; `old_rows`: before it.
        dirty: by key, the position of the first change since the lane's row was written. In the order of insertion.
        gone: (position, arrival numbers) of messages that were resolved, and whose rows were not yet given to `gone`.
        unplaced: lanes whose head must be read before they can be listed.
        parked: keys of the lanes of parked messages, live or ended, as far as memory knows.
        holds: keys of held lanes, as far as memory knows.
        redrives: entries that made dead messages unresolved again.
        taken_back: entries after which a message may have no attempt that had one.
        loaded: the number of loaded ids.
        work: arrivals and messages of entries since the last generation was finished.
        fold_at: the work at which the next slice of a fold is due. It depends on work, not on positions: while a backlog is
            drained in batches, positions rise by two for each batch.
        fold_to: the end of the generation that is being folded. 0: none is.
    """

    def __init__(self, shard: int, limits: StoreLimits) -> None:
        self.shard = shard
        self.limits = limits
        self.unsure = True
        self.rebuilds = 0
        self.slot_freed = False
        """Whether an entry ended a lease of a tenant that may have only so many."""
        self.redrives = 0
        self.taken_back = 0
        self.ranges: Ranges | None = None
        """The ranges of hashes of the shard. None: none has moved from it or to it, and every key that comes is its own."""
        self.tenancy: TenantRules | None = None
        """How the tenants of the queue take turns. None: it has none. A policy: other processes may use another."""
        self.counts: TenantCounts | None = None
        """What each tenant has. None: the queue has no tenants."""
        self.clear(StoredMark(), RunningTotals())

    def clear(self, mark: StoredMark, totals: RunningTotals) -> None:
        """Begin at a mark, with nothing loaded."""
        self.mark = mark
        self.totals = totals
        self.counts = None
        self.seen, self.top = mark.cut, mark.mid
        self.at = 0
        self.floor = mark.seq_floor
        self.last_token = mark.last_token
        self.lanes: dict[bytes, LiveLane] = {}
        self.tails: dict[bytes, int] = {}
        self.rows: dict[int, MessageRow] = {}
        self.old_rows: dict[int, MessageRow] = {}
        self.bytes_kept = 0
        self.dirty: dict[bytes, int] = {}
        self.gone: list[tuple[int, list[int]]] = []
        self.unplaced: list[LiveLane] = []
        self.parked: dict[bytes, None] = {}
        self.holds: set[bytes] = set()
        self.order = LaneOrder()
        self.order.take_turns(self.tenancy, self.lanes)
        self.loaded = 0
        self.work = 0
        self.fold_at = self.limits.work
        self.fold_to = 0
        self._generation_to = -1
        self._generation: list[bytes] = []
        self._generation_at = 0
        self._sorted: list[bytes] = []
        self.rebuilds += 1

    def take_turns(self, tenancy: TenantRules | None) -> None:
        """Let tenants take turns from now on, or none (None)."""
        before = self.tenancy
        if before is None or tenancy is None or before.separator != tenancy.separator:
            for lane in self.lanes.values():
                lane.tenant = None
        self.tenancy = tenancy
        self.order.take_turns(tenancy, self.lanes)

    def count_tenants(self, counts: TenantCounts) -> None:
        """Count what tenants have. Turns by another separator end: lanes keep the names of their tenants by this one."""
        self.counts = counts
        if self.tenancy is None or self.tenancy.separator != counts.separator:
            self.take_turns(None)

    @property
    def sole_tenant(self) -> bytes | None:
        """The tenant of all unresolved messages, if the queue has tenants or sidelines. None: several have some, or none has."""
        if self.counts is not None:
            return self.counts.sole
        return COMMON if self.tenancy is not None and not self.tenancy.separator else None

    # ---- lanes

    def new_token(self) -> int:
        """Return the token that the next claim has."""
        return (self.mark.epoch << TOKEN_BITS) + self.last_token + 1

    def touch(self, lane: LiveLane) -> None:
        """Note that a lane differs from its row from here on."""
        if lane.key not in self.dirty:
            self.dirty[lane.key] = self.seen + self.top

    def adopt(self, row: LaneAtRest, ids: list[int]) -> LiveLane:
        """Make a lane what its row says, with the ids at its head. The newer of the two wins, so the row may be ahead.

        Args:
            ids: a window of its ids, from its `first` on.
        Raises:
            StoreCorrupt: no fold wrote such a row.
        """
        lane = self.lanes.get(row.key)
        delayed = expires = 0
        if lane is None:
            lane = self.lanes[row.key] = LiveLane(row.key, row.tail)
            self.tails.pop(row.key, None)
        else:
            self.loaded -= len(lane.ids or ())
            if lane.grant is not None:
                lane.leave_lease()  # that of the row replaces it
            if lane.new:
                # Those that the row includes are at its end.
                lane.new = lane.new[max(0, row.tail - (lane.tail - len(lane.new))) :] or None
            if lane.new:
                delayed = lane.rare.delayed if lane.rare is not None else 0
                expires = lane.expires
            lane.tail = max(lane.tail, row.tail)
        lane.listed = 0
        lane.rest = lane.bare = False
        lane.lsn = max(lane.lsn, row.lsn)
        lane.active = max(lane.active, row.active_at)
        lane.first = row.first
        lane.ids = ids or None
        lane.deep = row.tail - row.first + 1 - len(ids)
        if not lane.deep and lane.new:
            lane.ids = (lane.ids or []) + lane.new
            lane.new = None
        lane.split = lane.deep > 0
        self.loaded += len(lane.ids or ())
        lane.due = row.due or 0
        lane.expires = min(filter(None, (row.expires, expires)), default=0)
        lane.held = lane.low = lane.started = 0
        try:
            lane.adopt_opts(row.opts)
            lane.done = parse_done(row.done)
            lane.fill_holes()
            if lane.rare is not None and lane.rare.hold is not None:
                self.holds.add(lane.key)
            if delayed:
                state = lane.with_rare_state()
                state.delayed = max(state.delayed, delayed)
            if row.token is not None:
                at, low, holder = lease_of_row(row)
                grant = Grant(row.token, row.deadline or 0, at, holder, [lane])
                lane.grant, lane.held, lane.low, lane.started = grant, row.held or 0, low, row.started or 0
                self.order.watch(grant)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            if not is_of_values(e):
                raise
            raise StoreCorrupt(f"the row of lane {row.key!r} is invalid: {e}", shard=self.shard, cause=e) from e
        if lane.grant is None:
            rare = lane.rare
            if rare is not None and lane.ids and not (rare.hold or rare.front or lane.ids[0] in rare.tried):
                rare.dues[lane.ids[0]] = lane.due
            self.place(lane, row.position or 0)
        if self.counts is not None:
            self.counts.note((lane,))
        return lane

    def extend_window(self, lane: LiveLane, ids: list[int]) -> None:
        """Add ids that were read from a deep lane's row behind its window."""
        window = lane.ids
        if window is None:
            window = lane.ids = []
        window += ids
        lane.deep -= len(ids)
        self.loaded += len(ids)
        if not lane.deep:
            lane.split = False
            if lane.new:
                window += lane.new
                self.loaded += len(lane.new)
                lane.new = None
        lane.fill_holes()

    def place(self, lane: LiveLane, place: int = 0) -> None:
        """List a free lane where it belongs.

        Args:
            place: its place in the order, if it is ready; 0: that of the arrival of its head.
        """
        ids = lane.ids
        if not ids[0] if ids else lane.holes:
            self.loaded -= lane.trim()
            ids = lane.ids
        rare = lane.rare
        if rare is None and ids:
            lane.due = 0
            place = place or ids[0] << PLACE_BITS
            if lane.listed != place:
                self.order.list(lane, place)
            return
        if rare is not None:
            if rare.hold is not None:
                lane.unlist()
                lane.due = 0
                return
            if rare.front:
                head = rare.front[0][1]
                lane.due = lane.attempts(head)[2]
                self._list_or_delay(lane, place or place_of_arrival(head))
                return
        if not ids:
            lane.due = 0
            lane.unlist()
            if lane.split:
                self.unplaced.append(lane)
            return
        head = ids[0]
        due = self.due_of(lane, head, lane.first)
        if due is None:
            self.unplaced.append(lane)
            return
        lane.due = due
        self._list_or_delay(lane, place or place_of_arrival(head))

    def _list_or_delay(self, lane: LiveLane, place: int) -> None:
        if lane.due:
            lane.unlist()
            self.order.delay(lane)
        else:
            self.order.list(lane, place)

    def due_of(self, lane: LiveLane, arrival: int, seq: int) -> int | None:
        """Return when a message may be delivered; 0: at any time. None: its row must be read."""
        rare = lane.rare
        if rare is None:
            return 0
        if arrival in rare.tried:
            return rare.tried[arrival][2]
        if seq > rare.delayed or arrival in rare.redriven:
            return 0
        if arrival in rare.dues:
            return rare.dues[arrival]
        row = self.rows.get(arrival) or self.old_rows.get(arrival)
        return None if row is None else row[M_DUE] or 0

    # ---- arrivals

    def arrived(self, lanes: Sequence[LiveLane], rows: Sequence[MessageRow]) -> None:
        """Add messages in the order of arrival. The caller has already raised the `tail` of their lanes."""
        if not rows:
            return
        n = len(rows)
        if rows[0][0] <= self.mark.counted_top:
            n -= bisect_right(rows, self.mark.counted_top, key=_ID_OF)
        if self.counts is not None and n:
            sole, order = self.counts.sole, self.order
            self.counts.arrived(lanes if n == len(rows) else lanes[-n:], self.totals.pending)
            if self.counts.sole is None and order.tenancy is not None and order.turns is None and not order.is_short:
                order.begin_turns(sole, self.lanes)  # otherwise, a claim that leaves messages does it
        self.totals.sends += n
        self.totals.pending += n
        dirty, seen = self.dirty, self.seen
        listed, places, turns = self.order.arrived, self.order.arrived_at, self.order.turns
        for lane, row in zip(lanes, rows, strict=True):
            arrival, key = row[0], row[1]
            if key not in dirty:
                dirty[key] = seen + arrival
            if lane.split or row[4] is not None or row[5] is not None:
                self._arrived_rarely(lane, row)
                continue
            ids = lane.ids
            if ids:
                ids.append(arrival)
                continue
            lane.ids = [arrival]
            lane.first = row[2]
            if lane.grant is None:
                if lane.rare is not None:
                    self.place(lane)
                    continue
                lane.listed = place = arrival << PLACE_BITS
                if turns is None:
                    listed.append(key)
                    places.append(place)
                else:
                    turns.list(place, lane)
            elif not lane.held:
                self.order.watch(lane.grant)  # `ack_first` left it, and an earlier end found no message to list
        self.loaded += len(rows)
        self.work += len(rows)
        self.top = rows[-1][0]

    def keep_bodies(self, rows: Sequence[MessageRow]) -> None:
        """Keep recent messages, whose rows then need not be read. Their bodies are kept while they do not fill memory."""
        self.bytes_kept += sum(map(len, filter(None, map(_BODY_OF, rows)))) + sum(map(len, filter(None, map(_OPTS_OF, rows))))
        kept = rows if self.bytes_kept <= BODY_BYTES_KEPT else [without_body(row) for row in rows]
        self.rows.update(zip(map(_ID_OF, rows), kept, strict=True))

    def _arrived_rarely(self, lane: LiveLane, row: MessageRow) -> None:
        arrival, _, seq, _, due, expires = row[:6]
        if due is not None:
            rare = lane.with_rare_state()
            rare.delayed = seq
            rare.dues[arrival] = due
        if expires is not None and not 0 < lane.expires <= expires:
            lane.expires = expires
        if lane.split:
            self.loaded -= 1  # `new` is not counted
            if lane.new is None:
                lane.new = [arrival]
            else:
                lane.new.append(arrival)
        elif lane.ids:
            lane.ids.append(arrival)
        else:
            lane.ids = [arrival]
            lane.first = seq
            if lane.grant is None:
                self.place(lane)
            elif not lane.held:
                self.order.watch(lane.grant)

    # ---- entries

    def apply(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Change memory as an entry says.

        Args:
            groups: the lanes that it concerns and do not include it yet, each with its messages that the entry names. Of an
                entry with keys, the messages are empty.
        Raises:
            SchemaMismatch: this version does not know the kind.
            StoreCorrupt: the entry does not fit to its lanes.
        """
        effect = EFFECTS.get(entry[1])
        if effect is None:
            raise SchemaMismatch(f"row {entry[0]} of its journal has the unknown kind {entry[1]}", shard=self.shard)
        self.seen = entry[0]
        if entry[2] > self.at:
            self.at = entry[2]
        counts = self.counts
        if counts is not None and entry[1] in COUNTED and self._counts(entry):
            counts.apply(entry, groups)
        try:
            effect(self, entry, groups)
            if counts is not None and counts.leased is not None:
                for tenant in counts.note([lane for lane, _ in groups]):
                    self.slot_freed |= self.order.slot_is_free(tenant)
        except (ValueError, IndexError) as e:
            if not is_of_values(e):
                raise
            raise StoreCorrupt(f"row {entry[0]} of its journal does not fit to its lanes: {e}", shard=self.shard, cause=e) from e

    def _counts(self, entry: Entry) -> bool:
        return entry[0] > self.mark.counted

    def _claimed(self, entry: Entry, groups: Sequence[Group]) -> None:
        id_, _, at, top, token, deadline, holder, data = entry
        grant = Grant(token, deadline, at, holder or "", [lane for lane, _ in groups])
        charged, position, dirty = kinds.is_charged(holder), id_ + top, self.dirty
        for lane, ids in groups:
            if lane.grant is not None:
                raise ValueError(f"lane {lane.key!r} is leased twice")
            window, n = lane.ids, len(ids)
            if lane.rare is None and window is not None and window[0] == ids[0] and window[n - 1] == ids[-1]:
                # The common case of `take`.
                lane.grant, lane.held, lane.listed = grant, n, 0
                lane.low = first = lane.first
                lane.started = first if charged and n == 1 else first - 1
            else:
                self.loaded -= lane.trim()
                lane.take(grant, ids, charged)
            if lane.key not in dirty:
                dirty[lane.key] = position
        n = len(data or b"") // 8
        self.work += n
        if self.order.tenancy is not None:
            self._charge(self.order.tenancy, groups, n)
        number = token & ((1 << TOKEN_BITS) - 1)
        if number > self.last_token:
            self.last_token = number
        if grant.left:
            self.order.watch(grant)
        if id_ > self.mark.counted:
            self.totals.claims += 1
            self.totals.receives += n

    def _charge(self, turns: TenantTurns, groups: Sequence[Group], messages: int) -> None:
        """Charge tenants with the messages that they get."""
        sole = self.sole_tenant
        if sole is not None and self.order.turns is None:
            if groups:
                turns.charge_sole(sole, messages, len(groups[-1][1]))
            return
        turns.charge_all(groups)

    def _grown(self, entry: Entry, groups: Sequence[Group]) -> None:
        n = len(entry[7] or b"") // 8
        if self.order.tenancy is not None:
            self._charge(self.order.tenancy, groups, n)
        for lane, ids in groups:
            self.touch(lane)
            lane.grow(ids)
        self.work += n
        if self._counts(entry):
            self.totals.receives += n

    def _resolved(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Remove messages. A lease without an unresolved message ends, unless it is kept by `ack_first`."""
        id_, kind, at, top, token, _, holder, data = entry
        dirty, position = self.dirty, id_ + top
        removed = 0
        resolves_lease = token and kind != kinds.ACK_FIRST
        for lane, ids in groups:
            lane.active = at
            if lane.key not in dirty:
                dirty[lane.key] = position
            window, held, n = lane.ids, lane.held, len(ids)
            if resolves_lease and held >= n and lane.rare is None and window is not None and window[:n] == ids:
                # The common case: the first of what a lease holds, or all of it.
                first, grant = lane.first, lane.grant
                lane.first = after = first + n
                lane.done = (token, kind, first, after - 1, ())
                removed += n
                if held > n:
                    lane.held = held - n
                    del window[:n]
                    if not window[0]:
                        removed += lane.trim()
                        if not lane.held:
                            self._end(lane)
                    continue
                if grant is not None:
                    lane.grant = None
                    grant.left = left = grant.left - 1
                    if not left:
                        grant.lanes = []
                lane.held = lane.low = lane.started = lane.due = lane.listed = 0
                if n == len(window):
                    lane.ids = None  # not emptied: `ids` may be the same list
                    if lane.split:
                        self.place(lane)
                else:
                    del window[:n]
                    self.place(lane)
                continue
            grant = lane.grant
            leased = lane.held or (lane.rare is not None and lane.rare.front_held)
            if token:
                if window is not None and window[:n] == ids:
                    lane.done = (token, kind, lane.first, lane.first + n - 1, ())
                else:
                    self._remember(lane, token, kind, ids)
            removed += lane.resolve(ids)
            if lane.rare is not None and not lane.ids:
                lane.tidy()  # a plain lane costs less
            if grant is None:
                self.place(lane)
            elif leased and not lane.held and kind != kinds.ACK_FIRST and lane.lease_is_settled:
                self._end(lane)
        if holder == kinds.NEXT:
            for lane, _ in groups:
                if lane.started < lane.first:
                    lane.started = lane.first
        self.loaded -= removed
        data = data or b""
        numbers = ids if len(groups) == 1 and len(data) == 8 * n else [*map(abs, kinds.unpack(data))]
        _run_all(map(self.rows.pop, numbers, repeat(None)))
        n = len(numbers)
        self.work += n + 1
        mark = self.mark
        if position > mark.fold_position and kind != kinds.REJECT and (kind != kinds.EXPIRE or holder != kinds.DEAD):
            self.gone.append((position, numbers))
        if id_ > mark.counted:
            self.totals.ended(kind, holder, at, n)

    def ack_one(self, entry: Entry) -> bool:
        """Do what `apply` does with an ack of the first message of a plain lane's lease, which is what consumers write most.

        Return False, and change nothing, if the entry is another one.
        """
        if entry[1] != kinds.ACK:
            return False
        id_, kind, at, top, token, _, holder, data = entry
        counts = self.counts
        if data is None or len(data) != 8 or holder == kinds.DEAD or (counts is not None and counts.leased is not None):
            return False
        arrival = int.from_bytes(data, "little", signed=True)
        row = self.rows.get(arrival) or self.old_rows.get(arrival)
        lane = None if row is None else self.lanes.get(row[M_KEY])
        if lane is None or lane.split or lane.rare is not None or lane.lsn >= id_:
            return False
        grant = lane.grant
        if grant is None or grant.token != token:
            return False
        window, held = lane.ids, lane.held
        if not window or not held or window[0] != arrival or (held > 1 and not window[1]):
            return False
        self.seen, lane.active = id_, at
        if at > self.at:
            self.at = at
        position, first, mark = id_ + top, lane.first, self.mark
        if lane.key not in self.dirty:
            self.dirty[lane.key] = position
        lane.first = after = first + 1
        lane.done = (token, kind, first, first, ())
        if held > 1:
            lane.held = held - 1
            if holder == kinds.NEXT and lane.started < after:
                lane.started = after
        else:
            lane.grant = None
            grant.left = left = grant.left - 1
            if not left:
                grant.lanes = []
            lane.held = lane.low = lane.started = lane.due = lane.listed = 0
        if len(window) == 1:
            lane.ids = None
        else:
            del window[0]
            if held == 1:
                self.place(lane)
        self.loaded -= 1
        self.rows.pop(arrival, None)
        self.work += 2
        if position > mark.fold_position:
            self.gone.append((position, [arrival]))
        if id_ > mark.counted:
            self.totals.ended(kind, holder, at, 1)
            if counts is not None:
                counts.changes[lane.tenant_by(counts.separator)] -= 1
        return True

    @staticmethod
    def _remember(lane: LiveLane, token: int, kind: int, ids: list[int]) -> None:
        """Note a lane's last resolution."""
        seqs = sorted([lane.seq_of(i) for i in ids])
        low, high = seqs[0], seqs[-1]
        left_out = () if high - low + 1 == len(seqs) else tuple(sorted(set(range(low, high)).difference(seqs)))
        lane.done = (token, kind, low, high, left_out)

    def _end(self, lane: LiveLane, place: int = 0) -> None:
        """End a lane's lease, and list the lane again."""
        lane.leave_lease()
        self.place(lane, place)

    def _postponed(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Return a message and all behind it to its lane. A nack charges it, and those behind it whose handlers were started.

        Without a token, the head of a free lane gets another delay.
        """
        id_, kind, _, top, token, due, _, _ = entry
        self.taken_back += kind != kinds.NACK
        for lane, ids in groups:
            self.touch(lane)
            if not token:
                lane.charge(ids[0], due=due, starts=0)
                if lane.grant is None:
                    self.place(lane)
                continue
            self._remember(lane, token, kind, ids)
            started = lane.started
            back = lane.give_back(ids[0])
            lane.charge(ids[0], due=due, starts=int(kind == kinds.NACK))
            for seq, i in back[1:]:
                if kind == kinds.NACK and seq <= started:
                    lane.charge(i)
            self._end_if_settled(lane, place_of_retry(id_, top))
        self.work += len(groups)
        if kind == kinds.NACK and self._counts(entry):
            self.totals.retries += len(entry[7] or b"") // 8

    def _end_if_settled(self, lane: LiveLane, place: int = 0) -> None:
        self.loaded -= lane.trim()
        if lane.lease_is_settled:
            self._end(lane, place)

    def _released(self, entry: Entry, groups: Sequence[Group]) -> None:
        why = entry[HOLDER]
        self.taken_back += 1
        place = place_of_retry(entry[0], entry[3])
        for lane, ids in groups:
            self.touch(lane)
            if why in (kinds.OVER, kinds.OVER_SUSPECT):
                if self._counts(entry):
                    self.totals.redeliveries += len(lane.leased())
                lane.expire_lease(suspects=why == kinds.OVER_SUSPECT)
                self.place(lane, place)
            elif ids:
                lane.give_back(ids[0])
                self._end_if_settled(lane)
            else:
                self._end(lane)
        self.work += len(groups)

    def _extended(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Give lanes a new deadline. Other lanes of the same claim keep theirs, so these get a grant of their own."""
        old = groups[0][0].grant if groups else None
        if old is None:
            return
        grant = Grant(old.token, entry[5], old.at, old.holder, [lane for lane, _ in groups])
        for lane, _ in groups:
            self.touch(lane)
            if lane.grant is not None:
                lane.grant.lose_lane()
            lane.grant = grant
            lane.unlist()
        self.order.watch(grant)

    def _started(self, entry: Entry, groups: Sequence[Group]) -> None:
        self.taken_back += entry[HOLDER] in (kinds.SUSPECT, kinds.UNCHARGE)
        for lane, ids in groups:
            self.touch(lane)
            seq = lane.seq_of(ids[0])
            if entry[HOLDER] == kinds.SUSPECT:
                rare = lane.with_rare_state()
                rare.solo = max(rare.solo, seq)
                lane.started = lane.low - 1
            else:
                lane.started = seq - 1 if entry[HOLDER] == kinds.UNCHARGE else max(lane.started, seq)

    def _held(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Hold lanes. A live lease may finish."""
        for lane, _ in groups:
            self.touch(lane)
            lane.with_rare_state().hold = (entry[2], entry[6] or "")
            self.holds.add(lane.key)
            lane.unlist()  # the lane of a lease that is over may be listed
            lane.due = 0

    def _let_go(self, entry: Entry, groups: Sequence[Group]) -> None:
        """End the hold of lanes. Their attempts begin anew. A poison message is due now, because its cause is removed."""
        self.taken_back += 1
        for lane, _ in groups:
            self.touch(lane)
            lane.active = entry[2]
            rare = lane.with_rare_state()
            poison = rare.hold is not None and rare.hold[1] == kinds.POISON_HOLD
            rare.hold = None
            self.holds.discard(lane.key)
            rare.solo = 0
            rare.tried = {i: (0, 0, 0 if poison and starts else due) for i, (starts, _, due) in rare.tried.items()}
            if lane.grant is None:
                self.place(lane)
            else:
                self.order.watch(lane.grant)  # an earlier end found the lane held

    def _redriven(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Make dead messages unresolved again. `deadline` has no meaning here; the seqs are those of the messages' rows."""
        self.redrives += 1
        n = 0
        for lane, pairs in groups:
            self.touch(lane)
            for seq, i in zip(pairs[::2], pairs[1::2], strict=True):
                lane.revive(seq, i)
                n += 1
            if lane.grant is None:
                lane.unlist()
                self.place(lane)
        if self._counts(entry):
            n = len(entry[7] or b"") // 8
            self.totals.pending += n
            self.totals.dead -= n
            self.totals.redriven += n

    def _parked(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Move a message to a lane of its own. The entry says all that the new lane must know of it."""
        id_, _, at, top, _, due, holder, _ = entry
        starts, crashes, expires = map(int, (holder or "").split(","))
        self.taken_back += 1
        for lane, numbers in groups:
            self.touch(lane)
            arrival = numbers[-1]
            if len(numbers) == 1:
                lane.active = at
                self.loaded -= lane.withdraw(arrival)
                if lane.grant is None:
                    self.place(lane)
                continue
            self.parked[lane.key] = None
            lane.tail = lane.first = numbers[0]
            lane.ids = [arrival]
            if expires == kinds.REDRIVEN:
                lane.with_rare_state().redriven.add(arrival)
            else:
                lane.expires = expires
            self.loaded += 1
            if starts or due:
                lane.with_rare_state().tried[arrival] = (starts, crashes, due)
            self.place(lane, place_of_retry(id_, top))
        if self._counts(entry):
            self.totals.lanes += 1

    def _forgotten(self, entry: Entry, groups: Sequence[Group]) -> None:
        """Forget lanes whose rows were deleted. New ones begin above the floor, which is `token` here."""
        for lane, _ in groups:
            self.lanes.pop(lane.key, None)
            self.tails.pop(lane.key, None)
            self.parked.pop(lane.key, None)
        self.floor = max(self.floor, entry[4])
        if self._counts(entry):
            self.totals.lanes -= len(kinds.decode_keys(entry[7]))

    def _noted(self, _entry: Entry, _groups: Sequence[Group]) -> None:
        """Do nothing: something else was written, and the entry lets other processes notice it."""

    # ---- folds

    def sort_some(self) -> int:
        """Sort the keys of the lanes that changed lately, so that the next generation need only merge sorted runs.

        Returns:
            The number of changed lanes from which on to call it again.
        """
        n = self._unsorted
        if n >= self.limits.slice:
            self._sorted += sorted(islice(reversed(self.dirty), n))
            n = 0
        return len(self.dirty) - n + 2 * self.limits.slice

    @property
    def _unsorted(self) -> int:
        """How many of the lanes that changed last are in no sorted run."""
        return len(self.dirty) - (len(self._generation) - self._generation_at) - len(self._sorted)

    def generation(self, to: int) -> list[bytes]:
        """Return the keys of lanes that were first changed up to a position, in order. Every process derives the same ones."""
        if self._generation_to != to:
            dirty = self.dirty
            keys = [*self._generation[self._generation_at :], *self._sorted, *islice(reversed(dirty), self._unsorted)]
            self._sorted = []
            if dirty and next(reversed(dirty.values())) > to:
                self._sorted = [key for key in keys if dirty[key] > to]
                keys = [key for key in keys if dirty[key] <= to]
            keys.sort()
            self._generation, self._generation_to, self._generation_at = keys, to, 0
        return self._generation

    def next_slice(self, to: int) -> tuple[list[bytes], bool]:
        """Return the keys that the next slice of a generation writes, and whether it is the last one."""
        n = self.limits.slice if self._generation_to == to else max(self.limits.slice // 2, 1)  # merging it takes time, too
        keys, at = self.generation(to), self._generation_at
        return keys[at : at + n], at + n >= len(keys)

    def resolved_up_to(self, to: int) -> tuple[int, list[int]]:
        """Return the messages whose rows the next slice deletes, once all lanes of a generation are written.

        Returns:
            The position up to which messages were resolved that have no rows then, and these messages. If it is the end of the
            generation, they are the last ones.
        """
        ids: list[int] = []
        upto = 0
        for position, some in self.gone:
            if position > to:
                break
            if len(ids) >= self.limits.deleted:
                return upto, ids
            ids += some
            upto = position
        return to, ids

    def cut_position(self, to: int, deleted: int) -> int:
        """Return the position below which entries may be deleted, once the lanes of a generation are written.

        Entries since the oldest remaining first change stay. So do those that resolved messages whose rows are not deleted:
        a lane may have been written after such an entry, so that it is clean, and only the entry says whose rows may be deleted.

        Args:
            deleted: rows of messages that were resolved up to this position are deleted.
        """
        limit = max(to, self.seen + self.top) + 1
        for position in self.dirty.values():
            if position > to:
                limit = position
                break
        return min(limit, next((position for position, _ in self.gone if position > deleted), limit))

    def _folded(self, entry: Entry, _groups: Sequence[Group]) -> None:
        """Note that lanes are at rest: no state changes. Some of them are evicted, if too much is loaded."""
        to, deleted, last_key = entry[5], entry[HOLDER], entry[7]
        keys, begin = self.generation(to), self._generation_at
        end = max(begin, bisect_right(keys, last_key)) if last_key else len(keys)
        self._generation_at = end
        self.fold_at += 3 * self.limits.slice
        self.fold_to = to
        if not last_key:
            self.fold_to = self.work = self.bytes_kept = 0
            self.fold_at = self.limits.work
            self.old_rows, self.rows = self.rows, {}
            self._generation, self._generation_to, self._generation_at = [], -1, 0
        if deleted or not last_key:
            upto = int(deleted) if deleted else to
            self.gone = [one for one in self.gone if one[0] > upto]
            self.mark.fold_position = max(self.mark.fold_position, upto)
        far, turns = self.limits.loaded_max << PLACE_BITS >> 2, self.order.turns
        lanes, tails, dirty, lsn = self.lanes, self.tails, self.dirty, entry[0]
        for key in keys[begin:end]:
            del dirty[key]
            lane = lanes[key]
            if lane.lsn <= lsn and lane.rare is None and lane.is_plain_and_empty:
                del lanes[key]
                if lane.tail:
                    tails[key] = lane.tail
                continue
            if lane.lsn < lsn:
                lane.lsn = lsn
            self._come_to_rest(lane, far + (self.order.front if turns is None else turns.of(lane).side_of(lane.listed).front))
        if len(self.tails) > self.limits.tails_max:
            for key in list(islice(self.tails, self.limits.tails_max // 4)):
                del self.tails[key]
        self.order.drop_stale(self.lanes)

    def _come_to_rest(self, lane: LiveLane, far: int) -> None:
        """Keep as much of a lane loaded as the limits permit, after its row was written."""
        if lane.rest:
            lane.new = None
            del self.lanes[lane.key]
            self.tails[lane.key] = -lane.tail
            return
        lane.tidy()
        if lane.is_plain_and_empty:
            del self.lanes[lane.key]
            if lane.tail:
                # A tail alone does not say that the row is ahead of memory. Then the row is read again.
                self.tails[lane.key] = lane.tail if lane.lsn <= self.seen else -lane.tail
            return
        if lane.new:
            if 0 in lane.new:
                lane.holes = (lane.holes or set()).union(lane.holes_of_new())
            lane.deep += len(lane.new)
            lane.new = None
        ids = lane.ids or []
        keep = max(self.limits.head, lane.held)
        if len(ids) > keep:
            if 0 in ids[keep:]:
                holes = {lane.first + at for at in range(keep, len(ids)) if not ids[at]}
                lane.holes = holes if lane.holes is None else lane.holes | holes
            if lane.rare is not None and lane.rare.redriven:
                # The writer of the row may have had less of the lane loaded. Then the parts of its ids still have zeros there.
                back = {lane.first + at: ids[at] for at in range(keep, len(ids)) if ids[at] in lane.rare.redriven}
                lane.rare.back |= back
            lane.deep += len(ids) - keep
            self.loaded -= len(ids) - keep
            del ids[keep:]
        lane.split = lane.deep > 0
        most = self.limits.loaded_max
        if (self.loaded > most or len(self.lanes) > most) and not 0 < lane.listed <= far:
            self.evict(lane)

    def evict(self, lane: LiveLane) -> None:
        """Forget a lane that is equal to its row."""
        self.order.evicted(lane)
        self.loaded -= len(lane.ids or ())
        del self.lanes[lane.key]
        if lane.tail:
            self.tails[lane.key] = -lane.tail
        if lane.grant is not None:
            lane.grant.lose_lane()
            lane.grant = None

    def make_room(self) -> None:
        """Evict lanes that were loaded without being changed, the ones that were loaded first, in bounded steps."""
        most = self.limits.loaded_max
        if self.loaded <= 2 * most and len(self.lanes) <= 2 * most:
            return
        for key, lane in list(islice(self.lanes.items(), 64)):
            if key in self.dirty or lane.rest or lane.listed < 0:
                del self.lanes[key]
                self.lanes[key] = lane  # to the end, so that it is not met again soon
            elif lane.is_plain_and_empty:
                del self.lanes[key]
                if lane.tail:
                    self.tails[key] = lane.tail
            else:
                self.evict(lane)

    # ---- fingerprints

    def places_of(self, arrivals: Iterable[int]) -> dict[int, tuple[bytes, int]]:
        """Return key and seq of those messages that the cache has."""
        rows, old_rows = self.rows, self.old_rows
        return {i: (row[M_KEY], row[M_SEQ]) for i in arrivals if (row := rows.get(i) or old_rows.get(i)) is not None}


EFFECTS: Final[dict[int, Callable[[ShardMemory, Entry, Sequence[Group]], None]]] = {
    kinds.CLAIM: ShardMemory._claimed,
    kinds.MORE: ShardMemory._grown,
    kinds.ACK: ShardMemory._resolved,
    kinds.ACK_FIRST: ShardMemory._resolved,
    kinds.NACK: ShardMemory._postponed,
    kinds.DEFER: ShardMemory._postponed,
    kinds.REJECT: ShardMemory._resolved,
    kinds.DROP: ShardMemory._resolved,
    kinds.PURGE: ShardMemory._resolved,
    kinds.EXPIRE: ShardMemory._resolved,
    kinds.START: ShardMemory._started,
    kinds.EXTEND: ShardMemory._extended,
    kinds.RELEASE: ShardMemory._released,
    kinds.HOLD: ShardMemory._held,
    kinds.RELEASE_HOLD: ShardMemory._let_go,
    kinds.REDRIVE: ShardMemory._redriven,
    kinds.PARK: ShardMemory._parked,
    kinds.FORGET: ShardMemory._forgotten,
    kinds.NOTE: ShardMemory._noted,
    kinds.VOID: ShardMemory._noted,
    kinds.FOLD: ShardMemory._folded,
}
"""What each kind of entry does. Kinds that are reserved for later versions are not here, so that they are refused."""
