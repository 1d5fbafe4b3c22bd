"""Read-only reports on a queue, over its shards. Those of one shard are in shard/reporting.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from .. import _files as files
from .. import _hints as hints
from .._clock import MICROSECONDS, QueueTime
from .._durations import Model
from .._errors import PartialFailure, StoreError, UnknownMessage
from .._keys import decode_key, is_keyless
from .._stats import OpenBreaker, ReplicationStatus, ShardStats, Stats, WorkerLoad
from .commit.app_database import Rows
from .commit.calls import bound
from .disk import wal_file
from .shard import failures, history, looking, reporting
from .shard.counting import FEW
from .shard.headers import headers as decode_headers
from .shard.looking import LaneView
from .shard.shard_lanes import ShardLanes
from .shard_file import Shard
from .shipping.status import ShipProgress, ShipStatus, somebody_ships
from .shipping.values import FRAME_BYTES
from .store import Store
from .tables import key_states

if TYPE_CHECKING:
    from .._findings import AttemptError, DeadLetter, Explanation, HistoryRecord, KeyDepth, MessageStatus, PeekedMessage

T = TypeVar("T")

PEEKED_MAX: Final = 1_000
"""A longer look at a lane's messages does not keep writers waiting."""
_COUNTS: Final = (
    "ready", "in_flight", "delayed", "held", "dead", "lanes", "sends", "receives", "claims", "empty_receives", "acks", "retries",
    "redeliveries", "expired", "dropped", "purged", "dead_letters", "rejected", "redriven",
    "outbox", "disk_bytes", "wal_bytes", "handout_bytes",
)  # fmt: skip
"""The counts that are summed over shards."""


def stats(store: Store) -> Stats:
    """Return counts of the queue and of each shard, and what workers learned and report."""
    shards = tuple(_shard_stats(store, shard) for shard in store.shards)
    counts: dict[str, Any] = {name: sum(getattr(s, name) for s in shards) for name in _COUNTS}
    claims = counts["claims"] + counts["empty_receives"]
    drains = [s.drain_seconds for s in shards]
    workers = tuple(store.notices(WorkerLoad))
    slots = sum(w.concurrency for w in workers)
    models: dict[str, str] = {}
    with suppress(StoreError):  # a broken queue.db must not hide the shards' counts
        models = store.estimates()
    return Stats(
        **counts,
        oldest_age_seconds=max((s.oldest_age_seconds for s in shards if s.oldest_age_seconds is not None), default=None),
        first_attempt_age_seconds=max(
            (s.first_attempt_age_seconds for s in shards if s.first_attempt_age_seconds is not None), default=None
        ),
        empty_receive_ratio=counts["empty_receives"] / claims if claims else 0.0,
        drain_seconds=None if None in drains else max((d for d in drains if d is not None), default=0.0),
        shards=shards,
        prepare=Model.from_json(models.get("prepare", "")).snapshot(),
        process=Model.from_json(models.get("process", "")).snapshot(),
        breakers=tuple(store.notices(OpenBreaker)),
        workers=workers,
        busy_ratio=sum(w.busy_ratio * w.concurrency for w in workers) / slots if slots else None,
        replication=replication(store),
    )


def replication(store: Store) -> ReplicationStatus | None:
    """Return the status of the replica. None: the queue was never replicated."""
    if store.look is not None:
        return store.look.status()
    known, directory = store.replication, store.directory
    if known is None or directory is None:
        return None
    status = ShipStatus.read(directory, known.history_id)
    behind = sum(_unshipped(shard, status) for shard in store.shards) if known.ships else 0
    x = ShipProgress.read(directory)
    shipped = status.segment >= 0
    lag = max(store.now() - x, 0) / MICROSECONDS if shipped and x else None
    return ReplicationStatus(
        mode=known.mode,
        target=known.target,
        history_id=known.history_id,
        term=known.term,
        shipping=known.ships and somebody_ships(directory),
        lag_seconds=0.0 if lag is not None and behind == 0 else lag,
        lag_bytes=behind,
        confirmed_at=status.wall / MICROSECONDS if shipped else None,
        segment=status.segment if shipped else None,
        last_error=status.error or None,
        stopped=status.stopped,
        lapsed=status.lapsed,
        write_once=json.loads(known.settings or "{}").get("write_once", True),
    )


