"""A backup: one cut of a queue in use, written as a queue of its own.

It is a state that the queue really had, over all shards, because it is the first cut of a capture. Writers go on meanwhile.
Source: docs/explanation/replication.md
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ..._platform import files, fork
from ..._platform.clock import MICROSECONDS, Clock
from ..._values import hints
from ..._values.errors import InvalidArgument, StoreBusy
from ..._values.findings import BackedUp
from ..catalog import queue_db
from ..catalog.contents import Replication
from ..disk import layout
from .capture import Capture
from .rebuild import Rebuild
from .values import PAGE_BYTES, Image, WalMovedOn

STEP_PAGES: Final = 256
"""How many pages are copied between two reports of the progress, and before a fork goes on."""
TRIES: Final = 3


class Backup:
    """One running backup.

    A fork ends it, because a child must not inherit the locks of its connections.

    Args:
        suspect: called with the number of a shard whose WAL could not be synced.
        on_progress: called with the number of copied bytes and the total.
    """

    def __init__(
        self, directory: Path, clock: Clock, suspect: Callable[[int], Any], on_progress: Callable[[int, int], object]
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._suspect = suspect
        self._on_progress = on_progress
        self._reads = threading.RLock()
        """Held while the queue's files are open here."""
        self._capture: Capture | None = None
        self._forked = False
        self._own: Replication | None = None
        self._at = 0
        self._bytes = 0

    def write(self, path: Path) -> BackedUp:
        """Make the copy at a path where nothing exists.

        Raises:
            InvalidArgument: something exists there, or it can't be created; nothing was created.
            StoreBusy: this process forked meanwhile; nothing was created.
            StoreFull, StoreError: a file can't be read or written; nothing was created.
        """
        if os.path.lexists(path):
            raise _exists(path)
        path = Path(files.real_path(path))
        if path.is_relative_to(self._directory):
            raise InvalidArgument(f"{path} is inside the queue; nothing was created", hint=hints.NEW_PATH)
        fork.register(self)
        layout.publish(path, self._build)
        known = queue_db.read(path, read_only=True)
        if self._own is None or known.replication != self._own:
            raise _exists(path)  # another process was faster, and its files stay
        return BackedUp(str(path), known.queue_id, self._own.history_id, self._at / MICROSECONDS, self._bytes)

    def _build(self, place: Path) -> None:
        rebuild = Rebuild(place)
        try:
            with self._reads:
                try:
                    x = self._copy(rebuild)
                except WalMovedOn as e:
                    raise StoreBusy("a WAL was restarted meanwhile; nothing was created", shard=-1) from e
                finally:
                    self._close()
            self._own = Replication(os.urandom(16).hex(), 1, "waiting", floor_time=x)
            rebuild.finish(self._own)
        finally:
            rebuild.close()

    def _copy(self, rebuild: Rebuild) -> int:
        """Write every page of a cut. Return its queue time."""
        for _ in range(TRIES):
            self._go_on()
            self._capture = capture = Capture(self._directory, self._clock, self._suspect)
            epoch = capture.known.epoch
            capture.begin(None)
            cut = capture.cut()
            assert cut is not None
            if capture.known.epoch == epoch:
                break
            self._close()  # a process began a boot, and with it another queue time
        else:
            raise StoreBusy("other processes kept opening the queue anew; nothing was created", shard=-1)
        self._at, done, total = cut.wall, 0, sum(part.pages for part in cut.parts) * PAGE_BYTES

        def steps(images: Iterator[Image]) -> Iterator[Image]:
            nonlocal done
            for number, image in enumerate(images):
                if number % STEP_PAGES == 0:
                    self._on_progress(done, total)
                    self._go_on()
                yield image
                done += PAGE_BYTES

        for part in cut.parts:
            rebuild.write(part.shard, part.size, steps(part.images))
        self._on_progress(total, total)
        self._bytes = total
        return cut.x

    def _go_on(self) -> None:
        if self._forked:
            raise StoreBusy("this process forked during the backup; nothing was created", shard=-1)

    def _close(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.close()

    # ---- forks

    def before_fork(self) -> None:
        """End the backup, unless it has closed the queue's files already."""
        self._forked = True
        with self._reads:  # another thread releases it at its next step; in this thread, the fork is made by a progress callback
            self._close()

    def after_fork(self, *, child: bool) -> None:
        """Do nothing: the backup raises on both sides."""


def _exists(path: Path) -> InvalidArgument:
    return InvalidArgument(f"{path} exists; nothing was created", hint=hints.NEW_PATH)


def backup(
    directory: Path, path: Path, clock: Clock, suspect: Callable[[int], Any], on_progress: Callable[[int, int], object]
) -> BackedUp:
    """Copy a queue that may be in use. See `Queue.backup`."""
    with files.typed("the queue can't be backed up"):
        return Backup(directory, clock, suspect, on_progress).write(path)
