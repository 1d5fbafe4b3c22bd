"""A queue's directory that is a copy of another queue: made of shipped pages, adopted, promoted, put in service.

No process has it open meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..._platform import files
from ..._platform.clock import Clock
from ..catalog import queue_db, shard_identity
from ..catalog.contents import Replication
from ..shard.expiring import end_every_timed
from . import epoch, moving
from .store import Store

if TYPE_CHECKING:
    from ..shipping.rebuild import PageFiles, Rebuild


def replication_of(directory: Path) -> Replication | None:
    """Return the history that a queue belongs to, or None if it was never replicated.

    Raises:
        StoreError: it can't be read.
    """
    return queue_db.read(directory, read_only=True).replication


def adopt(directory: Path, history_id: str, clock: Clock) -> Replication | None:
    """Make a copied queue a history of its own, and return the one it belonged to. No process may have it open.

    It ships nowhere. Its timed leases have ended, so their tokens settle nothing. Its tokens and its time are above those of its
    original. If this is interrupted, repeat it.
    """
    from ..shipping.rebuild import epoch_behind

    known = queue_db.read(directory)
    before = known.replication
    newest = max(shard_identity.last_time(directory, part) for part in known.topology)
    floor = max(newest, 0 if before is None else before.floor_time)
    queue_db.set_epoch(directory, epoch_behind(known))
    known = queue_db.read(directory)._replace(replication=None)  # nothing is shipped
    known = known._replace(time_offset=epoch.next_offset(directory, known, clock))
    store = Store(directory, known, clock, durability="full")
    try:
        for shard in store.shards:
            shard.run(end_every_timed)
    finally:
        store.die()
    queue_db.set_replication(directory, Replication(history_id, 1 if before is None else before.term, floor_time=floor))
    return before


def rebuild(directory: Path) -> Rebuild:
    """Return an empty queue in an empty directory, to be filled with pages."""
    from ..shipping.rebuild import Rebuild

    return Rebuild(directory)


def page_files(directory: Path) -> PageFiles:
    """Open the files of a living replica, which is written below SQLite."""
    from ..shipping.rebuild import PageFiles

    return PageFiles(directory)


def become_queue(directory: Path, replication: Replication, now: int, clock: Clock, *, end_leases: bool) -> None:
    """Make a queue of a living replica's files, all of which are on the disk. After an interruption, call it again.

    Its tokens are above those of its original, and its time continues from `now`.

    Args:
        end_leases: end timed leases. Otherwise they last until their deadlines, for holders that may still be working.
    Raises:
        StoreError: the files are not a queue yet.
    """
    with files.typed("the replica can't be promoted"):
        from ..shipping.rebuild import Rebuild

        known = queue_db.read(directory)
        if known.replication is None or known.replication.history_id != replication.history_id:
            for path in directory.glob("shard-*.db-*"):
                path.unlink()  # files that reads left beside the databases; no process ever wrote to them
            finishing = Rebuild(directory)
            try:
                finishing.finish(replication, (clock.boot_id(), now - clock.boot()))
            finally:
                finishing.close()
        known = queue_db.read(directory)
        store = Store(directory, known, clock, durability="full")
        store.keeps_leases = not end_leases
        try:
            for shard in store.shards:
                shard.run(lambda _tx: None)  # the first write of an epoch
            if store.keeps_leases:
                moving.carry_all(store.shards, keeps_leases=True)  # others would end the leases of lanes that are on their way
        finally:
            store.die()


def put_in_service(path: Path) -> bool:
    """Allow writes to a restored queue. Return whether it was waiting for that."""
    known = queue_db.read(path)
    if known.replication is None or known.replication.mode != "waiting":
        return False
    queue_db.set_replication(path, known.replication._replace(mode="off"))
    return True
