"""The circuit breaker: decides when a worker pauses because its handlers fail, and when it tries again.

A pure state machine without threads, queue or clock. A worker calls it under its board's lock, with the time as an
argument.

    closed --(too many failures)--> open --(a probe starts)--> probing --(it succeeds)--> closed
                                     ^                             |
                                     +------- (it fails) ----------+
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from .._errors import InvalidArgument

CLOSED: Final = "closed"
OPEN: Final = "open"
PROBING: Final = "probing"
OUTCOMES_MAX: Final = 1000
"""Number of outcomes kept. If a window has more, the newest ones decide."""
JITTER: Final = 0.1
"""Jitter: a wait for a probe is shortened by up to this fraction, so that workers do not all probe at once."""


def _seconds(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.001 <= value <= 86_400:  # type: ignore[operator]
        raise InvalidArgument(f"Breaker.{attribute.name} must be 0.001 to 86,400 seconds, not {value!r}")


def _starts(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= OUTCOMES_MAX:
        raise InvalidArgument(f"Breaker.{attribute.name} must be 1 to {OUTCOMES_MAX:,}, not {value!r}")


def _ratio(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:  # type: ignore[operator]
        raise InvalidArgument(f"Breaker.{attribute.name} must be more than 0 and at most 1, not {value!r}")


@attrs.frozen
class Breaker:
    """A worker's circuit breaker: when it pauses because most handlers fail, and how it resumes.

    Pass it as `Worker(breaker=Breaker(...))`. While it is open, failing messages are charged no attempt, and the worker holds
    no messages. It tries one message at a time until one succeeds.

    Attributes:
        failure_ratio: it opens when at least this fraction of the handlers in the window failed; more than 0, at most 1.
        starts_min: and at least this many of them ended, 1 to 1,000, and the failures are not all of one key, whose message
            may be the cause.
        window_seconds: handlers that ended earlier do not count. At most the newest 1,000 count.
        probe_seconds: wait before the first probe after it opened. The wait doubles with each failed probe.
        probe_seconds_max: longest wait between two probes, and the delay of messages that fail while it is open.
    Raises:
        InvalidArgument: a value is out of range, or probe_seconds is more than probe_seconds_max.
    """

    failure_ratio: float = attrs.field(default=0.5, validator=_ratio)
    starts_min: int = attrs.field(default=20, validator=_starts)
    window_seconds: float = attrs.field(default=10.0, validator=_seconds)
    probe_seconds: float = attrs.field(default=1.0, validator=_seconds)
    probe_seconds_max: float = attrs.field(default=5.0, validator=_seconds)

    def __attrs_post_init__(self) -> None:
        if self.probe_seconds > self.probe_seconds_max:
            raise InvalidArgument("Breaker.probe_seconds must not be more than probe_seconds_max")


@attrs.frozen
class Opened:
    """The reason why a breaker is open.

    Attributes:
        at: when it opened, on the clock of the caller.
        failures, ends: number of handlers that failed, and that ended, in the window.
        error: the newest failure, including probes.
        probes: number of probes that failed since.
    """

    at: float
    failures: int
    ends: int
    error: str
    probes: int = 0


class Circuit:
    """One worker's breaker.

    Attributes:
        state: CLOSED, OPEN or PROBING.
        permit: the number that a handler must have been admitted with for its outcome to count. Handlers that were running
            when the breaker opened have an older one, because their outcome does not show the later state.
        opened: the reason why it is not closed; None if it is closed.
        probe_at: time at which the next probe may start, if the state is OPEN.
    """

    def __init__(self, rules: Breaker, chance: Callable[[], float] = random.random) -> None:
        """Create a closed breaker. `chance` returns 0.0 to 1.0, for jitter."""
        self.rules = rules
        self.state = CLOSED
        self.permit = 0
        self.opened: Opened | None = None
        self.probe_at = math.inf
        self._chance = chance
        self._outcomes: deque[tuple[float, bytes | None]] = deque()
        """The time at which each handler ended and, if it failed, its key."""
        self._failures: Counter[bytes] = Counter()

    def succeeded(self, permit: int, now: float) -> None:
        """Record a success."""
        if permit != self.permit or self.state == OPEN:
            return
        if self.state == PROBING:
            self._close()
        else:
            self._count(now, None)

    def failed(self, permit: int, now: float, error: str, key: bytes) -> None:
        """Record a failure of a handler of this key."""
        if permit != self.permit or self.state == OPEN:
            return
        if self.state == PROBING:
            assert self.opened is not None
            self._open(attrs.evolve(self.opened, error=error, probes=self.opened.probes + 1), now)
            return
        self._count(now, key)
        ends, failures = len(self._outcomes), self._failures.total()
        # It stays closed if only one key fails. Otherwise its poison message would be retried forever and never charged.
        if ends >= self.rules.starts_min and failures >= self.rules.failure_ratio * ends and len(self._failures) > 1:
            self._open(Opened(now, failures, ends, error), now)

    def probe(self) -> None:
        """Make the next handler the probe."""
        assert self.state == OPEN
        self.state = PROBING

    def unanswered(self, now: float) -> None:
        """Record a probe without a result: its message was rejected, deferred or lost."""
        if self.state == PROBING and self.opened is not None:
            self._open(self.opened, now)

    def _open(self, why: Opened, now: float) -> None:
        self.state, self.opened = OPEN, why
        self.permit += 1
        rules = self.rules
        wait = min(rules.probe_seconds * 2.0 ** min(why.probes, 64), rules.probe_seconds_max)
        self.probe_at = now + wait * (1.0 - JITTER * self._chance())
        self._outcomes.clear()
        self._failures.clear()

    def _close(self) -> None:
        self.state, self.opened, self.probe_at = CLOSED, None, math.inf

    def _count(self, now: float, failed: bytes | None) -> None:
        outcomes, failures = self._outcomes, self._failures
        outcomes.append((now, failed))
        if failed is not None:
            failures[failed] += 1
        oldest = now - self.rules.window_seconds
        while outcomes[0][0] <= oldest or len(outcomes) > OUTCOMES_MAX:
            _, key = outcomes.popleft()
            if key is not None:
                failures[key] -= 1
                if not failures[key]:
                    del failures[key]
