"""Commands that operate a queue beside running programs: redrive, hold, release, reject, purge."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import strictq
from strictq import ConsumerBusy, InvalidArgument, UnknownMessage
from strictq._keys import Key
from strictq.cli._arguments import Json, KeyText, KeyType, KeyTypeOption, OptionalKeyText, QueuePath, Quiet, key_of, operating
from strictq.cli._command import OK, USAGE, WRONG, Failure, add, explained, many, printable, tell
from strictq.cli._render import emit, key_fields, shown_key, waiting

EXAMPLES: Final = {
    "redrive": """
        strictq redrive orders.strictq order-7
        strictq redrive orders.strictq order-7 --seq 3 --seq 5
        strictq redrive orders.strictq --all
    """,
    "hold": 'strictq hold orders.strictq order-7 --reason "customer called"',
    "release": """
        strictq release orders.strictq order-7
        strictq release orders.strictq --keyless
        strictq release orders.strictq --consumer etl
    """,
    "reject": """
        strictq reject orders.strictq order-7 12 --reason "it kills the job"
        strictq reject orders.strictq --key-type int --reason "no number" -- -5 3 4
    """,
    "purge": """
        strictq purge orders.strictq order-7
        strictq purge orders.strictq --all --dead --yes
    """,
}


def register(app: typer.Typer, name: str, text: str) -> None:
    """Add one of the commands of this module."""
    runs: dict[str, Callable[..., int]] = {
        "redrive": redrive, "hold": hold, "release": release, "reject": reject, "purge": purge,
    }  # fmt: skip
    add(app, name, text, runs[name], EXAMPLES[name])


def redrive(
    queue: QueuePath,
    key: OptionalKeyText = None,
    key_type: KeyTypeOption = KeyType.str,
    seq: Annotated[list[int] | None, typer.Option(min=1, metavar="SEQ", help="Only these of the key; again for more.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="The dead letters of all keys.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Put dead letters back in their lane at their original seq, ahead of everything later: attempts 0, no TTL.

    Where a consumer holds the key, they come back when its lease ends.
    """
    chosen = _one_or_all(key, key_type, everybody)
    if seq and key is None:
        raise Failure("--seq is a position in a key: give the KEY, too", USAGE)
    with operating(queue) as q, waiting("redriving:", lambda: f"{q.stats().dead:,} still dead", quiet=quiet):
        count = q.redrive(chosen, seq or None)
    return _report(f"{many(count, 'dead letter')} put back", {"redriven": count, **_whose(chosen)}, quiet, as_json)


