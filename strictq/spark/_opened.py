"""Queues that a process of Spark's looks into: opened once, and kept, because the next task comes in milliseconds."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Final

from .. import _hints as hints
from .._errors import QueueNotFound
from .._store.api import Storage
from ..opening import open as open_queue
from ..queue import Queue

_MAX: Final = 8
_opened: dict[str, tuple[tuple[int, int], Queue]] = {}


_settled = False


def settle() -> None:
    """Said by a task in a process of Spark's, when everything is imported that reading needs.

    Spark collects the garbage of the whole process after every task. To go through what is imported takes 26 ms each time, as
    long as to read 50,000 messages, and finds nothing: it is taken out, once.
    """
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True


def _id_at(path: str) -> str:
    known = Storage.facts(Path(path), read_only=True)
    if known is None:
        raise QueueNotFound(f"there is no queue at {path}")
    return known.queue_id


def looking(path: str, queue_id: str) -> Queue:
    """The queue at a path, to read in it.

    Raises:
        QueueNotFound: it is gone, or another queue is there now.
    """
    try:
        found = os.stat(os.path.join(path, "queue.db"))
    except OSError as e:
        raise QueueNotFound(f"there is no queue at {path}", hint=hints.EXECUTORS_NEED_SERVER) from e
    place = (found.st_dev, found.st_ino)
    known = _opened.get(path)
    # A queue in the place of one that was removed may have its inode, too. But who asks for another queue than the one that is
    # there must not close it: others are reading in it.
    if known is None or known[0] != place or (known[1].queue_id != queue_id and _id_at(path) != known[1].queue_id):
        if known is not None:
            _opened.pop(path)[1].close()
        while len(_opened) >= _MAX:
            _opened.pop(next(iter(_opened)))[1].close()
        known = _opened[path] = (place, open_queue(path, read_only=True))
    if known[1].queue_id != queue_id:
        raise QueueNotFound(f"the queue at {path} was replaced since this was planned")
    return known[1]
