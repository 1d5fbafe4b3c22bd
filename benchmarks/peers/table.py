"""Rates and ratios of one run as a table in Markdown: a line for each point, a column for each peer."""

from __future__ import annotations

from typing import Any


def points(result: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """The figures that are ratios, by point and by peer, in their order."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for f in result["figures"]:
        if f["unit"] == "times":
            point = (f["case"], f["what"], f["durability"], f["batch"], f["keys"], f["size"])
            found.setdefault(point, {})[f["against"]] = f
    return found


def matrix(result: dict[str, Any]) -> str:
    """Messages a second of everybody and, in brackets, how many times as fast strictq was in the median of the rounds."""
    names = [name for name in result["peers"] if name != "strictq"]
    lines = [
        f"| pattern | durability | batch | keys | strictq/s | {' | '.join(names)} |",
        f"|---|---|---|---|---|{'---|' * len(names)}",
    ]
    for (_, what, durability, batch, keys, _), by_peer in points(result).items():
        rate = next(iter(by_peer.values()))["ours"]
        cells = [_cell(by_peer.get(name)) for name in names]
        lines.append(f"| {what} | {durability} | {batch:,} | {keys:,} | {rate:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "–"
    median = figure["median"]
    return f"{figure['base']:,.0f} ({median:.{0 if median >= 10 else 1 if median >= 2 else 2}f}×)"
