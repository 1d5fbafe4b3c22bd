"""Scripts in their own processes, calls in threads, and file systems that are mounted for a test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
"""A generous limit for any step, on a busy machine."""


def run_python(script: str, *arguments: object, **options: Any) -> str:
    """Run a script in its own process. Return its output.

    Raises:
        AssertionError: it failed; contains its stderr.
    """
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def in_threads(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each in its own thread. Return their results or errors, in order."""
    results: list[Any] = [None] * len(works)

    def run(i: int) -> None:
        try:
            results[i] = works[i]()
        except BaseException as e:
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


def mounted(*command: str) -> bool:
    """Run a mount command. Return whether this machine permits it."""
    try:
        return subprocess.run(["mount", *command], capture_output=True, timeout=PATIENCE_SECONDS).returncode == 0
    except OSError:
        return False


def unmounted(place: Path) -> None:
    """Unmount it, even if it is in use."""
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True, timeout=PATIENCE_SECONDS)


def stuff(place: Path, name: str = "stuffing") -> Path:
    """Fill a file system to the last byte with a file."""
    file = place / name
    fd = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for size in (1 << 20, 1 << 16, 1 << 12, 1):
            try:
                while os.write(fd, b"\0" * size):
                    pass
            except OSError:
                continue
    finally:
        os.close(fd)
    return file
