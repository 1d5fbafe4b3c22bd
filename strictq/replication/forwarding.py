"""Forward segments from a replica's log to the next replica of its chain, in a separate thread.

The next replica reports where to continue. A segment is forwarded when this replica has it on its disk. In confirmed mode, a
put to this replica waits until the next one has the segment, too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from .._values.errors import Diverged, Fenced, StrictqError, TargetUnavailable
from .remote import ReplicaTarget
from .replica_home import ReplicaState
from .replica_log import Logged, LogPlace
from .segment import hash_of
from .target import Beat

NEXT_SECONDS: Final = 8.0
"""Seconds that this replica waits for the next one, less than its own client waits for it."""
RETRY_SECONDS: Final = 0.25
STOP_SECONDS: Final = 2.0
KEEP_BYTES: Final = 1 << 30
"""Bytes of the log kept for a next replica that is unreachable. Beyond that, it gets the whole queue later."""


class KeptSegment(NamedTuple):
    """A segment in the log."""

    n: int
    hash: str
    place: LogPlace
    base: bool
    """Whether it begins a cut with the whole queue."""

    @classmethod
    def of(cls, logged: Logged) -> KeptSegment:
        header = logged.header
        return cls(header.n, logged.hash, LogPlace(logged.file, logged.at, logged.size), header.begins_base)


class Forwarding:
    """Forwards segments to the next replica; see the module.

    Args:
        read: returns the bytes at a place in the log, which may have been overwritten or removed meanwhile.
        whose: returns the replica's current state. Without a history in it, nothing is forwarded.
        on_step: the replica's hook for tests.
    """

    def __init__(
        self,
        target: ReplicaTarget,
        read: Callable[[LogPlace], bytes],
        whose: Callable[[], ReplicaState],
        on_step: Callable[[str], object],
    ) -> None:
        self._target = target
        self._read = read
        self._whose = whose
        self._on_step = on_step
        self._changed = threading.Condition()
        self._kept: list[KeptSegment] = []
        self._before = self._end = (-1, "")
        """Number and hash of the segment before the first kept one, and of the last kept one."""
        self._there = -1
        """The next replica has all segments up to this number; later ones are kept for it."""
        self._planned = False
        """Whether the position of the next replica is known."""
        self._beat: Beat | None = None
        self._offered = self._beaten = 0
        """Numbers of the last offered and the last forwarded heartbeat."""
        self._failure: StrictqError | None = None
        self._stopping = False
        self.base_wanted = False
        """Whether the next replica lacks segments that are no longer kept, and so needs a cut with the whole queue."""
        self._thread = threading.Thread(target=self._run, name="strictq-forwarding", daemon=True)

    def __str__(self) -> str:
        return str(self._target)

    @property
    def error(self) -> str | None:
        return None if self._failure is None else f"the next replica: {Exception.__str__(self._failure)}"

    # ---- called by the replica

    def loaded(self, before: tuple[int, str], found: list[Logged]) -> None:
        """Set the log's segments, and number and hash of the one before them. Call it once, before the thread begins."""
        self._kept = [KeptSegment.of(logged) for logged in found]
        self._before = before
        self._end = (self._kept[-1].n, self._kept[-1].hash) if self._kept else before

    def begin(self) -> None:
        self._thread.start()

    def appended(self, logged: Logged) -> None:
        """Forward a segment that was appended to the log."""
        with self._changed:
            kept = KeptSegment.of(logged)
            self._kept.append(kept)
            self._end = kept.n, kept.hash
            if kept.base and self.base_wanted:
                self.base_wanted, self._there, self._planned = False, kept.n - 1, True
            self._changed.notify_all()

    def may_drop(self, last: int, size: int) -> bool:
        """Return whether the log may drop its segments up to `last`, which have `size` bytes."""
        with self._changed:
            return self._there >= last or size > KEEP_BYTES

    def dropped(self, file: int) -> None:
        """Forget the segments in a file that the log dropped."""
        with self._changed:
            gone = [kept for kept in self._kept if kept.place.file == file]
            if gone:
                self._before = gone[-1].n, gone[-1].hash
                self._kept = [kept for kept in self._kept if kept.n > gone[-1].n]
                self._planned = self._planned and self._there >= gone[-1].n

    def other_history(self) -> None:
        """Forget all segments, because the replica now belongs to another history, which begins with the whole queue."""
        with self._changed:
            self._kept, self._before, self._planned = [], self._end, False
            self._changed.notify_all()

    def offer(self, beat: Beat) -> int:
        """Forward a heartbeat. Return its number, for `wait_for`."""
        with self._changed:
            self._beat = beat
            self._offered += 1
            self._changed.notify_all()
            return self._offered

    def wait_for(self, n: int, beat: int = 0) -> None:
        """Wait until the next replica has this segment and this heartbeat on its disk.

        Raises:
            TargetUnavailable: it does not confirm in time.
            Fenced: the next replica was promoted.
        """
        until = time.monotonic() + NEXT_SECONDS
        with self._changed:
            while not (self._planned and self._there >= n and self._beaten >= beat):
                if isinstance(self._failure, Fenced):
                    raise Fenced(str(self.error), self._failure.term)
                left = until - time.monotonic()
                if left <= 0 or self._stopping or self.base_wanted:
                    raise TargetUnavailable(self.error or f"the next replica {self} does not confirm", str(self))
                self._changed.wait(left)

    def stop(self) -> None:
        """End the thread, without waiting for a request that hangs."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._target.interrupt()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    # ---- in the thread

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except Exception as e:
                failure = e if isinstance(e, StrictqError) else TargetUnavailable(f"{self}: {e!r}", str(self))
                with self._changed:
                    self._failure, self._planned = failure, False
                    self._changed.notify_all()
                    if not self._stopping:
                        self._changed.wait_for(lambda: self._stopping, RETRY_SECONDS)
        self._target.close()

    def _step(self) -> None:
        whose = self._whose()
        if not self._planned and whose.history_id:
            self._plan(whose)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._something, None if self._planned else RETRY_SECONDS)
            if self._stopping or not self._planned:
                return
            beat, ticket = self._beat, self._offered
            offered = beat if ticket > self._beaten else None
            kept = self._following(self._there)
        if offered is not None:
            self._target.beat(offered)
        if kept is not None:
            data = self._read(kept.place)
            if hash_of(data) != kept.hash:
                raise TargetUnavailable("the log was emptied meanwhile", str(self))
            self._target.put(kept.n, data)
        with self._changed:
            self._failure = None
            self._beaten = ticket if offered is not None else self._beaten
            if kept is not None and self._planned:
                self._there = max(self._there, kept.n)
            self._changed.notify_all()
        self._on_step("forwarded")

    @property
    def _something(self) -> bool:
        return self._planned and (self._offered > self._beaten or self._following(self._there) is not None)

    def _following(self, n: int) -> KeptSegment | None:
        at = bisect_right(self._kept, n, key=lambda kept: kept.n)
        return self._kept[at] if at < len(self._kept) else None

    def _plan(self, whose: ReplicaState) -> None:
        """Ask the next replica for its position, and determine the first segment to send."""
        self._target.claim({"queue_id": whose.queue_id, "history_id": whose.history_id})
        head = self._target.head()
        n, digest = (-1, "") if head is None else (head.n, head.hash)
        with self._changed:
            there = self._goes_on_from(n, digest)
            self._failure = None
            self.base_wanted = there is None
            self._planned = there is not None
            self._there = -1 if there is None else there
            self._changed.notify_all()

    def _goes_on_from(self, n: int, digest: str) -> int | None:
        """Return the number after which to continue, given the last segment of the next replica; None: it needs the whole queue.

        Raises:
            Diverged: it has segments that this replica does not have.
        """
        if n > self._end[0]:
            raise Diverged(f"{self} has more than this replica: it is not the next replica of this chain")
        known = dict([self._before, self._end, *((kept.n, kept.hash) for kept in self._kept)])
        if known.get(n, digest) != digest:
            raise Diverged(f"{self} has another segment {n}: it is not the next replica of this chain")
        if n in known:
            return n
        bases = [kept.n for kept in self._kept if kept.base and kept.n > n]
        return bases[-1] - 1 if bases else None
