"""Commands that operate a queue while programs use it: dead letters, holds, pauses, backlogs, purges."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq import InvalidArgument, UnknownMessage
from strictq._values.keys import Key
from strictq._values.views import key_fields
from strictq.cli._arguments import (
    KeyType,
    Seconds,
    StoredText,
    hint_of_type,
    json_option,
    key_argument,
    key_of,
    key_type_option,
    operating,
    optional_key_argument,
    queue_argument,
    quiet_option,
)
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, explained, many, printable, tell
from strictq.cli._render import waiting
from strictq.cli._words import emit, shown_key

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
    "pause": """
        strictq pause orders.strictq
        strictq pause orders.strictq --type charge
    """,
    "resume": """
        strictq resume orders.strictq
        strictq resume orders.strictq --type charge
    """,
    "sideline": """
        strictq sideline orders.strictq
        strictq sideline orders.strictq --older-than 60
        strictq sideline orders.strictq --end
    """,
    "reject": """
        strictq reject orders.strictq order-7 12 --reason "it kills the job"
        strictq reject orders.strictq --key-type int --reason "no number" -- -5 3 4
        strictq reject orders.strictq order-7 12 --reason "its handler hangs" --force
    """,
    "resolve": """
        strictq resolve orders.strictq order-7 12
    """,
    "purge": """
        strictq purge orders.strictq order-7
        strictq purge orders.strictq --all --dead --yes
    """,
    "history purge": """
        strictq history purge orders.strictq order-7
        strictq history purge orders.strictq --all --yes
    """,
}


@command(EXAMPLES["redrive"])
@queue_argument
@optional_key_argument
@key_type_option
@click.option("--seq", type=click.IntRange(min=1), multiple=True, metavar="SEQ", help="Only this message of KEY. Repeatable.")
@click.option("everybody", "--all", is_flag=True, help="All dead letters of the queue.")
@quiet_option
@json_option
def redrive(
    queue: Path, key: str | None, key_type: KeyType, seq: tuple[int, ...], everybody: bool, quiet: bool, as_json: bool
) -> int:
    """Return dead letters to their key at their original seq, ahead of all later messages.

    Their attempts restart at 0 and their TTL is cleared. If a consumer holds the key, they become ready when its lease ends.
    """
    chosen = _one_or_all(key, key_type, everybody)
    if seq and key is None:
        raise Failure("--seq requires a KEY", USAGE)
    with operating(queue) as q, waiting("redriving:", lambda: f"{q.stats().dead:,} still dead", quiet=quiet):
        hint_of_type(q, chosen)
        count = q.redrive(chosen, seq or None)
    return _report(f"{many(count, 'dead letter')} redriven", {"redriven": count, **_whose(chosen)}, quiet, as_json)


@command(EXAMPLES["hold"])
@queue_argument
@key_argument
@key_type_option
@click.option("--reason", type=StoredText(), help="The reason, shown by explain.")
@quiet_option
@json_option
def hold(queue: Path, key: str, key_type: KeyType, reason: str | None, quiet: bool, as_json: bool) -> int:
    """Stop delivering a key's messages until it is released. A consumer that holds the key may finish. Sends are accepted."""
    chosen = key_of(key, key_type)
    with operating(queue) as q:
        hint_of_type(q, chosen)
        q.hold(chosen, reason)
        found = q.explain(chosen)
    text = f"{shown_key(chosen)} is held"
    if found.state == "in_flight":
        text += f"; {found.by} may finish the messages that it has leased"
    return _report(text, {"held": True, **key_fields(chosen), "in_flight": found.state == "in_flight"}, quiet, as_json)


@command(EXAMPLES["release"])
@queue_argument
@optional_key_argument
@key_type_option
@click.option("--keyless", is_flag=True, help="Release every keyless message that was held because it ran out of attempts.")
@click.option("--consumer", metavar="NAME", help="Release the unacked batches of this named consumer.")
@click.option("--force", is_flag=True, help="With --consumer: release even if a running process holds the name.")
@quiet_option
@json_option
def release(
    queue: Path, key: str | None, key_type: KeyType, keyless: bool, consumer: str | None, force: bool, quiet: bool, as_json: bool
) -> int:
    """End a hold on a key. The attempts of the held messages restart at 0.

    With --consumer, release the unacked batches of a named consumer, such as a Spark stream. Any consumer can then receive
    the messages, and the stream cannot continue from its checkpoint.
    """
    if (key is not None) + keyless + (consumer is not None) != 1:
        raise Failure("give one of KEY, --keyless and --consumer", USAGE)
    if force and consumer is None:
        raise Failure("--force requires --consumer", USAGE)
    if consumer is not None:
        return _release_consumer(queue, consumer, force=force, quiet=quiet, as_json=as_json)
    chosen = None if key is None else key_of(key, key_type)
    with operating(queue) as q:
        hint_of_type(q, chosen)
        released = q.release(chosen)
    whose = "keyless messages" if chosen is None else shown_key(chosen)
    text = f"{whose}: released" if released else f"{whose}: not held; nothing was changed"
    return _report(text, {"released": released, **key_fields(chosen)}, quiet, as_json)


