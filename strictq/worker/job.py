"""The Job that a handler gets, and the exceptions that it may raise to retry, defer or reject the message."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs

from .._client import validate
from .._client.client import Client
from .._client.effects import Effects, Recording, inherited
from .._values import hints
from .._values.errors import ForwardPending, InvalidArgument, LeaseLost, Picklable
from .._values.types import UNSET
from ..delivery import Delivery, Lease, MessageView
from ..transaction import Transaction, transaction_of

if TYPE_CHECKING:
    from .._store.api import ProcessHold
    from .._values.config import QueueConfig
    from .._values.findings import AttemptError

T = TypeVar("T")

# The stages of a job, in order.
BUFFERED, PREPARING, PREPARED, STARTING, READY, RUNNING, SETTLING, OVER = range(8)
STATES: Final = ("buffered", "preparing", "prepared", "starting", "ready", "running", "settling", "over")


EFFECTS: Final = "effects"
"""The capability of a source to commit a job's sends, key state and SQL with its ack."""
NO_EFFECTS: Final = "is not available on a queue behind an endpoint, which cannot commit it together with the ack"


class JobSource(Protocol):
    """What a job needs of the source that its message came from. See source.Source."""

    @property
    def path(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[str]: ...
    @property
    def config(self) -> QueueConfig: ...
    @property
    def holder(self) -> ProcessHold | None: ...
    @property
    def clock(self) -> Callable[[], float]: ...

    def wall(self) -> float:
        """Return seconds since 1970."""
        ...


class Retry(Picklable, Exception):
    """Raised by a handler to retry the message, before any later message of its key.

    Args:
        delay: seconds that its lane waits; None: the queue's retry delay and backoff.
        reason: stored, and shown by status and explain.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"", key="k")
        >>> def handler(job):
        ...     if job.attempt == 1:
        ...         raise strictq.Retry(delay=0.01)
        >>> while q.stats().depth:
        ...     strictq.Worker(q, handler).run(drain=True)
    """

    def __init__(self, delay: float | None = None, reason: str | None = None) -> None:
        if delay is not None:
            validate.microseconds("delay", delay)
        super().__init__(reason or "the handler asked for a retry")
        self.delay = delay
        self.reason = validate.text("reason", reason)


class Defer(Picklable, Exception):
    """Raised by a handler to postpone the message without charging an attempt. Later messages of its key wait.

    Use it when the failure is not the message's fault: a rate limit, an outage, work that is not due yet. A message that is
    deferred repeatedly never runs out of attempts.

    Args:
        delay_seconds: seconds that its lane waits.
        reason: stored, and shown by status and explain; None: the last error is kept.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"", key="k")
        >>> def handler(job):
        ...     raise strictq.Defer(60.0)
        >>> strictq.Worker(q, handler).run(drain=True)
        >>> q.status("k", 1).attempts
        0
    """

    def __init__(self, delay_seconds: float, reason: str | None = None) -> None:
        validate.microseconds("delay_seconds", delay_seconds)
        said = f"the handler deferred the message by {delay_seconds:g} s"
        super().__init__(f"{said}: {reason}" if reason else said)
        self.delay_seconds = delay_seconds
        self.reason = validate.text("reason", reason)


class Reject(Picklable, Exception):
    """Raised by a handler to dead-letter the message now. Its lane continues.

    Args:
        reason: stored with the dead letter.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"?", key="k")
        >>> def handler(job):
        ...     raise strictq.Reject("not an order")
        >>> strictq.Worker(q, handler).run(drain=True)
        >>> q.dead_letters()[0].reason
        'not an order'
    """

    def __init__(self, reason: str) -> None:
        if not validate.text("reason", reason):
            raise InvalidArgument("Reject needs a reason")
        super().__init__(reason)
        self.reason = reason


class FailedInBatch(Exception):
    """The failure of one message of a batch, as given to `job.fail`."""

    speaks_for_itself = True


class Job(Recording, MessageView):
    """A message that a worker passes to its prepare handler, and then to its process handler.

    The sends, key state and SQL of process commit in one transaction with the ack when it returns. If it
    raises, none of them takes effect. prepare may run ahead of its turn, so it may only read.

    Attributes:
        prepared: the result of prepare; None without one.
    """

    __slots__ = (
        "_cancelled", "_due", "_effects", "_ends_at", "_error", "_failure", "_group", "_lane", "_margin", "_permit", "_place",
        "_prepared_in",
        "_progress", "_seconds", "_since", "_size", "_stage", "_tx", "_weight", "prepared",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, lane: HeldLane) -> None:
        self._delivery = delivery  # here, because a call of the base's __init__ costs a quarter of all this
        self._lane = lane
        self._stage = BUFFERED
        self._cancelled = False
        self._error: BaseException | None = None
        self._effects: Effects | None = None
        """Created by the first effect."""
        self._failure: BaseException | None = None
        self._group: JobBatch | None = None
        self._tx: Transaction | None = None
        self._size: float | None = None
        self._seconds: tuple[float | None, float | None] | None = None
        self._permit = 0
        self._place: str | None = None
        """The type whose `max_running` it counts towards."""
        self._weight = 0
        self._due = 0.0
        self._margin = 0.0
        self._since = 0.0
        self._prepared_in: float | None = None
        self._progress: tuple[float, str, float] | None = None
        self.prepared: Any = None
        self._ends_at: float | None = None
        """The worker's `clock()` at which the handler is abandoned."""

    def fail(self, error: Exception | str) -> None:
        """Report that only this message of a batch failed. For `process_batch`; other handlers raise an exception.

        The effects for this message are discarded. It is retried; later messages of its key are returned with it.

        Args:
            error: the failure. A Retry, Defer or Reject has the same effect as raising it.
        Raises:
            InvalidArgument: this is not a batch, or its handler has returned.
        """
        if self._group is None or self._stage != RUNNING:
            raise InvalidArgument("fail() can be used only in a batch handler", hint=hints.RAISE_INSTEAD)
        if not isinstance(error, Exception | str):
            raise InvalidArgument(f"error must be an exception or a str, not {type(error).__name__}")
        self._failure = FailedInBatch(error) if isinstance(error, str) else error

    @property
    def deadline(self) -> float | None:
        """The time of `time.monotonic()` at which the handler is abandoned; None: never."""
        if self._ends_at is None:
            return None
        return time.monotonic() + self._ends_at - self._source.clock()  # that of an endpoint also counts suspended time

    @property
    def cancelled(self) -> bool:
        """Whether the job no longer counts: its lease is lost, it timed out, or the worker stopped waiting for it."""
        return self._cancelled

    # ---- effects, which commit with the ack

    def _effects_for(self, verb: str) -> Effects:
        if self._cancelled:
            raise LeaseLost(self.key, self.seq, self.token, "this job was cancelled")
        if EFFECTS not in self._source.capabilities:
            raise InvalidArgument(f"job.{verb} {NO_EFFECTS}", hint=hints.EFFECTS_ARE_LOCAL)
        if self._stage != RUNNING:
            raise InvalidArgument(f"{verb} is only allowed in process: prepare runs ahead and must have no side effects")
        return self._recorded

    def _inherited(self) -> dict[str, str]:
        names = self._lane.propagate
        return inherited(self.headers, names) if names else {}

    @property
    def _recorded(self) -> Effects:
        if self._effects is None:
            self._effects = Effects(self._client.sending if EFFECTS in self._source.capabilities else None)
        return self._effects

    @property
    def _client(self) -> Client:
        return self._delivery.lease._client

    @property
    def _source(self) -> JobSource:
        assert self._lane.source is not None
        return self._lane.source

    @property
    def queue_path(self) -> str:
        """The path of the message's queue, or ":memory:", or the URL of a queue behind an endpoint."""
        return self._source.path

    @property
    def key_state(self) -> bytes | None:
        """The durable state of its key: the value that this handler set, else the stored one. A set value is stored with the ack.

        In a batch, a value set for an earlier message of the key is returned, too.
        """
        if EFFECTS not in self._source.capabilities:
            raise InvalidArgument(f"job.key_state {NO_EFFECTS}", hint=hints.EFFECTS_ARE_LOCAL)
        state = UNSET if self._effects is None else self._effects.key_state
        if state is not UNSET:
            return state
        for job in () if self._group is None else self._group.before(self):
            if job._effects is not None and job._effects.key_state is not UNSET:
                return job._effects.key_state
        return self._delivery.key_state if self._tx is None else self._tx.key_state

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._effects_for("key_state").set_key_state(value)

    def run(self, work: Callable[[Any], T]) -> T:
        """Call `work(db)` now, inside the write transaction that the ack will commit; `db.execute` reads and writes app_* tables.

        No other writer can write to the shard until the handler returns, so call it last, and keep it short. An async handler
        awaits its result.

        Returns:
            The result of `work`.
        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
            InvalidArgument: the SQL is invalid, this is prepare, or this is a batch.
        """
        effects = self._effects_for("run")
        if self._group is not None:
            raise InvalidArgument(
                "run cannot be used in a batch: it would hold the shard's write lock while the batch runs",
                hint=hints.USE_JOB_EXECUTE,
            )
        if self._tx is None:
            self._tx = transaction_of(self._client, [self._delivery], effects=effects).__enter__()
        return self._tx.run(work)

    # ---- of a queue behind an endpoint

    @property
    def sequence_number(self) -> str | None:
        """The number that the endpoint gave the message: 20 digits that ascend within a group. None on other queues."""
        return getattr(self._delivery, "sequence_number", None)

    @property
    def message_id(self) -> str | None:
        """The id that the endpoint gave the message; None on a local queue."""
        return getattr(self._delivery, "message_id", None)

    @property
    def attributes(self) -> Mapping[str, Any] | None:
        """The message as the endpoint returned it; None on a local queue."""
        return getattr(self._delivery, "attributes", None)

    @property
    def source(self) -> str | None:
        """The id of the local queue that `strictq forward` took the message from; None: it was not forwarded."""
        return getattr(self._delivery, "source", None)

    @property
    def source_seq(self) -> int | None:
        """Its seq in that queue. Drop duplicates by it: it ascends per source and key."""
        return getattr(self._delivery, "source_seq", None)

    @property
    def errors(self) -> tuple[AttemptError, ...]:
        """The errors of its last five failed attempts, oldest first, read now. An expired lease is one of them."""
        return self._delivery.errors

    @property
    def last_error(self) -> AttemptError | None:
        """The error of the newest failed attempt, read now; None: none failed."""
        return self._delivery.last_error

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the handler is, for `q.status` and `strictq status` in any process.

        The worker publishes the newest report of each handler, four times a second at most, without writing to the queue. It is
        gone when the attempt ends, or the worker's process.

        Args:
            fraction: the part that is done, 0.0 to 1.0.
            text: what the handler works on, at most 140 characters.
        Raises:
            InvalidArgument: fraction is not a number from 0 to 1, or text is too long; the previous report stays.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"", key="k")
            >>> def handler(job):
            ...     for page in range(10):
            ...         job.progress(page / 10, f"page {page + 1} of 10")
            >>> strictq.Worker(q, handler).run(drain=True)
        """
        self._progress = (*validate.progress(fraction, text), self._source.wall())

    def output(self, text: str) -> None:
        """Record output of the handler.

        If the message fails, it is stored with it. If it is acked, it is kept for `q.output` for the queue's output_seconds, in
        the transaction of the ack, and stored with its record if the queue keeps history.

        Raises:
            InvalidArgument: the value is not a str; nothing was recorded.
        """
        self._recorded.say(text)

    # ---- for the worker

    @property
    def _said(self) -> str | None:
        return None if self._effects is None else self._effects.said

    def _note_end(self, seconds: float) -> None:
        """Record what the ack stores of its handler: how long it took, and its output."""
        config = self._source.config
        if config.keeps_ends:
            output = validate.text("output", self._said, config.max_body_bytes)
            self._delivery._took = (self._prepared_in, seconds, output)

    @property
    def _leaves_output(self) -> bool:
        """Whether its ack stores output."""
        took = getattr(self._delivery, "_took", None)
        return took is not None and took[2] is not None

    @property
    def _has_effects(self) -> bool:
        return self._tx is not None or (self._effects is not None and self._effects.need_commit)

    def _commit(self) -> None:
        """Ack it with all its effects in one transaction."""
        tx, self._tx = self._tx, None
        with suppress(ForwardPending):  # committed; the sends to other shards will arrive
            if tx is not None:
                tx.__exit__(None, None, None)
                return
            with transaction_of(self._client, [self._delivery], effects=self._effects):
                pass

    def _undo(self) -> None:
        """Discard the effects of a failed handler, and roll back its open transaction."""
        tx, self._tx = self._tx, None
        if tx is not None:
            tx.__exit__(RuntimeError, RuntimeError("the handler failed"), None)
        elif self._effects is not None:
            self._effects.failed()

    def __repr__(self) -> str:
        return f"Job(key={self.key!r}, seq={self.seq}, attempt={self.attempt}, {STATES[self._stage]})"


class AsyncJob(Job):
    """The Job of an async handler, whose `run` is awaited."""

    __slots__ = ()

    async def run(self, work: Callable[[Any], T]) -> T:  # type: ignore[override]
        """Run a plain function in the write transaction, in a worker thread. See Job.run."""
        from anyio.to_thread import run_sync  # importing anyio takes as long as importing all of strictq

        return await run_sync(super().run, work)


class HeldLane:
    """A lease and its unfinished jobs."""

    __slots__ = (
        "alive", "free_at", "grown", "jobs", "lease", "length", "passed", "propagate", "selected", "source", "unconfirmed",
        "until",
    )  # fmt: skip

    def __init__(
        self, lease: Lease, until: float, length: float, propagate: Sequence[str] = (), source: JobSource | None = None
    ) -> None:
        self.lease = lease
        self.propagate = propagate
        self.source = source
        self.jobs: deque[Job] = deque()
        self.until = until
        self.length = length
        self.alive = True
        self.selected = False
        self.passed = 0
        """Number of its messages when it was passed over, because its head's type was at its limit; 0: it was not."""
        self.free_at = 0.0
        self.grown: Any = None
        self.unconfirmed = 0
        """Number of its acks that were handed over to the source and are not confirmed yet."""


@attrs.define(eq=False)
class JobBatch:
    """The messages of one call of a batch handler.

    Attributes:
        jobs: the jobs, in order per lane.
        starting: lanes whose start is not committed yet.
        taken: whether a handler took it.
    """

    jobs: list[Job]
    starting: set[HeldLane] = attrs.Factory(set)
    taken: bool = False

    @property
    def live(self) -> list[Job]:
        """The jobs whose lane is still held."""
        return [job for job in self.jobs if job._lane.alive and STARTING <= job._stage < OVER]

    def before(self, job: Job) -> Iterator[Job]:
        """Return the earlier jobs of a job's lane that have not failed, the last one first."""
        same = [other for other in self.jobs if other._lane is job._lane and other.seq < job.seq and other._failure is None]
        return reversed(same)

    @property
    def given_up(self) -> bool:
        """Whether the worker has stopped waiting for all of its messages."""
        return all(job._cancelled for job in self.jobs)
