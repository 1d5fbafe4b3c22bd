"""The demo with a worker: it prepares an event, here by waiting as a fetch would, while the one before it is processed."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import strictq
from strictq.demo import verify
from strictq.demo.consumer import LINE_HEADER, SCHEMA, handle
from strictq.demo.events import Chain, Event, Source
from strictq.demo.runner import SEND_BATCH, STALL_SECONDS, DemoFailed, Watcher
from strictq.worker import WorkerStats
from strictq.worker.timeline import PREPARE, Timeline

SPREAD: Final = 0.4
"""Deviation of the logarithm of the sizes: some events take a few times as long as others."""
LOOK_SECONDS: Final = 0.05
NAME: Final = "worker"


@attrs.frozen(kw_only=True)
class Options:
    """How it runs.

    Attributes:
        queue: the queue's directory; must not exist yet.
        concurrency: events processed at once, each of another key.
        fetch_seconds, process_seconds: what prepare and process take for an event of the usual size.
    """

    queue: Path
    concurrency: int = 4
    shards: int = 1
    durability: Literal["full", "process"] = "full"
    fetch_seconds: float = 0.08
    process_seconds: float = 0.12


@attrs.frozen
class Outcome:
    """What happened, and whether it was right.

    Attributes:
        fetched_seconds: what all prepares took together.
        waited_seconds: how long, of that, an event was held up by its prepare alone: its key's turn had come.
    """

    verdict: verify.Verdict
    timeline: Timeline
    stats: WorkerStats
    redeliveries: int
    seconds: float
    fetched_seconds: float
    waited_seconds: float

    @property
    def hidden(self) -> float:
        """The part of fetching that went on while earlier events were processed, 0..1."""
        return 1.0 - self.waited_seconds / self.fetched_seconds if self.fetched_seconds else 1.0


def size_of(line: int) -> float:
    """The size of an event, which decides how long it takes: the same at every run."""
    return random.Random(line).lognormvariate(0.0, SPREAD)


def run(source: Source, options: Options, watch: Watcher) -> Outcome:
    """Send the events to a new queue, have a worker process them, and verify what came of them.

    Raises:
        DemoFailed: it did not come to its end.
        strictq.StrictqError: the queue refused.
    """
    with strictq.open(options.queue, shards=options.shards, durability=options.durability) as q:
        q.app_schema(SCHEMA)
        events = iter(source)
        sent = 0
        while batch := list(itertools.islice(events, SEND_BATCH)):
            q.send_many([_message(event) for event in batch])
            sent += len(batch)
            watch.progress(sent, 0)
        timeline = Timeline()
        handlers = Handlers(source.chain, options)
        worker = strictq.Worker(
            q, handlers.process, handlers.prepare, concurrency=options.concurrency, on_event=timeline, consumer=NAME
        )
        started = time.monotonic()
        _work(worker, q, sent, watch)
        seconds = time.monotonic() - started
        verdict = verify.verify(source, verify.recorded(q))
        fetched = sum(bar.end - bar.start for bar in timeline.bars if bar.stage == PREPARE)
        return Outcome(verdict, timeline, worker.stats(), q.stats().redeliveries, seconds, fetched, waited(timeline))


def _message(event: Event) -> strictq.Message:
    return strictq.Message(event.body, key=event.key, headers={LINE_HEADER: str(event.line)}, size_hint=size_of(event.line))


@attrs.frozen
class Handlers:
    """What a user of a worker writes: prepare, which may only look, and process, which does it."""

    chain: Chain | None
    options: Options

    def prepare(self, job: strictq.Job) -> float:
        """Fetch what the event needs: here, wait."""
        size = size_of(int(job.headers[LINE_HEADER]))
        time.sleep(self.options.fetch_seconds * size)
        return size

    def process(self, job: strictq.Job) -> None:
        """Check the event against the one before it, and record it; that commits with the ack."""
        time.sleep(self.options.process_seconds * job.prepared)
        handle(job, job, self.chain, NAME)


def _work(worker: strictq.Worker, q: strictq.Queue, sent: int, watch: Watcher) -> None:
    """Run the worker in a thread, until the queue is empty, and show how far it is."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run(drain=True)
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        seen, moved = -1, time.monotonic()
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            acked = worker.stats().acked
            watch.progress(sent, acked)
            if acked != seen:
                seen, moved = acked, time.monotonic()
            elif time.monotonic() - moved > STALL_SECONDS:
                raise DemoFailed(f"nothing moved for {STALL_SECONDS:g} s with {sent - acked} messages left")
    finally:
        worker.stop(0.0)
        thread.join()
    if errors:
        raise errors[0]
    if left := q.stats().depth:
        raise DemoFailed(f"the worker ended with {left} messages left")


def waited(timeline: Timeline) -> float:
    """Seconds in which an event's key had its turn, and only its prepare was not done; at most what the prepare took."""
    total = 0.0
    free_at: dict[Any, float] = {}
    prepared = {(bar.key, bar.seq): bar for bar in timeline.bars if bar.stage == PREPARE}
    for bar in sorted((b for b in timeline.bars if b.stage != PREPARE), key=lambda b: b.start):
        fetch = prepared.get((bar.key, bar.seq))
        if fetch is None:
            continue
        total += min(max(0.0, fetch.end - free_at.get(bar.key, 0.0)), fetch.end - fetch.start)
        free_at[bar.key] = bar.end
    return total
