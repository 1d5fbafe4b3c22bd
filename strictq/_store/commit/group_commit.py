"""Leader and followers: how callers of one shard in many threads share a commit.

A commit may cost an fsync. Callers that arrive during one wait, and the first of them then commits for all. A single caller
neither waits nor wakes another thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import ref

from ..._values.errors import StoreBusy, StoreError
from .tx import AnyTx, Operation

GROUP_MAX: Final = 1000
GATHER_TURNS: Final = 32
LEADER_SECONDS: Final = 1.0
"""How often a follower checks whether its leader still exists."""


class Mergeable(Protocol):
    """An operation that can be run together with others of its kind at a lower cost than separately."""

    def __call__(self, tx: AnyTx) -> Any: ...

    def together(self, tx: AnyTx, others: list[Any]) -> list[Any]:
        """Run these operations in order, this one first, and return their results. Run all of them, or raise an exception."""
        ...


class Call:
    """One caller's operation in a group."""

    __slots__ = ("__weakref__", "error", "finished", "operation", "result", "seconds", "synced", "wake")

    def __init__(self, operation: Operation[Any], seconds: float = 0.0, synced: bool = True) -> None:
        self.operation = operation
        self.synced = synced
        """Whether the call must be on the disk when it returns, at "full"."""
        self.seconds = seconds
        """How long the call waits for a transaction to begin."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.wake: threading.Lock | None = None

    def follow(self) -> None:
        """Let another thread finish this call, or make it the leader."""
        self.wake = threading.Lock()
        self.wake.acquire()

    def release(self) -> None:
        """Wake the caller. A second call does nothing."""
        if self.wake is not None and self.wake.locked():
            self.wake.release()

    def finish(self, error: BaseException) -> None:
        self.error = error
        self.finished = True

    def unfinish(self) -> None:
        """Discard the outcome: the transaction was rolled back."""
        self.result = self.error = None
        self.finished = False


def no_leader() -> None:
    """Stand for the leader while there is none."""


class Grouping:
    """The leader among the callers of one shard, and the waiting followers.

    Args:
        locked: runs a function with the shard's lock held, and waits for that lock for the given seconds.
        run: runs calls in one transaction and commits it, synced if asked; the lock is held. Before it runs the first call, it
            calls the given function, which adds the calls that wait by then.
        waits_on: whether a call that waited in vain for the given seconds waits on.
    """

    def __init__(
        self,
        locked: Callable[[Callable[[], AnyTx], float], AnyTx],
        run: Callable[[list[Call], Callable[[], None], bool], AnyTx],
        waits_on: Callable[[float], bool],
        shard: int,
    ) -> None:
        self._locked = locked
        self._run = run
        self._waits_on = waits_on
        self._shard = shard
        self._begin()

    def _begin(self) -> None:
        self._gate = threading.Lock()
        # Held weakly: an interrupt may prevent even the hand-over. The lead then ends when the leader's call is freed.
        self._leader: Callable[[], Call | None] = no_leader
        self._group_size = 1
        self._waiting: deque[Call] = deque()

    @property
    def is_shared(self) -> bool:
        """Whether callers share commits: one of them commits or waits to, or several shared the last one."""
        return self._group_size > 1 or self._leader() is not None

    def commit(self, call: Call) -> AnyTx | None:
        """Commit this call, and set its outcome.

        Return the transaction to the leader, which acts for its whole group, else None.
        """
        group = [call]
        try:
            with self._gate:
                if self._leader() is None:
                    self._leader = ref(call)
                else:
                    call.follow()
                    self._waiting.append(call)
            if self._leader() is not call:
                if not self._follow(call):
                    raise StoreBusy("other calls hold the shard's write lock", shard=self._shard)
                if call.finished:
                    return None
            return self._lead(group)
        except StoreError as e:
            for other in group[1:]:
                if not other.finished:
                    other.finish(e)
            raise
        finally:
            try:
                self._end_lead(call, group)
            finally:
                self._end_lead(call, group)  # the first may be interrupted before it can do anything

    def _lead(self, group: list[Call]) -> AnyTx:
        """Commit for all waiting callers."""
        synced = group[0].synced

        def join() -> None:
            with self._gate:
                while self._waiting and len(group) < GROUP_MAX and (synced or not self._waiting[0].synced):
                    group.append(self._waiting.popleft())
            self._group_size = len(group)

        def together() -> AnyTx:
            nonlocal synced
            # Waiting calls join once the transaction has begun, because they may withdraw until then. Whether it is synced must
            # be decided before.
            if not synced and self._waiting:
                with self._gate:
                    synced = any(call.synced for call in self._waiting)
            return self._run(group, join, synced)

        self._gather()
        return self._locked(together, group[0].seconds)

    def _end_lead(self, call: Call, group: list[Call]) -> None:
        """Pass the lead on, even if interrupted."""
        interrupt: BaseException | None = None
        while self._leader() is call:
            try:
                self._hand_over(group)
            except BaseException as e:
                interrupt = e
        if interrupt is not None:
            raise interrupt

    def _gather(self) -> None:
        """Wait briefly for the callers that shared the last commit.

        That commit released them all, and the first of them leads. Without this it would commit alone while the others arrive,
        and every second commit would be a group of one.
        """
        arrived = 0
        for _ in range(GATHER_TURNS):
            if len(self._waiting) + 1 >= self._group_size:
                return
            time.sleep(0)  # lets other threads run, so that they arrive here or block elsewhere
            if len(self._waiting) == arrived:
                return
            arrived = len(self._waiting)

    def _follow(self, call: Call) -> bool:
        """Wait until the call is finished or leads the next group. If interrupted, withdraw it or wait for its outcome.

        Return False if its time ended before a transaction began for it; it is then withdrawn.
        """
        assert call.wake is not None
        left, withdrawn = call.seconds, False
        timeout = min(left, LEADER_SECONDS)
        try:
            while not withdrawn and not call.wake.acquire(timeout=timeout):
                with self._gate:
                    if call in self._waiting:  # otherwise a leader has taken it, and will finish it soon
                        if self._leader() is None:
                            self._waiting.remove(call)
                            self._leader = ref(call)
                            return True
                        left -= timeout
                        withdrawn = left <= 0 and not self._waits_on(call.seconds)
                        if withdrawn:
                            self._waiting.remove(call)
                timeout = LEADER_SECONDS
        except BaseException:
            with self._gate:
                if call in self._waiting:
                    self._waiting.remove(call)
                    raise
            if withdrawn:
                raise
            # A leader has taken it, or it was made leader: its outcome comes soon and must not be lost.
            while not call.finished and self._leader() not in (call, None):
                call.wake.acquire(timeout=0.1)
            raise
        return not withdrawn

    def _hand_over(self, group: list[Call]) -> None:
        """Release the followers, and make the caller that has waited longest the next leader.

        Safe to repeat after an interrupt.
        """
        with self._gate:
            # Unfinished calls here belong to a leader that was interrupted before its COMMIT: nothing of theirs happened.
            self._waiting.extendleft(c for c in reversed(group[1:]) if not c.finished and c not in self._waiting)
            for other in group[1:]:
                if other.finished:
                    other.release()
            leader = self._waiting.popleft() if self._waiting else None
            if leader is not None:
                leader.release()
            self._leader = no_leader if leader is None else ref(leader)

    # ---- forks

    def quiesce(self) -> None:
        """Keep callers from entering or leaving until `resume`. Called before a fork."""
        self._gate.acquire()

    def resume(self, *, child: bool) -> None:
        """Admit callers again after a fork. Waiting callers exist in the parent only."""
        if child:
            self._begin()
        else:
            self._gate.release()
