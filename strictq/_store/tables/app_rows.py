"""Rows of the program's own tables that belong to keys, and move with them.

Which column of a table has the key is recorded beside the table's SQL, as a text that is only a comment to SQLite. Each shard
keeps what it has run, so that a step of a move reads it in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import apsw
import attrs

from ..._sql import RANGES, SHARD, rows_after, rows_of, rows_over, with_columns
from ..._values.errors import InvalidArgument, StoreCorrupt
from ..._values.keys import decode_key, encode_key
from ..lane.damage import is_of_values

PREFIX: Final = "-- key columns: "
_NAME: Final = "app_keys"
"""The name of the key columns among what a shard says of itself."""
_INTEGERS: Final = range(-(1 << 63), 1 << 63)
Row = tuple[Any, ...]
Value = str | bytes | int


@attrs.frozen
class KeyedTable:
    """One of the program's own tables, whose rows belong to keys.

    Attributes:
        column: has the key: text, a blob or an integer is a key of type str, bytes or int.
        columns: those that are stored.
        unique: whether a row can be in the way of another one.
    """

    name: str
    column: str
    columns: tuple[str, ...]
    unique: bool


# ---- as they are recorded


def recorded(columns: Mapping[str, str]) -> str:
    """Return the text that records the key columns of tables."""
    return PREFIX + json.dumps(dict(sorted(columns.items())))


def columns_of(text: str) -> dict[str, str] | None:
    """Return what `recorded` was given. None: the text is SQL."""
    if not text.startswith(PREFIX):
        return None
    try:
        found = json.loads(text.removeprefix(PREFIX))
    except ValueError:
        return None  # a comment of the program's
    return found if isinstance(found, dict) else None


def all_columns(schema: Iterable[tuple[int, str]]) -> dict[str, str]:
    """Return the key columns by table, of everything that is recorded."""
    found: dict[str, str] = {}
    for _, text in schema:
        found.update(columns_of(text) or {})
    return found


def stored(db: apsw.Connection, shard: int) -> dict[str, str]:
    """Return the key columns by table, as a shard knows them.

    Raises:
        StoreCorrupt: they can't be read.
    """
    text: Any = db.execute(SHARD.read_meta, (_NAME,)).get
    try:
        return {} if text is None else {str(name): str(column) for name, column in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as e:
        if not is_of_values(e):
            raise
        raise StoreCorrupt(f"the key columns of its tables can't be read: {e}", shard=shard, cause=e) from e


def store(db: apsw.Connection, shard: int, columns: Mapping[str, str]) -> None:
    """Add key columns to those that a shard knows."""
    db.execute(SHARD.write_meta, (_NAME, json.dumps({**stored(db, shard), **columns})))


# ---- the tables


def require(db: apsw.Connection, columns: Mapping[str, str]) -> None:
    """Verify that these columns of tables can be key columns.

    Raises:
        InvalidArgument: one can't.
    """
    for name, column in columns.items():
        found = _table(db, name, column)
        if not isinstance(found, KeyedTable):
            raise InvalidArgument(f"key_columns: {found}; nothing was changed")


def _table(db: apsw.Connection, name: str, column: str) -> KeyedTable | str:
    """Return a table whose rows belong to keys, or why they can't."""
    if not name.lower().startswith("app_"):
        return f"{name} is not one of the program's app_* tables"
    infos: list[Any] = db.execute(RANGES.app_columns, (name,)).fetchall()
    known = {str(one).lower(): (str(one), hidden, pk) for one, hidden, pk in infos}
    own = column.lower()
    if own not in known or known[own][1]:
        return f"there is no table {name} with a stored column {column}"
    indexes: list[Any] = db.execute(RANGES.app_indexes, (name,)).fetchall()
    keys = [pk for _, _, pk in known.values() if pk]
    by_rowid = len(keys) == 1 and not any(origin == "pk" for _, _, origin, _ in indexes)
    found, unique = by_rowid and known[own][2] > 0, by_rowid
    if by_rowid and not found:
        return f"the INTEGER PRIMARY KEY of {name} is another column: two shards may issue the same number"
    for index, is_unique, _, partial in indexes:
        parts: list[Any] = db.execute(RANGES.app_index, (index,)).fetchall()
        matches = [one is not None and one.lower() == own and collation == "BINARY" for one, collation in parts]
        found = found or (matches[0] and not partial)
        unique = unique or bool(is_unique)
        if is_unique and not any(matches):
            return f"a UNIQUE or PRIMARY KEY of {name} lacks {column}: rows of two shards could be in each other's way"
    if not found:
        return f"no index of {name} begins with {column}"
    return KeyedTable(name, known[own][0], tuple(one for one, hidden, _ in known.values() if not hidden), unique)


