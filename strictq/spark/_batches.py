"""A batch of leased messages, and its columns for Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from .._values import hints
from .._values.errors import InvalidArgument
from .._values.keys import decode_key
from ..delivery import Delivery, Lease
from ._pipeline_tasks import MESSAGE, STATES
from ._table_columns import KEY_TYPES, KeyType

RESERVED: Final = frozenset({*MESSAGE.names, "key", "kind", "reason", "delay", "state"})

Rows = list[tuple[Lease, Delivery]]


class LeasedBatch:
    """Leased messages, lane by lane, with their results so far.

    Attributes:
        numbers: the numbers of the lanes on executors.
        prepared: by lane and seq: the columns from prepare, or the Outcome of a message for which it failed.
    """

    def __init__(self, deliveries: Iterable[Delivery]) -> None:
        self.lanes: dict[Lease, list[Delivery]] = {}
        for d in deliveries:
            self.lanes.setdefault(d.lease, []).append(d)
        self.numbers = {lease: n for n, lease in enumerate(self.lanes)}
        self.prepared: dict[tuple[int, int], Any] = {}
        self.prepare_seconds = 0.0

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def found(self, d: Delivery) -> Any:
        """Return the result of prepare for a message; None: there is none."""
        return self.prepared.get((self.numbers[d.lease], d.seq))

    def table(self, rows: Rows) -> pa.Table:
        """Return messages in the columns of MESSAGE."""
        columns: list[Any] = [
            [self.numbers[lease] for lease, _ in rows], [d.seq for _, d in rows], [lease._held.key for lease, _ in rows],
            [d.body for _, d in rows], [list(d.headers.items()) for _, d in rows], [d.attempt for _, d in rows],
            [d.enqueued_at for _, d in rows],
        ]  # fmt: skip
        arrays = [pa.array(values, field.type) for values, field in zip(columns, MESSAGE, strict=True)]
        return pa.Table.from_arrays(arrays, schema=MESSAGE)

    def prepared_table(self, rows: Rows, schema: pa.Schema, states: dict[Lease, bytes | None] | None) -> pa.Table:
        """Return messages with the columns from prepare, and with the states of their keys."""
        table = self.table(rows)
        if states is not None:
            table = table.append_column(STATES, pa.array([states[lease] for lease, _ in rows], pa.binary()))
        found = [self.found(d) or {} for _, d in rows]
        for field in schema:
            table = table.append_column(field, pa.array([row.get(field.name) for row in found], field.type))
        return table


def require_keys(table: pa.Table, key_type: KeyType) -> None:
    """Raise for keys that do not match the key column of prepare.

    Raises:
        InvalidArgument: a key has another type.
    """
    wanted = KEY_TYPES[key_type].accepts
    for raw in table.column("raw_key").to_pylist():
        key = decode_key(raw)
        if key is not None and type(key) is not wanted:
            raise InvalidArgument(
                f"the key {key!r} is not of the pipeline's key_type {key_type!r}",
                hint=hints.PREPARE_KEYS,
            )


def prepared_schema(prepared: str | None, prepare: object) -> pa.Schema:
    """Parse the columns that prepare returns, in Spark's notation ("amount bigint, name string").

    Raises:
        InvalidArgument: the list is missing or malformed, or a name is one of the message's own.
    """
    if prepared is None:
        if prepare is not None:
            raise InvalidArgument("prepare needs `prepared`: the columns it gives", hint=hints.PREPARED_COLUMNS)
        return pa.schema([])
    try:
        parsed = _parse_datatype_string(prepared)
    except Exception as e:
        raise InvalidArgument(f"prepared={prepared!r} is not a list of columns: {first_line(e)}") from e
    if not isinstance(parsed, StructType) or not parsed.names:
        raise InvalidArgument(f"prepared={prepared!r} is not a list of columns")
    if taken := sorted(RESERVED & set(parsed.names)):
        raise InvalidArgument(f"prepare's column {taken[0]!r} has the name of one of the message's own: choose another")
    schema: pa.Schema = to_arrow_schema(parsed)
    return schema


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, short enough for a reason."""
    text = str(error).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__
