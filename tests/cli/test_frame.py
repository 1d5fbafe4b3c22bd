"""What all commands have in common: the list of them, help, errors, terminals, pipes; and the smaller commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import click
import pytest

import strictq
from strictq import Message
from strictq._client.consumers import write_report
from strictq.cli import COMMANDS, app
from strictq.cli._words import moment, shown_key, size, span
from tests.support.command import (
    COLOUR,
    MAIN,
    environment,
    in_a_terminal,
    in_process,
    json_lines,
    start,
    strictq_command,
)
from tests.support.recorded_batches import holder
from tests.support.running import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = ROOT / "docs" / "reference" / "cli.md"


def click_command(name: str) -> click.Command:
    group = app()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


@pytest.fixture
def filled(path: Path) -> Path:
    """Keys, dead letters, held lanes, long and wide texts."""
    with strictq.open(path) as q:
        q.configure(history="records")
        q.send_many([Message(b"x" * 200, key=f"customer-with-a-long-name-{n % 7}") for n in range(50)])
        q.send_many([Message("注文を処理できません".encode(), key="顧客番号四十二" * 3)] * 3)
        for d in q.receive(3, keys=["customer-with-a-long-name-1"]):
            d.reject("a reason that is much longer than a narrow terminal is wide, and then some")
        q.hold("顧客番号四十二" * 3, "held for a reason that is long, too, and does not fit on one line of forty columns")
        q.app_schema("CREATE TABLE app_t (a TEXT, b TEXT, c TEXT)")
        with q.transaction(key="k") as tx:
            tx.execute("INSERT INTO app_t VALUES (?, ?, ?)", ("x" * 70, "y" * 70, "z" * 70))
    return path


LOOKS = [
    ["stats", "{q}", "--shards"],
    ["top-keys", "{q}"],
    ["explain", "{q}", "顧客番号四十二" * 3],
    ["peek", "{q}", "customer-with-a-long-name-2"],
    ["status", "{q}", "customer-with-a-long-name-1", "1"],
    ["dead", "{q}"],
    ["history", "{q}"],
    ["query", "{q}", "SELECT * FROM app_t"],
    ["config", "{q}"],
    ["check", "{q}"],
]
IN_TURN = """
import json, sys
from strictq.cli import main

for sys.argv[1:] in json.loads(sys.argv[1]):
    try:
        main()
    except SystemExit as e:
        print(f"\\0{e.code}", flush=True)
