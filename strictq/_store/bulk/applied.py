"""Batches that are written exactly once, however often their writer dies and repeats them.

A batch is named by its writer and a number. It reaches the shards in parts: one transaction each, of bounded size, with a row
of `applied` that counts this shard's parts. So a part is committed once. But the contents of the parts must not change between
attempts. Therefore the first attempt to get that far records its files in the writer's home shard before its first part
(`decide`), and every later attempt continues with those files, until the batch is complete (`finish`). A batch that is one part
of the home shard is decided, written and finished by a single transaction (`put_whole`). These functions run in a transaction
of one shard. `Bulk` calls them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import apsw

from ..._sql import APPLIED
from ..._values import hints
from ..._values.errors import ConfigError, InvalidArgument, MessageTooLarge, QueueFull
from ..commit.tx import SECOND
from ..shard import sending
from ..shard.messages import Item
from ..shard.sending import Elsewhere, full_tenants, seconds_until
from ..shard.shard_lanes import Tx

JOB: Final = "job "
QUERY: Final = "query "
"""The prefixes of writers' names."""
JOB_SECONDS: Final = 90 * 86_400.0
"""How long a job's only batch is remembered."""
BATCHES_KEPT: Final = 100
"""The number of a writer's newest batches that a shard remembers. Repeating an older one is refused. Spark keeps as many."""
CHUNK_ROWS: Final = 16_384
"""The number of messages that are sent at once."""


class Token(NamedTuple):
    """The name of a batch.

    Attributes:
        writer: JOB or QUERY, and a name.
        number: increasing from batch to batch of a query; 0 for a job.
    """

    writer: str
    number: int

    @classmethod
    def job(cls, name: str) -> Token:
        """Return the token of a job's only batch."""
        return cls(JOB + name, 0)

    @classmethod
    def query(cls, name: str, number: int) -> Token:
        """Return the token of a query's batch."""
        return cls(QUERY + name, number)

    @property
    def is_job(self) -> bool:
        """Whether it is a job's only batch."""
        return self.writer.startswith(JOB)

    def __str__(self) -> str:
        return self.writer if self.is_job else f"batch {self.number} of {self.writer}"


class StreamBatch(NamedTuple):
    """The batch of a stream that writes a batch in `foreachBatch`.

    Attributes:
        query, batch: the id of the query, and the number of its batch.
        execution: an id that differs each time Spark runs that batch.
    """

    query: str
    batch: int
    execution: str


class Size(NamedTuple):
    """The properties of a batch that the queue's settings limit.

    Attributes:
        rows: the number of messages.
        body_bytes_max: size of the largest body.
        keyless: whether there are messages without a key.
        tenants: the number of each tenant's messages; empty: no limit of tenants applies.
    """

    rows: int
    body_bytes_max: int = 0
    keyless: bool = False
    tenants: Mapping[bytes, int] = {}


class PlainRows(NamedTuple):
    """Messages of one shard without options, key by key.

    Attributes:
        keys: stored keys, without duplicates.
        counts: the number of messages of each key.
        places: the place of every message, from 0, in the order of arrival of all of these; ascending within a key.
        bodies: the body of every message, those of a key in the order of its sequence.
    """

    keys: Sequence[bytes]
    counts: Sequence[int]
    places: Sequence[int]
    bodies: Sequence[bytes]


BulkRows = PlainRows | Sequence[Item]
"""Messages of one shard: in columns, or one by one in the order of arrival."""


class Applied(NamedTuple):
    """A shard's record of a batch."""

    parts: int
    rows: int | None
    files: str | None

    @property
    def whole(self) -> bool:
        """Whether the batch is complete. In the home shard only."""
        return self.rows is not None and self.files is None


def find(db: apsw.Connection, token: Token) -> Applied | None:
    """Return the home shard's decision about a batch. None: there is none yet.

    Raises:
        ConfigError: the batch is older than those that are remembered of its writer.
    """
    row = db.execute(APPLIED.find, token).get
    if row is not None:
        return Applied._make(row)
    newest: int | None = db.execute(APPLIED.newest, (token.writer,)).get
    if newest is not None and token.number < newest:
        raise ConfigError(
            f"{token} comes after batch {newest} was written, and is not one of the {BATCHES_KEPT} that are remembered",
            hint=hints.CHECKPOINT_TOO_OLD,
        )
    return None


