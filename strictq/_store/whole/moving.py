"""Move ranges of hashes between the shards of a queue while it runs.

One primitive: the lanes of a range leave one shard, slice by slice, and arrive in another. A split is a new shard and moves to
it, a merge moves everything that a shard owns, and an isolation moves the hash of one key.

Each step is one transaction in one shard, synced before the next one relies on it, and may be repeated. So a move whose process
died is continued by whoever finds it, and a call that misses a lane carries it over itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from ..._platform import files
from ..._sql import APPLIED, OUTBOX
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import ConfigError, InvalidArgument, MoveBlocked, MoveInProgress, StoreBusy, StrictqError
from ..._values.keys import decode_key
from ..catalog import queue_db
from ..commit.tx import bound
from ..disk import layout
from ..disk.topology import HASHES, SHARDS_MAX, ShardList
from ..lane.ranges import Passage, Ranges, hash_of
from ..shard import moving as steps
from ..shard.moving import Parcel
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes, Tx
from ..tables import parcels

if TYPE_CHECKING:
    from ..._values.findings import Moved, Topology

OnProgress = Callable[[int, int], object]
"""Gets the number of messages that have moved, and how many there are, about."""
WAIT_SECONDS: Final = 60.0
"""How long a move waits for recorded batches that hold lanes of the range."""
PAUSE_SECONDS: Final = 0.05
SWEPT_TOGETHER: Final = 4
"""So many parcels of a running move are swept after one sync."""
LONG_LANE: Final = 400_000
"""A key with more messages, or rows of the program, moves only if the caller accepts that it waits for long."""
LONG_RATE: Final = 100_000
"""How many of them move in a second."""
IN_USE_SECONDS: Final = 1.0
"""How long consumers believe which shards own ranges."""


class Movable(Protocol):
    """What a move needs of a queue's store."""

    directory: Path | None
    read_only: bool
    shards: list[Shard]
    moves: threading.Lock

    @property
    def config(self) -> QueueConfig: ...
    @property
    def topology(self) -> ShardList: ...
    def healthy(self) -> list[Shard]: ...
    def everywhere(self) -> list[Shard]: ...
    def learn_shards(self, topology: ShardList | None = None) -> None: ...
    def note_owner(self, lo: int, hi: int, shard: int) -> None: ...
    def refresh_settings(self) -> bool: ...
    def refresh_app_schema(self) -> None: ...
    def forward(self, origins: Iterable[Shard] | None = None) -> None: ...


def carry(origin: Shard, target: Shard, left: Parcel | None = None, *, keeps_leases: bool = False) -> float:
    """Bring the parcels that have left a shard to the one that its range moves to. Any process may, any number of times.

    Args:
        left: a parcel that the caller has let leave, and which need not be read.
        keeps_leases: of an earlier epoch, too: their holders may still be working.
    Returns:
        When the last one had arrived, by the monotonic clock.
    """
    arrived = time.monotonic()
    with origin.carrying:  # another thread that misses the same lane would only do the same work at the same time
        for number in _parcels(origin, target):
            parcel = origin.look(bound(steps.read, origin.number, number, left))
            if parcel is None:
                continue  # another process has brought it
            origin.sync()
            if not target.drain(bound(steps.arrive, origin.incarnation, parcel, keeps_leases)):
                break  # the caller slept while its move ended, and another one began
            arrived = time.monotonic()
    return arrived


def carry_key(origin: Shard, target: Shard, passage: Passage, key: bytes, *, forwards: bool) -> bool:
    """Bring what a key without a lane has in the shard that its range leaves, and every parcel.

    Args:
        forwards: the caller forwards the sends of that shard, of which the next one is for this key.
    Returns:
        Whether the other shard may create the key's lane. False: the move has ended meanwhile, or was cancelled.
    Raises:
        StoreBusy: sends of transactions must arrive first.
    """
    if origin.read(lambda db: steps.is_loose(db, origin.number, key)):
        left = origin.drain(bound(steps.leave_loose, passage, [key], forwards))
        if left is None:
            raise StoreBusy("sends of its transactions must arrive before its range moves", shard=origin.number)
        if not left:
            return False
    carry(origin, target)
    return True


