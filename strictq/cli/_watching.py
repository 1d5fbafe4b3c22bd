"""`strictq stats --watch` on a terminal: the course of rates, depth and age, the deepest keys, and the workers.

Imported only for a terminal, with rich.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from strictq.cli._command import many, printable
from strictq.cli._words import short, shown_key, size, span

if TYPE_CHECKING:
    from strictq import KeyDepth, Stats

TRAIL_MAX: Final = 240
"""Most snapshots in a sparkline."""
SPARKS: Final = "▁▂▃▄▅▆▇█"
PLAIN_SPARKS: Final = "_.-:=+*#"
"""For terminals that support only ASCII."""
STATES: Final = (("ready", "cyan"), ("in_flight", "green"), ("delayed", "yellow"), ("held", "red"))
STATE_COLOURS: Final = {**dict(STATES), "paused": "red", "throttled": "yellow"}
NAME_MIN, CELLS_MIN = 8, 12
WORKERS_MAX: Final = 6
FRAME_COLUMNS: Final = 4
"""Columns of a panel's borders, and of a space beside each."""
SIDE_BY_SIDE_COLUMNS: Final = 100


class Watch:
    """The contents of the screen, updated by each snapshot."""

    def __init__(self, title: str, *, plain: bool = False) -> None:
        """Prepare the screen. With plain, use only ASCII characters."""
        self._title = title
        self._sparks = PLAIN_SPARKS if plain else SPARKS
        self._full, self._empty = ("#", ".") if plain else ("█", "░")
        self._trails: dict[str, deque[float]] = {}

    def take(self, found: Stats, rates: dict[str, float]) -> None:
        """Add a snapshot."""
        now = {**rates, "depth": float(found.depth), "age": found.oldest_age_seconds or 0.0}
        for name, value in now.items():
            self._trails.setdefault(name, deque(maxlen=TRAIL_MAX)).append(value)

    def shown(self, found: Stats, top: Sequence[KeyDepth] | None, more: Sequence[RenderableType], width: int) -> RenderableType:
        """Return the screen.

        Args:
            top: the deepest keys; None: there are too many keys to search.
            more: further contents, below the boxes.
            width: columns of the terminal.
        """
        halves = width >= SIDE_BY_SIDE_COLUMNS
        room = (width // 2 if halves else width) - FRAME_COLUMNS
        boxes = [self._flow(room), self._backlog(found, room), self._keys(top, room), self._workers(found, room)]
        grid = Table.grid(expand=True)
        for _ in range(2 if halves else 1):
            grid.add_column(ratio=1)
        for row in [boxes[0:2], boxes[2:4]] if halves else [[box] for box in boxes]:
            grid.add_row(*row)
        head = Text(self._title, "bold", overflow="ellipsis", no_wrap=True)
        return Group(head, grid, _totals(found), *more)

    # ---- boxes

    def _flow(self, room: int) -> Panel:
        trails = {name: self._trail(name) for name in ("sends", "acks", "retries")}
        # All lines share one scale, so that their heights can be compared.
        most = max(max(trail) for trail in trails.values())
        colours = {"sends": "cyan", "acks": "green", "retries": "yellow"}
        rows = [
            _Row(name, f"{trail[-1]:,.1f} /s", partial(self._sparkline, trail, most, colours[name]))
            for name, trail in trails.items()
        ]
        return _box("rates", _aligned(rows, room))

    def _backlog(self, found: Stats, room: int) -> Panel:
        depth, age = self._trail("depth"), self._trail("age")
        rows = [
            _Row("depth", f"{found.depth:,}", partial(self._sparkline, depth, max(depth), "cyan")),
            _Row("oldest", span(found.oldest_age_seconds), partial(self._sparkline, age, max(age), "magenta")),
        ]
        return _box("backlog", [*_aligned(rows, room), self._states(found, room), _legend(found)])

    def _states(self, found: Stats, room: int) -> Text:
        """Return a bar with the parts of the depth."""
        bar = Text()
        left, rest = room, found.depth
        for state, colour in STATES:
            count = getattr(found, state)
            cells = min(max(round(left * count / rest), 1), left) if count and rest else 0
            bar.append(self._full * cells, colour)
            left, rest = left - cells, rest - count
        return bar.append(self._empty * left, "dim")

    def _keys(self, top: Sequence[KeyDepth] | None, room: int) -> Panel:
        title = "deepest keys"
        if top is None:
            return _box(title, [Text("too many keys: see strictq top-keys", "dim", overflow="fold")])
        if not top:
            return _box(title, [Text("no key has messages", "dim")])
        most = max(key.depth for key in top)
        rows = [
            _Row(
                short(shown_key(key.key)), f"{key.depth:,} {span(key.oldest_age_seconds):>7}",
                partial(self._bar, key.depth / most, STATE_COLOURS[key.state]),
            )
            for key in top
        ]  # fmt: skip
        return _box(title, _aligned(rows, room))

    def _workers(self, found: Stats, room: int) -> Panel:
        if found.busy_ratio is None:
            return _box("workers", [Text("no worker reports", "dim")])
        rows = [
            _Row(
                printable(w.consumer),
                f"{w.running} of {w.concurrency} {w.busy_ratio:>4.0%}",
                partial(self._bar, w.busy_ratio, "green"),
            )
            for w in found.workers[:WORKERS_MAX]
        ]
        lines = _aligned(rows, room)
        if (hidden := len(found.workers) - WORKERS_MAX) > 0:
            lines.append(Text(f"and {many(hidden, 'worker')} more", "dim"))
        return _box(f"workers, {found.busy_ratio:.0%} busy", lines)

    # ---- drawing

    def _trail(self, name: str) -> deque[float]:
        return self._trails.get(name) or deque([0.0])

    def _sparkline(self, trail: Sequence[float], most: float, colour: str, cells: int) -> Text:
        """Return the newest values, one per cell, the newest at the right."""
        highest = len(self._sparks) - 1
        values = list(trail)[-cells:] if cells else []
        line = "".join(self._sparks[round(highest * value / most) if most > 0 else 0] for value in values)
        return Text(line.rjust(cells), colour)

    def _bar(self, part: float, colour: str, cells: int) -> Text:
        full = min(max(round(cells * part), 1 if part > 0 else 0), cells)
        return Text(self._full * full, colour).append(self._empty * (cells - full), "dim")


class _Row(NamedTuple):
    """A line of a box: a name, a drawing for a given number of cells, and a value."""

    name: str
    value: str
    draw: Callable[[int], Text]


def _aligned(rows: Sequence[_Row], room: int) -> list[Text]:
    """Return the lines of a box: names at the left, values at the right, and the drawings between them if there is room."""
    values = max(cell_len(row.value) for row in rows)
    names = min(max(cell_len(row.name) for row in rows), max(room - values - 2 - CELLS_MIN, NAME_MIN))
    cells = max(room - names - values - 2, 0)
    lines = []
    for row in rows:
        name = Text(row.name)
        name.truncate(names, overflow="ellipsis", pad=True)
        value = Text(row.value.rjust(values), "bold")
        lines.append(Text.assemble(name, " ", row.draw(cells), " ", value, overflow="ellipsis", no_wrap=True))
    return lines


def _box(title: str, lines: Sequence[Text]) -> Panel:
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim", padding=(0, 1))


def _legend(found: Stats) -> Text:
    """Return the colours of the states' bar, with the counts."""
    shown = Text(overflow="fold")
    for state, colour in STATES:
        shown.append(f"{state.replace('_', ' ')} {getattr(found, state):,}  ", colour)
    return shown.append(f"dead {found.dead:,}", "bold red" if found.dead else "dim")


def _totals(found: Stats) -> Text:
    counts = ("sends", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "dead_letters")
    text = [f"{name.replace('_', ' ')} {getattr(found, name):,}" for name in counts if getattr(found, name)]
    text += [f"keys {found.lanes:,}", f"drained in {span(found.drain_seconds)}"]
    text += [
        f"empty receives {found.empty_receive_ratio:.0%}",
        f"on disk {size(found.disk_bytes)} (WAL {size(found.wal_bytes)})",
    ]
    return Text("   ".join(text), "dim", overflow="fold")
