"""A key that is meant as another type than it has: every command that takes one says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strictq
from tests.support.command import in_process

COMMANDS: dict[str, tuple[list[object], list[object]]] = {
    "explain": ([], []),
    "peek": ([], []),
    "status": ([1], []),
    "dead": ([], []),
    "redrive": ([], []),
    "hold": ([], []),
    "release": ([], []),
    "reject": ([1], ["--reason", "why"]),
    "resolve": ([1], []),
    "purge": ([], []),
    "history purge": ([], []),
}
"""What each is given after the key, and which options."""


@pytest.fixture
def numbers(path: Path) -> Path:
    """A queue whose keys are 42 and b"raw"."""
    with strictq.open(path, create=False) as q:
        q.send(b"", key=42)
        q.send(b"", key=b"raw")
        q.send(b"", key="both")
        q.send(b"", key=b"both")
    return path


def run(name: str, path: Path, key: object, *options: object) -> tuple[str, str]:
    rest, given = COMMANDS[name]
    result = in_process(*name.split(), path, *given, *options, key, *rest)
    return result.stdout, result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_of_another_type_is_named(numbers: Path, name: str) -> None:
    _, err = run(name, numbers, 42)
    assert 'nothing was ever sent to the str key "42"; there is a key int 42\n  hint: use --key-type int\n' in err


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("key", "options"), [(42, ["--key-type", "int"]), ("both", []), ("never", []), ("rä", [])])
def test_nothing_is_said_where_the_key_is_there_or_none_is(numbers: Path, name: str, key: Any, options: list[object]) -> None:
    _, err = run(name, numbers, key, *options)
    assert "--key-type" not in err


@pytest.mark.parametrize(
    ("key", "kind", "said"),
    [
        ("raw", "str", "there is a key bytes hex:726177\n  hint: use --key-type bytes"),
        ("both", "int", None),
        ("ff", "hex", None),
    ],
)
def test_types_are_tried_in_both_directions(numbers: Path, key: str, kind: str, said: str | None) -> None:
    _, err = run("peek", numbers, key, "--key-type", kind)
    assert (said is not None and said in err) or (said is None and "hint: use" not in err)


def test_a_number_given_for_a_text_is_found(path: Path) -> None:
    with strictq.open(path, create=False) as q:
        q.send(b"", key="007")
        q.send(b"", key="7")
    _, err = run("peek", path, "7", "--key-type", "int")
    assert 'there is a key str "7"\n  hint: use --key-type str' in err
