"""When a worker's newest handlers began and ended, for a console in another process. Costs nothing while none looks."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from .._store.api import HandlerSpan, WorkerSpans
from .._values.errors import StoreError
from .._values.findings import WorkerEvent
from .events import log
from .state import State

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks whether a console watches, and between two reports while one does."""
NEWEST: Final = 256
RUNNING_MAX: Final = 10_000
BEGINS: Final = {"preparing": "prepare", "processing": "process"}
ENDS: Final = {"prepared", "acked", "retried", "deferred", "poison", "rejected", "timeout", "lost", "released"}


class SpanReport:
    """Report the newest runs of handlers while a console watches. Part of the keeper."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._source = state.source
        self._due = 0.0
        self._watched = False
        self._ended: deque[HandlerSpan] = deque(maxlen=NEWEST)
        self._begun: dict[tuple[Any, int], HandlerSpan] = {}
        self._wall = 0.0
        """Seconds between the worker's clock and that of 1970."""

    def tell(self, now: float) -> None:
        """Begin, end or write the report, if it is time."""
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        watched = self._source.watched
        if watched != self._watched:
            self._watched = watched
            self._wall = self._source.wall() - now
            (self._state.watch if watched else self._state.unwatch)(self._see)
            if watched:
                self._note_running()
            else:
                self.end()
        if not watched:
            return
        self._forget_dropped()
        try:
            spans = [*self._ended, *list(self._begun.values())][-NEWEST:]
            self._source.report(WorkerSpans, WorkerSpans(self._source.consumer, spans))
        except (OSError, StoreError) as e:  # no handler depends on it
            log.warning("the handlers' times could not be reported to other processes: %s", e)
            self._due = now + 60 * LOOK_SECONDS

    def end(self) -> None:
        """Remove the report."""
        self._ended.clear()
        self._begun.clear()
        self._source.report(WorkerSpans, None)

    def _note_running(self) -> None:
        """Note the handlers that began before a console looked."""
        board = self._state.board
        with board.lock:
            for stage, jobs in (("process", board.running), ("prepare", board.preparing)):
                for job in jobs:
                    key, seq = job._delivery.key, job._delivery.seq
                    start = _ms(job._since + self._wall)
                    self._begun.setdefault((key, seq), HandlerSpan(stage, _text(key), seq, start, None, ""))

    def _forget_dropped(self) -> None:
        """Forget handlers whose end no event tells: those of messages that went back because an earlier one failed."""
        at, board = self._state.clock() + self._wall, self._state.board
        with board.lock:
            runs = {(job._delivery.key, job._delivery.seq) for job in (*board.running, *board.preparing)}
        for name, span in list(self._begun.items()):
            if name not in runs and span.start < at:
                self._begun.pop(name, None)

    def _see(self, event: WorkerEvent) -> None:
        """Note an event. Called in the threads of handlers: each change is one step."""
        at, name = event.at + self._wall, (event.key, event.seq)
        if (stage := BEGINS.get(event.kind)) is not None:
            if len(self._begun) < RUNNING_MAX:
                self._begun[name] = HandlerSpan(stage, _text(event.key), event.seq, _ms(at), None, "")
        elif event.kind in ENDS:
            begun = self._begun.pop(name, None)
            if event.seconds is not None:  # the event of an ack may come some time after the handler returned
                start = at - event.seconds if begun is None else begun.start
                stage, end = "prepare" if event.kind == "prepared" else "process", _ms(start + event.seconds)
                self._ended.append(HandlerSpan(stage, _text(event.key), event.seq, _ms(start), end, event.kind))
            elif begun is not None:
                self._ended.append(begun._replace(end=_ms(at), outcome=event.kind))


def _ms(at: float) -> float:
    return round(at, 4)


def _text(key: Any) -> str:
    return "(keyless)" if key is None else str(key)[:64]
