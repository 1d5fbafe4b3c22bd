"""`strictq shards` and its subcommands: who owns which keys, and how ranges move between shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from strictq import ConsumersNeeded, Moved, Queue, ShardRange
from strictq.cli._arguments import (
    KeyType,
    Seconds,
    json_option,
    key_argument,
    key_of,
    key_type_option,
    looking,
    operating,
    queue_argument,
    quiet_option,
)
from strictq.cli._command import OK, command, many, printable, with_subcommands
from strictq.cli._render import counting, listing, show
from strictq.cli._words import emit, short, shown_key, span

EXAMPLES: Final = {
    "shards": """
strictq shards orders.strictq
strictq shards advise orders.strictq
strictq shards split orders.strictq 0
strictq shards isolate orders.strictq customer-7
""",
    "split": """
strictq shards split orders.strictq 0
strictq shards split orders.strictq 0 --parts 4
strictq shards split orders.strictq 0 --at c000000000000000
""",
    "merge": """
strictq shards merge orders.strictq 3 0
""",
    "move": """
strictq shards move orders.strictq --range c000000000000000:ffffffffffffffff --to 1
strictq shards move orders.strictq --range c000000000000000:ffffffffffffffff --to new
""",
    "isolate": """
strictq shards isolate orders.strictq customer-7
""",
    "cancel": """
strictq shards cancel orders.strictq
""",
    "advise": """
strictq shards advise orders.strictq
strictq shards advise orders.strictq --drain-seconds 60 --process-seconds 0.2
""",
}
HASH_DIGITS: Final = 16


@command(EXAMPLES["advise"])
@queue_argument
@click.option(
    "--drain-seconds", type=Seconds(min=0), default=600.0, metavar="SECONDS", help="Process the backlog within this time."
)
@click.option(
    "--process-seconds", type=Seconds(min=0), metavar="SECONDS", help="Mean duration of a message. [what workers learned]"
)
@click.option("--sample-seconds", type=Seconds(min=0), default=1.0, metavar="SECONDS", help="Count arrivals for this time.")
@json_option
def advise(queue: Path, drain_seconds: float, process_seconds: float | None, sample_seconds: float, as_json: bool) -> int:
    """Show how many consumers keep up with what arrives, and what more of them would not help."""
    with looking(queue) as q:
        found = q.consumers_needed(drain_seconds=drain_seconds, sample_seconds=sample_seconds, process_seconds=process_seconds)
        moves = q.advise()
    if as_json:
        emit({**found.to_dict(), "moves": [one.to_dict() for one in moves]})
        return OK
    show(*_advice(found))
    for one in moves:
        words = f"shard {one.shard}" if one.key is None else f"key {short(shown_key(one.key))}"
        show(f"{one.what} {words}: {one.why}")
    return OK


def _advice(found: ConsumersNeeded) -> list[Any]:
    sentences = [
        f"{many(found.consumers, 'consumer')} with {many(found.concurrency, 'slot')} each keep up; {found.live:,} live now",
        [
            ("arrivals", f"{found.arrivals_per_second:,.1f} a second"),
            ("a message takes", span(found.process_seconds)),
            ("backlog", f"{many(found.backlog, 'message')} of {many(found.keys, 'key')}"),
            ("to drain within", span(found.drain_seconds)),
        ],
    ]
    if found.consumers > found.shards:
        sentences.append(
            f"the queue has {many(found.shards, 'shard')}: more consumers than that repeat each other's work; "
            "larger consumers (concurrency=) or more shards (strictq shards split) help"
        )
    if found.slots > found.keys > 0:
        sentences.append(
            f"no more than {many(found.keys, 'message')} can be processed at the same time: so many keys have messages"
        )
    if found.key is not None and found.key_seconds > found.drain_seconds:
        sentences.append(
            f"the messages of key {short(shown_key(found.key))} alone take {span(found.key_seconds)}, "
            "because they are processed one after the other"
        )
    return sentences


def _hash(text: str) -> int:
    """Return a hash that is written as 1 to 16 hex digits."""
    if not 1 <= len(text) <= HASH_DIGITS or not set(text.lower()) <= set("0123456789abcdef"):
        raise click.UsageError(
            f"{printable(text)} is no hash: it has 1 to {HASH_DIGITS} hex digits, as strictq shards shows them"
        )
    return int(text, 16)


def _move(queue: Path, act: Callable[[Queue, Callable[[int, int], None]], Moved], *, quiet: bool, as_json: bool) -> int:
    """Move a range, and show what moved."""
    with (
        operating(queue) as q,
        counting("moving:", lambda done, total: f"{done:,} of about {many(total, 'message')}", quiet=quiet) as step,
    ):
        moved = act(q, step)
    if as_json:
        emit(moved.to_dict())
    elif not quiet:
        pause = span(moved.longest_pause)
        show(f"moved {many(moved.messages, 'message')} of {many(moved.lanes, 'key')} in {span(moved.seconds)}; no key waited "
             f"longer than {pause}")  # fmt: skip
    return OK


long_pause_option: Final = click.option(
    "--long-pause", is_flag=True, help="Also move keys with more than 400,000 messages, which wait for seconds."
)


@command(EXAMPLES["split"])
@queue_argument
@click.argument("shard", type=int, metavar="SHARD", help="The number of the shard.")
@click.option("--parts", type=int, default=2, metavar="N", help="Equal parts. All but one move to new shards.")
@click.option("--at", metavar="HASH", help="The first hash that moves, instead of equal parts.")
@long_pause_option
@quiet_option
@json_option
def split(queue: Path, shard: int, parts: int, at: str | None, long_pause: bool, quiet: bool, as_json: bool) -> int:
    """Divide the keys of a shard, while programs use the queue.

    If this is interrupted, the next process that has the queue open finishes it.
    """
    first = None if at is None else _hash(at)
    return _move(
        queue,
        lambda q, step: q.split(shard, at=first, parts=parts, long_pause=long_pause, on_progress=step),
        quiet=quiet,
        as_json=as_json,
    )


@command(EXAMPLES["merge"])
@queue_argument
@click.argument("source", type=int, metavar="SHARD", help="The shard that gives its keys away.")
@click.argument("into", type=int, metavar="INTO", help="The shard that gets them.")
@long_pause_option
@quiet_option
@json_option
def merge(queue: Path, source: int, into: int, long_pause: bool, quiet: bool, as_json: bool) -> int:
    """Move all keys of a shard to another one, while programs use the queue. `strictq merge` merges histories instead."""
    return _move(
        queue, lambda q, step: q.merge(source, into=into, long_pause=long_pause, on_progress=step), quiet=quiet, as_json=as_json
    )


@command(EXAMPLES["move"])
@queue_argument
@click.option("--range", "span_", required=True, metavar="LO:HI", help="The first and the last hash, in hex digits.")
@click.option("--to", required=True, metavar="SHARD", help='The shard that gets the range; "new": a new one.')
@long_pause_option
@quiet_option
@json_option
def move(queue: Path, span_: str, to: str, long_pause: bool, quiet: bool, as_json: bool) -> int:
    """Move a range of hashes, which one shard owns, while programs use the queue."""
    lo, _, hi = span_.partition(":")
    begin, end = _hash(lo), _hash(hi)
    if to != "new" and not to.isdecimal():
        raise click.UsageError('--to takes the number of a shard, or "new"')
    target = None if to == "new" else int(to)
    return _move(
        queue,
        lambda q, step: q.move(begin, end, to=target, long_pause=long_pause, on_progress=step),
        quiet=quiet,
        as_json=as_json,
    )


@command(EXAMPLES["isolate"])
@queue_argument
@key_argument
@key_type_option
@long_pause_option
@quiet_option
@json_option
def isolate(queue: Path, key: str, key_type: KeyType, long_pause: bool, quiet: bool, as_json: bool) -> int:
    """Give a key a new shard of its own, while programs use the queue."""
    chosen = key_of(key, key_type)
    return _move(queue, lambda q, step: q.isolate(chosen, long_pause=long_pause, on_progress=step), quiet=quiet, as_json=as_json)


@command(EXAMPLES["cancel"])
@queue_argument
@json_option
def cancel(queue: Path, as_json: bool) -> int:
    """Cancel the move that runs or was interrupted: what has moved comes back."""
    with operating(queue) as q:
        found = q.cancel_move()
    if as_json:
        emit({"cancelled": found})
    else:
        show("the move is cancelled" if found else "no range is moving")
    return OK


def _ranges(one: ShardRange | None) -> str:
    if one is None:
        return "?"
    return ", ".join(f"{lo:016x}-{hi:016x}" for lo, hi in one.ranges) or "none"


UNDER: Final = {"advise": advise, "split": split, "merge": merge, "move": move, "isolate": isolate, "cancel": cancel}
"""Subcommands, by the word that is otherwise the queue's path."""


