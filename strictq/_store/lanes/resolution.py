"""The last resolution of a lane, which lets a retried call succeed if the first one did."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..._sql import LANES
from ..commit.tx import Tx

if TYPE_CHECKING:
    from .lanes import Lane


def remember(tx: Tx, lane: int, token: int, kind: str, seqs: Sequence[int]) -> None:
    """Record what was done, under which token, and to which seqs, ascending."""
    tx.run(LANES.remember, (token, kind, seqs[0], seqs[-1], gaps(seqs), lane))


def gaps(seqs: Sequence[int]) -> str | None:
    """The seqs between the first and the last that are not among these, as JSON; None: there is none."""
    lo, hi = seqs[0], seqs[-1]
    return None if hi - lo + 1 == len(seqs) else json.dumps(sorted(set(range(lo, hi + 1)) - set(seqs)))


def remembers(lane: Lane, token: int, kind: str, seqs: Iterable[int]) -> bool:
    """Return whether exactly this was done under this token by the lane's last resolution."""
    if lane.done_token != token or lane.done_kind != kind or lane.done_lo is None or lane.done_hi is None:
        return False
    missing: set[int] = set(json.loads(lane.done_gaps)) if lane.done_gaps else set()
    return all(lane.done_lo <= seq <= lane.done_hi and seq not in missing for seq in seqs)
