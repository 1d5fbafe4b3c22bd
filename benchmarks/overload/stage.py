"""One run: start the consumers, send, restart those that die, and compare the starts with the sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

import strictq
from benchmarks.measure import ROOT
from strictq import Message, PartialFailure, Queue, QueueConfig, Throttled

from .consumer import ENVIRONMENT, Orders
from .scenarios import LOUD, RATE, TENANTS, Form, Measure, Trouble

TICK_SECONDS: Final = 0.02
LOOK_SECONDS: Final = 0.2
KEYS: Final = 1000
"""Keys of each tenant. A message that kills has a key of its own."""
BINS: Final = 12
"""Intervals of a run that have figures of their own."""
FILL_BATCH: Final = 5000


@attrs.define
class Sent:
    """What was sent: the time of each innocent message, by key and seq."""

    innocent: dict[tuple[str, int], float] = attrs.field(factory=dict)
    loud: int = 0
    refused: int = 0


@attrs.define
class Consumers:
    """The consumer processes. One that ends is replaced."""

    given: Orders
    number: int
    deaths: int = 0
    running: list[subprocess.Popen[str]] = attrs.field(factory=list)

    def start(self) -> None:
        """Start them, and return when each is ready."""
        self.running = [self._one() for _ in range(self.number)]
        for each in self.running:
            assert each.stdout is not None
            if each.stdout.readline() != "ready\n":
                raise RuntimeError("a consumer did not start")

    def replace(self) -> None:
        """Start another one for each that has ended."""
        for place, each in enumerate(self.running):
            if each.poll() is not None:
                self.deaths += 1
                _forget(each)
                self.running[place] = self._one()

    def kill(self) -> None:
        for each in self.running:
            each.kill()
            _forget(each)

    def _one(self) -> subprocess.Popen[str]:
        environment = {**os.environ, ENVIRONMENT: json.dumps(attrs.asdict(self.given))}
        command = [sys.executable, "-m", "benchmarks.overload.consumer"]
        return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _forget(process: subprocess.Popen[str]) -> None:
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def run(trouble: Trouble, measure: Measure, form: Form, place: Path) -> dict[str, Any]:
    """Run a trouble with one measure. Return its figures, times in seconds."""
    config = QueueConfig(tenant_separator="/" if measure.separator else None)
    path, notes = place / "shared.strictq", place / "notes"
    given = Orders(
        str(path), str(notes), trouble.handler_seconds, trouble.loud_seconds, trouble.fails, trouble.kills, measure.breaker,
        measure.executor,
    )  # fmt: skip
    with strictq.open(path, shards=1, durability="process", config=config) as q:
        sent, consumers = Sent(), Consumers(given, measure.consumers)
        with _running(consumers):
            if measure.limit:
                q.limit(LOUD, **measure.limit)
            _warm(q)
            if trouble.backlog and measure.trouble:
                _fill(q, form.backlog, measure)
            began = time.time()
            drained = _send(q, consumers, sent, trouble, measure, form)
            ended = time.time()
            stats = q.stats()
    return {
        **waits(sent.innocent, _starts(notes), began, ended),
        "sent": len(sent.innocent), "loud_sent": sent.loud, "loud_refused": sent.refused, "deaths": consumers.deaths,
        "left": stats.depth, "drained": drained, "first_attempt_age": stats.first_attempt_age_seconds,
        "claims": stats.claims, "empty_receives": stats.empty_receives, "acks": stats.acks, "retries": stats.retries,
        "dead": stats.dead, "expired": stats.expired,
    }  # fmt: skip


@contextmanager
def _running(consumers: Consumers) -> Iterator[None]:
    try:
        consumers.start()
        yield
    finally:
        consumers.kill()


def _warm(q: Queue) -> None:
    """Let the consumers process some messages, so that their start is no part of a figure."""
    q.send_many([Message(b"0", key=f"warm-{n % TENANTS}/{n}") for n in range(2 * TENANTS)])
    while q.stats().depth:
        time.sleep(TICK_SECONDS)


def _fill(q: Queue, number: int, measure: Measure) -> None:
    """Send a backlog while the queue is paused. Return when it is not any more."""
    q.pause()
    for first in range(0, number, FILL_BATCH):
        body = b"%.6f" % time.time()
        q.send_many([
            Message(body, key=f"{LOUD}/{n % KEYS}", ttl=measure.ttl) for n in range(first, min(first + FILL_BATCH, number))
        ])  # fmt: skip
    if measure.ttl is not None:
        time.sleep(measure.ttl)
    if measure.purge:
        q.purge()
    q.resume()


def _send(q: Queue, consumers: Consumers, sent: Sent, trouble: Trouble, measure: Measure, form: Form) -> float | None:
    """Send as time passes. Return after how many seconds a backlog was gone; None: it was not."""
    began = time.monotonic()
    drained, innocents, looked = None, 0, 0.0
    while True:
        passed = time.monotonic() - began
        sending = passed < form.seconds
        if not sending and (drained is not None or passed >= form.seconds + form.drain_seconds * trouble.backlog):
            return drained
        consumers.replace()
        if sending:
            due = int(passed * RATE * TENANTS)
            _send_innocent(q, sent, range(innocents, due))
            innocents = due
            if measure.trouble:
                _send_loud(q, sent, int(passed * trouble.rate))
        if trouble.backlog and drained is None and passed - looked >= LOOK_SECONDS:
            looked = passed
            drained = passed if _backlog_left(q) == 0 else None
        time.sleep(TICK_SECONDS)


def _backlog_left(q: Queue) -> int:
    """Return how many messages more than a few new ones wait."""
    return max(0, q.stats().depth - int(RATE * TENANTS))


def _send_innocent(q: Queue, sent: Sent, numbers: range) -> None:
    if not numbers:
        return
    now = time.time()
    messages = [Message(b"%.6f" % now, key=f"quiet-{n % TENANTS}/{n // TENANTS % KEYS}") for n in numbers]
    for message, receipt in zip(messages, q.send_many(messages), strict=True):
        sent.innocent[str(message.key), receipt.seq] = now


def _send_loud(q: Queue, sent: Sent, due: int) -> None:
    numbers = range(sent.loud + sent.refused, due)
    if not numbers:
        return
    body = b"%.6f" % time.time()
    try:
        q.send_many([Message(body, key=f"{LOUD}/{n % KEYS}") for n in numbers])
        sent.loud += len(numbers)
    except Throttled:
        sent.refused += len(numbers)
    except PartialFailure as e:
        refused = sum(isinstance(result, Exception) for result in e.results)
        sent.refused += refused
        sent.loud += len(numbers) - refused


def _starts(notes: Path) -> dict[tuple[str, int], float]:
    """Return when each message was first started."""
    starts: dict[tuple[str, int], float] = {}
    if notes.exists():
        for line in notes.read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            starts.setdefault((note["key"], note["seq"]), note["started"])
    return starts


def waits(sent: dict[tuple[str, int], float], starts: dict[tuple[str, int], float], began: float, ended: float) -> dict[str, Any]:
    """Return how long messages waited for their first start, over all and by the time of their send.

    A message that was not started counts with the time until the end of the run, which is less than its true wait.
    """
    waited = [(at, max(0.0, starts.get(name, ended) - at)) for name, at in sent.items()]
    width = (max((at for at, _ in waited), default=ended) - began) / BINS
    bins: dict[int, list[float]] = {}
    for at, wait in waited:
        bins.setdefault(min(int((at - began) / width), BINS - 1), []).append(wait)
    series = [
        {"at": width * (n + 0.5), "p50": quantile(part, 0.5), "p99": quantile(part, 0.99)} for n, part in sorted(bins.items())
    ]
    every = [wait for _, wait in waited]
    return {
        "p50": quantile(every, 0.5), "p99": quantile(every, 0.99), "unstarted": sum(name not in starts for name in sent),
        "series": series,
    }  # fmt: skip


def quantile(values: list[float], part: float) -> float:
    """Return the smallest value that is at least as large as this part of them; 0.0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
