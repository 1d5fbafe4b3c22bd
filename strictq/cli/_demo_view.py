"""What `strictq demo` shows: how it goes, and what came of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from strictq.cli._command import many, printable
from strictq.cli._render import is_screen
from strictq.cli._terminal import NARROW_COLUMNS, messages
from strictq.demo import runner
from strictq.demo.events import Source
from strictq.demo.verify import Verdict

PLAIN_SECONDS: Final = 2.0


class View:
    """Shows how it goes on stderr: bars on a terminal, a line now and then elsewhere, there nothing if `quiet`."""

    def __init__(self, source: Source, setup: str, *, quiet: bool) -> None:
        self._console = messages()
        self._quiet = quiet and not is_screen(sys.stderr)
        self._total = source.count
        self._next = time.monotonic() + PLAIN_SECONDS
        self._bars: Progress | None = None
        self.tell(f"{many(source.count, 'event')} over {many(source.keys, 'key')}: {source.name}")
        self.tell(setup)

    def __enter__(self) -> Self:
        if is_screen(sys.stderr):
            elapsed = [TimeElapsedColumn()] if self._console.width >= NARROW_COLUMNS else []
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                *elapsed,
                console=self._console,
                transient=True,
                expand=True,
            )
            self._sent = self._bars.add_task("sent", total=self._total)
            self._processed = self._bars.add_task("processed", total=self._total)
            self._bars.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._bars:
            self._bars.stop()

    def progress(self, sent: int, processed: int) -> None:
        """Show how far it is."""
        if self._bars:
            self._bars.update(self._sent, completed=sent)
            self._bars.update(self._processed, completed=processed)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            self.tell(f"sent {sent:,}, processed {processed:,} of {self._total:,}")

    def tell(self, text: str) -> None:
        """Show what happened."""
        if not self._quiet:
            self._console.print(Text(printable(text)), soft_wrap=not self._console.is_terminal)


def show(out: Console, outcome: runner.Outcome, source: Source, *, kill: bool) -> None:
    """Print the result for a person."""
    out.print(_consumers(outcome))
    out.print(_counts(outcome))
    out.print(_longest(outcome))
    out.print(Text(f"Checked by {checked_by(source)}."))
    if kill and not outcome.kills:
        out.print(Text("No consumer was killed: the run was too short for it."))
    show_verdict(out, outcome.verdict)


def show_verdict(out: Console, verdict: Verdict) -> None:
    """Print whether all is well, and what is not."""
    if verdict.ok:
        sentence = "every event was processed once, and in the order of its key"
        out.print(Text("OK: ", "bold green").append(sentence + ".", "default"))
        return
    out.print(Text("WRONG: ", "bold red").append(wrongs(verdict) + ".", "default"))
    for example in verdict.examples:
        out.print(Text(f"  {printable(example)}"))


def _consumers(outcome: runner.Outcome) -> Table:
    table = Table(title="Consumers", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name")
    table.add_column("events", justify="right")
    table.add_column("retried", justify="right")
    table.add_column("fate")
    for m in outcome.members:
        processed, again = outcome.verdict.per_consumer.get(m.name, (0, 0))
        fate = m.fate if m.held is None else f"{m.fate}, held {m.held}"
        table.add_row(m.name, f"{processed:,}", f"{again:,}", Text(fate, "" if m.fate == "finished" else "yellow"))
    return table


def _counts(outcome: runner.Outcome) -> Table:
    table = counts(outcome.verdict)
    table.add_row("consumers killed", f"{outcome.kills:,}")
    table.add_row("handed out again", f"{outcome.redeliveries:,}")
    rate = outcome.verdict.processed / max(outcome.seconds, 0.001)
    table.add_row("seconds", f"{outcome.seconds:.1f}")
    table.add_row("events a second", f"{rate:,.0f}")
    return table


def counts(verdict: Verdict) -> Table:
    """What came of the events, to which more rows may be added."""
    table = Table(title="Events", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in (("sent", verdict.events), ("processed", verdict.processed), ("keys", verdict.keys)):
        table.add_row(name, f"{count:,}")
    for name, count in wrong(verdict):
        table.add_row(name, Text(f"{count:,}", "bold red" if count else ""))
    return table


def _longest(outcome: runner.Outcome) -> Table:
    table = Table(title="Longest keys", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("key", overflow="fold")
    table.add_column("events", justify="right")
    table.add_column("order")
    for k in outcome.verdict.longest:
        order = Text("ok", "green") if k.ok else Text("WRONG", "bold red")
        table.add_row(Text(printable(k.key)), f"{k.events:,}", order)
    return table


def wrong(verdict: Verdict) -> list[tuple[str, int]]:
    """Each kind of what can be wrong, and how often it was."""
    return [
        ("lost", verdict.lost),
        ("doubled", verdict.doubled),
        ("reordered", verdict.reordered),
        ("altered", verdict.altered),
        ("unexpected", verdict.unexpected),
        ("broken links", verdict.unlinked),
    ]


def wrongs(verdict: Verdict) -> str:
    """What is wrong, in words."""
    return ", ".join(f"{count:,} {name}" for name, count in wrong(verdict) if count)


def checked_by(source: Source) -> str:
    """How the order was checked, in words."""
    by = "the line numbers and contents of the events, key by key"
    if source.chain is None:
        return by
    return f"the chain {source.chain.old} → {source.chain.new} inside each transaction, and by {by}"


def verified(verdict: Verdict, source: Source) -> dict[str, Any]:
    """What came of the events as plain values."""
    return {
        "ok": verdict.ok,
        "input": source.name,
        "checked_by": checked_by(source),
        "events": verdict.events,
        "keys": verdict.keys,
        "processed": verdict.processed,
        **{name.replace(" ", "_"): count for name, count in wrong(verdict)},
    }


def as_values(outcome: runner.Outcome, source: Source, queue: Path | None) -> dict[str, Any]:
    """The result as plain values, for --json."""
    verdict = outcome.verdict
    return {
        **verified(verdict, source),
        "kills": outcome.kills,
        "redeliveries": outcome.redeliveries,
        "seconds": round(outcome.seconds, 3),
        "consumers": [
            {
                "name": m.name,
                "pid": m.process.pid,
                "processed": verdict.per_consumer.get(m.name, (0, 0))[0],
                "retried": verdict.per_consumer.get(m.name, (0, 0))[1],
                "fate": m.fate,
                "held": m.held,
            }
            for m in outcome.members
        ],
        "longest_keys": [attrs.asdict(k) for k in verdict.longest],
        "problems": list(verdict.examples),
        "queue": str(queue) if queue else None,
    }
