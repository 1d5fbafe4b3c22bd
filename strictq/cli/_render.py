"""What people and programs read: tables, facts, JSON, times and sizes. The one place that says how anything looks."""

from __future__ import annotations

import base64
import codecs
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Final, NoReturn

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from strictq._keys import Key
from strictq.cli._command import printable

NARROW_COLUMNS: Final = 60
CELL_CHARS_MAX: Final = 60
"""What a cell shows of a long text; --json has all of it."""
PLAIN_COLUMNS: Final = 10_000
REFRESH_PER_SECOND: Final = 4.0

Cell = str | Text
Fact = tuple[str, Cell]


class Terminal(Console):
    """A rich console that leaves a broken pipe to `command`, as it leaves any other error."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def output() -> Terminal:
    """stdout for people. Lines are not broken where nobody sees them as a screen: a pipe, a file."""
    terminal = Terminal(highlight=False, emoji=False, markup=False)
    if not terminal.is_terminal:
        terminal.width = PLAIN_COLUMNS
    return terminal


def messages() -> Terminal:
    """stderr for people."""
    return Terminal(stderr=True, highlight=False, emoji=False, markup=False)


# ---------------------------------------------------------------- JSON


def emit(values: Any) -> None:
    """One JSON value as a line on stdout."""
    # Escaped where the output cannot show every character: a question mark would be another value.
    plain = codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"
    print(json.dumps(values, ensure_ascii=plain, allow_nan=False), flush=True)


def key_fields(key: Key | None) -> dict[str, Any]:
    """A key in JSON: bytes as base64, and which type it is; nulls for a keyless message."""
    if isinstance(key, bytes):
        return {"key": base64.b64encode(key).decode(), "key_type": "bytes"}
    return {"key": key, "key_type": None if key is None else type(key).__name__}


def body_fields(body: bytes) -> dict[str, str]:
    """A body in JSON: text if it is UTF-8, else base64."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def column_value(value: Any) -> Any:
    """A value of an SQL row in JSON, which knows neither bytes nor infinity."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


# ---------------------------------------------------------------- words


def shown_key(key: Key | None) -> str:
    """A key for people: 7 is a number, "7" a text, hex:07 bytes."""
    if key is None:
        return "(no key)"
    if isinstance(key, bytes):
        return f"hex:{key.hex()}"
    if isinstance(key, str) and (key.lstrip("-").isdigit() or key.startswith(("hex:", '"', "(")) or key != key.strip()):
        return f'"{printable(key)}"'
    return printable(key)


def shown_body(body: bytes) -> str:
    """The beginning of a body, on one line."""
    return short(body[: 4 * CELL_CHARS_MAX].decode("utf-8", "replace"), len(body) > 4 * CELL_CHARS_MAX)


def short(text: str | None, cut: bool = False) -> str:
    """What fits in a cell, on one line; an empty cell for None."""
    line = printable(" ".join((text or "").split()))
    return f"{line[: CELL_CHARS_MAX - 1]}…" if cut or len(line) > CELL_CHARS_MAX else line


def span(seconds: float | None) -> str:
    """A duration: 0.3 s, 45 s, 12 min, 3.4 h, 2.1 d."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} d"


def moment(at: float | None) -> str:
    """A time of day, local, with how long ago or how soon it is."""
    if at is None:
        return "-"
    apart = time.time() - at
    when = f"{span(apart)} ago" if apart >= 0 else f"in {span(-apart)}"
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S} ({when})"


def size(count: float) -> str:
    """Bytes: 12 B, 3.4 KiB, 5.6 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def alarming(count: int) -> Text:
    """A count that should be 0."""
    return Text(f"{count:,}", "bold red" if count else "")


# ---------------------------------------------------------------- tables


def facts(pairs: Iterable[Fact]) -> Table:
    """Names and values, one pair a line; values fold."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def listing(out: Console, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[str] = ()) -> None:
    """Rows as a table; on a terminal too narrow for it, one below the other as names and values.

    Args:
        right: columns of numbers, set to the right.
    """
    found = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max([cell_len(name), *(row[i].cell_len for row in found)]) for i, name in enumerate(columns)]
    if sum(widths) + 2 * len(widths) > out.width:
        for number, row in enumerate(found):
            if number:
                out.print()
            out.print(facts((name, cell) for name, cell in zip(columns, row, strict=True) if cell))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in found:
        table.add_row(*row)
    out.print(table)


# ---------------------------------------------------------------- long work


def waiting(label: str, progress: Callable[[], str], *, quiet: bool = False) -> AbstractContextManager[Any]:
    """While something takes long: a line on the terminal that says how far it is. Elsewhere nothing."""
    terminal = messages()
    if quiet or not terminal.is_terminal:
        return nullcontext()
    from rich.live import Live

    def line() -> RenderableType:
        return Text(f"{label} {progress()}", overflow="ellipsis", no_wrap=True)

    return Live(console=terminal, get_renderable=line, refresh_per_second=REFRESH_PER_SECOND, transient=True)


def is_terminal() -> bool:
    """Is stdout a terminal?"""
    return sys.stdout is not None and sys.stdout.isatty()
