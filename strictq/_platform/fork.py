"""Forks: close every connection before one, and reopen on both sides when needed.

A child that used its parent's connections could lose the parent's commits. Even a fresh connection can wait for ever on a lock
that a thread of the parent held at the fork. So `before` waits for running transactions.
An in-memory queue can't be prepared: it raises ForkedProcess in the child. A transaction that the forking thread itself has
open is rolled back and raises ForkedProcess on both sides.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from typing import Final, Protocol
from weakref import WeakSet

LATE: Final = (
    "base64", "ctypes", "datetime", "difflib", "hashlib", "shutil", "socket", "traceback",
    "strictq._values.findings", "strictq._values.hashing", "strictq._values.views", "strictq._store.disk.foreign",
    "strictq._store.whole.check", "strictq._store.whole.merging_histories", "strictq.consumer", "strictq._store.shard.checking",
    "strictq._store.shard.counting", "strictq._store.shard.expiring", "strictq._store.shipping.backup",
    "strictq._store.shipping.capture",
)  # fmt: skip
"""The modules that calls of an open queue import late. A fork imports them first: an import that another thread had begun would
never end in the child."""
LATE_WITH_HOOKS: Final = ("logging", "concurrent.futures.thread")
"""The same, but they register functions for forks, and must not be imported anew in one. A fork waits for a begun import."""


class Forkable(Protocol):
    def before_fork(self) -> None: ...
    def after_fork(self, *, child: bool) -> None: ...


_stores: WeakSet[Forkable] = WeakSet()
_prepared: list[Forkable] = []
_lock = threading.Lock()


def register(store: Forkable) -> None:
    with _lock:
        _stores.add(store)


def _before() -> None:
    for module in (*LATE, *(name for name in LATE_WITH_HOOKS if name in sys.modules)):
        with suppress(Exception):  # the call that needs the module raises the error; the fork must go on
            import_module(module)
    _lock.acquire()
    for store in list(_stores):
        store.before_fork()
        _prepared.append(store)


def _after(*, child: bool) -> None:
    try:
        with ExitStack() as stack:  # each store resumes, whatever another one raises
            for store in reversed(_prepared):
                stack.callback(store.after_fork, child=child)
    finally:  # otherwise no queue could be opened any more
        _prepared.clear()
        _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=partial(_after, child=False), after_in_child=partial(_after, child=True))
