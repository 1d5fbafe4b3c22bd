"""`strictq demo`."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self

import attrs
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from strictq.cli._command import OK, USAGE, WRONG, Failure, Terminal, command, many, printable
from strictq.demo import runner
from strictq.demo.events import BadInput, FileEvents, LedgerEvents, Source

EVENTS: Final = 20_000
EVENTS_PER_KEY: Final = 40
PLAIN_SECONDS: Final = 2.0
NARROW_COLUMNS: Final = 60


class Durability(StrEnum):
    """What a send that returned survives."""

    full = "full"
    process = "process"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(short_help="See that no key loses its order.")(command(demo))


def demo(
    input: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Events to send, JSON lines, plain or gzip. Default: made ones.")
    ] = None,
    key_field: Annotated[str | None, typer.Option(metavar="FIELD", help="The field of --input that holds the key.")] = None,
    chain: Annotated[
        str | None,
        typer.Option(
            metavar="OLD,NEW",
            help="Two fields of --input: OLD of each event is NEW of the one before it. Default: old,new if they are.",
        ),
    ] = None,
    queue: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Make the queue here and keep it. Default: a temporary one.")
    ] = None,
    consumers: Annotated[int, typer.Option(min=1, max=64, help="Consumer processes.")] = 4,
    shards: Annotated[int, typer.Option(min=1, max=256, help="Shards of the queue.")] = 1,
    durability: Annotated[
        Durability, typer.Option(help="process: all survives kill -9, as here. full: a power cut too, at the disk's speed.")
    ] = Durability.process,
    events: Annotated[int | None, typer.Option(min=1, help="How many events to make.", show_default=f"{EVENTS:,}")] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, help="How many keys they have.", show_default=f"one to {EVENTS_PER_KEY} events")
    ] = None,
    kill: Annotated[bool, typer.Option(help="Kill a consumer with -9 on the way.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> int:
    """Send events through a queue, kill a consumer on the way, and verify that every key kept its order.

    Exit code 0: nothing was lost, doubled or reordered. 1: something was. 2: the input cannot be used.
    """
    source = _source(input, key_field, chain, events, keys)
    out = Terminal(highlight=False)
    with _directory(queue) as directory:
        options = runner.Options(queue=directory, consumers=consumers, shards=shards, durability=durability.value, kill=kill)
        with View(source, options, quiet=as_json) as view:
            try:
                outcome = runner.run(source, options, view)
            except runner.DemoFailed as e:
                raise Failure(str(e)) from None
    if as_json:
        print(json.dumps(as_values(outcome, source, queue)))
    else:
        show(out, outcome, source, kill=kill)
    return OK if outcome.verdict.ok else WRONG


def _source(input: Path | None, key_field: str | None, chain: str | None, events: int | None, keys: int | None) -> Source:
    if input is None:
        if key_field is not None or chain is not None:
            raise Failure("--key-field and --chain are for --input", USAGE)
        count = events or EVENTS
        return LedgerEvents.make(count, keys or max(1, count // EVENTS_PER_KEY))
    if events is not None or keys is not None:
        raise Failure("--events and --keys are for made events, not for --input", USAGE)
    if key_field is None:
        raise Failure("--input needs --key-field: the name of the field that holds the key", USAGE)
    fields = tuple(name.strip() for name in chain.split(",")) if chain is not None else None
    if fields is not None and (len(fields) != 2 or not all(fields)):
        raise Failure(f"--chain takes two field names with a comma between them, not {chain!r}", USAGE)
    try:
        return FileEvents.scan(input, key_field, (fields[0], fields[1]) if fields else None)
    except BadInput as e:
        raise Failure(str(e), USAGE) from None


@contextlib.contextmanager
def _directory(queue: Path | None) -> Iterator[Path]:
    if queue is not None:
        # Events of an earlier run would be in the way: the consumers' chain starts where the key's state says.
        if queue.exists() and not (queue.is_dir() and not any(queue.iterdir())):
            raise Failure(f"{queue} is there already; the demo needs a new directory for its queue", USAGE)
        if not queue.parent.is_dir():
            raise Failure(f"{queue.parent} is not a directory", USAGE)
        yield queue
        return
    parent = tempfile.mkdtemp(prefix="strictq-demo-")
    try:
        yield Path(parent) / "demo.strictq"
    finally:
        shutil.rmtree(parent, ignore_errors=True)


class View:
    """Shows how it goes on stderr: bars on a terminal, a line now and then elsewhere, there nothing if `quiet`."""

    def __init__(self, source: Source, options: runner.Options, *, quiet: bool) -> None:
        self._console = Terminal(stderr=True, highlight=False)
        self._quiet = quiet and not self._console.is_terminal
        self._total = source.count
        self._next = time.monotonic() + PLAIN_SECONDS
        self._bars: Progress | None = None
        self.tell(f"{many(source.count, 'event')} over {many(source.keys, 'key')}: {source.name}")
        crew, shards = many(options.consumers, "consumer"), many(options.shards, "shard")
        self.tell(f"{crew}, {shards}, durability {options.durability}")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
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
    verdict = outcome.verdict
    out.print(_consumers(outcome))
    out.print(_counts(outcome))
    out.print(_longest(outcome))
    out.print(Text(f"Checked by {checked_by(source)}."))
    if kill and not outcome.kills:
        out.print(Text("No consumer was killed: the run was too short for it."))
    if verdict.ok:
        sentence = "every event was processed once, and in the order of its key"
        out.print(Text("OK: ", "bold green").append(sentence + ".", "default"))
        return
    out.print(Text("WRONG: ", "bold red").append(wrongs(outcome) + ".", "default"))
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
    verdict = outcome.verdict
    table = Table(title="Events", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in (("sent", verdict.events), ("processed", verdict.processed), ("keys", verdict.keys)):
        table.add_row(name, f"{count:,}")
    for name, count in _wrong(outcome):
        table.add_row(name, Text(f"{count:,}", "bold red" if count else ""))
    table.add_row("consumers killed", f"{outcome.kills:,}")
    table.add_row("handed out again", f"{outcome.redeliveries:,}")
    rate = verdict.processed / max(outcome.seconds, 0.001)
    table.add_row("seconds", f"{outcome.seconds:.1f}")
    table.add_row("events a second", f"{rate:,.0f}")
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


def _wrong(outcome: runner.Outcome) -> list[tuple[str, int]]:
    verdict = outcome.verdict
    return [
        ("lost", verdict.lost),
        ("doubled", verdict.doubled),
        ("reordered", verdict.reordered),
        ("altered", verdict.altered),
        ("unexpected", verdict.unexpected),
        ("broken links", verdict.unlinked),
    ]


def wrongs(outcome: runner.Outcome) -> str:
    """What is wrong, in words."""
    return ", ".join(f"{count:,} {name}" for name, count in _wrong(outcome) if count)


def checked_by(source: Source) -> str:
    """How the order was checked, in words."""
    by = "the line numbers and contents of the events, key by key"
    if source.chain is None:
        return by
    return f"the chain {source.chain.old} → {source.chain.new} inside each transaction, and by {by}"


def as_values(outcome: runner.Outcome, source: Source, queue: Path | None) -> dict[str, Any]:
    """The result as plain values, for --json."""
    verdict = outcome.verdict
    return {
        "ok": verdict.ok,
        "input": source.name,
        "checked_by": checked_by(source),
        "events": verdict.events,
        "keys": verdict.keys,
        "processed": verdict.processed,
        **{name.replace(" ", "_"): count for name, count in _wrong(outcome)},
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
