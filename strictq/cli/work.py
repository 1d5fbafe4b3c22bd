"""`strictq work`."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq.cli._arguments import PATH, Seconds
from strictq.cli._command import OK, USAGE, Failure, command, many
from strictq.cli._log import log_to_stderr
from strictq.cli._render import is_screen
from strictq.cli._terminal import Terminal, line, messages
from strictq.cli._words import emit
from strictq.worker import Breaker, Worker, WorkerStats
from strictq.worker.command import Command, shell

EXAMPLES: Final = """
strictq work orders.strictq -- ./import-order --verbose
strictq work orders.strictq --drain --concurrency 4 -- sh -c 'cat >> "orders-$STRICTQ_KEY"'
"""


@command(EXAMPLES)
@click.argument("queue", type=PATH, metavar="QUEUE", help="The queue's directory.")
@click.argument("arguments", nargs=-1, required=True, metavar="-- COMMAND", help="The command and its arguments, after --.")
@click.option(
    "--prepare",
    metavar="COMMAND",
    help="Run this command ahead of the message's turn. Its stdout is in the file $STRICTQ_PREPARED.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1, max=10_000),
    default=8,
    help="Messages processed in parallel, each of a different key.",
)
@click.option("--timeout", type=Seconds(min=0.001), help="Kill and retry a command after this many seconds.")
@click.option(
    "--defer", type=Seconds(min=0.0), help="Make exit code 69 postpone the message by this many seconds, with no attempt charged."
)
@click.option("--drain", is_flag=True, help="Exit when no message is ready. Delayed and deferred messages remain.")
@click.option(
    "--grace",
    type=Seconds(min=0.0),
    help="On Ctrl-C or SIGTERM: wait at most this many seconds for running commands. Default: no limit.",
)
@click.option("--consumer", metavar="NAME", help="The consumer name, shown by explain.")
@click.option(
    "--no-breaker",
    is_flag=True,
    help="Turn off the circuit breaker, which pauses the worker while most commands fail. Implied by --drain.",
)
@click.option("use_shell", "--shell", is_flag=True, help="Run the commands with $SHELL -c.")
@click.option("--quiet", "-q", is_flag=True, help="Print no progress; log only warnings and errors.")
@click.option("as_json", "--json", is_flag=True, help="Print the totals as one JSON object at exit.")
def work(
    queue: Path,
    arguments: tuple[str, ...],
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
    Exit code 0 acks the message; 75 retries it. Any other code is a failure: the message is retried, with the end of stderr as
    the reason, until it is out of attempts. With --defer, 69 postpones it. While most commands fail, a circuit breaker tries
    one message at a time and charges no attempts (not with --drain).

    Exit code of this command: 0: stopped or drained. 1: the queue failed. 2: invalid usage.
    """
    name = str(queue)
    handler = Command(_command(list(arguments), use_shell), name, defer_seconds=defer)
    ahead = None
    if prepare is not None:
        ahead = Command(_command([prepare] if use_shell else _words(prepare), use_shell), name, defer_seconds=defer)
    terminal = messages()
    with strictq.open(queue, create=False) as q:
        worker = Worker(
            q,
            handler.process,
            None if ahead is None else ahead.prepare,
            concurrency=concurrency,
            timeout_seconds=timeout,
            prepare_timeout_seconds=timeout,
            consumer=consumer,
            breaker=None if no_breaker or drain else Breaker(),
        )
        log_to_stderr(quiet=quiet)
        started = time.monotonic()
        with _view(terminal, q, worker, quiet=quiet):
            worker.run(drain=drain, grace_seconds=grace)
        seconds = time.monotonic() - started
    stats = worker.stats()
    if as_json:
        emit(as_values(stats, seconds))
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


def _view(terminal: Terminal, q: strictq.Queue, worker: Worker, *, quiet: bool) -> AbstractContextManager[Any]:
    if quiet or not is_screen(sys.stderr):
        return nullcontext()
    started = time.monotonic()
    return line(lambda: progress(q.stats(), worker.stats(), time.monotonic() - started), terminal)


def progress(queue: strictq.Stats, worker: WorkerStats, seconds: float) -> str:
    """Return one line with the time left, the backlog and the worker's counts. A narrow terminal cuts its end off."""
    rate = worker.acked / seconds if seconds > 0 else 0.0
    left = f"{queue.depth / rate:,.0f} s" if rate > 0 and queue.depth else "-"
    return (
        f"time left {left}, backlog {queue.depth:,}, {rate:,.1f} per second; "
        f"{worker.running:,} running, {worker.prepared:,} prepared, {worker.acked:,} done, {worker.retried:,} retried"
    )


def summary(stats: WorkerStats, seconds: float) -> str:
    """Return the totals as one line of text."""
    told = [f"{many(stats.acked, 'message')} done", f"{stats.retried:,} retried"]
    if stats.poison:
        told.append(f"{stats.poison:,} out of attempts")
    if stats.deferred:
        told.append(f"{stats.deferred:,} deferred")
    return ", ".join([*told, f"{stats.lost:,} lost", f"in {seconds:.1f} s"])


def as_values(stats: WorkerStats, seconds: float) -> dict[str, Any]:
    """Return the totals as JSON values."""
    return {**stats.to_dict(), "seconds": seconds}
