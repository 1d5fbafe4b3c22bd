"""What a handler is given: a Job; and what it may raise to say how the message goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from .. import _hints as hints
from .. import _validate as validate
from .._client import Client
from .._effects import Effects, Recording, inherited
from .._errors import ForwardPending, InvalidArgument, LeaseLost
from .._types import UNSET
from ..delivery import Delivery, Lease, MessageView
from ..transaction import Transaction, transaction_of

if TYPE_CHECKING:
    from .._findings import AttemptError

T = TypeVar("T")

# Where a job is, in order.
BUFFERED, PREPARING, PREPARED, STARTING, READY, RUNNING, SETTLING, OVER = range(8)
STATES: Final = ("buffered", "preparing", "prepared", "starting", "ready", "running", "settling", "over")


class Retry(Exception):
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


class Defer(Exception):
    """Raised by a handler to postpone the message without charging an attempt. Later messages of its key wait.

    Use it when the failure is not the message's fault: a rate limit, an outage, work that is not due yet. A message that is
    deferred repeatedly is never given up.

    Args:
        delay_seconds: seconds that its lane waits.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"", key="k")
        >>> def handler(job):
        ...     raise strictq.Defer(60.0)
        >>> strictq.Worker(q, handler).run(drain=True)
        >>> q.status("k", 1).attempts
        0
    """

    def __init__(self, delay_seconds: float) -> None:
        validate.microseconds("delay_seconds", delay_seconds)
        super().__init__(f"the handler deferred the message by {delay_seconds:g} s")
        self.delay_seconds = delay_seconds


class Reject(Exception):
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
    """Why a message of a batch failed, in the handler's words."""

    speaks_for_itself = True


