"""`strictq stats`: once, or watched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import attrs
import typer

import strictq
from strictq import ConsumerStatus, Stats
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


@attrs.frozen
class Look:
    """What is in a queue, who streams it, and what each second brought since the look before."""

    found: Stats
    consumers: list[ConsumerStatus]
    rates: dict[str, float] | None = None

    @classmethod
    def at(cls, q: strictq.Queue) -> Look:
        """Now. The counts first: a shard that they can't read is left out of the rest."""
        found = q.stats()
        return cls(found, q.consumers())

    def since(self, before: Look, seconds: float) -> Look:
        """The same, with rates."""
        rates = {name: (getattr(self.found, name) - getattr(before.found, name)) / seconds for name in RATES}
        return attrs.evolve(self, rates=rates)

    @property
    def code(self) -> int:
        """The exit code."""
        return WRONG if any(s.quarantined for s in self.found.shards) else OK


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
            look = Look.at(q)
            _once(q, look, shards=shards, as_json=as_json)
            return look.code
        code = OK
        looks = _looks(q, interval or 2.0, count)
        for look in _json_lines(looks) if as_json else _watch(q, looks, shards=shards):
            code = look.code
        return code


def _looks(q: strictq.Queue, interval: float, count: int | None) -> Iterator[Look]:
    """One look after the other; the first one knows no rates."""
    before, then = Look.at(q), time.monotonic()
    yield attrs.evolve(before, rates=dict.fromkeys(RATES, 0.0))
    looks = 1
    while count is None or looks < count:
        time.sleep(max(0.0, then + interval - time.monotonic()))
        now, look = time.monotonic(), Look.at(q)
        yield look.since(before, now - then)
        before, then = look, now
        looks += 1


def _json_lines(looks: Iterator[Look]) -> Iterator[Look]:
    from strictq.cli._render import emit

    for look in looks:
        rates = {f"{name}_per_second": rate for name, rate in (look.rates or {}).items()}
        emit({"at": time.time(), **as_values(look), **rates})
        yield look


def _watch(q: strictq.Queue, looks: Iterator[Look], *, shards: bool) -> Iterator[Look]:
    from strictq.cli._render import output

    out = output()
    if not out.is_terminal:
        for look in looks:
            print(line(look), flush=True)
            yield look
        return
    from rich.live import Live

    # The last table stays on the screen.
    with Live(console=out, auto_refresh=False) as live:
        for look in looks:
            live.update(table(q, look, shards=shards), refresh=True)
            yield look


def line(look: Look) -> str:
    """One look on one line, for a log."""
    counts = " ".join(f"{name}={getattr(look.found, name)}" for name in STATES)
    speed = " ".join(f"{name}/s={rate:.1f}" for name, rate in (look.rates or {}).items())
    streams = "".join(
        f" [{printable(c.name)} lag={c.lag} age={c.age_seconds or 0:.1f} messages/s={_rate(c):.1f}]" for c in look.consumers
    )
    return f"{time.strftime('%H:%M:%S')} {counts} {speed}{streams}"


def _rate(consumer: ConsumerStatus) -> float:
    """Messages a second of a query, as far as it is one that runs."""
    query = consumer.query
    return query.messages_per_second if query is not None and query.state == "running" else 0.0


def _once(q: strictq.Queue, look: Look, *, shards: bool, as_json: bool) -> None:
    from strictq.cli._render import emit, output

    if as_json:
        emit(as_values(look))
    else:
        output().print(table(q, look, shards=shards))


def table(q: strictq.Queue, look: Look, *, shards: bool) -> Any:
    """Everything, for a person."""
    from rich.console import Group
    from rich.text import Text

    from strictq.cli._render import alarming, facts, size, span

    found, rates = look.found, look.rates
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
    if look.consumers:
        parts += [Text("named consumers", "bold"), facts((printable(c.name), _shown(c)) for c in look.consumers)]
    if shards:
        parts.append(Text("shards", "bold"))
        parts += [Text(f"{s.shard}: " + " ".join(f"{n}={getattr(s, n):,}" for n in STATES)) for s in found.shards]
    parts += [Text(f"shard {s.shard}: {printable(s.quarantined)}", "bold red") for s in found.shards if s.quarantined]
    return Group(*parts)


def _shown(consumer: ConsumerStatus) -> str:
    """A named consumer on a line."""
    from strictq.cli._render import short, span

    text = f"lag {consumer.lag:,}, {consumer.in_flight:,} of it in flight, oldest {span(consumer.age_seconds)}; "
    query = consumer.query
    if query is None:
        return text + ("held by a process" if consumer.active else "nobody holds it")
    named = f" {printable(query.name)}" if query.name else ""
    text += (
        f"query{named} {query.state}, {query.messages_per_second:,.1f} a second, batch {query.batch:,} of "
        f"{many(query.messages, 'message')} in {span(query.batch_seconds)}, seen {span(max(time.time() - query.at, 0.0))} ago"
    )
    return f"{text}: {short(query.error)}" if query.error else text


def as_values(look: Look) -> dict[str, Any]:
    """Everything, for programs."""
    found = look.found
    values = attrs.asdict(found)
    shards = [{**each, "depth": s.depth} for each, s in zip(values.pop("shards"), found.shards, strict=True)]
    consumers = [attrs.asdict(c) for c in look.consumers]
    return {**values, "depth": found.depth, "shards": shards, "consumers": consumers}