def _unshipped(shard: Shard, status: ShipStatus) -> int:
    """Return the number of bytes in a shard's WAL that are not at the target."""
    assert shard.path is not None
    known = status.captured[shard.number] if shard.number < len(status.captured) else ("", 0)
    return wal_file.frames_behind(shard.path, known) * FRAME_BYTES


def _shard_stats(store: Store, shard: Shard) -> ShardStats:
    try:
        empties = store.unwritten_empties(shard.number)

        def stats(lanes: ShardLanes, most: int | None) -> ShardStats | None:
            return reporting.stats(lanes, shard.range.bounds, store.time, shard.path, empties, most)

        found = shard.view(lambda lanes: stats(lanes, FEW)) or shard.survey(lambda lanes: stats(lanes, None))
        assert found is not None
        return found
    except StoreError as e:
        if shard.failed is None:
            raise  # its counts are unknown, not 0
        zeros: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
        return ShardStats(
            shard=shard.number, hash_lo=shard.range.bounds[0], hash_hi=shard.range.bounds[1], **zeros,
            oldest_age_seconds=None, first_attempt_age_seconds=None, drain_seconds=None,
            quarantined=hints.QUARANTINED.of(message=Exception.__str__(e), hint=e.hint) if e.hint else str(e),
        )  # fmt: skip


def top_keys(store: Store, n: int, by: Literal["depth", "age"]) -> list[KeyDepth]:
    """Return the n deepest keys, or those with the oldest messages."""
    found: list[KeyDepth] = []
    for shard in store.healthy():
        found += shard.survey(lambda lanes: reporting.top_keys(lanes, n, by, store.time))
    rank = "depth" if by == "depth" else "oldest_age_seconds"
    return sorted(found, key=lambda k: getattr(k, rank), reverse=True)[:n]


def _look_at(store: Store, shard: Shard, key: bytes, report: Callable[[LaneView | None], T], *, long: bool = False) -> T:
    """Return a report on one lane. None: nothing was ever sent to it.

    Args:
        long: the report may take so long that writers must not wait for it.
    """
    look = shard.survey if long else shard.view
    return look(lambda lanes: report(looking.view(lanes, key, store.now())))


def _look_at_keyless(store: Store, number: int, arrival: int, report: Callable[[LaneView, int], T | None]) -> T | None:
    """Return a report on a keyless message and its lane. None: it is resolved, or has a key.

    Raises:
        UnknownMessage: its number was never issued.
    """

    def look(lanes: ShardLanes) -> T | None:
        found = looking.keyless(lanes, arrival, store.now())
        return None if found is None else report(*found)

    return store.shards[number].view(look)


def peek(store: Store, key: bytes | None, limit: int, seq: int) -> list[PeekedMessage]:
    """Return the first messages of a key, or the oldest ones of all keys."""
    if key is not None:
        shard = store.shard_of(key)
        return _look_at(
            store, shard, key,
            lambda view: [] if view is None else reporting.peeked(view, seq, limit, store.time, shard.number),
            long=limit > PEEKED_MAX,
        )  # fmt: skip
    found: list[PeekedMessage] = []
    for shard in store.healthy():
        found += shard.survey(bound(_peek_oldest, limit, store.time))
    return sorted(found, key=lambda message: message.enqueued_at)[:limit]


def _peek_oldest(lanes: ShardLanes, limit: int, time: QueueTime) -> list[PeekedMessage]:
    found: list[PeekedMessage] = []
    views: dict[bytes, LaneView] = {}
    for arrival, key, seq in lanes.arrivals.unresolved():
        if is_keyless(key):
            key = lanes.loader.keys_of([arrival])[arrival]
        if key not in views and (one := looking.view(lanes, key, time.now())) is not None:
            views[key] = one
        found += reporting.peeked(views[key], seq, 1, time, lanes.shard)
        if len(found) == limit:
            break
    return found


def peek_keyless(store: Store, shard: int, arrival: int) -> list[PeekedMessage]:
    """Return the unresolved keyless message with this arrival number, if there is one."""

    def report(view: LaneView, seq: int) -> list[PeekedMessage]:
        return [message for message in reporting.peeked(view, seq, 1, store.time, shard) if message.id == arrival]

    try:
        return _look_at_keyless(store, shard, arrival, report) or []
    except UnknownMessage:
        return []