"""
"""Runs commands one after the other in one process, with a NUL and the exit code behind what each prints."""


def looks(filled: Path) -> str:
    """Return the argument of IN_TURN for all of LOOKS."""
    return json.dumps([[a.replace("{q}", str(filled)) for a in args] for args in LOOKS])


def printed(shown: str) -> dict[str, str]:
    """Return what each of LOOKS printed. Each must have succeeded."""
    *found, rest = re.split("\0", shown)
    codes = [line.partition("\n")[0].strip() for line in [*found[1:], rest]]
    assert codes == ["0"] * len(LOOKS), shown
    texts = [found[0], *(text.partition("\n")[2] for text in found[1:])]
    return {args[0]: text for args, text in zip(LOOKS, texts, strict=True)}


# ---------------------------------------------------------------- the list of commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_what_the_list_says(name: str) -> None:
    command = click_command(name)
    assert re.search(rf"^ +{name} +{re.escape(COMMANDS[name][1])}$", in_process("--help").stdout, re.M)
    assert any("--json" in option.opts for option in command.params), "every command has --json"
    assert command.epilog, "every command has examples"
    examples = [line.strip() for line in command.epilog.splitlines()[2:]]
    assert any(line.startswith(f"strictq {name}") for line in examples)
    assert all(len(line) <= 100 for line in examples)
    help_text = in_process(name, "--help")
    assert help_text.exit_code == 0
    assert all(line in help_text.stdout for line in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_its_options(name: str) -> None:
    section = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", REFERENCE.read_text(encoding="utf-8"), re.M | re.S)
    assert section, f"docs/reference/cli.md has no section {name}"
    for option in click_command(name).params:
        for spelled in () if getattr(option, "hidden", False) else (*option.opts, *option.secondary_opts):
            if spelled.startswith("--") and spelled not in ("--json", "--quiet", "--key-type"):
                assert f"`{spelled}" in section[1] or f"{spelled}`" in section[1] or f"{spelled} " in section[1], spelled


def test_the_help_and_one_command_import_only_what_they_need(filled: Path, tmp_path: Path) -> None:
    watch = (
        "import sys; sys.argv[1:] = {args!r}\ntry:\n    from strictq.cli import main; main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    for args, absent in (
        (["--help"], {"rich", "orjson", "strictq.worker", "strictq.cli.send", "strictq.cli._command"}),
        (["stats", str(filled)], {"rich", "orjson", "strictq.worker", "strictq.demo", "strictq.bench", "asyncio", "zipfile"}),
        (["stats", str(filled), "--json"], {"rich", "orjson", "strictq.worker", "strictq.cli._terminal", "asyncio", "logging"}),
        # Counting takes less time than the import of what single looks bring, or of what checks, damaged files and shells need.
        (
            ["stats", str(filled)],
            {"strictq._values.findings", "strictq._store.whole.check", "strictq._store.disk.pages", "click.shell_completion"},
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", watch.format(args=args)], env=environment(tmp_path), capture_output=True, text=True
        )
        assert not absent & set(done.stderr.split()), args


@pytest.mark.parametrize(
    ("word", "says"),
    [("top", "Did you mean top-keys?"), ("stat", "Did you mean stats or status?"), ("xyz", "No such command 'xyz'.\n")],
)
def test_an_unknown_command_names_the_nearest_ones(word: str, says: str) -> None:
    group = app()
    with pytest.raises(click.UsageError) as caught:
        group.invoke(group.make_context("strictq", [word, "orders.strictq"]))
    assert says in f"{caught.value.message}\n"


def test_version_and_unknown_commands(tmp_path: Path) -> None:
    assert strictq_command(tmp_path, "--version") == (0, f"strictq {strictq.__version__}\n", "")
    code, out, err = strictq_command(tmp_path, "statz")
    assert (code, out, "statz" in err) == (2, "", True)
    assert strictq_command(tmp_path)[0] == 2
    done = subprocess.run(
        [sys.executable, "-m", "strictq", "--version"], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout.startswith("strictq ")


@pytest.mark.parametrize(
    ("missing", "args"),
    [
        ("click", ["stats", "q"]),
        ("click.core", ["--help"]),
        ("orjson", ["send", "q"]),
        ("rich", ["work", "q", "--", "true"]),
    ],
)
def test_a_missing_extra_is_one_line(tmp_path: Path, missing: str, args: list[str]) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {MAIN}"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'strictq: the command needs {missing.partition(".")[0]}: pip install "strictq[cli]"\n'


def test_without_rich_a_terminal_gets_the_same_line(filled: Path, tmp_path: Path) -> None:
    for args in (["stats", str(filled)], ["dead", str(filled)], ["redrive", str(filled), "--all"]):
        code, shown = in_a_terminal(tmp_path, *args, main=f"import sys; sys.modules['rich'] = None; {MAIN}")
        assert (code, shown) == (2, 'strictq: the command needs rich: pip install "strictq[cli]"\r\n')
    with strictq.open(filled, read_only=True) as q:
        assert q.stats().dead == 3, "nothing was done"


INTERRUPTED_AT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("name", ["strictq", "apsw", "strictq.cli", "click", "strictq.cli.stats"])
def test_ctrl_c_while_it_starts_says_nothing(filled: Path, tmp_path: Path, name: str) -> None:
    code = INTERRUPTED_AT.format(name=name) + MAIN
    done = subprocess.run(
        [sys.executable, "-c", code, "stats", str(filled)], env=environment(tmp_path), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_entry_point_imports_nothing_before_it_can_be_interrupted(tmp_path: Path) -> None:
    code = "import sys, __future__; before = set(sys.modules); import _strictq_command; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_strictq_command\n", "")


@pytest.mark.parametrize(
    ("args", "word"),
    [(["explain", "q", "-5"], "-5"), (["status", "q", "-x7", "3"], "-x7"), (["dead", "q", "--customer"], "--customer")],
)
def test_a_key_with_a_dash_has_advice(args: list[str], word: str) -> None:
    result = in_process(*args)
    assert result.exit_code == 2
    assert f"If {word} is the key, it comes after --, behind all options: strictq {args[0]} QUEUE -- {word}" in result.stderr
    assert "comes after --" not in in_process("stats", "q", "-5").stderr


def test_a_key_that_is_no_text_has_advice(path: Path) -> None:
    result = in_process("explain", path, os.fsdecode(b"\xff"))
    assert (result.exit_code, result.stderr) == (
        2, "strictq: KEY is not valid UTF-8\n  hint: --key-type bytes accepts any bytes\n",
    )  # fmt: skip
    assert in_process("explain", path, os.fsdecode(b"\xff"), "--key-type", "bytes").exit_code == 0


@pytest.mark.parametrize(
    "args",
    [
        ["create", "{odd}"],
        ["send", "{odd}", "-k", "k", "--create"],
        ["demo", "--queue", "{odd}"],
        ["check", "{q}", "--salvage", "{odd}"],
    ],
    ids=lambda args: args[0],
)
def test_a_path_that_is_not_utf8_is_refused(path: Path, tmp_path: Path, args: list[str]) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff")
    before = sorted(tmp_path.iterdir())
    code, out, err = strictq_command(tmp_path, *[a.replace("{q}", str(path)).replace("{odd}", str(odd)) for a in args])
    assert (code, out) == (2, "")
    why, hint = err.splitlines()[-2:]
    assert why.startswith("strictq: path must be valid UTF-8, because SQLite requires it")
    assert hint == "  hint: choose another directory, or rename the files in it to UTF-8 names"
    assert sorted(tmp_path.iterdir()) == before


def test_a_reason_that_is_not_utf8_is_refused(filled: Path) -> None:
    odd = os.fsdecode(b"\xff")
    key = "customer-with-a-long-name-2"
    for args in (["hold", filled, key], ["reject", filled, key, 1], ["receive", filled, "--nack"]):
        result = in_process(*args, "--reason", odd)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Invalid value for '--reason': the text is not valid UTF-8." in result.stderr
    with strictq.open(filled, read_only=True) as q:
        assert q.status(key, 1).state == "ready"
        assert (q.stats().held, q.stats().dead) == (3, 3)


def test_no_duration_is_not_a_number(path: Path) -> None:
    for args in (["receive", path, "--wait"], ["work", path, "--timeout"], ["send", path, "--ttl"]):
        for value, why in (("nan", "is not"), ("inf", "is not"), ("1e12", "1e12 seconds are more than 315,360,000.")):
            result = in_process(*args, value)
            assert result.exit_code == 2
            assert why in result.stderr


# ---------------------------------------------------------------- terminals


def test_a_terminal_of_40_columns(filled: Path, tmp_path: Path) -> None:
    from rich.cells import cell_len

    _, shown = in_a_terminal(tmp_path, looks(filled), main=IN_TURN, COLUMNS="40", NO_COLOR="1")
    for name, text in printed(shown).items():
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        assert [line for line in plain.splitlines() if cell_len(line.rstrip()) > 40] == [], name
        assert COLOUR.findall(text) == [], name


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_help_fits_a_terminal_of_40_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = in_process(*filter(None, [name]), "--help")
    assert result.exit_code == 0
    text, _, examples = result.stdout.partition("Examples:")
    assert bool(examples) == bool(name)
    # The choices of an option, and a setting's name, are never broken.
    long = [line for line in text.splitlines() if len(line) > 40 and len(line.split()) > 2]
    assert long == []


MOVES = re.compile(r"\x1b\[(?:\d*[AGK]|\?25[lh])")
"""Up, erase, to the start of the line, hide and show the cursor: how a bar writes over itself."""


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=lambda e: next(iter(e)))
def test_no_color_is_no_escape_at_all(filled: Path, tmp_path: Path, env: dict[str, str]) -> None:
    _, shown = in_a_terminal(tmp_path, looks(filled), main=IN_TURN, **env)
    for name, text in printed(shown).items():
        assert "\x1b" not in (text if "TERM" in env else MOVES.sub("", text)), name


MOVING = [
    ["send", "{q}", "lines", "--key-field", "k"],
    ["work", "{q}", "--drain", "--", "false"],
    ["stats", "{q}", "--watch", "--count", "2", "--interval", "0.1"],
    ["check", "{q}"],
    ["demo", "--events", "300", "--no-kill"],
    ["redrive", "{q}", "--all"],
]


@pytest.mark.in_turn
@pytest.mark.parametrize("args", MOVING, ids=lambda a: a[0])
def test_what_moves_on_a_terminal_is_plain_too(filled: Path, tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "lines").write_text('{"k": "a"}\n' * 1000)
    words = [a.replace("{q}", str(filled)) for a in args]
    _, shown = in_a_terminal(tmp_path, *words, NO_COLOR="1")
    assert "\x1b" not in MOVES.sub("", shown)
    _, shown = in_a_terminal(tmp_path, *words, TERM="dumb")
    assert "\x1b" not in shown
    assert "\r" not in shown.replace("\r\n", "")


def test_a_pipe_gets_whole_lines_and_no_escapes(filled: Path, tmp_path: Path) -> None:
    with start(tmp_path, looks(filled), main=IN_TURN) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert err == ""
    for name, text in printed(out).items():
        assert text, name
        assert "\x1b" not in text, name


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "args",
    [*LOOKS, ["receive", "{q}"], ["--help"], ["--version"], ["send", "--help"]],
    ids=lambda a: " ".join(a[:2]),
)
def test_an_output_that_is_gone_or_full(filled: Path, tmp_path: Path, args: list[str]) -> None:
    words = [a.replace("{q}", str(filled)) for a in args]
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full:
        for stdout, code, said in ((writing, 141, ""), (full, 1, "strictq: the output: No space left on device\n")):
            done = subprocess.run(
                [sys.executable, "-c", MAIN, *words],
                env=environment(tmp_path), stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (code, said)
    os.close(writing)


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["", "json"])
@pytest.mark.parametrize("args", LOOKS, ids=lambda a: a[0])
def test_an_output_that_the_caller_closed(filled: Path, tmp_path: Path, args: list[str], more: list[str]) -> None:
    words = [*(a.replace("{q}", str(filled)) for a in args), *more]
    code = f"import os, sys; os.close(1); sys.stdout = None; {MAIN}"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_old_terminal_that_cannot_show_a_key(filled: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, PYTHONIOENCODING="ascii")
    process = start(tmp_path, "top-keys", str(filled), env=env)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert "?????" in out
    # JSON loses nothing.
    process = start(tmp_path, "top-keys", str(filled), "--json", env=env)
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert "顧客番号四十二" * 3 in {k["key"] for k in json_lines(out)}


ITS_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
"""The first thing a process of a new session does, so that Ctrl-C comes from its stdin."""


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("purge", r"Delete \d+ messages of .*"),
        ("history purge", "Delete all records of finished messages of .*"),
    ],
    ids=["purge", "history purge"],
)
@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"n\n", 1, "strictq: cancelled; nothing was deleted\n"),
        (b"y\n", 0, ""),
        (b"\x03", 130, "\n"),
        (b"\x04", 1, "\nstrictq: cancelled; nothing was deleted\n"),
    ],
    ids=["no", "yes", "Ctrl-C", "Ctrl-D"],
)
def test_purge_asks_on_a_terminal(
    filled: Path, tmp_path: Path, words: str, question: str, answer: bytes, code: int, said: str
) -> None:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", f"{ITS_TERMINAL}; {MAIN}", *words.split(), str(filled), "--all"], start_new_session=True,
        env=environment(tmp_path), stdin=child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(child)
    assert process.stderr is not None
    asked = ""
    while not asked.endswith("[y/N]: ") and (character := process.stderr.read(1)):
        asked += character
    assert re.fullmatch(question + re.escape(" [y/N]: "), asked)
    # A signal that arrives just before the process waits for the answer interrupts no wait. So Ctrl-C is pressed until it ends.
    for _ in range(int(PATIENCE_SECONDS)):
        os.write(parent, answer)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=4)
            break
    os.close(parent)
    assert (process.returncode, err) == (code, said)
    if words == "purge":
        with strictq.open(filled, read_only=True) as q:
            assert (q.stats().depth > 0) == bool(code)


# ---------------------------------------------------------------- stats


def test_stats(filled: Path) -> None:
    (found,) = json_lines(in_process("stats", filled, "--json").stdout)
    with strictq.open(filled, read_only=True) as q:
        stats = q.stats()
    assert (found["ready"], found["held"], found["dead"], found["depth"]) == (stats.ready, 3, 3, stats.depth)
    assert [s["depth"] for s in found["shards"]] == [s.depth for s in stats.shards]
    halves = [("0" * 16, "7" + "f" * 15), ("8" + "0" * 15, "f" * 16)]
    assert [(s["hash_lo"], s["hash_hi"]) for s in found["shards"]] == halves
    shown = in_process("stats", filled).stdout
    assert re.search(rf"^ready +{stats.ready}\b", shown, re.M)
    assert "2 shards, durability process" in shown


def test_stats_of_named_consumers(filled: Path, tmp_path: Path) -> None:
    with strictq.open(filled) as q:
        h = holder(q, "etl")
        h.take(0, messages_max=10)
        report = strictq.QueryReport("orders", "0-1", "running", 7, 400, 0.25, 1600.0, time.time() - 30.0)
        write_report(q.path, q.queue_id, "etl", report)
        (found,) = json_lines(in_process("stats", filled, "--json").stdout)
        (c,) = found["consumers"]
        assert (c["name"], c["lag"], c["in_flight"], c["active"]) == ("etl", q.stats().ready + 10, 10, True)
        assert c["query"] == attrs.asdict(report)
        shown = in_process("stats", filled).stdout
        assert "10 of it in flight" in shown
        assert "query orders running, 1,600.0 per second, batch 7 of 400 messages in 0.2 s, seen 3" in shown
        h.close()
        assert "query orders gone" in in_process("stats", filled).stdout
        write_report(q.path, q.queue_id, "etl", attrs.evolve(report, state="failed", error="no disk"))
        assert ": no disk" in in_process("stats", filled).stdout
        holder(q, "other")
        assert "in use by a process" in in_process("stats", filled).stdout
    code, out, err = strictq_command(tmp_path, "stats", str(filled), "--watch", "--interval", "0.1", "--count", "2")
    assert (code, err) == (0, "")
    assert all(re.search(r" \[etl lag=\d+ age=[\d.]+ messages/s=0\.0\]", line) for line in out.splitlines())


def test_watch_on_a_pipe_is_a_line_a_look(filled: Path, tmp_path: Path) -> None:
    code, out, err = strictq_command(tmp_path, "stats", str(filled), "--watch", "--interval", "0.1", "--count", "3")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 3
    assert all(
        re.fullmatch(r"\d\d:\d\d:\d\d ready=47 in_flight=0 .* acks/s=[\d.]+ retries/s=[\d.]+", line) for line in out.splitlines()
    )
    code, out, err = strictq_command(tmp_path, "stats", str(filled), "-w", "--interval", "0.1", "--count", "3", "--json")
    looks = json_lines(out)
    assert [look["ready"] for look in looks] == [47] * 3
    assert {"at", "sends_per_second", "acks_per_second"} < set(looks[0])


def test_watch_counts_what_others_do(filled: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "stats", str(filled), "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    sends = json.loads(process.stdout.readline())["sends"]
    with strictq.open(filled) as q:
        q.send_many([Message(b"", key="x")] * 10)
    looks = [json.loads(process.stdout.readline())]
    while looks[-1]["sends"] < sends + 10:
        looks.append(json.loads(process.stdout.readline()))
    assert looks[-1]["sends_per_second"] > 0
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (130, "")


def test_watch_on_a_terminal_is_one_screen(filled: Path, tmp_path: Path) -> None:
    code, shown = in_a_terminal(
        tmp_path, "stats", str(filled), "--watch", "--interval", "0.1", "--count", "3", COLUMNS="40", NO_COLOR="1"
    )
    assert code == 0
    assert "\x1b[1A" in shown or "\x1b[2K" in shown, "it goes up and writes over itself"
    assert "rates" in shown
    assert "deepest keys" in shown


@pytest.mark.parametrize(
    "args", [["--interval", "1"], ["--count", "2"], ["--watch", "--interval", "0"], ["--watch", "--count", "0"]]
)
def test_watch_usage(path: Path, args: list[str]) -> None:
    assert in_process("stats", path, *args).exit_code == 2


# ---------------------------------------------------------------- bench and completion


def test_bench(tmp_path: Path) -> None:
    args = ("bench", tmp_path, "--durability", "process", "--messages", 200, "--batch", 50, "--keys", 10, "--rounds", 2)
    result = in_process(*args, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json_lines(result.stdout)
    assert [f["what"] for f in found["figures"]] == ["send", "receive", "ack", "whole life", "send one by one"]
    for f in found["figures"]:
        assert f["strictq"] > 0
        assert f["floor"] > 0
        assert f["low"] <= f["ratio"] <= f["high"]
    assert (found["messages"], found["batch"], found["rounds"]) == (200, 50, 2)
    assert {"sqlite_version", "strictq_version", "python_version", "cpus", "directory"} < set(found)
    shown = in_process(*args).stdout
    assert "whole life" in shown
    assert list(tmp_path.iterdir()) == []
    assert in_process("bench", tmp_path / "nowhere").exit_code == 2


def test_bench_leaves_nothing_when_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    process = start(tmp_path, "bench", "here", "--durability", "process", "--rounds", "100")
    until(lambda: list((tmp_path / "here").iterdir()))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (130, "", "")
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(tmp_path: Path, shell: str) -> None:
    process = start(tmp_path, env=environment(tmp_path, _STRICTQ_COMPLETE=f"{shell}_source"))
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert f"_STRICTQ_COMPLETE={shell}_complete" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("strictq st", {"stats", "status"}),
        ("strictq send q --key-f", {"--key-field"}),
        ("strictq send q --on-error ", {"stop", "skip"}),
    ],
)
def test_a_shell_completes(tmp_path: Path, words: str, expected: set[str]) -> None:
    env = environment(tmp_path, _STRICTQ_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
    process = start(tmp_path, env=env)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert ({line.partition(",")[2] for line in out.split()}, err) == (expected, "")


# ---------------------------------------------------------------- words


def test_words() -> None:
    assert [shown_key(k) for k in ("a", 7, "7", "-7", b"\x00", None, " x", "hex:00", "a\x1b")] == [
        "a", "7", '"7"', '"-7"', "hex:00", "(no key)", '" x"', '"hex:00"', "a\N{REPLACEMENT CHARACTER}",
    ]  # fmt: skip
    assert [span(s) for s in (None, 0.26, 45.4, 600, 9000, 200_000)] == ["-", "0.3 s", "45 s", "10 min", "2.5 h", "2.3 d"]
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 B", "1,023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB",
    ]  # fmt: skip
    assert moment(None) == "-"
    assert moment(time.time() - 30).endswith("(30 s ago)")
    assert "(in " in moment(time.time() + 30)


@pytest.mark.parametrize("width", range(10, 30))
def test_a_table_is_never_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from strictq.cli import _terminal

    shown = io.StringIO()
    monkeypatch.setattr(_terminal, "output", lambda: _terminal.Terminal(file=shown, width=width))
    _terminal.listing(["aaaa"] * 4, [["bbbb"] * 4], ())
    assert shown.getvalue().count("bbbb") == 4
    assert "…" not in shown.getvalue()
