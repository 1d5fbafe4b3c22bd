"""Salvage the readable part of a damaged queue into a new one. The damaged files are read, and never written.

Each shard's pages are read and verified one by one (pages.py), and their rows are inserted into a new queue in ordinary
transactions. What could not be read is reported; nothing is guessed.
Source: docs/howto/damage.md
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw

from ..._platform import files
from ..._platform.clock import Clock
from ..._platform.files import real_path
from ..._sql import CHECK, SALVAGE, insert_into, with_columns
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import InvalidArgument, QueueNotFound, SchemaMismatch, StoreError, StrictqError
from ..._values.findings import LostRange, Salvaged
from ..bulk import staging
from ..catalog import contents, queue_db
from ..catalog.contents import Catalog
from ..commit.connection import connect, translate
from ..commit.tx import NEVER, bound
from ..disk import formats as migrate
from ..disk import layout, locks, wal_file
from ..disk.pages import File, Row
from ..disk.topology import Range
from ..shard import expiring
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes, Tx
from ..tables import app_rows, parcels
from ..whole.check import check_queue
from ..whole.store import Store
from . import owning
from .filling import BATCH, REFUSED, Filled, Filling
from .known import INVALID
from .reading import ShardPages, version_of

LEASES_STEP: Final = 1_000


def salvage(path: Path, out: Path, clock: Clock) -> Salvaged:
    """Make a new queue at `out` from the readable part of the one at `path`, which no process may have open.

    Raises:
        QueueNotFound, InvalidArgument, SchemaMismatch, StoreBusy, StoreFull, StoreError: nothing was made.
    """
    path, out = Path(real_path(path)), Path(real_path(out))
    if not path.is_dir() or not any(path.glob("shard-*.db")):
        raise QueueNotFound(f"there is no queue at {path}")
    if out.exists():
        raise InvalidArgument(f"{out} exists", hint=hints.NEW_PATH)
    notes: list[str] = []
    working = out.with_name(f".{out.name}.{os.urandom(6).hex()}.new")
    made: list[Path] = []
    with locks.held_alone(path):
        try:
            files.make_directories(out.parent, made)
            known = _known(path, clock, notes)
            return _Salvage(path, working, known, clock, notes).run(out)
        finally:
            if working.exists():
                files.remove_tree(working)
            files.remove_empty(made)


def _known(path: Path, clock: Clock, notes: list[str]) -> Catalog:
    """Return the contents of queue.db, or, if it is damaged, what the shards record of it."""
    try:
        return queue_db.read(path, read_only=True)
    except StrictqError as e:
        files.require_descriptors()
        notes.append(f"queue.db can't be read ({e}): shards and configuration are taken from the shards")
    found = sorted(path.glob("shard-*.db"))
    config = QueueConfig()
    for file in found:
        with suppress(OSError, ValueError, KeyError, StrictqError):
            pages = ShardPages(File(file, None, unsynced=None), lambda _: None)
            try:
                meta = {row[0]: row[1] for _, row in pages.rows("meta")}
            finally:
                pages.close()
            config = QueueConfig.from_json(meta["config"])
            break
    return contents.new(max(int(file.stem.removeprefix("shard-")) for file in found) + 1, "full", config, clock)


class _Salvage:
    def __init__(self, path: Path, working: Path, known: Catalog, clock: Clock, notes: list[str]) -> None:
        self.path = path
        self.working = working
        self.known = known
        self.clock = clock
        self.notes = notes
        self.lost: list[LostRange] = []
        self.unverified: list[LostRange] = []

    def run(self, out: Path) -> Salvaged:
        known = self.known
        fresh = contents.new(len(known.topology), known.durability, known.config, self.clock)
        fresh = fresh._replace(topology=known.topology)
        shards: list[ShardPages] = []
        try:
            shards.extend(self._opened(part) for part in known.topology)
            self.working.mkdir(mode=0o700)
            queue_db.build(self.working, fresh, self.clock)
            owned = owning.of_queue(shards, known.topology.ranges, self._note)
            filled = [self._fill(*one) for one in zip(known.topology, shards, owned, strict=True)]
            self._begin_epoch(filled)
            self._define_app_schema()
            if (self.path / staging.DIRECTORY).is_dir():
                shutil.copytree(
                    self.path / staging.DIRECTORY, self.working / staging.DIRECTORY, symlinks=True, ignore=_not_regular
                )
            store = Store.open(
                self.working,
                shards=None,
                durability=None,
                config=None,
                create=False,
                read_only=False,
                clock=self.clock,
                hook=None,
            )
            try:
                for shard, pages, found in zip(store.shards, shards, filled, strict=True):
                    while shard.run(_end_leases):
                        pass
                    for name, root in pages.app:
                        self._save_app(shard, pages, name, root)
                    self._take_back(shard, found.app_rows)
                for problem in check_queue(store, fix=True):
                    if not problem.fixed:
                        self.notes.append(f"shard {problem.shard}: {problem.rule}: {problem.detail}")
                totals = [shard.view(_totals) for shard in store.shards]
            finally:
                store.close()
        finally:
            for pages in shards:
                pages.close()
        files.sync_directory(self.working)
        os.rename(self.working, out)
        files.sync_directory(out.parent)
        return Salvaged(
            sum(messages for messages, _ in totals), sum(dead for _, dead in totals),
            tuple(self.lost), tuple(self.notes), tuple(self.unverified),
        )  # fmt: skip

    def _note(self, shard: int, text: str) -> None:
        if (noted := f"shard {shard}: {text}") not in self.notes:  # some tables are read twice
            self.notes.append(noted)

    def _opened(self, part: Range) -> ShardPages:
        mark = wal_file.read_mark(self.path / layout.MARKS, part.shard)
        note = partial(self._note, part.shard)
        try:
            boot = wal_file.boot_tag(self.clock.boot_id())
            file = File(self.path / part.file, mark, wal_file.unsynced_max(mark, self.known.durability, boot))
        except (OSError, StoreError) as e:
            files.require_descriptors()
            note(f"its file can't be read ({e}): all of it is lost")
            file = None
        if file is not None:
            self._require_format(file, part.shard)
            file.readable = cache(partial(self._readable, self.path / part.file))
        return ShardPages(file, note)

    def _require_format(self, file: File, shard: int) -> None:
        """Refuse a shard of another format, whose tables differ. If its first page is damaged, it is that of queue.db.

        Raises:
            SchemaMismatch: its format is older or newer.
        """
        version = version_of(file) or self.known.format
        if version != migrate.FORMAT:
            file.close()
            hint = hints.SALVAGE_OLDER if version < migrate.FORMAT else None
            raise SchemaMismatch(
                f"its format is {version}, and this strictq salvages format {migrate.FORMAT}", shard=shard, hint=hint
            )

    def _readable(self, database: Path) -> bool:
        """Return whether SQLite finds nothing wrong with a shard except the checksums of its pages. Checks a copy."""
        place = self.working.with_suffix(".look")
        try:
            place.mkdir(mode=0o700)
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{database}{suffix}", place / f"{database.name}{suffix}")
            db = connect(str(place / database.name), durability="process", verify=False)
            try:
                return [row[0] for row in db.execute(CHECK.integrity)] == ["ok"]
            finally:
                db.close()
        except apsw.Error:
            files.require_descriptors()
            return False
        finally:
            files.remove_tree(place)

    def _fill(self, part: Range, pages: ShardPages, owned: owning.Owned) -> Filled:
        file, note = self.working / part.file, partial(self._note, part.shard)
        db = None
        try:
            db = connect(str(file), durability="full")
            filled = Filling(pages, db, file, part, owned, note, self.lost, self.unverified).fill()
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as e:
            raise translate(e, part.shard, db) from e
        finally:
            if db is not None:
                db.close()
        return filled

    def _begin_epoch(self, filled: list[Filled]) -> None:
        """Let tokens and time continue after those of the damaged queue."""
        known, clock = self.known, self.clock
        newest = max([shard.last_time for shard in filled], default=0)
        offset = max(clock.wall(), newest) - clock.boot()
        if known.boot_id == clock.boot_id():
            offset = max(known.time_offset, newest - clock.boot())
        queue_db.begin_at_epoch(self.working, max([known.epoch, *(shard.epoch for shard in filled)]))
        queue_db.raise_epoch(self.working, clock.boot_id(), offset)

    def _define_app_schema(self) -> None:
        try:
            for _, sql in queue_db.app_schema(self.path, 0, read_only=True):
                queue_db.add_app_schema(self.working, [sql])
        except StrictqError as e:
            self.notes.append(f"the program's own tables are not saved: their definitions can't be read ({e})")

    def _save_app(self, shard: Shard, pages: ShardPages, name: str, root: int) -> None:
        """Save a table of the program's, if its columns are stored in the order of their definition."""
        columns: list[Any] = shard.read(lambda db: db.execute(SALVAGE.columns, (name,)).fetchall())
        keyed = [i for i, (_, pk) in enumerate(columns) if pk]
        without = shard.read(lambda db: db.execute(SALVAGE.without_rowid, (name,)).get)
        if not columns or any(hidden for hidden, _ in columns) or (without and keyed != list(range(len(keyed)))):
            self._note(shard.number, f"the table {name} is not saved: it is not defined any more, or stored in another order")
            return
        found, tree = pages.app_rows(root)

        def rows() -> Iterator[Row]:
            for rowid, row in found:
                whole = [*row, *[None] * (len(columns) - len(row))]
                if rowid is not None and len(keyed) == 1 and whole[keyed[0]] is None:
                    whole[keyed[0]] = rowid
                yield tuple(whole)

        self._insert_app(shard, name, insert_into(name, len(columns)), rows())
        if tree.lost:
            self._note(shard.number, f"a part of the table {name} is lost")

    def _take_back(self, shard: Shard, parcel: list[Row]) -> None:
        """Save rows of the program that were on their way to another shard."""
        try:
            found = list(app_rows.unpacked(parcel, parcels.COLUMNS))
        except (*INVALID, RuntimeError):
            self._note(shard.number, "rows of the program's tables that were on their way to another shard are lost")
            return
        for name, columns, rows in found:
            self._insert_app(shard, name, with_columns(name, columns), iter(rows))

    def _insert_app(self, shard: Shard, name: str, statement: str, rows: Iterator[Row]) -> None:
        while batch := list(islice(rows, BATCH)):
            for error in shard.run(bound(_insert, statement, batch)):
                self._note(shard.number, f"a row that the table {name} refuses is left out ({error})")


