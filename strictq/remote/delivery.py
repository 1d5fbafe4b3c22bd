"""Messages that an endpoint delivered, and their lanes: what a worker sees instead of a local queue's deliveries and leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from .._platform.clock import MICROSECONDS
from .._values.errors import LeaseLost
from .._values.types import body_as_json
from ..worker.job import Reject
from . import mapping
from .queue import UNSEEN, needs_local

if TYPE_CHECKING:
    from .._values.keys import Key

# States of a message. SETTLING: its delete, or its return, was handed over and is not confirmed.
OPEN, SETTLING, GONE, LOST = range(4)
TOKEN_RECEIVES: Final = 1024
"""The token of a message is its sequence number times this, plus its receives, so it ascends with each holder of the group."""

# Where a lane is. WAITING: it was received, and the worker has not taken it. HELD: it was postponed.
WAITING, TAKEN, HELD = range(3)

# What is done to messages, and ASK: one more receive.
ACK: Final = "ack"
RETURN: Final = "return"
RENEW: Final = "renew"
DROP: Final = "drop"
BURY: Final = "bury"
ASK: Final = "ask"
Purpose = Literal["ack", "return", "renew", "drop", "bury", "ask"]


class LaneName:
    """The name of a lane, as a worker tells lanes apart."""

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        self.key = key


class RemoteLane:
    """The messages of one group that one receive returned, in the order of the answer. Of a standard queue, one message.

    Attributes:
        group: the message group; of a standard queue, the message's id.
        place: WAITING, TAKEN or HELD.
        due: for HELD, when it is handed out again, seconds of the boot clock.
        asked: for HELD, whether a handler asked for the delay. Otherwise it ends when a breaker closes.
        worker_lane: the worker's lane, whose `until` is kept up to date; None: the worker did not ask for an extension yet.
    """

    __slots__ = ("_first", "_held", "_length", "_margin", "asked", "deliveries", "due", "group", "place", "worker_lane")

    shard: Final = 0
    ack_first: Final = False

    def __init__(self, group: str, length: int, margin: float) -> None:
        self.group = group
        self.deliveries: list[RemoteDelivery] = []
        self._first: RemoteDelivery | None = None
        self.place = WAITING
        self.due = 0.0
        self.asked = False
        self.worker_lane: Any = None
        self._length = length
        self._margin = margin
        self._held = LaneName(group.encode("utf-8", "surrogatepass"))

    def add(self, d: RemoteDelivery) -> None:
        """Add a message that came with it."""
        self.deliveries.append(d)
        self._first = self._first or d
        d.lease = self

    @property
    def first(self) -> RemoteDelivery:
        """The message that it began with."""
        assert self._first is not None
        return self._first

    @property
    def key(self) -> Key | None:
        """The key of its messages."""
        return self.first.key

    @property
    def token(self) -> int:
        """The token of its first message."""
        return self.first.token

    @property
    def open(self) -> list[RemoteDelivery]:
        """The messages that are not settled."""
        return [d for d in self.deliveries if d.state == OPEN]

    @property
    def held(self) -> Sequence[RemoteDelivery]:
        """The messages that are hidden from other consumers for this one: the open ones, and those that are being deleted."""
        return [d for d in self.deliveries if d.state in (OPEN, SETTLING)]

    @property
    def until(self) -> float:
        """When the first hidden message may become visible to others, seconds of the boot clock."""
        return min((d.until for d in self.deliveries if d.state in (OPEN, SETTLING)), default=0.0)

    @property
    def _deadline(self) -> int:
        """When no handler starts any more, microseconds of the boot clock."""
        return int((self.until - self._margin) * MICROSECONDS)

    @property
    def _seconds(self) -> int:
        """The length of an extension, microseconds."""
        return self._length * MICROSECONDS

    @property
    def _open(self) -> int:
        """0: it cannot grow. SQS returns no message behind a hidden one of its group."""
        return 0


class RemoteDelivery:
    """A message that the endpoint delivered, with the attributes of a Delivery that a Job shows.

    Attributes:
        lease: the lane that it was received with.
        seq: this process's running number of received messages.
        attempt: how often the endpoint delivered it, this time included. Receives count, not starts of handlers.
        sequence_number: 20 digits that ascend within a group; None on a standard queue.
        attributes: the message as boto3 returned it.
        until: when it may become visible to other consumers, seconds of the boot clock. The endpoint's own timer is not earlier.
        received: the start of the request that received it.
        returned: when its handler returned; None: it did not yet.
        settling, renewing: what is being done to it.
    """

    __slots__ = (
        "_content", "attempt", "attributes", "handle", "lease", "received", "renewing", "returned", "seq", "sequence_number",
        "settling", "state", "until",
    )  # fmt: skip

    shard: Final = 0
    prepare_seconds: Final = None
    process_seconds: Final = None
    errors: Final = ()
    last_error: Final = None
    _sent_seconds: Final = (None, None)
    _is_suspect: Final = False

    lease: RemoteLane

    def __init__(self, message: Mapping[str, Any], seq: int, received: float, until: float) -> None:
        system = message.get("Attributes") or {}
        self.attributes = message
        self.seq = seq
        self.handle = str(message.get("ReceiptHandle", ""))
        self.sequence_number: str | None = system.get("SequenceNumber")
        self.attempt = max(1, number(system.get("ApproximateReceiveCount"), 1))
        self.received = received
        self.until = until
        self.returned: float | None = None
        self.state = OPEN
        self.settling: Operation | None = None
        self.renewing: Operation | None = None
        self._content: mapping.Decoded | mapping.Undecodable | None = None

    @property
    def id(self) -> int:
        """The same number as `seq`."""
        return self.seq

    @property
    def message_id(self) -> str:
        """The id that the endpoint gave the message."""
        return str(self.attributes.get("MessageId", ""))

    @property
    def system(self) -> Mapping[str, str]:
        """The attributes that the endpoint added."""
        return self.attributes.get("Attributes") or {}

    @property
    def token(self) -> int:
        """A number that ascends within a group with each holder, for external systems. It may exceed 64 bits. 0: none."""
        place = number(self.sequence_number, 0)
        return place * TOKEN_RECEIVES + min(self.attempt, TOKEN_RECEIVES - 1) if place else 0

    def _decoded(self) -> mapping.Decoded | mapping.Undecodable:
        if self._content is None:
            try:
                self._content = mapping.received(self.attributes)
            except mapping.Undecodable as e:
                self._content = e
        return self._content

    def _readable(self) -> mapping.Decoded:
        """Return the content.

        Raises:
            Reject: it cannot be decoded. Raised in the handler that reads it, which so dead-letters the message.
        """
        content = self._decoded()
        if isinstance(content, mapping.Undecodable):
            raise Reject(f"the message cannot be decoded: {content}")
        return content

    @property
    def key(self) -> Key | None:
        """The key that was sent, else the message group; None on a standard queue."""
        content = self._decoded()
        return self.system.get("MessageGroupId") if isinstance(content, mapping.Undecodable) else content.key

    @property
    def body(self) -> bytes:
        """The content. Raises Reject if it cannot be decoded."""
        return self._readable().body

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were sent, else the text attributes. Raises Reject if they cannot be decoded."""
        return self._readable().headers

    @property
    def source(self) -> str | None:
        """The id of the local queue that it was forwarded from; None: it was sent directly."""
        content = self._decoded()
        return None if isinstance(content, mapping.Undecodable) else content.source

    @property
    def source_seq(self) -> int | None:
        """Its seq in that queue."""
        content = self._decoded()
        return None if isinstance(content, mapping.Undecodable) else content.source_seq

    @property
    def expires_at(self) -> float | None:
        """When its time to live is over, seconds since 1970; None: never."""
        if mapping.TTL not in (self.attributes.get("MessageAttributes") or {}):
            return None
        content = self._decoded()
        return None if isinstance(content, mapping.Undecodable) else content.expires_at

    @property
    def dedup_id(self) -> str | None:
        """The deduplication id."""
        return self.system.get("MessageDeduplicationId")

    @property
    def enqueued_at(self) -> float:
        """When the endpoint stored it, seconds since 1970."""
        return number(self.system.get("SentTimestamp"), 0) / 1000

    @property
    def size_hint(self) -> float:
        """The size of the body as it was transferred."""
        return float(len(self.attributes.get("Body", "")))

    @property
    def key_state(self) -> bytes | None:
        """Raise: SQS keeps none."""
        raise needs_local("key_state", UNSEEN)

    def json(self) -> Any:
        """Return the body decoded as JSON.

        Raises:
            InvalidBody: it is not JSON.
        """
        return body_as_json(self.body, self.key, self.seq)

    def later(self) -> Sequence[RemoteDelivery]:
        """Return it and the later messages of its lane that are open."""
        lane = self.lease.deliveries
        return [d for d in lane[lane.index(self) :] if d.state == OPEN]

    def lost(self, why: str) -> LeaseLost:
        """Return the error of a lost message."""
        return LeaseLost(self.key, self.seq, self.token, why)

    def __repr__(self) -> str:
        return f"RemoteDelivery(key={self.key!r}, seq={self.seq}, attempt={self.attempt})"


class Operation:
    """Something to do to a message.

    Attributes:
        seconds: for RETURN and RENEW, for how long the message stays hidden.
        born: when it was handed over.
        due: when it is tried.
        tries: failures so far.
        flying: whether a request is under way.
        void: nothing is to be done any more.
        reason: for BURY, why.
    """

    __slots__ = ("born", "delivery", "due", "flying", "purpose", "reason", "seconds", "tries", "void")

    def __init__(self, purpose: Purpose, delivery: RemoteDelivery | None, now: float, seconds: int = 0, reason: str = "") -> None:
        self.purpose = purpose
        self.delivery = delivery
        self.seconds = seconds
        self.reason = reason
        self.born = self.due = now
        self.tries = 0
        self.flying = self.void = False

    @property
    def message(self) -> RemoteDelivery:
        """Its message. ASK has none."""
        assert self.delivery is not None
        return self.delivery


def number(text: Any, default: int) -> int:
    """Return a number of the endpoint's; the default if it is none."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 40 else default
