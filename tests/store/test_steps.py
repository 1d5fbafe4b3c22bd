"""Long operations run in bounded steps, between which others write: the state that a step finds, and what it leaves."""

from __future__ import annotations

import apsw
import pytest

from strictq import Message, Queue
from strictq._store.shard import history, operating
from strictq.testing import FakeClock
from tests.support.internals import connection_of, writer_of
from tests.support.queues import Opener, fill, labels


def test_dedup_ids_go_in_bounded_steps(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane may have very many, and other writers wait during a step."""
    monkeypatch.setattr(operating, "STEP", 3)
    for n in range(7):
        q.send(b"", "k", dedup_id=str(n))
    q.ack_many(q.receive(7))
    left = []

    def count(db: apsw.Connection) -> None:
        left.append(db.execute("SELECT count(*) FROM dedup").get)

    db = connection_of(q)
    step = operating.purge_lane
    monkeypatch.setattr(operating, "purge_lane", lambda tx, key, **how: (step(tx, key, **how), count(tx.db))[0])
    assert q.purge("k") == 0
    assert left == [4, 1, 0]
    assert db.execute("SELECT count(*) FROM dedup").get == 0
    assert not q.send(b"", "k", dedup_id="3").duplicate


def test_a_purge_between_two_steps_of_which_another_receives_still_finds_who_kills(
    make: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge ends an expired lease. Its messages are then delivered one at a time, as after any expiry."""
    monkeypatch.setattr(operating, "STEP", 1)
    q = make()
    fill(q, "k", 4)
    q.receive(10, lease_seconds=10.0)
    clock.advance(11.0)
    step = operating.purge_lane
    got: list[object] = []

    def and_then(tx: object, lane: bytes, **how: bool) -> object:
        if got:
            return 0, False
        result = step(tx, lane, **how)  # type: ignore[arg-type]
        got.append(None)
        return result

    monkeypatch.setattr(operating, "purge_lane", and_then)
    assert q.purge("k") == 1
    assert labels(q.receive(10)) == [("k", 2)]


def test_a_redrive_that_waits_for_a_lane_without_messages_is_purged(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """If ack_first resolved all messages, the lane can be found only by its dead letters."""
    monkeypatch.setattr(operating, "STEP", 2)
    q.send_many([Message(b"x" * 900, key="k")] * 5)
    for d in q.receive(5):
        d.reject("no")
    q.send(b"", "k")
    (d,) = q.receive(ack_first=True)
    assert q.redrive("k") == 5
    assert q.purge() == 5
    assert q.check() == []
    d.done()
    assert (q.receive(), q.dead_letters(), q.stats().depth) == ([], [], 0)


@pytest.mark.one_shard("the history of the first shard")
def test_a_page_of_large_bodies_is_short_and_nothing_is_missed(make: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGE_BYTES", 10_000)
    q = make(history="bodies")
    sizes = [3_000, 3_000, 3_000, 3_000, 50_000, 1, 1, 9_999, 1]
    q.send_many([Message(b"x" * size, key="k") for size in sizes])
    q.ack_many(q.receive())
    pages: list[list[int]] = []
    after = 0
    while page := q.history(after=after):
        after = page[-1].n
        pages.append([r.size for r in page])
    assert pages == [[3_000] * 4, [50_000], [1, 1, 9_999], [1]]


@pytest.mark.one_shard("the writes of the first shard")
def test_a_run_of_expired_lanes_does_not_hold_the_lock(make: Opener, clock: FakeClock) -> None:
    from strictq._store.shard.claiming import CULL_STEP

    q = make.open(durability="process")
    q.send_many([Message(b"", key=n, ttl=1.0) for n in range(5_000)])
    clock.advance(2.0)
    db = connection_of(q)
    moved = []
    real = writer_of(q)._commit

    def commit(calls):
        before = db.total_changes()
        tx = real(calls)
        moved.append(db.total_changes() - before)
        return tx

    writer_of(q)._commit = commit
    q.receive()
    assert max(moved) < 10 * CULL_STEP  # the first of them moves the rows of 9,601 more lanes


@pytest.mark.slow
def test_the_end_of_a_lease_with_many_redrives_is_bounded(q: Queue) -> None:
    n = 3_000
    q.send_many([Message(b"", key="k") for _ in range(n)])
    ds = q.receive(n)
    for d in ds[1:]:
        d.reject("no")
    assert q.redrive("k") == n - 1
    db = connection_of(q)
    before = db.total_changes()
    ds[0].ack()
    assert db.total_changes() - before < 3 * 600
