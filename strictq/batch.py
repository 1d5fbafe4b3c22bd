"""The result of a receive: deliveries that are built on first use, and released or nacked if they are not settled."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any, Final

from ._client.client import Client
from ._client.leased import ACKED, Origin
from ._platform.lazy import LazyList
from ._store.api import Claimed, Request
from .delivery import Delivery, Lease, describe

_STATE: Final = attrgetter("_state")


class Batch(LazyList[Delivery]):
    """The deliveries of one receive, in order: a sequence, and a context manager that leaves no message in flight.

    It has all methods of a list: deliveries may be removed or sorted. `list(batch)` returns a plain list.

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

    __slots__ = ("_acked", "_client", "_entered", "_leased", "_leases", "_made", "_request")

    def __init__(self, client: Client, request: Request, leased: Sequence[Claimed] = ()) -> None:
        self._elements = None
        self._client = client
        self._request = request
        self._leased = leased
        """The claims, shard by shard."""
        self._made: list[Delivery] | None = None
        """Every delivery, including those that the program removed from the list; None: not built yet."""
        self._leases: list[Lease] = []
        """The leases of the deliveries, in the order of the claims."""
        self._acked = False
        """The whole batch was acked before its deliveries were built."""
        self._entered: tuple[Delivery, ...] | None = None

    def fill(self, leased: Sequence[Claimed]) -> None:
        """Set the claims. A receive calls this before its caller has the batch."""
        self._leased = leased

    def tokens(self) -> set[tuple[int, int]]:
        """Return the shards and tokens of the batch's leases."""
        return {(claimed.shard, claimed.token) for claimed in self._leased}

    def _count(self) -> int:
        return sum([claimed.messages for claimed in self._leased])

    def _make(self) -> list[Delivery]:
        client, request = self._client, self._request
        made: list[Delivery] = []
        leases: list[Lease] = []
        for claimed in self._leased:
            origin = Origin(
                client.storage, claimed.shard, request.consumer, ack_first=request.ack_first, charge=request.charge,
                charge_all=request.charge_all,
            )  # fmt: skip
            for held in claimed.leases:
                lease = Lease(client, origin, held, claimed.lease)
                leases.append(lease)
                for row in held.rows:
                    made.append(Delivery(row, lease))  # noqa: PERF401 - a list for each lane would be slower
        self._leases, self._made = leases, made
        if self._acked:
            self._note_acks()
        return made.copy()

    def _note_acks(self) -> None:
        """Mark every delivery as acked."""
        for d in self._made or ():
            d._state = ACKED
        for lease in self._leases:
            lease._open = 0

    # ---- settled whole

    def ack_whole(self, client: Client) -> bool:
        """Ack the whole batch at once, if it is unchanged since the receive and belongs to this queue. Return False if not.

        Raises:
            PartialFailure, StoreError: as `Queue.ack_many`.
        """
        if self._client is not client or not self._is_whole():
            return False
        outcomes = client.settling.ack_claims(self._leased)
        if any(outcomes):
            self._note_losses(outcomes)
            return True
        self._acked = True
        if self._made is not None:  # another thread may have built them meanwhile
            self._note_acks()
        return True

    def _is_whole(self) -> bool:
        """Return whether nothing is settled, removed from the list, or added to a lease. A released lease is not open."""
        if self._acked or self._request.ack_first or not self._leased:
            return False
        if self._elements is None:
            return True
        if self._elements != self._made or any(map(_STATE, self._made)):
            return False
        return all(lease._open == lease._hi - lease._lo + 1 == len(lease._held.rows) for lease in self._leases)

    def _note_losses(self, outcomes: Sequence[Any]) -> None:
        """Mark each delivery with its lease's outcome, and raise the errors of lost leases and failed shards."""
        given = list(self)
        trouble: dict[Any, Any] = {}
        leases = iter(self._leases)
        for claimed, outcome in zip(self._leased, outcomes, strict=True):
            for n, _ in enumerate(claimed.leases):
                lease = next(leases)
                trouble[lease] = outcome[n] if isinstance(outcome, list) and outcome else outcome
        self._client.settling.end_ack(given, trouble)

    # ---- as a block

    def __enter__(self) -> Batch:
        self.enter(self._elements)
        return self

    def enter(self, deliveries: Sequence[Delivery] | None) -> None:
        """Begin the block. Deliveries removed from the list before are not returned at its end; those removed later are.

        Args:
            deliveries: the deliveries in the list; None: all of them.
        """
        self._entered = None if deliveries is None else tuple(deliveries)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_back(error)

    def give_back(self, error: BaseException | None) -> None:
        """Return every unsettled delivery at the end of the block.

        Args:
            error: the exception of the block, or None. It is the reason of the nacks.
        """
        if self._leased and not (self._acked and self._elements is None):
            reason = "not settled when its batch ended" if error is None else describe(error)
            entered = self._entered
            if entered is None:
                entered = tuple(self._list if self._made is None else self._made)
            self._client.settling.give_back_rest(entered, reason)
