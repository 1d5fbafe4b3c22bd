"""The store of a queue: its shards together, and what they share. Everything above talks to this class."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from .._clock import Clock, QueueTime, SteeredClock
from .._config import QueueConfig
from .._errors import (
    ForkedProcess,
    QueueClosed,
    QueueNotFound,
    ReadOnlyQueue,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
)
from .._types import Event
from . import boot, catalog, claim, files, fork, forwarding, send
from .catalog import Catalog
from .connection import Durability
from .frame import Totals, Tx
from .log import logger
from .settings import Settings
from .shard import Shard
from .upkeep import Upkeep
from .wake import Waker, waker_of

Hook = Callable[[Event], None]
Items = Sequence[send.Item]
Brought = tuple[Shard, Tx, claim.Claimed]
"""What a claim leased, where, and in which transaction."""

EAGER_SHARDS: Final = 16
"""Up to so many shards are opened with the queue, so that a damaged one and a full outbox are noticed at once."""
ROW_BYTES: Final = 400
"""More than a message takes on the disk besides its body, and what its page leaves empty."""


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
    ) -> None:
        super().__init__(directory, known, read_only=read_only)
        self.catalog = known._replace(durability=durability)
        self.stored_durability = known.durability
        self.clock = clock
        self.steered = clock if isinstance(clock, SteeredClock) else None
        self.epoch = known.epoch
        self.time_offset = known.time_offset
        self.time = QueueTime(clock, known.time_offset)
        self.now = self.time.now
        self.reserve: files.Reserve | None = None
        self.short_of_space = False
        """The reserve was given up, and is not back yet."""
        self.presence: files.Presence | None = None
        self.hooks: list[Hook] = [hook] if hook is not None else []
        self._memory_consumers: set[str] = set()
        self._consumer_locks: WeakSet[files.ConsumerLock] = WeakSet()
        self._empties: Counter[int] = Counter()
        self._rotation = 0
        self._pid = os.getpid()
        self._closed = self._closing = False
        self._starts = [r.lo for r in known.topology]
        if len(known.topology) > 1:
            from .._hashing import hash_key

            self._hash_key = hash_key
        if directory is None:
            self.waker = Waker()
        else:
            self.waker = waker_of(directory, files.WAKE, read_only=read_only)
            if not read_only:
                self.waker.begin_boot(clock.boot_id())
                self.reserve = files.Reserve(directory, self.waker.tell_space)
        self.suspects = self.waker.suspects
        self.trust = self.waker.trust
        self.shards = [
            # A commit in memory costs less than waking a thread, as at "process".
            Shard(self, part, directory, grouped=durability == "full" and directory is not None)
            for part in known.topology
        ]
        if self.steered is not None:
            self.steered.listen(self.waker.notify)
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
    ) -> Store:
        """Open or create the queue in a directory. What was given must agree with what is stored."""
        # The directory itself may be reached through links; what lies in it may not be one.
        directory = Path(os.path.realpath(path))
        if not files.find(directory):
            if read_only or not create:
                raise QueueNotFound(f"there is no queue at {directory}")
            fresh = catalog.new(shards or 1, durability or "full", config or QueueConfig(), clock)
            files.publish(directory, lambda place: catalog.build(place, fresh, clock))
        known = catalog.read(directory, read_only=read_only)
        level = catalog.agree(known, shards, durability, config)
        presence = None
        if not read_only:
            presence = files.Presence(directory)
            known = boot.join(directory, known, presence, clock)
        elif known.boot_id != clock.boot_id():
            # Not opened for writing since this machine booted: look with the time that its next epoch will have.
            known = known._replace(time_offset=boot.next_offset(directory, known, clock))
        store = cls(directory, known, clock, durability=level, read_only=read_only, hook=hook)
        store.presence = presence
        if not read_only:
            store.app_schema = catalog.app_schema(directory, 0)
        store._look_round()
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
        """A queue with nothing on disk, private to this object."""
        fresh = catalog.new(shards or 1, durability or "process", config or QueueConfig(), clock)
        return cls(None, fresh, clock, durability=durability or "process", hook=hook)

    def _look_round(self) -> None:
        if len(self.shards) <= EAGER_SHARDS:
            for shard in self.shards:
                # A damaged shard is quarantined and the others serve; a busy one is opened later.
                with suppress(StoreError):
                    shard.read(lambda _db: None)
            if not self.read_only:
                with suppress(StrictqError):
                    self.forward()
        if not self.read_only:
            self._has_reserve()
            self._upkeep.start()

    def close(self) -> None:
        """Close every connection, and leave no long WAL. Leases stay; closing twice does nothing.

        Raises:
            InvalidArgument: this thread is inside a transaction of the queue; nothing was closed.
        """
        if self._pid == os.getpid():
            for shard in self.shards:
                shard.require_outside()
        if self._closing:
            return  # by another thread, or by this one, which a signal interrupted
        self._closing = True
        try:
            if self._pid == os.getpid():
                for shard in self.shards:
                    shard.shorten_wal()
        finally:
            self.die()

    def die(self) -> None:
        """Close every connection as the end of the process would: a transaction of this thread that is open is undone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._pid != os.getpid():
            return
        self._upkeep.stop()
        for shard in self.shards:
            shard.close()
        for lock in list(self._consumer_locks):
            lock.leave()
        if self.presence is not None:
            self.presence.leave()
        self.waker.notify()

    def require_open(self, *, writing: bool = True) -> None:
        if self._closed:
            raise QueueClosed("the queue is closed")
        if self._pid != os.getpid():
            raise ForkedProcess("the queue came through a fork that it could not prepare for")
        if writing and self.read_only:
            raise ReadOnlyQueue("the queue was opened with read_only=True")

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- routing

    def shard_of(self, key: bytes) -> Shard:
        """The shard of a stored key."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.shards[bisect_right(self._starts, self._hash_key(key)) - 1]

    def rotation(self) -> list[Shard]:
        """Every shard, starting with another one each time."""
        shards = self.shards
        if len(shards) == 1:
            return shards
        self._rotation = at = (self._rotation + 1) % len(shards)
        return shards[at:] + shards[:at]

    # ---- sending

    def send(self, shard: Shard, items: Items, checked: QueueConfig) -> list[send.Sent]:
        """Append messages, all of one shard.

        Args:
            checked: the configuration that they were checked against.
        """
        self.require_room(shard, items)
        return shard.run(send.Append(items, checked, self.depth_elsewhere(shard)))

    def require_room(self, shard: Shard, items: Items = ()) -> None:
        """Refuse to send while the reserve for acks is in use, and what a checkpoint would find no room for.

        Raises:
            StoreFull: nothing changed.
        """
        shard.require()
        if self.reserve is not None and self.waker.short_of_space and not self._has_reserve():
            raise StoreFull("the disk is full, and the reserve for acks is in use", shard=shard.number)
        if shard.wal.cramped and not shard.has_room(sum(len(body) + ROW_BYTES for _, body, *_ in items)):
            raise StoreFull("the disk is full", shard=shard.number)

    def _has_reserve(self) -> bool:
        there = self.reserve is None or self.reserve.there()
        self.short_of_space = not there
        return there

    def make_room(self) -> None:
        """On a full disk: give the reserve up for those who drain, and let every WAL start again."""
        self.short_of_space = True
        if self.reserve is not None:
            self.reserve.give_up()
        for shard in self.healthy():
            with suppress(StrictqError):
                shard.checkpoint()

    def depth_elsewhere(self, shard: Shard) -> int:
        """Unresolved messages of the other shards, as they are committed; 0 where max_depth is not set.

        Looked at before this shard's lock is taken: two shards that waited for each other's would never end.
        """
        if self.config.max_depth is None:
            return 0
        return sum(s.glance(lambda db: Totals.read(db).pending) for s in self.healthy() if s is not shard)

    # ---- claiming

    def claim(self, shard: Shard, request: claim.Request, brought: list[Brought]) -> claim.Claimed:
        """Lease from one shard until it gives something or nothing is ready.

        Args:
            brought: gets what was leased as soon as it is, for a caller that is interrupted on the way.
        """

        def take(tx: Tx) -> claim.Claimed:
            claimed = claim.with_bodies(tx, claim.claim(tx, request))
            if claimed.leases:
                brought.append((shard, tx, claimed))
            return claimed

        while True:
            claimed = shard.drain(take)
            shard.gave = bool(claimed.leases)
            if claimed.leases or not claimed.more:
                return claimed

    def outlook(self, shard: Shard) -> tuple[bool, int | None]:
        """Without the write lock: is anything claimable in this shard, and at which queue time may that change by itself?"""
        ready, deadline, due, epoch = shard.glance(claim.outlook)
        if epoch != self.epoch:
            return True, None  # not written since the machine booted: every lease in it is over
        times = [t for t in (deadline, due) if t is not None]
        soonest = min(times) if times else None
        return bool(ready) or (soonest is not None and soonest <= self.now()), soonest

    def soonest(self) -> int | None:
        """When, in queue time, something becomes ready by itself; None: never. Looks at every lease."""
        times = [s.glance(claim.soonest) for s in self.healthy()]
        return min((at for at in times if at is not None), default=None)

    def count_empty(self, shard: int) -> None:
        self._empties[shard] += 1

    # ---- transactions that reach over shards

    def forward(self, origins: Iterable[Shard] | None = None) -> None:
        """Bring what waits in outboxes to its shards.

        Raises:
            ForwardPending: something could not be forwarded now; it will be.
        """
        forwarding.forward(self.shards, self.healthy() if origins is None else origins)

    # ---- named consumers

    def consumer_lock(self, name: str) -> files.ConsumerLock | files.PrivateLock:
        """The lock that the holder of a named consumer has; not taken yet."""
        if self.directory is None:
            return files.PrivateLock(self._memory_consumers, name)
        lock = files.ConsumerLock(self.directory, name, look=self.read_only)
        self._consumer_locks.add(lock)
        return lock

    # ---- what shards tell and ask (commit.Host)

    def reload_epoch(self) -> None:
        """Another process began an epoch: continue in it."""
        assert self.directory is not None
        known = catalog.read(self.directory)
        self.epoch, self.time_offset = known.epoch, known.time_offset
        self.time = QueueTime(self.clock, known.time_offset)
        self.now = self.time.now

    def take_empty_receives(self, shard: int) -> int:
        return self._empties.pop(shard, 0) if self._empties else 0

    def unwritten_empties(self, shard: int) -> int:
        return self._empties[shard]

    def committed(self, _shard: int, events: list[Event], wake: bool) -> None:
        if wake:
            self.waker.notify()
        for event in events:
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Call the hooks. What they raise is logged: the operation is committed, and its caller must get its result."""
        for hook in tuple(self.hooks):
            try:
                hook(event)
            except Exception:
                logger().exception("an on_event hook failed for %s", event)

    def quarantine(self, shard: int, error: StoreError) -> None:
        """Take a damaged shard out of service; the others go on."""
        if self.shards[shard].failed is None:
            self.shards[shard].failed = error
            self.tell(Event("shard_quarantined", shard, detail=str(error)))

    def suspect(self, shard: int) -> None:
        """A sync of this shard failed: let every process know, and whoever opens it next."""
        self.shards[shard].wal.mark_synced()
        self.waker.suspect(shard)

    def wal_grew(self, shard: int) -> None:
        self._upkeep.wal_grew(shard)

    # ---- upkeep

    def checkpoint(self, shard: int) -> None:
        self.shards[shard].checkpoint()

    def tidy(self) -> None:
        """What may be left from another process, or from a full disk."""
        if self._closed:
            return
        self._look_for_files()
        with suppress(StrictqError):
            self.forward()
        if not self._has_reserve():
            # The queue's files do not shrink by themselves: cut the WALs, so that there is room for it again.
            for shard in self.healthy():
                with suppress(StrictqError):
                    shard.cut_wal()
            self._has_reserve()

    def _look_for_files(self) -> None:
        """A file that was deleted takes what is written to it all the same, and nobody will ever read it."""
        for shard in self.healthy():
            if shard.path is None:
                continue
            try:
                os.stat(shard.path)
            except FileNotFoundError:
                deleted = f"{shard.path.name} was deleted while the queue was open: what was sent to it since is lost"
                self.quarantine(shard.number, StoreCorrupt(deleted, shard=shard.number))
            except OSError:
                continue  # that is no proof; whoever uses the file meets it

    # ---- forks

    def before_fork(self) -> None:
        self._prepared_shards = None
        if self._closed or self._pid != os.getpid() or self.directory is None:
            return
        self._upkeep.pause()
        done: list[Shard] = []
        for shard in self.shards:
            if not shard.quiesce():
                for s in done:
                    s.resume(child=False)
                self._upkeep.resume(child=False)
                return
            done.append(shard)
        self._prepared_shards = done

    def after_fork(self, *, child: bool) -> None:
        prepared, self._prepared_shards = self._prepared_shards, None
        if prepared is None:
            if child and not self._closed:
                for shard in self.shards:
                    shard.abandon()
            return
        for shard in prepared:
            shard.resume(child=child)
        self._upkeep.resume(child=child)
        if child:
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self.waker.after_fork_in_child()
            for lock in list(self._consumer_locks):
                lock.leave()  # or the consumer would stay held for as long as the child lives