def turn_back(origin: Shard, target: Shard, passage: Passage) -> None:
    """Let what has left with a cancelled passage begin to come back. Any process may, any number of times.

    Nothing leaves the origin any more. So a key that has a state or rows there, and no lane, gets its lane there.
    """
    origin.sync()  # a power cut must not take the cancel, once the other shard relies on it
    carry(origin, target)

    def turn(tx: Tx) -> None:
        ranges = steps.of_shard(tx.lanes, target.range[2:])
        if ranges.arriving is not None and ranges.arriving.move == passage.move:
            back = passage.back(origin.number)
            steps.tell(tx, attrs.evolve(ranges.with_range(passage.lo, passage.hi), arriving=None, leaving=back))

    target.drain(turn)
    target.sync()


def sweep(origin: Shard, target: Shard, least: int = 1) -> None:
    """Delete the parcels that have arrived, and their messages. No call waits for it, so the callers of `carry` leave it out.

    Args:
        least: fewer are left for the next time.
    """
    numbers = _parcels(origin, target, arrived=True)
    if len(numbers) >= least:
        target.sync()  # until here, a power cut may take what has arrived: it is still in the other shard
        for number in numbers:
            while origin.drain(bound(steps.sweep, number)):
                pass


def _parcels(origin: Shard, target: Shard, *, arrived: bool = False) -> list[int]:
    """Return the parcels of a shard that have not arrived in the other one yet; or those that have."""
    numbers = origin.read(parcels.numbers)
    newest = target.read(bound(steps.newest_arrival, origin.incarnation)) if numbers else 0
    return [number for number in numbers if (number <= newest) is arrived]


def arrived_nowhere(shards: Sequence[Shard], origin: Shard) -> list[int]:
    """Return the parcels that have left a shard, and have arrived in none. While no range moves, there are none.

    A parcel that leaves later would not arrive, or it would be swept. An older version let one leave with a cancelled move.
    """
    numbers = origin.read(parcels.numbers) if origin.view(_has_moved) else []
    newest = max(shard.read(bound(steps.newest_arrival, origin.incarnation)) for shard in shards) if numbers else 0
    return [number for number in numbers if number > newest]


def carry_all(shards: Sequence[Shard], *, keeps_leases: bool = False) -> None:
    """Bring what has left any of these shards. See `carry`."""
    for origin in shards:
        passage = origin.view(lambda lanes: None if lanes.memory.ranges is None else lanes.memory.ranges.leaving)
        if passage is not None and passage.shard < len(shards):
            carry(origin, shards[passage.shard], keeps_leases=keeps_leases)


def visits(store: Movable) -> Iterator[Shard]:
    """Yield each shard in service, for a verb over all keys; and again each in which lanes have arrived since its turn.

    So each lane that was in some shard at the beginning was in one during its turn.
    """
    arrived: dict[int, int] = {}
    while some := [shard for shard in store.everywhere() if arrived.get(shard.number) != shard.read(steps.arrivals)]:
        for shard in some:
            arrived[shard.number] = shard.read(steps.arrivals)
            yield shard
        carry_all(store.shards)


@attrs.define
class _Progress:
    lanes: int = 0
    messages: int = 0
    longest: float = 0.0


def resume(store: Movable) -> bool:
    """Continue a move whose process died, unless another process does. Return whether there was one."""
    if store.directory is None or store.read_only:
        return False
    moving = Moving(store, waits=False)  # its thread has other work
    if moving.running() is None:
        return False
    with suppress(MoveInProgress), moving.alone(seconds=0.0):
        pass
    return True


