"""Operators' actions over many transactions: redrive, purge, release keyless messages, end delays that failures caused.

Each step is bounded, so that other writers do not wait long for the write lock. The steps are in shard/operating.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from .._errors import OutcomeUnknown, StoreError
from .commit.calls import Operation, bound
from .commit.tx import Tx
from .shard import history
from .shard import operating as steps
from .shard_file import Shard

if TYPE_CHECKING:
    from .store import Store

T = TypeVar("T")


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


def redrive(store: Store, key: bytes | None, seqs: Sequence[int] | None) -> int:
    """Redrive dead messages of a key, or of all keys. Return how many.

    Args:
        seqs: only these of the key.
    """
    return _run(_redrive_all(store) if key is None else _redrive_key(store.shard_of(key), key, seqs))


def _redrive_key(shard: Shard, key: bytes, seqs: Sequence[int] | None) -> Iterator[int]:
    n = steps.REDRIVE_STEP
    while n == steps.REDRIVE_STEP:
        n = shard.run(bound(steps.redrive, key, seqs))
        yield n
        if seqs is not None:
            return


def _redrive_all(store: Store) -> Iterator[int]:
    for shard in store.healthy():
        yield from _in_steps(shard.run, steps.redrive_some, (b"", 0))


def release_keyless(store: Store) -> int:
    """End the holds of all keyless messages. Return how many."""
    return _run(_release_keyless(store))


def _release_keyless(store: Store) -> Iterator[int]:
    for shard in store.healthy():
        while n := shard.run(steps.release_keyless):
            yield n


def purge(store: Store, key: bytes | None, *, dead: bool, records: bool) -> int:
    """Remove messages of a key or of all. Return the number of messages.

    Args:
        dead: also dead letters.
        records: also the records of finished messages.
    """
    return _run(_purge(store, key, dead, records))


def _purge(store: Store, key: bytes | None, dead: bool, records: bool) -> Iterator[int]:
    if key is None:
        yield from _purge_all(store, dead)
    else:
        yield from _purge_key(store.shard_of(key), key, dead)
    if records:
        for _ in _forget_history(store, key, None, None):
            yield 0


def _purge_key(shard: Shard, key: bytes, dead: bool) -> Iterator[int]:
    for step in (steps.purge_lane, *([steps.purge_dead] if dead else [])):
        more = True
        while more:
            n, more = shard.drain(bound(step, key))
            yield n


def _purge_all(store: Store, dead: bool) -> Iterator[int]:
    for shard in store.healthy():
        yield from _in_steps(shard.drain, steps.purge_some, b"")
        last: tuple[bytes, str] | None = (b"", "")
        while last is not None:
            last = shard.drain(bound(steps.purge_dedups, last))
        if dead:
            yield from _in_steps(shard.drain, steps.purge_some_dead, (b"", 0))


def forget_history(store: Store, key: bytes | None, shard: int | None, upto: int | None) -> int:
    """Remove records of finished messages, of a key, of a shard or of all, up to a number or all present ones."""
    return _run(_forget_history(store, key, shard, upto))


def _forget_history(store: Store, key: bytes | None, shard: int | None, upto: int | None) -> Iterator[int]:
    if key is not None:
        shard = store.shard_of(key).number
    for each in store.healthy() if shard is None else [store.shards[shard]]:
        at, end = 0, each.read(history.newest) if upto is None else upto
        while at < end:
            gone, at = each.drain(bound(history.purge_step, at, end, key))
            yield gone


def end_failure_delays(store: Store, keys: Sequence[bytes] | None, *, one: bool = False) -> int:
    """End delays that failures caused, in steps.

    Args:
        keys: only these keys'.
        one: at most one, the first to end in its shard.
    Returns:
        How many there were.
    """
    return _run(_end_all_delays(store, one) if keys is None else _end_delays_of(store, keys, one))


def _end_delays_of(store: Store, keys: Sequence[bytes], one: bool) -> Iterator[int]:
    step = 1 if one else steps.DELAY_STEP
    for shard in store.healthy():
        mine = [key for key in keys if store.shard_of(key) is shard]
        for start in range(0, len(mine), step):
            n = shard.drain(bound(steps.end_delays_of, mine[start : start + step]))
            yield n
            if one and n:
                return


def _end_all_delays(store: Store, one: bool) -> Iterator[int]:
    for shard in (shard for shard in store.rotation() if shard.failed is None):
        for n in _in_steps(shard.drain, partial(steps.end_some_delays, most=1 if one else steps.DELAY_STEP), (0, b"")):
            yield n
            if one and n:
                return
            if one:
                break
