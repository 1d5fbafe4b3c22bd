"""`strictq alarm`: what fires, how it is said, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from tests.support.command import in_process, json_lines


@pytest.fixture
def troubled(path: Path) -> Path:
    """Three messages of which one is dead and one is in a held lane."""
    with strictq.open(path, create=False) as q:
        for key in ("dead", "held", "ready"):
            q.send(b"", key=key)
        q.hold("held", "why")
        q.receive(1, keys=["dead"])[0].reject("no")
    return path


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (["--dead", 1], 1, "dead is 1, the limit is 1\n"),
        (["--dead", 2], 0, ""),
        (["--depth", 2, "--held", 1, "--dead", 9], 1, "held is 1, the limit is 1\ndepth is 2, the limit is 2\n"),
        (["--age", 86_400, "--lag", 1, "--breakers", 1], 0, ""),
    ],
)
def test_a_limit_that_is_reached_fires(troubled: Path, limits: list[object], code: int, said: str) -> None:
    result = in_process("alarm", troubled, *limits)
    assert (result.exit_code, result.stdout) == (code, said)
    assert in_process("alarm", troubled, *limits, "--quiet").stdout == ""


def test_an_old_head_fires_and_an_empty_queue_has_none(path: Path) -> None:
    assert in_process("alarm", path, "--age", 0.001).exit_code == 0
    with strictq.open(path, create=False) as q:
        q.send(b"", key="k")
    result = in_process("alarm", path, "--age", 0.001)
    assert result.exit_code == 1
    assert result.stdout.startswith("age is ")
    assert result.stdout.endswith("s, the limit is 0.001s\n")


def test_json_has_what_was_looked_at(troubled: Path) -> None:
    result = in_process("alarm", troubled, "--dead", 1, "--age", 1e6, "--json")
    (found,) = json_lines(result.stdout)
    assert (result.exit_code, found["fires"]) == (1, True)
    dead, age = found["watched"]
    assert dead == {"name": "dead", "value": 1, "limit": 1, "fires": True}
    assert (age["name"], age["fires"]) == ("age", False)


def test_nagios_has_its_own_line_and_codes(troubled: Path, tmp_path: Path) -> None:
    result = in_process("alarm", troubled, "--dead", 1, "--depth", 10, "--nagios")
    assert (result.exit_code, result.stdout) == (2, "STRICTQ CRITICAL - dead is 1, the limit is 1 | dead=1;;1 depth=2;;10\n")
    result = in_process("alarm", troubled, "--dead", 5, "--nagios")
    assert (result.exit_code, result.stdout) == (0, "STRICTQ OK - dead 1 | dead=1;;5\n")
    result = in_process("alarm", tmp_path / "nowhere", "--dead", 1, "--nagios")
    assert (result.exit_code, result.stdout[:18]) == (3, "STRICTQ UNKNOWN - ")


def test_a_shard_that_cannot_be_read_fires(path: Path) -> None:
    (path / "shard-0000.db").write_bytes(b"no database at all" * 1000)
    result = in_process("alarm", path, "--dead", 1)
    assert result.exit_code == 1
    assert "shard 0" in result.stdout


def test_wrong_usage(path: Path, tmp_path: Path) -> None:
    for words in ([path], [path, "--dead", 0], [tmp_path / "nowhere", "--dead", 1]):
        assert in_process("alarm", *words).exit_code == 2
