"""A worker's behaviour while breakers are open: what waits is not held, the reason is reported, and messages are probed."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from .._values.errors import StoreError
from .._values.stats import OpenBreaker
from .breaker import CLOSED, OPEN, PROBING
from .events import log
from .source import HOLDING
from .state import State

if TYPE_CHECKING:
    from .._values.keys import Key
    from ..delivery import Delivery
    from .breaker import Circuit, Circuits, Opened
    from .job import HeldLane, Job
    from .prefetch import Buffer
    from .settling import Outcomes

NOTICES_MAX: Final = 50
"""Number of open breakers that a worker reports to other processes. Each report keeps a file open."""
CHOICE: Final = 16
TRIES: Final = 4
"""Numbers of messages among which a probe is chosen, and of tries to find one."""
END_TOGETHER: Final = 100
"""Number of delays ended in one step when a group closes."""


class Outage:
    """Handle open breakers. Part of the keeper. Does nothing without breakers, or while all are closed."""

    def __init__(self, state: State, buffer: Buffer, settling: Outcomes) -> None:
        self._state = state
        self._source = state.source
        self._board = state.board
        self._buffer = buffer
        self._settling = settling
        self._circuits: Circuits | None = state.board.circuits
        self._reported: dict[Circuit, Opened] = {}
        self._shown: set[Circuit] = set()
        """The circuits that are reported to other processes."""
        self._version = 0
        self._delays_to_end = False
        self._keys_to_end: deque[Key] = deque()
        """The keys of closed groups, whose delays are ended in steps."""
        self._groups_at = math.inf
        """The breakers' time of the next probe of a group."""

    @property
    def over(self) -> bool:
        """Whether the worker's breaker is closed and its effects are cleared, so that the worker works normally."""
        circuits = self._circuits
        if circuits is None:
            return True
        return circuits.worker.state == CLOSED and circuits.worker not in self._reported and not self._delays_to_end

    @property
    def waits(self) -> bool:
        """Whether messages are known to wait for a group, or to be postponed until it is certain whether anything succeeds."""
        if self._circuits is None:
            return False
        if self._state.outage_now(self._state.clock()) < self._circuits.doubt_until:
            return True
        return bool(self._keys_to_end) or any(c.waiting or c.failed for c in self._circuits.open.values())

    def attend(self, now: float) -> bool:
        """Do the pending work. Return whether there was any."""
        circuits = self._circuits
        if circuits is None:
            return False
        if circuits.calm and circuits.version == self._version and not (self._delays_to_end or self._keys_to_end):
            return False
        at = self._state.outage_now(now)
        with self._board.lock:
            for circuit in (circuits.worker, *circuits.open.values()):
                if circuit.state == PROBING and (circuit.probe is None or not circuit.probe.alive):
                    circuits.unanswered(circuit, at)
            changed = circuits.version != self._version
            self._version = circuits.version
            opened = {c: c.opened for c in (circuits.worker, *circuits.open.values()) if c.opened is not None} if changed else {}
        if changed:
            self._report(opened, at)
        if circuits.worker.state != CLOSED:
            return self._attend_worker(now, at)
        if self._delays_to_end:
            return self._end_delays()
        return self._attend_groups(now, at, changed=changed)

    def look_at(self, now: float) -> float:
        """Return the worker's clock at which there is work that no returning handler triggers."""
        circuits, state = self._circuits, self._state
        if circuits is None:
            return math.inf
        if circuits.worker.state == OPEN:
            wait = circuits.worker.probe_at - state.outage_now(now)
            return now + wait if wait > 0 else max(self._buffer.look_at, state.not_before)
        if circuits.worker.state == PROBING:
            return math.inf
        if self._delays_to_end or self._keys_to_end:
            return max(now, state.not_before)
        return max(now + (self._next_at(state.outage_now(now)) - state.outage_now(now)), state.not_before)

    def _next_at(self, at: float) -> float:
        """Return the breakers' time at which a group is probed, or doubt ends."""
        assert self._circuits is not None
        return min(self._groups_at, self._circuits.doubt_until if self._circuits.doubt_until > at else math.inf)

    def skip(self, now: float) -> bool:
        """Move a test's clock to the next probe, if there is nothing else to do. Return whether it was moved."""
        circuits, driver = self._circuits, self._state.driver
        if circuits is None or driver is None or not self._board.idle or circuits.worker.state == PROBING:
            return False
        at = self._state.outage_now(now)
        wait = (circuits.worker.probe_at if circuits.worker.state == OPEN else self._next_at(at)) - at
        if not 0 < wait < math.inf:
            return False
        driver.skip(wait)
        return True

    def report(self) -> OpenBreaker | None:
        """Return the open breaker for `stats`; None if all are closed."""
        if self._circuits is None:
            return None
        with self._board.lock:
            circuits = [self._circuits.worker, *self._circuits.open.values()]
            found = next(((c, c.opened) for c in circuits if c.opened is not None), None)
        return None if found is None else self._as_report(*found, self._state.outage_now(self._state.clock()))

    def end(self) -> None:
        """Remove the reports when the worker ends."""
        for circuit in self._shown:
            self._source.report(OpenBreaker, None, circuit)

    # ---- the worker's breaker

    def _attend_worker(self, now: float, at: float) -> bool:
        assert self._circuits is not None
        if self._circuits.worker.state == OPEN:
            # Release the messages leased ahead, so that other consumers can have them. No attempt is charged.
            with self._board.lock:
                back = self._board.give_back()
            if HOLDING in self._source.capabilities:
                back = self._keep(back)
            self._state.release(back)
            if at >= self._circuits.worker.probe_at:
                return self._start_probe(now)
        return False

    def _keep(self, back: list[Job]) -> list[Job]:
        """Let the source keep one lane for each slot, from which probes come. Return the rest."""
        slots = self._board.limits.concurrency
        self._defer([job._delivery for job in back[:slots]])
        return back[slots:]

    def _start_probe(self, now: float) -> bool:
        """Lease a message of a key that has not failed, or else of any, and let it run."""
        assert self._circuits is not None
        worker = self._circuits.worker
        choice = 1 if HOLDING in self._source.capabilities else CHOICE
        for left in reversed(range(TRIES)):
            deliveries = self._buffer.lease_heads(now, choice)
            if not deliveries:
                return False
            heads = list({d.lease: d for d in reversed(deliveries)}.values())[::-1]
            failed = [d for d in heads if d.lease._held.key in self._circuits.failed]
            others = [d for d in heads if d not in failed]
            chosen = next(iter(others), failed[0] if failed and not left else None)
            self._source.release([d for d in others if d is not chosen])
            self._defer([d for d in failed if d is not chosen])
            if chosen is None:
                continue
            with self._board.lock:
                if probes := worker.state == OPEN:  # unless a handler that ran before has succeeded meanwhile
                    worker.start_probe()
            self._buffer.take_in([d for d in deliveries if d.lease is chosen.lease], now)
            if probes:
                worker.probe = self._board.lanes.get(chosen.lease)
            return True
        return False

    def _defer(self, failed: list[Delivery]) -> None:
        """Let messages that failed wait on, so that the next look finds others."""
        assert self._circuits is not None
        if failed:
            said = [self._settling.waiting(self._circuits.worker)] * len(failed)
            seconds = self._circuits.rules.probe_seconds_max
            self._source.hold(failed, seconds, said, began=False)

    def _end_delays(self) -> bool:
        """Make messages that wait because of their failures due now, because the breaker closed."""
        try:
            self._source.end_delays()
        except StoreError as e:
            self._state.complain(e)
            return False
        self._delays_to_end = False
        self._buffer.look_again()
        return True

    # ---- the groups' breakers

    def _attend_groups(self, now: float, at: float, *, changed: bool) -> bool:
        circuits, board = self._circuits, self._board
        assert circuits is not None
        worked = self._end_delays_of_closed()
        if not circuits.open:
            self._groups_at = math.inf
            return worked
        with board.lock:
            fresh, board.fresh = board.fresh, []
            lanes: list[HeldLane] = list(board.lanes.values()) if changed else fresh
            back = board.withdraw(lanes, lambda job: not circuits.admits(job, at))
        if back:
            self._settling.withhold(back)
            worked = True
        if changed or back or at >= self._groups_at:
            for circuit in list(circuits.open.values()):
                if circuit.state == OPEN and at >= circuit.probe_at:
                    worked |= self._pull_probe(circuit, now, at)
            with board.lock:
                due = [c.probe_at for c in circuits.open.values() if c.state == OPEN and (c.waiting or c.failed)]
            self._groups_at = min(due, default=math.inf)
        return worked

    def _pull_probe(self, circuit: Circuit, now: float, at: float) -> bool:
        """Lease a message that waits for this group, of a key that has not failed if there is one, and let it run."""
        circuits, board = self._circuits, self._board
        assert circuits is not None
        for _ in range(TRIES):
            with board.lock:
                key = next(iter([*list(circuit.waiting)[:1], *list(circuit.failed)[:1]]), None)
                if key is None:
                    return False  # the next message that arrives is the probe
                circuits.forget(circuit, [key])
            if deliveries := self._buffer.lease_key(key):
                self._buffer.take_in(deliveries, now)
                with board.lock:
                    lane = board.lanes.get(deliveries[0].lease)
                    if lane is not None and lane.jobs and circuits.group_of(lane.jobs[0]) == circuit.group:
                        circuit.start_probe(lane)  # only the keeper changes an open group
                return True
        with board.lock:
            circuits.postpone_probe(circuit, at)
        return False

    def _end_delays_of_closed(self) -> bool:
        """Make some messages of closed groups due now."""
        some = [self._keys_to_end.popleft() for _ in range(min(END_TOGETHER, len(self._keys_to_end)))]
        if not some:
            return False
        try:
            self._source.end_delays(some)
        except StoreError as e:
            self._keys_to_end.extend(some)
            self._state.complain(e)
            return False
        self._buffer.look_again()
        return True

    # ---- reports

    def _as_report(self, circuit: Circuit, opened: Opened, at: float) -> OpenBreaker:
        since = self._source.wall() - (at - opened.at)
        return OpenBreaker(self._source.consumer, since, opened.failures, opened.ends, opened.error, opened.probes, circuit.group)

    def _report(self, opened: dict[Circuit, Opened], at: float) -> None:
        before, self._reported = self._reported, opened
        for circuit, was in before.items():
            if circuit not in opened:
                self._report_closed(circuit, was, at)
        for circuit, why in opened.items():
            if circuit not in before:
                self._report_opened(circuit, why)
            if why is not before.get(circuit):
                self._put(circuit, why, at)

    def _report_opened(self, circuit: Circuit, why: Opened) -> None:
        assert self._circuits is not None
        if circuit.group is None:
            self._source.take(0, 1)  # nothing more is wanted
            self._buffer.look_again()
        whose = "" if circuit.group is None else f"group {circuit.group!r}: "
        seconds = self._circuits.rules.window_seconds
        text = f"{whose}{why.failures} of {why.ends} handlers failed within {seconds:g} s; trying one message at a time"
        self._state.tell_of_all("breaker_opened", f"{text}; the last error: {why.error}")

    def _report_closed(self, circuit: Circuit, was: Opened, at: float) -> None:
        assert self._circuits is not None
        if circuit in self._shown:
            self._shown.discard(circuit)
            self._source.report(OpenBreaker, None, circuit)
        if circuit.group is None:
            self._delays_to_end = True
        with self._board.lock:
            waiting = [*circuit.waiting, *circuit.failed]
            self._circuits.forget(circuit, waiting)
        self._keys_to_end.extend(waiting)
        whose = "" if circuit.group is None else f"group {circuit.group!r}: "
        text = f"{whose}a message succeeded after {at - was.at:.1f} s and {was.probes} failed tries; working again"
        self._state.tell_of_all("breaker_closed", text)

    def _put(self, circuit: Circuit, why: Opened, at: float) -> None:
        if circuit not in self._shown:
            if len(self._shown) >= NOTICES_MAX and circuit.group is not None:
                return
            self._shown.add(circuit)
        try:
            self._source.report(OpenBreaker, self._as_report(circuit, why, at), circuit)
        except (OSError, StoreError) as e:  # the report is for operators; the work does not depend on it
            log.warning("the open breaker could not be reported to other processes: %s", e)
