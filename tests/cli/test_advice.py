"""What an error says at the command line: whatever the library raises, no hint names a Python call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import _errors
from strictq.cli._advice import BY_CLASS, BY_HINT, hint_of
from strictq.cli._command import explained

PACKAGE = Path(strictq.__file__).parent
CALLS = re.compile(r"\w\(|\bq\.\w|\b\w+\.\w+\(|=(True|False|None)\b|='|\bread_only\b|\.results\b|strictq\.\w+\.?\w*|\bawait\b|`")
"""What only a programmer can follow."""
NO_COMMAND = {
    # Of the parts that no command uses so: async queues, transactions, batches of one's own.
    "use it inside `async with strictq.open_async(...)`",
    "use the transaction's own methods there",
    "repeat it, and fork outside of it",
    "use transaction(key=...)",
    "encode it, or use Message.json()",
    "use ack()",
    # A worker's arguments, which strictq work chooses itself.
    "use `await worker.serve()`",
    "make another Worker",
    "stop the worker, and close the queue when run() or serve() has returned",
    "use executor='thread'",
    "put what the program does under `if __name__ == '__main__':`",
    "use job.execute, or executor='thread'",
}
"""Hints with calls in them that no command can show."""


def hints() -> Iterator[str]:
    """Every hint that the library's modules give to an error of their own."""
    for path in (path for part in ("", "_store", "aio", "worker") for path in (PACKAGE / part).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                if keyword.arg == "hint" and isinstance(keyword.value, ast.Constant | ast.JoinedStr):
                    parts = keyword.value.values if isinstance(keyword.value, ast.JoinedStr) else [keyword.value]
                    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
                    if text not in ("None", ""):
                        yield text


def classes(root: type[strictq.StrictqError]) -> Iterator[type[strictq.StrictqError]]:
    for kind in root.__subclasses__():
        if kind.__module__ == _errors.__name__:
            yield kind
        yield from classes(kind)


def test_there_are_hints_to_check() -> None:
    assert len(set(hints())) > 25
    assert len(set(classes(strictq.StrictqError))) > 20


@pytest.mark.parametrize("kind", sorted(set(classes(strictq.StrictqError)), key=lambda k: k.__name__))
def test_no_hint_of_a_class_names_a_call(kind: type[strictq.StrictqError]) -> None:
    shown = BY_CLASS.get(kind, kind.hint)
    assert not CALLS.search(shown.replace("strictq check QUEUE", "")), shown


@pytest.mark.parametrize("hint", sorted(set(hints())))
def test_no_hint_of_an_error_names_a_call(hint: str) -> None:
    assert hint in NO_COMMAND or not CALLS.search(BY_HINT.get(hint, hint)), hint


def test_what_is_said_instead_is_said_instead_of_something() -> None:
    there = set(hints())
    assert set(BY_HINT) - there == set()
    assert NO_COMMAND - there == set()
    assert all(CALLS.search(hint) or BY_HINT[hint].count("--") for hint in BY_HINT)


def test_the_command_that_a_hint_names_is_there() -> None:
    from strictq.cli import COMMANDS

    for text in [*BY_CLASS.values(), *BY_HINT.values()]:
        for name in re.findall(r"strictq ([a-z-]+)", text):
            assert name in COMMANDS, text


def test_a_hint_is_the_class_s_or_its_own() -> None:
    assert hint_of(strictq.QueueFull("full")) == BY_CLASS[strictq.QueueFull]
    assert hint_of(strictq.QueueFull("full", hint="wait")) == "wait"
    assert hint_of(strictq.InvalidArgument("no", hint="to look only, use read_only=True")).startswith("this command writes")


def test_of_several_failures_the_reasons_are_told() -> None:
    full = strictq.StoreFull("the disk is full", shard=1)
    error = strictq.PartialFailure("3 of 4 failed", [None, full, full, strictq.StoreBusy("locked", shard=2)])
    text, _, hint = explained(error)
    assert text == "3 of 4 failed; shard 1: the disk is full; shard 2: locked"
    assert "results" not in hint
