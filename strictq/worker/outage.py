"""A worker's behaviour while its breaker is open: it holds no messages, reports the reason, and probes one message at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._errors import StoreError
from .._receiving import default_consumer
from .._stats import OpenBreaker
from .breaker import CLOSED, OPEN, PROBING
from .events import log
from .state import State

if TYPE_CHECKING:
    from .breaker import Circuit, Opened
    from .job import HeldLane
    from .prefetch import Buffer


class Outage:
    """Handle an open breaker. Part of the keeper. Does nothing without a breaker, or while it is closed."""

    def __init__(self, state: State, buffer: Buffer, consumer: str | None) -> None:
        self._state = state
        self._board = state.board
        self._buffer = buffer
        self._consumer = consumer
        self._circuit: Circuit | None = state.board.circuit
        self._notice = None if self._circuit is None else state.client.storage.notice(OpenBreaker)
        self._reported: Opened | None = None
        self._delays_to_end = False
        self._probe: HeldLane | None = None

    @property
    def over(self) -> bool:
        """Whether the breaker is closed and its effects are cleared, so that the worker works normally."""
        circuit = self._circuit
        return circuit is None or (circuit.state == CLOSED and self._reported is None and not self._delays_to_end)

    def attend(self, now: float) -> bool:
        """Do the pending work. Return whether there was any."""
        circuit = self._circuit
        assert circuit is not None
        with self._board.lock:
            if circuit.state == PROBING and (self._probe is None or not self._probe.alive):
                circuit.unanswered(self._state.outage_now(now))
            status, opened = circuit.state, circuit.opened
        if opened is not self._reported:
            self._report(opened, self._state.outage_now(now))
        if status == CLOSED:
            return self._end_delays()
        if status == OPEN:
            self._give_back()
            if self._state.outage_now(now) >= circuit.probe_at:
                return self._start_probe(now)
        return False

    def look_at(self, now: float) -> float:
        """Return the worker's clock at which there is work that no returning handler triggers."""
        circuit = self._circuit
        if circuit is None or circuit.state != OPEN:
            return self._state.not_before if self._delays_to_end else math.inf
        wait = circuit.probe_at - self._state.outage_now(now)
        return now + wait if wait > 0 else max(self._buffer.look_at, self._state.not_before)

    def skip(self, now: float) -> bool:
        """Move a test's clock to the next probe, if there is nothing else to do. Return whether it was moved."""
        circuit, driver = self._circuit, self._state.driver
        if circuit is None or driver is None or circuit.state != OPEN or not self._board.idle:
            return False
        wait = circuit.probe_at - self._state.outage_now(now)
        if wait > 0:
            driver.skip(wait)
        return wait > 0

    def report(self) -> OpenBreaker | None:
        """Return the open breaker for `stats`; None if it is closed."""
        opened = None if self._circuit is None else self._circuit.opened
        return None if opened is None else self._shown(opened, self._state.outage_now(self._state.clock()))

    def end(self) -> None:
        """Remove the report when the worker ends."""
        if self._notice is not None:
            self._notice.remove()

    # ---- open

    def _give_back(self) -> None:
        """Release the messages leased ahead, so that other consumers can have them. No attempt is charged."""
        with self._board.lock:
            back = self._board.give_back()
        self._state.release(back)

    def _start_probe(self, now: float) -> bool:
        deliveries = self._buffer.lease_one(now)
        if not deliveries:
            return False
        assert self._circuit is not None
        with self._board.lock:
            self._circuit.probe()
        self._buffer.take_in(deliveries, now)
        self._probe = self._board.lanes.get(deliveries[0].lease)
        return True

    def _end_delays(self) -> bool:
        """Make messages that wait because of their failures due now, because the breaker closed."""
        try:
            self._state.queue._operations.end_failure_delays(self._buffer.keys)
        except StoreError as e:
            self._state.complain(e)
            return False
        self._delays_to_end = False
        self._buffer.look_again()
        return True

    # ---- reports

    def _shown(self, opened: Opened, now: float) -> OpenBreaker:
        since = self._state.client.storage.clock.wall() / 1e6 - (now - opened.at)
        consumer = self._consumer or default_consumer()
        return OpenBreaker(consumer, since, opened.failures, opened.ends, opened.error, opened.probes)

    def _report(self, opened: Opened | None, now: float) -> None:
        assert self._circuit is not None
        assert self._notice is not None
        before, self._reported = self._reported, opened
        if opened is None:
            assert before is not None
            self._notice.remove()
            self._delays_to_end = True
            text = f"a message succeeded after {now - before.at:.1f} s and {before.probes} failed tries; working again"
            self._state.tell_of_breaker("breaker_closed", text)
            return
        if before is None:
            self._buffer.look_again()
            seconds = self._circuit.rules.window_seconds
            text = f"{opened.failures} of {opened.ends} handlers failed within {seconds:g} s; trying one message at a time"
            self._state.tell_of_breaker("breaker_opened", f"{text}; the last error: {opened.error}")
        try:
            self._notice.put(self._shown(opened, now))
        except (OSError, StoreError) as e:  # the report is for operators; the work does not depend on it
            log.warning("the open breaker could not be reported to other processes: %s", e)
