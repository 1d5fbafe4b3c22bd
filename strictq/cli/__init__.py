"""The `strictq` command: one module per group of commands, each with a `register(app)`.

Exit codes: 0 done · 1 it ran, and something is wrong · 2 wrong usage or input · 130 Ctrl-C · 141 the reader of the
output went away · 128 + n ended by signal n.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

__all__ = ["app", "main"]

GROUPS: Final = ("demo", "work")
"""The modules of this package that have commands."""

EXTRA: Final = ("typer", "rich")


def app() -> typer.Typer:
    """The command line application, with every group of commands.

    Raises:
        ModuleNotFoundError: typer or rich is not installed.
    """
    import typer

    # Plain help and errors: typer's boxes do not fit a narrow terminal.
    application = typer.Typer(
        name="strictq",
        help="A durable message queue with strict order per key, in a directory.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @application.callback()
    def root() -> None:
        # A callback keeps the commands' names needed while there is only one of them.
        pass

    for group in GROUPS:
        importlib.import_module(f"strictq.cli.{group}").register(application)
    return application


def main() -> None:
    """Entry point of the `strictq` command."""
    try:
        application = app()
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] not in EXTRA:
            raise
        sys.exit(_missing_extra(e.name))
    application(prog_name="strictq")


def _missing_extra(name: str) -> int:
    print(f'strictq: the command needs {name}: pip install "strictq[cli]"', file=sys.stderr)
    return 2
