"""`strictq work`, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq.cli.work import progress
from tests.support.command import shown_in_terminal
from tests.support.queues import AT_ONCE
from tests.support.running import PATIENCE_SECONDS, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with strictq.open(tmp_path / "queue", durability="process", config=strictq.QueueConfig(max_attempts=2, **AT_ONCE)):
        return tmp_path / "queue"


def send(path: Path, *messages: tuple[bytes, Any]) -> None:
    with strictq.open(path) as q:
        q.send_many([strictq.Message(body, key=key) for body, key in messages])


def begin(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "strictq", "work", *map(str, arguments)]
    code = "import sys; from strictq.cli import main; sys.argv[0] = 'strictq'; main()"
    return subprocess.Popen([sys.executable, "-c", code, *words[3:]], text=True, **options)


def work(*arguments: object) -> tuple[int, str, str]:
    process = begin(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def test_a_command_per_message_in_order_per_key(path: Path, tmp_path: Path) -> None:
    send(path, *((b"%d" % n, f"k{n % 3}") for n in range(12)))
    log = tmp_path / "log"
    code = (
        "import os, sys; e = os.environ; f = open(sys.argv[1], 'a');"
        "f.write(f\"{e['STRICTQ_KEY']} {e['STRICTQ_SEQ']} {e['STRICTQ_ATTEMPT']} {e['STRICTQ_KEY_TYPE']} {sys.stdin.read()}\\n\")"
    )
    status, out, err = work(path, "--drain", "--json", *python(code), log)
    assert status == 0, err
    assert json.loads(out)["acked"] == 12
    lines = [line.split() for line in log.read_text().splitlines()]
    for k in range(3):
        assert [(line[1], line[2], line[4]) for line in lines if line[0] == f"k{k}"] == [
            (str(n + 1), "1", str(3 * n + k)) for n in range(4)
        ]
    assert {line[3] for line in lines} == {"str"}


def test_exit_codes_decide(path: Path) -> None:
    send(path, (b"0", "fine"), (b"3", "fails"), (b"75", "later"))
    status, out, err = work(
        path,
        "--drain",
        "--json",
        *python("import sys; n = int(sys.stdin.read()); n and print(f'bad {n}', file=sys.stderr); sys.exit(n)"),
    )
    assert status == 0, err
    assert (json.loads(out)["acked"], json.loads(out)["poison"]) == (1, 2)
    assert "it is a dead letter now" in " ".join(err.split())
    with strictq.open(path) as q:
        reasons = {d.key: d.reason for d in q.dead_letters()}
    assert reasons == {"fails": "the command ended with exit code 3: bad 3", "later": "bad 75"}


def test_stdout_is_the_output_and_stderr_the_error_line_by_line(path: Path) -> None:
    with strictq.open(path) as q:
        q.configure(history="records")
    send(path, (b"0", "fine"), (b"3", "fails"))
    code = (
        "import sys; n = sys.stdin.read(); print(f'out {n}\\n  and more'); print(f'err {n}\\n  and more', file=sys.stderr);"
        "sys.exit(int(n))"
    )
    status, out, err = work(path, "--drain", "--quiet", *python(code))
    assert status == 0, err
    assert sorted(out.splitlines()) == sorted(["out 0", "  and more", *["out 3", "  and more"] * 2])
    assert err.splitlines().count("err 3") == 2
    with strictq.open(path) as q:
        (dead,) = q.dead_letters()
        records = {r.key: r for shard in range(q.shards) for r in q.history(shard=shard)}
    assert dead.output == "out 3\n  and more\n"
    assert [e.error for e in dead.errors] == ["the command ended with exit code 3: err 3\n  and more"] * 2
    assert [e.traceback for e in dead.errors] == [None, None]
    assert (records["fine"].output, records["fine"].errors) == ("out 0\n  and more\n", ())


def test_bytes_and_lines_without_an_end_are_passed_on_as_they_are(path: Path, tmp_path: Path) -> None:
    send(path, (b"", "k"))
    code = "import sys; sys.stdout.buffer.write(b'\\xff\\x00' * 700_000 + b'\\nend')"
    with (tmp_path / "out").open("wb") as out:
        process = begin(path, "--drain", "--quiet", *python(code), stdout=out)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "out").read_bytes() == b"\xff\x00" * 700_000 + b"\nend"


def test_what_a_command_has_said_is_shown_while_it_runs(path: Path, tmp_path: Path) -> None:
    send(path, (b"", "k"))
    go_on = tmp_path / "go on"
    code = "import os, sys, time; print('half of it', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
    process = begin(path, "--drain", "--quiet", *python(code), go_on, stdout=subprocess.PIPE)
    with strictq.open(path, read_only=True) as q:
        until(lambda: q.status("k", 1).last_output == "half of it\n")
        assert q.status("k", 1).state == "in_flight"
    go_on.touch()
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (0, "half of it\n")


def test_a_reader_that_went_away_does_not_fail_messages(path: Path) -> None:
    send(path, *((b"", n) for n in range(3)))
    reader, writer = os.pipe()
    os.close(reader)
    process = begin(path, "--drain", "--quiet", *python("print('unheard')"), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    with strictq.open(path) as q:
        assert (q.stats().acks, q.stats().retries) == (3, 0)


@pytest.mark.parametrize("option", [(), ("--defer", "60")])
def test_exit_code_69_defers_if_it_is_given_a_delay(path: Path, option: tuple[str, ...]) -> None:
    send(path, (b"69", "k"))
    status, out, err = work(path, "--drain", "--json", *option, *python("import sys; sys.exit(int(sys.stdin.read()))"))
    assert status == 0, err
    totals = json.loads(out)
    assert (totals["deferred"], totals["retried"], totals["poison"]) == ((1, 0, 0) if option else (0, 2, 1))
    with strictq.open(path) as q:
        assert (q.status("k", 1).state, q.status("k", 1).attempts) == (("delayed", 0) if option else ("dead", 2))


def test_the_output_of_prepare_is_a_file(path: Path, tmp_path: Path) -> None:
    send(path, (b"hello", 7))
    log = tmp_path / "log"
    prepare = f"{sys.executable} -c 'import sys; print(sys.stdin.read().upper(), end=\"\")'"
    code = "import os, sys; p = os.environ['STRICTQ_PREPARED']; open(sys.argv[1], 'w').write(open(p).read() + ' ' + p)"
    status, _, err = work(path, "--drain", "--prepare", prepare, *python(code), log)
    assert status == 0, err
    text, name = log.read_text().split()
    assert text == "HELLO"
    assert not Path(name).exists()


def test_no_shell_unless_asked_for(path: Path, tmp_path: Path) -> None:
    send(path, (b"x", 1))
    assert work(path, "--drain", "--", "echo", f"$(touch {tmp_path}/made); touch {tmp_path}/made")[0] == 0
    assert not (tmp_path / "made").exists()
    send(path, (b"x", 1))
    assert work(path, "--drain", "--shell", "--", f"cat > {tmp_path}/made; exit 0")[0] == 0
    assert (tmp_path / "made").read_text() == "x"


@pytest.mark.parametrize("key", [b"\x00\xff", "a\0b", "naïve", -5])
def test_any_key_can_be_passed(path: Path, tmp_path: Path, key: Any) -> None:
    send(path, (b"", key))
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['STRICTQ_KEY_HEX'] + ' ' + os.environ['STRICTQ_KEY_TYPE'])"
    assert work(path, "--drain", *python(code), tmp_path / "log")[0] == 0
    raw = key if isinstance(key, bytes) else str(key).encode()
    assert (tmp_path / "log").read_text() == f"{raw.hex()} {type(key).__name__}"


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(path: Path) -> None:
    send(path, (b"", "k"))
    status, out, _ = work(path, "--drain", "--json", "--timeout", "0.3", *python("import time; time.sleep(600)"))
    assert status == 0
    assert json.loads(out)["timeouts"] == 2
    with strictq.open(path) as q:
        assert "longer than its timeout" in (q.dead_letters()[0].reason or "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_command_finish(path: Path, tmp_path: Path, number: signal.Signals) -> None:
    send(path, (b"", "k"), (b"", "k"))
    began = tmp_path / "began"
    code = "import sys, time, os; open(sys.argv[1], 'w').close(); time.sleep(0.5)"
    process = begin(path, *python(code), began, stderr=subprocess.PIPE)
    until(lambda: began.exists())
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    with strictq.open(path) as q:
        stats = q.stats()
    assert (stats.acks, stats.in_flight, stats.ready) == (1, 0, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--", "no-such-command"],
        ["--prepare", "no-such-command", "--", "cat"],
        ["--prepare", "'", "--", "cat"],
        ["--concurrency", 0, "--", "cat"],
    ],
)
def test_wrong_usage(path: Path, arguments: list[object]) -> None:
    status, _, err = work(path, *arguments)
    assert status == 2
    assert "Traceback" not in err


def test_a_queue_that_fails_is_exit_code_1(path: Path) -> None:
    (path / "shard-0000.db").write_bytes(b"no database at all" * 1000)
    status, _, err = work(path, "--drain", "--", "cat")
    assert status == 1
    assert "Traceback" not in err
    assert "shard 0" in err


def test_several_queues_share_a_worker(path: Path, tmp_path: Path) -> None:
    with strictq.open(tmp_path / "other", durability="process"):
        pass
    for one in (path, tmp_path / "other"):
        send(one, *((b"", n) for n in range(4)))
    log = tmp_path / "log"
    code = "import os, sys; open(sys.argv[1], 'a').write(os.environ['STRICTQ_QUEUE'] + chr(10))"
    options = ("--also", tmp_path / "other", "--weights", "3,1", "--concurrency", "2", "--drain", "--json")
    status, out, err = work(path, *options, *python(code), log)
    assert (status, json.loads(out)["acked"]) == (0, 8), err
    assert sorted(log.read_text().split()) == [str(tmp_path / "other")] * 4 + [str(path)] * 4


def test_wrong_weights_are_wrong_usage(path: Path, tmp_path: Path) -> None:
    status, _, err = work(path, "--weights", "x", *python(""))
    assert (status, "--weights must be numbers" in err) == (2, True)
    status, _, err = work(path, "--weights", "1", *python(""))
    assert (status, "weights are for several queues" in err) == (2, True)


def test_progress_shows_what_is_in_flight_the_rate_the_backlog_and_the_time_left(path: Path) -> None:
    def shown(depth: int, acked: int, seconds: float) -> str:
        with strictq.open(path) as q:
            send(path, *((b"", n) for n in range(depth)))
            depth = q.stats().depth
            q.purge()
            worker = attrs.evolve(strictq.Worker(q, print).stats(), running=3, prepared=2, acked=acked, retried=1)
        return progress(depth, worker, seconds)

    at_work = "3 running, 2 prepared, "
    assert shown(30, 20, 2.0) == f"time left 3 s, backlog 30, 10.0 per second; {at_work}20 done, 1 retried"
    assert shown(0, 20, 2.0) == f"time left -, backlog 0, 10.0 per second; {at_work}20 done, 1 retried"
    assert shown(5, 0, 0.0) == f"time left -, backlog 5, 0.0 per second; {at_work}0 done, 1 retried"


def test_progress_in_a_terminal(path: Path) -> None:
    pty = pytest.importorskip("pty")
    send(path, *((b"", n) for n in range(4)))
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = begin(
        path, "--drain", *python("import time; time.sleep(1)"), stdin=child, stdout=child, stderr=child, env=environment
    )
    os.close(child)
    shown = shown_in_terminal(parent)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert "time left" in shown
    assert "4 messages done" in shown


def test_a_second_signal_waits_for_nobody(path: Path, tmp_path: Path) -> None:
    send(path, (b"", "k"))
    began = tmp_path / "began"
    process = begin(
        path, *python("import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"), began, stderr=subprocess.PIPE
    )
    until(lambda: began.exists())
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None, "the first one waits"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, "Traceback" in err) == (0, False)
    with strictq.open(path) as q:
        assert (q.stats().depth, q.stats().in_flight) == (1, 0)


def test_no_queue(tmp_path: Path) -> None:
    status, _, err = work(tmp_path / "nowhere", "--", "cat")
    assert status == 2
    assert "there is no queue" in err


def wait_for_breaker(q: strictq.Queue, process: subprocess.Popen[str]) -> strictq.OpenBreaker:
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := q.stats().breakers):
        assert process.poll() is None
        assert time.monotonic() < end, "no breaker opened"
        time.sleep(0.02)
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_commands_that_fail_open_a_breaker_that_other_processes_see(path: Path, number: signal.Signals) -> None:
    send(path, *((b"x", f"k{n}") for n in range(60)))
    process = begin(path, "--quiet", "--consumer", "me", *python("exit(3)"), stderr=subprocess.DEVNULL)
    with strictq.open(path, read_only=True) as q:
        shown = wait_for_breaker(q, process)
        assert shown.consumer == "me"
        assert shown.failures >= 20
        assert shown.error == "the command ended with exit code 3"
        for arguments in ((), ("--json",), ("--watch", "--count", "1")):
            code = "import sys; from strictq.cli import main; sys.argv[0] = 'strictq'; main()"
            told = subprocess.run(
                [sys.executable, "-c", code, "stats", str(path), *arguments], text=True, capture_output=True, check=True
            )
            assert "exit code 3" in told.stdout
            assert ("breakers" if arguments == ("--json",) else "breaker open: ") in told.stdout
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == (0 if number == signal.SIGTERM else -number)
        assert q.stats().breakers == ()  # a dead worker's breaker is not shown
        assert q.stats().dead == 0
    left = [p.name for p in path.iterdir() if "breaker-" in p.name]
    assert len(left) == (number == signal.SIGKILL)
    with strictq.open(path) as q:
        notice = q._storage.notice(strictq.OpenBreaker)
        for _ in range(2):  # a breaker may open again
            notice.put(shown)
            assert q.stats().breakers == (shown,)
            assert not any((path / name).exists() for name in left)
            notice.remove()
            assert q.stats().breakers == ()


def test_without_a_breaker_commands_fail_until_they_are_out_of_attempts(path: Path) -> None:
    with strictq.open(path) as q:
        q.configure(retry_delay_seconds=0.0)
    send(path, *((b"x", f"k{n}") for n in range(30)))
    status, _, err = work(path, "--drain", "--quiet", "--no-breaker", *python("exit(3)"))
    assert status == 0, err
    with strictq.open(path) as q:
        assert q.stats().dead == 30
