"""All SQL of the package: named blocks in the .sql files beside this module.

A block starts with `-- name: NAME`; comment lines below it state where it runs, what it returns and which index it uses.
`{{ … }}` marks the part of a block that `repeat` writes several times, for statements over many rows. `/*?NAME*/ … /*?*/` marks
an expression that `choose` replaces by NULL unless it is requested.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Final

_HEADER: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_REPEATED: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_CHOICE: Final = re.compile(r"/\*\?(\w+)\*/(.*?)/\*\?\*/", re.DOTALL)


class Statements:
    """The statements of one file, as attributes.

    All files are read at import (2 ms), so that a program that runs during an upgrade of strictq does not mix two versions.
    """

    def __init__(self, name: str) -> None:
        # Not importlib.resources: its import takes longer than reading all the files, and queues require a file system anyway.
        parts = _HEADER.split(Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8"))
        statements = {
            key: "\n".join(line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--"))
            for key, body in zip(parts[1::2], parts[2::2], strict=True)
        }
        self._names = list(statements)
        self.__dict__.update(statements)  # as attributes, so that a lookup (a dozen per message) calls no function

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...

    def names(self) -> list[str]:
        """Return every statement's name, in the order of the file."""
        return self._names


def repeat(statement: str, times: int) -> str:
    """Return the statement with its marked part written `times` times, separated by commas."""
    return _REPEATED.sub(lambda m: ",".join([m[1].strip()] * times), statement)


def repeated(statement: str, *times: int) -> dict[int, str]:
    """Return the statement for several numbers of rows, by number of rows, largest first as given."""
    return {n: repeat(statement, n) for n in times}


def choose(statement: str, wanted: Container[str]) -> str:
    """Return the statement with NULL in the place of the marked expressions whose names are not in `wanted`."""
    return _CHOICE.sub(lambda m: m[2].strip() if m[1] in wanted else "NULL", statement)


def insert_into(table: str, columns: int) -> str:
    """Return an INSERT of a whole row into one of the program's own tables, whose name is not known in advance."""
    quoted = table.replace('"', '""')
    return f'INSERT INTO "{quoted}" VALUES ({", ".join("?" * columns)})'  # noqa: S608 - quoted


def select_all(table: str) -> str:
    """Return a SELECT of every row of one of the program's own tables."""
    quoted = table.replace('"', '""')
    return f'SELECT * FROM "{quoted}"'  # noqa: S608 - quoted


CATALOG: Final = Statements("catalog")
SHARD: Final = Statements("shard")
OUTBOX: Final = Statements("outbox")
HANDOUT: Final = Statements("handout")
SCAN: Final = Statements("scan")
CHECK: Final = Statements("check")
SALVAGE: Final = Statements("salvage")
HISTORY: Final = Statements("history")
APPLIED: Final = Statements("applied")
REPLICATION: Final = Statements("replication")
MERGE: Final = Statements("merge")
MIGRATING: Final = Statements("migrating")
LOG: Final = Statements("log")
TABLES: Final = Statements("tables")
LOOKS: Final = Statements("looks")
OPERATE: Final = Statements("operate")

_FEATURES: Final = (SHARD.common, APPLIED.schema, HANDOUT.schema)
"""Tables that a shard has in every format. Independent features define their tables in their own files."""
SHARD_SCHEMA: Final = "\n".join((SHARD.meta, SHARD.schema, *_FEATURES, SHARD.lease_index))
"""The tables of a shard of format 1. Salvage knows their order: the first page of each follows from it."""
FORMAT_2: Final = "\n".join((SHARD.logs, SHARD.format_2, SHARD.history_2))
"""The statements that upgrade those tables to format 2."""
FORMAT_3: Final = "\n".join((SHARD.meta, LOG.schema, TABLES.schema, *_FEATURES, SHARD.history_2))
"""The tables of a shard of format 3."""
