"""The demo's parent process: starts consumers, sends the events, replaces the killed consumer, and waits for the end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

import strictq
from strictq.demo import verify
from strictq.demo.consumer import LINE_HEADER
from strictq.demo.events import Source

SEND_BATCH: Final = 500
BATCH_MAX: Final = 64
LOOK_SECONDS: Final = 0.05
STOP_SECONDS: Final = 10.0
STALL_SECONDS: Final = 60.0

BY_CONSUMER: Final = "SELECT consumer, count(*), sum(attempt > 1) FROM app_demo GROUP BY consumer"


class DemoFailed(strictq.StrictqError):
    """The demo failed: a consumer failed, or there was no progress."""


class Watcher(Protocol):
    """Receives the progress of a demo."""

    def progress(self, sent: int, processed: int) -> None:
        """Report progress; called many times per second."""

    def tell(self, text: str) -> None:
        """Report an event in one sentence."""


def run(
    source: Source, q: strictq.Queue, watch: Watcher, *, consumers: int = 4, kill: bool = True, lease_seconds: float = 2.0
) -> dict[str, Any]:
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
            "batch": min(BATCH_MAX, max(2, source.count // (8 * consumers))),
            "lease_seconds": lease_seconds,
            "chain": source.chain,
            # At least one of them processes this many, however unevenly they share the work.
            "kill_after": source.count // (2 * consumers) if kill else None,
        }
        crew = _Crew(q.path, options, Path(place), watch)
        try:
            crew.start(consumers)
            started = time.monotonic()
            for sent in send(q, source):
                crew.attend()
                watch.progress(sent, verify.processed(q))
            wait_until_empty(q, source, watch, crew.attend)
            seconds = time.monotonic() - started
        finally:
            crew.stop()
        crew.require_finished()
    return {**result(q, source, seconds), "kills": sum(m.fate == "killed" for m in crew.members), "consumers": crew.values(q)}


def send(q: strictq.Queue, source: Source) -> Iterator[int]:
    """Send the events. After each batch, yield the number of events sent."""
    events, sent = source.read(), 0
    while batch := list(itertools.islice(events, SEND_BATCH)):
        sent += len(q.send_many(
            strictq.Message(e.body, key=e.key, headers={LINE_HEADER: str(e.line)}, size_hint=e.size) for e in batch
        ))  # fmt: skip
        yield sent


def wait_until_empty(q: strictq.Queue, source: Source, watch: Watcher, attend: Callable[[], None]) -> None:
    """Wait until all events are processed; call `attend` meanwhile.

    Raises:
        DemoFailed: there was no progress for STALL_SECONDS.
    """
    seen, moved = (0, 0), time.monotonic()
    while depth := q.stats().depth:
        attend()
        done = verify.processed(q)
        watch.progress(source.count, done)
        if seen != (done, depth):
            seen, moved = (done, depth), time.monotonic()
        elif time.monotonic() - moved > STALL_SECONDS:
            raise DemoFailed(f"no progress for {STALL_SECONDS:g} s with {depth} messages left")
        time.sleep(LOOK_SECONDS)


def result(q: strictq.Queue, source: Source, seconds: float) -> dict[str, Any]:
    """Verify the recorded events. Return the result of every demo as JSON values."""
    inside = f"the chain {source.chain.old} → {source.chain.new} in each transaction, and " if source.chain else ""
    return {
        "input": source.name, "events": source.count, "keys": source.keys, **verify.verify(source, verify.recorded(q)),
        "checked_by": f"{inside}the line numbers and contents of all events, key by key",
        "redeliveries": q.stats().redeliveries, "seconds": round(seconds, 3),
    }  # fmt: skip


@attrs.define
class _Member:
    """One consumer process.

    Attributes:
        log: its output.
        fate: "running", "finished", "killed" (by the demo) or "killed by another process".
        held: messages that it held when the demo killed it.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    fate: str = "running"
    held: int | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process.pid})"

    def failed(self) -> DemoFailed:
        """Return the error for a consumer that failed."""
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        return DemoFailed(f"consumer {self.name} ended with exit code {self.process.returncode}{last and f': {last}'}")


class _Crew:
    """The consumer processes: starts, replaces and stops them. It touches no process that it did not start."""

    def __init__(self, queue: str, options: dict[str, Any], place: Path, watch: Watcher) -> None:
        """Start no consumer yet. `options` are those of `consumer.consume`; `place` is a directory for the output."""
        self.members: list[_Member] = []
        self._queue = queue
        self._options = options
        self._place = place
        self._kill_note = place / "killed"
        self._watch = watch
        # The stdin of all consumers. Nothing is written to it. They stop when it is closed, also if this process dies.
        self._stdin, self._open_end = os.pipe()

    def start(self, consumers: int) -> None:
        """Start the first consumers."""
        self._watch.tell("consumers: " + ", ".join(str(self._hire()) for _ in range(consumers)))

    def attend(self) -> None:
        """Replace consumers that were killed.

        Raises:
            DemoFailed: a consumer exited unexpectedly.
        """
        for m in self.members.copy():
            if m.fate == "running" and m.process.poll() is not None:
                self._replace(m)

    def stop(self) -> None:
        """Stop all consumers, also after an error."""
        os.close(self._open_end)
        os.close(self._stdin)
        deadline = time.monotonic() + STOP_SECONDS
        for m in self.members:
            try:
                m.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                m.process.kill()
                m.process.wait()

    def require_finished(self) -> None:
        """Check, after `stop`, that each consumer exited cleanly.

        Raises:
            DemoFailed: a consumer did not.
        """
        for m in self.members:
            if m.fate == "running" and m.process.returncode:
                raise m.failed()
            m.fate = "finished" if m.fate == "running" else m.fate

    def values(self, q: strictq.Queue) -> list[dict[str, Any]]:
        """Return the consumers as JSON values."""
        done, retried = Counter[str](), Counter[str]()
        for name, count, again in q.query(BY_CONSUMER):  # one row per shard
            done[name] += count
            retried[name] += again
        return [
            {
                "name": m.name, "pid": m.process.pid, "fate": m.fate, "held": m.held, "processed": done[m.name],
                "retried": retried[m.name],
            }
            for m in self.members
        ]  # fmt: skip

    def _hire(self) -> _Member:
        name = f"c{len(self.members) + 1}"
        log = self._place / f"{name}.log"
        options = {**self._options, "name": name, "kill_note": str(self._kill_note)}
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - strictq's own interpreter and module, no shell
                [sys.executable, "-m", "strictq.demo.consumer", self._queue, json.dumps(options)],
                stdin=self._stdin,
                stdout=output,
                stderr=output,
                # Ctrl-C then reaches only this process, which stops its consumers in order.
                process_group=0,
            )
        self.members.append(_Member(name, process, log))
        return self.members[-1]

    def _replace(self, m: _Member) -> None:
        if m.process.returncode not in (-signal.SIGKILL, -signal.SIGTERM):
            raise m.failed()
        victim, held = self._kill_note.read_text(encoding="utf-8").split() if self._kill_note.exists() else ("", "0")
        if victim == m.name:
            m.fate, m.held = "killed", int(held)
            self._watch.tell(f"killed {m} with -9 in the middle of a transaction; it held {held} messages")
        else:
            m.fate = "killed by another process"
            self._watch.tell(f"{m} was killed from outside with signal {-m.process.returncode}")
        self._watch.tell(f"started {self._hire()} to replace it")