def decide(tx: Tx, token: Token, size: Size, files: str, elsewhere: Elsewhere, origin: StreamBatch | None = None) -> Applied:
    """Make these files the batch, in the home shard, unless others already are. Return the decision.

    Args:
        elsewhere: what the other shards have of what maximum depths limit.
        origin: the batch of a stream that writes it; None: it is not written in `foreachBatch`.
    """
    known = find(tx.db, token)
    if known is None:
        require_fits(tx, size, elsewhere)
        _decide(tx, token, size, files, origin)
        known = Applied(0, size.rows, files)
    return known


def _decide(tx: Tx, token: Token, size: Size, files: str | None, origin: StreamBatch | None) -> None:
    tx.run(APPLIED.decide, (*token, size.rows, files, _until(tx, token)))
    if origin is not None:
        _store_origin(tx, token, origin)
    _forget(tx, token)


def put(tx: Tx, token: Token, part: int, rows: BulkRows) -> None:
    """Write one part of a decided batch to this shard, unless it is already there.

    Args:
        part: 0, 1, 2 … in this shard, in order.
    """
    row = tx.run(APPLIED.find, token).get
    if row is None:
        newest = tx.run(APPLIED.newest, (token.writer,)).get
        if newest is not None and newest > token.number:
            return  # another process has completed this batch, and later ones
    parts = 0 if row is None else row[0]
    if parts > part:
        return
    assert parts == part, "the parts of a batch come in order"
    append(tx, rows)
    tx.run(APPLIED.advance, (*token, part + 1, _until(tx, token)))
    if row is None:
        _forget(tx, token)


def put_whole(
    tx: Tx, token: Token, size: Size, rows: BulkRows, elsewhere: Elsewhere, origin: StreamBatch | None = None
) -> Applied | None:
    """Write a batch that is one part of its home shard. Return an earlier record of it. None: it was written now."""
    known = find(tx.db, token)
    if known is not None:
        return known
    require_fits(tx, size, elsewhere)
    append(tx, rows)
    _decide(tx, token, size, None, origin)
    return None


def require_repeat(tx: Tx, token: Token, origin: StreamBatch, unknown: bool) -> None:
    """Verify that a batch that is written was written by an earlier execution of this stream's batch, and store this execution.

    Args:
        unknown: accept a batch of which no origin is stored.
    Raises:
        ConfigError: another batch or query wrote it, or this execution did; nothing was changed.
    """
    stored = _origin(tx, token)
    ours = f"batch {origin.batch} of query {origin.query}"
    if stored is None and not unknown:
        raise ConfigError(
            f"{token} was written before, by an older version or outside foreachBatch, and now comes with {ours}; nothing was "
            "written",
            hint=hints.OWN_JOB,
        )
    if stored is not None and token.is_job and stored[:2] != origin[:2]:
        raise ConfigError(
            f"{token} was written by batch {stored.batch} of query {stored.query}, and now comes with {ours}; nothing was "
            "written",
            hint=hints.OWN_JOB,
        )
    if stored == origin:
        raise ConfigError(
            f"{ours} writes to this queue a second time{f' as {token}' if token.is_job else ''}; only the first write was stored",
            hint=hints.TWO_WRITES,
        )
    _store_origin(tx, token, origin)


def _origin(tx: Tx, token: Token) -> StreamBatch | None:
    """Return the batch of a stream that wrote the newest batch of a writer."""
    prefix = _origin_prefix(token)
    row = tx.run(APPLIED.origin, (prefix, prefix)).get
    if row is None:
        return None
    query, _, execution = row[0].removeprefix(prefix).partition(" ")
    return StreamBatch(query, row[1], execution)


