"""`strictq stats`: once, or watched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import attrs
import typer

import strictq
from strictq import Stats
from strictq.cli._arguments import Json, QueuePath, looking
from strictq.cli._command import OK, USAGE, WRONG, Failure, add, many, printable

EXAMPLES: Final = """
strictq stats orders.strictq
strictq stats orders.strictq --watch --interval 5
strictq stats orders.strictq --json | jq .depth
"""
STATES: Final = ("ready", "in_flight", "delayed", "held", "dead")
TOTALS: Final = ("sends", "receives", "acks", "retries", "redeliveries", "expired", "dropped", "purged")
RATES: Final = ("sends", "acks")


def register(app: typer.Typer, name: str, text: str) -> None:
    """Add the command of this module."""
    add(app, name, text, stats, EXAMPLES)


def stats(
    queue: QueuePath,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C; rates as well.")] = False,
    interval: Annotated[float | None, typer.Option(min=0.1, max=86400, metavar="SECONDS", help="Between two looks. [2]")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many looks.")] = None,
    shards: Annotated[bool, typer.Option("--shards", help="Each shard's counts, too.")] = False,
    as_json: Json = False,
) -> int:
    """Count what is in a queue. It costs the same however much that is, and disturbs nobody.

    With --watch a terminal shows a live table; a pipe or a file gets one line a look (with --json: one object).

    Exit code 0: all shards were read. 1: a shard could not be read; it says which. 2: there is no such queue.
    """
    if not watch and (interval is not None or count is not None):
        raise Failure("--interval and --count are for --watch", USAGE)
    with looking(queue) as q:
        if not watch:
            found = q.stats()
            _once(q, found, shards=shards, as_json=as_json)
            return _code(found)
        code = OK
        looks = _looks(q, interval or 2.0, count)
        for found in _json_lines(looks) if as_json else _watch(q, looks, shards=shards):
            code = _code(found)
        return code


def _code(found: Stats) -> int:
    return WRONG if any(s.quarantined for s in found.shards) else OK


def _looks(q: strictq.Queue, interval: float, count: int | None) -> Iterator[tuple[Stats, dict[str, float]]]:
    """Counts, and what each second brought since the look before."""
    before, then = q.stats(), time.monotonic()
    yield before, dict.fromkeys(RATES, 0.0)
    looks = 1
    while count is None or looks < count:
        time.sleep(max(0.0, then + interval - time.monotonic()))
        now, found = time.monotonic(), q.stats()
        yield found, {name: (getattr(found, name) - getattr(before, name)) / (now - then) for name in RATES}
        before, then = found, now
        looks += 1


def _json_lines(looks: Iterator[tuple[Stats, dict[str, float]]]) -> Iterator[Stats]:
    from strictq.cli._render import emit

    for found, rates in looks:
        emit({"at": time.time(), **as_values(found), **{f"{name}_per_second": rate for name, rate in rates.items()}})
        yield found


def _watch(q: strictq.Queue, looks: Iterator[tuple[Stats, dict[str, float]]], *, shards: bool) -> Iterator[Stats]:
    from strictq.cli._render import output

    out = output()
    if not out.is_terminal:
        for found, rates in looks:
            print(line(found, rates), flush=True)
            yield found
        return
    from rich.live import Live

    # The last table stays on the screen.
    with Live(console=out, auto_refresh=False) as live:
        for found, rates in looks:
            live.update(table(q, found, rates, shards=shards), refresh=True)
            yield found


def line(found: Stats, rates: dict[str, float]) -> str:
    """One look on one line, for a log."""
    counts = " ".join(f"{name}={getattr(found, name)}" for name in STATES)
    speed = " ".join(f"{name}/s={rate:.1f}" for name, rate in rates.items())
    return f"{time.strftime('%H:%M:%S')} {counts} {speed}"


def _once(q: strictq.Queue, found: Stats, *, shards: bool, as_json: bool) -> None:
    from strictq.cli._render import emit, output

    if as_json:
        emit(as_values(found))
    else:
        output().print(table(q, found, None, shards=shards))


def table(q: strictq.Queue, found: Stats, rates: dict[str, float] | None, *, shards: bool) -> Any:
    """Everything, for a person."""
    from rich.console import Group
    from rich.text import Text

    from strictq.cli._render import alarming, facts, size, span

    now: list[tuple[str, str | Text]] = [(name.replace("_", " "), f"{getattr(found, name):,}") for name in STATES[:3]]
    now += [("held", alarming(found.held)), ("dead", alarming(found.dead)), ("keys", f"{found.lanes:,}")]
    now += [("oldest", span(found.oldest_age_seconds)), ("oldest not tried", span(found.first_attempt_age_seconds))]
    now += [("drained in", span(found.drain_seconds))]
    if found.outbox:
        now.append(("outbox", f"{found.outbox:,}"))
    if rates is not None:
        now += [(f"{name} a second", f"{rate:,.1f}") for name, rate in rates.items()]
    totals: list[tuple[str, str | Text]] = [(name, f"{getattr(found, name):,}") for name in TOTALS]
    totals += [("empty receives", f"{found.empty_receive_ratio:.0%}")]
    totals += [("on disk", f"{size(found.disk_bytes)}, {size(found.wal_bytes)} of it WAL")]
    head = Text(f"{printable(q.path)}: {many(q.shards, 'shard')}, durability {q.durability}", "bold", overflow="fold")
    parts: list[Any] = [head, facts(now), Text("since it was made", "bold"), facts(totals)]
    if shards:
        parts.append(Text("shards", "bold"))
        parts += [Text(f"{s.shard}: " + " ".join(f"{n}={getattr(s, n):,}" for n in STATES)) for s in found.shards]
    parts += [Text(f"shard {s.shard}: {printable(s.quarantined)}", "bold red") for s in found.shards if s.quarantined]
    return Group(*parts)


def as_values(found: Stats) -> dict[str, Any]:
    """Everything, for programs."""
    values = attrs.asdict(found)
    shards = [{**each, "depth": s.depth} for each, s in zip(values.pop("shards"), found.shards, strict=True)]
    return {**values, "depth": found.depth, "shards": shards}
