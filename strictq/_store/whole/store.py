"""The store of a queue: its shards, and the state that they share. Modules above use `api.Storage`."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

import apsw

from ..._platform import files, fork
from ..._platform import process as _process
from ..._platform.clock import Clock, QueueTime, SteeredClock
from ..._platform.files import real_path
from ..._platform.observe import EventHook, Observers, notify
from ..._sql import TABLES
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import (
    ConfigError,
    ForkedProcess,
    QueueClosed,
    QueueNotFound,
    ReadOnlyQueue,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
)
from ..._values.stats import ReplicationStatus
from ..._values.tenants import TenantRules
from ..._values.types import Event
from ..catalog import contents, queue_db
from ..catalog.contents import Catalog
from ..commit.checkpoint import PAGE_BYTES, SHORT_WAL_PAGES
from ..commit.connection import Durability
from ..commit.tx import NEVER, OpenTransaction, open_transaction
from ..disk import layout, locks, reserve
from ..disk.shared_flags import Waker, waker_of
from ..disk.topology import Range
from ..lane.ranges import Rerouted
from ..shard import claiming, sending
from ..shard.leases import Held, Lost
from ..shard.messages import Item, Sent
from ..shard.shard_file import CHECKPOINT_WAIT_SECONDS, KnownEmpty, Mover, Shard
from ..shard.shard_lanes import ShardLanes
from ..shipping.confirming import Confirming
from ..shipping.shipping import Shipping
from . import epoch, moving, outbox
from .consumers import Consumers
from .forgetting import Forgetting
from .quotas import Quotas
from .routing import Routing
from .settings import OnMismatch
from .upkeep import Upkeep

Hook = Callable[[Event], None]
Items = Sequence[Item]

WAITED_MAX: Final = 100_000
"""The maximum number of seconds of a wait that are counted."""
EMPTY_SECONDS: Final = 0.1
"""How long a receive passes over a shard that was empty, if no process says that this changed."""
EAGER_SHARDS: Final = 16
"""Up to this number, shards are opened with the queue, so that a damaged one and a full outbox are noticed at once."""
TIMESTAMP_NS: Final = 1_000_000_000
"""A file may be written twice within its resolution of times, and have one time. It is much shorter than this."""
ROW_BYTES: Final = 400
"""An upper bound of a message's disk space besides its body, including the unused part of its page."""


def _epoch(db: apsw.Connection) -> int | None:
    epoch: int | None = db.execute(TABLES.epoch).get
    return epoch


def _lane_outlook(lanes: ShardLanes, now: int) -> tuple[bool, int, int, int]:
    """Return whether something may be ready, when that may change by itself, and the epoch and the settings of the last write."""
    ready, at = claiming.outlook(lanes, now)
    mark = lanes.memory.mark
    return ready, at, mark.epoch, mark.config_version


class ReplicaLook(Protocol):
    """A read-only view of a living replica. The replica's files are not written to while it is open."""

    home: Path

    def status(self) -> ReplicationStatus:
        """Return the status of the replica."""
        ...

    def leave(self) -> None:
        """Close the view."""
        ...


