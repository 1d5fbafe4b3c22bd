"""Make a copied directory an independent queue, and move a diverged one aside for a new replica."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .._platform import files
from .._platform.clock import Clock, SystemClock
from .._store import api
from .._store.api import Storage
from .._values import hints
from .._values.errors import InvalidArgument, QueueNotFound
from .._values.findings import Adopted
from .merging_histories import place_of
from .replica_home import LIVE, ReplicaState, is_replica

NAMES_MAX: Final = 1000


def adopt(path: str | os.PathLike[str], *, clock: Clock | None = None) -> Adopted:
    """Make a copied queue directory an independent queue, which nothing mistakes for its original.

    It gets a new history_id, so the targets, replicas and Spark checkpoints of its original refuse it, and so do their copies. It
    is not replicated, its timed leases are ended, and its tokens are larger than its original's.

    Args:
        path: the directory of the copy. No process may have it open.
    Raises:
        QueueNotFound: there is no queue at the path; nothing was changed.
        ReadOnlyQueue: it is a living replica; nothing was changed.
        StoreBusy: a process has it open; nothing was changed.
        StoreError: it can't be read or written.
    Source: docs/howto/replication.md
    """
    clock = clock or SystemClock()
    place = place_of(path, "path", clock)
    facts = Storage.facts(place)
    if facts is None:
        raise QueueNotFound(f"there is no queue at {place}")
    history_id = os.urandom(16).hex()
    with api.held_alone(place):
        before = api.adopt(place, history_id, clock)
    return Adopted(str(place), facts.queue_id, history_id, None if before is None else before.history_id)


def move_aside(home: Path) -> Path | None:
    """Move a diverged queue, or a promoted replica, to `*.diverged-TERM`. Return the new path; None: there is neither.

    Raises:
        InvalidArgument: it was never replicated, so no replica took its place; nothing was changed.
        StoreBusy: a process has it open; nothing was changed.
        StoreError: it can't be moved.
    """
    queue, term = home, 0
    if is_replica(home):
        state = ReplicaState.read(home)
        if state.role != "promoted":
            return None  # it is still a replica, and continues
        queue, term = home / LIVE, state.term
    elif not home.exists() or not any(home.iterdir()) or not Storage.facts(home, read_only=True):
        return None
    known = api.replication_of(queue)
    if known is None:
        raise InvalidArgument(
            f"{home} is a queue that was never replicated; nothing was changed",
            hint=hints.NEW_PATH,
        )
    term = max(term, known.term)
    with api.held_alone(queue), files.typed(f"{home} can't be moved"):
        for n in range(NAMES_MAX):
            aside = home.with_name(f"{home.name}.diverged-{term}{f'-{n + 1}' if n else ''}")
            if not os.path.lexists(aside):
                os.rename(home, aside)
                files.sync_directory(home.parent)
                return aside
    raise InvalidArgument(f"{home} can't be moved: {aside} and all lower numbers exist", hint=hints.NEW_PATH)
