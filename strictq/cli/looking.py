"""Read-only commands: top-keys, explain, peek, status, dead, query."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final

import click

from strictq import AttemptError, PartialFailure, Progress, Queue, StrictqError
from strictq._values.keys import Key
from strictq._values.views import key_fields, plain
from strictq.cli._advice import in_words
from strictq.cli._arguments import (
    Decorator,
    KeyType,
    Seconds,
    hint_of_type,
    id_options,
    json_option,
    key_argument,
    key_of,
    key_type_option,
    limit_option,
    looking,
    optional_key_argument,
    queue_argument,
    receipt_of,
)
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, explained, many, printable, printable_lines, tell
from strictq.cli._render import Fact, Heading, listing, show, show_found
from strictq.cli._words import emit, moment, short, shown_body, shown_key, span

EXAMPLES: Final = {
    "top-keys": """
        strictq top-keys orders.strictq
        strictq top-keys orders.strictq --by age --limit 3 --json
    """,
    "explain": """
        strictq explain orders.strictq order-7
        strictq explain orders.strictq --key-type int -- -5
    """,
    "peek": """
        strictq peek orders.strictq
        strictq peek orders.strictq order-7 --limit 3
        strictq peek orders.strictq order-7 --json | jq -r .body
    """,
    "status": """
        strictq status orders.strictq order-7 12
        strictq status jobs.strictq --id 71 --shard 0
    """,
    "wait": """
        strictq wait orders.strictq && ./process-orders
        strictq wait orders.strictq --timeout 60 --json
    """,
    "output": """
        strictq output reports.strictq customer-7 12
        strictq output reports.strictq customer-7 12 --wait 60 --json | jq -r .output
        strictq output jobs.strictq --id 71 --shard 0
    """,
    "dead": """
        strictq dead orders.strictq
        strictq dead orders.strictq order-7 --errors
        strictq dead orders.strictq order-7 --json | jq -r '"\\(.seq) \\(.reason)"'
    """,
    "query": """
        strictq query orders.strictq 'SELECT account, cents FROM app_balance WHERE cents < 0'
        strictq query orders.strictq 'SELECT * FROM app_balance WHERE account = ?' --param account-7
    """,
}

seq_argument: Final[Decorator] = click.argument(
    "seq",
    type=click.IntRange(min=1),
    required=False,
    metavar="[SEQ]",
    help="The message's position in its key's sequence, from 1.",
)


class Rank(StrEnum):
    """How top-keys ranks keys."""

    depth = "depth"
    age = "age"


@command(EXAMPLES["top-keys"])
@queue_argument
@click.option(
    "--by", type=click.Choice(Rank), default=Rank.depth, help="Rank by number of messages, or by age of the oldest message."
)
@click.option("--limit", "-n", type=click.IntRange(min=1, max=10_000), default=10, help="Show at most this many.")
@click.option("--prefix", metavar="TEXT", help="Only keys that are text and begin with this. Reads only these.")
@json_option
def top_keys(queue: Path, by: Rank, limit: int, prefix: str | None, as_json: bool) -> int:
    """List the keys with the most messages, or with the oldest message. Reads every key that has messages."""
    with looking(queue) as q:
        found = q.top_keys(limit, by=by.value, prefix=prefix)
    return show_found(found, ("key", "depth", "oldest", "state", "why"), lambda k: (
        short(shown_key(k.key)), f"{k.depth:,}", span(k.oldest_age_seconds), k.state, printable(k.reason or ""),
    ), right=("depth", "oldest"), none="no key has messages", as_json=as_json)  # fmt: skip


@command(EXAMPLES["explain"])
@queue_argument
@key_argument
@key_type_option
@json_option
def explain(queue: Path, key: str, key_type: KeyType, as_json: bool) -> int:
    """Show whether a key can be delivered now. If not: why, since when, until when, and which consumer holds it."""
    with looking(queue) as q:
        found = q.explain(_key(q, key, key_type))
    text = in_words(found.text)
    if as_json:
        emit({**found.to_dict(), "text": text})
        return OK
    pairs: list[Fact] = [("key", shown_key(found.key)), ("state", found.state), ("why", printable(text))]
    if found.head_seq is not None:
        pairs += [("next seq", f"{found.head_seq}, {many(found.attempts, 'attempt')}")]
    pairs += [("waiting", f"{found.depth:,}"), ("dead", f"{found.dead:,}")]
    if found.since is not None:
        pairs.append(("since", moment(found.since)))
    if found.until is not None:
        pairs.append(("until", moment(found.until)))
    if found.progress is not None:
        pairs.append(("progress", _progress(found.progress)))
    pairs.append(("shard", f"{found.shard}"))
    if found.token is not None:
        pairs += [("by", printable(found.by)), ("token", f"{found.token}")]
    show(pairs)
    return OK


@command(EXAMPLES["peek"])
@queue_argument
@optional_key_argument
@id_options
@key_type_option
@limit_option(10)
@json_option
def peek(
    queue: Path, key: str | None, arrival: int | None, shard: int | None, key_type: KeyType, limit: int, as_json: bool
) -> int:
    """Show the first unresolved messages of a key, in order. Without KEY, show the oldest of all keys. Read-only.

    Without KEY, it reads at most 10,000 ready keys per shard, and as many leased, delayed and held ones.
    """
    _require_one(key, arrival, shard)
    with looking(queue) as q:
        if arrival is not None:
            found = q.peek(receipt_of(q, arrival, shard))
        else:
            found = q.peek(None if key is None else _key(q, key, key_type), limit)
    same = 0 if key is None else 1
    return show_found(found, ("key", "seq", "state", "attempts", "sent", "due", "body")[same:], lambda m: (
        short(shown_key(m.key)), f"{m.seq}", m.state, f"{m.attempts}", moment(m.enqueued_at),
        moment(m.due_at) if m.due_at else "", shown_body(m.body),
    )[same:], right=("seq", "attempts"), none="no message is waiting", as_json=as_json)  # fmt: skip


def _key(q: Queue, text: str, kind: KeyType) -> Key:
    chosen = key_of(text, kind)
    hint_of_type(q, chosen)
    return chosen


def _require_one(key: str | None, arrival: int | None, shard: int | None) -> None:
    if key is not None and arrival is not None:
        raise Failure("use either KEY or --id, not both", USAGE)
    if shard is not None and arrival is None:
        raise Failure("--shard requires --id", USAGE)


def _require_message(key: str | None, seq: int | None, arrival: int | None, shard: int | None) -> None:
    _require_one(key, arrival, shard)
    if arrival is None and (key is None or seq is None):
        raise Failure("give KEY and SEQ, or --id for a keyless message", USAGE)


@command(EXAMPLES["status"])
@queue_argument
@optional_key_argument
@seq_argument
@id_options
@key_type_option
@json_option
def status(
    queue: Path, key: str | None, seq: int | None, arrival: int | None, shard: int | None, key_type: KeyType, as_json: bool
) -> int:
    """Show the state of one message: its holder, attempts, progress, last errors and last output. Use KEY and SEQ, or --id.

    Exit code 0: the message exists, or is resolved. 1: the key never had this seq, or no keyless message has this id.
    2: there is no such queue.
    """
    _require_message(key, seq, arrival, shard)
    with looking(queue) as q:
        if arrival is not None:
            found = q.status(receipt_of(q, arrival, shard))
            if found.state == "resolved":
                hint = "to find a message that has a key, give KEY and SEQ; strictq history may have the record of a resolved one"
                raise Failure(f"no keyless message has id {arrival}: it is resolved, or has a key", WRONG, hint)
        else:
            assert key is not None
            found = q.status(_key(q, key, key_type), seq)
    if as_json:
        emit(found.to_dict())
        return OK
    pairs: list[Fact] = [("key", shown_key(found.key)), ("seq", f"{found.seq}"), ("state", found.state)]
    if found.state != "resolved":
        pairs.append(("attempts", f"{found.attempts}"))
    if found.consumer is not None:
        pairs.append(("held by", printable(found.consumer)))
    if found.until is not None:
        pairs.append(("until", moment(found.until)))
    if found.progress is not None:
        pairs.append(("progress", _progress(found.progress)))
    if found.last_error:
        pairs.append(("last error", printable_lines(found.last_error)))
    if found.last_output:
        pairs.append(("last output", printable_lines(found.last_output)))
    show([*pairs, *map(_attempt, found.errors)])
    return OK


@command(EXAMPLES["wait"])
@queue_argument
@click.option("--timeout", type=Seconds(min=0), help="Wait at most this many seconds. [no limit]")
@json_option
def wait(queue: Path, timeout: float | None, as_json: bool) -> int:
    """Wait until a message is ready, without receiving it. Another consumer may receive it first.

    Exit code 0: a message is ready. 1: the time is over. 2: there is no such queue.
    """
    with looking(queue) as q:
        ready = q.wait_ready(timeout)
    if as_json:
        emit({"ready": ready})
    return OK if ready else WRONG


@command(EXAMPLES["output"])
@queue_argument
@optional_key_argument
@seq_argument
@id_options
@key_type_option
@click.option("--wait", type=Seconds(min=0), default=0.0, help="Wait up to this many seconds until the message has ended.")
@json_option
def output(
    queue: Path,
    key: str | None,
    seq: int | None,
    arrival: int | None,
    shard: int | None,
    key_type: KeyType,
    wait: float,
    as_json: bool,
) -> int:
    """Print the output that a message's handler left with its ack, if the queue keeps outputs. Use KEY and SEQ, or --id.

    A queue keeps outputs for its setting output_seconds.

    Exit code 0: there is an output. 1: the message has not ended, no output of it is kept, or there is no such message. 2: there
    is no such queue.
    """
    _require_message(key, seq, arrival, shard)
    with looking(queue) as q:
        if arrival is not None:
            found = q.output(receipt_of(q, arrival, shard), wait=wait)
            fields = key_fields(None)
        else:
            assert key is not None
            chosen = _key(q, key, key_type)
            found = q.output(chosen, seq, wait=wait)
            fields = key_fields(chosen)
    if as_json:
        emit({**fields, "seq": seq, "output": found})
    elif found is not None:
        show(printable_lines(found))
    else:
        hint = "strictq status shows the state of a message, strictq config the setting output_seconds"
        raise Failure("no output of this message is kept, or it has not ended", WRONG, hint)
    return WRONG if found is None else OK


def _progress(progress: Progress) -> str:
    """Return a handler's progress as one line."""
    text = f", {printable(progress.text)}" if progress.text else ""
    return f"{progress.fraction:.0%}{text}, reported {span(max(time.time() - progress.at, 0.0))} ago"


