"""A consistency check of a queue: of queue.db, of each shard, and of what two shards say of each other.

The rules of a shard are in shard/checking.py.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..._platform import files
from ..._sql import CHECK
from ..._values.errors import StoreError, StrictqError
from ..._values.findings import Problem
from ..catalog import queue_db
from ..commit.tx import bound
from ..lane.ranges import Ranges, unowned
from ..shard import checking, moving
from ..shard.checking import Found, check
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes, Tx, last_outbox
from .moving import arrived_nowhere

if TYPE_CHECKING:
    from .store import Store

DIFFERENCES_MAX: Final = 20
NO_MEMORY: Final = ("integrity", "log")
"""With such a problem, no memory of the shard can be built."""


def check_queue(store: Store, *, fix: bool) -> list[Problem]:
    """Return every broken invariant of queue.db, of each shard, and between them.

    Args:
        fix: repair what can be repaired without a loss.
    Raises:
        StoreError: no file descriptor is left to read with.
    """
    problems = check_catalog(store)
    for shard in store.shards:
        try:
            found = _problems_of(store, shard)
            if not any(problem.rule in NO_MEMORY for problem, _ in found):
                # First of all, because the other repairs use the memory.
                found = shard.view(_check_memory) + found
        except StoreError as e:
            files.require_descriptors()
            problems.append(Problem(shard.number, "unreadable", str(e)))
            continue
        for problem, repair in found:
            if fix and repair is not None:
                shard.run(repair)
                problem = attrs.evolve(problem, fixed=True)
            problems.append(problem)
    return problems + check_ranges(store, fix=fix) + check_inlets(store)


def _problems_of(store: Store, shard: Shard) -> Found:
    """Return what is wrong with a shard. If it has sends to a shard that another process has added meanwhile, read it again."""
    known = len(store.shards)
    found = shard.look(bound(check, shard.number, shard.range.owns, known))
    if store.directory is not None and any(problem.rule == "outbox" for problem, _ in found):
        with suppress(StrictqError):  # queue.db is checked by itself
            store.learn_shards()
        if len(store.shards) > known:
            return _problems_of(store, shard)
    return found


def _check_memory(lanes: ShardLanes) -> Found:
    """Compare the memory of this process with one that is built anew. It is the file that counts, so a repair builds it anew."""

    def fix(tx: Tx) -> None:
        tx.lanes.begin_anew()

    return [
        (Problem(lanes.shard, "memory", text, fixable=True), fix) for text in islice(checking.differences(lanes), DIFFERENCES_MAX)
    ]


def check_catalog(store: Store) -> list[Problem]:
    """Return what is wrong with queue.db. The shards that it names are known on return."""
    if store.directory is None:
        return []
    try:
        known, damage = queue_db.audit(store.directory)
    except StrictqError as e:
        files.require_descriptors()
        return [Problem(-1, "unreadable", str(e))]
    found = [Problem(-1, "integrity", text) for text in damage]
    ours = store.topology.ranges
    if known.queue_id != store.catalog.queue_id or known.topology.ranges[: len(ours)] != ours:
        found.append(Problem(-1, "identity", "queue.db was replaced by another queue's"))
    else:
        with suppress(StrictqError):  # a new shard can't be opened, which is reported with it
            store.learn_shards(known.topology)
    return found


def check_ranges(store: Store, *, fix: bool) -> list[Problem]:
    """Return hashes that two shards own, or none, if ranges have moved and none moves now.

    Args:
        fix: give hashes that no shard owns to the one that has lanes of them, or that had them last.
    """
    known, stranded = _ranges(store), _stranded(store)
    # Another process may move ranges, and may add a shard, while they are read.
    while known and known != (again := _ranges(store)):
        stranded = _stranded(store)
        known = again
    if not known or any(ranges.leaving is not None or ranges.arriving is not None for _, ranges in known):
        return []
    found: list[Problem] = []
    expected = 0
    for lo, hi, number in sorted((lo, hi, shard.number) for shard, ranges in known for lo, hi in ranges.own):
        if lo < expected:
            found.append(Problem(number, "ranges", f"another shard owns hashes from {lo:016x} on, too"))
        expected = max(expected, hi + 1)
    for number, parcel in stranded:
        found.append(Problem(number, "parcel", f"parcel {parcel} has arrived nowhere, and its move has ended"))
    for lo, hi in unowned([ranges for _, ranges in known]):
        owner = _last_owner(store, known, lo, hi)
        detail = f"no shard owns the hashes from {lo:016x} to {hi:016x}"
        if fix and owner is not None:
            owner.run(bound(moving.own, lo, hi))
        number = -1 if owner is None else owner.number
        found.append(Problem(number, "ranges", detail, fixable=owner is not None, fixed=fix and owner is not None))
    return found


def _stranded(store: Store) -> list[tuple[int, int]]:
    """Return the parcels that have left a shard, and have arrived in none."""
    shards = store.healthy()
    return [(shard.number, parcel) for shard in shards for parcel in arrived_nowhere(shards, shard)]


def _ranges(store: Store) -> list[tuple[Shard, Ranges]]:
    """Return what each shard owns. Empty: no range has ever moved, or a shard is unreadable, which is reported elsewhere."""
    known: list[tuple[Shard, Ranges]] = []
    store.everywhere()  # learns of shards that other processes have added
    for shard in store.shards:
        try:
            ranges = shard.view(lambda lanes: lanes.memory.ranges)
        except StrictqError:
            return []
        if ranges is None:
            return []
        known.append((shard, ranges))
    return known


def _last_owner(store: Store, known: list[tuple[Shard, Ranges]], lo: int, hi: int) -> Shard | None:
    """Return the shard that hashes belong to that no shard owns. None: several have lanes of them."""
    have = [shard for shard, _ in known if shard.survey(bound(moving.has_lane_within, lo, hi))]
    if have:
        return have[0] if len(have) == 1 else None
    left = [to for _, ranges in known for begin, end, to in ranges.left if begin <= lo <= end]
    return store.shards[left[-1] if left else store.topology.owner(lo)]


def check_inlets(store: Store) -> list[Problem]:
    """Return shards that have recorded more arrivals from another shard than it ever sent. They would discard later ones.

    Sends of transactions arrive, and lanes whose ranges move.
    """
    sent: dict[str, int] = {}
    had: list[tuple[int, str, int]] = []
    for shard in store.everywhere():
        try:
            rows: list[Any] = shard.look(lambda db: db.execute(CHECK.inlets).fetchall())
        except StrictqError:
            continue  # it is reported as unreadable
        had += [(shard.number, origin, high) for origin, high in rows]
    # Read what was sent after what has arrived: more may be sent, and arrive, in between.
    for shard in store.everywhere():
        with suppress(StrictqError):
            sent[shard.incarnation] = shard.look(last_outbox)
            sent[moving.inlet(shard.incarnation)] = shard.look(moving.departed)
    return [
        Problem(number, "inlet", f"has had send {high} of shard file {origin}, which has sent {sent[origin]}")
        for number, origin, high in had
        if high > sent.get(origin, high)
    ]
