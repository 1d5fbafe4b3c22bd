"""What a consumer holds, as far as this process knows: the states of leases and of messages. delivery.py adds their verbs."""

from __future__ import annotations

from typing import Final

from ._keys import Key, decode_key
from ._store.api import Held, Storage, Took

# States of a message, as far as this process knows. All but OPEN are settled.
OPEN, ACKED, NACKED, DEFERRED, REJECTED, DONE = range(6)
SETTLED_AS: Final = {ACKED: "acked", NACKED: "nacked", DEFERRED: "deferred", REJECTED: "rejected", DONE: "done"}
"""What became of a message, by its state."""


class Origin:
    """The receive that leases came from, in one shard: what all of them share."""

    __slots__ = ("ack_first", "charge", "consumer", "shard", "storage")

    def __init__(self, storage: Storage, shard: int, consumer: str, *, ack_first: bool = False, charge: bool = True) -> None:
        self.storage = storage
        self.shard = shard
        self.consumer = consumer
        self.ack_first = ack_first
        self.charge = charge


class LeaseState:
    """Exclusive, timed hold of one lane."""

    __slots__ = ("_deadline", "_held", "_hi", "_lo", "_open", "_origin", "_seconds", "_started")

    _origin: Origin
    _held: Held
    _deadline: int
    _seconds: int
    """Its length, microseconds."""
    _lo: int
    _hi: int
    _open: int
    """Messages that are not settled, as far as this process knows; -1 or less: it does not know."""
    _started: int
    """The last message whose attempt is charged."""

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
        return self._origin.consumer

    @property
    def shard(self) -> int:
        """The shard the lane lies in."""
        return self._origin.shard

    @property
    def ack_first(self) -> bool:
        """Its messages were resolved on receive; only the lane is held."""
        return self._origin.ack_first

    def _given_back(self, seq: int) -> None:
        """This message and those behind it are nobody's now."""
        self._hi = min(self._hi, seq - 1)
        self._started = min(self._started, seq - 1)
        self._open = -1  # what is left is not all that was handed out


class MessageState:
    """A message of a lease, while it is held."""

    __slots__ = ("_begun", "_next", "_state", "_took", "lease")

    _begun: bool
    """The program started it: by `start`, or with a transaction; else not set. A charge at receive does not set it."""
    _took: Took
    """What a worker measured of its handler, where history is kept; else not set."""
    _next: MessageState | None
    """The message of the lease whose handler starts with the ack of this one."""
    _state: int
    lease: LeaseState

    @property
    def seq(self) -> int:
        """Position in its key's sequence."""
        raise NotImplementedError

    @property
    def id(self) -> int:
        """The arrival number within its shard. Not known of a message that is only named."""
        raise NotImplementedError

    @property
    def key(self) -> Key | None:
        """As sent; None for a keyless message."""
        return decode_key(self.lease._held.key)

    @property
    def token(self) -> int:
        """The fencing token to give to systems outside, so that they can refuse a late holder."""
        return self.lease._held.token


class NamedLease(LeaseState):
    """A lease of which one message is known by name: another process may have received it."""

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
        """Position in its key's sequence."""
        return self._seq
