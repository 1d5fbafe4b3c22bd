"""The inner API over the storage, shared by queues, deliveries, transactions, workers and the command."""

from __future__ import annotations

from typing import NoReturn

from .._store.api import Storage
from .._values import hints
from .._values.errors import InvalidArgument
from .sending import Sending
from .settling import Settling


class Client:
    """The operations on messages of one queue, for one object of this process.

    Receiving is in `receiving`, which is given the class of its batches. Their deliveries hold the client.

    Attributes:
        sending: checks and appends messages.
        settling: acks, nacks, defers, rejects, starts, extends, grows and releases, by delivery or by handle.
    """

    __slots__ = ("sending", "settling", "storage")

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.sending = Sending(storage)
        self.settling = Settling(storage)

    def __reduce__(self) -> NoReturn:
        raise cannot_share(self)


def cannot_share(what: object) -> InvalidArgument:
    """Return the error for pickling or copying a queue, or an object that belongs to one."""
    name = "what belongs to a queue" if isinstance(what, Client) else type(what).__name__
    return InvalidArgument(f"{name} can't be pickled or copied: the queue has files open", hint=hints.SEND_PATH)
