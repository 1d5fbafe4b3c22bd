"""The example of web events on real ones: every change to every file of a public repository, each with its hash chain."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.running import ROOT

from .streams import STARTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY = ROOT.parent / "shared" / "data" / "redis-history.jsonl.gz"
EVENTS, FILES = 25_235, 2_221


@pytest.fixture
def example() -> dict[str, Any]:
    """Its functions. They are of no module that could be imported, so Spark takes them along to its workers, as from a script."""
    return runpy.run_path(str(ROOT / "docs" / "examples" / "web_events.py"), run_name="web_events_example")


def chains(events: list[tuple[str, bytes]]) -> dict[str, tuple[int, str]]:
    """File → changes and last content, after checking that each change begins where the one before it ended."""
    ends: dict[str, tuple[int, str]] = {}
    for key, line in events:
        event = json.loads(line)
        assert event["old"] == ends.get(key, (0, "0" * 40))[1]
        ends[key] = (ends.get(key, (0, ""))[0] + 1, event["new"])
    return ends


def run(spark: SparkSession, example: dict[str, Any], place: Path, events: list[tuple[str, bytes]]) -> dict[str, Any]:
    """The whole job; again from the beginning, where the machine was too slow for Spark to start a Python process."""
    for n in range(STARTS):
        (place / str(n)).mkdir()
        try:
            return dict(example["run"](spark, place / str(n), iter(events), 0.0))
        except Exception as e:
            if "failed to connect back" not in str(e) or n == STARTS - 1:
                raise
    raise AssertionError("unreachable")


@pytest.mark.skipif(not HISTORY.exists(), reason="the file of real events is not beside this checkout")
def test_real_history(spark: SparkSession, example: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = list(example["from_file"](str(HISTORY), "path"))
    found = run(spark, example, tmp_path, events)
    assert {key: (count, last) for key, (count, last, _) in found.items()} == chains(events)
    assert sum(broken for *_, broken in found.values()) == 0
    assert (len(events), len(found)) == (EVENTS, FILES)
    example["compare"](found, example["by_hand"](events), EVENTS)
    assert "25,235 of 2,221 users applied in order" in capsys.readouterr().out


def test_a_broken_chain_is_found(example: dict[str, Any]) -> None:
    """What the example verifies can fail."""
    events = list(example["made"](2_000, 40))
    right = {user: [n, last, 0] for user, (n, last) in example["by_hand"](events).items()}
    example["compare"](right, example["by_hand"](events), 2_000)
    lost = dict(right)
    del lost["user-3"]
    more = {**right, "user-3": [right["user-3"][0] + 1, *right["user-3"][1:]]}
    swapped = {**right, "user-3": [*right["user-3"][:2], 2]}
    for wrong in (lost, more, swapped):
        with pytest.raises(AssertionError):
            example["compare"](wrong, example["by_hand"](events), 2_000)
