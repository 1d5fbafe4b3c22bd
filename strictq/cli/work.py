"""`strictq work`."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq.cli._arguments import (
    PLACE,
    Seconds,
    consumer_option,
    drain_option,
    grace_option,
    no_breaker_option,
    open_place,
    place_argument,
)
from strictq.cli._command import OK, USAGE, Failure, command, many
from strictq.cli._log import log_to_stderr
from strictq.cli._render import is_screen
from strictq.cli._terminal import Terminal, line, messages
from strictq.cli._words import emit
from strictq.worker import Breaker, Worker, WorkerStats
from strictq.worker.command import Command, shell

EXAMPLES: Final = """
strictq work orders.strictq -- ./import-order --verbose
strictq work sqs+http://queues:9324/queue/orders.fifo -- ./import-order
strictq work orders.strictq --also mails.strictq --weights 3,1 -- ./handle
strictq work orders.strictq --drain --concurrency 4 -- sh -c 'cat >> "orders-$STRICTQ_KEY"'
"""


@command(EXAMPLES)
@place_argument
@click.argument("arguments", nargs=-1, required=True, metavar="-- COMMAND", help="The command and its arguments, after --.")
@click.option("--also", type=PLACE, metavar="QUEUE", multiple=True, help="Process this queue, too. Repeatable.")
@click.option(
    "--weights",
    metavar="NUMBERS",
    help="Each queue's share of the messages while all have some, such as 3,1. Default: equal ones.",
)
@click.option(
    "--prepare",
    metavar="COMMAND",
    help="Run this command ahead of the message's turn. Its stdout is in the file $STRICTQ_PREPARED.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1, max=10_000),
    default=8,
    help="Messages processed in parallel, each of a different key. All queues together.",
)
@click.option("--timeout", type=Seconds(min=0.001), help="Kill and retry a command after this many seconds.")
@click.option(
    "--defer", type=Seconds(min=0.0), help="Make exit code 69 postpone the message by this many seconds, with no attempt charged."
)
@drain_option
@grace_option("commands")
@consumer_option
@no_breaker_option("commands")
@click.option("use_shell", "--shell", is_flag=True, help="Run the commands with $SHELL -c.")
@click.option("--quiet", "-q", is_flag=True, help="Print no progress; log only warnings and errors.")
@click.option("as_json", "--json", is_flag=True, help="Print the totals as one JSON object at exit.")
def work(
    queue: Path | str,
    arguments: tuple[str, ...],
    also: tuple[Path | str, ...],
    weights: str | None,
    prepare: str | None,
    concurrency: int,
    timeout: float | None,
    defer: float | None,
    drain: bool,
    grace: float | None,
    consumer: str | None,
    no_breaker: bool,
    use_shell: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run a command for each message, in order per key and in parallel across keys, until Ctrl-C or SIGTERM.

    The command reads the body from stdin. STRICTQ_KEY, STRICTQ_SEQ, STRICTQ_ATTEMPT and STRICTQ_TOKEN are in its environment.
    On a queue behind an endpoint, STRICTQ_SEQ is the message's sequence number there.
    Exit code 0 acks the message; 75 retries it. Any other code is a failure: the message is retried, with the end of stderr as
    the reason, until it is out of attempts. With --defer, 69 postpones it. While most commands fail, a circuit breaker tries
    one message at a time and charges no attempts (not with --drain).

    Exit code of this command: 0: stopped or drained. 1: the queue failed. 2: invalid usage.
    """
    handler = Command(_command(list(arguments), use_shell), defer_seconds=defer)
    ahead = None
    if prepare is not None:
        ahead = Command(_command([prepare] if use_shell else _words(prepare), use_shell), defer_seconds=defer)
    terminal = messages()
    with ExitStack() as stack:
        queues = [stack.enter_context(open_place(each)) for each in (queue, *also)]
        worker = Worker(
            queues if also else queues[0],
            handler.process,
            None if ahead is None else ahead.prepare,
            concurrency=concurrency,
            weights=None if weights is None else _numbers(weights),
            timeout_seconds=timeout,
            prepare_timeout_seconds=timeout,
            consumer=consumer,
            breaker=None if no_breaker or drain else Breaker(),
        )
        log_to_stderr(quiet=quiet)
        started = time.monotonic()
        with _view(terminal, queues, worker, quiet=quiet):
            worker.run(drain=drain, grace_seconds=grace)
        seconds = time.monotonic() - started
    stats = worker.stats()
    if as_json:
        emit({**stats.to_dict(), "seconds": seconds})
    elif not quiet:
        terminal.print(summary(stats, seconds))
    return OK


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise Failure(f"--prepare cannot be parsed: {e}", USAGE) from None
    if not words:
        raise Failure("--prepare is empty", USAGE)
    return words


def _command(words: list[str], use_shell: bool) -> list[str]:
    if use_shell:
        return shell(" ".join(words))
    found = shutil.which(words[0])
    if found is None:
        raise Failure(f"there is no command {words[0]!r}", USAGE)
    return [found, *words[1:]]


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise Failure(f"--weights must be numbers with commas between them, not {text!r}", USAGE) from None


def _view(
    terminal: Terminal, queues: Sequence[strictq.Queue | strictq.RemoteQueue], worker: Worker, *, quiet: bool
) -> AbstractContextManager[Any]:
    if quiet or not is_screen(sys.stderr):
        return nullcontext()
    started = time.monotonic()
    local = [q for q in queues if isinstance(q, strictq.Queue)]

    def shown() -> str:
        depth = sum(q.stats().depth for q in local) if len(local) == len(queues) else None  # an endpoint is not asked so often
        return progress(depth, worker.stats(), time.monotonic() - started)

    return line(shown, terminal)


def progress(depth: int | None, worker: WorkerStats, seconds: float) -> str:
    """Return one line with the time left, the backlog and the worker's counts. A narrow terminal cuts its end off.

    Args:
        depth: the backlog; None: unknown.
    """
    rate = worker.acked / seconds if seconds > 0 else 0.0
    left = f"{depth / rate:,.0f} s" if rate > 0 and depth else "-"
    backlog = "" if depth is None else f"time left {left}, backlog {depth:,}, "
    return (
        f"{backlog}{rate:,.1f} per second; "
        f"{worker.running:,} running, {worker.prepared:,} prepared, {worker.acked:,} done, {worker.retried:,} retried"
    )


def summary(stats: WorkerStats, seconds: float) -> str:
    """Return the totals as one line of text."""
    counts = [f"{many(stats.acked, 'message')} done", f"{stats.retried:,} retried"]
    if stats.poison:
        counts.append(f"{stats.poison:,} out of attempts")
    if stats.deferred:
        counts.append(f"{stats.deferred:,} deferred")
    return ", ".join([*counts, f"{stats.lost:,} lost", f"in {seconds:.1f} s"])
