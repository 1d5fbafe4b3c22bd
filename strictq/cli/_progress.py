"""The bars of `strictq send` and `strictq demo`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from strictq.cli._lines import Lines
from strictq.cli._terminal import NARROW_COLUMNS, messages

Step = Callable[[Lines, int], None]


@contextmanager
def bar() -> Iterator[Step]:
    """Show the bytes of the file if its size is known, otherwise only the count."""
    console = messages()
    times = [TimeElapsedColumn(), TimeRemainingColumn(compact=True)] if console.width >= NARROW_COLUMNS else []
    columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn(), *times]
    with Progress(*columns, console=console, transient=True, expand=True) as shown:
        task = shown.add_task("sending", total=None)

        def step(lines: Lines, sent: int) -> None:
            shown.update(task, total=lines.size, completed=lines.position, description=f"{sent:,} lines")

        yield step


@contextmanager
def counts(names: Sequence[str], total: int) -> Iterator[Callable[[Sequence[int]], None]]:
    """Show a bar for each of several counts up to `total`. Lines printed to stderr meanwhile appear above them."""
    console = messages()
    times = [TimeElapsedColumn()] if console.width >= NARROW_COLUMNS else []
    columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), *times]
    with Progress(*columns, console=console, transient=True, expand=True) as shown:
        tasks = [shown.add_task(name, total=total) for name in names]

        def step(done: Sequence[int]) -> None:
            for task, count in zip(tasks, done, strict=True):
                shown.update(task, completed=count)

        yield step
