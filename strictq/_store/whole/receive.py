"""Receiving: claim from the shards in turn. If a receive is interrupted, nothing that it leased stays leased."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ..._values.errors import LeaseLost, PartialFailure, StoreBusy, StoreError, StrictqError
from ..commit.tx import bound
from ..lane.ranges import NOWHERE, Rerouted
from ..shard import claiming, settling
from ..shard.claiming import Attempt, Brought
from ..shard.leases import ID, SEQ, Claimed, Held, Request, Row, Settlement
from ..shard.settling import Advance
from ..shard.shard_file import Shard
from ..shard.shard_lanes import Tx
from .store import Store

PASSING_SECONDS: Final = 0.02
"""How long a receive waits for a shard that other calls are writing to before it claims from the next one."""
BUSY_LOOK: Final = 5_000
"""The microseconds after which a waiting receive returns to a shard that it skipped."""


class Joined:
    """Acks that a receive commits together with its leases, in the shards that it leases from.

    Attributes:
        work: the uncommitted acks of each shard.
        done: the refused acks of each shard that committed.
    """

    __slots__ = ("done", "work")

    def __init__(self, work: dict[int, Advance]) -> None:
        self.work = work
        self.done: dict[int, dict[Settlement, LeaseLost]] = {}

    @classmethod
    def of(cls, work: dict[int, tuple[Sequence[Settlement], Sequence[Settlement]]]) -> Joined:
        """Return the acks from each shard's `acks` and `starting` of `Storage.advance`."""
        return cls({shard: Advance(*some) for shard, some in work.items()})


def receive(
    store: Store, request: Request, into: list[Claimed], *, wait_for_busy: bool, joined: Joined | None = None
) -> int | None:
    """Lease what is ready now, shard by shard. Durable on return.

    If there are several shards, those that other calls are writing to are skipped, and so are quarantined ones.

    Args:
        into: an empty list for the leases. A caller that is interrupted before it has the result releases those in the list.
        wait_for_busy: if the other shards have nothing, wait for the skipped ones.
        joined: acks to commit with the leases. What remains in its `work` was not committed, or is not known to be.
    Returns:
        The latest queue time at which something becomes ready by itself. None: never.
    Raises:
        StoreError, PartialFailure: nothing was leased, because shards failed.
    """
    brought: list[Brought] = []
    if not store.confirming.active:
        if (
            joined is None
            and len(store.shards) == 1
            and request.among is None
            and _receive_directly(store, request, into, brought)
        ):
            return None
        return _receive(store, request, into, brought, wait_for_busy=wait_for_busy, joined=joined)
    confirming = store.confirming
    confirming.require_answers()
    with confirming.later():  # a receive that finds nothing has nothing to confirm
        soonest = _receive(store, request, into, brought, wait_for_busy=wait_for_busy)
    if into:
        try:
            confirming.wait()
        except BaseException:
            into.clear()
            with confirming.later():
                _give_back(brought)
            raise
    return soonest


def _receive(
    store: Store,
    request: Request,
    into: list[Claimed],
    brought: list[Brought],
    *,
    wait_for_busy: bool,
    joined: Joined | None = None,
) -> int | None:
    if store.directory is None:
        store.forget()  # an in-memory queue has no thread for it
    elif time.monotonic() >= store.consumers.dead_at:
        with suppress(StrictqError):  # it is retried
            store.consumers.end_dead()
    failures: list[StrictqError] = []
    moved = False
    soonest: int | None = None
    where = store.places_of(request.keys) if request.keys is not None and store.has_moved else None
    shards = _claimable(store, request.keys, request.among, where)
    seconds = PASSING_SECONDS if len(shards) > 1 else None
    room = request.room
    try:
        while shards:
            busy: list[Shard] = []
            for shard in shards:
                if room <= 0 or (into and seconds is None):
                    break
                try:
                    wanted = request._replace(room=room) if into else request
                    if where is not None:
                        wanted = wanted._replace(keys=tuple(where[shard.number]), placed=True)
                    got, timer = _claim_from(store, shard, wanted, brought, seconds, joined)
                    if where is None and request.keys is not None and shard.lanes.memory.ranges is not None:
                        store.has_moved = moved = True  # the keys may be in other shards than those that were asked
                except Rerouted as e:
                    # A key's range has moved since. The caller looks again at once. Until ranges are known to have moved, each
                    # shard is asked for all of the keys.
                    store.has_moved = True
                    if e.shard != NOWHERE:
                        store.learn(e)
                    soonest, moved = store.now(), True
                    continue
                except StoreError as e:
                    _give_back([each for each in brought if each[0] is shard])  # a failed sync follows a COMMIT
                    if seconds is not None and isinstance(e, StoreBusy):
                        shard.gave = False
                        busy.append(shard)
                    else:
                        failures.append(e)
                    continue
                if got is not None and got.messages:
                    into.append(got)
                    room -= got.messages
                soonest = timer if soonest is None or (timer is not None and timer < soonest) else soonest
            if busy and not wait_for_busy:
                soonest = store.now() + BUSY_LOOK
            shards, seconds = busy if wait_for_busy and not into else [], None
    except BaseException:
        into.clear()
        _give_back(brought)
        raise
    if moved and not into:
        return _receive(store, request, into, brought, wait_for_busy=wait_for_busy, joined=joined)
    if not into and failures:
        if len(failures) == 1:
            raise failures[0]
        raise PartialFailure("some shards failed, and the others have no ready message", failures) from failures[0]
    return soonest


