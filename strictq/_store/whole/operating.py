"""Operators' actions over many transactions: redrive, purge, release keyless messages, end delays that failures caused.

Each step is bounded, so that other writers do not wait long for the write lock. The steps are in shard/operating.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ..._values.errors import OutcomeUnknown, StoreError
from ..commit.tx import Operation, bound
from ..shard import history
from ..shard import operating as steps
from ..shard.shard_file import Shard
from ..shard.shard_lanes import Tx
from ..tables import outputs
from . import moving

if TYPE_CHECKING:
    from .store import Store

T = TypeVar("T")
OUTPUTS_STEP: Final = 1_000
"""How many outputs one transaction deletes."""


class Operating:
    """Operators' actions on messages, keys, dead letters and records."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def hold(self, key: bytes, reason: str) -> None:
        """Stop deliveries of this key until `end_hold`."""
        self._store.at_owner(key, lambda shard: shard.run(lambda tx: steps.hold(tx, key, reason)))

    def end_hold(self, key: bytes | None) -> bool:
        """End the hold of a key. None: of every keyless message, in steps. Return whether anything was held."""
        if key is None:
            return _run(_release_keyless(self._store)) > 0
        return self._store.at_owner(key, lambda shard: shard.run(lambda tx: steps.release(tx, key)))

    def settle(self, key: bytes, seq: int, reason: str | None, *, force: bool) -> bool:
        """Dead-letter an unresolved message for this reason, or ack it if there is none. Return whether it was unresolved.

        Raises:
            UnknownMessage: that seq was never issued for that key.
            InvalidArgument: a consumer with a timed lease holds it, and `force` does not end that; nothing changed.
        """
        return self._store.at_owner(
            key, lambda shard: shard.drain(lambda tx: steps.settle_one(tx, key, seq, reason, force=force))
        )

    def redrive(self, key: bytes | None, seqs: Sequence[int] | None) -> int:
        """Redrive dead letters of one key (those with these seqs, or all) or of all keys, in steps. Return their number."""
        if key is None:
            return _run(_redrive_all(self._store))
        return self._store.at_owner(key, lambda shard: _run(_redrive_key(shard, key, seqs)))

    def purge(
        self, key: bytes | None, *, dead: bool, records: bool = False, older_than: int | None = None, in_flight: bool = False
    ) -> int:
        """Remove unresolved messages that are not in flight, and dedup ids, of a key or of all, in steps.

        Args:
            dead: remove dead letters, too.
            in_flight: and messages in flight, whose timed leases end.
            records: and the records and the kept outputs of finished messages.
            older_than: microseconds; only messages that were sent before that, and no dedup ids.
        Returns:
            The number of removed messages and dead letters.
        Raises:
            StoreError: nothing happened.
            OutcomeUnknown: it may have happened, or a part of it; a repetition does the rest. So for each call in steps.
        """
        if older_than is not None:
            return _run(_purge_old(self._store, key, self._store.now() - older_than))
        return _run(_purge(self._store, key, dead, records, in_flight))

    def forget_history(self, key: bytes | None = None, *, shard: int | None = None, upto: int | None = None) -> int:
        """Remove the present records of finished messages, in steps. Return their number.

        Args:
            key: remove only this key's.
            shard, upto: remove only this shard's, with a number up to this one.
        """
        return _run(_forget_history(self._store, key, shard, upto))

    def end_failure_delays(self, keys: Sequence[bytes] | None, *, one: bool = False) -> int:
        """End the failure delays of these keys, or of all, in steps: with `one`, one per shard at most. Return their number."""
        return _run(_end_all_delays(self._store, one) if keys is None else _end_delays_of(self._store, keys, one))


# Each generator yields the count of each committed step.


def _run(counts: Iterable[int]) -> int:
    """Run steps, and return the sum of their counts.

    Raises:
        OutcomeUnknown: a step failed after others were committed.
    """
    total, begun = 0, False
    try:
        for n in counts:
            total += n
            begun = True
    except StoreError as e:
        if not begun or isinstance(e, OutcomeUnknown):
            raise
        raise OutcomeUnknown(f"only a part was done: {total} messages, and then {e}", shard=e.shard, cause=e) from e
    return total


