"""Functions in processes of their own that a warm process forks: to start an interpreter takes longer than what most of them do.

The warm process starts with the first of them. It has imported strictq, has no threads, and has opened nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

WARM = ["tests.support.campaign"]
"""What it imports, with all that these import."""


def forked(log: Path | None, work: Callable[..., object], *arguments: object, **options: object) -> ForkServerProcess:
    """Start a function of a module. Its process does not outlive this one, unless this one is killed.

    Args:
        log: the file that its output goes to. None: where this process's goes.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(WARM)
    process = context.Process(target=_logged, args=(log, work, arguments, options), daemon=True)
    with patch.dict(sys.modules, __main__=ModuleType("__main__")):  # else it would execute this program's module again
        process.start()
    return process


def _logged(log: Path | None, work: Callable[..., object], arguments: tuple[object, ...], options: dict[str, object]) -> None:
    if log is not None:
        with log.open("wb") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
    work(*arguments, **options)
