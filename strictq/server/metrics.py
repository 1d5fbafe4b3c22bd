"""`/metrics`: the totals and states of all queues for Prometheus, from `Stats`.

The totals are in the queues' files, so they cover every process, and survive restarts of all of them. There is a line for each
queue and shard, and none for a key. A scrape reads the queues that cost little. The others are read after it, at a bounded share
of a core, and the next scrape shows that.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from .._platform.log import log
from .._values.errors import StrictqError
from .._values.stats import Stats
from .counters import BUCKETS_SECONDS, Counters
from .parts import Receive, Scope, Send, ServerContext, header, respond
from .queues import PATIENCE, Queues

PATH: Final = "/metrics"
TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

SCRAPE_SECONDS: Final = 0.010
"""Processor time in which a scrape reads queues."""
OPEN_SECONDS: Final = 0.005
"""What opening a queue costs, about."""
ROW_SECONDS: Final = 30e-6
"""What reading a row of a log costs, about, if its lane is not in memory."""

Sample = tuple[str, dict[str, str], float]
"""A suffix of the family's name, the labels, and the value."""


@attrs.frozen
class Family:
    """A metric with its samples.

    Attributes:
        name: without the suffix _total.
        kind: "counter", "gauge" or "histogram".
    """

    name: str
    kind: str
    text: str
    samples: list[Sample]


TOTALS: Final = {
    "sends": "Messages that were sent",
    "receives": "Messages that were delivered",
    "acks": "Messages that were acked",
    "retries": "Messages that were given back to be tried again",
    "redeliveries": "Messages whose lease expired",
    "dead_letters": "Messages that became dead letters",
    "rejected": "Messages that became dead letters because they were rejected",
    "redriven": "Dead letters that were redriven",
    "expired": "Messages whose time to live ended",
    "dropped": "Messages that were dropped because they were out of attempts",
    "purged": "Messages that were purged",
    "claims": "Attempts of receives that found messages",
    "empty_receives": "Attempts of receives that found none",
}
STATES: Final = ("ready", "in_flight", "delayed", "held", "dead")


def _replication(name: str) -> Callable[[Stats], float | None]:
    """Return a function that returns this field of the replication's state; None: the queue is not replicated."""
    return lambda s: None if s.replication is None else getattr(s.replication, name)


def _unproven(stats: Stats) -> float | None:
    proof = None if stats.replication is None else stats.replication.proof
    return None if proof is None else proof.error is not None


GAUGES: Final[dict[str, tuple[str, Callable[[Stats], float | None]]]] = {
    "lanes": ("Keys that the queue knows", lambda s: s.lanes),
    "oldest_age_seconds": ("Age of the oldest first message of a lane; 0: none waits", lambda s: s.oldest_age_seconds or 0.0),
    "first_attempt_age_seconds": (
        "Age of the oldest message without an attempt; 0: none waits",
        lambda s: s.first_attempt_age_seconds or 0.0,
    ),
    "drain_seconds": ("Estimated seconds until the waiting messages are done", lambda s: s.drain_seconds),
    "disk_bytes": ("Bytes of the queue's files", lambda s: s.disk_bytes),
    "wal_bytes": ("Bytes of the write-ahead logs, which are part of the files", lambda s: s.wal_bytes),
    "busy_ratio": ("Fraction of the workers' slots that run handlers; absent: no worker reports", lambda s: s.busy_ratio),
    "workers": ("Workers that report", lambda s: len(s.workers)),
    "breaker_open": ("Open circuit breakers of workers", lambda s: len(s.breakers)),
    "paused": ("Whether the queue is paused", lambda s: s.paused),
    "outbox": ("Messages that are committed in one shard and on their way to another", lambda s: s.outbox),
    "replication_lag_seconds": ("Age of the newest state at the replica", _replication("lag_seconds")),
    "replication_lag_bytes": ("Bytes that are not at the replica", _replication("lag_bytes")),
    "replication_stopped": ("Whether shipping ended because of an error", _replication("stopped")),
    "replica_unproven": ("Whether a replica failed its last trial promotion", _unproven),
}
"""For each gauge of a queue: its text, and its value; None: the queue has none."""


@attrs.frozen
class QueueReading:
    """What was read last of a queue.

    Attributes:
        stats: None: it could not be read.
        at: when, on the monotonic clock.
        cost: processor seconds that it took, without those of opening the queue and of reading its logs.
    """

    stats: Stats | None
    at: float
    cost: float


def of_queues(found: Mapping[str, QueueReading], now: float) -> list[Family]:
    """Return the metrics of queues, for a scrape that began at this time."""
    known = [(name, one.stats) for name, one in found.items() if one.stats is not None]
    up = [("", {"queue": name}, float(one.stats is not None)) for name, one in found.items()]
    ages = [("", {"queue": name}, round(now - one.at, 3) if one.at < now else 0.0) for name, one in found.items()]
    families = [
        Family("strictq_up", "gauge", "Whether the queue can be read", up),
        Family("strictq_read_age_seconds", "gauge", "Age of what is shown of the queue; 0: it was read by this scrape", ages),
    ]
    for field, text in TOTALS.items():
        samples = [
            ("_total", {"queue": name, "shard": str(shard.shard)}, float(getattr(shard, field)))
            for name, stats in known
            for shard in stats.shards
        ]
        families.append(Family(f"strictq_{field}", "counter", text, samples))
    states = [("", {"queue": name, "state": state}, float(getattr(stats, state))) for name, stats in known for state in STATES]
    families.append(Family("strictq_messages", "gauge", "Messages by state", states))
    for field, (text, value) in GAUGES.items():
        values = [("", {"queue": name}, number) for name, stats in known if (number := value(stats)) is not None]
        families.append(Family(f"strictq_{field}", "gauge", text, values))
    shards = [
        ("", {"queue": name, "shard": str(shard.shard)}, float(shard.quarantined is not None))
        for name, stats in known
        for shard in stats.shards
    ]
    families.append(Family("strictq_shard_quarantined", "gauge", "Whether a shard is unavailable", shards))
    return families


