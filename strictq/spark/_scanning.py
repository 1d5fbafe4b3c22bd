"""Reading a part of a table: in a task, or in the block server for one. Imported late, with pyspark."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import attrs
import pyarrow as pa

from .._store import scan
from .._store.handed import KEY, LANE
from ..queue import Queue
from . import _fetch
from ._arrow import Builder, pack
from ._served import Served

_lane = itemgetter(LANE)


@attrs.frozen
class Scan:
    """Some lanes of a shard, as they were when the job was planned.

    Attributes:
        newest, last_lane: of the plan.
        segments: (after, last, keyless) each.
    """

    shard: int
    dead: bool
    key_type: str
    newest: int
    last_lane: int
    segments: tuple[scan.Segment, ...]

    @classmethod
    def of(cls, told: Any) -> Scan:
        """From `attrs.asdict`, by way of JSON."""
        segments = tuple(scan.Segment(int(s["after"]), int(s["last"]), bool(s["keyless"])) for s in told["segments"])
        return cls(
            int(told["shard"]), bool(told["dead"]), str(told["key_type"]), int(told["newest"]), int(told["last_lane"]), segments
        )


def batches(queue: Queue, what: Scan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a scan that are still there."""
    builder = Builder(schema, what.key_type, started=0)
    shard = queue._store.shards[what.shard]
    skew = queue._store.time.skew()
    plan = scan.Plan(what.newest, what.last_lane, ())
    steps = scan.dead if what.dead else scan.pending
    for segment in what.segments:
        for rows in steps(shard, plan, segment):
            lanes: Iterator[tuple[bytes, list[Any]]] = (
                (group[0][KEY], group) for group in (list(found) for _, found in groupby(rows, key=_lane))
            )
            for batch, _ in builder.batches(lanes, shard.number, skew):
                yield batch


def served_batches(queue: Queue, what: Scan, schema: bytes) -> Iterator[bytes]:
    """The same, packed: what a block server sends."""
    return (pack(batch) for batch in batches(queue, what, pa.ipc.read_schema(pa.py_buffer(schema))))


def fetched(served: Served, queue_id: str, what: Scan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same, from a block server.

    Raises:
        ServerUnreachable, ServerRefused: it does not answer, or not us.
    """
    request = {
        "queue": queue_id,
        "scan": attrs.asdict(what),
        "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }
    for data in _fetch.scanned(served, request):
        yield pa.ipc.open_stream(data).read_next_batch()
