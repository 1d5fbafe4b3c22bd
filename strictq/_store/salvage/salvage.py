"""Salvage the readable part of a damaged queue into a new one. The damaged files are read, and never written.

Each shard's pages are read and verified one by one (pages.py), and their rows are inserted into a new queue in ordinary
transactions. What could not be read is reported; nothing is guessed.
Source: docs/howto/damage.md
"""

from __future__ import annotations

import os
import shutil
import stat
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

from ... import _files as files
from ... import _hints as hints
from ..._clock import Clock
from ..._config import QueueConfig
from ..._errors import InvalidArgument, QueueNotFound, StoreBusy, StoreError, StrictqError
from ..._files import real_path
from ..._findings import LostRange, Salvaged
from ..._keys import decode_key, is_keyless
from ..._sql import CHECK, FORMAT_2, LANES, SALVAGE, SHARD, SHARD_SCHEMA, insert_into
from .. import catalog, check
from ..bulk import staging
from ..catalog import Catalog
from ..commit.calls import bound
from ..commit.connection import MEMORY, connect
from ..commit.tx import Totals, Tx
from ..disk import layout, locks, wal_file
from ..disk.pages import File, Row, Tree, free_pages
from ..hot.journal import ACK, COOL, decoded_keys
from ..lanes import lanes
from ..store import Store
from ..topology import Range
from . import handouts

BATCH: Final = 2000
UNKNOWN_SEQS: Final = 1 << 40
"""How far a lane's next seq is moved if it is unknown which were issued, so that none is issued twice."""
RANGES_MAX: Final = 10_000
ALONE_SECONDS: Final = 5.0
# The expected rows of a table.
_NUMBER, _NUMBER_OR_NULL = (int,), (int, type(None))
_SHAPES: Final[dict[str, tuple[int, tuple[tuple[type, ...], ...], int]]] = {
    # table: (number of key columns; 0: the rowid), (types of the first columns), (number of columns)
    "message": (2, (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER_OR_NULL, _NUMBER_OR_NULL), 16),
    "dead": (2, (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, (str,)), 16),
    "lane": (0, ((type(None),), (bytes,)), 14),
    "sqlite_autoindex_lane_1": (1, ((bytes,), _NUMBER), 2),
    "body": (0, ((type(None),), (bytes,)), 2),
    "outbox": (2, (_NUMBER, _NUMBER, (bytes,)), 12),
    "dedup": (2, (_NUMBER, (str,), _NUMBER), 5),
    "applied": (2, ((str,), _NUMBER, _NUMBER), 6),
    "history": (0, ((type(None),), (bytes,)), 16),
    "inbox": (0, ((type(None),), (bytes,), _NUMBER, _NUMBER), 10),
    "journal": (0, ((type(None),), _NUMBER, _NUMBER, _NUMBER), 11),
}
"""Tables whose pages differ from those of any other table. Those of `key_state` do not: its rows look like bodies."""
_ADDED: Final = {"message": 1, "dead": 1, "history": 2}
"""Columns that format 2 appended. Rows that format 1 wrote lack them; SQLite reads NULL."""


def salvage(path: Path, out: Path, clock: Clock) -> Salvaged:
    """Make a new queue at `out` from the readable part of the one at `path`, which no process may have open.

    Raises:
        QueueNotFound, InvalidArgument, StoreBusy, StoreFull, StoreError: nothing was made.
    """
    path, out = Path(real_path(path)), Path(real_path(out))
    if not path.is_dir() or not any(path.glob("shard-*.db")):
        raise QueueNotFound(f"there is no queue at {path}")
    if out.exists():
        raise InvalidArgument(f"{out} exists", hint=hints.NEW_PATH)
    notes: list[str] = []
    presence = locks.Presence(path, look=True)
    if not presence.alone(ALONE_SECONDS):
        presence.leave()
        raise StoreBusy("another process has the queue open", shard=-1, hint=hints.CLOSE_EVERYWHERE)
    working = out.with_name(f".{out.name}.{os.urandom(6).hex()}.new")
    made: list[Path] = []
    try:
        files.make_directories(out.parent, made)
        known = _known(path, clock, notes)
        return _Salvage(path, working, known, clock, notes).run(out)
    finally:
        presence.leave()
        if working.exists():
            files.remove_tree(working)
        files.remove_empty(made)


