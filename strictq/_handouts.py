"""Durable hand-outs for a named consumer: what Spark's stream source stands on.

A hand-out is a numbered batch of messages over all shards. It is recorded in the transactions that lease it, and handed out
again, the same, until it is acked; its leases do not end by time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from . import _consumers as consumers
from . import _validate as validate
from ._errors import (
    ConsumerBusy,
    ForkedProcess,
    HandoutGone,
    InvalidArgument,
    OutcomeUnknown,
    StoreError,
    StoreFull,
)
from ._parallel import run_all
from ._store import handing
from ._store.calls import bound
from ._store.shard import Shard

if TYPE_CHECKING:
    from .queue import Queue

HANDOUT_MESSAGES_MAX: Final = 1_000_000
HANDOUT_BYTES: Final = 256 * 1024 * 1024
KEEP: Final = 100
LOCK_SECONDS: Final = 10
"""How long a new holder waits for the lock: a process that is being stopped may still have it."""


class Handouts:
    """The one holder of a named consumer. Use it in one thread; close it when done.

    Args:
        queue: open for writing.
        consumer: 1 to 256 characters.
        encode: packs what was leased; runs inside the write transaction, so it must be quick. What it raises undoes the hand-out.
        keep: acked hand-outs that stay readable.
        packed: encode takes leases whose messages come column by column, too.
    """

    def __init__(self, queue: Queue, consumer: str, encode: handing.Encode, *, keep: int = KEEP, packed: bool = False) -> None:
        self._store = queue._store
        self.name = validate.name("consumer", consumer)
        self.encode = encode
        self._packed = packed
        self.keep = validate.whole("keep", keep, 0, 1_000_000)
        self._lock = self._store.consumer_lock(consumer)
        self._pid = os.getpid()
        self.epoch = 0
        self._known: dict[int, handing.Known] | None = None
        """What each shard has; None: to be read again."""

    # ---- holding the consumer

    def attach(self, wait: float = LOCK_SECONDS) -> None:
        """Become the holder: fence the one before, and finish what it left half done. Again: does nothing.

        Raises:
            ConsumerBusy: another holder is alive; nothing changed.
            StoreError: a shard can't be reached.
        """
        if self.epoch:
            return
        self._store.require_open()
        if not self._lock.alone(wait):
            raise ConsumerBusy(f"consumer {self.name!r} has a holder that is alive")
        try:
            self.epoch = consumers.begin_epoch(self._store, self.name)
            consumers.finish(self._store, self.name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the consumer. Its open hand-outs stay leased for the next holder."""
        self.epoch = 0
        self._known = None
        self._lock.leave()

    # ---- numbers

    @property
    def acked(self) -> int:
        """Up to here hand-outs are acked (or released): where a consumer without a memory of its own starts."""
        return max(k.acked for k in self._look().values())

    @property
    def last(self) -> int:
        """The newest hand-out; 0: there was none yet."""
        return max(k.last for k in self._look().values())

    def _look(self) -> dict[int, handing.Known]:
        if self._pid != os.getpid():
            raise ForkedProcess("a named consumer can't be held across a fork")
        if not self.epoch:
            raise InvalidArgument("attach first")
        if self._known is None:
            self._known = consumers.read(self._store, self.name)
        return self._known

    def arrived(self) -> dict[int, int]:
        """For each shard the newest arrival number: a bound for `take`."""
        return {s.number: s.glance(lambda db: handing.Totals.read(db).last_id) for s in self._store.shards}

    # ---- taking and acknowledging

    def take(
        self,
        start: int,
        *,
        messages_max: int = 100_000,
        bytes_max: int = HANDOUT_BYTES,
        arrived: Mapping[int, int] | None = None,
    ) -> int:
        """Ack every hand-out up to `start`, and hand out what comes next.

        If hand-out start + 1 is recorded, even in part, it is that, as it is. Otherwise the oldest ready messages are leased and
        recorded, in one transaction a shard; durable on return.

        Args:
            start: up to here everything was processed.
            messages_max: 1..1,000,000.
            bytes_max: about how much; a message that is larger is handed out by itself.
            arrived: only what `arrived()` had seen.
        Returns:
            start + 1; or start, where nothing is ready, and nothing was written.
        Raises:
            HandoutGone: start is not of this queue, or hand-out start + 1 is not kept any more; nothing changed.
            ConsumerLost: another holder took over; nothing changed.
            StoreError: a shard failed, and nothing was handed out.
            OutcomeUnknown, or StoreError by a sync: a part may be recorded; the next call gives it, synced.
        """
        validate.whole("messages_max", messages_max, 1, HANDOUT_MESSAGES_MAX)
        validate.whole("bytes_max", bytes_max, 1, 2**62)
        self._store.require_open()
        last = self.last
        if not 0 <= start <= last:
            raise HandoutGone(f"consumer {self.name!r} of this queue has had {last} hand-outs, and not {start}")
        if start < last:
            for number in {part.shard for part in self.parts(start + 1)}:
                self._store.shards[number].sync()  # who recorded it may have died before its own
            self._ack(start)
            return start + 1
        # Where something is acked, what lies behind it becomes ready with it.
        ready = [
            s for s in self._store.rotation() if arrived is not None or self._acks(s, start) or self._store.outlook(s)[0]
        ]  # fmt: skip
        pending = {s: s.look(lambda db: handing.pending_behind(db, self.name, start)) for s in ready}
        left = _Room(messages_max, bytes_max)
        failed: StoreError | None = None
        if messages_max >= 2 * len(ready):
            ready.sort(key=pending.__getitem__)  # with less room, each has its turn
        while ready:
            # Side by side. But who has less than an even part comes before, one by one: what it leaves goes to the others.
            even = left.messages // len(ready)
            n = len(ready) if 2 <= even <= pending[ready[0]] else 1
            requests = {shard: self._request(shard, left.part(i, len(ready)), arrived) for i, shard in enumerate(ready[:n])}
            failed = self._steps(start, requests, left) or failed
            ready = ready[n:]
        if failed is not None and not left.taken:
            raise failed
        return start + 1 if left.taken else start

    def _request(self, shard: Shard, part: tuple[int, int] | None, arrived: Mapping[int, int] | None) -> handing.Request | None:
        if part is None:
            return None
        return handing.Request(
            part[0], None, None, self.name, charge=False, endless=True, bytes_max=part[1], packed=self._packed,
            arrived_to=None if arrived is None else arrived[shard.number],
        )  # fmt: skip

    def ack(self, upto: int) -> None:
        """Ack every hand-out up to a number; where it is done already, nothing is written.

        Raises:
            ConsumerLost: another holder took over; nothing changed.
            StoreError: a shard failed; the others have acked.
        """
        self._store.require_open()
        self._ack(min(upto, self.last))

    def _ack(self, upto: int) -> None:
        failed = self._steps(upto, dict.fromkeys(self._store.shards), _Room(0, 0))
        if failed is not None:
            raise failed

    @property
    def skew(self) -> int:
        """What to add to a message's times to have microseconds since 1970."""
        return self._store.time.skew()

    def _acks(self, shard: Shard, start: int) -> bool:
        return any(n <= start for n in self._look()[shard.number].open)

    def _steps(self, start: int, requests: Mapping[Shard, handing.Request | None], left: _Room) -> StoreError | None:
        """Ack up to `start`, and add shards' parts of hand-out start + 1, side by side.

        Returns:
            Why a shard failed, if one did.
        """
        known = dict(self._look())
        steps = [
            _Step(self, shard, known[shard.number], start, acks, request, left)
            for shard, request in requests.items()
            if (acks := self._acks(shard, start)) or request is not None
        ]
        for step in steps:
            step.shard.require_outside()
        try:
            run_all(steps)
        except BaseException:
            self._known = None  # they may have been committed
            raise
        for step in steps:
            left.take(step.messages)
        failed = next((step.failed for step in steps if step.failed is not None), None)
        self._known = None if failed is not None else {**known, **{step.shard.number: step.known() for step in steps}}
        return failed

    # ---- what was recorded

    def parts(self, n: int) -> list[handing.Part]:
        """The blocks of a hand-out, shard by shard and in order.

        Raises:
            HandoutGone: it is older than what is kept, was released, or was never made.
        """
        known = self._look().values()
        if n <= max(k.floor for k in known):
            raise HandoutGone(
                f"hand-out {n} of consumer {self.name!r} is not kept any more: the last acknowledged one is {self.acked}, "
                f"and {self.keep} before it are kept"
            )
        found = [p for s in self._store.shards for p in s.look(bound(handing.parts, self.name, n, s.number))]
        if not found:
            raise HandoutGone(f"consumer {self.name!r} of this queue has had no hand-out {n}")
        return found


