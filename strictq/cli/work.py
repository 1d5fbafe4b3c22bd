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
@click.argument("arguments", nargs=-1, required=True, metavar="-- COMMAND", help="The command, and its arguments, after --.")
@click.option("--prepare", metavar="COMMAND", help="Run ahead of its turn; its stdout is the file $STRICTQ_PREPARED.")
@click.option("--concurrency", type=click.IntRange(min=1, max=10_000), default=8, help="Messages at once, each of another key.")
@click.option("--timeout", type=Seconds(min=0.001), help="Kill a command that takes longer; retry.")
@click.option("--defer", type=Seconds(min=0.0), help="Exit code 69 postpones the message by this many seconds, uncharged.")
@click.option("--drain", is_flag=True, help="End when nothing is ready any more. Delayed and deferred messages stay.")
@click.option("--grace", type=Seconds(min=0.0), help="With Ctrl-C or SIGTERM: wait so long for what runs. Default: to its end.")
@click.option("--consumer", metavar="NAME", help="Who holds the keys, as explain shows it.")
@click.option("--no-breaker", is_flag=True, help="Go on starting commands while most of them fail. Implied by --drain.")
@click.option("use_shell", "--shell", is_flag=True, help="Hand the commands to $SHELL -c.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress; log warnings and errors only.")
@click.option("as_json", "--json", is_flag=True, help="Print the totals as one JSON object at the end.")
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
    """Run a command for every message: in order per key, in parallel over keys, until Ctrl-C or SIGTERM.

    The message is on its stdin; STRICTQ_KEY, STRICTQ_SEQ, STRICTQ_ATTEMPT and STRICTQ_TOKEN are in its environment. Its exit
    code says what becomes of the message: 0 done, 75 retry, anything else failed (retried, too, with its stderr as the reason,
    until it is out of attempts). With --defer, 69 postpones the message and does not count as an attempt. While most commands
    fail, one message at a time is tried, and no attempt is counted (not with --drain).

    Exit code 0: stopped, or drained. 1: the queue failed. 2: wrong usage.
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
        raise Failure(f"--prepare can't be read: {e}", USAGE) from None
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
    """The backlog, the time left for it, and what is in flight. A narrow terminal shows the beginning."""
    rate = worker.acked / seconds if seconds > 0 else 0.0
    left = f"{queue.depth / rate:,.0f} s" if rate > 0 and queue.depth else "-"
    return (
        f"time left {left}, backlog {queue.depth:,}, {rate:,.1f} a second; "
        f"{worker.running:,} at work, {worker.prepared:,} prepared, {worker.acked:,} done, {worker.retried:,} retried"
    )


def summary(stats: WorkerStats, seconds: float) -> str:
    """One line for a person."""
    told = [f"{many(stats.acked, 'message')} done", f"{stats.retried:,} retried"]
    if stats.poison:
        told.append(f"{stats.poison:,} out of attempts")
    if stats.deferred:
        told.append(f"{stats.deferred:,} deferred")
    return ", ".join([*told, f"{stats.lost:,} lost", f"in {seconds:.1f} s"])


def as_values(stats: WorkerStats, seconds: float) -> dict[str, Any]:
    """Everything, for programs."""
    return {**stats.to_dict(), "seconds": seconds}
