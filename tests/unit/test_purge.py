"""Purging: what nobody holds is gone, and nothing of it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from strictq import InvalidArgument, LeaseLost, Message, Queue
from strictq.testing import FakeClock
from tests.support.injection import behind_next_commit
from tests.support.queues import Opener, drain, fill, labels, seqs


def test_purge_one_key(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 2)
    assert q.purge("a") == 3
    assert q.status("a", 2).state == "resolved"
    assert labels(q.receive()) == [("b", 1), ("b", 2)]
    assert q.stats().purged == 3


def test_purge_an_unknown_key(q: Queue) -> None:
    assert q.purge("absent") == 0


def test_seqs_go_on_after_a_purge(q: Queue) -> None:
    fill(q, "k", 3)
    q.purge("k")
    assert q.send(b"", "k").seq == 4
    assert drain(q) == [("k", 4)]


def test_messages_in_flight_stay_with_their_holder(q: Queue) -> None:
    fill(q, "k", 4)
    one, two = q.receive(2)
    assert q.purge("k") == 2
    assert [q.status("k", n).state for n in (1, 2, 3, 4)] == ["in_flight", "in_flight", "resolved", "resolved"]
    one.ack()
    two.nack()
    q.send(b"", "k")
    assert drain(q) == [("k", 2), ("k", 5)]


@pytest.mark.parametrize("key", ["k", None])
def test_messages_in_flight_are_deleted_if_wanted(make: Opener, key: str | None) -> None:
    q = make(shards=2)
    fill(q, "k", 4)
    q.send(b"", "other")
    held = q.receive(3, keys=["k"])
    held[0].ack()
    assert q.purge(key, in_flight=True) == (3 if key else 4)
    for verb in (held[1].ack, lambda: held[2].extend(5.0)):
        with pytest.raises(LeaseLost):
            verb()
    assert q.status("k", 2).state == "resolved"
    q.send(b"", "k")
    assert sorted(drain(q)) == [("k", 5), *([("other", 1)] if key else [])]
    assert q.check() == []


def test_a_purge_of_messages_in_flight_ends_late_leases_and_keeps_those_without_messages(q: Queue, clock: FakeClock) -> None:
    fill(q, "late", 2)
    fill(q, "first", 1)
    q.receive(2)
    (first,) = q.receive(ack_first=True)
    clock.advance(20.0)
    first.lease.extend(60.0)
    clock.advance(20.0)
    assert q.purge(in_flight=True) == 2
    first.done()
    assert q.stats().depth == 0


def test_purge_everything(make: Opener) -> None:
    q = make(shards=4)
    q.send_many([Message(b"", key=n % 30) for n in range(100)])
    assert q.purge() == 100
    assert q.stats().depth == 0
    assert q.receive() == []
    assert q.check() == []


def test_purge_leaves_dead_letters_unless_asked(q: Queue) -> None:
    fill(q, "k", 2)
    q.receive(1)[0].reject("no")
    q.purge("k")
    assert seqs(q.dead_letters()) == [1]
    q.purge("k", dead=True)
    assert q.dead_letters() == []
    assert q.redrive("k") == 0


def test_purge_all_with_dead_letters(make: Opener) -> None:
    q = make(shards=2)
    for key in range(6):
        fill(q, key, 2)
    for d in q.receive(12, per_key=1):
        d.reject("no")
    q.purge(dead=True)
    assert (q.stats().depth, q.stats().dead) == (0, 0)


def test_purge_delayed_and_held_lanes(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "late", delay=5.0)
    q.send(b"", "stopped")
    q.hold("stopped")
    assert q.purge() == 2
    clock.advance(10.0)
    assert q.receive() == []
    q.release("stopped")
    assert q.receive() == []


def test_key_state_and_tokens_survive_a_purge(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    with q.transaction(d) as tx:
        tx.key_state = b"state"
    q.send(b"", "k")
    q.purge("k")
    q.send(b"", "k")
    (again,) = q.receive()
    assert again.token > d.token
    assert again.key_state == b"state"


def test_purge_of_a_large_lane(q: Queue) -> None:
    q.send_many([Message(b"x" * 10, key="k")] * 5_000)
    assert q.purge("k") == 5_000
    assert q.stats().depth == 0


def test_purge_outlives_reopening(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 3)
    q.purge()
    q.close()
    q = disk()
    assert q.receive() == []
    assert q.send(b"", "k").seq == 4


def test_what_a_receive_has_claimed_stays_though_it_comes_too_late_to_hand_it_out(
    disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In flight is what is leased in the files, whatever its holder knows of it yet."""
    q, other = disk(), disk()
    fill(q, "k", 1)

    def late() -> None:
        assert other.purge("k") == 0
        clock.advance(12.0)
        assert labels(other.receive()) == [("k", 1)]

    behind_next_commit(monkeypatch, late)
    assert q.receive(lease_seconds=10.0) == [], "another holder has it"


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("key", ["k", None])
def test_a_redrive_that_waits_for_a_lease_is_purged(make: Opener, clock: FakeClock, key: str | None, over: bool) -> None:
    q = make(shards=4)
    fill(q, "k", 4)
    one, two, three, _ = q.receive(lease_seconds=5.0)
    one.reject("no")
    two.reject("no")
    assert q.redrive("k", seqs=[1]) == 1
    clock.advance(6.0 if over else 1.0)
    assert q.purge(key) == (3 if over else 1)
    assert seqs(q.dead_letters()) == [2], "it was not on its way back"
    assert q.check() == []
    if not over:
        three.ack()
    clock.advance(6.0)
    assert seqs(q.receive()) == ([] if over else [4])
    assert (q.stats().purged, q.stats().dead) == (3 if over else 1, 1)


