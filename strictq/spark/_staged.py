"""A batch in staging files, divided into parts for its shards. Imported late, with pyarrow.

Everything is derived from the files alone, so that each process that opens them gets the same parts with the same rows.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .._platform.files import open_regular
from .._store.api import BulkRows, Item, Options, PlainRows
from .._values import hints
from .._values.errors import StoreError
from .._values.keys import keyless_by_hash, keyless_lane
from .._values.tenants import COMMON, tenant_of
from ._sink_rows import OPTIONS, ORDER

PART_ROWS: Final = 25_000
PART_BYTES: Final = 16 * 1024 * 1024
"""The most rows, and bytes of bodies, of one transaction, which limits how long other writers wait for the shard's lock."""
SHARDS_CACHED: Final = 4096
"""The number of keys whose shards are remembered from batch to batch."""


class Cut(NamedTuple):
    """The limits by which a batch is cut into parts. Stored with the decision, for processes that continue it.

    Attributes:
        keyless_lanes: number of lanes over which keyless rows are spread, in turn.
        rows, bytes: most rows of a part, and bytes of its bodies.
    """

    keyless_lanes: int
    rows: int = PART_ROWS
    bytes: int = PART_BYTES


Integers = np.ndarray[Any, np.dtype[Any]]

_INT32_ROWS: Final = 2_000_000_000
BATCHES_MAPPED: Final = 16
"""Record batches that are read before their pages are given back."""
POOL: Final = pa.system_memory_pool()
"""Of what is read for a part: Arrow's usual pool keeps what is freed for each thread, as much as the parts themselves have."""
COMPARED: Final = 50_000
"""Number of keys compared at a time."""


