"""Durable batches of a named consumer, on which Spark's stream source is built. The code calls them hand-outs.

Each has a number and spans all shards. The transactions that lease its messages record it. It is delivered again,
unchanged, until it is acked. Its leases have no deadline.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from . import _validate as validate
from ._errors import ConsumerBusy, ForkedProcess, HandoutGone, InvalidArgument, StoreError
from ._parallel import AT_ONCE
from ._store.api import Allowance, Encode, Holding, Known, Part, Want

if TYPE_CHECKING:
    from .queue import Queue

HANDOUT_MESSAGES_MAX: Final = 1_000_000
HANDOUT_BYTES: Final = 256 * 1024 * 1024
KEEP: Final = 100
PART_MESSAGES: Final = 5_000
"""Messages of a shard's part of a batch, if more shards have messages than are written to at a time."""
LOCK_SECONDS: Final = 10
"""Seconds that a new holder waits for the lock, which a stopping process may still hold."""


class Holder:
    """The one holder of a named consumer. Use it in one thread; close it when done.

    Args:
        queue: open for writing.
        consumer: 1 to 256 characters.
        encode: packs the leased messages. It runs inside the write transaction, so it must be quick. If it raises, the batch
            is rolled back.
        keep: number of acked batches that stay readable.
        packed: encode also accepts leases whose messages are stored by column.
    """

    def __init__(self, queue: Queue, consumer: str, encode: Encode, *, keep: int = KEEP, packed: bool = False) -> None:
        self._storage = queue._storage
        self._handouts = queue._storage.handouts
        self.name = validate.name("consumer", consumer)
        self.encode = encode
        self._packed = packed
        self.keep = validate.whole("keep", keep, 0, 1_000_000)
        self._lock = self._handouts.lock(consumer)
        self._pid = os.getpid()
        self.epoch = 0
        self._known: dict[int, Known] | None = None
        """The state of each shard; None: read it again."""
        self._turn = -1
        """The last shard whose turn it was: the next batch begins with the one behind it."""

    # ---- holding the consumer

    def attach(self, wait: float = LOCK_SECONDS) -> None:
        """Become the holder: fence the previous one, and finish its partial work. A repeated call does nothing.

        Raises:
            ConsumerBusy: a running process is the holder; nothing was changed.
            StoreError: a shard can't be reached.
        """
        if self.epoch:
            return
        self._storage.require_open()
        if not self._lock.alone(wait):
            raise ConsumerBusy(f"consumer {self.name!r} is in use by a running process")
        try:
            self.epoch = self._handouts.take_over(self.name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the consumer. Its unacked batches stay leased for the next holder."""
        self.epoch = 0
        self._known = None
        self._lock.leave()

    # ---- numbers

    @property
    def acked(self) -> int:
        """The number up to which batches are acked or released: the start of a consumer without its own checkpoint."""
        return max(k.acked for k in self._look().values())

    @property
    def last(self) -> int:
        """The number of the newest batch; 0 if there is none."""
        return max(k.last for k in self._look().values())

    def _look(self) -> dict[int, Known]:
        if self._pid != os.getpid():
            raise ForkedProcess("a named consumer can't be held across a fork")
        if not self.epoch:
            raise InvalidArgument("attach first")
        if self._known is None:
            self._known = self._handouts.known(self.name)
        return self._known

    def arrived(self) -> dict[int, int]:
        """Return the newest arrival number of each shard, as a bound for `take`."""
        return self._handouts.arrived()

    def pending(self, start: int, *, every: bool = False) -> int | None:
        """Return about how many messages `take` could lease after `start`; None: it has nothing to lease or to ack.

        Args:
            every: count all unresolved messages, also in shards where none is ready.
        """
        found = self._handouts.pending(self.name, self._look(), start, every=every)
        return sum(found.values()) if found else None

    # ---- leasing and acknowledging

    def take(
        self,
        start: int,
        *,
        messages_max: int = 100_000,
        bytes_max: int = HANDOUT_BYTES,
        arrived: Mapping[int, int] | None = None,
    ) -> int:
        """Ack every batch up to `start`, then lease and record the next one.

        If batch start + 1 is recorded, even in part, it is returned unchanged. Otherwise the oldest ready messages are leased and
        recorded, in one transaction per shard; durable on return.

        Args:
            start: the number of the last processed batch.
            messages_max: 1..1,000,000.
            bytes_max: approximate size; a larger message is a batch of its own.
            arrived: only messages up to these arrival numbers.
        Returns:
            start + 1; or start if no message is ready, and nothing was written.
        Raises:
            HandoutGone: start is not a batch of this queue, or batch start + 1 is no longer kept; nothing was changed.
            ConsumerLost: another holder took over; nothing was changed.
            StoreError: a shard failed; nothing was leased.
            OutcomeUnknown, or StoreError of a sync: a part may be recorded; the next call syncs and returns it.
        """
        validate.whole("messages_max", messages_max, 1, HANDOUT_MESSAGES_MAX)
        validate.whole("bytes_max", bytes_max, 1, 2**62)
        self._storage.require_open()
        last = self.last
        if not 0 <= start <= last:
            raise HandoutGone(f"consumer {self.name!r} of this queue has {last} batches, fewer than {start}")
        if start < last:
            self._parts(start + 1, sync=True)
            self._ack(start)
            return start + 1
        pending = self._handouts.pending(self.name, self._look(), start, every=arrived is not None)
        left = Allowance(messages_max, bytes_max)
        failed: StoreError | None = None
        for ready in self._by_turn(pending, messages_max):
            if messages_max >= 2 * len(ready):
                ready.sort(key=pending.__getitem__)  # with less room than that, the shards take turns
            while ready:
                # Shards with at least an even share are advanced in parallel. Shards with less go first, one by one, so that
                # the rest of their share goes to the others.
                even = left.messages // len(ready)
                n = len(ready) if left.full or 2 <= even <= pending[ready[0]] else 1
                failed = self._advance(start, _wants(ready, n, left, arrived), left) or failed
                ready = ready[n:]
        if failed is not None and not left.taken:
            raise failed
        return start + 1 if left.taken else start

    def _by_turn(self, pending: Mapping[int, int], messages_max: int) -> list[list[int]]:
        """Divide the shards into those that give messages first, and those that give some if there is room left.

        A shard's part costs a transaction and a sync, however small it is. So a batch that cannot hold all messages has parts of
        few shards, and the shards take turns.
        """
        most = max(AT_ONCE, messages_max // PART_MESSAGES)
        ready = list(pending)
        if len(ready) <= most:
            return [ready]
        ready.sort(key=lambda shard: (shard <= self._turn, shard))
        totals = accumulate(pending[shard] for shard in ready)
        n = next((n for n, total in enumerate(totals, 1) if n >= most and total >= messages_max), len(ready))
        self._turn = ready[n - 1]
        return [ready[:n], ready[n:]]

    def ack(self, upto: int) -> None:
        """Ack every batch up to a number. Write nothing if they are acked already.

        Raises:
            ConsumerLost: another holder took over; nothing was changed.
            StoreError: a shard failed; the others have acked.
        """
        self._storage.require_open()
        self._ack(min(upto, self.last))

    def _ack(self, upto: int) -> None:
        failed = self._advance(upto, dict.fromkeys(self._look()), Allowance(0, 0))
        if failed is not None:
            raise failed

    def _advance(self, start: int, wants: Mapping[int, Want | None], left: Allowance) -> StoreError | None:
        """Ack up to `start`, and add the shards' parts of batch start + 1. Return the error of a shard, if one failed."""
        known = self._look()
        self._known = None  # if this raises, the changes may have been committed
        by = Holding(self.name, self.epoch, self.encode, self._packed, self.keep)
        done = self._handouts.advance(by, known, start, wants, left)
        if done.failed is None:
            self._known = {**known, **done.known}
        return done.failed

    # ---- recorded batches

    def parts(self, n: int) -> list[Part]:
        """Return the blocks of a batch, shard by shard and in order.

        Raises:
            HandoutGone: the batch is no longer kept, was released, or never existed.
        """
        return self._parts(n, sync=False)

    def _parts(self, n: int, *, sync: bool) -> list[Part]:
        known = self._look().values()
        if n <= max(k.floor for k in known):
            raise HandoutGone(
                f"batch {n} of consumer {self.name!r} is no longer kept: the last acked one is {self.acked}, "
                f"and {self.keep} before it are kept"
            )
        found = self._handouts.parts(self.name, n, sync=sync)
        if not found:
            raise HandoutGone(f"consumer {self.name!r} of this queue has no batch {n}")
        return found


def _wants(ready: list[int], n: int, left: Allowance, arrived: Mapping[int, int] | None) -> dict[int, Want | None]:
    """Return the limits of the first n ready shards, an even share of the remaining allowance each; None: nothing remains."""
    wants: dict[int, Want | None] = {}
    for i, shard in enumerate(ready[:n]):
        messages = (left.messages + len(ready) - 1 - i) // len(ready)
        size = -(-left.bytes // len(ready))
        some = messages > 0 and not left.full
        wants[shard] = Want(messages, size, None if arrived is None else arrived[shard]) if some else None
    return wants


def read_block(queue: Queue, consumer: str, n: int, shard: int, part: int) -> bytes:
    """Return one recorded block, read in a short read transaction. The caller need not be the holder.

    Raises:
        HandoutGone: the batch is no longer kept.
    """
    data = queue._storage.handouts.block(consumer, n, shard, part)
    if data is None:
        raise HandoutGone(f"batch {n} of consumer {consumer!r} is no longer kept")
    return data


def rejected(queue: Queue, consumer: str, n: int, shard: int) -> list[int]:
    """Return the arrival numbers to leave out of a shard's part of a batch, because they were dead-lettered."""
    return queue._storage.handouts.rejected(consumer, n, shard)
