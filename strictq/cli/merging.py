"""`strictq merge`, `strictq backup` and `strictq adopt`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

import strictq
from strictq.cli._arguments import PATH, json_option, looking, queue_argument, quiet_option
from strictq.cli._command import OK, command, many, printable
from strictq.cli._render import counting, listing
from strictq.cli._words import emit, size, utc

EXAMPLES: Final = {
    "merge": """
strictq merge orders.strictq.diverged-1 orders.replica --dry-run
strictq merge orders.strictq.diverged-1 orders.replica
""",
    "backup": """
strictq backup orders.strictq /mnt/backup/orders.strictq
strictq stats /mnt/backup/orders.strictq
""",
    "adopt": """
strictq backup orders.strictq copy.strictq
strictq adopt copy.strictq
""",
}


@command(EXAMPLES["merge"])
@click.argument("old", type=PATH, metavar="OLD", help="The queue that is out of service. It is not changed.")
@click.argument("into", type=PATH, metavar="INTO", help="The promoted or restored queue that replaced it.")
@click.option("--dry-run", is_flag=True, help="Report what would be done; change nothing.")
@quiet_option
@json_option
def merge(old: Path, into: Path, dry_run: bool, quiet: bool, as_json: bool) -> int:
    """Merge the changes that only the old primary has into the promoted queue.

    Unresolved sends are appended in order per key, with new seqs. Messages that the old queue resolved are resolved. Key states
    and app_* tables that differ are listed but not merged. Repeating a merge sends nothing twice.

    Exit code 0: done. 1: a shard cannot be read or written, or a process has OLD open. 2: invalid usage, or INTO was not
    promoted or restored from OLD.
    """
    done = strictq.merge(old, into, dry_run=dry_run)
    if as_json:
        emit(done.to_dict())
    elif not quiet:
        _show(done)
    return OK


def _show(done: strictq.Merged) -> None:
    what = ("to append", "to resolve") if done.dry_run else ("appended", "resolved")
    if done.sent:
        rows = [
            (_shown(s.key), _number(s.seq), f"{_number(s.new_seq)}{' (duplicate)' if s.duplicate else ''}") for s in done.sent
        ]
        listing(("key", "old seq", "new seq"), rows)
    print(f"{many(len(done.sent), 'send')} {what[0]}, {done.earlier:,} appended by an earlier merge")
    print(f"{many(len(done.acked), 'message')} {what[1]} because the old queue resolved them")
    for title, names in (
        ("resolved in the old queue, but held by a consumer of the new one", done.leased),
        ("resolved in both queues, so probably processed twice", done.twice or ()),
        ("dead letters that only the old queue has; they stay there", done.dead),
    ):
        if names:
            print(f"{title}:")
            listing(("key", "seq"), [(_shown(name.key), f"{name.seq}") for name in names], right=("seq",))
    if done.twice is None:
        print("cannot say which messages were processed twice: too many were unresolved when the queues diverged")
    if done.key_states:
        print(f"keys whose states differ: {', '.join(_shown(state.key) for state in done.key_states)}")
    for row in done.app_rows:
        print(
            f"{printable(row.table)}, shard {row.shard}: {many(row.only_old, 'row')} only in the old queue, "
            f"{row.only_into:,} only in the new one"
        )


def _shown(key: str | bytes | int | None) -> str:
    return "-" if key is None else printable(str(key))


def _number(seq: int | None) -> str:
    return "-" if seq is None else f"{seq}"


@command(EXAMPLES["backup"])
@queue_argument
@click.argument("target", type=PATH, metavar="TARGET", help="The copy's directory, which must not exist.")
@quiet_option
@json_option
def backup(queue: Path, target: Path, quiet: bool, as_json: bool) -> int:
    """Copy a queue to a new directory while programs use it.

    The copy is one state of the whole queue. It can be read at once; `strictq adopt TARGET` puts it in service. TARGET appears
    when it is complete. An interrupted backup creates nothing, except perhaps a directory .TARGET.*.new, which can be deleted.

    Exit code 0: done. 1: a file cannot be read or written, or the disk is full. 2: invalid usage, or TARGET exists.
    """
    started = time.monotonic()
    with looking(queue) as q, counting("copying:", lambda done, total: f"{size(done)} of {size(total)}", quiet=quiet) as step:
        done = q.backup(target, on_progress=step)
    if as_json:
        emit({**done.to_dict(), "seconds": time.monotonic() - started})
    elif not quiet:
        print(f"{printable(done.path)} is a copy of the queue as of {utc(done.at)} ({size(done.copied_bytes)})")
        print(f"it can be opened for reading; to put it in service, run strictq adopt {printable(done.path)}")
    return OK


@command(EXAMPLES["adopt"])
@click.argument("queue", type=PATH, metavar="QUEUE", help="The copied directory. No process may have it open.")
@quiet_option
@json_option
def adopt(queue: Path, quiet: bool, as_json: bool) -> int:
    """Give a copied queue its own identity, so that replicas and Spark checkpoints can distinguish it from its original.

    Use it after strictq backup or cp -r. The copy then has no replica, and its leases have ended.

    Exit code 0: done. 1: a process has the queue open, or it cannot be written. 2: there is no such queue.
    """
    done = strictq.adopt(queue)
    if as_json:
        emit(done.to_dict())
    elif not quiet:
        print(f"{printable(done.path)} has a new history id: {done.history_id}")
    return OK
