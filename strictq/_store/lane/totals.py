"""Where memory begins, and what entries add up to. Both are the row of `mark`."""

from __future__ import annotations

import math

import attrs

from . import entries as kinds
from .entries import RATE_SECONDS


@attrs.define
class RunningTotals:
    """What entries add up to. Stored by folds."""

    lanes: int = 0
    pending: int = 0
    dead: int = 0
    sends: int = 0
    claims: int = 0
    receives: int = 0
    acks: int = 0
    retries: int = 0
    redeliveries: int = 0
    expired: int = 0
    dropped: int = 0
    purged: int = 0
    redriven: int = 0
    dead_letters: int = 0
    rejected: int = 0
    empty_receives: int = 0
    ack_rate: float = 0.0
    ack_rate_at: int = 0

    def ended(self, kind: int, holder: str | None, at: int, n: int) -> None:
        """Count messages that an entry of this kind, with this holder and time, has ended."""
        if kind == kinds.ACK and holder != kinds.DEAD:
            self.pending -= n
            self._acked(at, n)
            return
        if holder == kinds.DEAD and kind in kinds.OF_DEAD:
            self.dead -= n
            if kind == kinds.PURGE:
                self.purged += n
            else:
                self._acked(at, n)
            return
        self.pending -= n
        if kind == kinds.ACK_FIRST:
            self._acked(at, n)
        elif kind == kinds.REJECT:
            self.dead += n
            self.dead_letters += n
            self.rejected += n if holder != kinds.POISON else 0
        elif kind == kinds.DROP:
            self.dropped += n
        elif kind == kinds.PURGE:
            self.purged += n
        else:
            self.expired += n
            if holder == kinds.DEAD:
                self.dead += n
                self.dead_letters += n

    def _acked(self, at: int, n: int) -> None:
        self.acks += n
        self.ack_rate, self.ack_rate_at = add_acks(self.ack_rate, self.ack_rate_at, at, n)


def add_acks(rate: float, rate_at: int, now: int, n: int) -> tuple[float, int]:
    """Return the rate of acks, messages a second weighted over a minute, after n more, and its time."""
    return rate * math.exp(-max(now - rate_at, 0) / (RATE_SECONDS * 1_000_000)) + n / RATE_SECONDS, now


@attrs.define
class StoredMark:
    """The row of `mark`: where memory begins.

    Attributes:
        fold_position: messages that were resolved up to this position are deleted, or in `gone`.
        cut: the newest journal row that was cut. `mid`: the newest message at that time.
        counted, counted_top: the totals include entries and messages up to these.
    """

    fold_position: int = 0
    cut: int = 0
    mid: int = 0
    counted: int = 0
    counted_top: int = 0
    epoch: int = 0
    config_version: int = 0
    time_offset: int = 0
    seq_floor: int = 0
    last_token: int = 0
    features: int = 0
