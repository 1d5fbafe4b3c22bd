"""The lanes of one shard, over one connection: memory, and how it agrees with the file.

The holder of the shard's write lock uses the writing connection's object; each reading connection has one of its own. Within a
write transaction, the verbs beside this module plan on its memory, and call `append`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from ..._platform import files
from ..._platform.clock import SystemClock
from ..._sql import LOOKS, SHARD, TABLES
from ..._values.config import QueueConfig
from ..._values.errors import StoreCorrupt, StrictqError
from ..._values.tenants import TenantRules
from ..commit.tx import COUNTED, Host, TxOf
from ..disk.rate_file import RateFile
from ..lane import entries as kinds
from ..lane.entries import Entry, encode_groups
from ..lane.memory import (
    BODY_BYTES_KEPT,
    FOREIGN_BODY_BYTES,
    M_BODY,
    M_ID,
    M_KEY,
    M_SENT_AT,
    Group,
    MessageRow,
    ShardMemory,
    StoreLimits,
)
from ..lane.ranges import Rerouted
from ..lane.tenant_counts import TenantCounts
from ..tables import gone, mark, parcels, tenant_depths, turn_rows
from ..tables.lane_rows import LaneRows
from ..tables.log_rows import LogRows
from .folding import Folder
from .loading import ASKED, CREATED, Loader, NeedsTransactionError

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


if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

_COUNTS: Final = attrgetter(*COUNTED)
NEWS_MAX: Final = 64
"""A single statement reads fewer rows of other processes. If there are more, a transaction reads them."""


class LaneTotals:
    """The totals of a shard, as the committer and its callers see them."""

    __slots__ = ("_lanes",)

    def __init__(self, lanes: ShardLanes) -> None:
        self._lanes = lanes

    def counts(self) -> tuple[int, ...]:
        """Return the values of COUNTED."""
        counts: tuple[int, ...] = _COUNTS(self._lanes.memory.totals)
        return counts

    @property
    def pending(self) -> int:
        return self._lanes.memory.totals.pending

    @property
    def last_id(self) -> int:
        return self._lanes.memory.top

    @property
    def epoch(self) -> int:
        return self._lanes.memory.mark.epoch

    @property
    def last_outbox(self) -> int:
        """The last number of a send to another shard."""
        return last_outbox(self._lanes.db)

    @last_outbox.setter
    def last_outbox(self, number: int) -> None:
        self._lanes.run(SHARD.write_meta, ("last_outbox", number))

    @property
    def config_version(self) -> int:
        return self._lanes.memory.mark.config_version

    @config_version.setter
    def config_version(self, version: int) -> None:
        self._lanes.memory.mark.config_version = version
        self._lanes.mark_changed = True


def last_outbox(db: apsw.Connection) -> int:
    """Return the last number of a send of this shard to another one."""
    stored: int | None = db.execute(SHARD.read_meta, ("last_outbox",)).get
    return stored or 0


KINDS_OF_TRANSACTIONS: Final = kinds.WITH_MARK | {kinds.VOID}
"""Entries that only a transaction reads, because rows were written or cut beside them."""


class ShardLanes:
    """The lanes of one shard.

    Attributes:
        now: queue time of the running call.
        totals: None while a transaction is running, or memory may differ from the file.
        is_current: the last transaction found memory equal to the file. Then other processes are probably not writing.
        mark_changed: the running transaction changed `mark`.
        claims: messages are claimed here, so the bodies of other processes' messages are worth keeping.
        rates: what tenants have taken of their rates, over all processes.
        wake: a single statement made something claimable, so waiting receivers must be woken.
        db, run, many: the connection, and its methods. Every part is made anew for another connection.
    """

    db: apsw.Connection
    run: Callable[..., Any]
    many: Callable[..., Any]
    log: LogRows
    rows: LaneRows
    loader: Loader
    folder: Folder
    arrivals: Arrivals

    def __init__(
        self,
        shard: int,
        limits: StoreLimits | None = None,
        memory: ShardMemory | None = None,
        *,
        claims: bool = False,
        rates: RateFile | None = None,
    ) -> None:
        self.shard = shard
        self.claims = claims
        self.memory = memory or ShardMemory(shard, limits or StoreLimits())
        self.now = 0
        self.is_current = False
        self.mark_changed = self.wake = False
        self.totals: LaneTotals | None = None
        self._view = LaneTotals(self)
        self.planner: Any = None
        """The planner of claims on this connection, which the first claim makes: see `claiming.of`."""
        self._known: apsw.Connection | None = None
        self._begun = (0, 0, 0, 0)
        self._refusal: BaseException | None = None
        self._suspects: int | None = None
        self.rates = RateFile(None, SystemClock()) if rates is None else rates
        self._separated: QueueConfig | None = None
        """The settings by which tenants take turns; None: a transaction must look for them."""

    def _use(self, db: apsw.Connection) -> None:
        """Work on this connection from now on."""
        memory = self.memory
        self._known = None
        memory.unsure = True
        self._suspects = None
        self.db = db
        self.run, self.many = db.execute, db.executemany
        self.log = LogRows(db, self.shard)
        self.rows = LaneRows(db, self.shard, memory.limits.chunk)
        self.loader = Loader(db, memory, self.log, self.rows)
        self.folder = Folder(db, self.loader, self.log, self.rows)
        self.planner = None
        self.arrivals = Arrivals(db, memory)
        self._dirty_max = self.folder.dirty_max
        self._known = db

    @property
    def unsure(self) -> bool:
        """Whether memory may have a part of a change. It is then built anew before it is used."""
        return self.memory.unsure

    @unsure.setter
    def unsure(self, unsure: bool) -> None:
        self.memory.unsure = unsure

    @property
    def commits(self) -> int:
        """A number that each commit raises by one or more."""
        return self.memory.seen + self.memory.top

    # ---- agreeing with the file

    def begin(self, db: apsw.Connection, most: float = math.inf) -> LaneTotals | None:
        """Read what other processes wrote, in a write transaction. Return its totals.

        Args:
            most: how many rows of the logs to read. Returns None, and reads nothing, if there may be more.
        """
        if self._known is not db:
            self._use(db)
        memory = self.memory
        self.loader.alone, self.loader.unknown = False, ASKED
        self.totals = self._refusal = None
        news = None if self.is_current or memory.unsure else self.log.news(memory.seen, memory.top, NEWS_MAX, self._body_bytes)
        if news is None:
            seen, top = self.log.newest()
        else:
            entries, messages = news
            seen, top = entries[-1][0] if entries else memory.seen, messages[-1][M_ID] if messages else memory.top
        self.is_current = not memory.unsure and (seen, top) == (memory.seen, memory.top)
        if not self.is_current or memory.unplaced:
            if seen + top - (0 if memory.unsure else memory.seen + memory.top) > most:
                return None
            self._catch_up(seen, top, news)
        self.mark_changed = False
        self._begun = (seen, top, db.total_changes(), memory.work)
        memory.unsure = True  # until the COMMIT
        return self._view

    def follow(self, db: apsw.Connection) -> Self:
        """Read what other processes wrote, in a read transaction."""
        if self._known is not db:
            self._use(db)
        self.loader.alone, self.loader.unknown = False, ASKED
        self.totals = None
        self._catch_up(*self.log.newest())
        self.totals = self._view
        return self

    def follow_alone(self) -> bool:
        """Read the little that other processes wrote lately with a single statement, outside a transaction.

        The single statement that writes compares memory with the file, so it does not matter what they write in between.

        Returns:
            False: a transaction must read what is left. Memory is as the file was at some time.
        """
        memory, loader = self.memory, self.loader
        news = self.log.news(memory.seen, memory.top, NEWS_MAX, self._body_bytes)
        if news is None:
            return False
        entries, messages = news
        if not entries and not messages:
            self.is_current = True
            return True
        seen = memory.seen + len(entries)
        if entries and (entries[0][0], entries[-1][0]) != (memory.seen + 1, seen):
            return False
        if not KINDS_OF_TRANSACTIONS.isdisjoint([entry[1] for entry in entries]):
            return False
        top = messages[-1][M_ID] if messages else memory.top
        memory.unsure = loader.alone = True
        loader.unknown = CREATED
        try:
            self._replay(entries, messages)
            memory.seen, memory.top = seen, top
            loader.place_all()
            memory.make_room()
        except NeedsTransactionError:
            memory.unsure = False  # what was applied is a beginning of what was read
            return False
        except StrictqError:
            return False  # a transaction finds it again, and reports it
        finally:
            loader.alone, loader.unknown = False, ASKED
        memory.unsure = False
        return True

    def undone(self, error: BaseException, position: int) -> None:
        """Adapt to the rollback of an operation of a group, in a transaction that continues.

        Args:
            position: `commits` when it began. An operation that refuses may have written something before.
        """
        memory = self.memory
        if not self._is_refusal(error) or position != self.commits:
            unwritten = memory.mark
            memory.unsure = True
            self._catch_up(*self.log.newest())
            if self.mark_changed:
                memory.mark.epoch, memory.mark.time_offset = unwritten.epoch, unwritten.time_offset
                memory.mark.config_version = unwritten.config_version
            memory.unsure = True
        self._refusal = None

    def rolled_back(self, error: BaseException) -> None:
        """Adapt to the rollback of a transaction. If a plan refused, and nothing was written, memory is as the file is."""
        memory = self.memory
        if self.mark_changed:
            self._separated = None  # the table of turns may have been filled
        refused, self._refusal = self._is_refusal(error), None
        if refused and (memory.seen, memory.top) == self._begun[:2] and not self.mark_changed:
            memory.unsure = False

    def _is_refusal(self, error: BaseException) -> bool:
        """Return whether a plan raised this error before anything changed. A key without a lane is noticed as it is looked up."""
        return error is self._refusal or isinstance(error, Rerouted)

    def refuse(self, error: StrictqError) -> StrictqError:
        """Return the error by which a plan refuses. Nothing was written, and nothing of memory changed, since the call began."""
        self._refusal = error
        return error

    def _catch_up(self, seen: int, top: int, news: tuple[list[Entry], list[MessageRow]] | None = None) -> None:
        """Read what memory lacks, up to these rows. It runs in a transaction.

        Args:
            news: these rows, if they have been read.
        """
        memory = self.memory
        if memory.unsure:
            self._clear()
        elif (seen, top) == (memory.seen, memory.top) and not memory.unplaced:
            return
        memory.unsure, self.loader.unknown = True, CREATED
        entries = news[0] if news is not None else self.log.entries_after(memory.seen) if seen != memory.seen else []
        if self._must_begin_anew(entries, seen):
            news = None
            self._clear()
            entries = self.log.entries_after(memory.seen)
            if self._must_begin_anew(entries, seen):
                raise StoreCorrupt(f"row {memory.seen + 1} of its journal is missing", shard=self.shard)
        if not kinds.WITH_MARK.isdisjoint([entry[1] for entry in entries]):
            stored, totals = mark.read(self.db, self.shard)
            if stored.counted > memory.mark.counted:
                memory.mark, memory.totals = stored, totals
                self._count_tenants()
                self._suspects = None
        if news is not None:
            messages = news[1]
        else:
            messages = self.log.messages_after(memory.top, self._body_bytes) if top > memory.top else []
        self._replay(entries, messages)
        memory.seen, memory.top = seen, max(memory.top, top)
        self.loader.place_all()
        memory.make_room()
        self._sort()
        memory.unsure, self.loader.unknown = False, ASKED

    def _clear(self) -> None:
        """Begin to build memory anew."""
        stored, totals = mark.read(self.db, self.shard)
        self.memory.clear(stored, totals)
        self.memory.ranges = parcels.ranges(self.db, self.shard) if stored.features & mark.RANGES else None
        self._count_tenants()

    def _count_tenants(self) -> None:
        """Count what tenants have from the mark on, if the table of depths says by which separator."""
        memory = self.memory
        known = memory.mark.features & mark.TENANT_DEPTHS
        text = turn_rows.separator_of(self.db) if known else None
        separator = None if text is None else text.encode()
        if separator is None:
            memory.counts = None
        elif memory.counts is not None and memory.counts.separator == separator:
            memory.counts.forget_depths(tenant_depths.some(self.db))
        else:
            memory.count_tenants(TenantCounts(separator, tenant_depths.some(self.db)))
            if memory.tenancy is None:
                self._separated = None
            if memory.tenancy is not None and memory.tenancy.limits_keys:
                self.leases()

    def leases(self) -> TenantCounts | None:
        """Return the counts of tenants, with their leases, which are followed from now on. It runs in a transaction."""
        counts = self.memory.counts
        if counts is not None and counts.leased is None:
            counts.follow_leases(tenant_depths.leased(self.db), self.memory.lanes.values())
        return counts

    @property
    def _body_bytes(self) -> int:
        """The length up to which the bodies of other processes' messages are read. -1: none is."""
        return FOREIGN_BODY_BYTES if self.claims and self.memory.bytes_kept < BODY_BYTES_KEPT else -1

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
            if memory.ack_one(entry):
                continue
            memory.apply(entry, loader.groups(entry))
            if memory.unplaced:
                loader.place_all()
        if at < n:
            loader.arrive(messages[at:])

    # ---- writing

    def append(
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
        at = max(self.now, memory.at)
        data = encode_groups(groups) if data is None else data
        entry = (memory.seen + 1, kind, at, memory.top, token, deadline, holder, data)
        self.log.append(entry)
        memory.apply(entry, groups)
        if memory.slot_freed:
            self._note_slot()
        return entry

    def _note_slot(self) -> None:
        """Wake receivers, because a tenant may lease one more key."""
        self.memory.slot_freed, self.wake = False, True

    def append_alone(
        self,
        entry: Entry,
        groups: Sequence[Group],
        trouble: tuple[Any, ...] | None = None,
        record: tuple[Any, ...] | None = None,
    ) -> bool:
        """Commit an entry in a single statement, and apply it. Return False if another process wrote meanwhile.

        Args:
            trouble: a row of that table to write with it.
            record: what the records of the messages that it ends have.
        """
        memory = self.memory
        memory.unsure = True
        try:
            if not self.log.append_alone(entry, trouble, record):
                self.is_current = memory.unsure = False
                return False
        except apsw.BusyError:
            memory.unsure = False
            raise
        if not memory.ack_one(entry):
            memory.apply(entry, groups)
        if memory.slot_freed:
            self._note_slot()
        memory.unsure = False
        return True

    def insert_alone(self, row: MessageRow, dedup: tuple[str, int, bool] | None = None) -> bool:
        """Commit a message in a single statement. The caller applies it.

        Args:
            dedup: its dedup id, the end of its window, and whether it is one of the whole queue.
        Returns:
            False: another process wrote meanwhile, or the dedup id is known.
        """
        memory = self.memory
        memory.unsure = True
        try:
            if not self.log.insert_alone(row, memory.seen, dedup):
                self.is_current = memory.unsure = False
                return False
        except apsw.BusyError:
            memory.unsure = False
            raise
        return True

    def agrees(self, config_version: int, epoch: int) -> bool:
        """Return whether memory is as the last call left it, with these settings, in this epoch, and nothing must be folded."""
        memory = self.memory
        stored = memory.mark
        return (
            self._separated is not None
            and not memory.unsure and stored.config_version == config_version and stored.epoch == epoch
            and memory.work < memory.fold_at and len(memory.dirty) < self._dirty_max and not memory.unplaced
        )  # fmt: skip

    def finish(self, tx: Tx, empties: Host) -> None:
        """Write what a transaction needs before its COMMIT: an entry if nothing else tells others of it, and folds."""
        memory = self.memory
        seen, top, changes, work = self._begun
        tx.wake = tx.wake or self.wake
        if self.mark_changed:
            memory.totals.empty_receives += empties.take_empty_receives(self.shard)
            self.folder.store_mark(memory.seen + 1)
            self.append(kinds.NOTE, (), data=b"")
        elif memory.seen == seen:
            # A forwarded message was sent earlier. The time of the newest row must be that of its commit: see `commit_time`.
            needs_note = self._sent_before(tx.now) if memory.top != top else self.db.total_changes() != changes
            if needs_note:
                self.append(kinds.NOTE, (), data=b"")
        if self.folder.is_due:
            memory.totals.empty_receives += empties.take_empty_receives(self.shard)
            self.folder.fold(memory.work - work, tx.now)
            self._sort()
        elif len(memory.dirty) >= self._dirty_max:
            self._sort()

    def _sort(self) -> None:
        """Sort some keys of changed lanes, and note from how many on to do it again."""
        self._dirty_max = min(self.folder.dirty_max, self.memory.sort_some())

    @property
    def suspects(self) -> int:
        """The newest message that the shard had when the machine booted: each may have crashed it. It is read once an epoch."""
        if self._suspects is None:
            self._suspects = self.run(SHARD.read_meta, ("suspects",)).get or 0
        return self._suspects

    def _sent_before(self, now: int) -> bool:
        """Return whether the newest message was sent before this time."""
        row = self.memory.rows.get(self.memory.top)
        return row is None or row[M_SENT_AT] < now

    def separate(self, config: QueueConfig) -> None:
        """Let tenants take turns, and lanes be sidelined, as the settings say, in a write transaction."""
        if config is self._separated:
            return
        memory, separator = self.memory, config.tenant_separator
        known = bool(memory.mark.features & mark.TURNS)
        counts = bool(memory.mark.features & mark.TENANT_DEPTHS)
        differs = (turn_rows.separator_of(self.db) if known else None) != separator
        if differs:
            turn_rows.rebuild(self.db, separator, create=not known)
        if differs or (separator is not None and not counts):
            with files.late():
                from .counting import depths_by_tenant  # it reads the lanes of this module

            depths = {} if separator is None else depths_by_tenant(self, separator.encode())
            tenant_depths.rebuild(self.db, depths, create=not counts)
            memory.counts = None  # the table has all
            self.add_feature(mark.TURNS | mark.TENANT_DEPTHS)
            self._count_tenants()
        if config.turns is not None or memory.tenancy is not None:
            memory.take_turns(config.turns)
        if memory.tenancy is not None and memory.tenancy.limits_keys:
            self.leases()
        self._separated = config

    def tenant_depth(self, tenant: bytes) -> int:
        """Return the unresolved messages of a tenant."""
        counts = self.memory.counts
        return 0 if counts is None else tenant_depths.depth(self.db, counts, tenant)

    def tenant_depths(self) -> dict[bytes, int]:
        """Return the unresolved messages of all tenants that have any."""
        counts = self.memory.counts
        return {} if counts is None else tenant_depths.depths(self.db, counts)

    def in_flight(self, rules: TenantRules, now: int) -> dict[bytes, int]:
        """Return the number of leased keys of each tenant that may have only so many."""
        return {name: n for name, n in self.in_flight_of_all(now).items() if rules.of(name).concurrency is not None}

    def in_flight_of_all(self, now: int) -> dict[bytes, int]:
        """Return the number of leased keys of each tenant."""
        counts = self.leases()
        if counts is None or counts.leased is None:
            return {}
        return {name: len(counts.in_flight(name, now)) for name in counts.leased}

    def add_feature(self, bit: int) -> None:
        """Note that the shard has a feature, in its file at once: an operation of the group that is undone later keeps it."""
        memory = self.memory
        memory.mark.features |= bit
        self.mark_changed = True
        self.folder.store_mark(memory.seen + 1)
        self.append(kinds.NOTE, (), data=b"")

    def rest(self) -> None:
        """Bring every lane to rest, in a write transaction, so that its row says everything about it."""
        memory, folder = self.memory, self.folder
        while memory.dirty or memory.gone or memory.fold_to:
            folder.slice(self.now)

    def change_rows(self) -> None:
        """Let every process begin anew from the rows of lanes, which all are at rest and were changed since.

        The journal is cut, so that no process replays changes of a lane that has left the shard.
        """
        memory = self.memory
        self.append(kinds.NOTE, (), data=b"")
        memory.mark.cut, memory.mark.mid = memory.seen, memory.top
        self.log.cut(memory.seen)
        self.folder.store_mark(memory.seen + 1)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make every process build its memory anew, because rows were changed in another way than by entries."""
        self.append(kinds.VOID, (), data=b"")
        self.memory.unsure = True
        self._catch_up(*self.log.newest())
        self.memory.unsure = True  # until the COMMIT

    def begin_epoch(self, tx: Tx, epoch: int, time_offset: int, *, keeps_leases: bool) -> None:
        """Begin an epoch. The timed leases of earlier ones end, unless their holders may live on another machine."""
        from .expiring import end_timed_leases  # imported late: once a boot

        memory = self.memory
        if not keeps_leases:
            end_timed_leases(tx)
        memory.mark.epoch, memory.mark.time_offset = epoch, time_offset
        self._suspects = None
        self.mark_changed = True

    # ---- messages

    def whole(self, arrivals: Sequence[int]) -> dict[int, MessageRow]:
        """Return messages with their bodies. Those whose rows are gone are missing."""
        rows, old = self.memory.rows, self.memory.old_rows
        found: dict[int, MessageRow] = {}
        missing: list[int] = []
        for i in arrivals:
            row = rows.get(i) or old.get(i)
            if row is None or row[M_BODY] is None:
                missing.append(i)
            else:
                found[i] = row
        return found if not missing else found | self.log.whole(missing)


Tx = TxOf[ShardLanes]
"""One write transaction on one shard, as the verbs see it."""
