"""What attempts left of messages that failed. A row lives as long as the row of its message."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from ..._sql import TABLES


class Trouble(NamedTuple):
    """A row of `trouble`.

    Attributes:
        attempts: starts of its handler that have ended.
        first_at: when it was first handed out; None: no attempt has ended.
        error, output: the newest. `errors`: of the newest attempts, JSON.
    """

    attempts: int = 0
    first_at: int | None = None
    error: str | None = None
    output: str | None = None
    errors: str | None = None


NONE = Trouble()


def of(db: apsw.Connection, arrival: int) -> Trouble:
    """Return what attempts left of a message."""
    row = db.execute(TABLES.trouble_of, (arrival,)).get
    return NONE if row is None else Trouble._make(row)


def set_(db: apsw.Connection, arrival: int, trouble: Trouble) -> None:
    db.execute(TABLES.set_trouble, (arrival, *trouble))