def _totals(lanes: ShardLanes) -> tuple[int, int]:
    totals = lanes.memory.totals
    return totals.pending, totals.dead


def _insert(tx: Tx, statement: str, batch: list[Row]) -> list[str]:
    """Insert rows. Return the errors of those that are refused."""
    refused: list[str] = []
    tx.run("SAVEPOINT rows")
    try:
        tx.many(statement, batch)
    except REFUSED:
        tx.run("ROLLBACK TO rows")
        for row in batch:
            try:
                tx.run(statement, row)
            except REFUSED as e:
                refused.append(f"{e}: {row[:2]!r}")
    tx.run("RELEASE rows")
    return refused


def _end_leases(tx: Tx) -> bool:
    """End some leases of the damaged queue, like those of dead processes. Return whether there may be more.

    The beginning of the epoch has loaded all of them.
    """
    lanes = tx.lanes.memory.lanes.values()
    timed = [lane for lane in lanes if lane.grant is not None and lane.grant.deadline < NEVER]
    expiring.end(tx, timed[:LEASES_STEP])
    return len(timed) > LEASES_STEP


def _not_regular(directory: str, names: list[str]) -> set[str]:
    """Return what `copytree` must skip: other file types are not strictq's, and reading a FIFO would wait for ever."""
    modes = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    return {name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))}
