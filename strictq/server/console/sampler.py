"""Samples of every queue's counts, taken for the charts, at a bounded cost."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ..._platform.log import log
from ..._values.errors import QueueNotFound, StrictqError
from ..._values.stats import Stats
from ..queues import PATIENCE, Queues
from .views import sqs_file

POINTS_MAX: Final = 600
"""Samples that are kept of each queue."""
WATCHED_SECONDS: Final = 1.0
"""Seconds between two samples of a queue that a page shows."""
UNWATCHED_SECONDS: Final = 10.0
HAS_SECONDS: Final = 30.0
RATES: Final = ("sends", "acks", "retries", "dead_letters")
STATES: Final = ("ready", "in_flight", "delayed", "held", "dead", "lanes")

Point = dict[str, Any]


class Series:
    """The samples of one queue.

    Attributes:
        points: the newest samples, oldest first.
        stats: the newest counts; None: not sampled yet.
        error: why the last sample failed, or "".
        viewers: pages that show this queue.
        has: whether it has tenants, streams, and attributes of SQS.
        changed: set and replaced at each sample.
    """

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)
        self.stats: Stats | None = None
        self.error = ""
        self.viewers = 0
        self.due = 0.0
        self.has: dict[str, bool] = {}
        self.has_due = 0.0
        self.changed = asyncio.Event()

    def add(self, stats: Stats, now: float) -> None:
        """Add a sample. Rates are differences to the one before."""
        point: Point = {"t": round(now, 3), "depth": stats.depth, "oldest": stats.oldest_age_seconds, "busy": stats.busy_ratio}
        point |= {name: getattr(stats, name) for name in STATES}
        if stats.replication is not None:
            point["lag"] = stats.replication.lag_seconds
        if self.stats is not None and now > self.points[-1]["t"]:
            seconds = now - self.points[-1]["t"]
            for name in RATES:  # a total is smaller than before if a shard is quarantined meanwhile
                difference = getattr(stats, name) - getattr(self.stats, name)
                point[f"{name}_rate"] = round(max(difference, 0) / seconds, 3)
        self.points.append(point)
        self.stats, self.error = stats, ""
        self._tell()

    def fail(self, error: StrictqError) -> None:
        """Note that the queue could not be read."""
        self.error = str(error)
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Sampler:
    """Samples all queues in turn, in one task.

    Attributes:
        series: the samples of each queue, by name.
        cost: processor seconds of the last sample.
    """

    def __init__(
        self, queues: Queues, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._cpu = cpu
        self.series: dict[str, Series] = {}
        self.cost = 0.0
        self._more = asyncio.Event()

    def find(self, names: list[str]) -> None:
        """Take in new queues, and forget those that no longer exist."""
        for name in names:
            self.series.setdefault(name, Series())
        for gone in self.series.keys() - set(names):
            self.series.pop(gone).fail(QueueNotFound(f"there is no queue {gone!r} any more"))

    def look_now(self, name: str) -> None:
        """Take the next sample of this queue as soon as the budget permits, such as when a page opens or an action ended."""
        if name in self.series:
            self.series[name].due = 0.0
            self._more.set()

    async def run(self) -> None:
        """Take samples until cancelled."""
        rest = 0.0
        names_due = 0.0
        while True:
            now = self._clock()
            if now >= names_due:
                names_due = now + UNWATCHED_SECONDS
                self.find(await asyncio.to_thread(self._names))
            name = min(self.series, key=lambda one: self.series[one].due, default=None)
            series = None if name is None else self.series[name]
            if name is not None and series is not None and series.due <= now:
                await self._sample(name, series)
                rest = self.cost * PATIENCE
                await asyncio.sleep(rest)
            else:
                until = min(names_due, names_due if series is None else series.due)
                self._more.clear()
                with suppress(TimeoutError):  # wait_for of Python 3.11 would ignore a cancellation while it returns
                    async with asyncio.timeout(max(until - now, 0.001)):
                        await self._more.wait()

    async def _sample(self, name: str, series: Series) -> None:
        try:
            stats, self.cost = await asyncio.to_thread(self._timed, name, series)
            series.add(stats, time.time())
        except StrictqError as e:
            if not series.error:
                log.warning("the console cannot read %s: %s", name, e)
            series.fail(e)
        series.due = self._clock() + (WATCHED_SECONDS if series.viewers else UNWATCHED_SECONDS)

    def _timed(self, name: str, series: Series) -> tuple[Stats, float]:
        began = self._cpu()
        q = self._queues.look(name)
        stats = q.stats()
        if self._clock() >= series.has_due:
            series.has_due = self._clock() + HAS_SECONDS
            streams = bool(q._storage.recorded_batches.consumers())
            in_memory = (row["name"] for row in self._queues.without_files())
            is_sqs = name in in_memory or sqs_file(q.path).is_file()
            series.has = {"tenants": q.config.tenant_separator is not None, "streams": streams, "sqs": is_sqs}
        return stats, self._cpu() - began

    def _names(self) -> list[str]:
        return list(self._queues.found())
