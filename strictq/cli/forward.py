"""`strictq forward`."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import click

import strictq
from strictq.cli._arguments import consumer_option, grace_option, json_option, queue_argument, quiet_option
from strictq.cli._command import OK, command, many
from strictq.cli._log import log_to_stderr
from strictq.cli._render import is_screen
from strictq.cli._terminal import Terminal, line, messages
from strictq.cli._words import emit
from strictq.forwarding import Forwarder, ForwarderStats

EXAMPLES: Final = """
strictq forward readings.strictq --to sqs+https://queues.example/queue/readings.fifo --create
strictq forward orders.strictq --to https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo
strictq forward readings.strictq --to sqs+http://10.0.0.5:9324/queue/readings.fifo --drain
"""


class OnRefused(StrEnum):
    """What becomes of a message that the endpoint refuses."""

    dead_letter = "dead-letter"
    hold = "hold"


POLICIES: Final[dict[OnRefused, Literal["dead_letter", "hold"]]] = {OnRefused.dead_letter: "dead_letter", OnRefused.hold: "hold"}


@command(EXAMPLES)
@queue_argument
@click.option("--to", required=True, metavar="URL", help="The queue at the endpoint.")
@click.option("--concurrency", type=click.IntRange(1, 100), default=4, help="Requests at a time.")
@click.option("--batch", type=click.IntRange(1, 10), default=10, help="Messages per request.")
@click.option(
    "--per-key",
    type=click.IntRange(1, 10),
    help="Messages of a key per request. Default: 10 if the endpoint is strictq serve sqs, otherwise 1, which keeps the order.",
)
@click.option(
    "--on-refused",
    type=click.Choice(OnRefused),
    default=OnRefused.dead_letter,
    help="What becomes of a message whose content the endpoint refuses: a dead letter, or its key is held.",
)
@click.option("--drain", is_flag=True, help="Exit when no message is ready.")
@click.option("--create", is_flag=True, help="Create the local queue if it does not exist.")
@grace_option("requests")
@consumer_option
@quiet_option
@json_option
def forward(
    queue: Path, to: str, concurrency: int, batch: int, per_key: int | None, on_refused: OnRefused, drain: bool, create: bool,
    grace: float | None, consumer: str | None, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Send the messages of a queue to an SQS-compatible endpoint, in order per key, until Ctrl-C or SIGTERM.

    A message is acked when the endpoint has accepted it. While the endpoint does not answer, messages wait in the queue, and no
    attempt is charged. With --drain, an endpoint that does not answer ends the command.

    Exit code of this command: 0: stopped or drained. 1: the queue or the endpoint failed. 2: invalid usage.
    """
    terminal = messages()
    with strictq.open(queue, create=create) as q:
        forwarder = Forwarder(
            q, to, concurrency=concurrency, batch=batch, per_key=per_key, on_refused=POLICIES[on_refused], consumer=consumer
        )
        log_to_stderr(quiet=quiet)
        started = time.monotonic()
        try:
            with _view(terminal, q, forwarder, started, quiet=quiet):
                forwarder.run(drain=drain, grace_seconds=grace)
        finally:
            stats, seconds = forwarder.stats(), time.monotonic() - started
            if as_json:
                emit({**stats.to_dict(), "seconds": seconds})
            elif not quiet:
                terminal.print(summary(stats, seconds))
    return OK


def _view(
    terminal: Terminal, q: strictq.Queue, forwarder: Forwarder, started: float, *, quiet: bool
) -> AbstractContextManager[Any]:
    if quiet or not is_screen(sys.stderr):
        return nullcontext()
    return line(lambda: progress(q.stats().depth, forwarder.stats(), time.monotonic() - started), terminal)


def progress(depth: int, stats: ForwarderStats, seconds: float) -> str:
    """Return one line with the backlog and the counts. A narrow terminal cuts its end off."""
    rate = stats.forwarded / seconds if seconds > 0 else 0.0
    text = f"backlog {depth:,}, {stats.forwarded:,} forwarded, {rate:,.1f} per second"
    return text if stats.error is None else f"{text}; the endpoint fails: {stats.error}"


def summary(stats: ForwarderStats, seconds: float) -> str:
    """Return the totals as one line of text."""
    counts = [f"{many(stats.forwarded, 'message')} forwarded"]
    for count, what in (
        (stats.refused, "refused"), (stats.maybe_duplicates, "marked as possible duplicates"), (stats.lost, "lost"),
    ):  # fmt: skip
        if count:
            counts.append(f"{count:,} {what}")
    return ", ".join([*counts, f"in {seconds:.1f} s"])
