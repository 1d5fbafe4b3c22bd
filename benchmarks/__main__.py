"""`python -m benchmarks`: run the cases, print one table, and write JSON."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from . import report
from .bench import Bench, Case
from .cases import SUITES
from .measure import Figure
from .sizes import FULL, SHORT, TINY

COMMANDS: Final = {
    "patterns": "patterns.command",
    "peers": "peers.command",
    "conformance": "conformance.command",
    "console": "console",
    "outage": "outage",
    "overload": "overload.command",
    "ranges": "ranges",
    "remote": "remote",
    "sqs": "sqs",
    "takeover": "takeover",
}
"""The commands other than the cases: `python -m benchmarks peers`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Return 0: every case ran, whether or not it met its goal; 1: a case failed; 2: invalid arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        # Imported late: the compared libraries must not be loaded where the import of strictq is measured.
        command: Callable[[Sequence[str]], int] = importlib.import_module(f".{COMMANDS[arguments[0]]}", __package__).main
        return command(arguments[1:])
    parser = _parser()
    options = parser.parse_args(arguments)
    cases = SUITES[options.suite]
    if unknown := [name for name in options.only or () if name not in cases]:
        parser.error(f"there is no case {unknown[0]}; the cases are {', '.join(cases)}")
    sizes = SHORT if options.short else TINY if options.tiny else FULL
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="strictq-benchmarks-", dir=options.dir))
    try:
        _keep_bytecode(directory / "bytecode")
        bench = Bench(sizes, options.rounds or sizes.rounds, directory)
        versions = report.versions(directory)
        figures, failures = _run(bench, {name: cases[name] for name in options.only or cases})
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    title = f"strictq benchmarks, {sizes.name} form, {bench.rounds} rounds\n" + ", ".join(
        f"{name} {value}" for name, value in versions.items()
    )
    report.print_table(figures, title)
    for name, error in failures.items():
        print(f"{name} failed: {error}")
    if options.json is not None:
        report.write_json(options.json, sizes.name, versions, figures, failures)
    return 1 if failures else 0


def _keep_bytecode(directory: Path) -> None:
    """Make child processes use compiled modules, like those of an installed package, whatever this environment sets."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) is not None:
        os.environ["PYTHONPYCACHEPREFIX"] = str(directory)


def _run(bench: Bench, cases: dict[str, Case]) -> tuple[list[Figure], dict[str, str]]:
    """Run the cases. A case that fails loses only its own figures."""
    figures: list[Figure] = []
    failures: dict[str, str] = {}
    for name, case in cases.items():
        started = time.perf_counter()
        # No progress bar, because its thread would run during the measurements.
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        try:
            figures.extend(case(bench))
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
            print(file=sys.stderr)
            traceback.print_exc()
        print(f" {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    return figures, failures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Speed of strictq, as ratios to a floor.",
        epilog=f"Further commands, each with --help: {', '.join(COMMANDS)}.",
    )
    parser.add_argument("suite", nargs="?", choices=list(SUITES), default="queue", help="which cases; default: queue")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="smaller sizes, about a minute; default: the full form")
    form.add_argument("--tiny", action="store_true", help="a few seconds; shows that everything runs, measures nothing")
    names = "; ".join(f"{suite}: {', '.join(cases)}" for suite, cases in SUITES.items())
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"these cases of the suite ({names})")
    parser.add_argument("--rounds", type=report.rounds, help="rounds of each comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--dir", type=Path, help="where the files lie; default: the directory for temporary files")
    return parser


if __name__ == "__main__":
    sys.exit(main())
