"""What `strictq work` and `strictq run` log: a line each, with its time, and not wrapped."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest

import strictq
from strictq.cli._log import LogLines, log_to_stderr
from tests.support.command import in_a_terminal, strictq_command
from tests.support.queues import AT_ONCE

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|WARNING|ERROR) (.*)")
LONG = "no paper " * 40


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """With a message of a key."""
    with strictq.open(tmp_path / "queue", durability="process", config=strictq.QueueConfig(max_attempts=2, **AT_ONCE)) as q:
        q.send(b"{}", key="k", headers={"strictq-type": "t"})
    return tmp_path / "queue"


def lines(err: str) -> list[tuple[str, str]]:
    """Level and text of each line."""
    found = [LINE.fullmatch(line) for line in err.splitlines()]
    assert all(found), err
    return [(match[1], match[2]) for match in found if match]


def test_a_command_that_fails_is_logged_to_its_end(queue: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.exit({LONG!r})"
    status, _, err = strictq_command(tmp_path, "work", str(queue), "--drain", "--", sys.executable, "-c", code)
    assert status == 0
    said = [line for line in err.splitlines() if LINE.fullmatch(line)]
    began, retried, dead, ended = lines("\n".join(said))
    assert began == ("INFO", f"worker started: {queue}, 8 messages at once")
    assert retried[0] == "WARNING"
    assert re.match(r"retried key='k' seq=1 token=\d+ attempt 1/2: the command ended with exit code 1: no paper", retried[1])
    assert re.search(r"no paper ?; next try at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, in 0 s$", retried[1])
    assert dead[0] == "ERROR"
    assert re.match(r"poison key='k' seq=1 token=\d+ attempt 2/2: .*; out of attempts: it is a dead letter now$", dead[1])
    assert ended == ("INFO", f"worker stopped: {queue}, 0 acked, 2 retried, 1 poison")


def test_a_dead_letter_has_the_traceback_of_its_handler(queue: Path, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"import strictq\napp = strictq.App(strictq.open({str(queue)!r}))\n"
        "@app.handler('t', attempts_max=1)\ndef handle():\n    raise ValueError('a\\nb\\x1b[31m')\n"
    )
    status, _, err = strictq_command(tmp_path, "run", "shop", "--drain")
    assert status == 0
    first, second = (err.index(text) for text in (" ERROR rejected key='k'", "Traceback (most recent call last):\n"))
    assert first < second
    assert "shop.py\", line 5, in handle\n    raise ValueError('a\\nb\\x1b[31m')" in err
    assert "\x1b" not in err, "it can't steer a terminal"


def test_quiet_leaves_what_is_wrong(queue: Path, tmp_path: Path) -> None:
    status, _, err = strictq_command(tmp_path, "work", str(queue), "--drain", "--quiet", "--", "false")
    assert status == 0
    assert [level for level, _ in lines(err)] == ["WARNING", "ERROR"]


def test_in_a_terminal_the_log_is_above_the_line_that_changes(queue: Path, tmp_path: Path) -> None:
    status, shown = in_a_terminal(tmp_path, "work", str(queue), "--drain", "--", "false", COLUMNS="200")
    assert status == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n")
    assert len(re.findall(r"^\d{4}-.*? (?:WARNING|ERROR) (?:retried|poison) key='k'", text, re.M)) == 2


def test_a_program_that_logs_itself_keeps_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.Logger("root")
    ours = logging.Logger("strictq")
    ours.parent = root
    monkeypatch.setattr(logging, "getLogger", lambda name=None: ours if name else root)
    log_to_stderr()
    (handler,) = root.handlers
    assert (ours.level, type(handler.formatter)) == (logging.INFO, LogLines)
    ours.setLevel(logging.NOTSET)
    log_to_stderr()
    assert (root.handlers, ours.level) == ([handler], logging.NOTSET)
