"""The columns of a queue as Spark sees them. Imported late, with pyspark."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .._values.errors import InvalidArgument

KeyType = Literal["string", "binary", "int", "stored"]


class KeyColumn(NamedTuple):
    """The column type and accepted keys of a key type.

    Attributes:
        column: the type of the column `key`.
        accepts: the type of the keys that fit; None: every key does.
    """

    column: DataType
    accepts: type | None


KEY_TYPES: Final[dict[KeyType, KeyColumn]] = {
    "string": KeyColumn(StringType(), str),
    "binary": KeyColumn(BinaryType(), bytes),
    "int": KeyColumn(LongType(), int),
    "stored": KeyColumn(BinaryType(), None),
}
"""The types as which keys can be read. "stored": keys of any type, in the form described in docs/explanation/storage.md."""
HEADERS: Final = MapType(StringType(), StringType(), valueContainsNull=False)

_DEAD: Final = (
    StructField("kind", StringType(), nullable=False),
    StructField("reason", StringType(), nullable=True),
    StructField("died_at", TimestampType(), nullable=False),
)


def key_type(text: str | None) -> KeyType:
    """Parse a key type; string if it is not given.

    Raises:
        InvalidArgument: it is not a key type.
    """
    for name in KEY_TYPES:
        if (text or "string").lower() == name:
            return name
    raise InvalidArgument(f"the option keyType must be one of {', '.join(KEY_TYPES)}, not {text!r}")


def read_schema(key: KeyType, *, dead: bool = False) -> StructType:
    """Return the columns of reading a queue: one row per message, or per dead letter."""
    return StructType(
        [
            StructField("key", KEY_TYPES[key].column, nullable=True),  # NULL: a keyless message
            StructField("seq", LongType(), nullable=False),
            StructField("body", BinaryType(), nullable=False),
            StructField("headers", HEADERS, nullable=True),
            StructField("enqueued_at", TimestampType(), nullable=False),
            StructField("attempt", IntegerType(), nullable=False),
            StructField("shard", IntegerType(), nullable=False),
            StructField("id", LongType(), nullable=False),
            *(_DEAD if dead else ()),
        ]
    )
