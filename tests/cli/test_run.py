"""`strictq run`: apps in one process, and in several under a supervisor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from tests.support.command import json_lines, start, strictq_command
from tests.support.queues import AT_ONCE
from tests.support.running import PATIENCE_SECONDS, run_python, until

PROGRAM = '''
import multiprocessing, os, sys, time
import anyio
import strictq

queue = strictq.open("queue", create=False)
other = strictq.open("other", create=False)
app = strictq.App(queue)
second = strictq.App(other)
mixed = strictq.App(queue)
copy = strictq.App(queue)
no_app = 5


def handle(n: int, job: strictq.Job) -> None:
    """Says that it began, and waits for the file `go`."""
    with open(f"began-{n}", "a") as file:
        print(os.getpid(), file=file)
    while not os.path.exists("go"):
        time.sleep(0.005)
    with open("done", "a") as file:
        print(os.path.basename(job.queue_path), n, file=file)


for each in (app, second, mixed):
    each.handler("handle")(handle)


@mixed.handler("async")
async def handle_async() -> None:
    await anyio.sleep(0)


@app.handler("exit")
def exit_() -> None:
    sys.exit(2)


@app.handler("killed")
def killed(job: strictq.Job) -> None:
    if job.attempt == 1:
        os.kill(os.getpid(), 9)


@app.handler("vanish")
def vanish() -> None:
    os._exit(0)


@app.handler("leave")
def leave() -> None:
    sys.exit(0)


@app.handler("own")
def own(job: strictq.Job) -> None:
    """Must run in a process of its own."""
    assert multiprocessing.parent_process() is not None
'''


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory with two queues, and the module `shop`. At the end, what still waits there may go on, and ends."""
    for name in ("queue", "other"):
        strictq.open(tmp_path / name, durability="process", config=strictq.QueueConfig(max_attempts=3, **AT_ONCE)).close()
    (tmp_path / "shop.py").write_text(PROGRAM)
    yield tmp_path
    (tmp_path / "go").touch()


def send(place: Path, *types: str, queue: str = "queue") -> None:
    """A message of each type, each of another key."""
    with strictq.open(place / queue, create=False) as q:
        for n, type in enumerate(types):
            body = {"n": n} if type == "handle" else {}
            q.send_json(body, key=n, headers={"strictq-type": type})


def begin(place: Path, *words: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts it in a terminal."""
    return start(place, "run", *words, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int | None, str, str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def pids(place: Path, n: int) -> list[int]:
    """The processes that began to handle message n."""
    file = place / f"began-{n}"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def wait_for(place: Path, *numbers: int) -> None:
    until(lambda: all(pids(place, n) for n in numbers), f"handlers of {numbers}")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def counts(place: Path) -> tuple[int, int, int]:
    with strictq.open(place / "queue", create=False) as q:
        stats = q.stats()
    return stats.acks, stats.in_flight, stats.ready


# ---- without an end


@pytest.mark.parametrize("processes", ["1", "2"])
def test_apps_run_until_nothing_is_left(place: Path, processes: str) -> None:
    (place / "go").touch()
    send(place, *["handle"] * 10)
    send(place, *["handle"] * 5, queue="other")
    words = ("shop", "shop:second", "-p", processes, "--drain", "--json", "-c", "2")
    code, out, err = strictq_command(place, "run", *words)
    assert code == 0, err
    (totals,) = json_lines(out)
    assert (totals["acked"], totals["processes"], totals["restarts"]) == (15, int(processes), 0)
    done = [line.split() for line in (place / "done").read_text().splitlines()]
    assert sorted(done) == sorted([["queue", str(n)] for n in range(10)] + [["other", str(n)] for n in range(5)])
    assert "15 messages done" in err
    assert len(re.findall("started worker process", err)) == (2 if processes == "2" else 0)
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (\[\d+\] )?[A-Z]+ ", line) for line in err.splitlines()), err


# ---- stopping


@pytest.mark.in_turn
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_all_processes_at_once_are_one_stop(place: Path, processes: str, number: signal.Signals) -> None:
    """Ctrl-C goes to the whole group of a terminal, and systemd's SIGTERM to all processes of a unit."""
    send(place, *["handle"] * 4)
    process = begin(place, "shop", "-p", processes, "-c", "2")
    working = range(2 * int(processes))
    wait_for(place, *working)
    os.killpg(process.pid, number)
    assert process.stderr is not None
    while "stopping: " not in (line := process.stderr.readline()):
        assert line, "it ended before it stopped"
    assert process.poll() is None, "it waits for its handlers"
    (place / "go").touch()
    code, _, err = finish(process)
    assert (code, "Traceback" in err, "killed" in err) == (0, False, False), err
    assert counts(place) == (len(working), 0, 4 - len(working))
    assert all(len(pids(place, n)) == 1 for n in working)


def test_a_signal_to_the_supervisor_alone_is_passed_on(place: Path) -> None:
    send(place, *["handle"] * 2)
    process = begin(place, "shop", "-p", "2", "-c", "1")
    wait_for(place, 0, 1)
    process.terminate()
    (place / "go").touch()
    code, _, err = finish(process)
    assert (code, counts(place)[0]) == (0, 2), err


@pytest.mark.in_turn
@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3])
def test_a_stop_at_any_time_of_the_start_is_clean(place: Path, pause: float) -> None:
    """Whether processes are just being started, import their modules, or work."""
    (place / "go").touch()
    send(place, *["handle"] * 20)
    process = begin(place, "shop", "-p", "2")
    assert process.stderr is not None
    said = ""
    while "started worker process 1" not in said:
        said += (line := process.stderr.readline())
        assert line, said
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(pause)  # whatever it is at by then
    os.killpg(process.pid, signal.SIGTERM)
    code, _, err = finish(process)
    assert (code, "Traceback" in err, "killed" in err) == (0, False, False), err
    acks, in_flight, ready = counts(place)
    assert (acks + ready, in_flight) == (20, 0)


