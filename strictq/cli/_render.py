"""Print sentences, facts and tables: with rich on a terminal, elsewhere as plain text without line wrapping."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any, Final, Protocol, TypeVar

from strictq.cli._command import OK
from strictq.cli._words import emit

GAP: Final = "  "


class Finding(Protocol):
    """What an inspection returns."""

    def to_dict(self) -> dict[str, Any]: ...


F = TypeVar("F", bound=Finding)


class Heading(str):
    """A heading: bold on a terminal."""


class Alarm(str):
    """A text about a problem: bold and red on a terminal."""


class Fine(str):
    """A text about a success: bold and green on a terminal."""


Fact = tuple[str, str]
Block = str | Sequence[Fact]
"""A sentence, or pairs of names and values, one pair per line."""


def alarming(count: int) -> str:
    """Format a count that should be 0."""
    return Alarm(f"{count:,}") if count else "0"


def show(*blocks: Block) -> None:
    """Print blocks to stdout, one below another."""
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
    """Print rows as a table. If the terminal is too narrow, print them one below another as names and values.

    Args:
        right: names of the right-aligned columns.
    """
    found = list(rows)
    if is_terminal(sys.stdout):
        from strictq.cli import _terminal

        _terminal.listing(columns, found, right)
        return
    _columns([columns, *found], [name in right for name in columns])


def show_found(
    found: Sequence[F],
    columns: Sequence[str],
    row: Callable[[F], Sequence[str]],
    *,
    right: Sequence[str] = (),
    none: str,
    as_json: bool,
) -> int:
    """Print findings as a table, or as one JSON object per line. Return the exit code.

    Args:
        row: returns the cells of a finding.
        right: as for `listing`.
        none: what to print if there are none.
    """
    if as_json:
        for one in found:
            emit(one.to_dict())
    elif found:
        listing(columns, map(row, found), right=right)
    else:
        show(none)
    return OK


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
    """Return the screen columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def waiting(label: str, progress: Callable[[], str], *, quiet: bool = False) -> AbstractContextManager[Any]:
    """Return a context manager that shows a progress line on the terminal during long work. Elsewhere it does nothing."""
    if quiet or not is_screen(sys.stderr):
        return nullcontext()
    from strictq.cli._terminal import line

    return line(lambda: f"{label} {progress()}")


@contextmanager
def counting(label: str, shown: Callable[[int, int], str], *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress line as `waiting` does. Yield the function that sets the number of what is done, and the total."""
    now = (0, 0)

    def step(done: int, total: int) -> None:
        nonlocal now
        now = done, total

    with waiting(label, lambda: shown(*now), quiet=quiet):
        yield step


def bars(names: Sequence[str], total: int) -> AbstractContextManager[Callable[[Sequence[int]], None] | None]:
    """Return a context manager for progress bars, one per count.

    It yields the function to update them; None without a terminal.
    """
    if not is_screen(sys.stderr):
        return nullcontext()
    from strictq.cli._progress import counts

    return counts(names, total)


def is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()


def is_screen(stream: IO[str] | None) -> bool:
    """Return whether a stream is a terminal that can overwrite its output."""
    return is_terminal(stream) and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
