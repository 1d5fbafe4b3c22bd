"""The two stages of a pipeline on executors: they call the user's functions over Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from .._values.errors import InvalidArgument
from .._values.keys import decode_key
from .._values.types import UNSET
from . import _outcomes
from ._outcomes import BatchJob, Outcome, failure, run_lane

MESSAGE: Final = pa.schema(
    [
        ("lane", pa.int64()), ("seq", pa.int64()), ("raw_key", pa.binary()), ("body", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())), ("attempt", pa.int32()), ("enqueued_at", pa.float64()),
    ]
)  # fmt: skip
"""The columns of messages sent to executors. `lane` is the lane's number in the batch."""
STATES: Final = pa.field("state", pa.binary())
FAULT: Final = [("kind", pa.string()), ("reason", pa.string()), ("delay", pa.float64()), ("of_data", pa.bool_())]
"""The columns of prepare's rows in addition to its own. kind is NULL if it succeeded."""

Batches = Iterable[pa.RecordBatch]


def shown(batch: pa.RecordBatch, key: pa.DataType) -> pa.RecordBatch:
    """Return messages in the columns that prepare sees: key, seq, body, headers, attempt, enqueued_at."""
    keys = pa.array([decode_key(raw) for raw in batch.column("raw_key").to_pylist()], key)
    seen = ("seq", "body", "headers", "attempt", "enqueued_at")
    return pa.RecordBatch.from_arrays([keys, *(batch.column(name) for name in seen)], ["key", *seen])


def prepare_schema(prepared: pa.Schema) -> pa.Schema:
    """Return the columns of the prepare stage: lane, seq, FAULT, and prepare's own columns."""
    return pa.schema([("lane", pa.int64()), ("seq", pa.int64()), *FAULT, *prepared])


def preparing(
    prepare: Callable[[Any], Any], frames: str, key: pa.DataType, prepared: pa.Schema
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the prepare stage, which gives a row for every message."""
    schema = prepare_schema(prepared)

    def call(batch: pa.RecordBatch) -> pa.Table:
        given = shown(batch, key)
        result = prepare(given.to_pandas() if frames == "pandas" else given)
        if frames == "pandas":
            result = pa.Table.from_pandas(result, schema=prepared, preserve_index=False)
        elif isinstance(result, pa.RecordBatch):
            result = pa.Table.from_batches([result])
        if result.num_rows != batch.num_rows:
            raise InvalidArgument(
                f"prepare was given {batch.num_rows} messages and returned {result.num_rows} rows: it must return one for each"
            )
        return result.select(prepared.names).cast(prepared)

    def attempt(batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Prepare all rows at once. If that fails, prepare halves, until the failing rows are alone."""
        try:
            result = call(batch)
            good = [batch.column("lane"), batch.column("seq"), *(pa.nulls(batch.num_rows, t) for _, t in FAULT)]
            yield pa.Table.from_arrays([*good, *result.columns], schema=schema)
        except Exception as e:
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                yield from attempt(batch.slice(0, half))
                yield from attempt(batch.slice(half))
                return
            o = failure(e)
            values = [
                batch.column("lane"),
                batch.column("seq"),
                pa.array([o.kind]),
                pa.array([o.reason]),
                pa.array([o.delay], pa.float64()),
                pa.array([o.of_data]),
            ]
            yield pa.Table.from_arrays([*values, *(pa.nulls(1, f.type) for f in prepared)], schema=schema)

    def stage(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for table in attempt(batch):
                yield from table.to_batches()

    return stage


def jobs_of(rows: Iterable[dict[str, Any]], prepared: list[str]) -> Iterator[BatchJob]:
    """Yield jobs from rows of MESSAGE with the state and prepare's columns."""
    for row in rows:
        yield BatchJob(
            decode_key(row["raw_key"]), row["seq"], row["body"], dict(row["headers"] or ()), row["attempt"], row["enqueued_at"],
            {name: row[name] for name in prepared}, row.get("state", UNSET),
        )  # fmt: skip


def processing(process: Callable[[BatchJob], Any], prepared: list[str]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the process stage, for rows sorted by lane and seq with each lane in one task. It gives RESULT for every message."""

    def rows(batches: Batches) -> Iterator[dict[str, Any]]:
        for batch in batches:
            yield from batch.to_pylist()

    def stage(batches: Batches) -> Iterator[pa.RecordBatch]:
        for lane, lane_rows in groupby(rows(batches), key=lambda row: row["lane"]):
            given = list(lane_rows)
            outcomes: list[Outcome] = run_lane(process, jobs_of(given, prepared), time.perf_counter)
            yield _outcomes.to_arrow([(lane, row["seq"], o) for row, o in zip(given, outcomes, strict=True)])

    return stage
