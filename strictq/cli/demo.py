"""`strictq demo`."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

import strictq
from strictq.cli._arguments import PATH, Durability, Seconds, durability_option
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many, printable, tell
from strictq.cli._render import Alarm, Fine, Heading, alarming, bars, listing, show
from strictq.cli._words import emit
from strictq.demo import runner, working
from strictq.demo.consumer import SCHEMA
from strictq.demo.events import ledgers
from strictq.demo.timeline import Timeline
from strictq.demo.verify import KINDS

EVENTS: Final = 20_000
EVENTS_PER_KEY: Final = 40
WORKER_EVENTS: Final = 60
WORKER_KEYS: Final = 4
CONSUMERS_ONLY: Final = ("consumers", "kill")
WORKER_ONLY: Final = ("concurrency", "fetch", "process", "plot")
PLAIN_SECONDS: Final = 2.0
KEYS_SHOWN: Final = 4
CELLS_A_BAR: Final = 5
COLUMNS_MAX: Final = 100
PLOT_KEYS: Final = 12
PLOT_BARS: Final = 60

EXAMPLES: Final = """
strictq demo
strictq demo --worker --plot overlap.svg
strictq demo --consumers 8 --shards 4
"""


@command(EXAMPLES)
@click.option("--queue", type=PATH, metavar="DIR", help="Create the queue here and keep it. Default: a temporary directory.")
@click.option("--consumers", type=click.IntRange(1, 64), default=4, help="Number of consumer processes.")
@click.option("--shards", type=click.IntRange(1, 256), default=1, help="Number of shard files.")
@durability_option("What a completed send survives. process: kill -9. full: also a power cut; slower.", Durability.process)
@click.option("--events", type=click.IntRange(1), help=f"Number of events. [{EVENTS:,}; with --worker {WORKER_EVENTS}]")
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
@click.option("--plot", type=PATH, metavar="FILE", help="With --worker: draw the timeline to this .svg file.")
@click.option("as_json", "--json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def demo(
    context: click.Context, queue: Path | None, consumers: int, shards: int, durability: Durability, events: int | None,
    keys: int | None, kill: bool, worker: bool, concurrency: int, fetch: float, process: float, plot: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Send events through a queue, kill a consumer halfway, and verify the order of every key.

    With --worker, one worker in this process handles the events, and nothing is killed. Its prepare stage waits as a download
    would, while the process stage handles the previous event of the key.

    Exit code 0: no event was lost, duplicated or reordered. 1: at least one was. 2: invalid usage.
    """
    for name in CONSUMERS_ONLY if worker else WORKER_ONLY:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "--kill and --no-kill" if name == "kill" else f"--{name}"
            raise Failure(f"{option} {'cannot be used with' if worker else 'needs'} --worker", USAGE)
    if plot is not None and (plot.suffix.lower() != ".svg" or plot.is_dir() or not plot.parent.is_dir()):
        raise Failure(f"{plot}: --plot needs a .svg file in a directory that exists", USAGE)
    count = events or (WORKER_EVENTS if worker else EVENTS)
    made = ledgers(count, keys or (WORKER_KEYS if worker else max(1, count // EVENTS_PER_KEY)))
    setup = f"one worker, {many(concurrency, 'event')} in parallel" if worker else many(consumers, "consumer")
    timeline = None
    with _new_queue(queue, shards, durability) as q, bars(("sent", "processed"), count) as step:
        view = _View(count, step, quiet=as_json)
        view.tell(f"{many(count, 'event')} over {many(len({e.key for e in made}), 'key')}: account ledgers made for this demo")
        view.tell(f"{setup}, {many(shards, 'shard')}, durability {durability.value}")
        if worker:
            result, timeline = working.run(made, q, view, concurrency=concurrency, fetch=fetch, process=process)
            result["plot"] = None if plot is None else str(plot)
        else:
            result = runner.run(made, q, view, consumers=consumers, kill=kill)
    result["queue"] = None if queue is None else str(queue)
    if timeline is not None and plot is not None:
        plot.write_text(timeline.part(PLOT_KEYS, PLOT_BARS).to_svg(), encoding="utf-8")
    if as_json:
        emit(result)
    else:
        _show(result, timeline, kill=kill)
    return OK if result["ok"] else WRONG


@contextmanager
def _new_queue(path: Path | None, shards: int, durability: Durability) -> Iterator[strictq.Queue]:
    """Open a new queue with the table that records events. Without `path` it is temporary."""
    # The key states of an earlier run would break the links that the consumers verify.
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


class _View:
    """Reports progress on stderr: bars on a terminal, otherwise a line every two seconds."""

    def __init__(self, total: int, step: Callable[[Sequence[int]], None] | None, *, quiet: bool) -> None:
        """Report on a demo of `total` events. `step` updates the bars; None: there are none, and `quiet` prints nothing."""
        self._total = total
        self._step = step
        self._quiet = quiet and step is None
        self._next = time.monotonic() + PLAIN_SECONDS

    def progress(self, sent: int, processed: int) -> None:
        """Report the number of events sent and processed."""
        if self._step is not None:
            self._step((sent, processed))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            self.tell(f"sent {sent:,}, processed {processed:,} of {self._total:,}")

    def tell(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            tell(text)


def _show(result: dict[str, Any], timeline: Timeline | None, *, kill: bool) -> None:
    """Print the result, and the timeline of a worker."""
    counts = {"sent": "events", "processed": "processed", "keys": "keys", "redelivered after a kill": "redeliveries"}
    facts = [(label, f"{result[name]:,}") for label, name in counts.items()]
    facts += [(kind.replace("_", " "), alarming(result[kind])) for kind in KINDS]
    facts.append(("seconds", f"{result['seconds']:.1f}"))
    if timeline is not None:
        columns = min(shutil.get_terminal_size().columns, COLUMNS_MAX)
        part = timeline.part(KEYS_SHOWN, columns // CELLS_A_BAR)
        show(
            f"The first {part.seconds:.1f} s of {many(len(part.keys), 'key')}. Upper line: prepare (· and : in turn). "
            "Lower line: process (█ and ▓)."
        )
        show(*part.to_text(columns).splitlines())
        facts += [("preparing, seconds", f"{result['prepare_seconds']:.1f}")]
        facts += [("waiting for prepare, seconds", f"{result['waited_seconds']:.1f}")]
    else:
        held = {c["name"]: f", held {c['held']}" if c["held"] else "" for c in result["consumers"]}
        rows = [(c["name"], f"{c['processed']:,}", c["fate"] + held[c["name"]]) for c in result["consumers"]]
        show(Heading("Consumers"))
        listing(("name", "events", "fate"), rows, right=("events",))
        rate = result["processed"] / max(result["seconds"], 0.001)
        facts += [("consumers killed", f"{result['kills']:,}"), ("events per second", f"{rate:,.0f}")]
    show("", Heading("Events"), facts)
    if timeline is not None:
        show("", f"{result['hidden']:.0%} of the preparing time overlapped with the processing of earlier events.")
        if result["plot"]:
            show(f"The timeline is in {printable(result['plot'])}.")
    elif kill and not result["kills"]:
        show("", "No consumer was killed: the run was too short.")
    show("", "Verified by the balances inside the queue's transactions, and by the contents of all events, key by key.")
    if result["ok"]:
        show(Fine("OK: every event was processed exactly once, in the order of its key."))
        return
    wrongs = ", ".join(f"{result[kind]:,} {kind.replace('_', ' ')}" for kind in KINDS if result[kind])
    show(Alarm(f"WRONG: {wrongs}."), *(f"  {printable(problem)}" for problem in result["problems"]))
