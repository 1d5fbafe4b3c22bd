"""A later version of strictq, which has one more format: what it does to the files of this one."""

from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from strictq._store import migrate
from strictq._store.migrate import CATALOG_ID, FORMAT, SHARD_ID

NEXT = FORMAT + 1


def add_column(db: apsw.Connection) -> None:
    """A step as a later version might have it."""
    db.execute("ALTER TABLE lane ADD COLUMN colour TEXT")
    db.execute("UPDATE lane SET colour = 'blue'")


def note(db: apsw.Connection) -> None:
    """A step of queue.db."""
    db.execute("CREATE TABLE note (text TEXT) STRICT")


def become_next(patch: pytest.MonkeyPatch, shard_step: Callable[[apsw.Connection], None] = add_column) -> None:
    """Make this strictq one of the next format."""
    patch.setitem(migrate.STEPS, SHARD_ID, {FORMAT: shard_step})
    patch.setitem(migrate.STEPS, CATALOG_ID, {FORMAT: note})
    patch.setattr(migrate, "FORMAT", NEXT)
    for function in (migrate.require, migrate.stamp):
        # Defaults are taken when a function is made.
        for defaults in (function.__kwdefaults__, function.__defaults__):
            if isinstance(defaults, dict) and "target" in defaults:
                patch.setitem(defaults, "target", NEXT)
        if function.__defaults__ == (FORMAT,):
            patch.setattr(function, "__defaults__", (NEXT,))
