"""The commit path of one shard: the write lock, what runs in one transaction, and the handling of failures.

At durability "full", callers in many threads share commits (group_commit.py). At "process", a commit is cheaper than waking a
thread, so a plain lock is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import apsw

from ..._platform import files
from ..._platform import process as _process
from ..._platform.observe import notify
from ..._sql import SHARD
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import (
    ForkedProcess,
    InvalidArgument,
    OutcomeUnknown,
    QueueClosed,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
)
from ..disk.stored import OF_PYTHON, is_of_c
from ..disk.topology import Range
from ..disk.wal_file import UNSYNCED_MAX
from .connection import BUSY_SECONDS, Connected, LockWait, Opener, after_commit, failed_sync, no_room, translate
from .group_commit import Call, Grouping
from .tx import COUNTED, AnyTx, Host, Lanes, Operation, Totals, TxOf, is_mine, whoami

if TYPE_CHECKING:
    from .group_commit import Mergeable

A = TypeVar("A")
T = TypeVar("T")


def in_read_transaction(db: apsw.Connection, look: Callable[[apsw.Connection], T]) -> T:
    """Run `look` on one snapshot of the database."""
    try:
        db.execute("BEGIN")
        return look(db)
    finally:
        if db.in_transaction:  # an unreadable page ends it
            db.execute("ROLLBACK")


def _failed_reading(error: BaseException) -> bool:
    """Return whether SQLite reports that it could not read."""
    return getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_DATA)


# Arguments of Lock.acquire, for `held += map(lock.acquire, …)`. This runs entirely inside the interpreter, so `held` records
# whether the lock was taken, whenever the caller is interrupted. An ordinary call may be interrupted before it returns that.
_WAIT: Final = (True,)

CATCH_UP_MAX: Final = 2_000
"""The maximum number of other processes' rows that this process reads while it holds the write lock."""

_UNSURE: Final = (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)
"""After these errors the page cache may differ from the disk."""
DAMAGE: Final = (StoreCorrupt, SchemaMismatch)
"""Raised where the rows of a shard contradict each other, or are those of a later version."""
_DISTRUST: Final = (*_UNSURE, *DAMAGE, apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError)
"""After these errors no call of a group is committed: the group fails as one."""


