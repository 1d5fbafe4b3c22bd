"""What a worker reports while its circuit breaker is open: a small file that is valid while its writer holds a lock on it.

The lock ends with the process, however that ends, so a dead worker's report is never shown. The queue itself never reads it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from .._errors import StoreError
from .._files import Lock, open_regular
from .._stats import OpenBreaker
from .disk.layout import BREAKER

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

BYTES: Final = 4096
"""Every report is padded to this size, so that it is replaced by one write."""
ERROR_MAX: Final = 500
"""Characters of an error that are kept: at most 6 bytes each in JSON."""
CONSUMER_MAX: Final = 100


class Notice(Lock):
    """The report of one breaker. It appears under its name locked and whole."""

    def __init__(self, directory: Path) -> None:
        name = f"{BREAKER}{os.urandom(8).hex()}"
        super().__init__(directory / f".{name}")
        self._hidden = self._path
        self._name = directory / name

    def put(self, report: OpenBreaker) -> None:
        """Show this report, in place of the one before.

        Raises:
            OSError, StoreError: it can't be written.
        """
        self.alone(0.0)
        assert self._fd is not None
        os.pwrite(self._fd, _encoded(report), 0)
        if self._path == self._hidden:
            _remove_dead(self._name.parent)
            os.rename(self._path, self._name)
            self._path = self._name

    def remove(self) -> None:
        """The breaker is not open any more."""
        if self._fd is not None:
            with suppress(OSError):
                os.unlink(self._path)
        self.leave()
        self._path = self._hidden  # the next report appears whole and locked, as the first did


class PrivateNotice:
    """The same for a queue in memory, which one process has for itself."""

    def __init__(self, shown: dict[PrivateNotice, OpenBreaker]) -> None:
        self._shown = shown

    def put(self, report: OpenBreaker) -> None:
        """Show this report, in place of the one before."""
        self._shown[self] = report

    def remove(self) -> None:
        """The breaker is not open any more."""
        self._shown.pop(self, None)


def read_all(directory: Path) -> list[OpenBreaker]:
    """The reports whose writers are alive, oldest first."""
    found = []
    for path in _named(directory):
        fd = _open(path)
        if fd is None:
            continue
        try:
            if not _is_dead(fd):
                found.append(_decoded(os.read(fd, BYTES)))
        except OSError:
            pass  # a file that can't be read says nothing
        finally:
            os.close(fd)
    return sorted((report for report in found if report is not None), key=lambda report: report.since)


def _named(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory) if name.startswith(BREAKER)]
    except OSError:
        return []


def _open(path: Path) -> int | None:
    try:
        return open_regular(path, os.O_RDONLY)
    except (OSError, StoreError):
        return None  # it was removed meanwhile, or is no report


def _is_dead(fd: int) -> bool:
    """Does no process hold it?"""
    if fcntl is None:  # pragma: no cover - Windows
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_dead(directory: Path) -> None:
    """Remove what processes left that were killed. A file has this name only once it is locked."""
    for path in _named(directory):
        fd = _open(path)
        if fd is None:
            continue
        try:
            if _is_dead(fd):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _encoded(report: OpenBreaker) -> bytes:
    short = attrs.evolve(report, consumer=report.consumer[:CONSUMER_MAX], error=report.error[:ERROR_MAX])
    return json.dumps(attrs.asdict(short), ensure_ascii=True).encode().ljust(BYTES)


def _decoded(data: bytes) -> OpenBreaker | None:
    try:
        values: dict[str, Any] = json.loads(data)
        report = OpenBreaker(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    texts, numbers = (report.consumer, report.error), (report.since, report.failures, report.ends, report.probes)
    whole = all(isinstance(text, str) for text in texts) and all(
        isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < 2**62 for n in numbers
    )
    return report if whole else None
