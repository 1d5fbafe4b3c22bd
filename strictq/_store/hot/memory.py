"""One process's view of the logs of a shard: its hot lanes, their messages, their leases and their order.

A lane is either hot or cold. A cold lane is in the tables of `lanes/`. A hot lane has no row in `message`, `ready`, `delayed` or
`lease`: its messages are rows of `inbox`, and what happened to them is rows of `journal`. Memory is a function of these two
tables, read in the order in which they were written: each row of the journal has the newest row of the inbox at its time (`top`).
The function is the same for this process's writes, for those of others, and for a process that begins.

A transaction changes memory before its COMMIT, with the shard's write lock held. `unsure` is set before the first change and
cleared after the COMMIT. If it is found set, after an error, an interrupt or a fork, memory is rebuilt from the tables.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from ..._errors import StoreCorrupt
from ..._sql import HOT, LANES
from ..commit.tx import NEVER, TOKEN_BITS, Totals, Tx, add_acks
from ..disk.stored import present
from ..onelane.leases import EXPIRES, ID, KEY, SENT_AT, SEQ, Row
from .journal import ACK, CLAIM, COOL, ENTRY_ID, EXTEND, ID_BYTES, RELEASE, START, Entry, decoded_keys
from .lane import NO_ROWS, Claim, HotLane, HotLease
from .order import ReadyOrder

if TYPE_CHECKING:
    from ..onelane.messages import Item

_ID_OF: Final = itemgetter(ID)


class Figures(NamedTuple):
    """What `stats` reports of hot lanes.

    Attributes:
        totals: the counter row, and what the logs and hot lanes add to it.
        in_flight: messages under leases that have not expired.
        oldest, unattempted: when the oldest message, and the oldest one without an attempt, were sent.
    """

    totals: Totals
    in_flight: int
    oldest: int | None
    unattempted: int | None


COUNTED: Final = "the row that counts the logs"


def newest_of(db: apsw.Connection) -> tuple[int, int, int]:
    """Return the newest row of the journal, that of the inbox, and the gate: they change with every commit."""
    found: tuple[int, int, int] = present(db.execute(HOT.newest).get, COUNTED)
    return found


class Memory:
    """The hot lanes of one shard. Only the holder of the write lock uses it, except for `is_behind` and `looks_ready`."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.unsure = True
        self.cramped = False
        """Whether the disk has little room. New messages then go to the tables, which free their space with each ack."""
        self.is_current = False
        """Whether the last transaction found the tables equal to memory. Then other processes are probably not writing."""
        self.rebuilds = 0
        self._clear()

    def _clear(self) -> None:
        self.lanes: dict[bytes, HotLane] = {}
        self.tails: dict[bytes, int] = {}
        """The `HotLane.tail` of lanes that cooled while they were empty and free, and still are."""
        self.seen = 0
        self.top = 0
        """The newest row of the journal, and of the inbox, that memory has."""
        self.events: deque[Entry] = deque()
        self.deep = False
        """Whether most of what was folded last was unresolved.

        Then there is a backlog, and new messages would be written twice.
        """
        self.sweep: list[HotLane] = []
        """The lanes that this process is folding, the lowest id last."""
        self.sweep_to = 0
        """The last row of the inbox that the fold will delete: lanes that need a row up to here cool."""
        self.slices = 0
        """The number of transactions of this fold so far; 0: none is under way."""
        self.last_token = 0
        self.next_deadline = NEVER
        """The time before which no lease ends."""
        self.ids: list[int] = []
        """Rows of the inbox."""
        self._owners: list[HotLane] = []
        """The lanes of these rows."""
        self._first = self._fresh = 0
        """Places in `ids`: no message before the one is unresolved, and none before the other is without an attempt."""
        self._leased = 0
        """The number of leased messages."""
        self._rowless = 0
        """The number of lanes that are `HotLane.rowless`."""
        self._looked_up: tuple[int, int] | None = None
        """`last_lane` and `lanes` of the counter row when these were looked up."""
        self.order = ReadyOrder()
        self._torn: dict[HotLane, int] = {}
        """While the logs are read: lanes that were leased together with messages that have been cut, and the tokens. See
        `_mend`."""
        self.gate = -1
        """How often the counter row was written, as far as memory knows; -1: unknown."""
        self._counts = False
        """Whether the counts below are to be added to the counter row with this gate."""
        self._quiet_from = -1
        self._quiet_to = 0
        """While the gate has this value, the tables list no ready lane, and no delay that ends before this time."""
        self.totals: Totals | None = None
        """Those of the last committed transaction. The next one begins with them if no other process writes in between. The
        committer sets them and clears `unsure`."""
        self._sends = self._receives = self._claims = self._acks = 0
        self._rate, self._rate_at = 0.0, 0

    @property
    def commits(self) -> int:
        """A number that each commit raises by one or more, except commits of nothing but hot messages, which may leave it."""
        return self.seen + self.gate

    # ---- agreeing with the tables

    def agrees(self, config_version: int, epoch: int) -> bool:
        """Return whether memory is as the last transaction left it, with these settings and in this epoch."""
        totals = self.totals
        return totals is not None and not self.unsure and totals.config_version == config_version and totals.epoch == epoch

    def begin(self, db: apsw.Connection, most: float = math.inf) -> Totals | None:
        """Read what other processes wrote, and return the totals that a write transaction begins with.

        Args:
            most: how many rows of the logs to read. Returns None, and reads nothing, if there may be more.
        """
        newest = newest_of(db)
        totals, self.totals = self.totals, None
        self.is_current = True
        if totals is None or self.unsure or newest != (self.seen, self.top, self.gate):
            self.is_current = newest == (self.seen, self.top, self.gate)
            if self._lag(*newest) > most:
                return None
            totals = Totals.read(db)
            self._agree(db, totals, *newest)
        totals.dead_letters = totals.rejected = totals.redriven = 0
        return totals

    def agree(self, db: apsw.Connection, totals: Totals) -> None:
        """Read what other processes wrote, and add to the totals of a counter row what it does not include."""
        self.totals = None
        self._agree(db, totals, *newest_of(db))

    def _agree(self, db: apsw.Connection, totals: Totals, seen: int, top: int, gate: int) -> None:
        if self.is_behind(seen, top):
            self._catch_up(db, seen, top)
        if self.gate != gate:
            self.forget_numbers()
            self.gate, self._counts = gate, False
        if not self._counts:
            self._recount(totals, *present(db.execute(HOT.counted).get, COUNTED))
            self._counts = True
        totals.last_id = max(totals.last_id, self.top)
        totals.last_token = max(totals.last_token, self.last_token)
        totals.sends += self._sends
        totals.pending += self._sends - self._acks
        totals.receives += self._receives
        totals.claims += self._claims
        totals.acks += self._acks
        totals.ack_rate, totals.ack_rate_at = self._rate, self._rate_at

    def _lag(self, seen: int, top: int, _gate: int) -> int:
        """Return an upper bound of the number of rows that memory lacks."""
        return seen + top - (0 if self.unsure else self.seen + self.top)

    def forget_numbers(self) -> None:
        """Forget what is known of rows of `lane`, which may have changed."""
        self.tails.clear()
        for lane in self.lanes.values():
            lane.number = 0

    def outlook(self, db: apsw.Connection) -> tuple[bool, int]:
        """Return whether a lane is ready, as of this read transaction, and the time before which no lease of theirs ends."""
        self.agree(db, Totals.read(db))
        return self.order.head() is not None, self.next_deadline

    def lane(self, db: apsw.Connection, key: bytes) -> HotLane | None:
        """Return a copy of a key's lane, as of this read transaction. None: it is not hot."""
        self._follow(db)
        lane = self.lanes.get(key)
        return None if lane is None else lane.copy()

    def lane_with(self, db: apsw.Connection, arrival: int) -> HotLane | None:
        """Return a copy of the lane that this message was sent to. None: it is not hot, or its row is no longer in the inbox."""
        self._follow(db)
        at = bisect_left(self.ids, arrival)
        lane = self._owners[at] if at < len(self.ids) and self.ids[at] == arrival else None
        return None if lane is None or lane.gone else lane.copy()

    def _follow(self, db: apsw.Connection) -> None:
        """Read what other processes wrote to the logs."""
        seen, top, _ = newest_of(db)
        if self.is_behind(seen, top):
            self.totals = None
            self._catch_up(db, seen, top)

    def figures(self, db: apsw.Connection, now: int) -> Figures:
        """Return what `stats` reports, as of this read transaction.

        The cost is proportional to the changes since the last call. After a lease has expired, until a writer ends it, it is
        proportional to the number of hot lanes.
        """
        totals = Totals.read(db)
        self.agree(db, totals)
        self._look_up(db, totals)
        totals.lanes += self._rowless
        expired = self.expired(now, len(self.lanes)) if now >= self.next_deadline else []
        running = self._leased - sum(lane.lease.pending for lane in expired if lane.lease is not None)
        return Figures(totals, running, self._oldest(), self._oldest_unattempted())

    def _look_up(self, db: apsw.Connection, totals: Totals) -> None:
        """Count the lanes without a row. A lane is looked up once, unless rows of `lane` were deleted."""
        before, self._looked_up = self._looked_up, None  # an interrupt must not leave a part of it
        created: list[Any] | None = None
        if before is not None and totals.last_lane - before[0] <= len(self.lanes):
            created = db.execute(HOT.lanes_since, (before[0],)).fetchall()
        if before is None or created is None or totals.lanes - before[1] != len(created):
            self._rowless, created = 0, []
            for lane in self.lanes.values():
                lane.rowless = None
        for (key,) in created:
            if (known := self.lanes.get(key)) is not None and known.rowless:
                known.rowless = False
                self._rowless -= 1
        for lane in reversed(self.lanes.values()):
            if lane.rowless is not None:
                break  # those that became hot before it were looked up, too
            lane.rowless = db.execute(LANES.by_key, (lane.key,)).get is None
            self._rowless += lane.rowless
        self._looked_up = totals.last_lane, totals.lanes

    def _oldest(self) -> int | None:
        """Return when the oldest unresolved message was sent. It is the first one of its lane."""
        ids, owners = self.ids, self._owners
        while self._first < len(ids):
            lane = owners[self._first]
            if lane.rows and lane.rows[0][ID] == ids[self._first] and not lane.gone:
                sent_at: int = lane.rows[0][SENT_AT]
                return sent_at
            self._first += 1
        return None

    def _oldest_unattempted(self) -> int | None:
        """Return when the oldest message was sent that no handler was started for."""
        ids, owners = self.ids, self._owners
        self._fresh = max(self._fresh, self._first)
        while self._fresh < len(ids):
            lane, arrival = owners[self._fresh], ids[self._fresh]
            at = bisect_left(lane.rows, arrival, key=_ID_OF)
            if at < len(lane.rows) and not lane.gone:
                row = lane.rows[at]
                if row[ID] == arrival and (lane.lease is None or row[SEQ] > lane.lease.started):
                    sent_at: int = row[SENT_AT]
                    return sent_at
            self._fresh += 1
        return None

    def undone(self, db: apsw.Connection) -> None:
        """Adapt to the rollback of an operation of a group, in a transaction that continues."""
        if self.unsure:
            self._catch_up(db, *newest_of(db)[:2])
            self.unsure = True  # until the COMMIT
            self._counts = False

    def _catch_up(self, db: apsw.Connection, seen: int, top: int) -> None:
        if self.unsure or seen < self.seen or (top < self.top and seen == self.seen):
            self._clear()
        events: list[Any] = db.execute(HOT.events, (self.seen,)).fetchall()
        knows = self.seen or self.top
        if knows and any(e[0] != self.seen + 1 + n or (e[1] == COOL and e[6] > self.top) for n, e in enumerate(events)):
            self._clear()  # rows that memory lacks were deleted
            events = db.execute(HOT.events, (0,)).fetchall()
        if not self.seen:
            self.rebuilds += 1
        self.unsure = True
        arrivals: list[Row] = db.execute(HOT.arrivals, (self.top,)).fetchall()
        at_row = 0
        for id_, kind, at, before, count, token, deadline, started, charged, consumer, data in events:
            if self.seen and id_ != self.seen + 1:
                raise StoreCorrupt(f"its journal has no row {self.seen + 1}", shard=self._shard)
            if at_row < len(arrivals) and arrivals[at_row][ID] <= before:
                following = bisect_right(arrivals, before, at_row, key=_ID_OF)
                self._arrived(arrivals[at_row:following])
                at_row = following
            self.seen = id_
            if kind == COOL:
                keys = decoded_keys(data)
                self.cool(keys[:count], deadline, keys[count:])
                self.events.append((id_, kind, at, 0, before))
            elif len(data) != count * ID_BYTES or not count:
                raise StoreCorrupt(
                    f"row {id_} of its journal counts {count} messages but names a different number", shard=self._shard
                )
            else:
                claim = Claim(token, at, deadline, started, bool(charged), consumer or "")
                self._happened(id_, kind, claim, array("q", data))
        if at_row < len(arrivals):
            self._arrived(arrivals[at_row:])
        self._mend(db)
        self.seen = seen
        self.top = max(self.top, top)
        self.unsure = False

    def _arrived(self, rows: list[Row]) -> None:
        known = self.lanes
        lanes: list[HotLane] = []
        for row in rows:
            lane = known.get(row[KEY]) or self.enter(row[KEY], row[SEQ])
            lane.seq = row[SEQ]
            lanes.append(lane)
        self.arrive(lanes, rows)

    def _happened(self, event: int, kind: int, claim: Claim, ids: array[int]) -> None:
        """Apply a row of the journal, its messages grouped lane by lane. Messages of cooled lanes are ignored."""
        groups: dict[HotLane, set[int]] = {}
        known = self.ids
        for i in ids:
            at = bisect_right(known, i) - 1
            if at >= 0 and known[at] == i and not (lane := self._owners[at]).gone:
                groups.setdefault(lane, set()).add(i)
        picked = [(lane, [row for row in lane.rows if row[ID] in some]) for lane, some in groups.items()]
        if any(len(rows) != len(groups[lane]) for lane, rows in picked):
            raise StoreCorrupt(f"row {event} of its journal names messages that are resolved", shard=self._shard)
        entry = (event, kind, claim.at, len(ids), max(ids))
        self.events.append(entry)
        if self._counts:
            self._count(entry)
        if kind == CLAIM:
            for lane, rows in picked:
                is_held = lane.lease is not None and lane.lease.claim.token != self._torn.get(lane)
                if is_held or rows[-1] is not lane.rows[len(rows) - 1]:
                    raise StoreCorrupt(f"row {event} of its journal leases messages twice", shard=self._shard)
            self.release([lane for lane, _ in picked if lane.lease is not None])
            self.lease(picked, claim)
            if sum(len(rows) for _, rows in picked) < len(ids):
                self._torn.update((lane, claim.token) for lane, _ in picked)
            return
        for lane, rows in picked:
            if lane.lease is None or rows[-1][SEQ] > lane.rows[lane.lease.pending - 1][SEQ]:
                raise StoreCorrupt(f"row {event} of its journal names messages that are not leased", shard=self._shard)
        if kind == ACK:
            self.ack(picked, claim.at)
        elif kind == START:
            self.start([(lane, row[SEQ]) for lane, rows in picked for row in rows])
        elif kind == EXTEND:
            self.extend([lane for lane, _ in picked], claim.deadline)
        elif kind == RELEASE:
            self.release([lane for lane, _ in picked])
        else:
            raise StoreCorrupt(f"row {event} of its journal has the unknown kind {kind}", shard=self._shard)

    def _mend(self, db: apsw.Connection) -> None:
        """End leases whose release was not recognized, because it names a message that has been cut.

        Earlier versions named the first unresolved message of a lease. Such a lease is over if a later claim has leased its
        lane, or if the lane's row has an ack under a later token: the messages of a hot lane are cut once they are acked, and
        its last ack is moved to its row before that.
        """
        for lane, token in self._torn.items():
            if lane.lease is not None and lane.lease.claim.token == token and not lane.gone:
                acked = db.execute(HOT.acked_token, (lane.key,)).get
                if acked is not None and acked > token:
                    self.release([lane])
        self._torn.clear()

    def _recount(self, totals: Totals, inbox_top: int, journal_top: int) -> None:
        """Count what the counter row does not include yet, after another transaction wrote it."""
        self._sends = len(self.ids) - bisect_right(self.ids, inbox_top)
        self._receives = self._claims = self._acks = 0
        self._rate, self._rate_at = totals.ack_rate, totals.ack_rate_at
        new: list[Entry] = []
        for event in reversed(self.events):
            if event[ENTRY_ID] <= journal_top:
                break
            new.append(event)
        for event in reversed(new):
            self._count(event)

    def _count(self, event: Entry) -> None:
        _, kind, at, messages, _ = event
        if kind == CLAIM:
            self._receives += messages
            self._claims += 1
        elif kind == ACK:
            self._acks += messages
            self._rate, self._rate_at = add_acks(self._rate, self._rate_at, at, messages)

    def note(self, event: Entry, totals: Totals) -> None:
        """Note a row of the journal that this process wrote. The totals of its transaction include it."""
        self.events.append(event)
        _, kind, _, messages, _ = event
        if kind == CLAIM:
            self._receives += messages
            self._claims += 1
        elif kind == ACK:
            self._acks += messages
            self._rate, self._rate_at = totals.ack_rate, totals.ack_rate_at

    def counted(self, db: apsw.Connection, totals: Totals) -> None:
        """Note that a transaction writes the counter row now, including everything that memory has."""
        self.unsure = True
        self.gate = db.execute(HOT.write_counted, (self.top, self.seen)).get
        self._counts = True
        self._sends = self._receives = self._claims = self._acks = 0
        self._rate, self._rate_at = totals.ack_rate, totals.ack_rate_at

    # ---- changes: the same for what this process writes and for what it reads

    def enter(self, key: bytes, first: int) -> HotLane:
        """Make a lane hot. Its next message has the seq `first`."""
        self.tails.pop(key, None)
        lane = self.lanes[key] = HotLane(key, first - 1)
        return lane

    def arrive(self, lanes: Sequence[HotLane], arrivals: Sequence[Row]) -> bool:
        """Add sent messages, each to the lane beside it. Return whether a lane was empty."""
        first = False
        for lane, row in zip(lanes, arrivals, strict=True):
            arrival = lane.touched = row[ID]
            rows = lane.rows
            if not rows:
                self.order.append(lane, arrival)
                lane.rows = [row]
                first = True
            else:
                rows.append(row)
            if row[EXPIRES] is not None and row[EXPIRES] < lane.expires:
                lane.expires = row[EXPIRES]
        self.ids += map(_ID_OF, arrivals)
        self._owners += lanes
        self.top = self.ids[-1]
        self._sends += len(arrivals)
        return first

    def arrive_plain(
        self, lanes: dict[bytes, HotLane], items: Sequence[Item], first: int, now: int, expires: int | None
    ) -> tuple[list[int], bool]:
        """Add messages without options, as `arrive` does, and create their rows.

        Args:
            lanes: by key. `issue` has reserved their seqs.
            items: key and body of each message.
            first: the arrival number of the first one.
        Returns:
            Their seqs, and whether a lane had none.
        """
        ready = False
        arrival = first
        list_new = self.order.append
        owners: list[HotLane] = []
        seqs: list[int] = []
        for key, body, _, _ in items:
            lane = lanes[key]
            seq = lane.next
            lane.next = seq + 1
            rows = lane.rows
            row = (arrival, 0, key, 0, seq, None, expires, 0, arrival, now, None, None, None, None, body)
            if rows:
                rows.append(row)
            else:
                lane.rows = [row]
                list_new(lane, arrival)
                ready = True
            lane.touched = arrival
            owners.append(lane)
            seqs.append(seq)
            arrival += 1
        if expires is not None:
            for lane in lanes.values():
                lane.expires = min(lane.expires, expires)
        self.ids += range(first, arrival)
        self._owners += owners
        self.top = arrival - 1
        self._sends += len(seqs)
        return seqs, ready

    def lease(self, taken: Iterable[tuple[HotLane, Sequence[Row]]], claim: Claim) -> None:
        """Lease the first messages of some lanes."""
        new, before, charged = HotLease.__new__, claim.before, claim.charged
        leased = 0
        for lane, rows in taken:
            first = rows[0]
            lease = lane.lease = new(HotLease)  # its fields are set here, because a call costs as much as they do
            lease.claim = claim
            lease.lo = lo = first[SEQ]
            lease.low = first[ID]
            lease.pending = n = len(rows)
            leased += n
            if n == 1:
                lease.hi = lo
                lease.started = lo if charged else lo - before
            else:
                lease.hi = rows[-1][SEQ]
                lease.started = lo - before
        self._leased += leased
        self.next_deadline = min(self.next_deadline, claim.deadline)
        self.last_token = max(self.last_token, claim.token & ((1 << TOKEN_BITS) - 1))

    def ack(self, picked: Iterable[tuple[HotLane, Sequence[Row]]], at: int) -> bool:
        """Ack messages of some leases. Each lane occurs once. Return whether a lane is ready now."""
        ready = False
        claim: Claim | None = None
        token = acked = 0
        for lane, rows in picked:
            lease = lane.lease
            assert lease is not None
            if lease.claim is not claim:
                claim = lease.claim
                token = claim.token
            n = len(rows)
            acked += n
            first = rows[0]
            waiting = lane.rows
            if n == len(waiting):
                lane.rows = waiting = NO_ROWS
            elif rows[-1] is waiting[n - 1]:
                del waiting[:n]
            else:
                gone = {row[ID] for row in rows}
                lane.rows = waiting = [row for row in waiting if row[ID] not in gone]
            lane.active_at = at
            lo = first[SEQ]
            if n == 1:
                lane.done = (token, first[ID], (lo,))
            else:
                hi = rows[-1][SEQ]
                lane.done = (token, first[ID], range(lo, hi + 1) if hi - lo + 1 == n else [row[SEQ] for row in rows])
            lease.pending = n = lease.pending - n
            if not n:
                lane.lease = None
                if waiting:
                    self.order.insert(lane)
                    ready = True
        self._leased -= acked
        return ready

    def start(self, some: Iterable[tuple[HotLane, int]]) -> None:
        """Note that handlers of messages were started."""
        for lane, seq in some:
            assert lane.lease is not None
            lane.lease.started = max(lane.lease.started, seq)

    def extend(self, some: Iterable[HotLane], deadline: int) -> None:
        """Change the deadlines of leases."""
        for lane in some:
            assert lane.lease is not None
            lane.lease.claim = lane.lease.claim._replace(deadline=deadline)
        self.next_deadline = min(self.next_deadline, deadline)

    def release(self, some: Iterable[HotLane]) -> None:
        """Release whole leases."""
        for lane in some:
            if lane.lease is not None:
                self._leased -= lane.lease.pending
                self._fresh = min(self._fresh, bisect_left(self.ids, lane.rows[0][ID]))
                lane.lease = None
            self.order.insert(lane)

    def cool(self, keys: Iterable[bytes], upto: int, known: Iterable[bytes]) -> None:
        """Remove cooled lanes: those of these keys, and those whose newest message is a row of the inbox up to `upto`.

        Args:
            known: keys whose lanes stay hot, and have their last acks in their rows.
        """
        for key in known:
            if (lane := self.lanes.get(key)) is not None:
                lane.done, lane.active_at = None, 0
        for key in keys:
            if (lane := self.lanes.get(key)) is not None:
                self._leave(lane)
        if upto >= self.sweep_to:
            self.sweep, self.slices = [], 0
        n = bisect_right(self.ids, upto)
        for lane in self._owners[:n]:
            if lane.touched <= upto and not lane.gone:
                self._leave(lane)
        del self.ids[:n], self._owners[:n]
        self._first, self._fresh = max(self._first - n, 0), max(self._fresh - n, 0)

    def _leave(self, lane: HotLane) -> None:
        lane.gone = True
        del self.lanes[lane.key]
        if lane.lease is not None:
            self._leased -= lane.lease.pending
        if lane.rowless:
            self._rowless -= 1

    def are_tables_quiet(self, tx: Tx) -> bool:
        """Return whether there is nothing to claim in the tables.

        They are read once after each transaction that wrote to them.
        """
        if tx.now >= tx.totals.next_deadline or self.gate < 0 or tx.db.total_changes() - tx.changes_before != tx.hot_changes:
            return False
        if self._quiet_from != self.gate:
            listed, due = tx.run(HOT.listed).get
            self._quiet_from, self._quiet_to = self.gate, 0 if listed else NEVER if due is None else due
        return tx.now < self._quiet_to

    def is_known_quiet(self, now: int) -> bool:
        """Return the same without reading them. False: it is unknown."""
        return self._quiet_from == self.gate and now < self._quiet_to

    def expired(self, now: int, limit: int) -> list[HotLane]:
        """Return at most `limit` lanes whose leases have expired. Called once `next_deadline` has passed."""
        ends = [(lane.lease.claim.deadline, lane) for lane in self.lanes.values() if lane.lease is not None]
        self.next_deadline = min((deadline for deadline, _ in ends), default=NEVER)
        return [lane for deadline, lane in ends if deadline <= now][:limit]

    # ---- from any thread

    def is_behind(self, seen: int, top: int) -> bool:
        """Return whether something was written that memory lacks."""
        return self.unsure or (seen, top) != (self.seen, self.top)

    @property
    def looks_ready(self) -> bool:
        """Whether a lane may be ready."""
        return bool(self.order)

    def owners(self, n: int) -> list[HotLane]:
        """Return the lanes of the first n rows of the inbox, without duplicates and without those that have cooled."""
        return [lane for lane in dict.fromkeys(self._owners[:n]) if not lane.gone]
