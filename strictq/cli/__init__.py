"""The `strictq` command: one module per group of commands, imported when one of them is asked for.

Exit codes: 0 done · 1 it ran, and something is wrong · 2 wrong usage or input · 130 Ctrl-C · 141 the reader of the
output went away · 128 + n ended by signal n.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

__all__ = ["app", "main"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "create": ("configuring", "Make a queue."),
    "send": ("send", "Send lines of a file or of stdin."),
    "receive": ("receive", "Print messages and ack what was written."),
    "run": ("run", "Run the handlers of an app."),
    "work": ("work", "Run a command per message, in order per key."),
    "stats": ("stats", "Count what is in a queue; --watch it."),
    "alarm": ("alarm", "Compare a queue with limits; exit code 1."),
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
    "migrate": ("migrating", "Bring an older queue to this format."),
    "replicate": ("replicating", "Ship a queue's changes to a directory."),
    "replicas": ("replicating", "What such a directory holds."),
    "restore": ("replicating", "Make a queue of it, also as of before."),
    "bench": ("bench", "Measure strictq on your own disk."),
    "demo": ("demo", "See that no key loses its order."),
    "completion": ("completion", "Tab completion for your shell."),
}
"""Every command, in the order of the help: the module that has it under its name, and one line on it."""

COMPLETE: Final = "_STRICTQ_COMPLETE"
"""Set by a shell that wants completions."""


def app() -> click.Group:
    """The command line application.

    Raises:
        ModuleNotFoundError: click is not installed.
    """
    from strictq.cli._group import root

    return root


def main() -> None:
    """Entry point of the `strictq` command."""
    gc.disable()  # until all modules of a command are there (_group.py): none of what they bring is garbage
    try:
        from strictq.cli._group import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130  # while modules were imported; commands end by themselves
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if not missing or missing == "strictq" or missing in sys.stdlib_module_names:
            raise
        print(f'strictq: the command needs {missing}: pip install "strictq[cli]"', file=sys.stderr)
        code = 2
    sys.exit(code)
