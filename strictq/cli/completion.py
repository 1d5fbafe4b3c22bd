"""`strictq completion`: typer's, as a command."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script, install  # type: ignore[attr-defined]

from strictq.cli import COMPLETE
from strictq.cli._command import OK, add

EXAMPLES: Final = """
strictq completion bash --install
strictq completion zsh > ~/.zfunc/_strictq
"""


class Shell(StrEnum):
    """Shells with completion."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


def register(app: typer.Typer, name: str, text: str) -> None:
    """Add the command of this module."""
    add(app, name, text, completion, EXAMPLES)


def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.")],
    into: Annotated[bool, typer.Option("--install", help="Write it where the shell finds it, and say where that is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: shell, script, installed.")] = False,
) -> int:
    """Print the completion script of a shell, or install it. A new shell then completes commands and options."""
    names = {"prog_name": "strictq", "complete_var": COMPLETE, "shell": shell.value}
    script = get_completion_script(**names)
    path = install(**names)[1] if into else None
    if as_json:
        print(json.dumps({"shell": shell.value, "script": script, "installed": None if path is None else str(path)}))
    elif path is not None:
        print(f"installed in {path}; a new shell has it")
    else:
        print(script)
    return OK
