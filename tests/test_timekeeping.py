"""No test can hang a run: one that does not end fails, the others are run, and a run that is terminated names what ran."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARES, waiting
from tests.support import timekeeping
from tests.support.running import ROOT

PATIENCE_SECONDS = 200.0
"""Several processes start here, one after the other, each with all of pytest."""
CONFTEST = """
from tests.support import timekeeping

timekeeping.GRACE_SECONDS = 0.5
pytest_configure = timekeeping.install
"""
HANGING = """
import signal, time
from pathlib import Path

import pytest


def hang():
    Path("hangs").touch()
    time.sleep(600)


def test_that_waits_in_python():
    hang()


def test_that_waits_in_c():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    hang()


@pytest.fixture
def unending():
    yield
    hang()


def test_that_fails_with_an_unending_fixture(unending):
    raise ValueError("a failure of its own")


def test_that_passes():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(HANGING)
    return tmp_path


def started(project: Path, limit: int, *arguments: str) -> subprocess.Popen[str]:
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--dist", "loadfile", "-o", f"timeout={limit}"]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pytest; sys.exit(pytest.main())"]
    return subprocess.Popen(
        [*command, *options, *arguments],
        cwd=project,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_what_hangs_fails_and_the_rest_is_run(project: Path) -> None:
    with started(project, 1, "-n", "1") as run:
        out, _ = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 1, out
    assert "4 failed, 1 passed" in out, out
    ended = r"worker 'gw\d' crashed while running 'test_hanging.py::{}'"
    for test, why in [
        ("test_that_fails_with_an_unending_fixture", "ValueError: a failure of its own"),
        ("test_that_fails_with_an_unending_fixture", ended),
        ("test_that_waits_in_c", ended),
        ("test_that_waits_in_python", r"Failed: Timeout \(>1.0s\) from pytest-timeout."),
    ]:
        assert re.search(rf"^FAILED test_hanging.py::{test} - {why.format(test)}$", out, re.MULTILINE), out
    assert len(re.findall(r'test_hanging.py", line \d+ in hang', out)) == 2, "the stack of each process that was killed"


def test_a_run_that_is_terminated_names_what_ran(project: Path) -> None:
    with started(project, 600, "-n", "1", "-k", "unending") as run:
        while not (project / "hangs").exists():
            assert run.poll() is None
        time.sleep(1.0)  # the worker's report of the failure is on its way
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == -signal.SIGTERM, out
    assert re.search(
        r"tests were running:\n  test_hanging.py::test_that_fails_with_an_unending_fixture, for \d+ s\n1 had failed:\n", out
    ), out
    assert "test_that_fails_with_an_unending_fixture: ValueError: a failure of its own\n" in out, out


class Case:
    """A collected test with the mark `in_turn`."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> bool | None:
        return True if name == "in_turn" else None


def test_each_case_has_its_turn_and_each_test_runs_in_each_turn() -> None:
    cases: list[Any] = [Case(f"test_{count}[{n}]") for count in (1, 2, 3, 16) for n in range(count)]
    runs = [{case.nodeid for case in cases} - {case.nodeid for case in waiting(cases, turn)} for turn in range(SHARES)]
    assert set().union(*runs) == {case.nodeid for case in cases}
    for run in runs:
        assert len({name.partition("[")[0] for name in run}) == 4
        assert len(run) <= 1 + 1 + 1 + 6


def test_the_quick_run_says_beforehand_how_long_it_takes(project: Path) -> None:
    assert timekeeping.expected(2, 2, 0.0).startswith("the quick run takes about 3 minutes: 2 processes on 2 cores")
    assert timekeeping.expected(2, 2, 6.0).startswith("the quick run takes about 13 minutes")
    (project / "test_hanging.py").write_text("def test_that_passes():\n    pass\n")
    (project / "pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers =\n    slow\n")
    for arguments, said in (["-m", "not slow"], 1), (["-m", "not slow", "test_hanging.py"], 0), ([], 0):
        with started(project, 60, "-q", *arguments) as run:
            out, _ = run.communicate(timeout=PATIENCE_SECONDS)
        assert out.count("the quick run takes about") == said, out
        assert "1 passed" in out, out


def test_each_folder_belongs_to_a_part() -> None:
    folders = {path.parent.relative_to(timekeeping.TESTS).as_posix() for path in timekeeping.TESTS.rglob("test_*.py")}
    assert folders == set(timekeeping.PART_OF)


def test_the_modules_to_begin_with_are_there() -> None:
    assert [name for name in timekeeping.LONG_FIRST if not (timekeeping.TESTS / name).exists()] == []


def test_only_ci_judges_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may be slower, or busy."""
    times = timekeeping.Times()
    times.modules["tests/worker/test_slow.py"] = 1e6
    monkeypatch.delenv(timekeeping.BUDGETS, raising=False)
    assert "budget" not in "\n".join(times.table()).lower()
    monkeypatch.setenv(timekeeping.BUDGETS, "1")
    assert re.search(r"^worker +1000000 +300  OVER ITS BUDGET$", "\n".join(times.table()), re.MULTILINE)
    assert timekeeping.BUDGETS in (ROOT / ".ci" / "run").read_text()
