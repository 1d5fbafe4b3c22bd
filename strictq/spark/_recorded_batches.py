"""Durable batches of a named consumer, on which Spark's stream source is built.

Each has a number and spans all shards. The transactions that lease its messages record it. It is delivered again,
unchanged, until it is acked. Its leases have no deadline.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from .._client import validate
from .._platform.parallel import AT_ONCE
from .._store.api import Allowance, Block, Encode, Held, Holding, Known, PackedColumns, Part, Want
from .._values.errors import (
    ConsumerBusy,
    ConsumerLost,
    ForkedProcess,
    InvalidArgument,
    RecordedBatchGone,
    StoreError,
    StrictqError,
)

if TYPE_CHECKING:
    from ..queue import Queue

RECORDED_BATCH_MESSAGES_MAX: Final = 1_000_000
RECORDED_BATCH_BYTES: Final = 256 * 1024 * 1024
KEEP: Final = 100
PART_MESSAGES: Final = 5_000
"""Messages of a shard's part of a batch, if more shards have messages than are written to at a time."""
LOCK_SECONDS: Final = 10
"""Seconds that a new holder waits for the lock, which a stopping process may still hold."""
DEFERRED_MIN: Final = 5_000
"""Messages of a batch from which its ack is deferred. Acking fewer costs less than a transaction of its own."""
PAUSE_MAX: Final = 15
"""The most batches for which deferring is not tried, after it failed. Doubles each time."""


