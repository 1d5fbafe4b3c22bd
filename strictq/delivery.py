"""Deliveries and leases: messages in the hands of a consumer."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from . import _hints as hints
from ._client import Client
from ._errors import InvalidArgument, LeaseLost
from ._keys import Key
from ._leased import OPEN, LeaseState, MessageState, Origin
from ._store.api import Fields, Held, Row, decode_headers
from ._types import body_as_json
from .handle import Handle

if TYPE_CHECKING:
    from ._findings import AttemptError

TRACEBACK_CHARS_MAX: Final = 8000


class Lease(LeaseState):
    """Exclusive, timed hold of one lane by one consumer. All deliveries of the lane from one receive share it."""

    __slots__ = ("_client",)

    def __init__(self, client: Client, origin: Origin, held: Held, seconds: int) -> None:
        rows = held.rows
        self._client = client
        self._origin = origin
        self._held = held
        self._deadline = held.deadline
        self._seconds = seconds
        self._lo = Fields.seq(rows[0])
        self._hi = Fields.seq(rows[-1])
        self._open = len(rows)
        self._started = self._hi if self._open == 1 and origin.charge else self._lo - 1

    @property
    def expires_in(self) -> float:
        """Seconds until the deadline, as far as this process knows; negative when it is over."""
        return (self._deadline - self._client.settling.now()) / 1_000_000

    def extend(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now, for everything the lease holds.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        Source: docs/explanation/leases.md
        """
        self._client.settling.extend([self], seconds)

    def more(self, n: int = 10) -> list[Delivery]:
        """Grow the lease over up to `n` later messages of the lane that arrived meanwhile, under the same token.

        Returns:
            0..n deliveries, seq ascending; none past a delayed, held or expired message.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        Source: docs/explanation/leases.md
        """
        return [Delivery(row, self) for row in self._client.settling.more(self, n)]

    def release(self) -> None:
        """Give everything back that is not resolved, unused: nobody is charged an attempt.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        """
        self._client.settling.release(self, self._lo)

    def __repr__(self) -> str:
        return f"Lease(key={self.key!r}, token={self.token}, expires_in={self.expires_in:.1f})"


class Delivery(MessageState):
    """A message in the hands of a consumer, valid while its lease is.

    As a context manager it is started on entry, acked on success and nacked on an exception, which goes on:

        with d:
            handle(d.body)

    Attributes:
        lease: the hold on its lane, shared with the other deliveries of the lane.
    """

    __slots__ = ("_row",)

    lease: Lease

    def __init__(self, row: Row, lease: Lease) -> None:
        self._row = row
        self.lease = lease
        self._state = OPEN
        self._next = None

    @property
    def seq(self) -> int:
        """Position in its key's sequence."""
        return Fields.seq(self._row)

    @property
    def id(self) -> int:
        """Arrival number within its shard."""
        return Fields.id(self._row)

    @property
    def body(self) -> bytes:
        """The content."""
        return Fields.body(self._row)

    @property
    def headers(self) -> dict[str, str]:
        """As sent."""
        text = Fields.headers(self._row)
        return decode_headers(text, self.lease.shard) if text else {}

    @property
    def attempt(self) -> int:
        """Which start of a handler this is, or would be: 1 for the first."""
        return Fields.starts(self._row) + 1

    @property
    def enqueued_at(self) -> float:
        """When it was sent, seconds since 1970."""
        return self.lease._client.settling.to_wall(Fields.sent_at(self._row))

    @property
    def size_hint(self) -> float | None:
        """As sent."""
        return Fields.size_hint(self._row)

    @property
    def prepare_seconds(self) -> float | None:
        """As sent; else what the queue's configuration says of every message; None: it says nothing."""
        sent = Fields.prepare_seconds(self._row)
        return self.lease._client.storage.config.prepare_seconds if sent is None else sent

    @property
    def process_seconds(self) -> float | None:
        """As sent; else what the queue's configuration says of every message; None: it says nothing."""
        sent = Fields.process_seconds(self._row)
        return self.lease._client.storage.config.process_seconds if sent is None else sent

    @property
    def _sent_seconds(self) -> tuple[float | None, float | None]:
        """What the message itself says of prepare and process."""
        return Fields.prepare_seconds(self._row), Fields.process_seconds(self._row)

    @property
    def shard(self) -> int:
        """The shard it lies in."""
        return self.lease.shard

    @property
    def handle(self) -> str:
        """A str that names this delivery: `q.delivery(handle)` settles it from any process, after a restart, too."""
        held = self.lease._held
        return str(Handle(self.lease._client.storage.queue_id, held.token, self.seq, held.key))

    @property
    def key_state(self) -> bytes | None:
        """The durable state of its key, read now. Exact only inside a transaction: there use tx.key_state."""
        return self.lease._client.settling.key_state(self.lease._held.key)

    @property
    def errors(self) -> tuple[AttemptError, ...]:
        """The errors of its last five attempts that failed, oldest first, read now. An attempt whose holder died left none."""
        return self.lease._client.settling.errors(self)

    @property
    def last_error(self) -> AttemptError | None:
        """Why the attempt before failed, read now; None: no attempt did, or its holder died."""
        return next(reversed(self.errors), None)

    def json(self) -> Any:
        """The body, decoded as JSON.

        Raises:
            InvalidBody: it is not JSON.
        """
        return body_as_json(self.body, self.key, self.seq)

    def start(self) -> None:
        """A handler of this message starts now: charge the attempt, durably, before it can do anything.

        Nothing to do, and no transaction, where it is charged already: a message that is alone in its lease is at hand-out.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        """
        self.lease._client.settling.start(self)

    def ack(self) -> None:
        """Done: it is never handed out again.

        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
            OutcomeUnknown: it may have happened; ack again.
        """
        self.lease._client.settling.ack_and_start_next(self)

    def nack(self, delay: float | None = None, reason: str | None = None, *, output: str | None = None) -> None:
        """Give it back, and everything later that the lease holds; it is tried again before anything later.

        Args:
            delay: seconds the lane waits; None: the queue's retry delay and backoff.
            reason: kept, and shown by status and explain.
            output: what the handler said, kept and shown by status.
        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
        """
        self.lease._client.settling.nack([self], delay, reason, output)

    def defer(self, delay_seconds: float) -> None:
        """Postpone it, and everything later that the lease holds, without charging an attempt.

        For a rate limit, an outage, or work that is not due yet. Its lane waits; no later message of its key goes first. A
        start that was charged is taken back, so the next delivery has the same `attempt`; the last error stays.

        Args:
            delay_seconds: 0.0 or more seconds that the lane waits.
        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
            OutcomeUnknown: it may have happened; defer again.
        """
        self.lease._client.settling.defer([self], delay_seconds)

    def reject(self, reason: str, *, output: str | None = None) -> None:
        """Dead-letter it now; the lane goes on with the next message.

        Args:
            reason: kept with the dead letter.
            output: what the handler said, kept and shown by status.
        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
        """
        self.lease._client.settling.reject(self, reason, output)

    def extend(self, seconds: float) -> None:
        """Move the deadline of its lane's whole lease to `seconds` from now.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        """
        self.lease._client.settling.extend([self.lease], seconds)

    def done(self) -> None:
        """For ack_first: this message's handler is through; after the last one of the lease, the lane is free.

        Raises:
            InvalidArgument: it was not received with ack_first=True.
            LeaseLost: the lane was retaken; nothing changed.
        """
        if not self.lease.ack_first:
            raise InvalidArgument("done() is for receive(ack_first=True)", hint=hints.USE_ACK)
        self.lease._client.settling.done(self)

    def __enter__(self) -> Delivery:
        if not self.lease.ack_first:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state != OPEN:
            return  # settled inside the block
        if self.lease.ack_first:
            self.done()
        elif error is None:
            self.ack()
        else:
            with suppress(LeaseLost):  # then the lane is somebody else's; the exception that goes on says more
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.lease._client.settling.nack([self], None, describe(error), None, traceback_of(error))

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument("a Delivery can't be pickled or copied: its lease is this process's", hint=hints.SHARE_HANDLE)

    def __repr__(self) -> str:
        return f"Delivery(key={self.key!r}, seq={self.seq}, attempt={self.attempt}, token={self.token})"


