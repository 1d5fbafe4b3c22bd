"""The queue, awaited: asyncio and trio through anyio.

The sync Queue is the only core; here its methods run in worker threads. Only waiting is different: a waiting receive occupies
no thread. Cancelling a running call waits until it has finished. A cancelled receive releases what it leased.
"""

from .delivery import AsyncBatch, AsyncDelivery, AsyncDeliveryRef, AsyncLease, AsyncTransaction
from .queue import AsyncConsumer, AsyncQueue

__all__ = ["AsyncBatch", "AsyncConsumer", "AsyncDelivery", "AsyncDeliveryRef", "AsyncLease", "AsyncQueue", "AsyncTransaction"]