class Holder:
    """The one holder of a named consumer. Use it in one thread; close it when done.

    Args:
        queue: open for writing.
        consumer: 1 to 256 characters.
        encode: packs the leased messages. It runs inside the write transaction, so it must be quick. If it raises, the batch
            is rolled back.
        keep: number of acked batches that stay readable.
        packed: encode also accepts leases whose messages are stored by column.
        deferring: `take` may return before it has acked, and ack while the caller processes the next batch.
    """

    def __init__(
        self, queue: Queue, consumer: str, encode: Encode, *, keep: int = KEEP, packed: bool = False, deferring: bool = False
    ) -> None:
        self._storage = queue._storage
        self._recorded = queue._storage.recorded_batches
        self.name = validate.name("consumer", consumer)
        self.encode = encode
        self._packed = packed
        self.keep = validate.whole("keep", keep, 0, 1_000_000)
        self._lock = self._recorded.lock(consumer)
        self._pid = os.getpid()
        self.epoch = 0
        self._known: dict[int, Known] | None = None
        """The state of each shard; None: read it again."""
        self._turn = -1
        """The last shard whose turn it was: the next batch begins with the one behind it."""
        self._deferring = deferring
        self._deferred: _Deferred | None = None
        self._ahead: Allowance | None = None
        """What remains of the allowance of the newest batch, if the caller has not received it yet."""
        self._start = 0
        """The last batch that the caller has processed."""
        self._returned = 0
        """The last batch that the caller, or an earlier holder's caller, may have received."""
        self._taken = 0
        """The number of messages of the newest batch; 0: the next call must ack what is before it."""
        self._pause = self._paused = 0
        """The number of batches for which deferring is not tried, and how many of these are left."""

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
            epoch = self._recorded.take_over(self.name)
            self._known = self._recorded.joined(self.name, epoch, {})
            self._returned = max(k.last for k in self._known.values())
            self.epoch = epoch  # last: `close` undoes what was recorded since
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the consumer. Its unacked batches stay leased for the next holder, except those that no call returned."""
        self.wait()
        if self.epoch:
            with suppress(StrictqError):  # the next holder receives what remains
                for n in range(self.last, self._returned, -1):
                    self._recorded.withdraw(self.name, self.epoch, n)
        self._ahead = None
        self.epoch = 0
        self._known = None
        self._lock.leave()

    # ---- numbers

    @property
    def acked(self) -> int:
        """The number up to which batches are acked or released: the start of a consumer without its own checkpoint.

        A deferred ack counts after the next call that writes.
        """
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
        if self._known is None or len(self._known) < self._storage.shards:
            self._known = self._recorded.joined(self.name, self.epoch, self._known or {})
        return self._known

    def was_released(self, n: int) -> bool:
        """Return whether an operator released batch n, which no query receives again."""
        return any(n in known.released for known in self._look().values())

    def unprocessed(self) -> int:
        """Return the number of messages of recorded batches behind the last one that the caller has processed."""
        return self._recorded.recorded_behind(self.name, self._start)

    def arrived(self) -> dict[int, int]:
        """Return the newest arrival number of each shard, as a bound for `take`."""
        return self._recorded.arrived()

    def pending(self, start: int, *, every: bool = False) -> int | None:
        """Return about how many messages `take` could lease after `start`; None: it has nothing to lease or to ack.

        Args:
            every: count all unresolved messages, also in shards where none is ready.
        """
        self.wait()
        found = self._recorded.pending(self.name, self._look(), start, every=every)
        return sum(found.values()) if found else None

    # ---- leasing and acknowledging

    def take(
        self,
        start: int,
        *,
        messages_max: int = 100_000,
        bytes_max: int = RECORDED_BATCH_BYTES,
        arrived: Mapping[int, int] | None = None,
        ahead: bool = False,
    ) -> int:
        """Ack every batch up to `start`, then lease and record the next one.

        If batch start + 1 is recorded, even in part, it is returned unchanged. Otherwise the oldest ready messages are leased and
        recorded, in one transaction per shard; durable on return. A deferring holder acks a large batch after the return, if
        lanes without unacked messages fill the next one.

        With `ahead`, a deferring holder meanwhile also records the batch after this one, in the transactions of that ack, if
        lanes that no batch holds fill it. The next call returns that batch, whatever its limits. `close` makes the messages of a
        batch that no call returned ready again.

        Args:
            start: the number of the last processed batch.
            messages_max: 1..1,000,000.
            bytes_max: approximate size; a larger message is a batch of its own.
            arrived: only messages up to these arrival numbers.
            ahead: the next call will have about the same limits.
        Returns:
            start + 1; or start if no message is ready, and nothing was written.
        Raises:
            RecordedBatchGone: start is not a batch of this queue, or batch start + 1 is no longer kept; nothing was changed.
            ConsumerLost: another holder took over; nothing was changed.
            StoreError: a shard failed; nothing was leased.
            OutcomeUnknown, or StoreError of a sync: a part may be recorded; the next call syncs and returns it.
        """
        validate.whole("messages_max", messages_max, 1, RECORDED_BATCH_MESSAGES_MAX)
        validate.whole("bytes_max", bytes_max, 1, 2**62)
        self._storage.require_open()
        following = self._take(start, messages_max, bytes_max, arrived, ahead=ahead)
        self._returned = max(self._returned, following)
        return following

    def _take(self, start: int, messages_max: int, bytes_max: int, arrived: Mapping[int, int] | None, *, ahead: bool) -> int:
        self.wait()
        last = self.last
        if not 0 <= start <= last:
            raise RecordedBatchGone(f"consumer {self.name!r} of this queue has {last} batches, fewer than {start}")
        self._start = start
        if start < last and (self._ahead is None or start + 1 < last):
            self._parts(start + 1, sync=True)
            self._ack(start)
            return start + 1
        begun, self._ahead = self._ahead if start < last else None, None
        if begun is not None:
            self._require_held()
        left = begun or Allowance(messages_max, bytes_max)
        pending = {} if left.full else self._pending(self._look(), start, arrived)
        failed: StoreError | None = None
        deferring = not left.full and self._defers()
        for ready in self._by_turn(pending, messages_max):
            if messages_max >= 2 * len(ready):
                ready.sort(key=pending.__getitem__)  # with less room than that, the shards take turns
            while ready:
                # Shards with at least an even share are advanced in parallel. Shards with less go first, one by one, so that
                # the rest of their share goes to the others.
                even = left.messages // len(ready)
                n = len(ready) if left.full or 2 <= even <= pending[ready[0]] else 1
                wants = _wants(ready, n, left, arrived)
                if deferring:
                    wants = self._without_full(start, wants, pending, left)
                failed = self._advance(start, wants, left) or failed
                ready = ready[n:]
        if not left.taken:
            if failed is not None:
                raise failed
            self._ack(start)
            return start
        self._taken = left.taken
        if deferring or begun is not None:
            self._defer(start, arrived, Allowance(messages_max, bytes_max) if ahead and left.full else None)
        return start + 1

    def _require_held(self) -> None:
        """Raise ConsumerLost if another holder took over, or the consumer was released."""
        if not self._recorded.is_held(self.name, self.epoch):
            raise ConsumerLost(f"consumer {self.name!r} was taken over or released")

    def _pending(self, known: Mapping[int, Known], start: int, arrived: Mapping[int, int] | None) -> dict[int, int]:
        """Return about how many messages each shard can give to batch start + 1, of those that have no part of it."""
        counted = self._recorded.pending(self.name, known, start, every=arrived is not None)
        # Without an open batch the number is exact, so a transaction in an empty shard would find nothing.
        return {s: n for s, n in counted.items() if (n or known[s].open) and known[s].last <= start}

    def _some_pending(
        self, known: Mapping[int, Known], start: int, arrived: Mapping[int, int] | None, messages: int
    ) -> dict[int, int]:
        """Return about how many messages the shards can give whose turn it is, or all of them if there are few."""
        most = max(AT_ONCE, messages // PART_MESSAGES)
        every, found, total = arrived is not None, {}, 0
        for shard, n in self._recorded.pending_from(self._turn + 1, self.name, known, start, every=every):
            found[shard] = n
            total += n
            if len(found) >= most and total >= messages:
                self._turn = shard
                break
        return found

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
            RecordedBatchGone: no call has returned a batch with this number; nothing was changed.
            ConsumerLost: another holder took over; nothing was changed.
            StoreError: a shard failed; the others have acked.
        """
        self._storage.require_open()
        if self._deferred is not None and upto <= self._deferred.upto:
            return
        self.wait()
        last = min(self.last, self._returned)
        if not 0 <= upto <= last:
            raise RecordedBatchGone(
                f"consumer {self.name!r} of this queue has received {last} batches, so it can't ack batch {upto}"
            )
        self._ack(upto)

    def withdraw_newest(self) -> None:
        """Undo the newest batch. Its messages are ready again, with no attempt charged, and the next batch has its number.

        Call it only if no query has processed the batch.

        Raises:
            ConsumerLost: another holder took over; nothing was changed.
            StoreError: a shard failed; parts of others were undone, and the rest of the batch remains.
        """
        self.wait()
        n = self.last
        self._known = self._ahead = None
        self._taken = 0
        self._recorded.withdraw(self.name, self.epoch, n)
        self._returned = min(self._returned, n - 1)

    def _ack(self, upto: int) -> None:
        failed = self._advance(upto, dict.fromkeys(self._look()), Allowance(0, 0))
        if failed is not None:
            raise failed

    def _advance(self, start: int, wants: Mapping[int, Want | None], left: Allowance) -> StoreError | None:
        """Ack up to `start`, and add the shards' parts of batch start + 1. Return the error of a shard, if one failed."""
        known = self._look()
        self._known = None  # if this raises, the changes may have been committed
        done = self._recorded.advance(self._by(self.encode), known, start, start + 1, wants, left)
        if done.failed is None:
            self._known = {**known, **done.known}
        return done.failed

    def _by(self, encode: Encode) -> Holding:
        return Holding(self.name, self.epoch, encode, self._packed, self.keep)

    # ---- deferred acks, and batches that are recorded ahead

    def wait(self) -> None:
        """Wait for what was deferred. If it failed, the next call repeats it, and raises its error."""
        if self._pid != os.getpid():
            self._deferred = None  # its thread is the parent's
        deferred = self._deferred
        if deferred is None:
            return
        known, ahead = deferred.join()  # if this is interrupted, `close` joins it again
        self._deferred, self._known, self._ahead = None, known, ahead
        if self._known is None:
            self._taken = 0

    def _defer(self, start: int, arrived: Mapping[int, int] | None, limits: Allowance | None) -> None:
        known = self._look()
        # Stored before it runs, so that `wait` finds it if an interrupt comes between.
        self._deferred = deferred = _Deferred(lambda: self._follow(known, start, arrived, limits), start)
        deferred.start()

    def _defers(self) -> bool:
        """Return whether the next batch may be recorded before the one before it is acked."""
        if not self._deferring or self._taken < DEFERRED_MIN:
            return False
        self._paused -= 1
        return self._paused < 0

    def _without_full(
        self, start: int, wants: Mapping[int, Want | None], pending: Mapping[int, int], left: Allowance
    ) -> dict[int, Want | None]:
        """Record the parts of batch start + 1 of shards that can fill their share from lanes without unacked messages.

        Returns:
            The wants of the other shards, which must ack first, because that makes more lanes ready.
        """
        known = self._look()
        unacked = _unacked(known, start)
        full = {s: want for s, want in wants.items() if want is not None and s in unacked}
        self._known = None
        self._known = known = self._record_full(known, 0, start + 1, full, pending, left)
        return {s: want for s, want in wants.items() if known[s].last <= start and not (want is None and s in unacked)}

    def _record_full(
        self,
        known: dict[int, Known],
        upto: int,
        n: int,
        wants: Mapping[int, Want | None],
        pending: Mapping[int, int],
        left: Allowance,
    ) -> dict[int, Known]:
        """Record the parts of batch n of shards that can fill their share. Ack up to a number in the same transactions.

        Args:
            upto: 0: ack nothing.
            wants: None: the shard only acks.
        Returns:
            The new state of all shards.
        """
        full = {s: want for s, want in wants.items() if want is not None and want.messages <= pending[s]}
        if not full:
            return known

        def encode(leases: Sequence[Held | PackedColumns], shard: int) -> Iterable[Block]:
            if sum(of.messages if isinstance(of, PackedColumns) else len(of) for of in leases) < full[shard].messages:
                raise _TooFew("too few lanes are ready", shard=shard)
            return self.encode(leases, shard)

        given = {s: want for s, want in wants.items() if want is None or s in full}
        done = self._recorded.advance(self._by(encode), known, upto, n, given, left)
        known = {**known, **done.known} if done.failed is None else self._recorded.joined(self.name, self.epoch, {})
        if all(known[shard].last >= n for shard in full):
            self._pause = 0
        else:
            self._pause = self._paused = min(2 * self._pause + 1, PAUSE_MAX)
        return known

    def _follow(
        self, known: dict[int, Known], start: int, arrived: Mapping[int, int] | None, limits: Allowance | None
    ) -> _Followed:
        """Ack up to `start`, and record batch start + 2 in the same transactions if lanes that no other batch holds fill it.

        Args:
            limits: those of that batch; None: record nothing.
        Returns:
            The new state of all shards, and what remains of the limits.
        """
        ahead = None
        if limits is not None and not self._pause:
            pending = self._some_pending(known, start + 1, arrived, limits.messages)
            wants = {**dict.fromkeys(_unacked(known, start)), **_full_wants(pending, limits, arrived)}
            known = self._record_full(known, start, start + 2, wants, pending, limits)
            ahead = limits if limits.taken else None
        unacked = dict.fromkeys(_unacked(known, start))
        done = self._recorded.advance(self._by(self.encode), known, start, start + 2, unacked, Allowance(0, 0))
        if done.failed is not None:
            raise done.failed
        return {**known, **done.known}, ahead

    # ---- recorded batches

    def parts(self, n: int) -> list[Part]:
        """Return the blocks of a batch, shard by shard and in order.

        Raises:
            RecordedBatchGone: the batch is no longer kept, was released, or never existed.
        """
        return self._parts(n, sync=False)

    def _parts(self, n: int, *, sync: bool) -> list[Part]:
        known = self._look().values()
        if n <= max(k.floor for k in known):
            raise RecordedBatchGone(
                f"batch {n} of consumer {self.name!r} is no longer kept: the last acked one is {self.acked}, "
                f"and {self.keep} before it are kept"
            )
        among = [shard for shard, k in self._look().items() if n in k.open]
        found = self._recorded.parts(self.name, n, among=among, sync=sync)
        if not found:
            raise RecordedBatchGone(f"consumer {self.name!r} of this queue has no batch {n}")
        return found


