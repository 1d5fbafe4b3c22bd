"""A worker's events as a picture: text for a terminal, SVG for a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from html import escape
from typing import Any, Final

import attrs

from .._values.findings import WorkerEvent

PIXELS: Final = 760
LANE_PIXELS: Final = 44
BAR_PIXELS: Final = 16
LEFT_PIXELS: Final = 112
LEGEND_PIXELS: Final = 22
DIGIT_PIXELS: Final = 7
PREPARE, PROCESS = "prepare", "process"
FILLS: Final = {PREPARE: "#9ecae1", PROCESS: "#2c7fb8"}


def label(key: Any, characters_max: int = 24) -> str:
    """Return a key as printable text of limited length."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(key))
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


@attrs.frozen
class Bar:
    """The run of one handler: stage, message, and start and end in seconds from the first event."""

    stage: str
    key: Any
    seq: int
    start: float
    end: float


class Timeline:
    """Collect a worker's events: `Worker(..., on_event=timeline)`. Draw it when the worker is done."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self._begun: dict[tuple[str, Any, int], float] = {}
        self._zero: float | None = None

    def __call__(self, event: WorkerEvent) -> None:
        """Add an event. Safe in any thread, because each update is one step."""
        if self._zero is None:
            self._zero = event.at
        at = event.at - self._zero
        if event.kind in ("preparing", "processing"):
            stage = PREPARE if event.kind == "preparing" else PROCESS
            self._begun[stage, event.key, event.seq] = at
        elif event.kind in ("prepared", "acked", "retried", "deferred", "poison", "rejected"):
            stage = PREPARE if event.kind == "prepared" else PROCESS
            start = self._begun.pop((stage, event.key, event.seq), None)
            if start is not None:
                # The event of an ack may come some time after the handler returned.
                end = at if event.seconds is None else start + event.seconds
                self.bars.append(Bar(stage, event.key, event.seq, start, end))

    @property
    def seconds(self) -> float:
        """The whole duration, seconds."""
        return max((bar.end for bar in self.bars), default=0.0)

    @property
    def keys(self) -> list[Any]:
        """The keys, in the order in which they began."""
        return list(dict.fromkeys(bar.key for bar in sorted(self.bars, key=lambda b: b.start)))

    def part(self, keys_max: int, bars_max: int) -> Timeline:
        """Return the readable part: the first keys, and of these the beginning, up to about this many bars side by side."""
        keys = set(self.keys[:keys_max])
        bars = [bar for bar in self.bars if bar.key in keys]
        works = [bar.end - bar.start for bar in bars if bar.stage == PROCESS]
        until = bars_max * statistics.fmean(works) if works else 0.0
        shown = Timeline()
        shown.bars = [attrs.evolve(bar, end=min(bar.end, until)) for bar in bars if bar.start < until]
        return shown

    def to_text(self, columns: int = 80) -> str:
        """Return two lines per key: prepare above, `·` and `:` alternating, process below, `█` and `▓`."""
        keys = self.keys
        width = max((len(label(key)) for key in keys), default=0)
        room = max(10, columns - width - 2)
        scale = room / (self.seconds or 1.0)
        rows = []
        for key in keys:
            for stage, marks, name in ((PREPARE, ":·", label(key)), (PROCESS, "▓█", "")):
                cells = [" "] * room
                for bar in self.bars:
                    if (bar.key, bar.stage) == (key, stage):
                        first = round(bar.start * scale)
                        last = max(round(bar.end * scale), first + 1)
                        cells[first:last] = marks[bar.seq % 2] * (min(last, room) - first)
                rows.append(f"{name:>{width}}  {''.join(cells)}".rstrip())
        return "\n".join(rows)

    def to_svg(self) -> str:
        """Return an SVG document, readable on light and dark pages."""
        keys = self.keys
        height = LANE_PIXELS * len(keys) + 34 + LEGEND_PIXELS
        scale = (PIXELS - LEFT_PIXELS - 10) / (self.seconds or 1.0)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PIXELS} {height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{PIXELS}" height="{height}" fill="#ffffff"/>',
        ]
        for n, (stage, fill) in enumerate(FILLS.items()):
            x = LEFT_PIXELS + 90 * n
            parts.append(f'<rect x="{x}" y="5" width="12" height="12" fill="{fill}"/>')
            parts.append(f'<text x="{x + 17}" y="15" fill="#222222">{stage}</text>')
        for row, key in enumerate(keys):
            top = row * LANE_PIXELS + 4 + LEGEND_PIXELS
            parts.append(f'<text x="6" y="{top + 22}" fill="#222222">key {escape(label(key, 12))}</text>')
            parts += [self._rect(bar, top, scale) for bar in self.bars if bar.key == key]
        parts += self._axis(height, scale)
        return "\n".join([*parts, "</svg>", ""])

    @staticmethod
    def _rect(bar: Bar, top: int, scale: float) -> str:
        y, fill = (top if bar.stage == PREPARE else top + BAR_PIXELS + 2), FILLS[bar.stage]
        x, width = LEFT_PIXELS + bar.start * scale, max(1.0, (bar.end - bar.start) * scale)
        ink = "#08306b" if bar.stage == PREPARE else "#ffffff"
        rect = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_PIXELS}" fill="{fill}" stroke="#ffffff"/>'
        number = str(bar.seq)
        fits = width >= DIGIT_PIXELS * len(number) + 4
        return rect + (f'<text x="{x + 3:.1f}" y="{y + 12}" fill="{ink}">{number}</text>' if fits else "")

    def _axis(self, height: int, scale: float) -> Iterable[str]:
        step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60, 600, 1e9) if self.seconds / s <= 12)
        for n in range(int(self.seconds / step) + 1):
            x = LEFT_PIXELS + n * step * scale
            yield f'<text x="{x:.1f}" y="{height - 6}" fill="#666666">{n * step:g} s</text>'
