"""The inner API over the storage: what queues, deliveries, transactions, workers and the command do with messages."""

from __future__ import annotations

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
