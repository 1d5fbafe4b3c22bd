"""The buffer in front of the handlers: leases messages ahead, and returns some of them to idle consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .._values.errors import LeaseLost, PartialFailure, StoreError
from .._values.keys import Key
from ..delivery import Delivery
from .job import HeldLane, Job
from .renewal import Leases
from .source import HOPELESS
from .state import State

REFILL_SECONDS: Final = 0.5
"""The buffer holds about this much work. More would be withheld from other consumers."""
SHARE_SECONDS: Final = 0.1
"""The buffer holds this much work while another consumer is idle, which would do the rest sooner."""
PER_KEY_MIN: Final = 8
PER_KEY_MAX: Final = 64
GROW: Final = 4
"""Number of messages by which a running lane's lease grows at a time."""


class Buffer:
    """Leases messages ahead, grows the leases of running lanes, and releases lanes to idle consumers.

    Attributes:
        found_nothing: `changed` of the source when it had nothing ready; None: it had messages, or was not asked yet.
        look_at: `clock()` at which to look again even without a send, because a delay or a lease may end.
    """

    def __init__(self, state: State, leases: Leases) -> None:
        self._state = state
        self._board = state.board
        self._leases = leases
        self._source = state.source
        self._limits = limits = self._board.limits
        self._per_key = max(PER_KEY_MIN, limits.batch_per_key or limits.batch_max)
        self._shared_until = 0.0
        self.found_nothing: object = None
        self.look_at = 0.0
        self._own = self._source.own
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

    def _lanes(self) -> int:
        """Return the number of lanes to hold. Those that wait for the confirmation of an ack leave their slots to others."""
        slots, mean = self._limits.concurrency, self._mean_seconds() if self._source.round_trip else None
        if not mean:
            return slots
        return min(round(slots * (1 + self._source.round_trip / mean)), max(slots, self._limits.batch))

    def _target(self) -> int:
        """Return the number of messages to hold: about REFILL_SECONDS of work, less if durations vary or others are idle."""
        slots = self._limits.concurrency
        # A buffer that is full with a flood can't take the message of a quiet tenant, so it is shorter if there are tenants.
        sharing = self._state.clock() < self._shared_until or self._source.tenancy is not None
        if self._limits.batch_max:
            return min(self._limits.batch, (1 if sharing else 2) * slots * self._limits.batch_max)
        mean = self._mean_seconds()
        least = 0 if sharing else 2 * slots
        if mean is None:
            return min(self._limits.batch, least)
        seconds = mean + 2 * self._state.estimates.process.deviation + 1e-6
        return min(self._limits.batch, max(least, int((SHARE_SECONDS if sharing else REFILL_SECONDS) * slots / seconds)))

    def low_water(self) -> int:
        """Return the number of messages at which more are leased."""
        return self._target() // 2 if self._limits.low_water is None else self._limits.low_water

    def is_low(self) -> bool:
        """Return whether the buffer or a slot has room."""
        if self._board.open_lanes < self._lanes():
            return True
        return self._target() > 0 and self._board.buffered <= self.low_water()

    # ---- receiving

    def refill(self, now: float, *, joined: bool = False) -> bool:
        """Lease more messages if there is room. Return whether any were leased.

        Args:
            joined: acks are committed in the same transactions. The leased messages then wait for `take_in_joined`, because some
                may be of lanes that these acks free.
        """
        board = self._board
        if not self.is_low() or now < self._state.not_before:
            return False
        lanes_short = self._lanes() - board.open_lanes
        room = max(1, self._target() - board.buffered, lanes_short * self._per_key)
        deliveries = self._lease(now, room, self._per_key)
        if not deliveries:
            return False
        self._adapt(deliveries, room)
        if joined:
            self._joined = deliveries
        else:
            self.take_in(deliveries, now)
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
        self._source.release(deliveries)

    def lease_heads(self, now: float, most: int) -> Sequence[Delivery]:
        """Lease the first messages of some keys, to choose a probe. If none is ready, end the delay of one that failed.

        The caller takes them in.
        """
        deliveries = self._lease(now, most, 1)
        if deliveries or self.found_nothing is None:
            return deliveries
        try:
            if not self._source.end_delays(one=True):
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
            self._source.end_delays([key])
            return self._source.take(1, 1, [key])
        except (StoreError, PartialFailure) as e:
            state.complain(e)
            return []

    def look_again(self) -> None:
        """Ask the queue again at the next occasion."""
        self.found_nothing = None
        self.look_at = 0.0

    def has_looked_since(self, at: float) -> bool:
        """Return whether the queue was asked after this time of `clock()`. If the time is over, ask at the next occasion."""
        if self._asked_at > at:
            return True
        if self._state.clock() > at:
            self.look_again()
        return False

    def _lease(self, now: float, room: int, per_key: int) -> Sequence[Delivery]:
        """Receive, unless the last receive found nothing and nothing happened since."""
        state = self._state
        seen = self._source.changed()
        if self.found_nothing == seen and now < self.look_at:
            return []
        self._asked_at = now
        try:
            deliveries = self._source.take(room, per_key)
        except (StoreError, PartialFailure) as e:
            if self._source.hopeless:
                raise
            state.complain(e)
            self.look_at = state.not_before
            return []
        state.works()
        self.look_at = now + self._source.again_seconds
        self.found_nothing = None if deliveries else seen
        return deliveries

    def take_in(self, deliveries: Sequence[Delivery], now: float) -> None:
        """Put leased messages on the board."""
        board, state = self._board, self._state
        offset = state.clock() - self._source.now() / 1e6
        with board.lock:
            board.add(deliveries, offset)
        self._leases.soon(now, deliveries[0].lease._seconds / 1e6)
        if state.loud:
            for lane in {d.lease: board.lanes.get(d.lease) for d in deliveries}.values():
                for job in tuple(lane.jobs) if lane is not None else ():
                    state.tell("leased", job)

    def _adapt(self, deliveries: Sequence[Delivery], room: int) -> None:
        """Adapt the messages per key: more of each lane if there are few lanes, fewer if there are many."""
        if self._limits.batch_max:
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
        for lane, more in self._source.more([(lane, max(GROW, board.limits.batch_max - len(lane.jobs))) for lane in lanes]):
            if isinstance(more, (LeaseLost, *HOPELESS)):
                state.lose(lane, more)
            elif isinstance(more, Exception):
                state.complain(more)
                break
            elif more:
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
            and len(self._board.lanes) < self._limits.concurrency
            and not self._board.passed_lanes  # it would be given more of the type that is at its limit
        ):
            self._source.idle()

    def should_share(self, now: float) -> bool:
        """Return whether lanes wait for a slot here while a consumer elsewhere is idle."""
        return (
            (len(self._board.lanes) > self._board.slots or self._board.passed_lanes > 0)
            and now >= self._shared_until
            and self._source.another_idle()
        )

    def share(self, now: float) -> bool:
        """Release half of the lanes that were not started yet, without charging attempts. Return whether any were released.

        Half of them, so that several idle consumers and this one reach equal shares in a few steps. Work that will be done here
        within SHARE_SECONDS stays.
        """
        board = self._board
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
            back = self._drop(lanes[: (len(lanes) + 1) // 2])
        if back:
            self._shared_until = now + SHARE_SECONDS
        return self._give_back(back)

    def leave_shards(self) -> bool:
        """Release lanes that were not started, of shards that are another consumer's now. Return whether there were any."""
        own, self._own = self._own, self._source.own
        lost = own - self._own if own is not None and self._own is not None else ()
        if not lost:
            return False
        with self._board.lock:
            back = self._drop([lane for lane in self._board.unstarted(all=True) if lane.lease.shard in lost])
        return self._give_back(back)

    def _drop(self, lanes: Sequence[HeldLane]) -> list[Job]:
        """Take lanes off the board. Return the first message of each. The caller holds the board's lock."""
        back = [lane.jobs[0] for lane in lanes]
        for lane in lanes:
            self._board.drop(lane)
        return back

    def _give_back(self, back: list[Job]) -> bool:
        """Release these messages and all later ones of their leases, without charging attempts. Return whether there were any."""
        self._state.release(back)
        return bool(back)
