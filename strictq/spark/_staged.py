"""A batch that lies in staging files, as the parts that its shards take. Imported late, with pyarrow.

Everything here follows from the files alone: whoever opens them again gets the same parts with the same rows in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import _hints as hints
from .._errors import StoreError
from .._files import open_regular
from .._keys import keyless_by_hash, keyless_lane
from .._store.api import BulkRows, Item, Options, PlainRows
from ._sink_rows import OPTIONS, ORDER

PART_ROWS: Final = 50_000
PART_BYTES: Final = 16 * 1024 * 1024
"""Most rows, and bytes of bodies, of one transaction: how long others wait for the shard's write lock."""


class Cut(NamedTuple):
    """How a batch is cut into parts. Kept with what is decided, for whoever goes on with it.

    Attributes:
        keyless_lanes: how many lanes rows without a key are spread over, in turn.
        rows, bytes: most rows of a part, and bytes of its bodies.
    """

    keyless_lanes: int
    rows: int = PART_ROWS
    bytes: int = PART_BYTES


Integers = np.ndarray[Any, np.dtype[np.int64]]


class StagedRows:
    """The rows of a batch, over all of its files."""

    def __init__(self, paths: Sequence[tuple[Path, int]]) -> None:
        """Map the files.

        Args:
            paths: each file, and how many rows were written to it.
        Raises:
            StoreError: a file is missing or not whole; nothing changed.
        """
        self._batches: list[pa.RecordBatch] = []
        for path, rows in paths:
            batches = _read(path)
            if sum(len(b) for b in batches) != rows:
                raise StoreError(f"the staging file {path.name} is not whole", shard=-1, hint=hints.RUN_BATCH_AGAIN)
            self._batches += (b for b in batches if len(b))
        self.rows = sum(len(b) for b in self._batches)
        self._starts = np.cumsum([0, *(len(b) for b in self._batches)])
        sizes = self._column("body", lambda column: pc.binary_length(column), pa.int32())
        self._sizes: Integers = sizes.astype(np.int64)
        self.body_bytes_max = int(self._sizes.max()) if self.rows else 0
        self.has_options = any(_has(b, name) for b in self._batches for name in OPTIONS)
        self.keyless = any(b.column("key").null_count for b in self._batches)

    def _column(self, name: str, change: Callable[[Any], Any], kind: Any) -> Any:
        chunks = [change(b.column(name)) for b in self._batches]
        return pa.chunked_array(chunks, type=kind).to_numpy()

    # ---- what goes where

    def parts(self, shard_of: Callable[[bytes], int], cut: Cut) -> dict[int, list[StagedPart]]:
        """The parts of each shard, in the order in which they are to be sent.

        Args:
            shard_of: the shard of a stored key.
        """
        if not self.rows:
            return {}
        codes, keys = self._codes(cut.keyless_lanes)
        shards = np.fromiter((shard_of(key) for key in keys), np.int64, len(keys))
        # BulkRows by shard, key, and arrival; then the same with the order column instead of the arrival within a key.
        group = shards[codes] * len(keys) + codes
        slots = np.argsort(group, kind="stable")
        rows = slots
        if ORDER in self._batches[0].schema.names:
            rows = np.lexsort((np.arange(self.rows), self._order(), group))
        shard_of_row = shards[codes[rows]]
        found: dict[int, list[StagedPart]] = {}
        for shard in np.unique(shard_of_row).tolist():
            lo, hi = np.searchsorted(shard_of_row, [shard, shard + 1]).tolist()
            found[shard] = [
                StagedPart(self, keys, codes[rows[a:b]], rows[a:b], slots[a:b]) for a, b in self._cut(rows[lo:hi], lo, cut)
            ]
        return found

    def _codes(self, keyless_lanes: int) -> tuple[Integers, list[bytes]]:
        """For each row the number of its key, and the keys."""
        column = pa.chunked_array([b.column("key") for b in self._batches])
        encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        keys: list[bytes] = encoded.dictionary.to_pylist()
        codes: Integers = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
        if self.keyless:
            alone = np.flatnonzero(codes < 0)
            lanes = [keyless_lane(n) for n in range(keyless_lanes)]
            codes[alone] = len(keys) + np.arange(len(alone)) % keyless_lanes
            if any(_has(b, "dedup_id") for b in self._batches):
                lanes += self._by_dedup(alone, codes, len(keys) + len(lanes))
            keys = keys + lanes
        return codes, keys

    def _by_dedup(self, alone: Integers, codes: Integers, first: int) -> list[bytes]:
        """A keyless message's dedup id chooses its lane, so that a repeated one is recognised. Returns these lanes."""
        known: dict[bytes, int] = {}
        for row in alone.tolist():
            options = self.options(row)
            if options is not None and options.dedup_id is not None:
                lane = keyless_by_hash(options.dedup_id)
                codes[row] = first + known.setdefault(lane, len(known))
        return list(known)

    def _order(self) -> Any:
        """Numbers that sort as the order column does."""
        column = pa.chunked_array([b.column(ORDER) for b in self._batches])
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return column.to_numpy()
        if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
            return column.cast(pa.int64() if pa.types.is_timestamp(column.type) else pa.int32()).to_numpy()
        return pc.rank(column, tiebreaker="dense").to_numpy()

    def _cut(self, rows: Integers, start: int, cut: Cut) -> Iterator[tuple[int, int]]:
        """Ranges of at most so many rows and bytes; one row, if it alone has more."""
        filled = np.cumsum(self._sizes[rows])
        at = 0
        while at < len(rows):
            before = int(filled[at - 1]) if at else 0
            end = int(np.searchsorted(filled, before + cut.bytes, side="right"))
            end = min(max(end, at + 1), at + cut.rows)
            yield start + at, start + end
            at = end

    # ---- values of rows

    def bodies(self, rows: Integers) -> Any:
        """The bodies of these rows, as an array of bytes objects."""
        taken: list[Any] = []
        order: list[Integers] = []
        for places, batch, at in self._by_batch(rows):
            taken.append(batch.column("body").take(pa.array(at)))
            order.append(places)
        back = np.empty(len(rows), np.int64)
        back[np.concatenate(order)] = np.arange(len(rows))
        return pa.concat_arrays(taken).take(pa.array(back)).to_numpy(zero_copy_only=False)

    def options(self, row: int) -> Options | None:
        """The options of one row; None: it has none."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        batch = self._batches[number]
        at = row - int(self._starts[number])
        given = {name: batch.column(name)[at].as_py() for name in OPTIONS if name in batch.schema.names}
        given = {name: value for name, value in given.items() if value is not None}
        return Options(**given) if given else None

    def all_options(self, rows: Integers) -> list[Options | None]:
        """The options of these rows."""
        if not self.has_options:
            return [None] * len(rows)
        found: list[Options | None] = [None] * len(rows)
        for places, batch, at in self._by_batch(rows):
            names = [name for name in OPTIONS if name in batch.schema.names]
            if not names:
                continue
            taken = [batch.column(name).take(pa.array(at)).to_pylist() for name in names]
            for place, values in zip(places.tolist(), zip(*taken, strict=True), strict=True):
                given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
                if given:
                    found[place] = Options(**given)
        return found

    def _by_batch(self, rows: Integers) -> Iterator[tuple[Integers, pa.RecordBatch, Integers]]:
        """These rows by the record batch they lie in: places in `rows`, the batch, rows in the batch."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        bounds = np.searchsorted(ordered, self._starts)
        for number, batch in enumerate(self._batches):
            lo, hi = int(bounds[number]), int(bounds[number + 1])
            if lo < hi:
                yield order[lo:hi], batch, ordered[lo:hi] - self._starts[number]


