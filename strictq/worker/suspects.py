"""Suspects run alone in their process, whatever workers it has.

A suspect is a message that was running beside others when their process died. If it runs alone and its process dies again, it is
the cause, and no other message is charged. So a worker that holds a suspect starts nothing else, waits until no handler runs in
the process, and runs it. The other workers of the process start nothing until its turn is over.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._store.api import ProcessHold


class Contender(Protocol):
    """The board of a worker."""

    lock: threading.Lock

    @property
    def still(self) -> bool:
        """Whether no handler is running or about to run. Requires `lock`."""
        ...


class Turns:
    """The running workers of a process.

    Attributes:
        owner: the worker that waits for its turn or has it; None: every worker may run.
    """

    def __init__(self) -> None:
        self.owner: Contender | None = None
        self._lock = threading.Lock()
        self._members: dict[Contender, tuple[Callable[[], None], ProcessHold | None]] = {}

    def join(self, member: Contender, wake: Callable[[], None], holder: ProcessHold | None) -> None:
        """Add a worker that begins to run.

        Args:
            wake: wakes its keeper.
            holder: notes its claims.
        """
        with self._lock:
            self._members[member] = wake, holder
            if len(self._members) > 1:
                for _, each in self._members.values():
                    if each is not None:
                        each.note_several()

    def leave(self, member: Contender) -> None:
        """Remove a worker that ended, and end its turn."""
        with self._lock:
            self._members.pop(member, None)
        self.end(member)

    def begin(self, member: Contender) -> bool:
        """Return whether this worker has its turn now: no other worker has it, or runs a handler. Requires the member's lock.

        Only the owner takes the lock of another member, and never in two threads at once, because it holds its own.
        """
        with self._lock:
            if self.owner is None:
                self.owner = member
            if self.owner is not member:
                return False
            others = [other for other in self._members if other is not member]
        for other in others:
            with other.lock:
                if not other.still:
                    return False
        return True

    def end(self, member: Contender) -> None:
        """End this worker's turn, if it has it, and wake the others."""
        with self._lock:
            if self.owner is not member:
                return
            self.owner = None
            wakes = [wake for other, (wake, _) in self._members.items() if other is not member]
        for wake in wakes:
            wake()

    def nudge(self, member: Contender) -> None:
        """Wake the owner, which may wait for this worker's handlers."""
        owner = self.owner
        if owner is not None and owner is not member:
            with self._lock:
                wake, _ = self._members.get(owner, (None, None))
            if wake is not None:
                wake()


PROCESS: Final = Turns()
"""Those of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS.__init__)  # type: ignore[misc]
