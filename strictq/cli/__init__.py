"""The `strictq` command: one module per group of commands, each with a `register(app, name, text)`.

Exit codes: 0 done · 1 it ran, and something is wrong · 2 wrong usage or input · 130 Ctrl-C · 141 the reader of the
output went away · 128 + n ended by signal n.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

__all__ = ["app", "main"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "create": ("configuring", "Make a queue."),
    "send": ("send", "Send lines of a file or of stdin."),
    "receive": ("receive", "Print messages and ack what was written."),
    "work": ("work", "Run a command per message, in order per key."),
    "stats": ("stats", "Count what is in a queue; --watch it."),
    "top-keys": ("looking", "The deepest keys, or the oldest."),
    "explain": ("looking", "Why a key is stuck, or is not."),
    "peek": ("looking", "The first messages of a key, untouched."),
    "status": ("looking", "Where one message is."),
    "dead": ("looking", "Dead letters."),
    "history": ("history", "How finished messages ended."),
    "query": ("looking", "Read a program's app_* tables with SQL."),
    "redrive": ("operating", "Put dead letters back where they were."),
    "hold": ("operating", "Hand out nothing more of a key."),
    "release": ("operating", "End a hold, or what a named consumer holds."),
    "reject": ("operating", "Dead-letter single messages."),
    "purge": ("operating", "Remove what is waiting."),
    "config": ("configuring", "Show settings, or change them."),
    "check": ("check", "Verify every invariant of a queue."),
    "bench": ("bench", "Measure strictq on your own disk."),
    "demo": ("demo", "See that no key loses its order."),
    "completion": ("completion", "Tab completion for your shell."),
}
"""Every command, in the order of the help: its module, and one line on it. Modules are imported for their own commands only."""

EXTRA: Final = ("typer", "rich", "orjson")
COMPLETE: Final = "_STRICTQ_COMPLETE"
"""Set by a shell that wants completions."""


def app(wanted: Iterable[str] | None = None) -> typer.Typer:
    """The command line application.

    Args:
        wanted: commands that may be run; the others are only listed, and their modules not imported. None: all.
    Raises:
        ModuleNotFoundError: typer, rich or orjson is not installed.
    """
    import typer

    # Plain help and errors: typer's boxes do not fit a narrow terminal.
    application = typer.Typer(
        name="strictq",
        help="A durable message queue with strict order per key, in a directory.",
        epilog="Exit codes: 0 done, 1 it ran and something is wrong, 2 wrong usage or input, 130 Ctrl-C, 141 broken pipe.",
        no_args_is_help=True,
        add_completion=COMPLETE in os.environ,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @application.callback()
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_version, is_eager=True),
    ) -> None:
        # A callback keeps the commands' names needed while there is only one of them.
        pass

    run = set(COMMANDS if wanted is None else wanted)
    for name, (module, text) in COMMANDS.items():
        if name in run:
            importlib.import_module(f"strictq.cli.{module}").register(application, name, text)
        else:
            application.command(name, help=text)(_listed)
    return application


def _listed() -> None:
    raise AssertionError("a command whose module was not imported")


def _version(asked: bool) -> None:
    if asked:
        from strictq import __version__

        print(f"strictq {__version__}")
        sys.exit(0)


def main() -> None:
    """Entry point of the `strictq` command."""
    try:
        app(_asked_for(sys.argv[1:]))(prog_name="strictq")
    except KeyboardInterrupt:
        sys.exit(130)  # while modules were imported; commands end by themselves
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        sys.exit(_missing_extra(missing))


def _asked_for(words: list[str]) -> list[str]:
    """The command that this command line names, or that is being completed."""
    if COMPLETE in os.environ:
        words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
    return [word for word in words[:1] if word in COMMANDS]


def _missing_extra(name: str) -> int:
    print(f'strictq: the command needs {name}: pip install "strictq[cli]"', file=sys.stderr)
    return 2
