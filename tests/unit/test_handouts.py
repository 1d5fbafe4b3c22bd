"""Durable hand-outs for a named consumer: recorded, repeated as they were, leased until they are acked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import strictq
from strictq import ConsumerBusy, ConsumerLost, HandoutGone, InvalidArgument, Message, Queue, StoreFull, UnknownMessage
from strictq._handouts import Handouts, acknowledge, read_block
from strictq._store import handing
from strictq.testing import FakeClock
from tests.support.handouts import by_key, drain, encode, holder, read
from tests.support.internals import PATIENCE_SECONDS, ROOT, failing, in_threads, shard_file, tamper
from tests.support.queues import Opener, fill, keys_by_shard, labels

# --- taking and acknowledging


def test_a_hand_out_has_what_was_ready_in_order(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 2)
    h = holder(q)
    assert (h.acked, h.last) == (0, 0)
    assert h.take(0) == 1
    assert read(q, h, 1) == [("sa", 1, "1"), ("sa", 2, "2"), ("sa", 3, "3"), ("sb", 1, "1"), ("sb", 2, "2")]
    assert q.stats().in_flight == 5
    assert q.receive() == []
    assert q.check() == []


def test_the_same_start_gives_the_same_hand_out_whatever_came_meanwhile(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    assert h.take(0, messages_max=1) == 1
    first = read(q, h, 1)
    fill(q, "b", 2)
    assert h.take(0) == 1
    assert h.take(0, messages_max=1) == 1
    assert read(q, h, 1) == first == [("sa", 1, "1")]


def test_start_is_acked_and_the_lanes_go_on(q: Queue) -> None:
    fill(q, "a", 4)
    h = holder(q)
    assert [h.take(n, messages_max=3) for n in (0, 1)] == [1, 2]
    assert read(q, h, 2) == [("sa", 4, "4")]
    assert q.stats().acks == 3
    assert q.status("a", 3).state == "resolved"
    assert h.take(2) == 2
    stats = q.stats()
    assert (stats.acks, stats.depth) == (4, 0)
    assert q.check() == []


def test_nothing_ready_is_no_hand_out_and_writes_nothing(disk: Opener) -> None:
    q = disk(shards=2)
    h = holder(q)
    before = [shard._writer.use(lambda db: db.total_changes()) for shard in q._store.shards]
    assert [h.take(0) for _ in range(20)] == [0] * 20
    assert [shard._writer.use(lambda db: db.total_changes()) for shard in q._store.shards] == before
    assert q.consumers()[0].last == 0


def test_a_lane_gives_nothing_to_the_next_before_the_ack(q: Queue) -> None:
    fill(q, "a", 5)
    h = holder(q)
    h.take(0, messages_max=2)
    assert q.receive() == []
    h.take(1, messages_max=2)
    assert by_key(read(q, h, 2)) == {"sa": [3, 4]}


def test_delays_and_holds_are_respected(q: Queue, clock: FakeClock) -> None:
    q.send(b"later", "late", delay=10.0)
    q.send(b"behind", "late")
    fill(q, "held", 1)
    q.hold("held")
    h = holder(q)
    assert h.take(0) == 0
    clock.advance(11.0)
    assert read(q, h, h.take(0)) == [("slate", 1, "later"), ("slate", 2, "behind")]
    q.release("held")
    assert read(q, h, h.take(1)) == [("sheld", 1, "1")]


def test_a_worker_and_a_named_consumer_share_a_queue(q: Queue) -> None:
    for key in ("a", "b", "c"):
        fill(q, key, 2)
    mine = q.receive(2)
    h = holder(q)
    n = h.take(0)
    assert by_key(read(q, h, n)) == {"sb": [1, 2], "sc": [1, 2]}
    q.ack_many(mine)
    fill(q, "a", 1)
    assert labels(q.receive()) == [("a", 3)]
    assert h.take(n) == n


def test_two_consumers_have_numbers_and_leases_of_their_own(q: Queue) -> None:
    fill(q, "a", 1)
    fill(q, "b", 1)
    one, two = holder(q, "one"), holder(q, "two")
    assert (one.take(0, messages_max=1), two.take(0)) == (1, 1)
    assert (read(q, one, 1), read(q, two, 1)) == ([("sa", 1, "1")], [("sb", 1, "1")])
    assert [(c.name, c.in_flight, c.open, c.active) for c in q.consumers()] == [("one", 1, 1, True), ("two", 1, 1, True)]


def test_large_bodies_and_bytes_max(q: Queue) -> None:
    for size in (3_000, 500, 500, 9_000):
        q.send(b"x" * size, "k")
    h = holder(q)
    counts = []
    n = 0
    while (following := h.take(n, bytes_max=4_000)) != n:
        n = following
        counts.append(len(read(q, h, n)))
    assert counts == [3, 1]
    assert q.check() == []


def test_bytes_max_cuts_between_lanes_and_loses_none(q: Queue) -> None:
    for key in "abcdef":
        q.send(b"x" * 900, key)
    h = holder(q)
    assert by_key(read(q, h, h.take(0, bytes_max=2_000))) == {"sa": [1], "sb": [1]}
    assert q.check() == []
    assert sorted(by_key(drain(q, h))) == ["sc", "sd", "se", "sf"]


def test_limits_are_checked(q: Queue) -> None:
    h = holder(q)
    for options in ({"messages_max": 0}, {"messages_max": 10**9}, {"bytes_max": 0}):
        with pytest.raises(InvalidArgument):
            h.take(0, **options)
    for name in ("", "x" * 257, "a\0b"):
        with pytest.raises(InvalidArgument):
            Handouts(q, name, encode)
    with pytest.raises(InvalidArgument, match="attach first"):
        _ = Handouts(q, "new", encode).last


def test_headers_of_attempts_and_expired_messages(q: Queue, clock: FakeClock) -> None:
    q.send(b"old", "a", ttl=5.0)
    q.send(b"new", "a")
    clock.advance(6.0)
    h = holder(q)
    assert read(q, h, h.take(0)) == [("sa", 2, "new")]
    assert q.stats().expired == 1
    assert q.check() == []


# --- bounded by arrival


def test_only_what_had_arrived(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    seen = h.arrived()
    fill(q, "a", 2)
    fill(q, "b", 1)
    assert read(q, h, h.take(0, arrived=seen)) == [("sa", 1, "1"), ("sa", 2, "2")]
    assert h.take(1, arrived=seen) == 1
    assert q.check() == []
    assert by_key(read(q, h, h.take(1))) == {"sa": [3, 4], "sb": [1]}


def test_what_was_retried_meanwhile_is_of_its_arrival(q: Queue) -> None:
    """A nacked lane goes to the end of the order, behind newer lanes; its messages are no newer for that."""
    fill(q, "a", 2)
    fill(q, "c", 1)
    h = holder(q)
    seen = h.arrived()
    fill(q, "b", 1)
    (d,) = q.receive(1, keys=["a"])
    d.nack(delay=0.0)
    assert by_key(read(q, h, h.take(0, arrived=seen))) == {"sc": [1], "sa": [1, 2]}
    assert h.take(1, arrived=seen) == 1
    assert q.check() == []


def test_an_expired_head_does_not_let_a_newer_message_in(q: Queue, clock: FakeClock) -> None:
    q.send(b"old", "a", ttl=5.0)
    h = holder(q)
    seen = h.arrived()
    q.send(b"new", "a")
    clock.advance(6.0)
    assert h.take(0, arrived=seen) == 0
    assert q.check() == []
    assert read(q, h, h.take(0)) == [("sa", 2, "new")]


# --- the same again, after whatever happened


def test_leases_outlive_time_restarts_and_reboots(disk: Opener, clock: FakeClock) -> None:
    q = disk(shards=2)
    for key in keys_by_shard(2).values():
        fill(q, key, 2)
    other = q.receive(1, lease_seconds=5.0)
    h = holder(q)
    h.take(0)
    first = read(q, h, 1)
    disk.close()
    clock.advance(1e6)
    clock.reboot(down_seconds=100.0)
    q = disk()
    again = q.receive(10)
    assert labels(again) == [(other[0].key, 1)], "a timed lease ended with the boot, the hand-out's did not"
    q.ack_many(again)
    h = holder(q)
    assert (h.acked, h.last, h.take(0)) == (0, 1, 1)
    assert read(q, h, 1) == first
    h.take(1)
    assert q.stats().in_flight in (0, 1)
    assert q.check() == []


def test_a_fresh_start_begins_at_the_last_ack(disk: Opener) -> None:
    q = disk()
    fill(q, "a", 6)
    h = holder(q)
    assert [h.take(n, messages_max=2) for n in (0, 1)] == [1, 2]
    h.close()
    h = holder(q)
    assert (h.acked, h.last) == (1, 2)
    assert h.take(h.acked) == 2
    assert by_key(read(q, h, 2)) == {"sa": [3, 4]}


def test_an_older_start_is_served_again_from_what_is_kept(q: Queue) -> None:
    fill(q, "a", 6)
    h = holder(q)
    seen = [read(q, h, h.take(n, messages_max=2)) for n in range(3)]
    assert h.take(3) == 3
    q.purge()
    for n in (0, 1, 2):
        assert h.take(n) == n + 1
        assert read(q, h, n + 1) == seen[n]
    assert h.take(3) == 3
    assert q.check() == []


def test_what_is_older_than_kept_is_refused_with_the_remedy(q: Queue) -> None:
    fill(q, "a", 10)
    h = holder(q, keep=2)
    for n in range(6):
        assert h.take(n, messages_max=1) == n + 1
    assert q.consumers()[0].kept == 3, "two acked ones and the open one"
    with pytest.raises(HandoutGone, match=r"not kept any more.*new checkpoint"):
        h.take(1)
    with pytest.raises(HandoutGone):
        h.parts(3)
    assert by_key(read(q, h, 4)) == {"sa": [4]}
    with pytest.raises(HandoutGone, match="has had 6 hand-outs"):
        h.take(7)
    assert q.check() == []


def test_a_longer_keep_later_does_not_bring_back_what_is_gone(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    h = holder(q, keep=0)
    n = 0
    for turn in range(4):
        for shard in ((0, 1), (0,), (0,), (0,))[turn]:
            q.send(b"x", keys[shard])
        n = h.take(n)
    h.take(n)
    h.close()
    h = holder(q, keep=100)
    with pytest.raises(HandoutGone, match="not kept"):
        h.parts(1)  # shard 1 still has its part


def test_kept_hand_outs_count_in_bytes_and_not_in_depth(q: Queue) -> None:
    q.send(b"x" * 500, "a", ttl=100.0)
    h = holder(q)
    h.take(0)
    assert h.take(1) == 1
    stats = q.stats()
    assert (stats.depth, stats.lanes) == (0, 1)
    assert stats.handout_bytes > 500
    assert q.consumers()[0].kept_bytes == stats.handout_bytes


def test_after_a_crash_between_two_shards_the_part_is_the_hand_out(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 2)
    h = holder(q)
    shards = q._store.rotation()
    second = shards[0]  # the next rotation begins with the other one
    with failing(q, "INSERT INTO handout ", KeyboardInterrupt(), number=second.number), pytest.raises(KeyboardInterrupt):
        h.take(0)
    done = 1 - second.number
    assert read(q, h, h.take(0)) == [(f"s{keys[done]}", 1, "1"), (f"s{keys[done]}", 2, "2")]
    disk.close()
    q = disk()
    h = holder(q)
    assert h.take(0) == 1
    assert by_key(read(q, h, 1)) == {f"s{keys[done]}": [1, 2]}
    assert by_key(read(q, h, h.take(1))) == {f"s{keys[second.number]}": [1, 2]}
    assert q.check() == []


def test_after_a_crash_between_two_acks_the_other_shard_follows(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 1)
    h = holder(q)
    h.take(0)
    with failing(q, "UPDATE handout SET state = 'acked'", KeyboardInterrupt(), number=1), pytest.raises(KeyboardInterrupt):
        h.take(1)
    disk.close()
    q = disk()
    assert [(c.acked, c.open, c.in_flight) for c in q.consumers()] == [(1, 1, 1)]
    h = holder(q)
    assert (h.acked, q.stats().acks) == (1, 2)
    assert h.take(0) == 1, "an older start is still served"
    assert q.check() == []


def test_a_shard_that_fails_does_not_take_the_others_part_along(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 1)
    h = holder(q)
    second = q._store.rotation()[0].number
    with failing(q, "INSERT INTO handout ", strictq.StoreBusy("busy", shard=second), number=second):
        assert h.take(0) == 1
    assert by_key(read(q, h, 1)) == {f"s{keys[1 - second]}": [1]}
    assert by_key(read(q, h, h.take(1))) == {f"s{keys[second]}": [1]}


def test_an_unknown_outcome_is_looked_up(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    if q.path == ":memory:":
        return  # a failed commit loses what is in memory
    with failing(q, "COMMIT", OSError(5, "io"), after=True), pytest.raises(OSError):
        h.take(0, messages_max=1)
    assert h.last == 1
    assert h.take(0) == 1
    assert read(q, h, 1) == [("sa", 1, "1")]


def test_on_a_full_disk_acks_go_on(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    h.take(0, messages_max=1)
    with failing(q, "INSERT INTO handout ", StoreFull("full", shard=0)), pytest.raises(StoreFull):
        h.take(1)
    assert q.stats().acks == 1
    assert by_key(read(q, h, h.take(1))) == {"sa": [2]}


def test_what_the_encoder_raises_undoes_the_hand_out(q: Queue) -> None:
    fill(q, "a", 1)

    def refuse(leases: object, shard: int) -> list[handing.Block]:
        raise InvalidArgument("this key can't be packed")

    h = Handouts(q, "etl", refuse)
    h.attach()
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            h.take(0)
    assert (h.last, q.stats().in_flight) == (0, 0)
    h.close()
    assert labels(q.receive()) == [("a", 1)]
    assert q.check() == []


# --- one holder


def test_a_second_holder_is_refused_while_the_first_lives(q: Queue) -> None:
    first = holder(q)
    second = Handouts(q, "etl", encode)
    with pytest.raises(ConsumerBusy):
        second.attach(0.0)
    first.close()
    second.attach(0.0)
    with pytest.raises(InvalidArgument, match="attach first"):
        first.take(0)


def test_a_zombie_is_fenced(disk: Opener) -> None:
    q = disk(shards=2)
    for key in keys_by_shard(2).values():
        fill(q, key, 2)
    zombie = holder(q)
    zombie.take(0, messages_max=1)
    zombie._lock.leave()  # as if its machine's lock had ended with it
    h = holder(q)
    for start in (0, 1):
        if start:
            with pytest.raises(ConsumerLost):
                zombie.take(start)
        else:
            assert zombie.take(start) == 1, "what is recorded may be read by anybody"
    assert (h.acked, h.last) == (0, 1)
    assert q.check() == []


def test_a_zombie_learns_it_where_it_would_lease(q: Queue) -> None:
    zombie = holder(q)
    assert zombie.take(0) == 0
    zombie._lock.leave()
    h = holder(q)
    fill(q, "a", 1)
    with pytest.raises(ConsumerLost):
        zombie.take(0)
    assert h.take(0) == 1


def test_two_processes_have_one_holder(tmp_path: Path) -> None:
    q = strictq.open(tmp_path / "queue")
    script = """
