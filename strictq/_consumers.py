"""Operations on named consumers, for operators and for listeners to commits. The holder's operations are in `_handouts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from . import _hints as hints
from . import _query_reports as reports
from ._errors import ConsumerBusy, HandoutGone
from ._store.api import Storage

if TYPE_CHECKING:
    from ._findings import ConsumerStatus


def statuses(storage: Storage) -> list[ConsumerStatus]:
    """Return the named consumers. See Queue.consumers."""
    found = storage.handouts.consumers()
    directory = storage.directory
    if directory is None:
        return found
    return [
        attrs.evolve(status, query=reports.read(directory, storage.queue_id, status.name, active=status.active))
        for status in found
    ]


def release(storage: Storage, name: str, *, force: bool) -> int:
    """Release the unacked batches of a consumer. See Queue.release_consumer."""
    lock = storage.handouts.lock(name)
    if not lock.alone(0.0) and not force:
        raise ConsumerBusy(f"consumer {name!r} is in use by a running process", hint=hints.CONSUMER_BUSY_FORCE)
    try:
        return storage.handouts.release(name)
    finally:
        lock.leave()


def acknowledge(storage: Storage, consumer: str, n: int) -> int:
    """Ack batches up to n without being the holder, for listeners to commits.

    A number always identifies the same messages, so this needs no epoch: a late ack acks processed messages, or none.

    Returns:
        The number of messages acked.
    Raises:
        HandoutGone: batch n never existed; nothing was changed.
    """
    storage.require_open()
    known = storage.handouts.known(consumer)
    if n > max(k.last for k in known.values()):
        raise HandoutGone(f"consumer {consumer!r} of this queue has no batch {n}")
    return storage.handouts.ack(consumer, known, n)
