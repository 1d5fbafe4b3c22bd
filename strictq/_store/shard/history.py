"""Records of finished messages, if the queue is configured to keep them.

They are written in the transaction in which a message leaves its lane, just before it does. Their age and number are bounded:
every transaction that adds records removes a few of the oldest expired ones.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from ..._sql import HISTORY
from ..._values.config import QueueConfig
from ..commit.tx import SECOND
from .shard_lanes import Tx

TRIM_STEP_MIN: Final = 64
"""The minimum number of records that may be removed with each addition; more if more were added."""
PURGE_STEP: Final = 2_000
PAGE_BYTES: Final = 32 * 1024 * 1024
"""The approximate size of the bodies in one page. A page has at least one record."""
LOOK_STEP: Final = 20_000
"""The number of records that one transaction of a key's purge reads."""


class End:
    """The end of messages, as their records describe it.

    Attributes:
        attempts: how many the rows do not include yet.
        prepare_seconds, process_seconds: the durations of their handler; None: unknown.
        output: the handler's output. None: what is stored with the message.
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


def bounds(config: QueueConfig, now: int, added: int) -> tuple[int, int, int]:
    """Return what is removed of the oldest records after others were added, as `forget` takes it."""
    return max(2 * added, TRIM_STEP_MIN), config.history_records_max, now - int(config.history_seconds * SECOND)


def page(db: apsw.Connection, after: int, key: bytes | None, limit: int) -> list[tuple[Any, ...]]:
    """Return records in the order in which they were written. The page ends early if the bodies are too large."""
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
    """Return the numbers of the oldest and the newest record. None: there are none."""
    first, last = db.execute(HISTORY.bounds).get
    return None if first is None else (first, last)


def newest(db: apsw.Connection) -> int:
    last: int | None = db.execute(HISTORY.bounds).get[1]
    return last or 0


def issued(db: apsw.Connection) -> int:
    """Return the last number that a record ever got."""
    last: int | None = db.execute(HISTORY.issued).get
    return last or 0


def purge_step(tx: Tx, after: int, upto: int, key: bytes | None) -> tuple[int, int]:
    """Remove records up to a number in one bounded step. Return how many, and the number from which to continue."""
    before = tx.db.total_changes()
    if key is None:
        tx.run(HISTORY.delete_step, (upto, PURGE_STEP))
        gone = tx.db.total_changes() - before
        return gone, after if gone == PURGE_STEP else upto
    end = min(after + LOOK_STEP, upto)
    tx.run(HISTORY.delete_of, (after + 1, end, key))
    return tx.db.total_changes() - before, end
