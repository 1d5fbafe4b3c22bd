"""Recorded batches of named consumers over all shards: `storage.recorded_batches`. A shard's part: shard/recorded_batches.py.

A batch's number stands for the same messages for ever, so a repeated or late call has no second effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import attrs

from ..._platform import files
from ..._platform.parallel import run_all
from ..._values.errors import OutcomeUnknown, StoreError, StoreFull
from ..commit.tx import NEVER, SECOND, bound
from ..disk.locks import PrivateLock
from ..shard import counting, recorded_batches
from ..shard.leases import Request
from ..shard.recorded_batches import Encode, Known, Part, Standing
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes, Tx
from .store import Store

if TYPE_CHECKING:
    from ..._values.findings import ConsumerStatus


class Holding(NamedTuple):
    """The holder of a named consumer.

    Attributes:
        encode: packs what was leased. Runs inside the write transaction.
        packed: whether encode also takes leases whose messages come column by column.
        keep: how many acked batches stay readable.
    """

    name: str
    epoch: int
    encode: Encode
    packed: bool
    keep: int


class Want(NamedTuple):
    """What one shard may contribute to a batch.

    Attributes:
        bytes: the approximate limit. A larger message is delivered alone.
        arrived_to: only messages with an arrival number up to this one.
    """

    messages: int
    bytes: int
    arrived_to: int | None


@attrs.define
class Allowance:
    """What a batch may still take.

    Attributes:
        bytes: reduced while messages are taken, because one message may exceed a shard's whole part.
    """

    messages: int
    bytes: int
    taken: int = 0

    @property
    def full(self) -> bool:
        """Whether nothing more fits."""
        return self.messages <= 0 or self.bytes <= 0


class Advanced(NamedTuple):
    """The result of a step.

    Attributes:
        known: the shards' present state; unreliable if one failed.
        failed: why a shard did not take part, if one did not.
    """

    known: dict[int, Known]
    failed: StoreError | None


class RecordedBatches:
    """The durable batches of one queue's named consumers. Shards are named by their numbers."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- the holder of a consumer

    def lock(self, name: str) -> files.Lock | PrivateLock:
        """Return the lock for the holder of a consumer. It is not acquired yet."""
        return self._store.consumers.lock(name)

    def known(self, name: str) -> dict[int, Known]:
        """Return the state of a consumer in each shard. A shard that was added since its holder began has none."""
        found = {s.number: s.read(lambda db: recorded_batches.look(db, name)) for s in self._store.shards}
        return {number: known for number, known in found.items() if known.epoch}

    def joined(self, name: str, epoch: int, known: Mapping[int, Known]) -> dict[int, Known]:
        """Return each shard's state of a consumer. Let its holder take part in the shards that were added since its epoch began.

        Args:
            known: shards in which the holder takes part, which are not read again.
        """
        found = dict(known)
        for shard in self._store.shards:
            if shard.number not in found:
                state = shard.read(lambda db: recorded_batches.look(db, name))
                if state.epoch < epoch:
                    shard.run(bound(recorded_batches.take_over, name, epoch))
                    state = shard.read(lambda db: recorded_batches.look(db, name))
                found[shard.number] = state
        return found

    def is_held(self, name: str, epoch: int) -> bool:
        """Return whether no later epoch has begun. Each begins in the first shard."""
        return self._store.shards[0].look(lambda db: recorded_batches.look(db, name)).epoch == epoch

    def take_over(self, name: str) -> int:
        """Begin the newest epoch, which fences every earlier holder, and finish what an earlier holder left half done."""
        epoch = self._begin_epoch(name)
        self._finish(name)
        return epoch

    def release(self, name: str) -> int:
        """Fence the holder, and end every open batch, so that its messages are ready again. Return their number."""
        if not self.known(name):
            return 0
        self._begin_epoch(name)
        return self._finish(name) + self._release(name, self.known(name), NEVER)

    def _begin_epoch(self, name: str) -> int:
        while True:
            epoch = max((k.epoch for k in self.known(name).values()), default=0) + 1
            if all(shard.run(bound(recorded_batches.take_over, name, epoch)) for shard in self._store.shards):
                return epoch

    def _finish(self, name: str) -> int:
        """Reconcile the shards after a crash between them: releases first, then acks. Return the number of released messages."""
        known = self.known(name)
        released = max((n for k in known.values() for n in k.released), default=0)
        given_back = self._release(name, known, released) if released else 0
        known = self.known(name)
        self.ack(name, known, max(k.acked for k in known.values()))
        return given_back

    def _release(self, name: str, known: Mapping[int, Known], upto: int) -> int:
        for shard in self._store.shards:
            if shard.number in known and _reaches(known[shard.number], upto):
                shard.run(lambda tx: recorded_batches.release(tx, name, upto))
        total = 0
        for shard in self._store.shards:
            more = True
            while more:
                n, more = shard.run(lambda tx: recorded_batches.finish_release(tx, name))
                total += n
        return total

    # ---- delivering and acknowledging

    def arrived(self) -> dict[int, int]:
        """Return the newest arrival number of each shard."""
        return {s.number: s.newest() for s in self._store.shards}

    def pending(self, name: str, known: Mapping[int, Known], start: int, *, every: bool) -> dict[int, int]:
        """Return the number of unresolved messages of each shard after batch `start`. The first shard rotates.

        Args:
            every: include all shards. Otherwise only those with something ready, or with acks that make more ready.
        """
        return dict(self._counted(self._store.rotation(), name, known, start, every))

    def pending_from(
        self, first: int, name: str, known: Mapping[int, Known], start: int, *, every: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield the same, shard by shard from `first` on. A shard is read when it is its turn."""
        shards = self._store.shards
        at = first % len(shards)
        return self._counted([*shards[at:], *shards[:at]], name, known, start, every)

    def _counted(
        self, shards: Iterable[Shard], name: str, known: Mapping[int, Known], start: int, every: bool
    ) -> Iterator[tuple[int, int]]:
        for shard in shards:
            if shard.number not in known:
                continue  # it was added a moment ago
            if every or _reaches(known[shard.number], start) or self._store.outlook(shard)[0]:
                yield shard.number, _pending_behind(shard, name, start)

    def recorded_behind(self, name: str, start: int) -> int:
        """Return the number of messages of unresolved batches after `start`."""
        return sum(s.look(lambda db: recorded_batches.recorded_behind(db, name, start)) for s in self._store.shards)

    def advance(
        self, by: Holding, known: Mapping[int, Known], upto: int, n: int, wants: Mapping[int, Want | None], left: Allowance
    ) -> Advanced:
        """Ack batches up to a number, and record the shards' parts of batch n, in one transaction per shard, in parallel.

        Args:
            wants: what each shard may contribute; None: it only acks. A shard that needs neither is not written to.
            left: the limit for all of them. What is recorded is subtracted.
        Raises:
            ConsumerLost: another holder took over; nothing changed there.
            OutcomeUnknown, or StoreError by a sync: a part may be recorded.
        """
        steps = [
            _Step(by, self._store.shards[number], known[number], upto, n, acks, want, left)
            for number, want in wants.items()
            if (acks := _reaches(known[number], upto)) or want is not None
        ]
        for step in steps:
            step.shard.require_outside()
        run_all(steps)
        for step in steps:
            left.messages -= step.messages
            left.taken += step.messages
        failed = next((step.failed for step in steps if step.failed is not None), None)
        return Advanced({step.shard.number: step.known() for step in steps}, failed)

    def ack(self, name: str, known: Mapping[int, Known], upto: int) -> int:
        """Ack open batches up to a number, shard by shard, without fencing. Return the number of acked messages."""
        return sum(
            shard.drain(lambda tx: recorded_batches.ack(tx, name, upto))
            for shard in self._store.shards
            if shard.number in known and _reaches(known[shard.number], upto)
        )

    def withdraw(self, name: str, epoch: int, n: int) -> None:
        """Undo the newest batch, which no caller received: its messages are ready again, and its number stands for nothing.

        Each shard's part is undone in one transaction. If one fails, or the process dies, the rest of the batch remains.

        Raises:
            ConsumerLost: another holder took over.
        """
        for shard in self._store.shards:
            if n in shard.read(lambda db: recorded_batches.look(db, name)).open:
                shard.run(bound(recorded_batches.withdraw, name, epoch, n))

    # ---- recorded batches

    def parts(self, name: str, n: int, *, among: Collection[int] = (), sync: bool = False) -> list[Part]:
        """Return the blocks of a batch, shard by shard and in order; empty if it is not recorded.

        Args:
            among: all shards that have a part of it; empty: not known.
            sync: make the blocks survive a power cut, because the holder that recorded them may have died before its own sync.
        Raises:
            RecordedBatchGone: it was released.
        """
        shards = [s for s in self._store.shards if not among or s.number in among]
        found = [p for s in shards for p in s.look(bound(recorded_batches.parts, name, n, s.number))]
        if sync:
            for number in {part.shard for part in found}:
                self._store.shards[number].sync()
        return found

    def block(self, name: str, n: int, shard: int, part: int) -> bytes | None:
        """Return one recorded block, without changing anything. None: it is not kept any more."""
        return self._store.shards[shard].look(lambda db: recorded_batches.block(db, name, n, part))

    def rejected(self, name: str, n: int, shard: int) -> list[int]:
        """Return the arrival numbers to omit from a shard's part of a batch, because those messages were dead-lettered."""
        return self._store.shards[shard].look(lambda db: recorded_batches.rejected(db, name, n))

    # ---- for operators

    def consumers(self) -> list[ConsumerStatus]:
        """Return the named consumers, sorted by name, without the reports of their queries."""
        found: dict[str, list[Standing]] = {}
        ready, oldest = 0, []
        if not any(shard.glance(recorded_batches.has_consumers) for shard in self._store.healthy()):
            return []  # a survey loads what has changed of every key
        for shard in self._store.everywhere():
            standings, waiting, at = shard.survey(lambda lanes: _standings(lanes, self._store.now()))
            ready += waiting
            oldest.append(at)
            for standing in standings:
                found.setdefault(standing.name, []).append(standing)
        return [self._status(name, of, ready, oldest) for name, of in sorted(found.items())]

    def _status(self, name: str, of: list[Standing], ready: int, oldest: list[int | None]) -> ConsumerStatus:
        with files.late():
            from ..._values.findings import ConsumerStatus

        store = self._store
        since = [s.since for s in of if s.since is not None]
        sent = [at for at in (*oldest, *(s.oldest for s in of)) if at is not None]
        in_flight = sum(s.in_flight for s in of)
        return ConsumerStatus(
            name=name, last=max(s.last for s in of), acked=max(s.acked for s in of),
            open=len(frozenset().union(*(s.open for s in of))), in_flight=in_flight,
            since=store.time.to_wall(min(since)) if since else None, kept=len(frozenset().union(*(s.kept for s in of))),
            kept_bytes=sum(s.kept_bytes for s in of), active=self._is_active(name), lag=ready + in_flight,
            age_seconds=max(store.now() - min(sent), 0) / SECOND if sent else None, query=None,
        )  # fmt: skip

    def _is_active(self, name: str) -> bool:
        lock = self._store.consumers.lock(name)
        try:
            return not lock.alone(0.0)
        except StoreError:
            return False  # the directory is read-only: the lock can't be tested, and no process could hold it from here
        finally:
            lock.leave()


def _pending_behind(shard: Shard, name: str, start: int) -> int:
    return shard.view(lambda lanes: recorded_batches.pending_behind(lanes.db, name, start, lanes.memory.totals.pending))


def _standings(lanes: ShardLanes, now: int) -> tuple[list[Standing], int, int | None]:
    """Return the named consumers of a shard, the number of ready messages, and when the oldest head of these was sent."""
    found = recorded_batches.standings(lanes)
    return (found, *counting.waiting(lanes, now)) if found else (found, 0, None)


def _reaches(known: Known, upto: int) -> bool:
    """Return whether a batch up to this one is open."""
    return any(n <= upto for n in known.open)


@attrs.define
class _Step:
    """One shard's work for a batch. Runs in its own thread if there are several shards."""

    by: Holding
    shard: Shard
    before: Known
    upto: int
    n: int
    acks: bool
    want: Want | None
    left: Allowance
    messages: int = 0
    floor: int = 0
    failed: StoreError | None = None

    def __call__(self) -> None:
        """Run the step. Raise if a part may be recorded; if none is, set `failed`."""
        again = True
        try:
            while again:
                self.messages, size, again = self.shard.run(self._work)
                self.left.bytes -= size
        except OutcomeUnknown:
            raise  # a part may be recorded, which the next call must sync
        except StoreError as e:
            self.failed = e
            if isinstance(e, StoreFull) and self.acks:
                self.shard.drain(self._ack)
        if self.messages:
            self.shard.sync()

    def _ack(self, tx: Tx) -> None:
        """Ack up to `upto`.

        On a full disk this also runs alone: processed messages are acked from the reserve, though no batch can be recorded.
        """
        recorded_batches.require(tx, self.by.name, self.by.epoch)
        if self.acks:
            recorded_batches.ack(tx, self.by.name, self.upto)

    def _work(self, tx: Tx) -> tuple[int, int, bool]:
        self._ack(tx)
        by, want = self.by, self.want
        self.floor = max(self.floor, recorded_batches.prune(tx, by.name, self.upto - by.keep))
        if want is None or self.left.bytes <= 0:
            return 0, 0, False
        request = Request(
            want.messages, None, None, by.name, charge=False, endless=True, bytes_max=want.bytes, packed=by.packed,
            arrived_to=want.arrived_to,
        )  # fmt: skip
        return recorded_batches.record(tx, by.name, self.n, request, by.encode)

    def known(self) -> Known:
        """Return the shard's present state."""
        before, upto = self.before, self.upto
        opened = frozenset({self.n}) if self.messages else frozenset()
        return before._replace(
            open=frozenset(n for n in before.open if n > upto) | opened,
            acked=max(before.acked, upto) if self.acks else before.acked, last=self.n if self.messages else before.last,
            floor=max(before.floor, self.floor),
        )  # fmt: skip
