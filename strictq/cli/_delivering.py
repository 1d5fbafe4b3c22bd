"""Send batches and count the sent lines, also across errors and interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from strictq import (
    InvalidArgument,
    Message,
    OutcomeUnknown,
    PartialFailure,
    Queue,
    QueueFull,
    RemoteQueue,
    StrictqError,
    Throttled,
)
from strictq.cli._command import Stopping, explained
from strictq.cli._rows import BadLine, Numbered

AGAIN_SECONDS: Final = 0.1


class GaveUp(Exception):
    """The queue did not accept every line.

    Attributes:
        first: the first line that was not sent.
        hint: how to continue.
    """

    def __init__(self, message: str, first: int, hint: str) -> None:
        super().__init__(message)
        self.first = first
        self.hint = hint


class Sender:
    """Sends batches in order.

    Attributes:
        sent: number of lines that this run added to the queue; duplicates: number of lines that the queue already had.
        unknown: number of lines that may or may not have been sent.
        stuck_at: the line that waits while the queue is full, or the first one that may or may not have been sent.
        doubt: the message about unknown lines, if the run was interrupted.
    """

    def __init__(self, q: Queue | RemoteQueue, wait: float, stopping: Stopping, *, repeatable: bool) -> None:
        """Send nothing yet.

        Args:
            q: the queue, or one behind an endpoint.
            wait: seconds to keep retrying while the queue is full or busy, or a tenant is throttled.
            repeatable: the messages have dedup ids, so sending them twice does no harm.
        """
        self._q = q
        self._wait = wait
        self._repeatable = repeatable
        self._stopping = stopping
        self.sent = self.duplicates = self.unknown = 0
        self.stuck_at: int | None = None
        self.doubt = ""

    def send(self, batch: list[Numbered]) -> Iterator[BadLine]:
        """Send a batch. Yield each line that the queue refused as invalid, after sending the lines before it.

        Raises:
            GaveUp: the queue did not accept the rest.
        """
        pieces = [batch] if batch else []
        deadline: float | None = None
        while pieces:
            piece = pieces.pop()
            counted = self.sent, self.duplicates
            try:
                left = self._once([message for _, message in piece])
            except BaseException:
                # An interrupt may have come before or after the commit, or between two updates of the counts.
                self.sent, self.duplicates = counted
                self.stuck_at = piece[0][0]
                self.doubt = self._in_doubt(piece)
                raise
            if left is None:
                deadline = None
                continue
            places, error = left
            rest = [piece[i] for i in places]
            if isinstance(error, InvalidArgument | QueueFull) and len(rest) > 1:
                # One invalid line, or too little room, refused the whole batch. Bisect, first half first.
                pieces += [rest[len(rest) // 2 :], rest[: len(rest) // 2]]
            elif isinstance(error, InvalidArgument):
                yield BadLine(rest[0][0], explained(error)[0])
            else:
                deadline = time.monotonic() + self._wait if deadline is None else deadline
                self._patience(error, deadline, batch, [rest, *pieces])
                pieces.append(rest)

    def _once(self, messages: list[Any]) -> tuple[list[int], StrictqError] | None:
        """Try once. Return None, or the positions that were not sent and the error."""
        send: Callable[[list[Any]], Sequence[Any]] = self._q.send_many if type(messages[0]) is Message else self._send_plain
        try:
            receipts = send(messages)
        except PartialFailure as e:
            failed = [i for i, r in enumerate(e.results) if isinstance(r, StrictqError)]
            self._count([r for r in e.results if not isinstance(r, StrictqError)])
            return failed, e.results[failed[0]]
        except StrictqError as e:
            return list(range(len(messages))), e
        self._count(receipts)
        return None

    def _send_plain(self, messages: list[Any]) -> Sequence[Any]:
        """Send pairs of a key and a body."""
        if isinstance(self._q, RemoteQueue):
            return self._q.send_many([Message(body, key=key) for key, body in messages])
        return self._q._client.sending.send_plain(messages)

    def _count(self, receipts: Sequence[Any]) -> None:
        # An endpoint does not say what is a duplicate.
        duplicates = sum(r.duplicate for r in receipts) if self._repeatable and isinstance(self._q, Queue) else 0
        self.duplicates += duplicates
        self.sent += len(receipts) - duplicates

    def _patience(self, error: StrictqError, deadline: float, batch: list[Numbered], unsent: list[list[Numbered]]) -> None:
        """Wait before the next attempt.

        Raises:
            GaveUp: there will be no further attempt.
        """
        unknown = isinstance(error, OutcomeUnknown) and not self._repeatable
        self.stuck_at = first = unsent[0][0][0]
        if error.transient and not unknown and time.monotonic() < deadline:
            with self._stopping.at_once():
                after = max(AGAIN_SECONDS, error.retry_after if isinstance(error, Throttled) else 0.0)
                time.sleep(max(0.0, min(after, deadline - time.monotonic())))
            self.stuck_at = None
            return
        text, _, hint = explained(error)
        after = sum(number > first for number, _ in batch) - sum(map(len, unsent)) + 1
        if unknown:
            hint = self._in_doubt(unsent[0])
        elif after:
            hint = f"{hint}; {after:,} later lines, of other keys, were sent; they can be repeated safely only with --dedup-field"
        else:
            hint = f"{hint}; no line from {first:,} on was sent"
        raise GaveUp(f"line {first:,}: {text}", first, hint.removeprefix("; "))

    def _in_doubt(self, piece: list[Numbered]) -> str:
        """Count lines that may or may not have been sent. Return the message about them."""
        self.unknown += len(piece)
        text = f"lines {piece[0][0]:,} to {piece[-1][0]:,} may or may not have been sent"
        if self._repeatable:
            return f"{text}; sending them again within dedup_window_seconds is safe"
        return f"{text}; with --dedup-field, sending them again would be safe"
