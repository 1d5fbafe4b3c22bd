"""What a handler is given: a Job; and what it may raise to say how the message goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import _validate as validate
from .._errors import ForwardPending, InvalidArgument, LeaseLost
from .._keys import Key
from .._types import Message
from ..delivery import Delivery, MessageView
from ..transaction import Transaction

if TYPE_CHECKING:
    from .lanes import Lane

T = TypeVar("T")

# Where a job is, in order.
BUFFERED, PREPARING, PREPARED, STARTING, READY, RUNNING, SETTLING, OVER = range(8)
STATES: Final = ("buffered", "preparing", "prepared", "starting", "ready", "running", "settling", "over")
_UNSET: Final[Any] = object()


class Retry(Exception):
    """Raised by a handler: give the message back, to be tried again before anything later of its key.

    Args:
        delay: seconds its lane waits; None: the queue's retry delay and backoff.
        reason: kept, and shown by status and explain.
    """

    def __init__(self, delay: float | None = None, reason: str | None = None) -> None:
        if delay is not None:
            validate.microseconds("delay", delay)
        super().__init__(reason or "the handler asked for a retry")
        self.delay = delay
        self.reason = validate.text("reason", reason)


class Reject(Exception):
    """Raised by a handler: dead-letter the message now; its lane goes on.

    Args:
        reason: kept with the dead letter.
    """

    def __init__(self, reason: str) -> None:
        if not validate.text("reason", reason):
            raise InvalidArgument("Reject needs a reason")
        super().__init__(reason)
        self.reason = reason


class Job(MessageView):
    """One message in the hands of a worker: first of its prepare, then of its process handler.

    What process sends, stores and executes is kept, and commits in one transaction with the ack when it returns; if it
    raises, none of it happens. prepare may run ahead of its turn, so it may only look.

    Attributes:
        prepared: what prepare returned; None without one.
        deadline: `time.monotonic()` at which the handler is given up; None: never.
    """

    __slots__ = (
        "_cancelled", "_due", "_error", "_lane", "_margin", "_output", "_prepared_in", "_sends", "_since", "_size",
        "_stage", "_state", "_statements", "_tx", "_weight", "deadline", "prepared",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, lane: Lane) -> None:
        super().__init__(delivery)
        self._lane = lane
        self._stage = BUFFERED
        self._cancelled = False
        self._error: BaseException | None = None
        self._output: list[str] | None = None
        self._sends: list[Message] | None = None
        self._statements: list[tuple[str, Any]] | None = None
        self._state: Any = _UNSET
        self._tx: Transaction | None = None
        self._size: float | None = None
        self._weight = 0
        self._due = 0.0
        self._margin = 0.0
        self._since = 0.0
        self._prepared_in: float | None = None
        self.prepared: Any = None
        self.deadline: float | None = None

    @property
    def cancelled(self) -> bool:
        """Nothing it does counts any more: its lease is lost, its time is over, or the worker stopped waiting for it."""
        return self._cancelled

    # ---- what it does, all of it together with the ack

    def _require(self, what: str) -> None:
        if self._cancelled:
            raise LeaseLost(self.key, self.seq, self.token, "this job was cancelled")
        if self._stage != RUNNING:
            raise InvalidArgument(f"{what} is for process: prepare may run ahead of its turn, and must change nothing")

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
        """Send a message, to any key, together with the ack.

        Raises:
            InvalidArgument: the message can't be sent, or this is prepare; nothing happened.
            LeaseLost: the job was cancelled.
        """
        self._require("send")
        message = Message(
            body, key=key, dedup_id=dedup_id, delay=delay, ttl=ttl, headers=headers, size_hint=size_hint,
            prepare_seconds=prepare_seconds, process_seconds=process_seconds,
        )  # fmt: skip
        self._queue._item(message)  # says now what is wrong with it
        if self._sends is None:
            self._sends = []
        self._sends.append(message)

    @property
    def _queue(self) -> Any:
        return self._delivery.lease._queue

    @property
    def key_state(self) -> bytes | None:
        """The durable state of its key: what this handler set, else what is stored. A set value is stored with the ack."""
        if self._state is not _UNSET:
            return self._state  # type: ignore[no-any-return]
        if self._tx is not None:
            return self._tx.key_state
        return self._delivery.key_state

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._require("key_state")
        if value is not None and type(value) is not bytes:
            raise InvalidArgument(f"key_state must be bytes or None, not {type(value).__name__}")
        self._state = value

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> None:
        """Run a statement on the program's app_* tables together with the ack.

        SQL that is wrong fails the message when it commits, as if the handler had raised.
        """
        self._require("execute")
        if not isinstance(sql, str):
            raise InvalidArgument(f"SQL must be a str, not {type(sql).__name__}")
        if self._statements is None:
            self._statements = []
        self._statements.append((sql, params))

    def run(self, work: Callable[[Any], T]) -> T:
        """Call `work(db)` now, inside the write transaction that the ack will commit; `db.execute` reads and writes app_* tables.

        Nobody else can write to the shard until the handler returns: call it last, and be quick. An async handler awaits
        its result.

        Returns:
            What `work` returns.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            InvalidArgument: the SQL is wrong, or this is prepare.
        """
        self._require("run")
        if self._tx is None:
            self._tx = self._queue.transaction(self._delivery).__enter__()
        tx = self._tx
        assert tx is not None
        for sql, params in self._statements or ():
            tx.execute(sql, params)
        self._statements = None
        return tx.run(work)

    def output(self, text: str) -> None:
        """Note what the handler has to say. Kept with the message if it fails, and shown by status."""
        if not isinstance(text, str):
            raise InvalidArgument(f"output must be a str, not {type(text).__name__}")
        if self._output is None:
            self._output = []
        self._output.append(text)

    # ---- for the worker

    @property
    def _said(self) -> str | None:
        return None if self._output is None else "\n".join(self._output)

    @property
    def _has_effects(self) -> bool:
        return self._sends is not None or self._statements is not None or self._state is not _UNSET or self._tx is not None

    def _commit(self) -> None:
        """Ack it, with all its effects, in one transaction."""
        tx, self._tx = self._tx, None
        try:
            if tx is not None:
                try:
                    self._put_into(tx)
                except BaseException as e:
                    tx.__exit__(type(e), e, e.__traceback__)
                    raise
                tx.__exit__(None, None, None)
            else:
                with self._queue.transaction(self._delivery) as tx:
                    self._put_into(tx)
        except ForwardPending:
            return  # committed; the sends to other shards arrive by themselves

    def _put_into(self, tx: Transaction) -> None:
        for m in self._sends or ():
            tx.send(
                m.body, m.key, dedup_id=m.dedup_id, delay=m.delay, ttl=m.ttl, headers=m.headers, size_hint=m.size_hint,
                prepare_seconds=m.prepare_seconds, process_seconds=m.process_seconds,
            )  # fmt: skip
        if self._state is not _UNSET:
            tx.key_state = self._state
        for sql, params in self._statements or ():
            tx.execute(sql, params)

    def _undo(self) -> None:
        """The handler failed: what it did in an open transaction did not happen."""
        tx, self._tx = self._tx, None
        if tx is not None:
            error = RuntimeError("the handler failed")
            tx.__exit__(RuntimeError, error, None)

    def __repr__(self) -> str:
        return f"Job(key={self.key!r}, seq={self.seq}, attempt={self.attempt}, {STATES[self._stage]})"


class AsyncJob(Job):
    """The Job of an async handler: the same, but `run` is awaited."""

    __slots__ = ()

    async def run(self, work: Callable[[Any], T]) -> T:  # type: ignore[override]
        """See Job.run; `work` is a plain function, and runs in a worker thread."""
        from anyio.to_thread import run_sync  # anyio costs as much to import as all of strictq

        return await run_sync(super().run, work)