def keyed(db: apsw.Connection, shard: int) -> tuple[list[KeyedTable], list[str]]:
    """Return the program's tables whose rows belong to keys, and the names of the others."""
    columns = {name.lower(): column for name, column in stored(db, shard).items()}
    tables: list[KeyedTable] = []
    others: list[str] = []
    names: list[Any] = db.execute(RANGES.app_tables).fetchall()
    for (name,) in names:
        column = columns.get(name.lower())
        found = None if column is None else _table(db, name, column)
        if isinstance(found, KeyedTable):
            tables.append(found)
        else:
            others.append(name)
    return tables, others


# ---- their rows


def value_of(key: bytes) -> Value | None:
    """Return a key as a column has it. None: no column can have it."""
    found = decode_key(key)
    return None if isinstance(found, int) and found not in _INTEGERS else found


def key_of(value: object) -> bytes | None:
    """Return the key that a value of a key column is. None: it is none."""
    try:
        return encode_key(value)
    except InvalidArgument:
        return None


def of(db: apsw.Connection, table: KeyedTable, key: bytes) -> list[Row]:
    """Return the rows of a key."""
    value = value_of(key)
    return [] if value is None else db.execute(rows_of("SELECT", table.name, table.column, table.columns), (value,)).fetchall()


def delete(db: apsw.Connection, table: KeyedTable, keys: Iterable[bytes]) -> None:
    """Delete the rows of keys."""
    values = [(value,) for key in keys if (value := value_of(key)) is not None]
    db.executemany(rows_of("DELETE", table.name, table.column), values)


def insert(db: apsw.Connection, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    db.executemany(with_columns(name, columns), rows)


def values_after(db: apsw.Connection, table: KeyedTable, after: Value | None, limit: int) -> list[Value]:
    """Return the next distinct values of a key column that are keys, ascending. None: from the first one on."""
    statement = rows_after(table.name, table.column, first=after is None)
    found: list[Any] = db.execute(statement, (limit,) if after is None else (limit, after)).fetchall()
    return [value for (value,) in found]


def often(db: apsw.Connection, table: KeyedTable, most: int) -> list[tuple[Value, int]]:
    """Return the values of a key column that more than so many rows have. Reads its index."""
    found: list[Any] = db.execute(rows_over(table.name, table.column), (most,)).fetchall()
    return found


# ---- in a parcel


def packed(tables: Mapping[KeyedTable, list[Row]], width: int) -> Iterator[Row]:
    """Return rows as rows of a parcel, each of at most so many columns."""
    for table, rows in tables.items():
        yield table.name, json.dumps(table.columns), len(rows)
        for row in rows:
            for start in range(0, len(row), width):
                yield row[start : start + width]


def unpacked(found: Iterable[Row], width: int) -> Iterator[tuple[str, list[str], list[Row]]]:
    """Return table, columns and rows of what `packed` returned."""
    rest = iter(found)
    for name, text, count, *_ in rest:
        columns: list[str] = json.loads(text)
        parts = -(-len(columns) // width)
        yield name, columns, [tuple(value for _ in range(parts) for value in next(rest))[: len(columns)] for _ in range(count)]
