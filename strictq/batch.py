"""The result of a receive: a list of deliveries that returns the unsettled ones."""

from __future__ import annotations

from types import TracebackType

from .delivery import Delivery, describe


class Batch(list[Delivery]):
    """The deliveries of one receive, in order: a list, and a context manager that leaves no message in flight.

    The end of the block returns every delivery that is not settled. Started deliveries (`with d`, `d.start()`, a transaction)
    are nacked, and retried before any later message of their key. The others are released, with no attempt charged. Lost leases
    are ignored. A delivery that cannot be returned is delivered again when its lease ends. Without the block, unsettled
    messages stay in flight until then.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"", key="a"), q.send(b"", key="a")
        >>> with q.receive() as batch:
        ...     batch[0].ack()
        >>> q.peek("a")[0].state  # the second message was released
        'ready'
    """

    __slots__ = ("_received",)

    _received: tuple[Delivery, ...]

    def __enter__(self) -> Batch:
        self._received = tuple(self)  # the program may take deliveries out of the list as it goes
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        give_back(self._received, error)


def give_back(received: tuple[Delivery, ...], error: BaseException | None) -> None:
    """Return the deliveries that are not settled at the end of the block that received them.

    Args:
        error: the exception of the block, or None. It is the reason of the nacks.
    """
    if received:
        reason = "not settled when its batch ended" if error is None else describe(error)
        received[0].lease._client.settling.give_back_rest(received, reason)
