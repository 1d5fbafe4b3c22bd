"""`strictq demo --worker`, as a person or a script meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import strictq
from strictq.cli import app
from strictq.demo import consumer, runner, working
from strictq.demo.events import ledgers
from strictq.demo.timeline import PREPARE, PROCESS, Bar, Timeline
from tests.support.running import PATIENCE_SECONDS, until

QUICK = ("--worker", "--events", "24", "--keys", "3", "--fetch", "0.004", "--process", "0.006")


def demo(*args: object) -> Any:
    return CliRunner().invoke(app(), ["demo", *map(str, args)])


class Nobody:
    def progress(self, sent: int, processed: int) -> None: ...
    def tell(self, text: str) -> None: ...


def test_a_person_sees_the_overlap_and_the_verdict() -> None:
    result = demo(*QUICK)
    assert result.exit_code == 0, result.output
    assert "OK: every event was processed exactly once" in " ".join(result.stdout.split())
    drawn = [line for line in result.stdout.splitlines() if line.startswith("account-")]
    assert len(drawn) == 3
    assert all("·" in line for line in drawn)
    assert result.stdout.count("█") >= 3
    assert "of the preparing time overlapped with the processing of earlier events" in " ".join(result.stdout.split())


def test_json_and_the_queue_that_is_kept(tmp_path: Path) -> None:
    where = tmp_path / "kept.strictq"
    result = demo(*QUICK, "--json", "--shards", 2, "--queue", where)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [told[name] for name in ("ok", "events", "processed", "keys", "retried")] == [True, 24, 24, 3, 0]
    assert [told[name] for name in ("lost", "doubled", "reordered", "altered", "unexpected", "broken_links")] == [0] * 6
    assert 0.0 <= told["waited_seconds"] <= told["prepare_seconds"]
    # Not what the demo says of itself: what is in the queue's own tables.
    with strictq.open(where, read_only=True) as q:
        assert q.query("SELECT count(*), min(linked) FROM app_demo WHERE consumer = 'worker'") != []
        assert sum(n for (n,) in q.query("SELECT count(*) FROM app_demo")) == 24
        assert (q.stats().depth, q.stats().dead, q.check()) == (0, 0, [])


def test_what_went_wrong_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that records nothing for some: the verdict finds them, and the exit code is 1."""
    record = working.handle

    def forgets(message: Any, *rest: Any) -> None:
        if message.seq != 2:
            record(message, *rest)

    monkeypatch.setattr(working, "handle", forgets)
    result = demo(*QUICK, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"], told["lost"]) == (1, False, 3)
    assert told["broken_links"] == 3, "the one after it does not follow"


def test_a_svg_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = demo(*QUICK, "--plot", tmp_path / "overlap.svg")
    assert result.exit_code == 0, result.output
    ElementTree.parse(tmp_path / "overlap.svg")
    assert list(tmp_path.iterdir()) == [tmp_path / "overlap.svg"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--worker", "--consumers", 2], "--consumers cannot be used with --worker"),
        (["--worker", "--no-kill"], "cannot be used with --worker"),
        (["--plot", "x.png"], "--plot needs --worker"),
        (["--fetch", 0.1], "--fetch needs --worker"),
        (["--concurrency", 2], "--concurrency needs --worker"),
        (["--worker", "--fetch", "nan"], "--fetch"),
        (["--worker", "--process", -1], "--process"),
        (["--worker", "--concurrency", 0], "--concurrency"),
        (["--worker", "--plot", "x.png"], "--plot needs a .svg file"),
        (["--worker", "--plot", "no/such/x.svg"], "in a directory that exists"),
    ],
)
def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[object], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = demo(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly_and_leaves_nothing(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from strictq.cli import main; main()", "demo", "--worker", "--process", "5"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    until(lambda: any(tmp_path.glob("*/demo.strictq/*")))
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (expected, ""), err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_what_was_waited_for_is_only_what_prepare_held_up() -> None:
    timeline = Timeline()
    timeline.bars = [
        Bar(PREPARE, "k", 1, 0.0, 1.0),  # nobody could hide the first one: 1.0
        Bar(PROCESS, "k", 1, 1.0, 4.0),
        Bar(PREPARE, "k", 2, 2.0, 3.5),  # done in time: 0
        Bar(PROCESS, "k", 2, 4.0, 5.0),
        Bar(PREPARE, "k", 3, 4.5, 5.25),  # 0.25 late
        Bar(PROCESS, "k", 3, 5.25, 6.0),
        Bar(PREPARE, "k", 4, 8.0, 9.0),  # its key's turn came long before, but only its own second counts
        Bar(PROCESS, "k", 4, 9.0, 9.5),
    ]
    assert working.waited(timeline) == pytest.approx(2.25)


def test_the_run_says_when_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STALL_SECONDS", 0.2)
    with (
        strictq.open(tmp_path / "q", durability="process") as q,
        pytest.raises(runner.DemoFailed, match="no progress"),
    ):
        q.app_schema(consumer.SCHEMA)
        working.run(ledgers(4, 1), q, Nobody(), process=2.0)
