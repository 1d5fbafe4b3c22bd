"""What was unresolved when a queue left the history that it continues: a file beside queue.db, for the report of a merge.

Without the file, a merge can't report what was processed on both sides. Everything else works.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from ..._platform import files
from ..._values.errors import StoreError
from ..._values.keys import is_keyless
from ..disk import layout
from ..shard import checking
from ..shard.shard_lanes import ShardLanes

PENDING_MAX: Final = 200_000
"""If a shard has more unresolved messages, none are noted: a promotion must not wait for that."""
BYTES_MAX: Final = 1 << 26

Unresolved = Mapping[bytes, list[tuple[int, int]]]
"""Ranges of seqs, by key."""


def unresolved(db: apsw.Connection, shard: int) -> Unresolved | None:
    """Return the unresolved messages that have a key. None: there are too many."""
    lanes = ShardLanes(shard)
    db.execute("BEGIN")
    try:
        loader = lanes.follow(db).loader
        if lanes.memory.totals.pending > PENDING_MAX:
            return None
        some = (lane for lane in checking.lanes_of(db, loader) if not is_keyless(lane.key))
        return ranges((lane.key, seq) for lane in some for seq, _ in checking.unresolved_of(lane))
    finally:
        db.execute("ROLLBACK")


def ranges(messages: Iterable[tuple[bytes, int]]) -> Unresolved:
    """Return the seqs of each key, as ranges."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    for key, seq in sorted(messages):
        known = found.setdefault(key, [])
        if known and known[-1][1] == seq - 1:
            known[-1] = (known[-1][0], seq)
        else:
            known.append((seq, seq))
    return found


def write(directory: Path, history_id: str, shards: Mapping[int, Unresolved | None]) -> None:
    """Write the file. Errors are ignored."""
    known = {n: {key.hex(): spans for key, spans in found.items()} for n, found in shards.items() if found is not None}
    if len(known) == len(shards):
        with suppress(OSError, StoreError):
            files.replace(directory / layout.FORK, json.dumps({"history_id": history_id, "shards": known}).encode())


def read(directory: Path, history_id: str) -> dict[int, Unresolved] | None:
    """Return what was noted when this history was left, or None."""
    raw = files.content(directory / layout.FORK, BYTES_MAX)
    with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        said = json.loads(raw or b"")
        if said["history_id"] == history_id:
            return {
                int(n): {bytes.fromhex(key): [(int(lo), int(hi)) for lo, hi in spans] for key, spans in found.items()}
                for n, found in said["shards"].items()
            }
    return None
