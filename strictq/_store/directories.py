"""Operations on a queue's directory as a whole, while no process has it open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .. import _files as files
from .. import _hints as hints
from .._clock import Clock
from .._errors import StoreBusy
from .._files import real_path
from . import catalog
from .catalog import Replication
from .disk import layout, locks

if TYPE_CHECKING:
    from .._findings import Migration, Salvaged
    from .shipping.rebuild import PageFiles, Rebuild

ALONE_SECONDS: Final = 5.0


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Keep every other process from opening a queue for writing.

    Raises:
        StoreBusy: a process has it open.
    """
    presence = locks.Presence(directory, look=True)
    try:
        if not presence.alone(ALONE_SECONDS):
            raise StoreBusy(f"another process has {directory} open; nothing was changed", shard=-1, hint=hints.CLOSE_EVERYWHERE)
        yield
    finally:
        presence.leave()


def replication_of(directory: Path) -> Replication | None:
    """Return the history that a queue belongs to, or None if it was never replicated.

    Raises:
        StoreError: it can't be read.
    """
    return catalog.read(directory, read_only=True).replication


def adopt(directory: Path, history_id: str) -> Replication | None:
    """Make a copied queue a history of its own, and return the one it belonged to. No process may have it open.

    It ships nowhere and its timed leases are over. Its tokens and its time are above those of its original.
    """
    from .shipping.rebuild import epoch_behind

    known = catalog.read(directory)
    before = known.replication
    newest = max(catalog.last_time(directory, part) for part in known.topology)
    floor = max(newest, 0 if before is None else before.floor_time)
    catalog.set_epoch(directory, epoch_behind(known))
    catalog.set_replication(directory, Replication(history_id, 1 if before is None else before.term, floor_time=floor))
    return before


def salvage(path: Path, out: Path, clock: Clock) -> Salvaged:
    """Make a new queue at `out` from the readable part of the one at `path`. See `strictq.salvage`."""
    with files.typed("the queue can't be salvaged"):
        from .salvage.salvage import salvage

        return salvage(path, out, clock)


def migrate(
    path: Path, clock: Clock, *, dry_run: bool, on_progress: Callable[[int, int], None], on_messages: Callable[[int, int], None]
) -> Migration:
    """Bring a queue's files to this version's format. See `strictq.migrate`."""
    with files.typed("the queue can't be migrated"):
        from .upgrade import upgrade

        return upgrade(Path(real_path(path)), clock, dry_run=dry_run, on_progress=on_progress, on_messages=on_messages)


def rebuild(directory: Path) -> Rebuild:
    """Return an empty queue in an empty directory, to be filled with pages."""
    from .shipping.rebuild import Rebuild

    return Rebuild(directory)


def page_files(directory: Path) -> PageFiles:
    """Open the files of a living replica, which is written below SQLite."""
    from .shipping.rebuild import PageFiles

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
        from .shipping.rebuild import Rebuild
        from .store import Store

        known = catalog.read(directory)
        if known.replication is None or known.replication.history_id != replication.history_id:
            for path in directory.glob("shard-*.db-*"):
                path.unlink()  # files that reads left beside the databases; no process ever wrote to them
            finishing = Rebuild(directory)
            try:
                finishing.finish(replication, (clock.boot_id(), now - clock.boot()))
            finally:
                finishing.close()
        known = catalog.read(directory)
        store = Store(directory, known, clock, durability="full")
        store.keeps_leases = not end_leases
        try:
            for shard in store.shards:
                shard.run(lambda _tx: None)  # the first write of an epoch
        finally:
            store.die()


def mark_replica(directory: Path, *, living: bool = True) -> None:
    """Mark the files in a directory as a living replica, or as a queue of its own. Durable on return.

    Raises:
        StoreError: the mark can't be written or removed.
    """
    with files.typed("the replica can't be marked"):
        mark = directory / layout.REPLICA_MARK
        if living != mark.exists():
            if living:
                files.create_empty(mark)
            else:
                mark.unlink()
        files.sync_directory(directory)


def is_marked_replica(directory: Path) -> bool:
    """Return whether the files in a directory are those of a living replica."""
    return (directory / layout.REPLICA_MARK).exists()


def publish(path: Path, build: Callable[[Path], None]) -> None:
    """Publish a directory atomically: `build` fills a temporary directory beside it, which is then renamed."""
    layout.publish(path, build)


def put_in_service(path: Path) -> bool:
    """Allow writes to a restored queue. Return whether it was waiting for that."""
    known = catalog.read(path)
    if known.replication is None or known.replication.mode != "waiting":
        return False
    catalog.set_replication(path, known.replication._replace(mode="off"))
    return True
