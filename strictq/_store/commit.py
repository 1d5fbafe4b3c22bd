"""The commit path of one shard: who may write, what runs in one transaction, and what a failure means.

At durability "full" callers in many threads share commits (grouping.py). At "process" a commit is cheaper than waking a thread,
so there a plain lock serves.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import apsw

from .._config import QueueConfig
from .._errors import (
    ForkedProcess,
    InvalidArgument,
    OutcomeUnknown,
    QueueClosed,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
)
from .._sql import CLAIM, SHARD
from .._types import Event
from .calls import Call, Operation, is_mine, whoami
from .connection import BUSY_SECONDS, NONSENSE, Opener, failed_sync, leak, translate
from .frame import Totals, Tx
from .grouping import Grouping

if TYPE_CHECKING:
    from .calls import Mergeable

T = TypeVar("T")


class Host(Protocol):
    """What the commit path asks of the queue it belongs to."""

    settings: tuple[QueueConfig, int]
    epoch: int
    time_offset: int

    def now(self) -> int: ...
    def adopt_config(self, text: str, version: int) -> None: ...
    def reload_epoch(self) -> None: ...
    def take_empty_receives(self, shard: int) -> int: ...
    def committed(self, shard: int, events: list[Event], wake: bool) -> None: ...
    def quarantine(self, shard: int, error: StoreError) -> None: ...
    def suspects(self, shard: int) -> int: ...
    def suspect(self, shard: int) -> None: ...


# Arguments of Lock.acquire, for `held += map(lock.acquire, …)`: done wholly inside the interpreter, so that whatever interrupts
# the caller, `held` says whether the lock was taken. An ordinary call may be interrupted between taking it and telling.
_WAIT: Final = (True,)

_UNSURE: Final = (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)
"""After these the page cache may say what the disk does not."""
_DISTRUST: Final = (*_UNSURE, apsw.CorruptError, apsw.NotADBError, *NONSENSE)
"""After these nobody's work is committed: a group fails as one."""


