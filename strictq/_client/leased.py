"""The states of leases and messages, as far as this process knows. delivery.py adds the operations."""

from __future__ import annotations

from typing import Final

from .._store.api import Held, Storage, Took
from .._values.keys import Key, decode_key

# States of a message, as far as this process knows. All but OPEN are settled.
OPEN, ACKED, NACKED, DEFERRED, REJECTED, DONE = range(6)
SETTLED_AS: Final = {ACKED: "acked", NACKED: "nacked", DEFERRED: "deferred", REJECTED: "rejected", DONE: "done"}
"""The outcome of a message, by its state."""


class Origin:
    """The properties shared by all leases of one receive in one shard."""

    __slots__ = ("ack_first", "charge", "charge_all", "consumer", "shard", "storage")

    def __init__(
        self,
        storage: Storage,
        shard: int,
        consumer: str,
        *,
        ack_first: bool = False,
        charge: bool = True,
        charge_all: bool = False,
    ) -> None:
        self.storage = storage
        self.shard = shard
        self.consumer = consumer
        self.ack_first = ack_first
        self.charge = charge
        self.charge_all = charge_all


class LeaseState:
    """The exclusive, timed hold of one lane."""

    __slots__ = ("_deadline", "_held", "_hi", "_lo", "_open", "_origin", "_seconds", "_started")

    _origin: Origin
    _held: Held
    _deadline: int
    _seconds: int
    """The length of the lease, microseconds."""
    _lo: int
    _hi: int
    _open: int
    """The number of unsettled messages, as far as this process knows; negative: unknown."""
    _started: int
    """The seq of the last message whose attempt is charged."""

    @property
    def key(self) -> Key | None:
        """The lane's key; None for keyless messages."""
        return decode_key(self._held.key)

    @property
    def token(self) -> int:
        """The fencing token, strictly increasing per key for the life of the queue."""
        return self._held.token

    @property
    def consumer(self) -> str:
        """The name of the consumer that holds it."""
        return self._origin.consumer

    @property
    def shard(self) -> int:
        """The number of the lane's shard."""
        return self._origin.shard

    @property
    def ack_first(self) -> bool:
        """Whether the messages were resolved on receive, so that only the lane is held."""
        return self._origin.ack_first

    def _given_back(self, seq: int) -> None:
        """Mark this message and the later ones of the lease as returned to the lane."""
        self._hi = min(self._hi, seq - 1)
        self._started = min(self._started, seq - 1)
        self._open = -1  # the remaining messages are not all of those delivered


class MessageState:
    """A message of a lease, while the lease is held."""

    __slots__ = ("_begun", "_next", "_state", "_took", "lease")

    _begun: bool
    """True if the program started the message, by `start` or with a transaction; else unset.

    A charge at receive does not set it.
    """
    _took: Took
    """What a worker measured of its handler, and its output, if history or outputs are kept; else unset."""
    _next: MessageState | None
    """The next message of the lease, whose handler starts with the ack of this one."""
    _state: int
    lease: LeaseState

    @property
    def seq(self) -> int:
        """The position in its key's sequence, from 1."""
        raise NotImplementedError

    @property
    def id(self) -> int:
        """The arrival number within its shard. Unknown for a message identified by its handle."""
        raise NotImplementedError

    @property
    def key(self) -> Key | None:
        """The key, as sent; None for a keyless message."""
        return decode_key(self.lease._held.key)

    @property
    def token(self) -> int:
        """The fencing token. Pass it to external systems, so that they can refuse a late holder."""
        return self.lease._held.token


class NamedLease(LeaseState):
    """A lease of which one message is identified by its handle. Another process may have received it."""

    __slots__ = ()

    def __init__(self, origin: Origin, held: Held, seq: int) -> None:
        self._origin = origin
        self._held = held
        self._deadline = self._seconds = 0
        self._lo = self._hi = seq
        self._open = -1
        self._started = seq - 1


class NamedMessage(MessageState):
    """A message of which only the position is known."""

    __slots__ = ("_seq",)

    def __init__(self, lease: LeaseState, seq: int) -> None:
        self.lease = lease
        self._seq = seq
        self._state = OPEN
        self._next = None

    @property
    def seq(self) -> int:
        """The position in its key's sequence, from 1."""
        return self._seq
