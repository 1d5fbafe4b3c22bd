"""Confirmed mode: a call returns when the replica has on its disk what the call wrote, and what it saw.

The process that ships counts its rounds in a small mapped file. A call that has committed reads the number of the last round
that began, and waits for the end of the next one. That round began after the commit, so it includes the commit and all that the
call could see. No clocks or message numbers are compared, so this also holds for a call that wrote nothing, such as a repeated
ack.

The file is valid for one target, history, term and boot of the machine. The queue's mode is stored in queue.db alone. A process
notices a change of it like that of any setting: with its next write, before that returns.
Source: docs/explanation/replication.md
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from ..._platform import files
from ..._platform.clock import MICROSECONDS, Clock
from ..._values import hints
from ..._values.errors import Fenced, NotConfirmed, StrictqError, TargetUnavailable
from ..catalog.contents import Replication
from ..disk import layout
from .shipping import Shipping
from .status import ShipStatus

WAIT_STEP_SECONDS: Final = 0.0002
"""How often one of the waiting threads reads the file if another process ships. The others wait for that thread."""
TEND_SECONDS: Final = 0.05
"""How often it checks whether any process ships, and takes over from one that was killed."""
LOOK_SECONDS: Final = 0.5
"""How often it checks whether the queue is still in confirmed mode."""
_SLOT_BYTES: Final = 8
_TAG, _BEGUN, _ENDED, _WANTED, _ANSWERED = range(5)
_BYTES: Final = 5 * _SLOT_BYTES


class Rounds:
    """The rounds of a queue's shipper, as every process sees them.

    A slot is read and written by one machine instruction, so no process sees a partly written number.
    """

    def __init__(self, directory: Path, replication: Replication, boot_id: str) -> None:
        from hashlib import blake2b  # only queues in confirmed mode need it

        names = "\0".join((replication.history_id, str(replication.term), replication.target, boot_id))
        self._tag = int.from_bytes(blake2b(names.encode(), digest_size=_SLOT_BYTES).digest(), "big")
        self.timeout_seconds = replication.timeout_seconds
        """How long a call waits for a confirmation."""
        file = directory / layout.SHIP_ROUNDS
        with files.typed("the rounds of the shipper can't be mapped"), files.opened(file, os.O_RDWR | os.O_CREAT) as fd:
            size = os.fstat(fd).st_size
            if size < _BYTES:  # written, not truncated to size: storing into a hole on a full disk kills the process
                os.pwrite(fd, bytes(_BYTES - size), size)
            self._slots = memoryview(mmap.mmap(fd, _BYTES)).cast("Q")
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Forget the parent's waiting threads."""
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    # ---- for the process that ships

    def take_over(self) -> None:
        """Register this process, which holds ship.lock, as the shipper."""
        slots = self._slots
        if slots[_TAG] != self._tag:
            slots[_BEGUN] = slots[_ENDED] = max(slots[_BEGUN], slots[_ENDED])
            slots[_WANTED] = slots[_ANSWERED] = 0
            slots[_TAG] = self._tag

    def begin(self) -> None:
        """Begin a round, before anything of the queue is read."""
        self._slots[_BEGUN] += 1

    def end(self) -> None:
        """End the round: the target has everything that the round saw on its disk."""
        ended = self._slots[_ENDED] = self._slots[_BEGUN]
        for _ in range(len(self._waiting)):
            try:
                number, asleep = self._waiting.popleft()
            except IndexError:  # other threads stopped waiting meanwhile
                break
            if number <= ended:
                asleep.release()
            else:
                self._waiting.append((number, asleep))

    def answered(self, at: int) -> None:
        """Record that the target answered, at this time since the machine booted."""
        self._slots[_ANSWERED] = at

    @property
    def wanted(self) -> bool:
        """Whether a call waits for a round that has not begun yet."""
        return self._slots[_WANTED] > self._slots[_BEGUN]

    # ---- for waiting calls

    @property
    def next(self) -> int | None:
        """The number of the next round to begin. None: it is unknown, because no process ships."""
        return self._slots[_BEGUN] + 1 if self._slots[_TAG] == self._tag else None

    def has_ended(self, number: int) -> bool:
        """Return whether this round, or a later one, has ended."""
        return self._slots[_TAG] == self._tag and self._slots[_ENDED] >= number

    def rest(self, number: int, seconds: float) -> None:
        """Wait until this process ends this round, or for `seconds`."""
        asleep = threading.Lock()
        asleep.acquire()
        entry = number, asleep
        self._waiting.append(entry)
        if self.has_ended(number) or not asleep.acquire(timeout=seconds):  # it may have ended before `end` could find this thread
            with suppress(ValueError):  # `end` has found it
                self._waiting.remove(entry)

    def want(self, number: int) -> bool:
        """Request this round. Return whether it is the first request for it."""
        if self._slots[_WANTED] >= number:
            return False
        self._slots[_WANTED] = number
        return True

    @property
    def answered_at(self) -> int:
        """When the target answered last; 0: not yet."""
        return self._slots[_ANSWERED] if self._slots[_TAG] == self._tag else 0


