"""Deliveries, leases and batches: messages that a consumer has received."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ._client.client import Client
from ._client.leased import ACKED, OPEN, LeaseState, MessageState, Origin
from ._platform.declared_once import mirrored
from ._platform.lazy import LazyList
from ._store.api import Claimed, Fields, Held, Request, Row, headers_of
from ._values import hints
from ._values.errors import InvalidArgument, LeaseLost
from ._values.keys import Key
from ._values.types import body_as_json
from .handle import Handle

if TYPE_CHECKING:
    from ._values.findings import AttemptError

TRACEBACK_CHARS_MAX: Final = 8000


class Lease(LeaseState):
    """The exclusive, timed hold of one lane by one consumer. All deliveries of the lane from one receive share it."""

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
        self._started = self._hi if origin.charge_all or (self._open == 1 and origin.charge) else self._lo - 1

    @property
    def expires_in(self) -> float:
        """Seconds until the deadline, as far as this process knows; negative after it."""
        return (self._deadline - self._client.storage.now()) / 1_000_000

    def extend(self, seconds: float, *, late: bool = True) -> None:
        """Set the deadline to `seconds` from now, for every message of the lease.

        Args:
            late: also if the deadline has passed, and no other consumer has taken the lane since. False: raise LeaseLost then.
        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        Source: docs/explanation/leases.md
        """
        self._client.settling.extend([self], seconds, late=late)

    def more(self, n: int = 10) -> list[Delivery]:
        """Grow the lease over up to `n` later messages of the lane, under the same token and deadline.

        Returns:
            0..n deliveries, seq ascending. None beyond a delayed, held or expired message.
        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        Source: docs/explanation/leases.md
        """
        return [Delivery(row, self) for row in self._client.settling.more(self, n)]

    def release(self) -> None:
        """Return every unresolved message of the lease. No attempt is charged.

        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        """
        self._client.settling.release(self, self._lo)

    def __repr__(self) -> str:
        return f"Lease(key={self.key!r}, token={self.token}, expires_in={self.expires_in:.1f})"


class Delivery(MessageState):
    """A message that a consumer has received, valid while its lease is.

    As a context manager it starts the message on entry, and acks it at the end of the block. On an exception it nacks the
    message; the exception propagates.

    Attributes:
        lease: the lease of its lane, shared with the other deliveries of the lane.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"paid", key="order-1")
        >>> (d,) = q.receive()
        >>> d.key, d.seq, d.attempt, d.body
        ('order-1', 1, 1, b'paid')
        >>> with d:
        ...     pass  # process it; the end of the block acks it
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
        """The position in its key's sequence, from 1."""
        return Fields.seq(self._row)

    @property
    def id(self) -> int:
        """The arrival number within its shard."""
        return Fields.id(self._row)

    @property
    def body(self) -> bytes:
        """The content."""
        return Fields.body(self._row)

    @property
    def headers(self) -> dict[str, str]:
        """The headers, as sent."""
        text = Fields.headers(self._row)
        return headers_of(text, self.lease.shard) if text else {}

    @property
    def dedup_id(self) -> str | None:
        """The dedup id, as sent; of `strictq.CONTENT_HASH`, the hash. Kept as long as the message. None: it has none.

        Messages that an older version stored have none, nor do messages that a merge sent again after their windows had ended.
        """
        return Fields.dedup_id(self._row)

    @property
    def attempt(self) -> int:
        """The number of this start of a handler, from 1."""
        return Fields.starts(self._row) + 1

    @property
    def _sent_at(self) -> int:
        """The stored time of its send, microseconds of the queue's time. It never changes."""
        return Fields.sent_at(self._row)

    @property
    def _expires_at(self) -> int | None:
        """When its TTL ends, microseconds of the queue's time; None: it has none."""
        return Fields.expires_at(self._row)

    @property
    def _is_suspect(self) -> bool:
        return Fields.is_suspect(self._row)

    @property
    def enqueued_at(self) -> float:
        """The time of the send, in seconds since 1970."""
        return self.lease._client.storage.to_wall(Fields.sent_at(self._row))

    @property
    def size_hint(self) -> float | None:
        """The sender's size hint; None: none was sent."""
        return Fields.size_hint(self._row)

    @property
    def prepare_seconds(self) -> float | None:
        """The sender's estimate of the prepare stage, seconds; else the queue's setting; None: neither is set."""
        sent = Fields.prepare_seconds(self._row)
        return self.lease._client.storage.config.prepare_seconds if sent is None else sent

    @property
    def process_seconds(self) -> float | None:
        """The sender's estimate of the process stage, seconds; else the queue's setting; None: neither is set."""
        sent = Fields.process_seconds(self._row)
        return self.lease._client.storage.config.process_seconds if sent is None else sent

    @property
    def _sent_seconds(self) -> tuple[float | None, float | None]:
        """The sender's estimates of prepare and process, without the queue's settings."""
        return Fields.prepare_seconds(self._row), Fields.process_seconds(self._row)

    @property
    def shard(self) -> int:
        """The number of its shard."""
        return self.lease.shard

    @property
    def handle(self) -> str:
        """A str that identifies this delivery. `q.delivery(handle)` settles it from any process, also after a restart."""
        held = self.lease._held
        return str(Handle(self.lease._client.storage.queue_id, held.token, self.seq, held.key))

    @property
    def key_state(self) -> bytes | None:
        """The durable state of its key, read now. Inside a transaction, use tx.key_state, which cannot change."""
        return self.lease._client.settling.key_state(self.lease._held.key)

    @property
    def errors(self) -> tuple[AttemptError, ...]:
        """The errors of its last five failed attempts, oldest first, read now. An expired lease is one of them."""
        return self.lease._client.settling.errors(self)

    @property
    def last_error(self) -> AttemptError | None:
        """The error of the newest failed attempt, read now; None: none failed."""
        return next(reversed(self.errors), None)

    def json(self) -> Any:
        """Return the body decoded as JSON.

        Raises:
            InvalidBody: the body is not JSON.
        """
        return body_as_json(self.body, self.key, self.seq)

    def start(self) -> None:
        """Charge the attempt, durably, before the handler runs.

        Does nothing if the attempt is charged already: a message that is alone in its lease is charged at delivery.

        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        """
        self.lease._client.settling.start(self)

    def ack(self, *, output: str | None = None) -> None:
        """Resolve the message. After this returns, it is never delivered again.

        Args:
            output: kept for `q.output` for the queue's output_seconds, and stored with the record if the queue keeps history.
        Raises:
            InvalidArgument: output is not a str; nothing was changed.
            LeaseLost: the lane was released or taken by another consumer, or this delivery is settled; nothing was changed.
            OutcomeUnknown: the ack may have been committed; ack again.
        """
        if output is None:
            self.lease._client.settling.ack_and_start_next(self)
        else:
            self.lease._client.settling.ack_with_output(self, output)

    def nack(self, delay: float | None = None, reason: str | None = None, *, output: str | None = None) -> None:
        """Return the message, and every later message of its lease. It is retried before any later message of its key.

        Args:
            delay: seconds that the lane waits; None: the queue's retry delay and backoff.
            reason: stored, and shown by status and explain.
            output: the handler's output; stored, and shown by status.
        Raises:
            LeaseLost: the lane was released or taken by another consumer, or this delivery is settled; nothing was changed.
        """
        self.lease._client.settling.nack([self], delay, reason, output)

    def defer(self, delay_seconds: float, reason: str | None = None) -> None:
        """Postpone the message, and every later message of its lease, without charging an attempt.

        Use it for a rate limit, an outage, or work that is not due yet. The lane waits; no later message of its key overtakes.
        A charged start is taken back, so the next delivery has the same `attempt`.

        Args:
            delay_seconds: seconds that the lane waits, 0.0 or more.
            reason: stored, and shown by status and explain; None: the last error is kept.
        Raises:
            LeaseLost: the lane was released or taken by another consumer, or this delivery is settled; nothing was changed.
            OutcomeUnknown: the defer may have been committed; defer again.
        """
        self.lease._client.settling.defer([self], delay_seconds, reason)

    def reject(self, reason: str, *, output: str | None = None) -> None:
        """Dead-letter the message now. The lane continues with the next message.

        Args:
            reason: stored with the dead letter.
            output: the handler's output; stored, and shown by status.
        Raises:
            LeaseLost: the lane was released or taken by another consumer, or this delivery is settled; nothing was changed.
        """
        self.lease._client.settling.reject(self, reason, output)

    def extend(self, seconds: float, *, late: bool = True) -> None:
        """Set the deadline of its lane's lease to `seconds` from now. See Lease.extend.

        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        """
        self.lease._client.settling.extend([self.lease], seconds, late=late)

    def done(self) -> None:
        """With ack_first: report that this message's handler has finished. After the last one of the lease, the lane is free.

        Raises:
            InvalidArgument: it was not received with ack_first=True.
            LeaseLost: another consumer took the lane; nothing was changed.
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
            with suppress(LeaseLost):  # another consumer has the lane; the propagating exception is more informative
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.lease._client.settling.nack([self], None, describe(error), None, traceback_of(error))

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument("a Delivery can't be pickled or copied: its lease belongs to this process", hint=hints.SHARE_HANDLE)

    def __repr__(self) -> str:
        return f"Delivery(key={self.key!r}, seq={self.seq}, attempt={self.attempt}, token={self.token})"


class MessageView:
    """The properties of a delivery's message, for the classes that wrap one: Job and AsyncDelivery."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    key: Final[Key | None] = mirrored(Delivery, "_delivery")
    seq: Final[int] = mirrored(Delivery, "_delivery")
    id: Final[int] = mirrored(Delivery, "_delivery")
    body: Final[bytes] = mirrored(Delivery, "_delivery")
    headers: Final[dict[str, str]] = mirrored(Delivery, "_delivery")
    dedup_id: Final[str | None] = mirrored(Delivery, "_delivery")
    attempt: Final[int] = mirrored(Delivery, "_delivery")
    enqueued_at: Final[float] = mirrored(Delivery, "_delivery")
    size_hint: Final[float | None] = mirrored(Delivery, "_delivery")
    prepare_seconds: Final[float | None] = mirrored(Delivery, "_delivery")
    process_seconds: Final[float | None] = mirrored(Delivery, "_delivery")
    token: Final[int] = mirrored(Delivery, "_delivery")
    shard: Final[int] = mirrored(Delivery, "_delivery")
    handle: Final[str] = mirrored(Delivery, "_delivery")

    def json(self) -> Any:
        """Return the body decoded as JSON."""
        return self._delivery.json()


