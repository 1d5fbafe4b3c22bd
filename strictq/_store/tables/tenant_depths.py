"""The table of each tenant's unresolved messages as of the mark. A shard has it once its queue had a separator of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw

from ..._sql import TENANT_DEPTHS
from ..lane.tenant_counts import TenantCounts

KNOWN_MAX: Final = 10_000
"""Depths of so many tenants are kept."""


def rebuild(db: apsw.Connection, depths: Mapping[bytes, int], *, create: bool) -> None:
    """Fill the table with other depths, in a transaction that writes the mark as well.

    Args:
        create: the shard has no such table yet.
    """
    if create:
        db.execute(TENANT_DEPTHS.schema).fetchall()
    db.execute(TENANT_DEPTHS.clear).fetchall()
    db.executemany(TENANT_DEPTHS.add, depths.items())


def some(db: apsw.Connection) -> Sequence[bytes]:
    """Return the tenants that have messages as of the mark, at most two."""
    return [name for (name,) in db.execute(TENANT_DEPTHS.some)]


def store(db: apsw.Connection, counts: TenantCounts) -> None:
    """Write what has changed since the mark was written, with the mark."""
    changes = [one for one in counts.changes.items() if one[1]]
    if changes:
        db.executemany(TENANT_DEPTHS.add, changes)
        db.executemany(TENANT_DEPTHS.drop, [(name,) for name, n in changes if n < 0])
    known = {name: n + counts.changes.get(name, 0) for name, n in counts.stored.items()} if len(counts.stored) < KNOWN_MAX else {}
    counts.forget_depths(some(db) if counts.sole is None else (counts.sole,))
    counts.stored = known


def depth(db: apsw.Connection, counts: TenantCounts, tenant: bytes) -> int:
    """Return the unresolved messages of a tenant."""
    stored = counts.stored.get(tenant)
    if stored is None:
        stored = counts.stored[tenant] = db.execute(TENANT_DEPTHS.depth, (tenant,)).get or 0
    return stored + counts.changes.get(tenant, 0)


def depths(db: apsw.Connection, counts: TenantCounts) -> dict[bytes, int]:
    """Return the unresolved messages of all tenants that have any."""
    rows: list[Any] = db.execute(TENANT_DEPTHS.depths).fetchall()
    found: dict[bytes, int] = dict(rows)
    for name, n in counts.changes.items():
        found[name] = found.get(name, 0) + n
    return {name: n for name, n in found.items() if n}


def leased(db: apsw.Connection) -> list[tuple[bytes, int]]:
    """Return key and deadline of the lanes that are leased by their rows at rest."""
    rows: list[Any] = db.execute(TENANT_DEPTHS.leased).fetchall()
    return rows
