"""The program's own SQL, restricted to its `app_*` tables.

An authorizer checks every statement while it is prepared and permits access to `app_*` tables only: no transactions, no ATTACH,
no PRAGMA, none of the engine's tables. Program statements bypass the statement cache in both directions: a cached statement of
the engine with the same text would run unchecked. A progress handler interrupts statements that run too long, and a limit bounds
the size of each value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw

from ..._sql import FORMAT_3
from ..._values import hints
from ..._values.errors import InvalidArgument
from ..disk.stored import is_of_sqlite

PREFIX: Final = "app_"
STEPS_MAX: Final = 20_000_000
"""Virtual-machine steps of one program statement: about a second."""
_STEP_BLOCK: Final = 10_000
VALUE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of a value or a row in a program's SQL, unless bodies may be larger. One step can make a value of any size."""
_ROW_BYTES: Final = 1024 * 1024
"""The room beside a body in a row of a program's table."""

_READS: Final = {apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE}
_ON_TABLE: Final = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_TABLE_FUNCTIONS: Final = {"json_each", "json_tree"}
_OUR_TABLES: Final = set(re.findall(r"CREATE TABLE (\w+)", FORMAT_3))
_ENGINE_PREFIXES: Final = ("sqlite_", "pragma_", "dbstat", "carray")
_SCHEMA_TABLES: Final = {"sqlite_master", "sqlite_schema"}
_DDL_NAMED_FIRST: Final = {
    apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_DROP_TABLE,
    apsw.SQLITE_CREATE_VIEW, apsw.SQLITE_DROP_VIEW, apsw.SQLITE_REINDEX,
}  # fmt: skip
_DDL_ON_SECOND: Final = {apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_ALTER_TABLE}
_FORBIDDEN_FUNCTIONS: Final = {"load_extension", "writefile", "readfile", "edit", "fts3_tokenizer"}


_MISTAKES: Final = (
    apsw.SQLError, apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.BindingsError,
)  # fmt: skip
_PERMITTED: Final = {
    "read": ("read", hints.ONLY_READS),
    "write": ("read and write rows of", hints.ONLY_ROWS),
    "schema": ("define and fill", hints.ONLY_APP_TABLES),
}