def topology(store: Movable) -> Topology:
    """Return what each shard owns and holds, and the move that runs."""
    with files.late():
        from ..._values.findings import Move, ShardRange, Topology

    if store.directory is not None:
        store.learn_shards()  # another process may have added some
    before, found = None, _all_counts(store)
    while before != (before := {number: ranges for number, (ranges, *_) in found.items()}):
        found = _all_counts(store)  # another process may move ranges while they are read
    own = {number: ranges.own for number, ranges in before.items()}
    running: Move | None = None
    if (moves := _running(before)) is not None:
        number, passage = moves
        running = Move(number, passage.shard, passage.lo, passage.hi)
        if passage.shard in before and before[passage.shard].owns(passage.lo):  # it ends now
            own[number] = before[number].without(passage.lo, passage.hi).own
    sends = sum(sent for *_, sent in found.values())
    return Topology(
        tuple(
            ShardRange(number, own[number], messages, lanes, sent / sends if sends else 0.0, retired=not own[number])
            for number, (_, lanes, messages, sent) in found.items()
        ),
        running,
    )


def _all_counts(store: Movable) -> dict[int, tuple[Ranges, int, int, int]]:
    return {shard.number: shard.view(partial(_counts, shard=shard)) for shard in store.everywhere()}


def _running(found: Mapping[int, Ranges]) -> tuple[int, Passage] | None:
    """Return the move that has begun and has not ended, with the shard that the range leaves.

    One that was cancelled is there until the one that brings everything back is in both shards.
    """
    leaving = [(number, ranges.leaving) for number, ranges in found.items() if ranges.leaving is not None]
    return max(leaving, key=lambda one: one[1].cancelled, default=None)


class InUse:
    """The numbers of the shards that own a range, which consumers divide. They are looked up again after a second."""

    __slots__ = ("_found", "_shards", "_until")

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards  # it grows
        self._found: list[int] = []
        self._until = 0.0

    def __iter__(self) -> Iterator[int]:
        now = time.monotonic()
        if now >= self._until:
            self._found = [shard.number for shard in self._shards if _is_in_use(shard)]
            self._until = now + IN_USE_SECONDS
        return iter(self._found)


def _is_in_use(shard: Shard) -> bool:
    try:
        return shard.read(lambda db: steps.is_in_use(db, shard.number, shard.range[2:]))
    except StrictqError:
        return True


