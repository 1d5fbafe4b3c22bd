"""`strictq demo`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

import strictq
from strictq.cli._arguments import PATH, Durability, Seconds
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many
from strictq.cli._demo_file import file_events
from strictq.cli._demo_view import show_crew, show_worker, viewing
from strictq.cli._words import emit
from strictq.demo import plot as drawing
from strictq.demo import runner, working
from strictq.demo.consumer import SCHEMA
from strictq.demo.events import Source, ledgers

EVENTS: Final = 20_000
EVENTS_PER_KEY: Final = 40
WORKER_EVENTS: Final = 60
WORKER_KEYS: Final = 4
CONSUMERS_ONLY: Final = ("consumers", "kill")
WORKER_ONLY: Final = ("concurrency", "fetch", "process", "plot")

EXAMPLES: Final = """
strictq demo
strictq demo --worker
strictq demo --input events.jsonl --key-field customer --consumers 8
"""


@command(EXAMPLES)
@click.option(
    "--input",
    type=PATH,
    metavar="FILE",
    help="Send the events in this file: JSON lines, plain or gzip. Default: generated events.",
)
@click.option("--key-field", metavar="FIELD", help="The field of --input that contains the key.")
@click.option("--queue", type=PATH, metavar="DIR", help="Create the queue here and keep it. Default: a temporary directory.")
@click.option("--consumers", type=click.IntRange(1, 64), default=4, help="Number of consumer processes.")
@click.option("--shards", type=click.IntRange(1, 256), default=1, help="Number of shard files.")
@click.option(
    "--durability",
    type=click.Choice(Durability),
    default=Durability.process,
    help="What a completed send survives. process: kill -9. full: also a power cut; slower.",
)
@click.option("--events", type=click.IntRange(1), help=f"Number of generated events. [{EVENTS:,}; with --worker {WORKER_EVENTS}]")
@click.option(
    "--keys", type=click.IntRange(1), help=f"Number of keys. [one per {EVENTS_PER_KEY} events; with --worker {WORKER_KEYS}]"
)
@click.option("--kill/--no-kill", default=True, help="Kill one consumer with kill -9.")
@click.option("--worker", is_flag=True, help="Run one worker that prepares ahead instead of consumers, and show the overlap.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=4,
    help="With --worker: events processed in parallel, each of a different key.",
)
@click.option("--fetch", type=Seconds(min=0.0, max=60.0), default=0.08, help="With --worker: how long prepare waits, in seconds.")
@click.option(
    "--process", type=Seconds(min=0.0, max=60.0), default=0.12, help="With --worker: how long process waits, in seconds."
)
@click.option("--plot", type=PATH, metavar="FILE", help="With --worker: draw the timeline to this .png or .svg file.")
@click.option("as_json", "--json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def demo(
    context: click.Context, input: Path | None, key_field: str | None, queue: Path | None, consumers: int, shards: int,
    durability: Durability, events: int | None, keys: int | None, kill: bool, worker: bool, concurrency: int,
    fetch: float, process: float, plot: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Send events through a queue, kill a consumer halfway, and verify the order of every key.

    With --worker, one worker in this process handles the events, and nothing is killed. Its prepare stage waits as a download
    would, while the process stage handles the previous event of the key.

    Exit code 0: no event was lost, duplicated or reordered. 1: at least one was. 2: the input cannot be used.
    """
    for name in CONSUMERS_ONLY if worker else WORKER_ONLY:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "--kill and --no-kill" if name == "kill" else f"--{name}"
            raise Failure(f"{option} {'cannot be used with' if worker else 'needs'} --worker", USAGE)
    if plot is not None:
        drawing.require(plot)
    source = _source(input, key_field, events, keys, worker=worker)
    setup = (
        f"one worker, {many(concurrency, 'event')} in parallel, prepare {fetch:g} s, process {process:g} s"
        if worker
        else many(consumers, "consumer")
    )
    setup += f", {many(shards, 'shard')}, durability {durability.value}"
    timeline = None
    with _new_queue(queue, shards, durability) as q, viewing(source, setup, quiet=as_json) as view:
        if worker:
            result, timeline = working.run(source, q, view, concurrency=concurrency, fetch=fetch, process=process)
            result["plot"] = None if plot is None else str(plot)
        else:
            result = runner.run(source, q, view, consumers=consumers, kill=kill)
    result["queue"] = None if queue is None else str(queue)
    if timeline is not None and plot is not None:
        drawing.draw(timeline, plot)
    if as_json:
        emit(result)
    elif timeline is not None:
        show_worker(result, timeline)
    else:
        show_crew(result, kill=kill)
    return OK if result["ok"] else WRONG


def _source(input: Path | None, key_field: str | None, events: int | None, keys: int | None, *, worker: bool) -> Source:
    if input is None:
        if key_field is not None:
            raise Failure("--key-field requires --input", USAGE)
        count = events or (WORKER_EVENTS if worker else EVENTS)
        return ledgers(count, keys or (WORKER_KEYS if worker else max(1, count // EVENTS_PER_KEY)))
    if events is not None or keys is not None:
        raise Failure("--events and --keys apply to generated events, not to --input", USAGE)
    if key_field is None:
        raise Failure("--input requires --key-field, the field that contains the key", USAGE)
    return file_events(input, key_field)


@contextmanager
def _new_queue(path: Path | None, shards: int, durability: Durability) -> Iterator[strictq.Queue]:
    """Open a new queue with the table that records events. Without `path` it is temporary."""
    # The key states of an earlier run would break the chain that the consumers verify.
    if path is not None and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise Failure(f"{path} exists already; the demo needs a new directory for its queue", USAGE)
    if path is not None and not path.parent.is_dir():
        raise Failure(f"{path.parent} is not a directory", USAGE)
    with (
        tempfile.TemporaryDirectory(prefix="strictq-demo-", ignore_cleanup_errors=True) as place,
        strictq.open(path or Path(place) / "demo.strictq", shards=shards, durability=durability.value) as q,
    ):
        q.app_schema(SCHEMA)
        yield q
