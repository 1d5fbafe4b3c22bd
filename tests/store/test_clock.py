"""Queue time: one scale, derived from two clocks."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strictq._platform.clock import MICROSECONDS, Clock, QueueTime, SystemClock
from strictq.testing import FakeClock


def _time(clock: FakeClock) -> QueueTime:
    return QueueTime(clock, clock.wall() - clock.boot())


def test_it_starts_as_the_wall_clock_and_runs_with_the_boot_clock() -> None:
    clock = FakeClock()
    t = _time(clock)
    assert t.now() == clock.wall()
    clock.jump_wall(1e6)
    assert t.now() == clock.wall() - 10**12
    clock.advance(1.5)
    assert t.now() == clock.wall() - 10**12


@given(st.lists(st.tuples(st.sampled_from(["advance", "jump"]), st.floats(-1e8, 1e8)), max_size=20))
def test_it_never_goes_back(steps: list[tuple[str, float]]) -> None:
    clock = FakeClock()
    t = _time(clock)
    last = t.now()
    for kind, seconds in steps:
        if kind == "advance":
            clock.advance(abs(seconds))
        else:
            clock.jump_wall(seconds)
        assert t.now() >= last
        last = t.now()


@given(st.integers(0, 10**6), st.floats(-1e9, 1e9))
def test_points_are_shown_by_the_wall_clock_as_it_is_now(age: int, jump: float) -> None:
    clock = FakeClock()
    t = _time(clock)
    at = t.now()
    clock.advance(age)
    clock.jump_wall(jump)
    shown = t.to_wall(at)
    assert abs((clock.wall() / MICROSECONDS - shown) - age) < 1.001, "an age is right whatever the wall clock shows"


def test_drift_below_a_second_does_not_move_what_is_shown() -> None:
    clock = FakeClock()
    t = _time(clock)
    at = t.now()
    shown = t.to_wall(at)
    for _ in range(9):
        clock.jump_wall(0.1)
        assert t.to_wall(at) == shown
    clock.jump_wall(0.2)
    assert t.to_wall(at) == pytest.approx(shown + 1.1)


def test_the_machines_clocks_are_what_they_should_be() -> None:
    clock = SystemClock()
    assert isinstance(clock, Clock)
    assert clock.boot_id() == SystemClock().boot_id() != ""
    assert abs(clock.wall() / MICROSECONDS - time.time()) < 5
    before = clock.boot()
    assert before <= clock.boot()
    assert type(clock.boot()) is type(clock.wall()) is int


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has CLOCK_BOOTTIME")
def test_leases_run_on_while_the_machine_is_suspended() -> None:
    assert abs(SystemClock().boot() / MICROSECONDS - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
