"""`strictq demo`, as a person or a script meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import strictq
from strictq.cli import app
from strictq.demo import consumer, runner, verify
from strictq.demo.events import DemoEvent, ledgers
from strictq.demo.verify import KINDS, Row
from tests.support.command import COLOUR, environment, in_a_terminal, start, strictq_command
from tests.support.running import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ("--events", "300", "--keys", "20", "--consumers", "2", "--durability", "process")


def demo_in_process(*args: str) -> Any:
    return CliRunner().invoke(app(), ["demo", *args])


# ---------------------------------------------------------------- whole runs


def test_a_small_run(tmp_path: Path) -> None:
    code, out, err = strictq_command(tmp_path, "demo", *SMALL)
    assert (code, "Traceback" in err) == (0, False), out + err
    assert "OK: every event was processed exactly once" in " ".join(out.split())
    assert re.search(r"processed +300\b", out)
    assert re.search(r"consumers killed +1\b", out)
    assert re.search(r"killed c[12] \(pid \d+\) with -9", err)
    assert "\x1b" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_json(tmp_path: Path) -> None:
    code, out, err = strictq_command(tmp_path, "demo", *SMALL, "--shards", "3", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["ok"] is True
    assert [result[name] for name in ("events", "processed", "keys", "kills")] == [300, 300, 20, 1]
    assert [result[name] for name in ("lost", "doubled", "reordered", "altered", "unexpected", "broken_links")] == [0] * 6
    assert sum(c["processed"] for c in result["consumers"]) == 300
    assert [c["name"] for c in result["consumers"]] == ["c1", "c2", "c3"]
    assert sorted(c["fate"] for c in result["consumers"]) == ["finished", "finished", "killed"]
    held = sum(c["held"] or 0 for c in result["consumers"])
    assert 2 <= held <= result["redeliveries"]


def test_without_a_kill_nothing_is_handed_out_again(tmp_path: Path) -> None:
    code, out, _ = strictq_command(tmp_path, "demo", *SMALL, "--no-kill", "--json")
    result = json.loads(out)
    assert (code, result["kills"], result["redeliveries"]) == (0, 0, 0)


def test_the_queue_is_kept_where_it_was_asked_for(tmp_path: Path) -> None:
    where = tmp_path / "kept.strictq"
    code, _, err = strictq_command(tmp_path, "demo", *SMALL, "--no-kill", "--queue", str(where))
    assert code == 0, err
    with strictq.open(where, read_only=True) as q:
        assert q.query("SELECT count(*) FROM app_demo") == [(300,)]
        assert (q.stats().depth, q.stats().dead, q.check()) == (0, 0, [])
    code, _, err = strictq_command(tmp_path, "demo", *SMALL, "--queue", str(where))
    assert (code, "exists already" in err) == (2, True)


def test_one_key_one_consumer(tmp_path: Path) -> None:
    code, out, err = strictq_command(
        tmp_path, "demo", "--events", "60", "--keys", "1", "--consumers", "1", "--durability", "process"
    )
    assert code == 0, out + err


# ---------------------------------------------------------------- what goes wrong is found


def lose(rows: list[Row]) -> list[Row]:
    return rows[:40] + rows[41:]


def double(rows: list[Row]) -> list[Row]:
    return rows[:41] + rows[40:]


def reorder(rows: list[Row]) -> list[Row]:
    i = next(i for i in range(len(rows)) if any(r.key == rows[i].key for r in rows[i + 1 :]))
    j = next(j for j in range(i + 1, len(rows)) if rows[j].key == rows[i].key)
    rows[i], rows[j] = rows[j], rows[i]
    return rows


def alter(rows: list[Row]) -> list[Row]:
    rows[40] = rows[40]._replace(digest=rows[40].digest ^ 1)
    return rows


def misplace(rows: list[Row]) -> list[Row]:
    rows[40] = rows[40]._replace(key="nobody")
    return rows


def unlink(rows: list[Row]) -> list[Row]:
    rows[40] = rows[40]._replace(linked=False)
    return rows


CORRUPTIONS = {
    "lost": lose,
    "doubled": double,
    "reordered": reorder,
    "altered": alter,
    "unexpected": misplace,
    "broken links": unlink,
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_a_seeded_corruption_ends_with_1(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = verify.recorded

    def corrupted(q: strictq.Queue) -> Iterable[Row]:
        return CORRUPTIONS[what](list(genuine(q)))

    monkeypatch.setattr(verify, "recorded", corrupted)
    result = demo_in_process(*SMALL, "--no-kill")
    assert result.exit_code == 1
    assert re.search(rf"WRONG: .*1 {what}", " ".join(result.stdout.split()))


def test_a_row_taken_from_the_table_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = verify.recorded

    def robbed(q: strictq.Queue) -> Iterator[Row]:
        with q.transaction(key="any") as tx:
            tx.execute("DELETE FROM app_demo WHERE line = ?", (17,))
        return genuine(q)

    monkeypatch.setattr(verify, "recorded", robbed)
    result = demo_in_process(*SMALL, "--no-kill", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["lost"], found["processed"]) == (False, 1, 299)
    assert found["problems"] == [f"lost: line 17 of key {ledgers(300, 20)[16].key}"]


ROWS = [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b")]


FEW = [DemoEvent(line, key, b"%d" % line) for line, key in ROWS]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([1, 2, 3, 4, 5], {}),
        ([2, 5, 1, 3, 4], {}),
        ([1, 2, 3, 5], {"lost": 1}),
        ([], {"lost": 5}),
        ([1, 2, 3, 3, 4, 5], {"doubled": 1}),
        ([1, 1, 1, 2, 3, 4, 5], {"doubled": 2}),
        ([1, 2, 4, 3, 5], {"reordered": 1}),
        ([4, 3, 1, 2, 5], {"reordered": 2}),
        ([1, 3, 4, 1, 2, 5], {"doubled": 1}),
        ([3, 1, 3, 2, 5], {"reordered": 1, "doubled": 1, "lost": 1}),
    ],
)
def test_verdict(lines: list[int], expected: dict[str, int]) -> None:
    keys = dict(ROWS)
    rows = [Row(keys[n], n, consumer.digest(b"%d" % n), True) for n in lines]
    verdict = verify.verify(FEW, rows)
    assert {kind: verdict[kind] for kind in KINDS if verdict[kind]} == expected
    assert verdict["ok"] is not bool(expected)


def test_a_consumer_notes_where_the_chain_is_broken() -> None:
    events = ledgers(60, 3)
    skipped = next(e for e in events if e.line > 10 and any(e.key == x.key for x in events[e.line :]))
    after = next(e for e in events[skipped.line :] if e.key == skipped.key)
    with strictq.open(":memory:") as q:
        q.app_schema(consumer.SCHEMA)
        for e in events:
            if e is not skipped:
                q.send(e.body, key=e.key, headers={consumer.LINE_HEADER: str(e.line)})

        consumer.consume(
            q, lambda: q.stats().depth > 0, name="c1", batch=10, lease_seconds=30.0, kill_after=None, kill_note="",
        )  # fmt: skip
        rows = list(verify.recorded(q))
    assert len(rows) == 59
    assert [r.line for r in rows if not r.linked] == [after.line]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--consumers", "0"], "--consumers"),
        (["--shards", "257"], "--shards"),
        (["--durability", "maybe"], "--durability"),
        (["--queue", "no/such/parent"], "no/such is not a directory"),
    ],
)
def test_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = demo_in_process(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------- terminals, pipes and signals


def test_no_color(tmp_path: Path) -> None:
    code, shown = in_a_terminal(tmp_path, "demo", *SMALL, "--no-kill")
    assert (code, bool(COLOUR.search(shown))) == (0, True)
    code, shown = in_a_terminal(tmp_path, "demo", *SMALL, "--no-kill", NO_COLOR="1")
    assert (code, COLOUR.findall(shown)) == (0, [])


def test_a_narrow_terminal(tmp_path: Path) -> None:
    code, shown = in_a_terminal(tmp_path, "demo", *SMALL, COLUMNS="40", NO_COLOR="1")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert all(len(line.rstrip()) <= 40 for piece in plain.splitlines() for line in piece.split("\r"))
    assert "…" not in plain


def test_without_rich_and_a_terminal_it_prints_plain_lines(tmp_path: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from strictq.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", *SMALL], capture_output=True, text=True, timeout=60, env=environment(tmp_path)
    )
    assert (done.returncode, "OK: every event was processed exactly once" in done.stdout) == (0, True), done.stderr
    assert re.search(r"killed c[12] \(pid \d+\) with -9", done.stderr)


def test_a_broken_pipe_is_quiet(tmp_path: Path) -> None:
    with start(tmp_path, "demo", *SMALL, "--no-kill") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 141
    assert "Traceback" not in err
    assert "Broken" not in err


def pids_of_consumers(process: subprocess.Popen[str]) -> list[int]:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("consumers: "):
            return [int(pid) for pid in re.findall(r"pid (\d+)", line)]
    raise AssertionError("it did not name its consumers")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly_and_leaves_nothing(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    with start(tmp_path, "demo", "--events", "300000") as process:
        pids = pids_of_consumers(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (expected, "")
    assert "Traceback" not in err
    assert all(map(gone, pids))
    assert list(tmp_path.iterdir()) == []


def test_consumers_end_with_their_parent(tmp_path: Path) -> None:
    with start(tmp_path, "demo", "--events", "300000") as process:
        pids = pids_of_consumers(process)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: all(map(gone, pids)))


def test_a_consumer_killed_by_somebody_else_is_replaced(tmp_path: Path) -> None:
    with start(tmp_path, "demo", "--events", "4000", "--consumers", "3", "--no-kill", "--json") as process:
        until(lambda: any(tmp_path.glob("*/demo.strictq")))
        process.kill() if not (pids := children(process.pid, 3)) else os.kill(pids[1], signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    result = json.loads(out)
    assert (result["ok"], result["processed"]) == (True, 4_000)
    assert sorted(c["fate"] for c in result["consumers"]) == ["finished"] * 3 + ["killed by another process"]


def children(pid: int, count: int) -> list[int]:
    """The child processes of a process that this test started, once there are so many."""
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    if not listing.exists():
        pytest.skip("this system does not list a process's children")
    until(lambda: len(listing.read_text().split()) >= count)
    return [int(child) for child in listing.read_text().split()]


# ---------------------------------------------------------------- the command itself


def test_help(tmp_path: Path) -> None:
    code, out, _ = strictq_command(tmp_path, "--help")
    assert (code, "demo" in out) == (0, True)
    code, out, _ = strictq_command(tmp_path, "demo", "--help")
    assert code == 0
    for option in ("--queue", "--consumers", "--shards", "--no-kill", "--json"):
        assert option in out
    code, _, err = strictq_command(tmp_path, "nonsense")
    assert (code, "nonsense" in err) == (2, True)


class Nobody:
    def progress(self, sent: int, processed: int) -> None: ...
    def tell(self, text: str) -> None: ...


def test_a_consumer_that_fails_is_noticed(tmp_path: Path) -> None:
    with (
        strictq.open(tmp_path / "q", durability="process") as q,
        pytest.raises(runner.DemoFailed, match=r"consumer c\d ended with exit code 1"),
    ):
        q.app_schema(consumer.SCHEMA)
        runner.run(ledgers(50, 1), q, Nobody(), consumers=1, lease_seconds=-1.0)


def test_events_are_the_same_again_and_linked() -> None:
    events = ledgers(2_000, 50)
    assert events == ledgers(2_000, 50)
    assert len({e.key for e in events}) == 50
    last: dict[str, int] = {}
    for e in events:
        entry = json.loads(e.body)
        assert last.get(e.key, 0) == entry["before"]
        last[e.key] = entry["after"]
    assert len({e.key for e in ledgers(3, 50)}) == 3


def test_the_runner_says_when_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STALL_SECONDS", 0.5)

    # A lease that outlives the patience: whoever killed the consumer's lane has to be waited for.
    with (
        strictq.open(tmp_path / "q", durability="process") as q,
        pytest.raises(runner.DemoFailed, match=r"no progress for 0\.5 s with \d+ messages left"),
    ):
        q.app_schema(consumer.SCHEMA)
        runner.run(ledgers(50, 1), q, Nobody(), consumers=1, lease_seconds=30.0)
