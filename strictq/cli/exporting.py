"""`strictq history export` and `strictq history plot`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from strictq.cli._arguments import PATH, Seconds, json_option, looking, operating, queue_argument, quiet_option
from strictq.cli._command import OK, USAGE, Failure, command, many, tell
from strictq.cli._render import is_screen
from strictq.cli._words import emit

EXAMPLES: Final = {
    "export": "strictq history export orders.strictq orders-history --forget",
    "plot": "strictq history plot orders-history --png pictures --window 600",
}


@command(EXAMPLES["export"])
@queue_argument
@click.argument(
    "out", type=PATH, metavar="OUT", help="The directory of the export. Created if missing; must contain nothing else."
)
@click.option("--bodies/--no-bodies", default=True, help="Include message bodies, if the queue keeps them.")
@click.option("--forget", is_flag=True, help="Delete exported records from the queue, once their file is on disk.")
@quiet_option
@json_option
def export(queue: Path, out: Path, bodies: bool, forget: bool, quiet: bool, as_json: bool) -> int:
    """Export the records of finished messages to Parquet files in OUT, one file per shard and range of records.

    Run it again to export new records only. After a crash it continues where it stopped: no record is missing or written
    twice. The queue may be in use meanwhile. Requires the extra "history".

    Exit code 0: done, even if there was nothing new. 1: OUT contains other files or lacks one, or reading or writing failed;
    finished files are kept. 2: invalid usage, or there is no such queue.
    """
    from strictq.history import export_history

    started = time.monotonic()
    with operating(queue) if forget else looking(queue) as q:
        kept = q.config.history
        with _progress(quiet=quiet) as step:
            done = export_history(q, out, bodies=bodies, forget=forget, on_progress=step)
    seconds = time.monotonic() - started
    if as_json:
        values: dict[str, Any] = {
            "records": done.records, "files": [str(file) for file in done.files], "missing": done.missing,
            "forgotten": done.forgotten, "upto": {str(shard): n for shard, n in done.upto.items()}, "seconds": seconds,
        }  # fmt: skip
        emit(values)
    elif not quiet:
        forgotten = f", {many(done.forgotten, 'record')} forgotten" if forget else ""
        made = f"{many(done.records, 'record')} in {many(len(done.files), 'new file')}"
        tell(f"{made}{forgotten}, {seconds:.1f} s")
    if done.missing:
        gone = many(done.missing, "record")
        tell(f"strictq: the queue deleted {gone} before this export; export more often, or keep more records")
    elif kept == "off" and not done.records and not quiet:
        tell("strictq: this queue keeps no history; turn it on with strictq config QUEUE history=records")
    return OK


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    if quiet or not is_screen(sys.stderr):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from strictq.cli._terminal import messages

    columns = (TextColumn("records"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task = bar.add_task("records", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@command(EXAMPLES["plot"])
@click.argument("out", type=PATH, metavar="OUT", help="The directory of the export.")
@click.option("--png", type=PATH, required=True, metavar="DIR", help="The directory of the pictures. Created if missing.")
@click.option("--window", type=Seconds(min=0.001), default=3600.0, help="Length of a window, in seconds.")
@json_option
def plot(out: Path, png: Path, window: float, as_json: bool) -> int:
    """Plot an export: ages, throughput, outcomes, and the durations that workers measured.

    Requires the extra "plot".

    Exit code 0: done. 1: it failed. 2: invalid usage, or there is no directory OUT.
    """
    if not out.is_dir():
        raise Failure(f"there is no directory {out}", USAGE)
    if png.resolve() == out.resolve():
        raise Failure("--png must not be OUT: pictures in OUT would make the next export fail", USAGE)
    from strictq.history import plots

    saved = plots.save_plots(out, png, window)
    if as_json:
        emit({"files": [str(file) for file in saved]})
    else:
        for file in saved:
            print(file)
    return OK
