"""The stages of a pipeline as Spark jobs over a batch, and the handling of jobs that die."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from .._values.types import UNSET
from ..delivery import Delivery, Lease
from ..worker.ending import FAILED
from . import _outcomes, ordering
from ._batches import LeasedBatch, Rows, first_line, require_keys
from ._outcomes import ENDS_LANE, SKIPPED, BatchJob, Outcome, run_lane
from ._pipeline_tasks import FAULT, prepare_schema, preparing, processing
from ._table_columns import KEY_TYPES, KeyType

SPLIT_JOBS_MAX: Final = 64
"""Spark jobs spent per batch and stage on identifying the messages that kill their tasks."""
PREPARE_POOL: Final = "strictq-prepare"
PROCESS_POOL: Final = "strictq-process"

Lanes = dict[Lease, list[Delivery]]


class Budget:
    """The number of Spark jobs that may still be spent on a failing batch."""

    def __init__(self) -> None:
        self._left = SPLIT_JOBS_MAX

    def spend(self) -> bool:
        self._left -= 1
        return self._left >= 0


@attrs.define
class Stages:
    """The stages of a pipeline. See `pipeline` for the arguments."""

    spark: SparkSession
    process: Callable[[BatchJob], Any]
    prepare: Callable[[Any], Any] | None
    schema: pa.Schema
    frames: str
    where: str
    key_type: KeyType
    key_state: bool
    concurrency: int

    @property
    def lanes_at_once(self) -> int:
        """The number of lanes that may be processed at a time."""
        return self.concurrency if self.where == "driver" else int(self.spark.sparkContext.defaultParallelism)

    # ---- prepare

    def run_prepare(self, batch: LeasedBatch) -> None:
        """Prepare the messages of a batch, and store the results in it."""
        began = time.monotonic()
        if self.prepare is not None:
            self._prepare_rows(batch, [(lease, d) for lease, lane in batch.lanes.items() for d in lane], Budget())
        batch.prepare_seconds = time.monotonic() - began

    def _prepare_rows(self, batch: LeasedBatch, rows: Rows, budget: Budget) -> None:
        """Run one Spark job. If it dies, run halves, until the messages that kill it are alone."""
        assert self.prepare is not None
        table = batch.table(rows)
        require_keys(table, self.key_type)
        stage = preparing(self.prepare, self.frames, to_arrow_type(KEY_TYPES[self.key_type].column), self.schema)
        try:
            done = self._job(PREPARE_POOL, table, stage, prepare_schema(self.schema))
        except Exception as e:
            if self._ended() or not budget.spend():
                raise
            if len(rows) == 1:
                lease, d = rows[0]
                reason = f"its Spark task failed in prepare: {first_line(e)}"
                batch.prepared[batch.numbers[lease], d.seq] = Outcome(FAILED, reason)
                return
            half = len(rows) // 2
            self._prepare_rows(batch, rows[:half], budget)
            self._prepare_rows(batch, rows[half:], budget)
            return
        names = [name for name, _ in FAULT]
        for row in done.to_pylist():
            place = row.pop("lane"), row.pop("seq")
            kind, reason, delay, of_data = (row.pop(name) for name in names)
            batch.prepared[place] = row if kind is None else Outcome(kind, reason, delay, of_data=bool(of_data))

    # ---- process

    def run_process(self, batch: LeasedBatch, lanes: Lanes) -> dict[Lease, list[Outcome]]:
        """Return the outcome of each message's handler, lane by lane, in order."""
        return self._here(batch, lanes) if self.where == "driver" else self._there(batch, lanes)

    def _here(self, batch: LeasedBatch, lanes: Lanes) -> dict[Lease, list[Outcome]]:
        def work(lease: Lease) -> list[Outcome]:
            good, rest = _ready(batch, lanes[lease])
            if not good:
                return rest
            state = self._state_of(good[0])
            jobs = [
                BatchJob(d.key, d.seq, d.body, d.headers, d.attempt, d.enqueued_at, batch.found(d) or {}, state) for d in good
            ]
            return _with_rest(run_lane(self.process, jobs, time.perf_counter), rest)

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="strictq-process") as pool:
            return dict(zip(lanes, pool.map(work, lanes), strict=True))

    def _there(self, batch: LeasedBatch, lanes: Lanes) -> dict[Lease, list[Outcome]]:
        split = {lease: _ready(batch, lane) for lease, lane in lanes.items()}
        found: dict[tuple[int, int], Outcome] = {}
        self._process_lanes(batch, {lease: good for lease, (good, _) in split.items() if good}, found, Budget())
        return {
            lease: _with_rest([found[batch.numbers[lease], d.seq] for d in good], rest) for lease, (good, rest) in split.items()
        }

    def _process_lanes(self, batch: LeasedBatch, lanes: Lanes, found: dict[tuple[int, int], Outcome], budget: Budget) -> None:
        """Run one Spark job. If it dies, run half of the lanes, then the first message of a lane, until the cause is alone."""
        if not lanes:
            return
        rows = [(lease, d) for lease, lane in lanes.items() for d in lane]
        states = {lease: self._state_of(lane[0]) for lease, lane in lanes.items()} if self.key_state else None
        table = batch.prepared_table(rows, self.schema, states)
        stage = processing(self.process, self.schema.names)
        try:
            done = self._job(PROCESS_POOL, table, stage, _outcomes.RESULT, ordered=True)
        except Exception as e:
            if self._ended() or not budget.spend():
                raise
            if len(lanes) > 1:
                names = list(lanes)
                for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                    self._process_lanes(batch, {lease: lanes[lease] for lease in half}, found, budget)
                return
            ((lease, lane),) = lanes.items()
            number = batch.numbers[lease]
            if len(lane) == 1:
                found[number, lane[0].seq] = Outcome(FAILED, f"its Spark task failed in process: {first_line(e)}")
                return
            # The rest is not run. It is released, and delivered again.
            found.update({(number, d.seq): Outcome(SKIPPED) for d in lane[1:]})
            self._process_lanes(batch, {lease: lane[:1]}, found, budget)
            return
        found.update(_outcomes.from_arrow(done))

    def _state_of(self, d: Delivery) -> Any:
        return d.key_state if self.key_state else UNSET

    # ---- Spark

    def _job(
        self, pool: str, table: pa.Table, stage: Callable[..., Any], schema: pa.Schema, *, ordered: bool = False
    ) -> pa.Table:
        """Run a stage over a table's rows on executors."""
        context = self.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", pool)
        df = self.spark.createDataFrame(table)
        if ordered:
            parts = min(context.defaultParallelism, table.num_rows)
            df = ordering.ordered(df, key="lane", partitions=parts)
        return df.mapInArrow(stage, from_arrow_schema(schema)).toArrow()

    def _ended(self) -> bool:
        try:
            return bool(self.spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # the JVM is gone
            return True


def _ready(batch: LeasedBatch, lane: list[Delivery]) -> tuple[list[Delivery], list[Outcome]]:
    """Return a lane's messages before the first one for which prepare failed, and the outcomes of the others."""
    for i, d in enumerate(lane):
        found = batch.found(d)
        if isinstance(found, Outcome):
            found = attrs.evolve(found, behind=_failed_likewise(batch, found, lane[i + 1 :]))
            return lane[:i], [found, *(Outcome(SKIPPED) for _ in lane[i + 1 :])]
    return lane, []


def _failed_likewise(batch: LeasedBatch, first: Outcome, behind: list[Delivery]) -> int:
    """Return the number of messages directly after a failed one for which prepare failed, too, each because of its content.

    Prepare ran for each of them, so each is charged. Otherwise a lane with many bad bodies would take as many batches for each of
    them as it has attempts. A failure with another cause, such as an outage, is charged to the first one only.
    """
    if not (first.kind == FAILED and first.of_data):
        return 0
    found = (batch.found(d) for d in behind)
    return sum(1 for _ in takewhile(lambda o: isinstance(o, Outcome) and o.kind == FAILED and o.of_data, found))


def _with_rest(outcomes: list[Outcome], rest: list[Outcome]) -> list[Outcome]:
    """Append the outcomes of prepare's failures. They count only if all earlier messages succeeded."""
    if outcomes and outcomes[-1].kind in (*ENDS_LANE, SKIPPED):
        rest = [Outcome(SKIPPED) for _ in rest]
    return [*outcomes, *rest]
