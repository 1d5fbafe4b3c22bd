"""Rows of a DataFrame as messages: the accepted columns, their validation in the tasks, and their conversion to the
staged form. Imported late, with pyspark and pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from .._client import validate
from .._client.validate import NUMBER_MAX
from .._values import hints
from .._values.config import FOREVER_SECONDS, QueueConfig
from .._values.errors import InvalidArgument, MessageTooLarge, StrictqError
from .._values.keys import KEY_BYTES_MAX, decode_key

WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
NUMBER: Final = (*WHOLE, FloatType, DoubleType)
ORDERED: Final = (*NUMBER, DecimalType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType)
TEXT: Final = (StringType,)
BYTES: Final = (BinaryType, StringType)

ACCEPTED: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": (*BYTES, *WHOLE),
    "body": BYTES,
    "dedup_id": TEXT,
    "delay": NUMBER,
    "ttl": NUMBER,
    "headers": (MapType,),
    "size_hint": NUMBER,
    "prepare_seconds": NUMBER,
    "process_seconds": NUMBER,
}
"""The accepted columns, with their accepted types."""
NEEDED: Final = ("key", "body")
ALIAS: Final = "value"
"""Other sinks' name of the column body."""
OPTIONS: Final = tuple(name for name in ACCEPTED if name not in NEEDED)
ORDER: Final = "order"
"""The staged column that orders the messages of a key."""

Kind = Literal["s", "b", "i"]


@attrs.frozen
class Layout:
    """The columns of a write.

    Attributes:
        kind: the type byte of its stored keys.
        options: the columns of OPTIONS that it has.
        order_by: the column that orders the messages of a key; None: the order of the rows.
        keyless: whether rows without a key are allowed.
        max_body_bytes: the queue's setting.
        body: the name of the body column.
        read_only: columns that must be NULL, because the queue fills them in.
    """

    kind: Kind
    options: tuple[str, ...]
    order_by: str | None
    keyless: bool
    max_body_bytes: int
    body: str = "body"
    read_only: tuple[str, ...] = ()


def layout(
    schema: StructType, order_by: str | None, config: QueueConfig, body: str | None = None, read_only: Collection[str] = ()
) -> Layout:
    """Validate the columns of a DataFrame before anything is written.

    Args:
        body: the name of the body column; None: `body`, or else `value`.
        read_only: columns of a table that an INSERT leaves out.

    Raises:
        InvalidArgument: a column is missing, unknown, or of the wrong type.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) != len(schema.fields):
        raise InvalidArgument("two columns have the same name", hint=hints.RENAME_COLUMN)
    if body is None:
        body = ALIAS if "body" not in types and ALIAS in types else "body"
    accepted = {body if name == "body" else name: of for name, of in ACCEPTED.items()}
    for name in ("key", body):
        if name not in types:
            hint = hints.RENAME_TO.of(name=name, columns=", ".join(types) or "none")
            raise InvalidArgument(f"the column {name} is missing", hint=hint)
    unknown = [name for name in types if name not in accepted and name != order_by and name not in read_only]
    if unknown:
        raise InvalidArgument(
            f"the column {unknown[0]} is not part of a message",
            hint=hints.SELECT_COLUMNS.of(columns=", ".join(accepted)),
        )
    for name, found in types.items():
        if name in accepted:
            _require_type(name, found, accepted[name])
    if order_by is not None:
        if order_by not in types:
            raise InvalidArgument(f"the column {order_by} of option orderBy is missing")
        _require_type(order_by, types[order_by], ORDERED)
    key = types["key"]
    return Layout(
        "i" if isinstance(key, WHOLE) else "b" if isinstance(key, BinaryType) else "s",
        tuple(name for name in OPTIONS if name in types),
        order_by,
        config.keyless != "refuse",
        config.max_body_bytes,
        body,
        tuple(name for name in types if name in read_only and name != order_by),
    )


def _require_type(name: str, found: DataType, accepted: tuple[type[DataType], ...]) -> None:
    right = isinstance(found, accepted)
    if right and isinstance(found, MapType):
        right = isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if not right:
        names = " or ".join(kind.typeName() for kind in accepted) + (" of string to string" if MapType in accepted else "")
        raise InvalidArgument(f"the column {name} must be {names}, not {found.simpleString()}")


# ---- in the tasks


def staged(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Return a record batch in its staged form: stored keys, bodies as bytes, options in stored units.

    Raises:
        InvalidArgument, MessageTooLarge: a row is invalid; the error names its column and key.
    """
    given = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    keys = _keys(given["key"], layout)
    for name in layout.read_only:
        if given[name].null_count < len(batch):
            place = _first(pc.is_valid(given[name]))
            _refuse(name, keys, place, InvalidArgument("the queue sets this column", hint=hints.LEAVE_COLUMN_OUT))
    columns = {"key": keys, "body": _bodies(given[layout.body], keys, layout)}
    if layout.order_by is not None:
        columns[ORDER] = _order(given[layout.order_by], keys, layout.order_by)
    for name in layout.options:
        columns[name] = _CONVERT[name](given[name], keys, name)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _keys(column: pa.Array, layout: Layout) -> pa.Array:
    if column.null_count and not layout.keyless:
        place = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
        raise InvalidArgument(
            f"column key: NULL in row {place + 1:,} of a record batch; a message needs a key",
            hint=hints.KEYLESS_ROWS,
        )
    raw = column.cast(pa.string()) if layout.kind == "i" else column
    raw = raw.cast(pa.binary())
    size = pc.binary_length(raw)
    if len(raw) and pc.any(pc.equal(size, 0)).as_py():
        raise InvalidArgument(f"column key: an empty key in row {_first(pc.equal(size, 0)) + 1:,} of a record batch")
    if len(raw) and (pc.max(size).as_py() or 0) > KEY_BYTES_MAX:
        place = _first(pc.greater(size, KEY_BYTES_MAX))
        shown = raw[place].as_py()[:40]
        raise InvalidArgument(f"column key: a key must be at most {KEY_BYTES_MAX} bytes; {shown!r}… has {size[place].as_py():,}")
    return pc.binary_join_element_wise(pa.scalar(layout.kind.encode(), pa.binary()), raw, pa.scalar(b"", pa.binary()))


