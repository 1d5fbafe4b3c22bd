"""Batches that are recorded before the caller asks for them: which, with which messages, and what becomes of them."""

from __future__ import annotations

import os
import signal
import sys
from threading import Event, Thread, Timer, current_thread, main_thread
from typing import Any

import pytest

from strictq import Queue
from strictq._values.errors import ConsumerLost, ForkedProcess, RecordedBatchGone, StrictqError
from strictq.spark import _recorded_batches
from tests.support.queues import Opener, fill
from tests.support.recorded_batches import Lazy, by_key, drain, holder, read
from tests.support.running import PATIENCE_SECONDS

pytestmark = [pytest.mark.one_shard("the content of each batch"), pytest.mark.own_messages("acks of the queue")]

KEYS = "abcdefghij"


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recorded_batches, "DEFERRED_MIN", 1)


def fill_all(q: Queue, of_each: int = 1) -> None:
    for key in KEYS:
        fill(q, key, of_each)


def test_lanes_that_no_batch_holds_fill_the_batch_after_the_next(q: Queue) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    assert (h.last, h.acked, q.stats().acks, q.stats().in_flight) == (3, 1, 3, 6)
    assert by_key(read(q, h, 3)) == {"sg": [1], "sh": [1], "si": [1]}
    assert h.unprocessed() == 6
    assert h.take(2, messages_max=3, ahead=True) == 3
    h.wait()
    assert (h.last, h.acked, q.stats().acks, q.stats().in_flight) == (3, 2, 6, 3), "one message does not fill a batch"
    assert h.take(3, messages_max=3, ahead=True) == 4
    assert by_key(read(q, h, 4)) == {"sj": [1]}
    assert h.take(4, ahead=True) == 4
    assert q.stats().depth == 0
    assert q.check() == []


def test_the_transactions_that_record_it_ack(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recorded_batches, "_Deferred", Lazy)
    fill_all(q, 2)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=4, ahead=True) for n in range(2)] == [1, 2]
    advance, calls = h._recorded.advance, []

    def noted(_: Any, by: Any, known: Any, upto: int, n: int, wants: Any, left: Any) -> Any:
        calls.extend((upto, n, shard) for shard in wants)
        return advance(by, known, upto, n, wants, left)

    with monkeypatch.context() as patch:
        patch.setattr(type(h._recorded), "advance", noted)
        h.wait()
    assert (h.last, h.acked, q.stats().acks) == (3, 1, 4)
    assert calls == [(1, 3, 0)]
    assert [h.take(n, messages_max=4, ahead=True) for n in (2, 3)] == [3, 4]
    assert q.stats().acks == 8, "the ack of batch 3 is under way"
    h.ack(2)
    h.wait()
    assert (h.acked, q.stats().acks) == (3, 12)
    assert by_key([row for n in range(1, 5) for row in read(q, h, n)]) == {f"s{key}": [1, 2] for key in KEYS[:8]}
    assert q.check() == []


