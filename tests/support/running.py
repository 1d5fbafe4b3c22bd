"""Scripts in their own processes, calls in threads, fast directories, and file systems that are mounted for a test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180.0
"""A generous limit for any step: less than a test may take, and enough for a machine with four times as much to do."""


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


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait for another thread or process.

    Raises:
        AssertionError: it took too long.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.01)


@contextmanager
def fast_directory(otherwise: Path) -> Iterator[Path]:
    """Yield a directory in memory, where a sync costs little; one in `otherwise` if the machine has none."""
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() and os.access(shared, os.W_OK) else otherwise
    with TemporaryDirectory(prefix="strictq-", dir=base, ignore_cleanup_errors=True) as place:
        yield Path(place)


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
