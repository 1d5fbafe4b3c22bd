"""Leases: fencing tokens, growing, extending, expiry, and who is charged an attempt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import strictq
from strictq import LeaseLost, Queue
from strictq._client.leased import OPEN
from strictq._client.settling import Settling
from strictq.delivery import Delivery
from strictq.testing import FakeClock
from tests.support.injection import behind_next_commit
from tests.support.queues import Opener, ack_all, fill, labels, seqs
from tests.support.shipping import ship_once


def test_late_ack_of_a_lane_nobody_took_is_honoured(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (d,) = q.receive(lease_seconds=5.0)
    clock.advance(3600.0)
    d.ack()
    assert q.status("k", 1).state == "resolved"
    assert q.receive() == []


@pytest.mark.parametrize("verb", ["start", "ack", "nack", "reject", "extend", "release", "more"])
def test_dead_token_is_refused_and_changes_nothing(q: Queue, clock: FakeClock, verb: str) -> None:
    fill(q, "k", 2)
    old, _ = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    (new,) = q.receive(1)
    before = q.status("k", 1), q.stats().depth
    calls = {
        "start": old.start,
        "ack": old.ack,
        "nack": old.nack,
        "reject": lambda: old.reject("no"),
        "extend": lambda: old.extend(60.0),
        "release": old.lease.release,
        "more": lambda: old.lease.more(1),
    }
    with pytest.raises(LeaseLost) as caught:
        calls[verb]()
    assert (caught.value.key, caught.value.token) == ("k", old.token)
    assert (q.status("k", 1), q.stats().depth) == before
    assert new.token > old.token
    new.ack()


def test_lease_lost_names_the_message(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (old,) = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    q.receive()
    with pytest.raises(LeaseLost) as caught:
        old.ack()
    assert (caught.value.key, caught.value.seq, caught.value.token) == ("k", 1, old.token)
    assert not caught.value.transient


def test_tokens_of_a_lane_ascend(q: Queue) -> None:
    tokens = []
    for _ in range(5):
        q.send(b"", "k")
        (d,) = q.receive()
        tokens.append(d.token)
        d.ack()
    assert tokens == sorted(set(tokens))


def test_tokens_ascend_over_reopening_and_reboots(disk: Opener, clock: FakeClock) -> None:
    tokens = []
    for step in range(4):
        q = disk()
        q.send(b"", "k")
        (d,) = q.receive()
        tokens.append(d.token)
        d.ack()
        q.close()
        if step % 2:
            clock.reboot(10.0)
    assert tokens == sorted(set(tokens))


def test_settling_twice_is_refused(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, three = q.receive()
    one.ack()
    two.nack()
    for d in (one, two, three):
        for call in (d.ack, d.nack, d.start):
            with pytest.raises(LeaseLost):
                call()
    assert seqs(q.receive()) == [2, 3]


def test_settling_twice_speaks_of_that_and_of_no_other_holder(q: Queue) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    d.ack()
    with pytest.raises(LeaseLost) as caught:
        d.nack()
    assert "already acked" in str(caught.value)
    assert caught.value.hint == "settle a delivery only once"


def test_acks_may_come_in_any_order(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, three = q.receive()
    three.ack()
    one.ack()
    assert [q.status("k", n).state for n in (1, 2, 3)] == ["resolved", "in_flight", "resolved"]
    two.ack()
    assert q.stats().depth == 0


def test_acked_out_of_order_is_not_handed_out_again_after_expiry(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 3)
    _, two, _ = q.receive(lease_seconds=5.0)
    two.ack()
    clock.advance(6.0)
    got: list[int] = []
    while batch := q.receive():
        got += seqs(batch)
        ack_all(batch)
    assert got == [1, 3]


def test_last_ack_frees_the_lane(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    d.ack()
    assert seqs(q.receive()) == [2]


def test_more_grows_the_lease_under_the_same_token(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    fill(q, "k", 2)
    grown = d.lease.more(10)
    assert seqs(grown) == [2, 3]
    assert {g.token for g in grown} == {d.token}
    ack_all([d, *grown])
    assert q.stats().depth == 0


def test_more_takes_at_most_what_was_asked(q: Queue) -> None:
    fill(q, "k", 5)
    (d,) = q.receive(1)
    assert seqs(d.lease.more(2)) == [2, 3]
    assert seqs(d.lease.more(10)) == [4, 5]
    assert d.lease.more(1) == []


def test_more_does_not_touch_other_lanes(q: Queue) -> None:
    q.send(b"", "a")
    q.send(b"", "b")
    (d,) = q.receive(1)
    assert d.lease.more(10) == []


def test_more_stops_at_a_delayed_message(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    q.send(b"", "k")
    q.send(b"", "k", delay=10.0)
    q.send(b"", "k")
    (d,) = q.receive(1)
    assert seqs(d.lease.more(10)) == [2]
    clock.advance(11.0)
    assert seqs(d.lease.more(10)) == [3, 4]


def test_more_stops_at_a_nacked_message(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, _ = q.receive()
    two.nack(delay=60.0)
    assert one.lease.more(10) == []
    one.ack()
    assert q.receive() == []


def test_more_gives_nothing_of_a_held_lane(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    q.hold("k")
    assert d.lease.more(10) == []
    d.ack()


def test_extend_counts_from_now_and_covers_the_lease(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    one, two = q.receive(lease_seconds=10.0)
    clock.advance(5.0)
    one.extend(20.0)
    assert two.lease.expires_in == pytest.approx(20.0)
    clock.advance(19.0)
    assert q.receive() == []
    two.ack()
    clock.advance(2.0)
    assert seqs(q.receive()) == [1]


def test_lease_extend_is_the_same(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (d,) = q.receive(lease_seconds=10.0)
    d.lease.extend(100.0)
    clock.advance(99.0)
    assert q.receive() == []
    assert d.lease.expires_in == pytest.approx(1.0)


def test_late_extend_of_a_lane_nobody_took_revives_it(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (d,) = q.receive(lease_seconds=10.0)
    clock.advance(11.0)
    d.extend(10.0)
    assert q.receive() == []
    d.ack()


def test_extend_many(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2)
    for key in range(6):
        q.send(b"", key)
    ds = q.receive(6, lease_seconds=10.0)
    q.extend_many(ds, 50.0)
    clock.advance(49.0)
    assert q.receive() == []
    q.ack_many(ds)


def test_release_gives_back_at_once_and_uncharged(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, _three = q.receive()
    one.ack()
    two.lease.release()
    again = q.receive()
    assert seqs(again) == [2, 3]
    assert [q.status("k", n).attempts for n in (2, 3)] == [0, 0]
    with pytest.raises(LeaseLost):
        two.ack()


def test_release_undoes_the_charge_of_a_single_delivery(make: Opener) -> None:
    q = make(max_attempts=2)
    q.send(b"", "k")
    for _ in range(5):
        (d,) = q.receive()
        assert d.attempt == 1
        d.lease.release()
    assert q.stats().dead == 0


def test_a_message_that_was_resolved_before_the_last_one_is_refused(q: Queue) -> None:
    """A lane remembers its last resolution alone. A repeated earlier one must not pass for an ack."""
    fill(q, "k", 5)
    one, *rest = q.receive(5)
    for d in rest[:3]:
        d.ack()  # in the middle of the lease
    for d in rest[:2]:
        with pytest.raises(LeaseLost, match="resolved"):
            q.delivery(d.handle).ack()
    assert q.stats().depth == 2
    for d in (one, rest[3]):
        d.ack()
    assert q.check() == []


def test_expiry_hands_out_again_with_a_new_token(q: Queue, clock: FakeClock) -> None:
    q.send(b"x", "k")
    (old,) = q.receive(lease_seconds=5.0)
    clock.advance(4.9)
    assert q.receive() == []
    clock.advance(0.2)
    (new,) = q.receive()
    assert (new.seq, new.body, new.attempt) == (1, b"x", 2)
    assert new.token > old.token


def test_wall_clock_jumps_do_not_end_or_prolong_a_lease(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    q.receive(lease_seconds=10.0)
    clock.jump_wall(1e7)
    assert q.receive() == []
    clock.jump_wall(-2e7)
    clock.advance(9.0)
    assert q.receive() == []
    clock.advance(2.0)
    assert seqs(q.receive()) == [1]


def test_reboot_ends_every_lease(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    q.send(b"", "k")
    (old,) = q.receive(lease_seconds=100_000.0)
    q.close()
    clock.reboot(1.0)
    (new,) = disk().receive()
    assert (new.seq, new.token > old.token) == (1, True)


def test_closing_does_not_lose_a_lease(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    fill(q, "k", 2)
    q.receive(1, lease_seconds=10.0)
    q.close()
    q = disk()
    clock.advance(11.0)
    (d,) = q.receive(1)
    assert d.seq == 1


def test_single_delivery_is_charged_at_delivery(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    assert d.attempt == 1
    assert q.status("k", 1).attempts == 1
    d.start()
    assert d.attempt == 1
    assert q.status("k", 1).attempts == 1


def test_per_key_one_is_charged_at_delivery(q: Queue) -> None:
    fill(q, "a", 2)
    fill(q, "b", 2)
    assert [d.attempt for d in q.receive(10, per_key=1)] == [1, 1]


def test_batch_is_charged_at_start(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, _three = q.receive()
    assert [q.status("k", n).attempts for n in (1, 2, 3)] == [0, 0, 0]
    one.start()
    assert one.attempt == 1
    assert [q.status("k", n).attempts for n in (1, 2, 3)] == [1, 0, 0]
    one.ack()
    two.start()
    two.start()
    assert two.attempt == 1
    assert [q.status("k", n).attempts for n in (2, 3)] == [1, 0]


def test_expired_batch_charges_only_what_was_started(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 3)
    one, *_ = q.receive(lease_seconds=5.0)
    one.start()
    clock.advance(6.0)
    (d,) = q.receive()
    assert (d.seq, d.attempt) == (1, 2)
    assert [q.status("k", n).attempts for n in (2, 3)] == [0, 0]


@pytest.mark.parametrize("per_key", [None, 1])
def test_every_message_is_charged_on_receive_if_wanted(make: Opener, clock: FakeClock, per_key: int | None) -> None:
    q = make(max_attempts=None)
    for key in "ab":
        fill(q, key, 3)
    for n in (1, 2):
        got = q.receive(per_key=per_key, charge="all")
        assert {d.attempt for d in got} == {n}
        assert {q.status(d.key, d.seq).attempts for d in got if d.key is not None} == {n}
        got[0].start()  # it is charged already
        clock.advance(31.0)
    got = q.receive(per_key=per_key, charge="all")
    assert {d.attempt for d in got} == {3}
    one, two = (next(d for d in got if d.key == key) for key in "ab")
    one.nack(0.0)
    two.lease.release()
    assert q.receive(1, keys=["a"])[0].attempt == 4
    assert q.receive(1, keys=["b"])[0].attempt == 3, "a release takes the charge back"


def test_the_charge_of_a_batch_survives_the_process(disk: Opener, clock: FakeClock) -> None:
    q = disk(max_attempts=2)
    fill(q, "k", 2)
    q.receive(charge="all")
    q.close()
    q = disk()
    clock.advance(31.0)
    (one,) = q.receive()
    assert (one.seq, one.attempt) == (1, 2), "each of them may have killed the process"
    assert q.status("k", 2).attempts == 1


def test_after_an_expired_batch_the_range_goes_out_one_by_one(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 3)
    q.receive(lease_seconds=5.0)
    fill(q, "k", 2)
    clock.advance(6.0)
    for seq in (1, 2, 3):
        (d,) = q.receive()
        assert (d.seq, d.attempt) == (seq, 1)
        assert q.explain("k").solo
        d.ack()
    assert seqs(q.receive()) == [4, 5]
    assert not q.explain("k").solo


def test_the_message_that_kills_its_process_is_found_and_its_neighbours_are_not(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=2, lease_seconds=5.0)
    fill(q, "k", 4)
    handled: list[int] = []
    for _ in range(40):
        batch = q.receive()
        if not batch:
            break
        for d in batch:
            d.start()
            if d.seq == 3:  # the process dies here, with the rest of its batch unstarted
                clock.advance(6.0)
                break
            handled.append(d.seq)
            d.ack()
    assert handled == [1, 2, 4]
    assert seqs(q.dead_letters()) == [3]
    assert q.stats().depth == 0


def test_what_a_holder_started_is_suspect_and_what_lies_behind_it_is_not(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 5)
    one, two, *_ = q.receive(lease_seconds=5.0)
    one.start()
    one.ack()
    two.start()
    clock.advance(6.0)
    (d,) = q.receive()
    assert (d.seq, d.attempt, q.explain("k").solo) == (2, 2, True)
    d.ack()
    assert [(d.seq, d.attempt) for d in q.receive()] == [(3, 1), (4, 1), (5, 1)]


def test_a_holder_that_settles_as_it_goes_is_killed_by_the_first_message_that_is_left(make: Opener, clock: FakeClock) -> None:
    """It calls no start, so all of its messages could be the one; but it had settled those before."""
    q = make(max_attempts=2, lease_seconds=5.0)
    fill(q, "k", 50)
    got = []
    for _ in range(3):
        batch = q.receive(50)
        got.append(seqs(batch))
        for d in batch:
            if d.seq == 20:  # the process dies here
                clock.advance(6.0)
                break
            d.ack()
    assert got == [list(range(1, 51)), [20], [20]]
    assert seqs(q.receive(50)) == list(range(21, 51))
    assert seqs(q.dead_letters()) == [20]


@pytest.mark.own_messages("acks of the queue")
def test_a_holder_that_settles_at_the_end_is_killed_by_any_of_its_messages(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=2, lease_seconds=5.0)
    fill(q, "k", 6)
    crashes = 0
    while batch := q.receive():
        if 4 in seqs(batch):
            crashes += 1
            clock.advance(6.0)
        else:
            q.ack_many(batch)
    assert crashes == 3, "in a batch, uncharged, and twice alone"
    assert [(d.seq, d.attempts) for d in q.dead_letters()] == [(4, 2)]
    assert q.stats().acks == 5


def test_without_a_limit_of_attempts_no_message_is_alone(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=None)
    fill(q, "k", 5)
    q.receive(lease_seconds=5.0)[0].start()
    clock.advance(6.0)
    assert [(d.seq, d.attempt) for d in q.receive()] == [(1, 2), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert not q.explain("k").solo


def test_consume_starts_what_it_hands_out(q: Queue, clock: FakeClock) -> None:
    for key in "ab":
        fill(q, key, 3)
    handed = q.consume(6, lease_seconds=5.0)
    for seq in (1, 2):
        d = next(handed)
        assert [q.status("a", n).attempts for n in (1, 2, 3)] == [int(n == seq) for n in (1, 2, 3)]
        if seq == 1:
            d.ack()
    clock.advance(6.0)  # the process died here
    assert sorted(labels(q.receive())) == [("a", 2), ("b", 1), ("b", 2), ("b", 3)]
    handed.close()


def test_consume_passes_over_what_it_can_not_start(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(q, "k", 2)
    handed = q.consume(wait=0.0)
    real = Settling.start

    def lose(settling: Settling, d: Delivery) -> None:
        monkeypatch.setattr(Settling, "start", real)
        d.lease.release()
        real(settling, d)

    monkeypatch.setattr(Settling, "start", lose)
    d = next(handed)
    assert (d.seq, d.attempt) == (1, 1)
    d.ack()
    assert seqs(handed) == [2]


def test_solo_lane_does_not_slow_other_lanes(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 3)
    q.receive(lease_seconds=5.0)
    fill(q, "b", 3)
    clock.advance(6.0)
    assert sorted(labels(q.receive())) == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]


def test_solo_ends_where_the_range_was_settled_late(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    one, two = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    one.ack()
    two.ack()
    fill(q, "k", 2)
    assert seqs(q.receive()) == [3, 4]


def test_ack_many_over_shards(make: Opener) -> None:
    q = make(shards=4)
    for key in range(20):
        q.send(b"", key)
    q.ack_many(q.receive(20))
    assert q.stats().depth == 0


def test_ack_many_of_nothing(q: Queue) -> None:
    q.ack_many([])
    q.nack_many([])
    q.extend_many([], 5.0)


def test_ack_many_takes_the_valid_and_reports_the_lost(q: Queue, clock: FakeClock) -> None:
    for key in ("a", "b", "c"):
        q.send(b"", key)
    a, b, c = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    (taken,) = q.receive(1, keys=["b"])
    with pytest.raises(strictq.PartialFailure) as caught:
        q.ack_many([a, b, c])
    first, second, third = caught.value.results
    assert (first, third) == (None, None)
    assert isinstance(second, LeaseLost)
    assert (second.key, second.token) == ("b", b.token)
    assert [q.status(key, 1).state for key in ("a", "b", "c")] == ["resolved", "in_flight", "resolved"]
    taken.ack()


def test_ack_many_of_one_lost_delivery(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    d.ack()
    with pytest.raises(LeaseLost):
        q.ack_many([d])


def test_nack_many_reports_the_lost(q: Queue) -> None:
    for key in ("a", "b"):
        q.send(b"", key)
    a, b = q.receive()
    a.ack()
    with pytest.raises(strictq.PartialFailure) as caught:
        q.nack_many([a, b], reason="later")
    assert isinstance(caught.value.results[0], LeaseLost)
    assert caught.value.results[1] is None
    assert q.status("b", 1).last_error == "later"


def test_extend_many_reports_the_lost(q: Queue, clock: FakeClock) -> None:
    for key in ("a", "b"):
        q.send(b"", key)
    a, b = q.receive(lease_seconds=5.0)
    a.ack()
    with pytest.raises(strictq.PartialFailure):
        q.extend_many([a, b], 60.0)
    clock.advance(59.0)
    assert q.receive() == []


def test_another_object_takes_an_expired_lane(disk: Opener, clock: FakeClock) -> None:
    one, two = disk(), disk()
    one.send(b"", "k")
    (old,) = one.receive(lease_seconds=5.0)
    assert two.receive() == []
    clock.advance(6.0)
    (new,) = two.receive()
    with pytest.raises(LeaseLost):
        old.ack()
    new.ack()
    assert one.stats().depth == 0


def test_more_gives_nothing_once_the_deadline_is_over(q: Queue, clock: FakeClock) -> None:
    """Even if nobody noticed yet: what it gave would be somebody else's at the next receive."""
    fill(q, "k", 3)
    (d,) = q.receive(1, lease_seconds=10.0)
    clock.advance(10.0)
    assert d.lease.more() == []
    clock.advance(1.0)
    assert seqs(q.receive(10)) == [1]


