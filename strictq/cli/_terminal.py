"""Terminal output with rich. Imported only for a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from strictq.cli._render import Alarm, Block, Fine, Heading

NARROW_COLUMNS: Final = 60
REFRESH_PER_SECOND: Final = 2.0
GAP_COLUMNS: Final = 3
"""Width between two columns of a table."""


class Terminal(Console):
    """A rich console that lets `command` handle a broken pipe like any other error."""

    def __init__(self, **options: Any) -> None:
        if os.environ.get("NO_COLOR"):
            # Disables colours, bold and all other styles of rich.
            options["color_system"] = None
        super().__init__(highlight=False, emoji=False, markup=False, **options)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def output() -> Terminal:
    """Return the console of stdout."""
    return Terminal()


def messages() -> Terminal:
    """Return the console of stderr."""
    return Terminal(stderr=True)


def group(blocks: Iterable[Block]) -> Group:
    """Return the blocks, one below the other."""
    return Group(*map(_block, blocks))


def _block(block: Block) -> RenderableType:
    if not isinstance(block, str):
        return _facts(block)
    return Text(block, _style(block), overflow="fold")


def _style(text: str) -> str:
    styles = {Alarm: "bold red", Fine: "bold green", Heading: "bold"}
    return styles.get(type(text), "")


def _cell(text: str) -> Text:
    return Text(text, _style(text))


def _facts(pairs: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(_cell(name), _cell(value))
    return table


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    """Return rows as a table; if the terminal is too narrow, as names and values below each other."""
    out = output()
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if sum(widths) + GAP_COLUMNS * (len(widths) - 1) > out.width:
        for number, row in enumerate(rows):
            if number:
                out.print()
            out.print(_facts((name, cell) for name, cell in zip(columns, row, strict=True) if cell))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row))
    out.print(table)


def line(text: Callable[[], str], console: Terminal | None = None) -> AbstractContextManager[Any]:
    """Show a live line on stderr and erase it at the end. Lines printed on the same console meanwhile appear above it."""
    from rich.live import Live

    def shown() -> RenderableType:
        return Text(text(), overflow="ellipsis", no_wrap=True)

    return Live(console=console or messages(), get_renderable=shown, refresh_per_second=REFRESH_PER_SECOND, transient=True)
