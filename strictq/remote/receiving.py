"""When a source receives, how many messages, and what becomes of an answer.

It has no threads and makes no requests. Its owner asks for the next request, sends it, and reports the answer. Every method
requires the source's lock. Times are seconds of the boot clock.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from .client import RemoteEndpoint, Waits, log
from .delivery import RemoteDelivery, RemoteLane
from .queue import SourceSettings
from .settling import BATCH_MAX

AGAIN_SECONDS: Final = 0.1
AGAIN_SECONDS_MAX: Final = 20.0
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
"""Between receives that do not wait for messages and find none."""
ATTEMPT_SECONDS: Final = 240.0
"""How long a receive without an answer is repeated under its id. SQS remembers it for five minutes."""
PROOF_SECONDS: Final = 1
"""A receive that waits so long and finds nothing proves that there is nothing. A short one asks some of Amazon's servers."""
AFTER_RETURN_SECONDS: Final = 2.0
FIRST_LEASES: Final = 2
"""For how many leases a source receives single messages at its start. With one, two workers that die in turns would each be past
it when the message that kills them comes back."""
ASK_SECONDS: Final = 0.02
ASKS_MAX: Final = 10
ASK_PAUSE_SECONDS: Final = 60.0
WARN_SECONDS: Final = 60.0


class Careful:
    """Whether to receive one message at a time, and which messages to run alone.

    SQS counts a receive for every message of a batch. If the first one kills its worker again and again, or fails, the others are
    counted, too, although no handler saw them. And so is all that the worker holds besides. So a message with half of the allowed
    receives is a suspect: it runs alone, and a source receives single messages while one is about. A worker that dies forgets
    what it saw, so a source also begins with single messages, for as long as what other ones held takes to come back.
    """

    def __init__(self, limit: int | None, lease: float) -> None:
        self._suspect = None if limit is None else (limit + 1) // 2
        self._lease = lease
        self._until: float | None = None

    @property
    def active(self) -> bool:
        """Whether there may be suspects."""
        return self._suspect is not None

    def suspects(self, head: RemoteDelivery) -> bool:
        """Return whether a message runs alone, because it may have killed the workers that received it before."""
        return self._suspect is not None and head.attempt >= self._suspect

    def most(self, now: float) -> int:
        """Return how many messages to receive."""
        if self._suspect is None:
            return BATCH_MAX
        if self._until is None:
            self._until = now + FIRST_LEASES * self._lease + AFTER_RETURN_SECONDS
        return 1 if now < self._until else BATCH_MAX

    def received(self, heads: Sequence[RemoteDelivery], now: float) -> bool:
        """Note an answer: the first messages of its groups. Return whether there are suspects among them."""
        found = any(map(self.suspects, heads))
        if found:
            self._extend(now + self._lease + AFTER_RETURN_SECONDS)
        return found

    def returned(self, head: RemoteDelivery, now: float, seconds: float) -> None:
        """Note that a message goes back, to be received again after some seconds."""
        if self._suspect is not None and head.attempt + 1 >= self._suspect:
            self._extend(now + seconds + AFTER_RETURN_SECONDS)

    def _extend(self, until: float) -> None:
        self._until = max(self._until or 0.0, until)


@attrs.frozen
class Receive:
    """A request for messages.

    Attributes:
        most: how many.
        wait: seconds for which the endpoint waits for one.
        began: when the request was made.
        attempt: its id, and when that was used first; None: standard queues have none.
        alone: whether nothing was held for this source. Such a request waits long enough to prove that there is nothing.
    """

    most: int
    wait: int
    began: float
    attempt: tuple[str, float] | None
    alone: bool

    def parameters(self, endpoint: RemoteEndpoint, lease: int) -> dict[str, Any]:
        """Return the parameters of the request."""
        made: dict[str, Any] = {
            "QueueUrl": endpoint.url, "MaxNumberOfMessages": self.most, "WaitTimeSeconds": self.wait, "VisibilityTimeout": lease,
            "AttributeNames": ["All"], "MessageAttributeNames": ["All"],
        }  # fmt: skip
        if self.attempt is not None:
            made["ReceiveRequestAttemptId"] = self.attempt[0]
        return made


