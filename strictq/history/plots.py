"""Plots of an export, and of the rows of your own queries over one. Needs pyarrow and matplotlib.

```python
from strictq.history import plots

plots.save_plots("orders-history", "pictures")
```

The other functions each take rows and return a matplotlib Figure. The rows are mappings, or a Spark DataFrame, which is collected
here. Nothing is shown on a screen, and no global state of matplotlib is changed. Times are UTC. Importing this module imports
matplotlib, and raises MissingExtra if it is not installed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from .._client import validate
from .._platform.extras import need
from .._values import hints
from .._values.errors import InvalidArgument

need("matplotlib", "plot")

from matplotlib import dates as _dates  # noqa: E402 - after the check that it is installed
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: E402

__all__ = ["plot_ages", "plot_durations", "plot_outcomes", "plot_throughput", "save_plots"]

dates: Any = _dates  # it has no types
Axes = Any  # its types do not support times
Rows = Iterable[Any]  # mappings, or a DataFrame of Spark

POINTS_MAX: Final = 200_000
SIZE_INCHES: Final = (9.0, 4.5)
SHADES: Final = ("#8fb8de", "#3f7fbf", "#12406e", "#061d38")
"""Colours of percentiles: higher ones are darker, the maximum is the darkest."""
COLORS: Final = {
    "acked": "#3f7fbf", "rejected": "#e69f00", "poison": "#c0392b", "expired": "#8e6bb0", "dropped": "#6b4c2f",
    "purged": "#8a8a8a", "retries": "#12406e", "prepare": "#d98b2b", "process": "#3f7fbf",
}  # fmt: skip
INK: Final = "#333333"
GRID: Final = "#dddddd"
COARSE: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 86_400.0, 864_000.0, 8_640_000.0)
FINE: Final = (
    *(base * step for base in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0) for step in (1.0, 2.0, 5.0)),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 18_000.0, 36_000.0),
    *(base * step for base in (86_400.0, 864_000.0) for step in (1.0, 2.0, 5.0)),
)
"""Marks of a time axis, seconds."""
STAGES: Final = ("prepare", "process")


def plot_ages(rows: Rows, title: str = "Age of messages when they ended", *, window_seconds: float | None = None) -> Figure:
    """Plot percentiles of ages over time, on a logarithmic scale.

    Windows without messages are gaps.

    Args:
        rows: window_start, and a column for each percentile: p50_seconds, p99_9_seconds …, in seconds.
        window_seconds: length of the windows, seconds; None: the shortest distance of two rows, or 1 hour if there are fewer.
    Raises:
        InvalidArgument: a column is missing, or there are too many rows.
    """
    found = _collected(rows, "window_start")
    names = [name for name in (found[0] if found else {}) if re.fullmatch(r"p[\d_]+_seconds", name)]
    figure, (axes,) = _figure(title)
    width = _width(found, window_seconds)
    for n, name in enumerate(sorted(names, key=_percentile)):
        shade = SHADES[min(n, len(SHADES) - 1)]
        label = f"p{_percentile(name):g}"
        for run, part in enumerate(_unbroken(found, width)):
            at = [row["window_start"] + width / 2 for row in part]
            values = [row[name] for row in part]
            axes.plot(at, values, color=shade, lw=2, marker="o", ms=4, label=label if run == 0 else None)
    _logarithmic(axes, [row[name] for row in found for name in names if row[name] > 0])
    _time_axis(axes, found, width)
    _legend(figure, axes)
    return figure


def plot_throughput(rows: Rows, title: str = "Messages that ended", *, window_seconds: float | None = None) -> Figure:
    """Plot messages per second over time.

    Args:
        rows: window_start and messages_per_second, one row per window, without gaps.
        window_seconds: as for `plot_ages`.
    Raises:
        InvalidArgument: a column is missing, or there are too many rows.
    """
    found = _collected(rows, "window_start", "messages_per_second")
    figure, (axes,) = _figure(title)
    width = _width(found, window_seconds)
    at, values = _steps(found, "messages_per_second", width)
    axes.fill_between(at, values, step="post", color=COLORS["acked"], alpha=0.25, lw=0)
    axes.step(at, values, where="post", color=COLORS["acked"], lw=1.5)
    axes.set_ylabel("a second", color=INK)
    axes.set_ylim(bottom=0.0)
    _time_axis(axes, found, width)
    return figure


def plot_outcomes(rows: Rows, title: str = "How messages ended", *, window_seconds: float | None = None) -> Figure:
    """Plot the share of messages that were not acked, by outcome, and below it the retries per message.

    Args:
        rows: window_start, messages, rejected, poison, expired, dropped, purged and retries, one row per window, without gaps.
        window_seconds: as for `plot_ages`.
    Raises:
        InvalidArgument: a column is missing, or there are too many rows.
    """
    bad = ("rejected", "poison", "expired", "dropped", "purged")
    found = _collected(rows, "window_start", "messages", *bad, "retries")
    figure, (above, below) = _figure(title, rows=2)
    width = _width(found, window_seconds)
    present = [name for name in bad if any(row[name] for row in found)]
    floor = [0.0] * (len(found) + 1)
    for name in present:
        at, values = _steps([{**row, name: row[name] / (row["messages"] or 1)} for row in found], name, width)
        top = [a + b for a, b in zip(floor, values, strict=False)]
        above.fill_between(at, floor[: len(at)], top, step="post", color=COLORS[name], lw=0, label=name)
        floor = top
    above.set_ylabel("not acked", color=INK)
    above.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100.0 * value:g} %"))
    at, values = _steps(
        [{**row, "ratio": row["retries"] / row["messages"] if row["messages"] else math.nan} for row in found], "ratio", width
    )
    below.step(at, values, where="post", color=COLORS["retries"], lw=1.5)
    below.set_ylabel("retries a message", color=INK)
    for axes in (above, below):
        axes.set_ylim(bottom=0.0)
        _time_axis(axes, found, width)
    if found and not present:
        above.set_ylim(0.0, 0.01)
    _legend(figure, above)
    return figure


def plot_durations(samples: Rows, models: Rows, title: str = "Duration and size") -> Figure:
    """Plot durations of handlers by size as points, with a fitted line, per stage.

    Args:
        samples: stage ("prepare" or "process"), size and seconds of each point.
        models: stage, slope, intercept_seconds, and samples, the number of durations that the line is fitted to.
    Raises:
        InvalidArgument: a column is missing, or there are too many rows.
    """
    points = _collected(samples, "stage", "size", "seconds")
    lines = {row["stage"]: row for row in _collected(models, "stage", "slope", "intercept_seconds", "samples")}
    stages = [stage for stage in STAGES if stage in lines or any(row["stage"] == stage for row in points)] or ["process"]
    figure, panels = _figure(title, columns=len(stages))
    for axes, stage in zip(panels, stages, strict=True):
        sizes = [row["size"] for row in points if row["stage"] == stage]
        seconds = [row["seconds"] for row in points if row["stage"] == stage]
        axes.scatter(sizes, seconds, s=9, color=COLORS[stage], alpha=0.35, lw=0)
        axes.set_title(stage, loc="left", fontsize=10, color=INK)
        if stage in lines:
            model = lines[stage]
            ends = [min(sizes, default=0.0), max(sizes, default=1.0)]
            fitted = [max(0.0, model["intercept_seconds"] + model["slope"] * size) for size in ends]
            label = f"{duration(model['intercept_seconds'])} + {duration(model['slope'])} × size, of {model['samples']:,}"
            axes.plot(ends, fitted, color=INK, lw=2, label=label)
            axes.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=INK)
        axes.set_xlabel("size_hint, or bytes", color=INK)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
        axes.set_ylim(bottom=0.0)
    return figure


def save_plots(out: str | os.PathLike[str], directory: str | os.PathLike[str], window_seconds: float = 3600.0) -> list[Path]:
    """Save all plots of an export as PNG files: ages, first-attempt ages, throughput, outcomes and,
    if a worker measured any, durations.

    Args:
        out: the directory of the export.
        directory: the directory of the plots, created if it is missing. Must not be the export's.
        window_seconds: length of the windows, seconds.
    Returns:
        The files. Existing ones with the same names are replaced.
    Raises:
        InvalidArgument: `directory` is the export's, there are too many windows, or an argument is invalid.
        ExportError: the export cannot be read.
        MissingExtra: pyarrow is not installed.
    """
    need("pyarrow", "plot")
    import pyarrow.compute as pc

    from ._summaries import Export

    place = Path(directory)
    if place.resolve() == Path(out).resolve():
        raise InvalidArgument("pictures in the export's directory would stop the next export", hint=hints.ANOTHER_DIRECTORY)
    export = Export(out, validate.microseconds("window_seconds", window_seconds, minimum=0.001))
    windows: dict[str, Any] = {"window_seconds": window_seconds}
    outcomes = export.outcomes()
    samples, models = export.durations()
    figures = {
        "ages": plot_ages(export.ages("done_at", pc.field("outcome") == "acked"), "Age of messages when acked", **windows),
        "first-attempt-ages": plot_ages(
            export.ages("first_attempt_at", pc.field("first_attempt_at").is_valid()),
            "Age of messages at their first attempt",
            **windows,
        ),
        "throughput": plot_throughput(outcomes, **windows),
        "outcomes": plot_outcomes(outcomes, **windows),
    }
    if models:
        figures["durations"] = plot_durations(samples, models)
    place.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(place / f"{name}.png", dpi=120)
    return [place / f"{name}.png" for name in figures]


def duration(seconds: float) -> str:
    """Format a duration: 12 µs, 3.5 ms, 40 s, 2 h."""
    size = abs(seconds)
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if size >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs" if size >= 1e-9 else "0"


# ---- helpers


def _collected(rows: Rows, *columns: str) -> list[dict[str, Any]]:
    take: Callable[[int], list[Any]] | None = getattr(rows, "take", None)
    given: Any = rows if take is None else take(POINTS_MAX + 1)
    found = [row if isinstance(row, Mapping) else row.asDict() for row in given]
    if len(found) > POINTS_MAX:
        raise InvalidArgument(f"a picture can show at most {POINTS_MAX:,} rows", hint=hints.LONGER_WINDOWS)
    for name in columns:
        if any(name not in row for row in found):
            raise InvalidArgument(f"the rows have no column {name}")
    # Spark returns local times without a zone.
    return [{**row, "window_start": row["window_start"].astimezone(UTC)} if "window_start" in row else dict(row) for row in found]


def _width(rows: list[dict[str, Any]], seconds: float | None) -> timedelta:
    """Return the length of a window, derived from the rows if it is not given."""
    if seconds is not None:
        return timedelta(seconds=seconds)
    starts = sorted(row["window_start"] for row in rows)
    return min((b - a for a, b in pairwise(starts)), default=timedelta(hours=1))


def _unbroken(rows: list[dict[str, Any]], width: timedelta) -> list[list[dict[str, Any]]]:
    runs: list[list[dict[str, Any]]] = []
    for row in rows:
        if runs and row["window_start"] - runs[-1][-1]["window_start"] <= width:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _steps(rows: list[dict[str, Any]], name: str, width: timedelta) -> tuple[list[datetime], list[float]]:
    """Return the corners of a step line. The last step has its full width, too."""
    at = [row["window_start"] for row in rows]
    values = [float(row[name]) for row in rows]
    return [*at, at[-1] + width] if at else [], [*values, values[-1]] if values else []


def _percentile(name: str) -> float:
    return float(name.removeprefix("p").removesuffix("_seconds").replace("_", "."))


def _figure(title: str, *, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, sharex=rows > 1).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GRID)
        axes.tick_params(colors=INK, labelsize=9)
        axes.grid(axis="y", color=GRID, lw=0.8)
        axes.set_axisbelow(True)
    return figure, panels


def _logarithmic(axes: Axes, values: list[float]) -> None:
    """Set a logarithmic scale of durations with familiar marks."""
    if not values:
        return
    low, high = min(values) / 1.5, max(values) * 1.5
    marks = [mark for mark in COARSE if low <= mark <= high]
    if len(marks) < 3:
        marks = [mark for mark in FINE if low <= mark <= high]
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(marks or [values[0]]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _time_axis(axes: Axes, rows: list[dict[str, Any]], width: timedelta) -> None:
    if not rows:
        axes.text(0.5, 0.5, "no messages", transform=axes.transAxes, ha="center", va="center", color=INK)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    locator = dates.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(rows[0]["window_start"], rows[-1]["window_start"] + width)
    if axes.get_subplotspec().is_last_row():
        axes.set_xlabel("UTC", color=INK, fontsize=9)


def _legend(figure: Figure, axes: Axes) -> None:
    """Add the legend beside the title, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9, labelcolor=INK)
