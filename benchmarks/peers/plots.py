"""Plots of throughput over batch size, keys and backlog, from one run's figures. Imported late, with matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from . import notes
from .bare import BARE
from .contest import OURS
from .table import fullest, points

PLOTS: Final = {"batch": "messages in a batch", "keys": "keys", "backlog": "messages waiting"}
COLOURS: Final = {
    "strictq": "#b3261e",
    "litequeue": "#1f77b4",
    "persist-queue": "#2ca02c",
    "huey": "#9467bd",
    "diskcache": "#8c564b",
    "redis": "#7f7f7f",
    BARE: "#bdbdbd",
}


def draw(result: dict[str, Any], directory: Path) -> Iterator[Path]:
    """Draw a plot for each pattern that varies a size. Yield the files."""
    for case, label in PLOTS.items():
        for durability in ("process", "full"):
            lines = rates(result, case, durability)
            if any(len(line) > 1 for line in lines.values()):
                file = directory / f"peers-{case}{'' if durability == 'process' else '-full'}.svg"
                _plot(result, lines, label, durability, file)
                yield file


def rates(result: dict[str, Any], case: str, durability: str) -> dict[str, dict[int, float]]:
    """Return rates by size, for each queue. A backlog that was not filled in time counts with its actual size."""
    lines: dict[str, dict[int, float]] = {}
    for point, by_peer in points(result).items():
        if (point[0], point[2]) == (case, durability):
            ours = fullest(by_peer)
            lines.setdefault(OURS, {})[notes.waited(ours, OURS)] = ours["ours"]
            for name, figure in by_peer.items():
                lines.setdefault(name, {})[notes.waited(figure, name)] = figure["base"]
    return lines


def _plot(result: dict[str, Any], lines: dict[str, dict[int, float]], label: str, durability: str, file: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, and the same figures give an identical file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "strictq", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for name, line in lines.items():
            sizes = sorted(line)
            width = 2.2 if name == OURS else 1.2
            axes.plot(sizes, [line[s] for s in sizes], marker="o", markersize=3, linewidth=width, label=name, color=COLOURS[name])
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="messages per second, whole life")
        versions = result["versions"]
        axes.set_title(
            f"durability {durability!r}, {result['form']} form, {versions['cores']} cores, load {versions['load']}",
            fontsize=8,
            loc="left",
        )
        axes.grid(visible=True, which="major", linewidth=0.3)
        figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=4)
        figure.savefig(file, metadata={"Date": None})
