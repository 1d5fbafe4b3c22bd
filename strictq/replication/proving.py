"""A replica's regular proof that it can be promoted: it copies itself, promotes the copy, checks the queue, and removes it.

The replica goes on receiving and applying meanwhile. The result is stored, and is part of its status.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

import attrs

from .._platform import files
from .._platform.clock import MICROSECONDS, Clock
from .._platform.log import log
from .._store import api
from .._values.errors import ReplicaGap, StoreCorrupt, StoreFull, StrictqError
from .._values.stats import ReplicaProof
from .merging_histories import opened
from .promoting import promote_copy
from .received import ReceivedSegments
from .replica_home import LIVE, ReplicaState, read_proof, write_proof

FIRST_SECONDS: Final = 60.0
"""The first proof is this long after the start, unless `verify_seconds` is shorter."""
REST_TIMES: Final = 20
"""The next proof is after this many times the duration of the last one, so that proofs take at most a twentieth of the time."""
STOP_SECONDS: Final = 1.0
"""A closing replica waits this long for the end of a proof, which a sync to a slow disk may delay."""
SCRATCH: Final = "proving-"


class _Ended(Exception):
    """The proof was asked to end."""


class Proving:
    """The proofs of one replica, in the process that receives for it.

    Args:
        verify_seconds: the time between two proofs.
    """

    def __init__(self, home: Path, key: bytes, clock: Clock, verify_seconds: float) -> None:
        self._home = home
        self._key = key
        self._clock = clock
        self._interval = verify_seconds
        self._due = self._after(min(FIRST_SECONDS, verify_seconds))
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._checking: api.Storage | None = None
        self.last = read_proof(home)
        """The result so far."""
        for left in home.glob(f"{SCRATCH}*"):  # a killed process left it
            files.remove_tree(left)

    def _after(self, seconds: float) -> int:
        return self._clock.boot() + int(seconds * MICROSECONDS)

    def tend(self, receiving: ReceivedSegments) -> None:
        """Begin a proof in a thread of its own, if it is time for one and the replica has a complete state."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._thread is None and self._clock.boot() >= self._due and receiving.position.n >= 0:
            self._ending.clear()
            self._thread = threading.Thread(target=self._run, args=(receiving,), name="strictq-proving", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """End a running proof, without a result."""
        self._ending.set()
        until = time.monotonic() + STOP_SECONDS
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < until:
            checking = self._checking
            if checking is not None:
                checking.interrupt()
            self._thread.join(0.01)

    def _run(self, receiving: ReceivedSegments) -> None:
        began, at = self._clock.boot(), self._clock.wall()
        try:
            segment, state_at = self._prove(receiving)
            seconds = (self._clock.boot() - began) / MICROSECONDS
            found = ReplicaProof(at / MICROSECONDS, segment, state_at / MICROSECONDS, seconds)
        except Exception as e:
            if self._ending.is_set():
                return
            if isinstance(e, StrictqError | OSError):
                log.error("the replica %s could not be promoted: %s", self._home, e)
            else:
                log.exception("the replica %s could not be promoted", self._home)
            found = attrs.evolve(self.last, error=str(e) or type(e).__name__)
        if self._ending.is_set():
            return
        self._due = self._after(max(self._interval, (self._clock.boot() - began) / MICROSECONDS * REST_TIMES))
        try:
            write_proof(self._home, found)
        except StrictqError as e:
            log.error("the replica %s: %s", self._home, e)
            found = attrs.evolve(found, error=found.error or str(e))
        self.last = found

    def _prove(self, receiving: ReceivedSegments) -> tuple[int, int]:
        """Promote a copy. Return the number and the wall time of its last segment.

        Raises:
            ReplicaGap: a segment is damaged.
            StoreCorrupt: a page or a message is damaged.
            StrictqError: the replica can't be copied now.
        """
        scratch = self._home / f"{SCRATCH}{os.urandom(4).hex()}"
        with files.typed("the replica can't be copied"):
            self._require_space()
            scratch.mkdir(mode=0o700)
        try:
            whole = receiving.copy_to(scratch, self._go_on)
            promote_copy(scratch, self._key, self._clock, lambda _step: self._go_on())
            state = ReplicaState.read(scratch)
            assert state.applied is not None
            if (state.applied.n, state.applied_hash) != (whole.n, whole.hash):
                n = state.applied.n + 1
                raise ReplicaGap(f"segment {n}, which was received, is damaged in the replica's log", n)
            self._check(scratch / LIVE)
            return state.applied.n, state.applied.wall
        finally:
            files.remove_tree(scratch)

    def _require_space(self) -> None:
        """Raise unless the disk has twice the space of a copy: the log needs some of it meanwhile.

        Raises:
            StoreFull: it has less.
        """
        needed = 2 * sum(path.stat().st_size for path in (self._home / LIVE).glob("*.db"))
        free = files.free_bytes(self._home / LIVE)
        if free is not None and free < needed:
            raise StoreFull(f"the proof that it can be promoted needs {needed:,} free bytes, and {free:,} are free", shard=-1)

    def _check(self, queue: Path) -> None:
        with opened(queue, self._clock, read_only=True) as self._checking:
            try:
                self._go_on()
                problems = self._checking.reports.check(fix=False)
            finally:
                self._checking = None
        if problems:
            raise StoreCorrupt(f"{problems[0].rule}: {problems[0].detail}", shard=problems[0].shard)

    def _go_on(self) -> None:
        if self._ending.is_set():
            raise _Ended
