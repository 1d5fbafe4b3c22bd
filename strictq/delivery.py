"""Deliveries and leases: messages in the hands of a consumer."""

from __future__ import annotations

import json
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._errors import InvalidArgument, LeaseLost
from ._keys import Key, decode_key
from ._store import handed
from ._store.stored import headers as stored_headers

if TYPE_CHECKING:
    from ._settling import Settling

# States of a delivery, as far as this process knows.
OPEN, SETTLED = 0, 1


class Call:
    """The receive that a lease came from: what all its leases share."""

    __slots__ = ("ack_first", "charge", "consumer", "queue", "shard")

    def __init__(self, queue: Settling, shard: int, consumer: str, ack_first: bool, charge: bool = True) -> None:
        self.queue = queue
        self.shard = shard
        self.consumer = consumer
        self.ack_first = ack_first
        self.charge = charge


class Lease:
    """Exclusive, timed hold of one lane by one consumer. All deliveries of the lane from one receive share it."""

    __slots__ = ("_call", "_deadline", "_held", "_hi", "_lo", "_open", "_seconds", "_started")

    def __init__(self, call: Call, held: handed.Held, seconds: int) -> None:
        rows = held.rows
        self._call = call
        self._held = held
        self._deadline = held.deadline
        self._seconds = seconds
        self._lo: int = rows[0][handed.SEQ]
        self._hi: int = rows[-1][handed.SEQ]
        self._open = len(rows)  # deliveries that are not settled, as far as this process knows
        self._started = self._hi if self._open == 1 and call.charge else self._lo - 1

    @property
    def key(self) -> Key | None:
        """The lane's key; None for keyless messages."""
        return decode_key(self._held.key)

    @property
    def token(self) -> int:
        """The fencing token, strictly increasing per key for ever."""
        return self._held.token

    @property
    def consumer(self) -> str:
        """Who holds it."""
        return self._call.consumer

    @property
    def shard(self) -> int:
        """The shard the lane lies in."""
        return self._call.shard

    @property
    def ack_first(self) -> bool:
        """Its messages were resolved on receive; only the lane is held."""
        return self._call.ack_first

    @property
    def _queue(self) -> Settling:
        return self._call.queue

    def _given_back(self, seq: int) -> None:
        """This message and those behind it are nobody's now."""
        self._hi = min(self._hi, seq - 1)
        self._started = min(self._started, seq - 1)
        self._open = -1  # what is left is not all that was handed out

    def _batch(self, seqs: list[int], start: int | None = None) -> handed.Batch:
        """Some of its messages, as the store takes them."""
        held = self._held
        return handed.Batch(held.lane, held.key, held.token, seqs, start=start)

    @property
    def expires_in(self) -> float:
        """Seconds until the deadline, as far as this process knows; negative when it is over."""
        return (self._deadline - self._queue._now()) / 1_000_000

    def extend(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now, for everything the lease holds.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        Source: docs/explanation/leases.md
        """
        self._queue._extend([self], seconds)

    def more(self, n: int = 10) -> list[Delivery]:
        """Grow the lease over up to `n` later messages of the lane that arrived meanwhile, under the same token.

        Returns:
            0..n deliveries, seq ascending; none past a delayed, held or expired message.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        Source: docs/explanation/leases.md
        """
        return self._queue._more(self, n)

    def release(self) -> None:
        """Give everything back that is not resolved, unused: nobody is charged an attempt.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        """
        self._queue._release(self, self._lo)

    def __repr__(self) -> str:
        return f"Lease(key={self.key!r}, token={self.token}, expires_in={self.expires_in:.1f})"


class Delivery:
    """A message in the hands of a consumer, valid while its lease is.

    As a context manager it is started on entry, acked on success and nacked on an exception, which goes on:

        with d:
            handle(d.body)

    Attributes:
        lease: the hold on its lane, shared with the other deliveries of the lane.
    """

    __slots__ = ("_next", "_row", "_state", "_took", "lease")

    _took: tuple[float | None, float]
    """Seconds that prepare (None: there was none) and process took, where a worker measured them; else not set."""

    def __init__(self, row: handed.Row, lease: Lease) -> None:
        self._row = row
        self.lease = lease
        self._state = OPEN
        self._next: Delivery | None = None

    @property
    def key(self) -> Key | None:
        """As sent; None for a keyless message."""
        return decode_key(self.lease._held.key)

    @property
    def seq(self) -> int:
        """Position in its key's sequence."""
        seq: int = self._row[handed.SEQ]
        return seq

    @property
    def id(self) -> int:
        """Arrival number within its shard."""
        arrival: int = self._row[handed.ID]
        return arrival

    @property
    def body(self) -> bytes:
        """The content."""
        body: bytes = self._row[handed.BODY]
        return body

    @property
    def headers(self) -> dict[str, str]:
        """As sent."""
        text = self._row[handed.HEADERS]
        return stored_headers(text, self.lease._call.shard) if text else {}

    @property
    def attempt(self) -> int:
        """Which start of a handler this is, or would be: 1 for the first."""
        attempts: int = self._row[handed.ATTEMPTS]
        return attempts + 1

    @property
    def enqueued_at(self) -> float:
        """When it was sent, seconds since 1970."""
        return self.lease._queue._to_wall(self._row[handed.SENT_AT])

    @property
    def size_hint(self) -> float | None:
        """As sent."""
        hint: float | None = self._row[handed.SIZE_HINT]
        return hint

    @property
    def prepare_seconds(self) -> float | None:
        """As sent."""
        seconds: float | None = self._row[handed.PREPARE]
        return seconds

    @property
    def process_seconds(self) -> float | None:
        """As sent."""
        seconds: float | None = self._row[handed.PROCESS]
        return seconds

    @property
    def token(self) -> int:
        """The fencing token to give to systems outside, so that they can refuse a late holder."""
        return self.lease.token

    @property
    def shard(self) -> int:
        """The shard it lies in."""
        return self.lease.shard

    @property
    def key_state(self) -> bytes | None:
        """The durable state of its key, read now. Exact only inside a transaction: there use tx.key_state."""
        return self.lease._queue._key_state(self.lease._held.key)

    def json(self) -> Any:
        """The body, decoded as JSON."""
        return json.loads(self.body)

    def start(self) -> None:
        """A handler of this message starts now: charge the attempt, durably, before it can do anything.

        Nothing to do, and no transaction, where it is charged already: a message that is alone in its lease is at hand-out.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        """
        self.lease._queue._start(self)

    def ack(self) -> None:
        """Done: it is never handed out again.

        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
            OutcomeUnknown: it may have happened; ack again.
        """
        self.lease._queue._ack_one(self)

    def nack(self, delay: float | None = None, reason: str | None = None, *, output: str | None = None) -> None:
        """Give it back, and everything later that the lease holds; it is tried again before anything later.

        Args:
            delay: seconds the lane waits; None: the queue's retry delay and backoff.
            reason: kept, and shown by status and explain.
            output: what the handler said, kept and shown by status.
        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
        """
        self.lease._queue._nack([self], delay, reason, output)

    def reject(self, reason: str, *, output: str | None = None) -> None:
        """Dead-letter it now; the lane goes on with the next message.

        Args:
            reason: kept with the dead letter.
            output: what the handler said, kept and shown by status.
        Raises:
            LeaseLost: the lane was given back or retaken, or this delivery is settled; nothing changed.
        """
        self.lease._queue._reject(self, reason, output)

    def extend(self, seconds: float) -> None:
        """Move the deadline of its lane's whole lease to `seconds` from now.

        Raises:
            LeaseLost: the lane was given back or retaken; nothing changed.
        """
        self.lease._queue._extend([self.lease], seconds)

    def done(self) -> None:
        """For ack_first: this message's handler is through; after the last one of the lease, the lane is free.

        Raises:
            InvalidArgument: it was not received with ack_first=True.
            LeaseLost: the lane was retaken; nothing changed.
        """
        if not self.lease.ack_first:
            raise InvalidArgument("done() is for receive(ack_first=True)", hint="use ack()")
        self.lease._queue._done(self)

    def __enter__(self) -> Delivery:
        if not self.lease.ack_first:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state == SETTLED:
            return  # settled inside the block
        if self.lease.ack_first:
            self.done()
        elif error is None:
            self.ack()
        else:
            with suppress(LeaseLost):  # then the lane is somebody else's; the exception that goes on says more
                self.nack(reason=describe(error))

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
        """As sent."""
        return self._delivery.prepare_seconds

    @property
    def process_seconds(self) -> float | None:
        """As sent."""
        return self._delivery.process_seconds

    @property
    def token(self) -> int:
        """The fencing token to give to systems outside, so that they can refuse a late holder."""
        return self._delivery.token

    @property
    def shard(self) -> int:
        """The shard it lies in."""
        return self._delivery.shard

    def json(self) -> Any:
        """The body, decoded as JSON."""
        return self._delivery.json()


def describe(error: BaseException) -> str:
    """An exception as a reason: its type and text."""
    try:
        text = str(error)
    except Exception:  # it is somebody else's class: what fails must not fail because of how it tells it
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
