"""Several queues in one worker: each has a keeper of its own. They share the slots, and start, stop and fail together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs

from .._values import hints
from .._values.errors import StrictqError
from .._values.stats import DurationEstimate
from .slot_pool import SlotPool

SUMMED = (
    "acked", "retried", "rejected", "lost", "timeouts", "poison", "deferred", "running", "preparing", "prepared", "buffered",
    "prepared_bytes", "limited",
)  # fmt: skip


class Several:
    """The workers of several queues."""

    def __init__(self, workers: Sequence[Any], weights: Sequence[float] = ()) -> None:
        """Combine workers.

        Args:
            weights: the workers' shares of the slots of one. None are given: each worker has slots of its own.
        """
        self.workers: tuple[Any, ...] = tuple(workers)
        self._shares_slots = bool(weights)
        if weights:
            pool = SlotPool(self.workers[0]._board.limits.concurrency)
            for worker, weight in zip(self.workers, weights, strict=True):
                worker._board.share_slots(pool, weight)

    def run(self, *, drain: bool, grace_seconds: float | None) -> None:
        """Run each worker in a thread until all have ended. If one fails, stop the others and raise its error."""
        errors: list[BaseException] = []

        def run(worker: Any) -> None:
            try:
                worker.run(drain=drain, grace_seconds=grace_seconds)
            except BaseException as e:  # also SystemExit, which is raised in the caller's thread
                errors.append(e)
                self.stop(grace_seconds)

        threads = [threading.Thread(target=run, args=(w,), name="strictq-worker", daemon=True) for w in self.workers]
        started = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError as e:  # the system's limit of threads is reached
                errors.append(StrictqError(f"no thread can be started for a worker: {e}", hint=hints.MORE_THREADS))
                self.stop(None)
                break
            started.append(thread)
        for thread in started:
            thread.join()
        if errors:
            raise errors[0]

    async def serve(self, *, drain: bool, grace_seconds: float | None = None) -> None:
        """Run each worker as a task of the caller's event loop."""
        import anyio

        errors: list[Exception | SystemExit] = []

        async def serve(worker: Any) -> None:
            try:
                worker._claim()
                await worker._serve(drain, grace_seconds)
            except (Exception, SystemExit) as e:  # one error, not an exception group
                errors.append(e)
                self.stop(grace_seconds)

        async with anyio.create_task_group() as group:
            for worker in self.workers:
                group.start_soon(serve, worker)
        if errors:
            raise errors[0]

    def stop(self, deadline_seconds: float | None) -> None:
        """Stop all of them. Callable from any thread; safe in signal handlers."""
        for worker in self.workers:
            worker.stop(deadline_seconds)

    def stats(self) -> Any:
        """Return the sums of the workers' statistics. Estimates are per queue."""
        each = [worker.stats() for worker in self.workers]
        totals: dict[str, Any] = {name: sum(getattr(s, name) for s in each) for name in SUMMED}
        return attrs.evolve(
            each[0],
            **totals,
            prepared_wait_seconds=max(
                (s.prepared_wait_seconds for s in each if s.prepared_wait_seconds is not None), default=None
            ),
            margin_seconds=max(s.margin_seconds for s in each),
            prepare=DurationEstimate(),
            process=DurationEstimate(),
            busy_ratio=min(1.0, sum(s.busy_ratio for s in each) / (1 if self._shares_slots else len(each))),
            breaker=next((s.breaker for s in each if s.breaker is not None), None),
        )
