"""`strictq migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import strictq
from strictq.cli._arguments import json_option, queue_argument, quiet_option
from strictq.cli._command import OK, command, many
from strictq.cli._render import waiting
from strictq.cli._words import emit, size

EXAMPLES: Final = """
strictq migrate orders.strictq --dry-run
strictq migrate orders.strictq
"""


@command(EXAMPLES)
@queue_argument
@click.option("--dry-run", is_flag=True, help="Report what would be done; change nothing.")
@quiet_option
@json_option
def migrate(queue: Path, dry_run: bool, quiet: bool, as_json: bool) -> int:
    """Upgrade the files of a queue to the format of this version.

    No process may have the queue open. The upgrade cannot be undone: older versions refuse the queue afterwards. If it is
    interrupted, run it again.

    Exit code 0: done, or nothing to do. 2: there is no such queue, it is damaged, or another process has it open.
    """
    of_files = of_messages = ""

    def show_files(done: int, files: int) -> None:
        nonlocal of_files, of_messages
        of_files, of_messages = f"{done:,} of {files:,} files", ""

    def show_messages(done: int, messages: int) -> None:
        nonlocal of_messages
        of_messages = f", {done:,} of {messages:,} messages of the next one"

    with waiting("migrating:", lambda: of_files + of_messages, quiet=quiet):
        found = strictq.migrate(queue, dry_run=dry_run, on_progress=show_files, on_messages=show_messages)
    if as_json:
        emit(found.to_dict())
    elif not quiet:
        if not found.old:
            print(f"nothing to do: every file is in format {found.format}")
        elif dry_run:
            print(
                f"{many(found.old, 'file')} of {found.files:,} would be migrated from format {found.before} to {found.format}; "
                f"this needs {size(found.needs_bytes)} of free space"
            )
        else:
            print(f"migrated {many(found.old, 'file')} from format {found.before} to {found.format}")
    return OK
