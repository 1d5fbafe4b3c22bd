"""The thread that ships, in the process that holds the queue's ship.lock.

It references the queue object weakly, and ends with it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal
from weakref import WeakKeyDictionary

from .._platform import files
from .._platform.clock import MICROSECONDS
from .._platform.log import log
from .._platform.observe import ANY_SHARD, notify
from .._store.api import Replication, Rounds, ShipProgress, Ships, ShipStatus, Storage
from .._values.errors import (
    ConfigError,
    Diverged,
    Fenced,
    InvalidArgument,
    MissingExtra,
    ReplicaGap,
    StrictqError,
    TargetUnavailable,
)
from .._values.types import Event
from .bounded import TargetThread, bounded
from .keys import read_key
from .places import target_of
from .settings import ShipSettings
from .shipper import Shipper
from .target import ShipTarget

BACKOFF_MAX_SECONDS: Final = 15.0
CONFIRMED_BACKOFF_SECONDS: Final = 0.5
"""The longest pause after a failure in confirmed mode, in which calls wait for the next try."""
EAGER_SECONDS: Final = 0.2
EAGER_STEP_SECONDS: Final = 0.0005
IDLE_STEP_SECONDS: Final = 0.01
"""In confirmed mode, the interval at which the shipper checks for waiting calls of other processes:

shorter for EAGER_SECONDS after such a call.
"""
SHOW_SECONDS: Final = 0.5
"""The longest interval between two updates of the status, if only the segment's number changes."""
BEAT_SECONDS: Final = 2.0
"""The longest interval between two signs of life to a replica, even if there is nothing to ship."""
FULL: Final = "the disk of the queue is full"
STOP_SECONDS: Final = 30.0
"""Seconds that closing a queue waits for the last round."""
GRACE_SECONDS: Final = 15.0
"""Seconds that ending without a last round, as before a fork, waits for a call to the target."""
LEFT_SECONDS: Final = 1.0
"""The part of these seconds that is reserved for ending the thread."""
HANGING_SECONDS: Final = 5.0
"""A call to the target that takes longer keeps no WAL beyond max_lag_bytes."""


def start(storage: Storage) -> Ships | None:
    """Start shipping from this process. Return None if another process ships."""
    replication, directory = storage.replicating.known, storage.directory
    if replication is None or directory is None:
        return None
    if ShipStatus.read(directory, replication.history_id).stopped:
        return StoppedShipping(storage, replication)
    HeldLock.let_go_of_others(directory, replication.target)
    lock = storage.replicating.lock()
    _ship_locks[lock] = os.getpid()
    if not lock.alone(0.0):
        lock.leave()
        return None
    try:
        keeper = ShipKeeper(storage, replication, lock)
        keeper.begin()
    except BaseException:
        lock.leave()
        raise
    return keeper


class StoppedShipping:
    """Takes the place of a keeper after shipping stopped permanently. No WAL is kept for a target that must not be written to."""

    lapsed = True

    def __init__(self, storage: Storage, replication: Replication) -> None:
        self._storage: Callable[[], Storage | None] = storage.ship_reference()
        self._replication = replication

    @property
    def ended(self) -> bool:
        storage = self._storage()
        if storage is None or storage.directory is None or storage.replicating.known != self._replication:
            return True
        return not ShipStatus.read(storage.directory, self._replication.history_id).stopped

    def nudge(self) -> None:
        """Do nothing, because nothing is shipped."""

    def stop(self, *, flush: bool) -> None:
        """Do nothing, because there is no thread."""


class HeldLock:
    """The ship.lock of a keeper that ended while a call to its target hangs, which may still write there.

    Until the call returns, no process may ship to that target. A hanging thread can't be ended, so if the queue is configured for
    another target, the lock is released.
    """

    _all: Final[list[HeldLock]] = []
    _guard = threading.Lock()

    def __init__(self, lock: files.Lock, directory: Path, target: str) -> None:
        self._lock = lock
        self._directory = directory
        self._target = target
        self._process = os.getpid()
        self._all.append(self)

    def leave(self) -> None:
        with self._guard:
            self._lock.leave()
            if self in self._all:
                self._all.remove(self)

    @classmethod
    def let_go_of_others(cls, directory: Path, target: str) -> None:
        """Release the locks for other targets of the queue, and those whose thread did not survive a fork."""
        for held in list(cls._all):
            if held._process != os.getpid() or (held._directory == directory and held._target != target):
                held.leave()

    @classmethod
    def after_fork_in_child(cls) -> None:
        """Replace the guard, which another thread of the parent may have held."""
        cls._guard = threading.Lock()


