"""One transaction: ack, sends, key state and the program's own tables, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import InvalidArgument, LeaseLost, StoreFull
from ._keys import Key
from ._store import engine
from ._types import Message
from .delivery import Delivery

if TYPE_CHECKING:
    from .queue import Queue

T = TypeVar("T")
_UNSET: Any = object()


class _Replayed(Exception):
    """The transaction happened before, under the same token: roll back what was run again."""


class Transaction:
    """What happens together. Get one from `q.transaction(...)`.

    Sends, key state and `execute` are kept and written when the block ends. `run`, and reading `key_state`, open the write
    transaction at once, and nobody else can write to the shard until the block ends: keep what follows short.
    """

    def __init__(self, queue: Queue, delivery: Delivery | None, key: bytes) -> None:
        self._queue = queue
        self._delivery = delivery
        self._key = key
        self._shard = queue._store.shards[delivery.shard] if delivery is not None else queue._store.shard_of(key)
        self._sends: list[engine.Item] = []
        self._statements: list[tuple[str, Any]] = []
        self._state: Any = _UNSET
        self._open: AbstractContextManager[engine.Tx] | None = None
        self._tx: engine.Tx | None = None
        self._replay = False
        self._entered = False
        self._ended = False

    # ---- inside the block

    def send(
        self,
        body: bytes,
        key: Key | None = None,
        *,
        dedup_id: str | None = None,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        size_hint: float | None = None,
        prepare_seconds: float | None = None,
        process_seconds: float | None = None,
    ) -> None:
        """Send a message, to any key, when the transaction commits. max_depth does not apply.

        Raises:
            InvalidArgument: the message can't be sent; nothing happened yet.
        """
        self._require()
        message = Message(
            body, key=key, dedup_id=dedup_id, delay=delay, ttl=ttl, headers=headers, size_hint=size_hint,
            prepare_seconds=prepare_seconds, process_seconds=process_seconds,
        )  # fmt: skip
        self._sends.append(self._queue._item(message)[0])

    @property
    def key_state(self) -> bytes | None:
        """The durable state of the key: what was set in this transaction, else what is stored."""
        self._require()
        if self._state is not _UNSET:
            return self._state  # type: ignore[no-any-return]
        return engine.key_state(self._begin(), self._key)

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._require()
        if value is not None and type(value) is not bytes:
            raise InvalidArgument(f"key_state must be bytes or None, not {type(value).__name__}")
        if value is not None and len(value) > self._queue.config.max_body_bytes:
            raise InvalidArgument(f"key_state may have {self._queue.config.max_body_bytes:,} bytes, this one has {len(value):,}")
        self._state = value

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> None:
        """Run a statement on the program's app_* tables, in order, when the block ends (or at the next `run`).

        Raises:
            InvalidArgument: the SQL is wrong or may not be run; raised where it runs, and then nothing happened.
        """
        self._require()
        if not isinstance(sql, str):
            raise InvalidArgument(f"SQL must be a str, not {type(sql).__name__}")
        # It runs when the block ends: what the program does with its list meanwhile is not meant.
        self._statements.append((sql, params.copy() if isinstance(params, list | dict) else params))

    def run(self, work: Callable[[engine.AppDatabase], T]) -> T:
        """Call `work(db)` inside the write transaction; `db.execute(sql, params)` reads and writes app_* tables.

        Returns:
            What `work` returns.
        Raises:
            InvalidArgument: the SQL is wrong, may not be run, or takes too long. Let it leave the block, and nothing happened;
                caught, that statement is undone and what ran before it stays. Where SQLite undid all of it (OR ROLLBACK, too
                many steps), the transaction refuses everything that follows.
            LeaseLost: the delivery's lane was given back or retaken; nothing happened.
        """
        self._require()
        tx = self._begin()
        self._flush(tx)
        app = self._shard.app(tx)
        try:
            return work(app)
        finally:
            app.live = False

    # ---- the frame

    def __enter__(self) -> Transaction:
        if self._entered:
            raise InvalidArgument("a transaction can be entered once")
        self._entered = True
        if self._delivery is not None:
            self._queue._require_unsettled(self._delivery)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended = True
        if error is not None:
            self._abandon(kind, error, trace)
            return
        if self._delivery is not None:
            try:
                self._queue._require_unsettled(self._delivery)
            except LeaseLost as e:
                # Acked inside the block: taken for a transaction that is repeated, it would lose what it was to do.
                self._abandon(type(e), e, e.__traceback__)
                raise
        with suppress(_Replayed):
            self._commit()
        if self._delivery is not None:
            self._queue._settled(self._delivery)
            self._delivery.lease._open -= 1
        if self._destinations():
            self._queue._store.forward([self._shard])

    def _require(self) -> None:
        if not self._entered or self._ended:
            raise InvalidArgument("a transaction works inside its with block only")

    def _begin(self) -> engine.Tx:
        """Open the write transaction, and see that the lane is still this holder's."""
        if self._tx is None:
            block = self._shard.alone()
            tx: engine.Tx = block.__enter__()
            try:
                self._verify(tx)
            except BaseException as e:
                block.__exit__(type(e), e, e.__traceback__)
                raise
            self._open, self._tx = block, tx
        self._tx.require_whole()
        return self._tx

    def _verify(self, tx: engine.Tx) -> None:
        if self._delivery is None:
            return
        batch = self._queue._batch(self._delivery)
        lowest = engine.lowest_unresolved(tx, batch)
        if lowest == self._delivery.seq:
            return
        if engine.done_before(tx, batch):
            self._replay = True
            return
        if lowest is None:
            raise LeaseLost(self._delivery.key, self._delivery.seq, self._delivery.token)
        raise InvalidArgument(
            f"seq {self._delivery.seq} is not the lowest unresolved message of its lease: {lowest} is",
            hint="settle the earlier messages of the key first",
        )

    def _flush(self, tx: engine.Tx) -> None:
        for sql, params in self._statements:
            self._shard.app(tx).execute(sql, params)
        if tx is self._tx:
            self._statements.clear()  # else it is one transaction at the end, which may have to be repeated

    def _apply(self, tx: engine.Tx) -> None:
        tx.require_whole()
        if self._open is None:
            self._verify(tx)
        self._flush(tx)
        if self._delivery is not None and (self._replay or not engine.ack_lane(tx, self._queue._batch(self._delivery))):
            raise _Replayed
        if self._state is not _UNSET:
            engine.set_key_state(tx, self._key, self._state)
        here: list[engine.Item] = []
        for item in self._sends:
            shard = self._queue._store.shard_of(item[0])
            if shard is self._shard:
                here.append(item)
            else:
                engine.put_in_outbox(tx, shard.number, item)
        if here:
            engine.send(tx, here)

    def _commit(self) -> None:
        try:
            if self._open is not None:
                self._commit_open()
            else:
                self._commit_kept()
        except StoreFull:
            self._queue._store.make_room()
            if self._open is not None:
                raise  # the block can't be run again from here, but whoever repeats it finds room
            self._commit_kept()

    def _commit_kept(self) -> None:
        """Everything was kept for now: one transaction, alone if it runs the program's SQL."""
        if not self._statements:
            self._shard.run(self._apply)
            return
        with self._shard.alone() as tx:
            self._apply(tx)

    def _commit_open(self) -> None:
        assert self._open is not None
        assert self._tx is not None
        try:
            self._apply(self._tx)
            self._open.__exit__(None, None, None)
        except BaseException as e:
            # Where it has ended by itself this does nothing; interrupted on its way there, it would keep the shard's lock.
            self._undo(self._open, type(e), e, e.__traceback__)
            raise

    def _abandon(self, kind: Any, error: BaseException, trace: Any) -> None:
        if self._open is not None:
            self._undo(self._open, kind, error, trace)

    @staticmethod
    def _undo(block: AbstractContextManager[engine.Tx], kind: Any, error: BaseException, trace: Any) -> None:
        try:
            block.__exit__(kind, error, trace)
        except BaseException as e:
            if e is not error:
                raise

    def _destinations(self) -> bool:
        return any(self._queue._store.shard_of(item[0]) is not self._shard for item in self._sends)
