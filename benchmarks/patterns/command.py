"""`python -m benchmarks patterns`: what people do, as CPU time per message, beside older versions and other queues."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks import report
from benchmarks.measure import ROOT
from benchmarks.peers import PEERS
from benchmarks.peers.bare import BARE
from benchmarks.peers.table import PAGE

from . import programs
from .catalog import BOUNDS, PATTERNS, Pattern

THIS: Final = "strictq"
FORMS: Final[dict[str, tuple[float, int]]] = {"full": (1.0, 3), "short": (0.2, 1), "tiny": (0.0, 1)}
"""For each form, the part of the messages that are measured, and the rounds."""
README: Final = ROOT / "README.md"
README_ROWS: Final = ("one", "batch-100", "batch-1000", "full-one", "full-100", "consume-1", "consume-3")
"""The patterns of the README's table. The page has all of them."""
SECONDS_MAX: Final = 300.0
"""A program that takes longer is ended, and its side has no figure."""

Figures = dict[str, dict[str, list[float]]]
"""Microseconds per pattern and side, one for each round."""


def main(arguments: Sequence[str]) -> int:
    """Run a command line. Return 0: every pattern ran within its bounds; 1: otherwise; 2: invalid arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.figures is not None:
        _publish(json.loads(options.figures.read_text(encoding="utf-8")), options)
        return 0
    form = "short" if options.short else "tiny" if options.tiny else "full"
    missing = {name: why for name, kind in PEERS.items() if (why := kind.missing()) is not None}
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="strictq-patterns-", dir=options.dir))
    run = Run(form, directory, dict(options.against), frozenset(missing) if options.peers else frozenset(PEERS))
    try:
        versions = report.versions(directory)
        for number in range(options.rounds or FORMS[form][1]):
            for name in options.only or PATTERNS:
                run.round(PATTERNS[name], number)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    result = {
        "form": form, "versions": versions, "against": list(run.against), "missing": missing,
        "figures": run.figures, "failures": run.failures,
    }  # fmt: skip
    _publish(result, options)
    exceeded = [] if form == "tiny" else list(broken(run.figures))
    for line in exceeded:
        print(f"out of bounds: {line}")
    return 1 if run.failures or exceeded else 0


@attrs.define
class Run:
    """One run: each round runs every side of each pattern once, and another side is first in each round."""

    form: str
    directory: Path
    against: dict[str, Path]
    without: frozenset[str]
    figures: Figures = attrs.field(factory=dict)
    failures: dict[str, str] = attrs.field(factory=dict)

    def round(self, pattern: Pattern, number: int) -> None:
        sides = [*self._sides(pattern)]
        turn = number % len(sides)
        print(f"{pattern.name} ...", end="", file=sys.stderr, flush=True)
        for name, run in sides[turn:] + sides[:turn]:
            path = self.directory / "queue"
            path.mkdir()
            try:
                micros = run(path)
            except Exception as error:
                # One side that fails, such as an older version without a feature, loses only its own figure.
                if name == THIS:
                    self.failures[pattern.name] = f"{type(error).__name__}: {error}"
                print(f" {name} failed: {error}", end="", file=sys.stderr)
            else:
                self.figures.setdefault(pattern.name, {}).setdefault(name, []).append(micros)
            finally:
                shutil.rmtree(path)
        done = self.figures.get(pattern.name, {}).get(THIS, [])
        print(f" {done[-1]:.1f} µs" if done else "", file=sys.stderr, flush=True)

    def _sides(self, pattern: Pattern) -> Iterator[tuple[str, Callable[[Path], float]]]:
        part = FORMS[self.form][0]
        number = max(int(pattern.number * part), pattern.options.get("batch", 1), 20)
        options: dict[str, Any] = {"number": number, **pattern.options}
        if self.form == "tiny":
            options.update({k: min(v, 200) for k, v in options.items() if k in ("keys", "behind", "pending", "number", "batch")})
        for name, checkout in {THIS: ROOT, **self.against}.items():
            yield name, lambda path, c=checkout: _ours(c, pattern.program, path, options)
        theirs = {"number": options["number"], **pattern.their_options}
        theirs["batch"] = min(theirs.get("batch", 1), options["number"])
        for name in pattern.others:
            if name not in self.without:
                yield name, lambda path, n=name: _others(n, pattern.their_program, path, theirs)


def _ours(checkout: Path, program: str, path: Path, options: dict[str, Any]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return _micros([programs.__file__, program], {"path": str(path / "queue.strictq"), **options}, environment, path)


def _others(name: str, program: str, path: Path, options: dict[str, Any]) -> float:
    return _micros(["-m", "benchmarks.patterns.others", program], {"path": str(path), "peer": name, **options}, None, ROOT)


def _micros(words: list[str], arguments: dict[str, Any], environment: dict[str, str] | None, directory: Path) -> float:
    done = subprocess.run(
        [sys.executable, *words, json.dumps(arguments)], cwd=directory, env=environment, capture_output=True, text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return float(json.loads(done.stdout)["micros"])


def broken(figures: Figures) -> Iterator[str]:
    """Yield the bounds that the medians of this version exceed."""
    for bound in BOUNDS:
        found = [figures.get(name, {}).get(THIS) for name in (bound.pattern, bound.base) if name]
        values = [v for v in found if v]
        if len(values) < (2 if bound.base else 1):
            continue
        reached = ratio(*values) if bound.base else statistics.median(values[0])
        if reached > bound.most:
            yield f"{bound.said()}; it is {reached:.3g}"


def ratio(ours: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(ours, base, strict=False))


def table(figures: Figures, sides: Sequence[str]) -> str:
    """Return the figures as a Markdown table: a row for each pattern, a column for each side that has any."""
    names = [n for n in sides if any(n in found for found in figures.values())]
    lines = [f"| pattern | {THIS} | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for name, found in figures.items():
        if ours := found.get(THIS):
            cells = [_cell(ours, found[n]) if n in found else "–" for n in names]
            lines.append(f"| {PATTERNS[name].what} | {' | '.join([_number(ours), *cells])} |")
    return "\n".join(lines)


def _cell(ours: Sequence[float], theirs: Sequence[float]) -> str:
    measured = min(map(statistics.median, (ours, theirs))) > 0
    return f"{_number(theirs)} ({ratio(ours, theirs):.2f}×)" if measured else _number(theirs)


def _number(values: Sequence[float]) -> str:
    value = statistics.median(values)
    # A pattern may be the difference of two runs. If it is smaller than their noise, there is no figure.
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}" if value > 0 else "–"


def _publish(result: dict[str, Any], options: argparse.Namespace) -> None:
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    figures: Figures = result["figures"]
    head = f"{result['form'].capitalize()} form: {versions}.\n\n"
    text = head + table(figures, (*result["against"], BARE, *PEERS))
    print(text)
    for name, why in result["missing"].items():
        print(f"{name} was not measured: {why}")
    for name, error in result["failures"].items():
        print(f"{name} failed: {error}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.write:
        PAGE.write_text(report.put(PAGE, "patterns", text), encoding="utf-8")
        if figures.keys() >= set(README_ROWS):
            short = table({name: figures[name] for name in README_ROWS}, (BARE, *PEERS))
            README.write_text(report.put(README, "patterns", head + short), encoding="utf-8")


def _version(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and (Path(path) / "strictq").is_dir()):
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=CHECKOUT, a directory with a package strictq")
    return name, Path(path).resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks patterns",
        description="What people do with a queue, as CPU microseconds per message over all processes.",
    )
    report.add_forms(parser, PATTERNS, short="fewer messages, one round; default: the full form")
    parser.add_argument(
        "--against", action="append", default=[], type=_version, metavar="NAME=CHECKOUT",
        help="measure another version of strictq beside this one, from its checkout; may be repeated",
    )  # fmt: skip
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without other queues")
    parser.add_argument("--rounds", type=report.rounds, help="rounds of each pattern; default: 3, in the other forms 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--write", action="store_true", help="write the table of the documentation anew")
    parser.add_argument("--dir", type=Path, help="where the files lie; default: the directory for temporary files")
    return parser
