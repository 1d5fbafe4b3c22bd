"""`strictq demo`, as a person or a script meets it."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

import strictq
from strictq.cli import app
from strictq.cli._command import Failure
from strictq.cli._demo_file import file_events
from strictq.demo import consumer, runner, verify
from strictq.demo.events import Chain, DemoEvent, Source, ledgers
from strictq.demo.verify import KINDS, Row
from tests.support.command import COLOUR, environment, in_a_terminal, start, strictq_command

ROOT = Path(__file__).resolve().parent.parent.parent
HISTORY = ROOT.parent / "shared" / "data" / "redis-history.jsonl.gz"
SMALL = ("--events", "300", "--keys", "20", "--consumers", "2", "--durability", "process")


def demo_in_process(*args: str) -> Any:
    return CliRunner().invoke(app(), ["demo", *args])


def write_lines(path: Path, *lines: str | dict[str, Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return path


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


def test_input_without_a_chain_is_checked_by_line_numbers(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "in.jsonl", *({"k": i % 7 if i % 2 else str(i % 7), "v": i} for i in range(200)))
    code, out, err = strictq_command(
        tmp_path,
        "demo",
        "--input",
        str(rows),
        "--key-field",
        "k",
        "--consumers",
        "2",
        "--json",
        "--durability",
        "process",
    )
    assert code == 0, err
    result = json.loads(out)
    # 1 and "1" are different keys.
    assert (result["processed"], result["keys"], "chain" in result["checked_by"]) == (200, 14, False)


@pytest.mark.slow
@pytest.mark.skipif(not HISTORY.exists(), reason="the file of real events is not beside this checkout")
def test_real_history(tmp_path: Path) -> None:
    code, out, err = strictq_command(
        tmp_path, "demo", "--input", str(HISTORY), "--key-field", "path", "--shards", "2", "--json", timeout=600
    )
    assert code == 0, out + err
    result = json.loads(out)
    assert (result["ok"], result["processed"], result["keys"], result["kills"]) == (True, 25_235, 2_221, 1)
    assert result["longest_keys"][0] == {"key": "src/server.c", "events": 840, "ok": True}
    assert "old → new" in result["checked_by"]


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
    rows[40] = rows[40]._replace(key=json.dumps("nobody"))
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
    assert found["problems"] == [f'lost: line 17 of key "{list(ledgers(300, 20).read())[16].key}"']


ROWS = [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b")]


def few_events() -> Source:
    """ROWS as a source."""
    events = [DemoEvent(line, key, b"%d" % line) for line, key in ROWS]
    return Source(name="few", count=len(ROWS), keys=2, chain=None, read=lambda: iter(events))


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
    rows = [Row(json.dumps(keys[n]), n, consumer.digest(b"%d" % n), True) for n in lines]
    verdict = verify.verify(few_events(), rows)
    assert {kind: verdict[kind] for kind in KINDS if verdict[kind]} == expected
    assert verdict["ok"] is not bool(expected)


def test_a_consumer_notes_where_the_chain_is_broken() -> None:
    source = ledgers(60, 3)
    events = list(source.read())
    skipped = next(e for e in events if e.line > 10 and any(e.key == x.key for x in events[e.line :]))
    after = next(e for e in events[skipped.line :] if e.key == skipped.key)
    with strictq.open(":memory:") as q:
        q.app_schema(consumer.SCHEMA)
        for e in events:
            if e is not skipped:
                q.send(e.body, key=e.key, headers={consumer.LINE_HEADER: str(e.line)})

        consumer.consume(
            q, lambda: q.stats().depth > 0, name="c1", batch=10, lease_seconds=30.0, chain=source.chain, kill_after=None,
            kill_note="",
        )  # fmt: skip
        rows = list(verify.recorded(q))
    assert len(rows) == 59
    assert [r.line for r in rows if not r.linked] == [after.line]


def test_a_consumer_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The consumers cannot know this chain: the made events have no such fields.
    broken = attrs.evolve(ledgers(300, 20), chain=Chain("nothing", "here"))
    monkeypatch.setattr("strictq.cli.demo.ledgers", lambda *_: broken)
    result = demo_in_process(*SMALL)
    assert result.exit_code == 1
    assert re.search(r"consumer c\d ended with exit code 1: KeyError: 'nothing'", result.stderr)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"k": "a"}', "", '{"k": '], "line 3: not JSON"),
        (['{"k": "a"}', "[1]"], "line 2: not a JSON object but a list"),
        (['{"k": "a"}', '{"j": "a"}'], "line 2: there is no key field 'k'; the row's fields: 'j'"),
        (['{"k": "a"}', '{"k": 1.5}'], "line 2: key field 'k' must be a string or a whole number, not a number"),
        (['{"k": null}'], "line 1: key field 'k' must be a string or a whole number, not null"),
        (['{"k": true}'], "not true or false"),
        (['{"k": ""}'], "line 1: key field 'k': a key must not be empty"),
        (['{"k": "\\ud800"}'], "lone surrogate"),
        (['{"k": "' + "x" * 2000 + '"}'], "at most 1024 bytes"),
        (["[" * 100_000], "line 1: not usable JSON"),
        ([""], "the file contains no events"),
    ],
)
def test_bad_rows(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write_lines(tmp_path / "bad.jsonl", *lines)
    result = demo_in_process("--input", str(path), "--key-field", "k")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert str(path) in result.stderr
    assert result.stderr.count("\n") == 1


def test_bad_encoding_and_bad_gzip(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(b'{"k": "a"}\n{"k": "\xff"}\n')
    with pytest.raises(Failure, match="line 2: not UTF-8"):
        file_events(path, "k")
    packed = gzip.compress(b'{"k": "a"}\n' * 1000)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(Failure, match=r"line \d+: the gzip data ends too early"):
        file_events(path, "k")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--input", "missing.jsonl", "--key-field", "k"], "missing.jsonl: no such file"),
        (["--input", ".", "--key-field", "k"], ".: not a regular file"),
        (["--input", "missing.jsonl"], "--input requires --key-field"),
        (["--input", "x", "--key-field", "k", "--events", "5"], "--events and --keys apply to generated events"),
        (["--key-field", "k"], "--key-field requires --input"),
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


@pytest.mark.parametrize(
    ("rows", "chain"),
    [
        ([("a", 0, 1), ("b", 0, 5), ("a", 1, 2)], Chain("old", "new")),
        ([("a", 0, 1), ("b", 3, 5), ("a", 1, 2)], Chain("old", "new")),
        ([("a", 0, 1), ("b", 0, 5), ("a", 7, 2)], None),
    ],
)
def test_the_chain_is_detected(tmp_path: Path, rows: list[tuple[str, int, int]], chain: Chain | None) -> None:
    path = write_lines(tmp_path / "in.jsonl", *({"k": k, "old": old, "new": new} for k, old, new in rows))
    events = file_events(path, "k")
    assert (events.chain, events.count, events.keys) == (chain, 3, 2)


def test_rows_added_later_are_ignored(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", {"k": "a"}, "", {"k": 2})
    events = file_events(path, "k")
    with path.open("a") as f:
        f.write('{"k": "late"}\n')
    assert [(e.line, e.key) for e in events.read()] == [(1, "a"), (3, 2)]


def test_made_events_are_the_same_again_and_chain() -> None:
    source = ledgers(2_000, 50)
    events = list(source.read())
    assert events == list(source.read())
    assert len({e.key for e in events}) == source.keys == 50
    assert source.chain is not None
    last: dict[Any, str] = {}
    for e in events:
        old, new = source.chain.links(json.loads(e.body))
        assert last.get(e.key, "0") == old
        last[e.key] = new
    assert ledgers(3, 50).keys == 3


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
        assert process.wait(60) == 141
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


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly_and_leaves_nothing(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    with start(tmp_path, "demo", "--events", "300000") as process:
        pids = pids_of_consumers(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (expected, "")
    assert "Traceback" not in err
    assert all(map(gone, pids))
    assert list(tmp_path.iterdir()) == []


def test_consumers_end_with_their_parent(tmp_path: Path) -> None:
    with start(tmp_path, "demo", "--events", "300000") as process:
        pids = pids_of_consumers(process)
        process.kill()
        process.communicate(timeout=60)
    wait_for(lambda: all(map(gone, pids)))


def test_a_consumer_killed_by_somebody_else_is_replaced(tmp_path: Path) -> None:
    with start(tmp_path, "demo", "--events", "4000", "--consumers", "3", "--no-kill", "--json") as process:
        wait_for(lambda: any(tmp_path.glob("*/demo.strictq")))
        process.kill() if not (pids := children(process.pid, 3)) else os.kill(pids[1], signal.SIGKILL)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    result = json.loads(out)
    assert (result["ok"], result["processed"]) == (True, 4_000)
    assert sorted(c["fate"] for c in result["consumers"]) == ["finished"] * 3 + ["killed by another process"]


def children(pid: int, count: int) -> list[int]:
    """The child processes of a process that this test started, once there are so many."""
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    if not listing.exists():
        pytest.skip("this system does not list a process's children")
    wait_for(lambda: len(listing.read_text().split()) >= count)
    return [int(child) for child in listing.read_text().split()]


# ---------------------------------------------------------------- the command itself


def test_help(tmp_path: Path) -> None:
    code, out, _ = strictq_command(tmp_path, "--help")
    assert (code, "demo" in out) == (0, True)
    code, out, _ = strictq_command(tmp_path, "demo", "--help")
    assert code == 0
    for option in ("--input", "--key-field", "--queue", "--consumers", "--shards", "--no-kill", "--json"):
        assert option in out
    code, _, err = strictq_command(tmp_path, "nonsense")
    assert (code, "nonsense" in err) == (2, True)


def test_the_runner_says_when_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STALL_SECONDS", 0.5)

    # A lease that outlives the patience: whoever killed the consumer's lane has to be waited for.
    class Nobody:
        def progress(self, sent: int, processed: int) -> None: ...
        def tell(self, text: str) -> None: ...

    with (
        strictq.open(tmp_path / "q", durability="process") as q,
        pytest.raises(runner.DemoFailed, match=r"no progress for 0\.5 s with \d+ messages left"),
    ):
        q.app_schema(consumer.SCHEMA)
        runner.run(ledgers(50, 1), q, Nobody(), consumers=1, lease_seconds=30.0)
