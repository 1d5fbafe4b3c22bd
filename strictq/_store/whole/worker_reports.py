"""A worker's reports about itself: small files, each valid while its writer holds a lock on it.

One kind exists while a worker's circuit breaker is open. Another reports the progress of its handlers, and a third, while a
console watches, when its newest handlers began and ended.

The lock ends with the process, however that ends, so a dead worker's report is never shown. The queue itself never reads it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import attrs

from ..._platform.files import Lock, lock_file, opened
from ..._values.stats import OpenBreaker
from ..disk import locks
from ..disk.layout import BREAKER, PROGRESS, SPANS, WATCH

BYTES: Final = 4096
"""Every report is padded to this size, so that it is replaced by one write."""
SLOT_BYTES: Final = 1024
"""The size of one handler's progress in a report: at most 6 bytes for each character of its text, and less than 150 others."""
HANDLERS_MAX: Final = 256
"""How many handlers' progress a worker reports."""
SPANS_MAX: Final = 255
SPAN_BYTES: Final = 128
"""The size of one span in a report, 32 KiB with the worker's name."""
WATCHED_SECONDS: Final = 10.0
"""How long workers report spans after a console looked at them."""
ERROR_MAX: Final = 400
"""The maximum length of an error, in characters. Each takes at most 6 bytes in JSON."""
CONSUMER_MAX: Final = 100
Attempt = tuple[int, int, int]
"""What identifies an attempt of a message: its shard, its arrival number, and the token of its lease."""


@attrs.frozen
class RunningHandlers:
    """The progress of a worker's running handlers: fraction, text, and when it was reported, seconds since 1970."""

    progress: Mapping[Attempt, tuple[float, str, float]]
    since: float = 0.0


class HandlerSpan(NamedTuple):
    """The run of one handler.

    Attributes:
        stage: "prepare" or "process".
        key: as text, its first characters.
        start, end: seconds since 1970; end is None while it runs.
        outcome: the kind of the WorkerEvent that ended it, or "".
    """

    stage: str
    key: str
    seq: int
    start: float
    end: float | None
    outcome: str


@attrs.frozen
class WorkerSpans:
    """The newest runs of a worker's handlers, oldest first: the last SPANS_MAX of them are reported."""

    consumer: str
    spans: Sequence[HandlerSpan]
    since: float = 0.0


PREFIXES: Final[dict[type, str]] = {OpenBreaker: BREAKER, RunningHandlers: PROGRESS, WorkerSpans: SPANS}
"""The prefix of the file names of each kind."""
R = TypeVar("R", OpenBreaker, RunningHandlers, WorkerSpans)


class Notice(Lock, Generic[R]):
    """One report of a worker. It appears under its name complete and locked."""

    def __init__(self, directory: Path, kind: type[R]) -> None:
        name = f"{PREFIXES[kind]}{os.urandom(8).hex()}"
        self._prefix = PREFIXES[kind]
        super().__init__(directory / f".{name}")
        self._hidden = self._path
        self._name = directory / name
        self._size = 0

    def put(self, report: R) -> None:
        """Show this report, in place of the previous one.

        Raises:
            OSError, StoreError: it can't be written.
        """
        self.alone(0.0)
        assert self._fd is not None
        data = _encoded(report)
        os.pwrite(self._fd, data.ljust(self._size), 0)
        self._size = max(self._size, len(data))
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
        self._size = 0
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
    for _, fd in locks.each(directory, locks.names(directory, PREFIXES[kind])):
        with suppress(OSError):  # an unreadable file is skipped
            if not is_dead(fd):
                found.append(_decoded(os.read(fd, SLOT_BYTES * HANDLERS_MAX), kind))
    return sorted((report for report in found if report is not None), key=lambda report: report.since)


def is_dead(fd: int) -> bool:
    """Return whether no process holds a lock on the file."""
    return lock_file(fd, shared=True)


def _remove_dead(directory: Path, prefix: str) -> None:
    """Remove the reports of processes that were killed. A file has this name only once it is locked."""
    for path, fd in locks.each(directory, locks.names(directory, prefix)):
        if is_dead(fd):
            path.unlink(missing_ok=True)


