"""A later version of strictq with one more format, and its effect on this version's files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import apsw

from strictq._store.disk import formats as migrate
from strictq._store.disk.formats import CATALOG_ID, FORMAT, SHARD_ID

if TYPE_CHECKING:
    import pytest

NEXT = FORMAT + 1
NEWER = FORMAT + 1
"""A format that this version does not know."""


def add_column(db: apsw.Connection) -> None:
    """Run a step that a later version might have."""
    db.execute("ALTER TABLE history ADD COLUMN colour TEXT")
    db.execute("UPDATE history SET colour = 'blue'")


def note(db: apsw.Connection) -> None:
    """Run a step of queue.db."""
    db.execute("CREATE TABLE note (text TEXT) STRICT")


def become_next(patch: pytest.MonkeyPatch, shard_step: Callable[[apsw.Connection], None] = add_column, formats: int = 1) -> None:
    """Make this strictq one of the next format, or of one several formats later."""
    for n in range(formats):
        patch.setitem(migrate.STEPS[SHARD_ID], FORMAT + n, shard_step)
        patch.setitem(migrate.STEPS[CATALOG_ID], FORMAT + n, note if n == 0 else lambda _db: None)
    patch.setattr(migrate, "FORMAT", FORMAT + formats)
