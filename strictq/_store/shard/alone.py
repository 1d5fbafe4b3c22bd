"""Calls that are one statement, which is its own transaction.

A send, a receive or an ack writes one row of a log. The statement that writes it compares both logs with memory, as every
transaction does when it begins, and writes nothing if they differ. So BEGIN, that read and COMMIT are omitted. A result of None
means that nothing changed, and a transaction must do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import apsw

from ..._config import QueueConfig
from ..._observe import Observers
from ..commit.writer import Writer
from . import claiming, sending, settling
from .leases import Claimed, Lost, Request, Settlement
from .messages import Item, Sent
from .shard_lanes import ShardLanes


class DirectHost(Protocol):
    """What this needs from its queue."""

    settings: tuple[QueueConfig, int]
    observers: Observers

    def wake(self) -> None: ...
    def note_change(self, shard: int) -> None: ...


class Commit(Protocol):
    """The transaction of a claim."""

    @property
    def committed(self) -> bool:
        """Whether it is committed."""
        ...


Brought = tuple[Any, Commit, Claimed]
"""The Shard of a claim, its transaction, and its leases."""


class Attempt:
    """An attempted receive from one shard.

    Attributes:
        brought: gets the claim just before it is committed, for a caller that is interrupted.
    """

    __slots__ = ("brought", "committed", "request", "shard")

    def __init__(self, request: Request, shard: object, brought: list[Brought]) -> None:
        self.request = request
        self.shard = shard
        self.brought = brought
        self.committed = False


class LaneAlone:
    """Sends, receives and acks of one shard.

    Args:
        syncs: commits of the queue are synced.
    """

    def __init__(self, host: DirectHost, lanes: ShardLanes, writer: Writer, *, syncs: bool) -> None:
        self._syncs = syncs
        self._host = host
        self._lanes = lanes
        self._writer = writer

    def _wake(self) -> None:
        self._host.note_change(self._lanes.shard)
        self._host.wake()

    def send(self, item: Item, checked: QueueConfig) -> Sent | None:
        """Append a message without a dedup id.

        Args:
            checked: the settings that it was validated against.
        """
        settings = self._host.settings
        config = settings[0]
        options = item[2]
        if checked is not config or config.max_depth is not None or (options is not None and options.dedup_id is not None):
            return None
        done = self._writer.direct(self._send, item, settings)
        if done is None:
            return None
        if done[0]:
            self._wake()
        return done[1]

    def _send(self, _db: apsw.Connection, lanes: ShardLanes, now: int, item: Item) -> tuple[bool, Sent] | None:
        return sending.send_alone(lanes, item, now, self._host.settings[0])

    def claim(self, attempt: Attempt, seconds: float | None) -> Claimed | None:
        """Lease what is ready now.

        Args:
            seconds: how long to wait for the write lock; None: BUSY_SECONDS.
        """
        settings = self._host.settings
        return self._writer.direct(self._claim, attempt, settings, seconds, synced=False)

    def _claim(self, db: apsw.Connection, lanes: ShardLanes, now: int, attempt: Attempt) -> Claimed | None:
        request = attempt.request
        old = lanes.suspects if self._syncs else 0  # a power cut must not forget that they were leased: see Shard.lease
        planned = claiming.claim_alone(lanes, request, now, self._host.settings[0], old)
        if planned is None:
            return None
        claimed, groups = planned
        attempt.brought.append((attempt.shard, attempt, claimed))
        changes = db.total_changes()
        try:
            if self._syncs:
                self._writer.omit_sync(db)
            if not claiming.write_alone(lanes, claimed, groups, request, now):
                return None
            attempt.committed = True
        except BaseException:
            attempt.committed = db.total_changes() != changes
            raise
        return claimed

    def ack(self, batches: Sequence[Settlement]) -> list[Lost] | None:
        """Ack these messages if live leases with one token hold all of them."""
        settings = self._host.settings
        if settings[0].history != "off":
            return None
        ready = self._writer.direct(self._ack, batches, settings)
        if ready is None:
            return None
        if ready:
            self._wake()
        return [{} for _ in batches]

    def ack_claimed(self, claimed: Claimed) -> bool:
        """Ack everything that a claim leased. Return False if a transaction must do it."""
        settings = self._host.settings
        ready = self._writer.direct(self._ack_claimed, claimed, settings) if settings[0].history == "off" else None
        if ready:
            self._wake()
        return ready is not None

    def _ack_claimed(self, _db: apsw.Connection, lanes: ShardLanes, now: int, claimed: Claimed) -> bool | None:
        return settling.ack_claimed_alone(lanes, claimed, now)

    def ack_one(self, key: bytes, token: int, seq: int) -> bool:
        """Ack a message of a live lease. Return False if a transaction must do it."""
        settings = self._host.settings
        ready = self._writer.direct(self._ack_one, (key, token, seq), settings) if settings[0].history == "off" else None
        if ready:
            self._wake()
        return ready is not None

    def _ack_one(self, _db: apsw.Connection, lanes: ShardLanes, now: int, what: tuple[bytes, int, int]) -> bool | None:
        return settling.ack_one_alone(lanes, *what, now)

    def _ack(self, _db: apsw.Connection, lanes: ShardLanes, now: int, batches: Sequence[Settlement]) -> bool | None:
        return settling.ack_alone(lanes, batches, now)