class Moving:
    """The moves of a queue."""

    __slots__ = ("_store", "_waits")

    def __init__(self, store: Movable, *, waits: bool = True) -> None:
        """Move ranges of this queue. `waits`: for recorded batches and for sends that hold a range."""
        self._store = store
        self._waits = waits

    def _until(self) -> float:
        return time.monotonic() + (WAIT_SECONDS if self._waits else 0.0)

    # ---- what operators ask for

    def split(self, number: int, at: int | None, parts: int, on_progress: OnProgress | None, long_pause: bool = False) -> Moved:
        """Divide what a shard owns. A part of it, or all parts but one, move to new shards.

        Args:
            at: the first hash that moves. None: `parts` equal parts.
            long_pause: move keys that must wait for seconds, too.
        Raises:
            MoveInProgress, MoveBlocked, InvalidArgument, ConfigError: nothing changed.
        """
        with self.alone():
            source = self._shard(number)
            own = self._ranges(source).own
            if not own:
                raise InvalidArgument(f"shard {number} owns no range, so there is nothing to split")
            spans = _cut(own, at, parts)
            self._require(source, len(spans), [span for some in spans for span in some], long_pause)
            done = _Progress()
            began = time.monotonic()
            for some in spans:
                target = self._add_shard()
                for lo, hi in some:
                    self._move(source, target, lo, hi, done, on_progress)
            return self._moved(done, began)

    def merge(self, number: int, into: int, on_progress: OnProgress | None, long_pause: bool = False) -> Moved:
        """Move everything that a shard owns into another one."""
        with self.alone():
            source, target = self._shard(number), self._shard(into)
            own = self._ranges(source).own
            if number == into or not own:
                raise InvalidArgument(
                    f"shard {number} can't be merged into itself" if number == into else f"shard {number} owns no range"
                )
            self._require(source, 0, own, long_pause)
            done, began = _Progress(), time.monotonic()
            for lo, hi in own:
                self._move(source, target, lo, hi, done, on_progress)
            return self._moved(done, began)

    def move(self, lo: int, hi: int, to: int | None, on_progress: OnProgress | None, long_pause: bool = False) -> Moved:
        """Move a range, which one shard owns, to another one. None: to a new one."""
        with self.alone():
            source = self._owner(lo, hi)
            if to == source.number:
                raise InvalidArgument(f"shard {to} owns this range already")
            target = None if to is None else self._shard(to)
            self._require(source, target is None, [(lo, hi)], long_pause)
            target = target or self._add_shard()
            done, began = _Progress(), time.monotonic()
            self._move(source, target, lo, hi, done, on_progress)
            return self._moved(done, began)

    def isolate(self, key: bytes, on_progress: OnProgress | None, long_pause: bool = False) -> Moved:
        """Give a key a shard of its own."""
        hashed = hash_of(key)
        return self.move(hashed, hashed, None, on_progress, long_pause)

    def cancel(self) -> bool:
        """Cancel the move that runs. Return whether there was one.

        The caller that moves the range notices, and brings back what has left. If there is none, this one does.
        """
        found = self.running()
        if found is None:
            return False
        source, target, passage = found

        def mark(tx: Tx) -> bool:
            ranges = self._of(tx, source)
            if ranges.leaving != passage:
                return False  # it has ended, or another caller has cancelled it
            leaving = attrs.evolve(passage, cancelled=True)
            steps.tell(tx, attrs.evolve(ranges, leaving=leaving, arriving=passage.back(target.number)))
            return True

        if not passage.cancelled and not passage.is_back:
            if not source.run(mark):
                return self.cancel()
            source.sync()
        with suppress(MoveInProgress), self.alone(seconds=0.0):
            pass
        return True

    # ---- a move

    @contextmanager
    def alone(self, *, seconds: float = 0.5) -> Iterator[None]:
        """Keep other moves from beginning. A move that was left unfinished is finished first.

        Raises:
            MoveInProgress: another caller moves a range.
        """
        store = self._store
        if not store.moves.acquire(timeout=seconds):
            raise MoveInProgress("another range of this queue is moving", hint=hints.ONE_MOVE)
        lock = None if store.directory is None else files.Lock(store.directory / layout.MOVE_LOCK)
        try:
            if lock is not None and not lock.alone(seconds):
                raise MoveInProgress("another range of this queue is moving, or a batch is written", hint=hints.ONE_MOVE)
            if store.directory is not None:
                store.refresh_settings()
            if (found := self.running()) is not None:
                self._continue(*found, _Progress(), None)
            yield
        finally:
            if lock is not None:
                lock.leave()
            store.moves.release()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep ranges from moving. Meanwhile this process knows the owner of every key.

        Raises:
            MoveInProgress: a range has been moving for long.
        """
        store = self._store
        if store.directory is None:
            with self.alone(seconds=WAIT_SECONDS):
                yield
            return
        lock = files.Lock(store.directory / layout.MOVE_LOCK)
        try:
            while True:
                if not lock.share(WAIT_SECONDS):
                    raise MoveInProgress("a range of this queue is moving", hint=hints.ONE_MOVE)
                store.refresh_settings()
                if self.running() is None:
                    break
                lock.leave()  # its process died
                with suppress(MoveInProgress), self.alone():
                    pass
            for shard in store.healthy():
                for lo, hi in self._ranges(shard).own if shard.view(_has_moved) else ():
                    store.note_owner(lo, hi, shard.number)
            yield
        finally:
            lock.leave()

    def running(self) -> tuple[Shard, Shard, Passage] | None:
        """Return the move that runs: the shard that the range leaves, and the other one."""
        found = _running({shard.number: self._ranges(shard) for shard in self._store.healthy()})
        if found is None:
            return None
        number, passage = found
        if max(number, passage.shard) >= len(self._store.shards):
            self._store.learn_shards()
        return self._store.shards[number], self._store.shards[passage.shard], passage

    def _move(self, source: Shard, target: Shard, lo: int, hi: int, done: _Progress, on_progress: OnProgress | None) -> None:
        """Move a range that `source` owns."""
        if table := target.look(lambda db: steps.rows_in_the_way(db, target.number, lo, hi)):
            raise MoveBlocked(
                f"the table {table} of shard {target.number} has rows of keys of the range already; nothing of it has moved",
                hint=hints.CLEAR_ROWS,
            )
        for shard in self._store.shards:  # every shard must know that keys may be elsewhere
            knows = shard.view(_has_moved)
            if not knows or shard in (source, target):
                _bring_to_rest(shard)
            if not knows:
                shard.run(lambda tx, shard=shard: steps.tell(tx, self._of(tx, shard)))  # type: ignore[misc]
        passage = Passage(os.urandom(8).hex(), lo, hi, target.number)
        there = attrs.evolve(passage, shard=source.number)
        # First where it arrives: until the other one knows of the move, nothing is created there.
        target.run(lambda tx: steps.tell(tx, attrs.evolve(self._of(tx, target), arriving=there)))
        target.sync()
        source.run(lambda tx: steps.tell(tx, attrs.evolve(self._of(tx, source), leaving=passage)))
        source.sync()
        self._continue(source, target, passage, done, on_progress)

    def _continue(self, source: Shard, target: Shard, passage: Passage, done: _Progress, on_progress: OnProgress | None) -> None:
        """Carry over what is left of a range, and end the move.

        Raises:
            MoveBlocked: it can't be ended now; or another caller has cancelled it, and everything has come back.
        """
        if passage.cancelled:
            self._turn_back(source, target, passage)
            return
        carry(source, target)
        sweep(source, target)
        until = self._until()
        after: bytes | None = b""
        waits = 0  # since the search began with the first lane
        while after is not None:
            # Most of a large shard may be outside the range. It is read without the write lock.
            found = source.look(bound(steps.ahead, source.number, passage, after, source.lanes.memory.limits.chunk))
            if not found.keys and found.after is not None:
                after = found.after
                continue
            began = time.monotonic()
            left = source.drain(bound(steps.leave, passage, found))
            if left is None:
                if self._cancelled(source, passage) is not None:
                    break
                self._forward(source, until)
                continue
            done.longest = max(done.longest, carry(source, target, left.parcel) - began)
            sweep(source, target, SWEPT_TOGETHER)
            if left.parcel is not None:
                until = self._until()
                done.lanes += len(left.parcel.rows[parcels.LANE])
                done.messages += len(parcels.listed(left.parcel.rows))
            if on_progress is not None:
                on_progress(done.messages, done.messages + self._left(source, passage, done.messages))
            after = left.after
            waits += left.waits
            if after is None and waits:
                if time.monotonic() > until:
                    raise MoveBlocked(
                        f"{waits} keys of the range are leased to a named consumer's batch; the rest has moved",
                        hint=hints.END_BATCHES,
                    )
                time.sleep(PAUSE_SECONDS)
                after, waits = b"", 0
        if self._cancelled(source, passage) is None:
            self._bring_loose(source, target, passage, done)
        if self._cancelled(source, passage) is None:
            self._end(source, target, passage)
        if (cancelled := self._cancelled(source, passage)) is not None:
            self._turn_back(source, target, cancelled)
            raise MoveBlocked("the move was cancelled, and what had moved has come back")

    def _cancelled(self, source: Shard, passage: Passage) -> Passage | None:
        """Return the move as it is stored, if another caller has cancelled it."""
        leaving = self._ranges(source).leaving
        return leaving if leaving is not None and leaving.cancelled and leaving.move == passage.move else None

    def _turn_back(self, source: Shard, target: Shard, passage: Passage) -> None:
        """Bring back what has left with a move that was cancelled. Each step may be repeated."""
        turn_back(source, target, passage)
        sweep(source, target)

        def arrives(tx: Tx) -> None:
            ranges = self._of(tx, source)
            if ranges.leaving == passage:
                steps.tell(tx, attrs.evolve(ranges.moved_to(passage.lo, passage.hi, target.number), leaving=None))

        source.run(arrives)
        source.sync()
        self._continue(target, source, passage.back(source.number), _Progress(), None)

    def _bring_loose(self, source: Shard, target: Shard, passage: Passage, done: _Progress) -> None:
        """Carry over the states of keys without lanes, and the program's rows of such keys."""
        until = self._until()
        place: steps.Place | None = steps.BEGIN
        while place is not None:
            keys, place = source.look(lambda db, place=place: steps.loose(db, source.number, passage, place))  # type: ignore[misc]
            while keys:
                left = source.drain(bound(steps.leave_loose, passage, keys))
                if left == 0:
                    return  # it was cancelled
                if left is None:
                    self._forward(source, until)
                    continue
                carry(source, target)
                sweep(source, target)
                done.lanes += left  # they have lanes from now on
                keys = keys[left:]

    def _forward(self, source: Shard, until: float) -> None:
        """Let what transactions of a shard have sent to others arrive.

        Raises:
            MoveBlocked: it has not, for long.
        """
        self._store.forward([source])
        if time.monotonic() > until and source.read(lambda db: db.execute(OUTBOX.any).get is not None):
            raise MoveBlocked("sends of its transactions to other shards do not arrive; the rest has moved")

    def _end(self, source: Shard, target: Shard, passage: Passage) -> None:
        def arrived(tx: Tx) -> None:
            ranges = self._of(tx, target)
            if ranges.arriving is not None and ranges.arriving.move == passage.move:
                tx.lanes.memory.floor = max(tx.lanes.memory.floor, floor)
                steps.note_sends(tx, sends)
                steps.tell(tx, attrs.evolve(ranges.with_range(passage.lo, passage.hi), arriving=None))

        def left(tx: Tx) -> None:
            ranges = self._of(tx, source)
            if ranges.leaving == passage:
                steps.tell(tx, attrs.evolve(ranges.moved_to(passage.lo, passage.hi, target.number), leaving=None))

        carry(source, target)  # another process may have let the last ones leave
        sweep(source, target)
        floor = source.view(lambda lanes: lanes.memory.floor)
        sends = source.read(bound(steps.sends_arrived, source.number))  # also to keys whose lanes were forgotten since
        target.run(arrived)
        target.sync()
        source.run(left)
        source.sync()
        self._store.note_owner(passage.lo, passage.hi, target.number)

    # ---- parts

    @staticmethod
    def _of(tx: Tx, shard: Shard) -> Ranges:
        return steps.of_shard(tx.lanes, shard.range[2:])

    @staticmethod
    def _ranges(shard: Shard) -> Ranges:
        return shard.view(lambda lanes: steps.of_shard(lanes, shard.range[2:]))

    def _left(self, source: Shard, passage: Passage, done: int) -> int:
        """Return about how many messages of a range have not left yet.

        Args:
            done: how many have.
        """
        ranges, _, messages, _ = source.view(partial(_counts, shard=source))
        owned = sum(hi - lo + 1 for lo, hi in ranges.own)
        return max((messages + done) * (passage.hi - passage.lo + 1) // max(owned, 1) - done, 0)

    def _moved(self, done: _Progress, began: float) -> Moved:
        with files.late():
            from ..._values.findings import Moved

        return Moved(done.lanes, done.messages, time.monotonic() - began, done.longest)

    def _shard(self, number: int) -> Shard:
        if not 0 <= number < len(self._store.shards):
            raise InvalidArgument(f"there is no shard {number}: the queue has {len(self._store.shards)}, numbered from 0")
        return self._store.shards[number]

    def _owner(self, lo: int, hi: int) -> Shard:
        if not 0 <= lo <= hi < HASHES:
            raise InvalidArgument("a range is two hashes of 64 bits, the lower one first")
        for shard in self._store.shards:
            if any(begin <= lo and hi <= end for begin, end in self._ranges(shard).own):
                return shard
        raise InvalidArgument("no shard owns all of this range", hint=hints.SEE_TOPOLOGY)

    def _require(self, source: Shard, added: int, spans: Sequence[tuple[int, int]], long_pause: bool) -> None:
        """Refuse a move that the queue can't have.

        Args:
            added: how many shards it adds.
            spans: the ranges that leave.
        Raises:
            ConfigError, MoveBlocked: nothing changed.
        """
        store = self._store
        if len(store.shards) + added > SHARDS_MAX:
            raise InvalidArgument(f"a queue has at most {SHARDS_MAX} shards, with those that own nothing")
        if store.config.dedup_scope == "queue":
            raise ConfigError("dedup_scope='queue' needs a queue of one shard; nothing was changed", hint=hints.ONE_SHARD_OR_KEY)
        for shard in store.shards:
            if shard.failed is not None:
                raise MoveBlocked(f"shard {shard.number} is out of service; nothing was changed", hint=hints.REPAIR_SHARD)
            if (batch := shard.read(lambda db: db.execute(APPLIED.open_batches).fetchone())) is not None:
                raise MoveBlocked(f"writer {batch[0]!r} has an incomplete batch; nothing was changed", hint=hints.FINISH_BATCH)
        if stranded := arrived_nowhere(store.shards, source):
            raise MoveBlocked(
                f"parcel {stranded[0]} of shard {source.number} has arrived nowhere, and its move has ended; nothing was changed",
                hint=hints.SALVAGE_PARCEL,
            )
        store.refresh_app_schema()
        source.look(lambda db: steps.app_tables(db, source.number))
        loaded = source.view(steps.depths)  # a survey would replay all that was not folded
        found = source.look(lambda db: steps.long_key(db, source.number, loaded, spans, LONG_LANE))
        if not long_pause and found is not None:
            key, rows = found
            raise MoveBlocked(
                f"key {decode_key(key)!r} has {rows:,} messages or rows: it would wait for about {rows / LONG_RATE:.0f} s; "
                "nothing was changed",
                hint=hints.LONG_PAUSE,
            )

    def _add_shard(self) -> Shard:
        store = self._store
        if store.directory is None:
            store.learn_shards(store.topology.with_one_more())
        else:
            store.learn_shards(queue_db.add_shard(store.directory).topology)
            store.refresh_settings()
        return store.shards[-1]


def _has_moved(lanes: ShardLanes) -> bool:
    return lanes.memory.ranges is not None


def _bring_to_rest(shard: Shard) -> None:
    """Fold what has changed in a shard, in steps that other callers hardly wait for. A step of a move folds the rest."""
    upto = shard.view(lambda lanes: lanes.commits)
    while shard.view(bound(steps.is_behind, upto)):
        shard.run(lambda tx: tx.lanes.folder.slice(tx.now))


def _counts(lanes: ShardLanes, shard: Shard) -> tuple[Ranges, int, int, int]:
    totals = lanes.memory.totals
    return steps.of_shard(lanes, shard.range[2:]), totals.lanes, totals.pending, totals.sends


def _cut(own: tuple[tuple[int, int], ...], at: int | None, parts: int) -> list[list[tuple[int, int]]]:
    """Return the ranges that leave, for each new shard."""
    if at is not None:
        if not any(lo < at <= hi for lo, hi in own):
            raise InvalidArgument("the hash is not inside a range of this shard", hint=hints.SEE_TOPOLOGY)
        return [[(max(lo, at), hi) for lo, hi in own if hi >= at]]
    total = sum(hi - lo + 1 for lo, hi in own)
    if not 2 <= parts <= total:
        raise InvalidArgument(f"the shard cannot be divided into {parts} parts: it owns {total:,} of the hashes")
    found: list[list[tuple[int, int]]] = []
    for part in range(1, parts):
        begin, end = total * part // parts, total * (part + 1) // parts  # in hashes from the beginning of what it owns
        some: list[tuple[int, int]] = []
        passed = 0
        for lo, hi in own:
            size = hi - lo + 1
            first, last = max(begin - passed, 0), min(end - passed, size)
            if first < last:
                some.append((lo + first, lo + last - 1))
            passed += size
        found.append(some)
    return found


__all__ = ["InUse", "Moving", "OnProgress", "arrived_nowhere", "carry", "carry_all", "carry_key", "resume", "topology", "visits"]
