"""Extends leases well before they expire, releases expired ones, and abandons handlers at their time-out."""

from __future__ import annotations

from typing import Final

from .._values.errors import LeaseLost
from .source import HOPELESS
from .state import AGAIN_SECONDS, State

LOOK_SECONDS_MAX: Final = 5.0


class Leases:
    """Extends leases, drops expired ones, and abandons handlers that exceed their time-out.

    Attributes:
        look_at: `clock()` at which the leases are checked next.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._board = state.board
        self.look_at = 0.0

    def soon(self, now: float, seconds: float) -> None:
        """Schedule the next check for new leases of this length, which may be shorter than the others."""
        self.look_at = min(self.look_at, now + seconds / 8)

    def keep(self, now: float) -> None:
        """Extend the leases that are past half of their length."""
        if now < self.look_at:
            return
        board = self._board
        with board.lock:
            worn = board.worn(now)
            shortest = min((lane.length for lane in board.lanes.values()), default=self._state.source.config.lease_seconds)
        again = min(shortest / 8, LOOK_SECONDS_MAX)
        for lane, error in self._state.source.extend(worn) if worn else ():
            if isinstance(error, (LeaseLost, *HOPELESS)):
                self._state.lose(lane, error)
            else:
                self._state.complain(error)
                again = min(again, AGAIN_SECONDS)
        self.look_at = self._state.clock() + again

    def give_up_late(self, now: float) -> None:
        """Abandon handlers that exceeded their time-out."""
        with self._board.lock:
            late = self._board.overdue(now)
            error = TimeoutError("the handler took longer than its timeout")
            for job in late:
                self._board.give_up(job, error)
                self._state.failed(job, now, error)
        for job in late:
            self._state.timeouts += 1
            self._state.gave_up = True
            self._state.tell("timeout", job, detail="the handler exceeded its time-out")
            self._state.cancel(job)
        if late:
            self._state.wake()

    def drop_expired(self) -> None:
        """Drop lanes whose lease expired before their turn."""
        board = self._board
        if not board.expired:
            return
        with board.lock:
            expired, board.expired = board.expired, []
        for lane in expired:
            if lane.alive:
                first = lane.jobs[0]._delivery
                self._state.lose(lane, LeaseLost(first.key, first.seq, first.token, "its lease ended before its turn came"))
                self._state.source.release([first])
