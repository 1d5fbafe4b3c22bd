"""Read the tables of one damaged shard, page by page (pages.py): the readable rows, and where rows are missing.

A file of the format that is read was laid out like a new one, or its schema says where each table begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from ..._sql import FORMAT_3, SALVAGE
from ..commit.connection import MEMORY, connect
from ..disk.pages import File, Row, Tree, Unreadable, free_pages
from ..shard.checking import is_key

Hole = tuple[Row | None, Row | None]
"""The keys before and after missing rows. None: they are the first, or the last."""
Shape = tuple[int, tuple[tuple[type, ...], ...], int]
"""Number of key columns (0: the rowid), types of the first columns, number of columns."""
_VERSION_AT: Final = 60
"""Where the first page has PRAGMA user_version."""
_INT, _TEXT, _BLOB, _ROWID = (int,), (str,), (bytes,), (type(None),)
_INT_OR_NULL, _TEXT_OR_NULL, _BLOB_OR_NULL = (int, type(None)), (str, type(None)), (bytes, type(None))
_SHAPES: Final[dict[str, Shape]] = {
    "message": (0, (_ROWID, _BLOB, _INT, _INT, _INT_OR_NULL, _INT_OR_NULL, _TEXT_OR_NULL, _BLOB_OR_NULL), 8),
    "journal": (0, (_ROWID, _INT, _INT, _INT, _INT, _INT, _TEXT_OR_NULL, _BLOB_OR_NULL), 8),
    "lane": (1, (_BLOB, _INT, _INT, _INT), 18),
    "pending": (2, (_BLOB, _INT, _BLOB), 3),
    "trouble": (0, (_ROWID, _INT, _INT_OR_NULL, _TEXT_OR_NULL, _TEXT_OR_NULL, _TEXT_OR_NULL), 6),
    "gone": (0, (_ROWID, _BLOB, _BLOB), 3),
    "dead": (2, (_BLOB, _INT, _INT, _INT, _TEXT, _TEXT_OR_NULL), 6),
    "dedup": (2, (_BLOB, _TEXT, _INT, _INT, _INT, _BLOB_OR_NULL), 6),
    "key_state": (0, (_BLOB, _BLOB), 2),
    "outbox": (2, (_INT, _INT, _BLOB), 12),
    "applied": (2, (_TEXT, _INT, _INT), 6),
    "history": (0, (_ROWID, _BLOB), 16),
    "kept_output": (0, (_ROWID, _BLOB, _INT, _INT, _TEXT), 5),
    "parcel": (3, (_INT, _INT, _INT), 21),
}
"""The tables whose pages differ from those of any other table."""
_KEY_AT: Final = {"message": 1, "lane": 0, "pending": 0, "dead": 0, "key_state": 0, "kept_output": 1}
"""The column of these tables that has the key of a lane."""
_OPTIONAL: Final = frozenset(("kept_output", "parcel"))
"""Tables that a new shard does not have."""
_ADDED: Final = {"history": 2}
"""Columns that were appended after format 1. Rows that it wrote lack them; SQLite reads NULL."""


class ShardPages:
    """The tables of one damaged shard.

    Attributes:
        holes: by table, where rows are missing. Of a table that was read.
        app: name and root of the program's own tables.
        is_verified: whether the row that `rows` yielded last is from pages with right checksums.
    """

    def __init__(self, file: File | None, note: Callable[[str], None]) -> None:
        """
        Args:
            file: None: it can't be read, so all of it is lost.
        """
        self._file = file
        self._note = note
        self._free = None if file is None else free_pages(file)
        self._roots = dict(_new_roots())
        self.holes: dict[str, list[Hole]] = {}
        self.app: list[tuple[str, int]] = []
        self.is_verified = True
        if file is not None:
            self._read_schema(file)

    @property
    def is_lost(self) -> bool:
        return self._file is None

    def close(self) -> None:
        if self._file is not None:
            for text in self._file.notes:  # last, because pages were read until now
                self._note(text)
            self._file.close()

    def _read_schema(self, file: File) -> None:
        tree = Tree(file, 1)
        found = {row[1]: (row[0], row[3]) for _, row in tree.rows() if len(row) == 5}
        if tree.lost:
            self._note("its schema is damaged: the program's own tables are not saved")
            self._expect_a_new_layout()
            return
        self._roots = {
            name: root for name, (kind, root) in found.items() if kind == "table" and (name in self._roots or name in _OPTIONAL)
        }
        self.app = [(name, root) for name, (kind, root) in found.items() if kind == "table" and str(name).startswith("app_")]

    def _expect_a_new_layout(self) -> None:
        """Keep only tables that begin where a new shard has them. A migrated shard has them elsewhere."""
        other = [name for name in _SHAPES if name in self._roots and not self._begins_there(name)]
        for name in other:
            self._note(f"where its table {name} begins is not known")
        for name in other if not other else list(self._roots):
            if name in other or name not in _SHAPES:
                del self._roots[name]

    def _begins_there(self, table: str) -> bool:
        assert self._file is not None
        tree = Tree(self._file, self._roots[table], _SHAPES[table][0] or 1)
        first = next(tree.rows(), None)
        return not tree.lost if first is None else _fits(table, *first)

    def rows(self, table: str) -> Iterator[tuple[int | None, Row]]:
        """Yield (rowid or None, row) of the readable rows of a table, then of those that were found below damaged pages."""
        holes = self.holes[table] = []
        if self._file is None or table not in self._roots:
            holes.append((None, None))
            return
        shape = _SHAPES.get(table)
        tree = Tree(self._file, self._roots[table], 2 if shape is None else shape[0])
        unverified = 0
        for rowid, row in tree.rows():
            self.is_verified = not tree.unverified
            unverified += tree.unverified
            yield rowid, _whole(table, row)
        if shape is not None and tree.lost:
            tree.reached |= self._pages_of_others(table)
            for rowid, row in tree.found_again(self._free, lambda rowid, row: _fits(table, rowid, row)):
                self.is_verified = not tree.unverified
                unverified += tree.unverified
                yield rowid, _whole(table, row)
        self.is_verified = True
        if unverified:
            self._note(f"{unverified} rows of the table {table} are from pages whose checksum is wrong; SQLite reads them")
        if tree.lost:
            self._note(f"a part of the table {table} is damaged")
            holes += tree.lost

    def whole_rows(self, table: str) -> Iterator[Row]:
        """Yield the rows with all columns, the rowid among them, as SQL inserts them."""
        named = table in _SHAPES and _SHAPES[table][1][0] == _ROWID
        for rowid, row in self.rows(table):
            yield (rowid, *row[1:]) if named else row

    def app_rows(self, root: int) -> tuple[Iterator[tuple[int | None, Row]], Tree]:
        """Return the rows of one of the program's own tables, and the tree that they are read from."""
        assert self._file is not None
        tree = Tree(self._file, root)
        return tree.rows(), tree

    def is_missing(self, table: str, key: Row) -> bool:
        """Return whether a row with this key may have been lost. The table was read."""
        return any((lo is None or lo < key) and (hi is None or key < hi) for lo, hi in self.holes.get(table, ()))

    def _pages_of_others(self, table: str) -> set[int]:
        """Return the pages of all other tables and indexes, as far as they can be read."""
        assert self._file is not None
        found: set[int] = set()
        others = [root for name, root in self._all_roots(self._file) if name != table]
        for root in others:
            tree = Tree(self._file, root)
            for _ in tree.rows():
                pass
            found |= tree.reached
        return found

    def _all_roots(self, file: File) -> list[tuple[str, int]]:
        tree = Tree(file, 1)
        found = [(row[1], row[3]) for _, row in tree.rows() if len(row) == 5 and row[3]]
        return list(_new_roots().items()) if tree.lost else found


