"""Acks, starts, and messages that failed: what the keeper commits, in as few transactions as there can be."""

from __future__ import annotations

from typing import Final

from .._errors import LeaseLost, StoreError
from .events import reason_of, where
from .job import Job, Reject, Retry
from .state import HOPELESS, State

LEARNED_MAX = 64
"""Durations learned from in one round."""
FATES: Final = {"dead_letter": "it is a dead letter now", "hold": "it is held", "drop": "it was dropped"}
"""What becomes of a message that is out of attempts."""


class Settling:
    """Commits what the board has collected."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._board = state.board
        self._queue = state.queue

    def go_on(self) -> bool:
        """Ack what is done, and start what is next, in one transaction a shard. Whether there was anything."""
        board = self._board
        with board.lock:
            pairs, starting = board.take_work()
        if not pairs and not starting:
            return False
        done = [(job._delivery, None if after is None else after._delivery) for job, after in pairs]
        try:
            failed = self._queue._advance(done, [job._delivery for job in starting])
        except BaseException:
            with board.lock:
                for job, after in pairs:
                    board.refused(job, after, ack=True)
                for job in starting:
                    board.refused(job, None, ack=False)
            raise
        now = self._state.clock()
        lost: list[tuple[Job, Exception]] = []
        with board.lock:
            good = pairs if not failed else [p for p in pairs if p[0]._delivery not in failed]
            begun = starting if not failed else [j for j in starting if j._delivery not in failed]
            for job, after in pairs if failed else ():
                self._refuse(job, after, failed.get(job._delivery), lost, ack=True)
            for job in starting if failed else ():
                self._refuse(job, None, failed.get(job._delivery), lost, ack=False)
            for job, _ in good[:LEARNED_MAX]:
                self._state.learn(job)
            board.settled(good, begun, now)
            self._state.acked += len(good)
            if not failed:
                self._state.works()
            self._state.fast = board.ahead() > 0
        for job, error in lost:
            self._state.lose(job._lane, error)
        if self._state.loud:
            for job, _ in good:
                self._state.tell("acked", job, seconds=job._since)
        return True

    def _refuse(
        self, job: Job, after: Job | None, error: Exception | None, lost: list[tuple[Job, Exception]], *, ack: bool
    ) -> None:
        if error is None:
            return
        if isinstance(error, (LeaseLost, *HOPELESS)):
            lost.append((job, error))
            return
        self._state.complain(error)
        self._board.refused(job, after, ack=ack)

    def fail(self) -> bool:
        """Give back, or dead-letter, what failed. Whether there was anything."""
        board = self._board
        with board.lock:
            failed, board.failed = board.failed, []
        for job, error in failed:
            if job._lane.alive:
                self._settle_one(job, error)
        return bool(failed)

    def _settle_one(self, job: Job, error: BaseException) -> None:
        """Give back, or dead-letter, a message whose handler failed."""
        d = job._delivery
        try:
            if isinstance(error, LeaseLost) and (error.token, error.seq) == (d.token, d.seq):
                self._state.lose(job._lane, error)
                return
            if isinstance(error, KeyboardInterrupt):
                # The operator's doing, not the message's: as if it had not been started.
                self._queue._release_rest([d])
                self._state.drop(job._lane)
                self._state.tell("released", job)
                return
            if isinstance(error, Reject):
                d.reject(error.reason, output=job._said)
                with self._board.lock:
                    self._state.rejected += 1
                    self._board.committed(job, self._state.clock())
                self._state.tell("rejected", job, detail=error.reason)
                return
            if isinstance(error, Retry):
                d.nack(error.delay, error.reason or reason_of(error), output=job._said)
            else:
                d.nack(reason=reason_of(error), output=job._said)
        except (LeaseLost, *HOPELESS) as e:
            self._state.lose(job._lane, e)
            return
        except StoreError as e:
            with self._board.lock:
                self._board.failed.append((job, error))
            self._state.complain(e)
            return
        self._state.retried += 1
        self._state.drop(job._lane)
        self._tell_of_failure(job, error)

    def _tell_of_failure(self, job: Job, error: BaseException) -> None:
        config = self._queue.config  # as the transaction saw it that gave the message back
        at = "" if isinstance(error, Retry) else where(error)
        if config.max_attempts is None or job.attempt < config.max_attempts:
            self._state.tell("retried", job, detail=reason_of(error), where=at)
            return
        self._state.poison += 1
        detail = f"{reason_of(error)}; out of attempts: {FATES[config.on_poison]}"
        self._state.tell("poison", job, detail=detail, where=at)
