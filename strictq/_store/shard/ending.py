"""How messages end without an ack: as dead letters, dropped, expired or purged. Each end is one entry, and its record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..._sql import HISTORY, TABLES
from ..._values.config import QueueConfig
from ..._values.keys import ASIDE, is_keyless
from ..commit.tx import SECOND
from ..lane import entries as kinds
from ..lane.entries import encode_keys
from ..lane.live_lane import LiveLane
from ..tables import dead, mark, outputs, trouble
from . import history
from .shard_lanes import Tx


def keep(tx: Tx, arrivals: Sequence[int], end: history.End, leased_at: int | None = None) -> None:
    """Record messages before they end. Does nothing if no records are kept.

    Args:
        leased_at: when their lease began.
    """
    if arrivals and (kept := record(tx.config, tx.now, arrivals, end, leased_at)) is not None:
        tx.run(TABLES.keep_ended, kept[:-3])
        tx.run(HISTORY.forget, kept[-3:])


def record(
    config: QueueConfig, now: int, arrivals: Sequence[int], end: history.End, leased_at: int | None
) -> tuple[Any, ...] | None:
    """Return what `keep_ended` and then `forget` take to record messages. None: no records are kept."""
    if config.history == "off":
        return None
    return (
        now, end.attempts, end.prepare_seconds, end.process_seconds, end.outcome, config.history == "bodies",
        f"[{','.join(map(str, arrivals))}]", end.output, leased_at, *history.bounds(config, now, len(arrivals)),
    )  # fmt: skip


def keep_outputs(tx: Tx, ended: Iterable[tuple[LiveLane, Sequence[int], str]]) -> None:
    """Keep outputs of messages that are about to be acked, and wake those who wait for them. Delete some old outputs.

    Args:
        ended: lanes with arrival numbers, and the output of each.
    """
    until = tx.now + int(tx.config.output_seconds * SECOND)
    add_outputs(tx, [(i, lane.key, lane.seq_of(i), until, output) for lane, ids, output in ended for i in ids])


def add_outputs(tx: Tx, rows: Sequence[outputs.Kept]) -> None:
    """Keep these outputs. The first one makes their table."""
    if not rows:
        return
    stored = tx.lanes.memory.mark
    if not outputs.has_table(stored):
        outputs.create(tx.db)
        tx.lanes.add_feature(mark.KEPT_OUTPUTS)
    outputs.forget_some(tx.db, tx.now, 2 * len(rows))
    outputs.keep(tx.db, rows)
    tx.wake = True


def bury(tx: Tx, lane: LiveLane, arrival: int, *, kind: str, reason: str | None, starts: int, token: int = 0) -> None:
    """Make a message a dead letter, at its own seq.

    Args:
        starts: of its handler.
    """
    known = trouble.of(tx.db, arrival)
    leased_at = None if lane.grant is None else lane.grant.at
    keep(tx, [arrival], history.End(kind, starts - known.attempts), leased_at)
    if starts != known.attempts:
        trouble.set_(tx.db, arrival, known._replace(attempts=starts))
    seq = lane.seq_of(arrival)
    dead.bury(tx.db, lane.key, [(seq, arrival)], tx.now, kind, reason)
    if kind == "expired":
        tx.lanes.append(kinds.EXPIRE, [(lane, [arrival])], holder=kinds.DEAD)
    else:
        tx.lanes.append(kinds.REJECT, [(lane, [arrival])], token=token, holder=kinds.POISON if kind == "poison" else None)
    tx.report("poison" if kind == "poison" else "dead_letter", lane.key, seq, detail=reason or kind)


def expire(tx: Tx, lane: LiveLane, arrivals: list[int]) -> None:
    """End messages whose TTL is over."""
    if tx.config.on_expire == "dead_letter":
        for i in arrivals:
            bury(tx, lane, i, kind="expired", reason="its TTL was over", starts=lane.attempts(i)[0])
    else:
        keep(tx, arrivals, history.EXPIRED)
        tx.lanes.append(kinds.EXPIRE, [(lane, arrivals)])


def apply_poison(tx: Tx, lane: LiveLane, arrival: int, reason: str) -> bool:
    """Dead-letter or drop a message that is out of attempts, or hold its lane. Return whether the lane is held now."""
    store = tx.lanes
    policy, seq = tx.config.on_poison, lane.seq_of(arrival)
    if policy == "dead_letter":
        bury(tx, lane, arrival, kind="poison", reason=reason, starts=lane.attempts(arrival)[0])
        return False
    if policy == "drop":
        keep(tx, [arrival], history.DROPPED)
        store.append(kinds.DROP, [(lane, [arrival])])
        tx.report("poison", lane.key, seq, detail=f"dropped: {reason}")
        return False
    held = lane
    if is_keyless(lane.key) and ASIDE not in lane.key:
        held = park(tx, lane, arrival, seq)
    store.append(kinds.HOLD, [(held, [])], holder=kinds.POISON_HOLD, data=encode_keys([held.key]))
    tx.report("poison", lane.key, seq, detail=f"held: {reason}")
    return held is lane


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
    aside = store.loader.beside(lane, seq)
    store.append(
        kinds.PARK, [(lane, [arrival]), (aside, [seq, arrival])], deadline=due,
        holder=f"{starts},{crashes},{expires}", data=kinds.pack([arrival]),
    )  # fmt: skip
    return aside
