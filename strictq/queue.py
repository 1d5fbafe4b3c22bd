"""The queue, sync; aio/ awaits the same verbs. Each role has a module of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from types import TracebackType

from ._config import QueueConfig
from ._errors import InvalidArgument
from ._keys import Key, encode_key
from ._operating import Operating
from ._receiving import Receiving
from ._sending import Sending
from ._store import Store, engine
from ._types import Event
from .delivery import Delivery
from .transaction import Transaction


class Queue(Sending, Receiving, Operating):
    """A durable queue with strict order per key. Get one from `strictq.open`; close it, or use it in a with block.

    One object serves any number of threads. Other objects and other processes may use the same directory at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = count(random.randrange(1 << 16))

    @property
    def path(self) -> str:
        """The directory, or ":memory:"."""
        return ":memory:" if self._store.directory is None else str(self._store.directory)

    @property
    def queue_id(self) -> str:
        """Names this queue for ever, wherever it is moved."""
        return self._store.catalog.queue_id

    @property
    def shards(self) -> int:
        """How many files the hash space is spread over."""
        return len(self._store.shards)

    @property
    def durability(self) -> str:
        """ "full" or "process": the level of this object."""
        return self._store.catalog.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last saw them."""
        return self._store.config

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call `hook(event)` for dead letters, poison, lost leases and quarantined shards, after they are committed."""
        if not callable(hook):
            raise InvalidArgument("an on_event hook must be callable")
        self._store.hooks.append(hook)

    def close(self) -> None:
        """Close every file. Leases stay until their deadline; closing twice does nothing.

        Raises:
            InvalidArgument: this thread is inside a transaction of the queue; nothing was closed.
        """
        self._store.close()

    def __enter__(self) -> Queue:
        self._store.require_open(writing=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<strictq.Queue {self.path!r} shards={self.shards} durability={self.durability!r}>"

    def transaction(self, delivery: Delivery | None = None, *, key: Key | None = None) -> Transaction:
        """One transaction, as a with block: when it ends, acks the delivery and applies everything done in it, or nothing.

        Args:
            delivery: the lowest unresolved message of its lease; it is acked with the rest.
            key: instead, without a delivery: the key whose state, and whose shard's app_* tables, are used.
        Returns:
            A context manager giving a Transaction.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            ForwardPending: committed; a send to another shard has yet to arrive there, and will.
            OutcomeUnknown: it may have happened; run it again with the same delivery: it happens once.
        Source: docs/explanation/outbox.md
        """
        self._store.require_open()
        if (delivery is None) == (key is None):
            raise InvalidArgument("transaction takes a delivery or a key")
        if delivery is not None:
            lease = self._own(delivery)
            if lease.ack_first:
                raise InvalidArgument("a delivery of ack_first is resolved already", hint="use transaction(key=...)")
            return Transaction(self, delivery, engine.shared_key(lease._held.key))
        return Transaction(self, None, encode_key(key))
