"""The steps of a merge inside one shard: list its messages, and resolve what another history has resolved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import apsw

from ..._keys import ASIDE, is_keyless
from ..._sql import LANES, MERGE, OPERATE
from ..commit.tx import Tx
from . import history, lanes
from .headers import headers

ELSEWHERE: Final = history.End("acked")
"""The end of a message that another history has resolved."""
HISTORY_HEADER: Final = "strictq-merged-history"
TERM_HEADER: Final = "strictq-merged-term"
SEQ_HEADER: Final = "strictq-merged-seq"


class Listed(NamedTuple):
    """A message or dead letter of a shard, by its arrival number."""

    id: int
    key: bytes
    seq: int
    dead: int


def listed(db: apsw.Connection) -> list[Listed]:
    """Return every unresolved message and every dead letter."""
    return list(map(Listed._make, db.execute(MERGE.listed)))


def dedup_ids(db: apsw.Connection, behind: int) -> dict[int, str]:
    """Return the dedup ids of messages with an arrival number above `behind`."""
    return dict(db.execute(MERGE.dedup_ids, (behind,)))


def sends(
    db: apsw.Connection, messages: Sequence[Listed], at: int, origin: tuple[str, int], dedup_ids: dict[int, str], shard: int
) -> list[tuple[Listed, tuple[Any, ...]]]:
    """Return messages as rows of an outbox, with headers that name their source.

    Omits what an outbox delivered from a transaction before the fork: the other history has that transaction, too.

    Args:
        at: queue time of the fork.
        origin: the history and its term.
    """
    found = []
    for message in messages:
        row = db.execute(MERGE.message, (message.key, message.seq)).get
        named = as_arriving(message, row, at, origin, dedup_ids.get(message.id), shard)
        if named is not None:
            found.append((message, named))
    return found


def as_arriving(
    message: Listed, row: Sequence[Any], at: int, origin: tuple[str, int], dedup_id: str | None, shard: int
) -> tuple[Any, ...] | None:
    """Return the row of one message for `sends`. None: it is omitted."""
    known = headers(row[6], shard)
    if row[2] > at or HISTORY_HEADER in known:
        return _named(row, known, (*origin, message.seq), dedup_id)
    return None


def on_the_way(db: apsw.Connection, destination: int, after: int, origin: tuple[str, int], limit: int) -> list[tuple[Any, ...]]:
    """Return the same rows for what waits in an outbox."""
    rows: list[Any] = db.execute(MERGE.outbox, (destination, after, limit)).fetchall()
    return [_named(row, headers(row[6], -1), (*origin, None), row[5]) for row in rows]


def _named(
    row: Sequence[Any], known: dict[str, str], origin: tuple[str, int, int | None], dedup_id: str | None
) -> tuple[Any, ...]:
    """Return the row with headers that name its source. A message that was merged before keeps its first ones.

    Args:
        origin: history, term and seq; None: it was in an outbox and had no seq yet.
    """
    history_id, term, seq = origin
    said = {HISTORY_HEADER: history_id, TERM_HEADER: str(term)} | ({} if seq is None else {SEQ_HEADER: str(seq)})
    key = row[1].split(ASIDE)[0] if is_keyless(row[1]) else row[1]
    return (row[0], key, *row[2:5], dedup_id, json.dumps(said | known, ensure_ascii=False), *row[7:])


class Resolved(NamedTuple):
    """The outcome for messages that another history resolved: those that are resolved here now, and those that are leased."""

    done: list[Listed]
    leased: list[Listed]


def resolve(tx: Tx, messages: Sequence[Listed]) -> Resolved:
    """Resolve messages and dead letters that are resolved elsewhere, unless a consumer holds them now."""
    found = Resolved([], [])
    for key, some in groupby(messages, attrgetter("key")):
        lane = lanes.find(tx, key)
        if lane is not None:
            _resolve_lane(tx, lane, list(some), found)
    return found


def _resolve_lane(tx: Tx, lane: int, messages: list[Listed], found: Resolved) -> None:
    lease = lanes.lease_of(tx, lane)
    if lease is not None and not lease.ack_first and (lease.expired or lease.deadline <= tx.now):
        lanes.retake(tx, lease)  # its time is over and no consumer took the lane
        lease = None
    rows: list[tuple[int, int, bool]] = []
    for message in messages:
        row = tx.run(LANES.message, (lane, message.seq)).get
        dead = tx.run(MERGE.dead_letter, (lane, message.seq)).get
        if row is not None and row[1] == message.id:
            if lease is not None and lease.lo <= message.seq <= lease.hi:
                found.leased.append(message)
                continue
            rows.append((message.seq, message.id, row[-1] is None))
        elif dead is not None and dead[0] == message.id:
            _forget_dead(tx, lane, message, apart=bool(dead[1]))
        else:
            continue
        found.done.append(message)
    rows.sort()
    lanes.remove(tx, lane, rows, ELSEWHERE)
    tx.count_acks(len(rows))
    tx.dirty = True
    if lease is None:
        lanes.unlist(tx, lane)
        lanes.place(tx, lane)


def _forget_dead(tx: Tx, lane: int, message: Listed, *, apart: bool) -> None:
    tx.run(LANES.delete_dead, (lane, message.seq))
    if apart:
        tx.run(LANES.delete_body, (message.id,))
    tx.totals.dead -= 1
    tx.count_acks(1)
    tx.run(OPERATE.forget_redrives, (lane,))
