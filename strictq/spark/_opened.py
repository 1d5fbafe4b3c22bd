"""Queues opened read-only by a process of Spark. They are cached, because the next task comes within milliseconds."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Final

from .._store.api import Storage
from .._values import hints
from .._values.errors import QueueNotFound, StoreError
from ..opening import open as open_queue
from ..queue import Queue

_MAX: Final = 8
_opened: dict[str, tuple[tuple[int, int], Queue]] = {}


_settled = False


def settle() -> None:
    """Freeze the garbage collector, once. A task calls this when all modules needed for reading are imported.

    Spark collects garbage after every task. Traversing the imported objects takes 26 ms each time, as
    long as reading 50,000 messages, and finds no garbage.
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
    """Return the queue at a path, opened read-only.

    Raises:
        QueueNotFound: it was removed or replaced.
        StoreError: it can't be opened, for example because this process has no permission.
    """
    try:
        found = os.stat(os.path.join(path, "queue.db"))
    except (FileNotFoundError, NotADirectoryError) as e:
        raise QueueNotFound(f"there is no queue at {path}", hint=hints.EXECUTORS_NEED_SERVER) from e
    except OSError as e:
        raise StoreError(
            f"the queue at {path} can't be opened: {e.strerror or e}", shard=-1, cause=e, hint=hints.EXECUTORS_AS_OWNER
        ) from e
    place = (found.st_dev, found.st_ino)
    known = _opened.get(path)
    # A queue that replaced a removed one may have its inode. A request for a queue that no longer exists must not close the
    # existing one, from which others read.
    if known is None or known[0] != place or (known[1].queue_id != queue_id and _id_at(path) != known[1].queue_id):
        if known is not None:
            _opened.pop(path)[1].close()
        while len(_opened) >= _MAX:
            _opened.pop(next(iter(_opened)))[1].close()
        known = _opened[path] = (place, open_queue(path, read_only=True))
    if known[1].queue_id != queue_id:
        raise QueueNotFound(f"the queue at {path} was replaced since this was planned")
    return known[1]
