"""Every option of every command is in docs/reference/cli.md with its default, as `--help` has it.

`python -m tests.docs.test_cli_reference` writes that part of the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import click

from strictq.cli import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
BEGINNING = "## Options\n"
INTRODUCTION = """
As `strictq COMMAND --help` lists them. A dash means that there is no default: the option is off.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, groups before their own commands."""
    if command.params and context.parent is not None:
        yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def default_of(option: click.Option) -> str:
    value = option.default() if callable(option.default) else option.default
    if option.secondary_opts:
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    if isinstance(value, Enum) and not isinstance(value.value, str):  # click's mark that there is none
        return "—"
    if value is None or value is False:
        return "—"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    what = (option.help or "").replace("|", "\\|")
    if isinstance(option.type, click.Choice):
        values = (choice.value if isinstance(choice, Enum) else choice for choice in option.type.choices)
        what = f"One of {', '.join(f'`{value}`' for value in values)}. {what}"
    return f"| {names} | {default_of(option)} | {what} |\n"


def options() -> str:
    """Return that part of the page."""
    root = app()
    parts = [BEGINNING, INTRODUCTION]
    for name, command in commands(root, click.Context(root, info_name="strictq")):
        rows = [row(o) for o in command.params if isinstance(o, click.Option) and not o.hidden]
        if rows:
            parts.append(f"\n### `{name}`\n\n| option | default | |\n|---|---|---|\n{''.join(rows)}")
    return "".join(parts)


def test_the_page_has_every_option_with_its_default() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = text[text.index(BEGINNING) :]
    assert written == options(), "python -m tests.docs.test_cli_reference writes it"


def test_each_argument_is_explained_and_each_default_is_shown_once() -> None:
    root = app()
    for name, command in commands(root, click.Context(root, info_name="strictq")):
        for one in command.params:
            _, shown = one.get_help_record(click.Context(command)) or ("", "" if getattr(one, "hidden", False) else "None")
            assert "None" not in shown, f"{name} {one.name}: {shown}"
            assert "]  [" not in shown or "[default: " not in shown, f"{name} {one.name}: {shown}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(f"\n{BEGINNING}")[0].rstrip() + f"\n\n{options()}", encoding="utf-8")


if __name__ == "__main__":
    main()