def traceback_of(error: BaseException) -> str:
    """Return the last 8,000 characters of a traceback, with everything that is not valid UTF-8 escaped."""
    import traceback  # imported only when a handler failed

    text = "".join(traceback.format_exception(error)).rstrip("\n")
    return text[-TRACEBACK_CHARS_MAX:].encode("utf-8", "backslashreplace").decode()


def describe(error: BaseException) -> str:
    """Return an exception as a reason: its type and text."""
    try:
        text = str(error)
    except Exception:  # a third-party exception class may fail in __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_STATE: Final = attrgetter("_state")


class Batch(LazyList[Delivery]):
    """The deliveries of one receive, in order: a sequence, and a context manager that leaves no message in flight.

    It has all methods of a list: deliveries may be removed or sorted. `list(batch)` returns a plain list.

    The end of the block returns every delivery that is not settled. Started deliveries (`with d`, `d.start()`, a transaction)
    are nacked, and retried before any later message of their key. The others are released, with no attempt charged. Lost leases
    are ignored. A delivery that cannot be returned is delivered again when its lease ends. Without the block, unsettled
    messages stay in flight until then.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"", key="a"), q.send(b"", key="a")
        >>> with q.receive() as batch:
        ...     batch[0].ack()
        >>> q.peek("a")[0].state  # the second message was released
        'ready'
    """

    __slots__ = ("_acked", "_client", "_entered", "_leased", "_leases", "_made", "_request")

    def __init__(self, client: Client, request: Request, leased: Sequence[Claimed] = ()) -> None:
        self._elements = None
        self._client = client
        self._request = request
        self._leased = leased
        """The claims, shard by shard."""
        self._made: list[Delivery] | None = None
        """Every delivery, including those that the program removed from the list; None: not built yet."""
        self._leases: list[Lease] = []
        """The leases of the deliveries, in the order of the claims."""
        self._acked = False
        """The whole batch was acked before its deliveries were built."""
        self._entered: tuple[Delivery, ...] | None = None

    def fill(self, leased: Sequence[Claimed]) -> None:
        """Set the claims. A receive calls this before its caller has the batch."""
        self._leased = leased

    def tokens(self) -> set[tuple[int, int]]:
        """Return the shards and tokens of the batch's leases."""
        return {(claimed.shard, claimed.token) for claimed in self._leased}

    def _count(self) -> int:
        return sum([claimed.messages for claimed in self._leased])

    def _make(self) -> list[Delivery]:
        client, request = self._client, self._request
        made: list[Delivery] = []
        leases: list[Lease] = []
        for claimed in self._leased:
            origin = Origin(
                client.storage, claimed.shard, request.consumer, ack_first=request.ack_first, charge=request.charge,
                charge_all=request.charge_all,
            )  # fmt: skip
            for held in claimed.leases:
                lease = Lease(client, origin, held, claimed.lease)
                leases.append(lease)
                for row in held.rows:
                    made.append(Delivery(row, lease))  # noqa: PERF401 - a list for each lane would be slower
        self._leases, self._made = leases, made
        if self._acked:
            self._note_acks()
        return made.copy()

    def _note_acks(self) -> None:
        """Mark every delivery as acked."""
        for d in self._made or ():
            d._state = ACKED
        for lease in self._leases:
            lease._open = 0

    # ---- settled whole

    def ack_whole(self, client: Client) -> bool:
        """Ack the whole batch at once, if it is unchanged since the receive and belongs to this queue. Return False if not.

        Raises:
            PartialFailure, StoreError: as `Queue.ack_many`.
        """
        if self._client is not client or not self._is_whole():
            return False
        outcomes = client.settling.ack_claims(self._leased)
        if any(outcomes):
            self._note_losses(outcomes)
            return True
        self._acked = True
        if self._made is not None:  # another thread may have built them meanwhile
            self._note_acks()
        return True

    def _is_whole(self) -> bool:
        """Return whether nothing is settled, removed from the list, or added to a lease. A released lease is not open."""
        if self._acked or self._request.ack_first or not self._leased:
            return False
        if self._elements is None:
            return True
        if self._elements != self._made or any(map(_STATE, self._made)):
            return False
        return all(lease._open == lease._hi - lease._lo + 1 == len(lease._held.rows) for lease in self._leases)

    def _note_losses(self, outcomes: Sequence[Any]) -> None:
        """Mark each delivery with its lease's outcome, and raise the errors of lost leases and failed shards."""
        given = list(self)
        trouble: dict[Any, Any] = {}
        leases = iter(self._leases)
        for claimed, outcome in zip(self._leased, outcomes, strict=True):
            for n, _ in enumerate(claimed.leases):
                lease = next(leases)
                trouble[lease] = outcome[n] if isinstance(outcome, list) and outcome else outcome
        self._client.settling.end_ack(given, trouble)

    # ---- as a block

    def __enter__(self) -> Batch:
        self.enter(self._elements)
        return self

    def enter(self, deliveries: Sequence[Delivery] | None) -> None:
        """Begin the block. Deliveries removed from the list before are not returned at its end; those removed later are.

        Args:
            deliveries: the deliveries in the list; None: all of them.
        """
        self._entered = None if deliveries is None else tuple(deliveries)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_back(error)

    def give_back(self, error: BaseException | None) -> None:
        """Return every unsettled delivery at the end of the block.

        Args:
            error: the exception of the block, or None. It is the reason of the nacks.
        """
        if self._leased and not (self._acked and self._elements is None):
            reason = "not settled when its batch ended" if error is None else describe(error)
            entered = self._entered
            if entered is None:
                entered = tuple(self._list if self._made is None else self._made)
            self._client.settling.give_back_rest(entered, reason)
