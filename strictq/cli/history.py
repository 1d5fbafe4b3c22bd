"""`strictq history`, and the commands under it: `strictq history export` and `strictq history plot`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import attrs
import typer
import typer.core
import typer.main

import strictq
from strictq import HistoryRecord
from strictq._keys import Key
from strictq.cli._arguments import Json, KeyType, KeyTypeOption, OptionalKeyText, QueuePath, key_of, looking
from strictq.cli._command import OK, USAGE, Failure, add
from strictq.cli._render import body_fields, emit, key_fields, listing, output, short, shown_key, span
from strictq.cli.exporting import export, plot

EXAMPLES: Final = """
strictq history orders.strictq order-7
strictq history orders.strictq --shard 0 --after 1200 --json
strictq history export orders.strictq orders-history
strictq history plot orders-history --png pictures
"""
UNDER: Final[dict[str, tuple[Callable[..., int], str, str]]] = {
    "export": (export, "Write new records to Parquet files.", "strictq history export orders.strictq orders-history --forget"),
    "plot": (plot, "Draw what an export holds.", "strictq history plot orders-history --png pictures --window 600"),
}
"""First words that are no queue but a command of their own."""
PAGE: Final = 1000


def register(app: typer.Typer, name: str, text: str) -> None:
    """Add the command of this module."""
    add(app, name, text, history, EXAMPLES, cls=HistoryCommand)


class HistoryCommand(typer.core.TyperCommand):
    """The list of records, unless the first word names one of the commands under it. A queue of that name is `./export`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] in UNDER:
            run, text, examples = UNDER[args[0]]
            alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
            add(alone, args[0], text, run, examples)
            under = typer.main.get_command(alone)
            return under.make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def history(
    queue: QueuePath,
    key: OptionalKeyText = None,
    key_type: KeyTypeOption = KeyType.str,
    shard: Annotated[int | None, typer.Option(min=0, max=255, help="Only of this shard. Default: of all, one by one.")] = None,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="With --shard or KEY: only records with a larger n.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many. [100; with --json all]")] = None,
    as_json: Json = False,
) -> int:
    """How finished messages ended, in order within a shard, where the queue's setting `history` keeps records of them."""
    if after and shard is None and key is None:
        raise Failure("each shard counts by itself: --after needs --shard or a KEY", USAGE)
    if key is not None and shard is not None:
        raise Failure("a KEY lies in one shard: leave --shard out", USAGE)
    chosen = None if key is None else key_of(key, key_type)
    with looking(queue) as q:
        shards = [0] if chosen is not None else list(range(q.shards)) if shard is None else [shard]
        records = _records(q, shards, chosen, after, limit or (None if as_json else 100))
        if as_json:
            for record in records:
                emit(as_values(record))
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
        output().print("there are no records" + (": the setting history is off" if off else ""))
        return OK
    names = ("shard", "n", "key", "seq", "outcome", "attempts", "ended", "took")
    listing(output(), names, rows, right=("shard", "n", "seq", "attempts"))
    return OK


def _records(q: strictq.Queue, shards: list[int], key: Key | None, after: int, limit: int | None) -> Iterator[HistoryRecord]:
    """Shard by shard, page by page."""
    left = limit
    for shard in shards:
        n = after
        while left is None or left > 0:
            page = q.history(shard=shard, after=n, key=key, limit=PAGE if left is None else min(left, PAGE))
            yield from page
            if not page:
                break
            n = page[-1].n
            left = None if left is None else left - len(page)


def as_values(record: HistoryRecord) -> dict[str, Any]:
    """A record for programs."""
    body = {"body": None, "body_encoding": None} if record.body is None else body_fields(record.body)
    return {**attrs.asdict(record), **key_fields(record.key), **body}
