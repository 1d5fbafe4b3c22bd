"""The queues of a fleet that a stream reads: finds them, opens a limited number, and reports unreadable ones.

Each is a `StreamReader` of one queue, with its locks, epochs, recorded batches and acks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql.types import StructType

from .._platform.log import log as _log
from .._store.api import Storage
from .._values import hints
from .._values.errors import ConsumerLost, QueueNotFound, StoreError, StrictqError
from ..queue import Queue
from ._options import StreamOptions
from ._paths import Paths, place_of
from ._recorded_batches import Holder, read_block
from .source import StreamReader

FIND_SECONDS: Final = 1.0
"""The least seconds between two searches for queues that appeared or disappeared."""
FIND_SHARE: Final = 10
"""Searches take at most this fraction (1/n) of the time."""
RETRY_SECONDS: Final = 5.0
"""Seconds between two tries to open an unreadable queue."""
THREADS: Final = 8
UNREADABLE: Final = (QueueNotFound, StoreError, OSError)
"""Errors of a queue, as opposed to errors of the query."""
MARK: Final = "strictq.batch"

T = TypeVar("T")


class Member:
    """One queue of a fleet.

    Attributes:
        queue_id: its id, known before the queue is opened.
        place: the identity of its directory's catalog file. Another one means another queue.
        bounded: for AvailableNow: whether it takes part in this run.
        lag: the last count, for reports.
        last: the number of its newest batch when it was last opened.
        begins: the number after which it begins in a checkpoint without it; None: not determined yet.
        examined: whether the query knows if it has recorded more batches than Spark knows.
    """

    def __init__(self, path: str, queue_id: str, place: tuple[int, int], options: StreamOptions, schema: StructType) -> None:
        self.path = path
        self.queue_id = queue_id
        self.place = place
        self.bounded = False
        self.lag: dict[str, Any] | None = None
        self.last = 0
        self.begins: int | None = None
        self.examined = False
        self.reader = StreamReader({}, schema, attrs.evolve(options, paths=Paths((path,), many=False)))
        self._epoch = 0

    @property
    def held(self) -> Holder:
        """The consumer, held from the first use on.

        Raises:
            ConsumerBusy: a running process is the holder.
            ConsumerLost: another process was the holder since this one last had the queue open.
            QueueNotFound, StoreError: it can't be opened.
        """
        if self.reader._held is None:
            held = self.reader._holder()
            if self._epoch and held.epoch != self._epoch + 1:
                self.close()
                raise ConsumerLost(f"consumer {held.name!r} of the queue at {self.path} had another holder in the meantime")
            self._epoch, self.last = held.epoch, held.last
        assert self.reader._held is not None
        return self.reader._held

    @property
    def queue(self) -> Queue:
        """The open queue."""
        assert self.reader._queue is not None
        return self.reader._queue

    @property
    def is_open(self) -> bool:
        return self.reader._held is not None

    def is_there(self) -> bool:
        """Whether the directory has the same queue as before."""
        return place_of(self.path) == self.place and self.reader.is_in_place()

    def close(self) -> None:
        """Release its files and lock, until they are needed again."""
        self.reader.stop()

    def mark(self, mark: str) -> None:
        """Store the fleet's batch in the batches that are recorded from now on."""
        self.held.encode = self.reader._encode(self.queue, {MARK: mark})

    def marked(self, n: int) -> str:
        """Return the fleet's batch with which batch n of this queue was recorded.

        Empty: it was recorded for this queue alone, or was released.

        Raises:
            RecordedBatchGone: it is no longer kept.
        """
        if self.held.was_released(n):
            return ""
        part = self.held.parts(n)[0]
        data = read_block(self.queue, self.held.name, n, part.shard, part.part)
        metadata: dict[bytes, bytes] = pa.ipc.open_stream(data).schema.metadata or {}
        return metadata.get(MARK.encode(), b"").decode()


