"""The rates and ratios of one run as a Markdown table: a row per point, a column per peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import ROOT
from benchmarks.report import put

from . import notes
from .bare import BARE
from .contest import OURS

JSON: Final = ROOT / "docs" / "pictures" / "peers.json"
QUIET_LOAD: Final = 1.0
PAGE: Final = ROOT / "docs" / "benchmarks.md"


def points(result: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Return the figures that are ratios, by point and by peer, in their order."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for f in result["figures"]:
        if f["unit"] == "times":
            point = (f["case"], f["what"], f["durability"], f["batch"], f["keys"], f["size"])
            found.setdefault(point, {})[f["against"]] = f
    return found


def fullest(by_peer: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figure with the most rounds of strictq. Beside a slow peer, only rounds that both ran are counted."""
    return max(by_peer.values(), key=lambda f: len(f["values"]))


def page(result: dict[str, Any], path: Path = PAGE) -> str:
    """Return the documentation page with its tables replaced."""
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    parts = [
        f"{result['form'].capitalize()} form, {result['rounds']} rounds: {versions}.",
        *_busy(result["versions"]["load"]),
        "Messages a second; in brackets, how many times as fast strictq was: in the median of the rounds, and from its worst to "
        "its best. The small numbers are those of the notes below the table.",
        matrix(result),
        goals(result),
        "Microseconds of processor time a message: of the program and, for Redis, of its server on the other core. "
        "The notes on the first table hold here, too.",
        processor(result),
        "Bytes written a message, in the mean of all rounds.",
        written(result),
        "One queue each.",
        alone(result),
        "Versions, settings as they were read back, and how a batch is done.",
        "\n".join(
            f"- {name}: {', '.join(f'{d} {v}' for d, v in about['versions'].items())}; {_settings(about)}; "
            f"batches: {about['batches']}"
            for name, about in result["peers"].items()
        ),
    ]
    if result["left_out"]:
        parts.append("No figure, and why:\n\n" + "\n".join(f"- {line}" for line in result["left_out"]))
    return put(path, "peers", "\n\n".join(part.strip() for part in parts))


def _busy(load: str) -> list[str]:
    """Return a warning if other programs were running, so that the figures are unreliable."""
    quiet = load.partition(" ")[0]
    if quiet.replace(".", "", 1).isdigit() and float(quiet) < QUIET_LOAD:
        return []
    return [f"**Provisional: other programs were running (load {load}). Only large ratios mean anything.**"]


def _settings(about: dict[str, Any]) -> str:
    return "; ".join(f"{d}: {', '.join(f'{k} {v}' for k, v in found.items() if v)}" for d, found in about["settings"].items())


def goals(result: dict[str, Any]) -> str:
    """Return the comparisons that reach their goal, those that do not, and those that cannot be judged."""
    compared = [f for f in result["figures"] if f["unit"] == "times"]
    doubtful = [f for f in compared if notes.miscounts(f["note"])]
    judged = [f for f in compared if f["goal"] is not None and f not in doubtful]
    parts = []
    if judged:
        parts += _reached(result, judged)
    elif not doubtful:
        return "Sizes this small are not judged."
    if doubtful:
        parts += [
            "Neither reached nor missed, because not as many were acked as were sent: messages were handed out twice, or not "
            "at all, so the rates are not those of the same work.",
            "\n".join(f"- {f['against']}: {_said(f)} ({_miscounted(f)})" for f in doubtful),
        ]
    return "\n\n".join(parts)


def _reached(result: dict[str, Any], judged: list[dict[str, Any]]) -> list[str]:
    below: dict[str, list[str]] = {}
    beyond = 0
    for by_peer in points(result).values():
        for f in by_peer.values():
            if f not in judged or f["met"]:
                continue
            said = _said(f)
            if BARE in by_peer and (of_bare := by_peer[BARE]["base"] / f["base"]) < f["goal"]["value"]:
                beyond += 1
                said += f" (the bare database: {of_bare:.1f}×)"
            below.setdefault(f"{f['against']} (goal {f['goal']['value']:g}×)", []).append(said)
    said = f"{sum(f['met'] for f in judged)} of {len(judged)} comparisons reach their goal in the median of their rounds."
    if beyond:
        said += f" Bare inserts, reads and deletes of rows do not reach them, either, at {beyond} of the others."
    if not below:
        return [said]
    return [f"{said} Those that do not:", "\n".join(f"- {a}: {'; '.join(b)}" for a, b in below.items())]


def _said(figure: dict[str, Any]) -> str:
    return f"{figure['what']} in batches of {figure['batch']:,} at {figure['durability']} {figure['median']:.2f}×"


def _miscounted(figure: dict[str, Any]) -> str:
    return ", ".join(f"{sent:,} sent, {acked:,} acked" for sent, acked in notes.miscounts(figure["note"]))