class ConfirmingHost(Protocol):
    """What confirmation needs from the queue."""

    directory: Path | None
    read_only: bool
    clock: Clock
    shipping: Shipping

    @property
    def replication(self) -> Replication | None: ...
    def refresh_settings(self) -> bool: ...


class Confirming:
    """How the calls of one queue object wait for the replica.

    `active` is False for a queue that is not in confirmed mode. Callers then need not call anything else.
    """

    def __init__(self, host: ConfirmingHost) -> None:
        self._host = host
        self._rounds: Rounds | None = None
        self._rounds_of: Replication | None = None
        self._since = host.clock.boot()
        self._later = threading.local()
        self.after_fork_in_child()
        self.active = False
        """Whether writes may have to be confirmed or refused. If so, call `wait` after each."""
        self.adopt(host.replication, self.prepare(host.replication))

    def after_fork_in_child(self) -> None:
        """Replace the lock: a thread of the parent may have held it."""
        self._turn = threading.Lock()
        if self._rounds is not None:
            self._rounds.after_fork_in_child()

    def prepare(self, known: Replication | None) -> Rounds | None:
        """Open what confirmations of this replication need, before it is adopted.

        Raises:
            StoreError: a file can't be opened.
        """
        if known is None or known.mode != "confirmed" or self._host.read_only:
            return None
        return self.rounds(known)

    def adopt(self, known: Replication | None, rounds: Rounds | None) -> None:
        """Adopt the queue's replication. Cannot fail: this may happen after a COMMIT.

        Args:
            rounds: what `prepare` returned for it.
        """
        self.active = known is not None and known.mode in ("confirmed", "fenced")
        if rounds is not None and known != self._rounds_of:
            self._rounds, self._rounds_of = rounds, known
            self._since = self._host.clock.boot()

    def rounds(self, known: Replication) -> Rounds:
        """Return the rounds of the process that ships to this target."""
        if self._rounds is not None and known == self._rounds_of:
            return self._rounds
        assert self._host.directory is not None
        return Rounds(self._host.directory, known, self._host.clock.boot_id())

    # ---- before a write

    def require(self) -> None:
        """Refuse every write to a queue whose replica was promoted.

        Raises:
            Fenced: nothing was changed.
        """
        known = self._host.replication
        if known is not None and known.mode == "fenced" and not self._quiet:
            raise Fenced("the replica of this queue was promoted; nothing was changed", known.term + 1)

    def require_answers(self) -> None:
        """Refuse a write that can't be confirmed, before it is made: a caller that retries again and again would fill the disk.

        Raises:
            TargetUnavailable, Fenced: nothing was changed.
        """
        known = self._host.replication
        self.require()
        if known is None or known.mode != "confirmed" or self._rounds is None:
            return
        silent = (self._host.clock.boot() - max(self._rounds.answered_at, self._since)) / MICROSECONDS
        if silent > self._rounds.timeout_seconds:
            raise TargetUnavailable(
                f"{known.target} has not confirmed any change for {silent:.0f} s; nothing was changed{self._why(known)}",
                known.target, hint=hints.CONFIRMING_TARGET,
            )  # fmt: skip

    # ---- after a write

    @contextmanager
    def later(self) -> Iterator[None]:
        """Skip the waits of this thread's calls within the block."""
        before = self._quiet
        self._later.quiet = True
        try:
            yield
        finally:
            self._later.quiet = before

    @contextmanager
    def together(self) -> Iterator[None]:
        """Wait once for all of this thread's calls in the block, at its end, also if the block raises an error.

        Raises:
            NotConfirmed: in place of the block's error.
        """
        if self._quiet:
            yield
            return
        try:
            with self.later():
                yield
        except Exception:
            self.wait()
            raise
        self.wait()

    @property
    def _quiet(self) -> bool:
        return getattr(self._later, "quiet", False)

    def wait(self) -> None:
        """Wait until the replica has everything that is committed now.

        Raises:
            NotConfirmed: it is committed here.
        """
        if self._quiet:
            return
        known = self._host.replication
        if known is None or not self.active:
            return
        rounds = self._rounds
        if known.mode == "fenced" or rounds is None:
            raise NotConfirmed("the replica was promoted: it is committed in this queue only", hint=hints.FENCED)
        number = rounds.next
        if number is not None:
            self._ask(rounds, number)
        until = time.monotonic() + rounds.timeout_seconds
        if self._host.shipping.is_here:
            self._await(known, rounds, number, until)
            return
        held: list[bool] = []
        try:
            # One of the waiting threads reads the file. When its round has ended, the others' rounds have ended, too, or soon
            # will.
            held += map(self._turn.acquire, (True,), (rounds.timeout_seconds,))
            if not held[0]:
                if number is not None and rounds.has_ended(number):
                    return
                raise self._not_confirmed(known)
            self._await(known, rounds, number, until)
        finally:
            if held and held[0]:
                self._turn.release()

    def _await(self, known: Replication, rounds: Rounds, number: int | None, until: float) -> None:
        tend_at, look_at = time.monotonic() + TEND_SECONDS, time.monotonic() + LOOK_SECONDS
        while number is None or not rounds.has_ended(number):
            now = time.monotonic()
            if now > until:
                raise self._not_confirmed(known)
            if now > tend_at:
                self._host.shipping.tend()
                tend_at = now + TEND_SECONDS
            if now > look_at:
                look_at = now + LOOK_SECONDS
                if self._was_left(known):
                    return
            if number is None:
                number = rounds.next
            else:
                self._ask(rounds, number)
            if number is not None and self._host.shipping.is_here:
                rounds.rest(number, TEND_SECONDS)
            else:
                time.sleep(WAIT_STEP_SECONDS)

    def _ask(self, rounds: Rounds, number: int) -> None:
        if rounds.want(number):
            self._host.shipping.nudge()

    def _was_left(self, known: Replication) -> bool:
        """Return whether an operator has ended confirmed mode meanwhile, so that there is nothing to wait for.

        Raises:
            NotConfirmed: the replica was promoted, or the queue now ships to another target.
        """
        with suppress(StrictqError):
            self._host.refresh_settings()
        found = self._host.replication
        if found == known:
            return False
        if found is not None and found.mode in ("off", "async"):
            return True
        raise self._not_confirmed(known)

    def _not_confirmed(self, known: Replication) -> NotConfirmed:
        return NotConfirmed(f"{known.target} did not confirm it in time: it is committed in this queue only{self._why(known)}")

    def _why(self, known: Replication) -> str:
        assert self._host.directory is not None
        error = ShipStatus.read(self._host.directory, known.history_id).error
        return f". The last error of shipping: {error}" if error else ""
