"""The lanes of one shard, over one connection: memory, and how it agrees with the file.

The holder of the shard's write lock uses the writing connection's object; each reading connection has one of its own. Within a
write transaction, the verbs beside this module plan on its memory, and call `append`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import apsw

from ..._errors import StoreCorrupt, StrictqError
from ..._sql import SHARD
from ..commit.tx import COUNTED, Tx
from ..lane import entries as kinds
from ..lane.entries import Entry, encode_groups
from ..lane.memory import M_BODY, M_KEY, M_SENT_AT, Group, MessageRow, ShardMemory, StoreLimits
from ..log.log_rows import LogRows
from ..tables import mark
from ..tables.lane_rows import LaneRows
from .arrivals import Arrivals
from .claiming import Claiming
from .folding import Folder
from .loading import Loader

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

_COUNTS: Final = attrgetter(*COUNTED)


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


class EmptyReceives(Protocol):
    """Counts the receives of this process that found nothing."""

    def take_empty_receives(self, shard: int) -> int: ...


class ShardLanes:
    """The lanes of one shard.

    Attributes:
        now: queue time of the running call.
        totals: None while a transaction is running, or memory may differ from the file.
        is_current: the last transaction found memory equal to the file. Then other processes are probably not writing.
        mark_changed: the running transaction changed `mark`.
        db, run, many: the connection, and its methods. Every part is made anew for another connection.
    """

    db: apsw.Connection
    run: Callable[..., Any]
    many: Callable[..., Any]
    log: LogRows
    rows: LaneRows
    loader: Loader
    folder: Folder
    claiming: Claiming
    arrivals: Arrivals

    def __init__(self, shard: int, limits: StoreLimits | None = None, memory: ShardMemory | None = None) -> None:
        self.shard = shard
        self.memory = memory or ShardMemory(shard, limits or StoreLimits())
        self.now = 0
        self.is_current = False
        self.mark_changed = False
        self.totals: LaneTotals | None = None
        self._view = LaneTotals(self)
        self._known: apsw.Connection | None = None
        self._begun = (0, 0, 0, 0)
        self._refusal: BaseException | None = None
        self._suspects: int | None = None

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
        self.claiming = Claiming(self)
        self.arrivals = Arrivals(db, memory)
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
        self.loader.alone = False
        self.totals = self._refusal = None
        seen, top = self.log.newest()
        self.is_current = not memory.unsure and (seen, top) == (memory.seen, memory.top)
        if not self.is_current or memory.unplaced:
            if seen + top - (0 if memory.unsure else memory.seen + memory.top) > most:
                return None
            self._catch_up(seen, top)
        self.mark_changed = False
        self._begun = (seen, top, db.total_changes(), memory.work)
        memory.unsure = True  # until the COMMIT
        return self._view

    def outlook(self) -> tuple[bool, int]:
        """Return whether a lane may be ready, and a time before which no lease and no delay ends.

        Memory agrees with the file.
        """
        self.claiming.look_ahead()
        order = self.memory.order
        return order.may_have_ready, min(order.next_end, order.next_due)

    def follow(self, db: apsw.Connection) -> Self:
        """Read what other processes wrote, in a read transaction."""
        if self._known is not db:
            self._use(db)
        self.loader.alone = False
        self.totals = None
        self._catch_up(*self.log.newest())
        self.totals = self._view
        return self

    def undone(self, error: BaseException, position: int) -> None:
        """Adapt to the rollback of an operation of a group, in a transaction that continues.

        Args:
            position: `commits` when it began. An operation that refuses may have written something before.
        """
        memory = self.memory
        if error is not self._refusal or position != self.commits:
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
        refused, self._refusal = self._refusal, None
        if refused is not None and refused is error and (memory.seen, memory.top) == self._begun[:2] and not self.mark_changed:
            memory.unsure = False

    def refuse(self, error: StrictqError) -> StrictqError:
        """Return the error by which a plan refuses. Nothing was written, and nothing of memory changed, since the call began."""
        self._refusal = error
        return error

    def _catch_up(self, seen: int, top: int) -> None:
        """Read what memory lacks, up to these rows. It runs in a transaction."""
        memory = self.memory
        if memory.unsure:
            memory.clear(*mark.read(self.db, self.shard))
        elif (seen, top) == (memory.seen, memory.top) and not memory.unplaced:
            return
        memory.unsure = True
        entries = self.log.entries_after(memory.seen)
        if self._must_begin_anew(entries, seen):
            memory.clear(*mark.read(self.db, self.shard))
            entries = self.log.entries_after(memory.seen)
            if self._must_begin_anew(entries, seen):
                raise StoreCorrupt(f"row {memory.seen + 1} of its journal is missing", shard=self.shard)
        if any(entry[1] in kinds.WITH_MARK for entry in entries):
            stored, totals = mark.read(self.db, self.shard)
            if stored.counted > memory.mark.counted:
                memory.mark, memory.totals = stored, totals
                self._suspects = None
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
        return entry

    def append_alone(self, entry: Entry, groups: Sequence[Group]) -> bool:
        """Commit an entry in a single statement, and apply it. Return False if another process wrote meanwhile."""
        memory = self.memory
        memory.unsure = True
        try:
            if not self.log.append_alone(entry):
                self.is_current = memory.unsure = False
                return False
        except apsw.BusyError:
            memory.unsure = False
            raise
        memory.apply(entry, groups)
        memory.unsure = False
        return True

    def insert_alone(self, row: MessageRow) -> bool:
        """Commit a message in a single statement. Return False if another process wrote meanwhile. The caller applies it."""
        memory = self.memory
        memory.unsure = True
        try:
            if not self.log.insert_alone(row, memory.seen):
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
            not memory.unsure and stored.config_version == config_version and stored.epoch == epoch
            and memory.work < self.folder.window and len(memory.dirty) < self.folder.dirty_max and not memory.unplaced
        )  # fmt: skip

    def finish(self, tx: Tx, empties: EmptyReceives) -> None:
        """Write what a transaction needs before its COMMIT: an entry if nothing else tells others of it, and folds."""
        memory = self.memory
        seen, top, changes, work = self._begun
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
            self.folder.fold((memory.work - work) // kinds.NAMED_IN_A_LIFE, tx.now)

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
            if row is None or len(row) == M_BODY:
                missing.append(i)
            else:
                found[i] = row
        return found if not missing else found | self.log.whole(missing)


__all__ = ["LaneTotals", "ShardLanes", "last_outbox"]