class Guard:
    """The authorizer of one connection. It allows everything until a program's SQL runs.

    Args:
        body_bytes_max: returns the size that bodies may have.
    """

    def __init__(self, db: apsw.Connection, body_bytes_max: Callable[[], int]) -> None:
        self._db = db
        self._body_bytes_max = body_bytes_max
        self._mode = ""
        self._steps = 0
        self._bytes_max = db.limit(apsw.SQLITE_LIMIT_LENGTH)
        db.authorizer = self._authorize

    def run(self, mode: str, sql: str, params: Sequence[Any] | dict[str, Any]) -> Rows:
        """Run a program's SQL. `mode` is "read", "write" or "schema".

        Raises:
            InvalidArgument: the SQL is not permitted, failed, made too large a value, or took too many steps.
        """
        db = self._db
        bytes_max = max(VALUE_BYTES_MAX, self._body_bytes_max() + _ROW_BYTES)
        try:
            self._steps = 0
            self._mode = mode
            db.limit(apsw.SQLITE_LIMIT_LENGTH, bytes_max)
            db.set_progress_handler(self._progress, _STEP_BLOCK)
            return Rows.of(db.execute(sql, params, can_cache=False))
        except apsw.AuthError:
            verb, hint = _PERMITTED[mode]
            raise InvalidArgument(f"this SQL does more than {verb} the program's own app_* tables", hint=hint) from None
        except apsw.InterruptError:
            raise InvalidArgument(f"this SQL took more than {STEPS_MAX:,} steps", hint=hints.SQL_TOO_LONG) from None
        except apsw.TooBigError:
            raise InvalidArgument(
                f"a value or row of this SQL is larger than {bytes_max:,} bytes", hint=hints.VALUE_TOO_LARGE
            ) from None
        except _MISTAKES as e:
            raise InvalidArgument(f"the program's SQL failed: {e}") from e
        except (TypeError, ValueError, OverflowError) as e:
            if not is_of_sqlite(e):
                raise
            raise InvalidArgument(f"the program's SQL was given invalid values: {e}") from e
        finally:
            # An interrupt can follow a call. Without a mode, the progress handler and the authorizer do nothing.
            self._mode = ""
            db.limit(apsw.SQLITE_LIMIT_LENGTH, self._bytes_max)
            db.set_progress_handler(None, 0)

    def _progress(self) -> bool:
        self._steps += _STEP_BLOCK
        return bool(self._mode) and self._steps > STEPS_MAX

    def _authorize(self, action: int, first: str | None, second: str | None, database: str | None, _trigger: str | None) -> int:
        if not self._mode:
            return apsw.SQLITE_OK
        return apsw.SQLITE_OK if self._allows(action, first or "", second or "", database or "") else apsw.SQLITE_DENY

    def _allows(self, action: int, first: str, second: str, database: str) -> bool:
        if database not in ("", "main"):
            return False
        if action in _READS:
            return True
        if action == apsw.SQLITE_FUNCTION:
            return second.lower() not in _FORBIDDEN_FUNCTIONS
        if action == apsw.SQLITE_READ and not second and not _is_ours(first):
            return True  # a subquery's or common table expression's rows, counted without reading a column
        if action in _ON_TABLE:
            if action != apsw.SQLITE_READ and self._mode == "read":
                return False
            if first.lower() in _TABLE_FUNCTIONS:
                return action == apsw.SQLITE_READ
            return _is_app(first) or (self._mode == "schema" and first.lower() in _SCHEMA_TABLES)
        if self._mode != "schema":
            return False
        if action in _DDL_NAMED_FIRST:
            return _is_app(first)
        # CREATE INDEX, DROP INDEX and ALTER TABLE name the table second.
        return action in _DDL_ON_SECOND and _is_app(second)


def _is_ours(name: str) -> bool:
    return name.lower() in _OUR_TABLES or name.lower().startswith(_ENGINE_PREFIXES)


def _is_app(name: str) -> bool:
    return name.lower().startswith(PREFIX)


class Rows(list[Any]):
    """The rows of a program's query, as tuples.

    Attributes:
        columns: the columns' names; () if there are no rows.
    """

    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, cursor: apsw.Cursor) -> Rows:
        """Return all rows of a running statement."""
        first = next(cursor, None)
        if first is None:
            return cls()
        columns = tuple(name for name, _ in cursor.get_description())
        rows = cls([first, *cursor])
        rows.columns = columns
        return rows

    @classmethod
    def together(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of several shards as one list."""
        rows = cls(row for part in parts for row in part)
        rows.columns = next((part.columns for part in parts if part), ())
        return rows

    @property
    def get(self) -> Any:
        """The first row, or its value if it has one column. None if there is no row."""
        if not self:
            return None
        return self[0][0] if len(self[0]) == 1 else self[0]


class AppDatabase:
    """What `tx.run` passes to a program: access to its own tables, inside the write transaction."""

    def __init__(self, db: apsw.Connection, guard: Guard, mode: str = "write") -> None:
        self._db = db
        self._guard = guard
        self._mode = mode
        self.live = True

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> Rows:
        """Run one or more statements on app_* tables. Return all rows as tuples.

        Raises:
            InvalidArgument: the SQL is wrong, is not permitted, or takes too long. Unless the program catches it, the enclosing
                transaction is rolled back.
        """
        if not isinstance(sql, str):
            raise InvalidArgument(f"SQL must be a str, not {type(sql).__name__}")
        if not self.live:
            raise InvalidArgument("the transaction has already ended")
        if self._mode == "write" and not self._db.in_transaction:
            raise InvalidArgument("the program's SQL rolled the transaction back; nothing was changed")
        return self._guard.run(self._mode, sql, params)
