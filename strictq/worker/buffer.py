"""The buffer in front of the handlers: what is leased ahead, and what of it is handed back to consumers that have nothing."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import randbits
from typing import Any, Final

import attrs

from .._errors import LeaseLost, PartialFailure, StoreError
from .._receiving import look_again
from .._store.wake import NAME_BITS
from ..delivery import Delivery
from .leases import Leases
from .state import HOPELESS, State

REFILL_SECONDS: Final = 0.5
"""The buffer holds about so much work: more would be kept from other consumers."""
SHARE_SECONDS: Final = 0.1
"""And so much while another consumer is idle: what lies behind that would be done sooner by the other one."""
PER_KEY_MIN: Final = 8
PER_KEY_MAX: Final = 64
GROW: Final = 4
"""Messages that a lane at work takes in at a time."""


@attrs.define
class Refill:
    """What the buffer asks the queue for. See Worker."""

    batch: int
    low_water: int | None
    lease_seconds: float | None
    keys: Any
    consumer: str | None


class Buffer:
    """Leases ahead, lets lanes at work grow, hands back.

    Attributes:
        found_nothing: as the waker saw it when the queue had nothing ready; None: it had, or was not asked yet.
        look_at: `clock()` at which to look again though nobody sent anything: a delay or a lease may end.
    """

    def __init__(self, state: State, leases: Leases, refill: Refill) -> None:
        self._state = state
        self._board = state.board
        self._leases = leases
        self._refill = refill
        self._waker = state.queue._store.waker
        request = state.queue._request(1, None, refill.lease_seconds, refill.keys, refill.consumer, False)
        self._request = request._replace(charge=False)
        self._per_key = PER_KEY_MIN
        self._name = randbits(NAME_BITS)
        self._shared_until = 0.0
        self.found_nothing: tuple[int, int] | None = None
        self.look_at = 0.0

    # ---- how much

    def _mean_seconds(self) -> float | None:
        estimates = self._state.estimates
        if estimates.given_process is not None:
            return estimates.given_process
        return estimates.process.predict(estimates.process.mean_size)

    def _target(self) -> int:
        """How many messages to hold: about REFILL_SECONDS of work, fewer where durations are uneven, or others are idle."""
        slots = self._board.limits.concurrency
        mean = self._mean_seconds()
        sharing = self._state.clock() < self._shared_until
        least = 0 if sharing else 2 * slots
        if mean is None:
            return min(self._refill.batch, least)
        seconds = mean + 2 * self._state.estimates.process.deviation + 1e-6
        return min(self._refill.batch, max(least, int((SHARE_SECONDS if sharing else REFILL_SECONDS) * slots / seconds)))

    def low_water(self) -> int:
        """Messages at which more are leased."""
        return self._target() // 2 if self._refill.low_water is None else self._refill.low_water

    def is_low(self) -> bool:
        """There is room in the buffer, or a free slot."""
        if len(self._board.lanes) < self._board.limits.concurrency:
            return True
        return self._target() > 0 and self._board.buffered <= self.low_water()

    # ---- more

    def refill(self, now: float) -> bool:
        """Lease more, if there is room. Whether there was anything."""
        board, state = self._board, self._state
        if not self.is_low() or now < state.not_before:
            return False
        seen = self._waker.seen()
        if self.found_nothing == seen and now < self.look_at:
            return False
        lanes_short = board.limits.concurrency - len(board.lanes)
        room = max(1, self._target() - board.buffered, lanes_short * self._per_key)
        request = self._request._replace(room=room, per_key=self._per_key)
        try:
            deliveries, soonest = state.queue._receive_once(request)
        except (StoreError, PartialFailure) as e:
            if all(isinstance(shard.failed, HOPELESS) for shard in state.queue._claimable(request)):
                raise  # no shard that could have anything works
            state.complain(e)
            self.look_at = state.not_before
            return False
        state.works()
        self.look_at = now + look_again(state.queue._store, soonest)
        if not deliveries:
            self.found_nothing = seen
            return False
        self.found_nothing = None
        self._adapt(deliveries, room)
        self._take_in(deliveries, now)
        return True

    def _take_in(self, deliveries: list[Delivery], now: float) -> None:
        board, state = self._board, self._state
        offset = state.clock() - state.queue._store.now() / 1e6
        with board.lock:
            board.add(deliveries, offset)
        self._leases.soon(now, deliveries[0].lease._seconds / 1e6)
        if state.loud:
            for lane in {d.lease: board.lanes.get(d.lease) for d in deliveries}.values():
                for job in tuple(lane.jobs) if lane is not None else ():
                    state.tell("leased", job)

    def _adapt(self, deliveries: Sequence[Delivery], room: int) -> None:
        """Few lanes: more of each. Many lanes: heads of many, which can be worked on at once."""
        if len(deliveries) >= room:
            self._per_key = max(PER_KEY_MIN, self._per_key // 2)
        elif len(deliveries) > self._per_key // 2:
            self._per_key = min(PER_KEY_MAX, self._per_key * 2)

    def grow(self) -> bool:
        """Take in what follows in lanes at work, under the same lease, so that it can be prepared before its turn.

        Not while other lanes wait for a slot: it is their turn, and their heads are prepared meanwhile.
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
                    # A send to a lane that somebody holds wakes nobody: so this is looked at now and then.
                    seen[shard] = state.queue._arrivals(shard)
                if lane.grown == seen[shard]:
                    continue
                more = lane.lease.more(GROW)
            except (LeaseLost, *HOPELESS) as e:
                state.lose(lane, e)
                continue
            except StoreError as e:
                state.complain(e)
                break
            if not more:
                lane.grown = seen[shard]  # not before something arrives
            else:
                grew = True
                with board.lock:
                    if lane.alive:
                        board.add(more, 0.0)
        return grew

    # ---- other consumers

    def show_idle(self) -> None:
        """Let other workers know that this one has a free slot, and nothing for it."""
        if (
            self.found_nothing is not None
            and self._refill.keys is None
            and len(self._board.lanes) < self._board.limits.concurrency
        ):
            self._waker.show_idle(self._name)

    def should_share(self, now: float) -> bool:
        """Are there lanes that wait for a slot here, while some consumer elsewhere has nothing?"""
        return (
            len(self._board.lanes) > self._board.limits.concurrency
            and now >= self._shared_until
            and self._waker.somebody_idle(self._name)
        )

    def share(self, now: float) -> bool:
        """Hand back half of the lanes that were not started yet: nothing of them was, so no attempt is charged.

        Half, so that several idle consumers and this one come to equal parts in a few steps. What will be done here within
        SHARE_SECONDS stays. Whether anything was handed back.
        """
        board, state = self._board, self._state
        if not self.should_share(now):
            return False
        with board.lock:
            lanes = board.unstarted()
            mean = self._mean_seconds()
            if mean is None:  # nothing is known: then what is at work says that it takes at least so long
                mean = max((now - job._since for job in board.running), default=0.0)
            here = int(SHARE_SECONDS * board.limits.concurrency / max(mean, 1e-9))
            while lanes and here > 0:
                here -= len(lanes.pop().jobs)
            lanes = lanes[: (len(lanes) + 1) // 2]
            back = [lane.jobs[0] for lane in lanes]
            for lane in lanes:
                board.drop(lane)
        if not back:
            return False
        self._shared_until = now + SHARE_SECONDS
        state.queue._release_rest([job._delivery for job in back])
        if state.loud:
            for job in back:
                state.tell("released", job)
        return True