def _release_consumer(queue: Path, name: str, *, force: bool, quiet: bool, as_json: bool) -> int:
    with operating(queue) as q:
        known = [c.name for c in q.consumers() if c.kind == "stream"]
        if name not in known:
            there = f"the queue has {', '.join(map(printable, known))}" if known else "the queue has none"
            raise Failure(f"there is no named consumer {printable(name)}", hint=there)
        count = q.release_consumer(name, force=force)
    text = f"consumer {printable(name)}: {many(count, 'message')} released" + (
        "; restart its query with a new checkpoint" if count else ""
    )
    return _report(text, {"released": count > 0, **key_fields(None), "consumer": name, "messages": count}, quiet, as_json)


seqs_argument = click.argument(
    "seqs",
    type=click.IntRange(min=1),
    nargs=-1,
    required=True,
    metavar="SEQ...",
    help="The messages' positions in their key's sequence.",
)


type_option: Final = click.option(
    "handler_type", "--type", type=StoredText(), metavar="HANDLER_TYPE", help="Only the handlers of this type, in a strictq.App."
)


@command(EXAMPLES["pause"])
@queue_argument
@type_option
@quiet_option
@json_option
def pause(queue: Path, handler_type: str | None, quiet: bool, as_json: bool) -> int:
    """Stop all receives of a queue, or the handlers of one type, until strictq resume.

    Every process sees it at once. Sends are accepted, and messages in flight may be finished. With --type, the workers of an
    App postpone messages of the type, with no attempt charged; later messages of their keys wait.
    """
    return _set_paused(queue, handler_type, True, quiet, as_json)


@command(EXAMPLES["resume"])
@queue_argument
@type_option
@quiet_option
@json_option
def resume(queue: Path, handler_type: str | None, quiet: bool, as_json: bool) -> int:
    """End a pause of a queue, or of the handlers of one type, which then run within ten seconds."""
    return _set_paused(queue, handler_type, False, quiet, as_json)


def _set_paused(queue: Path, handler_type: str | None, paused: bool, quiet: bool, as_json: bool) -> int:
    with operating(queue) as q:
        changed = q.pause(handler_type) if paused else q.resume(handler_type)
    what = "the queue" if handler_type is None else f"the type {printable(handler_type)}"
    now, before = ("paused", "already paused") if paused else ("resumed", "not paused")
    text = f"{what} is {now}" if changed else f"{what} was {before}"
    return _report(text, {"paused": paused, "type": handler_type, "changed": changed}, quiet, as_json)


@command(EXAMPLES["sideline"])
@queue_argument
@click.option(
    "--older-than", type=Seconds(min=0), metavar="SECONDS", help="Sideline messages sent more than this long ago. Default: 0."
)
@click.option("--end", is_flag=True, help="End it: the oldest message comes first again.")
@quiet_option
@json_option
def sideline(queue: Path, older_than: float | None, end: bool, quiet: bool, as_json: bool) -> int:
    """Let new messages pass a backlog, as after an outage: messages that were sent before now get one turn in ten.

    Every process sees it at once. The order within a key does not change. If no newer message is ready, the backlog gets all
    turns.
    """
    if end and older_than is not None:
        raise Failure("give either --older-than or --end", USAGE)
    before = None if end else time.time() - (older_than or 0.0)
    with operating(queue) as q:
        changed = q.sideline(before)
    text = f"messages sent before {_at(before)} are sidelined" if before is not None else "no messages are sidelined"
    text += "" if changed or not end else "; nothing was changed"
    return _report(text, {"sidelined_before": before, "changed": changed}, quiet, as_json)


