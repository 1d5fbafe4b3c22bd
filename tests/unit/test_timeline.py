"""The picture of a schedule, from events."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import strictq
from strictq.demo.timeline import Bar, Timeline
from strictq.worker import WorkerEvent

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "pictures" / "schedule.svg"


def event(kind: str, seq: int, at: float, seconds: float | None = None, key: str = "k") -> WorkerEvent:
    return WorkerEvent(kind, key, seq, 1, 1, at, seconds)


def drawn() -> Timeline:
    timeline = Timeline()
    for e in (
        event("leased", 1, 10.0),
        event("preparing", 1, 10.0),
        event("prepared", 1, 10.3, 0.3),
        event("processing", 1, 10.3),
        event("preparing", 2, 12.0),
        event("prepared", 2, 12.3, 0.3),
        event("acked", 1, 12.4, 2.0),
    ):
        timeline(e)
    return timeline


def test_bars_are_from_start_to_end() -> None:
    bars = [(b.stage, b.seq, round(b.start, 3), round(b.end, 3)) for b in drawn().bars]
    assert bars == [("prepare", 1, 0.0, 0.3), ("prepare", 2, 2.0, 2.3), ("process", 1, 0.3, 2.3)]


def test_text() -> None:
    assert drawn().to_text(26).splitlines() == ["k  ···                 :::", "      ████████████████████"]


def test_nothing_to_draw() -> None:
    assert Timeline().to_text() == ""
    ElementTree.fromstring(Timeline().to_svg())


def test_svg_is_well_formed_whatever_the_key() -> None:
    timeline = drawn()
    timeline.bars.append(Bar("process", "<&\"'>", 1, 0.0, 1.0))
    ElementTree.fromstring(timeline.to_svg())


def test_the_picture_in_the_docs_is_one() -> None:
    if PICTURE.exists():
        assert "key A" in PICTURE.read_text(encoding="utf-8")


def test_a_worker_can_be_drawn() -> None:
    timeline = Timeline()
    with strictq.open(":memory:") as q:
        for _ in range(3):
            q.send(b"", key="k")
        strictq.Worker(q, lambda job: None, lambda job: None, on_event=timeline).run(drain=True)
    assert sorted((b.stage, b.seq) for b in timeline.bars) == [(s, n) for s in ("prepare", "process") for n in (1, 2, 3)]


def test_a_part_is_the_beginning_of_the_first_keys() -> None:
    timeline = Timeline()
    timeline.bars = [Bar("process", key, n, 1.0 * n, n + 1.0) for key in "abc" for n in range(10)]
    part = timeline.part(2, 4)
    assert part.keys == ["a", "b"]
    assert part.seconds == 4.0
    assert len(part.bars) == 8
    assert Timeline().part(2, 4).bars == []


def test_keys_can_not_steer_a_terminal_nor_fill_it() -> None:
    timeline = Timeline()
    timeline.bars = [Bar("process", "\x1b[2J\n" + "k" * 100, 1, 0.0, 1.0)]
    text = timeline.to_text(60)
    assert "\x1b" not in text
    assert all(len(line) <= 60 for line in text.splitlines())
    ElementTree.fromstring(timeline.to_svg())


def test_the_legend_of_an_svg_has_all_its_colours() -> None:
    picture = drawn().to_svg()
    root = ElementTree.fromstring(picture)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts[:2] == ["prepare", "process"]
    fills = [element.get("fill") for element in root.iter() if element.tag.endswith("rect")]
    assert set(fills[3:]) <= set(fills[1:3]), "behind the page and the legend: nothing but its colours"


def test_a_number_that_does_not_fit_its_bar_is_left_out() -> None:
    timeline = Timeline()
    timeline.bars = [Bar("process", "k", 11, 0.0, 0.001), Bar("process", "k", 12, 0.001, 1.0)]
    root = ElementTree.fromstring(timeline.to_svg())
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "12" in texts
    assert "11" not in texts
