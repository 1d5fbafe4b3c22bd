"""A loop that shares the queue's shards with the other live consumers."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn

from ._client.client import cannot_share
from ._client.consumers import join
from ._client.receiving import leased_ahead
from .delivery import Delivery

if TYPE_CHECKING:
    from ._client.client import Client
    from ._client.receiving import Receiving
    from .delivery import Batch


class Consumer:
    """A live consumer, returned by `q.join`: one loop that receives mainly from its own shards. Use it as a context manager.

    It is live while its loop calls `receive` or iterates `consume`. One that has not done so for a second is slow: others take
    messages of its shards meanwhile. One whose process died is gone within a second. Use it in one thread at a time.

    Attributes:
        name: as shown by `q.consumers()` and `explain`.
    """

    def __init__(self, client: Client, receiving: Receiving[Batch], affinity: str | None, name: str | None) -> None:
        self._client = client
        self._receiving = receiving
        client.storage.require_open()
        self._live = join(client.storage, "loop", name, affinity)
        self.name = self._live.described.name

    @property
    def affinity(self) -> str:
        """ "prefer", "own" or "none"."""
        return self._live.described.affinity

    @property
    def shards(self) -> frozenset[int]:
        """The numbers of its own shards, by the last look at the other consumers."""
        return self._live.own

    def receive(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = 0.0,
        lease_seconds: float | None = None,
        ack_first: bool = False,
        charge: Literal["started", "all"] = "started",
    ) -> Batch:
        """Lease the oldest ready messages of the shards from which this consumer takes messages now.

        Arguments, results and errors are those of `Queue.receive`.
        """
        receiving = self._receiving
        request = receiving.request(max_messages, per_key, lease_seconds, None, self.name, ack_first=ack_first, charge=charge)
        deliveries = receiving.batch(request)
        try:
            receiving.receive_into(deliveries, request, wait, self._live)
        except BaseException:
            self._client.settling.release_rest(deliveries)
            raise
        return deliveries

    def consume(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = None,
        lease_seconds: float | None = None,
        ack_first: bool = False,
    ) -> Iterator[Delivery]:
        """Receive repeatedly and yield the deliveries one by one. Arguments and behaviour are those of `Queue.consume`."""
        receiving = self._receiving
        ahead = leased_ahead(max_messages, ack_first=ack_first)
        request = receiving.request(ahead, per_key, lease_seconds, None, self.name, ack_first=ack_first, starts=True)
        yield from receiving.consume(request, wait, self._live)

    def leave(self) -> None:
        """Stop being a live consumer. Others take over its shards. What it leased stays leased. Leaving twice does nothing."""
        self._live.end()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()

    def __reduce__(self) -> NoReturn:
        raise cannot_share(self)
