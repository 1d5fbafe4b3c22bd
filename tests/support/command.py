"""The `strictq` command in its own process, with pipes or in a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import strictq
from strictq.cli import app
from tests.support.running import PATIENCE_SECONDS, until

MAIN = "from _strictq_command import main; main()"
"""The content of an installed strictq's script."""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*[349]\d(?:;\d+)*m")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"}}
    path = os.pathsep.join(filter(None, [str(Path(strictq.__file__).parent.parent), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "TMPDIR": str(tmp_path), **more}


def start(tmp_path: Path, *args: str, main: str = MAIN, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", main, *args],
        cwd=tmp_path,
        env=options.pop("env", None) or environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def strictq_command(tmp_path: Path, *args: str, timeout: float = 120) -> tuple[int, str, str]:
    with start(tmp_path, *args) as process:
        out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def shown_in_terminal(parent: int) -> str:
    """Return what processes write to a terminal, until the last of them has closed it."""
    shown = b""
    try:
        while piece := os.read(parent, 65536):
            shown += piece
    except OSError:
        pass  # Linux: the other end is closed
    finally:
        os.close(parent)
    return shown.decode()


def in_a_terminal(tmp_path: Path, *args: str, main: str = MAIN, **env: str) -> tuple[int, str]:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", main, *args],
        cwd=tmp_path,
        env=environment(tmp_path, **{"TERM": "xterm-256color", **env}),
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    shown = shown_in_terminal(parent)
    return process.wait(PATIENCE_SECONDS), shown


def wait_until_asleep(process: subprocess.Popen[str]) -> None:
    """Wait until a process sleeps in the kernel.

    A signal that arrives just before that is handled only after the wait. The caller knows what the process does next.
    """
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")


def in_process(*args: object, input: bytes | str | None = None) -> Result:
    """Run the command in this process, which is fast and lets monkeypatch reach it."""
    return CliRunner().invoke(app(), [str(a) for a in args], input=input)


def json_lines(text: str) -> list[Any]:
    """Parse the output of --json."""
    return [json.loads(line) for line in text.splitlines()]
