"""The store of a queue: its shards, and the state that they share. Modules above use `api.Storage`."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
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
    OutcomeUnknown,
    PartialFailure,
    QueueClosed,
    QueueNotFound,
    ReadOnlyQueue,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
    Throttled,
    refusal_of,
)
from ..._values.keys import shared_key
from ..._values.stats import ReplicationStatus
from ..._values.tenants import LIMITS_MAX, TenantRules, send_rate_at, tenant_of
from ..._values.types import Event
from ..catalog import contents, queue_db
from ..catalog.contents import Catalog
from ..commit.calls import OpenTransaction, bound, open_transaction
from ..commit.checkpoint import PAGE_BYTES, SHORT_WAL_PAGES
from ..commit.connection import Durability
from ..commit.tx import NEVER
from ..disk import layout, locks, reserve
from ..disk.rate_file import SEND, Rate, RateFile
from ..disk.shared_flags import Waker, waker_of
from ..disk.topology import OwnerMap, ShardList
from ..lane.ranges import NOWHERE, Rerouted, hash_of
from ..shard import claiming, counting, expiring, sending
from ..shard import moving as leaving
from ..shard.messages import Item, Sent
from ..shard.sending import NOTHING_ELSEWHERE, Elsewhere
from ..shard.shard_file import CHECKPOINT_WAIT_SECONDS, KnownEmpty, Mover, Shard
from ..shard.shard_lanes import ShardLanes
from ..shipping.confirming import Confirming
from ..shipping.shipping import Shipping
from . import epoch, holders, live_consumers, moving, outbox, worker_reports
from .forgetting import Forgetting
from .live_consumers import Description, LiveConsumer, OnlyConsumer, Seen
from .settings import OnMismatch, Settings
from .upkeep import Upkeep
from .worker_reports import R

T = TypeVar("T")
Hook = Callable[[Event], None]
Items = Sequence[Item]

WAITED_MAX: Final = 100_000
"""The maximum number of seconds of a wait that are counted."""
DEAD_SECONDS: Final = 0.5
"""How often a receive checks for dead workers."""
DEAD_WAIT_SECONDS: Final = 0.02
"""How long that check waits for a shard that other calls are writing to."""
EMPTY_SECONDS: Final = 0.1
"""How long a receive passes over a shard that was empty, if no process says that this changed."""
REROUTES_MAX: Final = 100
"""How often a call is routed again before it gives up. Each move since the process last asked takes one."""
AGE_LOOK: Final = 1_000_000
"""The microseconds for which the age of a tenant's oldest message is used."""
EAGER_SHARDS: Final = 16
"""Up to this number, shards are opened with the queue, so that a damaged one and a full outbox are noticed at once."""
TIMESTAMP_NS: Final = 1_000_000_000
"""A file may be written twice within its resolution of times, and have one time. It is much shorter than this."""
ROW_BYTES: Final = 400
"""An upper bound of a message's disk space besides its body, including the unused part of its page."""


def _epoch(db: apsw.Connection) -> int | None:
    epoch: int | None = db.execute(TABLES.epoch).get
    return epoch


def _config_version(lanes: ShardLanes) -> int:
    return lanes.memory.mark.config_version


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


