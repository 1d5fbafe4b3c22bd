"""When a message is given up, and the delay of a retry."""

from __future__ import annotations

import pytest

from strictq import QueueConfig
from strictq._values import retries
from strictq.testing import FakeClock
from tests.support.queues import Opener

HOUR = 3600.0


@pytest.mark.one_shard("history() reads one shard")
@pytest.mark.parametrize("end", ["ack", "reject", "expire"])
def test_crashes_and_failures_are_shown_as_attempts_everywhere(make: Opener, clock: FakeClock, end: str) -> None:
    q = make(retry_for_seconds=HOUR, max_attempts=5, history="records", on_expire="dead_letter")
    q.send(b"", "k", ttl=50.0)
    q.receive(lease_seconds=1.0)
    clock.advance(2.0)
    (d,) = q.receive(1)
    d.nack()
    assert q.explain("k").attempts == 2
    assert q.check() == []
    if end == "expire":
        clock.advance(100.0)
        assert q.receive() == []
    else:
        (d,) = q.receive()
        assert d.attempt == 3
        d.ack() if end == "ack" else d.reject("no")
    assert [r.attempts for r in q.history()] == [2 if end == "expire" else 3]
    assert [x.attempts for x in q.dead_letters()] == {"ack": [], "reject": [3], "expire": [2]}[end]


def test_crashes_count_alone_and_failures_after_their_time() -> None:
    config = QueueConfig(max_attempts=3, retry_for_seconds=10.0)
    second = 1_000_000
    assert not retries.given_up(config, 9, 2, None)
    assert not retries.given_up(config, 9, 2, 10 * second - 1)
    assert retries.given_up(config, 9, 2, 10 * second)
    assert retries.given_up(config, 3, 3, None)
    assert not retries.given_up(config, 2, 2, 10 * second)
    at_once = QueueConfig(max_attempts=3, retry_for_seconds=0.0)
    assert [retries.given_up(at_once, starts, 0) for starts in (2, 3)] == [False, True]
    assert not retries.given_up(QueueConfig(max_attempts=None), 99, 99, 99 * second)


def test_waits_are_the_same_each_time_and_never_above_the_maximum() -> None:
    config = QueueConfig(retry_delay_seconds=1.0, retry_delay_max_seconds=100.0)
    for key in (b"sa", b"sb", b"\x00" * 50):
        waits = [retries.retry_delay(config, key, n) for n in range(1, 200)]
        assert waits == [retries.retry_delay(config, key, n) for n in range(1, 200)]
        for n, wait in enumerate(waits):
            middle = min(2.0 ** min(n, 100), 80.0) * 1e6
            assert 0.75 * middle <= wait <= 1.25 * middle
        assert max(waits) <= 100_000_000
        assert len(set(waits[10:])) > 100, "they differ at the maximum, too"
    assert retries.retry_delay(QueueConfig(retry_delay_seconds=0.0), b"sa", 7) == 0
