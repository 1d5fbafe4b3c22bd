"""Receiving: the part of Queue that hands messages out."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from typing import Final

from . import _validate as validate
from ._errors import LeaseLost, PartialFailure, StoreError, StrictqError
from ._keys import Key
from ._settling import Settling
from ._store import Store, engine, handed
from ._store.calls import bound
from ._store.router import Brought
from ._store.shard import Shard
from .delivery import OPEN, SETTLED, Call, Delivery, Lease

RELEASES_TOGETHER: Final = 100
LOOK_AGAIN_SECONDS: Final = 1.0
"""A waiting receive looks by itself so often, should a wake-up ever be missed."""


def look_again(store: Store, soonest: int | None) -> float:
    """Seconds after which to look again by oneself: when, at queue time `soonest`, something becomes ready, if not before."""
    if soonest is None:
        return LOOK_AGAIN_SECONDS
    # Queue time and the waiting thread's clock need not agree to the microsecond: never a busy loop.
    return min(LOOK_AGAIN_SECONDS, max((soonest - store.now()) / 1_000_000, 0.001))


class Patience:
    """How long a receive waits: by the machine's clock, and by a test's where one steers time."""

    __slots__ = ("_ends", "_store", "_until")

    def __init__(self, store: Store, wait: float | None) -> None:
        length = None if wait is None else validate.microseconds("wait", wait)
        self._store = store
        self._until = None if length is None else time.monotonic() + length / 1_000_000
        self._ends = None if length is None or store.steered is None else store.clock.boot() + length

    def _due(self) -> int | None:
        at = self._store.soonest()
        return None if at is None else at - self._store.time_offset

    def left(self, soonest: int | None) -> float:
        """Seconds to wait before looking again: until a lease or delay ends, or the caller's time is over.

        Args:
            soonest: queue time at which something becomes ready by itself; None: never.
        """
        steered = self._store.steered
        if steered is not None:
            if self._ends is not None and steered.boot() >= self._ends:
                return 0.0
            if steered.skip(self._due, self._ends):
                return 1e-9
        left = look_again(self._store, soonest)
        return left if self._until is None else min(left, self._until - time.monotonic())


class Receiving(Settling):
    """receive and consume."""

    def receive(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = 0.0,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> list[Delivery]:
        """Lease the oldest ready messages: the oldest ready head, as many more of its lane as fit, and again from there.

        One transaction per shard touched; durable on return. Two live leases never share a lane.

        Args:
            max_messages: 1..100,000.
            per_key: at most so many of each key; 1 gives the heads of many lanes.
            wait: seconds to wait for a first message; 0 returns at once, None waits for ever.
            lease_seconds: how long the lanes are held; None: the queue's lease_seconds.
            keys: only these.
            consumer: who holds them, shown by explain; None: host and process id.
            ack_first: resolve on receive (at most once); the lanes stay leased until `d.done()` or the deadline.
        Returns:
            0..max_messages deliveries; seq ascending within a key.
        Raises:
            InvalidArgument: nothing changed.
            StoreError, PartialFailure: nothing was leased, because shards failed.
        Source: docs/explanation/leases.md
        """
        request = self._request(max_messages, per_key, lease_seconds, keys, consumer, ack_first)
        deliveries: list[Delivery] = []
        try:
            self._receive_into(deliveries, request, wait)
        except BaseException:
            self._release_rest(deliveries)
            raise
        return deliveries

    def _receive_into(self, out: MutableSequence[Delivery], request: engine.Request, wait: float | None) -> None:
        """Receive into what the caller has in hand already: an interrupt on the way back loses nothing that it can't release."""
        store = self._store
        store.require_open()
        patience = Patience(store, wait)
        while True:
            seen = store.waker.seen()
            soonest = self._claim_into(out, request)
            if out:
                return
            left = patience.left(soonest)
            if left <= 0:
                return
            store.waker.wait(seen, left, idle=request.keys is None)
            store.require_open()

    def _request(
        self,
        max_messages: int,
        per_key: int | None,
        lease_seconds: float | None,
        keys: Iterable[Key] | None,
        consumer: str | None,
        ack_first: bool,
    ) -> engine.Request:
        validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
        if per_key is not None:
            validate.whole("per_key", per_key, 1, validate.MESSAGES_MAX)
        length = None if lease_seconds is None else validate.microseconds("lease_seconds", lease_seconds, minimum=0.001)
        who = default_consumer() if consumer is None else validate.name("consumer", consumer)
        return engine.Request(max_messages, per_key, length, who, bool(ack_first), validate.keys(keys))

    def _receive_once(self, request: engine.Request) -> tuple[list[Delivery], int | None]:
        """Claim what is ready now. Also when, at the latest, that may change without anybody writing (queue time)."""
        deliveries: list[Delivery] = []
        soonest = self._claim_into(deliveries, request)
        return deliveries, soonest

    def _claim_into(self, out: MutableSequence[Delivery], request: engine.Request) -> int | None:
        """Claim what is ready now, into `out`, which is empty. Returns when, at the latest, that may change by itself."""
        store = self._store
        failures: list[StrictqError] = []
        soonest: int | None = None
        brought: list[Brought] = []
        room = request.room
        try:
            for shard in self._claimable(request):
                if room <= 0:
                    break
                try:
                    got = None
                    if shard.gave or store.outlook(shard)[0]:
                        got = store.claim(shard, request if room == request.room else engine.smaller(request, room), brought)
                    if got is None or not got.leases:
                        store.count_empty(shard.number)
                        timer = store.outlook(shard)[1]
                        soonest = timer if soonest is None or (timer is not None and timer < soonest) else soonest
                        continue
                except StoreError as e:
                    failures.append(e)
                    continue
                fresh = self._deliveries(shard, got, request)
                out.extend(fresh)
                room -= len(fresh)
        except BaseException:
            out.clear()
            self._give_back(brought)
            raise
        if not out and failures:
            if len(failures) == 1:
                raise failures[0]
            raise PartialFailure("shards failed, and nothing was ready in the others", failures) from failures[0]
        return soonest

    def _claimable(self, request: engine.Request) -> Sequence[Shard]:
        """The shards to ask, in rotation. Quarantined ones are passed over, unless there are no others."""
        store = self._store
        shards = store.rotation()
        if request.keys is not None:
            wanted = {store.shard_of(k).number for k in request.keys}
            shards = [s for s in shards if s.number in wanted]
        return [s for s in shards if s.failed is None] or shards

    def _deliveries(self, shard: Shard, got: engine.Claimed, request: engine.Request) -> list[Delivery]:
        out: list[Delivery] = []
        late: list[Lease] = []
        seconds = got.lease
        worn = self._store.now() + seconds // 2
        call = Call(self, shard.number, request.consumer, request.ack_first, request.charge)
        for held in got.leases:
            lease = Lease(call, held, seconds)
            if held.deadline < worn:
                late.append(lease)
            for row in held.rows:
                out.append(Delivery(row, lease))  # noqa: PERF401 - a list for each lane would be slower
        # Where the commit took so long that little is left of the lease: nobody has it yet, so it starts again now.
        if late and request.ack_first:
            # Resolved already: they are nobody else's, whoever has the lane by now.
            with suppress(StrictqError):
                self._renew(late, seconds)
        elif late:
            lost = self._renew(late, seconds)
            out = [d for d in out if d.lease not in lost]
        return out

    def _renew(self, leases: list[Lease], seconds: int) -> set[Lease]:
        """Extend leases; those that are lost."""
        lost: set[Lease] = set()
        for lease in leases:
            batch = lease._batch([lease._lo])
            (deadline,) = self._shard(lease).drain(bound(engine.extend, [batch], seconds))
            if isinstance(deadline, LeaseLost):
                lost.add(lease)
            else:
                lease._deadline = deadline
        return lost

    def _give_back(self, brought: list[Brought]) -> None:
        """An interrupted receive: nothing it leased may stay leased.

        What was not committed is left alone: the next claim may have been given the same token.
        """
        for shard, tx, got in brought:
            if not tx.committed:
                continue
            for held in got.leases:
                batch = engine.Batch(held.lane, held.key, held.token, [held.rows[0][handed.SEQ]])
                try:
                    shard.drain(bound(engine.release, batch))
                except StrictqError:
                    continue  # then the deadline ends it

    def consume(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = None,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> Iterator[Delivery]:
        """Receive again and again, and hand out one by one: for ever, or until nothing came for `wait` seconds.

        Leaving the loop gives back what was not handed out, unused. In a with block, the ack of a message also starts the
        next one of its key, so that counting attempts costs no transaction of its own.

        The arguments are those of receive; max_messages is how many are leased ahead. With ack_first it is one, whatever it
        says: what is resolved could not be given back.
        """
        wanted = validate.several(keys)
        ahead = leased_ahead(max_messages, ack_first)
        while True:
            waiting: deque[Delivery] = deque()
            try:
                request = self._request(ahead, per_key, lease_seconds, wanted, consumer, ack_first)
                self._receive_into(waiting, request, wait)
                if not waiting and wait is not None:
                    return
                while waiting:
                    d = waiting[0]
                    fresh = self._still_fresh(d)
                    # Not before: an interrupt on the way must find it among the rest. And no call, behind which one could come.
                    del waiting[0]
                    if not fresh:
                        continue
                    if waiting and waiting[0].lease is d.lease:
                        d._next = waiting[0]
                    yield d
            finally:
                self._release_rest(waiting)

    def _still_fresh(self, d: Delivery) -> bool:
        """Nothing is handed out with too little of its lease left, or after it."""
        lease = d.lease
        if d._state == SETTLED or d.seq > lease._hi:
            return False  # given back with an earlier one
        if lease._deadline - self._store.now() > lease._seconds // 2:
            return True
        return lease not in self._renew([lease], lease._seconds) or lease.ack_first

    def _release_rest(self, waiting: Iterable[Delivery]) -> None:
        first: dict[Lease, Delivery] = {}
        for d in waiting:
            if d._state == OPEN and d.seq <= d.lease._hi:
                first.setdefault(d.lease, d)
        leases = list(first.items())
        for start in range(0, len(leases), RELEASES_TOGETHER):
            self._release_all(leases[start : start + RELEASES_TOGETHER])

    def _release_all(self, some: list[tuple[Lease, Delivery]]) -> None:
        by_shard: dict[Shard, list[engine.Batch]] = {}
        for lease, d in some:
            by_shard.setdefault(self._shard(lease), []).append(lease._batch([d.seq]))
        for shard, batches in by_shard.items():
            # If it fails, they are lost already, or their deadlines will end them.
            with suppress(StrictqError):
                shard.drain(bound(engine.release_all, batches))
        for lease, d in some:
            lease._given_back(d.seq)


def leased_ahead(max_messages: int, ack_first: bool) -> int:
    """How many messages `consume` leases at a time.

    Raises:
        InvalidArgument: max_messages is none of receive's.
    """
    validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
    return 1 if ack_first else max_messages


_consumer: tuple[int, str] | None = None


def default_consumer() -> str:
    """Host name and process id."""
    global _consumer
    pid = os.getpid()
    if _consumer is None or _consumer[0] != pid:
        import socket  # only who receives needs a name

        _consumer = (pid, f"{socket.gethostname()}:{pid}")
    return _consumer[1]
