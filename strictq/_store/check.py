"""A consistency check of a queue: of queue.db, of each shard, and of what two shards say of each other.

The rules of a shard are in shard/checking.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import apsw
import attrs

from .. import _files as files
from .._errors import StoreError, StrictqError
from .._findings import Problem
from .._sql import CHECK
from . import catalog
from .commit.calls import bound
from .commit.tx import Tx
from .shard import checking
from .shard.checking import Fix
from .shard.shard_lanes import ShardLanes, last_outbox

if TYPE_CHECKING:
    from .store import Store

Found = list[tuple[Problem, Fix | None]]
FINDINGS_MAX: Final = 1000
DIFFERENCES_MAX: Final = 20
NO_MEMORY: Final = ("integrity", "log")
"""With such a problem, no memory of the shard can be built."""


def check(db: apsw.Connection, shard: int, owns: Callable[[int], bool], shards: int) -> Found:
    """Return every broken invariant of a shard, at most FINDINGS_MAX, in one read transaction.

    Args:
        owns: whether a hash belongs to this shard.
        shards: the number of the queue's shards.
    """
    damage = [row[0] for row in db.execute(CHECK.integrity) if row[0] != "ok"]
    if damage:
        # The contents of the tables are not reliable.
        return [(Problem(shard, "integrity", text), None) for text in damage]
    found: Found = []
    try:
        for rule, detail, fix in islice(checking.problems(db, shard, owns, shards), FINDINGS_MAX):
            found.append((Problem(shard, rule, detail, fixable=fix is not None), fix))
    except UnicodeDecodeError as e:
        found.append((Problem(shard, "unreadable", f"a text is not UTF-8: {e}"), None))
    return found


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
            found = shard.look(bound(check, shard.number, shard.range.owns, len(store.shards)))
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
    return problems + check_inlets(store)


def _check_memory(lanes: ShardLanes) -> Found:
    """Compare the memory of this process with one that is built anew. It is the file that counts, so a repair builds it anew."""

    def fix(tx: Tx) -> None:
        tx.lanes.begin_anew()

    return [
        (Problem(lanes.shard, "memory", text, fixable=True), fix) for text in islice(checking.differences(lanes), DIFFERENCES_MAX)
    ]


def check_catalog(store: Store) -> list[Problem]:
    """Return what is wrong with queue.db."""
    if store.directory is None:
        return []
    try:
        known = catalog.read(store.directory, read_only=True)
        damage = catalog.damage(store.directory)
    except StrictqError as e:
        files.require_descriptors()
        return [Problem(-1, "unreadable", str(e))]
    found = [Problem(-1, "integrity", text) for text in damage]
    if (known.queue_id, known.topology) != (store.catalog.queue_id, store.catalog.topology):
        found.append(Problem(-1, "identity", "queue.db was replaced by another queue's"))
    return found


def check_inlets(store: Store) -> list[Problem]:
    """Return shards that have recorded more arrivals from another shard than it ever sent. They would discard later sends."""
    sent: dict[str, int] = {}
    had: list[tuple[int, str, int]] = []
    for shard in store.healthy():
        try:
            rows: list[Any] = shard.look(lambda db: db.execute(CHECK.inlets).fetchall())
        except StrictqError:
            continue  # it is reported as unreadable
        had += [(shard.number, origin, high) for origin, high in rows]
    # Read what was sent after what has arrived: more may be sent, and arrive, in between.
    for shard in store.healthy():
        with suppress(StrictqError):
            sent[shard.incarnation] = shard.look(last_outbox)
    return [
        Problem(number, "inlet", f"has had send {high} of shard file {origin}, which has sent {sent[origin]}")
        for number, origin, high in had
        if high > sent.get(origin, high)
    ]