def written(result: dict[str, Any]) -> str:
    """Return the table of bytes written per message, over batch sizes."""
    names = _others(result)
    lines = [f"| durability | batch | strictq | {' | '.join(names)} |", f"|---|---|---|{'---|' * len(names)}"]
    for (case, _, durability, batch, _, _), by_peer in points(result).items():
        if case == "batch":
            ours = fullest(by_peer)["ours_bytes"]
            cells = [_whole(ours), *(_whole(by_peer[n]["base_bytes"]) if n in by_peer else "–" for n in names)]
            lines.append(f"| {durability} | {batch:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def processor(result: dict[str, Any]) -> str:
    """Return the table of processor time per message, at each point where it was measured."""

    def cells(by_peer: dict[str, dict[str, Any]], names: list[str]) -> list[str] | None:
        ours = fullest(by_peer).get("ours_processor")
        if ours is None:
            return None
        return [_micros(ours), *(_micros(by_peer[n]["base_processor"]) if n in by_peer else "–" for n in names)]

    return _by_point(result, "strictq", cells)


def _by_point(
    result: dict[str, Any],
    ours: str,
    cells: Callable[[dict[str, dict[str, Any]], list[str]], list[str] | None],
    mark: Callable[[dict[str, dict[str, Any]]], str] = lambda _: "",
) -> str:
    """Return a table with a row for each point that has cells: strictq's, headed `ours`, and one per peer.

    Args:
        mark: returns the text after the pattern's name.
    """
    names = _others(result)
    lines = [
        f"| pattern | durability | batch | keys | {ours} | {' | '.join(names)} |",
        f"|---|---|---|---|---|{'---|' * len(names)}",
    ]
    for (_, what, durability, batch, keys, _), by_peer in points(result).items():
        marked = what + mark(by_peer)
        if found := cells(by_peer, names):
            lines.append(f"| {marked} | {durability} | {batch:,} | {keys:,} | {' | '.join(found)} |")
    return "\n".join(lines)


def _others(result: dict[str, Any]) -> list[str]:
    return [name for name in result["peers"] if name != "strictq"]


def _micros(value: float | None) -> str:
    return "–" if value is None else f"{value:,.{1 if value < 100 else 0}f}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def alone(result: dict[str, Any]) -> str:
    """Return the table of the figures of single queues: latencies, memory and disk."""
    lines = ["| figure | durability | | note |", "|---|---|---|---|"]
    for f in result["figures"]:
        if f["unit"] != "times":
            # Missing features are listed once, below the first table.
            value = f"{f['median']:.3g}" if f["median"] < 100 else f"{f['median']:,.0f}"
            lines.append(f"| {f['what']} | {f['durability']} | {value} {f['unit']} | {f['note'].partition('; lacks')[0]} |")
    return "\n".join(lines)


def matrix(result: dict[str, Any]) -> str:
    """Return the table of rates and ratios, with the notes needed to read it."""
    footnotes = Footnotes()

    def mark(by_peer: dict[str, dict[str, Any]]) -> str:
        return footnotes.mark(n for f in by_peer.values() for n in notes.shown(f["note"]) if notes.of_the_point(n))

    def cells(by_peer: dict[str, dict[str, Any]], names: list[str]) -> list[str]:
        ours = [n for f in by_peer.values() for n in notes.shown(f["note"]) if notes.of_queue(n, OURS)]
        rate = f"{fullest(by_peer)['ours']:,.0f}{footnotes.mark(ours)}"
        return [rate, *(_cell(by_peer[name], footnotes) if name in by_peer else "–" for name in names)]

    parts = [_by_point(result, "strictq/s", cells, mark), footnotes.listed(), lacking(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def lacking(result: dict[str, Any]) -> str:
    """Return the features that each queue lacks, and so does not spend time on."""
    said = [
        f"- {name}: {', '.join(about['lacks']) or 'nothing of these'}" for name, about in result["peers"].items() if name != BARE
    ]
    if BARE in result["peers"]:
        said.append(f"- {BARE}: all of these; it is no queue")
    return "\n".join(["What each does not offer, and so does not pay for in these figures:", "", *said])


class Footnotes:
    """Numbered notes, in the order of their first use. Each text has one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, texts: Iterable[str]) -> str:
        """Return the numbers of these texts as a mark after a figure; empty if there are none."""
        numbers = sorted({self._numbers.setdefault(text, len(self._numbers) + 1) for text in texts})
        return f"<sup>{', '.join(map(str, numbers))}</sup>" if numbers else ""

    def listed(self) -> str:
        """Return all notes as a Markdown list."""
        return "\n".join(f"{number}. {text}" for text, number in self._numbers.items())


def _cell(figure: dict[str, Any], footnotes: Footnotes) -> str:
    low, high = min(figure["values"]), max(figure["values"])
    spread = f"; {_times(low)}–{_times(high)}" if len(figure["values"]) > 1 else ""
    own = (n for n in notes.shown(figure["note"]) if not notes.of_the_point(n) and not notes.of_queue(n, OURS))
    return f"{figure['base']:,.0f} ({_times(figure['median'])}×{spread}){footnotes.mark(own)}"


def _times(ratio: float) -> str:
    return f"{ratio:.{0 if ratio >= 10 else 1 if ratio >= 2 else 2}f}"
