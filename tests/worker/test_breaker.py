"""When a breaker opens, tries and closes, with a clock that stands still until the test moves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strictq import InvalidArgument
from strictq._values.keys import encode_key
from strictq.worker.breaker import (
    CLOSED,
    FAILED_MAX,
    GROUPS_MAX,
    KEYS_MAX,
    OPEN,
    OUTCOMES_MAX,
    PROBING,
    Breaker,
    Circuit,
    Circuits,
)
from strictq.worker.job import BUFFERED


def job(key: Any, permit: int = 0, lane: Any = None) -> Any:
    """What a breaker sees of a job."""
    lease = SimpleNamespace(_held=SimpleNamespace(key=b"keyless" if key is None else encode_key(key)))
    return SimpleNamespace(key=key, seq=1, _permit=permit, _lane=lane, _stage=BUFFERED, _delivery=SimpleNamespace(lease=lease))


class Bench:
    """The breakers of a worker whose keys are all of one group, and their time."""

    def __init__(self, *, of: int = 2, **rules: Any) -> None:
        """Args: of: how many keys take turns to fail."""
        self.now = 1000.0
        self.keys, self.of = 0, of
        self.chance = 0.0
        self.circuits = Circuits(Breaker(**rules), lambda: self.chance)

    @property
    def circuit(self) -> Circuit:
        """The group's."""
        found = self.circuits.open.get("group") or self.circuits._closed.get("group")
        assert found is not None
        return found

    def end(self, outcomes: str, seconds: float = 0.0, *, permit: int | None = None) -> str:
        """Let handlers end, `seconds` apart: "+" succeeds, "-" fails. Returns the state."""
        for outcome in outcomes:
            self.keys += outcome == "-"
            ended = job(f"group/k{self.keys % self.of}", self.circuits.permit if permit is None else permit)
            if outcome == "+":
                self.circuits.succeeded(ended, self.now)
            else:
                self.circuits.failed_handler(ended, self.now, f"down at {self.now:g}")
            self.now += seconds
        assert self.circuits.worker.state == CLOSED, "one group never opens the worker"
        return self.circuit.state

    def probe(self, outcome: str) -> str:
        """Let the next probe start when it is due, and end at once."""
        self.now = self.circuit.probe_at
        self.circuit.start_probe()
        assert self.circuit.state == PROBING
        return self.end(outcome)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_opens_with_the_20th_failure(bench: Bench) -> None:
    assert bench.end("-" * 19) == CLOSED
    assert bench.end("-") == OPEN
    opened = bench.circuit.opened
    assert opened is not None
    assert (opened.at, opened.failures, opened.ends, opened.error) == (1000.0, 20, 20, "down at 1000")


def test_failures_of_one_key_alone_do_not_open_it() -> None:
    """A poison message with nothing else to do: open, its tries would not be charged, and it would never be given up."""
    bench = Bench(of=1)
    assert bench.end("-" * 100) == CLOSED
    bench.of = 2
    assert bench.end("-") == OPEN


def test_a_key_whose_failures_are_over_does_not_count() -> None:
    bench = Bench(of=2)
    assert bench.end("-") == CLOSED
    bench.now += 10.0
    bench.of = 1
    assert bench.end("-" * 30) == CLOSED


def test_half_of_20_are_enough_and_fewer_are_not(bench: Bench) -> None:
    assert bench.end("+" * 11 + "-" * 9) == CLOSED
    assert bench.end("-") == CLOSED  # 10 of 21
    assert bench.end("-") == OPEN  # 11 of 22


def test_successes_before_the_failures_count(bench: Bench) -> None:
    assert bench.end("+" * 100 + "-" * 99) == CLOSED
    assert bench.end("-") == OPEN


def test_a_poison_message_among_healthy_ones_does_not_open_it(bench: Bench) -> None:
    for _ in range(1000):
        assert bench.end("-++", 0.1) == CLOSED


def test_what_ended_before_the_window_does_not_count(bench: Bench) -> None:
    bench.end("-" * 19)
    bench.now += 10.0
    assert bench.end("-") == CLOSED
    bench = Bench()
    bench.end("-" * 19)
    bench.now += 9.999
    assert bench.end("-") == OPEN


def test_slow_failures_never_make_20_in_a_window(bench: Bench) -> None:
    assert bench.end("-" * 1000, 0.6) == CLOSED


