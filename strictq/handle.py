"""A handle: a str that identifies a delivery, and settles it in another process or after a restart."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Iterable
from typing import Final, NamedTuple

from ._client.leased import LeaseState, MessageState, NamedLease
from ._client.settling import Settling, listed, not_ours
from ._values import hints
from ._values.errors import InvalidArgument, StrictqError
from ._values.keys import KEY_BYTES_MAX, Key, decode_key

_HANDLE: Final = re.compile(r"sq1\.([0-9a-f]{16})\.([0-9]{1,19})\.([0-9]{1,19})\.([A-Za-z0-9_-]+={0,2})")
"""Format 1: the first 16 digits of the queue's id, token, seq, and the stored key."""
_NUMBER_MAX: Final = 2**62
_ASIDE_BYTES: Final = 32
"""Upper bound of the bytes that a keyless message's own lane adds to a key."""


class Handle(NamedTuple):
    """The parts of a handle.

    Attributes:
        key: the key, in its stored form.
    """

    queue_id: str
    token: int
    seq: int
    key: bytes

    def __str__(self) -> str:
        return f"sq1.{self.queue_id[:16]}.{self.token}.{self.seq}.{urlsafe_b64encode(self.key).decode()}"

    @classmethod
    def parse(cls, handle: object, queue_id: str) -> Handle:
        """Read a handle of this queue.

        Raises:
            InvalidArgument: the str is not a handle of this queue.
        """
        match = _HANDLE.fullmatch(handle) if isinstance(handle, str) else None
        if match is None:
            raise InvalidArgument("this is not a handle of a delivery", hint=hints.GIVE_HANDLE)
        short, token, seq = match[1], int(match[2]), int(match[3])
        if short != queue_id[:16]:
            raise InvalidArgument("this handle belongs to another queue", hint=hints.OPEN_ITS_QUEUE)
        try:
            key = urlsafe_b64decode(match[4])
            decode_key(key)
        except (Error, StrictqError):
            key = b""
        if not 1 < len(key) <= KEY_BYTES_MAX + _ASIDE_BYTES or not 0 < token < _NUMBER_MAX or not 0 < seq < _NUMBER_MAX:
            raise InvalidArgument("this is not a handle of a delivery", hint=hints.GIVE_HANDLE)
        return cls(queue_id, token, seq, key)


class DeliveryRef:
    """A delivery identified by its handle, returned by `q.delivery(handle)`.

    It has the methods that settle and extend, but not the message. They raise LeaseLost if the lane was released, or taken by
    another consumer. A late call succeeds if no other consumer has taken the lane.

    Attributes:
        handle: as given.
        key: the message's key; None for a keyless message.
        seq: its position in its key's sequence.
        token: the fencing token.
    """

    __slots__ = ("_parts", "_settling", "handle", "key", "seq", "token")

    def __init__(self, settling: Settling, handle: str) -> None:
        self._settling = settling
        self._parts = parts = Handle.parse(handle, settling.queue_id)
        self.handle = handle
        self.key: Key | None = decode_key(parts.key)
        self.seq = parts.seq
        self.token = parts.token

    def ack(self, *, output: str | None = None) -> None:
        """Resolve the message. After this returns, it is never delivered again.

        Args:
            output: see Delivery.ack.
        Raises:
            LeaseLost: the lane was released or taken by another consumer, or the message is resolved; nothing was changed.
            OutcomeUnknown: the ack may have been committed; ack again.
        """
        if output is None:
            self._settling.ack([self._message()])
        else:
            self._settling.ack_with_output(self._message(), output)

    def nack(self, delay: float | None = None, reason: str | None = None, *, output: str | None = None) -> None:
        """Return the message, and every later message of its lease. See Delivery.nack."""
        self._settling.nack([self._message()], delay, reason, output)

    def reject(self, reason: str, *, output: str | None = None) -> None:
        """Dead-letter the message now. The lane continues with the next message. See Delivery.reject."""
        self._settling.reject(self._message(), reason, output)

    def defer(self, delay_seconds: float, reason: str | None = None) -> None:
        """Postpone the message, and every later message of its lease, without charging an attempt. See Delivery.defer."""
        self._settling.defer([self._message()], delay_seconds, reason)

    def release(self) -> None:
        """Return the message, and every later message of its lease. No attempt is charged, and no delay begins.

        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        """
        self._settling.release(self._message().lease, self.seq)

    def extend(self, seconds: float, *, late: bool = True) -> None:
        """Set the deadline of its lane's lease to `seconds` from now. See Delivery.extend."""
        self._settling.extend([self._message().lease], seconds, late=late)

    def _message(self) -> MessageState:
        """Return a new state for each call. The storage knows the message's actual state."""
        return self._settling.named(self._parts.key, self._parts.token, self.seq)

    def _message_in(self, leases: dict[tuple[bytes, int], LeaseState]) -> MessageState:
        """Return a new state for a call that settles several messages. What is of one lease shares the state of the lease."""
        message = self._message()
        lease = leases.setdefault((self._parts.key, self.token), message.lease)
        if isinstance(lease, NamedLease):
            lease._lo, lease._hi = min(lease._lo, self.seq), max(lease._hi, self.seq)
        elif not lease.ack_first:
            lease._open = -1  # a Delivery of this message, if there is one, does not learn that it is settled
        message.lease = lease
        return message

    def __repr__(self) -> str:
        return f"DeliveryRef(key={self.key!r}, seq={self.seq}, token={self.token})"


def states(settling: Settling, given: Iterable[MessageState | DeliveryRef]) -> list[MessageState]:
    """Return the states of deliveries, some of which may be identified by their handles, in order.

    Raises:
        InvalidArgument: the argument is not iterable, or a handle was given to another queue object.
    """
    found = listed(given)
    if DeliveryRef not in set(map(type, found)):
        return found  # type: ignore[return-value]
    if any(isinstance(d, DeliveryRef) and d._settling is not settling for d in found):
        raise not_ours()  # tokens of different queues may be equal
    leases = {(d.lease._held.key, d.token): d.lease for d in found if isinstance(d, MessageState)}
    return [d._message_in(leases) if isinstance(d, DeliveryRef) else d for d in found]
