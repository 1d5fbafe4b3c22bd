"""What operators, and those who learn that a batch is committed, do about named consumers. `_handouts` is the holder's side."""

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
    """See Queue.consumers."""
    found = storage.handouts.consumers()
    directory = storage.directory
    if directory is None:
        return found
    return [
        attrs.evolve(status, query=reports.read(directory, storage.queue_id, status.name, active=status.active))
        for status in found
    ]


def release(storage: Storage, name: str, *, force: bool) -> int:
    """See Queue.release_consumer."""
    lock = storage.handouts.lock(name)
    if not lock.alone(0.0) and not force:
        raise ConsumerBusy(f"consumer {name!r} has a holder that is alive", hint=hints.CONSUMER_BUSY_FORCE)
    try:
        return storage.handouts.release(name)
    finally:
        lock.leave()


def acknowledge(storage: Storage, consumer: str, n: int) -> int:
    """Ack hand-outs up to n, without being the holder: for those who learn that a batch is committed.

    A number names the same messages for ever, so this needs no epoch: whoever acks late acks what was processed, or nothing.

    Returns:
        How many messages are done.
    Raises:
        HandoutGone: n was never handed out; nothing changed.
    """
    storage.require_open()
    known = storage.handouts.known(consumer)
    if n > max(k.last for k in known.values()):
        raise HandoutGone(f"consumer {consumer!r} of this queue has had no hand-out {n}")
    return storage.handouts.ack(consumer, known, n)
