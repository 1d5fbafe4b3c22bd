"""The leases of recorded batches: they have no deadline, and all leases of a batch have its token.

A batch is one claim. Its lanes are found by the token: loaded ones through the grants, those at rest through an index.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

from ..._sql import TABLES
from ..._values.errors import StrictqError
from ..lane import entries as kinds
from ..lane.entries import NEVER, encode_keys
from ..lane.live_lane import LiveLane
from . import claiming, columns, ending, history
from .leases import Claimed, Request
from .shard_lanes import ShardLanes, Tx

T = TypeVar("T")

STEP: Final = 1_000
"""How many lanes at rest are found at once."""


def claim(tx: Tx, request: Request, pack: Callable[[Claimed], T]) -> tuple[Claimed, T | None]:
    """Lease what is ready, and pack it. If it can't be packed, nothing is leased.

    Returns:
        The claim, and what `pack` returned. None: nothing is ready.
    """
    store = tx.lanes
    out, groups = claiming.planned(tx, request, columns.fill if request.packed else None)
    if not groups:
        return out, None
    try:
        packed = pack(out)
    except StrictqError as e:
        claiming.of(store).refuse()
        raise store.refuse(e) from e.__cause__
    claiming.write(tx, request, out, groups)
    return out, packed


def leased(store: ShardLanes, token: int, most: int | None = None) -> list[LiveLane]:
    """Return the lanes that a batch has leased, loaded.

    Args:
        most: how many; None: all of them.
    """
    memory = store.memory
    grants = [grant for deadline, _, grant in memory.order.ends if deadline == NEVER and grant.token == token]
    loaded = (lane for grant in grants for lane in grant.lanes if lane.grant is grant)
    found = {lane.key: lane for lane in islice(loaded, most)}
    after, lanes = b"", memory.lanes
    while most is None or len(found) < most:
        keys: list[Any] = [key for (key,) in store.run(TABLES.endless, (token, after, STEP)).fetchall()]
        if not keys:
            break
        after = keys[-1]
        store.loader.fill_heads(keys)
        for key in keys:
            lane = lanes[key]
            # The row may be older than memory.
            if lane.grant is not None and lane.grant.token == token:
                found[key] = lane
    return list(islice(found.values(), most))


def ack(tx: Tx, token: int) -> int:
    """Ack what a batch still holds. Return how many messages that was."""
    store = tx.lanes
    lanes = leased(store, token)
    groups = [(lane, ids) for lane in lanes if (ids := [i for _, i in lane.leased()])]
    if not groups:
        return 0
    arrivals = [i for _, ids in groups for i in ids]
    if tx.config.history != "off":
        grant = groups[0][0].grant
        ending.keep(tx, arrivals, history.ACKED, None if grant is None else grant.at)
    store.append(kinds.ACK, groups, token=token)
    tx.wake = tx.wake or any(lane.listed for lane, _ in groups)
    return len(arrivals)


def give_back(tx: Tx, token: int, most: int | None = None) -> tuple[int, int]:
    """End leases of a batch, without charging an attempt. Return how many messages and lanes.

    Args:
        most: how many lanes; None: all of them.
    """
    store = tx.lanes
    lanes = leased(store, token, most)
    if not lanes:
        return 0, 0
    messages = sum(len(lane.leased()) for lane in lanes)
    keys = encode_keys([lane.key for lane in lanes])
    store.append(kinds.RELEASE, [(lane, []) for lane in lanes], token=token, holder=kinds.BY_KEY, data=keys)
    tx.wake = True
    return messages, len(lanes)


def oldest(store: ShardLanes, token: int, most: int) -> int | None:
    """Return when the oldest of the heads of a batch's lanes was sent. None: it holds nothing.

    Args:
        most: how many lanes to read.
    """
    heads = [left[0][1] for lane in leased(store, token, most) if (left := lane.leased())]
    return min(store.log.sent_at(heads).values(), default=None)


__all__ = ["ack", "claim", "give_back", "leased", "oldest"]
