"""Rates and ratios of one run as a table in Markdown: a line for each point, a column for each peer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import ROOT
from benchmarks.report import put

from .bare import BARE

JSON: Final = ROOT / "docs" / "pictures" / "peers.json"
QUIET_LOAD: Final = 1.0
PAGE: Final = ROOT / "docs" / "benchmarks.md"


def points(result: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """The figures that are ratios, by point and by peer, in their order."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for f in result["figures"]:
        if f["unit"] == "times":
            point = (f["case"], f["what"], f["durability"], f["batch"], f["keys"], f["size"])
            found.setdefault(point, {})[f["against"]] = f
    return found


def page(result: dict[str, Any], path: Path = PAGE) -> str:
    """The page of the documentation with its tables put in anew."""
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    parts = [
        f"{result['form'].capitalize()} form, {result['rounds']} rounds: {versions}.",
        *_busy(result["versions"]["load"]),
        "Messages a second; in brackets, how many times as fast strictq was in the median of the rounds.",
        matrix(result),
        goals(result),
        "Microseconds of processor time a message: of the program and, for Redis, of its server on the other core.",
        processor(result),
        "Bytes written a message, in the mean of all rounds.",
        written(result),
        "One queue each.",
        alone(result),
        "Versions, settings as they were read back, how a batch is done, and what is not offered.",
        "\n".join(
            f"- {name}: {', '.join(f'{d} {v}' for d, v in about['versions'].items())}; {_settings(about)}; "
            f"batches: {about['batches']}; not offered: {', '.join(about['lacks']) or 'nothing of these'}"
            for name, about in result["peers"].items()
        ),
    ]
    if result["left_out"]:
        parts.append("No figure, and why:\n\n" + "\n".join(f"- {line}" for line in result["left_out"]))
    return put(path, "peers", "\n\n".join(part.strip() for part in parts))


def _busy(load: str) -> list[str]:
    """A warning where the figures can't be trusted: other programs had the machine, too."""
    quiet = load.partition(" ")[0]
    if quiet.replace(".", "", 1).isdigit() and float(quiet) < QUIET_LOAD:
        return []
    return [f"**Provisional: other programs were running (load {load}). Only large ratios mean anything.**"]


def _settings(about: dict[str, Any]) -> str:
    return "; ".join(f"{d}: {', '.join(f'{k} {v}' for k, v in found.items() if v)}" for d, found in about["settings"].items())


def goals(result: dict[str, Any]) -> str:
    """What reaches its goal, and what does not."""
    judged = [f for f in result["figures"] if f["goal"] is not None]
    if not judged:
        return "Sizes this small are not judged."
    below: dict[str, list[str]] = {}
    beyond = 0
    for by_peer in points(result).values():
        for f in by_peer.values():
            if f["goal"] is None or f["met"]:
                continue
            said = f"{f['what']} in batches of {f['batch']:,} at {f['durability']} {f['median']:.2f}×"
            if BARE in by_peer and (of_bare := by_peer[BARE]["base"] / f["base"]) < f["goal"]["value"]:
                beyond += 1
                said += f" (the bare database: {of_bare:.1f}×)"
            below.setdefault(f"{f['against']} (goal {f['goal']['value']:g}×)", []).append(said)
    met = sum(f["met"] for f in judged)
    said = f"{met} of {len(judged)} comparisons reach their goal."
    if beyond:
        said += f" Bare inserts, reads and deletes of rows do not reach them, either, at {beyond} of the others."
    return "\n".join([f"{said} Those that do not:", "", *(f"- {a}: {'; '.join(b)}" for a, b in below.items())])


def written(result: dict[str, Any]) -> str:
    """Bytes written a message over batch sizes."""
    names = _others(result)
    lines = [f"| durability | batch | strictq | {' | '.join(names)} |", f"|---|---|---|{'---|' * len(names)}"]
    for (case, _, durability, batch, _, _), by_peer in points(result).items():
        if case == "batch":
            ours = next(iter(by_peer.values()))["ours_bytes"]
            cells = [_whole(ours), *(_whole(by_peer[n]["base_bytes"]) if n in by_peer else "–" for n in names)]
            lines.append(f"| {durability} | {batch:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def processor(result: dict[str, Any]) -> str:
    """Processor time a message at each point where it was counted."""

    def cells(by_peer: dict[str, dict[str, Any]], names: list[str]) -> list[str] | None:
        ours = next(iter(by_peer.values())).get("ours_processor")
        if ours is None:
            return None
        return [_micros(ours), *(_micros(by_peer[n]["base_processor"]) if n in by_peer else "–" for n in names)]

    return _by_point(result, "strictq", cells)


def _by_point(
    result: dict[str, Any], ours: str, cells: Callable[[dict[str, dict[str, Any]], list[str]], list[str] | None]
) -> str:
    """A line for each point that has cells: strictq's, headed `ours`, and one for each of the others."""
    names = _others(result)
    lines = [
        f"| pattern | durability | batch | keys | {ours} | {' | '.join(names)} |",
        f"|---|---|---|---|---|{'---|' * len(names)}",
    ]
    for (_, what, durability, batch, keys, _), by_peer in points(result).items():
        if found := cells(by_peer, names):
            lines.append(f"| {what} | {durability} | {batch:,} | {keys:,} | {' | '.join(found)} |")
    return "\n".join(lines)


def _others(result: dict[str, Any]) -> list[str]:
    return [name for name in result["peers"] if name != "strictq"]


def _micros(value: float | None) -> str:
    return "–" if value is None else f"{value:,.{1 if value < 100 else 0}f}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def alone(result: dict[str, Any]) -> str:
    """The figures that are of one queue, latencies, memory and disk."""
    lines = ["| figure | durability | | note |", "|---|---|---|---|"]
    for f in result["figures"]:
        if f["unit"] != "times":
            # What a queue does not offer is said once, below.
            value = f"{f['median']:.3g}" if f["median"] < 100 else f"{f['median']:,.0f}"
            lines.append(f"| {f['what']} | {f['durability']} | {value} {f['unit']} | {f['note'].partition('; lacks')[0]} |")
    return "\n".join(lines)


def matrix(result: dict[str, Any]) -> str:
    """Messages a second of everybody and, in brackets, how many times as fast strictq was in the median of the rounds."""

    def cells(by_peer: dict[str, dict[str, Any]], names: list[str]) -> list[str]:
        return [f"{next(iter(by_peer.values()))['ours']:,.0f}", *(_cell(by_peer.get(name)) for name in names)]

    return _by_point(result, "strictq/s", cells) + "\n"


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "–"
    median = figure["median"]
    return f"{figure['base']:,.0f} ({median:.{0 if median >= 10 else 1 if median >= 2 else 2}f}×)"
