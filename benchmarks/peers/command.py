"""`python -m benchmarks peers`: compare strictq with other queues, alternately in one run, at the same durability."""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report, sizes
from benchmarks.bench import Bench
from benchmarks.measure import Figure

from . import ALL, PEERS
from .bare import BARE, Bare
from .contest import OURS, Contest
from .patterns import PATTERNS
from .plots import draw
from .sizes import LONG, SHORT, TINY
from .table import JSON, PAGE, matrix, page

FORMS = {"long": (LONG, sizes.FULL), "short": (SHORT, sizes.SHORT), "tiny": (TINY, sizes.TINY)}


def main(arguments: Sequence[str]) -> int:
    """Run a command line. Return 0: every pattern ran; 1: a pattern failed; 2: invalid arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.figures is not None:
        _publish(json.loads(options.figures.read_text(encoding="utf-8")), options)
        return 0
    form = "short" if options.short else "tiny" if options.tiny else "long"
    peer_sizes, bench_sizes = FORMS[form]
    missing = {name: why for name in options.peer or PEERS if (why := PEERS[name].missing()) is not None}
    names = [name for name in options.peer or PEERS if name not in missing]
    if not names:
        parser.error("; ".join(f"{name}: {why}" for name, why in missing.items()))
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="strictq-peers-", dir=options.dir))
    try:
        versions = {**report.versions(directory), "Python's sqlite3": sqlite3.sqlite_version}
        contest = Contest(peer_sizes, Bench(bench_sizes, options.rounds or peer_sizes.rounds, directory), names)
        figures: list[Figure] = []
        failures: dict[str, str] = {}

        def found() -> dict[str, Any]:
            return {
                "form": form,
                "rounds": contest.bench.rounds,
                "versions": versions,
                "peers": {
                    name: _about(name, contest) for name in (OURS, *names, BARE) if name != BARE or name in contest.settings
                },
                "missing": missing,
                "left_out": contest.left_out,
                "figures": [f.as_json() for f in figures],
                "failures": failures,
            }

        for name in options.only or PATTERNS:
            _run(contest, name, figures, failures)
            if options.json is not None:  # written after each pattern, so that an interrupted run keeps its figures
                options.json.write_text(json.dumps(found(), indent=2) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    result = found()
    _print(result, figures)
    _publish(result, options)
    return 1 if failures else 0


def _run(contest: Contest, name: str, figures: list[Figure], failures: dict[str, str]) -> None:
    """Run a pattern. One that fails loses only its own figures."""
    started = time.perf_counter()
    print(f"{name} ...", end="", file=sys.stderr, flush=True)
    try:
        figures.extend(PATTERNS[name](contest))
    except Exception as error:
        failures[name] = f"{type(error).__name__}: {error}"
        print(file=sys.stderr)
        traceback.print_exc()
    print(f" {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


def _about(name: str, contest: Contest) -> dict[str, Any]:
    about = ALL.get(name, Bare).about
    return {
        "versions": about.versions(),
        "settings": contest.settings.get(name, {}),
        "batches": about.calls(),
        "lacks": about.lacks,
        "remark": about.remark,
    }


def _print(result: dict[str, Any], figures: Sequence[Figure]) -> None:
    title = f"strictq and its peers, {result['form']} form, {result['rounds']} rounds\n" + ", ".join(
        f"{name} {value}" for name, value in result["versions"].items()
    )
    report.print_table(figures, title)
    print()
    for name, about in result["peers"].items():
        print(f"{name}: {', '.join(f'{d} {v}' for d, v in about['versions'].items())}")
        for durability, settings in about["settings"].items():
            print(f"  {durability}, as read back: {', '.join(f'{k}={v!r}' for k, v in settings.items())}")
        print(f"  batches: {about['batches']}")
        if about["remark"]:
            print(f"  {about['remark']}")
        if about["lacks"]:
            print(f"  not offered: {', '.join(about['lacks'])}")
    for name, why in result["missing"].items():
        print(f"{name} was not measured: {why}")
    for line in result["left_out"]:
        print(f"no figure: {line}")
    for name, error in result["failures"].items():
        print(f"{name} failed: {error}")


def _publish(result: dict[str, Any], options: argparse.Namespace) -> None:
    if options.table is not None:
        options.table.write_text(matrix(result), encoding="utf-8")
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        for file in draw(result, options.plots):
            print(file)
    if options.write:
        JSON.parent.mkdir(exist_ok=True)
        JSON.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(result), encoding="utf-8")
        for file in draw(result, JSON.parent):
            print(file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers",
        description="strictq and other queues at the same durability, in turns, in one run.",
        epilog='Packages: pip install "strictq[peers]"; Redis needs a redis-server, too.',
    )
    report.add_forms(parser, PATTERNS, short="smaller sizes, minutes; default: the long form, an hour or two")
    parser.add_argument("--peer", nargs="+", choices=list(PEERS), metavar="NAME", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=report.rounds, help="rounds of each comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write rates and ratios to FILE, as a table in Markdown")
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="draw throughput over batch, keys and backlog into DIR (matplotlib)"
    )
    parser.add_argument("--write", action="store_true", help="write the record, pictures and tables of the documentation anew")
    parser.add_argument("--dir", type=Path, help="where the files lie; default: the directory for temporary files")
    return parser
