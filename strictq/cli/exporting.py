"""`strictq history export` and `strictq history plot`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from strictq.cli._arguments import Json, QueuePath, Quiet, looking, operating
from strictq.cli._command import OK, USAGE, Failure, many
from strictq.cli._render import Terminal, emit, messages


def export(
    queue: QueuePath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory for its files and nothing else; made if missing.")],
    bodies: Annotated[bool, typer.Option("--bodies/--no-bodies", help="With the bodies, where the queue kept them.")] = True,
    forget: Annotated[bool, typer.Option("--forget", help="Remove from the queue what is safely in a file.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Write the records of finished messages that OUT does not have yet to Parquet files, a file per shard and range.

    Run it again and it goes on where it ended, also after a crash: no record is missing, none is there twice. The queue may be
    in use meanwhile. Needs the extra "spark" for pyarrow; Spark itself is not used.

    Exit code 0: done, also where there was nothing new. 1: OUT holds something else or lacks a file, or reading or writing
    failed; files that were finished stay. 2: wrong usage, or no queue.
    """
    from strictq.spark import export_history

    terminal = messages()

    def complain(text: str) -> None:
        terminal.print(f"strictq: {text}", soft_wrap=True)

    started = time.monotonic()
    with operating(queue) if forget else looking(queue) as q:
        kept = q.config.history
        with _progress(terminal, quiet=quiet) as tell:
            done = export_history(q, out, bodies=bodies, forget=forget, on_progress=tell)
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
        terminal.print(f"{made}{forgotten}, {seconds:.1f} s", soft_wrap=True)
    if done.missing:
        gone = many(done.missing, "record")
        complain(f"the queue had removed {gone} before this export: export more often, or let it keep more")
    elif kept == "off" and not done.records and not quiet:
        complain("this queue keeps no history now: set history='records' with q.configure()")
    return OK


@contextmanager
def _progress(terminal: Terminal, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    if quiet or not terminal.is_terminal:
        yield None
        return
    columns = (TextColumn("records"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task("records", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def plot(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory of an export.")],
    png: Annotated[Path, typer.Option("--png", metavar="DIR", help="Where the pictures go; made if missing.")],
    window: Annotated[float, typer.Option(metavar="SECONDS", help="Length of the windows.")] = 3600.0,
    as_json: Json = False,
) -> int:
    """Draw what an export holds with a local Spark: ages, throughput, outcomes, and durations where a worker measured them.

    Needs the extras "spark" and "plot", and Java 17 or newer.

    Exit code 0: done. 1: it failed. 2: wrong usage, or there is no directory OUT.
    """
    if not out.is_dir():
        raise Failure(f"there is no directory {out}", USAGE)
    if not window > 0.0:
        raise Failure("--window must be a number of seconds over 0", USAGE)
    if png.resolve() == out.resolve():
        raise Failure("--png must be another directory than OUT: pictures in it would stop the next export", USAGE)
    from strictq.spark import plots
    from strictq.spark._extra import require

    require()
    from strictq.spark._local import local_session

    with local_session("strictq history plot") as spark:
        saved = plots.save_plots(spark, out, png, window)
    if as_json:
        emit({"files": [str(file) for file in saved]})
    else:
        for file in saved:
            print(file)
    return OK