def _at(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


@command(EXAMPLES["reject"])
@queue_argument
@key_argument
@seqs_argument
@click.option("--reason", type=StoredText(), required=True, help="The reason, shown by `strictq dead`.")
@click.option("--force", is_flag=True, help="End a lease that holds a message. Its token dies.")
@key_type_option
@quiet_option
@json_option
def reject(
    queue: Path, key: str, seqs: tuple[int, ...], reason: str, force: bool, key_type: KeyType, quiet: bool, as_json: bool
) -> int:
    """Dead-letter unresolved messages, such as one that crashes every consumer.

    If a Spark stream's batch contains the message, the batch is delivered again without it. A message that a worker holds
    needs --force: the lease ends, its other messages are ready again, and what its holder does later is refused.

    Exit code 0: every message is a dead letter or was already resolved. 1: some are not; stderr says which and why.
    """
    if not reason:
        raise Failure("give a reason", USAGE)
    return _settle(
        queue, key_of(key, key_type), seqs, lambda q, k, n: q.reject(k, n, reason, force=force), "rejected", quiet, as_json
    )


@command(EXAMPLES["resolve"])
@queue_argument
@key_argument
@seqs_argument
@key_type_option
@quiet_option
@json_option
def resolve(queue: Path, key: str, seqs: tuple[int, ...], key_type: KeyType, quiet: bool, as_json: bool) -> int:
    """Ack unresolved messages on behalf of their consumer, such as one whose handler hangs after its work was done.

    A lease that holds a message ends: its other messages are ready again, and what its holder does later is refused. If a
    Spark stream's batch contains the message, the batch is delivered again without it.

    Exit code 0: every message is resolved. 1: some are not; stderr says which and why.
    """
    return _settle(queue, key_of(key, key_type), seqs, lambda q, k, n: q.resolve(k, n), "acked", quiet, as_json)


def _settle(
    queue: Path,
    key: Key,
    seqs: Sequence[int],
    act: Callable[[strictq.Queue, Key, int], bool],
    ending: str,
    quiet: bool,
    as_json: bool,
) -> int:
    """Settle messages one by one, and report which were settled and which were resolved before."""
    done: list[int] = []
    resolved: list[int] = []
    failed = False
    with operating(queue) as q:
        hint_of_type(q, key)
        for seq in seqs:
            try:
                (done if act(q, key, seq) else resolved).append(seq)
            except (UnknownMessage, InvalidArgument) as e:
                message, _, hint = explained(e)
                tell(f"strictq: {message}" + (f" ({hint})" if hint else ""))
                failed = True
    text = f"{shown_key(key)}: {many(len(done), 'message')} {ending}" + (
        f"; resolved already: seq {', '.join(map(str, resolved))}" if resolved else ""
    )
    _report(text, {ending: done, "resolved": resolved, **key_fields(key)}, quiet, as_json)
    return WRONG if failed else OK


@command(EXAMPLES["purge"])
@queue_argument
@optional_key_argument
@key_type_option
@click.option("everything", "--all", is_flag=True, help="Purge the whole queue.")
@click.option("--dead", is_flag=True, help="Delete dead letters as well.")
@click.option(
    "--history",
    is_flag=True,
    help="Delete the records and kept outputs of finished messages as well. For records alone, use `strictq history purge`.",
)
@click.option("--older-than", type=Seconds(min=0), metavar="SECONDS", help="Delete only messages sent more than this long ago.")
@click.option("--in-flight", is_flag=True, help="Delete messages in flight as well. Their leases end.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@quiet_option
@json_option
def purge(
    queue: Path,
    key: str | None,
    key_type: KeyType,
    everything: bool,
    dead: bool,
    history: bool,
    older_than: float | None,
    in_flight: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Delete waiting messages permanently. Messages in flight stay with their consumer, unless --in-flight is given.
    Seqs are not reused.

    The keys' dedup ids are deleted too, except with --older-than: a repeated send with the same id is stored again.
    """
    chosen = _one_or_all(key, key_type, everything)
    with operating(queue) as q:
        if everything and not yes:
            stats = q.stats()
            dead_letters = f" and {many(stats.dead, 'dead letter')}" if dead else ""
            records = ", and all records of finished messages," if history else ""
            _confirm(f"Delete {many(stats.depth, 'message')}{dead_letters}{records} of {q.path}?", "this empties the whole queue")
        hint_of_type(q, chosen)
        with waiting("purging:", lambda: _left(q, dead=dead), quiet=quiet):
            count = q.purge(chosen, dead=dead, history=history, older_than=older_than, in_flight=in_flight)
    return _report(f"{many(count, 'message')} deleted", {"purged": count, **_whose(chosen)}, quiet, as_json)


@command(EXAMPLES["history purge"])
@queue_argument
@optional_key_argument
@key_type_option
@click.option("everything", "--all", is_flag=True, help="All records of the queue.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@quiet_option
@json_option
def purge_history(
    queue: Path, key: str | None, key_type: KeyType, everything: bool, yes: bool, quiet: bool, as_json: bool
) -> int:
    """Delete the records of finished messages permanently. Waiting messages are not affected."""
    chosen = _one_or_all(key, key_type, everything)
    with operating(queue) as q:
        if everything and not yes:
            _confirm(f"Delete all records of finished messages of {q.path}?", "this deletes all records of the queue")
        hint_of_type(q, chosen)
        count = q.purge_history(chosen)
    return _report(f"{many(count, 'record')} deleted", {"purged": count, **_whose(chosen)}, quiet, as_json)


def _one_or_all(key: str | None, kind: KeyType, everything: bool) -> Key | None:
    if (key is None) != everything:
        raise Failure("give either KEY or --all", USAGE)
    return None if key is None else key_of(key, kind)


def _confirm(question: str, consequence: str) -> None:
    """Ask for confirmation; without a terminal, fail."""
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise Failure(f"{consequence}; confirm with --yes", USAGE)
    try:
        sure = click.confirm(question, err=True)
    except click.Abort as e:
        tell("")  # end the line of the question
        # click raises Abort for both Ctrl-C and Ctrl-D; only the context says which one it was.
        if isinstance(e.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        sure = False
    if not sure:
        raise Failure("cancelled; nothing was deleted")


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
