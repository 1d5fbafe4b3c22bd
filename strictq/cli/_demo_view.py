"""The terminal output of `strictq demo`: progress and result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from strictq.cli._command import many, printable, tell
from strictq.cli._render import Alarm, Fine, Heading, alarming, bars, listing, show
from strictq.demo.events import Source
from strictq.demo.verify import KINDS
from strictq.worker.timeline import Timeline

PLAIN_SECONDS: Final = 2.0
KEYS_SHOWN: Final = 4
CELLS_A_BAR: Final = 5
COLUMNS_MAX: Final = 100


class View:
    """Reports progress on stderr: bars on a terminal, otherwise a line every two seconds."""

    def __init__(self, total: int, step: Callable[[Sequence[int]], None] | None, *, quiet: bool) -> None:
        """Report on a demo of `total` events. `step` updates the bars; None: there are none, and `quiet` prints nothing."""
        self._total = total
        self._step = step
        self._quiet = quiet and step is None
        self._next = time.monotonic() + PLAIN_SECONDS

    def progress(self, sent: int, processed: int) -> None:
        """Report the number of events sent and processed."""
        if self._step is not None:
            self._step((sent, processed))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            self.tell(f"sent {sent:,}, processed {processed:,} of {self._total:,}")

    def tell(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            tell(text)


@contextmanager
def viewing(source: Source, setup: str, *, quiet: bool) -> Iterator[View]:
    """Report a demo's progress on stderr; if `quiet`, only on a terminal."""
    with bars(("sent", "processed"), source.count) as step:
        view = View(source.count, step, quiet=quiet)
        view.tell(f"{many(source.count, 'event')} over {many(source.keys, 'key')}: {source.name}")
        view.tell(setup)
        yield view


def show_crew(result: dict[str, Any], *, kill: bool) -> None:
    """Print the result of a run with consumers."""
    rows = [
        (c["name"], f"{c['processed']:,}", c["fate"] + (f", held {c['held']}" if c["held"] else ""), f"{c['retried']:,}")
        for c in result["consumers"]
    ]
    columns = ("name", "events", "fate", "second attempts")
    # Only some of the messages that a killed consumer held had started, so there are fewer second attempts than redeliveries.
    some = len(columns) if any(c["retried"] for c in result["consumers"]) else len(columns) - 1
    show(Heading("Consumers"))
    listing(columns[:some], [row[:some] for row in rows], right=("events", "second attempts"))
    rate = result["processed"] / max(result["seconds"], 0.001)
    _show_events(result, ("consumers killed", f"{result['kills']:,}"), ("events per second", f"{rate:,.0f}"))
    show("", Heading("Longest keys"))
    orders = [(printable(k["key"]), f"{k['events']:,}", "ok" if k["ok"] else Alarm("WRONG")) for k in result["longest_keys"]]
    listing(("key", "events", "order"), orders, right=("events",))
    if kill and not result["kills"]:
        show("", "No consumer was killed: the run was too short.")
    _show_verdict(result)


def show_worker(result: dict[str, Any], timeline: Timeline) -> None:
    """Print the worker's timeline and result."""
    columns = min(shutil.get_terminal_size().columns, COLUMNS_MAX)
    part = timeline.part(KEYS_SHOWN, columns // CELLS_A_BAR)
    show(
        f"The first {part.seconds:.1f} s of {many(len(part.keys), 'key')}. Upper line: prepare (· and : in turn). "
        "Lower line: process (█ and ▓)."
    )
    show(*part.to_text(columns).splitlines())
    prepares = (("preparing, seconds", "prepare_seconds"), ("waiting for prepare, seconds", "waited_seconds"))
    _show_events(result, *((label, f"{result[name]:.1f}") for label, name in prepares))
    show("", f"{result['hidden']:.0%} of the preparing time overlapped with the processing of earlier events.")
    if result["plot"]:
        show(f"The timeline is in {printable(result['plot'])}.")
    _show_verdict(result)


def _show_events(result: dict[str, Any], *more: tuple[str, str]) -> None:
    counts = {"sent": "events", "processed": "processed", "keys": "keys", "redelivered after a kill": "redeliveries"}
    facts = [(label, f"{result[name]:,}") for label, name in counts.items()]
    facts += [(kind.replace("_", " "), alarming(result[kind])) for kind in KINDS]
    show("", Heading("Events"), [*facts, ("seconds", f"{result['seconds']:.1f}"), *more])


def _show_verdict(result: dict[str, Any]) -> None:
    """Print how the result was verified, the verdict and the problems."""
    show("", f"Verified by {result['checked_by']}.")
    if result["ok"]:
        show(Fine("OK: every event was processed exactly once, in the order of its key."))
        return
    wrongs = ", ".join(f"{result[kind]:,} {kind.replace('_', ' ')}" for kind in KINDS if result[kind])
    show(Alarm(f"WRONG: {wrongs}."), *(f"  {printable(problem)}" for problem in result["problems"]))
