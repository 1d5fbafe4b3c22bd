"""SQL tables: `CREATE TABLE name USING strictq OPTIONS (path '...')`. Imported late, with pyspark.

Spark passes a table's options to a Python data source only when the table is created. But it then requests the columns,
stores them with their metadata, and passes them to every read and INSERT. So the options are stored in that metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType

from ._option_names import OF_TABLES, OPTIONS, Use

METADATA: Final = "strictq"
READ_ONLY: Final = ("seq", "enqueued_at", "attempt", "shard", "id", "kind", "reason", "died_at", "queue", "path")
"""Columns of a table that the queue fills in. An INSERT leaves them out, and Spark sets them to NULL."""


def is_creation(options: Mapping[str, str]) -> bool:
    """Return whether Spark requests the columns of a table that is being created."""
    return all(name in options for name in OF_TABLES[:2])


def named_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a CREATE TABLE, without Spark's properties of the table."""
    return CaseInsensitiveDict(
        {name: v for name, v in options.items() if name.lower() not in OF_TABLES and not name.lower().startswith("option.")}
    )


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table with its options. Each may be NULL, so that an INSERT may leave it out."""
    stored = json.dumps(dict(options))
    return StructType([StructField(f.name, f.dataType, nullable=True, metadata={METADATA: stored}) for f in columns])


def of_table(schema: StructType) -> dict[str, str] | None:
    """Return the options stored in a table's columns; None: they do not belong to a table."""
    for field in schema:
        if stored := (field.metadata or {}).get(METADATA):
            found: dict[str, str] = json.loads(stored)
            return found
    return None


def options_for(given: Mapping[str, str], schema: StructType, use: Use) -> Mapping[str, str]:
    """Return the options of a use: the given ones, and those of the table where none is given."""
    known = {name.lower() for name in OPTIONS[use]}
    stored = {name: v for name, v in (of_table(schema) or {}).items() if name.lower() in known}
    return CaseInsensitiveDict({**stored, **dict(given)})


def without_metadata(schema: StructType) -> StructType:
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in schema])