def _attempt(error: AttemptError) -> Fact:
    """Return one failed attempt: its time, error and traceback."""
    lines = [moment(error.at), printable_lines(error.error)]
    if error.traceback:
        lines.append(printable_lines(error.traceback))
    return f"attempt {error.attempt}", "\n".join(lines)


@command(EXAMPLES["dead"])
@queue_argument
@optional_key_argument
@key_type_option
@limit_option(100)
@click.option("--errors", is_flag=True, help="Show the errors of the last attempts, with tracebacks. Always in --json.")
@json_option
def dead(queue: Path, key: str | None, key_type: KeyType, limit: int, errors: bool, as_json: bool) -> int:
    """List the dead letters of a key or of the queue: messages that were rejected, ran out of attempts, or expired."""
    with looking(queue) as q:
        found = q.dead_letters(None if key is None else _key(q, key, key_type), limit)
        total = q.stats().dead
    none = "no dead letters" if key is None else "this key has no dead letters"
    show_found(found, ("key", "seq", "kind", "attempts", "died", "reason", "body"), lambda d: (
        short(shown_key(d.key)), f"{d.seq}", d.kind, f"{d.attempts}", moment(d.died_at), short(d.reason), shown_body(d.body),
    ), right=("seq", "attempts"), none=none, as_json=as_json)  # fmt: skip
    if as_json or not found:
        return OK
    for d in found if errors else ():
        show("", Heading(f"{shown_key(d.key)} {d.seq}"), [*map(_attempt, d.errors)] or "no attempt left an error")
        if d.output:
            show([("output", printable_lines(d.output))])
    if key is None and total > len(found):
        tell(f"{total:,} in total; show more with --limit")
    return OK


