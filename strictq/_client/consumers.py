"""Consumers: let a live one appear, list all of them, and what others than its holder do with a named one.

The holder of a named consumer is in `spark/_recorded_batches`. The report of a query's driver is a small file, not
a row: writing it takes no lock that senders or the query wait for, and needs no sync. The engine itself never reads it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import attrs

from .._platform import files
from .._store.api import NAME_MAX, Affinity, Description, LiveConsumer, OnlyConsumer, Storage
from .._values import hints
from .._values.errors import ConsumerBusy, InvalidArgument, RecordedBatchGone
from . import validate

if TYPE_CHECKING:
    from typing import Literal

    from .._values.findings import ConsumerStatus, QueryReport


def statuses(storage: Storage) -> list[ConsumerStatus]:
    """Return all consumers: the live ones, and the streams. See Queue.consumers."""
    streams = storage.recorded_batches.consumers()
    directory = storage.directory
    if directory is not None:
        streams = [
            attrs.evolve(status, query=read_report(directory, storage.queue_id, status.name, active=status.active))
            for status in streams
        ]
    return [*storage.reports.live_consumers(), *streams]


def release(storage: Storage, name: str, *, force: bool) -> int:
    """Release the unacked batches of a consumer. See Queue.release_consumer."""
    lock = storage.recorded_batches.lock(name)
    if not lock.alone(0.0) and not force:
        raise ConsumerBusy(f"consumer {name!r} is in use by a running process", hint=hints.CONSUMER_BUSY_FORCE)
    try:
        return storage.recorded_batches.release(name)
    finally:
        lock.leave()


def acknowledge(storage: Storage, consumer: str, n: int) -> int:
    """Ack batches up to n without being the holder, for listeners to commits.

    A number always identifies the same messages, so this needs no epoch: a late ack acks processed messages, or none.

    Returns:
        The number of messages acked.
    Raises:
        RecordedBatchGone: batch n never existed; nothing was changed.
    """
    storage.require_open()
    known = storage.recorded_batches.known(consumer)
    if n > max((k.last for k in known.values()), default=0):
        raise RecordedBatchGone(f"consumer {consumer!r} of this queue has no batch {n}")
    return storage.recorded_batches.ack(consumer, known, n)


QUERY: Final = "query-"
BYTES_MAX: Final = 16_384
TEXT_MAX: Final = 2_000
"""The longest stored name or error of a query, characters."""
_NUMBERS: Final = ("batch", "messages", "batch_seconds", "messages_per_second", "at")


def report_of(directory: Path, consumer: str) -> Path:
    return files.named(directory, QUERY, consumer)


def write_report(directory: str, queue_id: str, consumer: str, report: QueryReport) -> None:
    """Store the last report of a consumer.

    Raises:
        OSError: the report cannot be written; the previous one may be lost.
        StoreError: the path is not a regular file; nothing was changed.
    """
    short = attrs.evolve(report, name=report.name and report.name[:TEXT_MAX], error=report.error and report.error[:TEXT_MAX])
    text = json.dumps({"queue": queue_id, "consumer": consumer, **attrs.asdict(short)}, ensure_ascii=True)
    files.replace(report_of(Path(directory), consumer), text.encode())


def read_report(directory: Path, queue_id: str, consumer: str, *, active: bool) -> QueryReport | None:
    """Return the last report of a consumer; None if there is none or it cannot be read.

    Args:
        active: whether a process holds the consumer. If not, a query that did not report its end is "gone".
    """
    with files.late():
        from .._values.findings import QueryReport

    data = files.content(report_of(directory, consumer), BYTES_MAX)
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


AFFINITIES: Final = get_args(Affinity)


def affinity(value: str | None, storage: Storage) -> Affinity:
    """Return a checked affinity; None: "prefer", or "none" for a single shard."""
    if value is None:
        return "prefer" if storage.shards > 1 else "none"
    if value not in AFFINITIES:
        raise InvalidArgument(f"affinity must be 'prefer', 'own' or 'none', not {value!r}")
    return cast("Affinity", value)


def join(
    storage: Storage, kind: Literal["worker", "loop"], name: str | None, wanted: str | None, *, concurrency: int = 1
) -> LiveConsumer | OnlyConsumer:
    """Let a consumer appear among the live ones.

    Args:
        name: None: host, process id, and a number.
        wanted: the affinity; see `affinity`.
    Raises:
        InvalidArgument: an argument is invalid.
        ConsumerBusy: another joined loop has this name.
        StoreError: the consumer's file can't be written.
    """
    with files.late():
        import socket
        from importlib.metadata import PackageNotFoundError, version

    # Nobody else uses a queue in memory.
    agreed = "none" if storage.directory is None else affinity(wanted, storage)
    try:
        installed = version("strictq")
    except PackageNotFoundError:  # it runs from a checkout or an archive
        installed = ""
    host = socket.gethostname()
    who = f"{host}:{os.getpid()}" if name is None else validate.name("name", name)
    described = Description(kind, who, host, os.getpid(), installed, agreed, storage.clock.wall() / 1e6, concurrency)
    live = storage.join(described)
    if kind == "worker" or name is None:
        return live
    # It appears first and looks then, so that two never have one name. Both may be refused if they come at the same time.
    if any(seen.described[:2] == (kind, name[:NAME_MAX]) for seen in storage.live() if seen.id != live.id):
        live.end()
        raise ConsumerBusy(f"a live consumer of this queue is named {name!r}", hint=hints.CONSUMER_NAME_TAKEN)
    return live
