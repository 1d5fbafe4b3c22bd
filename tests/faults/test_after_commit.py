"""Whatever fails after a COMMIT, no error says that nothing was changed: it is OutcomeUnknown, or the call succeeds."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest

import strictq
from strictq import Delivery, Message, Queue
from tests.support.injection import AfterCommit
from tests.support.internals import connected, store_of
from tests.support.queues import keys_by_shard

STEPS: Final = int(os.environ.get("STRICTQ_AFTER_COMMIT_STEPS", "6"))
"""How many of a call's steps behind its first COMMIT fail, each in a run of its own. 0: all, in minutes."""
TABLE: Final = "CREATE TABLE IF NOT EXISTS app_t (a)"


class Scene(NamedTuple):
    """A queue of two shards with messages in many states, and another object that has just changed the settings."""

    q: Queue
    other: Queue
    here: str
    there: str
    d: Delivery


def scene(path: Path, history: Literal["off", "records"]) -> Scene:
    here, there = keys_by_shard(2).values()
    q = strictq.open(path, shards=2, config=strictq.QueueConfig(history=history))  # "records": no lane is hot
    q.app_schema(TABLE)
    for key in (here, there):
        q.send_many([Message(b"x", key=key) for _ in range(3)])
        q.send_many([Message(b"", key=f"dead {key} {n}") for n in range(2)])
    for d in q.receive(100, keys=[f"dead {key} {n}" for key in (here, there) for n in range(2)]):
        d.reject("broken")
    q.send(b"", "done")
    q.receive(1, keys=["done"])[0].ack()
    q.hold("held")
    d, _ = q.receive(2, keys=[here])
    other = strictq.open(path)
    other.configure(lease_seconds=31.0)
    return Scene(q, other, here, there, d)


def transaction(s: Scene, *, opened: bool = False) -> None:
    with s.q.transaction(s.d) as tx:
        tx.send(b"", s.there)
        tx.send(b"", s.here)
        tx.key_state = b"state"
        if opened:
            tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1)"))
        tx.execute("INSERT INTO app_t VALUES (2)")


VERBS: Final[dict[str, Callable[[Scene], object]]] = {
    "send": lambda s: s.q.send(b"new", s.here),
    "send, dedup id": lambda s: s.q.send(b"new", s.here, dedup_id="id"),
    "send_many": lambda s: s.q.send_many([Message(b"new", key=key) for key in (s.here, s.there)]),
    "receive": lambda s: s.q.receive(5),
    "receive, ack_first": lambda s: s.q.receive(5, ack_first=True),
    "consume": lambda s: next(s.q.consume(wait=0.0)),
    "ack": lambda s: s.d.ack(),
    "ack_many": lambda s: s.q.ack_many([s.d]),
    "nack": lambda s: s.d.nack(delay=100.0),
    "defer": lambda s: s.d.defer(100.0),
    "reject": lambda s: s.d.reject("no"),
    "start": lambda s: s.d.start(),
    "more": lambda s: s.d.lease.more(1),
    "release of a lease": lambda s: s.d.lease.release(),
    "extend": lambda s: s.d.extend(1000.0),
    "transaction": transaction,
    "open transaction": lambda s: transaction(s, opened=True),
    "hold": lambda s: s.q.hold(s.here),
    "release": lambda s: s.q.release("held"),
    "redrive": lambda s: s.q.redrive(),
    "redrive of a key": lambda s: s.q.redrive(f"dead {s.here} 0"),
    "purge": lambda s: s.q.purge(dead=True, history=True),
    "purge_history": lambda s: s.q.purge_history(),
    "configure": lambda s: s.q.configure(max_attempts=7),
    "app_schema": lambda s: s.q.app_schema("CREATE TABLE IF NOT EXISTS app_u (a)"),
    "estimates": lambda s: store_of(s.q).set_estimates({"process": "{}"}),
}


def facts(s: Scene, path: Path) -> list[Any]:
    """Return what other processes see, except the configuration's copies in the shards."""
    found: list[Any] = []
    for key in (s.here, s.there, "done", "held", *(f"dead {key} {n}" for key in (s.here, s.there) for n in range(2))):
        told = s.other.explain(key)
        found += [(told.state, told.depth, told.dead, told.attempts, told.by, told.until and told.until // 60)]
        for seq in itertools.count(1):
            try:
                status = s.other.status(key, seq)
            except strictq.UnknownMessage:
                break
            found.append((key, seq, status.state, status.attempts, status.last_error))
    found.append(len(list(s.other.history())))
    found += s.other.query("SELECT a FROM app_t ORDER BY a")
    db = connected(path / "queue.db")
    found += [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("queue", "app_schema", "estimate")]
    db.close()
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_what_fails_after_a_commit_is_never_reported_as_unchanged(verb: str, place: Path) -> None:
    runs = [0, 1]  # the first one counts, the second fails everything, and each of the others one step
    for n in runs:
        path = place / str(n)
        s = scene(path, "records" if "purge" in verb else "off")
        before = facts(s, path)
        error: strictq.StrictqError | None = None
        fails: Callable[[int], bool] = (lambda _: False) if n == 0 else (lambda _: True) if n == 1 else (n - 2).__eq__
        with AfterCommit(path, fails) as after:
            try:
                VERBS[verb](s)
            except strictq.StrictqError as e:
                error = e
        changed = facts(s, path) != before
        if error is None:
            assert changed, n
        elif not isinstance(error, strictq.OutcomeUnknown | strictq.ForwardPending | strictq.PartialFailure):
            assert not changed, (n, error)
        if verb.startswith(("receive", "consume")) and error is not None:
            assert not changed, (n, error)  # whatever the error is, nothing stays leased
        s.q.close()
        s.other.close()
        if n == 0:
            steps = range(2, after.steps + 2)
            runs += sorted(random.sample(steps, min(STEPS or len(steps), len(steps))))
