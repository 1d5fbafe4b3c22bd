"""The inner API over the storage: what queues, deliveries, transactions, workers and the command do with messages."""

from __future__ import annotations

from typing import NoReturn

from . import _hints as hints
from ._errors import InvalidArgument
from ._sending import Sending
from ._settling import Settling
from ._store.api import Storage


class Client:
    """One queue's messages, as one object of this process uses them. Whatever it received, it settles.

    Receiving stands above it, in `_receiving`, because it makes deliveries, which hold the client.

    Attributes:
        sending: checks and appends.
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
    """Return the error for a queue, or for what belongs to one, that is pickled or copied."""
    name = "what belongs to a queue" if isinstance(what, Client) else type(what).__name__
    return InvalidArgument(f"{name} can't be pickled or copied: the queue has files open", hint=hints.SEND_PATH)
