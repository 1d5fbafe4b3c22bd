"""What operators do to a consumer's recorded batches, and what check finds in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from strictq import ConsumerBusy, ConsumerLost, InvalidArgument, Message, Queue, RecordedBatchGone, UnknownMessage
from strictq._store.api import Block
from strictq.spark._recorded_batches import Holder, read_block
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, keys_by_shard, labels
from tests.support.recorded_batches import by_key, holder, read

pytestmark = pytest.mark.own_messages("acks of the queue")


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
    with pytest.raises(RecordedBatchGone, match=r"was released.*new checkpoint"):
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


def test_rejecting_a_message_takes_it_out_of_its_recorded_batch(q: Queue) -> None:
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


@pytest.mark.parametrize("out", [{1}, {2}, {3}, {1, 3}, {1, 2, 3}])
def test_what_is_left_of_a_recorded_batch_is_acked(q: Queue, out: set[int]) -> None:
    for key in ("a", "b", "c"):
        fill(q, key, 3)
    h = holder(q)
    h.take(0)
    for seq in out:
        q.reject("b", seq, "it kills the job")
    h.ack(1)
    assert (q.stats().acks, q.stats().depth, q.stats().dead) == (9 - len(out), 0, len(out))
    assert {q.status("b", seq).state for seq in out} == {"dead"}
    assert q.check() == []


def test_a_batch_of_which_every_message_was_rejected_is_shown(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    assert h.take(0) == 1
    for seq in (1, 2):
        assert q.reject("a", seq, "no")
    (found,) = q.consumers()
    assert (found.open, found.in_flight, found.age_seconds) == (1, 0, None)
    assert read(q, h, 1) == []
    assert h.take(1) == 1


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


def test_idle_lanes_may_be_forgotten_while_their_recorded_batches_are_kept(make: Opener, clock: FakeClock) -> None:
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
    assert "in batch 1 of consumer etl" in why.text
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


def test_a_read_only_queue_reads_recorded_batches(disk: Opener) -> None:
    q = disk()
    fill(q, "a", 1)
    h = holder(q)
    h.take(0)
    with strictq.open(q.path, read_only=True, clock=disk.clock) as looker:
        assert b'"sa", 1' in read_block(looker, "etl", 1, 0, 0)
        with pytest.raises(RecordedBatchGone):
            read_block(looker, "etl", 1, 0, 1)
        assert looker.consumers()[0].in_flight == 1
        with pytest.raises(strictq.ReadOnlyQueue):
            looker.release_consumer("etl")


# --- check


def test_files_of_consumers_are_private(disk: Opener) -> None:
    q = disk()
    holder(q, "../../etc/passwd")
    (file,) = [f for f in Path(q.path).iterdir() if f.name.startswith("consumer-")]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [TypeError("of another kind"), OverflowError("too large")])
def test_an_encoder_that_fails_says_nothing_of_the_shard(q: Queue, error: Exception) -> None:
    """The same errors out of a stored row would mean that the file is damaged; here it is not."""
    fill(q, "a", 2)

    def broken(leases: object, shard: int) -> list[Block]:
        raise error

    h = Holder(q, "etl", broken)
    h.attach(0.0)
    with pytest.raises(InvalidArgument, match=str(error)):
        h.take(0)
    assert q.stats().shards[0].quarantined is None
    assert labels(q.receive()) == [("a", 1), ("a", 2)]
