"""Named consumers over all shards: what each shard knows of them, who holds them, and what operators do about them.

`_handouts` is the holder's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import _reports as reports
from ._errors import ConsumerBusy, HandoutGone, StoreError
from ._store import Store, handing, looking
from ._store.calls import bound

if TYPE_CHECKING:
    from ._findings import ConsumerStatus
    from .queue import Queue


def statuses(store: Store) -> list[ConsumerStatus]:
    """See Queue.consumers."""
    found: dict[str, list[handing.Standing]] = {}
    ready, oldest = 0, []
    for shard in store.healthy():
        standings, waiting, at = shard.look(lambda db: looking.consumers(db, store.now()))
        ready += waiting
        oldest.append(at)
        for standing in standings:
            found.setdefault(standing.name, []).append(standing)
    return [_status(store, name, of, ready, oldest) for name, of in sorted(found.items())]


def _status(store: Store, name: str, of: list[handing.Standing], ready: int, oldest: list[int | None]) -> ConsumerStatus:
    from ._findings import ConsumerStatus

    since = [s.since for s in of if s.since is not None]
    sent = [at for at in (*oldest, *(s.oldest for s in of)) if at is not None]
    in_flight = sum(s.in_flight for s in of)
    active = _is_active(store, name)
    return ConsumerStatus(
        name=name, last=max(s.last for s in of), acked=max(s.acked for s in of),
        open=len(frozenset().union(*(s.open for s in of))), in_flight=in_flight,
        since=store.time.to_wall(min(since)) if since else None, kept=len(frozenset().union(*(s.kept for s in of))),
        kept_bytes=sum(s.kept_bytes for s in of), active=active, lag=ready + in_flight,
        age_seconds=max(store.now() - min(sent), 0) / 1e6 if sent else None, query=reports.read(store, name, active=active),
    )  # fmt: skip


def _is_active(store: Store, name: str) -> bool:
    lock = store.consumer_lock(name)
    try:
        return not lock.alone(0.0)
    except StoreError:
        return False  # a directory that can't be written: nobody could hold it from here, and it can't be asked
    finally:
        lock.leave()


def release_consumer(store: Store, name: str, *, force: bool) -> int:
    """See Queue.release_consumer."""
    lock = store.consumer_lock(name)
    if not lock.alone(0.0) and not force:
        raise ConsumerBusy(f"consumer {name!r} has a holder that is alive", hint="stop it first, or give force=True to fence it")
    try:
        if not any(k.epoch for k in read(store, name).values()):
            return 0
        begin_epoch(store, name)
        total = finish(store, name)
        for shard in store.shards:
            shard.run(lambda tx: handing.release(tx, name))
        return total + _give_back(store, name)
    finally:
        lock.leave()


def acknowledge(queue: Queue, consumer: str, n: int) -> int:
    """Ack hand-outs up to n, without being the holder: for those who learn that a batch is committed.

    A number names the same messages for ever, so this needs no epoch: whoever acks late acks what was processed, or nothing.

    Returns:
        How many messages are done.
    Raises:
        HandoutGone: n was never handed out; nothing changed.
    """
    store = queue._store
    store.require_open()
    known = read(store, consumer)
    if n > max(k.last for k in known.values()):
        raise HandoutGone(f"consumer {consumer!r} of this queue has had no hand-out {n}")
    return ack(store, consumer, known, n)


# ---- for whoever holds one, or ends that


def read(store: Store, name: str) -> dict[int, handing.Known]:
    """What each shard knows of a consumer."""
    return {s.number: s.read(lambda db: handing.look(db, name)) for s in store.shards}


def begin_epoch(store: Store, name: str) -> int:
    """An epoch that is newer than any, in every shard."""
    while True:
        epoch = max(k.epoch for k in read(store, name).values()) + 1
        if all(shard.run(bound(handing.take_over, name, epoch)) for shard in store.shards):
            return epoch


def finish(store: Store, name: str) -> int:
    """Bring the shards together after a crash between them: releases first, then acks. Returns the messages given back."""
    known = read(store, name)
    released = max((n for k in known.values() for n in k.released), default=0)
    for shard in store.shards:
        if any(n <= released for n in known[shard.number].open):
            shard.run(lambda tx: handing.release(tx, name, released))
    given_back = _give_back(store, name) if released else 0
    known = read(store, name)
    ack(store, name, known, max(k.acked for k in known.values()))
    return given_back


def _give_back(store: Store, name: str) -> int:
    total = 0
    for shard in store.shards:
        more = True
        while more:
            n, more = shard.run(lambda tx: handing.finish_release(tx, name))
            total += n
    return total


def ack(store: Store, name: str, known: Mapping[int, handing.Known], upto: int) -> int:
    """Ack open hand-outs up to a number, shard by shard. Returns how many messages are done."""
    return sum(
        shard.drain(lambda tx: handing.ack(tx, name, upto))
        for shard in store.shards
        if any(n <= upto for n in known[shard.number].open)
    )