@cache
def _new_roots() -> Mapping[str, int]:
    """Return the root pages of the tables and indexes of a new shard."""
    db = connect(MEMORY, durability="process")
    try:
        db.execute(FORMAT_3).fetchall()
        roots: list[Any] = db.execute(SALVAGE.roots).fetchall()
        return dict(roots)
    finally:
        db.close()


def version_of(file: File) -> int | None:
    """Return the format of a shard. None: its first page is damaged."""
    try:
        return int.from_bytes(file.page(1)[_VERSION_AT : _VERSION_AT + 4], "big")
    except Unreadable:
        return None


def _fits(table: str, rowid: int | None, row: Row) -> bool:
    key, kinds, columns = _SHAPES[table]
    widths = (columns, columns - _ADDED.get(table, 0))
    if (rowid is None) != bool(key) or len(row) not in widths or not all(map(isinstance, row, kinds)):
        return False
    at = _KEY_AT.get(table)
    return at is None or is_key(row[at]) or (table == "message" and rowid == 0)


def _whole(table: str, row: Row) -> Row:
    """Return the row with NULL in the columns that its format did not have."""
    added = _ADDED.get(table, 0)
    missing = _SHAPES[table][2] - len(row) if added else 0
    return (*row, *[None] * missing) if missing == added else row
