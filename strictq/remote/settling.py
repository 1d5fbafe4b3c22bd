"""What is done to messages that were received: deletes, returns, extensions and dead letters, in batches of one kind.

It has no threads and makes no requests. Its owner asks for the next batch, sends it, and reports the answer. Every method
requires the source's lock. Times are seconds of the boot clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .._values.errors import LeaseLost
from .client import CallFailure, RemoteEndpoint, jittered, log, of_code
from .delivery import (
    ACK,
    ASK,
    BURY,
    DROP,
    GONE,
    LOST,
    OPEN,
    RENEW,
    RETURN,
    SETTLING,
    Operation,
    RemoteDelivery,
    RemoteLane,
)  # fmt: skip
from .queue import LEASE_SECONDS_MAX, SourceSettings

BATCH_MAX: Final = 10
AGAIN_SECONDS: Final = 0.05
AGAIN_SECONDS_MAX: Final = 2.0
CLOSING_TRIES: Final = 4
"""How often something is tried that fails while the source closes. What is left comes back when its lease ends."""
RETRY_SECONDS_MAX: Final = 900
LATEST: Final = 0.1

DELETE: Final = "delete_message_batch"
HIDE: Final = "change_message_visibility_batch"
ACTIONS: Final[Mapping[str, str]] = {ACK: DELETE, DROP: DELETE, RETURN: HIDE, RENEW: HIDE}
"""The action of each purpose that has batches."""
NO_ANSWER: Final = CallFailure("again", "NoAnswer", "the entry is in neither list of the answer", sent=True)


class Settlements:
    """The operations that wait or are under way, and their outcomes.

    Attributes:
        outcomes: pairs of a message and its error, or None if it is deleted or dead-lettered.
        lanes: the lanes of which a message is hidden for this source.
        round_trip: the mean time from handing over an ack to its confirmation.
        closing: whether the source ends.
    """

    def __init__(self, endpoint: RemoteEndpoint, settings: SourceSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self.outcomes: list[tuple[RemoteDelivery, LeaseLost | None]] = []
        self.lanes: dict[RemoteLane, None] = {}
        self.round_trip = 0.0
        self.closing = False
        self._ready: dict[str, deque[Operation]] = {}
        """By action, what can be tried now, in order."""
        self._later: list[tuple[float, int, Operation]] = []
        self._turn = itertools.count()
        self._flying = 0
        self._look_at = 0.0

    # ---- handing over

    def ack(self, d: RemoteDelivery, now: float) -> None:
        """Delete a message. Its outcome is reported."""
        self._settle(d, Operation(ACK, d, now))

    def bury(self, d: RemoteDelivery, reason: str, now: float) -> None:
        """Send a message to the queue for dead letters, and delete it. Its outcome is reported."""
        self._settle(d, Operation(BURY, d, now, reason=reason))

    def drop(self, d: RemoteDelivery, now: float) -> None:
        """Delete a message that no handler sees. Its outcome is not reported."""
        self._settle(d, Operation(DROP, d, now))

    def give_back(self, deliveries: Sequence[RemoteDelivery], now: float, seconds: float = 0.0) -> None:
        """Return messages of one lane. The first one stays hidden for a time, which hides the others of its group with it.

        The later ones are returned first, so that any part of it leaves the group in order.
        """
        for n, d in reversed(list(enumerate(deliveries))):
            wait = 0 if n else min(math.ceil(seconds), math.floor(d.received + LEASE_SECONDS_MAX - now))
            self._settle(d, Operation(RETURN, d, now, max(0, wait)))

    def renew(self, lane: RemoteLane, now: float) -> None:
        """Extend the visibility timeouts of a lane's messages, at most to twelve hours after they were received."""
        for d in lane.held:
            if d.renewing is not None or (d.settling is not None and not self._outlasts(d.settling, now)):
                continue
            seconds = min(self._settings.lease, math.floor(d.received + LEASE_SECONDS_MAX - now) - 1)
            if seconds > 0 and now + seconds > d.until:
                d.renewing = Operation(RENEW, d, now, seconds)
                self._push(d.renewing)

    def _outlasts(self, op: Operation, now: float) -> bool:
        """Return whether a lease may end before something that is being done."""
        return op.purpose != RETURN and (op.tries > 0 or op.message.until - now < self._settings.lease / 4)

    def ask(self, now: float, wait: float) -> None:
        """Receive once more, after a moment, without waiting for messages."""
        op = Operation(ASK, None, now)
        op.due = now + wait
        self._push(op)

    def _settle(self, d: RemoteDelivery, op: Operation) -> None:
        d.state = SETTLING
        d.settling = op
        if d.renewing is not None and not d.renewing.flying:
            d.renewing.void = True
            d.renewing = None
        if d.renewing is None or op.purpose != RETURN:  # an extension that arrived after the return would hide the message again
            self._push(op)

    def _push(self, op: Operation) -> None:
        if op.due > op.born or op.tries:
            heapq.heappush(self._later, (op.due, next(self._turn), op))
        else:
            self._ready.setdefault(ACTIONS.get(op.purpose, op.purpose), deque()).append(op)

    # ---- sending

    def next(self, now: float) -> list[Operation] | None:
        """Return what is sent in one request, and count it as under way; None: nothing can be sent now."""
        if now >= self._look_at:
            self.look(now)
        while self._later and self._later[0][0] <= now:
            op = heapq.heappop(self._later)[2]
            self._ready.setdefault(ACTIONS.get(op.purpose, op.purpose), deque()).append(op)
        waiting = [ops for ops in self._ready.values() if self._drop_void(ops)]
        if not waiting:
            return None
        ops = min(waiting, key=lambda ops: ops[0].born)
        most = BATCH_MAX if ops[0].purpose in ACTIONS else 1
        batch: list[Operation] = []
        while ops and len(batch) < most:
            op = ops.popleft()
            if op.void or (op.purpose == RENEW and self._ended(op.message, now)):
                continue
            op.flying = True
            batch.append(op)
        if not batch:
            return self.next(now)
        self._flying += 1
        return batch

    def _ended(self, d: RemoteDelivery, now: float) -> bool:
        """Return whether a lease has ended, and drop its message then. An extension of it would conceal the gap."""
        if now < d.until:
            return False
        d.renewing = None
        if d.state == OPEN:
            self.lose(d, "its lease ended", now)
        return True

    @staticmethod
    def _drop_void(ops: deque[Operation]) -> bool:
        while ops and ops[0].void:
            ops.popleft()
        return bool(ops)

    @staticmethod
    def request(batch: Sequence[Operation]) -> tuple[str, list[dict[str, Any]]]:
        """Return the action of a batch, and the entries of its request."""
        action = ACTIONS[batch[0].purpose]
        entries: list[dict[str, Any]] = [{"Id": str(i), "ReceiptHandle": op.message.handle} for i, op in enumerate(batch)]
        if action == HIDE:
            for entry, op in zip(entries, batch, strict=True):
                entry["VisibilityTimeout"] = op.seconds
        return action, entries

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until something can be sent that cannot be now."""
        return max(0.0, min(self._look_at, self._later[0][0] if self._later else math.inf) - now)

    @property
    def has_more(self) -> bool:
        """Whether another request can be made now."""
        return any(self._drop_void(ops) for ops in self._ready.values())

    @property
    def busy(self) -> bool:
        """Whether something waits or is under way."""
        return bool(self._flying or self._later or self.has_more)

    # ---- answers

    def answered(self, batch: Sequence[Operation], answer: Mapping[str, Any] | CallFailure, began: float, now: float) -> None:
        """Record the answer of a batch."""
        if isinstance(answer, CallFailure):
            failures: dict[str, CallFailure] = {str(i): answer for i in range(len(batch))}
        else:
            failures = {str(i): NO_ANSWER for i in range(len(batch))}
            for done in answer.get("Successful") or ():
                failures.pop(str(done.get("Id")), None)
            for f in answer.get("Failed") or ():
                if (name := str(f.get("Id"))) in failures:
                    code, text = str(f.get("Code", "")), str(f.get("Message", ""))
                    failures[name] = of_code(code, text, fault=bool(f.get("SenderFault")), status=400)
        self._flying -= 1
        for i, op in enumerate(batch):
            failure = failures.get(str(i))
            op.flying = False
            if failure is not None and not isinstance(answer, CallFailure):
                self._endpoint.failed_entry(failure)
            if op.purpose == RENEW:
                self._renewed(op, failure, began, now)
            elif op.purpose == ACK:
                self._acked(op, failure, now)
            else:
                self._left(op, failure, now)

    def _acked(self, op: Operation, failure: CallFailure | None, now: float) -> None:
        d = op.message
        late = d.returned is not None and d.returned >= d.until
        if late:
            self._endpoint.count("late_deletes")
        if failure is None and not late:
            d.state = GONE
            self.round_trip += LATEST * (now - op.born - self.round_trip)
            self.outcomes.append((d, None))
            self._forget_ended([d])
        elif failure is None:
            # Another consumer may have processed the message, too: an endpoint may confirm the delete of what was deleted.
            d.state = GONE
            self.lose(d, "its handler returned after the lease had ended", now)
        elif not late and self._tries_again(op, failure, now):
            self._again(op, failure, now)
        else:
            self.lose(d, f"it could not be deleted: {failure}", now)

    def _left(self, op: Operation, failure: CallFailure | None, now: float) -> None:
        """Record that a message went back, or was dropped. The worker does not wait for it."""
        if failure is not None and self._tries_again(op, failure, now):
            self._again(op, failure, now)
            return
        op.message.state = GONE  # or it becomes visible when its lease ends
        self._forget_ended([op.message])

    def _renewed(self, op: Operation, failure: CallFailure | None, began: float, now: float) -> None:
        d = op.message
        if failure is not None and d.settling is None and self._tries_again(op, failure, now):
            self._again(op, failure, now)
            return
        d.renewing = None
        if failure is None:
            if d.state in (OPEN, SETTLING):
                d.until = max(d.until, began + op.seconds)
                self._endpoint.count("renewals")
                self._show_deadline(d.lease)
        elif d.state == OPEN:
            self.lose(d, f"its lease could not be extended: {failure}", now)
        if d.settling is not None and d.settling.purpose == RETURN and not d.settling.flying and not d.settling.tries:
            self._push(d.settling)  # it waited for this

    def _tries_again(self, op: Operation, failure: CallFailure, now: float) -> bool:
        """Return whether something that failed is tried again: until the lease ends."""
        if failure.kind in ("stale", "refused", "no_queue") or (self.closing and op.tries + 1 >= CLOSING_TRIES):
            return False
        return now < op.message.until

    def _again(self, op: Operation, failure: CallFailure, now: float) -> None:
        op.tries += 1
        after = min(failure.after, (op.message.until - now) / 2)  # before its lease ends
        op.due = now + max(jittered(AGAIN_SECONDS, AGAIN_SECONDS_MAX, op.tries), after)
        self._push(op)

    # ---- dead letters

    def buried(self, op: Operation, failure: CallFailure | None, now: float) -> None:
        """Record that a message was sent to the queue for dead letters, or why not."""
        d = op.message
        self._flying -= 1
        op.flying = False
        if failure is None:
            d.settling = Operation(ACK, d, now)
            self._push(d.settling)
        elif failure.kind == "again" and self._tries_again(op, failure, now):
            self._again(op, failure, now)
        else:
            log.error("key %r, seq %d could not be made a dead letter, and is retried: %s", d.key, d.seq, failure)
            d.state, d.settling = OPEN, None
            self.give_back(d.later(), now, RETRY_SECONDS_MAX)
            self.outcomes.append((d, d.lost(f"it could not be made a dead letter: {failure}")))

    def asked(self) -> None:
        """Record that a receive was answered."""
        self._flying -= 1

    # ---- leases

    def add(self, lane: RemoteLane) -> None:
        """Keep the leases of a lane."""
        self.lanes[lane] = None

    def look(self, now: float) -> None:
        """Extend the leases past half of their length, and drop the messages whose lease has ended."""
        self._look_at = now + self._settings.lease / 16
        half = self._settings.lease / 2
        for lane in list(self.lanes):
            for d in list(lane.held):
                if d.until <= now and d.renewing is None and d.state == OPEN:
                    self.lose(d, "its lease ended", now)
                    break
            if any(d.until - now < half for d in lane.held):
                self.renew(lane, now)

    def lose(self, d: RemoteDelivery, why: str, now: float) -> None:
        """Drop a message whose lease is lost, and the later ones of its lane, which are returned."""
        rest = [other for other in d.later() if other is not d]
        if d.state != GONE:
            d.state = LOST
        if d.renewing is not None:
            d.renewing.void, d.renewing = True, None
        self.outcomes.append((d, d.lost(why)))
        self.give_back(rest, now)
        self._forget_ended([d])

    def _forget_ended(self, deliveries: Iterable[RemoteDelivery]) -> None:
        """Forget the lanes of which no message is hidden for this source any more."""
        for lane in {d.lease: None for d in deliveries}:
            self.forget_ended(lane)

    def forget_ended(self, lane: RemoteLane) -> None:
        """Forget a lane of which no message is hidden for this source any more."""
        if not lane.held:
            self.lanes.pop(lane, None)

    @staticmethod
    def _show_deadline(lane: RemoteLane) -> None:
        """Tell the worker that a lease was extended."""
        if lane.worker_lane is not None:
            lane.worker_lane.until = lane._deadline / 1e6
