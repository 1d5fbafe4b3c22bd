"""`strictq check`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

import strictq
from strictq.cli._arguments import PATH, json_option, looking, operating, queue_argument, quiet_option
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many, printable
from strictq.cli._render import listing, waiting
from strictq.cli._words import emit, shown_key, span

EXAMPLES: Final = """
strictq check orders.strictq
strictq check orders.strictq --fix
strictq check orders.strictq --salvage saved.strictq
strictq check orders.strictq --json | jq '.problems[] | select(.fixed | not)'
"""


@command(EXAMPLES)
@queue_argument
@click.option("--fix", is_flag=True, help="Repair what can be repaired without losing data.")
@click.option(
    "--salvage",
    type=PATH,
    metavar="OUT",
    help="Copy the readable messages to a new queue, OUT. No process may have QUEUE open.",
)
@quiet_option
@json_option
def check(queue: Path, fix: bool, salvage: Path | None, quiet: bool, as_json: bool) -> int:
    """Read the whole queue and report every broken invariant, like fsck. Other programs may use the queue meanwhile.

    --salvage does not change the damaged files. It copies every readable message to a new queue, and lists the messages that
    may be lost and those that it could not verify.

    Exit code 0: no problems, or all were fixed, or all messages were saved. 1: problems remain. 2: there is no such queue.
    """
    if salvage is not None:
        if fix:
            raise Failure("use either --fix or --salvage, not both", USAGE)
        return _salvage(queue, salvage, quiet, as_json)
    started = time.monotonic()
    with (
        operating(queue) if fix else looking(queue) as q,
        waiting("checking:", lambda: span(time.monotonic() - started), quiet=quiet),
    ):
        problems = q.check(fix)
    wrong = [p for p in problems if not p.fixed]
    if as_json:
        emit({"ok": not wrong, "problems": [p.to_dict() for p in problems]})
    elif problems:
        rows = [
            ("queue.db" if p.shard < 0 else f"{p.shard}", p.rule, _fate(p), printable(p.detail))
            for p in problems
        ]  # fmt: skip
        listing(("shard", "rule", "", "detail"), rows)
        fixable = sum(p.fixable for p in wrong)
        print(
            f"{many(len(problems), 'problem')}, {len(wrong):,} not fixed" + (f"; --fix can repair {fixable:,}" if fixable else "")
        )
    elif not quiet:
        print("no problems found")
    return WRONG if wrong else OK


def _salvage(queue: Path, out: Path, quiet: bool, as_json: bool) -> int:
    started = time.monotonic()
    with waiting("saving:", lambda: span(time.monotonic() - started), quiet=quiet):
        found = strictq.salvage(queue, out)
    if as_json:
        emit(found.to_dict())
    else:
        for note in found.notes:
            print(printable(note))
        if found.lost:
            rows = [(f"{r.shard}", shown_key(r.key), f"{r.first}", "…" if r.last is None else f"{r.last}") for r in found.lost]
            listing(("shard", "key", "possibly lost: from seq", "to"), rows)
        if found.unverified:
            rows = [(f"{r.shard}", shown_key(r.key), f"{r.first}", f"{r.last}") for r in found.unverified]
            listing(("shard", "key", "saved, but not verified: from seq", "to"), rows)
        if not quiet or found.lost or found.notes:
            print(f"saved {many(found.messages, 'message')} and {many(found.dead, 'dead letter')} in {printable(str(out))}")
    return WRONG if found.lost or found.notes else OK


def _fate(p: strictq.Problem) -> str:
    return "fixed" if p.fixed else "fixable" if p.fixable else ""
