"""The circuit breakers: decide which messages a worker stops processing because handlers fail, and when it tries again.

Each group of keys has one, and the worker has one for all of them. Pure state machines without threads, queue or clock. A
worker calls them under its board's lock, with the time as an argument.

    closed --(too many failures)--> open --(a probe starts)--> probing --(it succeeds)--> closed
                                     ^                             |
                                     +------- (it fails) ----------+
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._platform.log import Log
from .._values.errors import InvalidArgument
from .job import BUFFERED

if TYPE_CHECKING:
    from .._values.keys import Key
    from .job import HeldLane, Job

log: Final = Log("strictq.worker")

CLOSED: Final = "closed"
OPEN: Final = "open"
PROBING: Final = "probing"
OUTCOMES_MAX: Final = 1000
"""Number of outcomes kept of a group. If a window has more, the newest ones decide."""
GROUPS_MAX: Final = 1000
"""Number of groups kept. Beyond it, the closed group whose last handler ended first is forgotten."""
GROUP_CHARS_MAX: Final = 100
KEYS_MAX: Final = 100_000
"""Number of keys kept that wait for open groups. Further ones wait for the end of their delay."""
FAILED_MAX: Final = 10_000
"""Number of keys kept whose last handler failed, of all groups."""
WITHHELD_PER_SECOND: Final = 1000
"""Messages that an open group postpones per second: a group of many keys postpones each of them for longer."""
JITTER: Final = 0.1
"""A wait for a probe is shortened by up to this fraction, so that workers do not all probe at once."""


def _seconds(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.001 <= value <= 86_400:  # type: ignore[operator]
        raise InvalidArgument(f"Breaker.{attribute.name} must be 0.001 to 86,400 seconds, not {value!r}")


def _starts(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= OUTCOMES_MAX:
        raise InvalidArgument(f"Breaker.{attribute.name} must be 1 to {OUTCOMES_MAX:,}, not {value!r}")


def _grouping(_instance: object, _attribute: object, value: object) -> None:
    if not callable(value) and not (isinstance(value, str) and 1 <= len(value) <= GROUP_CHARS_MAX):
        raise InvalidArgument(
            f"Breaker.group must be a separator of 1 to {GROUP_CHARS_MAX} characters or a function, not {value!r}"
        )


def _ratio(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:  # type: ignore[operator]
        raise InvalidArgument(f"Breaker.{attribute.name} must be more than 0 and at most 1, not {value!r}")


@attrs.frozen
class Breaker:
    """A worker's circuit breakers: when it pauses because most handlers fail, and how it resumes.

    Pass it as `Worker(breaker=Breaker(...))`. Each group of keys has a circuit breaker of its own, so that the outage of one
    tenant's endpoint stops that tenant's messages only. While it is open, the group's messages wait, with no attempt charged,
    and the worker tries one of them at a time until one succeeds. All messages wait, whatever their group, only while at
    least two groups fail and no message has succeeded for `window_seconds`.

    Attributes:
        failure_ratio: a group opens when at least this fraction of its handlers in the window failed; more than 0, at most 1.
        starts_min: at least this many of them must have ended, 1 to 1,000. The failures must be of more than one key, because a
            single key's message may be the cause.
        window_seconds: handlers that ended earlier do not count. At most the newest 1,000 of a group count.
        probe_seconds: wait before the first probe after it opened. The wait doubles with each failed probe.
        probe_seconds_max: longest wait between two probes, and the delay of messages that fail while it is open.
        group: the text between a group and the rest of a key: with "/", the key "ann/orders" is of the group "ann". A key
            without it is a group of its own. Or a quick function of the job that returns the group, without calling the queue.
            At most 1,000 groups are kept.
    Raises:
        InvalidArgument: a value is out of range, or probe_seconds is more than probe_seconds_max.
    """

    failure_ratio: float = attrs.field(default=0.5, validator=_ratio)
    starts_min: int = attrs.field(default=20, validator=_starts)
    window_seconds: float = attrs.field(default=10.0, validator=_seconds)
    probe_seconds: float = attrs.field(default=1.0, validator=_seconds)
    probe_seconds_max: float = attrs.field(default=5.0, validator=_seconds)
    group: str | Callable[[Any], str] = attrs.field(default="/", validator=_grouping)

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


class Window:
    """The newest outcomes of handlers.

    Attributes:
        ends: when each ended and, if it failed, its culprit: a key, or a group.
        failures: number of failures by culprit.
    """

    def __init__(self, rules: Breaker) -> None:
        self.rules = rules
        self.ends: deque[tuple[float, Hashable]] = deque()
        self.failures: Counter[Hashable] = Counter()

    def count(self, now: float, culprit: Hashable) -> None:
        """Count an outcome: None for a success."""
        ends, failures = self.ends, self.failures
        ends.append((now, culprit))
        if culprit is not None:
            failures[culprit] += 1
        oldest = now - self.rules.window_seconds
        while ends[0][0] <= oldest or len(ends) > OUTCOMES_MAX:
            _, gone = ends.popleft()
            if gone is not None:
                failures[gone] -= 1
                if not failures[gone]:
                    del failures[gone]

    def found(self, now: float, error: str) -> Opened | None:
        """Return the reason to open; None: there is none."""
        ends, failures = len(self.ends), self.failures.total()
        # One culprit is not enough: a poison message would be retried forever and never charged.
        if ends >= self.rules.starts_min and failures >= self.rules.failure_ratio * ends and len(self.failures) > 1:
            return Opened(now, failures, ends, error)
        return None

    def clear(self) -> None:
        """Begin anew."""
        self.ends.clear()
        self.failures.clear()


class Circuit:
    """The breaker of a group, or of the worker.

    Attributes:
        group: its name; None: the worker's.
        state: CLOSED, OPEN or PROBING.
        since: the permit that a handler must have been admitted with for its outcome to count. Handlers that were running when
            the breaker opened have an older one, because their outcome does not show the later state.
        opened: the reason why it is not closed; None if it is closed.
        probe_at: time at which the next probe may start, if the state is OPEN.
        probe: the lane of the probe.
        window: the outcomes, while it is closed.
        waiting, failed: the keys that wait for it: that have not failed, and whose message failed.
    """

    def __init__(self, rules: Breaker, group: str | None, chance: Callable[[], float]) -> None:
        self.group = group
        self.state = CLOSED
        self.since = 0
        self.opened: Opened | None = None
        self.probe_at = math.inf
        self.probe: HeldLane | None = None
        self.window = Window(rules)
        self.waiting: dict[Key, None] = {}
        self.failed: dict[Key, None] = {}
        self._rules = rules
        self._chance = chance

    def open(self, why: Opened, now: float) -> None:
        """Open, or open again after a probe."""
        self.state, self.opened, self.probe = OPEN, why, None
        rules = self._rules
        wait = min(rules.probe_seconds * 2.0 ** min(why.probes, 64), rules.probe_seconds_max)
        self.probe_at = now + wait * (1.0 - JITTER * self._chance())
        self.window.clear()

    def close(self) -> None:
        """Close. Counting begins anew."""
        self.state, self.opened, self.probe_at, self.probe = CLOSED, None, math.inf, None
        self.window.clear()

    def start_probe(self, lane: HeldLane | None = None) -> None:
        """Make the next handler, of this lane, the probe."""
        assert self.state == OPEN
        self.state, self.probe = PROBING, lane

    def failed_probe(self, now: float, error: str) -> None:
        assert self.opened is not None
        self.open(attrs.evolve(self.opened, error=error, probes=self.opened.probes + 1), now)


class Circuits:
    """The breakers of one worker.

    A decision costs the same for any number of keys: a key without a group has no record of its own, except the newest that
    failed.

    Attributes:
        worker: the breaker of the whole worker.
        open: the open groups, by name.
        permit: what a handler is admitted with. It grows whenever a breaker opens.
        version: changes whenever a breaker changes.
        failed: keys whose last handler failed, the newest last.
        doubt_until: time until which most handlers fail, and it is not certain that none succeeds.
    """

    def __init__(self, rules: Breaker, chance: Callable[[], float] = random.random) -> None:
        """Create closed breakers. `chance` returns 0.0 to 1.0, for jitter."""
        self.rules = rules
        self.worker = Circuit(rules, None, chance)
        self.open: dict[str, Circuit] = {}
        self.permit = 0
        self.version = 0
        self.failed: dict[bytes, None] = {}
        self._closed: dict[str, Circuit] = {}
        """The other groups, the one whose handler ended first at first."""
        self._chance = chance
        self._kept = 0
        self._succeeded_at = -math.inf
        self._doubt: Opened | None = None
        self.doubt_until = -math.inf
        self._separator = rules.group if isinstance(rules.group, str) else ""
        self._separator_bytes = self._separator.encode()

    @property
    def calm(self) -> bool:
        return not self.open and self.worker.state == CLOSED

    # ---- groups

    def group_of(self, job: Job) -> str | None:
        """Return the name of a job's group. None: its key is a group of its own."""
        rule, key = self.rules.group, job.key
        if callable(rule):
            try:
                name = rule(job)
            except Exception as e:  # which messages wait together is no reason to stop working
                log.warning("Breaker.group failed for key %r, seq %d: %s: %s", key, job.seq, type(e).__name__, e)
                return None
            if isinstance(name, str):
                return name[:GROUP_CHARS_MAX]
            log.warning("Breaker.group must return a str, not %s, for key %r, seq %d", type(name).__name__, key, job.seq)
            return None
        if isinstance(key, str):
            name, found, _ = key.partition(rule)
            return name[:GROUP_CHARS_MAX] if found else None
        if isinstance(key, bytes):
            start, separator, _ = key.partition(self._separator_bytes)
            return start.decode("utf-8", "backslashreplace")[:GROUP_CHARS_MAX] if separator else None
        return None

    def identity(self, job: Job) -> Hashable:
        """Return what identifies a job's group: its name, or its only key."""
        name = self.group_of(job)
        return job._delivery.lease._held.key if name is None else name

    def blocks(self, job: Job) -> bool:
        """Return whether a job may not start, because its group is open and it is not the probe.

        While the worker's breaker is open, only the worker's probe runs, of whichever group it is.
        """
        circuit = self._open_group(job)
        if circuit is None or self.worker.state != CLOSED:
            return False
        return circuit.state == OPEN or circuit.probe is not job._lane

    def admits(self, job: Job, now: float) -> bool:
        """Return whether a leased job may stay: its group is closed, or it becomes or is the probe of its group."""
        circuit = self._open_group(job)
        if circuit is None:
            return True
        # A job that a handler has found blocked is in no list any more. It is leased again.
        fits = job._stage == BUFFERED and (job.key not in circuit.failed or not circuit.waiting)
        if circuit.state == OPEN and now >= circuit.probe_at and fits:
            circuit.start_probe(job._lane)
        return circuit.state == PROBING and circuit.probe is job._lane

    def unanswered(self, circuit: Circuit, now: float) -> None:
        """Record a probe without a result: its message was rejected, deferred or lost."""
        self.postpone_probe(circuit, now)
        self._changed()

    def postpone_probe(self, circuit: Circuit, now: float) -> None:
        """Wait for the next probe as long as before."""
        assert circuit.opened is not None
        circuit.open(circuit.opened, now)

    def spares(self, job: Job, now: float) -> bool:
        """Return whether a failure is not charged to its message: a breaker is open, or the worker's may be about to."""
        return self.worker.state != CLOSED or now < self.doubt_until or (bool(self.open) and self._open_group(job) is not None)

    def wait(self, job: Job) -> float:
        """Return for how many seconds a message that is not charged waits."""
        circuit = self._open_group(job)
        keys = 0 if circuit is None else len(circuit.waiting) + len(circuit.failed)
        return max(self.rules.probe_seconds_max, keys / WITHHELD_PER_SECOND)

    def withhold(self, job: Job, *, failed: bool) -> Circuit | None:
        """Remember that a job's key waits for its group. Return the group's breaker; None: it is not open."""
        circuit, key = self._open_group(job), job.key
        if circuit is None or key is None:  # no keyless message can be received by its key
            return circuit
        known = key in circuit.waiting or key in circuit.failed
        if known or self._kept < KEYS_MAX:
            self._kept += not known
            failed = failed or key in circuit.failed
            circuit.waiting.pop(key, None)
            (circuit.failed if failed else circuit.waiting)[key] = None
        return circuit

    def forget(self, circuit: Circuit, keys: Iterable[Key]) -> None:
        """Forget that these keys wait for a group."""
        for key in list(keys):
            for waiting in (circuit.waiting, circuit.failed):
                if key in waiting:
                    del waiting[key]
                    self._kept -= 1

    def _open_group(self, job: Job) -> Circuit | None:
        name = self.group_of(job)
        return None if name is None else self.open.get(name)

    def _group(self, name: str, now: float) -> Circuit | None:
        """Return a closed group, the newest one now. None: all that may be kept are open."""
        closed = self._closed
        circuit = closed.pop(name, None)
        if circuit is None:
            if len(self.open) >= GROUPS_MAX:
                return None
            circuit = Circuit(self.rules, name, self._chance)
            circuit.since = self.permit
        closed[name] = circuit
        oldest = next(iter(closed.values()))
        over = oldest.window.ends and oldest.window.ends[-1][0] <= now - self.rules.window_seconds
        if oldest is not circuit and (over or len(closed) + len(self.open) > GROUPS_MAX):
            assert oldest.group is not None
            del closed[oldest.group]
        return circuit

    # ---- outcomes

    def succeeded(self, job: Job, now: float) -> None:
        """Record a success."""
        self._succeeded_at = now
        if self.failed:
            self.failed.pop(job._delivery.lease._held.key, None)
        if self.worker.state != CLOSED:  # whenever it started: a key has succeeded
            self.worker.close()
            self._changed()
        elif now >= self.doubt_until:
            self.worker.window.count(now, None)
        name = self.group_of(job)
        if name is None:
            return
        circuit = self.open.get(name)
        if circuit is not None:
            if circuit.state == PROBING and job._permit >= circuit.since:
                del self.open[name]
                circuit.close()
                self._changed()
                self._closed[name] = circuit
            return
        circuit = self._group(name, now)
        if circuit is not None and job._permit >= circuit.since:
            circuit.window.count(now, None)

    def failed_handler(self, job: Job, now: float, error: str) -> None:
        """Record a failure."""
        key = job._delivery.lease._held.key
        self._remember_failed(key)
        if self._late_or_probe(job, now, error):
            return
        name = self.group_of(job)
        if name is not None:
            circuit = self.open.get(name)
            if circuit is not None:
                if circuit.state == PROBING and job._permit >= circuit.since:
                    circuit.failed_probe(now, error)
                    self._changed()
                return
            circuit = self._group(name, now)
            if circuit is not None and job._permit >= circuit.since:
                circuit.window.count(now, key)
                if (why := circuit.window.found(now, error)) is not None:
                    del self._closed[name]
                    self.open[name] = circuit
                    self._open(circuit, why, now)
                    self.worker.window.clear()  # this outage explains its failures
                    return
        self._failed_somewhere(now, error, key if name is None else name)

    def failed_together(self, jobs: list[Job], now: float, error: str) -> None:
        """Record the failure of a batch of several groups. It does not say which of them failed."""
        if not self._late_or_probe(jobs[0], now, error):
            self._failed_somewhere(now, error, self.identity(jobs[0]))

    def _late_or_probe(self, job: Job, now: float, error: str) -> bool:
        """Record a failure while the worker's breaker is open, or that began before it opened. Return whether it is one."""
        worker = self.worker
        if worker.state == PROBING and job._permit >= worker.since:
            worker.failed_probe(now, error)
            self._changed()
            return True
        return worker.state != CLOSED or job._permit < worker.since

    def _failed_somewhere(self, now: float, error: str, group: Hashable) -> None:
        """Open the worker's breaker if most handlers fail, in several groups, and none has succeeded for long.

        Until that is certain, failures are not charged.
        """
        worker, seconds = self.worker, self.rules.window_seconds
        silent = now - self._succeeded_at >= seconds
        if now >= self.doubt_until and not (silent and now < self.doubt_until + seconds):
            self._doubt = None
            worker.window.count(now, group)
            if (why := worker.window.found(now, error)) is None:
                return
            worker.window.clear()
            self._doubt, self.doubt_until = why, now + seconds
        if self._doubt is not None and silent:
            self._open(worker, attrs.evolve(self._doubt, at=now, error=error), now)
            self._doubt, self.doubt_until = None, -math.inf

    def _remember_failed(self, key: bytes) -> None:
        self.failed.pop(key, None)
        self.failed[key] = None
        if len(self.failed) > FAILED_MAX:
            del self.failed[next(iter(self.failed))]

    def _open(self, circuit: Circuit, why: Opened, now: float) -> None:
        self.permit += 1
        circuit.since = self.permit
        circuit.open(why, now)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