@attrs.define(eq=False)
class StagedPart:
    """Some rows of one shard, grouped by key: one transaction.

    Args:
        codes: of each row the number of its key in `all_keys`.
        rows: which rows, group by group, in the order of each group's sequence.
        slots: the arrival of each: those of its group, ascending.
    """

    _staged: StagedRows
    _all_keys: list[bytes]
    _codes: Integers
    _rows: Integers
    _slots: Integers

    def rows(self) -> BulkRows:
        """The messages: in columns, where none of them has options."""
        order = np.argsort(self._slots, kind="stable")
        return self._items(order) if self._staged.has_options else self._columns(order)

    def _columns(self, order: Integers) -> PlainRows:
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        begins = np.flatnonzero(np.diff(self._codes, prepend=-1))
        keys = [self._all_keys[code] for code in self._codes[begins].tolist()]
        counts = np.diff(begins, append=len(order)).tolist()
        return PlainRows(keys, counts, places.tolist(), self._staged.bodies(self._rows).tolist())

    def _items(self, order: Integers) -> list[Item]:
        """One by one, in the order of arrival."""
        rows = self._rows[order]
        options = self._staged.all_options(rows)
        keys = [self._all_keys[code] for code in self._codes[order].tolist()]
        return [(k, b, o, None) for k, b, o in zip(keys, self._staged.bodies(rows).tolist(), options, strict=True)]


def _has(batch: pa.RecordBatch, name: str) -> bool:
    """Has a row of it a value there?"""
    return name in batch.schema.names and batch.column(name).null_count < len(batch)


def _read(path: Path) -> list[pa.RecordBatch]:
    try:
        os.close(open_regular(path, os.O_RDONLY))  # opening a FIFO as Arrow does would wait for ever
        # The map stays open as long as a batch of it is used.
        with pa.ipc.open_stream(pa.memory_map(str(path), "rb")) as reader:
            return list(reader)
    except FileNotFoundError as e:
        raise StoreError(
            f"the staging file {path} is missing", shard=-1, cause=e,
            hint=hints.EXECUTORS_OR_AGAIN,
        ) from e  # fmt: skip
    except (pa.ArrowInvalid, OSError) as e:
        raise StoreError(f"the staging file {path.name} can't be read: {e}", shard=-1, cause=e) from e