@pytest.mark.in_turn
@pytest.mark.parametrize("words", [("shop",), ("shop", "-p", "2"), ("shop:mixed",)], ids=" ".join)
def test_a_second_signal_waits_for_nobody(place: Path, words: tuple[str, ...]) -> None:
    send(place, *["handle"] * 2)
    process = begin(place, *words, "-c", "1")
    wait_for(place, *range(2 if "-p" in words else 1))
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    while "stopping: " not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert (code, "Traceback" in err) == (0, False), err
    assert counts(place) == (0, 0, 2)
    assert all(gone(pid) for n in range(2) for pid in pids(place, n))


def test_grace_is_how_long_handlers_are_waited_for(place: Path) -> None:
    send(place, "handle")
    process = begin(place, "shop:mixed", "--grace", "0.1")
    wait_for(place, 0)
    process.terminate()
    code, _, err = finish(process)
    assert (code, counts(place)) == (0, (0, 0, 1)), err


def test_workers_stop_when_their_supervisor_is_killed(place: Path) -> None:
    send(place, *["handle"] * 2)
    process = begin(place, "shop", "-p", "2", "-c", "1")
    wait_for(place, 0, 1)
    workers = pids(place, 0) + pids(place, 1)
    process.kill()
    assert process.stderr is not None
    while "the supervisor has exited" not in (line := process.stderr.readline()):
        assert line
    assert not any(gone(pid) for pid in workers), "they finish what they are at"
    (place / "go").touch()
    until(lambda: all(gone(pid) for pid in workers), "the workers")
    finish(process)
    assert counts(place) == (2, 0, 0)


def test_what_is_ignored_stays_ignored(place: Path) -> None:
    """As with nohup."""
    send(place, "handle")
    main = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from _strictq_command import main; main()"
    process = start(place, "run", "shop", "-p", "2", main=main, start_new_session=True)
    wait_for(place, 0)
    os.killpg(process.pid, signal.SIGHUP)
    (place / "go").touch()
    send(place, "handle", "handle")
    wait_for(place, 1)
    process.terminate()
    code, _, err = finish(process)
    assert (code, "killed" in err) == (0, False), err


def test_a_process_that_does_not_end_at_once_is_killed() -> None:
    script = """
import os, signal, sys, threading
from strictq.cli import _supervisor

_supervisor.AT_ONCE_SECONDS = 0.1
def begun(descriptor):
    threading.Thread(target=stop).start()
    return [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(600)"]
def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    while not supervisor._orders:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
supervisor = _supervisor.Supervisor(begun, 1)
print(supervisor.run(), supervisor.restarts)
"""
    assert run_python(script).split()[-2:] == ["1", "0"]


# ---- what dies


def test_a_process_that_is_killed_is_started_again(place: Path) -> None:
    (place / "go").touch()
    send(place, "killed", "handle", "handle")
    code, out, err = strictq_command(place, "run", "shop", "-p", "2", "--drain", "--json")
    assert code == 0, err
    assert counts(place)[0] == 3
    assert json.loads(out)["restarts"] >= 1
    assert re.search(r"worker process \d \(pid \d+\) was killed by SIGKILL; restarting in 0\.5 s", err)


def test_a_handler_that_ends_its_process_is_no_wrong_usage(place: Path) -> None:
    send(place, "exit")
    process = begin(place, "shop", "-p", "2")
    with strictq.open(place / "queue", create=False) as q:
        until(lambda: q.stats().dead == 1, "the message is given up")
    process.terminate()
    code, _, err = finish(process)
    assert code in (0, 1), err
    assert err.count("a handler ended the process: SystemExit(2)") == 3, "max_attempts"


@pytest.mark.in_turn
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("type", ["vanish", "leave", "exit"])
def test_a_handler_that_ends_its_process_is_no_success(place: Path, processes: str, type: str) -> None:
    """Whatever the exit code. A supervised process is started again, until the message is given up."""
    send(place, type)
    code, _, err = strictq_command(place, "run", "shop", "-p", processes, "--drain", "--quiet")
    if processes == "1":
        assert code == 1, err
        assert ("os._exit(0)" if type == "vanish" else "a handler ended the process") in err
        return
    assert err.count("; restarting in") >= 1, err
    assert ("ended with exit code 0 before it was done" in err) is (type == "vanish")


