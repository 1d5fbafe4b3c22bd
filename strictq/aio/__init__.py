"""The queue, awaited: asyncio and trio through anyio.

There is one core, the sync Queue; here its verbs run in worker threads. Only waiting is different: a waiting receive holds
no thread. Cancelling a call that is at work waits for it to finish; a cancelled receive gives back what it leased.
"""

from .batch import AsyncBatch
from .delivery import AsyncDelivery, AsyncDeliveryRef, AsyncLease
from .queue import AsyncQueue
from .transaction import AsyncTransaction

__all__ = ["AsyncBatch", "AsyncDelivery", "AsyncDeliveryRef", "AsyncLease", "AsyncQueue", "AsyncTransaction"]
