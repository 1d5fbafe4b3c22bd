"""Commands that look: top-keys, explain, peek, status, dead, query."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

import attrs
import typer

from strictq import DeadLetter, PartialFailure, PeekedMessage, StrictqError
from strictq.cli._arguments import Json, KeyText, KeyType, KeyTypeOption, OptionalKeyText, QueuePath, key_of, looking
from strictq.cli._command import OK, USAGE, WRONG, Failure, add, explained, many, printable, tell
from strictq.cli._render import (
    Fact,
    body_fields,
    column_value,
    emit,
    facts,
    key_fields,
    listing,
    moment,
    output,
    short,
    shown_body,
    shown_key,
    span,
)

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
        strictq peek orders.strictq order-7 --limit 3
        strictq peek orders.strictq order-7 --json | jq -r .body
    """,
    "status": "strictq status orders.strictq order-7 12",
    "dead": """
        strictq dead orders.strictq
        strictq dead orders.strictq order-7 --json | jq -r '"\\(.seq) \\(.reason)"'
    """,
    "query": """
        strictq query orders.strictq 'SELECT account, cents FROM app_balance WHERE cents < 0'
        strictq query orders.strictq 'SELECT * FROM app_balance WHERE account = ?' --param account-7 --json
    """,
}

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many.")]


class Rank(StrEnum):
    """What top-keys looks at."""

    depth = "depth"
    age = "age"


def register(app: typer.Typer, name: str, text: str) -> None:
    """Add one of the commands of this module."""
    runs: dict[str, Callable[..., int]] = {
        "top-keys": top_keys, "explain": explain, "peek": peek, "status": status, "dead": dead, "query": query,
    }  # fmt: skip
    add(app, name, text, runs[name], EXAMPLES[name])


def top_keys(
    queue: QueuePath,
    by: Annotated[Rank, typer.Option(help="Most messages, or oldest message.")] = Rank.depth,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 10,
    as_json: Json = False,
) -> int:
    """The deepest keys, or those whose oldest message is oldest. Looks at every key that has messages."""
    with looking(queue) as q:
        found = q.top_keys(limit, by=by.value)
    if as_json:
        for k in found:
            emit({**key_fields(k.key), "depth": k.depth, "oldest_age_seconds": k.oldest_age_seconds, "state": k.state})
        return OK
    out = output()
    if not found:
        out.print("no key has messages")
        return OK
    rows = [(short(shown_key(k.key)), f"{k.depth:,}", span(k.oldest_age_seconds), k.state) for k in found]
    listing(out, ("key", "depth", "oldest", "state"), rows, right=("depth", "oldest"))
    return OK


def explain(queue: QueuePath, key: KeyText, key_type: KeyTypeOption = KeyType.str, as_json: Json = False) -> int:
    """Why a key is, or is not, handed out now: since when, by whom, until when."""
    with looking(queue) as q:
        found = q.explain(key_of(key, key_type))
    # The sentence speaks of the library's call; here it is a command.
    text = found.text.replace("q.release(key)", "strictq release")
    text = text.replace(f"q.release_consumer({found.by!r})", f"strictq release --consumer {found.by}")
    if as_json:
        emit({**attrs.asdict(found), "text": text, **key_fields(found.key)})
        return OK
    pairs: list[Fact] = [("key", shown_key(found.key)), ("state", found.state), ("why", printable(text))]
    if found.head_seq is not None:
        pairs += [("next seq", f"{found.head_seq}, {many(found.attempts, 'attempt')}")]
    pairs += [("waiting", f"{found.depth:,}"), ("dead", f"{found.dead:,}")]
    if found.since is not None:
        pairs.append(("since", moment(found.since)))
    if found.until is not None:
        pairs.append(("until", moment(found.until)))
    if found.token is not None:
        pairs += [("by", printable(found.by)), ("token", f"{found.token}")]
    output().print(facts(pairs))
    return OK


def peek(
    queue: QueuePath,
    key: KeyText,
    key_type: KeyTypeOption = KeyType.str,
    limit: Limit = 10,
    as_json: Json = False,
) -> int:
    """The first unresolved messages of a key, in order, without touching them."""
    with looking(queue) as q:
        found = q.peek(key_of(key, key_type), limit)
    if as_json:
        for m in found:
            emit(message_values(m))
        return OK
    out = output()
    if not found:
        out.print("no message is waiting")
        return OK
    rows = [
        (f"{m.seq}", m.state, f"{m.attempts}", moment(m.enqueued_at), moment(m.due_at) if m.due_at else "", shown_body(m.body))
        for m in found
    ]
    listing(out, ("seq", "state", "attempts", "sent", "due", "body"), rows, right=("seq", "attempts"))
    return OK