@attrs.define
class _Room:
    """What a hand-out may still take.

    Attributes:
        bytes: counted while it is taken, because one message may have more than all of a shard's part.
    """

    messages: int
    bytes: int
    taken: int = 0

    def part(self, i: int, of: int) -> tuple[int, int] | None:
        """Messages and bytes of the i-th of so many even parts; None: there is nothing left."""
        messages = (self.messages + of - 1 - i) // of
        return None if messages <= 0 or self.bytes <= 0 else (messages, -(-self.bytes // of))

    def take(self, messages: int) -> None:
        self.messages -= messages
        self.taken += messages


@attrs.define
class _Step:
    """What one shard has to do for a hand-out. Runs in a thread of its own, where there are several."""

    holder: Handouts
    shard: Shard
    before: handing.Known
    start: int
    acks: bool
    request: handing.Request | None
    left: _Room
    messages: int = 0
    floor: int = 0
    failed: StoreError | None = None

    def __call__(self) -> None:
        """Raises what leaves it open whether something is recorded; that nothing is, is told in `failed`."""
        again = True
        try:
            while again:
                self.messages, size, again = self.shard.run(self._work)
                self.left.bytes -= size
        except OutcomeUnknown:
            raise  # it may be recorded, and then it is to be synced: by the next call
        except StoreError as e:
            self.failed = e
            if isinstance(e, StoreFull) and self.acks:
                self.shard.drain(self._ack)
        if self.messages:
            self.shard.sync()

    def _ack(self, tx: handing.Tx) -> None:
        """Also alone, on a full disk: what was processed is acked, from the reserve, though nothing can be recorded."""
        handing.require(tx, self.holder.name, self.holder.epoch)
        if self.acks:
            handing.ack(tx, self.holder.name, self.start)

    def _work(self, tx: handing.Tx) -> tuple[int, int, bool]:
        self._ack(tx)
        holder = self.holder
        self.floor = max(self.floor, handing.prune(tx, holder.name, self.start - holder.keep))
        if self.request is None or self.left.bytes <= 0:
            return 0, 0, False
        return handing.record(tx, holder.name, self.start + 1, self.request, holder.encode)

    def known(self) -> handing.Known:
        """What the shard has now."""
        before, start = self.before, self.start
        opened = frozenset({start + 1}) if self.messages else frozenset()
        return before._replace(
            open=frozenset(n for n in before.open if n > start) | opened,
            acked=max(before.acked, start) if self.acks else before.acked, last=start + 1 if self.messages else before.last,
            floor=max(before.floor, self.floor),
        )  # fmt: skip


def read_block(queue: Queue, consumer: str, n: int, shard: int, part: int) -> bytes:
    """One recorded block, in a short read transaction. Anybody may read: it changes nothing.

    Raises:
        HandoutGone: it is not kept any more.
    """
    data = queue._store.shards[shard].look(lambda db: handing.block(db, consumer, n, part))
    if data is None:
        raise HandoutGone(f"hand-out {n} of consumer {consumer!r} is not kept any more")
    return data


def rejected(queue: Queue, consumer: str, n: int, shard: int) -> list[int]:
    """Arrival numbers that are to be left out of a shard's part of a hand-out: dead-lettered out of it."""
    return queue._store.shards[shard].look(lambda db: handing.rejected(db, consumer, n))
