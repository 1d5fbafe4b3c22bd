"""Forget lanes that are empty and have nothing that must be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ..._sql import LANE_TABLES
from ..lane.live_lane import LiveLane
from .loading import Loader


def forgettable(db: apsw.Connection, loader: Loader, keys: Sequence[bytes]) -> list[LiveLane]:
    """Return those of these lanes whose rows may be deleted.

    A row must be clean, and every entry about its lane must be cut from the journal. Otherwise a process that slept through the
    lane's life would meet an entry whose lane it can't find.
    """
    memory = loader.memory
    run: Any = db.execute
    found: list[LiveLane] = []
    for key in dict.fromkeys(keys):
        if key in memory.dirty:
            continue
        lane = loader.lane(key)
        if not lane.tail:
            continue
        if lane.bare:
            loader.adopt(loader.rows.row(key))
        if not lane.is_plain_and_empty or lane.lsn > memory.mark.cut or run(LANE_TABLES.must_keep, (key,)).get:
            continue
        found.append(lane)
    return found


def drop_rows(db: apsw.Connection, lanes: Sequence[LiveLane]) -> None:
    many: Any = db.executemany
    many(LANE_TABLES.drop_lane, [(lane.key,) for lane in lanes])
