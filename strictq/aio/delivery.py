"""The async Delivery and Lease."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final

from .._client.leased import OPEN
from .._platform.declared_once import mirrored
from .._values.errors import LeaseLost
from .._values.keys import Key
from ..delivery import Delivery, Lease, MessageView
from ..handle import DeliveryRef
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