def _receive_directly(store: Store, request: Request, into: list[Claimed], brought: list[Brought]) -> bool:
    """Receive from a single shard, which probably has messages, with one statement. Return False if that is not possible now."""
    shard = store.shards[0]
    if not shard.gave or time.monotonic() >= store.consumers.dead_at:
        return False
    try:
        got = shard.claim_alone(Attempt(request, brought), None)
        if got is None:
            return False
        _renew_worn(store, shard, got, request)
        into.append(got)
    except BaseException:
        into.clear()
        _give_back(brought)
        raise
    return True


def failures(store: Store, keys: Sequence[bytes] | None) -> list[StoreError | None]:
    """Return why the shards that a receive of these keys reads are quarantined; None for each that serves."""
    return [shard.failed for shard in _claimable(store, keys)]


def more(shard: Shard, held: Held, seq: int, limit: int) -> list[Row]:
    """Extend a lease. See Storage.more."""
    batch = held.some([seq])
    return shard.lease(bound(settling.more, batch, limit), lambda rows: [row[ID] for row in rows[:1]])


def _claim_from(
    store: Store, shard: Shard, request: Request, brought: list[Brought], seconds: float | None, joined: Joined | None
) -> tuple[Claimed | None, int | None]:
    """Claim what one shard has ready. If it has nothing, return when that may change by itself.

    Raises:
        StoreBusy: the shard's write lock was not free within that many seconds; nothing changed.
    """
    may_be_alone = joined is None or shard.number not in joined.work
    got: Claimed | None = None
    if may_be_alone and request.room <= claiming.ALONE_MAX and store.has_news(shard):
        shard.gave = True
    if shard.gave:
        request = _with_elsewhere(store, shard, request)
    if shard.gave and may_be_alone and request.room <= claiming.ALONE_MAX:
        # A statement that finds nothing costs less than a look. A single shard's was tried, see `_receive_directly`.
        may_be_alone = False
        if len(store.shards) > 1:
            got = _claim_alone(shard, request, brought, seconds)
        shard.gave = got is not None
    if not shard.gave:
        found, soonest = store.outlook(shard, seconds)
        passed_over = request.keys is not None and shard.lanes.memory.order.passes_over  # whose keys may be named
        if not found and not passed_over:
            store.count_empty(shard.number)
            return None, soonest
        request = _with_elsewhere(store, shard, request)
    if may_be_alone:
        got = _claim_alone(shard, request, brought, seconds)
    if got is None:
        got = _claim(shard, request, brought, seconds, joined)
    if got.messages:
        _renew_worn(store, shard, got, request)
        return got, None
    store.count_empty(shard.number)
    soonest = store.outlook(shard, seconds)[1]
    if got.throttled is not None:
        at = store.now() + got.throttled
        soonest = at if soonest is None else min(soonest, at)
    return None, soonest


def _with_elsewhere(store: Store, shard: Shard, request: Request) -> Request:
    """Return a request that knows the keys in flight in other shards, if tenants may have only so many."""
    elsewhere = store.quotas.in_flight_elsewhere(shard)
    return request if elsewhere is None else request._replace(elsewhere=elsewhere)


def _claim_alone(shard: Shard, request: Request, brought: list[Brought], seconds: float | None) -> Claimed | None:
    """Lease from one shard with a single statement. Arguments as for `_claim`. None: that is not possible now."""
    got = shard.claim_alone(Attempt(request, brought), seconds)
    if got is not None:
        shard.gave = True
    return got


def _claim(
    shard: Shard, request: Request, brought: list[Brought], seconds: float | None, joined: Joined | None = None
) -> Claimed:
    """Lease from one shard until the claim returns something or nothing is ready.

    Args:
        brought: gets each claim as soon as it is made, for a caller that is interrupted.
        seconds: how long to wait for the shard's write lock; None: BUSY_SECONDS.
    """

    work = None if joined is None else joined.work.get(shard.number)
    refused: dict[Settlement, LeaseLost] = {}

    def take(tx: Tx) -> Claimed:
        nonlocal refused
        if work is not None:
            refused = work(tx)
        claimed = claiming.claim(tx, request)
        if claimed.messages:
            brought.append((shard, tx, claimed))
        return claimed

    resolves = request.ack_first or request.endless
    while True:
        claimed = shard.drain(take, seconds) if resolves or work is not None else shard.lease(take, _heads, seconds)
        if joined is not None and work is not None:
            joined.done[shard.number], work = refused, None
            del joined.work[shard.number]
        shard.gave = claimed.messages > 0
        if claimed.messages or not claimed.more:
            return claimed


