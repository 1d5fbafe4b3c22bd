"""The parts of a table: planned for tasks, and read in a task, or in the block server for one. Imported late, with pyspark."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import attrs
import pyarrow as pa

from .._store import looking, scan
from .._store.handed import KEY, LANE
from ..queue import Queue
from . import _fetch
from ._arrow import Builder, arrow_schema, pack, project, runs
from ._options import BatchOptions
from ._records import CHUNK, record_batch
from ._schema import KeyType, key_type, read_schema
from ._served import Served

STORED: Final = {"enqueued_at": "sent_at", "attempt": "attempts"}
"""What the queue calls columns that Spark sees by another name."""

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
    key_type: KeyType
    newest: int
    last_lane: int
    segments: tuple[scan.Segment, ...]

    @classmethod
    def planned(cls, queue: Queue, options: BatchOptions) -> Iterator[Scan]:
        """One for each task."""
        dead = options.state == "dead"
        for shard in queue._store.shards:
            plan = scan.plan_shard(shard, dead=dead, per_task=options.partition_messages)
            for segments in plan.tasks:
                yield cls(shard.number, dead, options.key_type, plan.newest, plan.last_lane, segments)

    @classmethod
    def of(cls, told: Any) -> Scan:
        """From `attrs.asdict`, by way of JSON."""
        segments = tuple(scan.Segment(int(s["after"]), int(s["last"]), bool(s["keyless"])) for s in told["segments"])
        kind, newest, last_lane = key_type(told["key_type"]), int(told["newest"]), int(told["last_lane"])
        return cls(int(told["shard"]), bool(told["dead"]), kind, newest, last_lane, segments)

    def batches(self, queue: Queue, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages that are still there, with the columns of a schema."""
        builder = Builder(arrow_schema(read_schema(self.key_type, dead=self.dead)), self.key_type, started=0)
        shard = queue._store.shards[self.shard]
        skew = queue._store.time.skew()
        plan = scan.Plan(self.newest, self.last_lane, ())
        wanted = {STORED.get(name, name) for name in schema.names}
        for segment in self.segments:
            steps = scan.dead(shard, plan, segment) if self.dead else scan.columns(shard, plan, segment, wanted, runs)
            for rows in steps:
                if isinstance(rows, scan.Packed):
                    yield builder.columns(rows, skew, schema)
                    continue
                lanes: Iterator[tuple[bytes, list[Any]]] = (
                    (group[0][KEY], group) for group in (list(found) for _, found in groupby(rows, key=_lane))
                )
                for batch, _ in builder.batches(lanes, shard.number, skew):
                    yield project(batch, schema)


@attrs.frozen
class Records:
    """A range of the numbers that a shard's records of finished messages have, both ends included."""

    shard: int
    first: int
    last: int

    @classmethod
    def planned(cls, queue: Queue, options: BatchOptions) -> Iterator[Records]:
        """One for each task."""
        for shard in queue._store.shards:
            oldest = queue.history(shard=shard.number, limit=1)
            if not oldest:
                continue
            newest = shard.look(looking.newest_record)
            for first in range(oldest[0].n, newest + 1, options.partition_messages):
                yield cls(shard.number, first, min(first + options.partition_messages - 1, newest))

    @classmethod
    def of(cls, told: Any) -> Records:
        """From `attrs.asdict`, by way of JSON."""
        return cls(int(told["shard"]), int(told["first"]), int(told["last"]))

    def batches(self, queue: Queue, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records that are still there, with the columns of a schema."""
        after = self.first - 1
        while after < self.last:
            limit = min(CHUNK, self.last - after)
            page = [r for r in queue.history(shard=self.shard, after=after, limit=limit) if r.n <= self.last]
            if not page:
                return
            after = page[-1].n
            yield project(record_batch(page), schema)


KINDS: Final[dict[str, type[Scan | Records]]] = {"lanes": Scan, "records": Records}


def served_batches(queue: Queue, request: Any) -> Iterator[bytes]:
    """What a request of `fetched` asks for, packed: what a block server sends."""
    what = KINDS[request["kind"]].of(request["what"])
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(request["schema"], validate=True)))
    return (pack(batch) for batch in what.batches(queue, schema))


def fetched(served: Served, queue_id: str, what: Scan | Records, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of a part, from a block server.

    Raises:
        ServerUnreachable, ServerRefused: it does not answer, or not us.
    """
    request = {
        "queue": queue_id,
        "kind": next(kind for kind, of in KINDS.items() if isinstance(what, of)),
        "what": attrs.asdict(what),
        "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }
    for data in _fetch.scanned(served, request):
        yield pa.ipc.open_stream(data).read_next_batch()