@pytest.mark.in_turn
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_module_that_exits_is_no_success(place: Path, processes: str) -> None:
    (place / "exits.py").write_text("import sys; sys.exit(0)")
    code, _, err = strictq_command(place, "run", "exits", "-p", processes)
    assert code == 2
    assert "the module 'exits' cannot be imported: SystemExit: 0" in err


def test_a_module_that_ends_its_process_is_no_success(place: Path) -> None:
    (place / "ends.py").write_text("import os; os._exit(0)")
    code, _, err = strictq_command(place, "run", "ends")
    assert (code, "os._exit(0)" in err) == (1, True)


def test_an_exit_code_of_a_handler_is_not_that_of_the_command(place: Path) -> None:
    """A process that has begun to work is restarted, although 2 means that an app cannot be imported."""
    (place / "two.py").write_text(PROGRAM.replace("os._exit(0)", "os._exit(2)"))
    send(place, "vanish")
    _, _, err = strictq_command(place, "run", "two", "-p", "2", "--drain")
    assert re.search(r"ended with exit code 2; restarting in", err), err
    assert "cannot start work" not in err


def test_grace_also_ends_a_process_that_hangs_in_its_import(place: Path) -> None:
    (place / "hangs.py").write_text("import time; open('here', 'a').close(); time.sleep(600)")
    process = begin(place, "hangs", "-p", "2", "--grace", "0.1")
    until(lambda: (place / "here").exists(), "the import")
    process.terminate()
    code, _, err = finish(process)
    assert (code, err.count("does not exit; killing it")) == (1, 2), err


# ---- handlers in processes of their own


@pytest.mark.in_turn
@pytest.mark.parametrize("processes", ["1", "2"])
def test_handlers_run_in_processes_of_their_own(place: Path, processes: str) -> None:
    """One that ends its process fails, and its worker goes on. A type without a handler is no handler's business."""
    send(place, "own", "vanish", "killed", "unheard-of")
    process = begin(place, "shop", "-p", processes, "--executor", "process", "-c", "1")
    with strictq.open(place / "queue", create=False) as q:
        until(lambda: q.stats().acks >= 2 and q.stats().dead >= 1, "the handlers")
        until(lambda: any(d.key == 1 for d in q.dead_letters()), "the handler that ends its process")
        process.terminate()
        code, _, err = finish(process)
        assert (code, "restarting" in err) == (0, False), err
        assert [d.reason for d in q.dead_letters() if d.key == 1] == ["the handler's process ended with exit code 0"]
        assert q.status(0, 1).state == q.status(2, 1).state == "resolved"


def test_async_handlers_are_refused_for_processes(place: Path) -> None:
    code, _, err = strictq_command(place, "run", "shop:mixed", "--executor", "process")
    assert code == 2
    assert "executor='process' requires plain functions" in err


def test_waits_between_restarts_grow(place: Path) -> None:
    (place / "dies.py").write_text("import os; os._exit(3)")
    process = begin(place, "dies", "-p", "2")
    assert process.stderr is not None
    waits: dict[str, list[str]] = {"1": [], "2": []}
    while min(map(len, waits.values())) < 3:
        line = process.stderr.readline()
        assert line
        if found := re.search(r"process (\d) .* ended with exit code 3; restarting in (.*) s", line):
            waits[found[1]].append(found[2])
    process.terminate()
    assert finish(process)[0] == 0
    assert all(each[:3] == ["0.5", "1.0", "2.0"] for each in waits.values())


# ---- what can't run


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["shop.nowhere:app"], "there is no module 'shop.nowhere'"),
        (["shop:nothing"], "shop:nothing does not exist; it must be a strictq.App"),
        (["shop:no_app"], "shop:no_app is of type int; it must be a strictq.App"),
        (["shop:nothing"], "hint: the module has shop:app"),
        (["shop.py"], "hint: give the module's name, not its file's: shop:app"),
        (["shop.py:mixed"], "hint: give the module's name, not its file's: shop:mixed"),
        (["json:app"], "hint: the module 'json' has no strictq.App"),
        (["shop:copy"], "the app has no handlers"),
        (["shop:app", "shop:mixed"], "two of the apps use the same queue"),
        (["broken"], "the module 'broken' cannot be imported: ZeroDivisionError"),
        (["needs"], "the module 'needs' cannot be imported: ModuleNotFoundError: No module named 'not_installed'"),
        (["no_queue"], "there is no queue"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_can_never_run_is_said(place: Path, targets: list[str], said: str) -> None:
    (place / "broken.py").write_text("1 / 0")
    (place / "needs.py").write_text("import not_installed")
    (place / "no_queue.py").write_text("import strictq; strictq.open('nowhere', create=False)")
    code, out, err = strictq_command(place, "run", *targets)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("target", "said"), [("shop:nothing", "hint: the module has shop:app"), ("shop:copy", "has no handlers")]
)
def test_what_can_never_run_is_not_tried_again(place: Path, target: str, said: str) -> None:
    """Whatever it is, the worker process that says it ends with 2."""
    code, out, err = strictq_command(place, "run", target, "-p", "2")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("started worker process") <= 2
