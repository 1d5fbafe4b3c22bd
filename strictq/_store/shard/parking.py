"""Parking: a keyless message that must wait moves to a lane of its own, so that it blocks no other message.

The row of the message stays as it is. The key of its new lane is that of its old one, a mark, and its seq there.
"""

from __future__ import annotations

from ..lane import entries as kinds
from ..lane.live_lane import LiveLane
from .loading import parked_key
from .shard_lanes import Tx


def park(tx: Tx, lane: LiveLane, arrival: int, seq: int, due: int | None = None) -> LiveLane:
    """Move an unleased message of a lane for keyless messages to a lane of its own, with its attempts. Return that lane.

    Args:
        due: when it may be delivered; None: as before.
    """
    store = tx.lanes
    starts, crashes, until = lane.attempts(arrival)
    expires = 0
    if lane.rare is not None and arrival in lane.rare.redriven:
        expires = kinds.REDRIVEN
    elif lane.expires:
        expires = store.log.times([arrival]).get(arrival, (None, None))[1] or 0
    if due is None:
        due = until or store.memory.due_of(lane, arrival, seq) or 0
    aside = store.loader.lane(parked_key(lane.key, seq))
    store.append(
        kinds.PARK, [(lane, [arrival]), (aside, [seq, arrival])], deadline=due,
        holder=f"{starts},{crashes},{expires}", data=kinds.pack([arrival]),
    )  # fmt: skip
    return aside