def test_a_lease_waits_for_no_redrive_that_was_purged(q: Queue) -> None:
    fill(q, "k", 2)
    first, second = q.receive()
    first.reject("bad")
    assert q.redrive("k") == 1
    q.purge("k", dead=True)
    q.send(b"later", "k")
    assert labels(second.lease.more(5)) == [("k", 3)]
    assert q.check() == []


def test_what_lies_behind_a_lease_is_purged_in_steps(q: Queue) -> None:
    fill(q, "k", 3)
    q.send_many([Message(b"", key="k")] * 3_500)
    one, two = q.receive(2)
    assert q.purge("k") == 3_501
    q.send(b"last", "k")
    one.ack()
    two.nack(delay=0.0)
    assert drain(q) == [("k", 2), ("k", 3_504)]
    assert q.check() == []


def test_many_lanes_are_purged_in_steps(make: Opener) -> None:
    q = make(shards=2)
    q.send_many([Message(b"", key=n, dedup_id="x") for n in range(2_500)])
    q.hold(7)
    held = q.receive(1, keys=[9])
    assert q.purge() == 2_499
    q.ack_many(held)
    assert not q.send(b"", 5, dedup_id="x").duplicate
    assert q.stats().depth == 1
    assert q.check() == []


def test_only_what_is_older(make: Opener, clock: FakeClock) -> None:
    q = make()
    for n in range(30):
        q.send(b"", key=f"k{n % 3}", dedup_id=f"{n}")
        clock.advance(1.0)
    (d,) = q.receive(1, keys=["k0"])
    assert q.purge("k1", older_than=20.0) == 3, "1, 4 and 7 were sent 29, 26 and 23 seconds ago"
    assert [m.seq for m in q.peek("k1")] == list(range(4, 11))
    assert q.purge(older_than=10.0) == 6 + 4 + 6, "the one in flight stays"
    assert [m.seq for m in q.peek("k2")] == [7, 8, 9, 10]
    assert [m.seq for m in q.peek("k0")] == [1, 8, 9, 10]
    d.ack()
    assert q.send(b"", key="k1", dedup_id="1").duplicate, "dedup ids stay"
    assert q.purge(older_than=0.5) == 10
    assert q.stats().depth == 0
    assert q.purge(older_than=0.0) == 0
    q.send(b"", key="k1")
    assert [x.seq for x in q.receive()] == [11]
    assert q.check() == []


@pytest.mark.parametrize("wrong", [{"older_than": -1.0}, {"older_than": "x"}, {"older_than": 1.0, "dead": True}])
def test_a_wrong_age_deletes_nothing(q: Queue, wrong: dict[str, Any]) -> None:
    q.send(b"", key="k")
    with pytest.raises(InvalidArgument):
        q.purge(**wrong)
    assert q.stats().depth == 1
