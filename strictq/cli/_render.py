"""Sentences, facts and tables: with rich on a terminal, as plain text with whole lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, Final

GAP: Final = "  "


class Heading(str):
    """A line above others: bold on a terminal."""


class Alarm(str):
    """Something is wrong: bold and red on a terminal."""


class Fine(str):
    """All is well: bold and green on a terminal."""


Fact = tuple[str, str]
Block = str | Sequence[Fact]
"""A sentence, or names and values, a pair a line."""


def alarming(count: int) -> str:
    """A count that should be 0."""
    return Alarm(f"{count:,}") if count else "0"


def show(*blocks: Block) -> None:
    """Print blocks on stdout, one below the other."""
    if is_terminal(sys.stdout):
        from strictq.cli._terminal import group, output

        output().print(group(blocks))
        return
    for block in blocks:
        if isinstance(block, str):
            print(block)
        else:
            _columns(block)


def listing(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows as a table; on a terminal too narrow for it, one below the other as names and values.

    Args:
        right: columns of numbers, set to the right.
    """
    found = list(rows)
    if is_terminal(sys.stdout):
        from strictq.cli import _terminal

        _terminal.listing(columns, found, right)
        return
    _columns([columns, *found], [name in right for name in columns])


def _columns(rows: Sequence[Sequence[str]], right: Sequence[bool] = (False, False)) -> None:
    widths = [max(map(_widest, column)) for column in zip(*rows, strict=True)]
    margin = " " * (sum(widths[:-1]) + len(GAP) * (len(widths) - 1))
    for row in rows:
        cells = []
        for cell, width, to_the_right in zip(row, widths, right, strict=True):
            room = " " * (width - _widest(cell))
            cells.append(room + cell if to_the_right else cell + room)
        print(GAP.join(cells).rstrip().replace("\n", f"\n{margin}"))


def _widest(text: str) -> int:
    return max(map(_width, text.split("\n")))


def _width(text: str) -> int:
    """Columns of a screen that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def waiting(label: str, progress: Callable[[], str], *, quiet: bool = False) -> AbstractContextManager[Any]:
    """While something takes long: a line on the terminal that says how far it is. Elsewhere nothing."""
    if quiet or not is_screen(sys.stderr):
        return nullcontext()
    from strictq.cli._terminal import line

    return line(lambda: f"{label} {progress()}")


def bars(names: Sequence[str], total: int) -> AbstractContextManager[Callable[[Sequence[int]], None] | None]:
    """A bar on the terminal for each of several counts; what it gives is called with them. Elsewhere it gives None."""
    if not is_screen(sys.stderr):
        return nullcontext()
    from strictq.cli._progress import counts

    return counts(names, total)


def is_terminal(stream: IO[str] | None) -> bool:
    """Does a person see it as it comes?"""
    return stream is not None and stream.isatty()


def is_screen(stream: IO[str] | None) -> bool:
    """Is it a terminal that can write over what it shows?"""
    return is_terminal(stream) and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