def message_values(m: PeekedMessage | DeadLetter) -> dict[str, Any]:
    """A message for programs."""
    values = {a.name: getattr(m, a.name) for a in attrs.fields(type(m)) if a.name not in ("key", "body")}
    return {**key_fields(m.key), **values, **body_fields(m.body)}


def status(
    queue: QueuePath,
    key: KeyText,
    seq: Annotated[int, typer.Argument(min=1, help="Position in the key's sequence.")],
    key_type: KeyTypeOption = KeyType.str,
    as_json: Json = False,
) -> int:
    """Where one message is: its state, who holds it, its last error and output.

    Exit code 0: it is there, or was and is resolved. 1: that seq was never issued for that key. 2: there is no such queue.
    """
    with looking(queue) as q:
        found = q.status(key_of(key, key_type), seq)
    if as_json:
        emit({**attrs.asdict(found), **key_fields(found.key)})
        return OK
    pairs: list[Fact] = [("key", shown_key(found.key)), ("seq", f"{found.seq}"), ("state", found.state)]
    if found.state != "resolved":
        pairs.append(("attempts", f"{found.attempts}"))
    if found.consumer is not None:
        pairs.append(("held by", printable(found.consumer)))
    if found.until is not None:
        pairs.append(("until", moment(found.until)))
    if found.last_error:
        pairs.append(("last error", printable(found.last_error)))
    if found.last_output:
        pairs.append(("last output", printable(found.last_output)))
    output().print(facts(pairs))
    return OK


def dead(
    queue: QueuePath,
    key: OptionalKeyText = None,
    key_type: KeyTypeOption = KeyType.str,
    limit: Limit = 100,
    as_json: Json = False,
) -> int:
    """Dead letters of a key, or of all: what was rejected, ran out of attempts, or expired."""
    with looking(queue) as q:
        found = q.dead_letters(None if key is None else key_of(key, key_type), limit)
        total = q.stats().dead
    if as_json:
        for d in found:
            emit(message_values(d))
        return OK
    out = output()
    if not found:
        out.print("there are no dead letters" if key is None else "this key has no dead letters")
        return OK
    rows = [
        (
            short(shown_key(d.key)), f"{d.seq}", d.kind, f"{d.attempts}", moment(d.died_at), short(d.reason), shown_body(d.body),
        )
        for d in found
    ]  # fmt: skip
    listing(out, ("key", "seq", "kind", "attempts", "died", "reason", "body"), rows, right=("seq", "attempts"))
    if key is None and total > len(found):
        tell(f"{total:,} in all; --limit shows more")
    return OK


def query(
    queue: QueuePath,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT on app_* tables.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="VALUE", help="For each ? of the SQL; JSON, or else a text.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only in the shard of this key.")] = None,
    key_type: KeyTypeOption = KeyType.str,
    as_json: Json = False,
) -> int:
    """Read a program's own app_* tables. Each shard is asked by itself: sums and order over shards are yours.

    Exit code 0: done. 1: a shard could not be read; the rows of the others are printed. 2: the SQL cannot be used.
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
        raise Failure(f"--param {text}: SQL takes numbers, texts and null", USAGE)
    return value


def _read(failed: PartialFailure) -> Any:
    """The rows of the shards that could be read."""
    parts = [rows for rows in failed.results if not isinstance(rows, Exception)]
    return type(parts[0]).together(parts) if parts else []


def _show_rows(rows: Any, *, as_json: bool) -> None:
    names = list(getattr(rows, "columns", ()))
    if any(len(row) != len(names) for row in rows):
        raise Failure("its statements give different columns: ask one SELECT at a time", USAGE)
    names = [name if name not in names[:i] else f"{name}_{i + 1}" for i, name in enumerate(names)]
    if as_json:
        for row in rows:
            emit(dict(zip(names, map(column_value, row), strict=True)))
        return
    out = output()
    if not rows:
        out.print("no rows")
        return
    shown = [[_cell(value) for value in row] for row in rows]
    listing(out, names, shown, right=[n for i, n in enumerate(names) if all(type(r[i]) in (int, float) for r in rows)])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"hex:{value.hex()}"[:60] if isinstance(value, bytes) else short(str(value))
