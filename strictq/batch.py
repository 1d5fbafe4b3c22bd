"""What one receive returned: a list of deliveries that gives back the rest."""

from __future__ import annotations

from types import TracebackType

from .delivery import Delivery, describe


class Batch(list[Delivery]):
    """The deliveries of one receive, in order: a list, and a context manager that leaves none of them in flight.

        with q.receive() as batch:
            for d in batch:
                with d:
                    handle(d.body)

    When the block ends, however it ends, every delivery that it did not settle is given back. One that was started (`with d`,
    `d.start()`, a transaction on it) is nacked, and so is tried again before anything later of its key. The others are released
    and no attempt is charged. Leases that were lost meanwhile are left alone, and a delivery that can't be given back is
    received again when its lease ends. Without the block, what is not settled stays in flight until then.
    """

    __slots__ = ("_received",)

    _received: tuple[Delivery, ...]

    def __enter__(self) -> Batch:
        self._received = tuple(self)  # the program may take deliveries out of the list as it goes
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        give_back(self._received, error)


def give_back(received: tuple[Delivery, ...], error: BaseException | None) -> None:
    """Give back those that are not settled, at the end of a block that received them.

    Args:
        error: what the block raised; None: nothing. It is the reason of the nacks.
    """
    if received:
        reason = "not settled when its batch ended" if error is None else describe(error)
        received[0].lease._client.settling.give_back_rest(received, reason)
