"""`strictq shards`: who owns which keys, and moves."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from tests.support.command import in_process

HALF = "8000000000000000"


@pytest.fixture
def filled(path: Path) -> Path:
    with strictq.open(path) as q:
        q.send_many([strictq.Message(b"", key=f"k{n}") for n in range(50)])
    return path


def test_a_split_and_its_end(filled: Path) -> None:
    done = in_process("shards", "split", filled, 0)
    assert done.exit_code == 0
    assert "moved" in done.stdout
    assert "no key waited longer than" in done.stdout
    shown = in_process("shards", filled).stdout
    assert "4000000000000000-7fffffffffffffff" in shown
    assert in_process("shards", "merge", filled, 2, 0).exit_code == 0
    assert "none" in in_process("shards", filled).stdout
    with strictq.open(filled) as q:
        assert q.stats().depth == 50
        assert q.check() == []


def test_quiet(filled: Path) -> None:
    assert in_process("shards", "split", filled, 0, "--quiet").output == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["split", "Q", "7"], "there is no shard 7"),
        (["split", "Q", "0", "--at", "xyz"], "xyz is no hash"),
        (["split", "Q", "0", "--at", HALF], "not inside a range"),
        (["merge", "Q", "0", "0"], "into itself"),
        (["move", "Q", "--range", "5", "--to", "1"], "is no hash"),
        (["move", "Q", "--range", "0:f", "--to", "here"], '"new"'),
        (["move", "Q", "--range", "0:f", "--to", "0"], "owns this range already"),
        (["isolate", "Q", ""], "must not be empty"),
    ],
)
def test_what_can_not_be_moved(filled: Path, words: list[str], says: str) -> None:
    done = in_process("shards", *(str(filled) if word == "Q" else word for word in words))
    assert done.exit_code == 2
    assert says in done.stderr
    assert len(strictq.open(filled, read_only=True).topology().shards) == 2


def test_no_move_to_cancel(filled: Path) -> None:
    assert in_process("shards", "cancel", filled).stdout == "no range is moving\n"
