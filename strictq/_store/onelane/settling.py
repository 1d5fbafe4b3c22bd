"""The plans of a holder's calls on its leases. A plan refuses before anything is changed, and memory stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..._errors import LeaseLost
from ..._keys import decode_key
from ..lane.live_lane import LiveLane, parse_done
from ..lane.memory import Group
from .loading import Loader

Settled = Sequence[tuple[bytes, list[int]]]
"""Messages by key, ascending: of each lane those that a call settles."""


class LeaseSettling:
    """Plans a holder's calls on one shard."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._memory = loader.memory

    def plan(self, token: int, settled: Settled) -> list[Group]:
        """Return the lanes, if a live lease with this token holds all of these messages.

        Raises:
            LeaseLost: the token is dead, or a message is resolved or not of its lease. Nothing was changed.
        """
        lanes = self._memory.lanes
        groups: list[Group] = []
        for key, ids in settled:
            lane = lanes.get(key)
            if lane is None or lane.rest:
                lane = self._loader.lane(key)
            grant = lane.grant
            if grant is None or grant.token != token:
                raise self._lost(key, token)
            n, window = len(ids), lane.ids
            if not (window is not None and n <= lane.held and window[:n] == ids) and not lane.holds(ids):
                raise self._lost(key, token, "the message is resolved or not of this lease")
            groups.append((lane, ids))
        return groups

    def leased(self, token: int, keys: Iterable[bytes]) -> list[LiveLane]:
        """Return the lanes of keys, if they have live leases with this token, whatever these hold.

        Raises:
            LeaseLost: one has not. Nothing was changed.
        """
        found = []
        for key in keys:
            lane = self._loader.lane(key)
            if lane.grant is None or lane.grant.token != token:
                raise self._lost(key, token)
            found.append(lane)
        return found

    def was_done(self, key: bytes, token: int, kind: int, seqs: Iterable[int]) -> bool:
        """Return whether a lane's last resolution did this under this token, so that the repeated call succeeds."""
        lane = self._loader.lane(key)
        done = lane.done
        if done is None and lane.bare:
            done = parse_done(self._loader.rows.row(key).done)
        if done is None or done[:2] != (token, kind):
            return False
        _, _, low, high, left_out = done
        return all(low <= seq <= high and seq not in left_out for seq in seqs)

    def _lost(self, key: bytes, token: int, why: str = "the lease was lost") -> LeaseLost:
        lane = self._memory.lanes.get(key)
        return LeaseLost(decode_key(key), lane.first if lane is not None else 0, token, why)