def status(store: Store, key: bytes, seq: int) -> MessageStatus:
    """Return the status of one message."""
    return _look_at(store, store.shard_of(key), key, lambda view: reporting.status(view, key, seq, store.time))


def status_of_keyless(store: Store, shard: int, arrival: int) -> MessageStatus | None:
    """Return the status of the keyless message with this arrival number. None: it is resolved, or has a key."""

    def report(view: LaneView, seq: int) -> MessageStatus | None:
        found = reporting.status_in(view, seq, store.time)
        return None if found.state == "resolved" else found

    return _look_at_keyless(store, shard, arrival, report)


def explain(store: Store, key: bytes) -> Explanation:
    """Return why a key is, or is not, delivered now."""
    shard = store.shard_of(key)
    return _look_at(store, shard, key, lambda view: reporting.explain(view, key, store.time, shard.number, store.config))


def key_state(store: Store, key: bytes) -> bytes | None:
    """Return the committed state of a key."""
    return store.shard_of(key).read(bound(key_states.of, key))


def errors(store: Store, shard: int, key: bytes, seq: int) -> tuple[AttemptError, ...]:
    """Return the errors of an unresolved message's attempts, oldest first."""
    where = store.shards[shard]  # a parked keyless message has a key of its own, whose hash may be another shard's
    return _look_at(store, where, key, lambda view: () if view is None else reporting.errors(view, seq, store.time))


def dead_letters(store: Store, key: bytes | None, limit: int) -> list[DeadLetter]:
    """Return dead letters of one key, or of all shards in turn."""
    with files.late():
        from .._findings import DeadLetter

    out: list[DeadLetter] = []
    wall = store.time.to_wall
    for shard in store.healthy() if key is None else [store.shard_of(key)]:
        rows = shard.read(bound(looking.dead_letters, key, limit - len(out)))
        out += [
            DeadLetter(
                key=decode_key(k), seq=seq, id=i, body=body, headers=decode_headers(headers, shard.number), kind=kind,
                reason=reason, attempts=attempts, enqueued_at=wall(sent_at), died_at=wall(died_at),
                errors=failures.shown(errors, store.time), output=output,
            )
            for k, seq, i, body, headers, kind, reason, attempts, sent_at, died_at, errors, output in rows
        ]  # fmt: skip
        if len(out) >= limit:
            break
    return out


def records(store: Store, shard: int, after: int, key: bytes | None, limit: int) -> list[HistoryRecord]:
    """Return records of finished messages of one shard, or of one of its keys."""
    with files.late():
        from .._findings import HistoryRecord

    wall = store.time.to_wall
    rows = store.shards[shard].look(lambda db: history.page(db, after, key, limit))
    return [
        HistoryRecord(
            shard, n, decode_key(k), seq, i, wall(sent_at), None if first_at is None else wall(first_at), wall(done_at),
            attempts, prepare, process, size, size_hint, outcome, body, failures.shown(errors, store.time), output,
        )
        for (
            n, k, seq, i, sent_at, first_at, done_at, attempts, prepare, process, size, size_hint, outcome, errors, output, body,
        ) in rows
    ]  # fmt: skip


def records_end(store: Store, shard: int) -> int:
    """Return the last record number that this shard ever issued. All records up to it survive a power cut on return."""
    issued = store.shards[shard].look(history.issued)
    store.shards[shard].sync()
    return issued


def query(store: Store, sql: str, params: Sequence[Any] | dict[str, Any], key: bytes | None) -> Rows:
    """Return rows of a program's own tables, of all shards or of one key's."""
    shards = store.shards if key is None else [store.shard_of(key)]
    results: list[Any] = []
    for shard in shards:
        try:
            results.append(shard.query(sql, params))
        except StoreError as e:
            results.append(e)
    failed = [r for r in results if isinstance(r, StoreError)]
    if failed:
        if len(shards) == 1:
            raise failed[0]
        raise PartialFailure("some shards could not be read: their rows are missing", results) from failed[0]
    return Rows.together(results)
