"""The parts of a table: planned for tasks, and read in a task, or in the block server for a task. Imported late, with pyspark."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa

from .._client import validate
from .._store.api import MessageRange, PackedColumns
from .._values.errors import InvalidArgument
from ..history._records import CHUNK, record_batch
from ..queue import Queue
from . import _block_client
from ._arrow import SIZE, Builder, arrow_schema, pack, project
from ._block_protocol import Served, entries, flag, number, text
from ._options import BatchOptions
from ._table_columns import KeyType, key_type, read_schema

STORED: Final = {"enqueued_at": "sent_at", "attempt": "attempts"}
"""The queue's names of columns that Spark sees under another name."""


@attrs.frozen
class Scan:
    """Some messages of a shard, as of the job's planning.

    Attributes:
        place: the range of messages, in the queue's form.
    """

    shard: int
    dead: bool
    key_type: KeyType
    place: tuple[int, ...]

    @classmethod
    def planned(cls, queue: Queue, options: BatchOptions) -> Iterator[Scan]:
        """Yield one scan per task."""
        dead, messages = options.state == "dead", options.partition_messages
        planned = queue._storage.bulk.plan(dead=dead, messages=messages, keys=options.keys)
        return (cls(part.shard, part.dead, options.key_type, part.place) for part in planned)

    @classmethod
    def of(cls, fields: Any) -> Scan:
        """Return the scan from the JSON values of `attrs.asdict`."""
        place = tuple(number("place", n) for n in entries("place", fields["place"]))
        kind = key_type(text("key_type", fields["key_type"]))
        return cls(number("shard", fields["shard"]), flag("dead", fields["dead"]), kind, place)

    def batches(self, queue: Queue, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages that still exist, with the columns of a schema."""
        builder = Builder(arrow_schema(read_schema(self.key_type, dead=self.dead)), self.key_type, started=0)
        skew = queue._storage.skew
        wanted = {STORED.get(name, name) for name in schema.names}
        part = MessageRange(self.shard, self.dead, self.place)
        for found in queue._storage.bulk.read(part, wanted, SIZE):
            if isinstance(found, PackedColumns):
                yield builder.packed(found, skew, schema)
            else:
                yield project(builder.listed(found, skew), schema)


@attrs.frozen
class Records:
    """A range of record numbers of a shard's finished messages, both ends included."""

    shard: int
    first: int
    last: int

    @classmethod
    def planned(cls, queue: Queue, options: BatchOptions) -> Iterator[Records]:
        """Yield one range per task."""
        for shard in range(queue.shards):
            known = queue._storage.bulk.record_numbers(shard)
            if known is None:
                continue
            oldest, newest = known
            for first in range(oldest, newest + 1, options.partition_messages):
                yield cls(shard, first, min(first + options.partition_messages - 1, newest))

    @classmethod
    def of(cls, fields: Any) -> Records:
        """Return the range from the JSON values of `attrs.asdict`."""
        return cls(number("shard", fields["shard"]), number("first", fields["first"]), number("last", fields["last"]))

    def batches(self, queue: Queue, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records that still exist, with the columns of a schema."""
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
    """Return the packed batches for a request of `fetched`, which a block server sends."""
    what = KINDS[text("kind", request["kind"])].of(request["what"])
    validate.whole("shard", what.shard, 0, queue.shards - 1)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text("schema", request["schema"]), validate=True)))
    except (OSError, ValueError, pa.ArrowException) as e:
        raise InvalidArgument(f"the schema of this request can't be read: {e}") from e
    return (pack(batch) for batch in what.batches(queue, schema))


def fetched(served: Served, queue_id: str, what: Scan | Records, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a part, from a block server.

    Raises:
        ServerUnreachable, ServerRefused: the server does not answer, or refuses the token.
    """
    request = {
        "queue": queue_id,
        "kind": next(kind for kind, of in KINDS.items() if isinstance(what, of)),
        "what": attrs.asdict(what),
        "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }
    for data in _block_client.scanned(served, request):
        yield pa.ipc.open_stream(data).read_next_batch()
