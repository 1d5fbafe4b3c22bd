"""The report of a query's driver: a small file beside the queue, for `q.consumers()`. The engine itself never reads it.

It is a file, not a row, because writing it takes no lock that senders or the query wait for, and needs no sync.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._platform import files

if TYPE_CHECKING:
    from .._values.findings import QueryReport

QUERY: Final = "query-"
BYTES_MAX: Final = 16_384
TEXT_MAX: Final = 2_000
"""The longest stored name or error of a query, characters."""
_NUMBERS: Final = ("batch", "messages", "batch_seconds", "messages_per_second", "at")


def file_of(directory: Path, consumer: str) -> Path:
    """Return the path of a consumer's report."""
    return files.named(directory, QUERY, consumer)


def write(directory: str, queue_id: str, consumer: str, report: QueryReport) -> None:
    """Store the last report of a consumer.

    Raises:
        OSError: the report cannot be written; the previous one may be lost.
        StoreError: the path is not a regular file; nothing was changed.
    """
    short = attrs.evolve(report, name=report.name and report.name[:TEXT_MAX], error=report.error and report.error[:TEXT_MAX])
    text = json.dumps({"queue": queue_id, "consumer": consumer, **attrs.asdict(short)}, ensure_ascii=True)
    files.replace(file_of(Path(directory), consumer), text.encode())


def read(directory: Path, queue_id: str, consumer: str, *, active: bool) -> QueryReport | None:
    """Return the last report of a consumer; None if there is none or it cannot be read.

    Args:
        active: whether a process holds the consumer. If not, a query that did not report its end is "gone".
    """
    with files.late():
        from .._values.findings import QueryReport

    data = files.content(file_of(directory, consumer), BYTES_MAX)
    try:
        fields: dict[str, Any] = json.loads(data or b"null")
        if fields.pop("queue") != queue_id or fields.pop("consumer") != consumer:
            return None
        report = QueryReport(**fields)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    if not _is_whole(report):
        return None
    return attrs.evolve(report, state="gone") if report.state == "running" and not active else report


def _is_whole(report: QueryReport) -> bool:
    texts = (report.id, report.name or "", report.error or "")
    numbers: list[Any] = [getattr(report, name) for name in _NUMBERS]
    return (
        report.state in ("running", "ended", "failed")
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < 2**62 for n in numbers)
    )