@pytest.mark.own_messages("acks of the queue")
def test_a_message_that_is_resolved_is_not_resolved_again_under_a_live_token(q: Queue) -> None:
    fill(q, "k", 3)
    first, second, third = q.receive(3)
    first.ack()
    second.ack()
    first._state = OPEN  # as a second object for the same message would be
    with pytest.raises(LeaseLost):
        first.ack()
    assert q.check() == []
    assert q.stats().acks == 2
    third.ack()
    assert q.stats().depth == 0


def test_a_commit_that_took_most_of_the_lease_is_made_up_for(
    disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = disk()
    fill(q, "k", 1)
    behind_next_commit(monkeypatch, lambda: clock.advance(8.0))
    (d,) = q.receive(1, lease_seconds=10.0)
    assert d.lease.expires_in > 9.0
    d.ack()


# ---- leases of an earlier boot


@pytest.mark.parametrize("how", ["reboot", "restore", "adopt"])
@pytest.mark.parametrize("shards", [1, 20])
def test_no_look_shows_a_lease_of_an_earlier_boot(disk: Opener, tmp_path: Path, how: str, shards: int) -> None:
    q = disk(shards=shards, lease_seconds=3000.0)
    q.send(b"x", key="k")
    assert len(q.receive(1)) == 1
    place = tmp_path / "queue"
    if how == "restore":
        ship_once(q, tmp_path / "t")
        place = tmp_path / "restored"
        strictq.restore(tmp_path / "t", place, alone=True)
    q.close()
    if how == "adopt":
        place = tmp_path / "copy"
        shutil.copytree(tmp_path / "queue", place)
        strictq.adopt(place)
    if how == "reboot":
        disk.clock.reboot()
    with strictq.open(place, clock=disk.clock, durability="process") as again:
        assert again.explain("k").state == "ready"
        assert (again.stats().in_flight, again.stats().ready) == (0, 1)
        assert [m.state for m in again.peek("k")] == ["ready"]
        assert again.status("k", 1).state == "ready"
        assert [k.state for k in again.top_keys(1)] == ["ready"]
        with strictq.open(place, clock=disk.clock, read_only=True) as look:
            assert look.explain("k").state == "ready"
            assert look.stats().in_flight == 0
        (d,) = again.receive(1)
        assert d.attempt == 2
        assert again.explain("k").state == "in_flight"