def _bodies(column: pa.Array, keys: pa.Array, layout: Layout) -> pa.Array:
    if column.null_count:
        _refuse(layout.body, keys, _first(pc.is_null(column)), InvalidArgument("NULL: a body must be bytes, and may be empty"))
    column = column.cast(pa.binary())
    size = pc.binary_length(column)
    if len(column) and pc.max(size).as_py() > layout.max_body_bytes:
        place = _first(pc.greater(size, layout.max_body_bytes))
        error = MessageTooLarge(f"a body may have {layout.max_body_bytes:,} bytes, this one has {size[place].as_py():,}")
        _refuse(layout.body, keys, place, error)
    return column


def _order(column: pa.Array, keys: pa.Array, name: str) -> pa.Array:
    missing = pc.is_null(column, nan_is_null=True)
    if pc.any(missing).as_py():
        _refuse(name, keys, _first(missing), InvalidArgument("NULL or NaN: it can't order the messages of its key"))
    return column


def _seconds(column: pa.Array, keys: pa.Array, name: str) -> pa.Array:
    """Convert seconds to whole microseconds."""
    minimum = 0.001 if name == "ttl" else 0.0
    values = column.cast(pa.float64())
    _require(values, keys, name, minimum, FOREVER_SECONDS, lambda v: validate.microseconds(name, v, minimum=minimum))
    return pc.round(pc.multiply(values, 1e6)).cast(pa.int64())


def _numbers(column: pa.Array, keys: pa.Array, name: str) -> pa.Array:
    values = column.cast(pa.float64())
    _require(values, keys, name, 0.0, NUMBER_MAX, lambda v: validate.number(name, v))
    return values


def _require(values: pa.Array, keys: pa.Array, name: str, minimum: float, maximum: float, check: Callable[[Any], object]) -> None:
    """Raise unless all numbers are within the limits. NaN is not."""
    fits = pc.and_(pc.greater_equal(values, minimum), pc.less_equal(values, maximum))
    wrong = pc.fill_null(pc.invert(fits), False)
    if pc.any(wrong).as_py():
        place = _first(wrong)
        try:
            check(values[place].as_py())
        except StrictqError as e:
            _refuse(name, keys, place, e)


def _each(check: Callable[[Any], str | None]) -> Callable[[pa.Array, pa.Array, str], pa.Array]:
    """Return a conversion of single values to text."""

    def convert(column: pa.Array, keys: pa.Array, name: str) -> pa.Array:
        texts: list[str | None] = []
        for place, value in enumerate(column.to_pylist()):
            try:
                texts.append(None if value is None else check(value))
            except StrictqError as e:
                _refuse(name, keys, place, e)
        return pa.array(texts, pa.string())

    return convert


_CONVERT: Final[Mapping[str, Callable[[pa.Array, pa.Array, str], pa.Array]]] = {
    "dedup_id": _each(lambda value: validate.name("dedup_id", value)),
    "delay": _seconds,
    "ttl": _seconds,
    "headers": _each(lambda value: validate.headers(dict(value))),
    "size_hint": _numbers,
    "prepare_seconds": _numbers,
    "process_seconds": _numbers,
}


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


def _refuse(column: str, keys: pa.Array, place: int, error: StrictqError) -> None:
    """Raise an error again with the column and key that it concerns."""
    key = keys[place].as_py()
    shown = "no key" if key is None else f"key {decode_key(key)!r}"
    text = str(error.args[0])
    raise type(error)(f"column {column}, {shown}: {text}", hint=error.hint) from None
