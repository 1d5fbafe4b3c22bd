"""`python -m benchmarks overload`: how long the other tenants of a shared queue wait, with each measure off and on."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks import report
from benchmarks.measure import ROOT

from .plots import draw
from .scenarios import FORMS, TROUBLES
from .stage import run

PAGE: Final = ROOT / "docs" / "howto" / "overload.md"
PICTURES: Final = ROOT / "docs" / "pictures"
JSON: Final = PICTURES / "overload.json"


def main(arguments: Sequence[str]) -> int:
    """Run a command line. Return 0: every trouble ran; 1: one failed; 2: invalid arguments."""
    options = _parser().parse_args(arguments)
    if options.figures is not None:
        _publish(json.loads(options.figures.read_text(encoding="utf-8")), options)
        return 0
    name = "short" if options.short else "tiny" if options.tiny else "long"
    form = FORMS[name] if options.seconds is None else attrs.evolve(FORMS[name], seconds=options.seconds)
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="strictq-overload-", dir=options.dir))
    failures: dict[str, str] = {}
    figures: dict[str, dict[str, Any]] = {}
    result = {
        "form": name, "sizes": attrs.asdict(form), "versions": report.versions(directory), "figures": figures,
        "failures": failures,
    }  # fmt: skip
    try:
        for trouble in options.only or TROUBLES:
            for measure, what in TROUBLES[trouble].measures.items():
                print(f"{trouble}: {what.what} ...", end="", file=sys.stderr, flush=True)
                place = directory / f"{trouble}-{measure}"
                place.mkdir()
                try:
                    found = run(TROUBLES[trouble], what, form, place)
                except Exception as error:  # a run that fails loses only its own figures
                    failures[f"{trouble} {measure}"] = f"{type(error).__name__}: {error}"
                    print(f" {error}", file=sys.stderr)
                    continue
                figures.setdefault(trouble, {})[measure] = found
                print(f" p99 {_seconds(found['p99'])}", file=sys.stderr, flush=True)
                shutil.rmtree(place)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _publish(result, options)
    for which, error in failures.items():
        print(f"{which} failed: {error}")
    return 1 if failures else 0


def table(result: dict[str, Any]) -> str:
    """Return the figures as Markdown: a table for each trouble."""
    return "\n\n".join("\n".join(_rows(trouble, found)) for trouble, found in result["figures"].items())


def _rows(trouble: str, found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"**{trouble}.** {TROUBLES[trouble].what}"
    yield ""
    yield "| measure | p50 | p99 | p99 / without | not started | oldest without a start | empty receives | left | drained |"
    yield "|---|---|---|---|---|---|---|---|---|"
    without = found.get("off", {}).get("p99")
    for measure, one in found.items():
        ratio = f"{one['p99'] / without:.2f}" if without else "–"
        age, drained = one["first_attempt_age"], one["drained"]
        backlog = TROUBLES[trouble].backlog
        cells = [
            TROUBLES[trouble].measures[measure].what, _seconds(one["p50"]), _seconds(one["p99"]), ratio,
            f"{one['unstarted']} of {one['sent']}", "–" if age is None else _seconds(age),
            f"{one['empty_receives']} of {one['empty_receives'] + one['claims']}", f"{one['left']:,}",
            "no" if backlog and drained is None else _seconds(drained) if backlog and measure != "quiet" else "–",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def text(result: dict[str, Any]) -> str:
    """Return the tables with what they depend on."""
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    sizes = result["sizes"]
    return (
        f"{result['form'].capitalize()} form, {sizes['seconds']:g} s each, a backlog of {sizes['backlog']:,}: {versions}.\n\n"
        f"{table(result)}"
    )


def _publish(result: dict[str, Any], options: argparse.Namespace) -> None:
    print(text(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        for file in draw(result, options.plots):
            print(file)
    if options.write:
        JSON.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(report.put(PAGE, "overload", text(result)), encoding="utf-8")
        for file in draw(result, PICTURES):
            print(file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks overload",
        description="How long messages of innocent tenants wait from send to start while another tenant is in trouble.",
    )
    report.add_forms(parser, TROUBLES, short="a minute on an idle machine; default: the long form")
    parser.add_argument("--seconds", type=float, help="seconds of each run; default: the form's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the waits over time into DIR (matplotlib)")
    parser.add_argument("--write", action="store_true", help="write the record, pictures and tables of the documentation anew")
    parser.add_argument("--dir", type=Path, help="where the files lie; default: the directory for temporary files")
    return parser
