"""Promote a living replica to a queue, when its primary is lost.

Once the raised term is on the disk, no segment of the old primary is confirmed any more. Every step can be
interrupted and repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import attrs

from .._platform import files
from .._platform.clock import MICROSECONDS, Clock, SystemClock
from .._store import api
from .._store.api import Replication
from .._values import hints
from .._values.errors import (
    InvalidArgument,
    NotElected,
    PrimaryAlive,
    QueueNotFound,
    ReplicaGap,
    StoreBusy,
    StrictqError,
    TargetUnavailable,
)
from .._values.findings import Promoted
from .electing import Reach, ask_decider, elect
from .keys import key_id, read_key
from .membership import Votes
from .received import ReceivedSegments
from .replica_home import LIVE, LOCK, LOOKS, PROMOTING, LastContact, ReplicaState, given_path, is_replica
from .replica_log import ReplicaLog
from .segment import SegmentHeader

ALIVE_SECONDS: Final = 10.0
"""The primary may be alive if the last contact was within this time. It sends a sign of life every two seconds."""
HAND_OVER_SECONDS: Final = 20.0
"""Seconds to wait for the receiving process to release the replica."""
LOOKS_SECONDS: Final = 10.0


def promote(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    dry_run: bool = False,
    dead: bool = False,
    key_file: str | os.PathLike[str] | None = None,
    decider: Sequence[str] | str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    authority: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
    on_step: Callable[[str], object] = lambda _step: None,
) -> Promoted:
    """Promote a living replica to a queue, on its own host, because its primary is lost. Unshipped changes are lost.

    Without confirmed mode, changes that the primary committed after the last segment are missing. The queue has a new
    history, is not replicated, and can be written to at once. The process that receives for the replica releases it and
    refuses the primary from then on. Promoting it again does nothing.

    If the replica is a member of a chain, a majority of the members must elect it, and it gets missing segments from them. The
    old primary is then no longer a member.

    Args:
        path: the replica's directory.
        force: promote even if there was contact with the primary in the last ten seconds, or if the majority of the chain does
            not answer. Two queues may then deliver the same messages.
        dry_run: only report the result and what is known to be missing.
        dead: all consumers of the primary are dead, so end their timed leases at once. Otherwise these end at their deadlines.
        key_file: the replica's key file, if segments are keyed.
        decider: a command that decides instead of the members, such as one that takes a lock in a cluster. It is run without a
            shell, with the queue's id, the term and the name of this host as its last arguments. Exit code 0 permits the
            promotion.
        token_file, authority: credentials for the other members of the chain; see `members`.
        on_step: called with the name of each finished step, for tests.
    Raises:
        QueueNotFound: there is no replica, or it has no complete state yet; nothing was changed.
        PrimaryAlive: the primary may be alive; nothing was changed.
        InvalidArgument: the key is missing or differs; nothing was changed.
        NotElected: the members of the chain, or the decider, did not agree; nothing was changed.
        StoreBusy: a process that receives, reads or promotes does not release the replica.
        ReplicaGap, StoreError: received data can't be read or written. Promote it again.
    Source: docs/howto/replication.md
    """
    home = given_path(path, "path must be the replica's directory")
    clock = clock or SystemClock()
    key = b"" if key_file is None else read_key(key_file)
    if not is_replica(home):
        raise QueueNotFound(f"there is no replica at {home}", hint=hints.GIVE_REPLICA)
    found = _report(home, key, clock)
    if dry_run:
        return found
    if ReplicaState.read(home).role != "promoted":
        _require_silent(found, force=force)
        reach = Reach(token_file, authority, key)
        _promote(home, key, clock, reach, force=force, dead=dead, decider=decider, on_step=on_step)
    api.mark_replica(home / LIVE, living=False)
    state = ReplicaState.read(home)
    return attrs.evolve(_report(home, key, clock, found.missing_segments), history_id=state.promoted_as)


def promote_copy(home: Path, key: bytes, clock: Clock, on_step: Callable[[str], object]) -> None:
    """Promote a copy of a replica that is no member of a chain, to prove that the replica itself could be promoted.

    Raises:
        ReplicaGap, StoreError: it can't be.
    """
    _promote(home, key, clock, Reach(None, None, key), force=True, dead=False, decider=None, on_step=on_step)
    api.mark_replica(home / LIVE, living=False)


def _require_silent(found: Promoted, *, force: bool) -> None:
    """Raise if the primary may be alive.

    Raises:
        PrimaryAlive: the last contact is recent, and force is False.
    """
    if found.alive and not force:
        assert found.contact_at is not None
        assert found.silent_seconds is not None
        raise PrimaryAlive(
            f"the last contact with the primary was {found.silent_seconds:.1f} s ago; nothing was promoted", found.contact_at
        )


def _report(home: Path, key: bytes, clock: Clock, missing: int | None = None) -> Promoted:
    """Return the result of a promotion, without changing anything.

    Raises:
        QueueNotFound: it has no complete state.
        InvalidArgument: its segments have another key.
    """
    state, contact = ReplicaState.read(home), LastContact.read(home)
    if state.history_id and state.key_id != (key_id(key) if key else ""):
        raise InvalidArgument(f"the segments of {home} were made with another key, or without one", hint=hints.KEY_OF_REPLICA)
    last, incomplete = state.applied, 0
    if missing is None:
        last, incomplete = _received(home, key, state)
    if last is None:
        raise QueueNotFound(f"the replica {home} has no complete state of a queue yet", hint=hints.START_REPLICA.of(path=home))
    age = None if contact is None else contact.age(clock) / MICROSECONDS
    return Promoted(
        path=str(home / LIVE),
        queue_id=state.queue_id,
        history_id=None,
        term=state.term if state.role != "replica" else state.term + 1,
        at=last.wall / MICROSECONDS,
        segment=last.n,
        contact_at=None if contact is None else contact.wall / MICROSECONDS,
        silent_seconds=age,
        missing_segments=incomplete if missing is None else missing,
        alive=age is not None and age < ALIVE_SECONDS and state.role == "replica",
        confirmed=state.confirmed,
    )


def _received(home: Path, key: bytes, state: ReplicaState) -> tuple[SegmentHeader | None, int]:
    """Return the last segment of the newest complete cut, and the number of later segments of an incomplete one."""
    last, behind = state.applied, 0
    with closing(ReplicaLog(home, key, state)) as log:
        for logged in log.load(repair=False):
            if last is not None and logged.header.n <= last.n:
                continue
            behind = 1 if logged.header.first == logged.header.n else behind + 1
            if not logged.header.more:
                last, behind = logged.header, 0
    return last, behind


def _promote(
    home: Path, key: bytes, clock: Clock, reach: Reach, *, force: bool, dead: bool, decider: Sequence[str] | str | None,
    on_step: Callable[[str], object],
) -> None:  # fmt: skip
    wanted, hold, looks = (files.Lock(home / name) for name in (PROMOTING, LOCK, LOOKS))
    try:
        if not wanted.alone(0.0):
            raise StoreBusy(f"another process is promoting the replica {home}", shard=-1)
        if not hold.alone(HAND_OVER_SECONDS):
            raise StoreBusy(
                f"the process that receives for the replica {home} does not close it", shard=-1, hint=hints.END_REPLICA
            )
        if not looks.alone(LOOKS_SECONDS):
            raise StoreBusy(f"another process has the replica {home} open for reading", shard=-1, hint=hints.CLOSE_LOOKS)
        state = ReplicaState.read(home)
        if state.role == "promoted":
            return  # another process was faster
        if state.role == "replica":
            _require_silent(_report(home, key, clock), force=force)
            term, history_id = _permitted(home, key, clock, hold, reach, force=force, decider=decider, on_step=on_step)
            state = attrs.evolve(ReplicaState.read(home), term=term, role="promoting", promoted_as=history_id)
            state.write(home)
            on_step("fenced")
        with closing(ReceivedSegments(home, clock, key=key, promoting=hold)) as rest:
            rest.finish()
        on_step("applied")
        state = ReplicaState.read(home)
        if state.applied is None:
            raise ReplicaGap(f"the replica {home} has no complete state of a queue", 0)
        own = Replication(state.promoted_as, state.term, "off", "", "{}", state.applied.x)
        now = _queue_time(state.applied, LastContact.read(home), clock)
        api.become_queue(home / LIVE, own, now, clock, end_leases=dead)
        on_step("finished")
        attrs.evolve(state, role="promoted").write(home)
        on_step("promoted")
        with suppress(OSError, StrictqError):
            (home / PROMOTING).unlink()
    finally:
        for lock in (looks, hold, wanted):
            lock.leave()


def _permitted(
    home: Path, key: bytes, clock: Clock, hold: files.Lock, reach: Reach, *, force: bool, decider: Sequence[str] | str | None,
    on_step: Callable[[str], object],
) -> tuple[int, str]:  # fmt: skip
    """Return the term and the history id with which the replica may be the primary. It receives nothing meanwhile.

    Raises:
        NotElected: it may not become the primary.
    """
    votes = Votes(home)
    voter, state = votes.look(), ReplicaState.read(home)
    own = state.term + 1, os.urandom(16).hex()
    if voter is not None and voter.decided is not None:
        own = max(own[0], voter.decided.term + 1), own[1]
    if decider is not None:
        ask_decider(decider, state.queue_id, own[0], home)
        return own
    if voter is None or voter.decided is None:
        return own
    replica = ReceivedSegments(home, clock, key=key, promoting=hold)
    try:
        elected = elect(votes, replica, reach, on_step)
    except (NotElected, TargetUnavailable, InvalidArgument):
        if not force:
            raise
        return own
    finally:
        replica.leave()
    return elected.term, elected.history_id


def _queue_time(applied: SegmentHeader, contact: LastContact | None, clock: Clock) -> int:
    """Return the current queue time: the time at the last contact with the primary, plus the time since then.

    Uses only this host's clocks, which may be behind the primary's.
    """
    if contact is None:  # its file was lost
        return applied.x + max(clock.wall() - applied.wall, 0)
    return max(applied.x, contact.x + contact.age(clock))
