"""The same recorded batches again, after whatever happened: restarts, reboots, crashes, failures."""

from __future__ import annotations

import pytest

import strictq
from strictq import InvalidArgument, Queue, RecordedBatchGone
from strictq._store.api import Block
from strictq.spark._recorded_batches import Holder
from strictq.testing import FakeClock
from tests.support.injection import commit_fails
from tests.support.queues import Opener, fill, keys_by_shard, labels
from tests.support.recorded_batches import by_key, holder, read


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
    assert labels(again) == [(other[0].key, 1)], "a timed lease ended with the boot, the recorded batch's did not"
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
    with pytest.raises(RecordedBatchGone, match=r"no longer kept.*new checkpoint"):
        h.take(1)
    with pytest.raises(RecordedBatchGone):
        h.parts(3)
    assert by_key(read(q, h, 4)) == {"sa": [4]}
    with pytest.raises(RecordedBatchGone, match="has 6 batches"):
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
    with pytest.raises(RecordedBatchGone, match="no longer kept"):
        h.parts(1)  # shard 1 still has its part


@pytest.mark.own_messages("lanes of the queue")
def test_kept_recorded_batches_count_in_bytes_and_not_in_depth(q: Queue) -> None:
    q.send(b"x" * 500, "a", ttl=100.0)
    h = holder(q)
    h.take(0)
    assert h.take(1) == 1
    stats = q.stats()
    assert (stats.depth, stats.lanes) == (0, 1)
    assert stats.recorded_batch_bytes > 500
    assert q.consumers()[0].kept_bytes == stats.recorded_batch_bytes
    with pytest.warns(DeprecationWarning, match="handout_bytes is now named recorded_batch_bytes"):
        assert stats.handout_bytes == sum(s.handout_bytes for s in stats.shards) == stats.recorded_batch_bytes


def test_an_unknown_outcome_is_looked_up(disk: Opener) -> None:
    q = disk()  # in memory, a failed commit loses everything
    fill(q, "a", 2)
    h = holder(q)
    with commit_fails(q, happened=True), pytest.raises(strictq.OutcomeUnknown):
        h.take(0, messages_max=1)
    assert h.last == 1
    assert h.take(0) == 1
    assert read(q, h, 1) == [("sa", 1, "1")]


def test_what_the_encoder_raises_undoes_the_recorded_batch(q: Queue) -> None:
    fill(q, "a", 1)

    def refuse(leases: object, shard: int) -> list[Block]:
        raise InvalidArgument("this key can't be packed")

    h = Holder(q, "etl", refuse)
    h.attach()
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            h.take(0)
    assert (h.last, q.stats().in_flight) == (0, 0)
    h.close()
    assert labels(q.receive()) == [("a", 1)]
    assert q.check() == []


def test_a_lane_that_is_too_large_for_what_is_left_stays_listed(q: Queue, clock: FakeClock) -> None:
    """Also one that is looked at message by message, with a smaller one behind it."""
    for key, body in (("a", b""), ("b", b"22"), ("c", b"")):
        q.send(body, key)
    assert len(q.receive()) == 3
    clock.advance(1_000.0)  # all three leases are over
    h = holder(q)
    got = [label for n in (0, 1) for label in read(q, h, h.take(n, bytes_max=1))]
    assert sorted(got) == [("sa", 1, ""), ("sb", 1, "22")]
    assert read(q, h, h.take(2)) == [("sc", 1, "")]
    assert q.check() == []


@pytest.mark.one_shard("the content of each batch")
def test_a_lane_whose_head_was_put_aside_leaves_its_place_to_it(make: Opener, clock: FakeClock) -> None:
    """It did not fit, so it keeps its turn; but not the number where the message arrived that has a lane of its own now."""
    q = make(keyless="round_robin", keyless_lanes=1, on_poison="hold")
    q.send(b"first", "k")
    q.hold("k")
    q.send(b"m1")
    q.send(b"m2" * 50)
    q.receive(1, lease_seconds=10.0)
    clock.advance(11.0)  # an attempt, by expiry
    (d,) = q.receive(1)
    d.lease.release()  # its lane is listed where m1 arrived
    q.configure(max_attempts=1)
    q.release("k")
    h = holder(q)
    n = h.take(0, bytes_max=6)
    assert [body for *_, body in read(q, h, n)] == ["first"]
    assert q.release(None)
    assert q.check() == []
    n = h.take(n)
    assert sorted(body for *_, body in read(q, h, n)) == ["m1", "m2" * 50]


def test_the_old_name_of_the_error_works() -> None:
    with pytest.warns(DeprecationWarning, match="HandoutGone is now named RecordedBatchGone"):
        assert strictq.HandoutGone is RecordedBatchGone
