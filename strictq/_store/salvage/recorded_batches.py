"""Salvage the batches of named consumers: complete ones are kept, incomplete ones are released.

A batch contains the same messages for ever. So if any part of one is lost, the batch is released: its reader gets an error
instead of fewer messages, and its remaining messages are ready again.
Source: docs/howto/damage.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import apsw

from ..._sql import CHECK, LOOKS, RECORDED_BATCHES, SALVAGE
from ..disk.pages import Row
from .reading import ShardPages

Put = Callable[[str, Iterable[Row]], None]
MARKERS_MAX: Final = 10_000


def copy(pages: ShardPages, put: Put) -> bool:
    """Copy all readable rows. Return whether the list of batches has a hole."""
    for table in ("consumer", "handout", "handout_block", "handout_rejected"):
        put(table, pages.whole_rows(table))
    return bool(pages.holes["handout"]) and not pages.is_lost


def settle(db: apsw.Connection, note: Callable[[str], None], leased: Mapping[int, int], *, hole: bool) -> frozenset[int]:
    """Release incomplete batches. Return the tokens of those that stay open.

    Args:
        leased: by token, how many messages are left of the lease of a batch.
    """
    run: Any = db.execute
    for name, last in run(SALVAGE.recorded_batches_unknown).fetchall():
        # The consumer's row is lost: all that is known is that these batch numbers were issued.
        run(SALVAGE.add_consumer, (name, last, last))
    broken = set(run(SALVAGE.recorded_batches_beyond).fetchall())
    for name, n, _, messages, size, blocks, packed, stored, newest in run(CHECK.recorded_batch_blocks).fetchall():
        if (messages, size, blocks) != (packed, stored, newest + 1):
            broken.add((name, n))
    for name, n, state, token, messages, rejected in run(LOOKS.recorded_batches).fetchall():
        if state == "open" and messages != leased.get(token, 0) + rejected:
            broken.add((name, n))
    for name, _, last, _, floor in run(RECORDED_BATCHES.consumers).fetchall():
        known: dict[int, Any] = dict(run(SALVAGE.recorded_batches_of, (name,)).fetchall())
        _release(run, name, {n for n in known if (name, n) in broken or hole}, known, note)
        if hole:
            first = max(floor + 1, last - MARKERS_MAX)
            for n in range(first, last + 1):
                if n not in known:
                    run(SALVAGE.add_released, (name, n))
            run(RECORDED_BATCHES.set_acked, (last, name))
            note(f"batches of consumer {name!r} are lost: none of {first} to {last} can be read")
    run(SALVAGE.drop_blocks)
    run(SALVAGE.drop_rejected)
    return frozenset(token for _, _, state, token, *_ in run(LOOKS.recorded_batches).fetchall() if state == "open")


def _release(run: Any, name: str, broken: set[int], known: dict[int, Any], note: Callable[[str], None]) -> None:
    """Release the broken batches, and open ones before a broken one: a consumer's batches are acked in order."""
    last_open = max((n for n in broken if known[n] == "open"), default=0)
    for n in sorted(broken | {n for n, state in known.items() if state == "open" and n <= last_open}):
        if known[n] != "released":
            rest = ", and its messages are ready again" if known[n] == "open" else ""
            note(f"batch {n} of consumer {name!r} is incomplete and cannot be read{rest}")
        run(RECORDED_BATCHES.give_up, (name, n))
        run(SALVAGE.empty_recorded_batch, (name, n))
        run(RECORDED_BATCHES.set_acked, (n, name))
