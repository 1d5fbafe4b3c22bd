"""Bulk reads and writes of a queue, as those above the store call them: tables and sinks of Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from ..._errors import InvalidArgument
from ..commit.calls import bound
from ..lanes import history
from ..lanes.leases import KEY, LANE, Row
from ..shard import Shard
from ..store import Store
from . import applied, scan, staging
from .applied import Applied, Size, Token
from .columns import BlockSize, ListedColumns, MessageRange, PackedColumns, Runs, listed
from .insert import BulkRows
from .staging import Staging

_lane = itemgetter(LANE)


class Bulk:
    """What moves many messages at a time without leasing them: tables that are read, and batches that are written once."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def _shard(self, number: int) -> Shard:
        shards = self._store.shards
        if not 0 <= number < len(shards):
            raise InvalidArgument(f"shard must be a whole number from 0 to {len(shards) - 1}, not {number}")
        return shards[number]

    # ---- reading

    def plan(self, *, dead: bool, messages: int, keys: Collection[bytes] | None = None) -> list[MessageRange]:
        """Divide what is pending (or dead) now into ranges of about so many messages. A key's messages are in one of them.

        Args:
            keys: stored keys, each once: only their messages, in one range for each shard. None: all messages.
        Raises:
            StoreError: a shard can't be read.
        """
        of: dict[int, list[bytes]] = {}
        for key in keys or ():
            of.setdefault(self.shard_of(key), []).append(key)
        shards = self._store.shards if keys is None else [self._store.shards[number] for number in sorted(of)]
        return [
            part
            for shard in shards
            for part in scan.ranges(shard, dead=dead, per_task=messages, keys=None if keys is None else of[shard.number])
        ]

    def read(
        self, part: MessageRange, wanted: Collection[str], runs: Runs, size: BlockSize
    ) -> Iterator[PackedColumns | ListedColumns]:
        """Read the messages of a range that are still there: each once, in order within a key. Nothing is leased.

        Every block is a short read transaction; what is sent after the plan is left out.

        Args:
            wanted: of key, seq, id, sent_at, attempts, headers, body. Listed columns, and dead letters, have all of them.
            size: of listed blocks; packed ones have some thousand messages.
        Raises:
            InvalidArgument: this is no range of this queue.
            StoreError: the shard can't be read.
        """
        shard = self._shard(part.shard)
        for found in scan.read(shard, part, wanted, runs):
            if isinstance(found, PackedColumns):
                yield found
            else:
                yield from listed(_by_lane(found), shard.number, size)

    def record_numbers(self, shard: int) -> tuple[int, int] | None:
        """The first and the last number of a shard's records of finished messages; None: there are none."""
        return self._shard(shard).look(history.numbers)

    # ---- batches that are written exactly once

    def shard_of(self, key: bytes) -> int:
        """The shard of a stored key."""
        return self._store.shard_of(key).number

    def home(self, token: Token) -> int:
        """The shard that decides about a writer's batches."""
        return self.shard_of(b"applied " + token.writer.encode())

    def known(self, token: Token) -> Applied | None:
        """What was decided about a batch; None: nothing yet.

        Raises:
            ConfigError: the batch is older than what is remembered of its writer.
        """
        shard = self._shard(self.home(token))
        found = shard.read(bound(applied.find, token), hot=False)
        shard.confirm()
        return found

    def decide(self, token: Token, size: Size, files: str) -> Applied:
        """Make these files the batch, unless others are already. Durable on return; returns what is decided.

        Raises:
            QueueFull: the batch would bring the queue over max_depth; nothing changed.
            MessageTooLarge, InvalidArgument: the settings do not allow it; nothing changed.
            ConfigError: as for `known`.
        """
        shard = self._shard(self.home(token))
        elsewhere = self._store.depth_elsewhere(shard)
        self._store.require_room(shard)
        decided = shard.run(bound(applied.decide, token, size, files, elsewhere))
        shard.sync()
        return decided

    def put(self, token: Token, shard: int, part: int, rows: BulkRows) -> None:
        """Write one part of a decided batch in a transaction of its own, unless it was written before.

        Args:
            part: 0, 1, 2 … in this shard, in order; a part has the same rows in every try.
        """
        to = self._shard(shard)
        self._store.require_room(to)
        to.run(bound(applied.put, token, part, rows))

    def bound_cache(self, shard: int, kib: int) -> None:
        """Let the connection that writes to a shard cache so much of the file at most, from now on."""
        self._shard(shard).bound_cache(kib)

    def put_whole(self, token: Token, size: Size, rows: BulkRows) -> Applied | None:
        """Write a batch that is one part of its home shard. Returns what was known of it before; None: it is written now.

        Raises:
            QueueFull, MessageTooLarge, InvalidArgument, ConfigError: as for `decide`.
        """
        shard = self._shard(self.home(token))
        elsewhere = self._store.depth_elsewhere(shard)
        self._store.require_room(shard)
        return shard.run(bound(applied.put_whole, token, size, rows, elsewhere))

    def finish(self, token: Token, shards: Iterable[int]) -> None:
        """Every part is in its shard: the batch is whole.

        The other shards are synced first, so that no power cut leaves a batch whole here and not there.
        """
        home = self.home(token)
        for other in shards:
            if other != home:
                self._shard(other).sync()
        self._shard(home).run(bound(applied.finish, token))

    def unfinished(self) -> list[Token]:
        """Batches that were decided and are not whole: their writers died on the way."""
        return [token for shard in self._store.healthy() for token in shard.read(applied.unfinished, hot=False)]

    # ---- their files

    def staging(self, writer: str) -> Staging:
        """The staged files of a writer. The queue is on disk."""
        assert self._store.directory is not None
        return Staging(self._store.directory, writer)

    def sweep_staging(self, keep: Iterable[Token]) -> None:
        """Delete what killed writers left behind and nobody will come back for, by its age.

        Args:
            keep: batches whose files are needed.
        """
        assert self._store.directory is not None
        staging.sweep(self._store.directory, keep)


def _by_lane(rows: list[Row]) -> Iterator[tuple[bytes, list[Row]]]:
    for _, found in groupby(rows, key=_lane):
        lane = list(found)
        yield lane[0][KEY], lane
