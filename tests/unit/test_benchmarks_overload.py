"""The overload simulation: what it counts, what it prints and draws, and one run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not part of the wheel")

from benchmarks.overload.command import table, text
from benchmarks.overload.plots import draw
from benchmarks.overload.scenarios import FORMS, LOUD, TROUBLES, Form
from benchmarks.overload.stage import quantile, run, waits

ONE = {
    "p50": 0.02, "p99": 1.5, "unstarted": 2, "sent": 40, "loud_sent": 9, "loud_refused": 0, "deaths": 0, "left": 1200,
    "drained": None, "first_attempt_age": 0.25, "claims": 7, "empty_receives": 1, "acks": 38, "retries": 0, "dead": 0,
    "expired": 0, "series": [{"at": 0.5, "p50": 0.02, "p99": 1.5}, {"at": 1.5, "p50": 0.03, "p99": 0.1}],
}  # fmt: skip


def result(trouble: str) -> dict[str, Any]:
    return {
        "form": "short",
        "sizes": {"seconds": 3.0, "backlog": 20_000, "drain_seconds": 0.0},
        "versions": {"cores": 2, "load": "1.0 before the run"},
        "figures": {trouble: {"off": ONE, "separator": {**ONE, "p99": 0.3, "drained": 2.5}}},
        "failures": {},
    }


def test_a_message_that_was_not_started_waits_until_the_end() -> None:
    sent = {("a", 1): 100.0, ("a", 2): 101.0, ("b", 1): 112.0}
    found = waits(sent, {("a", 1): 100.5, ("b", 1): 112.25}, 100.0, 112.5)
    assert found["unstarted"] == 1
    assert found["p50"] == 0.5
    assert found["p99"] == 11.5
    assert [point["p99"] for point in found["series"]] == [0.5, 11.5, 0.25], "by the time of the send"


def test_no_messages_have_no_series() -> None:
    assert waits({}, {}, 1.0, 2.0) == {"p50": 0.0, "p99": 0.0, "unstarted": 0, "series": []}
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_is_compared_with_a_quiet_run_and_none_of_its_measures(trouble: str) -> None:
    measures = TROUBLES[trouble].measures
    assert [*measures][:2] == ["quiet", "off"]
    assert not measures["quiet"].trouble
    assert measures["off"].trouble


def test_the_table_has_ratios_to_the_run_without_a_measure() -> None:
    lines = table(result("recovery")).splitlines()
    assert lines[-2] == "| nothing | 20 ms | 1.5 s | 1.00 | 2 of 40 | 250 ms | 1 of 8 | 1,200 | no |"
    assert lines[-1] == "| separator | 20 ms | 300 ms | 0.20 | 2 of 40 | 250 ms | 1 of 8 | 1,200 | 2.5 s |"
    assert "load 1.0 before the run" in text(result("recovery"))


@pytest.mark.slow
def test_the_same_figures_give_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (first,) = draw(result("noisy"), tmp_path)
    before = first.read_bytes()
    (again,) = draw(result("noisy"), tmp_path)
    assert again.name == "overload-noisy.svg"
    assert again.read_bytes() == before
    assert b"separator" in before


@pytest.mark.slow
def test_a_run_sends_limits_and_counts(tmp_path: Path) -> None:
    measure = TROUBLES["noisy"].measures["send_rate"]
    found = run(TROUBLES["noisy"], measure, Form(1.5, 0, 0.0), tmp_path)
    assert found["sent"] > 0
    assert found["loud_sent"] > 0
    assert found["loud_refused"] > 0, f"{LOUD} sends more than its rate"
    assert found["p50"] <= found["p99"]


@pytest.mark.slow
def test_a_purged_backlog_is_gone(tmp_path: Path) -> None:
    measure = TROUBLES["recovery"].measures["purge"]
    found = run(TROUBLES["recovery"], measure, FORMS["tiny"], tmp_path)
    assert found["acks"] + found["left"] <= 40 + found["sent"], "nothing of the backlog is left"
