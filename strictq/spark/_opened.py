"""Queues opened read-only by a process of Spark. They are cached, because the next task comes within milliseconds."""

from __future__ import annotations

import gc
import os
from typing import Final

from .._values import hints
from .._values.errors import QueueNotFound, StoreError
from ..opening import open as open_queue
from ..queue import Queue
from ._paths import CATALOG, FIRST_SHARD, place_of

_MAX: Final = 8
_opened: dict[str, tuple[tuple[int, int] | None, Queue]] = {}


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


def looking(path: str, queue_id: str) -> Queue:
    """Return the queue at a path, opened read-only.

    Raises:
        QueueNotFound: it was removed or replaced.
        StoreError: it can't be opened, for example because this process has no permission.
    """
    try:
        os.stat(os.path.join(path, CATALOG))
    except (FileNotFoundError, NotADirectoryError) as e:
        raise QueueNotFound(f"there is no queue at {path}", hint=hints.EXECUTORS_NEED_SERVER) from e
    except OSError as e:
        raise StoreError(
            f"the queue at {path} can't be opened: {e.strerror or e}", shard=-1, cause=e, hint=hints.EXECUTORS_AS_OWNER
        ) from e
    place = place_of(path, FIRST_SHARD)  # before it is opened, so that a queue that replaces it is noticed
    known = _opened.get(path)
    if known is None or known[0] != place:
        if known is not None:
            _opened.pop(path)[1].close()
        while len(_opened) >= _MAX:
            _opened.pop(next(iter(_opened)))[1].close()
        known = _opened[path] = (place, open_queue(path, read_only=True))
    if known[1].queue_id != queue_id:
        raise QueueNotFound(f"the queue at {path} was replaced since this was planned")
    return known[1]