class _TooFew(StoreError):
    """Rolls a shard's part of a batch back."""


_Followed = tuple[dict[int, Known] | None, Allowance | None]


class _Deferred:
    """Does what was deferred in a thread.

    Args:
        work: acks, and may record a batch. Returns the new state of all shards, and what remains of the limits of that batch.
        upto: the last batch that it acks.
    """

    def __init__(self, work: Callable[[], _Followed], upto: int) -> None:
        self._work = work
        self._done: _Followed = None, None
        self._lock = Lock()
        self._runs = self._given_up = False
        """At most one of these becomes true: an interrupted `Thread.start` does not tell whether the thread will run."""
        self._ended = Event()
        """An interrupted `Thread.join` takes the thread for ended while it runs, in CPython 3.11 and 3.12."""
        self.upto = upto
        self._thread = Thread(target=self._run, name="strictq-acks", daemon=True)

    def start(self) -> None:
        """Start the thread. Before that, there is no result to wait for."""
        self._thread.start()

    def _run(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._runs = True
        try:
            with suppress(StrictqError):  # the next call repeats it
                self._done = self._work()
        finally:
            self._ended.set()

    def join(self) -> _Followed:
        """Wait for the end, and return the result; None, None: it failed, or its start was interrupted, and it does nothing."""
        with self._lock:
            self._given_up = self._given_up or (self._thread.ident is None and not self._runs)
        if not self._given_up:
            self._ended.wait()
        return self._done


def _unacked(known: Mapping[int, Known], upto: int) -> list[int]:
    """Return the shards with open batches up to a number."""
    return [shard for shard, k in known.items() if any(n <= upto for n in k.open)]


def _wants(ready: list[int], n: int, left: Allowance, arrived: Mapping[int, int] | None) -> dict[int, Want | None]:
    """Return the limits of the first n ready shards, an even share of the remaining allowance each; None: nothing remains."""
    wants: dict[int, Want | None] = {}
    for i, shard in enumerate(ready[:n]):
        messages = (left.messages + len(ready) - 1 - i) // len(ready)
        size = -(-left.bytes // len(ready))
        some = messages > 0 and not left.full
        wants[shard] = Want(messages, size, None if arrived is None else arrived.get(shard, 0)) if some else None
    return wants


def _full_wants(pending: Mapping[int, int], left: Allowance, arrived: Mapping[int, int] | None) -> dict[int, Want | None]:
    """Return limits that fill the allowance, as evenly as the shards can; nothing if they have too few messages."""
    if sum(pending.values()) < left.messages:
        return {}
    wants: dict[int, Want | None] = {}
    messages = left.messages
    for i, shard in enumerate(sorted(pending, key=pending.__getitem__)):
        share = min(pending[shard], -(-messages // (len(pending) - i)))
        messages -= share
        if share:
            wants[shard] = Want(share, left.bytes * share // left.messages, None if arrived is None else arrived.get(shard, 0))
    return wants


def read_block(queue: Queue, consumer: str, n: int, shard: int, part: int) -> bytes:
    """Return one recorded block, read in a short read transaction. The caller need not be the holder.

    Raises:
        RecordedBatchGone: the batch is no longer kept.
    """
    data = queue._storage.recorded_batches.block(consumer, n, shard, part)
    if data is None:
        raise RecordedBatchGone(f"batch {n} of consumer {consumer!r} is no longer kept")
    return data


def rejected(queue: Queue, consumer: str, n: int, shard: int) -> list[int]:
    """Return the arrival numbers to leave out of a shard's part of a batch, because they were dead-lettered."""
    return queue._storage.recorded_batches.rejected(consumer, n, shard)
