"""The table, in colour if rich is installed and otherwise as plain text, and the JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from .measure import Figure

COLUMNS_MAX: Final = 99
"""The longest line of the documentation."""
HEADERS: Final = (
    "Case",
    "Figure",
    "Median",
    "Spread",
    "Goal",
    "Met",
    "strictq/s",
    "Against",
    "Its/s",
    "Durability",
    "Batch",
    "Keys",
    "Bytes written\n(its)",
    "Note",
)
LEFT: Final = frozenset({"Case", "Figure", "Against", "Durability", "Note"})
STYLES: Final = {"met": "green", "not met": "red"}


def versions(directory: Path) -> dict[str, Any]:
    """Return the versions and the environment that the figures depend on."""
    import strictq

    return {
        "strictq": strictq.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "filesystem": filesystem(directory),
        "load": f"{os.getloadavg()[0]:.1f} before the run" if hasattr(os, "getloadavg") else "unknown",
    }


def filesystem(directory: Path) -> str:
    """Return the type of a directory's file system (Linux; elsewhere "unknown")."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    directory = directory.resolve()
    best, kind = -1, "unknown"
    for line in lines:
        mount, _, rest = line.partition(" - ")
        point = Path(mount.split()[4].replace("\\040", " "))
        # >=: of two mounts at one point, the later one is visible.
        if directory.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split()[0]
    return kind


def row(figure: Figure) -> tuple[str, ...]:
    """Return the cells of a figure."""
    return (
        figure.case,
        figure.what,
        _value(figure, figure.median),
        _spread(figure),
        _goal(figure),
        {True: "met", False: "not met", None: ""}[figure.met],
        _whole(figure.ours),
        figure.against,
        _whole(figure.base),
        figure.durability,
        _whole(figure.batch),
        _whole(figure.keys),
        "" if figure.ours_bytes is None else f"{_whole(figure.ours_bytes)} ({_whole(figure.base_bytes)})",
        figure.note,
    )


def _spread(figure: Figure) -> str:
    if len(figure.values) < 2:
        return ""
    return f"{_number(figure, min(figure.values))} - {_number(figure, max(figure.values))}"


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{'≥' if figure.goal.sense == 'at least' else '<'} {_number(figure, figure.goal.value)}"


def _value(figure: Figure, value: float) -> str:
    suffix = {"of the floor": "", "times": " x", "ms": " ms", "MiB": " MiB", "bytes": " B", "per second": "/s"}
    return _number(figure, value) + suffix[figure.unit]


def _number(figure: Figure, value: float) -> str:
    if figure.unit == "per second":
        return f"{value:,.0f}"
    if figure.unit == "MiB":
        return f"{value:.0f}"
    return f"{value:.1f}" if figure.unit == "ms" and value >= 10 else f"{value:.2f}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def print_table(figures: Sequence[Figure], title: str) -> None:
    """Print all figures to stdout."""
    rows = [row(f) for f in figures]
    # Columns without any value are left out.
    used = [n for n, name in enumerate(HEADERS) if name in LEFT - {"Note"} or any(r[n] for r in rows)]
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _print_plain([HEADERS, *rows], used, title)
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for n in used:
        table.add_column(HEADERS[n], justify="left" if HEADERS[n] in LEFT else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(Text(cells[n], style=STYLES.get(cells[n], "")) for n in used))
    if sys.stdout.isatty():
        Console().print(table)
        return
    # For a file or a pipe: wide enough that no line is folded, and without padding.
    console = Console(width=400)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _print_plain(rows: Sequence[Sequence[str]], used: Sequence[int], title: str) -> None:
    flat = [[cells[n].replace("\n", " ") for n in used] for cells in rows]
    widths = [max(len(cells[i]) for cells in flat) for i in range(len(used))]
    print(title)
    for cells in flat:
        padded = [c.ljust(w) if HEADERS[n] in LEFT else c.rjust(w) for c, w, n in zip(cells, widths, used, strict=True)]
        print("  ".join(padded).rstrip())


def write_json(file: Path, form: str, versions: dict[str, Any], figures: Sequence[Figure], failures: dict[str, str]) -> None:
    """Write everything measured, round by round."""
    content = {
        "form": form,
        "versions": versions,
        "figures": [f.as_json() for f in figures],
        "failures": failures,
    }
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def put(page: Path, name: str, text: str) -> str:
    """Return a page with the text between its marks replaced: `<!-- name: written by … -->` and `<!-- name: end -->`."""
    content = page.read_text(encoding="utf-8")
    before, begin, rest = content.partition(f"<!-- {name}: written by ")
    how, closed, rest = rest.partition(" -->\n")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    if not (begin and closed and end):
        raise RuntimeError(f"{page.name} has no place for {name}: <!-- {name}: written by … --> and <!-- {name}: end -->")
    # Some Markdown renderers need blank lines around a table.
    return f"{before}{begin}{how}{closed}\n{folded(text)}\n\n{end}{after}"


def folded(text: str) -> str:
    """Fold paragraphs and list items like the documentation; leave tables unchanged."""
    return "\n".join(map(_folded, text.split("\n")))


def _folded(line: str) -> str:
    if line.startswith("|") or len(line) <= COLUMNS_MAX:
        return line
    mark = re.match(r"([-*]|\d+\.) +|", line)
    assert mark is not None  # it matches the empty string
    indent = " " * len(mark[0])
    return textwrap.fill(line, COLUMNS_MAX, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def add_forms(parser: argparse.ArgumentParser, names: Iterable[str], *, short: str) -> None:
    """Add the options that choose the form of a comparison, and what of it is measured.

    Args:
        names: the values of --only.
        short: what the short form does.
    """
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help=short)
    form.add_argument("--tiny", action="store_true", help="shows that everything runs, measures nothing")
    form.add_argument(
        "--from", dest="figures", type=Path, metavar="FILE", help="measure nothing; use the figures of an earlier --json"
    )
    listed = list(names)
    parser.add_argument("--only", nargs="+", choices=listed, metavar="NAME", help=f"of {', '.join(listed)}")


def rounds(text: str) -> int:
    """Parse the value of --rounds."""
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError("1 to 1000")
    return number
