"""The judgements as Markdown tables, and their places in the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import ROOT
from benchmarks.peers import ALL
from benchmarks.report import put

JSON: Final = ROOT / "docs" / "reference" / "conformance.json"
PAGE: Final = ROOT / "docs" / "reference" / "conformance.md"
README: Final = ROOT / "README.md"
README_ROWS: Final = ("one-holder", "redrive", "late-ack", "killed-worker", "processes")
"""The scenarios of the README's table. The page has all of them."""
MARKS: Final = {"passes": "yes", "fails": "**no**", "not offered": "–"}
KEY: Final = (
    "yes: passes. –: not offered: the documentation makes no such claim. If it was tried all the same, a word says what "
    "happened. "
    "*lost*: a message was lost; *reordered*: a message was delivered before an earlier message of its key was done; "
    "*doubled*: a message was delivered twice"
)


def table(record: dict[str, Any], scenarios: Iterable[str] | None = None) -> str:
    """Return a table with a row per scenario (default: all) and a column per queue."""
    names = list(record["versions"])
    lines = [f"| | {' | '.join(_heading(name, record) for name in names)} |", f"|---|{'---|' * len(names)}"]
    for scenario in record["scenarios"] if scenarios is None else scenarios:
        results = record["results"][scenario]
        lines.append(f"| {record['scenarios'][scenario]['title']} | {' | '.join(_mark(results[name]) for name in names)} |")
    return "\n".join(lines)


def _mark(result: dict[str, Any]) -> str:
    """Return the mark of a result. A queue cannot fail at a feature that it does not claim, but harm is shown anyway."""
    mark = MARKS[result["outcome"]]
    return f"{mark} {result['harm']}" if result["outcome"] == "not offered" and result["harm"] else mark


def _heading(name: str, record: dict[str, Any]) -> str:
    found = record["versions"][name]
    # For a server, the server's version is shown, not its client's.
    return f"{ALL[name].about.name} {found.get('redis-server') or next(iter(found.values()))}"


def details(record: dict[str, Any]) -> str:
    """Return the observations where a queue did not pass."""
    lines = []
    for scenario, about in record["scenarios"].items():
        seen: dict[tuple[str, str], list[str]] = {}
        for name, result in record["results"][scenario].items():
            if result["outcome"] != "passes" and result["seen"]:
                seen.setdefault((result["outcome"], result["seen"]), []).append(ALL[name].about.name)
        if seen:
            each = (f"{', '.join(names)} ({outcome}): {text}" for (outcome, text), names in seen.items())
            lines.append(f"- **{about['title']}.** {'; '.join(each)}.")
    return "\n".join(lines)


def versions(record: dict[str, Any]) -> str:
    """Return all versions as a sentence."""
    return "; ".join(", ".join(f"{d} {v}" for d, v in found.items()) for found in record["versions"].values()) + "."


def pages(record: dict[str, Any]) -> dict[Path, str]:
    """Return the pages with their tables replaced."""
    short = f"{table(record, README_ROWS)}\n\n{KEY}."
    seen = f"Versions: {versions(record)}\n\nObservations where the answer is not yes:\n\n{details(record)}"
    long = f"{table(record)}\n\n{KEY}.\n\n{seen}"
    return {README: put(README, "conformance", short), PAGE: put(PAGE, "conformance", long)}