class Store(Settings):
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
        self._memory_consumers: set[str] = set()
        self._watched_at = float("-inf")
        self._memory_notices: dict[worker_reports.PrivateNotice[Any], Any] = {}
        self._tenancy: TenantRules | None = None
        self._ages: dict[bytes, tuple[int, int]] = {}
        """Of tenants whose rates of sends depend on it: when, by the boot clock, the age of the oldest message was looked for."""
        self._memory_live: list[OnlyConsumer] = []
        self._waited = 0.0
        self._own_locks: WeakSet[files.Lock] = WeakSet()
        """Locks that a forked child releases."""
        self._holder: holders.ProcessHold | None = None
        self.dead_at = 0.0
        """When, by the machine's clock, to check again for dead workers."""
        self._empties: Counter[int] = Counter()
        self._rotation = 0
        self._pid = _process.pid
        self._closed = self._closing = False
        self._owners = OwnerMap(known.topology)
        self._hash_of: Callable[[bytes], int] | None = None
        if directory is None:
            self.waker = Waker()
        else:
            self.waker = waker_of(directory, layout.WAKE, self, read_only=read_only)
            if not read_only:
                self.waker.begin_boot(clock.boot_id())
                self.reserve = reserve.Reserve(directory, self.waker.tell_space, self)
        self.wake = self.waker.notify
        self.rates = RateFile(None if directory is None else directory / layout.RATES, clock)
        self.note_change = self.waker.note_change
        self.suspects = self.waker.suspects
        self.synced, self.note_synced = self.waker.synced, self.waker.note_synced
        self.trust = self.waker.trust
        self.shipping = Shipping(self)
        self.confirming = Confirming(self)
        self.shards = [
            # A commit in memory costs less than waking a thread, as at "process".
            Shard(self, part, directory, grouped=durability == "full" and directory is not None)
            for part in known.topology
        ]
        if self.steered is not None:
            self.steered.listen(self.waker.notify)
        self._forgetting = [Forgetting(shard) for shard in self.shards]
        self._adding = threading.Lock()
        self.moves = threading.Lock()
        """Held by the thread of this process that moves a range."""
        self.has_moved = False
        """Whether this process has met a key whose range moved."""
        self._forget_at = 0
        """The queue time before which no shard has anything to forget."""
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

    # ---- routing

    def shard_of(self, key: bytes) -> Shard:
        """Return the shard of a stored key."""
        if len(self.shards) == 1:
            return self.shards[0]
        if self._hash_of is None:
            from ..._values.hashing import hash_key  # imported late: a queue of one shard needs none

            self._hash_of = hash_key
        return self.shards[self._owners.owner(self._hash_of(key))]

    def at_owner(self, key: bytes, call: Callable[[Shard], T]) -> T:
        """Make a call at the shard that has a key's lane, or may create it.

        Args:
            call: it may run more than once; where it raises Rerouted, it changed nothing.
        """
        shard = self.shard_of(shared_key(key))
        for _ in range(REROUTES_MAX):
            try:
                return call(shard)
            except Rerouted as e:
                shard = self.follow(e)
        raise StoreBusy("its range of keys is moving", shard=shard.number)

    def at_owners(self, shard: Shard, keys: Sequence[bytes], call: Callable[[Shard, list[int]], Sequence[T]]) -> list[T]:
        """Make a call about several keys at one shard; at several, if lanes of these keys have moved.

        Args:
            keys: of each item of the call. The items of a key stay together, in their order.
            call: gets a shard and the indices of items, and returns a result for each.
        Raises:
            PartialFailure: it failed for some of them, after others had taken effect.
        """
        results: list[Any] = [None] * len(keys)
        left, done, tries = {shard.number: list(range(len(keys)))}, False, 0
        while left:
            number, items = left.popitem()
            try:
                found: Sequence[Any] = call(self.shards[number], items)
            except Rerouted as e:
                tries += 1
                if tries > len(keys) + REROUTES_MAX:
                    raise StoreBusy("ranges of its keys are moving", shard=number) from None
                to = self.follow(e).number
                for at, some in ((number, [i for i in items if keys[i] != e.key]), (to, [i for i in items if keys[i] == e.key])):
                    if some:
                        left[at] = sorted([*left.get(at, ()), *some])
                continue
            except StrictqError as e:
                if not done:
                    raise
                for i in [*items, *(i for some in left.values() for i in some)]:
                    results[i] = e
                raise PartialFailure("ranges of the keys are moving, and a part of the call failed", results) from e
            done = True
            for i, one in zip(items, found, strict=True):
                results[i] = one
        return results

    def look_at_owner(self, key: bytes, look: Callable[[Shard, bool], T]) -> T:
        """Look at a key in the shard that has its lane. Writes nothing, unless the lane is on its way.

        Args:
            look: gets a shard, and whether the shard must not refuse: the key has no lane in either shard of a move.
        """
        shard, asked = self.shard_of(shared_key(key)), list[int]()
        while True:
            try:
                return look(shard, asked.count(shard.number) > 1)
            except Rerouted as e:
                asked.append(shard.number)
                shard = self.learn(e)
                if e.passage is not None and not self.read_only:
                    moving.carry(self.shards[e.origin], shard)

    def former(self, owner: Shard, key: bytes) -> list[Shard]:
        """Return the other shards that once had a key, by number: what ended there has stayed."""
        if owner.view(lambda lanes: lanes.memory.ranges) is None:
            return []
        hashed = hash_of(key)

        def had(lanes: ShardLanes) -> bool:
            return lanes.memory.ranges is not None and lanes.memory.ranges.had(hashed)

        return [shard for shard in self.healthy() if shard is not owner and shard.view(had)]

    def places_of(self, keys: Iterable[bytes]) -> dict[int, list[bytes]]:
        """Return the keys by the number of the shard that has their lanes, or may create them."""
        found: dict[int, list[bytes]] = {}
        for key in keys:

            def look(shard: Shard, anywhere: bool, key: bytes = key) -> int:
                if not anywhere:
                    shard.view(lambda lanes: lanes.loader.load((key,)))
                return shard.number

            found.setdefault(self.look_at_owner(key, look), []).append(key)
        return found

    def follow(self, error: Rerouted, forwards: Shard | None = None) -> Shard:
        """Return the shard that a key's range moved to. A lane that is on its way has arrived there on return.

        Args:
            forwards: the shard whose sends the caller forwards, in their order.
        """
        shard = self.learn(error)
        if error.passage is not None:
            origin = self.shards[error.origin]
            moving.carry_key(origin, shard, error.passage, error.key, forwards=origin is forwards)
            shard.drain(bound(leaving.admit, error.key, error.passage.move, error.floor))
        return shard

    def learn(self, error: Rerouted) -> Shard:
        """Note where ranges went. Return the shard to ask for the key."""
        self.has_moved = True
        number = error.shard
        if number == NOWHERE:
            raise StoreCorrupt("it never owned the range of a key", shard=error.origin)
        newest = max([number, *(to for _, _, to in error.left)])
        if newest >= len(self.shards):
            self.learn_shards()
        if newest >= len(self.shards):
            raise StoreCorrupt(f"a range moved to shard {newest}, which queue.db does not name", shard=error.origin)
        for lo, hi, to in error.left:
            self.note_owner(lo, hi, to)
        return self.shards[number]

    def note_owner(self, lo: int, hi: int, shard: int) -> None:
        """Route keys of a range to a shard from now on."""
        self._owners.assign(lo, hi, shard)

    def learn_shards(self, topology: ShardList | None = None) -> None:
        """Open the shards that were added since this process opened the queue.

        Args:
            topology: what queue.db says; None: it is read.
        """
        if topology is None:
            assert self.directory is not None
            topology = queue_db.read(self.directory, read_only=self.read_only).topology
        with self._adding:
            for part in topology.ranges[len(self.shards) :]:
                self.catalog = self.catalog._replace(topology=topology)
                grouped = self.catalog.durability == "full" and self.directory is not None
                shard = Shard(self, part, self.directory, grouped=grouped)
                self._forgetting.append(Forgetting(shard))
                self.shards.append(shard)
                self._forget_at = 0

    @property
    def topology(self) -> ShardList:
        """The shards, as this process knows them."""
        return self.catalog.topology

    def everywhere(self) -> list[Shard]:
        """Return the shards in service, with those that other processes have added. For looks, which write nothing."""
        for shard in self.healthy():
            with suppress(StoreError):
                self.keep_up(shard.view(_config_version))
        return self.healthy()

    def rotation(self) -> list[Shard]:
        """Return all shards. The first one rotates with each call."""
        shards = self.shards
        if len(shards) == 1:
            return shards
        self._rotation = at = (self._rotation + 1) % len(shards)
        return shards[at:] + shards[:at]

    # ---- sending

    def send(self, shard: Shard, items: Items, checked: QueueConfig | None, moved: dict[bytes, int]) -> Sequence[Sent]:
        """Append messages to one shard.

        Args:
            checked: the configuration that they were validated against. None: of none.
            moved: gets the shards of keys whose lanes are in another one.
        """
        self.require_room(shard, items)
        rules = self.tenancy if self.settings[0].limits else None
        if rules is None:
            return self._append(shard, items, checked, moved)
        tenants = {item[0]: tenant_of(item[0], rules.separator) for item in items}
        wanted = Counter(tenants[item[0]] for item in items)
        with self.admitted(wanted, tenants):
            return self._append(shard, items, checked, moved, wanted)

    def _append(
        self, shard: Shard, items: Items, checked: QueueConfig | None, moved: dict[bytes, int], tenants: Collection[bytes] = ()
    ) -> Sequence[Sent]:
        elsewhere = self.elsewhere(shard, tenants)
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
        if (self.reserve is None or not self.waker.short_of_space) and not self.settings[0].limits:
            sent = shard.send_alone(item, checked)
            if sent is not None:
                return shard.number, sent
        moved: dict[bytes, int] = {}
        sent = self.send(shard, [item], checked, moved)[0]
        return moved.get(item[0], shard.number), sent

    @property
    def tenancy(self) -> TenantRules | None:
        """The limits of tenants. None: the queue has none."""
        config = self.settings[0]
        if config.tenant_separator is None:
            return None
        if self._tenancy is None or self._tenancy.limits is not config.limits or self._tenancy.text != config.tenant_separator:
            self._tenancy = TenantRules(config.tenant_separator, config.limits)
        return self._tenancy

    @contextmanager
    def admitted(self, wanted: Mapping[bytes, int], tenants: Mapping[bytes, bytes] | None = None) -> Iterator[None]:
        """Take messages of the rates of their tenants. Return them if the block refuses to send.

        Args:
            wanted: the number of messages of each tenant.
            tenants: the tenant of each stored key, so that the error says the messages of which keys are refused. None: all.
        Raises:
            Throttled: nothing was taken of the rates of the tenants.
        """
        rules = self.tenancy
        if rules is None or not rules.limits_sends:
            yield
            return
        taken: list[tuple[bytes, Rate, int]] = []
        refused: dict[bytes, Throttled] = {}
        for tenant, n in wanted.items():
            limit = rules.of(tenant)
            if limit.send_rate is None:
                continue
            age = 0 if limit.target_age_seconds is None else self._age_of(tenant)
            name, rate = SEND + tenant, Rate(send_rate_at(limit, age / 1e6), limit.burst)
            got, wait = self.rates.take(name, rate, n, whole=True)
            if got:
                taken.append((name, rate, n))
                continue
            shown = tenant.decode(errors="backslashreplace")
            refused[tenant] = Throttled(
                f"tenant {shown!r} sends more than {rate.per_second:g} messages a second", tenant=shown, retry_after=wait / 1e6
            )
        if refused:
            self._return(taken)
            if tenants is None:
                raise max(refused.values(), key=attrgetter("retry_after"))
            raise refusal_of({key: refused[name] for key, name in tenants.items() if name in refused})
        try:
            yield
        except OutcomeUnknown:
            raise
        except StrictqError:
            self._return(taken)
            raise

    def _age_of(self, tenant: bytes) -> int:
        """Return the age of a tenant's oldest ready message, microseconds, as of the last second."""
        at = self.rates.now()
        looked_at, age = self._ages.get(tenant, (-AGE_LOOK, 0))
        if at - looked_at >= AGE_LOOK:
            now = self.now()
            look = partial(counting.oldest_of_tenant, tenant=tenant, now=now)
            found = [sent for shard in self.healthy() if (sent := shard.view(look)) is not None]
            age = max(0, now - min(found)) if found else 0
            if len(self._ages) >= LIMITS_MAX:
                self._ages.clear()
            self._ages[tenant] = at, age
        return age

    def _return(self, taken: Sequence[tuple[bytes, Rate, int]]) -> None:
        """Return what was taken of the rates of tenants for messages that were refused."""
        for name, rate, n in taken:
            self.rates.give(name, rate, n)

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

    # ---- maximum depths

    def elsewhere(self, shard: Shard, tenants: Collection[bytes] = ()) -> Elsewhere:
        """Return what the other shards have committed of what maximum depths limit.

        Must be called before this shard's lock is taken: two shards that wait for each other's lock would deadlock.

        Args:
            tenants: those of the messages to send.
        """
        if len(self.shards) == 1:
            return NOTHING_ELSEWHERE
        config, rules = self.settings[0], self.tenancy
        others = [s for s in self.healthy() if s is not shard]
        messages = 0 if config.max_depth is None else sum(s.pending() for s in others)
        if rules is None or not rules.limits_depth:
            return Elsewhere(messages)
        limited = [name for name in tenants if rules.of(name).max_depth is not None]
        depths: Counter[bytes] = Counter()
        for other in others if limited else ():
            depths.update(other.tenant_depths(limited))
        return Elsewhere(messages, depths)

    # ---- claiming

    def in_flight_elsewhere(self, shard: Shard) -> Mapping[bytes, int] | None:
        """Return the keys in flight in the other shards, of tenants that may have only so many. None: there are none such.

        Must be called before this shard's lock is taken, as `elsewhere`.
        """
        rules = self.tenancy if self.settings[0].limits and len(self.shards) > 1 else None
        if rules is None or not rules.limits_keys:
            return None
        found: Counter[bytes] = Counter()
        for other in self.healthy():
            if other is not shard:
                found.update(other.look_briefly(lambda lanes: lanes.in_flight(rules, self.now())))
        return found

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

    # ---- named consumers

    def notice(self, kind: type[R]) -> worker_reports.Notice[R] | worker_reports.PrivateNotice[R]:
        """Return where a worker reports this about itself. Nothing is shown yet."""
        if self.directory is None:
            return worker_reports.PrivateNotice(self._memory_notices)
        notice = worker_reports.Notice(self.directory, kind)
        self._own_locks.add(notice)
        return notice

    def join(self, described: Description) -> LiveConsumer | OnlyConsumer:
        """Let a consumer appear among the live ones, until its `end`, or the end of the process.

        Raises:
            StoreError: its file can't be written.
        """
        if self.directory is None:
            return OnlyConsumer(self._memory_live, described)
        consumer = LiveConsumer(self.directory, moving.InUse(self.shards), described, self.config.lease_seconds)
        self._own_locks.add(consumer)
        with files.typed("a consumer's file can't be written"):
            consumer.join()
        return consumer

    def live(self) -> list[Seen]:
        """Return the live consumers in all processes."""
        if self.directory is None:
            return [each.seen() for each in self._memory_live]
        return live_consumers.live(self.directory)

    def holder(self) -> holders.ProcessHold | None:
        """Return this process's notes of its workers' claims. None: in memory, where leases end with the process."""
        if self._holder is None and self.directory is not None:
            self._holder = holders.ProcessHold(self.directory)
            self._own_locks.add(self._holder)
        return self._holder

    def hold_with_process(self) -> holders.ProcessHold | None:
        """Return where a worker notes its leases, which then end with its process, until `end` is called. None: in memory.

        If there is no room for the file, leases end at their deadlines.
        """
        holder = self.holder()
        if holder is not None:
            with suppress(OSError, StoreError):
                holder.begin()
        return holder

    def end_dead(self) -> bool:
        """End the leases of workers whose processes have died. Return whether there are workers, live or dead."""
        self.dead_at = time.monotonic() + DEAD_SECONDS
        if self.directory is None or self.read_only:
            return False
        names = holders.named(self.directory)
        for found in holders.dead(self.directory, names):
            end = bound(expiring.end_claims, found.claims, found.single)
            healthy = self.healthy()
            mine = [shard for shard in healthy if shard.number in found.claims]
            have_moved = [shard.run(end, DEAD_WAIT_SECONDS) for shard in mine]
            if True in have_moved:  # its keys may be in other shards now
                for shard in healthy:
                    if shard not in mine:
                        shard.run(end, DEAD_WAIT_SECONDS)
        return bool(names)

    def notices(self, kind: type[R]) -> list[R]:
        """Return the reports of workers in all live processes."""
        if self.directory is None:
            return [report for report in self._memory_notices.values() if isinstance(report, kind)]
        return worker_reports.read_all(self.directory, kind)

    def watch_workers(self) -> list[worker_reports.WorkerSpans]:
        """Return the newest spans that workers report, and let them report for another ten seconds."""
        self._watched_at = time.monotonic()
        if self.directory is not None:
            with suppress(OSError, StoreError):  # the directory can't be written to
                worker_reports.watch(self.directory)
        return self.notices(worker_reports.WorkerSpans)

    def workers_are_watched(self) -> bool:
        """Return whether workers are to report spans. Costs one look at a file."""
        if self.directory is None:
            return time.monotonic() - self._watched_at < worker_reports.WATCHED_SECONDS
        return worker_reports.is_watched(self.directory)

    def progress(self, attempt: worker_reports.Attempt) -> tuple[float, str, float] | None:
        """Return what the running handler of a message reported last. None: it reported nothing."""
        reports = (report.progress for report in self.notices(worker_reports.RunningHandlers))
        return next((report[attempt] for report in reports if attempt in report), None)

    def consumer_lock(self, name: str) -> locks.ConsumerLock | locks.PrivateLock:
        """Return the lock for the holder of a named consumer. It is not acquired yet."""
        if self.directory is None:
            return locks.PrivateLock(self._memory_consumers, name)
        lock = locks.ConsumerLock(self.directory, name, look=self.read_only)
        self._own_locks.add(lock)
        return lock

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
            workers = self.end_dead()
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