@command(EXAMPLES["query"])
@queue_argument
@click.argument("sql", metavar="SQL", help="A SELECT statement on app_* tables.")
@click.option(
    "--param",
    "-p",
    multiple=True,
    metavar="VALUE",
    help="The value of the next ? in the SQL: a JSON number, string or null, or plain text. Repeatable.",
)
@click.option("--key", metavar="KEY", help="Query only the shard of this key.")
@key_type_option
@json_option
def query(queue: Path, sql: str, param: tuple[str, ...], key: str | None, key_type: KeyType, as_json: bool) -> int:
    """Query your own app_* tables. Read-only.

    The query runs on each shard separately, and the rows are concatenated. So sums and sort orders are per shard.

    Exit code 0: done. 1: a shard could not be read; the rows of the others are printed. 2: the SQL is invalid.
    """
    with looking(queue) as q:
        failed: PartialFailure | None = None
        try:
            rows: Any = q.query(sql, [_param(p) for p in param or []], key=None if key is None else key_of(key, key_type))
        except PartialFailure as e:
            failed = e
            rows = _read(e)
    _show_rows(rows, as_json=as_json)
    if failed is None:
        return OK
    for result in failed.results:
        if isinstance(result, StrictqError):
            tell(f"strictq: {explained(result)[0]}")
    return WRONG


def _param(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, list | dict):
        raise Failure(f"--param {text}: use a number, a string or null", USAGE)
    return value


def _read(failed: PartialFailure) -> Any:
    """Return the rows of the shards that could be read."""
    parts = [rows for rows in failed.results if not isinstance(rows, Exception)]
    return type(parts[0]).together(parts) if parts else []


def _show_rows(rows: Any, *, as_json: bool) -> None:
    names = list(getattr(rows, "columns", ()))
    if any(len(row) != len(names) for row in rows):
        raise Failure("the statements return different columns; run one SELECT at a time", USAGE)
    names = _told_apart(names)
    if as_json:
        for row in rows:
            emit(dict(zip(names, map(plain, row), strict=True)))
        return
    if not rows:
        show("no rows")
        return
    shown = [[_cell(value) for value in row] for row in rows]
    names = list(map(printable, names))
    listing(names, shown, right=[n for i, n in enumerate(names) if all(type(r[i]) in (int, float) for r in rows)])


def _told_apart(columns: list[str]) -> list[str]:
    """Make column names unique: append the column's number to a repeated name, or the next number that is free."""
    names: list[str] = []
    for i, name in enumerate(columns):
        if name in columns[:i]:
            name = next(new for n in count(i + 1) if (new := f"{name}_{n}") not in columns and new not in names)
        names.append(name)
    return names


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"hex:{value.hex()}"[:60] if isinstance(value, bytes) else short(str(value))