import sys, strictq
from strictq._handouts import Handouts
from tests.support.handouts import encode
with strictq.open(sys.argv[1]) as q:
    h = Handouts(q, "etl", encode)
    h.attach()
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, q.path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert [c.active for c in q.consumers()] == [True]
        with pytest.raises(ConsumerBusy):
            holder(q)
        with pytest.raises(ConsumerBusy):
            q.release_consumer("etl")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
    holder(q).close()
    assert [c.active for c in q.consumers()] == [False]
    q.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_keep_the_consumer(disk: Opener) -> None:
    q = disk()
    h = holder(q)
    ready, tell = os.pipe()
    stop, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        try:
            h.take(0)
        except strictq.ForkedProcess:
            os.write(tell, b"refused")
        finally:
            os.close(tell)
            os.read(stop, 1)
            os._exit(0)
    os.close(tell)
    assert os.read(ready, 20) == b"refused"
    h.close()
    holder(q).close()
    os.close(end)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(stop)


def test_holders_in_threads_exclude_each_other(q: Queue) -> None:
    def attach() -> Handouts:
        return holder(q)

    results = in_threads([attach] * 4)
    assert sorted(type(r).__name__ for r in results) == ["ConsumerBusy"] * 3 + ["Handouts"]


# --- acks from elsewhere