def test_it_keeps_a_bounded_number_of_outcomes(bench: Bench) -> None:
    bench.end("+" * 50_000)
    assert len(bench.circuit.window.ends) == OUTCOMES_MAX
    assert bench.end("-" * (OUTCOMES_MAX // 2 - 1)) == CLOSED
    assert bench.end("-") == OPEN


def test_probes_come_after_1_2_4_and_then_every_5_seconds(bench: Bench) -> None:
    bench.end("-" * 20)
    waits = []
    for _ in range(6):
        waits.append(bench.circuit.probe_at - bench.now)
        assert bench.probe("-") == OPEN
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert bench.circuit.opened is not None
    assert bench.circuit.opened.at == 1000.0
    assert bench.circuit.opened.probes == 6
    assert bench.circuit.opened.error == "down at 1022"


def test_jitter_makes_waits_shorter_and_never_longer(bench: Bench) -> None:
    bench.chance = 1.0
    bench.end("-" * 20)
    assert bench.circuit.probe_at - bench.now == pytest.approx(0.9)
    for _ in range(100):
        bench.probe("-")
    assert bench.circuit.probe_at - bench.now == pytest.approx(4.5)


def test_a_probe_that_succeeds_closes_it_and_counting_begins_anew(bench: Bench) -> None:
    bench.end("-" * 20)
    bench.probe("-")
    assert bench.probe("+") == CLOSED
    assert bench.circuit.opened is None
    assert bench.end("-" * 19) == CLOSED
    assert bench.end("-") == OPEN
    assert bench.circuit.probe_at - bench.now == 1.0


def test_handlers_that_were_at_work_when_it_opened_say_nothing_of_later(bench: Bench) -> None:
    before = bench.circuits.permit
    bench.end("-" * 20)
    assert bench.end("+-", permit=before) == OPEN
    bench.now = bench.circuit.probe_at
    bench.circuit.start_probe()
    assert bench.end("+-", permit=before) == PROBING
    assert bench.end("+") == CLOSED
    assert bench.end("-" * 100, permit=before) == CLOSED


def test_a_probe_without_an_answer_is_repeated_after_the_same_wait(bench: Bench) -> None:
    bench.end("-" * 20)
    bench.probe("-")
    bench.now = bench.circuit.probe_at
    bench.circuit.start_probe()
    bench.circuits.unanswered(bench.circuit, bench.now)
    assert bench.circuit.state == OPEN
    assert bench.circuit.probe_at - bench.now == 2.0


def test_rules_are_the_callers() -> None:
    bench = Bench(failure_ratio=1.0, starts_min=3, window_seconds=2.0, probe_seconds=0.5, probe_seconds_max=0.75)
    assert bench.end("+---") == CLOSED
    bench.now += 2.0
    assert bench.end("---") == OPEN
    assert bench.circuit.probe_at - bench.now == 0.5
    bench.probe("-")
    assert bench.circuit.probe_at - bench.now == 0.75


@pytest.mark.parametrize(
    "rules",
    [
        {"failure_ratio": 0.0}, {"failure_ratio": 1.1}, {"failure_ratio": "half"}, {"failure_ratio": float("nan")},
        {"starts_min": 0}, {"starts_min": 1001}, {"starts_min": 2.5}, {"starts_min": True},
        {"window_seconds": 0.0}, {"window_seconds": float("inf")}, {"probe_seconds": -1.0}, {"probe_seconds_max": None},
        {"probe_seconds": 6.0}, {"group": ""}, {"group": "/" * 101}, {"group": None}, {"group": b"/"},
    ],
)  # fmt: skip
def test_bad_rules_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Breaker"):
        Breaker(**rules)


# ---- groups, and the whole worker


def fail(circuits: Circuits, keys: Any, now: float) -> None:
    for key in keys:
        circuits.failed_handler(job(key, circuits.permit), now, "down")


def succeed(circuits: Circuits, keys: Any, now: float) -> None:
    for key in keys:
        circuits.succeeded(job(key, circuits.permit), now)


def test_an_outage_of_one_group_stops_that_group_only() -> None:
    circuits = Circuits(Breaker())
    for n in range(50):
        fail(circuits, [f"down/{n}"], 1.0)
        succeed(circuits, [f"well-{n}/a"], 1.0)
    assert set(circuits.open) == {"down"}
    assert circuits.worker.state == CLOSED
    assert circuits.blocks(job("down/new"))
    assert not circuits.blocks(job("well-1/a"))
    assert not circuits.blocks(job("plain"))
    assert circuits.spares(job("down/1"), 1.0)
    assert not circuits.spares(job("well-1/a"), 1.0)


@pytest.mark.parametrize(
    ("key", "rule", "group"),
    [
        ("ann/1/2", "/", "ann"), ("/1", "/", ""), ("ann", "/", None), ("ann", "::", None), ("ann::1", "::", "ann"),
        (b"ann/1", "/", "ann"), (b"\xff/1", "/", "\\xff"), (b"ann", "/", None), (7, "/", None), (None, "/", None),
        ("x" * 200 + "/1", "/", "x" * 100), ("ann", lambda job: f"of {job.key}", "of ann"), (7, lambda job: "all", "all"),
        ("ann", lambda job: 7, None), ("ann", lambda job: job.no_such_name, None),
    ],
)  # fmt: skip
def test_a_group_is_what_the_rule_says(key: Any, rule: Any, group: str | None) -> None:
    assert Circuits(Breaker(group=rule)).group_of(job(key)) == group


def test_the_worker_opens_while_several_groups_fail_and_none_succeeds_for_the_window() -> None:
    circuits = Circuits(Breaker())
    succeed(circuits, ["well"], 100.0)
    fail(circuits, [f"k{n}" for n in range(100)], 101.0)
    assert circuits.worker.state == CLOSED, "a key succeeded a second ago"
    assert circuits.spares(job("k1"), 101.0), "until it is certain, no failure is charged"
    fail(circuits, ["k1"], 109.9)
    assert circuits.worker.state == CLOSED
    fail(circuits, ["k2"], 110.0)
    assert circuits.worker.state == OPEN
    assert circuits.worker.opened is not None
    assert circuits.worker.opened.at == 110.0


def test_the_probe_of_the_worker_may_be_of_an_open_group() -> None:
    """In an outage of everything, the busiest group opens first, and its keys may be all that wait."""
    circuits = Circuits(Breaker())
    fail(circuits, [f"busy/{n}" for n in range(20)], 1.0)
    fail(circuits, [f"k{n}" for n in range(40)], 20.0)
    assert circuits.worker.state == OPEN
    assert circuits.open["busy"].state == OPEN
    probe = job("busy/new", circuits.permit, lane="the probe")
    circuits.worker.start_probe("the probe")
    assert not circuits.blocks(probe)
    circuits.succeeded(job("k1", circuits.permit), 21.0)
    assert circuits.worker.state == CLOSED
    assert circuits.blocks(probe), "from now on, its own group's breaker decides"


def test_failures_are_charged_again_if_others_go_on_succeeding() -> None:
    circuits = Circuits(Breaker())
    charged = 0
    for n in range(1000):
        now = n / 10
        fail(circuits, [f"poison-{n % 10}"], now)
        charged += not circuits.spares(job(f"poison-{n % 10}"), now)
        if n % 10 == 0:
            succeed(circuits, ["well"], now)
    assert circuits.worker.state == CLOSED
    assert charged >= 100, "of each 12 s, 2 s are charged"


@pytest.mark.parametrize("keys", [[f"one/{n}" for n in range(40)], ["one"] * 40])
def test_one_group_alone_never_opens_the_worker(keys: list[str]) -> None:
    circuits = Circuits(Breaker())
    fail(circuits, keys, 1.0)
    assert circuits.worker.state == CLOSED


def test_a_success_closes_the_worker_whenever_it_started() -> None:
    """Something succeeds, so that not everything is down."""
    circuits = Circuits(Breaker())
    fail(circuits, [f"k{n}" for n in range(20)], 1.0)
    assert circuits.worker.state == OPEN
    circuits.succeeded(job("well", 0), 1.5)
    assert circuits.worker.state == CLOSED


def test_a_batch_of_several_groups_that_fails_accuses_none_of_them() -> None:
    circuits = Circuits(Breaker())
    for n in range(40):
        circuits.failed_together([job(f"a/{n}"), job(f"b/{n}")], 1.0, "down")
        succeed(circuits, [f"a/{n}"], 1.0)
    assert not circuits.open


@pytest.mark.slow
def test_what_is_kept_is_bounded_at_100_000_keys_and_groups() -> None:
    circuits = Circuits(Breaker())
    for n in range(100_000):
        now = n / 1000
        succeed(circuits, [f"g{n}/1"], now)
        fail(circuits, [f"k{n}"], now)
    assert len(circuits._closed) <= GROUPS_MAX
    assert len(circuits.failed) == FAILED_MAX
    down = Circuits(Breaker())
    fail(down, [f"down/{n}" for n in range(20)], 1.0)
    for n in range(KEYS_MAX + 1000):
        down.withhold(job(f"down/{n}"), failed=False)
    assert len(down.open["down"].waiting) == KEYS_MAX
    assert down.wait(job("down/1")) == 100.0, "a large group postpones each of its keys for longer"
    down.forget(down.open["down"], list(down.open["down"].waiting))
    assert down._kept == 0


def test_more_groups_than_are_kept_may_be_down() -> None:
    circuits = Circuits(Breaker(starts_min=2))
    for n in range(GROUPS_MAX + 50):
        succeed(circuits, ["well"], 1.0)
        fail(circuits, [f"down-{n}/1", f"down-{n}/2"], 1.0)
    assert len(circuits.open) == GROUPS_MAX
    assert not circuits.blocks(job(f"down-{GROUPS_MAX + 49}/1")), "one more is not followed, and goes on"


def test_a_probe_is_of_a_key_that_has_not_failed() -> None:
    circuits = Circuits(Breaker())
    fail(circuits, [f"down/{n}" for n in range(20)], 1.0)
    down = circuits.open["down"]
    for key, failed in (("down/1", True), ("down/new", False)):
        circuits.withhold(job(key), failed=failed)
    assert not circuits.admits(job("down/new"), down.probe_at - 0.1)
    assert not circuits.admits(job("down/1"), down.probe_at), "another waits that has not failed"
    lane = object()
    assert circuits.admits(job("down/new", lane=lane), down.probe_at)
    assert circuits.admits(job("down/new", lane=lane), down.probe_at), "it is the probe"
    assert not circuits.admits(job("down/other"), down.probe_at), "one at a time"
