"""How a message ends: what its handler raised means, and how that is settled. For workers and for Spark's pipeline."""

from __future__ import annotations

from typing import Final, Self

import attrs

from .._client.leased import MessageState
from .._client.settling import Settling
from .events import kept_traceback, reason_of
from .job import Defer, Reject, Retry

DONE: Final = "done"
FAILED: Final = "failed"
DEFERRED: Final = "deferred"
REJECTED: Final = "rejected"


@attrs.define
class Ending:
    """The outcome of a handler for one message.

    Attributes:
        kind: DONE, FAILED (retry), DEFERRED (retry with no attempt charged), or REJECTED (dead-letter).
        delay: seconds until the retry; None: the queue's retry delay (FAILED only).
        output: what the handler said, to store with the message.
        traceback: of the handler's error, to store; None: the reason is sufficient.
    """

    kind: str = DONE
    reason: str | None = None
    delay: float | None = None
    output: str | None = None
    traceback: str | None = None

    @classmethod
    def of(cls, error: BaseException, output: str | None = None) -> Self:
        """Return the ending of a message whose handler raised."""
        if isinstance(error, Defer):
            return cls(DEFERRED, error.reason, error.delay_seconds)
        if isinstance(error, Reject):
            return cls(REJECTED, error.reason, None, output, kept_traceback(error))
        reason, delay = (error.reason, error.delay) if isinstance(error, Retry) else (None, None)
        return cls(FAILED, reason or reason_of(error), delay, output, kept_traceback(error))

    def settle(self, settling: Settling, d: MessageState) -> float | None:
        """Nack, postpone or dead-letter the message. Return the seconds until its next attempt; None: there is none.

        Raises:
            LeaseLost: the message is lost or settled; nothing was changed.
            StoreError: it could not be settled.
        """
        if self.kind == REJECTED:
            settling.reject(d, self.reason or "rejected", self.output, self.traceback)
            return None
        if self.kind == DEFERRED:
            settling.defer([d], self.delay or 0.0, self.reason)
            return self.delay or 0.0
        return settling.nack([d], self.delay, self.reason, self.output, self.traceback)
