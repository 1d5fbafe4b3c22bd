"""The columns of a queue as Spark sees them. Imported late, with pyspark."""

from __future__ import annotations

from typing import Final, Literal

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

from .._errors import InvalidArgument

KeyType = Literal["string", "binary", "int", "stored"]

KEY_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": LongType(),
    "stored": BinaryType(),
}
"""Option `keyType` → type of the column `key`. "stored": keys of any type, in the form that docs/explanation/storage.md gives."""
HEADERS: Final = MapType(StringType(), StringType(), valueContainsNull=False)

_DEAD: Final = (
    StructField("kind", StringType(), nullable=False),
    StructField("reason", StringType(), nullable=True),
    StructField("died_at", TimestampType(), nullable=False),
)


def key_type(text: str | None) -> DataType:
    """The type of the column `key` that an option names; string where it is not given.

    Raises:
        InvalidArgument: it names none.
    """
    try:
        return KEY_TYPES[(text or "string").lower()]
    except KeyError:
        raise InvalidArgument(f"keyType must be one of {', '.join(KEY_TYPES)}, not {text!r}") from None


def read_schema(key: DataType, *, dead: bool = False) -> StructType:
    """What reading a queue gives: one row a message, or one a dead letter."""
    return StructType(
        [
            StructField("key", key, nullable=True),  # NULL: a keyless message
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
