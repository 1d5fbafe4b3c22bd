"""Ships changes to a target, round by round. Runs in one thread, in the process that holds the queue's ship.lock.

A round seals WALs that have grown, takes a cut, puts it as segments, and confirms. Changes that could not be put are put with
the next cut. Nothing depends on the shipper's memory, because it continues from the target's state.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from .._platform.clock import MICROSECONDS, Clock
from .._store.api import Image, Position, QueueCut, Replication, ShipProgress, WalMovedOn, WentBack
from .._values import hints
from .._values.errors import Diverged, ReplicaGap, TargetUnavailable
from .segment import PAGES_MAX, PagesOf, SegmentHeader, decode_header, encode, hash_of
from .segment_files import IDENTITY, SegmentFiles
from .target import Beat, ChainHead, ShipTarget

if TYPE_CHECKING:
    from .._store.api import Capture

CHAIN_BYTES_MIN: Final = 64 << 20
CHAIN_TIMES: Final = 2
"""A new base is made when the segments since the last one are this many times larger than it, and at least CHAIN_BYTES_MIN."""
CHAIN_SEGMENTS_MAX: Final = 10_000
ATTEMPTS_MAX: Final = 64


@attrs.define
class Shipped:
    """The work of a shipper since its start."""

    segments: int = 0
    pages: int = 0
    stored_bytes: int = 0
    wholes: int = 0
    """Number of bases."""
    resumed: int = 0
    """Number of shards that continued where the previous shipper had stopped."""


class Shipper:
    """One queue and one target.

    Args:
        keep_seconds: how many seconds back a restore can go.
        verify_seconds: the time in which every segment since the newest base is read again once.
        confirmed: whether calls wait for the target, which is sent to it.
        generation: the settings' generation.
        on_put: called after each segment, for tests that stop a shipper at any step.
    """

    def __init__(
        self,
        capture: Capture,
        target: ShipTarget,
        clock: Clock,
        progress: ShipProgress,
        *,
        history_id: str,
        term: int,
        keep_seconds: float,
        verify_seconds: float,
        confirmed: bool = False,
        generation: int = 0,
        on_put: Callable[[SegmentHeader], None] = lambda _header: None,
    ) -> None:
        self._capture = capture
        self._target = target
        self._clock = clock
        self._progress = progress
        self._history_id = history_id
        self._term = term
        self._keep_seconds = keep_seconds
        self._confirmed = confirmed
        self._generation = generation
        self._on_put = on_put
        self.done = Shipped()
        self.n = 0
        """The number of the next segment."""
        self.x = 0
        """The target has all changes up to this queue time."""
        self.wall = 0
        self._prev = ""
        self._base = self._older_base = -1
        self._base_bytes = self._chain_bytes = 0
        self._boot_id = clock.boot_id()
        self._begun = False
        self._sure = False
        """Whether the target's state is known, because the last put returned."""
        self.heals = False
        """Whether the newest state at the target can't be restored, so that the next cut must be a base."""
        self._verification = Verification(target, clock, verify_seconds) if isinstance(target, SegmentFiles) else None
        self._attempted: deque[tuple[int, str]] = deque(maxlen=ATTEMPTS_MAX)
        """Number and hash of the last segments that were put since a cut was complete. Any of them may still arrive."""

    def close(self) -> None:
        """Release the queue's files."""
        self._capture.close()

    def captured(self) -> list[tuple[str, int]]:
        """Return, for each shard, the salts of its WAL and the number of its frames at the target."""
        return self._capture.captured()

    @property
    def configured(self) -> Replication | None:
        """The configuration of replication, as last read from queue.db."""
        return self._capture.known.replication

    @property
    def level(self) -> bool:
        """Whether the target has all changes seen by the last round."""
        return self._begun and self._sure

    def behind_bytes(self) -> int:
        """Return the bytes that WALs keep for the target."""
        return self._capture.kept_bytes()

    # ---- the start

    def _begin(self) -> None:
        head = self._head()
        self._attempted.clear()
        if head is not None and head.missing is not None and not self.heals:
            raise ReplicaGap(f"segment {head.missing} is missing or damaged", head.missing)
        if head is None or head.complete is None or not head.hash:
            self._begin_with_base(head)
        else:
            complete = head.complete
            if (complete.queue_id, complete.history_id) != (self._capture.queue_id, self._history_id):
                raise Diverged(f"{self._target} has segments of another queue or history")
            if complete.term > self._term:
                raise Diverged(f"{self._target} has segments of a later term of this queue")
            self.n, self._prev = head.n + 1, head.hash
            self.x, self.wall = complete.x, complete.wall
            self._base, self._older_base = complete.base, complete.older_base
            self._base_bytes, self._chain_bytes = complete.base_bytes, complete.chain_bytes
            try:
                self.done.resumed = self._capture.begin({s: Position(*p) for s, p in complete.positions.items()})
            except WentBack:
                raise Diverged("the queue is older than its replica: it was restored to an earlier state") from None
            if self.done.resumed < self._capture.shards and self._progress.last_attempt(head.n) != head.hash:
                # The directory may be a copy of an earlier state, which would replace newer data at the replica.
                raise Diverged(f"{self._target} last received segments from another copy of the queue")
            if self.heals:
                self._begin_with_base(head)
            elif complete.shards < self._capture.shards:
                self._capture.begin(None)  # the first cut with a new shard has the whole queue
        # A segment of a process that was killed may still arrive.
        self._attempted.append((self.n, self._progress.last_attempt(self.n)))
        self._begun = self._sure = True
        if self._verification is not None:
            self._verification.postpone()
        self.retain()

    @property
    def _identity(self) -> dict[str, str]:
        return {"queue_id": self._capture.queue_id, "history_id": self._history_id}

    def _head(self) -> ChainHead | None:
        """Return the end of the chain of a target that is this queue's.

        Raises:
            TargetUnavailable, Diverged: it is not.
            ReplicaGap: its identity was missing or damaged, and is written again, because its segments prove whose they are.
        """
        try:
            self._target.require(self._identity)
        except TargetUnavailable:
            if not isinstance(self._target, SegmentFiles) or self._target.is_claimed():
                raise
            head = self._target.head()
            if head is None or head.complete is None or head.complete.history_id != self._history_id:
                raise
            self._target.claim_again(self._identity)
            raise ReplicaGap(f"{IDENTITY} was missing or damaged, and is written again", head.n) from None
        return self._target.head()

    def _begin_with_base(self, head: ChainHead | None) -> None:
        """Start a new chain, which needs no earlier segment."""
        self.n, self._prev = (0, "") if head is None else (head.n + 1, head.hash)
        self._base = self._older_base = -1
        self._base_bytes = self._chain_bytes = 0
        self._capture.begin(None)

    def _be_sure(self) -> None:
        """Find out whether a failed put took effect."""
        head = self._target.head()
        if head is not None and (head.n, head.hash) in self._attempted:
            self.n, self._prev = head.n + 1, head.hash  # readers skip the segments of a cut that is put again
        elif (self.n - 1, self._prev) != (-1, "") and (head is None or (head.n, head.hash) != (self.n - 1, self._prev)):
            self._require_own(head)
            self._begun = False  # segments were deleted, so start again
        elif self.n == 0 and head is not None:
            self._require_own(head)
            self._begun = False
        self._sure = True

    def _require_own(self, head: ChainHead | None) -> None:
        if head is not None and head.n >= self.n and all(head.n != n for n, _ in self._attempted):
            raise Diverged(f"another process ships to {self._target}: two copies of the queue ship to the same place")

    # ---- rounds

    def beat(self) -> bool:
        """Send the target a sign of life. Return True if it answered; False: nothing was sent.

        Raises:
            TargetUnavailable, Diverged, Fenced, ReplicaGap: as `round`.
        """
        if not self._begun:
            return False
        if not self._target.keeps_segments:
            try:
                who = (self._capture.queue_id, self._history_id, self._term)
                self._target.beat(Beat(*who, self.x, self._confirmed, self._generation))
            except ReplicaGap:
                self._sure = self._begun = False  # start again from the target's state
                raise
            return True
        if self._confirmed:
            self._target.reach()
        return self._confirmed

    def round(self) -> bool:
        """Ship the changes. Return whether there were any.

        Raises:
            TargetUnavailable: the changes are kept; call it again.
            Diverged: the target has data that this queue does not have; nothing was overwritten.
            StoreError: the queue can't be read.
        """
        if self._begun and not self._sure:
            self._be_sure()
        try:
            if not self._begun:
                self._begin()
            try:
                self._look()
                return self._ship()
            except Diverged:
                if not self._arrived_late():
                    raise
                self._be_sure()
                return self._ship()
        except ReplicaGap as e:
            self._sure = self._begun = False  # start again from the remaining segments
            if not self._target.keeps_segments:
                raise
            self.heals = True
            why = f"{Exception.__str__(e)}; its newest state can't be restored until the whole queue is shipped again"
            raise ReplicaGap(f"{self._target}: {why}", e.segment, hint=hints.BASE_FOLLOWS) from e
        except WalMovedOn:
            self._sure = self._begun = False
            return False

    def _look(self) -> None:
        """Check from time to time that the newest state can be restored."""
        if self._verification is not None and 0 <= self._base < self.n and self._verification.is_due:
            self._verification.look(self._head, self._history_id, self._base, self.n)

    def _arrived_late(self) -> bool:
        """Return whether a segment that this shipper put on a connection it gave up arrived in place of the last one."""
        head = self._target.head()
        return head is not None and (head.n, head.hash) in self._attempted

    def _ship(self) -> bool:
        shipped = False
        if self._chain_is_long():
            self._capture.begin(None)
        for _ in range(2):
            x, wall = self._capture.now(), self._clock.wall()
            cut = self._capture.cut()
            if cut is None:
                self.x, self.wall = x, wall
            else:
                self._put(cut)
                shipped = True
            if not self._capture.seal():
                break
        return shipped

    def _chain_is_long(self) -> bool:
        segments = self.n - self._base
        return (
            self._target.keeps_segments
            and self._base >= 0
            and (self._chain_bytes > max(CHAIN_TIMES * self._base_bytes, CHAIN_BYTES_MIN) or segments > CHAIN_SEGMENTS_MAX)
        )

    def _put(self, cut: QueueCut) -> None:
        self._sure = False
        first, n, prev = self.n, self.n, self._prev
        older, base = self._older_base, self._base
        if cut.whole:
            older, base = self._base, first
        stored = 0
        for parts, pages, more in _segments(cut):
            header = SegmentHeader(
                queue_id=self._capture.queue_id, history_id=self._history_id, term=self._term, n=n, first=first, more=more,
                base=base, older_base=older, base_bytes=stored if cut.whole else self._base_bytes,
                chain_bytes=0 if cut.whole else self._chain_bytes + stored, prev=prev, x=cut.x, wall=cut.wall,
                boot_id=self._boot_id, shards=self._capture.shards, parts=tuple(parts),
                positions={} if more else dict(cut.positions),
            )  # fmt: skip
            data = encode(header, pages, self._target.key, compress=self._target.keeps_segments or not self._confirmed)
            self._attempted.append((n, hash_of(data)))
            self._progress.attempt(n, hash_of(data))
            self._target.put(n, data)
            self._on_put(header)
            self.done.segments += 1
            self.done.pages += len(pages)
            self.done.stored_bytes += len(data)
            stored += len(data)
            n, prev = n + 1, hash_of(data)
        self.n, self._prev, self._base, self._older_base = n, prev, base, older
        self.x, self.wall = cut.x, cut.wall
        self._capture.confirm()
        self._attempted.clear()
        self._sure = True
        if cut.whole:
            self._base_bytes, self._chain_bytes = stored, 0
            self.done.wholes += 1
            self.heals = False
            self.retain()
        else:
            self._chain_bytes += stored

    # ---- retention

    def retain(self) -> int:
        """Delete the segments that no point in time of the last `keep_seconds` needs. Return the number deleted."""
        return self._target.retain(self._clock.wall() - int(self._keep_seconds * MICROSECONDS))


