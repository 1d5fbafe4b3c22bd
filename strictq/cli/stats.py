"""`strictq stats`: once, or watched."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

import strictq
from strictq.cli._advice import in_words
from strictq.cli._arguments import Seconds, json_option, looking, place_argument
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many, printable
from strictq.cli._render import Alarm, Block, Heading, alarming, is_screen, show
from strictq.cli._words import emit, short, size, span, status_line

if TYPE_CHECKING:
    from strictq import ConsumerStatus, KeyDepth, OpenBreaker, Stats

EXAMPLES: Final = """
strictq stats orders.strictq
strictq stats orders.strictq --watch --interval 5
strictq stats orders.strictq --json | jq .depth
strictq stats sqs+https://queues.example/queue/orders.fifo
"""
STATES: Final = ("ready", "in_flight", "delayed", "held", "dead")
TOTALS: Final = (
    "sends", "receives", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "dead_letters", "rejected",
    "redriven",
)  # fmt: skip
RATES: Final = ("sends", "acks", "retries")
TOP_SHOWN: Final = 6
TOP_LANES_MAX: Final = 20_000
"""With more keys, the deepest ones are not searched repeatedly, because that takes three look-ups per key with messages."""


LIVE_FIELDS: Final = {"kind", "host", "pid", "slow", "affinity", "shards", "concurrency", "running", "busy_ratio"}
"""The fields of ConsumerStatus that streams do not have."""


class Look(NamedTuple):
    """A snapshot of a queue and its named consumers, with rates since the previous snapshot."""

    title: str
    found: Stats
    consumers: list[ConsumerStatus]
    top: list[KeyDepth] | None = None
    rates: dict[str, float] | None = None

    @classmethod
    def at(cls, q: strictq.Queue, *, top: bool = False) -> Look:
        """Take a snapshot. Read the counts first: they quarantine an unreadable shard, and the rest skips it."""
        found = q.stats()
        deepest = q.top_keys(TOP_SHOWN) if top and found.lanes <= TOP_LANES_MAX else None
        return cls(
            f"{printable(q.path)}: {many(q.shards, 'shard')}, durability {q.durability}",
            found,
            [c for c in q.consumers() if c.kind == "stream"],
            deepest,
        )

    def since(self, before: Look, seconds: float) -> Look:
        """Return this snapshot with rates since an earlier one."""
        rates = {name: (getattr(self.found, name) - getattr(before.found, name)) / seconds for name in RATES}
        return self._replace(rates=rates)

    @property
    def code(self) -> int:
        """The exit code."""
        return WRONG if any(s.quarantined for s in self.found.shards) else OK


@command(EXAMPLES)
@place_argument
@click.option("--watch", "-w", is_flag=True, help="Refresh until Ctrl-C, and show rates.")
@click.option("--interval", type=Seconds(min=0.1, max=86400), help="With --watch: seconds between two refreshes. [2]")
@click.option("--count", type=click.IntRange(min=1), help="With --watch: exit after this many refreshes.")
@click.option("--shards", is_flag=True, help="Show the counts of each shard.")
@json_option
def stats(queue: Path | str, watch: bool, interval: float | None, count: int | None, shards: bool, as_json: bool) -> int:
    """Show the state and totals of a queue. Does not block programs that use the queue.

    The cost depends on the number of delayed and held keys, not on the number of messages. With --watch, a terminal shows a
    live table; a pipe or a file gets one line (with --json, one object) per refresh. With a URL, it prints counts only.

    Exit code 0: every shard was read. 1: a shard could not be read; the output says which. 2: there is no such queue.
    """
    if not watch and (interval is not None or count is not None):
        raise Failure("--interval and --count require --watch", USAGE)
    if isinstance(queue, str):
        if watch or shards:
            raise Failure("--watch and --shards need a queue of this machine: an endpoint has no totals and no shards", USAGE)
        return _of_endpoint(queue, as_json)
    if not watch:
        with looking(queue) as q:
            look = Look.at(q)
            if as_json:
                emit(as_values(look))
            else:
                show(*blocks(look, shards=shards))
            return look.code
    code = OK
    looks = _looks(queue, interval or 2.0, count, top=not as_json and is_screen(sys.stdout))
    for look in _json_lines(looks) if as_json else _watch(looks, shards=shards):
        code = look.code
    return code


def _of_endpoint(url: str, as_json: bool) -> int:
    """Show what an endpoint tells of a queue."""
    with strictq.connect(url) as q:
        found = q.stats()
        if as_json:
            redrive = None if q.redrive is None else q.redrive.to_dict()
            emit({
                "fifo": q.is_fifo, "depth": found.depth, "ready": found.ready, "in_flight": found.in_flight,
                "delayed": found.delayed, "lease_seconds": q.lease_seconds, "redrive": redrive,
                "round_trip_seconds": found.round_trip_seconds,
            })  # fmt: skip
            return OK
        facts = [(name.replace("_", " "), f"{getattr(found, name):,}") for name in STATES[:3]]
        facts += [("lease", span(q.lease_seconds)), ("round trip", span(found.round_trip_seconds))]
        if q.redrive is not None:
            facts.append(("dead letters", f"after {many(q.redrive.receives_max, 'receive')}, to {printable(q.redrive.target)}"))
        show(Heading(f"{printable(q.path)}: a {'FIFO' if q.is_fifo else 'standard'} queue"), facts)
    return OK


def _looks(path: Path, interval: float, count: int | None, *, top: bool) -> Iterator[Look]:
    """Yield snapshots, `interval` seconds apart. The first has rates of 0.

    The queue is opened for each snapshot, because a living replica applies no changes while it is open.

    Args:
        top: include the deepest keys, unless there are too many keys.
    """

    def look() -> Look:
        with looking(path) as q:
            return Look.at(q, top=top)

    before, then = look(), time.monotonic()
    yield before._replace(rates=dict.fromkeys(RATES, 0.0))
    looks = 1
    while count is None or looks < count:
        time.sleep(max(0.0, then + interval - time.monotonic()))
        now, after = time.monotonic(), look()
        yield after.since(before, now - then)
        before, then = after, now
        looks += 1


def _json_lines(looks: Iterator[Look]) -> Iterator[Look]:
    for look in looks:
        rates = {f"{name}_per_second": rate for name, rate in (look.rates or {}).items()}
        emit({"at": time.time(), **as_values(look), **rates})
        yield look


def _watch(looks: Iterator[Look], *, shards: bool) -> Iterator[Look]:
    if not is_screen(sys.stdout):
        for look in looks:
            print(line(look), flush=True)
            yield look
        return
    from rich.live import Live

    from strictq.cli._terminal import group, output
    from strictq.cli._watching import Watch

    console = output()
    plain = codecs.lookup(console.encoding).name != "utf-8"
    watch: Watch | None = None
    # The last screen stays visible.
    with Live(console=console, auto_refresh=False) as live:
        for look in looks:
            watch = watch or Watch(look.title, plain=plain)
            watch.take(look.found, look.rates or {})
            more = group([*_further(look, shards=shards), f"{time.strftime('%H:%M:%S')}, Ctrl-C ends it"])
            live.update(watch.shown(look.found, look.top, [more], console.width), refresh=True)
            yield look


def line(look: Look) -> str:
    """Return a snapshot as one line, for a log."""
    counts = " ".join(f"{name}={getattr(look.found, name)}" for name in STATES)
    speed = " ".join(f"{name}/s={rate:.1f}" for name, rate in (look.rates or {}).items())
    streams = "".join(
        f" [{printable(c.name)} lag={c.lag} age={c.age_seconds or 0:.1f} messages/s={_rate(c):.1f}]" for c in look.consumers
    )
    breakers = "".join(f" [breaker open: {breaker_line(b)}]" for b in look.found.breakers)
    paused = "".join(f" [{text}]" for text in pauses(look.found))
    return f"{time.strftime('%H:%M:%S')} {counts} {speed}{streams}{breakers}{paused}"


def pauses(found: Stats) -> list[str]:
    """Return what is paused or sidelined, as lines."""
    lines = ["the queue is paused"] if found.paused else []
    if found.paused_types:
        lines.append(f"paused types: {printable(', '.join(found.paused_types))}")
    if found.sidelined_before is not None:
        lines.append(f"messages older than {span(max(0.0, time.time() - found.sidelined_before))} are sidelined")
    return lines


def _rate(consumer: ConsumerStatus) -> float:
    """Return a running query's messages per second; 0 for others."""
    query = consumer.query
    return query.messages_per_second if query is not None and query.state == "running" else 0.0


