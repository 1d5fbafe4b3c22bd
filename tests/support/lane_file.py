"""One shard's file of format 3: its transactions, catching up with other processes, and the verbs.

The caller holds the shard's lock: one thread at a time uses an object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import apsw

from ..._errors import LeaseLost, QueueFull, StoreCorrupt
from ..._sql import LANE_LOG, LANE_TABLES
from ..commit.connection import translate
from ..lane import entries as kinds
from ..lane.entries import NEVER, Entry, LaneHolder, encode_groups, encode_keys
from ..lane.live_lane import LiveLane
from ..lane.memory import (
    BODY_BYTES_KEPT,
    M_BODY,
    M_KEY,
    Group,
    MessageRow,
    RunningTotals,
    ShardMemory,
    StoreLimits,
)
from ..log.log_rows import LogRows
from ..tables import dedup, mark
from ..tables.lane_rows import LaneRows
from . import checking
from .claiming import Claiming, ClaimRequest
from .folding import Folder
from .loading import Loader, NeedsTransactionError
from .operating import Operating
from .settling import LeaseSettling, Settled

T = TypeVar("T")

CATCH_UP_MAX: Final = 2_000
"""How many rows of other processes are read under the write lock. More are read before it is taken."""
ALONE_MAX: Final = 16
"""A claim of more messages is a transaction: its cost does not matter, and lanes at rest need it."""
_ROW_WITHOUT_BODY: Final = M_BODY
ANYONE: Final = LaneHolder()


class NewMessage(NamedTuple):
    """A message to send. Times are queue time in microseconds; None: none."""

    key: bytes
    body: bytes
    due: int | None = None
    expires: int | None = None
    opts: str | None = None
    dedup_id: str | None = None


class LeasedLanes(NamedTuple):
    """What a claim leased.

    Attributes:
        groups: of each lane its key and messages.
        rows: the messages, in the order of `groups`. One whose row is gone belongs to another holder by now, and is missing.
    """

    token: int
    deadline: int
    groups: list[tuple[bytes, list[int]]]
    rows: list[MessageRow]


class ShardFile:
    """One shard."""

    def __init__(
        self,
        db: apsw.Connection,
        shard: int,
        now: Callable[[], int],
        *,
        limits: StoreLimits | None = None,
        depth_max: int | None = None,
        dedup_window: int = 300_000_000,
    ) -> None:
        """Read what memory needs. `create` must have been called once for the file.

        Args:
            now: returns the queue time.
            depth_max: the number of pending messages at which sends are refused.
            dedup_window: how long a dedup id is remembered, in microseconds.
        """
        self._db = db
        self._run: Any = db.execute
        self._shard = shard
        self._now = now
        self._depth_max = depth_max
        self._dedup_window = dedup_window
        limits = limits or StoreLimits()
        self.memory = ShardMemory(shard, limits)
        self.log = LogRows(db, shard)
        self.rows = LaneRows(db, shard, limits.chunk)
        self.loader = Loader(db, self.memory, self.log, self.rows)
        self.folder = Folder(db, self.memory, self.log, self.rows)
        self.claiming = Claiming(db, self.loader, self._append)
        self.settling = LeaseSettling(self.loader)
        self.operating = Operating(db, self.loader, self.settling, self._append)
        self._inside = False
        """Whether `transact` or `look` is running."""
        self._current = False
        """Whether the last transaction found memory equal to the file. Then other processes are probably not writing."""
        self.refresh()

    @staticmethod
    def create(db: apsw.Connection) -> None:
        """Create the tables in a new file."""
        db.execute("BEGIN IMMEDIATE")
        db.execute(LANE_LOG.schema).fetchall()
        db.execute(LANE_TABLES.schema).fetchall()
        db.execute("COMMIT")

    # ---- agreeing with the file

    def refresh(self) -> None:
        """Catch up in a read transaction."""
        self._end_abandoned()
        try:
            self._run("BEGIN")
            self._catch_up(*self.log.newest())
            self._run("COMMIT")
        except BaseException as e:
            self._fail()
            self._raise(e)

    def _catch_up(self, seen: int, top: int) -> None:
        """Read what memory lacks, up to these rows. It runs in a transaction."""
        memory = self.memory
        if memory.unsure:
            memory.clear(*mark.read(self._db, self._shard))
        elif (seen, top) == (memory.seen, memory.top) and not memory.unplaced:
            return
        memory.unsure = True
        entries = self.log.entries_after(memory.seen)
        if self._must_begin_anew(entries, seen):
            memory.clear(*mark.read(self._db, self._shard))
            entries = self.log.entries_after(memory.seen)
            if self._must_begin_anew(entries, seen):
                raise StoreCorrupt(f"row {memory.seen + 1} of its journal is missing", shard=self._shard)
        if any(entry[1] == kinds.FOLD for entry in entries):
            memory.mark, memory.totals = mark.read(self._db, self._shard)
        messages = self.log.messages_after(memory.top) if top > memory.top else []
        self._replay(entries, messages)
        memory.seen, memory.top = seen, max(memory.top, top)
        self.loader.place_all()
        memory.make_room()
        memory.unsure = False

    def _must_begin_anew(self, entries: Sequence[Entry], seen: int) -> bool:
        """Return whether rows were cut that memory lacks, or another process repaired the file."""
        memory = self.memory
        if len(entries) != seen - memory.seen or (entries and (entries[0][0], entries[-1][0]) != (memory.seen + 1, seen)):
            return True
        return memory.seen > memory.mark.cut and any(entry[1] == kinds.VOID for entry in entries)

    def _replay(self, entries: Sequence[Entry], messages: Sequence[MessageRow]) -> None:
        """Merge the two logs by `top`, and apply them in the order in which they were written."""
        memory, loader = self.memory, self.loader
        if messages:
            loader.load({row[M_KEY] for row in messages})
        at, n = 0, len(messages)
        for entry in entries:
            top = entry[3]
            begin = at
            while at < n and messages[at][0] <= top:
                at += 1
            if at > begin:
                loader.arrive(messages[begin:at])
            if top > memory.top:
                memory.top = top
            groups = loader.groups(entry)
            memory.apply(entry, groups)
            if memory.unplaced:
                loader.place_all()
        if at < n:
            loader.arrive(messages[at:])

    # ---- transactions

    def _begin(self) -> None:
        """Begin a write transaction in which memory agrees with the file."""
        memory, run = self.memory, self._run
        self._end_abandoned()
        run("BEGIN IMMEDIATE")
        seen, top = self.log.newest()
        self._current = not memory.unsure and (seen, top) == (memory.seen, memory.top)
        if self._current and not memory.unplaced:
            return
        if memory.unsure or seen + top - memory.seen - memory.top > CATCH_UP_MAX:
            run("ROLLBACK")
            self.refresh()
            run("BEGIN IMMEDIATE")
            seen, top = self.log.newest()
        self._catch_up(seen, top)

    def _end_abandoned(self) -> None:
        """End what an interrupted call has left open."""
        self.loader.alone = False
        if self._db.in_transaction:
            self._fail()

    def transact(self, work: Callable[[], T], messages: int = 1) -> T:
        """Run `work` in a write transaction. Its calls of this object's verbs are part of it.

        Args:
            messages: how many it handles, about.
        Raises:
            Whatever `work` raises: nothing changed.
        """
        if self._inside:
            return work()
        memory = self.memory
        try:
            self._inside = True
            self._begin()
            memory.unsure = True
            if self.folder.is_due:
                self.folder.fold(messages, self._now())
            before = self._db.total_changes(), memory.seen, memory.top
            try:
                result = work()
            except (LeaseLost, QueueFull):
                if (self._db.total_changes(), memory.seen, memory.top) == before:
                    # A plan refused, and changed nothing. Folds before it stay.
                    self._run("COMMIT")
                    memory.unsure = False
                raise
            self._run("COMMIT")
            memory.unsure = False
            return result
        except BaseException as e:
            if memory.unsure:
                self._fail()
            self._raise(e)
        finally:
            self._inside = False

    def _fail(self) -> None:
        """Give up a transaction. Memory may have a part of it, so it is built anew."""
        self.memory.unsure = True
        self._current = False
        if self._db.in_transaction:
            self._run("ROLLBACK")

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise strictq's error for one of SQLite's, and any other one as it is."""
        ours = translate(error, self._shard, self._db)
        if ours is error:
            raise error
        raise ours from error

    def _append(
        self,
        kind: int,
        groups: Sequence[Group],
        *,
        token: int = 0,
        deadline: int = 0,
        holder: str | None = None,
        data: bytes | None = None,
    ) -> Entry:
        """Write an entry of a transaction, and apply it.

        Args:
            data: None: the messages of the groups.
        """
        memory = self.memory
        at = max(self._now(), memory.at)
        data = encode_groups([ids for _, ids in groups]) if data is None else data
        entry = (memory.seen + 1, kind, at, memory.top, token, deadline, holder, data)
        self.log.append(entry)
        memory.apply(entry, groups)
        return entry

    def _append_alone(self, entry: Entry, groups: Sequence[Group]) -> bool:
        """Commit an entry in a single statement, and apply it. Return False if another process wrote meanwhile."""
        memory = self.memory
        memory.unsure = True
        try:
            if not self.log.append_alone(entry):
                self._current = memory.unsure = False
                return False
        except apsw.BusyError as e:
            memory.unsure = False
            self._raise(e)
        except apsw.Error as e:
            self._raise(e)
        memory.apply(entry, groups)
        memory.unsure = False
        return True

    @property
    def _may_be_alone(self) -> bool:
        """Return whether a single statement may succeed: memory is probably current, and nothing else must be written."""
        return (
            self._current
            and not self.memory.unsure
            and not self.folder.is_due
            and not self._inside
            and not self._db.in_transaction
        )

    # ---- sending

    def send(self, message: NewMessage) -> int:
        """Send one message. Return its seq."""
        memory = self.memory
        key = message.key
        alone = self._may_be_alone and message.due is None and message.dedup_id is None and self._depth_max is None
        if not alone or not (key in memory.lanes or key in memory.tails):
            return self.send_many((message,))[0]
        if (lane := memory.lanes.get(key)) is None:
            self.loader.load((key,))
            lane = memory.lanes[key]
        arrival, seq = memory.top + 1, (lane.tail or memory.floor) + 1
        row = (arrival, key, seq, self._now(), message.due, message.expires, message.opts, message.body)
        memory.unsure = True
        try:
            if not self.log.insert_alone(row, memory.seen):
                self._current = memory.unsure = False
                return self.send_many((message,))[0]
        except apsw.BusyError as e:
            memory.unsure = False
            self._raise(e)
        except apsw.Error as e:
            self._raise(e)
        if not lane.tail:
            memory.totals.lanes += 1
        lane.tail = seq
        memory.arrived((lane,), (row,))
        self._keep_bodies((row,))
        memory.unsure = False
        return seq

    def send_many(self, messages: Sequence[NewMessage]) -> list[int]:
        """Send messages, all or none. Return their seqs."""
        return self.transact(lambda: self._send(messages), len(messages))

    def _send(self, messages: Sequence[NewMessage]) -> list[int]:
        memory = self.memory
        if self._depth_max is not None and memory.totals.pending + len(messages) > self._depth_max:
            raise QueueFull(f"{memory.totals.pending:,} messages are pending; nothing was changed")
        lanes, floor, sent_at = memory.lanes, memory.floor, self._now()
        missing = {message.key for message in messages}.difference(lanes)
        if missing:
            self.loader.load(missing)
        self.loader.fill_delayed([(message.key, message.due) for message in messages])
        arrival = memory.top
        rows: list[MessageRow] = []
        some: list[LiveLane] = []
        seqs: list[int] = []
        for key, body, due, expires, opts, dedup_id in messages:
            lane = lanes[key]
            seq = lane.tail + 1
            if seq == 1:
                seq += floor
            if dedup_id is not None:
                known = dedup.remember(self._db, (key, dedup_id, seq, arrival + 1, sent_at + self._dedup_window), sent_at)
                if known is not None:
                    seqs.append(known)
                    continue
                dedup.forget_some(self._db, sent_at)
            if not lane.tail:
                memory.totals.lanes += 1
            lane.tail = seq
            arrival += 1
            rows.append((arrival, key, seq, sent_at, due, expires, opts, body))
            some.append(lane)
            seqs.append(seq)
        self.log.insert(rows)
        memory.arrived(some, rows)
        self._keep_bodies(rows)
        return seqs

    def _keep_bodies(self, rows: Sequence[MessageRow]) -> None:
        """Keep recent messages with their bodies, which saves reading them. Large ones would fill memory."""
        memory = self.memory
        memory.bytes_kept += sum([len(row[7]) for row in rows])
        if memory.bytes_kept > BODY_BYTES_KEPT:
            rows = [row[:_ROW_WITHOUT_BODY] for row in rows]
        cache = memory.rows
        for row in rows:
            cache[row[0]] = row

    # ---- claiming

    def claim_first(self, request: ClaimRequest, lease: int, holder: LaneHolder = ANYONE) -> LeasedLanes:
        """Lease the oldest ready messages and resolve them at once, so that they are delivered at most once.

        The lanes stay leased until `finish`, or the deadline.
        """

        def claim() -> LeasedLanes:
            claimed = self._claim(request, lease, holder)
            if not claimed.groups:
                return claimed
            claimed = claimed._replace(rows=self.whole([i for _, ids in claimed.groups for i in ids]))
            self._append(kinds.ACK_FIRST, self.settling.plan(claimed.token, claimed.groups), token=claimed.token)
            return claimed

        return self.transact(claim, request.room)

    def finish(self, token: int, keys: Sequence[bytes]) -> None:
        """End the leases of lanes, whatever they hold: after `claim_first`.

        Raises:
            LeaseLost: a token is dead. Nothing was changed.
        """

        def end() -> None:
            groups: list[Group] = [(lane, []) for lane in self.settling.leased(token, keys)]
            self._append(kinds.RELEASE, groups, token=token, holder=kinds.BY_KEY, data=encode_keys(keys))

        self.transact(end)

    def claim(self, request: ClaimRequest, lease: int, holder: LaneHolder = ANYONE) -> LeasedLanes:
        """Lease the oldest ready messages.

        Args:
            lease: microseconds.
        """
        claimed = self._claim_alone(request, lease, holder) if request.room <= ALONE_MAX and request.keys is None else None
        if claimed is None:
            claimed = self.transact(lambda: self._claim(request, lease, holder), request.room)
        token, deadline, groups, _ = claimed
        return LeasedLanes(token, deadline, groups, self.whole([i for _, ids in groups for i in ids]))

    def _claim_alone(self, request: ClaimRequest, lease: int, holder: LaneHolder) -> LeasedLanes | None:
        """Claim with a single statement. None: that is not possible now."""
        if not self._may_be_alone:
            return None
        memory, claiming = self.memory, self.claiming
        now = max(self._now(), memory.at)
        memory.unsure = True  # the plan changes the order
        self.loader.alone = True
        try:
            groups = claiming.plan(request, now)
        except NeedsTransactionError:
            groups = []
        self.loader.alone = False
        if groups:
            token, deadline = memory.new_token(), min(now + lease, NEVER)
            data = encode_groups([ids for _, ids in groups])
            entry = (memory.seen + 1, kinds.CLAIM, now, memory.top, token, deadline, holder.encode(), data)
            if self._append_alone(entry, groups):
                return LeasedLanes(token, deadline, [(lane.key, ids) for lane, ids in groups], [])
        claiming.refuse()
        memory.unsure = False
        return None

    def _claim(self, request: ClaimRequest, lease: int, holder: LaneHolder) -> LeasedLanes:
        memory = self.memory
        now = max(self._now(), memory.at)
        groups = self.claiming.plan(request, now)
        if not groups:
            return LeasedLanes(0, 0, [], [])
        token, deadline = memory.new_token(), min(now + lease, NEVER)
        self._append(kinds.CLAIM, groups, token=token, deadline=deadline, holder=holder.encode())
        return LeasedLanes(token, deadline, [(lane.key, ids) for lane, ids in groups], [])

    def whole(self, arrivals: Sequence[int]) -> list[MessageRow]:
        """Return messages with their bodies. Those whose rows are gone are missing."""
        rows, old = self.memory.rows, self.memory.old_rows
        found: list[MessageRow] = []
        try:
            found = [rows[i] for i in arrivals]
            if all(len(row) > _ROW_WITHOUT_BODY for row in found):
                return found
        except KeyError:
            pass
        found = []
        missing: list[int] = []
        for i in arrivals:
            row = rows.get(i) or old.get(i)
            if row is None or len(row) == _ROW_WITHOUT_BODY:
                missing.append(i)
            else:
                found.append(row)
        if not missing:
            return found
        known = {row[0]: row for row in found} | self.log.whole(missing)
        return [known[i] for i in arrivals if i in known]

    def more(self, token: int, key: bytes, most: int) -> list[MessageRow]:
        """Add later messages of a lane to its lease, under the same token and deadline."""

        def grow() -> list[int]:
            (lane,) = self.settling.leased(token, (key,))
            ids = self._growth(lane, most)
            if ids:
                self._append(kinds.MORE, [(lane, ids)], token=token)
            return ids

        return self.whole(self.transact(grow))

    def _growth(self, lane: LiveLane, most: int) -> list[int]:
        """Return the messages behind a lease that may join it: plain ones of a lease that is whole and not over."""
        grant, rare = lane.grant, lane.rare
        if grant is None or not lane.held or grant.deadline <= self._now() or lane.expires:
            return []
        if rare is not None and (rare.closed or rare.hold or rare.solo or rare.front or rare.waiting or rare.delayed):
            return []
        while lane.split and len(lane.ids or ()) < lane.held + most:
            self.loader.extend(lane, most)
        return [i for i in (lane.ids or [])[lane.held :] if i and lane.attempts(i)[2] <= self._now()][:most]

    # ---- settling

    def _settle(
        self, kind: int, token: int, settled: Settled, *, deadline: int = 0, holder: str | None = None, alone: bool = True
    ) -> None:
        """Append an entry about messages that a lease holds.

        Raises:
            LeaseLost: a token is dead, or a message is not held under it. Nothing was changed.
        """
        memory = self.memory
        if alone and self._may_be_alone:
            self.loader.alone = True
            try:
                groups = self.settling.plan(token, settled)
            except (LeaseLost, NeedsTransactionError):
                groups = []  # memory may be behind, so only a transaction refuses
            finally:
                self.loader.alone = False
            if groups:
                data = encode_groups([ids for _, ids in settled])
                at = max(self._now(), memory.at)
                entry = (memory.seen + 1, kind, at, memory.top, token, deadline, holder, data)
                if self._append_alone(entry, groups):
                    return

        def settle() -> None:
            groups = self.settling.plan(token, settled)
            self._append(kind, groups, token=token, deadline=deadline, holder=holder)

        self.transact(settle, len(settled))

    def ack(self, token: int, settled: Settled) -> None:
        """Resolve messages of a lease, in any order. A lease without an unresolved message ends."""
        self._settle(kinds.ACK, token, settled)

    def release(self, token: int, settled: Settled) -> None:
        """Return messages, and all behind them, of leases. None is charged."""
        self._settle(kinds.RELEASE, token, [(key, ids[:1]) for key, ids in settled])

    def start(self, token: int, settled: Settled) -> None:
        """Note that the handlers of messages start, one of each lane."""
        self._settle(kinds.START, token, [(key, ids[:1]) for key, ids in settled])

    def uncharge(self, token: int, settled: Settled) -> None:
        """Take back that the handlers of messages have started."""
        self._settle(kinds.START, token, [(key, ids[:1]) for key, ids in settled], holder=kinds.UNCHARGE)

    def extend(self, token: int, settled: Settled, seconds: int) -> int:
        """Give leases a new deadline, so many microseconds from now. Return it."""
        deadline = min(max(self._now(), self.memory.at) + seconds, NEVER)
        self._settle(kinds.EXTEND, token, settled, deadline=deadline)
        return deadline

    def nack(self, token: int, settled: Settled, due: int = 0) -> None:
        """Return failed messages, one of each lane, and all behind them. They are retried first, at `due`."""
        self._settle(kinds.NACK, token, [(key, ids[:1]) for key, ids in settled], deadline=due)

    def defer(self, token: int, settled: Settled, due: int) -> None:
        """Postpone messages, one of each lane, without an attempt."""
        self._settle(kinds.DEFER, token, [(key, ids[:1]) for key, ids in settled], deadline=due)

    # ---- operating

    def hold(self, key: bytes, reason: str) -> None:
        """Deliver nothing of a lane. A live lease may finish."""
        self.transact(lambda: self.operating.hold(key, reason))

    def release_hold(self, key: bytes) -> None:
        """Deliver a lane again. Its attempts begin anew."""
        self.transact(lambda: self.operating.release_hold(key))

    def reject(self, token: int, settled: Settled, reason: str | None = None) -> None:
        """Make messages of a lease dead letters."""
        self.transact(lambda: self.operating.reject(token, settled, reason))

    def drop(self, token: int, settled: Settled) -> None:
        """Drop messages of a lease, which are out of attempts."""
        self.transact(lambda: self.operating.drop(token, settled))

    def purge(self, key: bytes) -> int:
        """Resolve all messages of a lane, and end its lease. Return how many there were."""
        return self.transact(lambda: self.operating.purge(key))

    def purge_dead(self, key: bytes) -> int:
        """Delete the dead letters of a lane. Return how many there were."""
        return self.transact(lambda: self.operating.purge_dead(key))

    def redrive(self, key: bytes, most: int) -> int:
        """Put dead letters of a lane back, at their own seqs and ahead of everything later. Return how many there were."""
        return self.transact(lambda: self.operating.redrive(key, most))

    def forget(self, keys: Sequence[bytes]) -> list[bytes]:
        """Forget those of these lanes that are empty and have nothing that must be kept. Return their keys."""
        return self.transact(lambda: self.operating.forget(keys))

    def note(self) -> None:
        """Let other processes notice that something else was written, in a transaction that appends no other entry."""
        self.transact(lambda: self._append(kinds.NOTE, (), data=b""))

    def void(self) -> None:
        """Let every memory be built anew from the tables, because they were repaired in this transaction."""
        self.transact(lambda: self._append(kinds.VOID, (), data=b""))

    # ---- looks

    def look(self, read: Callable[[], T]) -> T:
        """Run `read` on memory that agrees with the file, in a read transaction."""
        if self._inside:
            return read()
        try:
            self._inside = True
            self._end_abandoned()
            self._run("BEGIN")
            self._catch_up(*self.log.newest())
            found = read()
            self._run("COMMIT")
            return found
        except BaseException as e:
            self._fail()
            self._raise(e)
        finally:
            self._inside = False

    def lane(self, key: bytes) -> tuple[Any, ...]:
        """Return all of a lane's state, for checks: see `LiveLane.state`."""
        return self.look(lambda: self._whole_lane(key).state())

    def head(self, key: bytes) -> tuple[int, int | None, int | None]:
        """Return a lane's tail, the arrival number of its head (None: it has none), and the token of its lease (None: free)."""

        def read() -> tuple[int, int | None, int | None]:
            lane = self.loader.lane(key)
            if lane.rare is not None and lane.rare.front:
                head: int | None = lane.rare.front[0][1]
            else:
                while lane.split and not any(lane.ids or ()):
                    self.loader.extend(lane)
                head = next(filter(None, lane.ids or ()), None)
            return lane.tail, head, None if lane.grant is None else lane.grant.token

        return self.look(read)

    def totals(self) -> RunningTotals:
        """Return the totals."""
        return self.look(lambda: self.memory.totals)

    def check(self) -> list[str]:
        """Build memory anew, compare it with the tables, and return what is wrong."""
        self.memory.unsure = True
        return self.look(lambda: list(checking.problems(self._db, self.loader)))

    def _whole_lane(self, key: bytes) -> LiveLane:
        lane = self.loader.lane(key)
        while lane.split:
            self.loader.extend(lane, lane.deep)
        return lane

    def close(self) -> None:
        self._db.close()
