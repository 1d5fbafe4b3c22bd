"""All SQL of the package: named blocks in the .sql files beside this module.

A block starts with `-- name: NAME`; comment lines below it state where it runs, what it returns and which index it uses.
`{{ … }}` marks the part of a block that `repeat` writes several times, for statements over many rows. `/*?NAME*/ … /*?*/` marks
an expression that `choose` replaces by NULL unless it is requested. `/*= NAME … */` in a trigger stands for another statement,
which `with_steps` writes there.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

_HEADER: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_REPEATED: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_STEP: Final = re.compile(r"/\*= (\w+) (.*?) \*/")
_PARAMETER: Final = re.compile(r"\?(\d)")
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


def with_steps(script: str, **statements: str) -> str:
    """Return a script whose triggers run other statements, which take columns of the new row in the place of parameters."""

    def step(found: re.Match[str]) -> str:
        columns = found[2].split()
        return _PARAMETER.sub(lambda m: f"NEW.{columns[int(m[1]) - 1]}", statements[found[1]])

    return _STEP.sub(step, script)


def insert_into(table: str, columns: int) -> str:
    """Return an INSERT of a whole row into one of the program's own tables, whose name is not known in advance."""
    quoted = table.replace('"', '""')
    return f'INSERT INTO "{quoted}" VALUES ({", ".join("?" * columns)})'  # noqa: S608 - quoted


def any_of(table: str) -> str:
    """Return a SELECT of whether one of the program's own tables has a row."""
    quoted = table.replace('"', '""')
    return f'SELECT EXISTS (SELECT 1 FROM "{quoted}")'  # noqa: S608 - quoted


def select_all(table: str) -> str:
    """Return a SELECT of every row of one of the program's own tables."""
    quoted = table.replace('"', '""')
    return f'SELECT * FROM "{quoted}"'  # noqa: S608 - quoted


def with_columns(table: str, columns: Sequence[str]) -> str:
    """Return an INSERT of these columns of one of the program's own tables. It does what no ON CONFLICT of the table asks for."""
    names = ", ".join(map(_quoted, columns))
    return f"INSERT OR ABORT INTO {_quoted(table)} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - quoted


def rows_of(verb: Literal["SELECT", "DELETE"], table: str, column: str, columns: Sequence[str] = ()) -> str:
    """Return a SELECT or a DELETE of the rows of one of the program's own tables in which a column has exactly this value."""
    names, key = ", ".join(map(_quoted, columns)), _quoted(column)
    where = f"FROM {_quoted(table)} WHERE {key} = ?1 COLLATE BINARY AND typeof({key}) = typeof(?1)"
    return f"{verb} {names} {where}"


def rows_after(table: str, column: str, *, first: bool) -> str:
    """Return a SELECT of some distinct values of a column of one of the program's own tables, ascending.

    Takes how many and, unless `first`, the value before them.
    """
    key = f"{_quoted(column)} COLLATE BINARY"
    where = f"{key} IS NOT NULL" if first else f"{key} > ?2"
    return f"SELECT DISTINCT {key} FROM {_quoted(table)} WHERE {where} ORDER BY {key} LIMIT ?1"  # noqa: S608 - quoted


def rows_over(table: str, column: str) -> str:
    """Return a SELECT of the values of a column that more than ?1 rows of one of the program's own tables have, and how many."""
    key = f"{_quoted(column)} COLLATE BINARY"
    return f"SELECT {key}, count(*) FROM {_quoted(table)} GROUP BY {key} HAVING count(*) > ?1"  # noqa: S608 - quoted


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


CATALOG: Final = Statements("catalog")
SHARD: Final = Statements("shard")
OUTBOX: Final = Statements("outbox")
RECORDED_BATCHES: Final = Statements("recorded_batches")
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
OUTPUTS: Final = Statements("outputs")
TURNS: Final = Statements("turns")
TENANT_DEPTHS: Final = Statements("tenant_depths")
RANGES: Final = Statements("ranges")

_FEATURES: Final = (SHARD.common, APPLIED.schema, RECORDED_BATCHES.schema)
"""Tables that a shard has in every format. Independent features define their tables in their own files."""
SHARD_SCHEMA: Final = "\n".join((SHARD.meta, SHARD.schema, *_FEATURES, SHARD.lease_index))
"""The tables of a shard of format 1. Salvage knows their order: the first page of each follows from it."""
FORMAT_2: Final = "\n".join((SHARD.logs, SHARD.format_2, SHARD.history_2))
"""The statements that upgrade those tables to format 2."""
FORMAT_3: Final = "\n".join((SHARD.meta, LOG.schema, TABLES.schema, *_FEATURES, SHARD.history_2))
"""The tables of a shard of format 3."""
