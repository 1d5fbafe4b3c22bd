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
@click.option("--dry-run", is_flag=True, help="Only report what there is to do.")
@quiet_option
@json_option
def migrate(queue: Path, dry_run: bool, quiet: bool, as_json: bool) -> int:
    """Bring the files of a queue that an older strictq made to the format of this one.

    No process may have the queue open. Older versions refuse it afterwards; there is no way back. An interrupted migration
    is finished by running it again.

    Exit code 0: done, or there was nothing to do. 2: there is no such queue, it is damaged, or another process has it open.
    """
    state = ""

    def show(done: int, files: int) -> None:
        nonlocal state
        state = f"{done:,} of {files:,} files"

    with waiting("migrating:", lambda: state, quiet=quiet):
        found = strictq.migrate(queue, dry_run=dry_run, on_progress=show)
    if as_json:
        emit(found.to_dict())
    elif not quiet:
        if not found.old:
            print(f"nothing to do: every file has format {found.format}")
        elif dry_run:
            print(
                f"{many(found.old, 'file')} of {found.files:,} would go from format {found.before} to {found.format}; "
                f"that needs {size(found.needs_bytes)} of free space"
            )
        else:
            print(f"migrated {many(found.old, 'file')} from format {found.before} to {found.format}")
    return OK