def blocks(look: Look, *, shards: bool) -> list[Block]:
    """Return a snapshot as blocks of text."""
    found = look.found
    now = [(name.replace("_", " "), f"{getattr(found, name):,}") for name in STATES[:3]]
    now += [("held", alarming(found.held)), ("dead", alarming(found.dead)), ("keys", f"{found.lanes:,}")]
    now += [("oldest", span(found.oldest_age_seconds)), ("oldest not attempted", span(found.first_attempt_age_seconds))]
    now += [("drained in about", span(found.drain_seconds))]
    if found.busy_ratio is not None:
        now.append(("workers", f"{found.busy_ratio:.0%} busy, {many(len(found.workers), 'worker')}"))
    if found.outbox:
        now.append(("outbox", f"{found.outbox:,}"))
    totals = [(name.replace("_", " "), f"{getattr(found, name):,}") for name in TOTALS]
    totals += [("empty receives", f"{found.empty_receive_ratio:.0%}")]
    totals += [("on disk", f"{size(found.disk_bytes)}, {size(found.wal_bytes)} of it WAL")]
    return [Heading(look.title), now, Heading("since the queue was created"), totals, *_further(look, shards=shards)]


def _further(look: Look, *, shards: bool) -> list[Block]:
    """Return the blocks that only some queues have."""
    found = look.found
    parts: list[Block] = []
    if look.consumers:
        parts += [Heading("named consumers"), [(printable(c.name), _shown(c)) for c in look.consumers]]
    if found.replication is not None and found.replication.mode != "off":
        parts += [Heading("replica"), [(found.replication.mode, status_line(found.replication))]]
    parts += [Alarm(text) for text in pauses(found)]
    parts += [Alarm(f"breaker open: {breaker_line(b)}") for b in found.breakers]
    if shards:
        parts.append(Heading("shards"))
        parts += [f"{s.shard}: " + " ".join(f"{n}={getattr(s, n):,}" for n in STATES) for s in found.shards]
    parts += [Alarm(printable(in_words(s.quarantined))) for s in found.shards if s.quarantined]
    return parts


