"""Salvage the batches of named consumers: complete ones are kept, incomplete ones are released.

A batch contains the same messages for ever. So if any part of one is lost, the batch is released: its reader gets an error
instead of fewer messages, and its remaining messages are ready again.
Source: docs/howto/damage.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ..._sql import CHECK, HANDOUT, SALVAGE
from ..commit.tx import NEVER, Tx
from ..disk.pages import Row

Rows = Callable[[str, list[tuple[Row | None, Row | None]] | None], Iterator[tuple[int | None, Row]]]
Put = Callable[[str, Iterable[Row]], None]
DEADLINE: Final = 8
"""The index of that column of `lease`."""
MARKERS_MAX: Final = 10_000


def is_handed_out(lease: Row) -> bool:
    """Return whether a batch holds this lease. Such leases have no deadline."""
    return bool(lease[DEADLINE] == NEVER)


def copy(rows: Rows, put: Put, leases: Mapping[int, Row]) -> bool:
    """Copy all readable rows. Return whether the list of batches has a hole."""
    lost: list[tuple[Row | None, Row | None]] = []
    put(SALVAGE.consumer, (row for _, row in rows("consumer", None)))
    put(SALVAGE.handout, (row for _, row in rows("handout", lost)))
    put(HANDOUT.insert_block, (row for _, row in rows("handout_block", None)))
    put(SALVAGE.handout_rejected, (row for _, row in rows("handout_rejected", None)))
    put(SALVAGE.lease, ((lane, *row[1:]) for lane, row in leases.items() if is_handed_out(row)))
    return bool(lost)


def settle(tx: Tx, note: Callable[[str], None], *, hole: bool) -> frozenset[int]:
    """Release incomplete batches, after the messages were copied. Return the lanes that stay held."""
    for name, last in tx.run(SALVAGE.handouts_unknown).fetchall():
        # The consumer's row is lost: all that is known is that these batch numbers were issued.
        tx.run(SALVAGE.consumer, (name, 0, last, last, 0))
    broken = set(tx.run(SALVAGE.handouts_beyond).fetchall())
    for name, n, _, messages, size, blocks, packed, stored, newest in tx.run(CHECK.handout_blocks).fetchall():
        if (messages, size, blocks) != (packed, stored, newest + 1):
            broken.add((name, n))
    for name, n, messages, pending, rejected in tx.run(CHECK.handout_leases).fetchall():
        if messages != pending + rejected:
            broken.add((name, n))
    broken.update(tx.run(SALVAGE.handouts_short).fetchall())
    for name, _, last, _, floor in tx.run(HANDOUT.consumers).fetchall():
        known: dict[int, Any] = dict(tx.run(SALVAGE.handouts_of, (name,)).fetchall())
        _release(tx, name, {n for n in known if (name, n) in broken or hole}, known, note)
        if hole:
            first = max(floor + 1, last - MARKERS_MAX)
            tx.many(SALVAGE.handout, [(name, n, "released", 0, 0, 0, 0) for n in range(first, last + 1) if n not in known])
            tx.run(HANDOUT.set_acked, (last, name))
            note(f"batches of consumer {name!r} are lost: none of {first} to {last} can be read")
    tx.run(SALVAGE.drop_blocks)
    tx.run(SALVAGE.drop_rejected)
    tx.run(SALVAGE.drop_leases)
    return frozenset(lane for (lane,) in tx.run(SALVAGE.held_lanes).fetchall())


def _release(tx: Tx, name: str, broken: set[int], known: dict[int, Any], note: Callable[[str], None]) -> None:
    """Release the broken batches, and open ones before a broken one: a consumer's batches are acked in order."""
    last_open = max((n for n in broken if known[n] == "open"), default=0)
    for n in sorted(broken | {n for n, state in known.items() if state == "open" and n <= last_open}):
        if known[n] != "released":
            rest = ", and its messages are ready again" if known[n] == "open" else ""
            note(f"batch {n} of consumer {name!r} is incomplete and cannot be read{rest}")
        tx.run(HANDOUT.give_up, (name, n))
        tx.run(SALVAGE.empty_handout, (name, n))
        tx.run(HANDOUT.set_acked, (n, name))