def _heads(claimed: Claimed) -> list[int]:
    return [rows[0][ID] for rows in claimed.rows]


def _renew_worn(store: Store, shard: Shard, got: Claimed, request: Request) -> None:
    """Renew leases if the commit took so long that little of them is left. No consumer has them yet, so they restart now."""
    worn = store.now() + got.lease // 2
    if not got.deadline < worn:
        return
    batches = [held.some([held.rows[0][SEQ]]) for held in got.leases]
    if request.ack_first:
        # They are resolved, so the messages are this consumer's even if another one leases the lanes.
        with suppress(StrictqError):
            _renewed(shard, got, batches)
        return
    got.keep(_renewed(shard, got, batches))


def _renewed(shard: Shard, got: Claimed, batches: list[Settlement]) -> list[Held]:
    """Return the leases whose deadline could be moved."""
    kept: list[Held] = []
    for held, deadline in zip(got.leases, shard.drain(bound(settling.extend, batches, got.lease), synced=False), strict=True):
        if not isinstance(deadline, LeaseLost):
            held.deadline = deadline
            kept.append(held)
    return kept


def _give_back(brought: list[Brought]) -> None:
    """Release everything that an interrupted receive leased.

    Uncommitted leases are not touched: the next claim may have got the same token.
    """
    for shard, tx, got in brought:
        if not tx.committed:
            continue
        for held in got.leases:
            batch = held.some([held.rows[0][SEQ]])
            with suppress(StrictqError):  # the deadline ends it then
                shard.drain(bound(settling.release, [batch]), synced=False)


def _claimable(
    store: Store,
    keys: Sequence[bytes] | None,
    among: frozenset[int] | None = None,
    where: dict[int, list[bytes]] | None = None,
) -> Sequence[Shard]:
    """Return the shards to claim from, in rotation. Quarantined ones are skipped, unless there are no others.

    Args:
        where: the keys by shard, if ranges have moved.
    """
    shards = store.rotation()
    if among is not None and keys is None:
        shards = [s for s in shards if s.number in among]
    if len(shards) == 1:
        return shards
    if keys is not None:
        wanted = {store.shard_of(key).number for key in keys} if where is None else set(where)
        shards = [s for s in shards if s.number in wanted]
    return [s for s in shards if s.failed is None] or shards


LOOK_AGAIN_SECONDS: Final = 0.9
"""A waiting receive looks again at this interval, in case a wake-up was missed or a worker died."""


WATCH_SECONDS: Final = 30.0
"""The same for a wait that receives nothing, if other processes' wake-ups are noticed: upkeep ends the leases of the dead."""


def look_again(store: Store, soonest: int | None, most: float = LOOK_AGAIN_SECONDS) -> float:
    """Return the seconds after which to look again: at queue time `soonest` a message becomes ready, if not before."""
    if soonest is None:
        return most
    # Queue time and the waiting thread's clock can differ by microseconds; a minimum prevents a busy loop.
    return min(most, max((soonest - store.now()) / 1_000_000, 0.001))


class Patience:
    """One wait, which begins when it is made."""

    __slots__ = ("_ends", "_most", "_store", "_until")

    def __init__(self, store: Store, wait: int | None, *, receives: bool = True) -> None:
        """Begin a wait.

        Args:
            wait: microseconds; None waits for ever.
            receives: the caller receives whenever it looks.
        """
        self._store = store
        self._most = LOOK_AGAIN_SECONDS if receives or not store.waker.hears_others else WATCH_SECONDS
        self._until = None if wait is None else time.monotonic() + wait / 1_000_000
        self._ends = None if wait is None or store.steered is None else store.clock.boot() + wait

    def _due(self) -> int | None:
        at = self._store.soonest()
        return None if at is None else at - self._store.time_offset

    @property
    def over(self) -> bool:
        """Whether the time has elapsed. From then on no ready message may be skipped."""
        return (self._until is not None and time.monotonic() >= self._until) or (
            self._ends is not None and self._store.clock.boot() >= self._ends
        )

    def left(self, soonest: int | None) -> float:
        """Return the seconds to wait before looking again: until a lease or delay ends, or the caller's time has elapsed.

        Args:
            soonest: queue time at which a message becomes ready by itself. None: never.
        """
        steered = self._store.steered
        if steered is not None:
            if self._ends is not None and steered.boot() >= self._ends:
                return 0.0
            if steered.skip(self._due, self._ends):
                return 1e-9
        left = look_again(self._store, soonest, self._most)
        return left if self._until is None else min(left, self._until - time.monotonic())
