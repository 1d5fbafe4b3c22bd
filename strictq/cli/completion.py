"""`strictq completion`: click's completion scripts, as a command."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from strictq.cli import COMPLETE, app
from strictq.cli._command import OK, command
from strictq.cli._words import emit

EXAMPLES: Final = """
strictq completion bash --install
strictq completion zsh > ~/.zfunc/_strictq
"""


class Shell(StrEnum):
    """Shells with completion."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@command(EXAMPLES)
@click.argument("shell", type=click.Choice(Shell), help="The shell.")
@click.option("into", "--install", is_flag=True, help="Write the script to where the shell loads it, and print that path.")
@click.option("as_json", "--json", is_flag=True, help="Print one JSON object with shell, script and installed.")
def completion(shell: Shell, into: bool, as_json: bool) -> int:
    """Print a shell's completion script, or install it. New shells then complete commands and options."""
    kind = get_completion_class(shell.value)
    assert kind is not None
    script = kind(app(), {}, "strictq", COMPLETE).source().strip()
    path = install(shell, script) if into else None
    if as_json:
        emit({"shell": shell.value, "script": script, "installed": None if path is None else str(path)})
    elif path is not None:
        print(f"installed in {path}; start a new shell to use it")
    else:
        print(script)
    return OK


def install(shell: Shell, script: str) -> Path:
    """Write a script into the home directory, and make the shell read it. Return the script's path."""
    home = Path.home()
    if shell is Shell.fish:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return _written(config / "fish" / "completions" / "strictq.fish", script)
    if shell is Shell.zsh:
        path = _written(home / ".zfunc" / "_strictq", script)
        _add_lines(home / ".zshrc", ["fpath+=~/.zfunc", "autoload -Uz compinit && compinit"])
        return path
    path = _written(home / ".bash_completions" / "strictq.sh", script)
    _add_lines(home / ".bashrc", [f". '{path}'"])
    return path


def _written(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script + "\n", encoding="utf-8")
    return path


def _add_lines(path: Path, lines: list[str]) -> None:
    """Add missing lines to a shell's start-up file."""
    there = path.read_text(encoding="utf-8") if path.exists() else ""
    if missing := [line for line in lines if line not in there.splitlines()]:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(["", *missing, ""]))