class Job(Recording, MessageView):
    """One message in the hands of a worker: first of its prepare, then of its process handler.

    What process sends, stores and executes is kept, and commits in one transaction with the ack when it returns; if it
    raises, none of it happens. prepare may run ahead of its turn, so it may only look.

    Attributes:
        prepared: what prepare returned; None without one.
        deadline: `time.monotonic()` at which the handler is given up; None: never.
    """

    __slots__ = (
        "_cancelled", "_due", "_effects", "_error", "_failure", "_group", "_lane", "_margin", "_permit", "_prepared_in", "_since",
        "_size", "_stage", "_tx", "_weight", "deadline", "prepared",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, lane: HeldLane) -> None:
        super().__init__(delivery)
        self._lane = lane
        self._stage = BUFFERED
        self._cancelled = False
        self._error: BaseException | None = None
        self._effects: Effects | None = None
        """Made when there is the first."""
        self._failure: BaseException | None = None
        self._group: JobBatch | None = None
        self._tx: Transaction | None = None
        self._size: float | None = None
        self._permit = 0
        self._weight = 0
        self._due = 0.0
        self._margin = 0.0
        self._since = 0.0
        self._prepared_in: float | None = None
        self.prepared: Any = None
        self.deadline: float | None = None

    def fail(self, error: Exception | str) -> None:
        """Say that this message of a batch failed, when the others did not. For `process_batch`; another handler raises.

        What the handler does for this message does not happen. It is retried, and what follows it in its key goes back with it.

        Args:
            error: why; a Retry, Defer or Reject has the effect that raising it has.
        Raises:
            InvalidArgument: this is not a batch, or its handler is through.
        """
        if self._group is None or self._stage != RUNNING:
            raise InvalidArgument("fail is for the messages of a batch, in its handler", hint=hints.RAISE_INSTEAD)
        if not isinstance(error, Exception | str):
            raise InvalidArgument(f"error must be an exception or a str, not {type(error).__name__}")
        self._failure = FailedInBatch(error) if isinstance(error, str) else error

    @property
    def cancelled(self) -> bool:
        """Nothing it does counts any more: its lease is lost, its time is over, or the worker stopped waiting for it."""
        return self._cancelled

    # ---- what it does, all of it together with the ack

    def _effects_for(self, verb: str) -> Effects:
        if self._cancelled:
            raise LeaseLost(self.key, self.seq, self.token, "this job was cancelled")
        if self._stage != RUNNING:
            raise InvalidArgument(f"{verb} is for process: prepare may run ahead of its turn, and must change nothing")
        return self._recorded

    def _inherited(self) -> dict[str, str]:
        names = self._lane.propagate
        return inherited(self.headers, names) if names else {}

    @property
    def _recorded(self) -> Effects:
        if self._effects is None:
            self._effects = Effects(self._client.sending)
        return self._effects

    @property
    def _client(self) -> Client:
        return self._delivery.lease._client

    @property
    def queue_path(self) -> str:
        """The path of the queue that it comes from, or ":memory:"."""
        directory = self._client.storage.directory
        return ":memory:" if directory is None else str(directory)

    @property
    def key_state(self) -> bytes | None:
        """The durable state of its key: what this handler set, else what is stored. A set value is stored with the ack.

        In a batch, what the handler set for an earlier message of the key counts, too.
        """
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

        Nobody else can write to the shard until the handler returns: call it last, and be quick. An async handler awaits
        its result.

        Returns:
            What `work` returns.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            InvalidArgument: the SQL is wrong, or this is prepare.
        """
        effects = self._effects_for("run")
        if self._group is not None:
            raise InvalidArgument(
                "run is not for batches: it would hold the shard for as long as they take", hint=hints.USE_JOB_EXECUTE
            )
        if self._tx is None:
            self._tx = transaction_of(self._client, [self._delivery], effects=effects).__enter__()
        return self._tx.run(work)

    @property
    def errors(self) -> tuple[AttemptError, ...]:
        """The errors of its last five attempts that failed, oldest first, read now. An attempt whose holder died left none."""
        return self._delivery.errors

    @property
    def last_error(self) -> AttemptError | None:
        """Why the attempt before failed, read now; None: no attempt did, or its holder died."""
        return self._delivery.last_error

    def output(self, text: str) -> None:
        """Note what the handler has to say. Kept with the message if it fails; with its record, where the queue keeps history."""
        self._recorded.say(text)

    # ---- for the worker

    @property
    def _said(self) -> str | None:
        return None if self._effects is None else self._effects.said

    @property
    def _has_effects(self) -> bool:
        return self._tx is not None or (self._effects is not None and self._effects.need_commit)

    def _commit(self) -> None:
        """Ack it, with all its effects, in one transaction."""
        tx, self._tx = self._tx, None
        with suppress(ForwardPending):  # committed; the sends to other shards arrive by themselves
            if tx is not None:
                tx.__exit__(None, None, None)
                return
            with transaction_of(self._client, [self._delivery], effects=self._effects):
                pass

    def _undo(self) -> None:
        """The handler failed: what it did in an open transaction did not happen."""
        tx, self._tx = self._tx, None
        if tx is not None:
            tx.__exit__(RuntimeError, RuntimeError("the handler failed"), None)
        elif self._effects is not None:
            self._effects.failed()

    def __repr__(self) -> str:
        return f"Job(key={self.key!r}, seq={self.seq}, attempt={self.attempt}, {STATES[self._stage]})"


class AsyncJob(Job):
    """The Job of an async handler: the same, but `run` is awaited."""

    __slots__ = ()

    async def run(self, work: Callable[[Any], T]) -> T:  # type: ignore[override]
        """See Job.run; `work` is a plain function, and runs in a worker thread."""
        from anyio.to_thread import run_sync  # anyio costs as much to import as all of strictq

        return await run_sync(super().run, work)


class HeldLane:
    """A lease and its jobs that are not over."""

    __slots__ = ("alive", "free_at", "grown", "jobs", "lease", "length", "propagate", "selected", "until")

    def __init__(self, lease: Lease, until: float, length: float, propagate: Sequence[str] = ()) -> None:
        self.lease = lease
        self.propagate = propagate
        self.jobs: deque[Job] = deque()
        self.until = until
        self.length = length
        self.alive = True
        self.selected = False
        self.free_at = 0.0
        self.grown: Any = None


@attrs.define(eq=False)
class JobBatch:
    """Messages that one call of a handler is given.

    Attributes:
        jobs: of each lane in order.
        starting: lanes whose start is not committed yet.
        taken: a handler has it.
    """

    jobs: list[Job]
    starting: set[HeldLane] = attrs.Factory(set)
    taken: bool = False

    @property
    def live(self) -> list[Job]:
        """Those whose lane is still held."""
        return [job for job in self.jobs if job._lane.alive and STARTING <= job._stage < OVER]

    def before(self, job: Job) -> Iterator[Job]:
        """Those of its lane that come before a job and have not failed, the last one first."""
        same = [other for other in self.jobs if other._lane is job._lane and other.seq < job.seq and other._failure is None]
        return reversed(same)

    @property
    def given_up(self) -> bool:
        """No message of it is waited for."""
        return all(job._cancelled for job in self.jobs)