def test_whoever_knows_that_a_batch_is_done_may_ack_it(q: Queue) -> None:
    fill(q, "a", 4)
    h = holder(q)
    h.take(0, messages_max=2)
    assert acknowledge(q, "etl", 1) == 2
    assert acknowledge(q, "etl", 1) == 0
    assert h.take(1) == 2
    assert by_key(read(q, h, 2)) == {"sa": [3, 4]}
    assert acknowledge(q, "etl", 1) == 0, "late: it acks nothing that came later"
    assert q.stats().in_flight == 2
    with pytest.raises(HandoutGone):
        acknowledge(q, "etl", 3)
    with pytest.raises(HandoutGone):
        acknowledge(q, "nobody", 1)


# --- operators


def test_release_gives_everything_back(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 3)
    h = holder(q)
    h.take(0)
    with pytest.raises(ConsumerBusy):
        q.release_consumer("etl")
    h.close()
    assert q.release_consumer("etl") == 6
    assert q.check() == []
    assert sorted(labels(q.receive(10))) == sorted((key, n) for key in keys.values() for n in (1, 2, 3))
    h = holder(q)
    assert (h.acked, h.last) == (1, 1), "the number is not used again"
    with pytest.raises(HandoutGone, match=r"was released.*new checkpoint"):
        h.take(0)
    assert h.take(1) == 1
    assert q.release_consumer("nobody") == 0


