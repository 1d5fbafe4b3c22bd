"""Pictures of the innocent tenants' waits over time, one for each trouble. matplotlib is imported late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .scenarios import TROUBLES

COLOURS: Final = ("#9e9e9e", "#b3261e", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b")
"""Of the measures, in their order: grey is the quiet run, red is without a measure."""


def draw(result: dict[str, Any], directory: Path) -> Iterator[Path]:
    """Draw a picture for each trouble. Yield the files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    versions = result["versions"]
    for trouble, found in result["figures"].items():
        # Text stays text, and the same figures give an identical file.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "strictq", "font.size": 9}):
            figure = Figure(figsize=(6.4, 3.8), layout="constrained")
            axes = figure.add_subplot()
            for colour, (measure, one) in zip(COLOURS, found.items(), strict=False):
                at = [point["at"] for point in one["series"]]
                label = TROUBLES[trouble].measures[measure].what
                axes.plot(at, [1000 * point["p99"] for point in one["series"]], linewidth=1.8, color=colour, label=label)
                axes.plot(at, [1000 * point["p50"] for point in one["series"]], linewidth=0.9, color=colour, linestyle=":")
            axes.set(yscale="log", xlabel="seconds, time of the send", ylabel="ms from send to start")
            axes.set_title(
                f"other tenants: p99 (solid), p50 (dotted); {versions['cores']} cores, load {versions['load']}",
                fontsize=8,
                loc="left",
            )
            axes.grid(visible=True, which="major", linewidth=0.3)
            figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
            file = directory / f"overload-{trouble}.svg"
            figure.savefig(file, metadata={"Date": None})
        yield file