_ship_locks: WeakKeyDictionary[files.Lock, int] = WeakKeyDictionary()
"""The locks of keepers, and their processes."""


def _after_fork_in_child() -> None:
    """Close the parent's locks: those of a keeper that did not end before the fork would stay held as long as the child lives."""
    HeldLock.after_fork_in_child()
    for lock, process in list(_ship_locks.items()):
        if process != os.getpid():
            lock.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class ShipKeeper:
    """Runs a shipper's rounds, and handles their failures.

    Args:
        lock: the held ship.lock, released when the thread ends.
    """

    def __init__(self, storage: Storage, replication: Replication, lock: files.Lock) -> None:
        assert storage.directory is not None
        self._storage: Callable[[], Storage | None] = storage.ship_reference()
        self._directory = storage.directory
        self._replication = replication
        self._settings = ShipSettings.from_json(replication.settings)
        self._lock = lock
        self._clock = storage.clock
        self._calls = TargetThread(replication.target, on_wait=self._while_waiting)
        self._target: ShipTarget | None = None
        self._disconnect: Callable[[], object] = lambda: None
        self._shipper: Shipper | None = None
        self._status = ShipStatus.read(self._directory, replication.history_id)
        self._progress = ShipProgress(self._directory)
        self._captured: tuple[tuple[str, int], ...] = self._status.captured
        self._wake = threading.Event()
        self._stop = self._flush = False
        self._stop_by = 0.0
        self._failures = 0
        self._beat_at = 0.0
        self._told = False
        """Whether the target knows the mode, because a heartbeat returned."""
        self._rounds: Rounds | None = storage.replicating.rounds()
        """Counts the rounds for waiting calls, in confirmed mode."""
        self._wanted_at = self._shown_at = 0.0
        self._unshown = False
        self._news: list[Event] = []
        self._rest_seconds = 0.0
        """Seconds to wait after the lock was released."""
        self.lapsed = self._status.lapsed
        self.ended = False
        self._thread = threading.Thread(target=self._run, name="strictq-shipper", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        if self._rounds is not None:
            self._rounds.take_over()
        with files.typed("the shipper can't be started"):
            try:
                self._thread.start()
            except RuntimeError as e:  # too many threads, or the interpreter is shutting down
                self._end()
                raise TargetUnavailable(f"the shipper can't be started: {e}", self._replication.target) from e

    def nudge(self) -> None:
        """Start the next round now, unless the last one failed."""
        if not self._failures and not self._wake.is_set():
            self._wake.set()

    def stop(self, *, flush: bool) -> None:
        """End the thread and wait for it. With flush, run a last round first."""
        self._stop_by = time.monotonic() + (STOP_SECONDS if flush else GRACE_SECONDS) - LEFT_SECONDS
        self._flush, self._stop = flush, True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS if flush else GRACE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stop:
                wait = self.step()
                if wait is None:
                    return
                self._rest(wait)
            if self._flush and (not self._failures or self._heals):
                self.step()
                if self._heals:
                    self.step()
        except Exception:
            log.exception("the shipper of %s ended", self._directory)
            self._rest_seconds = BACKOFF_MAX_SECONDS
        finally:
            self._end()

    def _rest(self, seconds: float) -> None:
        """Wait for the next round. Meanwhile, send the target signs of life."""
        until = time.monotonic() + seconds
        while not self._is_wanted() and (left := until - time.monotonic()) > 0 and not self._wake.wait(min(left, self._look())):
            if left > BEAT_SECONDS and self._beats:
                try:
                    self._beat()
                except StrictqError:
                    break  # the next round handles and reports it
        self._wake.clear()

    def _is_wanted(self) -> bool:
        """Return whether a call waits for a round. After a failure, no round is made earlier for it."""
        if self._rounds is None or self._failures:
            return False
        self._rounds.take_over()  # again: another process that made the file at the same time may have emptied it
        if not self._rounds.wanted:
            return False
        self._wanted_at = time.monotonic()
        return True

    def _look(self) -> float:
        """Return the seconds until the next check for waiting calls of other processes, and for sending a sign of life."""
        if self._rounds is None:
            return BEAT_SECONDS
        return EAGER_STEP_SECONDS if time.monotonic() - self._wanted_at < EAGER_SECONDS else IDLE_STEP_SECONDS

    @property
    def _beats(self) -> bool:
        """Whether a sign of life to the target is due."""
        if self._shipper is None:
            return False
        if self._rounds is not None and not self._told:
            return True
        return not self._failures and time.monotonic() - self._beat_at > BEAT_SECONDS / 2

    def _beat(self) -> None:
        assert self._shipper is not None
        self._beat_at = time.monotonic()
        if self._shipper.beat():
            self._told = True
            self._answered()

    def _answered(self) -> None:
        if self._rounds is not None:
            self._rounds.answered(self._clock.boot())

    def _end(self) -> None:
        try:
            self._let_go()
            self._progress.close()
        finally:
            self._leave()
            if self._rest_seconds and not self._stop:
                self._wake.wait(self._rest_seconds)  # another process may have what this one lacks, such as a key file
            self.ended = True

    def _leave(self) -> None:
        if self._calls.hangs:
            self._calls.close(HeldLock(self._lock, self._directory, self._replication.target).leave)
        else:
            self._calls.close(self._disconnect)
            self._lock.leave()

    def _let_go(self) -> None:
        shipper, self._shipper = self._shipper, None
        if shipper is not None:
            shipper.close()

    # ---- one round

    def step(self) -> float | None:
        """Run one round. Return the seconds to wait for the next one; None: there is no next round."""
        storage = self._storage()
        if storage is None or storage.replicating.known != self._replication:
            return None  # it was reconfigured; the next shipper starts with the new configuration
        try:
            return self._step(storage)
        finally:
            news, self._news = self._news, []
            for event in news:
                notify(storage.observers.events, event)

    def _step(self, storage: Storage) -> float | None:
        if storage.short_of_space:
            self._lapse(FULL)
            self._show(error=FULL)
            return self._settings.interval_seconds
        try:
            shipped = self._round(storage)
        except (Diverged, Fenced) as e:
            if isinstance(e, Fenced) and self._rounds is not None:
                self._fence(storage)
            log.error("%s is no longer replicated: %s", self._directory, e)
            self._show(error=str(e), stopped=True)
            self._tell("replication_stopped", str(e))
            return None
        except (TargetUnavailable, ReplicaGap) as e:
            if isinstance(e, ReplicaGap) and self._heals:
                self._tell("replication_gap", str(e))
            return self._failed(e, storage)
        except StrictqError as e:
            wait = self._failed(e, storage)
            self._let_go()
            return wait
        if self._shipper is not None and self._shipper.configured != self._replication:
            storage.refresh_settings()  # another process changed it, and this one has written nothing since
            return None
        if shipped or self._unshown or self._failures or self.lapsed:
            at_once = self._rounds is None or self._failures > 0 or self.lapsed
            self._failures = 0
            if self.lapsed:
                self.lapsed = False
                self._tell("replication_resumed", self._gap())
            self._unshown = not at_once and time.monotonic() - self._shown_at < SHOW_SECONDS
            if not self._unshown:
                self._show()
        return self._settings.interval_seconds

    def _round(self, storage: Storage) -> bool:
        target = self._opened()
        if self._shipper is None:
            if self.lapsed:
                target.reach()  # pin no shard before the target is reachable
            self._shipper = Shipper(
                storage.replicating.capture(), target, storage.clock, self._progress, history_id=self._replication.history_id,
                term=self._replication.term, keep_seconds=self._settings.keep_seconds,
                verify_seconds=self._settings.verify_seconds, confirmed=self._rounds is not None,
                generation=self._settings.generation,
            )  # fmt: skip
        if self._rounds is not None:
            self._rounds.begin()
        shipped = self._shipper.round()
        if shipped:
            self._answered()
        if self._beats and not (shipped and self._rounds is None):
            self._beat()
        if self._rounds is not None and self._told and self._shipper.level:
            self._rounds.end()  # only after the first heartbeat, which informs the replicas that calls wait for them
        self._captured = tuple(self._shipper.captured())
        self._progress.write(self._shipper.x)
        return shipped

    @property
    def _heals(self) -> bool:
        return self._shipper is not None and self._shipper.heals

    def _opened(self) -> ShipTarget:
        """Return the target. Its key file is read here, so that a missing file is reported like other failures."""
        if self._target is None:
            settings = self._settings
            key = read_key(settings.key_file) if settings.key_file else b""
            target = target_of(
                self._replication.target, key, write_once=settings.write_once, token_file=settings.token_file,
                authority=settings.authority,
            )  # fmt: skip
            self._disconnect = target.close
            self._target = bounded(target, self._calls)
        return self._target

    def _while_waiting(self, seconds: float) -> None:
        """End the wait for the target, after these seconds, if the thread is to end, or if the WAL exceeds its limit."""
        if self._stop and time.monotonic() > self._stop_by:
            raise TargetUnavailable(f"{self._replication.target} does not answer", self._replication.target)
        if self._shipper is None or seconds < HANGING_SECONDS:
            return
        if self._shipper.behind_bytes() > self._settings.max_lag_bytes:
            raise TargetUnavailable(f"{self._replication.target} does not answer", self._replication.target)

    def _failed(self, error: StrictqError, storage: Storage) -> float | None:
        if not self._failures:
            log.warning("shipping %s failed; trying again: %s", self._directory, error)
        self._failures += 1
        shown = str(error)
        if self._behind_bytes(storage) > self._settings.max_lag_bytes:
            self._lapse(shown)
        if self.lapsed:
            with suppress(StrictqError):
                storage.checkpoint()
        self._show(error=shown)
        if isinstance(error, ConfigError | MissingExtra | InvalidArgument) or (
            isinstance(error, TargetUnavailable) and not error.transient
        ):
            self._rest_seconds = BACKOFF_MAX_SECONDS
            return None
        interval: float = self._settings.interval_seconds
        if self._rounds is not None:
            return min(interval, CONFIRMED_BACKOFF_SECONDS)
        doubled: float = min(interval * 2 ** min(self._failures, 10), BACKOFF_MAX_SECONDS)
        return max(interval, doubled)

    def _behind_bytes(self, storage: Storage) -> int:
        with suppress(StrictqError):
            if self._shipper is not None:
                return self._shipper.behind_bytes()
            status = storage.reports.replication()
            return 0 if status is None else status.lag_bytes
        return 0

    def _fence(self, storage: Storage) -> None:
        """Store that the replica was promoted, so that no process may write to this queue."""
        try:
            storage.replicating.set(self._replication._replace(mode="fenced"))
        except StrictqError as e:  # nothing is confirmed in any case, and the next shipper gets the same answer
            log.warning("%s could not be fenced: %s", self._directory, e)

    def _lapse(self, why: str) -> None:
        """Stop keeping the WAL. Whole shards are shipped when the target is reachable again."""
        self._let_go()
        if not self.lapsed:
            self.lapsed = True
            log.warning("%s no longer keeps its WAL for its replica: %s", self._directory, why)
            self._tell("replication_lapsed", why)

    def _gap(self) -> str:
        """Return the period for which there are no restore points, as text."""
        assert self._shipper is not None
        if not self._status.wall:
            return "everything is shipped"
        before, after = (
            datetime.fromtimestamp(wall / MICROSECONDS, UTC).isoformat(timespec="milliseconds")
            for wall in (self._status.wall, self._shipper.wall)
        )
        return f"there are no restore points between {before} and {after}"

    def _tell(
        self,
        kind: Literal["replication_lapsed", "replication_resumed", "replication_stopped", "replication_gap"],
        detail: str,
    ) -> None:
        """Notify observers after the round, when its status is shown."""
        self._news.append(Event(kind, ANY_SHARD, detail=detail))

    def _show(self, error: str = "", *, stopped: bool = False) -> None:
        self._shown_at, self._unshown = time.monotonic(), False
        shipper = self._shipper
        segment, wall = self._status.segment, self._status.wall
        if shipper is not None and shipper.n:
            segment, wall = shipper.n - 1, shipper.wall
        self._status = ShipStatus(
            self._replication.history_id, segment, wall, self._captured, error, stopped, self.lapsed
        )  # fmt: skip
        self._status.write(self._directory)