def hold(
    queue: QueuePath,
    key: KeyText,
    key_type: KeyTypeOption = KeyType.str,
    reason: Annotated[str | None, typer.Option(help="Why; explain shows it.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Hand out nothing more of a key until it is released. A consumer that has it may finish; sends go on."""
    chosen = key_of(key, key_type)
    with operating(queue) as q:
        q.hold(chosen, reason)
        found = q.explain(chosen)
    text = f"{shown_key(chosen)} is held"
    if found.state == "in_flight":
        text += f", once {found.by} is done with what it has"
    return _report(text, {"held": True, **key_fields(chosen), "in_flight": found.state == "in_flight"}, quiet, as_json)


def release(
    queue: QueuePath,
    key: OptionalKeyText = None,
    key_type: KeyTypeOption = KeyType.str,
    keyless: Annotated[bool, typer.Option("--keyless", help="All keyless messages that a poison policy holds.")] = False,
    consumer: Annotated[str | None, typer.Option(metavar="NAME", help="What a named consumer holds.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --consumer: although it has a holder that is alive.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """End a hold; the attempts of its messages start again from 0.

    With --consumer: give back what a named consumer, such as a stream of Spark, holds. Its messages are ready for anybody, and
    its query can't go on from its checkpoint.
    """
    if (key is not None) + keyless + (consumer is not None) != 1:
        raise Failure("give the KEY, or --keyless, or --consumer", USAGE)
    if force and consumer is None:
        raise Failure("--force is for --consumer", USAGE)
    if consumer is not None:
        return _release_consumer(queue, consumer, force=force, quiet=quiet, as_json=as_json)
    chosen = None if key is None else key_of(key, key_type)
    with operating(queue) as q:
        released = q.release(chosen)
    whose = "keyless messages" if chosen is None else shown_key(chosen)
    text = f"{whose}: released" if released else f"{whose}: nothing was held"
    return _report(text, {"released": released, **key_fields(chosen)}, quiet, as_json)


def _release_consumer(queue: Path, name: str, *, force: bool, quiet: bool, as_json: bool) -> int:
    with operating(queue) as q:
        known = [c.name for c in q.consumers()]
        if name not in known:
            there = f"there are {', '.join(map(printable, known))}" if known else "there is none"
            raise Failure(f"there is no consumer {printable(name)}", hint=there)
        try:
            count = q.release_consumer(name, force=force)
        except ConsumerBusy as e:
            raise Failure(
                explained(e)[0], hint="stop its query; or give --force, too: it is fenced, and fails at its next write"
            ) from e
    text = f"consumer {printable(name)}: {many(count, 'message')} given back" + (
        "; start its query with a new checkpoint" if count else ""
    )
    return _report(text, {"released": count > 0, **key_fields(None), "consumer": name, "messages": count}, quiet, as_json)


def reject(
    queue: QueuePath,
    key: KeyText,
    seqs: Annotated[list[int], typer.Argument(metavar="SEQ...", min=1, help="Positions in the key.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; dead shows it.", show_default=False)],
    key_type: KeyTypeOption = KeyType.str,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Dead-letter unresolved messages: one that kills whoever processes it, say.

    Where a batch of a stream of Spark holds one, that batch comes again without it. What a worker has is left to it: its lease
    ends by itself.

    Exit code 0: each of them is a dead letter, or was resolved already. 1: some are not; which, and why, is on stderr.
    """
    chosen = key_of(key, key_type)
    if not reason:
        raise Failure("give a reason", USAGE)
    done: list[int] = []
    resolved: list[int] = []
    failed = False
    with operating(queue) as q:
        for seq in seqs:
            try:
                (done if q.reject(chosen, seq, reason) else resolved).append(seq)
            except (UnknownMessage, InvalidArgument) as e:
                message, _, hint = explained(e)
                tell(f"strictq: {message}" + (f" ({hint})" if hint else ""))
                failed = True
    text = f"{shown_key(chosen)}: {many(len(done), 'message')} rejected" + (
        f"; resolved already: seq {', '.join(map(str, resolved))}" if resolved else ""
    )
    _report(text, {"rejected": done, "resolved": resolved, **key_fields(chosen)}, quiet, as_json)
    return WRONG if failed else OK


def purge(
    queue: QueuePath,
    key: OptionalKeyText = None,
    key_type: KeyTypeOption = KeyType.str,
    everything: Annotated[bool, typer.Option("--all", help="The whole queue.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="The dead letters, too.")] = False,
    history: Annotated[bool, typer.Option("--history", help="The records of finished messages, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Remove what is waiting, for good. Messages in flight stay with their consumer; seqs go on.

    The dedup ids of the keys are forgotten: what is sent again is stored again.
    """
    chosen = _one_or_all(key, key_type, everything)
    with operating(queue) as q:
        if everything and not yes:
            _confirm(q, dead=dead)
        with waiting("purging:", lambda: _left(q, dead=dead), quiet=quiet):
            count = q.purge(chosen, dead=dead, history=history)
    return _report(f"{many(count, 'message')} removed", {"purged": count, **_whose(chosen)}, quiet, as_json)


def _one_or_all(key: str | None, kind: KeyType, everything: bool) -> Key | None:
    if (key is None) != everything:
        raise Failure("give the KEY, or --all for all of them", USAGE)
    return None if key is None else key_of(key, kind)


def _confirm(q: strictq.Queue, *, dead: bool) -> None:
    """Ask before the whole queue is emptied; where nobody can be asked, refuse."""
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise Failure("this empties the whole queue: say --yes, too", USAGE)
    stats = q.stats()
    what = many(stats.depth, "message") + (f" and {many(stats.dead, 'dead letter')}" if dead else "")
    if not typer.confirm(f"Remove {what} of {q.path}?", err=True):
        raise Failure("nothing was removed")


def _left(q: strictq.Queue, *, dead: bool) -> str:
    stats = q.stats()
    return f"{stats.depth + (stats.dead if dead else 0):,} left in the queue"


def _whose(key: Key | None) -> dict[str, Any]:
    return {"all": key is None, **key_fields(key)}


def _report(text: str, values: dict[str, Any], quiet: bool, as_json: bool) -> int:
    if as_json:
        emit(values)
    elif not quiet:
        print(text)
    return OK
