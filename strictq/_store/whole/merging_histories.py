"""What a merge of two histories needs of each of them: the calls of `storage.replicating.merging`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw

from ..._sql import MERGE, OUTBOX, RANGES, select_all
from ..catalog import queue_db
from ..catalog.contents import Fork
from ..commit.tx import bound
from ..shard import merging_histories as steps
from ..shard.merging_histories import Listed, Resolved
from ..shard.messages import Sent
from ..shipping import fork_point
from . import outbox
from .store import Store

STEP: Final = 500
"""The number of messages that are appended or resolved in one transaction."""


class Arriving(NamedTuple):
    """A send of another history that is to be appended here.

    Attributes:
        origin: a permanent name of its source. What arrived from there does not arrive again.
        message: the message in the other history. None: it is in an outbox there, on its way to its shard.
        row: as of `outbox.waiting`.
    """

    origin: str
    message: Listed | None
    row: tuple[Any, ...]

    @property
    def number(self) -> int:
        """The send's number. Numbers ascend within an origin."""
        return int(self.row[0])

    @property
    def key(self) -> bytes:
        """The stored form of its key."""
        key: bytes = self.row[1]
        return key


class Merging:
    """One of the two queues of a merge. Shards are named by their numbers."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def forks(self) -> list[Fork]:
        """Return the forks at which this queue left earlier histories."""
        assert self._store.directory is not None
        return queue_db.forks(self._store.directory)

    def unresolved_at_fork(self, history_id: str) -> dict[int, list[tuple[bytes, int]]] | None:
        """Return key and seq of what was unresolved when this history was left, by shard. None: it is not known."""
        assert self._store.directory is not None
        found = fork_point.read(self._store.directory, history_id)
        if found is None:
            return None
        return {
            n: [(key, seq) for key, spans in keys.items() for lo, hi in spans for seq in range(lo, hi + 1)]
            for n, keys in found.items()
        }

    def note_unresolved(self, history_id: str, shards: dict[int, list[tuple[bytes, int]]]) -> None:
        """Replace what `unresolved_at_fork` returns."""
        assert self._store.directory is not None
        fork_point.write(self._store.directory, history_id, {n: fork_point.ranges(found) for n, found in shards.items()})

    def listed(self, shard: int) -> list[Listed]:
        """Return every unresolved message and every dead letter of a shard."""
        return self._store.shards[shard].survey(steps.listed)

    def sends_behind(self, shard: int, fork: Fork, messages: Sequence[Listed]) -> Iterator[list[Arriving]]:
        """Yield the unresolved sends of a shard after the fork, by arrival, then those in outboxes on their way to it.

        Args:
            messages: what `listed` returned for the shard.
        Returns:
            Lists of at most STEP sends, each of one origin.
        """
        behind, _ = fork.shards[shard]
        later = sorted(m for m in messages if m.id > behind and not m.dead)
        source = self._store.shards[shard]
        dedup_ids = source.look(bound(steps.dedup_ids, behind)) if later else {}
        for start in range(0, len(later), STEP):
            some = later[start : start + STEP]
            rows = source.survey(bound(steps.sends, some, fork.at, fork[:2], dedup_ids))
            if rows:
                yield [Arriving(f"merge:{fork.history_id}:{shard}", message, row) for message, row in rows]
        for number in range(len(self._store.shards)):
            yield from self._on_the_way(number, shard, fork)

    def _on_the_way(self, origin: int, shard: int, fork: Fork) -> Iterator[list[Arriving]]:
        """Yield what transactions after the fork sent from one shard to another and what has not arrived there."""
        source = self._store.shards[origin]
        source.open()  # opening reads its incarnation
        arrived = self._store.shards[shard].read(bound(_high_water, source.incarnation))
        after = max(fork.shards[origin][1], arrived)
        while rows := source.look(bound(steps.on_the_way, shard, after, fork[:2], STEP)):
            yield [Arriving(f"merge:{fork.history_id}:{origin}:outbox", None, row) for row in rows]
            after = rows[-1][0]

    def high_water(self, shard: int, origin: str) -> int:
        """Return the last number that arrived from an origin."""
        return self._store.shards[shard].read(bound(_high_water, origin))

    def arrive(self, shard: int, sends: Sequence[Arriving]) -> list[tuple[Arriving, Sent]]:
        """Append those of at most STEP sends of one origin that have not arrived yet. Appends all of them, or none."""
        by_number = {each.number: each for each in sends}
        arrived = self._store.shards[shard].drain(bound(outbox.arrive, sends[0].origin, [each.row for each in sends]))
        return [(by_number[number], sent) for number, sent in arrived]

    def resolve(self, shard: int, messages: Sequence[Listed], there: Merging) -> Iterator[Resolved]:
        """Resolve in steps what the other history has resolved, except what a consumer holds now. Take over kept outputs.

        `messages` is sorted by key.
        """
        for start in range(0, len(messages), STEP):
            some = messages[start : start + STEP]
            kept = there._store.shards[shard].survey(bound(steps.kept_outputs, some))
            yield self._store.shards[shard].drain(bound(steps.resolve, some, kept))

    # ---- compared, and never merged

    def key_states(self, shard: int) -> dict[bytes, bytes]:
        """Return a hash of each key's state, for keys that have one."""
        return self._store.shards[shard].look(_key_states)

    def app_rows(self, shard: int) -> dict[str, Counter[bytes]]:
        """Return hashes of the rows of each of the program's own tables."""
        return self._store.shards[shard].look(_app_rows)


def _high_water(db: apsw.Connection, origin: str) -> int:
    return db.execute(OUTBOX.high_water, (origin,)).get or 0


def _key_states(db: apsw.Connection) -> dict[bytes, bytes]:
    rows: Iterator[Any] = db.execute(MERGE.key_states)
    return {key: _hash(value) for key, value in rows}


def _app_rows(db: apsw.Connection) -> dict[str, Counter[bytes]]:
    names: list[Any] = [name for (name,) in db.execute(RANGES.app_tables).fetchall()]
    return {name: Counter(_hash(repr(row).encode()) for row in db.execute(select_all(name))) for name in names}


def _hash(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()
