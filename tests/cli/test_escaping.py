"""What can't be printed reaches no terminal: escaped in JSON, where a parser gets the same value, and replaced elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.cli._words import encoded
from tests.support.command import in_process, strictq_command

NASTY = "".join(map(chr, [
    0x07, 0x1B, 0x7F, *range(0x80, 0xA0), 0xAD, 0x61C, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2028,
    0x2029, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF, 0xFFF9, 0xE0001, 0xE0041,
]))  # fmt: skip
FINE = 'plain äöü 日本語 🦀 "quoted" \\ back'
KEY = f"k{NASTY}"


def run(*words: object, lines: str = "") -> str:
    """What a command prints; its errors are fine, too."""
    done = in_process(*words, input=lines)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return printed(done.stdout, done.stderr)


def printed(out: str, errors: str) -> str:
    assert all(c.isprintable() or c == "\n" for c in errors), ascii(errors)
    return out


@pytest.mark.parametrize("value", [NASTY, "lone \udc9b", FINE, {NASTY: [NASTY, 1.5, None]}, "\N{ZERO WIDTH JOINER}🦀"], ids=ascii)
@pytest.mark.parametrize("plain", [False, True])
def test_a_parser_gets_the_same_value(value: Any, plain: bool) -> None:
    line = encoded(value, plain=plain)
    assert json.loads(line) == value
    assert line.isprintable()
    assert line.isascii() or not plain


def test_what_can_be_printed_stays_as_it_is() -> None:
    assert encoded(FINE) == json.dumps(FINE, ensure_ascii=False)


@pytest.fixture
def hostile(path: Path) -> Path:
    """A queue with what may steer a terminal in every place that commands show."""
    with strictq.open(path, create=False) as q:
        q.app_schema("CREATE TABLE app_t (x)")
        q.configure(history="bodies", output_seconds=60.0)
        for _ in range(4):
            q.send(NASTY.encode(), KEY, headers={NASTY: NASTY})
        q.receive(1, consumer=f"c{NASTY}")[0].reject(NASTY)
        d = q.receive(1)[0]
        d.nack(reason=NASTY)
        with q.transaction(key=KEY) as tx:
            tx.execute("INSERT INTO app_t VALUES (?)", (NASTY,))
        q.receive(1)[0].ack(output=NASTY)
        q.hold(KEY, NASTY)
    return path


def commands(path: Path) -> dict[str, list[object]]:
    key = ["--key-type", "hex", KEY.encode().hex()]
    return {
        "stats": ["stats", path],
        "top-keys": ["top-keys", path],
        "dead": ["dead", path],
        "history": ["history", path],
        "query": ["query", path, f'SELECT x AS "{NASTY.replace(chr(0), "")}" FROM app_t'],
        "check": ["check", path],
        "config": ["config", path],
        "peek": ["peek", path, KEY],
        "status": ["status", path, KEY, "1"],
        "output": ["output", path, KEY, "2"],
        "explain": ["explain", path, KEY],
        "redrive": ["redrive", path, KEY],
        "release": ["release", path, KEY],
        "nothing": ["peek", path, *key],
    }


@pytest.mark.parametrize("name", list(commands(Path())))
@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])
def test_no_command_prints_it_raw(hostile: Path, name: str, as_json: bool) -> None:
    out = run(*commands(hostile)[name], *(["--json"] if as_json else []))
    assert name == "nothing" or out
    odd = {c for c in out if not c.isprintable()} - {"\n"}
    assert not odd, ascii(odd)
    if as_json:
        for line in out.splitlines():
            json.loads(line)


@pytest.mark.slow
def test_a_process_of_its_own_prints_the_same(hostile: Path) -> None:
    for name in ("explain", "dead"):
        words = list(map(str, commands(hostile)[name]))
        _, out, errors = strictq_command(hostile, *words, "--json")
        assert printed(out, errors) == run(*words, "--json")


def test_receive_prints_the_same_value(path: Path) -> None:
    with strictq.open(path, create=False) as q:
        q.send(NASTY.encode(), KEY, headers={"h": NASTY})
        q.send(FINE.encode(), "fine")
    lines = run("receive", path, "--drain").splitlines()
    assert all(line.isprintable() for line in lines)
    found = {row["key"]: row for row in map(json.loads, lines)}
    assert (found[KEY]["body"], found[KEY]["headers"]) == (NASTY, {"h": NASTY})
    assert found["fine"]["body"] == FINE


def test_the_json_of_send_is_escaped(path: Path) -> None:
    out = run("send", path, "--key", KEY, "--json", lines="one\n")
    assert out.strip().isprintable()
