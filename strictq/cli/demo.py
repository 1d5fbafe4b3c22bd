"""`strictq demo`."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from strictq.cli import _demo_worker
from strictq.cli._arguments import PATH, Durability, Seconds
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many
from strictq.cli._demo_view import View, as_values, show
from strictq.cli._terminal import output
from strictq.demo import runner, working
from strictq.demo.events import BadInput, FileEvents, LedgerEvents, Source

CONSUMERS: Final = 4
EVENTS: Final = 20_000
EVENTS_PER_KEY: Final = 40
WORKER_EVENTS: Final = 60
WORKER_KEYS: Final = 4


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
    help="Events to send, JSON lines, plain or gzip. Default: made ones.",
)
@click.option("--key-field", metavar="FIELD", help="The field of --input that holds the key.")
@click.option(
    "--chain",
    metavar="OLD,NEW",
    help="Two fields of --input: OLD of each event is NEW of the one before it. Default: old,new if they are.",
)
@click.option("--queue", type=PATH, metavar="DIR", help="Make the queue here and keep it. Default: a temporary one.")
@click.option("--consumers", type=click.IntRange(min=1, max=64), help="Consumer processes.", show_default=str(CONSUMERS))
@click.option("--shards", type=click.IntRange(min=1, max=256), default=1, help="Shards of the queue.")
@click.option(
    "--durability",
    type=click.Choice(Durability),
    default=Durability.process,
    help="process: all survives kill -9, as here. full: a power cut too, at the disk's speed.",
)
@click.option(
    "--events",
    type=click.IntRange(min=1),
    help="How many events to make.",
    show_default=f"{EVENTS:,}; with --worker {WORKER_EVENTS}",
)
@click.option(
    "--keys",
    type=click.IntRange(min=1),
    help="How many keys they have.",
    show_default=f"one to {EVENTS_PER_KEY} events; with --worker {WORKER_KEYS}",
)
@click.option("--kill/--no-kill", default=None, help="Kill a consumer with -9.", show_default="kill")
@click.option(
    "--worker", is_flag=True, help="Instead of the consumers: one worker, which prepares ahead. Shows how that overlaps."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1, max=1000),
    help="With --worker: events at once, each of another key.",
    show_default="4",
)
@click.option(
    "--fetch",
    type=Seconds(min=0.0, max=60.0),
    help="With --worker: what prepare takes.",
    show_default="0.08",
)
@click.option(
    "--process",
    type=Seconds(min=0.0, max=60.0),
    help="With --worker: what process takes.",
    show_default="0.12",
)
@click.option("--plot", type=PATH, metavar="FILE", help="With --worker: draw what it did when, a .png or a .svg file.")
@click.option("as_json", "--json", is_flag=True, help="Print the result as one JSON object.")
def demo(
    input: Path | None,
    key_field: str | None,
    chain: str | None,
    queue: Path | None,
    consumers: int | None,
    shards: int,
    durability: Durability,
    events: int | None,
    keys: int | None,
    kill: bool | None,
    worker: bool,
    concurrency: int | None,
    fetch: float | None,
    process: float | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Send events through a queue, kill a consumer on the way, and verify that every key kept its order.

    With --worker, one worker of this process handles the events, and nothing is killed: prepare waits as a fetch would,
    and runs while process is busy with the event before it.

    Exit code 0: nothing was lost, doubled or reordered. 1: something was. 2: the input cannot be used.
    """
    consumers_only = {"--consumers": consumers, "--kill and --no-kill": kill}
    worker_only = {"--concurrency": concurrency, "--fetch": fetch, "--process": process, "--plot": plot}
    for name, value in (consumers_only if worker else worker_only).items():
        if value is not None:
            raise Failure(f"{name} {'can not be used with' if worker else 'needs'} --worker", USAGE)
    source = _source(input, key_field, chain, events, keys, (WORKER_EVENTS, WORKER_KEYS) if worker else (EVENTS, None))
    if worker:
        usual = working.Options(queue=Path())

        def options_for(directory: Path) -> working.Options:
            return working.Options(
                queue=directory, shards=shards, durability=durability.value, concurrency=concurrency or usual.concurrency,
                fetch_seconds=usual.fetch_seconds if fetch is None else fetch,
                process_seconds=usual.process_seconds if process is None else process,
            )  # fmt: skip

        return _demo_worker.run(source, options_for, _directory(queue), plot, as_json=as_json, kept=queue)
    with _directory(queue) as directory:
        options = runner.Options(
            queue=directory, consumers=consumers or CONSUMERS, shards=shards, durability=durability.value, kill=kill is not False
        )
        setup = f"{many(options.consumers, 'consumer')}, {many(shards, 'shard')}, durability {options.durability}"
        with View(source, setup, quiet=as_json) as view:
            try:
                outcome = runner.run(source, options, view)
            except runner.DemoFailed as e:
                raise Failure(str(e)) from None
    if as_json:
        print(json.dumps(as_values(outcome, source, queue)))
    else:
        show(output(), outcome, source, kill=options.kill)
    return OK if outcome.verdict.ok else WRONG


def _source(
    input: Path | None, key_field: str | None, chain: str | None, events: int | None, keys: int | None,
    usual: tuple[int, int | None],
) -> Source:  # fmt: skip
    if input is None:
        if key_field is not None or chain is not None:
            raise Failure("--key-field and --chain are for --input", USAGE)
        count = events or usual[0]
        return LedgerEvents.make(count, keys or usual[1] or max(1, count // EVENTS_PER_KEY))
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
