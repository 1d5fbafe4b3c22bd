"""Bulk reads and writes of a queue, for the modules above the store: Spark's tables and sinks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Final

from ..._values.errors import InvalidArgument, StoreBusy
from ..commit.tx import bound
from ..lane.ranges import Rerouted, hash_of
from ..shard import history, moving
from ..shard.leases import KEY, PackedColumns, Row
from ..shard.sending import Elsewhere
from ..shard.shard_file import Shard
from ..whole.moving import Moving
from ..whole.store import Store
from . import applied, scan, staging
from .applied import Applied, BulkRows, Size, StreamBatch, Token
from .columns import BlockSize, ListedColumns, MessageRange, listed
from .staging import Staging

PLANS_MAX: Final = 20
_key = itemgetter(KEY)


class Bulk:
    """Operations on many messages at a time without leases: reading tables, and writing batches exactly once."""

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
        """Divide what is pending (or dead) now into ranges of about this many messages. A key's messages are in one range.

        Args:
            keys: stored keys, without duplicates: only their messages, in one range per shard. None: all messages.
        Raises:
            StoreError: a shard can't be read.
        """
        for _ in range(PLANS_MAX):
            self._store.refresh_settings()
            before = self._departed()
            of = {} if keys is None else self._store.places_of(keys)
            shards = self._store.shards if keys is None else [self._store.shards[number] for number in sorted(of)]
            found = [
                part
                for shard in shards
                for part in scan.ranges(shard, dead=dead, per_task=messages, keys=None if keys is None else of[shard.number])
            ]
            if self._departed() == before:
                return found
        raise StoreBusy("ranges of keys are moving", shard=-1)

    def _departed(self) -> list[int]:
        """Return, for each shard, a number that grows with each step in which lanes leave it."""
        return [shard.read(moving.departed) for shard in self._store.shards]

    def read(self, part: MessageRange, wanted: Collection[str], size: BlockSize) -> Iterator[PackedColumns | ListedColumns]:
        """Read the messages of a range that still exist: each once, in order within a key. Nothing is leased.

        Every block is a short read transaction. Messages sent after the plan are omitted.

        Args:
            wanted: of key, seq, id, sent_at, attempts, headers, body. Listed columns, and dead letters, have all of them.
            size: of listed blocks. Packed ones have some thousand messages.
        Raises:
            InvalidArgument: this is not a range of this queue.
            StoreBusy: lanes have left the shard since the plan. What was read of it is not whole; plan anew.
            StoreError: the shard can't be read.
        """
        shard = self._shard(part.shard)
        for found in scan.read(shard, part, wanted):
            if isinstance(found, PackedColumns):
                yield found
            else:
                yield from listed(_by_lane(found), shard.number, size)

    def record_numbers(self, shard: int) -> tuple[int, int] | None:
        """Return the first and the last number of a shard's records of finished messages. None: there are none."""
        return self._shard(shard).look(history.numbers)

    # ---- batches that are written exactly once

    def still(self) -> AbstractContextManager[None]:
        """Return a context in which no range moves, and `shard_of` is right. None moves while a decided batch is incomplete.

        Raises:
            MoveInProgress: a range has been moving for long.
        """
        return Moving(self._store).still()

    def shard_of(self, key: bytes) -> int:
        """Return the shard of a stored key."""
        return self._store.shard_of(key).number

    def home(self, token: Token) -> int:
        """Return the shard that decides about a writer's batches. It stays the same one when ranges move."""
        topology = self._store.topology
        return 0 if len(topology) == 1 else topology.owner(hash_of(b"applied " + token.writer.encode()))

    def known(self, token: Token) -> Applied | None:
        """Return the decision about a batch. None: there is none yet.

        Raises:
            ConfigError: the batch is older than those that are remembered of its writer.
        """
        shard = self._shard(self.home(token))
        found = shard.read(bound(applied.find, token))
        shard.confirm()
        return found

    def decide(self, token: Token, size: Size, files: str, origin: StreamBatch | None = None) -> Applied:
        """Make these files the batch, unless others already are. Durable on return. Return the decision.

        Args:
            origin: the batch of a stream that writes it; None: it is not written in `foreachBatch`.
        Raises:
            QueueFull: the batch would exceed a maximum depth of the queue or a tenant; nothing changed.
            Throttled: a tenant has reached its send_rate; nothing changed.
            MessageTooLarge, InvalidArgument: the settings do not permit it; nothing changed.
            ConfigError: as for `known`.
        """
        shard = self._shard(self.home(token))
        with self._fitting(shard, size) as elsewhere:
            decided = shard.run(bound(applied.decide, token, size, files, elsewhere, origin))
        shard.sync()
        return decided

    def use(self, token: Token, instead: str, files: str) -> Applied | None:
        """Continue a decided batch with files of the same content, because its own are lost. Durable on return.

        Args:
            instead: the files of the decision. If it has others by now, nothing is changed.
        Returns:
            The decision.
        """
        shard = self._shard(self.home(token))
        found = shard.run(bound(applied.use, token, instead, files))
        shard.sync()
        return found

    def put(self, token: Token, shard: int, part: int, rows: BulkRows) -> None:
        """Write one part of a decided batch in its own transaction, unless it was written before.

        Args:
            part: 0, 1, 2 … in this shard, in order. A part has the same rows in every attempt.
        """
        to = self._shard(shard)
        self._store.require_room(to)
        with self._unmoved(to):
            to.run(bound(applied.put, token, part, rows))

    def bound_cache(self, shard: int, kib: int) -> None:
        """Let the connection that writes to a shard cache so much of the file at most, from now on."""
        self._shard(shard).bound_cache(kib)

    def put_whole(self, token: Token, size: Size, rows: BulkRows, origin: StreamBatch | None = None) -> Applied | None:
        """Write a batch that is one part of its home shard. Return an earlier record of it. None: it was written now.

        Raises:
            QueueFull, Throttled, MessageTooLarge, InvalidArgument, ConfigError: as for `decide`.
        """
        shard = self._shard(self.home(token))
        with self._unmoved(shard), self._fitting(shard, size) as elsewhere:
            return shard.run(bound(applied.put_whole, token, size, rows, elsewhere, origin))

    @contextmanager
    def _fitting(self, shard: Shard, size: Size) -> Iterator[Elsewhere]:
        """Verify what can be verified before the home shard's lock, and provide the rest."""
        self._store.require_room(shard)
        self._store.refresh_settings()  # a limit may have changed while the writer waited
        with self._store.quotas.admitted(size.tenants):
            yield self._store.quotas.elsewhere(shard, size.tenants)

    @property
    def tenant_separator(self) -> bytes | None:
        """What ends the name of a tenant in a stored key, if limits of tenants apply to what is sent. None: none do."""
        rules = self._store.tenancy
        return rules.separator if rules is not None and (rules.limits_sends or rules.limits_depth) else None

    @contextmanager
    def _unmoved(self, shard: Shard) -> Iterator[None]:
        """Refuse a part with keys whose range has moved since the batch was divided.

        Raises:
            StoreBusy: nothing of the part was written. The next attempt divides the batch anew.
        """
        try:
            yield
        except Rerouted as e:
            self._store.learn(e)
            raise StoreBusy("a range of its keys has moved", shard=shard.number) from None

    def require_repeat(self, token: Token, origin: StreamBatch, *, unknown: bool) -> None:
        """Verify that a written batch repeats this batch of a stream. The next repeat is compared with this execution.

        Args:
            unknown: accept a batch of which no origin is stored.
        Raises:
            ConfigError: another batch or query wrote it, or this execution did; nothing was changed.
        """
        shard = self._shard(self.home(token))
        self._store.require_room(shard)
        shard.run(bound(applied.require_repeat, token, origin, unknown))

    def finish(self, token: Token, shards: Iterable[int]) -> None:
        """Mark the batch as complete: every part is in its shard.

        The other shards are synced first, so that no power cut leaves a batch complete here and incomplete there.
        """
        home = self.home(token)
        for other in shards:
            if other != home:
                self._shard(other).sync()
        self._shard(home).run(bound(applied.finish, token))

    def unfinished(self) -> list[Token]:
        """Return the batches that were decided and are incomplete, because their writers died."""
        return [token for shard in self._store.healthy() for token in shard.read(applied.unfinished)]

    # ---- their files

    def staging(self, writer: str) -> Staging:
        """Return the staged files of a writer. The queue is on disk."""
        assert self._store.directory is not None
        return Staging(self._store.directory, writer)

    def sweep_staging(self, keep: Iterable[Token]) -> None:
        """Delete what killed writers left behind, when it is old enough that they will not continue.

        Args:
            keep: batches whose files are needed.
        """
        assert self._store.directory is not None
        staging.sweep(self._store.directory, keep)


def _by_lane(rows: list[Row]) -> Iterator[tuple[bytes, list[Row]]]:
    for _, found in groupby(rows, key=_key):
        lane = list(found)
        yield lane[0][KEY], lane