def _store_origin(tx: Tx, token: Token, origin: StreamBatch) -> None:
    """Store the origin of a batch instead of that of the writer's batch before it, because Spark repeats only the newest one."""
    prefix = _origin_prefix(token)
    tx.many(APPLIED.delete, tx.run(APPLIED.origin, (prefix, prefix)).fetchall())
    tx.run(
        APPLIED.decide,
        (f"{prefix}{origin.query} {origin.execution}", origin.batch, None, None, tx.now + int(JOB_SECONDS * SECOND)),
    )


def _origin_prefix(token: Token) -> str:
    return f"by {len(token.writer)} {token.writer} "


def finish(tx: Tx, token: Token) -> None:
    """Mark the batch as complete, in the home shard: every part is in its shard."""
    tx.run(APPLIED.set_files, (None, *token))


def use(tx: Tx, token: Token, instead: str, files: str) -> Applied | None:
    """Continue a decided batch with these files, unless others have replaced those of the decision. Return the decision."""
    known = find(tx.db, token)
    if known is None or known.files != instead:
        return known
    tx.run(APPLIED.set_files, (files, *token))
    return known._replace(files=files)


def unfinished(db: apsw.Connection) -> list[Token]:
    """Return the batches that were decided in this shard and are incomplete."""
    return [Token(*row) for row in db.execute(APPLIED.open_batches)]


def require_fits(tx: Tx, size: Size, elsewhere: Elsewhere) -> None:
    """Verify that the queue's settings permit the batch. Checked once for the whole batch, so that a begun one can be finished.

    Raises:
        QueueFull, MessageTooLarge, InvalidArgument: nothing changed.
    """
    config = tx.config
    if size.keyless and config.keyless == "refuse":
        raise InvalidArgument("column key: a message needs a key", hint=hints.CONFIGURE_KEYLESS)
    if size.body_bytes_max > config.max_body_bytes:
        raise MessageTooLarge(f"column body: a body may have {config.max_body_bytes:,} bytes, one has {size.body_bytes_max:,}")
    limit = config.max_depth
    if limit is not None and (over := tx.totals.pending + elsewhere.messages + size.rows - limit) > 0:
        raise QueueFull(
            f"{size.rows:,} messages more would bring the queue over max_depth={limit:,}; none was written",
            retry_after=seconds_until(tx, over) if size.rows <= limit else math.inf,
        )
    if full := full_tenants(tx, size.tenants, elsewhere):
        raise max(full.values(), key=attrgetter("retry_after"))


def _until(tx: Tx, token: Token) -> int | None:
    return tx.now + int(JOB_SECONDS * SECOND) if token.is_job else None


def _forget(tx: Tx, token: Token) -> None:
    """Delete older batches of this writer, and outlived ones of others, in one bounded step."""
    tx.run(APPLIED.forget_batches, (token.writer, token.number - BATCHES_KEPT))
    if old := tx.run(APPLIED.outlived, (tx.now,)).fetchall():
        tx.many(APPLIED.delete, old)


def append(tx: Tx, rows: BulkRows) -> None:
    """Append messages to their lanes. All of them are appended, or none. The caller has checked max_depth."""
    if isinstance(rows, PlainRows):
        for items in _in_order(rows):
            sending.send(tx, items)
    else:
        sending.send(tx, rows)


def _in_order(rows: PlainRows) -> Iterator[list[Item]]:
    """Yield the messages in the order of arrival, some at a time."""
    number = array("q", bytes(8 * len(rows.places)))  # by place: which of the bodies
    key_of = array("q", bytes(8 * len(rows.places)))
    for n, place in enumerate(rows.places):
        number[place] = n
    at = 0
    for key, count in enumerate(rows.counts):
        for place in rows.places[at : at + count]:
            key_of[place] = key
        at += count
    keys, bodies = rows.keys, rows.bodies
    for begin in range(0, len(number), CHUNK_ROWS):
        end = begin + CHUNK_ROWS
        yield [(keys[key], bodies[n], None, None) for key, n in zip(key_of[begin:end], number[begin:end], strict=True)]