def _in_steps(
    run: Callable[[Operation[tuple[int, T | None]]], tuple[int, T | None]],
    step: Callable[[Tx, T], tuple[int, T | None]],
    begin: T,
) -> Iterator[int]:
    """Run a step in transactions of its own, each of which begins where the one before ended."""
    after: T | None = begin
    while after is not None:
        n, after = run(bound(step, after))
        yield n


def _redrive_key(shard: Shard, key: bytes, seqs: Sequence[int] | None) -> Iterator[int]:
    n = steps.REDRIVE_STEP
    while n == steps.REDRIVE_STEP:
        n = shard.run(bound(steps.redrive, key, seqs))
        yield n
        if seqs is not None:
            return


def _redrive_all(store: Store) -> Iterator[int]:
    for shard in moving.visits(store):
        yield from _in_steps(shard.run, steps.redrive_some, (b"", 0))


def _release_keyless(store: Store) -> Iterator[int]:
    for shard in moving.visits(store):
        while n := shard.run(steps.release_keyless):
            yield n


def _purge(store: Store, key: bytes | None, dead: bool, records: bool, in_flight: bool) -> Iterator[int]:
    if key is None:
        yield from _purge_all(store, dead, in_flight)
    else:
        yield from _purge_key(store, key, dead, in_flight)
    if records:
        for _ in _forget_history(store, key, None, None):
            yield 0
        for _ in _forget_outputs(store, key):
            yield 0


def _purge_old(store: Store, key: bytes | None, at: int) -> Iterator[int]:
    if key is not None:

        def purge(tx: Tx) -> tuple[int, bool]:
            return steps.purge_lane(tx, key, at)

        more = True
        while more:
            n, more = store.at_owner(key, lambda shard: shard.drain(purge))
            yield n
        return
    for shard in moving.visits(store):
        yield from _in_steps(shard.drain, partial(steps.purge_some, before=at), b"")


def _purge_key(store: Store, key: bytes, dead: bool, in_flight: bool) -> Iterator[int]:
    for step in (partial(steps.purge_lane, in_flight=in_flight), *([steps.purge_dead] if dead else [])):
        more = True
        while more:
            n, more = store.at_owner(key, lambda shard, step=step: shard.drain(bound(step, key)))  # type: ignore[misc]
            yield n


def _purge_all(store: Store, dead: bool, in_flight: bool) -> Iterator[int]:
    for shard in moving.visits(store):
        yield from _in_steps(shard.drain, partial(steps.purge_some, in_flight=in_flight), b"")
        last: tuple[bytes, str] | None = (b"", "")
        while last is not None:
            last = shard.drain(bound(steps.purge_dedups, last))
        if dead:
            yield from _in_steps(shard.drain, steps.purge_some_dead, (b"", 0))


def _forget_history(store: Store, key: bytes | None, shard: int | None, upto: int | None) -> Iterator[int]:
    for each in store.everywhere() if shard is None else [store.shards[shard]]:
        at, end = 0, each.read(history.newest) if upto is None else upto
        while at < end:
            gone, at = each.drain(bound(history.purge_step, at, end, key))
            yield gone


def _forget_outputs(store: Store, key: bytes | None) -> Iterator[int]:
    for shard in store.everywhere():
        if shard.view(lambda lanes: outputs.has_table(lanes.memory.mark)):
            while n := shard.drain(lambda tx: outputs.purge_some(tx.db, key, OUTPUTS_STEP)):
                yield n


def _end_delays_of(store: Store, keys: Sequence[bytes], one: bool) -> Iterator[int]:
    step = 1 if one else steps.DELAY_STEP
    for shard in store.everywhere():
        mine = [key for key in keys if store.shard_of(key) is shard]
        for start in range(0, len(mine), step):
            some = mine[start : start + step]
            n = sum(store.at_owners(shard, some, partial(_end_delays_at, keys=some)))
            yield n
            if one and n:
                return


def _end_delays_at(shard: Shard, some: list[int], keys: Sequence[bytes]) -> list[int]:
    """End the delays of some of these keys. Return how many, with a 0 for each key but the first."""
    return [shard.drain(bound(steps.end_delays_of, [keys[i] for i in some])), *[0] * (len(some) - 1)]


def _end_all_delays(store: Store, one: bool) -> Iterator[int]:
    for shard in (shard for shard in store.rotation() if shard.failed is None):
        for n in _in_steps(shard.drain, partial(steps.end_some_delays, most=1 if one else steps.DELAY_STEP), (0, b"")):
            yield n
            if one and n:
                return
            if one:
                break