class Receives:
    """The receives that are wanted and under way, and the lanes that they returned.

    Attributes:
        waiting: the lanes that the worker has not taken, in the order in which they came.
        arrivals: changes when the worker may take more than before.
        wanted: number of messages that the worker wants and that were not received.
        polling: number of requests under way that wait for messages.
        flying: number of requests under way.
        proven: whether nothing was ready when nothing was held here, and nothing was received since.
        stopping: whether nothing is received any more.
        draining: whether the worker ends when nothing is ready.
    """

    def __init__(self, endpoint: RemoteEndpoint, settings: SourceSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._is_fifo = endpoint.is_fifo
        self.careful = Careful(settings.limit if self._is_fifo else None, settings.lease)
        self.waiting: deque[RemoteLane] = deque()
        self.arrivals = 0
        self.wanted = 0
        self.polling = 0
        self.proven = False
        self.stopping = self.draining = False
        self._seq = 0
        self.flying = 0
        self._plenty = False
        """Whether the last answer was full. Only then is more than one request made at a time: an idle worker needs one."""
        self._not_before = 0.0
        self._waits = Waits(AGAIN_SECONDS, AGAIN_SECONDS_MAX)
        self._pauses = Waits(PAUSE_SECONDS, PAUSE_SECONDS_MAX)
        self._attempts: deque[tuple[str, float]] = deque()
        """The ids of receives without an answer. Their messages are hidden, until the same id is used again."""
        self._warned = -WARN_SECONDS
        self._asked_at: int | None = None
        self._misses = 0
        self._ask_after = 0.0

    # ---- requests

    def next(self, now: float, *, alone: bool) -> Receive | None:
        """Return the next request, and count it as under way; None: nothing is wanted now."""
        if self.stopping or now < self._not_before or (self.draining and self.proven):
            return None
        if self.wanted <= self.flying * BATCH_MAX or (self.flying and not self._plenty):
            return None
        # An idle worker waits even if it should not poll long, or it would ask all the time. A draining one wants to know soon.
        wait = min(self._settings.poll, PROOF_SECONDS) if self.draining else self._settings.poll
        if alone:
            wait = max(wait, PROOF_SECONDS)
        self.flying += 1
        if wait:
            self.polling += 1
        return Receive(self._most(now), wait, now, self._attempt(now), alone)

    def _landed(self, request: Receive) -> None:
        self.flying -= 1
        if request.wait:
            self.polling -= 1

    def _most(self, now: float) -> int:
        """Return how many messages to ask for: on FIFO queues as many as possible, because those of a group come together."""
        return self.careful.most(now) if self._is_fifo else max(1, min(BATCH_MAX, self.wanted))

    def _attempt(self, now: float) -> tuple[str, float] | None:
        if not self._is_fifo:
            return None
        while self._attempts:
            attempt = self._attempts.popleft()
            if now - attempt[1] < ATTEMPT_SECONDS:
                return attempt
        return str(uuid.uuid4()), now

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until `next` may return a request, unless more is wanted meanwhile."""
        return max(0.0, self._not_before - now)

    # ---- answers

    def failed(self, request: Receive, now: float, after: float) -> None:
        """Record that a request was not answered. The next one begins `after` so many seconds, or later."""
        self._landed(request)
        self._plenty = False
        if request.attempt is not None:
            self._attempts.append(request.attempt)
        self._not_before = max(self._not_before, now + self._waits.next(after))

    def received(self, request: Receive, messages: Sequence[Mapping[str, Any]], now: float) -> list[RemoteLane]:
        """Record an answer. Return its lanes, whose leases are to be kept."""
        self._landed(request)
        self._plenty = len(messages) == request.most == BATCH_MAX
        self._waits.reset()
        if messages:
            self._pauses.reset()
        elif not request.wait:
            self._not_before = now + self._pauses.next()
        lanes: dict[str, RemoteLane] = {}
        margin = self._settings.margin
        for message in messages:
            system = message.get("Attributes") or {}
            group = str(system.get("MessageGroupId") if self._is_fifo else message.get("MessageId"))
            lane = lanes.get(group)
            if lane is None:
                lane = lanes[group] = RemoteLane(group, self._settings.lease, margin)
            self._seq += 1
            # The endpoint's timer starts when the request arrives, so this lease never outlives the endpoint's.
            d = RemoteDelivery(message, self._seq, request.began, request.began + self._settings.lease)
            lane.add(d)
        if messages:
            self.proven = False
            self.wanted -= len(messages)
            self._warn_of_length(request, now)
        elif request.alone:
            self.proven = True
        if not messages:
            self._endpoint.count("empty_polls")
        if self.careful.received([lane.deliveries[0] for lane in lanes.values()], now):
            self.wanted = 0  # until the worker has taken it
        if not self.stopping:
            self.waiting.extend(lanes.values())
        self.arrivals += 1
        return list(lanes.values())

    def _warn_of_length(self, request: Receive, now: float) -> None:
        """Warn if an answer took so long that little is left of the leases."""
        took = now - request.began
        if took + self._settings.margin >= self._settings.lease and now - self._warned >= WARN_SECONDS:
            self._warned = now
            log.warning(
                "a receive took %.1f s, and its leases have %d s: hardly a message can be processed; use a longer lease_seconds",
                took, self._settings.lease,
            )  # fmt: skip

    # ---- a receive between others

    def should_ask(self, now: float) -> bool:
        """Return whether to receive once more because a group was freed: a receive that waits may not notice this."""
        if not self._is_fifo or self._asked_at is not None or not self.polling or self.wanted <= 0 or now < self._ask_after:
            return False
        if self.careful.most(now) == 1:
            return False  # two receives could return two suspects
        self._asked_at = self.arrivals
        return True

    def ask(self, now: float) -> Receive | None:
        """Return that request; None: a receive was answered meanwhile, or nothing is wanted any more."""
        before, self._asked_at = self._asked_at, None
        if self.stopping or self.arrivals != before or self.wanted <= 0 or not self.polling:
            return None
        self.flying += 1
        return Receive(self._most(now), 0, now, self._attempt(now), alone=False)

    def ask_answered(self, found: bool, now: float) -> None:
        """Record whether it found something. If ten in a row did not, this endpoint needs none."""
        self._misses = 0 if found else self._misses + 1
        if self._misses >= ASKS_MAX:
            self._misses, self._ask_after = 0, now + ASK_PAUSE_SECONDS