class FleetMembers:
    """The queues that a fleet's query can reach now. Used by one thread, which runs work on them in parallel.

    Attributes:
        by_id: queue id → member.
        failed: path → the reason why its queue can't be read.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="strictq-fleet")
        self.by_id: dict[str, Member] = {}
        self.failed: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._used: dict[str, None] = {}
        """Ids of the open members, the most recently used last."""
        self._find_at = 0.0
        self._reported: set[tuple[str, str]] = set()
        self._turn = 0

    # ---- finding

    def find(self, *, now: bool = False) -> None:
        """Search for the existing queues, unless that was done a moment ago.

        Raises:
            StrictqError: a queue can't be read, and the option failOnMissing is set.
        """
        began = time.monotonic()
        if began < self._find_at and not now:
            return
        paths = self._options.paths
        known = {member.path: member for member in self.by_id.values()}
        found = list(paths.found())
        for path in [path for path in self.failed if path not in found]:
            del self.failed[path]
        for path in paths.missing():
            self._fail(path, QueueNotFound(f"there is no queue at {path}"))
        for path, member in known.items():
            if path not in found or not member.is_there():
                self._drop(member)
        for path in found:
            if path not in known or known[path].queue_id not in self.by_id:
                self._add(path, began)
        self._find_at = time.monotonic() + max(FIND_SECONDS, FIND_SHARE * (time.monotonic() - began))

    def _add(self, path: str, now: float) -> None:
        if path in self.failed and now < self._retry_at.get(path, 0.0):
            return
        place = place_of(path)
        try:
            known = Storage.facts(Path(path))
            if known is None or place is None:
                return  # it was removed meanwhile
        except (StrictqError, OSError) as e:
            self._fail(path, e)
            return
        other = self.by_id.get(known.queue_id)
        if other is not None:
            if other.place != place:
                self._fail(path, StrictqError(f"{path} is a copy of {other.path}", hint=hints.ONE_COPY))
            return
        self.failed.pop(path, None)
        self.by_id[known.queue_id] = Member(path, known.queue_id, place, self._options, self._schema)

    def _drop(self, member: Member) -> None:
        member.close()
        self._used.pop(member.queue_id, None)
        self.by_id.pop(member.queue_id, None)

    def _fail(self, path: str, error: Exception) -> None:
        """Record and report that a queue can't be read."""
        if self._options.fail_on_missing:
            raise error
        reason = str(error)
        self.failed[path] = reason
        self._retry_at[path] = time.monotonic() + RETRY_SECONDS
        self.report(path, reason)

    def report(self, path: str, reason: str) -> None:
        """Log a queue's error, once."""
        if (path, reason) not in self._reported:
            self._reported.add((path, reason))
            _log.warning("consumer %s continues without the queue at %s: %s", self._options.consumer, path, reason)

    # ---- using the members

    def chunks(self, members: Sequence[Member]) -> list[list[Member]]:
        """Return chunks of as many members as may be open, starting after those of the last call."""
        size = self._options.open_max
        begin = self._turn % max(1, len(members))
        turned = [*members[begin:], *members[:begin]]
        return [turned[at : at + size] for at in range(0, len(turned), size)]

    def went_on(self, count: int) -> None:
        """Start after this many more members the next time."""
        self._turn += count

    def each(self, members: Iterable[Member], work: Callable[[Member], T], *, quick: bool = False) -> dict[str, T]:
        """Run work on members in parallel, for at most as many as may be open.

        Args:
            quick: the work takes less time than a thread's start, if the queue is open.
        Returns:
            The results by queue id. Unreadable queues are left out, and reported.
        Raises:
            StrictqError: the work failed with an error of the query.
        """
        members = list(members)
        self._make_room(members)
        failed: list[Exception] = []

        def one(member: Member) -> T | Exception:
            if failed:
                return failed[0]  # the query fails, so the rest is skipped
            try:
                if not member.is_there():
                    raise QueueNotFound(f"the queue at {member.path} no longer exists")
                return work(member)
            except (StrictqError, OSError) as e:
                if not isinstance(e, UNREADABLE):
                    failed.append(e)
                return e

        here = quick and all(member.is_open for member in members)
        results = list(map(one, members) if here else self._pool.map(one, members))
        if failed:
            raise failed[0]
        done: dict[str, T] = {}
        for member, result in zip(members, results, strict=True):
            if isinstance(result, Exception):
                self._drop(member)
                self._fail(member.path, result)
            else:
                self._used[member.queue_id] = self._used.pop(member.queue_id, None)
                done[member.queue_id] = result
        return done

    def _make_room(self, members: list[Member]) -> None:
        wanted = {member.queue_id for member in members}
        room = self._options.open_max - len(wanted)
        idle = [name for name in self._used if name not in wanted]
        for name in idle[: max(0, len(idle) - max(room, 0))]:
            del self._used[name]
            self.by_id[name].close()

    def open_ones(self) -> list[Member]:
        return [self.by_id[name] for name in self._used]

    def close(self) -> None:
        for member in self.by_id.values():
            member.close()
        self._used.clear()
        self._pool.shutdown(wait=False)
