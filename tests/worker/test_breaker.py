"""When a breaker opens, tries and closes, with a clock that stands still until the test moves it."""

from __future__ import annotations

from typing import Any

import pytest

from strictq import InvalidArgument
from strictq.worker.breaker import CLOSED, OPEN, OUTCOMES_MAX, PROBING, Breaker, Circuit


class Bench:
    """A circuit, and its time."""

    def __init__(self, *, of: int = 2, **rules: Any) -> None:
        """Args: of: how many keys take turns to fail."""
        self.now = 1000.0
        self.keys, self.of = 0, of
        self.chance = 0.0
        self.circuit = Circuit(Breaker(**rules), lambda: self.chance)

    def end(self, outcomes: str, seconds: float = 0.0) -> str:
        """Let handlers end, `seconds` apart: "+" succeeds, "-" fails. Returns the state."""
        for outcome in outcomes:
            if outcome == "+":
                self.circuit.succeeded(self.circuit.permit, self.now)
            else:
                self.keys += 1
                self.circuit.failed(self.circuit.permit, self.now, f"down at {self.now:g}", b"k%d" % (self.keys % self.of))
            self.now += seconds
        return self.circuit.state

    def probe(self, outcome: str) -> str:
        """Let the next probe start when it is due, and end at once."""
        self.now = self.circuit.probe_at
        self.circuit.probe()
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
    assert len(bench.circuit._outcomes) == OUTCOMES_MAX
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
    circuit = bench.circuit
    before = circuit.permit
    bench.end("-" * 20)
    circuit.succeeded(before, bench.now)
    circuit.failed(before, bench.now, "late", b"k")
    bench.now = circuit.probe_at
    circuit.probe()
    circuit.succeeded(before, bench.now)
    circuit.failed(before, bench.now, "late", b"k")
    assert circuit.state == PROBING
    assert bench.end("+") == CLOSED
    for _ in range(100):
        circuit.failed(before, bench.now, "late", b"k")
    assert circuit.state == CLOSED


def test_a_probe_without_an_answer_is_repeated_after_the_same_wait(bench: Bench) -> None:
    bench.end("-" * 20)
    bench.probe("-")
    bench.now = bench.circuit.probe_at
    bench.circuit.probe()
    bench.circuit.unanswered(bench.now)
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
        {"probe_seconds": 6.0},
    ],
)  # fmt: skip
def test_bad_rules_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Breaker"):
        Breaker(**rules)
