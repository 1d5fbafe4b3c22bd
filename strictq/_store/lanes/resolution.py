"""The last resolution of a lane, with which a retried call succeeds if the first one did."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import apsw

from ..._sql import LANES
from ..commit.tx import Tx
from ..disk.stored import json_of

if TYPE_CHECKING:
    from .lanes import Lane


def remember(tx: Tx, lane: int, token: int, kind: str, seqs: Sequence[int]) -> None:
    """Record an operation, its token, and its seqs in ascending order."""
    tx.run(LANES.remember, (token, kind, seqs[0], seqs[-1], gaps(seqs), lane))


def gaps(seqs: Sequence[int]) -> str | None:
    """Return the seqs missing between the first and the last, as JSON. None: there are none."""
    lo, hi = seqs[0], seqs[-1]
    return None if hi - lo + 1 == len(seqs) else json.dumps(sorted(set(range(lo, hi + 1)) - set(seqs)))


def remembers(lane: Lane, token: int, kind: str, seqs: Iterable[int]) -> bool:
    """Return whether the lane's last resolution did exactly this under this token."""
    if lane.done_token != token or lane.done_kind != kind or lane.done_lo is None or lane.done_hi is None:
        return False
    missing = json_of(lane.done_gaps) if lane.done_gaps else []
    if not isinstance(missing, list):
        raise apsw.CorruptError("the last resolution of a lane is invalid")
    return all(lane.done_lo <= seq <= lane.done_hi and seq not in missing for seq in seqs)
