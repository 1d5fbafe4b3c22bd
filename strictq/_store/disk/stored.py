"""Read what strictq stored. A value that it never stores is damage, which is reported by SQLite's class: `apsw.CorruptError`.

Only SQLite's errors and these checks mean damage. Code of the program can run inside a transaction, such as a signal handler, and
the interpreter can run out of stack or memory there. Their exceptions say nothing about the file.
"""

from __future__ import annotations

import json
import opcode
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import apsw

OF_PYTHON: Final = (OverflowError, UnicodeError)
"""Python's own classes that apsw raises: for a number or a text that it cannot bind, and for a stored text that is not UTF-8.

For a value of a type that SQLite does not have, see `_refuse_binding` of `connection`.
"""
NESTING_MAX: Final = 8
"""JSON that strictq stores is nested less deeply."""
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_LONG_NUMBER: Final = re.compile(r"\d{1000}")
_RAISE: Final = opcode.opmap["RAISE_VARARGS"]
_PACKAGE: Final = str(Path(__file__).parent.parent.parent)


def present(row: Any, what: str) -> Any:
    """Return a row, or a value, that must be there.

    Raises:
        apsw.CorruptError: it is missing.
    """
    if row is None:
        raise apsw.CorruptError(f"{what} is missing")
    return row


def json_of(text: Any) -> Any:
    """Return the value of stored JSON.

    Raises:
        apsw.CorruptError: it is not JSON that strictq stores.
    """
    if not isinstance(text, str):
        raise apsw.CorruptError("a value is not text")
    if _LONG_NUMBER.search(text):
        raise apsw.CorruptError("stored JSON has too long a number")
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        if e.doc is not text:
            raise  # of a signal handler
        raise apsw.CorruptError(f"stored JSON is invalid: {e}") from e
    except RecursionError as e:
        if _nesting(text) <= NESTING_MAX:
            raise  # the program is near its limit
        raise apsw.CorruptError("stored JSON is nested too deeply") from e


def _nesting(text: str) -> int:
    depth = most = 0
    for sign in _STRING.sub("", text):
        if sign in "[{":
            depth += 1
            most = max(most, depth)
        elif sign in "]}":
            depth -= 1
    return most


def is_of_c(error: BaseException) -> bool:
    """Return whether a call of C raised an error, such as SQLite's of a value that it cannot bind, and no `raise` statement."""
    last = _last(error)
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE


def is_of_sqlite(error: BaseException) -> bool:
    """Return whether a call of SQLite from this package raised an error of one of Python's own classes.

    The last frame of an exception of the program's code, which may run here, is of that code.
    """
    last = _last(error)
    return last is not None and is_of_c(error) and last.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _last(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace
