"""The top-level command `strictq`."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from strictq.cli import COMMANDS, COMPLETE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NARROW_COLUMNS: Final = 52


class Formatter(click.HelpFormatter):
    """A formatter that leaves two thirds of the width to the descriptions."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of names and descriptions."""
        super().write_dl(rows, min(col_max, max(self.width // 3, 12)), col_spacing)


class Context(click.Context):
    """A context whose help fits narrow terminals; click's minimum is 50 columns."""

    formatter_class = Formatter

    def make_formatter(self) -> click.HelpFormatter:
        import shutil  # imported late: only help needs it

        columns = shutil.get_terminal_size().columns
        if columns < NARROW_COLUMNS:
            self.terminal_width = max(columns - 2, 20)
        return super().make_formatter()


class Group(click.Group):
    """Lists every command without importing one."""

    context_class = Context

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"strictq.cli.{COMMANDS[cmd_name][0]}")
        found = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, or suggest the nearest ones."""
        if args[0] not in COMMANDS:
            from difflib import get_close_matches  # imported late: only a wrong word needs it

            near = [name for name in COMMANDS if name.startswith(args[0])] or get_close_matches(args[0], COMMANDS, cutoff=0.7)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {' or '.join(near)}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions for commands and for the options of `strictq` itself."""
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from strictq import __version__

        click.echo(f"strictq {__version__}")
        ctx.exit()


@click.group(
    name="strictq",
    cls=Group,
    no_args_is_help=True,
    epilog="Run strictq COMMAND --help for a command's options and examples.\n\n"
    "Exit codes: 0 success, 1 failure, problems found or invalid lines, 2 invalid usage, 130 Ctrl-C (for run and work: 0), "
    "141 broken pipe.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option("--version", is_flag=True, expose_value=False, callback=_version, is_eager=True, help="Print the version and exit.")
def root() -> None:
    """A durable message queue with strict order per key, stored in a directory."""  # noqa: D401 - the help text
    # click calls this after importing the command's modules. They live until exit, so collecting them repeatedly, and again at
    # exit, would take a sixth of the time of a short command.
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def run(words: list[str]) -> Any:
    """Run one command line. Return the exit code.

    Raises:
        ModuleNotFoundError: a package that the command needs is not installed.
    """
    # Not click's main(), because Ctrl-C and a broken pipe must print nothing and have their own exit codes.
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete  # imported late: only shells request completions

        return shell_complete(root, {}, "strictq", COMPLETE, instruction)
    try:
        with root.make_context("strictq", words) as ctx:
            root.invoke(ctx)
    except click.exceptions.Exit as e:
        return e.exit_code
    except BrokenPipeError:
        from strictq.cli._command import BROKEN_PIPE, silence

        silence()
        return BROKEN_PIPE
    except OSError as e:
        from strictq.cli._command import failed

        return failed(e)
    except click.ClickException as e:
        e.show()
        return e.exit_code
    return 0