def watch(directory: Path) -> None:
    """Let workers report spans for WATCHED_SECONDS.

    Raises:
        OSError, StoreError: the file can't be written.
    """
    with opened(directory / WATCH, os.O_WRONLY | os.O_CREAT) as fd:
        os.utime(fd)


def is_watched(directory: Path) -> bool:
    """Return whether a console looked at the spans in the last WATCHED_SECONDS."""
    try:
        return abs(time.time() - os.stat(directory / WATCH).st_mtime) < WATCHED_SECONDS
    except OSError:
        return False


def _encoded(report: OpenBreaker | RunningHandlers | WorkerSpans) -> bytes:
    if isinstance(report, WorkerSpans):
        return b"".join([_slot([], report.consumer), *(_slot([span.stage], *span[1:]) for span in report.spans[-SPANS_MAX:])])
    if isinstance(report, RunningHandlers):
        some = islice(report.progress.items(), HANDLERS_MAX)
        return b"".join(
            json.dumps([*attempt, *progress], ensure_ascii=False).encode().ljust(SLOT_BYTES) for attempt, progress in some
        )
    values = {name: value for name, value in attrs.asdict(report).items() if value is not None}
    values["consumer"] = report.consumer[:CONSUMER_MAX]
    if isinstance(report, OpenBreaker):
        values["error"] = report.error[:ERROR_MAX]
    return json.dumps(values, ensure_ascii=True).encode().ljust(BYTES)


def _decoded(data: bytes, kind: type[R]) -> R | None:
    if kind is RunningHandlers:
        slots = (data[at : at + SLOT_BYTES] for at in range(0, len(data), SLOT_BYTES))
        handlers: Any = RunningHandlers(dict(found for slot in slots if (found := _progress_in(slot)) is not None))
        return handlers  # type: ignore[no-any-return]
    try:
        if kind is WorkerSpans:
            (consumer,) = json.loads(data[:SPAN_BYTES])
            seen: Any = WorkerSpans(str(consumer), tuple(_spans_in(data)))
            return seen  # type: ignore[no-any-return]
        values: dict[str, Any] = json.loads(data)
        report = kind(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    whole = all(_fits(getattr(report, field.name), field.type) for field in attrs.fields(kind))
    return report if whole else None


def _slot(before: list[str], text: str, *rest: Any) -> bytes:
    """Return a span, or the worker's name, in SPAN_BYTES. Only the text can be too long, and is then cut."""
    while len(data := json.dumps([*before, text, *rest], ensure_ascii=False, separators=(",", ":")).encode()) > SPAN_BYTES:
        text = text[: max(len(text) - (len(data) - SPAN_BYTES + 5) // 6, 0)]
    return data.ljust(SPAN_BYTES)


def _spans_in(data: bytes) -> Iterator[HandlerSpan]:
    for at in range(SPAN_BYTES, len(data), SPAN_BYTES):
        with suppress(ValueError, TypeError, RecursionError):  # not used, or just written
            span = HandlerSpan(*json.loads(data[at : at + SPAN_BYTES]))
            times = (span.seq, span.start, *(() if span.end is None else (span.end,)))
            if all(_fits(value, "str") for value in span[:2] + span[5:]) and all(_fits(value, "float") for value in times):
                yield span


def _progress_in(slot: bytes) -> tuple[Attempt, tuple[float, str, float]] | None:
    """Return a handler's progress. None: the slot is not used, or just written."""
    try:
        *attempt, fraction, text, at = json.loads(slot)
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = all(_fits(value, "float") for value in (*attempt, fraction, at))
    return ((*attempt,), (fraction, text, at)) if numbers and len(attempt) == 3 and isinstance(text, str) else None


def _fits(value: object, type_: Any) -> bool:
    """Return whether a value has the type of its field: str, str or None, or a number."""
    if type_ in (str, "str"):
        return isinstance(value, str)
    if type_ in (str | None, "str | None"):
        return value is None or isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**62
