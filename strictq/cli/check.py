"""`strictq check`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Annotated, Final

import attrs
import typer

import strictq
from strictq.cli._arguments import Json, QueuePath, Quiet, looking, operating
from strictq.cli._command import OK, WRONG, add, many, printable
from strictq.cli._render import emit, listing, output, span, waiting

EXAMPLES: Final = """
strictq check orders.strictq
strictq check orders.strictq --fix
strictq check orders.strictq --json | jq '.problems[] | select(.fixed | not)'
"""


def register(app: typer.Typer, name: str, text: str) -> None:
    """Add the command of this module."""
    add(app, name, text, check, EXAMPLES)


def check(
    queue: QueuePath,
    fix: Annotated[bool, typer.Option("--fix", help="Put right what can be put right without losing anything.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Read everything, and report each broken invariant: an fsck. It may run beside running programs.

    Exit code 0: all is well, or all that was found is fixed. 1: something is wrong. 2: there is no such queue.
    """
    opened: AbstractContextManager[strictq.Queue] = operating(queue) if fix else looking(queue)
    started = time.monotonic()
    with opened as q, waiting("checking:", lambda: span(time.monotonic() - started), quiet=quiet):
        problems = q.check(fix)
    wrong = [p for p in problems if not p.fixed]
    if as_json:
        emit({"ok": not wrong, "problems": [attrs.asdict(p) for p in problems]})
    elif problems:
        rows = [
            ("queue.db" if p.shard < 0 else f"{p.shard}", p.rule, _fate(p), printable(p.detail))
            for p in problems
        ]  # fmt: skip
        listing(output(), ("shard", "rule", "", "detail"), rows)
        fixable = sum(p.fixable for p in wrong)
        print(
            f"{many(len(problems), 'problem')}, {len(wrong):,} not fixed" + (f", --fix would mend {fixable:,}" if fixable else "")
        )
    elif not quiet:
        print("all is well")
    return WRONG if wrong else OK


def _fate(p: strictq.Problem) -> str:
    return "fixed" if p.fixed else "fixable" if p.fixable else ""
