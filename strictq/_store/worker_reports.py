"""A worker's reports about itself: small files, each valid while its writer holds a lock on it.

One kind exists while a worker's circuit breaker is open. The other reports a worker's load.

The lock ends with the process, however that ends, so a dead worker's report is never shown. The queue itself never reads it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import attrs

from .._errors import StoreError
from .._files import Lock, open_regular
from .._stats import OpenBreaker, WorkerLoad
from .disk.layout import BREAKER, WORKER

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

BYTES: Final = 4096
"""Every report is padded to this size, so that it is replaced by one write."""
ERROR_MAX: Final = 400
"""The maximum length of an error, in characters. Each takes at most 6 bytes in JSON."""
CONSUMER_MAX: Final = 100
PREFIXES: Final[dict[type, str]] = {OpenBreaker: BREAKER, WorkerLoad: WORKER}
"""The prefix of the file names of each kind."""
R = TypeVar("R", OpenBreaker, WorkerLoad)


class Notice(Lock, Generic[R]):
    """One report of a worker. It appears under its name complete and locked."""

    def __init__(self, directory: Path, kind: type[R]) -> None:
        name = f"{PREFIXES[kind]}{os.urandom(8).hex()}"
        self._prefix = PREFIXES[kind]
        super().__init__(directory / f".{name}")
        self._hidden = self._path
        self._name = directory / name

    def put(self, report: R) -> None:
        """Show this report, in place of the previous one.

        Raises:
            OSError, StoreError: it can't be written.
        """
        self.alone(0.0)
        assert self._fd is not None
        os.pwrite(self._fd, _encoded(report), 0)
        if self._path == self._hidden:
            _remove_dead(self._name.parent, self._prefix)
            os.rename(self._path, self._name)
            self._path = self._name

    def remove(self) -> None:
        """Remove the report."""
        if self._fd is not None:
            with suppress(OSError):
                os.unlink(self._path)
        self.leave()
        self._path = self._hidden  # so that the next report, too, appears complete and locked


class PrivateNotice(Generic[R]):
    """The same for an in-memory queue, which a single process uses."""

    def __init__(self, shown: dict[PrivateNotice[Any], Any]) -> None:
        self._shown = shown

    def put(self, report: R) -> None:
        """Show this report, in place of the previous one."""
        self._shown[self] = report

    def remove(self) -> None:
        """Remove the report."""
        self._shown.pop(self, None)


def read_all(directory: Path, kind: type[R]) -> list[R]:
    """Return the reports of a kind whose writers are alive, oldest first."""
    found: list[R | None] = []
    for path in _named(directory, PREFIXES[kind]):
        fd = _open(path)
        if fd is None:
            continue
        try:
            if not _is_dead(fd):
                found.append(_decoded(os.read(fd, BYTES), kind))
        except OSError:
            pass  # an unreadable file is skipped
        finally:
            os.close(fd)
    return sorted((report for report in found if report is not None), key=lambda report: report.since)


def _named(directory: Path, prefix: str) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory) if name.startswith(prefix)]
    except OSError:
        return []


def _open(path: Path) -> int | None:
    try:
        return open_regular(path, os.O_RDONLY)
    except (OSError, StoreError):
        return None  # it was removed meanwhile, or is not a report


def _is_dead(fd: int) -> bool:
    """Return whether no process holds a lock on the file."""
    if fcntl is None:  # pragma: no cover - Windows
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_dead(directory: Path, prefix: str) -> None:
    """Remove the reports of processes that were killed. A file has this name only once it is locked."""
    for path in _named(directory, prefix):
        fd = _open(path)
        if fd is None:
            continue
        try:
            if _is_dead(fd):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _encoded(report: OpenBreaker | WorkerLoad) -> bytes:
    values = {name: value for name, value in attrs.asdict(report).items() if value is not None}
    values["consumer"] = report.consumer[:CONSUMER_MAX]
    if isinstance(report, OpenBreaker):
        values["error"] = report.error[:ERROR_MAX]
    return json.dumps(values, ensure_ascii=True).encode().ljust(BYTES)


def _decoded(data: bytes, kind: type[R]) -> R | None:
    try:
        values: dict[str, Any] = json.loads(data)
        report = kind(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    whole = all(_fits(getattr(report, field.name), field.type) for field in attrs.fields(kind))
    return report if whole else None


def _fits(value: object, type_: Any) -> bool:
    """Return whether a value has the type of its field: str, str or None, or a number."""
    if type_ in (str, "str"):
        return isinstance(value, str)
    if type_ in (str | None, "str | None"):
        return value is None or isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**62