class MessageView:
    """What a delivery says of its message, said again by what stands around one: Job and AsyncDelivery."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def key(self) -> Key | None:
        """As sent; None for a keyless message."""
        return self._delivery.key

    @property
    def seq(self) -> int:
        """Position in its key's sequence."""
        return self._delivery.seq

    @property
    def id(self) -> int:
        """Arrival number within its shard."""
        return self._delivery.id

    @property
    def body(self) -> bytes:
        """The content."""
        return self._delivery.body

    @property
    def headers(self) -> dict[str, str]:
        """As sent."""
        return self._delivery.headers

    @property
    def attempt(self) -> int:
        """Which start of a handler this is, or would be: 1 for the first."""
        return self._delivery.attempt

    @property
    def enqueued_at(self) -> float:
        """When it was sent, seconds since 1970."""
        return self._delivery.enqueued_at

    @property
    def size_hint(self) -> float | None:
        """As sent."""
        return self._delivery.size_hint

    @property
    def prepare_seconds(self) -> float | None:
        """As sent; else what the queue's configuration says of every message; None: it says nothing."""
        return self._delivery.prepare_seconds

    @property
    def process_seconds(self) -> float | None:
        """As sent; else what the queue's configuration says of every message; None: it says nothing."""
        return self._delivery.process_seconds

    @property
    def token(self) -> int:
        """The fencing token to give to systems outside, so that they can refuse a late holder."""
        return self._delivery.token

    @property
    def shard(self) -> int:
        """The shard it lies in."""
        return self._delivery.shard

    @property
    def handle(self) -> str:
        """A str that names this delivery: `q.delivery(handle)` settles it from any process, after a restart, too."""
        return self._delivery.handle

    def json(self) -> Any:
        """The body, decoded as JSON."""
        return self._delivery.json()


def traceback_of(error: BaseException) -> str:
    """The end of a traceback, as text that every log can take, whatever the error says."""
    import traceback  # only what failed needs it

    text = "".join(traceback.format_exception(error)).rstrip("\n")
    return text[-TRACEBACK_CHARS_MAX:].encode("utf-8", "backslashreplace").decode()


def describe(error: BaseException) -> str:
    """An exception as a reason: its type and text."""
    try:
        text = str(error)
    except Exception:  # it is somebody else's class: what fails must not fail because of how it tells it
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