class Writer:
    """Runs operations on one shard's file, each in a write transaction, alone or in a group."""

    def __init__(self, opener: Opener, shard: int, host: Host, *, grouped: bool, in_memory: bool = False) -> None:
        self._opener = opener
        self._in_memory = in_memory
        self._shard = shard
        self._host = host
        self._grouped = grouped
        self._db: apsw.Connection | None = None
        self._pid = os.getpid()
        self._closed = False
        self._inside = False
        self._suspects = host.suspects
        self._sync_failed = False
        self._grouping = Grouping(self._locked, self._commit)
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._owner: object = 0

    # ---- running operations

    def run(self, operation: Operation[T]) -> T:
        """Run `operation` in a write transaction and return its result once it is committed.

        Raises:
            StoreBusy, StoreFull, StoreCorrupt, StoreError: nothing changed.
            OutcomeUnknown: the COMMIT failed.
            Whatever the operation raises: nothing changed.
        """
        self.require_outside()  # it would wait for itself, and everybody for the transaction that this thread has open
        call = Call(operation)
        self._told(self._grouping.commit(call) if self._grouped else self._locked(lambda: self._commit([call])))
        return call.outcome()  # type: ignore[no-any-return]

    def read(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run `look` in a read transaction on the writing connection: short looks only."""

        def within(db: apsw.Connection) -> T:
            db.execute("BEGIN")
            try:
                return look(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

        return self._connected(within, (apsw.Error, *NONSENSE))

    def use(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on the writing connection with its lock held; it keeps its own transactions."""
        return self._connected(work, (apsw.Error,))

    @contextmanager
    def alone(self) -> Iterator[Tx]:
        """A write transaction that stays open for the block, for a program's own SQL. Never part of a group."""
        self.require_outside()
        held: list[bool] = []
        try:
            held += map(self._lock.acquire, _WAIT, (BUSY_SECONDS,))
            self._taken(held)
            self._owner = whoami()
            tx = self._begin()
            try:
                yield tx
                self._require_ours(tx)
                self._write_totals(tx)
            except BaseException as e:
                self._require_ours(tx)
                raise self._undo(e) from None
            self._end(tx)
        finally:
            if held and held[0]:
                self._owner = 0
                self._lock.release()
        self._told(tx)

    def _require_ours(self, tx: Tx) -> None:
        """A fork inside the block closed the connection, and with it undid the transaction, for both sides."""
        if self._db is not tx.db:
            raise ForkedProcess(
                "the process forked inside an open transaction; nothing of it happened", hint="repeat it, and fork outside of it"
            )

    # ---- one transaction

    def _commit(self, calls: list[Call]) -> Tx:
        tx = self._begin()
        try:
            if len(calls) == 1:
                calls[0].result = calls[0].operation(tx)
            else:
                for call in self._merged(tx, calls):
                    self._guarded(tx, call)
            self._write_totals(tx)
        except NONSENSE as e:
            self._undo(e)
            raise self._failed(e) from e
        except BaseException as e:
            for call in calls:
                call.unfinish()
            raise self._undo(e) from None
        try:
            self._end(tx)
            for call in calls:
                call.finished = True
        except StoreError as e:
            for call in calls:
                call.finish(error=e)
            raise
        except BaseException as e:
            # Interrupted, perhaps behind the COMMIT: only what was surely undone may be run again, by the next leader.
            for call in calls:
                if tx.committed:
                    call.finished = True
                elif not tx.undone:
                    call.finish(error=OutcomeUnknown("the thread that committed was interrupted", shard=self._shard, cause=e))
            raise
        return tx

    def _merged(self, tx: Tx, calls: list[Call]) -> list[Call]:
        """Run together what can be, kind by kind. Returns the calls that are to be run each by itself."""
        kinds: dict[type, list[Call]] = {}
        for call in calls:
            kinds.setdefault(type(call.operation), []).append(call)
        done: set[Call] = set()
        for kind, alike in kinds.items():
            if len(alike) > 1 and hasattr(kind, "together") and self._together(tx, alike):
                done.update(alike)
        return [call for call in calls if call not in done]

    def _together(self, tx: Tx, alike: list[Call]) -> bool:
        """Calls of one kind, as one operation. False: one of them can't be done, so none is; by itself, only that one fails."""
        operations = [call.operation for call in alike]
        head = cast("Mergeable", operations[0])
        whole = Call(lambda tx: head.together(tx, operations))
        self._guarded(tx, whole)
        if whole.error is not None:
            return False
        for call, result in zip(alike, whole.result, strict=True):
            call.result = result
        return True

    def _guarded(self, tx: Tx, call: Call) -> None:
        """One operation of a group: if it fails, only it is undone."""
        before = copy.copy(tx.totals)
        events = len(tx.events)
        tx.run("SAVEPOINT operation")
        try:
            call.result = call.operation(tx)
            tx.run("RELEASE operation")
        except Exception as e:
            if not tx.db.in_transaction or isinstance(e, _DISTRUST):
                raise  # SQLite undid the whole transaction, or nothing on this connection can be trusted any more
            tx.run("ROLLBACK TO operation")
            tx.run("RELEASE operation")
            tx.totals = before
            del tx.events[events:]
            call.error = translate(e, self._shard)

    def _begin(self) -> Tx:
        host = self._host
        db = self._connection()
        try:
            db.execute("BEGIN IMMEDIATE")
        except BaseException as e:
            raise self._undo(e) from None
        try:
            before = db.total_changes()
            totals = Totals.read(db)
            if totals.config_version != host.settings[1]:
                self._agree_on_config(db, totals)
            if totals.epoch != host.epoch:
                self._agree_on_epoch(db, totals)
            return Tx(db, self._shard, totals, host.now(), host.settings[0], before)
        except BaseException as e:
            raise self._undo(e) from None

    def _agree_on_config(self, db: apsw.Connection, totals: Totals) -> None:
        host = self._host
        config, version = host.settings
        if totals.config_version > version:
            host.adopt_config(db.execute(SHARD.read_meta, ("config",)).get, totals.config_version)
        else:
            db.execute(SHARD.write_meta, ("config", config.to_json()))
            totals.config_version = version

    def _agree_on_epoch(self, db: apsw.Connection, totals: Totals) -> None:
        host = self._host
        if totals.epoch > host.epoch:
            host.reload_epoch()
        if totals.epoch < host.epoch:
            # The first write here since the machine booted: leases of the boot before are over.
            totals.epoch = host.epoch
            totals.time_offset = host.time_offset
            totals.next_deadline = 0
            db.execute(SHARD.set_epoch, (host.epoch, host.time_offset))
            db.execute(CLAIM.end_epoch)

    def _write_totals(self, tx: Tx) -> None:
        """The counter row, if anything else was written."""
        tx.require_whole()
        if tx.db.total_changes() == tx.changes_before and not tx.dirty:
            return
        tx.totals.last_time = max(tx.totals.last_time, tx.now)
        tx.totals.empty_receives += self._host.take_empty_receives(self._shard)
        tx.run(SHARD.write_counter, tx.totals.values())

    def _end(self, tx: Tx) -> None:
        try:
            tx.run("COMMIT")
            tx.committed = True
        except apsw.Error as e:
            self._roll_back(tx)
            self._note(e)
            self._distrust_connection()
            if isinstance(e, apsw.FullError):
                # ENOSPC comes from writing the frames, before the one that commits them is whole.
                raise StoreFull("the disk is full", shard=self._shard, cause=e) from e
            raise OutcomeUnknown(f"COMMIT failed: {e}", shard=self._shard, cause=e) from e
        except BaseException:
            # Interrupted in front of the COMMIT, or behind it: else only an error of SQLite's own ends the transaction.
            with suppress(apsw.Error):  # closed, by a fork in a signal's handler: then nobody knows
                tx.committed = not tx.db.in_transaction
            self._roll_back(tx)
            raise

    def _roll_back(self, tx: Tx) -> None:
        """What the COMMIT did not end."""
        with suppress(apsw.Error):
            if tx.db.in_transaction:
                tx.run("ROLLBACK")
                tx.undone = True

    def _undo(self, error: BaseException) -> BaseException:
        """Roll back and say what is to be raised. The connection is dropped where it can't be trusted any more."""
        db = self._db
        try:
            if db is not None and db.in_transaction:
                db.execute("ROLLBACK")
        except apsw.Error:
            self._distrust_connection()
        return self._failed(error) if isinstance(error, apsw.Error) else error

    def distrust(self) -> None:
        """A sync of the WAL failed: nothing more is written before what the WAL shows is on the disk."""
        self._note_failed_sync()
        self.require_outside()
        self._locked(self._drop_connection)

    @property
    def distrusted(self) -> bool:
        """A sync failed here or in another process: the kernel may take for written what it could not write.

        Whoever opens the shard next writes its WAL again.
        """
        return self._sync_failed or self._suspects(self._shard) != 0

    def trust(self) -> None:
        """What this object saw fail is put right."""
        self._sync_failed = False

    def _note(self, error: BaseException) -> None:
        if failed_sync(error):
            self._note_failed_sync()

    def _note_failed_sync(self) -> None:
        self._sync_failed = True
        self._host.suspect(self._shard)  # for other processes, and for whoever comes if this one dies before it can mend it

    def _failed(self, error: Exception) -> BaseException:
        self._note(error)
        ours = translate(error, self._shard)
        if isinstance(ours, StoreCorrupt):
            self._distrust_connection()
            self._host.quarantine(self._shard, ours)
        elif isinstance(error, _UNSURE):
            self._distrust_connection()
        return ours

    def _told(self, tx: Tx | None) -> None:
        if tx is not None and (tx.events or tx.wake):
            self._host.committed(self._shard, tx.events, tx.wake)

    # ---- the connection and its lock

    def _connection(self) -> apsw.Connection:
        if self._db is not None and self._suspects(self._shard):
            self._drop_connection()  # another process saw a sync fail: to open it again puts it right
        if self._db is None:
            self._db = self._opener()
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")  # whoever had the lock before was interrupted on its way out
        return self._db

    def _drop_connection(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(apsw.Error):
                db.close()

    def _distrust_connection(self) -> None:
        """After a failed read, write or sync the page cache may say what the disk does not: the next caller opens the file again.

        In memory there is no disk, and the connection is all there is.
        """
        if not self._in_memory:
            self._drop_connection()

    @property
    def opened(self) -> bool:
        """Is its connection open?"""
        return self._db is not None

    def require(self) -> None:
        """Refuse to work after close, or in a child that was not prepared."""
        if self._pid != os.getpid():
            raise ForkedProcess("the queue came through a fork that it could not prepare for")
        if self._closed:
            raise QueueClosed("the queue is closed")

    def require_outside(self) -> None:
        """Refuse what can't be done while this thread is inside a transaction of the shard: it would wait for itself."""
        if is_mine(self._owner):
            raise InvalidArgument(
                "this is inside a transaction on the same shard", hint="use the transaction's own methods there"
            )

    def _taken(self, held: list[bool]) -> None:
        """The lock was waited for: is it ours, and may we use it?"""
        if not held[0]:
            self.require_outside()
            raise StoreBusy("another thread holds the shard's write lock", shard=self._shard)
        self._owner = threading.get_ident()
        self.require()

    def _connected(self, work: Callable[[apsw.Connection], T], failures: tuple[type[Exception], ...]) -> T:
        """Run `work` on the connection with the lock held; what it raises of `failures` is told as ours."""

        def within() -> T:
            try:
                return work(self._connection())
            except failures as e:
                raise self._failed(e) from e

        self.require_outside()
        return self._locked(within)

    def _locked(self, work: Callable[[], T]) -> T:
        """Run `work` with the lock held.

        No context manager: the way out of one can be interrupted before it lets go of the lock.
        """
        held: list[bool] = []
        try:
            held += map(self._lock.acquire, _WAIT, (BUSY_SECONDS,))
            self._taken(held)
            return work()
        finally:
            if held and held[0]:
                self._owner = 0
                self._lock.release()

    def close(self) -> None:
        """Close the connection once the transaction under way is over. Later calls raise QueueClosed.

        A transaction that this thread itself has open is undone: it can't end before this returns.
        """
        self._closed = True
        held = not is_mine(self._owner) and self._lock.acquire(timeout=BUSY_SECONDS)
        try:
            self._drop_connection()
        finally:
            if held:
                self._lock.release()

    # ---- forks (fork.py calls these)

    def quiesce(self) -> bool:
        """Before a fork: wait for the transaction under way and close the connection. False: it can't be had in time.

        A transaction that the forking thread itself has open is undone: shared by two processes it would lose commits.
        """
        self._inside = is_mine(self._owner)
        if not self._inside and not self._lock.acquire(timeout=BUSY_SECONDS):
            return False
        self._grouping.quiesce()
        self._drop_connection()
        return True

    def resume(self, *, child: bool) -> None:
        """After a fork that `quiesce` prepared."""
        self._grouping.resume(child=child)
        if child:
            # The threads that waited here exist in the parent only; an open block of this thread still holds its lock.
            owner = self._owner
            self._make_locks()
            self._pid = os.getpid()
            if self._inside:
                self._lock.acquire()
                self._owner = owner
        elif not self._inside:
            self._lock.release()

    def abandon(self) -> None:
        """In a child whose fork was not prepared: never touch, and never close, the parent's connection."""
        if self._db is not None:
            leak(self._db)