class Store(Routing):
    """All shards of one queue, in one process."""

    def __init__(
        self,
        directory: Path | None,
        known: Catalog,
        clock: Clock,
        *,
        durability: Durability,
        read_only: bool = False,
        hook: Hook | None = None,
        look: ReplicaLook | None = None,
    ) -> None:
        super().__init__(directory, known, read_only=read_only)
        self.look = look
        """A view of a living replica, which is not written to while this is open."""
        self.catalog = known._replace(durability=durability)
        self.stored_durability = known.durability
        self.clock = clock
        self.steered = clock if isinstance(clock, SteeredClock) else None
        self.epoch = known.epoch
        self.time_offset = known.time_offset
        self.time = QueueTime(clock, known.time_offset)
        self.now = self.time.now
        self.reserve: reserve.Reserve | None = None
        self.keeps_leases = False
        """Whether timed leases of an earlier epoch last until their deadlines. Their holders may live on another machine."""
        self.begins_boot = False
        """Whether the queue is opened for writing for the first time since the machine booted."""
        self.mover: Mover | None = None
        """Migrates shards of older formats as they are opened. None: they are refused."""
        self.short_of_space = False
        """Whether the reserve was released and is not restored yet."""
        self.presence: locks.Presence | None = None
        self.observers = Observers()
        if hook is not None:
            self.observers.add(EventHook(hook))
        self._waited = 0.0
        self._own_locks: WeakSet[files.Lock] = WeakSet()
        """Locks that a forked child releases."""
        self.consumers = Consumers(self, self._own_locks)
        self._empties: Counter[int] = Counter()
        self._pid = _process.pid
        self._closed = self._closing = False
        if directory is None:
            self.waker = Waker()
        else:
            self.waker = waker_of(directory, layout.WAKE, self, read_only=read_only)
            if not read_only:
                self.waker.begin_boot(clock.boot_id())
                self.reserve = reserve.Reserve(directory, self.waker.tell_space, self)
        self.wake = self.waker.notify
        self.quotas = Quotas(self, lambda: self.now(), directory, clock)
        self.rates = self.quotas.rates
        self.note_change = self.waker.note_change
        self.suspects = self.waker.suspects
        self.synced, self.note_synced = self.waker.synced, self.waker.note_synced
        self.trust = self.waker.trust
        self.shipping = Shipping(self)
        self.confirming = Confirming(self)
        self.shards: list[Shard] = []
        self._forgetting: list[Forgetting] = []
        self._forget_at = 0
        """The queue time before which no shard has anything to forget."""
        for part in known.topology:
            self._add_shard(part)
        if self.steered is not None:
            self.steered.listen(self.waker.notify)
        self._forgets = threading.Lock()
        self._tidied: list[tuple[int, int]] | None = None
        """What `_written` was when upkeep had nothing to do. None: it had, or it is not known."""
        self._upkeep = Upkeep(self)
        self._prepared_shards: list[Shard] | None = None
        fork.register(self)

    # ---- opening and closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None,
        durability: Durability | None,
        config: QueueConfig | None,
        create: bool,
        read_only: bool,
        clock: Clock,
        hook: Hook | None,
        on_mismatch: OnMismatch = "error",
        look: ReplicaLook | None = None,
    ) -> Store:
        """Open or create the queue in a directory. What was given must agree with what is stored.

        Args:
            on_mismatch: what to do if `config` differs from the stored one; see `strictq.open`.
            look: a view of the living replica in this directory, closed with the store. Requires read_only.
        """
        # The directory itself may be reached through links. The files in it may not be links.
        directory = Path(real_path(path))
        if not layout.find(directory, replica=look is not None):
            if read_only or not create:
                raise QueueNotFound(f"there is no queue at {directory}")
            fresh = contents.new(shards or 1, durability or "full", config or QueueConfig(), clock)
            layout.publish(directory, lambda place: queue_db.build(place, fresh, clock))
        known = queue_db.read(directory, read_only=read_only)
        if known.replication is not None and known.replication.mode == "waiting" and not read_only:
            raise ConfigError(
                f"{directory} was restored or backed up, and its original may still be in service; nothing was changed",
                hint=hints.PUT_IN_SERVICE.of(path=directory),
            )
        level = contents.agree(known, shards, durability, config if on_mismatch == "error" else None)
        layout.check_own(directory, writing=not read_only)
        presence = None if read_only else locks.Presence(directory)
        begins_boot = not read_only and known.boot_id != clock.boot_id()
        store = None
        try:
            if presence is not None:
                known = epoch.join(directory, known, presence, clock)
            elif known.boot_id != clock.boot_id():
                # The queue was not opened for writing since this machine booted. Use the time that its next epoch will have.
                known = known._replace(time_offset=epoch.next_offset(directory, known, clock))
            store = cls(directory, known, clock, durability=level, read_only=read_only, hook=hook, look=look)
            store.presence = presence
            store.begins_boot = begins_boot
            if not read_only:
                store.app_schema = queue_db.app_schema(directory, 0)
            if config is not None:
                store.compare(config, on_mismatch)
            store._look_round()
        except BaseException:
            if store is not None:
                store.die()
            if presence is not None:
                presence.leave()
            raise
        return store

    @classmethod
    def in_memory(
        cls,
        *,
        shards: int | None,
        durability: Durability | None,
        config: QueueConfig | None,
        clock: Clock,
        hook: Hook | None,
    ) -> Store:
        """Create a queue with nothing on disk, private to this object."""
        fresh = contents.new(shards or 1, durability or "process", config or QueueConfig(), clock)
        return cls(None, fresh, clock, durability=durability or "process", hook=hook)

    def _look_round(self) -> None:
        with self.confirming.later():  # no process ships yet, and no caller has anything to confirm
            self._open_shards()

    def _open_shards(self) -> None:
        if len(self.shards) <= EAGER_SHARDS:
            for shard in self.shards:
                try:
                    shard.open()
                except StoreBusy:
                    pass  # it is opened later
                except StoreError:
                    # A damaged shard is quarantined, and the others serve. A reader has no use for one that it cannot read.
                    if self.read_only and shard.failed is None:
                        raise
            if not self.read_only:
                with suppress(StrictqError):
                    self.forward()
        if self.begins_boot or (not self.read_only and len(self.shards) <= EAGER_SHARDS):
            self._end_boot()
        if not self.read_only:
            self._has_reserve()
            self._upkeep.start()

    def _end_boot(self) -> None:
        """End the leases of the previous boot. Reads would otherwise show them as live until the first write to each shard."""
        for shard in self.shards:
            with suppress(StrictqError):  # the first write does it
                epoch = shard.glance(_epoch)
                if epoch is not None and epoch < self.epoch:  # check() reports a missing row
                    shard.run(lambda _tx: None, 0.0)

    def close(self) -> None:
        """Close every connection. Leases stay. Closing twice does nothing.

        The last process with the queue open leaves empty WALs, so that another SQLite program that opens a shard finds nothing to
        checkpoint.

        Raises:
            InvalidArgument: this thread is inside a transaction of the queue; nothing was closed.
        """
        if self._pid == _process.pid:
            OpenTransaction.require_none(self)
            for shard in self.shards:
                shard.require_outside()
        if self._closing:
            return  # another thread closes it, or this one, which a signal interrupted
        self._closing = True
        self._end(empty=True)

    def die(self) -> None:
        """Close every connection as the end of the process would: an open transaction of this thread is rolled back."""
        self._end(empty=False)

    def _end(self, *, empty: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._pid != _process.pid:
            self.waker.leave(self)
            return
        self._upkeep.stop()
        try:
            last = empty and self.presence is not None and self.presence.is_last()
            self.shipping.end(last=last, flush=empty)
            # The WAL of a replicated queue stays, for the process that ships the rest of it.
            if last and self.presence is not None and not self.shipping.wanted:
                for shard in self.shards:
                    shard.close(last=True)
                if self.presence.alone(0.0):  # no process opened it meanwhile
                    for shard in self.shards:
                        shard.wal.mark_empty()
        finally:  # also if interrupted, so that no connection stays open
            self._leave()

    def _leave(self) -> None:
        for shard in self.shards:
            shard.close(last=False)
        for lock in list(self._own_locks):
            lock.leave()
        if self.presence is not None:
            self.presence.leave()
        self.rates.close()
        self.waker.notify()
        self.waker.leave(self)
        if self.look is not None:
            self.look.leave()

    def require_open(self, *, writing: bool = True, inside: bool = False) -> None:
        """Refuse a call that this queue object can't serve here.

        Args:
            writing: the call writes.
            inside: the call is permitted inside a transaction of this context.
        Raises:
            QueueClosed, ForkedProcess, ReadOnlyQueue, InvalidArgument: nothing changed.
        """
        if self._closed:
            raise QueueClosed("the queue is closed")
        if self._pid != _process.pid:
            if self.directory is None:
                raise ForkedProcess("a queue in memory belongs to the process that opened it", hint=hints.FORKED_MEMORY)
            raise ForkedProcess("the queue was inherited through a fork that strictq could not prepare for")
        if writing and self.look is not None:
            raise ReadOnlyQueue(
                "this is a replica that receives changes; nothing was changed", hint=hints.PROMOTE.of(path=self.look.home)
            )
        if writing and self.read_only:
            raise ReadOnlyQueue("the queue was opened with read_only=True")
        if writing and not inside and open_transaction.get() is not None:
            OpenTransaction.require_none(self)

    @property
    def closed(self) -> bool:
        return self._closed

    def _add_shard(self, part: Range) -> None:
        # A commit in memory costs less than waking a thread, as at "process".
        grouped = self.catalog.durability == "full" and self.directory is not None
        shard = Shard(self, part, self.directory, grouped=grouped)
        self._forgetting.append(Forgetting(shard))
        self.shards.append(shard)
        self._forget_at = 0

    # ---- sending

    def send(
        self,
        shard: Shard,
        items: Items,
        checked: QueueConfig | None,
        moved: dict[bytes, int],
        elsewhere: sending.Elsewhere | None = None,
    ) -> Sequence[Sent]:
        """Append messages to one shard.

        Args:
            checked: the configuration that they were validated against. None: of none.
            moved: gets the shards of keys whose lanes are in another one.
            elsewhere: what the other shards have. None: they are asked if a limit needs it.
        """
        self.require_room(shard, items)
        rules = self.tenancy if self.settings[0].limits else None
        if rules is None or not (rules.limits_sends or rules.limits_depth):
            return self._append(shard, items, checked, moved, elsewhere or self.quotas.elsewhere(shard))
        keys = [item[0] for item in items]
        wanted = rules.messages_of(keys)
        with self.quotas.admitted(wanted, keys):
            return self._append(shard, items, checked, moved, self.quotas.elsewhere(shard, wanted))

    def _append(
        self, shard: Shard, items: Items, checked: QueueConfig | None, moved: dict[bytes, int], elsewhere: sending.Elsewhere
    ) -> Sequence[Sent]:
        try:
            return shard.run(sending.Append(items, checked, elsewhere))
        except Rerouted:

            def append(at: Shard, some: list[int]) -> Sequence[Sent]:
                sent = at.run(sending.Append([items[i] for i in some], checked, elsewhere))
                moved.update((items[i][0], at.number) for i in some)
                return sent

            return self.at_owners(shard, [item[0] for item in items], append)

    def send_one(self, item: Item, checked: QueueConfig | None) -> tuple[int, Sent]:
        """Append one message, in fewer steps. Return its shard and its place.

        Args:
            checked: as for `send`. None: the message has no options, and its size is not checked yet.
        """
        shards = self.shards
        shard = shards[0] if len(shards) == 1 else self.shard_of(item[0])
        config = self.settings[0]
        elsewhere: sending.Elsewhere | None = None
        if (self.reserve is None or not self.waker.short_of_space) and not config.limits:
            elsewhere = sending.NOTHING_ELSEWHERE if config.max_depth is None else self.quotas.elsewhere(shard)
            sent = shard.send_alone(item, checked, elsewhere.messages)
            if sent is not None:
                return shard.number, sent
        moved: dict[bytes, int] = {}
        sent = self.send(shard, [item], checked, moved, elsewhere)[0]
        return moved.get(item[0], shard.number), sent

    def ack_one(self, shard: int, held: Held, seq: int) -> Lost:
        """Ack one message of a lease, in fewer steps. Return its refusal."""
        at = self.shards[shard]
        try:
            return at.ack_one(held, seq)
        except Rerouted:
            return self.at_owners(at, [held.key], lambda to, _: to.ack([held.some((seq,))]))[0]

    @property
    def tenancy(self) -> TenantRules | None:
        """The limits of tenants. None: the queue has none."""
        return self.quotas.tenancy

    def require_room(self, shard: Shard, items: Items = ()) -> None:
        """Refuse to send while the reserve for acks is in use, or if a checkpoint would find no room for the messages.

        Raises:
            StoreFull: nothing changed.
        """
        if shard.failed is not None:
            shard.require()
        if self.confirming.active:
            self.confirming.require_answers()
        if self.reserve is not None and self.waker.short_of_space and not self._has_reserve():
            raise StoreFull("the disk is full, and the reserve for acks is in use", shard=shard.number)
        if shard.wal.cramped:
            size = sum(len(item[1]) + ROW_BYTES + len((item[2] and item[2].headers) or "") for item in items)
            if not shard.has_room(size) or not self._leaves_room(shard, size):
                raise StoreFull("the disk is full", shard=shard.number)

    def _leaves_room(self, shard: Shard, size: int) -> bool:
        """Return whether, with the small reserve, there is room for this many bytes besides what consumers need.

        Databases do not shrink. So each round of filling and draining must leave the space of short WALs and, for what a
        consumer writes before it frees a page, some of the pages that the last messages left.
        """
        if self.reserve is None or self.reserve.size() >= reserve.RESERVE_BYTES:
            return True
        # Doubled for what a consumer adds. Every page of a WAL may be new to its database, so WALs do not count as room here.
        if (files.free_bytes(shard.path) or 0) - size >= 2 * self._room_for_wals():
            return True
        free = shard.glance(lambda db: int(db.pragma("freelist_count")))
        return (free - SHORT_WAL_PAGES) * PAGE_BYTES >= size

    def _has_reserve(self) -> bool:
        there = self.reserve is None or self.reserve.there()
        self.short_of_space = not there
        return there

    def make_room(self) -> None:
        """Release the reserve on a full disk for consumers, and the space of every WAL that can be truncated."""
        self.short_of_space = True
        if self.reserve is not None:
            self.reserve.give_up()
        self.cut_wals()

    # ---- room on a full disk (reserve.Room)

    def has_room(self, size: int) -> bool:
        paths = [s.path for s in self.shards if s.path is not None]
        free = (files.free_bytes(paths[0]) or 0) + sum(map(layout.wal_bytes, paths))
        return free - size >= self._room_for_wals()

    def _room_for_wals(self) -> int:
        """Return the room that WALs need.

        A WAL may exceed its limit by a batch. If there are many, some are truncated for others.
        """
        return min(len(self.shards), 2) * SHORT_WAL_PAGES * PAGE_BYTES * 3 // 2

    def is_drained(self) -> bool:
        pages = free = 0
        for shard in self.healthy():
            with suppress(StrictqError):
                pages += shard.glance(lambda db: int(db.pragma("page_count")))
                free += shard.glance(lambda db: int(db.pragma("freelist_count")))
        return 2 * free >= pages

    def cut_wals(self) -> None:
        for shard in self.healthy():
            with suppress(StrictqError):
                shard.cut_wal()

    # ---- claiming

    def has_news(self, shard: Shard) -> bool:
        """Return whether any process has made something claimable in a shard since a look found nothing there."""
        return shard.empty is not None and shard.empty.state[0] != self.waker.change(shard.number)

    def outlook(self, shard: Shard, seconds: float | None = None) -> tuple[bool, int | None]:
        """Return whether anything is claimable in this shard, and the queue time at which that may change by itself.

        Takes no write lock.

        Args:
            seconds: in memory, where a shard has one connection, how long to wait for it; None: BUSY_SECONDS.
        """
        state = self.waker.change(shard.number), shard.lanes.commits
        known = shard.empty
        if known is not None and known.state == state and time.monotonic() < known.until and self.now() < known.soonest:
            return False, None if known.soonest >= NEVER else known.soonest
        found, at, epoch, version = shard.view(partial(_lane_outlook, now=self.now()), seconds)
        if epoch != self.epoch or version != self.settings[1]:
            return True, None  # a boot ended every lease there, or other settings apply
        if self.settings[0].paused:
            return False, None  # resuming it wakes the caller
        found = found or at <= self.now()
        shard.empty = None if found or state[0] is None else KnownEmpty(state, time.monotonic() + EMPTY_SECONDS, at)
        return found, None if at >= NEVER else at

    def ready(self) -> tuple[bool, int | None]:
        """Return whether anything may be claimable and, if nothing is, the queue time at which that may change by itself.

        Takes no write lock. Messages of tenants that wait for their rates are not claimable.

        Raises:
            StoreError: no shard can be read.
        """
        soonest, any_ready = NEVER, False
        for shard in self.healthy() or self.shards:
            found, at, version = shard.view(self._ready_in)
            if version > self.settings[1]:
                self.refresh_settings()
            any_ready, soonest = any_ready or found, min(soonest, at)
        if self.settings[0].paused:
            return False, None  # resuming it wakes the caller
        return any_ready, None if soonest >= NEVER else soonest

    def _ready_in(self, lanes: ShardLanes) -> tuple[bool, int, int]:
        """Return whether anything may be claimable in a shard, when that may change by itself, and its config_version."""
        now = self.now()
        found, at, epoch, version = _lane_outlook(lanes, now)
        if epoch != self.epoch:
            return lanes.memory.totals.pending > 0, NEVER, version  # a boot ended every lease there
        return found or at <= now, at, version

    def soonest(self) -> int | None:
        """Return the queue time at which something becomes ready by itself. None: never. Reads every lease."""
        ends = [s.view(partial(_lane_outlook, now=self.now()))[1] for s in self.healthy()]
        return min((at for at in ends if at < NEVER), default=None)

    def count_empty(self, shard: int) -> None:
        self._empties[shard] += 1
        if self.observers.counts:
            notify(self.observers.counts, "empty_receives", 1, shard)

    def count_waiting(self, seconds: float) -> None:
        """Count each second of a consumer's wait as an empty receive, at the shards in turn."""
        before, self._waited = self._waited, self._waited + seconds
        for second in range(int(before), min(int(self._waited), int(before) + WAITED_MAX)):
            self.count_empty(second % len(self.shards))

    # ---- transactions that reach over shards

    def forward(self, origins: Iterable[Shard] | None = None) -> None:
        """Forward what waits in outboxes to its shards.

        Raises:
            ForwardPending: something could not be forwarded now. It will be forwarded later.
        """
        outbox.forward(self, self.healthy() if origins is None else origins)

    # ---- calls by shards (commit.Host)

    def reload_epoch(self) -> None:
        """Continue in the epoch that another process began."""
        assert self.directory is not None
        known = queue_db.read(self.directory)
        self.epoch, self.time_offset = known.epoch, known.time_offset
        self.time = QueueTime(self.clock, known.time_offset)
        self.now = self.time.now

    def take_empty_receives(self, shard: int) -> int:
        return self._empties.pop(shard, 0) if self._empties else 0

    def unwritten_empties(self, shard: int) -> int:
        return self._empties[shard]

    def report(self, events: list[Event]) -> None:
        for event in events:
            notify(self.observers.events, event)

    def quarantine(self, shard: int, error: StoreError) -> None:
        """Take a damaged shard out of service. The others continue."""
        if self.shards[shard].failed is None:
            self.shards[shard].failed = error
            notify(self.observers.events, Event("shard_quarantined", shard, detail=str(error)))

    def suspect(self, shard: int) -> None:
        """Publish that a sync of this shard failed, to every process and to the next that opens it."""
        self.shards[shard].wal.mark_synced()
        self.waker.suspect(shard)

    def wal_grew(self, shard: int) -> None:
        if not self.shipping.keeps_wal:
            self._upkeep.wal_grew(shard)
        else:
            self.shipping.nudge()

    @property
    def keeps_wal(self) -> bool:
        """Whether only the shipper may checkpoint the WAL."""
        return self.shipping.keeps_wal

    # ---- upkeep

    def checkpoint(self, shard: int) -> None:
        self.shards[shard].checkpoint(CHECKPOINT_WAIT_SECONDS)

    def tidy(self) -> None:
        """Clean up what other processes or a full disk left behind, and delete what has expired."""
        if not self._closed:
            with self.confirming.later():
                self._tidy()

    def _tidy(self) -> None:
        self.shipping.tend()
        written = self._written()
        if written is None or written != self._tidied:
            self._tidied = None if self._has_work() else written
        self.forget()

    def rests(self) -> bool:
        """Return whether there is nothing to tidy, and will be nothing until some process commits or time has passed."""
        if self._closed:
            return True
        written = self._written()
        rests = written is not None and written == self._tidied
        return rests and self.now() < self._forget_at and not self.shipping.wanted and not self.shipping.is_here

    def _has_work(self) -> bool:
        """Do what commits leave to do. Return whether it is to be tried again, although no process commits anything."""
        self._look_for_files()
        workers = waits = moves = True
        with suppress(StrictqError):
            workers = self.consumers.end_dead()
        with suppress(StrictqError):
            self.forward()
            waits = False
        with suppress(StrictqError):
            moves = moving.resume(self)
        if not self._has_reserve():
            self.cut_wals()  # makes room for the reserve, or for consumers
            return not self._has_reserve() or workers or waits or moves
        return workers or waits or moves

    def _written(self) -> list[tuple[int, int]] | None:
        """Return what every commit of any process changes. None: unknown, or so new that the next commit may not change it."""
        found: list[tuple[int, int]] = []
        for shard in self.healthy():
            if shard.path is None:
                found.append((shard.number, shard.lanes.commits))
                continue
            try:
                os.stat(shard.path)  # it may have been deleted
                status = os.stat(f"{shard.path}-wal")
            except OSError:
                return None
            if not time.time_ns() - status.st_mtime_ns > TIMESTAMP_NS:
                return None
            found.append((status.st_mtime_ns, status.st_size))
        return found

    def forget(self) -> None:
        """Forget idle lanes and old dedup ids that are due, in bounded steps."""
        now = self.now()
        if now < self._forget_at or not self._forgets.acquire(blocking=False):
            return  # nothing is due, or another thread does it
        try:
            due = NEVER
            for each, shard in zip(self._forgetting, self.shards, strict=False):  # a shard may be added meanwhile
                if self._closing:
                    return
                if shard.busy:
                    due = now  # it may be busy for long, so try again
                elif shard.failed is None:
                    try:
                        due = min(due, each.turn(now, self.config))
                    except StrictqError:
                        due = now  # the next caller that needs the shard raises the error; this is tried again
            self._forget_at = due
        finally:
            self._forgets.release()

    def _look_for_files(self) -> None:
        """Quarantine shards whose files were deleted: writes to them still succeed, but would never be read again."""
        for shard in self.healthy():
            if shard.path is None:
                continue
            try:
                os.stat(shard.path)
            except FileNotFoundError:
                deleted = f"{shard.path.name} was deleted while the queue was open: what was sent to it since is lost"
                self.quarantine(shard.number, StoreCorrupt(deleted, shard=shard.number))
            except OSError:
                continue  # that is not proof; the next access to the file raises it

    # ---- forks

    def before_fork(self) -> None:
        self._prepared_shards = None
        if self._closed or self._pid != _process.pid or self.directory is None:
            return
        self._upkeep.pause()
        self.shipping.pause()
        done: list[Shard] = []
        for shard in self.shards:
            if not shard.quiesce():
                for s in done:
                    s.resume(child=False)
                self._upkeep.resume(child=False)
                self.shipping.resume(child=False)
                return
            done.append(shard)
        self._prepared_shards = done

    def after_fork(self, *, child: bool) -> None:
        prepared, self._prepared_shards = self._prepared_shards, None
        if prepared is None:
            if child and not self._closed:
                for shard in self.shards:
                    shard.abandon()
                if self.presence is not None:
                    self.presence.leave()  # otherwise the parent's would last as long as the child
            return
        for shard in prepared:
            shard.resume(child=child)
        self._upkeep.resume(child=child)
        self.shipping.resume(child=child)
        if self.shipping.wanted:
            self._upkeep.start()  # it checks whether any process ships
        if child:
            self._pid = _process.pid
            self._lock = threading.Lock()
            self._adopting = threading.Lock()
            self._forgets = threading.Lock()
            self.observers.after_fork_in_child()
            self.confirming.after_fork_in_child()
            if self.presence is not None:
                self.presence.split()
            self.waker.after_fork_in_child()
            for lock in list(self._own_locks):
                lock.leave()  # otherwise it would stay held as long as the child lives
