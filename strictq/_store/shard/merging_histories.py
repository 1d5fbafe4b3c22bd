"""The steps of a merge inside one shard: list its messages, and resolve what another history has resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import apsw

from ..._sql import MERGE
from ..._values.keys import ASIDE, is_keyless
from ..lane import entries as kinds
from ..lane.live_lane import LiveLane
from ..lane.memory import M_BODY, M_DUE, M_EXPIRES, M_KEY, M_OPTS, M_SENT_AT
from ..tables import dead, outputs
from . import checking, ending, expiring, history
from .messages import decode, headers_of
from .shard_lanes import ShardLanes, Tx

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


class Resolved(NamedTuple):
    """The outcome for messages that another history resolved: those that are resolved here now, and those that are leased."""

    done: list[Listed]
    leased: list[Listed]


def listed(store: ShardLanes) -> list[Listed]:
    """Return every unresolved message and every dead letter. No lane is loaded for that."""
    unresolved = list(store.arrivals.unresolved())
    places = store.loader.keys_of([i for i, key, _ in unresolved if is_keyless(key)])
    found = [Listed(i, places.get(i, key), seq, 0) for i, key, seq in unresolved]
    return found + [Listed(i, key, seq, 1) for key, i, seq in store.run(MERGE.dead_letters)]


def dedup_ids(db: apsw.Connection, behind: int) -> dict[int, str]:
    """Return the dedup ids of messages with an arrival number above `behind`."""
    return dict(db.execute(MERGE.dedup_ids, (behind,)))


def sends(
    store: ShardLanes, messages: Sequence[Listed], at: int, origin: tuple[str, int], dedup_ids: dict[int, str]
) -> list[tuple[Listed, tuple[Any, ...]]]:
    """Return messages as rows of an outbox, with headers that name their source.

    Omits what an outbox delivered from a transaction before the fork: the other history has that transaction, too.

    Args:
        at: queue time of the fork.
        origin: the history and its term.
    """
    rows = store.whole([message.id for message in messages])
    found = []
    for message in messages:
        row = rows[message.id]
        headers, *numbers, _ = decode(row[M_OPTS], store.shard)
        times = (row[M_SENT_AT], row[M_DUE], row[M_EXPIRES])
        sent = (message.id, row[M_KEY], *times, None, headers, *numbers, row[M_BODY])
        known = headers_of(headers, store.shard)
        if sent[2] > at or HISTORY_HEADER in known:
            found.append((message, _named(sent, known, (*origin, message.seq), dedup_ids.get(message.id))))
    return found


def on_the_way(db: apsw.Connection, destination: int, after: int, origin: tuple[str, int], limit: int) -> list[tuple[Any, ...]]:
    """Return the same rows for what waits in an outbox."""
    rows: list[Any] = db.execute(MERGE.outbox, (destination, after, limit)).fetchall()
    return [_named(row, headers_of(row[6], -1), (*origin, None), row[5]) for row in rows]


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


def kept_outputs(store: ShardLanes, messages: Sequence[Listed]) -> dict[int, tuple[int, str]]:
    """Return the kept outputs of messages, by their arrival numbers, with the times at which they may be deleted."""
    there = outputs.has_table(store.memory.mark)
    return outputs.of_arrivals(store.db, [message.id for message in messages]) if there else {}


def resolve(tx: Tx, messages: Sequence[Listed], kept: Mapping[int, tuple[int, str]]) -> Resolved:
    """Resolve messages and dead letters that are resolved elsewhere, unless a consumer holds them now.

    Args:
        kept: the outputs that their handlers left there.
    """
    store = tx.lanes
    found = Resolved([], [])
    for key, some in groupby(messages, attrgetter("key")):
        _resolve_lane(tx, store, store.loader.lane(key), list(some), found)
    ending.add_outputs(tx, [(m.id, m.key, m.seq, *kept[m.id]) for m in found.done if m.id in kept])
    return found


def _resolve_lane(tx: Tx, store: ShardLanes, lane: LiveLane, messages: list[Listed], found: Resolved) -> None:
    if lane.grant is not None and lane.grant.deadline <= tx.now and lane.leased():
        expiring.expire(tx, lane)  # its time is over and no consumer took the lane
    ids = sorted(message.id for message in messages)
    store.loader.cover(lane, ids)
    held = {i for _, i in lane.leased()} if lane.grant is not None else set()
    unresolved = {i for _, i in checking.unresolved_of(lane)}
    gone_ids: list[int] = []
    for message in messages:
        i = message.id
        if i in held:
            found.leased.append(message)
            continue
        if i in unresolved:
            gone_ids.append(i)
        elif buried := [row for row in dead.with_seqs(tx.db, lane.key, [message.seq]) if row.arrival == i]:
            dead.unbury(tx.db, buried)
            store.append(kinds.ACK, (), holder=kinds.DEAD, data=kinds.pack([i]))
        else:
            continue
        found.done.append(message)
    if gone_ids:
        gone_ids.sort()
        ending.keep(tx, gone_ids, ELSEWHERE)
        store.append(kinds.ACK, [(lane, gone_ids)])
