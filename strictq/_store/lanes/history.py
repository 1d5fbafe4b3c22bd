"""Records of finished messages, where the queue is configured to keep them.

They are written in the transaction in which a message leaves its lane, just before it does. How many stay is bounded by age
and by number; every transaction that adds some removes a few of the oldest that are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from ..._sql import HISTORY
from ..commit.tx import SECOND, Tx

TRIM_STEP_MIN: Final = 64
"""Records that may be removed with each addition, at least; more where more were added."""
PURGE_STEP: Final = 2_000
PAGE_BYTES: Final = 32 * 1024 * 1024
"""Of bodies in one page, about; a page has one record at least."""
LOOK_STEP: Final = 20_000
"""Records that one transaction of a key's purge looks at."""


class End:
    """How messages end: what their records say.

    Attributes:
        attempts: how many the rows do not count yet.
        prepare_seconds, process_seconds: what their handler took; None: unknown.
        output: what it had to say; None: what is stored with the message.
    """

    __slots__ = ("attempts", "outcome", "output", "prepare_seconds", "process_seconds")

    def __init__(
        self,
        outcome: str,
        attempts: int = 0,
        prepare_seconds: float | None = None,
        process_seconds: float | None = None,
        output: str | None = None,
    ) -> None:
        self.outcome = outcome
        self.attempts = attempts
        self.prepare_seconds = prepare_seconds
        self.process_seconds = process_seconds
        self.output = output


ACKED: Final = End("acked", 1)
EXPIRED: Final = End("expired")
DROPPED: Final = End("dropped")
PURGED: Final = End("purged")


def keep(tx: Tx, ranges: Sequence[tuple[int, int, int, End]]) -> None:
    """Record messages that are about to go: (lane, first seq, last seq, how they end). Nothing, where none are kept."""
    config = tx.config
    if config.history == "off" or not ranges:
        return
    bodies = config.history == "bodies"
    before = tx.db.total_changes()
    tx.many(
        HISTORY.keep,
        [
            (tx.now, end.attempts, end.prepare_seconds, end.process_seconds, end.outcome, bodies, lane, lo, hi, end.output)
            for lane, lo, hi, end in ranges
        ],
    )
    _trim(tx, tx.db.total_changes() - before)


def _trim(tx: Tx, added: int) -> None:
    first, last = tx.run(HISTORY.bounds).get
    if first is None:
        return
    cut = last - tx.config.history_records_max
    oldest = tx.now - int(tx.config.history_seconds * SECOND)
    if first <= cut or tx.run(HISTORY.done_at, (first,)).get < oldest:
        tx.run(HISTORY.forget, (first + max(2 * added, TRIM_STEP_MIN) - 1, cut, oldest))


def page(db: apsw.Connection, after: int, key: bytes | None, limit: int) -> list[tuple[Any, ...]]:
    """Records in the order in which they were written; fewer than there are where their bodies are too much for one page."""
    rows: list[tuple[Any, ...]] = []
    room = PAGE_BYTES
    cursor = db.execute(HISTORY.page, (after, limit)) if key is None else db.execute(HISTORY.page_of, (after, key, limit))
    try:
        for row in cursor:
            rows.append(row)
            room -= len(row[-1] or b"")
            if room <= 0:
                break
    finally:
        cursor.close()
    return rows


def numbers(db: apsw.Connection) -> tuple[int, int] | None:
    """Of the oldest and the newest record; None: there are none."""
    first, last = db.execute(HISTORY.bounds).get
    return None if first is None else (first, last)


def newest(db: apsw.Connection) -> int:
    last: int | None = db.execute(HISTORY.bounds).get[1]
    return last or 0


def issued(db: apsw.Connection) -> int:
    """The last number ever given to a record."""
    last: int | None = db.execute(HISTORY.issued).get
    return last or 0


def purge_step(tx: Tx, after: int, upto: int, key: bytes | None) -> tuple[int, int]:
    """One bounded step: remove records up to a number. Returns how many, and the number from which to go on."""
    before = tx.db.total_changes()
    if key is None:
        tx.run(HISTORY.delete_step, (upto, PURGE_STEP))
        gone = tx.db.total_changes() - before
        return gone, after if gone == PURGE_STEP else upto
    end = min(after + LOOK_STEP, upto)
    tx.run(HISTORY.delete_of, (after + 1, end, key))
    return tx.db.total_changes() - before, end
