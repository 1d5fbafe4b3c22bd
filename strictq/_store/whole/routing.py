"""Which shard has a key, and where ranges of keys have moved to."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from ..._values.errors import PartialFailure, StoreBusy, StoreCorrupt, StoreError, StrictqError
from ..._values.keys import shared_key
from ..catalog import queue_db
from ..catalog.contents import Catalog
from ..commit.tx import bound
from ..disk.topology import OwnerMap, Range, ShardList
from ..lane.ranges import NOWHERE, Rerouted, hash_of
from ..shard import moving as leaving
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes
from . import moving
from .settings import Settings

T = TypeVar("T")

REROUTES_MAX: Final = 100
"""How often a call is routed again before it gives up. Each move since the process last asked takes one."""


def _config_version(lanes: ShardLanes) -> int:
    return lanes.memory.mark.config_version


class Routing(Settings):
    """The part of Store that knows the shards and the ranges that they own."""

    def __init__(self, directory: Path | None, known: Catalog, *, read_only: bool) -> None:
        super().__init__(directory, known, read_only=read_only)
        self.catalog = known
        self.moves = threading.Lock()
        """Held by the thread of this process that moves a range."""
        self.has_moved = False
        """Whether this process has met a key whose range moved."""
        self._owners = OwnerMap(known.topology)
        self._hash_of: Callable[[bytes], int] | None = None
        self._rotation = 0
        self._adding = threading.Lock()

    @abstractmethod
    def _add_shard(self, part: Range) -> None:
        """Add a shard to `shards`. It is opened when it is first used."""

    @abstractmethod
    def make_room(self) -> None:
        """See Store."""

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
                return look(shard, False)
            except Rerouted as e:
                asked.append(shard.number)
                shard = self.learn(e)
                if e.passage is not None and not self.read_only:
                    moving.carry(self.shards[e.origin], shard)
                if asked.count(shard.number) > 1:
                    both = (self.shards[e.origin], shard)
                    # The key may have a state, or rows of the program, in one of them.
                    has = next((one for one in both if one.read(bound(leaving.is_loose, one.number, key))), shard)
                    return look(has, True)

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
            if error.passage.cancelled:
                moving.turn_back(origin, shard, error.passage)
                return shard  # which refuses the key from now on, and so leads to the origin
            if not moving.carry_key(origin, shard, error.passage, error.key, forwards=origin is forwards):
                return origin
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
                self._add_shard(part)

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
