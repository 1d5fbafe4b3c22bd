"""The thread that ships: whoever holds the queue's ship.lock has one. It holds the queue object weakly, and ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .. import _files as files
from .._errors import Diverged, ReplicaGap, StrictqError, TargetUnavailable
from .._observe import logger
from .._store.api import Replication, ShipProgress, ShipStatus, Storage
from .settings import ShipSettings
from .shipper import Shipper
from .target import DirectoryTarget, parse

BACKOFF_MAX_SECONDS: Final = 15.0
FULL: Final = "the disk of the queue is full"
STOP_SECONDS: Final = 30.0
"""So long a queue that is closed waits for the last round."""


def start(storage: Storage) -> ShipKeeper | None:
    """Ship from this process. None: another one does, or shipping has stopped until it is configured again."""
    replication, directory = storage.replication, storage.directory
    if replication is None or directory is None or ShipStatus.read(directory, replication.history_id).stopped:
        return None
    lock = storage.ship_lock()
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


class ShipKeeper:
    """Rounds of a shipper, and what happens when they fail.

    Args:
        lock: held; let go of when the thread ends.
    """

    def __init__(self, storage: Storage, replication: Replication, lock: files.Lock) -> None:
        assert storage.directory is not None
        self._storage: Callable[[], Storage | None] = storage.ship_reference()
        self._directory = storage.directory
        self._replication = replication
        self._settings = ShipSettings.from_json(replication.settings)
        self._lock = lock
        self._target = DirectoryTarget(parse(replication.target))
        self._shipper: Shipper | None = None
        self._status = ShipStatus.read(self._directory, replication.history_id)
        self._progress = ShipProgress(self._directory)
        self._captured: tuple[tuple[str, int], ...] = self._status.captured
        self._wake = threading.Event()
        self._stop = self._flush = False
        self._failures = 0
        self.lapsed = False
        self.ended = False
        self._thread = threading.Thread(target=self._run, name="strictq-shipper", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        with files.typed("the shipper can't be started"):
            try:
                self._thread.start()
            except RuntimeError as e:  # too many threads, or the interpreter is shutting down
                self._end()
                raise TargetUnavailable(f"the shipper can't be started: {e}", str(self._target)) from e

    def nudge(self) -> None:
        """Begin the next round now, unless the last one failed."""
        if not self._failures and not self._wake.is_set():
            self._wake.set()

    def stop(self, *, flush: bool) -> None:
        """End the thread, and wait for it; flush: after a last round."""
        self._flush, self._stop = flush, True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stop:
                wait = self.step()
                if wait is None:
                    return
                self._wake.wait(wait)
                self._wake.clear()
            if self._flush and not self._failures:
                self.step()
        except Exception:
            logger().exception("the shipper of %s ended", self._directory)
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._let_go()
            self._progress.close()
        finally:
            self.ended = True
            self._lock.leave()

    def _let_go(self) -> None:
        shipper, self._shipper = self._shipper, None
        if shipper is not None:
            shipper.close()

    # ---- one round

    def step(self) -> float | None:
        """One round. Returns how many seconds to wait for the next one; None: there is none."""
        storage = self._storage()
        if storage is None or storage.replication != self._replication:
            return None  # it was configured otherwise: who ships from now on begins with that
        if storage.short_of_space:
            self._lapse(FULL)
            self._show(error=FULL)
            return self._settings.interval_seconds
        try:
            shipped = self._round(storage)
        except Diverged as e:
            logger().error("%s is not replicated any more: %s", self._directory, e)
            self._show(error=str(e), stopped=True)
            return None
        except (TargetUnavailable, ReplicaGap) as e:
            return self._failed(e, storage)
        except StrictqError as e:
            self._let_go()
            return self._failed(e, storage)
        if self._shipper is not None and self._shipper.configured != self._replication:
            storage.refresh_replication()  # another process changed it, and this one wrote nothing since
            return None
        if shipped or self._failures or self.lapsed:
            self._failures, self.lapsed = 0, False
            self._show()
        return self._settings.interval_seconds

    def _round(self, storage: Storage) -> bool:
        if self._shipper is None:
            if self.lapsed:
                self._target.numbers()  # no shard is pinned before the target is back
            self._shipper = Shipper(
                storage.capture(), self._target, storage.clock, self._progress, history_id=self._replication.history_id,
                term=self._replication.term, keep_seconds=self._settings.keep_seconds,
            )  # fmt: skip
        shipped = self._shipper.round()
        self._captured = tuple(self._shipper.captured())
        self._progress.write(self._shipper.x)
        return shipped

    def _failed(self, error: StrictqError, storage: Storage) -> float:
        if not self._failures:
            logger().warning("shipping %s failed; it is tried again: %s", self._directory, error)
        self._failures += 1
        shown = str(error)
        if self._shipper is not None and self._shipper.behind_bytes() > self._settings.max_lag_bytes:
            self._lapse(shown)
        if self.lapsed:
            with suppress(StrictqError):
                storage.checkpoint()
        self._show(error=shown)
        wait: float = min(self._settings.interval_seconds * 2 ** min(self._failures, 10), BACKOFF_MAX_SECONDS)
        return max(wait, self._settings.interval_seconds)

    def _lapse(self, why: str) -> None:
        """Keep the WAL no longer. What the target lacks is shipped whole, when that can be."""
        if not self.lapsed:
            logger().warning("%s keeps its WAL for its replica no longer: %s", self._directory, why)
        self._let_go()
        self.lapsed = True

    def _show(self, error: str = "", *, stopped: bool = False) -> None:
        shipper = self._shipper
        segment, wall = self._status.segment, self._status.wall
        if shipper is not None and shipper.n:
            segment, wall = shipper.n - 1, shipper.wall
        self._status = ShipStatus(
            self._replication.history_id, segment, wall, self._captured, error, stopped, self.lapsed
        )  # fmt: skip
        self._status.write(self._directory)
