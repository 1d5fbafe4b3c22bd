"""Relay an outbox: rows that a program committed in its own database become messages, in order and without doubles."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ._client import validate
from ._values import hints
from ._values.errors import InvalidArgument, PartialFailure, QueueFull, StrictqError, Throttled, retry_after
from ._values.types import Message, Receipt
from .queue import Queue

if TYPE_CHECKING:
    from .aio import AsyncQueue

ParamStyle = Literal["qmark", "numeric", "named", "format", "pyformat"]

BATCH_MAX: Final = 10_000
PLACES: Final = {"qmark": "?", "numeric": ":1", "named": ":id", "format": "%s", "pyformat": "%s"}
"""How a statement refers to its only parameter, in each paramstyle of the DB-API."""
LOOK_SECONDS: Final = 1.0
"""How often a relay that waits for room looks whether there is some."""
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_SOURCE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


def relay(
    connection: Any,
    queue: Queue | AsyncQueue,
    *,
    table: str = "outbox",
    mark: str | None = None,
    batch: int = 500,
    source: str = "relay",
    paramstyle: ParamStyle | None = None,
    wait: float = 0.0,
) -> int:
    """Send the rows of a table in another database as messages, and delete them there. Return when there are no more.

    The table has the columns `id` (an ascending integer that is never reused), `key`, `body` and `headers`. Rows are sent in the
    order of their ids, with the dedup ids `SOURCE:TABLE:ID`. They are deleted after they were sent, each by its own id, in a
    transaction of the database. If the program is killed in between, the next call sends them again, and the queue ignores
    that if it is within `dedup_window_seconds`.

    A body is bytes; a text is stored as UTF-8, and a value of a JSON column as compact JSON. Headers are NULL or a JSON object.

    Args:
        connection: a DB-API 2.0 connection without an open transaction of yours. Its transactions are committed.
        queue: where to send. An AsyncQueue is used through its `sync`, and this function blocks.
        table: the table's name, with its schema or without.
        mark: instead of deleting rows, set this column, which is NULL before, to the current time.
        batch: number of rows that are read and sent at a time, 1..10,000.
        source: the name of this database. Databases that relay to the same queue need different names.
        paramstyle: that of the database's module; None: ask the module of the connection.
        wait: seconds to wait for room for the next rows while a limit of the queue refuses them, as QueueFull or Throttled.
    Returns:
        The number of rows relayed.
    Raises:
        InvalidArgument: an argument is invalid; or a row can't be sent. The rows before it were relayed; its id is in the error.
        PartialFailure: some shards failed. The rows of the others were relayed.
        QueueFull, Throttled: a limit refused these rows for `wait` seconds; with others, in a PartialFailure.
        StoreError: the rows of this batch were not relayed.
        OutcomeUnknown: they may have been sent. Repeating the call is safe.
        Exception: an error of the database, raised as it is. Repeating the call is safe.

    Source: docs/howto/relay.md
    """
    inner = queue if isinstance(queue, Queue) else getattr(queue, "sync", None)
    if not isinstance(inner, Queue):
        raise InvalidArgument(f"relay takes a Queue, not {type(queue).__name__}")
    for name, value, pattern in (("table", table, _TABLE), ("mark", mark, _COLUMN), ("source", source, _SOURCE)):
        if not (isinstance(value, str) and pattern.fullmatch(value)) and not (value is None and name == "mark"):
            raise InvalidArgument(f"{name} must match {pattern.pattern}, not {validate.shown(value)}", hint=hints.PLAIN_NAMES)
    validate.whole("batch", batch, 1, BATCH_MAX)
    validate.microseconds("wait", wait)
    place = PLACES[_style(connection, paramstyle)]
    # The names are checked above, because a name can't be a parameter.
    unsent = "" if mark is None else f" WHERE {mark} IS NULL"
    read = f"SELECT id, key, body, headers FROM {table}{unsent} ORDER BY id LIMIT {batch}"  # noqa: S608
    settle = f"DELETE FROM {table} WHERE id = {place}"  # noqa: S608
    if mark is not None:
        settle = f"UPDATE {table} SET {mark} = CURRENT_TIMESTAMP WHERE id = {place}"  # noqa: S608
    relayed = 0
    until: float | None = None
    while True:
        # The transaction ends before the rows are sent, so that it keeps no lock and no old rows meanwhile.
        with _transaction(connection) as cursor:
            cursor.execute(read)
            rows = cursor.fetchall()
        sent, error = _send(inner, *_messages(rows, f"{source}:{table}"))
        if sent:
            with _transaction(connection) as cursor:
                cursor.executemany(settle, [{"id": n} if place == PLACES["named"] else (n,) for n in sent])
        relayed += len(sent)
        if error is not None:
            until = time.monotonic() + wait if until is None or sent else until
            left, after = until - time.monotonic(), retry_after(error)
            if after is None or left <= 0:
                raise error
            time.sleep(min(after, left, LOOK_SECONDS))
            continue
        until = None
        if len(rows) < batch:
            return relayed


def _style(connection: Any, given: str | None) -> str:
    """Return the paramstyle of a connection's module.

    Raises:
        InvalidArgument: it is unknown, or the connection is none.
    """
    if not all(callable(getattr(connection, name, None)) for name in ("cursor", "commit", "rollback")):
        raise InvalidArgument(f"relay takes a DB-API connection, not {type(connection).__name__}")
    found: Any = given
    names = [of.__module__ for of in type(connection).__mro__] if given is None else []
    for name in names:
        while name and found is None:
            found = getattr(sys.modules.get(name), "paramstyle", None)
            name = name.rpartition(".")[0]
    if found not in PLACES:
        what = f"paramstyle must be one of {', '.join(PLACES)}, not {validate.shown(given)}"
        raise InvalidArgument(what if given is not None else "the paramstyle is unknown", hint=hints.GIVE_PARAMSTYLE)
    return str(found)


@contextmanager
def _transaction(connection: Any) -> Iterator[Any]:
    """Run the block with a cursor, and commit."""
    try:
        cursor = connection.cursor()
        yield cursor
        cursor.close()
        connection.commit()
    except BaseException:
        with suppress(Exception):  # the first error is the one to raise
            connection.rollback()
        raise


class _OutboxRow(NamedTuple):
    id: int
    name: str
    """Its dedup id."""
    message: Message


def _messages(rows: Sequence[Sequence[Any]], prefix: str) -> tuple[list[_OutboxRow], StrictqError | None]:
    """Return the messages of rows, up to the first one that can't be read, and the error of that one."""
    found: list[_OutboxRow] = []
    for n, key, body, headers in rows:
        name = f"{prefix}:{n}"
        try:
            if isinstance(n, bool) or not isinstance(n, int):
                raise InvalidArgument(f"its id must be an integer, not {validate.shown(n)}")
            key = bytes(key) if isinstance(key, memoryview | bytearray) else key
            found.append(_OutboxRow(n, name, Message(_body(body), key=key, dedup_id=name, headers=_headers(headers))))
        except InvalidArgument as e:
            return found, _of_row(name, e)
    return found, None