class Writer(Connected):
    """Runs operations on one shard's file, each in a write transaction, alone or in a group."""

    def __init__(
        self,
        opener: Opener,
        part: Range,
        host: Host,
        lanes: Lanes,
        *,
        grouped: bool,
        in_memory: bool = False,
    ) -> None:
        """Prepare the commit path; the connection is opened at the first use."""
        self._opener = opener
        self._lanes = lanes
        self._in_memory = in_memory
        self._shard = part.shard
        self._range = part
        self._host = host
        self._grouped = grouped
        self._pid = _process.pid
        self._closed = False
        self._inside = False
        self.syncs = True
        """Whether the connection's commits are synced, at "full"."""
        self._suspects = host.suspects
        self._observers = host.observers
        self._sync_failed = False
        self._lock_wait = LockWait()
        self._in_vain = False
        """Whether a call with a time limit did not get the lock, and no transaction has begun since."""
        self._maintained = False
        """Whether a checkpoint has the lock. Its end depends on the disk only, so callers wait for it; see `_waits_on`."""
        self._grouping = Grouping(self._locked, self._commit, self._waits_on, part.shard)
        self.pending = 0
        """Unresolved messages after this object's last commit. In memory, these are all there are."""
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._owner: object = 0

    # ---- running operations

    def run(self, operation: Operation[T], seconds: float | None = None, *, synced: bool = True) -> T:
        """Run `operation` in a write transaction, and return its result once it is committed.

        Args:
            synced: the operation must survive a power cut, at "full". A later synced commit makes it durable, too.
            seconds: how long to wait for the write lock; None: BUSY_SECONDS. After such a wait has timed out, later calls with
                a limit do not wait for the same holder again.
        Raises:
            StoreBusy, StoreFull, StoreCorrupt, StoreError: nothing changed.
            OutcomeUnknown: the COMMIT failed.
            Whatever the operation raises: nothing changed.
        """
        if self._owner:
            self.require_outside()  # it would wait for itself, and other callers for the transaction that this thread has open
        began = time.monotonic() if self._observers.durations else 0.0
        call = Call(operation, BUSY_SECONDS if seconds is None else 0.0 if self._in_vain else seconds, synced)
        try:
            tx = self._grouping.commit(call) if self._grouped else self._locked(partial(self._commit, [call]), call.seconds)
        except StoreBusy:
            if seconds is not None:
                self._in_vain = True
            raise
        try:
            if tx is not None:
                self._announce(tx)
            if began:
                self._observers.timed("commit", began, self._shard)
        except Exception as e:
            raise after_commit(e, self._shard)  # noqa: B904 - it has its cause
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[no-any-return]

    def direct(
        self,
        work: Callable[[Any, int, A], T | None],
        given: A,
        settings: tuple[QueueConfig, int],
        seconds: float | None = None,
        *,
        synced: bool = True,
    ) -> T | None:
        """Let `work` commit with a single statement, which itself compares the tables with memory.

        While other threads share commits at "full", it is not possible: one sync for all of them saves more.

        Args:
            work: takes the lanes, the time, and `given`. Returns None if nothing changed. Sets `lanes.wake` if something became
                claimable.
            settings: those that allow it.
            seconds: as for `run`. The caller then runs it as an operation.
            synced: as for `run`. False: `work` calls `omit_sync` before its statement.
        Returns:
            None if it is not possible now.
        Raises:
            As `run`.
        """
        lanes = self._lanes
        if self._owner:
            self.require_outside()
        grouped = self._grouped
        if grouped and self._grouping.is_shared:
            return None
        observers = self._observers
        began = time.monotonic() if observers.durations else 0.0
        before: tuple[int, ...] | None = None
        held: list[bool] = []
        try:
            held += map(self._lock.acquire, _WAIT, (0.0 if grouped else BUSY_SECONDS if seconds is None else seconds,))
            if not held[0] and (grouped or seconds is not None):
                return None
            if not held[0] or self._closed or self._pid != _process.pid:
                self._taken(held, BUSY_SECONDS)
            db, host = self._db, self._host
            if (
                db is None or lanes.totals is None or lanes.db is not db or db.in_transaction or self._suspects(self._shard)
                or host.settings is not settings or not lanes.agrees(settings[1], host.epoch)
            ):  # fmt: skip
                return None
            self._owner = threading.get_ident()
            self._lock_wait.seconds = seconds
            self._in_vain = False
            was_current = lanes.is_current
            if not was_current and not lanes.follow_alone():
                return None
            if synced and grouped and not self.syncs:
                self._sync_commits(db, True)
            if observers.counts:
                before = lanes.totals.counts()
            lanes.wake = False
            done = work(lanes, host.now(), given)
            if done is None and was_current and not (lanes.is_current or lanes.unsure) and lanes.follow_alone():
                # Another process wrote meanwhile, so the statement wrote nothing. Plan it again.
                before = None if before is None else lanes.totals.counts()
                done = work(lanes, host.now(), given)
            if done is None:
                return None
            wakes = lanes.wake
            if grouped and self.syncs:
                host.note_synced(self._shard, lanes.commits)
            after = () if before is None else lanes.totals.counts()
        except apsw.Error as e:
            raise self._failed_directly(e) from e
        except OF_PYTHON as e:
            if is_of_c(e):
                raise self._failed(e) from e  # a value could not be bound, so the statement did not run
            raise after_commit(e, self._shard) if lanes.unsure else e  # noqa: B904
        except Exception as e:
            raise after_commit(e, self._shard) if lanes.unsure else e  # noqa: B904
        finally:
            if held and held[0]:
                self._owner = 0
                self._lock.release()
        if wakes:
            host.note_change(self._shard)
            host.wake()
        if before is not None:
            self._report_counts(before, after)
        if began:
            observers.timed("commit", began, self._shard)
        return done

    def omit_sync(self, db: apsw.Connection) -> None:
        """Do not sync the next commit at "full", unless too many before it were not synced.

        The shard's lock is held. If another process commits before the statement that follows, that statement writes nothing.
        """
        if self._grouped and self._may_omit_sync() == self.syncs:
            self._sync_commits(db, not self.syncs)

    def _may_omit_sync(self) -> bool:
        """Return whether the number of unsynced commits before the next one permits a further one. Memory is current."""
        return 0 <= self._unsynced_commits() < UNSYNCED_MAX

    def _unsynced_commits(self) -> int:
        """Return how many commits may be unsynced; less, or a negative number, if memory is not current."""
        synced = self._host.synced(self._shard)
        return UNSYNCED_MAX if synced is None else self._lanes.commits - synced

    def _failed_directly(self, error: apsw.Error) -> BaseException:
        """Return the error for a failed single-statement transaction. SQLite has rolled it back, unless its COMMIT failed."""
        full = no_room(error, self._db)
        if isinstance(error, apsw.IOError | apsw.NoMemError) and not full and not _failed_reading(error):
            self._note(error)
            self._distrust_connection()
            return OutcomeUnknown(f"COMMIT failed: {error}", shard=self._shard, cause=error)
        ours = self._failed(error)
        if full:
            self._distrust_connection()
        return ours

    def read(self, look: Callable[[apsw.Connection], T], seconds: float | None = None) -> T:
        """Run `look` in a read transaction on the writing connection. For short reads only."""
        return self._connected(partial(in_read_transaction, look=look), seconds)

    def use(self, work: Callable[[apsw.Connection], T], seconds: float | None = None) -> T:
        """Run `work` on the writing connection with its lock held. `work` manages its own transactions.

        Args:
            seconds: how long to wait for that lock, and for other processes inside `work`; None: BUSY_SECONDS.
        """

        def synced(db: apsw.Connection) -> T:
            if not self.syncs:
                self._sync_commits(db, True)
            return work(db)

        return self._connected(synced, seconds)

    def maintain(self, work: Callable[[apsw.Connection], T], seconds: float | None = None) -> T:
        """Run a part of a checkpoint as `use` does. No caller fails because it takes long."""

        def maintained(db: apsw.Connection) -> T:
            self._maintained = True
            try:
                return work(db)
            finally:
                self._maintained = False

        return self.use(maintained, seconds)

    def _waits_on(self, seconds: float) -> bool:
        """Return whether a call that waited in vain for so many seconds waits on: the queue's own work must not make it fail."""
        return self._maintained and seconds >= BUSY_SECONDS

    def _announce(self, tx: AnyTx) -> None:
        """Report what a transaction did, after its COMMIT."""
        if tx.wake:
            self._host.wake()
        if tx.events:
            self._host.report(tx.events)
        if tx.counts_before is not None:
            self._report_counts(tx.counts_before, tx.counts_after)

    # ---- one transaction

    def _commit(self, calls: list[Call], join: Callable[[], None] | None = None, synced: bool = True) -> AnyTx:
        tx = self._begin(synced)
        try:
            if join is not None:
                join()
            if len(calls) == 1:
                calls[0].result = calls[0].operation(tx)
            else:
                for call in self._merged(tx, calls):
                    self._guarded(tx, call)
            self._finish(tx)
        except BaseException as e:
            for call in calls:
                call.unfinish()
            raise self._undo(e) from None
        try:
            self._end(tx)
            for call in calls:
                call.finished = True
        except BaseException as e:
            # Perhaps interrupted after the COMMIT. The next leader may run again only what was certainly rolled back.
            for call in calls:
                if tx.committed:
                    call.finished = True
                elif isinstance(e, StoreError):
                    call.finish(e)
                elif not tx.undone:
                    call.finish(OutcomeUnknown("the thread that committed was interrupted", shard=self._shard, cause=e))
            raise
        return tx

    def _merged(self, tx: AnyTx, calls: list[Call]) -> list[Call]:
        """Run calls of the same kind together where possible. Return the calls that must run separately."""
        kinds: dict[type, list[Call]] = {}
        for call in calls:
            kinds.setdefault(type(call.operation), []).append(call)
        done: set[Call] = set()
        for kind, alike in kinds.items():
            if len(alike) > 1 and hasattr(kind, "together") and self._together(tx, alike):
                done.update(alike)
        return [call for call in calls if call not in done]

    def _together(self, tx: AnyTx, alike: list[Call]) -> bool:
        """Run calls of one kind as one operation.

        Return False if any can't be done: then none is, and each must run by itself.
        """
        operations = [call.operation for call in alike]
        head = cast("Mergeable", operations[0])
        whole = Call(lambda tx: head.together(tx, operations))
        self._guarded(tx, whole)
        if whole.error is not None:
            return False
        for call, result in zip(alike, whole.result, strict=True):
            call.result = result
        return True

    def _guarded(self, tx: AnyTx, call: Call) -> None:
        """Run one operation of a group. If it fails, only it is rolled back."""
        events, position = len(tx.events), tx.lanes.commits
        tx.run("SAVEPOINT operation")
        try:
            call.result = call.operation(tx)
            tx.run("RELEASE operation")
        except Exception as e:
            if not tx.db.in_transaction or isinstance(e, _DISTRUST):
                raise  # SQLite rolled back the whole transaction, or this connection can't be trusted any more
            tx.run("ROLLBACK TO operation")
            tx.run("RELEASE operation")
            tx.lanes.undone(e, position)
            del tx.events[events:]
            call.error = translate(e, self._shard, tx.db)

    def _begin(self, synced: bool = True) -> AnyTx:
        host = self._host
        db = self._db
        if db is None or db.in_transaction or self._suspects(self._shard):
            db = self._connection()
        lanes = self._lanes
        try:
            self._begin_write(db, synced)
            totals = lanes.begin(db, CATCH_UP_MAX) or self._catch_up(db, synced)
            if self._grouped and not self.syncs and not self._may_omit_sync():
                db.execute("ROLLBACK")  # other processes have committed meanwhile
                return self._begin()
            self._in_vain = False
            if totals.config_version != host.settings[1]:
                self._require_range(db)
                self._agree_on_config(db, totals)
            tx: AnyTx = TxOf(db, self._shard, lanes, totals, host.now(), host.settings[0])
            lanes.now = tx.now
            lanes.separate(tx.config)
            if totals.epoch != host.epoch:
                self._agree_on_epoch(tx)
            if self._observers.counts:
                tx.counts_before = totals.counts()
            return tx
        except BaseException as e:
            raise self._undo(e) from None

    def _catch_up(self, db: apsw.Connection, synced: bool) -> Totals:
        """Read what other processes wrote while they continue to write, and the rest under the write lock."""
        db.execute("ROLLBACK")
        in_read_transaction(db, self._lanes.follow)
        self._begin_write(db, synced)
        totals = self._lanes.begin(db)
        assert totals is not None
        return totals

    def _begin_write(self, db: apsw.Connection, synced: bool) -> None:
        """Begin a transaction. At "full" its commit is synced if it must be, or if too many before it were not."""
        if self._grouped and self.syncs != (synced or self._unsynced_commits() >= UNSYNCED_MAX):
            self._sync_commits(db, not self.syncs)
        db.execute("BEGIN IMMEDIATE")

    def _sync_commits(self, db: apsw.Connection, on: bool) -> None:
        # SQLite applies the pragma when it prepares the statement: a cached statement would do nothing.
        self.syncs = False  # also if this is interrupted: too many syncs are harmless
        db.execute("PRAGMA synchronous=FULL" if on else "PRAGMA synchronous=NORMAL", can_cache=False)
        self.syncs = on

    def _require_range(self, db: apsw.Connection) -> None:
        """Refuse to write if this process routes keys by another range than the shard's.

        A change of the topology raises the version that every write compares, as a change of the settings does.
        """
        found = tuple(db.execute(SHARD.read_meta, (name,)).get for name in ("hash_lo", "hash_hi"))
        if found != self._range.bounds:
            raise StoreError(
                f"another process changed the shard's range of keys to {found[0]}..{found[1]}; nothing was changed",
                shard=self._shard,
                hint=hints.OPEN_AGAIN,
            )

    def _agree_on_config(self, db: apsw.Connection, totals: Totals) -> None:
        host = self._host
        if totals.config_version > host.settings[1]:
            host.adopt_config(db.execute(SHARD.read_meta, ("config",)).get, totals.config_version)
        config, version = host.settings
        if totals.config_version < version:
            db.execute(SHARD.write_meta, ("config", config.to_json()))
            totals.config_version = version

    def _agree_on_epoch(self, tx: AnyTx) -> None:
        host, db, totals = self._host, tx.db, tx.totals
        if totals.epoch > host.epoch:
            host.reload_epoch()
            tx.now = host.now()
            tx.lanes.now = tx.now
        if totals.epoch < host.epoch:
            # This is the first write here since the machine booted: leases of the previous boot are over.
            db.execute(SHARD.write_meta, ("suspects", totals.last_id))
            tx.lanes.begin_epoch(tx, host.epoch, host.time_offset, keeps_leases=host.keeps_leases)

    def _finish(self, tx: AnyTx) -> None:
        """Write what an operation leaves to the end of its transaction."""
        if not tx.db.in_transaction:
            tx.require_whole()
        tx.lanes.finish(tx, self._host)

    def _end(self, tx: AnyTx) -> None:
        try:
            tx.run("COMMIT")
            tx.committed = True
            lanes = tx.lanes
            ended: Any = tx.totals
            lanes.totals, lanes.unsure = ended, False
            if self._grouped and self.syncs:
                self._host.note_synced(self._shard, lanes.commits)
            self.pending = tx.totals.pending
            if tx.wake:
                self._host.note_change(self._shard)  # before any caller of the group returns
            if tx.counts_before is not None:
                tx.counts_after = tx.totals.counts()  # before another thread gets the lock
        except apsw.Error as e:
            self._roll_back(tx)
            full = no_room(e, tx.db)
            self._note(e)
            self._distrust_connection()
            if full:
                # It comes from writing frames, before the commit frame is complete.
                raise StoreFull(full, shard=self._shard, cause=e) from e
            raise OutcomeUnknown(f"COMMIT failed: {e}", shard=self._shard, cause=e) from e
        except BaseException as e:
            # Interrupted before the COMMIT or after it; otherwise only an SQLite error ends the transaction.
            with suppress(apsw.Error):  # if a fork in a signal handler closed it, the outcome is unknown
                tx.committed = not tx.db.in_transaction
            self._roll_back(tx)
            if isinstance(e, Exception):
                raise after_commit(e, self._shard)  # noqa: B904 - it has its cause
            raise

    def _roll_back(self, tx: AnyTx) -> None:
        """Roll back what the COMMIT did not end."""
        with suppress(apsw.Error):
            if tx.db.in_transaction:
                tx.run("ROLLBACK")
                tx.undone = True

    def _undo(self, error: BaseException, *, of_program: bool = False) -> BaseException:
        """Roll back, and return the error to raise. Drop the connection if it can't be trusted any more.

        Args:
            of_program: it may come from the program's code, which may use other queues. Then it may not be this shard's damage.
        """
        db = self._db
        try:
            if db is not None and db.in_transaction:
                db.execute("ROLLBACK")
        except apsw.Error:
            self._distrust_connection()
        self._lanes.rolled_back(error)
        failures = (apsw.Error, *OF_PYTHON) if of_program else (apsw.Error, *OF_PYTHON, *DAMAGE)
        return self._failed(error) if isinstance(error, failures) else error

    def _leave(self, held: list[bool]) -> None:
        """End the transaction, and the reads, that an error or an interrupt left open. A second call does nothing.

        A cursor of an interrupted call lives as long as the exception. Its read transaction would keep the WAL from being
        restarted, and be too old for the next write. Closing the connection ends it.
        """
        db = self._db
        if db is None or not (held and held[0]):
            return
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
            reads = not self._in_memory and db.txn_state("main") != apsw.SQLITE_TXN_NONE
        except apsw.Error:
            reads = True
        if reads:
            self._distrust_connection()

    def distrust(self) -> None:
        """Drop the connection after a failed sync of the WAL.

        Nothing is written until the visible part of the WAL is on the disk.
        """
        self._note_failed_sync()
        self.require_outside()
        self._locked(self._drop_connection)

    @property
    def distrusted(self) -> bool:
        """Whether a sync failed here or in another process. The kernel may then consider pages written that it could not write.

        The next process that opens the shard rewrites its WAL.
        """
        return self._sync_failed or self._suspects(self._shard) != 0

    def trust(self) -> None:
        """Clear the failure that this object noticed, after its repair."""
        self._sync_failed = False

    def _note(self, error: BaseException) -> None:
        if failed_sync(error):
            self._note_failed_sync()

    def _note_failed_sync(self) -> None:
        self._sync_failed = True
        self._host.suspect(self._shard)  # for other processes, and for the next one if this one dies before it can repair it

    def _failed(self, error: Exception) -> BaseException:
        self._note(error)
        ours = translate(error, self._shard, self._db)
        if isinstance(ours, DAMAGE):
            self._distrust_connection()
            self._host.quarantine(self._shard, ours)
        elif isinstance(error, _UNSURE):
            self._distrust_connection()
        return ours

    def _report_counts(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Report to observers what a transaction counted."""
        if before != after:
            for name, old, new in zip(COUNTED, before, after, strict=True):
                if old != new:
                    notify(self._observers.counts, name, new - old, self._shard)

    # ---- the connection and its lock

    def _connection(self) -> apsw.Connection:
        if self._db is not None and self._suspects(self._shard):
            self._drop_connection()  # another process saw a sync fail; opening it again repairs that
        if self._db is None:
            self._lanes.unsure = True  # commits may have been lost, so numbers may be reused from now on
            self._db = self._opener()
            self.syncs = True
            self._db.set_busy_handler(self._lock_wait)
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")  # the previous holder of the lock was interrupted before its rollback
        return self._db

    def _distrust_connection(self) -> None:
        """Drop the connection after a failed read, write or sync: its page cache may differ from the disk.

        The next call opens a new one. In memory there is no disk, and the data exists in the connection only.
        """
        if not self._in_memory:
            self._drop_connection()

    @property
    def busy(self) -> bool:
        """Whether its connection is in use."""
        return self._lock.locked()

    def require(self) -> None:
        """Refuse to work after close, or in a child whose fork was not prepared."""
        if self._pid != _process.pid:
            raise ForkedProcess("the queue was inherited through a fork that strictq could not prepare for")
        if self._closed:
            raise QueueClosed("the queue is closed")

    def require_outside(self) -> None:
        """Refuse to go on inside this thread's own transaction of the shard: the caller would wait for itself."""
        if is_mine(self._owner):
            raise InvalidArgument("this is inside a transaction on the same shard", hint=hints.USE_TRANSACTION)

    def _taken(self, held: list[bool], seconds: float) -> None:
        """Verify after a wait that the lock was acquired and that the writer may be used."""
        if not held[0]:
            self.require_outside()
            while not held[0] and self._waits_on(seconds):
                held[:] = map(self._lock.acquire, _WAIT, (seconds,))
        if not held[0]:
            raise StoreBusy("another thread holds the shard's write lock", shard=self._shard)
        self._owner = threading.get_ident()
        self._lock_wait.seconds = seconds
        if self._closed or self._pid != _process.pid:
            self.require()

    def _connected(self, work: Callable[[apsw.Connection], T], seconds: float | None) -> T:
        """Run `work` on the connection with the lock held, and translate its errors."""

        def within() -> T:
            try:
                return work(self._connection())
            except OSError as e:  # from a module that is imported when it is first needed
                raise files.failure("it can't be read", e, self._shard) from e
            except DAMAGE as e:
                self._failed(e)
                raise
            except (apsw.Error, *OF_PYTHON) as e:
                raise self._failed(e) from e

        if self._owner:
            self.require_outside()
        return self._locked(within, seconds)

    def _locked(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Run `work` with the lock held. `seconds` limits the wait for it, and the waits for other processes inside `work`.

        This is not a context manager: the exit of one can be interrupted before it releases the lock. What must be done is done
        twice where it takes a call of a function, because an interrupt can end the first call before its first step.
        """
        held: list[bool] = []
        if seconds is None:
            seconds = BUSY_SECONDS
        try:
            held += map(self._lock.acquire, _WAIT, (seconds,))
            if not held[0] or self._closed or self._pid != _process.pid:
                self._taken(held, seconds)
            self._owner = threading.get_ident()
            self._lock_wait.seconds = seconds
            return work()
        except BaseException:
            try:
                self._leave(held)
            finally:
                self._leave(held)
            raise
        finally:
            if held and held[0]:
                self._owner = 0
                self._lock.release()

    def close(self, leave: Callable[[apsw.Connection], None] | None = None) -> None:
        """Close the connection once the running transaction is over. Later calls raise QueueClosed.

        A transaction that this thread itself has open is rolled back: it can't end before this returns.

        Args:
            leave: called with the connection after the last commit. Its failure changes nothing: the commits are in the WAL.
        """
        self._closed = True
        held: list[bool] = []
        try:
            if not is_mine(self._owner):
                held += map(self._lock.acquire, _WAIT, (BUSY_SECONDS,))
            if leave is not None and held and held[0] and self._db is not None:
                leave(self._connection())
        except (apsw.Error, OSError, StrictqError) as e:
            self._note(e)
        finally:
            try:
                try:
                    self._drop_connection()
                finally:
                    self._drop_connection()
            finally:
                if held and held[0]:
                    self._lock.release()

    # ---- forks (fork.py calls these)

    def quiesce(self) -> bool:
        """Wait for the running transaction and close the connection, before a fork. Return False if the lock was not free.

        A transaction that the forking thread itself has open is rolled back: shared by two processes, it would lose commits.
        """
        self._inside = is_mine(self._owner)
        if not self._inside and not self._lock.acquire(timeout=BUSY_SECONDS):
            return False
        self._grouping.quiesce()
        self._drop_connection()
        return True

    def resume(self, *, child: bool) -> None:
        """Admit callers again after a fork that `quiesce` prepared."""
        self._grouping.resume(child=child)
        if child:
            # Waiting threads exist in the parent only. An open block of this thread still holds its lock.
            owner = self._owner
            self._make_locks()
            self._pid = _process.pid
            if self._inside:
                self._lock.acquire()
                self._owner = owner
        elif not self._inside:
            self._lock.release()


class Alone:
    """A write transaction of one caller, from `begin` to `commit` or `close`.

    Making one acquires nothing, so that its owner can hold it before it begins. `close` ends it wherever it was interrupted.
    Owners call it twice, because an interrupt can end the first call before its first step.
    """

    __slots__ = ("_began", "_held", "_tx", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._held: list[bool] = []
        self._tx: AnyTx | None = None
        self._began = 0.0

    def begin(self) -> AnyTx:
        """Acquire the shard, and begin.

        Raises:
            StoreBusy, StoreError: nothing changed. Call `close`.
        """
        writer = self._writer
        writer.require_outside()
        self._began = time.monotonic()
        self._held += map(writer._lock.acquire, (True,), (BUSY_SECONDS,))
        writer._taken(self._held, BUSY_SECONDS)
        writer._owner = whoami()
        self._tx = tx = writer._begin()
        return tx

    def undone(self, error: BaseException) -> BaseException:
        """Roll back because of this error. Return the error to raise.

        Raises:
            ForkedProcess: a fork rolled it back.
        """
        if not (self._held and self._held[0]):
            return error
        if self._tx is not None:
            self._require_ours(self._tx)
        return self._writer._undo(error, of_program=True)

    def _require_ours(self, tx: AnyTx) -> None:
        """Raise if a fork inside the block closed the connection, which rolled the transaction back for both sides."""
        if self._writer._db is not tx.db:
            raise ForkedProcess("the process forked inside an open transaction; nothing was changed", hint=hints.FORK_OUTSIDE)

    def commit(self) -> None:
        """Commit, release the shard, and report what happened.

        Raises:
            StoreFull, StoreError, ForkedProcess: nothing changed.
            OutcomeUnknown: the COMMIT failed.
        """
        writer, tx = self._writer, self._tx
        assert tx is not None
        try:
            self._require_ours(tx)
            writer._finish(tx)
        except BaseException as e:
            raise self.undone(e) from None
        writer._end(tx)
        self.close()
        try:
            writer._announce(tx)
            writer._observers.timed("transaction", self._began, writer._shard)
        except Exception as e:
            raise after_commit(e, writer._shard)  # noqa: B904 - it has its cause

    def close(self) -> None:
        """Roll back what is still open, and release the shard. A second call does nothing."""
        held, writer = self._held, self._writer
        if not (held and held[0]):
            return
        try:
            try:
                writer._leave(held)
            finally:
                writer._leave(held)
        finally:
            writer._owner = 0
            self._held = []  # before the release, which an interrupt may follow, but not precede
            writer._lock.release()

    def __del__(self) -> None:
        if getattr(self, "_held", None):  # its owner was dropped without an end
            self.close()
