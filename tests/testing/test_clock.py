"""FakeClock: leases, delays and TTLs follow it; waiting follows it; and waits can be skipped."""

from __future__ import annotations

import gc
import threading
import time

import anyio
import pytest

import strictq
from strictq import testing
from strictq._platform.clock import SteeredClock
from strictq.testing import FakeClock, Idle, clock_of
from tests.support.running import PATIENCE_SECONDS


def test_it_is_a_clock_that_can_be_steered() -> None:
    assert isinstance(FakeClock(), strictq.Clock)
    assert isinstance(FakeClock(), SteeredClock)
    assert not isinstance(strictq.SystemClock(), SteeredClock)


def test_leases_delays_and_ttls_follow_it() -> None:
    with testing.open(lease_seconds=30.0) as q:
        clock = clock_of(q)
        q.send(b"leased", "a")
        q.send(b"delayed", "b", delay=60.0)
        q.send(b"mortal", "c", ttl=100.0)
        q.hold("c")
        (d,) = q.receive(keys=["a"])
        assert d.lease.expires_in == 30.0
        clock.advance(29.9)
        assert q.receive() == []
        clock.advance(0.2)
        assert [d.body for d in q.receive(keys=["a"])] == [b"leased"]
        clock.advance(30.0)
        assert [d.body for d in q.receive(keys=["b"])] == [b"delayed"]
        clock.advance(40.0)
        q.release("c")
        assert q.receive(keys=["c"]) == []


def test_time_does_not_run_backwards() -> None:
    clock = FakeClock(wall_seconds=1000.0, boot_seconds=10.0)
    assert clock.now == 1000.0
    for wrong in (-1.0, float("nan")):
        with pytest.raises(strictq.InvalidArgument, match="jump_wall"):
            clock.advance(wrong)
    clock.jump_wall(-500.0)
    assert (clock.now, clock.boot()) == (500.0, 10_000_000)
    clock.reboot(down_seconds=100.0)
    assert (clock.now, clock.boot(), clock.boot_id()) == (600.0, 1_000_000, "fake-boot-2")


def test_a_receive_that_waits_in_another_thread_is_woken_when_the_clock_moves() -> None:
    with testing.open() as q:
        got: list[strictq.Delivery] = []
        q.send(b"", "k", delay=3600.0)
        thread = threading.Thread(target=lambda: got.extend(q.receive(wait=None)))
        thread.start()
        clock_of(q).advance(3600.0)
        thread.join(PATIENCE_SECONDS)
        assert [d.key for d in got] == ["k"]


def test_a_receives_patience_ends_by_the_fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.open() as q:
        got: list[object] = []
        looked = threading.Event()
        waker = type(q._storage.waker)
        wait = waker.wait
        monkeypatch.setattr(waker, "wait", lambda *a, **options: (looked.set(), wait(*a, **options)))
        thread = threading.Thread(target=lambda: got.append(q.receive(wait=PATIENCE_SECONDS * 100)))
        thread.start()
        assert looked.wait(PATIENCE_SECONDS)
        clock_of(q).advance(PATIENCE_SECONDS * 100)
        thread.join(PATIENCE_SECONDS)
        assert got == [[]]


def test_a_clock_that_nobody_listens_to_any_more_lets_go_of_queues() -> None:
    clock = FakeClock()
    for _ in range(5):
        testing.open(clock=clock).close()
    gc.collect()
    with testing.open(clock=clock):
        clock.advance(1.0)
        assert len(clock._listeners) == 1


def test_skipped_waits_take_the_queues_time_and_none_of_ours() -> None:
    began = time.monotonic()
    with testing.open(lease_seconds=30.0) as q:
        clock = clock_of(q)
        q.send(b"", "k", delay=1000.0)
        q.send(b"", "leased")
        q.receive(keys=["leased"])
        start = clock.now
        with clock.skipping():
            assert [d.key for d in q.receive(wait=None)] == ["leased"]
            assert clock.now - start == pytest.approx(30.0)
            assert q.receive(wait=5.0) == []
            assert clock.now - start == pytest.approx(35.0)
            assert q.receive() == []
            assert clock.now - start == pytest.approx(35.0), "wait=0 waits for nothing"
            q.purge("leased")
            assert [d.key for d in q.receive(wait=None, keys=["k"], lease_seconds=5000.0)] == ["k"]
            assert clock.now - start == pytest.approx(1000.0)
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_a_wait_for_ever_leaves_the_block() -> None:
    with testing.open() as q:
        after = []
        with clock_of(q).skipping():
            assert q.receive(wait=1.0) == []
            q.receive(wait=None)
            after.append("never")
        assert after == []


def test_only_the_thread_that_asked_for_it_skips() -> None:
    with testing.open() as q, clock_of(q).skipping():
        got: list[strictq.Delivery] = []
        thread = threading.Thread(target=lambda: got.extend(q.receive(wait=PATIENCE_SECONDS)))
        thread.start()
        q.send(b"", "k")
        thread.join(PATIENCE_SECONDS)
        assert len(got) == 1


def test_skipping_has_a_limit() -> None:
    with testing.open() as q:
        skipping = clock_of(q).skipping(seconds_max=10.0)
        with pytest.raises(AssertionError, match="10 s of the queue's time were skipped"), skipping:
            for _ in range(100):
                q.receive(wait=1.0)


def test_idle_is_not_caught_by_a_consumers_own_handler() -> None:
    assert not issubclass(Idle, Exception)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_receives_skip_too(backend: str) -> None:
    async def main() -> None:
        async with testing.open_async() as q:
            await q.send(b"", "k", delay=3600.0)
            with clock_of(q).skipping():
                assert [d.key for d in await q.receive(wait=None)] == ["k"]
                assert await q.receive(wait=5.0) == []

    anyio.run(main, backend=backend)
