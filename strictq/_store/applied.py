"""Batches that are written exactly once, however often their writer dies and comes again with them.

A batch is named by its writer and a number, and reaches the shards in parts: one transaction each, of bounded size, with a
row of `applied` that says how many parts this shard has. So a part is committed once. What the parts are made of must not
change from one try to the next, though. Therefore the first try to get so far records its files in the writer's home shard
before its first part (`decide`), and every later try goes on with those files, until the batch is whole (`finish`).
A batch that is one part of the home shard is decided, written and finished by a single transaction (`put_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import apsw
import attrs

from .._errors import ConfigError, InvalidArgument, MessageTooLarge, QueueFull
from .._sql import APPLIED
from .frame import SECOND, Tx
from .router import Store
from .shard import Shard

JOB: Final = "job "
QUERY: Final = "query "
"""How a writer's name begins."""
JOB_SECONDS: Final = 90 * 86_400.0
"""How long a job's only batch is remembered."""
BATCHES_KEPT: Final = 100
"""Newest batches of a writer that a shard remembers; a repeated one that is older is refused. Spark keeps as many."""
Work = Callable[[Tx], None]


@attrs.frozen
class Token:
    """Names a batch.

    Attributes:
        writer: who writes it: JOB or QUERY, and a name.
        number: rising from batch to batch of a query; 0 for a job.
    """

    writer: str
    number: int

    @classmethod
    def job(cls, name: str) -> Token:
        """The one batch of a job."""
        return cls(JOB + name, 0)

    @classmethod
    def query(cls, name: str, number: int) -> Token:
        """A batch of a query."""
        return cls(QUERY + name, number)

    def __str__(self) -> str:
        return self.writer if self.writer.startswith(JOB) else f"batch {self.number} of {self.writer}"


class Size(NamedTuple):
    """What a batch must be allowed by the queue's settings.

    Attributes:
        rows: how many messages.
        body_bytes_max: size of the largest body.
        keyless: there are messages without a key.
    """

    rows: int
    body_bytes_max: int = 0
    keyless: bool = False


class Applied(NamedTuple):
    """What a shard knows of a batch."""

    parts: int
    rows: int | None
    files: str | None

    @property
    def whole(self) -> bool:
        """In the home shard: nothing of the batch is missing any more."""
        return self.rows is not None and self.files is None


def home(store: Store, token: Token) -> Shard:
    """The shard that decides about a writer's batches."""
    return store.shard_of(b"applied " + token.writer.encode())


def look(store: Store, token: Token) -> Applied | None:
    """What was decided about a batch; None: nothing yet.

    Raises:
        ConfigError: the batch is older than what is remembered of its writer.
    """
    return home(store, token).read(lambda db: _known(db, token))


def _known(db: apsw.Connection, token: Token) -> Applied | None:
    row = db.execute(APPLIED.find, (token.writer, token.number)).get
    if row is not None:
        return Applied._make(row)
    newest: int | None = db.execute(APPLIED.newest, (token.writer,)).get
    if newest is not None and token.number < newest:
        raise ConfigError(
            f"{token} comes after batch {newest} was written, and is not one of the {BATCHES_KEPT} that are remembered",
            hint="its checkpoint is older than the queue's memory: start a new query where this one has got to",
        )
    return None


def decide(store: Store, token: Token, size: Size, files: str) -> Applied:
    """Make these files the batch, unless others are already. Durable on return; returns what is decided.

    Raises:
        QueueFull: the batch would bring the queue over max_depth; nothing changed.
        MessageTooLarge, InvalidArgument: the settings do not allow it; nothing changed.
        ConfigError: as for `look`.
    """
    shard = home(store, token)
    elsewhere = store.depth_elsewhere(shard)

    def operation(tx: Tx) -> Applied:
        known = _known(tx.db, token)
        if known is None:
            require_fits(tx, size, elsewhere)
            tx.run(APPLIED.decide, (token.writer, token.number, size.rows, files, _until(tx, token)))
            _forget(tx, token)
            known = Applied(0, size.rows, files)
        return known

    store.require_room(shard)
    decided = shard.run(operation)
    shard.sync()
    return decided