def test_release_by_force_fences_the_holder(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    h.take(0, messages_max=1)
    assert q.release_consumer("etl", force=True) == 1
    with pytest.raises(ConsumerLost):
        h.take(1)
    assert [d.attempt for d in q.receive()] == [1, 1], "nobody was charged"


def test_a_release_that_was_cut_short_is_finished(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 2)
    h = holder(q)
    h.take(0)
    h.close()
    with failing(q, "UPDATE handout SET state = 'released'", KeyboardInterrupt(), number=1), pytest.raises(KeyboardInterrupt):
        q.release_consumer("etl")
    problems = q.check()
    assert {p.rule for p in problems} == {"handout"}
    assert all(p.fixable for p in problems)
    disk.close()
    q = disk()
    h = holder(q)
    assert (h.acked, h.last) == (1, 1)
    assert q.check() == []
    assert q.stats().acks == 0
    assert by_key(read(q, h, h.take(1))) == {f"s{key}": [1, 2] for key in keys.values()}


def test_rejecting_a_message_takes_it_out_of_its_hand_out(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 1)
    h = holder(q)
    h.take(0)
    assert q.reject("a", 2, "it kills the job")
    assert not q.reject("a", 2, "again")
    assert q.reject("b", 1, "so does this")
    assert h.take(0) == 1
    assert read(q, h, 1) == [("sa", 1, "1"), ("sa", 3, "3")]
    assert sorted((d.key, d.seq, d.kind, d.reason) for d in q.dead_letters()) == [
        ("a", 2, "rejected", "it kills the job"), ("b", 1, "rejected", "so does this"),
    ]  # fmt: skip
    assert q.check() == []
    assert h.take(1) == 1
    assert (q.stats().acks, q.stats().depth) == (2, 0)
    assert q.redrive() == 2
    assert by_key(read(q, h, h.take(1))) == {"sa": [2], "sb": [1]}
    assert q.check() == []


def test_rejecting_what_nobody_or_a_consumer_holds(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 3)
    assert q.reject("a", 1, "bad")
    (d,) = q.receive(1)
    assert d.seq == 2
    with pytest.raises(InvalidArgument, match="is held by"):
        q.reject("a", 2, "bad")
    assert q.reject("a", 3, "bad"), "a message behind the lease is nobody's"
    clock.advance(100.0)
    assert q.reject("a", 2, "bad")
    assert q.stats().dead == 3
    assert q.check() == []
    for seq in (0, 4, -1):
        with pytest.raises((UnknownMessage, InvalidArgument)):
            q.reject("a", seq, "bad")
    with pytest.raises(UnknownMessage):
        q.reject("nobody", 1, "bad")
    with pytest.raises(InvalidArgument):
        q.reject("a", 1, "")


def test_a_redrive_waits_for_the_ack(q: Queue) -> None:
    fill(q, "a", 3)
    q.reject("a", 1, "no")
    h = holder(q)
    h.take(0, messages_max=1)
    assert q.redrive("a") == 1
    assert by_key(read(q, h, h.take(1))) == {"sa": [1, 3]}
    h.take(2)
    assert (q.stats().acks, q.check()) == (3, [])


def test_purge_leaves_what_is_handed_out(q: Queue) -> None:
    fill(q, "a", 3)
    h = holder(q)
    h.take(0, messages_max=2)
    assert q.purge() == 1
    assert h.take(1) == 1
    assert (q.stats().acks, q.check()) == (2, [])


def test_idle_lanes_may_be_forgotten_while_their_hand_outs_are_kept(make: Opener, clock: FakeClock) -> None:
    q = make(idle_lane_seconds=1.0)
    fill(q, "a", 2)
    h = holder(q)
    h.take(0)
    h.take(1)
    clock.advance(10.0)
    q.send_many([Message(b"", key=f"n{n}") for n in range(40)])
    assert h.take(0) == 1
    assert by_key(read(q, h, 1)) == {"sa": [1, 2]}
    assert q.check() == []


def test_explain_and_status_name_the_consumer(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    h.take(0)
    why = q.explain("a")
    assert (why.state, why.by, why.until) == ("in_flight", "etl", None)
    assert "in hand-out 1 of consumer etl" in why.text
    status = q.status("a", 1)
    assert (status.state, status.consumer, status.until) == ("in_flight", "etl", None)
    (c,) = q.consumers()
    assert (c.name, c.last, c.acked, c.open, c.in_flight, c.kept, c.active) == ("etl", 1, 0, 1, 2, 1, True)
    assert c.since is not None
    assert q.stats().depth == 2


def test_keyless_messages(make: Opener) -> None:
    q = make(keyless="random", keyless_lanes=2)
    for n in range(6):
        q.send(b"%d" % n)
    q.send(b"late", delay=100.0)
    h = holder(q)
    assert sorted(body for _, _, body in read(q, h, h.take(0))) == [str(n) for n in range(6)]
    h.take(1)
    assert (q.stats().depth, q.check()) == (1, [])


def test_a_read_only_queue_reads_hand_outs(disk: Opener) -> None:
    q = disk()
    fill(q, "a", 1)
    h = holder(q)
    h.take(0)
    with strictq.open(q.path, read_only=True, clock=disk.clock) as looker:
        assert b'"sa", 1' in read_block(looker, "etl", 1, 0, 0)
        with pytest.raises(HandoutGone):
            read_block(looker, "etl", 1, 0, 1)
        assert looker.consumers()[0].in_flight == 1
        with pytest.raises(strictq.ReadOnlyQueue):
            looker.release_consumer("etl")


# --- check


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM handout_block WHERE part = 0",
        "UPDATE handout_block SET data = zeroblob(3)",
        "UPDATE handout SET messages = messages + 1",
        "DELETE FROM handout",
        "DELETE FROM consumer",
        "UPDATE consumer SET last = 0",
        "UPDATE consumer SET acked = 1",
        "UPDATE handout SET state = 'acked'",
        "INSERT INTO handout_rejected VALUES ('etl', 9, 1)",
        "DELETE FROM lease",
        "UPDATE lease SET consumer = 'other'",
    ],
)
def test_check_finds_what_is_wrong_with_hand_outs(disk: Opener, damage: str) -> None:
    q = disk()
    fill(q, "a", 6)
    h = holder(q)
    h.take(0)
    assert q.check() == []
    disk.close()
    tamper(shard_file(q.path), damage)
    assert "handout" in {p.rule for p in disk().check()}


def test_files_of_consumers_are_private(disk: Opener) -> None:
    q = disk()
    holder(q, "../../etc/passwd")
    (file,) = [f for f in Path(q.path).iterdir() if f.name.startswith("consumer-")]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [TypeError("of another kind"), OverflowError("too large")])
def test_an_encoder_that_fails_says_nothing_of_the_shard(q: Queue, error: Exception) -> None:
    """The same errors out of a stored row would mean that the file is damaged; here it is not."""
    fill(q, "a", 2)

    def broken(leases: object, shard: int) -> list[handing.Block]:
        raise error

    h = Handouts(q, "etl", broken)
    h.attach(0.0)
    with pytest.raises(InvalidArgument, match=str(error)):
        h.take(0)
    assert q.stats().shards[0].quarantined is None
    assert labels(q.receive()) == [("a", 1), ("a", 2)]
