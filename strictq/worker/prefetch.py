"""The buffer in front of the handlers: leases messages ahead, and returns some of them to idle consumers."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import randbits
from typing import Any, Final

import attrs

from .. import _validate as validate
from .._errors import LeaseLost, PartialFailure, StoreError
from .._keys import Key
from .._store.api import NAME_BITS, Joined
from ..delivery import Delivery
from .renewal import Leases
from .state import HOPELESS, State

REFILL_SECONDS: Final = 0.5
"""The buffer holds about this much work. More would be withheld from other consumers."""
SHARE_SECONDS: Final = 0.1
"""The buffer holds this much work while another consumer is idle, which would do the rest sooner."""
PER_KEY_MIN: Final = 8
PER_KEY_MAX: Final = 64
GROW: Final = 4
"""Number of messages by which a running lane's lease grows at a time."""


@attrs.define
class Refill:
    """The options of the buffer's receives. See Worker."""

    batch: int
    low_water: int | None
    lease_seconds: float | None
    keys: Any
    consumer: str | None


class Buffer:
    """Leases messages ahead, grows the leases of running lanes, and releases lanes to idle consumers.

    Attributes:
        found_nothing: the waker's state when the queue had nothing ready; None: it had messages, or was not asked yet.
        look_at: `clock()` at which to look again even without a send, because a delay or a lease may end.
    """

    def __init__(self, state: State, leases: Leases, refill: Refill) -> None:
        self._state = state
        self._board = state.board
        self._leases = leases
        self._refill = refill
        self._storage = state.client.storage
        self._request = state.queue._receiving.request(
            1, None, refill.lease_seconds, refill.keys, refill.consumer, charge=False, starts=True
        )
        self._per_key = max(PER_KEY_MIN, self._board.limits.batch_max)
        self._name = randbits(NAME_BITS)
        self._shared_until = 0.0
        self.found_nothing: tuple[int, int] | None = None
        self.look_at = 0.0
        self._joined: Sequence[Delivery] = ()
        """Deliveries leased together with acks, and not on the board yet."""
        self._asked_at = 0.0
        """`clock()` of the last receive."""

    # ---- target size

    def _mean_seconds(self) -> float | None:
        estimates = self._state.estimates
        if estimates.given_process is not None:
            return estimates.given_process
        return estimates.process.predict(estimates.process.mean_size)

    def _target(self) -> int:
        """Return the number of messages to hold: about REFILL_SECONDS of work, less if durations vary or others are idle."""
        slots = self._board.limits.concurrency
        sharing = self._state.clock() < self._shared_until
        if self._board.limits.batch_max:
            return min(self._refill.batch, (1 if sharing else 2) * slots * self._board.limits.batch_max)
        mean = self._mean_seconds()
        least = 0 if sharing else 2 * slots
        if mean is None:
            return min(self._refill.batch, least)
        seconds = mean + 2 * self._state.estimates.process.deviation + 1e-6
        return min(self._refill.batch, max(least, int((SHARE_SECONDS if sharing else REFILL_SECONDS) * slots / seconds)))

    def low_water(self) -> int:
        """Return the number of messages at which more are leased."""
        return self._target() // 2 if self._refill.low_water is None else self._refill.low_water

    def is_low(self) -> bool:
        """Return whether the buffer or a slot has room."""
        if len(self._board.lanes) < self._board.limits.concurrency:
            return True
        return self._target() > 0 and self._board.buffered <= self.low_water()

    # ---- receiving

    def refill(self, now: float, joined: Joined | None = None) -> bool:
        """Lease more messages if there is room. Return whether any were leased.

        Args:
            joined: acks to commit in the same transactions. The leased messages then wait for `take_in_joined`, because some may
                be of lanes that these acks free.
        """
        board = self._board
        if not self.is_low() or now < self._state.not_before:
            return False
        lanes_short = board.limits.concurrency - len(board.lanes)
        room = max(1, self._target() - board.buffered, lanes_short * self._per_key)
        deliveries = self._lease(now, room, self._per_key, joined)
        if not deliveries:
            return False
        self._adapt(deliveries, room)
        if joined is None:
            self.take_in(deliveries, now)
        else:
            self._joined = deliveries
        return True

    def take_in_joined(self, now: float) -> bool:
        """Put the messages leased together with acks on the board. Return whether there were any."""
        deliveries, self._joined = self._joined, ()
        if deliveries:
            self.take_in(deliveries, now)
        return bool(deliveries)

    def end(self) -> None:
        """Release messages that were leased but not put on the board, because the worker failed in between."""
        deliveries, self._joined = self._joined, ()
        self._state.client.settling.release_rest(deliveries)

    def lease_heads(self, now: float, most: int) -> Sequence[Delivery]:
        """Lease the first messages of some keys, to choose a probe. If none is ready, end the delay of one that failed.

        The caller takes them in.
        """
        deliveries = self._lease(now, most, 1)
        if deliveries or self.found_nothing is None:
            return deliveries
        try:
            if not self._state.queue._operations.end_failure_delays(self.keys, one=True):
                return []
        except StoreError as e:
            self._state.complain(e)
            return []
        self.look_again()
        return self._lease(now, most, 1)

    def lease_key(self, key: Key) -> Sequence[Delivery]:
        """Lease the first message of a key, and end its delay if a failure caused it. The caller takes it in."""
        state = self._state
        try:
            state.queue._operations.end_failure_delays([key])
            deliveries, _ = self._receive(self._request._replace(room=1, per_key=1, keys=validate.keys([key])))
        except (StoreError, PartialFailure) as e:
            state.complain(e)
            return []
        return deliveries

    def look_again(self) -> None:
        """Ask the queue again at the next occasion."""
        self.found_nothing = None
        self.look_at = 0.0

    @property
    def keys(self) -> list[Key] | None:
        """The keys that this worker is restricted to; None: all."""
        return self._refill.keys  # type: ignore[no-any-return]

    def _lease(self, now: float, room: int, per_key: int, joined: Joined | None = None) -> Sequence[Delivery]:
        """Receive, unless the last receive found nothing and nothing happened since."""
        state = self._state
        seen = self._storage.seen()
        if self.found_nothing == seen and now < self.look_at:
            return []
        if self.found_nothing is not None and self._asked_at:
            self._storage.count_waiting(now - self._asked_at)
        self._asked_at = now
        request = self._request._replace(room=room, per_key=per_key)
        try:
            deliveries, soonest = self._receive(request, joined)
        except (StoreError, PartialFailure) as e:
            if all(isinstance(failure, HOPELESS) for failure in self._storage.failures(request.keys)):
                raise  # no shard with these keys works
            state.complain(e)
            self.look_at = state.not_before
            return []
        state.works()
        self.look_at = now + self._storage.look_again(soonest)
        self.found_nothing = None if deliveries else seen
        return deliveries

    def _receive(self, request: Any, joined: Joined | None = None) -> tuple[Sequence[Delivery], int | None]:
        state = self._state
        receiving = state.queue._receiving
        deliveries = receiving.batch(request)
        soonest = receiving.receive_now(deliveries, request, wait_for_busy=False, joined=joined)
        if deliveries and state.holder is not None:
            state.holder.note(deliveries.tokens())
        return deliveries, soonest

    def take_in(self, deliveries: Sequence[Delivery], now: float) -> None:
        """Put leased messages on the board."""
        board, state = self._board, self._state
        offset = state.clock() - self._storage.now() / 1e6
        with board.lock:
            board.add(deliveries, offset)
        self._leases.soon(now, deliveries[0].lease._seconds / 1e6)
        if state.loud:
            for lane in {d.lease: board.lanes.get(d.lease) for d in deliveries}.values():
                for job in tuple(lane.jobs) if lane is not None else ():
                    state.tell("leased", job)

    def _adapt(self, deliveries: Sequence[Delivery], room: int) -> None:
        """Adapt the messages per key: more of each lane if there are few lanes, fewer if there are many."""
        if self._board.limits.batch_max:
            return
        if len(deliveries) >= room:
            self._per_key = max(PER_KEY_MIN, self._per_key // 2)
        elif len(deliveries) > self._per_key // 2:
            self._per_key = min(PER_KEY_MAX, self._per_key * 2)

    def grow(self) -> bool:
        """Grow the leases of running lanes over their next messages, so that these can be prepared ahead.

        Does nothing while other lanes wait for a slot, because their heads are prepared first. Return whether any grew.
        """
        board, state = self._board, self._state
        with board.lock:
            lanes = board.growing()
        grew = False
        seen: dict[int, int] = {}
        for lane in lanes:
            try:
                shard = lane.lease.shard
                if shard not in seen:
                    # A send to a leased lane wakes no consumer, so this is polled.
                    seen[shard] = self._storage.arrivals(shard)
                if lane.grown == seen[shard]:
                    continue
                more = lane.lease.more(max(GROW, board.limits.batch_max - len(lane.jobs)))
            except (LeaseLost, *HOPELESS) as e:
                state.lose(lane, e)
                continue
            except StoreError as e:
                state.complain(e)
                break
            if not more:
                lane.grown = seen[shard]  # until a message arrives
            else:
                grew = True
                with board.lock:
                    if lane.alive:
                        board.add(more, 0.0)
        return grew

    # ---- other consumers

    def show_idle(self) -> None:
        """Show other workers that this one has a free slot and no message for it."""
        if (
            self.found_nothing is not None
            and self._refill.keys is None
            and len(self._board.lanes) < self._board.limits.concurrency
        ):
            self._storage.show_idle(self._name)

    def should_share(self, now: float) -> bool:
        """Return whether lanes wait for a slot here while a consumer elsewhere is idle."""
        return (
            len(self._board.lanes) > self._board.slots and now >= self._shared_until and self._storage.is_another_idle(self._name)
        )

    def share(self, now: float) -> bool:
        """Release half of the lanes that were not started yet, without charging attempts. Return whether any were released.

        Half of them, so that several idle consumers and this one reach equal shares in a few steps. Work that will be done here
        within SHARE_SECONDS stays.
        """
        board, state = self._board, self._state
        if not self.should_share(now):
            return False
        with board.lock:
            lanes = board.unstarted()
            mean = self._mean_seconds()
            if mean is None:  # without an estimate, use the longest time that a handler has run so far
                mean = max((now - job._since for job in board.running), default=0.0)
            here = int(SHARE_SECONDS * board.slots / max(mean, 1e-9))
            while lanes and here > 0:
                here -= len(lanes.pop().jobs)
            lanes = lanes[: (len(lanes) + 1) // 2]
            back = [lane.jobs[0] for lane in lanes]
            for lane in lanes:
                board.drop(lane)
        if not back:
            return False
        self._shared_until = now + SHARE_SECONDS
        state.client.settling.release_rest([job._delivery for job in back])
        if state.loud:
            for job in back:
                state.tell("released", job)
        return True
