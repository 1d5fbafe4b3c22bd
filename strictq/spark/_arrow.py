"""Messages as Arrow record batches, with the columns of `_table_columns.read_schema`. Imported late, with pyspark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .._store.api import Block, BlockSize, Encode, Held, ListedColumns, PackedColumns, leased_columns
from .._values import hints
from .._values.errors import InvalidArgument, StoreCorrupt
from .._values.keys import decode_key
from ._table_columns import KEY_TYPES, KeyType

ROWS: Final = 2_000
"""Messages per batch, few enough that a batch fits into the processor's cache, which doubles the speed."""
BYTES: Final = 16 * 1024 * 1024
"""The most bytes of bodies in a batch, unless one message has more."""
SIZE: Final = BlockSize(ROWS, BYTES)
COMPRESSED: Final = pa.ipc.IpcWriteOptions(
    compression="lz4" if pa.Codec.is_available("lz4") else None,
    use_threads=False,  # each shard has a thread
)
"""The options of stored blocks. Writing, syncing and checkpointing a page costs more than compressing it."""
_INT64: Final = 1 << 63


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects."""
    return to_arrow_schema(schema, timezone="UTC")


class Builder:
    """Builds batches from messages.

    Args:
        schema: the schema of the batches.
        key_type: the type of the column `key`.
        started: the number to add to the counted attempts: 1 if the messages are being delivered now.
    """

    def __init__(self, schema: pa.Schema, key_type: KeyType, *, started: int = 1) -> None:
        self._started = started
        self.schema = schema
        self._key_type = key_type
        self._accepts = KEY_TYPES[key_type].accepts
        self._types = schema.types

    def key(self, stored: bytes) -> str | bytes | int | None:
        """Return a key in the form of its column.

        Raises:
            InvalidArgument: its type does not match the column.
        """
        key = decode_key(stored)
        if key is None:
            return None
        if self._accepts is None:
            return stored
        if type(key) is not self._accepts or (type(key) is int and not -_INT64 <= key < _INT64):
            raise InvalidArgument(
                f"the key {key!r} does not fit keyType={self._key_type}",
                hint=hints.CHOOSE_KEY_TYPE,
            )
        return key

    def listed(self, of: ListedColumns, skew: int) -> pa.RecordBatch:
        """Build a batch with all columns from messages that come as lists."""
        key, seq, body, headers, sent, attempt, shards, arrival, *dead = self._types
        keys: list[Any] = []
        for stored, depth in zip(of.keys, of.depths, strict=True):
            keys += [self.key(stored)] * depth
        n, started = len(keys), self._started
        return pa.RecordBatch.from_arrays(
            [
                pa.array(keys, key),
                pa.array(of.seqs, seq),
                pa.array(of.bodies, body),
                _headers(of.headers, headers),
                pa.array([at + skew for at in of.sent_at], pa.int64()).view(sent),
                pa.array([a + started for a in of.attempts], attempt)
                if any(of.attempts)
                else pa.repeat(pa.scalar(started, attempt), n),
                pa.repeat(pa.scalar(of.shard, shards), n),
                pa.array(of.ids, arrival),
                *_of_dead(of.died, dead, skew),
            ],
            schema=self.schema,
        )

    def packed(self, packed: PackedColumns, skew: int, wanted: pa.Schema) -> pa.RecordBatch:
        """Build a batch with the wanted columns from messages that come column by column.

        Raises:
            StoreCorrupt: the columns do not match each other.
            InvalidArgument: a key does not match its column, or a body wanted as text is not text.
        """
        n, depths = packed.messages, np.array(packed.depths)
        n_lanes = len(depths)
        if depths.sum() != n:
            raise _mixed(packed.shard)
        seqs = None
        if packed.seqs:
            seqs = numbers(packed.seqs, n)
            rises = np.diff(seqs) > 0
            rises[np.cumsum(depths)[:-1] - 1] = True  # between lanes, seqs need not ascend
            if not rises.all():
                raise _mixed(packed.shard)

        # Not with pa.array, which would import pandas in every process of Spark.
        def column(field: pa.Field) -> pa.Array:
            match field.name:
                case "key":
                    if len(packed.keys) != n_lanes:
                        raise _mixed(packed.shard)
                    keys = None if self._key_type == "stored" else _stored_keys(packed.keys, field.type)
                    if keys is None:
                        keys = _keys(list(map(self.key, packed.keys)), field.type)
                    return keys if n == n_lanes else keys.take(_plain(np.repeat(np.arange(n_lanes), depths)))
                case "seq":
                    return _plain(seqs)
                case "body":
                    return _bodies(numbers(packed.sizes, n), packed.bodies, field.type, packed.shard)
                case "headers":
                    return pa.nulls(n, field.type)
                case "enqueued_at":
                    return _plain(numbers(packed.sent_at, n) + skew).view(field.type)
                case "attempt":
                    return _plain(np.full(n, self._started, np.int32))
                case "shard":
                    return _plain(np.full(n, packed.shard, np.int32))
                case "id":
                    return _plain(numbers(packed.ids, n))
                case name:
                    raise LookupError(f"there is no column {name}")

        return pa.RecordBatch.from_arrays(list(map(column, wanted)), schema=wanted)


def numbers(text: str, count: int) -> Any:
    """Parse `count` numbers separated by commas."""
    return np.fromstring(text, np.int64, count, sep=",")


def _mixed(shard: int) -> StoreCorrupt:
    return StoreCorrupt("messages that were read column by column do not belong together", shard=shard)


def _plain(values: Any) -> pa.Array:
    """Convert a numpy array of numbers to Arrow."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _stored_keys(stored: Sequence[bytes], column: pa.DataType) -> pa.Array | None:
    """Decode stored keys that are all text, or all bytes, into a column; None: they must be decoded one by one."""
    kind = b"s" if pa.types.is_string(column) else b"b" if pa.types.is_binary(column) else b""
    sizes = np.fromiter(map(len, stored), np.int64, len(stored))
    if not kind or not sizes.all():
        return None
    joined = np.frombuffer(b"".join(stored), np.uint8)
    begins = np.cumsum(sizes) - sizes
    if (joined[begins] != kind[0]).any():
        return None
    keys = pa.Array.from_buffers(column, len(sizes), [None, _offsets(sizes - 1), pa.py_buffer(np.delete(joined, begins))])
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return None  # decode_key identifies the damaged one
    return keys