def put(store: Store, shard: Shard, token: Token, part: int, work: Work) -> None:
    """Run one part of a decided batch in a shard, unless it ran already.

    Args:
        part: 0, 1, 2 … in this shard, in order.
    """

    def operation(tx: Tx) -> None:
        row = tx.run(APPLIED.find, (token.writer, token.number)).get
        if row is None:
            newest = tx.run(APPLIED.newest, (token.writer,)).get
            if newest is not None and newest > token.number:
                return  # another process made this batch whole, and went on to later ones
        parts = 0 if row is None else row[0]
        if parts > part:
            return
        assert parts == part, "the parts of a batch come in order"
        work(tx)
        tx.run(APPLIED.advance, (token.writer, token.number, part + 1, _until(tx, token)))
        if row is None:
            _forget(tx, token)

    store.require_room(shard)
    shard.run(operation)


def finish(store: Store, token: Token, touched: Iterable[Shard]) -> None:
    """Every part is in its shard: the batch is whole.

    The other shards are synced first, so that no power cut leaves a batch whole here and not there.
    """
    shard = home(store, token)
    for other in touched:
        if other is not shard:
            other.sync()
    shard.run(lambda tx: tx.run(APPLIED.finish, (token.writer, token.number)) and None)


def put_whole(store: Store, token: Token, size: Size, work: Work) -> Applied | None:
    """Write a batch that is one part of its home shard. Returns what was known of it before; None: it is written now.

    Raises:
        QueueFull, MessageTooLarge, InvalidArgument, ConfigError: as for `decide`.
    """
    shard = home(store, token)
    elsewhere = store.depth_elsewhere(shard)

    def operation(tx: Tx) -> Applied | None:
        known = _known(tx.db, token)
        if known is not None:
            return known
        require_fits(tx, size, elsewhere)
        work(tx)
        tx.run(APPLIED.decide, (token.writer, token.number, size.rows, None, _until(tx, token)))
        _forget(tx, token)
        return None

    store.require_room(shard)
    return shard.run(operation)


def open_batches(store: Store) -> list[tuple[str, int]]:
    """(writer, number) of batches that were decided and are not whole: their writers died on the way."""
    found: list[tuple[str, int]] = []
    for shard in store.healthy():
        rows: list[Any] = shard.read(lambda db: db.execute(APPLIED.open_batches).fetchall())
        found += rows
    return found


def require_fits(tx: Tx, size: Size, elsewhere: int) -> None:
    """Do the queue's settings allow the batch? Looked at once for all of it: what was begun is finished.

    Raises:
        QueueFull, MessageTooLarge, InvalidArgument: nothing changed.
    """
    config = tx.config
    if size.keyless and config.keyless == "refuse":
        raise InvalidArgument("column key: a message needs a key", hint="or configure the queue with keyless='random'")
    if size.body_bytes_max > config.max_body_bytes:
        raise MessageTooLarge(f"column body: a body may have {config.max_body_bytes:,} bytes, one has {size.body_bytes_max:,}")
    limit = config.max_depth
    if limit is not None and tx.totals.pending + elsewhere + size.rows > limit:
        raise QueueFull(f"{size.rows:,} messages more would bring the queue over max_depth={limit:,}; none was written")


def _until(tx: Tx, token: Token) -> int | None:
    return tx.now + int(JOB_SECONDS * SECOND) if token.writer.startswith(JOB) else None


def _forget(tx: Tx, token: Token) -> None:
    """A bounded step: older batches of this writer, and those of others whose time is over."""
    tx.run(APPLIED.forget_batches, (token.writer, token.number - BATCHES_KEPT))
    if old := tx.run(APPLIED.outlived, (tx.now,)).fetchall():
        tx.many(APPLIED.delete, old)


__all__ = ["Applied", "Size", "Token", "decide", "finish", "home", "look", "open_batches", "put", "put_whole"]
