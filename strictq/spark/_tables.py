"""Tables of SQL: `CREATE TABLE name USING strictq OPTIONS (path '...')`. Imported late, with pyspark.

Spark gives a Python data source the options of a table when it is created, and never again. But it asks for the columns then,
stores them with their metadata, and gives them back with every read and INSERT: there the options are.
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
"""Columns of a table that a queue fills in: an INSERT leaves them out, and Spark sets them to NULL."""


def is_creation(options: Mapping[str, str]) -> bool:
    """Whether Spark asks for the columns of a table that is being created."""
    return all(name in options for name in OF_TABLES[:2])


def named_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options that a CREATE TABLE names, without what Spark says of the table."""
    return CaseInsensitiveDict(
        {name: v for name, v in options.items() if name.lower() not in OF_TABLES and not name.lower().startswith("option.")}
    )


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Columns of a table, with its options; each may be NULL, so that an INSERT may leave it out."""
    told = json.dumps(dict(options))
    return StructType([StructField(f.name, f.dataType, nullable=True, metadata={METADATA: told}) for f in columns])


def of_table(schema: StructType) -> dict[str, str] | None:
    """The options that the columns of a table bring; None: they are of no table."""
    for field in schema:
        if told := (field.metadata or {}).get(METADATA):
            found: dict[str, str] = json.loads(told)
            return found
    return None


def options_for(given: Mapping[str, str], schema: StructType, use: Use) -> Mapping[str, str]:
    """The options of a use: those of the table that it has, and before them those that are given."""
    known = {name.lower() for name in OPTIONS[use]}
    stored = {name: v for name, v in (of_table(schema) or {}).items() if name.lower() in known}
    return CaseInsensitiveDict({**stored, **dict(given)})


def without_metadata(schema: StructType) -> StructType:
    """The columns alone."""
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in schema])
