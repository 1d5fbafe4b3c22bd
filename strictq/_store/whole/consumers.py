"""What the consumers of all processes show to each other: that they live, what they claim and what they report."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from ..._platform import files
from ..._values.errors import StoreError, StoreFull
from ..commit.tx import bound
from ..disk import locks
from ..disk.layout import CONSUMER, HOLDER
from ..shard import expiring
from . import holders, live_consumers, moving, worker_reports
from .live_consumers import Description, LiveConsumer, OnlyConsumer, Seen
from .routing import Routing
from .worker_reports import R

DEAD_SECONDS: Final = 0.5
"""How often a receive checks for dead workers."""
DEAD_WAIT_SECONDS: Final = 0.02
"""How long that check waits for a shard that other calls are writing to."""


class Consumers:
    """The consumers of this process, and what the others show. In memory, there are no others."""

    def __init__(self, store: Routing, own_locks: WeakSet[files.Lock]) -> None:
        self._store = store
        self._own_locks = own_locks
        self._directory = store.directory
        self._holder: holders.ProcessHold | None = None
        self.dead_at = 0.0
        """When, by the machine's clock, to check again for dead workers."""
        self._names: set[str] = set()
        self._watched_at = float("-inf")
        self._notices: dict[worker_reports.PrivateNotice[Any], Any] = {}
        self._live: list[OnlyConsumer] = []

    def notice(self, kind: type[R]) -> worker_reports.Notice[R] | worker_reports.PrivateNotice[R]:
        """Return where a worker reports this about itself. Nothing is shown yet."""
        if self._directory is None:
            return worker_reports.PrivateNotice(self._notices)
        notice = worker_reports.Notice(self._directory, kind)
        self._own_locks.add(notice)
        return notice

    def join(self, described: Description) -> LiveConsumer | OnlyConsumer:
        """Let a consumer appear among the live ones, until its `end`, or the end of the process.

        Raises:
            StoreError: its file can't be written.
        """
        if self._directory is None:
            return OnlyConsumer(self._live, described)
        consumer = LiveConsumer(self._directory, moving.InUse(self._store.shards), described, self._store.config.lease_seconds)
        self._own_locks.add(consumer)
        appear = files.typed("a consumer's file can't be written")(consumer.join)
        try:
            appear()
        except StoreFull:  # it frees more space than it takes
            self._store.make_room()
            appear()
        return consumer

    def live(self) -> list[Seen]:
        """Return the live consumers in all processes."""
        if self._directory is None:
            return [each.seen() for each in self._live]
        return live_consumers.live(self._directory)

    def holder(self) -> holders.ProcessHold | None:
        """Return this process's notes of its workers' claims. None: in memory, where leases end with the process."""
        if self._holder is None and self._directory is not None:
            self._holder = holders.ProcessHold(self._directory)
            self._own_locks.add(self._holder)
        return self._holder

    def hold_with_process(self) -> holders.ProcessHold | None:
        """Return where a worker notes its leases, which then end with its process, until `end` is called. None: in memory.

        If there is no room for the file, leases end at their deadlines.
        """
        holder = self.holder()
        if holder is not None:
            with suppress(OSError, StoreError):
                holder.begin()
        return holder

    def end_dead(self) -> bool:
        """End the leases of workers whose processes have died. Return whether there are workers, live or dead."""
        self.dead_at = time.monotonic() + DEAD_SECONDS
        if self._directory is None or self._store.read_only:
            return False
        names = locks.names(self._directory, HOLDER)
        for found in holders.dead(self._directory, names):
            end = bound(expiring.end_claims, found.claims, found.single)
            healthy = self._store.healthy()
            mine = [shard for shard in healthy if shard.number in found.claims]
            have_moved = [shard.run(end, DEAD_WAIT_SECONDS) for shard in mine]
            if True in have_moved:  # its keys may be in other shards now
                for shard in healthy:
                    if shard not in mine:
                        shard.run(end, DEAD_WAIT_SECONDS)
        return bool(names)

    def notices(self, kind: type[R]) -> list[R]:
        """Return the reports of workers in all live processes."""
        if self._directory is None:
            return [report for report in self._notices.values() if isinstance(report, kind)]
        return worker_reports.read_all(self._directory, kind)

    def watch_workers(self) -> list[worker_reports.WorkerSpans]:
        """Return the newest spans that workers report, and let them report for another ten seconds."""
        self._watched_at = time.monotonic()
        if self._directory is not None:
            with suppress(OSError, StoreError):  # the directory can't be written to
                worker_reports.watch(self._directory)
        return self.notices(worker_reports.WorkerSpans)

    def workers_are_watched(self) -> bool:
        """Return whether workers are to report spans. Costs one look at a file."""
        if self._directory is None:
            return time.monotonic() - self._watched_at < worker_reports.WATCHED_SECONDS
        return worker_reports.is_watched(self._directory)

    def progress(self, attempt: worker_reports.Attempt) -> tuple[float, str, float] | None:
        """Return what the running handler of a message reported last. None: it reported nothing."""
        reports = (report.progress for report in self.notices(worker_reports.RunningHandlers))
        return next((report[attempt] for report in reports if attempt in report), None)

    def lock(self, name: str) -> files.Lock | locks.PrivateLock:
        """Return the lock for the holder of a named consumer. It is not acquired yet."""
        if self._directory is None:
            return locks.PrivateLock(self._names, name)
        lock = files.Lock(files.named(self._directory, CONSUMER, name), look=self._store.read_only)
        self._own_locks.add(lock)
        return lock
