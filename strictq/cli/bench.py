"""`strictq bench`."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import attrs
import click

from strictq.bench.measure import BenchPlan, Figure, measure
from strictq.cli._arguments import PATH, Durability, full_option, quiet_option
from strictq.cli._command import OK, USAGE, Failure, Stopping, command, printable
from strictq.cli._render import listing, show, waiting
from strictq.cli._words import emit

EXAMPLES: Final = """
strictq bench
strictq bench /var/lib/orders --durability process --batch 100
"""
MESSAGES: Final = {Durability.full: 20_000, Durability.process: 50_000}
SINGLES: Final = {Durability.full: 200, Durability.process: 2_000}


@command(EXAMPLES)
@click.argument(
    "directory",
    type=PATH,
    default=Path(),
    metavar="[DIR]",
    help="A directory on the disk to measure. The files are temporary. Default: the working directory.",
)
@full_option
@click.option(
    "--messages",
    type=click.IntRange(min=1, max=10_000_000),
    help="Messages per round. [20,000; with --durability process 50,000]",
)
@click.option("--batch", type=click.IntRange(min=1, max=100_000), default=1000, help="Messages per call.")
@click.option("--keys", type=click.IntRange(min=1, max=1_000_000), default=1000, help="Number of keys.")
@click.option("--body-bytes", type=click.IntRange(min=0, max=1_000_000), default=100, help="Size of each body, in bytes.")
@click.option(
    "--rounds", type=click.IntRange(min=1, max=100), default=3, help="Number of rounds. The figures are medians over the rounds."
)
@quiet_option
@click.option("as_json", "--json", is_flag=True, help="Print the result as one JSON object.")
def bench(
    directory: Path,
    durability: Durability,
    messages: int | None,
    batch: int,
    keys: int,
    body_bytes: int,
    rounds: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Measure send, receive and ack on your disk, and compare them with the floor: the same rows through bare SQLite.

    strictq and the floor alternate, round by round. The ratio is strictq's rate divided by the floor's. The rates hold for
    this machine under its current load.
    """
    if not directory.is_dir():
        raise Failure(f"{directory} is not a directory", USAGE)
    plan = BenchPlan(
        durability=durability.value, messages=messages or MESSAGES[durability], singles=SINGLES[durability], batch=batch,
        keys=keys, body_bytes=body_bytes, rounds=rounds,
    )  # fmt: skip
    figures: list[Figure] = []
    done = 0
    # Signals are delayed until the directory can be removed. Otherwise one could leave it there.
    with Stopping() as stopping:
        try:
            place = Path(tempfile.mkdtemp(prefix=".strictq-bench-", dir=directory))
        except OSError as e:
            raise Failure(f"{directory}: {e.strerror}", USAGE) from None
        try:
            with stopping.at_once(), waiting("measuring:", lambda: f"round {min(done + 1, rounds)} of {rounds}", quiet=quiet):
                for found in measure(place, plan):
                    figures = found
                    done += 1
        finally:
            shutil.rmtree(place, ignore_errors=True)
    if as_json:
        emit({**attrs.asdict(plan), **machine(directory), "figures": [attrs.asdict(f) for f in figures]})
    else:
        print_figures(figures, plan, directory)
    return OK


def machine(directory: Path) -> dict[str, Any]:
    """Return the machine's properties that affect the figures."""
    from strictq import __version__
    from strictq.bench.floor import sqlite_version

    return {
        "directory": str(directory.resolve()), "strictq_version": __version__, "sqlite_version": sqlite_version(),
        "python_version": platform.python_version(), "cpus": os.cpu_count(),
    }  # fmt: skip


def print_figures(figures: list[Figure], plan: BenchPlan, directory: Path) -> None:
    """Print the result as text."""
    show(
        f"{plan.messages:,} messages of {plan.body_bytes} bytes, {plan.keys:,} keys, batches of {plan.batch:,}, "
        f"durability {plan.durability}, {plan.rounds} rounds, on {printable(directory.resolve())}"
    )
    rows = [(f.what, f"{f.strictq:,.0f}", f"{f.floor:,.0f}", f"{f.ratio:.2f}", f"{f.low:.2f} to {f.high:.2f}") for f in figures]
    listing(("", "strictq/s", "floor/s", "ratio", "of rounds"), rows, right=("strictq/s", "floor/s", "ratio"))