@command(EXAMPLES["shards"], with_subcommands(UNDER))
@queue_argument
@json_option
def shards(queue: Path, as_json: bool) -> int:
    """List the shards of a queue, the ranges of hashes that each owns, and the consumer that it belongs to.

    With a subcommand (advise, split, merge, move, isolate, cancel), say or change who owns what.
    """
    with looking(queue) as q:
        found, owners = q.stats().shards, {n: one.name for one in q.consumers() for n in one.shards or ()}
        topology = q.topology()
    owned = {one.shard: one for one in topology.shards}
    if as_json:
        for shard in found:
            of = owned.get(shard.shard)
            ranges = [] if of is None else [{"lo": f"{lo:016x}", "hi": f"{hi:016x}"} for lo, hi in of.ranges]
            share = None if of is None else of.write_share
            emit({**shard.to_dict(), "consumer": owners.get(shard.shard), "ranges": ranges, "write_share": share})
        return OK
    rows = [
        (
            f"{s.shard}", f"{s.ready:,}", f"{s.in_flight:,}", f"{s.dead:,}", f"{s.lanes:,}", short(owners.get(s.shard, "-")),
            _ranges(owned.get(s.shard)),
        )
        for s in found
    ]  # fmt: skip
    columns = ("shard", "ready", "in flight", "dead", "keys", "consumer", "hashes")
    listing(columns, rows, right=columns[:-2])
    if topology.moving is not None:
        one = topology.moving
        show(f"a range moves from shard {one.source} to shard {one.target}: {one.lo:016x} to {one.hi:016x}")
    return OK