@pytest.mark.parametrize("recorded", [False, True])
def test_what_failed_in_the_thread_is_repeated_by_the_next_call(
    q: Queue, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    fill_all(q, 2)
    h = holder(q, deferring=True)
    advance = h._recorded.advance
    failing = [True]

    def fail(_: Any, by: Any, known: Any, upto: int, n: int, wants: Any, left: Any) -> Any:
        if failing and upto and wants:
            if recorded:
                advance(by, known, upto, n, wants, left)
            raise StrictqError("the disk is gone")
        return advance(by, known, upto, n, wants, left)

    assert h.take(0, messages_max=4) == 1
    monkeypatch.setattr(type(h._recorded), "advance", fail)
    assert h.take(1, messages_max=4, ahead=True) == 2
    h.wait()
    assert (h.last, q.stats().acks) == ((3, 4) if recorded else (2, 0))
    with pytest.raises(StrictqError, match="the disk is gone"):
        h.take(2, messages_max=4, ahead=True)
    failing.clear()
    assert [h.take(n, messages_max=4, ahead=True) for n in (2, 3)] == [3, 4]
    h.wait()
    assert (h.acked, q.stats().acks) == (3, 12)
    assert q.check() == []


def test_a_later_message_of_a_lane_is_not_recorded_before_the_ack(q: Queue) -> None:
    fill(q, "a", 6)
    fill(q, "b", 2)
    h = holder(q, deferring=True)
    rows = []
    n = 0
    while (following := h.take(n, messages_max=2, ahead=True)) != n:
        n = following
        rows += read(q, h, n)
        h.wait()
        if h.last > n:
            assert {key for key, _, _ in read(q, h, h.last)} != {key for key, _, _ in read(q, h, n)}
    assert by_key(rows) == {"sa": [1, 2, 3, 4, 5, 6], "sb": [1, 2]}
    assert q.check() == []


def test_one_that_some_shards_filled_is_completed_when_it_is_wanted(disk: Opener) -> None:
    """The number of messages of a shard is an estimate, which counts those of a lane that is on hold."""
    q = disk(shards=2)
    receipts = [fill(q, f"k{n}", 1)[0] for n in range(40)]
    in_first = [str(r.key) for r in receipts if q.explain(r.key).shard == 0]
    for key in in_first[5:]:
        q.hold(key)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=4, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    before = read(q, h, 3)
    assert {p.shard for p in h.parts(3)} == {1}
    assert (h.last, len(before)) == (3, 2)
    assert h.take(2, messages_max=4, ahead=True) == 3
    assert [row for row in read(q, h, 3) if row in before] == before
    complete = read(q, h, 3)
    assert len(before) < len(complete) <= 4
    rest = drain(q, h, messages_max=4, ahead=True)
    assert len(rest) == 40 - 8 - len(complete) - len(in_first[5:])
    assert q.check() == []


@pytest.mark.parametrize("again", [1, 2])
def test_who_asks_again_receives_the_same(q: Queue, again: int) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    rows = {n: read(q, h, n) for n in (2, 3)}
    for _ in range(2):
        assert h.take(1, messages_max=3, ahead=True) == 2
        assert read(q, h, 2) == rows[2]
    for _ in range(again):
        assert h.take(2, messages_max=3, ahead=True) == 3
        assert read(q, h, 3) == rows[3]
    assert q.check() == []


def test_closing_gives_back_a_batch_that_no_call_returned(q: Queue) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    h.close()
    assert (q.stats().in_flight, q.stats().ready) == (3, 4)
    assert q.check() == []
    assert [(d.key, d.attempt) for d in q.receive(10)] == [("g", 1), ("h", 1), ("i", 1), ("j", 1)]
    h = holder(q, deferring=True)
    assert (h.last, h.acked) == (2, 1)
    assert h.take(1) == 2
    assert by_key(read(q, h, 2)) == {"sd": [1], "se": [1], "sf": [1]}
    assert h.take(2) == 2
    with pytest.raises(RecordedBatchGone, match="no batch"):
        h.parts(3)


def test_closing_gives_back_no_batch_that_a_call_returned(q: Queue) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1, 2)] == [1, 2, 3]
    h.close()
    assert q.stats().in_flight == 3
    assert holder(q).take(2) == 3


def test_closing_gives_back_no_batch_that_an_earlier_holder_returned(q: Queue) -> None:
    fill_all(q)
    for _ in range(2):
        h = holder(q, deferring=True)
        assert h.take(0, messages_max=3) == 1
        h.close()
        holder(q).close()
    assert q.stats().in_flight == 3


@pytest.mark.parametrize("error", [SystemExit, StrictqError])
@pytest.mark.parametrize("earlier", [0, 1])
def test_closing_gives_back_a_batch_whose_call_failed_after_it_was_recorded(
    q: Queue, monkeypatch: pytest.MonkeyPatch, earlier: int, error: type[BaseException]
) -> None:
    fill_all(q)
    if earlier:
        h = holder(q)
        assert h.take(0, messages_max=3) == 1
        h.close()
    h = holder(q, deferring=True)
    advance = h._recorded.advance

    def fail(_: Any, *args: Any) -> Any:
        advance(*args)
        raise error("as it was recorded")

    with monkeypatch.context() as patch:
        patch.setattr(type(h._recorded), "advance", fail)
        with pytest.raises(error):
            h.take(earlier, messages_max=3)
    assert q.stats().in_flight == 3
    h.close()
    assert q.stats().in_flight == 0, "the batch before it was acked in the same transaction"
    h = holder(q)
    assert (h.last, h.acked, h.take(earlier, messages_max=3)) == (earlier, earlier, earlier + 1)
    assert q.check() == []