def _known(path: Path, clock: Clock, notes: list[str]) -> Catalog:
    """Return the contents of queue.db, or, if it is damaged, what the shards record of it."""
    try:
        return catalog.read(path, read_only=True)
    except StrictqError as e:
        files.require_descriptors()
        notes.append(f"queue.db can't be read ({e}): shards and configuration are taken from the shards")
    found = sorted(path.glob("shard-*.db"))
    config = QueueConfig()
    for file in found:
        with suppress(OSError, ValueError, KeyError, StrictqError):
            read = File(file, None, unsynced=None)
            try:
                meta = {row[0]: row[1] for _, row in Tree(read, _roots()["meta"]).rows()}
            finally:
                read.close()
            config = QueueConfig.from_json(meta["config"])
            break
    return catalog.new(max(int(file.stem.removeprefix("shard-")) for file in found) + 1, "full", config, clock)


def _roots() -> dict[str, int]:
    """Return the root pages of a shard's own tables."""
    db = connect(MEMORY, durability="process")
    try:
        db.execute(SHARD_SCHEMA).fetchall()
        db.execute(FORMAT_2).fetchall()
        roots: list[Any] = db.execute(SALVAGE.roots).fetchall()
        return dict(roots)
    finally:
        db.close()


class _Salvage:
    """One salvage while it runs."""

    def __init__(self, path: Path, working: Path, known: Catalog, clock: Clock, notes: list[str]) -> None:
        self.path = path
        self.working = working
        self.known = known
        self.clock = clock
        self.notes = notes
        self.lost: list[LostRange] = []
        self.unverified: list[LostRange] = []

    def run(self, out: Path) -> Salvaged:
        shards = [self._opened(part) for part in self.known.topology]
        try:
            newest = max([s.totals.last_time for s in shards], default=0)
            epoch = max([self.known.epoch, *(s.totals.epoch for s in shards)]) + 1
            offset = max(self.clock.wall(), newest) - self.clock.boot()
            if self.known.boot_id == self.clock.boot_id():
                offset = max(self.known.time_offset, newest - self.clock.boot())
            fresh = catalog.new(len(shards), self.known.durability, self.known.config, self.clock)
            fresh = fresh._replace(time_offset=offset, topology=self.known.topology)
            self.working.mkdir(mode=0o700)
            catalog.build(self.working, fresh, self.clock)
            catalog.begin_at_epoch(self.working, epoch)
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
                for source in shards:
                    source.save(store)
                self._check(store)
                counts = [shard.read(lambda db: db.execute(CHECK.totals).get) for shard in store.shards]
            finally:
                store.close()
        finally:
            for source in shards:
                source.close()
        files.sync_directory(self.working)
        os.rename(self.working, out)
        files.sync_directory(out.parent)
        messages, dead = sum(c[0] for c in counts), sum(c[1] for c in counts)
        return Salvaged(messages, dead, tuple(self.lost), tuple(self.notes), tuple(self.unverified))

    def _opened(self, part: Range) -> _Source:
        mark = wal_file.read_mark(self.path / layout.MARKS, part.shard)
        try:
            boot = wal_file.boot_tag(self.clock.boot_id())
            file = File(self.path / part.file, mark, wal_file.unsynced_max(mark, self.known.durability, boot))
        except (OSError, StoreError) as e:
            files.require_descriptors()
            self.notes.append(f"shard {part.shard}: its file can't be read ({e}): all of it is lost")
            file = None
        if file is not None:
            file.readable = cache(partial(self._readable, self.path / part.file))
        return _Source(self, part, file)

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
            return False
        finally:
            files.remove_tree(place)

    def _define_app_schema(self) -> None:
        try:
            for _, sql in catalog.app_schema(self.path, 0, read_only=True):
                catalog.add_app_schema(self.working, sql)
        except StrictqError as e:
            self.notes.append(f"the program's own tables are not saved: their definitions can't be read ({e})")

    def _check(self, store: Store) -> None:
        """Run the new queue's own check. Apply its fixes, and note the other problems."""
        hashes = {part.shard: part for part in self.known.topology}
        for shard in store.shards:
            part = hashes[shard.number]
            for problem, fix in shard.look(bound(check.check, part.shard, part.owns, len(hashes))):
                if fix is not None:
                    shard.run(fix)
                else:
                    self.notes.append(f"shard {problem.shard}: {problem.rule}: {problem.detail}")