class StagedRows:
    """The rows of a batch, over all of its files.

    Rows are identified by numbers. Only arrays of numbers are kept per row; keys and bodies stay in the
    mapped files. A key is identified by the number of its first row, a lane for keyless rows by a number after those of all rows.
    """

    def __init__(self, paths: Sequence[tuple[Path, int]]) -> None:
        """Map the files.

        Args:
            paths: each file, with the number of rows written to it.
        Raises:
            StoreError: a file is missing or incomplete; nothing was changed.
        """
        self._maps: list[mmap.mmap] = []
        self._batches: list[pa.RecordBatch] = []
        for path, rows in paths:
            mapped, batches = _read(path)
            if sum(len(b) for b in batches) != rows:
                raise StoreError(f"the staging file {path.name} is incomplete", shard=-1, hint=hints.RUN_BATCH_AGAIN)
            if rows:
                self._maps.append(mapped)
                self._batches += (b for b in batches if len(b))
        self.rows = sum(len(b) for b in self._batches)
        self._number = np.dtype(np.int32 if self.rows < _INT32_ROWS else np.int64)
        self._starts = np.cumsum([0, *(len(b) for b in self._batches)])
        self._sizes: Integers = np.empty(self.rows, np.int32)
        for start, batch in self._each():
            self._sizes[start : start + len(batch)] = pc.binary_length(batch.column("body"), memory_pool=POOL).to_numpy()
        self.body_bytes_max = int(self._sizes.max()) if self.rows else 0
        self.has_options = any(_has(b, name) for b in self._batches for name in OPTIONS)
        self.keyless = any(b.column("key").null_count for b in self._batches)

    def _each(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each batch with the number of its first row. Only the pages of some batches stay mapped."""
        for number, (start, batch) in enumerate(zip(self._starts.tolist(), self._batches, strict=False)):
            if number % BATCHES_MAPPED == 0:
                self.forget_pages()
            yield start, batch

    def tenants(self, separator: bytes) -> Counter[bytes]:
        """Return the number of each tenant's rows."""
        found: Counter[bytes] = Counter()
        for _, batch in self._each():
            for counted in pc.value_counts(batch.column("key"), memory_pool=POOL).to_pylist():
                key = counted["values"]
                found[COMMON if key is None else tenant_of(key, separator)] += counted["counts"]
        self.forget_pages()
        return found

    def forget_pages(self) -> None:
        """Unmap the files' pages from this process. They stay in the system's cache, and are mapped again on use."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    # ---- division into parts

    def parts(self, shard_of: Callable[[bytes], int], cut: Cut) -> dict[int, list[StagedPart]]:
        """Return the parts of each shard, in the order in which they must be sent.

        Args:
            shard_of: returns the shard of a stored key.
        """
        if not self.rows:
            return {}
        lanes, shards, keyless = self._lanes(shard_of, cut.keyless_lanes)
        ends = np.cumsum([np.count_nonzero(shards == shard) for shard in range(int(shards.max()) + 1)]).tolist()
        # Rows by shard, key and arrival. Then the same with the order column instead of the arrival within a key.
        group = shards.astype(np.int64)
        del shards
        group *= self.rows + len(keyless)
        group += lanes
        rows = None
        if ORDER in self._batches[0].schema.names:
            rows = np.lexsort((self._order(), group)).astype(self._number)
        slots = self._sorted(group)
        del group
        rows = slots if rows is None else rows
        found: dict[int, list[StagedPart]] = {}
        for shard, (lo, hi) in enumerate(pairwise([0, *ends])):
            if lo < hi:
                found[shard] = [
                    StagedPart(self, lanes, keyless, rows[a:b], slots[a:b]) for a, b in self._cut(rows[lo:hi], lo, cut)
                ]
        self.forget_pages()
        pa.default_memory_pool().release_unused()
        return found

    def _sorted(self, values: Integers) -> Integers:
        """Return the positions of values in ascending order, stable. The values are overwritten.

        If value and position fit into one number, these are sorted in place, which takes no more memory and less time.
        """
        bits = len(values).bit_length()
        if int(values.max()) >> (63 - bits):
            return np.argsort(values, kind="stable").astype(self._number)
        values <<= bits
        values += np.arange(len(values), dtype=self._number)
        values.sort()
        values &= (1 << bits) - 1
        return values.astype(self._number)

    def _lanes(self, shard_of: Callable[[bytes], int], keyless_lanes: int) -> tuple[Integers, Integers, list[bytes]]:
        """Return, for each row, the number of its key and its shard; and the keys of the lanes for keyless rows."""
        # The distinct keys of each batch: a hash, the first row, and the shard. Pages of these arrays that are never written
        # take no memory.
        shard_of = lru_cache(SHARDS_CACHED)(shard_of)  # few keys come again in every batch
        hashes: Integers = np.empty(self.rows, np.int64)
        firsts: Integers = np.empty(self.rows, self._number)
        owners: Integers = np.empty(self.rows, np.int16)
        lanes: Integers = np.empty(self.rows, self._number)
        n = 0
        for start, batch in self._each():
            encoded = pc.dictionary_encode(batch.column("key"), memory_pool=POOL)
            codes = encoded.indices.fill_null(-1).to_numpy()
            keys = encoded.dictionary.to_pylist()
            end = n + len(keys)
            hashes[n:end] = np.fromiter(map(_hash, keys), np.int64, len(keys))
            owners[n:end] = np.fromiter(map(shard_of, keys), np.int16, len(keys))
            firsts[n:end] = start + np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1) > 0)
            lanes[start : start + len(batch)] = np.where(codes < 0, -1, codes + n)
            n = end
        alone = np.flatnonzero(lanes < 0) if self.keyless else None
        shards = owners[lanes]
        self._merge(hashes[:n], firsts[:n])
        del hashes, owners
        lanes = firsts[lanes]
        del firsts
        names: list[bytes] = []
        if alone is not None:
            names = [keyless_lane(at) for at in range(keyless_lanes)]
            lanes[alone] = np.arange(len(alone)) % keyless_lanes
            if any(_has(b, "dedup_id") for b in self._batches):
                names += self._by_dedup(alone, lanes, len(names))
            shards[alone] = np.fromiter(map(shard_of, names), np.int16, len(names))[lanes[alone]]
            lanes[alone] += self.rows
        return lanes, shards, names

    def _merge(self, hashes: Integers, firsts: Integers) -> None:
        """Merge equal keys of different batches, by setting their first row to the earliest one.

        Uses hashes, because a table of all keys would take several times the memory of the rows' numbers.
        """
        # As many bits of the hash as leave room for a position.
        bits = len(hashes).bit_length()
        hashes &= -1 << bits
        hashes += np.arange(len(hashes), dtype=self._number)
        hashes.sort()
        found = []
        for at in range(0, len(hashes) - 1, COMPARED):
            some = hashes[at : at + COMPARED + 1]
            found.append(at + 1 + np.flatnonzero((some[1:] ^ some[:-1]) >> bits == 0))
        again = np.concatenate(found) if found else np.empty(0, np.int64)
        if not len(again):
            return
        hashes &= (1 << bits) - 1
        order = hashes.astype(self._number)
        leaders = np.arange(len(order), dtype=self._number)
        leaders[again] = 0
        np.maximum.accumulate(leaders, out=leaders)
        others: dict[bytes, int] = {}
        for at in range(0, len(again), COMPARED):
            places = again[at : at + COMPARED]
            mine = firsts[order[places]]
            theirs = firsts[order[leaders[places]]]
            equal = pc.equal(self._taken("key", mine), self._taken("key", theirs)).to_numpy(zero_copy_only=False)
            for place in np.flatnonzero(~equal).tolist():  # two keys with the same bits of their hashes
                (key,) = self._taken("key", mine[place : place + 1]).to_pylist()
                theirs[place] = others.setdefault(key, int(mine[place]))
            firsts[order[places]] = theirs

    def _by_dedup(self, alone: Integers, lanes: Integers, first: int) -> list[bytes]:
        """Choose lanes of keyless rows by their dedup ids, so that repeated ids are recognised. Return these lanes."""
        known: dict[bytes, int] = {}
        for row in alone.tolist():
            options = self.options(row)
            if options is not None and options.dedup_id is not None:
                lane = keyless_by_hash(options.dedup_id)
                lanes[row] = first + known.setdefault(lane, len(known))
        return list(known)

    def _order(self) -> Any:
        """Return numbers that sort like the order column."""
        column = pa.chunked_array([b.column(ORDER) for b in self._batches])
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return column.to_numpy()
        if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
            return column.cast(pa.int64() if pa.types.is_timestamp(column.type) else pa.int32()).to_numpy()
        return pc.rank(column, tiebreaker="dense").to_numpy()

    def _cut(self, rows: Integers, start: int, cut: Cut) -> Iterator[tuple[int, int]]:
        """Yield ranges within the limits of rows and bytes; a single row if it alone exceeds them."""
        at = 0
        while at < len(rows):
            filled = np.cumsum(self._sizes[rows[at : at + cut.rows]], dtype=np.int64)
            end = at + max(int(np.searchsorted(filled, cut.bytes, side="right")), 1)
            yield start + at, start + end
            at = end

    # ---- values of rows

    def keys(self, lanes: Integers, keyless: Sequence[bytes]) -> list[bytes]:
        """Return the stored keys with these numbers."""
        real = lanes < self.rows
        found = np.empty(len(lanes), object)
        if real.any():
            found[real] = self._taken("key", lanes[real]).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(~real).tolist():
            found[place] = keyless[lanes[place] - self.rows]
        keys: list[bytes] = found.tolist()
        return keys

    def bodies(self, rows: Integers) -> list[bytes]:
        bodies: list[bytes] = self._taken("body", rows).to_numpy(zero_copy_only=False).tolist()
        return bodies

    def _taken(self, name: str, rows: Integers) -> Any:
        """Return a column of these rows as one array."""
        taken: list[Any] = []
        order: list[Integers] = []
        for places, batch, at in self._by_batch(rows):
            taken.append(pc.take(batch.column(name), pa.array(at), memory_pool=POOL))
            order.append(places)
        back = np.empty(len(rows), np.int64)
        back[np.concatenate(order)] = np.arange(len(rows))
        return pc.take(pa.concat_arrays(taken, memory_pool=POOL), pa.array(back), memory_pool=POOL)

    def options(self, row: int) -> Options | None:
        """Return the options of one row; None: it has none."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        batch = self._batches[number]
        at = row - int(self._starts[number])
        given = {name: batch.column(name)[at].as_py() for name in OPTIONS if name in batch.schema.names}
        given = {name: value for name, value in given.items() if value is not None}
        return Options(**given) if given else None

    def all_options(self, rows: Integers) -> list[Options | None]:
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
        """Yield these rows by record batch: positions in `rows`, the batch, rows in the batch."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        bounds = np.searchsorted(ordered, self._starts).tolist()
        read = 0
        for number, batch in enumerate(self._batches):
            lo, hi = bounds[number], bounds[number + 1]
            if lo < hi:
                if read % BATCHES_MAPPED == 0:
                    self.forget_pages()
                read += 1
                yield order[lo:hi], batch, ordered[lo:hi] - self._starts[number]


@attrs.define(eq=False)
class StagedPart:
    """Some rows of one shard, grouped by key: one transaction.

    Args:
        lanes: the number of its key, for every row of the batch.
        keyless: the keys of the lanes for keyless rows.
        rows: the rows, group by group, in the order of each group's sequence.
        slots: the arrival of each row: those of its group, ascending.
    """

    _staged: StagedRows
    _lanes: Integers
    _keyless: list[bytes]
    _rows: Integers
    _slots: Integers

    def rows(self) -> BulkRows:
        """Return the messages, as columns if none of them has options."""
        order = np.argsort(self._slots, kind="stable")
        found = self._items(order) if self._staged.has_options else self._columns(order)
        self._staged.forget_pages()
        return found

    def _columns(self, order: Integers) -> PlainRows:
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        lanes = self._lanes[self._rows]
        begins = np.flatnonzero(np.diff(lanes, prepend=-1))
        keys = self._staged.keys(lanes[begins], self._keyless)
        counts = np.diff(begins, append=len(order)).tolist()
        return PlainRows(keys, counts, array("q", places.tobytes()), self._staged.bodies(self._rows))

    def _items(self, order: Integers) -> list[Item]:
        """Return single items in the order of arrival."""
        rows = self._rows[order]
        options = self._staged.all_options(rows)
        keys = self._staged.keys(self._lanes[rows], self._keyless)
        return [(k, b, o, None) for k, b, o in zip(keys, self._staged.bodies(rows), options, strict=True)]


_hash: Final = hash
"""The hash of a key in this process. Results are compared afterwards, and do not depend on its value."""


def _has(batch: pa.RecordBatch, name: str) -> bool:
    """Return whether any row of a batch has a value in a column."""
    return name in batch.schema.names and batch.column(name).null_count < len(batch)


def _read(path: Path) -> tuple[mmap.mmap, list[pa.RecordBatch]]:
    try:
        fd = open_regular(path, os.O_RDONLY)
        try:
            mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)  # stays mapped as long as one of its batches is used
        finally:
            os.close(fd)
        with pa.ipc.open_stream(pa.py_buffer(mapped)) as reader:
            return mapped, list(reader)
    except FileNotFoundError as e:
        raise StoreError(
            f"the staging file {path} is missing", shard=-1, cause=e,
            hint=hints.EXECUTORS_OR_AGAIN,
        ) from e  # fmt: skip
    except (pa.ArrowInvalid, OSError, ValueError) as e:  # ValueError: the file is empty
        raise StoreError(f"the staging file {path.name} can't be read: {e}", shard=-1, cause=e) from e
