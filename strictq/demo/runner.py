"""The demo's parent process: starts consumers, sends the events, replaces the killed consumer, and waits for the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

import strictq
from strictq.demo import verify
from strictq.demo.consumer import LINE_HEADER
from strictq.demo.events import DemoEvent

SEND_BATCH: Final = 500
BATCH_MAX: Final = 64
LOOK_SECONDS: Final = 0.05
STOP_SECONDS: Final = 60.0
STALL_SECONDS: Final = 60.0

BY_CONSUMER: Final = "SELECT consumer, count(*) FROM app_demo GROUP BY consumer"


class DemoFailed(strictq.StrictqError):
    """The demo failed: a consumer failed, or there was no progress."""


class Watcher(Protocol):
    """Receives the progress of a demo."""

    def progress(self, sent: int, processed: int) -> None:
        """Report progress; called many times per second."""

    def tell(self, text: str) -> None:
        """Report an event in one sentence."""


def run(
    events: Sequence[DemoEvent], q: strictq.Queue, watch: Watcher, *, consumers: int = 4, kill: bool = True,
    lease_seconds: float = 2.0,
) -> dict[str, Any]:  # fmt: skip
    """Send the events through a new queue and verify the result.

    Args:
        consumers: processes at any one time.
        kill: kill one of them with kill -9.
        lease_seconds: short, so that the messages of a killed consumer are delivered again soon.
    Returns:
        The result as plain values: docs/reference/cli.md has the fields.
    Raises:
        DemoFailed: the demo did not finish.
        strictq.StrictqError: raised by the queue.
    """
    with tempfile.TemporaryDirectory(prefix="strictq-demo-", ignore_cleanup_errors=True) as place:
        options = {
            # Small runs use small batches, so that every consumer gets some of the messages.
            "batch": min(BATCH_MAX, max(2, len(events) // (8 * consumers))),
            "lease_seconds": lease_seconds,
            # At least one of them processes this many, however unevenly they share the work.
            "kill_after": len(events) // (2 * consumers) if kill else None,
            "kill_note": str(Path(place) / "killed"),
        }
        crew = _Crew(q.path, options, watch)
        try:
            watch.tell("consumers: " + ", ".join(str(crew.hire()) for _ in range(consumers)))
            started = time.monotonic()
            for sent in send(q, events):
                crew.attend()
                watch.progress(sent, verify.processed(q))
            wait_until_empty(q, len(events), watch, crew.attend)
            seconds = time.monotonic() - started
        finally:
            crew.stop()
    found = crew.values(q)
    return {**result(q, events, seconds), "kills": sum(c["fate"] == "killed" for c in found), "consumers": found}


def send(q: strictq.Queue, events: Sequence[DemoEvent]) -> Iterator[int]:
    """Send the events. After each batch, yield the number of events sent."""
    for start in range(0, len(events), SEND_BATCH):
        batch = events[start : start + SEND_BATCH]
        q.send_many(strictq.Message(e.body, key=e.key, headers={LINE_HEADER: str(e.line)}, size_hint=e.size) for e in batch)
        yield start + len(batch)


def wait_until_empty(q: strictq.Queue, count: int, watch: Watcher, attend: Callable[[], None]) -> None:
    """Wait until all `count` events are processed; call `attend` meanwhile.

    Raises:
        DemoFailed: there was no progress for STALL_SECONDS.
    """
    seen, moved = (0, 0), time.monotonic()
    while depth := q.stats().depth:
        attend()
        done = verify.processed(q)
        watch.progress(count, done)
        if seen != (done, depth):
            seen, moved = (done, depth), time.monotonic()
        elif time.monotonic() - moved > STALL_SECONDS:
            raise DemoFailed(f"no progress for {STALL_SECONDS:g} s with {depth} messages left")
        time.sleep(LOOK_SECONDS)


def result(q: strictq.Queue, events: Sequence[DemoEvent], seconds: float) -> dict[str, Any]:
    """Return the result of a finished run as JSON values."""
    return {
        **verify.verify(events, verify.recorded(q)),
        "events": len(events),
        "keys": len({e.key for e in events}),
        "redeliveries": q.stats().redeliveries,
        "seconds": round(seconds, 3),
    }


@attrs.define
class _Member:
    """One consumer process.

    Attributes:
        fate: "running", "finished", "killed" (by the demo) or "killed by another process".
        held: messages that it held when the demo killed it.
    """

    name: str
    process: subprocess.Popen[bytes]
    fate: str = "running"
    held: int | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process.pid})"


class _Crew:
    """The consumer processes: starts, replaces and stops them. It touches no process that it did not start."""

    def __init__(self, queue: str, options: dict[str, Any], watch: Watcher) -> None:
        """Start no consumer yet. `options` are those of `consumer.consume`."""
        self._members: list[_Member] = []
        self._queue = queue
        self._options = options
        self._watch = watch
        # The stdin of all consumers. Nothing is written to it. They stop when it is closed, also if this process dies.
        self._stdin, self._open_end = os.pipe()

    def hire(self) -> _Member:
        """Start a consumer."""
        name = f"c{len(self._members) + 1}"
        process = subprocess.Popen(  # noqa: S603 - strictq's own interpreter and module, no shell
            [sys.executable, "-m", "strictq.demo.consumer", self._queue, json.dumps({**self._options, "name": name})],
            stdin=self._stdin,
            process_group=0,  # Ctrl-C then reaches only this process, which stops its consumers in order
        )
        self._members.append(_Member(name, process))
        return self._members[-1]

    def attend(self) -> None:
        """Replace consumers that were killed.

        Raises:
            DemoFailed: a consumer exited unexpectedly.
        """
        for m in self._members.copy():
            if m.fate == "running" and (code := m.process.poll()) is not None:
                if code not in (-signal.SIGKILL, -signal.SIGTERM):
                    raise DemoFailed(f"consumer {m.name} ended with exit code {code}")
                note = Path(self._options["kill_note"])
                victim, held = note.read_text(encoding="utf-8").split() if note.exists() else ("", "0")
                if victim == m.name:
                    m.fate, m.held = "killed", int(held)
                    self._watch.tell(f"killed {m} with -9 in the middle of a transaction; it held {held} messages")
                else:
                    m.fate = "killed by another process"
                    self._watch.tell(f"{m} was killed from outside with signal {-code}")
                self._watch.tell(f"started {self.hire()} to replace it")

    def stop(self) -> None:
        """Stop all consumers, also after an error."""
        os.close(self._open_end)
        os.close(self._stdin)
        deadline = time.monotonic() + STOP_SECONDS
        for m in self._members:
            try:
                m.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                m.process.kill()
                m.process.wait()

    def values(self, q: strictq.Queue) -> list[dict[str, Any]]:
        """Return the stopped consumers as JSON values.

        Raises:
            DemoFailed: one exited with an error.
        """
        done = Counter[str]()
        for name, count in q.query(BY_CONSUMER):  # one row per shard
            done[name] += count
        found = []
        for m in self._members:
            if m.fate == "running":
                m.fate = "finished"
                if m.process.returncode:
                    raise DemoFailed(f"consumer {m.name} ended with exit code {m.process.returncode}")
            found.append({
                "name": m.name, "pid": m.process.pid, "fate": m.fate, "held": m.held, "processed": done[m.name],
            })  # fmt: skip
        return found