def _keys(keys: Sequence[Any], column: pa.DataType) -> pa.Array:
    """Build a column from keys of one type, or None."""
    known = None
    if None in keys:
        known = pa.py_buffer(np.packbits([key is not None for key in keys], bitorder="little"))
    if pa.types.is_integer(column):
        return pa.Array.from_buffers(column, len(keys), [known, pa.py_buffer(np.array([key or 0 for key in keys], np.int64))])
    data = [key.encode() if isinstance(key, str) else key or b"" for key in keys]
    return pa.Array.from_buffers(column, len(keys), [known, _offsets(list(map(len, data))), pa.py_buffer(b"".join(data))])


def _offsets(sizes: Any) -> pa.Buffer:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.py_buffer(offsets)


def _bodies(sizes: Any, bodies: bytes, column: pa.DataType, shard: int) -> pa.Array:
    if sizes.sum() != len(bodies):
        raise _mixed(shard)
    binary = pa.Array.from_buffers(pa.binary(), len(sizes), [None, _offsets(sizes), pa.py_buffer(bodies)])
    return _as(binary, column)


def project(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return the wanted columns of a batch, with the wanted types.

    Raises:
        InvalidArgument: a body wanted as text is not text.
    """
    if batch.schema.equals(wanted):
        return batch
    return pa.RecordBatch.from_arrays([_as(batch.column(field.name), field.type) for field in wanted], schema=wanted)


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column with the wanted type. Only bodies as text, and the nullability of header values, may differ."""
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as e:
        raise InvalidArgument(
            f"a body is not UTF-8: {_not_text(column)!r}",
            hint=hints.READ_BINARY,
        ) from e


def _not_text(bodies: pa.Array) -> bytes:
    """Return the beginning of the first body that is not text."""
    for body in bodies.to_pylist():
        try:
            (body or b"").decode()
        except UnicodeDecodeError:
            return bytes(body[:40])
    return b""


def _of_dead(died: Sequence[tuple[Any, ...]], types: Sequence[pa.DataType], skew: int) -> list[pa.Array]:
    """Build the additional columns of dead letters, if the schema has them: kind, reason, time of death."""
    if not types:
        return []
    kinds, reasons, times = zip(*died, strict=True)
    died_at = pa.array([at + skew for at in times], pa.int64()).view(types[2])
    return [pa.array(kinds, types[0]), pa.array(reasons, types[1]), died_at]


def _headers(texts: Sequence[str | None], column: pa.DataType) -> pa.Array:
    if not any(texts):
        return pa.nulls(len(texts), column)
    return pa.array([None if text is None else list(json.loads(text).items()) for text in texts], column)


def encoder(builder: Builder, skew: Callable[[], int]) -> Encode:
    """Return the function that packs batches of a named consumer. A block is an Arrow IPC stream with one batch."""

    def encode(leases: Sequence[Held | PackedColumns], shard: int) -> Iterator[Block]:
        at = skew()
        for listed in leased_columns(filter(_is_lease, leases), shard, SIZE):
            yield _block(builder.listed(listed, at), listed.fresh)
        for columns in leases:
            if isinstance(columns, PackedColumns):
                yield _block(builder.packed(columns, at, builder.schema), columns.fresh)

    return encode


def _is_lease(of: Held | PackedColumns) -> TypeGuard[Held]:
    return isinstance(of, Held)


def _block(batch: pa.RecordBatch, fresh: bool) -> Block:
    return Block(batch.num_rows, fresh, pack(batch))


def pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=COMPRESSED) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(data: bytes, wanted: pa.Schema, without: Sequence[int]) -> pa.RecordBatch:
    """Return the batch of a block, with the wanted columns, and without the messages with these arrival numbers.

    Raises:
        InvalidArgument: it was recorded with keys of another type, or a body wanted as text is not text.
    """
    batch = pa.ipc.open_stream(data).read_next_batch()
    if "key" in wanted.names and batch.schema.field("key").type != wanted.field("key").type:
        raise InvalidArgument(
            "this batch was recorded with another keyType",
            hint=hints.SAME_KEY_TYPE,
        )
    return project(_without(batch, without) if without else batch, wanted)


def leave_out(data: bytes, without: Sequence[int]) -> bytes:
    """Return a block without the messages with these arrival numbers."""
    return pack(_without(pa.ipc.open_stream(data).read_next_batch(), without))


def _without(batch: pa.RecordBatch, ids: Sequence[int]) -> pa.RecordBatch:
    return batch.filter(pc.invert(pc.is_in(batch.column("id"), pa.array(ids, pa.int64()))))
