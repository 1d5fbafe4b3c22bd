"""Batches that are recorded before the one before them is acked: which, with which messages, and what a crash leaves."""

from __future__ import annotations

from typing import Any

import pytest

from strictq import Queue
from strictq.spark import _recorded_batches
from tests.support.queues import Opener, fill, keys_by_shard
from tests.support.recorded_batches import Lazy, by_key, drain, holder, read

pytestmark = pytest.mark.own_messages("acks of the queue")


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recorded_batches, "DEFERRED_MIN", 1)


@pytest.fixture
def on_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recorded_batches, "_Deferred", Lazy)


@pytest.mark.one_shard("the content of each batch")
@pytest.mark.usefixtures("on_wait")
def test_other_lanes_fill_the_batch_so_the_ack_follows(q: Queue) -> None:
    for key in "abcdef":
        fill(q, key, 2)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=4) for n in (0, 1)] == [1, 2]
    assert by_key(read(q, h, 2)) == {"sc": [1, 2], "sd": [1, 2]}
    assert (q.stats().acks, q.stats().in_flight) == (0, 8)
    h.ack(1)
    assert q.stats().acks == 0, "it is under way"
    h.wait()
    assert (h.acked, q.stats().acks, q.stats().in_flight) == (1, 4, 4)
    assert q.check() == []


@pytest.mark.one_shard("the content of each batch")
def test_a_lane_gives_nothing_to_the_next_before_the_ack(q: Queue) -> None:
    fill(q, "a", 6)
    fill(q, "b", 1)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=2) for n in (0, 1)] == [1, 2]
    assert by_key(read(q, h, 2)) == {"sa": [3, 4]}
    assert q.stats().acks == 2, "the other lane has one message, and two are wanted, so it acked first"
    assert by_key(drain(q, h, messages_max=2)) == {"sa": [5, 6], "sb": [1]}
    assert q.check() == []


def test_after_a_failed_try_it_pauses(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(q, "a", 40)
    h = holder(q, deferring=True)
    tries: list[int] = []
    without_full = h._without_full

    def counted(start: int, *rest: Any) -> Any:
        tries.append(start)
        return without_full(start, *rest)

    monkeypatch.setattr(h, "_without_full", counted)
    assert by_key(drain(q, h, messages_max=1)) == {"sa": list(range(1, 41))}
    assert tries == [1, 3, 7, 15, 31]


@pytest.mark.usefixtures("on_wait")
def test_after_a_crash_before_the_ack_both_batches_are_there(disk: Opener) -> None:
    q = disk(shards=2)
    for n in range(12):
        fill(q, f"k{n}", 1)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=4) for n in (0, 1)] == [1, 2]
    rows = [read(q, h, n) for n in (1, 2)]
    disk.close()
    for start in (1, 0, 1):
        q = disk()
        h = holder(q, deferring=True)
        assert h.take(start) == start + 1
        assert [read(q, h, n) for n in (1, 2)] == rows
        disk.close()
    q = disk()
    h = holder(q, deferring=True)
    assert q.stats().acks == 4
    rest = drain(q, h, messages_max=3)
    everything = by_key([*rows[0], *rows[1], *rest])
    assert everything == {f"sk{n}": [1] for n in range(12)}
    assert q.check() == []


def test_an_ack_that_failed_is_repeated_by_the_next_call(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recorded_batches, "_Deferred", lambda _, upto: Lazy(lambda: (None, None), upto))
    for key in "abcdefgh":
        fill(q, key, 1)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=2) for n in (0, 1)] == [1, 2]
    h.wait()
    assert q.stats().acks == 0
    assert h.take(2, messages_max=2) == 3
    assert q.stats().acks == 4, "not deferred again, so that an error is raised"
    assert q.check() == []


def test_a_batch_that_no_message_follows_is_acked_at_once(q: Queue) -> None:
    fill(q, "a", 3)
    h = holder(q, deferring=True)
    assert h.take(h.take(0)) == 1
    assert (h.acked, q.stats().depth) == (1, 0)


@pytest.mark.usefixtures("on_wait")
def test_shards_whose_turn_it_is_not_ack_later(disk: Opener) -> None:
    q = disk(shards=8)
    keys = keys_by_shard(8)
    for key in keys.values():
        fill(q, key, 2)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=8) for n in (0, 1)] == [1, 2]
    assert {p.shard for n in (1, 2) for p in h.parts(n)} == set(range(8))
    assert (q.stats().acks, q.stats().in_flight) == (0, 16)
    assert h.take(2) == 2
    assert q.stats().depth == 0
    assert q.check() == []


def test_closing_waits(q: Queue) -> None:
    for key in "abcd":
        fill(q, key, 1)
    h = holder(q, deferring=True)
    h.take(h.take(0, messages_max=2), messages_max=2)
    h.close()
    assert q.stats().acks == 2
