"""`strictq history`, and the commands under it: `strictq history export`, `plot` and `purge`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

import strictq
from strictq import HistoryRecord
from strictq._values.keys import Key
from strictq.cli._arguments import KeyType, json_option, key_of, key_type_option, looking, optional_key_argument, queue_argument
from strictq.cli._command import OK, USAGE, Failure, command, with_subcommands
from strictq.cli._render import listing, show
from strictq.cli._words import emit, short, shown_key, span
from strictq.cli.exporting import export, plot
from strictq.cli.operating import purge_history

EXAMPLES: Final = """
strictq history orders.strictq order-7
strictq history orders.strictq --shard 0 --after 1200 --json
strictq history export orders.strictq orders-history
strictq history plot orders-history --png pictures
strictq history purge orders.strictq --all --yes
"""
UNDER: Final = {"export": export, "plot": plot, "purge": purge_history}
"""Subcommands, by the word that is otherwise the queue's path."""
PAGE: Final = 1000


@command(EXAMPLES, with_subcommands(UNDER))
@queue_argument
@optional_key_argument
@key_type_option
@click.option(
    "--shard", type=click.IntRange(min=0, max=255), help="Only records of this shard. Default: all shards, one after the other."
)
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Only records with a number n above N. Requires --shard or KEY, or both if the key's range has moved.",
)
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Show at most this many. [100; with --json all]")
@json_option
def history(
    queue: Path, key: str | None, key_type: KeyType, shard: int | None, after: int, limit: int | None, as_json: bool
) -> int:
    """List finished messages and their outcomes, in order within each shard. The setting `history` must be on."""
    if after and shard is None and key is None:
        raise Failure("--after requires --shard or a KEY: each shard numbers its records separately", USAGE)
    chosen = None if key is None else key_of(key, key_type)
    with looking(queue) as q:
        shards: Sequence[int | None] = range(q.shards) if chosen is None and shard is None else [shard]
        records = _records(q, shards, chosen, after, limit or (None if as_json else 100))
        if as_json:
            for record in records:
                emit(record.to_dict())
            return OK
        rows = [
            (
                f"{r.shard}", f"{r.n}", short(shown_key(r.key)), f"{r.seq}", r.outcome, f"{r.attempts}",
                f"{span(time.time() - r.done_at)} ago", span(r.done_at - r.enqueued_at),
            )
            for r in records
        ]  # fmt: skip
        off = q.config.history == "off"
    if not rows:
        show("no records" + (": the setting history is off" if off else ""))
        return OK
    names = ("shard", "n", "key", "seq", "outcome", "attempts", "ended", "took")
    listing(names, rows, right=("shard", "n", "seq", "attempts"))
    return OK


def _records(
    q: strictq.Queue, shards: Sequence[int | None], key: Key | None, after: int, limit: int | None
) -> Iterator[HistoryRecord]:
    """Yield records shard by shard, page by page."""
    left = limit
    for shard in shards:
        n = after
        while left is None or left > 0:
            page = q.history(shard=shard, after=n, key=key, limit=PAGE if left is None else min(left, PAGE))
            yield from page
            if not page:
                break
            shard, n = page[-1].shard, page[-1].n
            left = None if left is None else left - len(page)
