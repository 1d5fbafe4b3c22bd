"""`strictq demo --worker`: runs it, and shows how prepare overlaps process."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from strictq.cli._command import OK, USAGE, WRONG, Failure, many
from strictq.cli._demo_view import View, checked_by, counts, show_verdict, verified
from strictq.cli._terminal import output
from strictq.demo import plot, working
from strictq.demo.events import Source
from strictq.demo.runner import DemoFailed

KEYS_SHOWN: Final = 4
CELLS_A_BAR: Final = 5
COLUMNS_MAX: Final = 100


def run(
    source: Source,
    options_for: Callable[[Path], working.Options],
    place: AbstractContextManager[Path],
    picture: Path | None,
    *,
    as_json: bool,
    kept: Path | None,
) -> int:
    """Run the demo with a worker.

    Args:
        options_for: the options, once there is a directory for the queue.
        picture: draw it there; None: in the terminal alone.
        kept: the queue's directory as the user gave it, if it stays.
    """
    try:
        if picture is not None:
            plot.require(picture)
        with place as directory:
            options = options_for(directory)
            setup = (
                f"one worker, {many(options.concurrency, 'event')} at once, prepare {options.fetch_seconds:g} s, "
                f"process {options.process_seconds:g} s, {many(options.shards, 'shard')}, durability {options.durability}"
            )
            with View(source, setup, quiet=as_json) as view:
                outcome = working.run(source, options, view)
        if picture is not None:
            plot.draw(outcome.timeline, picture)
    except DemoFailed as e:
        raise Failure(str(e)) from None
    except plot.CannotDraw as e:
        raise Failure(str(e), USAGE) from None
    if as_json:
        print(json.dumps(as_values(outcome, source, kept, picture)))
    else:
        show(output(), outcome, source, picture)
    return OK if outcome.verdict.ok else WRONG


def show(out: Console, outcome: working.Outcome, source: Source, picture: Path | None) -> None:
    """Print the result for a person."""
    columns = min(out.width, COLUMNS_MAX)
    part = outcome.timeline.part(KEYS_SHOWN, columns // CELLS_A_BAR)
    out.print(Text(f"The first {part.seconds:.1f} s of {many(len(part.keys), 'key')}: above prepare (·), below process (█)."))
    out.print(Text(part.to_text(columns)), soft_wrap=True)
    table = counts(outcome.verdict)
    table.add_row("handed out again", f"{outcome.redeliveries:,}")
    table.add_row("seconds", f"{outcome.seconds:.1f}")
    table.add_row("prepares, seconds", f"{outcome.fetched_seconds:.1f}")
    table.add_row("waited for, seconds", f"{outcome.waited_seconds:.1f}")
    out.print(table)
    out.print(Text(f"{outcome.hidden:.0%} of the time of prepares went by while earlier events were processed."))
    if picture is not None:
        out.print(Text(f"Drawn in {picture}."), soft_wrap=True)
    out.print(Text(f"Checked by {checked_by(source)}."))
    show_verdict(out, outcome.verdict)


def as_values(outcome: working.Outcome, source: Source, kept: Path | None, picture: Path | None) -> dict[str, Any]:
    """The result as plain values, for --json."""
    return {
        **verified(outcome.verdict, source),
        "redeliveries": outcome.redeliveries,
        "seconds": round(outcome.seconds, 3),
        "prepare_seconds": round(outcome.fetched_seconds, 3),
        "waited_seconds": round(outcome.waited_seconds, 3),
        "hidden": round(outcome.hidden, 3),
        "retried": outcome.stats.retried,
        "problems": list(outcome.verdict.examples),
        "queue": str(kept) if kept else None,
        "plot": str(picture) if picture else None,
    }
