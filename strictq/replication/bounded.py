"""I/O on a target that may hang, such as a share whose server is down, in a separate thread with a time limit.

The shipper holds read transactions open, which keep the WALs growing, so it must never block in a call that does not return.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from .._values.errors import TargetUnavailable
from .remote import ReplicaTarget
from .segment_files import SegmentFiles
from .target import ShipTarget

ANSWER_SECONDS: Final = 60.0
"""The longest duration of a call to a target."""
LOOK_SECONDS: Final = 0.2
P = ParamSpec("P")
T = TypeVar("T")


class HandedCall:
    """A call that another thread makes."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.began = time.monotonic()
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class TargetThread:
    """A thread that makes calls one after another, for one caller.

    Args:
        name: the target's name, for messages.
        on_wait: called several times per second while a call is awaited, with the seconds since its begin. An exception from it
            ends the wait, not the call.
    """

    def __init__(
        self, name: str, *, answer_seconds: float = ANSWER_SECONDS, on_wait: Callable[[float], object] = lambda _seconds: None
    ) -> None:
        self._name = name
        self._answer_seconds = answer_seconds
        self.on_wait = on_wait
        self._todo: SimpleQueue[HandedCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: HandedCall | None = None
        self._at_end: Callable[[], object] = lambda: None

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread, and return its result or raise its exception.

        Raises:
            TargetUnavailable: this call, or the one before it, takes too long. It may still take effect.
        """
        if self._last is not None and self.hangs:
            raise TargetUnavailable(f"{self._name} has not answered for {time.monotonic() - self._last.began:.0f} s", self._name)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="strictq-target", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:  # too many threads, or the interpreter is shutting down
                raise TargetUnavailable(f"no thread can be started for {self._name}: {e}", self._name) from e
            self._thread = thread
        call = self._last = HandedCall(work)
        self._todo.put(call)
        while not call.done.wait(LOOK_SECONDS):
            waited = time.monotonic() - call.began
            self.on_wait(waited)
            if waited > self._answer_seconds:
                raise TargetUnavailable(f"{self._name} does not answer", self._name)
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    @property
    def hangs(self) -> bool:
        """Whether a call is running whose caller stopped waiting."""
        return self._last is not None and not self._last.done.is_set()

    def close(self, then: Callable[[], object] = lambda: None) -> None:
        """End the thread when its call returns, and call `then` in it. Does not wait."""
        self._at_end = then
        self._todo.put(None)

    def _run(self) -> None:
        while (call := self._todo.get()) is not None:
            try:
                call.result = call.work()
            except BaseException as e:
                call.error = e
            call.done.set()
            del call
        self._at_end()


def _handed(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the method as one call of the thread."""

    def handed(self: BoundedFiles, /, *args: P.args, **options: P.kwargs) -> T:
        work: Callable[[], T] = partial(getattr(self._target, method.__name__), *args, **options)
        return self._thread.call(work)

    return handed


class BoundedFiles(SegmentFiles):
    """A target that keeps segments, with its I/O done by a TargetThread: each read and write is one call."""

    def __init__(self, target: SegmentFiles, thread: TargetThread) -> None:
        super().__init__(target.key, write_once=target.write_once)
        self._target = target
        self._thread = thread

    def __str__(self) -> str:
        return str(self._target)

    names = _handed(SegmentFiles.names)
    read = _handed(SegmentFiles.read)
    exists = _handed(SegmentFiles.exists)
    create = _handed(SegmentFiles.create)
    replace = _handed(SegmentFiles.replace)
    remove = _handed(SegmentFiles.remove)
    tidy = _handed(SegmentFiles.tidy)
    written_at = _handed(SegmentFiles.written_at)
    stored_bytes = _handed(SegmentFiles.stored_bytes)
    make = _handed(SegmentFiles.make)
    translated = _handed(ShipTarget.translated)

    def read_many(self, names: list[str], most: int) -> Iterator[bytes | Exception]:
        yield from self._thread.call(lambda: list(self._target.read_many(names, most)))

    def holds(self, path: Path) -> bool:
        return self._target.holds(path)

    def require_apart(self, queue: Path) -> None:
        self._target.require_apart(queue)


def bounded(target: ShipTarget, thread: TargetThread) -> ShipTarget:
    """Return the same target with bounded waits."""
    if isinstance(target, SegmentFiles):
        return BoundedFiles(target, thread)
    if isinstance(target, ReplicaTarget):
        target.bound(thread.call, thread.on_wait)  # requests on an open connection have a time limit of their own
    return target
