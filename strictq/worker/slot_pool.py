"""The slots of a worker, which its queues share by turns.

Each queue has a keeper and a board of its own. A lane needs a slot to begin. While lanes of several queues wait for one, the
queue with the lowest virtual time gets it, as a tenant does in the store: the time grows with each message that starts, by the
inverse of the queue's weight. If several slots are free, each queue gets its part. A queue alone gets all. One that had nothing
to do begins at the time of the others: nothing is saved up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class UsesSlots(Protocol):
    """The board of one queue."""

    @property
    def used(self) -> int:
        """The number of slots in use."""
        ...


class SlotPool:
    """A worker's slots.

    Attributes:
        lock: held while a board fills slots, so that no two boards fill the same one. A board's lock may be held, too.
        shares: those of the queues.
        clock: the virtual time of the queue that had the last turn.
    """

    def __init__(self, slots: int) -> None:
        self.lock = threading.Lock()
        self.slots = slots
        self.shares: list[SlotShare] = []
        self.clock = 0.0

    def share(self, board: UsesSlots, weight: float = 1.0) -> SlotShare:
        """Add a queue."""
        share = SlotShare(self, board, weight)
        self.shares.append(share)
        return share


class SlotShare:
    """One queue's share of the slots.

    Attributes:
        time: its virtual time.
        wants: lanes of it wait for a slot, and can begin.
        wake: wakes its keeper.
    """

    __slots__ = ("_board", "_weight", "pool", "time", "wake", "wants")

    def __init__(self, pool: SlotPool, board: UsesSlots, weight: float) -> None:
        self.pool = pool
        self._board = board
        self._weight = weight
        self.time = 0.0
        self.wants = False
        self.wake: Callable[[], None] | None = None

    def room(self, extra: int = 0) -> int:
        """Return how many lanes may begin. Requires the pool's lock.

        Args:
            extra: how many more than there are slots.
        """
        pool, used = self.pool, self._board.used
        room = pool.slots + extra - used
        if len(pool.shares) == 1:
            return room
        if not used and not self.wants:
            self.time = max(self.time, pool.clock)
        room -= sum(other._board.used for other in pool.shares if other is not self)
        waiting = self._waiting()
        if room <= 0 or not waiting:
            return room
        part = int(room * self._weight / (self._weight + sum(other._weight for other in waiting)))
        return max(1, part) if all(self.time <= other.time for other in waiting) else part

    def _waiting(self) -> list[SlotShare]:
        return [other for other in self.pool.shares if other.wants and other is not self]

    def charge(self, messages: int) -> None:
        """Note that messages start."""
        self.pool.clock = max(self.pool.clock, self.time)
        self.time += messages / self._weight

    @property
    def yields(self) -> bool:
        """Whether a lane of another queue comes before the next message of one that has a slot."""
        return len(self.pool.shares) > 1 and any(other.time < self.time for other in self._waiting())

    def offer(self) -> None:
        """Wake the queue whose turn it is, if a slot is free."""
        pool = self.pool
        if len(pool.shares) == 1:
            return
        with pool.lock:
            waiting = self._waiting()
            is_free = sum(share._board.used for share in pool.shares) < pool.slots
            wake = min(waiting, key=lambda other: other.time).wake if waiting and is_free else None
        if wake is not None:
            wake()

    def leave(self) -> None:
        """Leave the slots to the other queues, because this one's run is over."""
        self.wants = False
        self.wake = None
        self.offer()
