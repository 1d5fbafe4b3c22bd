"""When a failing message is given up: waits between attempts, `max_attempts` and `retry_for_seconds`, crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import strictq
from strictq import Queue, QueueConfig
from strictq._values.config import FOREVER_SECONDS
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill

HOUR = 3600.0


@pytest.fixture
def q(clock: FakeClock) -> Iterator[Queue]:
    """A queue as a program gets it that sets nothing."""
    with strictq.open(":memory:", clock=clock) as queue:
        yield queue


def fail_until(q: Queue, clock: FakeClock, seconds: float, *, step: float = 0.05) -> list[int]:
    """Nack every delivery, as a loop does whose dependency is down. The seqs, as they came."""
    end, got = clock.now + seconds, []
    while clock.now < end:
        for d in q.receive(100):
            if d.lease._hi >= d.seq:
                got.append(d.seq)
                d.nack(reason="connection refused")
        clock.advance(step)
    return got


def test_an_outage_of_five_seconds_costs_no_message_and_no_order(q: Queue, clock: FakeClock) -> None:
    for n in range(2_000):
        q.send(b"%d" % n, f"k{n % 20}")
    fail_until(q, clock, 5.0)
    assert q.stats().dead == 0
    assert q.stats().depth == 2_000
    seen: dict[object, list[int]] = {}
    while q.stats().depth:
        for d in q.receive(100):
            seen.setdefault(d.key, []).append(d.seq)
            d.ack()
        clock.advance(1.0)
    assert seen == {f"k{k}": list(range(1, 101)) for k in range(20)}
    assert q.check() == []


@pytest.mark.slow
def test_given_up_after_both_limits_and_the_reason_says_so(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    began = clock.now
    starts = 0
    while not q.dead_letters():
        for d in q.receive():
            starts += 1
            assert d.attempt == starts
            d.nack(reason="connection refused")
        clock.advance(1.0)
    took = clock.now - began
    assert 6 * HOUR <= took <= 6 * HOUR + 900.0 + 2.0
    assert starts > 5
    (dead,) = q.dead_letters()
    assert dead.attempts == starts
    assert dead.reason is not None
    assert dead.reason.startswith(f"failed {starts} times in 6 h ")
    assert dead.reason.endswith("; last: connection refused")


def test_attempts_that_are_few_outlast_the_window(make: Opener, clock: FakeClock) -> None:
    q = make(retry_for_seconds=10.0, max_attempts=3)
    q.send(b"", "k")
    for _ in range(2):
        clock.advance(100.0)
        q.receive()[0].nack()
    assert q.dead_letters() == []
    q.receive()[0].nack()
    assert [d.attempts for d in q.dead_letters()] == [3]


def test_it_is_tried_once_more_after_a_long_pause(make: Opener, clock: FakeClock) -> None:
    """The consumers were stopped for the night, with a message that had failed often enough."""
    q = make(retry_for_seconds=10.0, max_attempts=3)
    fill(q, "k", 2)
    for _ in range(7):
        q.receive(1)[0].nack()
    clock.advance(12 * HOUR)
    (d, _) = q.receive()
    assert (d.seq, d.attempt) == (1, 8)
    d.nack()
    assert [(x.seq, x.attempts) for x in q.dead_letters()] == [(1, 8)]


def test_no_limit_of_attempts_gives_nothing_up(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=None, retry_for_seconds=1.0)
    q.send(b"", "k")
    for n in range(20):
        (d,) = q.receive(lease_seconds=5.0)
        assert d.attempt == n + 1
        if n % 2:
            d.nack()
        clock.advance(6.0)
    assert q.dead_letters() == []


def test_crashes_count_against_max_attempts_alone(make: Opener, clock: FakeClock) -> None:
    q = make(retry_for_seconds=6 * HOUR, max_attempts=3)
    fill(q, "k", 2)
    for n in (1, 2, 3):
        (d,) = q.receive(1, lease_seconds=1.0)
        assert d.attempt == n
        clock.advance(2.0)
    assert [d.seq for d in q.receive()] == [2]
    (dead,) = q.dead_letters()
    assert (dead.seq, dead.attempts) == (1, 3)
    assert str(dead.reason).startswith(
        "its lease ran out 3 times after a start; last: the lease ended after 1 s without an outcome"
    )


@pytest.mark.one_shard("the history of the first shard")
def test_failures_and_crashes_add_up_only_when_the_window_is_over(make: Opener, clock: FakeClock) -> None:
    q = make(retry_for_seconds=100.0, max_attempts=3, history="records")
    q.send(b"", "k")
    sent = clock.now
    q.receive(lease_seconds=1.0)  # dies
    clock.advance(1000.0)  # the window has not begun: nothing has failed
    for n in (2, 3, 4):
        (d,) = q.receive(lease_seconds=1.0)
        assert d.attempt == n
        d.nack(reason="refused")
        assert q.status("k", 1).attempts == n
        assert [m.attempts for m in q.peek("k")] == [n]
    q.receive(lease_seconds=1.0)  # dies
    clock.advance(101.0)
    (d,) = q.receive(lease_seconds=1.0)
    assert d.attempt == 6
    d.nack(reason="refused")
    (dead,) = q.dead_letters()
    assert dead.attempts == 6
    assert dead.reason == "failed 4 times in 1 min 41 s, 2 times its lease ran out after a start; last: refused"
    (record,) = q.history()
    assert (record.attempts, record.outcome) == (6, "poison")
    assert clock.now - sent > 1000.0


def test_a_release_starts_the_window_anew(make: Opener, clock: FakeClock) -> None:
    q = make(retry_for_seconds=10.0, max_attempts=1, on_poison="hold")
    q.send(b"", "k")
    q.receive()[0].nack()
    clock.advance(11.0)
    q.receive()[0].nack()
    assert q.explain("k").state == "held"
    q.release("k")
    (d,) = q.receive()
    assert d.attempt == 1
    d.nack()
    assert q.explain("k").state == "ready"


def test_lanes_that_failed_together_do_not_come_back_together(q: Queue, clock: FakeClock) -> None:
    keys = [f"customer-{n}" for n in range(200)]
    for key in keys:
        q.send(b"", key)
    for d in q.receive(1000):
        d.nack()
    due = [q.peek(key)[0].due_at for key in keys]
    waits = sorted(at - q.peek(keys[0])[0].enqueued_at for at in due if at is not None)
    assert len(waits) == 200
    assert 0.75 <= waits[0] < 0.8
    assert 1.2 < waits[-1] < 1.25
    assert max(b - a for a, b in pairwise(waits)) < 0.05


def test_explain_says_how_long_it_has_failed_and_for_how_long_it_is_safe(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    for _ in range(3):
        q.receive()[0].nack(delay=60.0, reason="refused")
        clock.advance(60.1)
    q.receive()[0].nack(delay=600.0, reason="refused")
    found = q.explain("k")
    assert found.text == (
        "seq 1 is due in 10 min (it failed 4 times in 3 min 0 s; it is not given up in the next 5 h 56 min); "
        "later messages of the key wait; last error: refused"
    )
    assert found.until == pytest.approx(q.peek("k")[0].due_at)
    q.send(b"", "other")
    q.receive()[0].defer(60.0)
    assert "(it was postponed)" in q.explain("other").text


@pytest.mark.parametrize("stored", ["without the new field", "nearly empty"])
def test_an_old_queue_keeps_its_behaviour(tmp_path: Path, clock: FakeClock, stored: str) -> None:
    values = json.loads(QueueConfig(retry_delay_seconds=0.0, max_attempts=3).to_json())
    if stored == "nearly empty":
        values = {"max_attempts": 3}
    else:
        del values["retry_for_seconds"]
    config = QueueConfig.from_json(json.dumps(values))
    assert (config.retry_delay_seconds, config.retry_for_seconds, config.max_attempts) == (0.0, 0.0, 3)
    assert QueueConfig.from_json(config.to_json()) == config
    with strictq.open(tmp_path / "q", clock=clock, durability="process", config=config) as q:
        q.send(b"", "k")
        for _ in range(3):
            q.receive()[0].nack(reason="broken")
        assert [(d.attempts, d.reason) for d in q.dead_letters()] == [(3, "broken")]


def test_new_queues_have_the_new_defaults() -> None:
    config = QueueConfig()
    assert (config.retry_delay_seconds, config.retry_backoff, config.retry_delay_max_seconds) == (1.0, 2.0, 900.0)
    assert config.retry_for_seconds == 6 * HOUR
    assert QueueConfig.from_json(config.to_json()) == config
    for wrong in (-1.0, float("nan"), FOREVER_SECONDS + 1, "1", None, True):
        with pytest.raises(strictq.ConfigError):
            QueueConfig(retry_for_seconds=wrong)  # type: ignore[arg-type]


def test_turning_the_window_off_leaves_max_attempts_in_charge(make: Opener, clock: FakeClock) -> None:
    q = make(retry_for_seconds=HOUR, max_attempts=4)
    fill(q, "k", 2)
    q.receive(1, lease_seconds=1.0)
    clock.advance(2.0)
    for _ in range(2):
        q.receive(1)[0].nack(reason="refused")
    q.configure(retry_for_seconds=0.0)
    (d,) = q.receive(1)
    assert d.attempt == 4
    d.nack(reason="refused")
    assert [(x.seq, x.attempts, x.reason) for x in q.dead_letters()] == [(1, 4, "refused")]
