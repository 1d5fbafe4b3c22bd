"""Hand-outs of named consumers over all shards: the calls of `storage.handouts`. A shard's part of one is in lanes/handout.py.

Numbers name the same messages for ever, so what is repeated after a crash, or comes late, does nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import apsw
import attrs

from .. import _files as files
from .._errors import OutcomeUnknown, StoreError, StoreFull
from .._parallel import run_all
from .commit.calls import bound
from .commit.tx import NEVER, SECOND, Tx
from .disk.locks import ConsumerLock, PrivateLock
from .lanes import handout, inspect
from .lanes.claim import Request
from .lanes.handout import Encode, Known, Part, Standing
from .shard import Shard
from .store import Store

if TYPE_CHECKING:
    from .._findings import ConsumerStatus


class Holding(NamedTuple):
    """The one holder of a named consumer.

    Attributes:
        encode: packs what was leased; runs inside the write transaction.
        packed: encode takes leases whose messages come column by column, too.
        keep: acked hand-outs that stay readable.
    """

    name: str
    epoch: int
    encode: Encode
    packed: bool
    keep: int


class Want(NamedTuple):
    """What one shard may give to a hand-out.

    Attributes:
        bytes: about how much; a message that is larger is handed out by itself.
        arrived_to: only messages with an arrival number up to this one.
    """

    messages: int
    bytes: int
    arrived_to: int | None


@attrs.define
class Allowance:
    """What a hand-out may still take.

    Attributes:
        bytes: counted while it is taken, because one message may have more than all of a shard's part.
    """

    messages: int
    bytes: int
    taken: int = 0

    @property
    def full(self) -> bool:
        """Whether nothing more fits."""
        return self.messages <= 0 or self.bytes <= 0


class Advanced(NamedTuple):
    """What became of a step.

    Attributes:
        known: what the shards have now; not to be relied on where one failed.
        failed: why a shard has nothing of it, if one has not.
    """

    known: dict[int, Known]
    failed: StoreError | None


class Handouts:
    """The durable hand-outs of one queue's named consumers. Shards are their numbers."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- who holds a consumer

    def lock(self, name: str) -> ConsumerLock | PrivateLock:
        """The lock that the holder of a consumer has; not taken yet."""
        return self._store.consumer_lock(name)

    def known(self, name: str) -> dict[int, Known]:
        """What each shard knows of a consumer."""
        return {s.number: s.read(lambda db: handout.look(db, name)) for s in self._store.shards}

    def take_over(self, name: str) -> int:
        """Begin an epoch that is newer than any, which fences every earlier holder, and finish what that left half done."""
        epoch = self._begin_epoch(name)
        self._finish(name)
        return epoch

    def release(self, name: str) -> int:
        """Fence the holder, and end every open hand-out: its messages are ready for anybody. Returns how many were given back."""
        if not any(k.epoch for k in self.known(name).values()):
            return 0
        self._begin_epoch(name)
        return self._finish(name) + self._release(name, self.known(name), NEVER)

    def _begin_epoch(self, name: str) -> int:
        while True:
            epoch = max(k.epoch for k in self.known(name).values()) + 1
            if all(shard.run(bound(handout.take_over, name, epoch)) for shard in self._store.shards):
                return epoch

    def _finish(self, name: str) -> int:
        """Bring the shards together after a crash between them: releases first, then acks. Returns the messages given back."""
        known = self.known(name)
        released = max((n for k in known.values() for n in k.released), default=0)
        given_back = self._release(name, known, released) if released else 0
        known = self.known(name)
        self.ack(name, known, max(k.acked for k in known.values()))
        return given_back

    def _release(self, name: str, known: Mapping[int, Known], upto: int) -> int:
        for shard in self._store.shards:
            if _reaches(known[shard.number], upto):
                shard.run(lambda tx: handout.release(tx, name, upto))
        total = 0
        for shard in self._store.shards:
            more = True
            while more:
                n, more = shard.run(lambda tx: handout.finish_release(tx, name))
                total += n
        return total

    # ---- handing out and acknowledging

    def arrived(self) -> dict[int, int]:
        """The newest arrival number of each shard."""
        return {s.number: s.newest() for s in self._store.shards}

    def pending(self, name: str, known: Mapping[int, Known], start: int, *, every: bool) -> dict[int, int]:
        """Unresolved messages of each shard behind hand-out `start`, beginning with another shard each time.

        Args:
            every: of all shards; else of those that have something ready, or something to ack, behind which more becomes ready.
        """
        store = self._store
        found = [s for s in store.rotation() if every or _reaches(known[s.number], start) or store.outlook(s)[0]]
        return {s.number: s.look(lambda db: handout.pending_behind(db, name, start)) for s in found}

    def advance(
        self, by: Holding, known: Mapping[int, Known], start: int, wants: Mapping[int, Want | None], left: Allowance
    ) -> Advanced:
        """Ack up to `start`, and record shards' parts of hand-out start + 1, in one transaction a shard, side by side.

        Args:
            wants: what each shard may give; None: it only acks. A shard that has neither to do is not written to.
            left: of all of them; what is recorded is taken off.
        Raises:
            ConsumerLost: another holder took over; nothing changed there.
            OutcomeUnknown, or StoreError by a sync: a part may be recorded.
        """
        steps = [
            _Step(by, self._store.shards[number], known[number], start, acks, want, left)
            for number, want in wants.items()
            if (acks := _reaches(known[number], start)) or want is not None
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
        """Ack open hand-outs up to a number, shard by shard, whoever holds the consumer. Returns how many messages are done."""
        return sum(
            shard.drain(lambda tx: handout.ack(tx, name, upto))
            for shard in self._store.shards
            if _reaches(known[shard.number], upto)
        )

    # ---- what was recorded

    def parts(self, name: str, n: int, *, sync: bool = False) -> list[Part]:
        """The blocks of a hand-out, shard by shard and in order; none, where it is not recorded.

        Args:
            sync: they survive a power cut when this returns: who recorded them may have died before its own sync.
        Raises:
            HandoutGone: it was released.
        """
        found = [p for s in self._store.shards for p in s.look(bound(handout.parts, name, n, s.number))]
        if sync:
            for number in {part.shard for part in found}:
                self._store.shards[number].sync()
        return found

    def block(self, name: str, n: int, shard: int, part: int) -> bytes | None:
        """One recorded block; None: it is not kept any more. It changes nothing."""
        return self._store.shards[shard].look(lambda db: handout.block(db, name, n, part))

    def rejected(self, name: str, n: int, shard: int) -> list[int]:
        """Arrival numbers that are to be left out of a shard's part of a hand-out: dead-lettered out of it."""
        return self._store.shards[shard].look(lambda db: handout.rejected(db, name, n))

    # ---- for operators

    def consumers(self) -> list[ConsumerStatus]:
        """The named consumers, by name, without what their queries report."""
        found: dict[str, list[Standing]] = {}
        ready, oldest = 0, []
        for shard in self._store.healthy():
            standings, waiting, at = shard.look(lambda db: _standings(db, self._store.now()))
            ready += waiting
            oldest.append(at)
            for standing in standings:
                found.setdefault(standing.name, []).append(standing)
        return [self._status(name, of, ready, oldest) for name, of in sorted(found.items())]

    def _status(self, name: str, of: list[Standing], ready: int, oldest: list[int | None]) -> ConsumerStatus:
        with files.late():
            from .._findings import ConsumerStatus

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
        lock = self._store.consumer_lock(name)
        try:
            return not lock.alone(0.0)
        except StoreError:
            return False  # a directory that can't be written: nobody could hold it from here, and it can't be asked
        finally:
            lock.leave()


def _standings(db: apsw.Connection, now: int) -> tuple[list[Standing], int, int | None]:
    """The named consumers of a shard, how many messages are ready, and when the oldest head of these was sent."""
    found = handout.standings(db)
    return (found, *inspect.waiting(db, now)) if found else (found, 0, None)


def _reaches(known: Known, upto: int) -> bool:
    """Is a hand-out up to this one open?"""
    return any(n <= upto for n in known.open)


@attrs.define
class _Step:
    """What one shard has to do for a hand-out. Runs in a thread of its own, where there are several."""

    by: Holding
    shard: Shard
    before: Known
    start: int
    acks: bool
    want: Want | None
    left: Allowance
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

    def _ack(self, tx: Tx) -> None:
        """Also alone, on a full disk: what was processed is acked, from the reserve, though nothing can be recorded."""
        handout.require(tx, self.by.name, self.by.epoch)
        if self.acks:
            handout.ack(tx, self.by.name, self.start)

    def _work(self, tx: Tx) -> tuple[int, int, bool]:
        self._ack(tx)
        by, want = self.by, self.want
        self.floor = max(self.floor, handout.prune(tx, by.name, self.start - by.keep))
        if want is None or self.left.bytes <= 0:
            return 0, 0, False
        request = Request(
            want.messages, None, None, by.name, charge=False, endless=True, bytes_max=want.bytes, packed=by.packed,
            arrived_to=want.arrived_to,
        )  # fmt: skip
        return handout.record(tx, by.name, self.start + 1, request, by.encode)

    def known(self) -> Known:
        """What the shard has now."""
        before, start = self.before, self.start
        opened = frozenset({start + 1}) if self.messages else frozenset()
        return before._replace(
            open=frozenset(n for n in before.open if n > start) | opened,
            acked=max(before.acked, start) if self.acks else before.acked, last=start + 1 if self.messages else before.last,
            floor=max(before.floor, self.floor),
        )  # fmt: skip
