"""The demo with a worker, which prepares an event (here by waiting) while it processes the previous one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import strictq
from strictq.demo.consumer import handle
from strictq.demo.events import DemoEvent
from strictq.demo.runner import Watcher, result, send, wait_until_empty
from strictq.demo.timeline import PREPARE, PROCESS, Timeline

NAME: Final = "worker"


def run(
    events: Sequence[DemoEvent],
    q: strictq.Queue,
    watch: Watcher,
    *,
    concurrency: int = 4,
    fetch: float = 0.08,
    process: float = 0.12,
) -> tuple[dict[str, Any], Timeline]:
    """Send the events to a new queue, process them with a worker, and verify the result.

    Args:
        concurrency: events processed in parallel, each of a different key.
        fetch, process: seconds that the two handlers take for an event of average size.
    Returns:
        The result as JSON values, with the fields in docs/reference/cli.md; and the worker's timeline.
    Raises:
        DemoFailed: the demo did not finish.
        strictq.StrictqError: raised by the queue.
    """

    def prepare_event(job: strictq.Job) -> float:
        """Wait, as a download would."""
        size = job.size_hint or 1.0
        time.sleep(fetch * size)
        return size

    def process_event(job: strictq.Job) -> None:
        """Check the event against the previous one, and record it. The record commits with the ack."""
        time.sleep(process * job.prepared)
        handle(job, job, NAME)

    for sent in send(q, events):
        watch.progress(sent, 0)
    timeline = Timeline()
    worker = strictq.Worker(q, process_event, prepare_event, concurrency=concurrency, on_event=timeline, consumer=NAME)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, drain=True)
        try:
            wait_until_empty(q, len(events), watch, lambda: running.result() if running.done() else None)
            running.result()
        finally:
            worker.stop(0.0)
    seconds = time.monotonic() - started
    fetched, late = sum(bar.end - bar.start for bar in timeline.bars if bar.stage == PREPARE), waited(timeline)
    return {
        **result(q, events, seconds),
        "prepare_seconds": round(fetched, 3),
        "waited_seconds": round(late, 3),
        "hidden": round(1.0 - late / fetched if fetched else 1.0, 3),
        "retried": worker.stats().retried,
    }, timeline  # fmt: skip


def waited(timeline: Timeline) -> float:
    """Return the seconds that process waited for prepare, at most the duration of prepare."""
    total = 0.0
    free_at: dict[Any, float] = {}
    fetches = {(bar.key, bar.seq): bar for bar in timeline.bars if bar.stage == PREPARE}
    for bar in sorted((b for b in timeline.bars if b.stage == PROCESS), key=lambda b: b.start):
        if fetch := fetches.get((bar.key, bar.seq)):
            total += min(max(0.0, fetch.end - free_at.get(bar.key, 0.0)), fetch.end - fetch.start)
            free_at[bar.key] = bar.end
    return total
