"""Lists of consumers, and what others than its holder do with a named consumer. The holder is in `spark/_recorded_batches`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .._store.api import Storage
from .._values import hints
from .._values.errors import ConsumerBusy, RecordedBatchGone
from . import query_reports as reports

if TYPE_CHECKING:
    from .._values.findings import ConsumerStatus


def statuses(storage: Storage) -> list[ConsumerStatus]:
    """Return all consumers: the live ones, and the streams. See Queue.consumers."""
    streams = storage.recorded_batches.consumers()
    directory = storage.directory
    if directory is not None:
        streams = [
            attrs.evolve(status, query=reports.read(directory, storage.queue_id, status.name, active=status.active))
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
    if n > max(k.last for k in known.values()):
        raise RecordedBatchGone(f"consumer {consumer!r} of this queue has no batch {n}")
    return storage.recorded_batches.ack(consumer, known, n)