def test_closing_gives_back_two_batches_with_parts_of_different_shards(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt just before the return: one batch is recorded, and another ahead of it."""
    q = disk(shards=16)
    for n in range(200):
        fill(q, f"k{n}", 1)
    h = holder(q, deferring=True)
    assert h.take(0, messages_max=12, ahead=True) == 1
    start = _recorded_batches._Deferred.start

    def interrupted(deferred: _recorded_batches._Deferred) -> None:
        start(deferred)
        deferred.join()
        sys.exit(0)

    with monkeypatch.context() as patch:
        patch.setattr(_recorded_batches._Deferred, "start", interrupted)
        with pytest.raises(SystemExit):
            h.take(1, messages_max=12, ahead=True)
    assert len({p.shard for n in (2, 3) for p in h.parts(n)}) == 8
    h.close()
    assert q.stats().in_flight == 0
    h = holder(q, deferring=True)
    assert (h.last, h.acked) == (1, 1)
    rows = drain(q, h, messages_max=12, ahead=True)
    assert len({key for key, _, _ in rows}) == len(rows) == 188
    assert q.check() == []


def test_a_thread_whose_start_was_interrupted_does_nothing(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may begin while `close` gives back the batch before the one that it would record."""
    fill_all(q)
    h = holder(q, deferring=True)
    assert h.take(0, messages_max=3, ahead=True) == 1
    interrupted: list[Thread] = []

    def start(thread: Thread) -> None:
        interrupted.append(thread)
        sys.exit(0)

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", start)
        with pytest.raises(SystemExit):
            h.take(1, messages_max=3, ahead=True)
    (late,) = interrupted
    withdraw = h._recorded.withdraw

    def begins(_: Any, *args: Any) -> None:
        withdraw(*args)
        late.start()
        late.join()

    monkeypatch.setattr(type(h._recorded), "withdraw", begins)
    h.close()
    assert late.ident is not None
    assert q.stats().in_flight == 3, "batch 1 is not acked, as no call acked it"
    h = holder(q)
    assert (h.last, h.acked) == (1, 0)
    assert q.check() == []


@pytest.mark.parametrize("verb", ["wait", "take", "close"])
def test_a_forked_child_waits_for_no_thread_of_its_parent(q: Queue, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert h.take(0, messages_max=3) == 1
    advance, go = h._recorded.advance, Event()

    def slow(_: Any, *args: Any) -> Any:
        assert current_thread() is main_thread() or go.wait(PATIENCE_SECONDS)
        return advance(*args)

    monkeypatch.setattr(type(h._recorded), "advance", slow)
    assert h.take(1, messages_max=3) == 2
    child = os.fork()
    if not child:
        try:
            signal.alarm(10)
            getattr(h, verb)(*([2] if verb == "take" else []))
        except ForkedProcess:
            os._exit(7)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    go.set()
    assert os.waitstatus_to_exitcode(status) == (7 if verb == "take" else 0)
    h.close()
    assert q.stats().acks == 3
    assert q.check() == []


def test_closing_after_an_interrupt_waits_for_the_thread(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    advance = h._recorded.advance
    asked, go = Event(), Event()

    def slow(_: Any, *args: Any) -> Any:
        if current_thread() is not main_thread():
            asked.set()
            assert go.wait(PATIENCE_SECONDS)
        return advance(*args)

    def stop(*_: object) -> None:
        sys.exit(0)

    assert h.take(0, messages_max=3) == 1
    monkeypatch.setattr(type(h._recorded), "advance", slow)
    assert h.take(1, messages_max=3, ahead=True) == 2
    assert asked.wait(PATIENCE_SECONDS)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(SystemExit):
            h.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    Timer(0.2, go.set).start()
    h.close()
    assert go.is_set()
    assert (q.stats().in_flight, q.stats().acks) == (3, 3), "batch 1 is acked, batch 3 is given back"
    assert q.check() == []


@pytest.mark.parametrize("reject", [False, True])
def test_a_message_that_is_rejected_from_it_is_not_given_back(q: Queue, reject: bool) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    assert reject is False or q.reject("h", 1, "no")
    h.close()
    assert [d.key for d in q.receive(10)] == ["g", "i", "j"] if reject else ["g", "h", "i", "j"]
    assert q.check() == []


def test_keys_that_an_operator_held_or_redrove_are_given_back_as_they_are(q: Queue) -> None:
    fill_all(q, 3)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=9, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    assert by_key(read(q, h, 3)) == {"sg": [1, 2, 3], "sh": [1, 2, 3], "si": [1, 2, 3]}
    q.hold("g")
    assert q.reject("h", 1, "no")
    assert q.redrive("h") == 1
    h.close()
    got = [(d.key, d.seq) for d in q.receive(20, per_key=9)]
    assert got == [*(("h", n) for n in (1, 2, 3)), *(("i", n) for n in (1, 2, 3)), *(("j", n) for n in (1, 2, 3))]
    assert q.release("g")
    assert [(d.key, d.seq, d.attempt) for d in q.receive(20, per_key=9)] == [("g", n, 1) for n in (1, 2, 3)]
    assert q.check() == []


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("verb", ["released", "taken over"])
def test_a_holder_that_lost_the_consumer_gives_out_nothing(disk: Opener, verb: str, asks: bool) -> None:
    q = disk(shards=2)
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    assert h.last == 3
    if verb == "released":
        h._lock.leave()
        assert q.release_consumer("etl") == 6
    else:
        q._storage.recorded_batches.take_over("etl")
    if asks:
        with pytest.raises(ConsumerLost):
            h.take(2, messages_max=3, ahead=True)
    held = q.stats().in_flight
    h.close()
    assert q.stats().in_flight == held, "it gives back nothing that another holder has"
    assert q.check() == []


def test_after_a_crash_the_next_holder_receives_it(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk(shards=2)
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    rows = [read(q, h, n) for n in (2, 3)]
    disk.close()
    q = disk()
    h = holder(q, deferring=True)
    for start in (1, 2):
        assert h.take(start, messages_max=1) == start + 1
        assert read(q, h, start + 1) == rows[start - 1]
    assert [h.take(3), h.take(4)] == [4, 4]
    assert q.stats().depth == 0


@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupt_before_the_thread_starts_undoes_no_batch_before_another(
    q: Queue, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3, ahead=True) for n in (0, 1)] == [1, 2]
    if waits:
        h.wait()
    with monkeypatch.context() as patch:
        patch.setattr(_recorded_batches._Deferred, "start", lambda _: sys.exit(0))
        with pytest.raises(SystemExit):
            h.take(2, messages_max=3, ahead=True)
    h.close()
    assert q.stats().in_flight >= 3, "batch 3 is recorded"
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=3) for n in (2, 3, 4)] == [3, 4, 4]
    assert q.stats().depth == 0
    assert q.check() == []


def test_a_limit_of_arrivals_holds(q: Queue) -> None:
    fill_all(q)
    h = holder(q, deferring=True)
    arrived = h.arrived()
    fill(q, "later", 9)
    n = 0
    while (following := h.take(n, messages_max=3, arrived=arrived, ahead=True)) != n:
        n = following
        assert "slater" not in {key for key, _, _ in read(q, h, n)}
    assert q.stats().depth == 9


def test_nothing_is_recorded_ahead_behind_a_batch_that_is_not_full(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recorded_batches, "_Deferred", Lazy)
    fill_all(q)
    h = holder(q, deferring=True)
    assert [h.take(0, messages_max=8, ahead=True), h.take(1, messages_max=8, ahead=True)] == [1, 2]
    for key in "klmnopqrstu":
        fill(q, key, 1)
    h.wait()
    assert h.last == 2
