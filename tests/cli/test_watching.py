"""The screen of `strictq stats --watch`, drawn at several widths."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import attrs
import pytest
from rich.cells import cell_len
from rich.console import Console

import strictq
from strictq import Message, WorkerLoad
from strictq.cli._watching import PLAIN_SPARKS, SPARKS, TRAIL_MAX, Watch

RATES = {"sends": 100.0, "acks": 50.0, "retries": 0.0}


@pytest.fixture
def q() -> Iterator[strictq.Queue]:
    with strictq.open(":memory:", shards=2) as opened:
        yield opened


def screen(watch: Watch, found: strictq.Stats, top: Any, width: int) -> list[str]:
    """The lines that a terminal so wide shows."""
    out = StringIO()
    Console(width=width, file=out, no_color=True).print(watch.shown(found, top, ["further"], width))
    return out.getvalue().splitlines()


def line_of(lines: list[str], name: str) -> str:
    (found,) = [line for line in lines if line.split("│")[1:2] and line.split("│")[1].split()[:1] == [name]]
    return found


@pytest.mark.parametrize("width", [30, 40, 80, 99, 100, 200])
def test_it_fits(q: strictq.Queue, width: int) -> None:
    q.send_many([Message(b"", key=f"customer number {n} with a long name 客" * 3) for n in range(8)])
    q.hold(f"customer number {1} with a long name 客" * 3)
    load = WorkerLoad("a host with a very long name indeed:81234", 1.0, 10_000, 9_999, 1.0)
    found = attrs.evolve(q.stats(), workers=(load,) * 9, busy_ratio=1.0)
    watch = Watch("a queue with a long path/" * 10)
    for _ in range(TRAIL_MAX + 10):
        watch.take(found, dict.fromkeys(RATES, 1000000000.0))
    lines = screen(watch, found, q.top_keys(6), width)
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].strip() == "further"
    assert any("3 workers more" in line for line in lines)


def test_a_line_that_is_higher_is_more(q: strictq.Queue) -> None:
    watch = Watch("t")
    for n in range(8):
        watch.take(q.stats(), {**RATES, "sends": 100.0 * n / 7})
    lines = screen(watch, q.stats(), [], 80)
    assert SPARKS in line_of(lines, "sends")
    half = SPARKS[round(7 * 0.5)]
    assert half * 8 in line_of(lines, "acks"), "all rates have one scale"
    assert SPARKS[0] * 8 in line_of(lines, "retries")
    assert line_of(lines, "sends").rstrip("│ ").endswith("100.0 /s")


def test_the_depth_is_shown_by_state(q: strictq.Queue) -> None:
    q.send_many([Message(b"", key=n % 10) for n in range(100)])
    q.receive(30, per_key=10)
    q.hold(9)
    watch = Watch("t")
    watch.take(q.stats(), RATES)
    lines = screen(watch, q.stats(), q.top_keys(3), 80)
    assert any("ready 60  in flight 30  delayed 0  held 10  dead 0" in line for line in lines)
    assert "100 │" in line_of(lines, "depth")
    for key in q.top_keys(3):
        bar = line_of(lines, str(key.key))
        assert "█" in bar
        assert " 10 " in bar


def test_nothing_at_all(q: strictq.Queue) -> None:
    watch = Watch("t")
    text = "\n".join(screen(watch, q.stats(), [], 100))
    assert "no key has messages" in text
    assert "no worker reports" in text
    watch.take(q.stats(), {})
    assert "0.0 /s" in "\n".join(screen(watch, q.stats(), None, 100))


def test_too_many_keys_are_not_looked_at(q: strictq.Queue) -> None:
    assert "see strictq top-keys" in "\n".join(screen(Watch("t"), q.stats(), None, 100))


def test_keys_cannot_steer_the_terminal(q: strictq.Queue) -> None:
    q.send(b"", "\x1b[2J\nno [bold]markup[/bold]")
    found = attrs.evolve(q.stats(), workers=(WorkerLoad("\x1b[2Jme", 1.0, 2, 1, 0.5),), busy_ratio=0.5)
    text = "\n".join(screen(Watch("t"), found, q.top_keys(3), 120))
    assert "\x1b" not in text
    assert "[bold]markup" in text


def test_an_ascii_terminal_gets_ascii(q: strictq.Queue) -> None:
    watch = Watch("t", plain=True)
    for n in range(8):
        watch.take(q.stats(), {**RATES, "sends": 100.0 * n / 7})
    q.send(b"", "k")
    lines = screen(watch, q.stats(), q.top_keys(3), 80)
    assert PLAIN_SPARKS in line_of(lines, "sends")
    assert not set(SPARKS + "░") & set("".join(lines))
