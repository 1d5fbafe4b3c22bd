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
@click.argument("out", type=PATH, metavar="OUT", help="A directory for its files and nothing else; made if missing.")
@click.option("--bodies/--no-bodies", default=True, help="With the bodies, where the queue kept them.")
@click.option("--forget", is_flag=True, help="Remove from the queue what is safely in a file.")
@quiet_option
@json_option
def export(queue: Path, out: Path, bodies: bool, forget: bool, quiet: bool, as_json: bool) -> int:
    """Write the records of finished messages that OUT does not have yet to Parquet files, a file per shard and range.

    Run it again and it goes on where it ended, also after a crash: no record is missing, none is there twice. The queue may be
    in use meanwhile. Needs the extra "history".

    Exit code 0: done, also where there was nothing new. 1: OUT holds something else or lacks a file, or reading or writing
    failed; files that were finished stay. 2: wrong usage, or no queue.
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
        tell(f"strictq: the queue had removed {gone} before this export: export more often, or let it keep more")
    elif kept == "off" and not done.records and not quiet:
        tell("strictq: this queue keeps no history now: strictq config QUEUE history=records")
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
@click.argument("out", type=PATH, metavar="OUT", help="The directory of an export.")
@click.option("--png", type=PATH, required=True, metavar="DIR", help="Where the pictures go; made if missing.")
@click.option("--window", type=Seconds(min=0.001), default=3600.0, help="Length of the windows.")
@json_option
def plot(out: Path, png: Path, window: float, as_json: bool) -> int:
    """Draw what an export holds with a local Spark: ages, throughput, outcomes, and durations where a worker measured them.

    Needs the extras "spark" and "plot", and Java 17 or newer.

    Exit code 0: done. 1: it failed. 2: wrong usage, or there is no directory OUT.
    """
    if not out.is_dir():
        raise Failure(f"there is no directory {out}", USAGE)
    if png.resolve() == out.resolve():
        raise Failure("--png must be another directory than OUT: pictures in it would stop the next export", USAGE)
    from strictq._extras import need_spark
    from strictq.history import plots

    need_spark()
    from strictq.spark._local import local_session

    with local_session("strictq history plot") as spark:
        saved = plots.save_plots(spark, out, png, window)
    if as_json:
        emit({"files": [str(file) for file in saved]})
    else:
        for file in saved:
            print(file)
    return OK