def breaker_line(breaker: OpenBreaker) -> str:
    ago = span(max(time.time() - breaker.since, 0.0))
    what = "" if breaker.group is None else f"group {printable(breaker.group)} "
    return (
        f"worker {printable(breaker.consumer)} paused {what}{ago} ago: {breaker.failures:,} of {breaker.ends:,} handlers failed, "
        f"{many(breaker.probes, 'failed probe')} since; last error: {short(breaker.error)}"
    )


def _shown(consumer: ConsumerStatus) -> str:
    """Return a named consumer as one line."""
    text = f"lag {consumer.lag:,}, {consumer.in_flight:,} of it in flight, oldest {span(consumer.age_seconds)}; "
    query = consumer.query
    if query is None:
        return text + ("in use by a process" if consumer.active else "not in use")
    named = f" {printable(query.name)}" if query.name else ""
    text += (
        f"query{named} {query.state}, {query.messages_per_second:,.1f} per second, batch {query.batch:,} of "
        f"{many(query.messages, 'message')} in {span(query.batch_seconds)}, seen {span(max(time.time() - query.at, 0.0))} ago"
    )
    return f"{text}: {short(query.error)}" if query.error else text


def as_values(look: Look) -> dict[str, Any]:
    """Return a snapshot as JSON values."""
    values = look.found.to_dict()
    for shard in values["shards"]:
        shard["quarantined"] = in_words(shard["quarantined"])
    return {**values, "consumers": [_of_stream(c) for c in look.consumers]}


def _of_stream(one: ConsumerStatus) -> dict[str, Any]:
    """Return the fields of a stream, without those of live consumers."""
    return {name: value for name, value in one.to_dict().items() if name not in LIVE_FIELDS}
