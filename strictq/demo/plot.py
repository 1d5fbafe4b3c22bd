"""A worker's timeline as a picture file. matplotlib is imported only to draw a PNG."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Final

from strictq import InvalidArgument
from strictq.worker.timeline import PREPARE, Timeline, label

KEYS_MAX: Final = 12
BARS_MAX: Final = 60
"""Number of bars side by side that can be distinguished."""
COLOURS: Final = {"prepare": ("#9ecae1", "#c6dbef"), "process": ("#2c7fb8", "#6baed6")}
ROW_INCHES, WIDTH_INCHES, DPI = 0.55, 10.0, 120


def require(path: Path) -> None:
    """Check, before anything runs, that a picture can be drawn and written.

    Raises:
        InvalidArgument: it cannot; nothing was changed.
    """
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg"):
        raise InvalidArgument(f"{path}: a picture is a .png or a .svg file")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidArgument(f"{path}: {'it is a directory' if path.is_dir() else f'{path.parent} is not a directory'}")
    if suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgument('a PNG needs matplotlib: pip install "strictq[plot]"; a .svg needs nothing')


def draw(timeline: Timeline, path: Path) -> None:
    """Write the picture atomically.

    Raises:
        InvalidArgument: the file can't be written.
    """
    part = timeline.part(KEYS_MAX, BARS_MAX)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as place:
            picture = Path(place) / path.name
            if path.suffix.lower() == ".svg":
                picture.write_text(part.to_svg(), encoding="utf-8")
            else:
                _png(part, picture)
            os.replace(picture, path)
    except OSError as e:
        raise InvalidArgument(f"{path}: {e.strerror or e}") from None


def _png(timeline: Timeline, path: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot, which would look for a display
    from matplotlib.legend_handler import HandlerTuple
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
    # Adjacent bars alternate between two shades of a colour, so the legend shows both.
    handles = [tuple(Patch(color=shade) for shade in shades) for shades in COLOURS.values()]
    axes.legend(
        handles, [f"{stage}, a message each" for stage in COLOURS], handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
        loc="upper right", bbox_to_anchor=(1.0, 1.16), ncols=2, frameon=False,
    )  # fmt: skip
    figure.savefig(path, format="png")
