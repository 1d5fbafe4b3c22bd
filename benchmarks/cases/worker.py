"""The worker: the overlap of prepares, the cost of a message, the delay of its start, and its memory."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Figure, Sample, child, interleave, report_of, run_child
from benchmarks.workload import BODY, drain, fill, open_queue
from strictq import Worker

PROCESS_SECONDS, PREPARE_SECONDS = 0.040, 0.025
ONE_LANE_GOAL, LANES_GOAL, SPREAD_GOAL, WAIT_GOAL_MS = 0.95, 0.92, 0.90, 15.0
ASYNC_GOAL = 0.9
IDLE_GOAL_MS, NEAR_GOAL_MS, FAR_GOAL_MS = 10.0, 2.0, 60.0
MEMORY_GOAL_MIB = 64.0


@attrs.frozen
class _Run:
    seconds: float
    ideal: float
    wait: float


def _overlap(lanes: int, per_lane: int, scale: float, *, spread: float = 0.0, told: bool = False, learn: bool = True) -> _Run:
    """Run handlers that sleep in proportion to the size hint. In the ideal span, only the first prepare is waited for."""
    pick = random.Random(lanes)
    sizes = {(k, n): pick.lognormvariate(0, spread) if spread else 1.0 for k in range(lanes) for n in range(1, per_lane + 1)}
    with strictq.open(":memory:") as q:
        for (key, _), size in sizes.items():
            estimates = {"process_seconds": scale * PROCESS_SECONDS * size, "prepare_seconds": scale * PREPARE_SECONDS * size}
            q.send(b"", key=key, size_hint=size, **(estimates if told else {}))

        def prepare(job: Any) -> None:
            time.sleep(scale * PREPARE_SECONDS * sizes[job.key, job.seq])

        def process(job: Any) -> None:
            time.sleep(scale * PROCESS_SECONDS * sizes[job.key, job.seq])

        worker = Worker(q, process, prepare, learn=learn)
        started = time.perf_counter()
        worker.run(drain=True)
        seconds = time.perf_counter() - started
    lane = [
        scale * (PREPARE_SECONDS * sizes[k, 1] + sum(PROCESS_SECONDS * sizes[k, n] for n in range(1, per_lane + 1)))
        for k in range(lanes)
    ]
    return _Run(seconds, max(lane), worker.stats().prepared_wait_seconds or 0.0)


def overlap(bench: Bench) -> Iterator[Figure]:
    """Compare the ideal span with the measured one. Without overlap, the ratio would be 0.62."""
    tiny = bench.sizes.name == "tiny"
    scale, per_lane = (0.1, 10) if tiny else (1.0, 60)
    rounds = min(bench.rounds, 3)
    for lanes, goal in ((1, ONE_LANE_GOAL), (8, LANES_GOAL)):
        runs = [_overlap(lanes, per_lane, scale) for _ in range(rounds)]
        yield Figure(
            case="worker-overlap", what=f"ideal / measured span, {lanes} lane{'s' if lanes > 1 else ''}", unit="times",
            values=[r.ideal / r.seconds for r in runs], goal=bench.goal("at least", goal), keys=lanes,
            note="process 40 ms, prepare 25 ms",
        )  # fmt: skip
        yield Figure(
            case="worker-overlap", what=f"prepared results wait, median, {lanes} lane{'s' if lanes > 1 else ''}", unit="ms",
            values=[1000 * r.wait for r in runs], goal=bench.goal("below", WAIT_GOAL_MS), keys=lanes,
        )  # fmt: skip
    spread = [
        (_overlap(8, per_lane, scale, spread=0.6), _overlap(8, per_lane, scale, spread=0.6, told=True)) for _ in range(rounds)
    ]
    yield Figure(
        case="worker-overlap", what="log-normal durations that follow size: learned / given", unit="times",
        values=[told.seconds / learned.seconds for learned, told in spread], goal=bench.goal("at least", SPREAD_GOAL), keys=8,
        note=f"waits {1000 * statistics.median(r.wait for r, _ in spread):.1f} ms",
    )  # fmt: skip
    without = [_overlap(8, per_lane, scale, spread=0.6, learn=False) for _ in range(rounds)]
    yield Figure(
        case="worker-overlap", what="the same: learned / not learned", unit="times",
        values=[(a.ideal / a.seconds) / (b.ideal / b.seconds) for (a, _), b in zip(spread, without, strict=True)], keys=8,
        note=f"not learned: started at once, waits {1000 * statistics.median(r.wait for r in without):.0f} ms",
    )  # fmt: skip


async def _nothing(job: Any) -> None:
    pass


def _nothing_plain(job: Any) -> None:
    pass


def throughput(bench: Bench) -> Iterator[Figure]:
    """Measure empty handlers.

    The bare queue's batches take whole lanes; a worker acks each message before the next of its lane.
    """
    number, keys = bench.sizes.batches // 4, bench.sizes.keys
    kinds: tuple[tuple[str, Callable[..., Any], float | None], ...] = (
        ("async handlers", _nothing, ASYNC_GOAL),
        ("handlers in threads", _nothing_plain, None),
    )
    for what, handler, goal in kinds:
        for against, per_key in (("receive and ack in batches", None), ("the same, one message of each lane", 1)):
            with bench.place("worker") as place, open_queue(place / "queue", "process") as q:
                fill(q, keys, keys)
                drain(q)

                def ours(q: strictq.Queue = q, handler: Callable[..., Any] = handler) -> Sample:
                    fill(q, number, keys)
                    started = time.perf_counter()
                    Worker(q, handler).run(drain=True)
                    return Sample(time.perf_counter() - started, number)

                def base(q: strictq.Queue = q, per_key: int | None = per_key) -> Sample:
                    fill(q, number, keys)
                    started = time.perf_counter()
                    while ds := q.receive(1000, per_key=per_key):
                        q.ack_many(ds)
                    return Sample(time.perf_counter() - started, number)

                pairs = interleave(min(bench.rounds, 3), ours, base)
            yield pairs.figure(
                "worker-rate", what, against, unit="times", goal=bench.goal("at least", goal) if goal and per_key else None,
                durability="process", batch=1000, keys=keys,
            )  # fmt: skip
    yield from _one_at_a_time(bench, number, keys)


def _one_at_a_time(bench: Bench, number: int, keys: int) -> Iterator[Figure]:
    """Measure the benefit of the worker's buffer, compared with a consumer that uses one transaction per step."""
    few = max(1, number // 20)
    with bench.place("worker") as place, open_queue(place / "queue", "process") as q:
        fill(q, keys, keys)
        drain(q)

        def ours() -> Sample:
            fill(q, number, keys)
            started = time.perf_counter()
            Worker(q, _nothing).run(drain=True)
            return Sample(time.perf_counter() - started, number)

        def base() -> Sample:
            fill(q, few, keys)
            started = time.perf_counter()
            while ds := q.receive(1):
                ds[0].ack()
            return Sample(time.perf_counter() - started, few)

        pairs = interleave(min(bench.rounds, 3), ours, base)
    yield pairs.figure(
        "worker-rate", "async handlers", "receive and ack one at a time", unit="times", durability="process", batch=1, keys=keys
    )


def wake(bench: Bench) -> Iterator[Figure]:
    """Measure an idle worker: its cost, and the delay until it starts a sent message."""
    sends = 5 if bench.sizes.name == "tiny" else 50
    with bench.place("worker") as place, open_queue(place / "queue", "process") as q:
        begun: list[float] = []
        came = threading.Event()

        def process(job: Any) -> None:
            begun.append(time.monotonic() - float(job.body))
            came.set()

        worker = Worker(q, process)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            for what, goal, send in (("same", NEAR_GOAL_MS, None), ("another", FAR_GOAL_MS, "send-times")):
                begun.clear()
                if send is None:
                    for _ in range(sends):
                        time.sleep(0.01)
                        came.clear()
                        q.send(b"%r" % time.monotonic(), key="k")
                        came.wait(10.0)
                else:
                    run_child(send, path=place / "queue", number=sends)
                    time.sleep(0.2)
                yield Figure(
                    case="worker-wake", what=f"from send to handler, {what} process, median", unit="ms",
                    values=[1000 * statistics.median(begun)], goal=bench.goal("below", goal), durability="process",
                    note=f"max {1000 * max(begun):.1f} ms, {len(begun)} sends",
                )  # fmt: skip
        finally:
            worker.stop()
            thread.join()
        seconds = 0.2 if bench.sizes.name == "tiny" else 5.0
        with child("idle-worker", path=place / "queue", seconds=seconds) as process_:
            used = report_of(process_)["used"]
        yield Figure(
            case="worker-wake", what="processor time of an idle worker, a second", unit="ms", values=[1000 * used / seconds],
            goal=bench.goal("below", IDLE_GOAL_MS), durability="process", note="10 ms are 1 % of a core",
        )  # fmt: skip


def memory(bench: Bench) -> Iterator[Figure]:
    """Measure a worker with many waiting lanes and few running ones. It must hold only as many messages as its limits allow."""
    keys = bench.sizes.wide_keys
    with bench.place("worker") as place:
        with open_queue(place / "queue", "process") as q:
            for start in range(0, keys, 10_000):
                q.send_many([strictq.Message(BODY, key=n) for n in range(start, min(keys, start + 10_000))])
        report = run_child("holding-worker", path=place / "queue")
    grown = report["grown"]
    yield Figure(
        case="worker-memory", what="resident memory of a worker with 8 messages in flight", unit="MiB",
        values=[max(grown or 0.0, 0.0)],
        goal=bench.goal("below", MEMORY_GOAL_MIB), keys=keys, durability="process",
        note=f"{report['held']:,} of {keys:,} messages held",
    )  # fmt: skip
