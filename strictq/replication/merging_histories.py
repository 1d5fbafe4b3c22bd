"""Merge the changes of a diverged queue since its replica was promoted into the promoted queue.

Three steps, each of which can be interrupted and repeated: resolve what the old queue resolved, append its sends, and compare
the data that is never merged. The old queue's directory is only read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .._platform.clock import Clock, SystemClock
from .._store import api
from .._store.api import Fork, Storage
from .._values import hints
from .._values.errors import ConfigError, InvalidArgument
from .._values.findings import AppRowsDiffer, KeyStateDiffers, Merged, MergedSend, MessageName
from .._values.keys import decode_key, is_keyless
from .replica_home import at_replica, given_path

if TYPE_CHECKING:
    from .._store.api import Arriving, Listed

Key = str | bytes | int | None


def merge(
    old: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
    on_step: Callable[[str], object] = lambda _step: None,
) -> Merged:
    """Merge a queue that continued after its replica was promoted, or after it was restored, into the queue that replaced it.

    Unresolved sends of the old queue are appended in order per key, with new seqs. Messages that the old queue resolved are
    resolved, unless a consumer of the new queue holds them now, and their kept outputs are copied. Key states and app_* tables
    are compared, and never merged. Merging again sends nothing twice, even after an interruption. The old queue is not changed.

    Args:
        old: the directory of the queue that was replaced. No process may have it open for writing.
        into: the promoted or restored queue. Other processes may use it.
        dry_run: only report what would be done.
        on_step: called with the name of each finished step, for tests.
    Returns:
        The messages sent and resolved, and the differences found.
    Raises:
        InvalidArgument: `into` does not continue the history of `old`; nothing was changed.
        QueueNotFound: there is no queue at one of the paths; nothing was changed.
        ReadOnlyQueue: one of them is a living replica; nothing was changed.
        StoreBusy: a process has the old queue open; nothing was changed.
        ForwardPending: sends in the new queue's outboxes can't be forwarded now; nothing was changed.
        StoreError: a shard can't be read or written. Merged changes stay; merge again.
    Source: docs/howto/replication.md
    """
    clock = clock or SystemClock()
    source, home = place_of(old, "old", clock), place_of(into, "into", clock)
    if source == home:
        raise InvalidArgument("old and into are the same queue; nothing was changed", hint=hints.MERGE_FORK)
    with api.held_alone(source), opened(source, clock, read_only=True) as left, opened(home, clock, read_only=dry_run) as right:
        for name, storage in (("old", left), ("into", right)):
            if storage.reports.ranges_have_moved():
                raise ConfigError(
                    f"ranges of keys have moved in the queue `{name}`, so its shards can't be compared; nothing was changed",
                    hint=hints.READ_BOTH,
                )
        fork = _fork_of(left, right)
        report = _Merge(left, right, fork, on_step, dry_run=dry_run).run()
    return attrs.evolve(report, old=str(source), into=str(home))


def place_of(path: str | os.PathLike[str], name: str, clock: Clock) -> Path:
    """Return the directory of the queue at a path, which may be that of a promoted replica.

    Raises:
        InvalidArgument: the argument is not a path.
        ReadOnlyQueue: it is a living replica.
    """
    place = given_path(path, f"{name} must be the path of a queue")
    found = at_replica(place, clock, read_only=False)
    return place if found is None else found[0]


def opened(path: Path, clock: Clock, *, read_only: bool) -> closing[Storage]:
    """Open a queue for the block."""
    return closing(Storage.open(
        path, shards=None, durability=None, config=None, create=False, read_only=read_only, clock=clock, hook=None
    ))  # fmt: skip


def _fork_of(left: Storage, right: Storage) -> Fork:
    """Return the point at which the new queue left the old one's history.

    Raises:
        InvalidArgument: it did not leave this history.
    """
    if left.queue_id != right.queue_id:
        raise InvalidArgument("old and into are different queues; nothing was changed", hint=hints.MERGE_FORK)
    known = left.replicating.known
    if known is not None:
        for fork in right.replicating.merging.forks():
            if fork.history_id == known.history_id and len(fork.shards) == left.shards == right.shards:
                return fork
    raise InvalidArgument("into was not promoted or restored from old's history; nothing was changed", hint=hints.MERGE_FORK)


class _Merge:
    """The state of one merge."""

    def __init__(self, left: Storage, right: Storage, fork: Fork, on_step: Callable[[str], object], *, dry_run: bool) -> None:
        self.left, self.right = left, right
        self.fork = fork
        self.dry_run = dry_run
        self._on_step = on_step
        self.acked: list[Listed] = []
        self.leased: list[Listed] = []
        self.sent: list[MergedSend] = []
        self.earlier = 0
        self.dead: list[Listed] = []
        self.states: list[KeyStateDiffers] = []
        self.rows: list[AppRowsDiffer] = []
        self.at_fork = right.replicating.merging.unresolved_at_fork(fork.history_id)
        self.twice: list[MessageName] | None = None if self.at_fork is None else []

    def run(self) -> Merged:
        with self.right.confirmed_together():
            if not self.dry_run:
                for shard in range(self.right.shards):
                    self.right.transactions.forward(shard)  # deliver the outboxes' sends, which both histories have, first
            for shard in range(self.right.shards):
                self._merge_shard(shard)
        for shard in range(self.right.shards):
            self._compare(shard)
        return Merged(
            old="", into="", history_id=self.fork.history_id, term=self.fork.term, dry_run=self.dry_run,
            sent=tuple(self.sent), earlier=self.earlier, acked=tuple(map(_name, self.acked)),
            leased=tuple(map(_name, self.leased)), twice=None if self.twice is None else tuple(self.twice),
            dead=tuple(map(_name, self.dead)), key_states=tuple(self.states), app_rows=tuple(self.rows),
        )  # fmt: skip

    def _merge_shard(self, shard: int) -> None:
        theirs = self.left.replicating.merging.listed(shard)
        ours = self.right.replicating.merging.listed(shard)
        behind = self.fork.shards[shard][0]
        unresolved = {m.id for m in theirs}
        gone = sorted((m for m in ours if m.id <= behind and m.id not in unresolved), key=attrgetter("key", "id"))
        kept = self._note_twice(shard, theirs, ours)
        left = self._resolve(shard, gone)
        if left:  # consumers of the new queue will resolve these
            self._note(shard, kept + [(m.key, m.seq) for m in left])
        self.dead += [m for m in theirs if m.id > behind and m.dead]
        for sends in self.left.replicating.merging.sends_behind(shard, self.fork, theirs):
            self._send(shard, sends)

    def _note_twice(self, shard: int, theirs: Sequence[Listed], ours: Sequence[Listed]) -> list[tuple[bytes, int]]:
        """Record the messages unresolved at the fork and now resolved on both sides, before this merge resolves more.

        Returns:
            The messages that a later merge must check again.
        """
        kept: list[tuple[bytes, int]] = []
        if self.at_fork is None or self.twice is None:
            return kept
        left, right = ({(m.key, m.seq) for m in side} for side in (theirs, ours))
        for message in self.at_fork.get(shard, []):
            if message in left or message not in right:
                kept.append(message)
            if message not in left and message not in right:
                self.twice.append(MessageName(_key(message[0]), message[1]))
        self._note(shard, kept)
        return kept

    def _note(self, shard: int, kept: list[tuple[bytes, int]]) -> None:
        if self.at_fork is not None and not self.dry_run:
            self.at_fork[shard] = kept
            self.right.replicating.merging.note_unresolved(self.fork.history_id, self.at_fork)
            self._on_step("noted")

    def _resolve(self, shard: int, gone: list[Listed]) -> list[Listed]:
        """Resolve the messages. Return those that consumers of the new queue hold, or have resolved meanwhile."""
        if self.dry_run:
            self.acked += gone
            return []
        done: set[Listed] = set()
        for found in self.right.replicating.merging.resolve(shard, gone, self.left.replicating.merging):
            self.acked += found.done
            self.leased += found.leased
            done |= set(found.done)
            self._on_step("resolved")
        left = [m for m in gone if m not in done]
        if self.twice is not None:
            self.twice += [_name(m) for m in left if not is_keyless(m.key)]
        return left

    def _send(self, shard: int, sends: list[Arriving]) -> None:
        arrived = self.right.replicating.merging.high_water(shard, sends[0].origin)
        later = [each for each in sends if each.number > arrived]
        self.earlier += len(sends) - len(later)
        if self.dry_run:
            self.sent += [_sent(each, None, duplicate=False) for each in later]
        elif later:
            found = self.right.replicating.merging.arrive(shard, later)
            self._on_step("sent")
            self.sent += [_sent(each, seq, duplicate=earlier is not None) for each, (seq, _, earlier) in found]

    def _compare(self, shard: int) -> None:
        left, right = self.left.replicating.merging.key_states(shard), self.right.replicating.merging.key_states(shard)
        self.states += [
            KeyStateDiffers(decode_key(key), key in left, key in right)
            for key in sorted(left.keys() | right.keys())
            if left.get(key) != right.get(key)
        ]
        ours, theirs = self.right.replicating.merging.app_rows(shard), self.left.replicating.merging.app_rows(shard)
        for table in sorted(ours.keys() | theirs.keys()):
            mine, other = ours.get(table), theirs.get(table)
            only_old = sum(((other - mine) if other and mine else other or {}).values())
            only_into = sum(((mine - other) if other and mine else mine or {}).values())
            if only_old or only_into:
                self.rows.append(AppRowsDiffer(table, shard, only_old, only_into))


def _key(key: bytes) -> Key:
    return None if is_keyless(key) else decode_key(key)


def _name(message: Listed) -> MessageName:
    return MessageName(_key(message.key), message.seq)


def _sent(each: Arriving, seq: int | None, *, duplicate: bool) -> MergedSend:
    return MergedSend(_key(each.key), None if each.message is None else each.message.seq, seq, duplicate)