def _not_regular(directory: str, names: list[str]) -> set[str]:
    """Return what `copytree` must skip: other file types are not strictq's, and reading a FIFO would wait for ever."""
    modes = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    return {name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))}


def _fits(table: str, rowid: int | None, row: Row) -> bool:
    key, kinds, columns = _SHAPES[table]
    known = len(row) in (columns, columns - _ADDED.get(table, 0))
    return (rowid is None) == bool(key) and known and all(map(isinstance, row, kinds))


def _whole(table: str, row: Row) -> Row:
    """Return the row with NULL in the columns that its format did not have."""
    added = _ADDED.get(table, 0)
    missing = _SHAPES[table][2] - len(row) if added else 0
    return (*row, *[None] * missing) if missing == added else row


class _Source:
    """One damaged shard."""

    def __init__(self, whole: _Salvage, part: Range, file: File | None) -> None:
        self.whole = whole
        self.part = part
        self.file = file
        self.free = None if file is None else free_pages(file)
        self.roots = _roots()
        self.app: list[tuple[str, int]] = []
        self.keys: dict[int, bytes] = {}
        self.tree: Tree | None = None
        """The tree that `rows` reads now."""
        self.unverified: set[tuple[str, int]] = set()
        """Lanes and bodies from pages whose checksum is wrong."""
        self.open_ended: set[int] = set()
        """Lanes whose newest messages may be lost."""
        self.issued: dict[int, int] = {}
        """The highest seq of a lane that is known to have been issued, if it exceeds the one in its row."""
        self.last_id = 0
        """The newest arrival number in the logs."""
        self.schema_lost = False
        self.unknown_lanes = False
        """Whether there may have been lanes of which nothing remains, not even their keys."""
        self.last_seqs: dict[int, int] = {}
        """The newest issued seq of each lane, according to its row, its messages and its dead letters."""
        if file is not None:
            self._read_schema(file)
        self.totals = self._read_totals()

    def close(self) -> None:
        if self.file is not None:
            for note in self.file.notes:  # last, because pages were read until now
                self.note(note)
            self.file.close()

    def note(self, text: str) -> None:
        self.whole.notes.append(f"shard {self.part.shard}: {text}")

    def _read_schema(self, file: File) -> None:
        tree = Tree(file, 1)
        tables = {row[1]: row[3] for _, row in tree.rows() if len(row) == 5 and row[0] in ("table", "index")}
        if tree.lost:
            self.schema_lost = True
            self.note("its schema is damaged: the program's own tables are not saved")
            for name in ("inbox", "journal"):
                if not self._begins_where_new_shards_have_it(name):
                    self.note(f"where its table {name} begins is not known")
                    del self.roots[name]
            return
        self.app = [(name, root) for name, root in tables.items() if str(name).startswith("app_")]
        for name in ("inbox", "journal"):  # a migrated shard has them elsewhere, an older one has none
            if name in tables:
                self.roots[name] = tables[name]
            else:
                del self.roots[name]
        kinds = {row[1]: row[0] for _, row in Tree(file, 1).rows() if len(row) == 5}
        self.app = [(name, root) for name, root in self.app if kinds[name] == "table"]

    def _begins_where_new_shards_have_it(self, table: str) -> bool:
        assert self.file is not None
        tree = Tree(self.file, self.roots[table])
        first = next(tree.rows(), None)
        return not tree.lost if first is None else _fits(table, *first)

    def _pages_of_others(self, table: str) -> set[int]:
        """Return the pages of all other tables and indexes, as far as they can be read."""
        assert self.file is not None
        found: set[int] = set()
        for name, root in [*self.roots.items(), *self.app]:
            if name != table:
                tree = Tree(self.file, root)
                for _ in tree.rows():
                    pass
                found |= tree.reached
        return found

    def rows(self, table: str, lost: list[tuple[Row | None, Row | None]] | None = None) -> Iterator[tuple[int | None, Row]]:
        """Yield the readable rows of a table, including rows recovered below its damaged pages."""
        if self.file is None:
            return
        shape = _SHAPES.get(table)
        tree = self.tree = Tree(self.file, self.roots[table], 2 if shape is None else shape[0])
        unverified = 0
        for rowid, row in tree.rows():
            unverified += tree.unverified
            yield rowid, _whole(table, row)
        if shape is not None and tree.lost:
            tree.reached |= self._pages_of_others(table)
            for rowid, row in tree.found_again(self.free, lambda rowid, row: _fits(table, rowid, row)):
                unverified += tree.unverified
                yield rowid, _whole(table, row)
        if unverified:
            self.note(f"{unverified} rows of the table {table} are from pages whose checksum is wrong; SQLite reads them")
        if tree.lost:
            self.note(f"a part of the table {table} is damaged")
            if lost is not None:
                lost += tree.lost

    def _read_totals(self) -> Totals:
        for _, row in self.rows("counter"):
            with suppress(TypeError):
                return Totals(*row[1:])
        self.note("its counters are lost")
        names = len(attrs.fields(Totals))
        return Totals(*[0] * names)

    # ---- into the new queue

    def save(self, store: Store) -> None:
        shard = store.shards[self.part.shard]
        lost_lanes: list[tuple[Row | None, Row | None]] = []
        self._put(shard, SALVAGE.lane, self._lanes(lost_lanes))
        if lost_lanes:
            self._put(shard, SALVAGE.lane, self._lanes_by_key())
        self._put(shard, SALVAGE.body, self._bodies())
        leases = dict(self.rows("lease"))
        for table, statement in (("message", SALVAGE.message), ("dead", SALVAGE.dead)):
            lost: list[tuple[Row | None, Row | None]] = []
            self._put(shard, statement, self._of_known_lanes(table, lost, leases))
            self._tell(table, lost)
        if "inbox" in self.roots and "journal" in self.roots:
            self._save_hot(shard)
        elif self.file is not None and self.schema_lost:
            self._tell_arrivals({}, [(None, None)])
        self._put(shard, SALVAGE.dedup, (row for _, row in self.rows("dedup")))
        self._put(shard, SALVAGE.key_state, ((rowid, *row[1:]) for rowid, row in self.rows("key_state")))
        self._put(shard, SALVAGE.inlet, (row for _, row in self.rows("inlet")))
        self._put(shard, SALVAGE.history, ((rowid, *row[1:]) for rowid, row in self.rows("history")))
        self._put(shard, SALVAGE.applied, (row for _, row in self.rows("applied")))
        self._save_outbox(shard)
        for name, root in self.app:
            self._save_app(shard, name, root)
        known = {lane: row for lane, row in leases.items() if lane in self.keys}
        hole = handouts.copy(self.rows, lambda statement, rows: self._put(shard, statement, rows), known)
        shard.run(lambda tx: self._finish(tx, leases, hole=hole))

    def _put(self, shard: Any, statement: str, rows: Iterable[Row]) -> None:
        rows = iter(rows)
        while batch := list(islice(rows, BATCH)):
            shard.run(bound(self._insert, statement, batch))

    def _insert(self, tx: Tx, statement: str, batch: list[Row]) -> None:
        tx.run("SAVEPOINT rows")
        try:
            tx.many(statement, batch)
        except (apsw.Error, TypeError):
            tx.run("ROLLBACK TO rows")
            for row in batch:
                try:
                    tx.run(statement, row)
                except (apsw.Error, TypeError) as e:
                    self.note(f"a row that no send writes is left out ({e}): {statement.split()[2]} {row[:2]!r}")
        tx.run("RELEASE rows")
        tx.dirty = True

    def _lanes(self, lost: list[tuple[Row | None, Row | None]]) -> Iterator[Row]:
        for rowid, row in self.rows("lane", lost):
            assert rowid is not None
            self.keys[rowid] = row[1]
            self.last_seqs[rowid] = row[2]
            self._note_unverified("lane", rowid)
            yield (rowid, *row[1:])

    def _bodies(self) -> Iterator[Row]:
        for rowid, row in self.rows("body"):
            assert rowid is not None
            self._note_unverified("body", rowid)
            yield (rowid, *row[1:])

    def _note_unverified(self, table: str, rowid: int) -> None:
        if self.tree is not None and self.tree.unverified:
            self.unverified.add((table, rowid))

    def _lanes_by_key(self) -> Iterator[Row]:
        """Yield lanes whose row is lost, from the index of keys. What they issued is unknown."""
        for _, row in self.rows("sqlite_autoindex_lane_1"):
            key, lane = row
            if lane not in self.keys:
                self.keys[lane] = key
                self.open_ended.add(lane)
                yield (lane, key, 0, 0, 0, 0, None, None, self.totals.last_time, None, None, None, None, None)

    def _of_known_lanes(self, table: str, lost: list[Any], leases: dict[int | None, Row]) -> Iterator[Row]:
        unknown = 0
        unverified: dict[int, list[int]] = {}
        for _, row in self.rows(table, lost):
            lane = row[0]
            if lane not in self.keys:
                unknown += 1
                continue
            self.last_seqs[lane] = max(self.last_seqs.get(lane, 0), row[1])
            assert self.tree is not None
            if self.tree.unverified or not {("lane", lane), ("body", row[2])}.isdisjoint(self.unverified):
                unverified.setdefault(lane, []).append(row[1])
            lease = leases.get(lane)
            started = lease is not None and not handouts.is_handed_out(lease) and lease[3] <= row[1] <= lease[5]
            if table == "message" and started:
                row = (*row[:6], row[6] + 1, *row[7:])  # its handler was started, which counts as an attempt
            yield row
        self._tell_unverified(unverified)
        if unknown:
            self.note(f"{unknown} rows of {table} are lost: their keys can't be read")
            self.whole.lost.append(LostRange(self.part.shard, None, 1, None))

    def _save_hot(self, shard: Any) -> None:
        """Save the messages of hot lanes that, according to the journal, are neither acked nor in the tables. Leases are over."""
        lost: list[tuple[Row | None, Row | None]] = []
        acked: set[int] = set()
        cooled: dict[bytes, int] = {}
        for _, row in self.rows("journal", lost):
            _, kind, _, top, count, *_, data = row
            with suppress(TypeError, ValueError, IndexError):
                self.last_id = max(self.last_id, top)
                if kind == ACK:
                    acked.update(array("q", data))
                elif kind == COOL:
                    cooled.update((key, max(top, cooled.get(key, 0))) for key in decoded_keys(data)[:count])
        if lost:
            self.note("a part of its journal is lost: messages that were acked a short time ago may be delivered again")
        numbers = {key: lane for lane, key in self.keys.items()}
        messages: list[Row] = []
        arrivals: dict[int, list[tuple[int, int]]] = {}
        unverified: dict[int, list[int]] = {}
        lost = []
        for rowid, row in self.rows("inbox", lost):
            _, key, seq, sent_at, expires, headers, size_hint, prepare, process, body = row
            if rowid is None:
                continue
            lane = numbers.get(key)
            if lane is not None:
                arrivals.setdefault(lane, []).append((rowid, seq))
            if rowid <= cooled.get(key, 0) or (lane is not None and seq <= self.last_seqs.get(lane, 0)):
                continue  # it is, or was, in the tables
            if lane is None:
                lane = numbers[key] = max(self.keys, default=0) + 1
                self.keys[lane] = key
                arrivals[lane] = [(rowid, seq)]
                self._put(shard, SALVAGE.lane, [(lane, key, 0, 0, 0, 0, None, None, sent_at, None, None, None, None, None)])
            self.last_id = max(self.last_id, rowid)
            if rowid in acked:
                self.issued[lane] = max(self.issued.get(lane, 0), seq)
            else:
                assert self.tree is not None
                if self.tree.unverified or ("body", rowid) in self.unverified:
                    unverified.setdefault(lane, []).append(seq)
                messages.append(
                    (
                        lane,
                        seq,
                        rowid,
                        sent_at,
                        None,
                        expires,
                        0,
                        headers,
                        size_hint,
                        prepare,
                        process,
                        None,
                        None,
                        None,
                        body,
                        None,
                    )
                )
        self._put(shard, SALVAGE.message, messages)
        self._tell_unverified(unverified)
        if lost:
            self._tell_arrivals(arrivals, [(None if lo is None else lo[0], None if hi is None else hi[0]) for lo, hi in lost])

    def _save_outbox(self, shard: Any) -> None:
        incarnation = next((row[1] for _, row in self.rows("meta") if row[0] == "incarnation"), None)
        waiting = [row for _, row in self.rows("outbox")]
        if incarnation is None:
            if waiting or self.file is not None:
                self.note(f"{len(waiting)} sends to other shards are left out: whether they arrived can't be known")
            return
        self._put(shard, SALVAGE.outbox, waiting)
        shard.run(lambda tx: tx.run(SHARD.write_meta, ("incarnation", incarnation)) and None)

    def _save_app(self, shard: Any, name: str, root: int) -> None:
        """Save a table of the program's, if its columns are stored in the order of their definition."""
        assert self.file is not None
        columns = shard.read(lambda db: db.execute(SALVAGE.columns, (name,)).fetchall())
        keyed = [i for i, (_, pk) in enumerate(columns) if pk]
        without = shard.read(lambda db: db.execute(SALVAGE.without_rowid, (name,)).get)
        if not columns or any(hidden for hidden, _ in columns) or (without and keyed != list(range(len(keyed)))):
            self.note(f"the table {name} is not saved: it is not defined any more, or stored in another order")
            return
        tree = Tree(self.file, root)

        def rows() -> Iterator[Row]:
            for rowid, row in tree.rows():
                whole = [*row, *[None] * (len(columns) - len(row))]
                if rowid is not None and len(keyed) == 1 and whole[keyed[0]] is None:
                    whole[keyed[0]] = rowid
                yield tuple(whole)

        self._put(shard, insert_into(name, len(columns)), rows())
        if tree.lost:
            self.note(f"a part of the table {name} is lost")

    # ---- what is lost

    def _tell(self, table: str, lost: list[tuple[Row | None, Row | None]]) -> None:
        """Report the seqs that may be missing: those between the keys around a damaged page that were not recovered."""
        if self.file is None and table == "message":
            self.whole.lost.append(LostRange(self.part.shard, None, 1, None))
        for lo, hi in lost:
            first = lo if lo is not None else (0, 0)
            affected = [n for n in sorted(self.keys) if first[0] <= n and (hi is None or n <= hi[0])]
            for lane in affected[:RANGES_MAX]:
                begin = first[1] + 1 if lane == first[0] else 1
                end = hi[1] - 1 if hi is not None and lane == hi[0] else None
                if end is None:
                    self.open_ended.add(lane)
                if end is None or begin <= end:
                    self._tell_lane(lane, begin, end)

    def _tell_unverified(self, seqs: dict[int, list[int]]) -> None:
        for lane, some in seqs.items():
            self.whole.unverified.append(self._range(lane, min(some), max(some)))

    def _tell_arrivals(self, arrivals: dict[int, list[tuple[int, int]]], lost: list[tuple[int | None, int | None]]) -> None:
        """Report the same for the inbox, whose pages hold rows of every lane: gaps between the lane's rows around a hole.

        If these are fewer than the rows lost, newer messages of any lane may be lost, and lanes of which nothing remains.

        Args:
            arrivals: arrival number and seq of the rows that were found, by lane.
            lost: the arrival numbers around each hole. None: no row was found there.
        """
        told = 0
        for lane, found in list(arrivals.items())[:RANGES_MAX]:
            before, seq = 0, self.last_seqs.get(lane, 0)
            for arrival, following in sorted(found):
                hole = any((hi is None or before < hi) and (lo is None or lo < arrival) for lo, hi in lost)
                if hole and following > seq + 1:
                    self._tell_lane(lane, seq + 1, following - 1)
                    told += following - seq - 1
                before, seq = arrival, max(seq, following)
        missing = sum(-1 if lo is None or hi is None else hi - lo - 1 for lo, hi in lost)
        if told == missing and all(lo is not None and hi is not None for lo, hi in lost):
            return
        self.whole.lost.append(LostRange(self.part.shard, None, 1, None))
        self.open_ended.update(self.keys)
        self.unknown_lanes = True
        if any(hi is None for _, hi in lost):
            self.last_id += UNKNOWN_SEQS

    def _tell_lane(self, lane: int, begin: int, end: int | None) -> None:
        self.whole.lost.append(self._range(lane, begin, end))

    def _range(self, lane: int, begin: int, end: int | None) -> LostRange:
        key = self.keys[lane]
        return LostRange(self.part.shard, None if is_keyless(key) else decode_key(key), begin, end)

    # ---- the end

    def _finish(self, tx: Tx, leases: dict[int | None, Row], *, hole: bool) -> None:
        issued = self.issued
        for table, lane, seq in tx.run(CHECK.body_missing).fetchall():
            issued[lane] = max(issued.get(lane, 0), seq)
            tx.run(LANES.delete_message if table == "message" else LANES.delete_dead, (lane, seq))
            self._tell_lane(lane, seq, seq)
        held = handouts.settle(tx, self.note, hole=hole)
        old, totals = self.totals, tx.totals
        for field in attrs.fields(Totals):
            if field.name not in ("config_version", "epoch", "time_offset", "next_deadline"):
                setattr(totals, field.name, getattr(old, field.name))
        beyond = old.seq_floor + max(old.sends, self.last_id) if old.sends or self.last_id else UNKNOWN_SEQS
        if self.unknown_lanes:
            totals.seq_floor = beyond
        for lane, rows, newest in tx.run(SALVAGE.lane_counts).fetchall():
            row = lanes.get(tx, lane)
            last_seq = max(row.last_seq, issued.get(lane, 0), beyond if lane in self.open_ended else 0)
            tx.run(SALVAGE.set_counts, (last_seq, max(last_seq, newest) - rows, lane))
            lease = leases.get(lane)
            if lease is not None and lease[4] > lease[3] and not handouts.is_handed_out(lease):
                tx.run(LANES.set_solo, (lease[4], lease[4], lane))
        arrival, buried, position, lane, _token, outbox, _done = tx.run(CHECK.maxima).get
        totals.pending, totals.dead, totals.lanes = tx.run(CHECK.totals).get
        totals.last_id = max(totals.last_id, arrival, buried, position, self.last_id)
        totals.last_lane = max(totals.last_lane, lane)
        totals.last_outbox = max(totals.last_outbox, outbox)
        for lane in self.keys.keys() - held:
            lanes.place(tx, lane)
        tx.dirty = True
