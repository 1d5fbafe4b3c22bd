"""What operators and policies do: hold, release, reject, drop, purge, redrive, forget. Each is a part of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import apsw

from ..lane import entries as kinds
from ..lane.entries import Entry, encode_groups, encode_keys
from ..lane.live_lane import LiveLane
from ..lane.memory import Group
from ..tables import dead
from . import forgetting
from .loading import Loader
from .settling import LeaseSettling, Settled

NAMED_MAX: Final = 1_024
"""How many messages one entry names. A purge of more is several entries."""


class Operating:
    """Plans and appends operators' calls on one shard.

    Args:
        append: writes an entry of a transaction, and applies it.
    """

    def __init__(self, db: apsw.Connection, loader: Loader, settling: LeaseSettling, append: Callable[..., Entry]) -> None:
        self._db = db
        self._loader = loader
        self._memory = loader.memory
        self._settling = settling
        self._append = append

    def hold(self, key: bytes, reason: str) -> None:
        """Deliver nothing of a lane. A live lease may finish."""
        self._append(kinds.HOLD, [(self._loader.lane(key), [])], holder=reason, data=encode_keys([key]))

    def release_hold(self, key: bytes) -> None:
        """Deliver a lane again. Its attempts begin anew."""
        self._append(kinds.RELEASE_HOLD, [(self._loader.lane(key), [])], data=encode_keys([key]))

    def reject(self, token: int, settled: Settled, reason: str | None) -> None:
        """Make messages of a lease dead letters.

        Raises:
            LeaseLost: nothing was changed.
        """
        groups = self._settling.plan(token, settled)
        for lane, ids in groups:
            messages = [(lane.seq_of(i), i) for i in ids]
            dead.bury(self._db, lane.key, messages, self._memory.at, "rejected", reason)
        self._append(kinds.REJECT, groups, token=token)

    def drop(self, token: int, settled: Settled) -> None:
        """Drop messages of a lease, which are out of attempts."""
        self._append(kinds.DROP, self._settling.plan(token, settled), token=token)

    def purge(self, key: bytes) -> int:
        """Resolve all messages of a lane, and end its lease. Return how many there were."""
        loader = self._loader
        lane = loader.lane(key)
        if lane.grant is not None:
            self._append(
                kinds.RELEASE, [(lane, [])], token=lane.grant.token, holder=kinds.BY_KEY, data=encode_keys([key])
            )  # fmt: skip
        purged = 0
        while ids := self._next_of(lane):
            self._append(kinds.PURGE, [(lane, ids)])
            purged += len(ids)
        return purged

    def _next_of(self, lane: LiveLane) -> list[int]:
        rare = lane.rare
        if rare is not None and rare.front:
            return [i for _, i in rare.front[:NAMED_MAX]]
        while lane.split and len(lane.ids or ()) < NAMED_MAX:
            self._loader.extend(lane, NAMED_MAX)
        return [i for i in lane.ids or () if i][:NAMED_MAX]

    def purge_dead(self, key: bytes) -> int:
        """Delete the dead letters of a lane. Return how many there were."""
        purged = 0
        while ids := [i for i, _ in dead.some(self._db, key, NAMED_MAX)]:
            dead.unbury(self._db, key, ids)
            self._append(kinds.PURGE, (), holder=kinds.DEAD, data=encode_groups([ids]))
            purged += len(ids)
        return purged

    def redrive(self, key: bytes, most: int) -> int:
        """Put dead letters of a lane back, at their own seqs and ahead of everything later. Return how many there were."""
        some = dead.some(self._db, key, most)
        if some:
            ids = [i for i, _ in some]
            dead.unbury(self._db, key, ids)
            pairs = [number for i, seq in some for number in (seq, i)]
            self._append(kinds.REDRIVE, [(self._loader.lane(key), pairs)], data=encode_groups([ids]))
        return len(some)

    def forget(self, keys: Sequence[bytes]) -> list[bytes]:
        """Forget those of these lanes that are empty and have nothing that must be kept. Return their keys."""
        lanes = forgetting.forgettable(self._db, self._loader, keys)
        if not lanes:
            return []
        floor = max(self._memory.floor, *(lane.tail for lane in lanes))
        forgotten = [lane.key for lane in lanes]
        forgetting.drop_rows(self._db, lanes)
        groups: list[Group] = [(lane, []) for lane in lanes]
        self._append(kinds.FORGET, groups, token=floor, data=encode_keys(forgotten))
        return forgotten
