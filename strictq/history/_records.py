"""Finished messages as Arrow: the columns of an export and of the history source. Imported late, with pyarrow."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from .._values.findings import AttemptError, HistoryRecord
from .._values.keys import Key

_TIME: Final = pa.timestamp("us", tz="UTC")

_ERROR: Final = pa.struct(
    [
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("at", _TIME, nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("traceback", pa.string()),
    ]
)

SCHEMA: Final = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("key", pa.string()),  # NULL: a keyless message
        pa.field("key_type", pa.string()),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("enqueued_at", _TIME, nullable=False),
        pa.field("first_attempt_at", _TIME),
        pa.field("done_at", _TIME, nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("prepare_seconds", pa.float64()),
        pa.field("process_seconds", pa.float64()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("size_hint", pa.float64()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("body", pa.binary()),
        pa.field("errors", pa.list_(_ERROR)),
        pa.field("output", pa.string()),
    ]
)
"""The columns, in order. They never vary, so that files of different times form one table."""

CHUNK: Final = 2_000
"""Records per batch. Building Arrow arrays from Python objects is fastest in small chunks."""


def key_columns(key: Key | None) -> tuple[str | None, str | None]:
    """Return a key as text, and its type: 7 is ("7", "int"), "7" is ("7", "str"); bytes are base64."""
    if key is None:
        return None, None
    if isinstance(key, bytes):
        return base64.b64encode(key).decode(), "bytes"
    return str(key), type(key).__name__


def record_batch(records: Sequence[HistoryRecord], *, bodies: bool = True) -> pa.RecordBatch:
    """Return records as an Arrow batch, one row each, in the given order.

    Args:
        records: about CHUNK of them at a time.
        bodies: False: the column `body` is NULL in every row.
    """
    keys = [key_columns(r.key) for r in records]
    columns: dict[str, list[Any]] = {
        "shard": [r.shard for r in records],
        "n": [r.n for r in records],
        "key": [key for key, _ in keys],
        "key_type": [kind for _, kind in keys],
        "seq": [r.seq for r in records],
        "id": [r.id for r in records],
        "enqueued_at": [_microseconds(r.enqueued_at) for r in records],
        "first_attempt_at": [None if r.first_attempt_at is None else _microseconds(r.first_attempt_at) for r in records],
        "done_at": [_microseconds(r.done_at) for r in records],
        "attempts": [r.attempts for r in records],
        "prepare_seconds": [r.prepare_seconds for r in records],
        "process_seconds": [r.process_seconds for r in records],
        "size": [r.size for r in records],
        "size_hint": [r.size_hint for r in records],
        "outcome": [r.outcome for r in records],
        "body": [r.body if bodies else None for r in records],
        "errors": [[_error(e) for e in r.errors] or None for r in records],
        "output": [r.output for r in records],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _error(error: AttemptError) -> dict[str, Any]:
    at = _microseconds(error.at)
    return {"attempt": error.attempt, "at": at, "error": error.error, "traceback": error.traceback}


def _microseconds(seconds: float) -> int:
    # Exact until the year 2106: until then, a float of seconds since 1970 is precise to less than half a microsecond.
    return round(seconds * 1_000_000)