def of_server(counters: Counters) -> list[Family]:
    """Return the server's own metrics."""
    requests = [
        ("_total", {"action": action, "code": str(code)}, float(n)) for (action, code), n in sorted(counters.requests.items())
    ]
    durations: list[Sample] = []
    for action, buckets in sorted(counters.durations.items()):
        below = 0
        for bound, n in zip((*(f"{bound}" for bound in BUCKETS_SECONDS), "+Inf"), buckets, strict=True):
            below += n
            durations.append(("_bucket", {"action": action, "le": bound}, float(below)))
        durations += [("_sum", {"action": action}, counters.seconds[action]), ("_count", {"action": action}, float(below))]
    gauges = {
        "polls": ("Long polls that wait", counters.polls()),
        "connections": ("Open connections", counters.connections),
    }
    totals = {
        "connections_refused": ("Connections that were closed because there were too many", counters.connections_refused),
        "request_timeouts": ("Connections that were closed because a request took too long to arrive", counters.timeouts),
    }
    return [
        Family("strictq_server_requests", "counter", "Requests by action and status code", requests),
        Family("strictq_server_request_seconds", "histogram", "Time until the answer", durations),
        *(Family(f"strictq_server_{name}", "gauge", text, [("", {}, float(n))]) for name, (text, n) in gauges.items()),
        *(Family(f"strictq_server_{name}", "counter", text, [("_total", {}, float(n))]) for name, (text, n) in totals.items()),
    ]


def exposition(families: list[Family], *, openmetrics: bool = False) -> str:
    """Return metrics in Prometheus' text format, or in OpenMetrics 1.0."""
    lines: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.kind == "counter" and not openmetrics else family.name
        lines += [f"# HELP {name} {family.text}.", f"# TYPE {name} {family.kind}"]
        lines += [f"{family.name}{suffix}{_labels(labels)} {_number(value)}" for suffix, labels, value in family.samples]
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode(errors="replace").decode()


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


class QueueReadings:
    """The newest readings of all queues."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._found: dict[str, Path | None] = {}
        self._known: dict[str, QueueReading] = {}

    def scrape(self) -> tuple[dict[str, QueueReading], list[str]]:
        """Read the queues that fit in SCRAPE_SECONDS. Return all readings, and the names of those to read later."""
        end = time.thread_time() + SCRAPE_SECONDS
        found, known = self._queues.found(), self._known
        self._found = found
        for name in known.keys() - found.keys():
            known.pop(name, None)
        order = sorted(found, key=lambda name: known[name].cost if name in known else OPEN_SECONDS)
        late = [name for name in order if self.read(name, end - time.thread_time()) is None]
        return {name: known[name] for name in found if name in known}, late

    def read(self, name: str, seconds: float = math.inf) -> float | None:
        """Read a queue. Return what it cost; None: it would probably cost more than so many processor seconds."""
        known = self._known.get(name)
        if known is None and seconds < OPEN_SECONDS:
            return None
        began = counting = time.thread_time()
        stats, rows = None, 0.0
        try:
            q = self._queues.look(name, self._found)
            rows = q._storage.reports.unread() * ROW_SECONDS
            if rows + (0.0 if known is None else known.cost) > seconds:
                return None
            if rows > SCRAPE_SECONDS:
                q.stats()  # reads the logs, so that the next one shows what the counts alone cost
                rows = 0.0
            counting = time.thread_time()
            stats = q.stats()
        except StrictqError as e:
            if known is None or known.stats is not None:
                log.warning("the metrics of %s are missing: %s", name, e)
        end = time.thread_time()
        self._known[name] = QueueReading(stats, time.monotonic(), max(end - counting - rows, 0.0))
        return end - began


class Metrics:
    """The part that answers `/metrics`."""

    name = "metrics"
    guarded = True

    def __init__(self, context: ServerContext) -> None:
        self._counters = context.counters
        self._readings = QueueReadings(context.queues)
        self._scraping = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None

    def takes(self, scope: Scope) -> bool:
        """Take `/metrics`."""
        return bool(scope["path"] == PATH)

    async def start(self) -> None:
        """Do nothing: queues are opened by the first scrape, and after it."""

    def drain(self) -> None:
        """Do nothing: no scrape waits."""

    async def stop(self) -> None:
        """Read no more queues."""
        if self._later is not None:
            self._later.cancel()
            with suppress(asyncio.CancelledError):
                await self._later

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer a scrape."""
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b"use GET\n", headers=((b"allow", b"GET, HEAD"),))
            return
        openmetrics = b"application/openmetrics-text" in (header(scope, b"accept") or b"")
        async with self._scraping:  # one at a time, so that many scrapers do not take all threads
            now = time.monotonic()
            found, late = await asyncio.to_thread(self._readings.scrape)
        if late and (self._later is None or self._later.done()):
            self._later = asyncio.create_task(self._read_later(late))
        text = exposition([*of_queues(found, now), *of_server(self._counters)], openmetrics=openmetrics)
        await respond(send, 200, text.encode(), OPENMETRICS if openmetrics else TEXT, ((b"cache-control", b"no-store"),))

    async def _read_later(self, names: list[str]) -> None:
        for name in names:
            cost = await asyncio.to_thread(self._readings.read, name)
            await asyncio.sleep(PATIENCE * (cost or 0.0))


def make(context: ServerContext) -> Metrics:
    """Make the part."""
    return Metrics(context)
