"""The async Delivery, Lease, Batch and Transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from .._client.effects import Effects, Recording
from .._client.leased import OPEN
from .._platform.declared_once import mirrored
from .._platform.lazy import LazyList
from .._store.api import AppDatabase, TransactionName
from .._values.errors import LeaseLost
from .._values.keys import Key
from ..delivery import Batch, Delivery, Lease, MessageView
from ..handle import DeliveryRef
from ..transaction import Transaction
from .threads import Calls
from .twins import Twin, twin

if TYPE_CHECKING:
    from .._values.findings import AttemptError


class AsyncDelivery(MessageView, Twin):
    """A Delivery whose methods are awaited. `async with d:` acks it, or nacks it on an exception."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Calls, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._queue = queue

    def _behind(self) -> tuple[Calls, Delivery]:
        return self._queue, self._delivery

    @property
    def lease(self) -> AsyncLease:
        """The lease of its lane."""
        return AsyncLease(self._queue, self._delivery.lease)

    async def key_state(self) -> bytes | None:
        """Return the durable state of its key, read now."""
        return await self._queue._run(lambda: self._delivery.key_state)

    async def errors(self) -> tuple[AttemptError, ...]:
        """See Delivery.errors."""
        return await self._queue._run(lambda: self._delivery.errors)

    async def last_error(self) -> AttemptError | None:
        """See Delivery.last_error."""
        return await self._queue._run(lambda: self._delivery.last_error)

    start = twin(Delivery.start)
    ack = twin(Delivery.ack)
    nack = twin(Delivery.nack)
    defer = twin(Delivery.defer)
    reject = twin(Delivery.reject)
    extend = twin(Delivery.extend)
    done = twin(Delivery.done)

    async def __aenter__(self) -> AsyncDelivery:
        if not self._delivery.lease.ack_first:
            await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._delivery._state != OPEN:
            return
        # Also if the block was cancelled, because the message must still be settled.
        surely = self._queue._run_surely
        if self._delivery.lease.ack_first:
            await surely(self._delivery.done)
        elif error is None:
            await surely(self._delivery.ack)
        else:
            with suppress(LeaseLost):
                await surely(self._delivery._fail, error)

    def __repr__(self) -> str:
        return f"Async{self._delivery!r}"


class AsyncLease(Twin):
    """A Lease whose methods are awaited."""

    __slots__ = ("_lease", "_queue")

    def __init__(self, queue: Calls, lease: Lease) -> None:
        self._queue = queue
        self._lease = lease

    def _behind(self) -> tuple[Calls, Lease]:
        return self._queue, self._lease

    key: Final[Key | None] = mirrored(Lease, "_lease")
    token: Final[int] = mirrored(Lease, "_lease")
    consumer: Final[str] = mirrored(Lease, "_lease")
    shard: Final[int] = mirrored(Lease, "_lease")
    ack_first: Final[bool] = mirrored(Lease, "_lease")
    expires_in: Final[float] = mirrored(Lease, "_lease")
    extend = twin(Lease.extend)

    async def more(self, n: int = 10) -> list[AsyncDelivery]:
        """See Lease.more."""
        return [AsyncDelivery(self._queue, d) for d in await self._queue._run(self._lease.more, n)]

    release = twin(Lease.release)


class AsyncDeliveryRef(Twin):
    """A DeliveryRef whose methods are awaited. Get one from `q.delivery(handle)`."""

    __slots__ = ("_delivery", "_queue")

    def __init__(self, queue: Calls, ref: DeliveryRef) -> None:
        self._queue = queue
        self._delivery = ref

    def _behind(self) -> tuple[Calls, DeliveryRef]:
        return self._queue, self._delivery

    handle: Final[str] = mirrored(DeliveryRef, "_delivery")
    key: Final[Key | None] = mirrored(DeliveryRef, "_delivery")
    seq: Final[int] = mirrored(DeliveryRef, "_delivery")
    token: Final[int] = mirrored(DeliveryRef, "_delivery")
    ack = twin(DeliveryRef.ack)
    nack = twin(DeliveryRef.nack)
    reject = twin(DeliveryRef.reject)
    defer = twin(DeliveryRef.defer)
    release = twin(DeliveryRef.release)
    extend = twin(DeliveryRef.extend)

    def __repr__(self) -> str:
        return f"Async{self._delivery!r}"


class AsyncBatch(LazyList[AsyncDelivery]):
    """A Batch to use as `async with await q.receive() as batch`. If cancelled, it returns the unsettled messages first.

    Attributes:
        received: the sync batch behind it.
    """

    __slots__ = ("_made", "_queue", "received")

    def __init__(self, queue: Calls, received: Batch) -> None:
        self._elements = None
        self._queue = queue
        self.received = received
        self._made: list[AsyncDelivery] = []

    def _count(self) -> int:
        return len(self.received)

    def _make(self) -> list[AsyncDelivery]:
        self._made = [AsyncDelivery(self._queue, d) for d in self.received]
        return self._made.copy()

    def whole(self) -> Batch | None:
        """Return the sync batch if nothing was removed from this list; otherwise None."""
        return self.received if self._elements is None or self._elements == self._made else None

    async def __aenter__(self) -> AsyncBatch:
        self.received.enter(None if self._elements is None else [d._delivery for d in self._elements])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.received:
            await self._queue._run_surely(self.received.give_back, error)


T = TypeVar("T")


class AsyncTransaction(Recording):
    """A Transaction to use with `async with`. Its reads are awaited; send and execute are recorded and not awaited."""

    def __init__(self, queue: Calls, make: Callable[[], Transaction]) -> None:
        self._queue = queue
        self._make = make
        self._tx: Transaction | None = None

    async def __aenter__(self) -> AsyncTransaction:
        # Its calls run in several threads, so the transaction, not the thread, holds the shard.
        self._name = TransactionName()
        self._tx = self._make()
        self._tx.__enter__()  # the last call, because an interrupt can follow any other one
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self._queue._run_inside_surely(self._inside.__exit__, kind, error, trace)
        finally:
            self._name.end()

    @property
    def _inside(self) -> Transaction:
        assert self._tx is not None, "a transaction works inside its async with block only"
        return self._tx

    def _effects_for(self, verb: str) -> Effects:
        return self._inside._effects_for(verb)

    def output(self, text: str) -> None:
        """Record output of the handler. See Transaction.output."""
        self._inside.output(text)

    async def run(self, work: Callable[[AppDatabase], T]) -> T:
        """Run a plain function in the transaction, in a worker thread. See Transaction.run."""
        return await self._queue._run_inside(self._inside.run, work)

    async def get_key_state(self) -> bytes | None:
        """Return the durable state of the key."""
        return await self._queue._run_inside(lambda: self._inside.key_state)

    def set_key_state(self, value: bytes | None) -> None:
        """Set the durable state of the key when the block ends."""
        self._inside.key_state = value
