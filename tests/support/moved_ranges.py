"""A queue with keys in every state, of which a range moves; and what must hold of it wherever the move was stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pytest

from strictq import Message, Queue, QueueConfig
from strictq._store.shard import moving as steps
from strictq._store.shard.shard_file import Shard
from strictq._store.whole import moving
from strictq._values.hashing import hash_key
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.internals import store_of
from tests.support.queues import drain
from tests.support.running import until

KEYS: Final = [f"key-{n}" for n in range(12)]
LO, HI = 1 << 62, (1 << 64) - 1
"""A range that three quarters of the keys are in."""
CONFIG: Final = QueueConfig(keyless="random", retry_delay_seconds=0.0)
HELD: Final = KEYS[6]
LOOSE: Final = [f"loose-{n}" for n in range(4)]
"""Keys without messages. They have a state and rows of the program."""
NOTES: Final = "CREATE TABLE IF NOT EXISTS app_note (owner TEXT, n INTEGER, PRIMARY KEY (owner, n))"


class Killed(BaseException):
    """The process of a move dies here."""


def moves(key: Any) -> bool:
    return LO <= hash_key(encode_key(key)) <= HI


MOVING: Final = next(key for key in KEYS if moves(key))
STAYING: Final = next(key for key in KEYS if not moves(key))


def prepare(q: Queue, clock: FakeClock) -> dict[str, Any]:
    """Fill a queue with keys in every state. Return the deliveries that are held."""
    for key in KEYS:
        q.send_many([Message(b"%d" % n, key=key, headers={"n": str(n)}) for n in range(4)])
    q.app_schema(NOTES, key_columns={"app_note": "owner"})
    for key in KEYS + LOOSE:
        with q.transaction(key=key) as tx:
            tx.key_state = key.encode()
            tx.execute("INSERT INTO app_note VALUES (?, 1)", (key,))
    held: dict[str, Any] = {}
    for n, key in enumerate(KEYS):
        (d,) = q.receive(1, keys=[key], lease_seconds=1000.0)
        if n % 4 == 0:
            held[key] = d
        elif n % 4 == 1:
            d.nack(delay=0.0, reason="it failed")
        elif n % 4 == 2:
            q.reject(key, 1, "bad", force=True)
        else:
            d.ack()
    q.send(b"later", key=KEYS[3], delay=50.0)
    q.send(b"once", key=KEYS[4], dedup_id="the-one")
    q.send(b"x" * 20_000, key=KEYS[5])
    q.hold(KEYS[6], "an operator looks at it")
    q.send_many([Message(b"keyless", key=None) for _ in range(6)])
    for d in q.receive(200, per_key=1):
        d.defer(20.0 if d.key is None else 0.0)
    return held


def state_of(q: Queue, key: Any) -> bytes | None:
    return q._storage.reports.key_state(encode_key(key))


def notes(q: Queue, key: str | None = None) -> list[tuple[str, int]]:
    """Return the program's rows, of all shards or of a key's."""
    return sorted(q.query("SELECT owner, n FROM app_note", key=key))


def kept(q: Queue) -> dict[str, Any]:
    """Return what a salvage keeps of every key."""
    messages = {
        key: ([(m.seq, m.body) for m in q.peek(key, 100)], [(d.seq, d.body) for d in q.dead_letters(key)], state_of(q, key))
        for key in KEYS
    }
    rows = {key: (state_of(q, key), [note for note in notes(q, key) if note[0] == key]) for key in KEYS + LOOSE}
    return {"messages": messages, "rows": rows, "notes": notes(q)}


@attrs.define
class Before:
    """What a queue had before a move.

    Attributes:
        unresolved: the seqs of each key. dead: those of its dead letters.
    """

    unresolved: dict[str, list[int]]
    dead: dict[str, list[int]]

    @classmethod
    def of(cls, q: Queue) -> Before:
        return cls(
            {key: [m.seq for m in q.peek(key, 100)] for key in KEYS}, {key: [d.seq for d in q.dead_letters(key)] for key in KEYS}
        )


def go_on(q: Queue, clock: FakeClock, before: Before, sent: Callable[[str, int], list[int]]) -> bool:
    """Use every key of a queue in which a move may have been stopped, before and after the move is finished.

    Args:
        sent: returns what must be there of the sends to a key during the move. It gets the key, and the seq of the next send.
    Returns:
        Whether a move had been stopped.
    """
    store_of(q)._upkeep.stop()
    was_moving = q.topology().moving is not None
    got: dict[Any, list[int]] = defaultdict(list)
    new: dict[str, int] = {}
    for key in KEYS:
        new[key] = q.send(b"before the repair", key=key).seq
        for d in q.receive(1, keys=[key]):
            got[key].append(d.seq)
            d.ack()
    finish(q)
    assert q.check() == []
    assert {key: [d.seq for d in q.dead_letters(key)] for key in KEYS} == before.dead
    assert all(state_of(q, key) == key.encode() for key in KEYS + LOOSE)
    assert notes(q) == [(key, 1) for key in sorted(KEYS + LOOSE)]
    q.release(HELD)
    clock.advance(100.0)
    for key, seq in drain(q):
        got[key].append(seq)
    for key in KEYS:
        assert got[key] == sorted({*before.unresolved[key], *sent(key, new[key]), new[key]}), key
    assert q.stats().depth == 0
    return was_moving


@contextmanager
def after_each_commit(work: Callable[[], object]) -> Iterator[None]:
    """Run `work` after each write transaction of any shard in this block."""
    real, running = Shard.run, False

    def run(shard: Shard, *args: Any, **options: Any) -> Any:
        nonlocal running
        result = real(shard, *args, **options)
        if not running:
            running = True
            try:
                work()
            finally:
                running = False
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shard, "run", run)
        yield


@contextmanager
def small_steps() -> Iterator[None]:
    """Let few lanes leave, and be looked at, at a time in this block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "LANES_MAX", 4)
        patch.setattr(steps, "PASSED_MAX", 8)
        yield


@contextmanager
def unfinished() -> Iterator[None]:
    """Stop a move of this block before any lane leaves, as if the mover had died."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving.Moving, "_continue", lambda *_: None)
        yield


def finish(q: Queue) -> None:
    """Finish the move that was stopped. The queue's own thread may be doing that already."""

    def is_over() -> bool:
        moving.resume(store_of(q))
        return q.topology().moving is None

    until(is_over)