def _body(value: Any) -> bytes | bytearray | memoryview:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("its body has a lone surrogate") from None
    if isinstance(value, dict | list):
        return Message.json(value).body
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidArgument(f"its body must be bytes, text or JSON, not {validate.shown(value)}")
    return value


def _headers(value: Any) -> dict[str, str] | None:
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except ValueError as e:
            raise InvalidArgument(f"its headers are not JSON: {e}") from None
    if value is not None and not isinstance(value, dict):
        raise InvalidArgument(f"its headers must be a JSON object, not {validate.shown(value)}")
    return value


def _of_row(name: str, error: StrictqError) -> InvalidArgument:
    return InvalidArgument(
        f"the row {name} can't be sent: {Exception.__str__(error)}; the rows before it were relayed", hint=hints.MEND_ROW
    )


def _send(queue: Queue, rows: Sequence[_OutboxRow], error: StrictqError | None) -> tuple[list[int], StrictqError | None]:
    """Send messages, up to the first one that is refused.

    Args:
        error: of the row after these.
    Returns:
        The ids of what was sent, and the error of what was not.
    """
    if not rows:
        return [], error
    try:
        queue.send_many([row.message for row in rows])
    except PartialFailure as e:
        return [row.id for row, result in zip(rows, e.results, strict=True) if isinstance(result, Receipt)], e
    except (QueueFull, Throttled) as e:
        return [], e
    except InvalidArgument as e:
        if len(rows) == 1:
            return [], _of_row(rows[0].name, e)
        half = len(rows) // 2
        first, failed = _send(queue, rows[:half], None)
        if failed is not None:
            return first, failed
        second, failed = _send(queue, rows[half:], error)
        return first + second, failed
    return [row.id for row in rows], error