def _segments(cut: QueueCut) -> Iterator[tuple[list[PagesOf], list[Image], bool]]:
    """Yield the pages of a cut, one segment's worth at a time, and whether more follow."""
    parts: list[PagesOf] = []
    pages: list[Image] = []
    for part in cut.parts:
        count = 0
        for image in part.images:
            if len(pages) == PAGES_MAX:
                if count:
                    parts.append(PagesOf(part.shard, part.size, count))
                yield parts, pages, True
                parts, pages, count = [], [], 0
            pages.append(image)
            count += 1
        parts.append(PagesOf(part.shard, part.size, count))
    yield parts, pages, False


LOOK_SECONDS: Final = 60.0
"""The interval of looks, unless `verify_seconds` is shorter."""
REST_TIMES: Final = 100
"""The next look is after this many times the duration of the last one, so that looks take at most a hundredth of the time."""


class Verification:
    """The looks of one shipper.

    Args:
        verify_seconds: the time in which every segment since the newest base is read once.
    """

    def __init__(self, target: SegmentFiles, clock: Clock, verify_seconds: float) -> None:
        self._target = target
        self._clock = clock
        self._interval = min(LOOK_SECONDS, verify_seconds)
        self._share = self._interval / verify_seconds
        self._due = 0
        self._next = -1
        self._before: str | None = None
        """The hash of the segment before the next one; None: it was not read."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look."""
        return self._clock.boot() >= self._due

    def postpone(self, seconds: float = 0.0) -> None:
        """Plan the next look: after the interval, or after these seconds if they are more."""
        self._due = self._clock.boot() + int(max(self._interval, seconds) * MICROSECONDS)

    def look(self, head: Callable[[], ChainHead | None], history_id: str, base: int, end: int) -> None:
        """Check the segments from the base to the one before `end`.

        Args:
            head: returns the end of the chain, after checking the target's identity.
        Raises:
            ReplicaGap: one of them is missing or damaged.
            TargetUnavailable: the target can't be read; the look stays due.
        """
        began = time.monotonic()
        found = head()
        missing = base if found is None else found.n + 1 if found.n < end - 1 else found.missing
        if missing is not None:
            raise ReplicaGap(f"segment {missing} is missing or damaged", missing)
        for _ in range(math.ceil((end - base) * self._share)):
            if not base <= self._next < end:
                self._next, self._before = base, None
            self._verify(history_id, self._next)
        self.postpone((time.monotonic() - began) * REST_TIMES)

    def _verify(self, history_id: str, n: int) -> None:
        data = self._target.get(n)
        header = decode_header(data, n, self._target.key)
        if header.history_id != history_id or self._before not in (None, header.prev):
            raise ReplicaGap(f"segment {n} was replaced", n)
        self._next, self._before = n + 1, hash_of(data)
