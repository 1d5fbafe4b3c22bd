"""A worker's timeline as a picture file. matplotlib, which only a PNG needs, is imported when one is drawn."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from strictq.worker.timeline import PREPARE, Timeline, label

EXTRA: Final = "plot"
SUFFIXES: Final = (".png", ".svg")
KEYS_MAX: Final = 12
BARS_MAX: Final = 60
"""Bars side by side that can be told apart."""
COLOURS: Final = {"prepare": ("#9ecae1", "#c6dbef"), "process": ("#2c7fb8", "#6baed6")}
ROW_INCHES, WIDTH_INCHES, DPI = 0.55, 10.0, 120


class CannotDraw(Exception):
    """The picture can't be drawn; the message says what to do."""


def require(path: Path) -> None:
    """See, before anything runs, that a picture can be drawn and has a place.

    Raises:
        CannotDraw: nothing happened.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise CannotDraw(f"{path}: a picture is a .png or a .svg file")
    if path.is_dir() or not path.parent.is_dir():
        raise CannotDraw(f"{path}: {'it is a directory' if path.is_dir() else f'{path.parent} is not a directory'}")
    if path.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise CannotDraw('a PNG needs matplotlib: pip install "strictq[plot]"; a .svg needs nothing')


def draw(timeline: Timeline, path: Path) -> None:
    """Write the picture, whole or not at all.

    Raises:
        CannotDraw: the file can't be written.
    """
    part = timeline.part(KEYS_MAX, BARS_MAX)
    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        if path.suffix.lower() == ".svg":
            Path(name).write_text(part.to_svg(), encoding="utf-8")
        else:
            _png(part, Path(name))
        os.replace(name, path)
    except OSError as e:
        raise CannotDraw(f"{path}: {e.strerror or e}") from None
    finally:
        if name:
            with suppress(OSError):
                os.unlink(name)


def _png(timeline: Timeline, path: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot, which would look for a screen
    from matplotlib.patches import Patch

    keys = timeline.keys
    figure = Figure(figsize=(WIDTH_INCHES, 1.0 + ROW_INCHES * max(1, len(keys))), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for bar in timeline.bars:
        y = keys.index(bar.key) + (0.22 if bar.stage != PREPARE else -0.22)
        axes.barh(y, bar.end - bar.start, left=bar.start, height=0.4, color=COLOURS[bar.stage][bar.seq % 2])
    axes.set_yticks(range(len(keys)), [label(key).replace("$", r"\$") for key in keys])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.legend(
        handles=[Patch(color=shades[0], label=stage) for stage, shades in COLOURS.items()], loc="upper right",
        bbox_to_anchor=(1.0, 1.16), ncols=2, frameon=False,
    )  # fmt: skip
    figure.savefig(path, format="png")
