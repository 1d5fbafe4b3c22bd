"""Sends that are on their way between shards when two histories are merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import ForwardPending, Queue
from strictq._store.whole import outbox
from tests.support.forks import drained, fork
from tests.support.internals import shard_of


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "old", durability="process", shards=2) as opened:
        yield opened


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def stop_forwarding(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ForwardPending("not now")

    patch.setattr(outbox, "forward", refuse)


def keys_apart(q: Queue) -> tuple[str, str]:
    """Return a key of the first shard, and one of the second."""
    found = {q.send(b"", key=f"t{n}").shard: f"t{n}" for n in range(20)}
    q.purge()
    return found[0], found[1]


def test_sends_in_an_outbox_come_along_once(q: Queue, new: Path) -> None:
    """Unarrived sends behind the fork come along, arrived ones do not, and the new queue has its own copies of earlier ones."""
    near, far = keys_apart(q)
    with pytest.MonkeyPatch.context() as patch:
        stop_forwarding(patch)
        with pytest.raises(ForwardPending), q.transaction(key=near) as tx:
            tx.send(b"before", key=far)
        fork(q, new)
    with q.transaction(key=near) as tx:
        tx.send(b"arrives", key=far)  # and the one before it
    with pytest.MonkeyPatch.context() as patch:
        stop_forwarding(patch)
        with pytest.raises(ForwardPending), q.transaction(key=near) as tx:
            tx.send(b"waits", key=far)
        q.close()
    done = strictq.merge(q.path or "", new)
    assert [(s.key, s.seq is None) for s in done.sent] == [(far, False), (far, True)]
    assert strictq.merge(q.path or "", new).sent == ()
    assert drained(new) == {far: [b"before", b"arrives", b"waits"]}


def test_what_arrived_and_is_still_in_the_outbox_is_sent_once(q: Queue, new: Path) -> None:
    near, far = keys_apart(q)
    fork(q, new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "forget", lambda *_: None)
        patch.setattr(outbox, "_to", lambda origin, destination: None)
        with q.transaction(key=near) as tx:
            tx.send(b"once", key=far)
        origin, destination = shard_of(q, 0), shard_of(q, 1)
        rows = origin.read(lambda db: outbox.waiting(db, 1))
        destination.run(lambda tx: outbox.arrive(tx, origin.incarnation, rows))
        q.close()
        done = strictq.merge(q.path or "", new)
    assert len(done.sent) == 1
    assert drained(new) == {far: [b"once"]}
