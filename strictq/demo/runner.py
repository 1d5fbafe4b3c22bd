"""The demo's parent: starts consumers, sends the events, kills a consumer with -9 on the way, and waits for the end."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Final, Literal, Protocol

import attrs

import strictq
from strictq.demo import verify
from strictq.demo.consumer import LINE_HEADER, SCHEMA, Task
from strictq.demo.events import Source

SEND_BATCH: Final = 500
BATCH_MAX: Final = 64
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
STALL_SECONDS: Final = 60.0
STRANGERS_KILLS_MAX: Final = 20
FORGIVEN_SIGNALS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class DemoFailed(Exception):
    """The demo could not be brought to its end: a consumer failed, or nothing moved any more."""


@attrs.frozen(kw_only=True)
class Options:
    """How the demo runs.

    Attributes:
        queue: the queue's directory; must not exist yet.
        consumers: consumer processes at any one time.
        kill: kill one of them with -9 on the way.
        lease_seconds: short, so that what a killed consumer held is retaken soon.
    """

    queue: Path
    consumers: int = 4
    shards: int = 1
    durability: Literal["full", "process"] = "full"
    kill: bool = True
    lease_seconds: float = 2.0


class Watcher(Protocol):
    """Who is shown how it goes."""

    def progress(self, sent: int, processed: int) -> None:
        """Called many times a second."""

    def tell(self, text: str) -> None:
        """Something happened, one sentence."""


@attrs.define
class Member:
    """One consumer process that the demo started.

    Attributes:
        fate: "running", "finished", "killed" (by the demo) or "killed by somebody else".
        victim: the demo is killing it.
        held: messages in its hands when it was killed, if that is known.
    """

    name: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    ready: bool = False
    fate: str = "running"
    victim: bool = False
    held: int | None = None


@attrs.frozen
class Outcome:
    """What happened, and whether it was right."""

    verdict: verify.Verdict
    members: tuple[Member, ...]
    redeliveries: int
    seconds: float

    @property
    def kills(self) -> int:
        """Consumers that the demo killed."""
        return sum(m.fate == "killed" for m in self.members)


def run(source: Source, options: Options, watch: Watcher) -> Outcome:
    """Send the events through a new queue and verify what came of them.

    Raises:
        DemoFailed: it did not come to its end.
        strictq.StrictqError: the queue refused.
    """
    with strictq.open(options.queue, shards=options.shards, durability=options.durability) as q:
        q.app_schema(SCHEMA)
        with contextlib.closing(_Crew(source, options, watch)) as crew:
            crew.start()
            started = time.monotonic()
            _drive(q, source, crew, watch)
            seconds = time.monotonic() - started
            crew.finish()
        verdict = verify.verify(source, verify.recorded(q))
        return Outcome(verdict, tuple(crew.members), q.stats().redeliveries, seconds)


def _drive(q: strictq.Queue, source: Source, crew: _Crew, watch: Watcher) -> None:
    """Send everything, then wait until the queue is empty."""
    sent = 0
    for batch in _batches(source):
        q.send_many(batch)
        sent += len(batch)
        crew.attend(0.0)
        watch.progress(sent, verify.processed(q))
    seen, moved = None, time.monotonic()
    while True:
        processed, depth = verify.processed(q), q.stats().depth
        watch.progress(sent, processed)
        if depth == 0:
            return
        if (processed, depth) != seen:
            seen, moved = (processed, depth), time.monotonic()
        elif time.monotonic() - moved > STALL_SECONDS:
            raise DemoFailed(f"nothing moved for {STALL_SECONDS:g} s with {depth} messages left")
        crew.attend(0.1)


def _batches(source: Source) -> Iterator[list[strictq.Message]]:
    events = iter(source)
    while batch := list(itertools.islice(events, SEND_BATCH)):
        yield [strictq.Message(e.body, key=e.key, headers={LINE_HEADER: str(e.line)}) for e in batch]


class _Crew:
    """The consumer processes: starts, kills, replaces and stops them. It touches no process that it did not start."""

    def __init__(self, source: Source, options: Options, watch: Watcher) -> None:
        self.members: list[Member] = []
        self._source = source
        self._options = options
        self._watch = watch
        self._news: SimpleQueue[tuple[Member, str]] = SimpleQueue()
        self._stopping = False
        self._victim = threading.Lock()

    def start(self) -> None:
        """Start the consumers and wait until each has opened the queue, so that all take part from the beginning."""
        options = self._options
        for _ in range(options.consumers):
            # The first that gets there is killed. One of them does, however unevenly they share the work.
            self._hire(self._source.count // (2 * options.consumers) if options.kill else None)
        self._watch.tell("consumers: " + ", ".join(f"{m.name} (pid {m.process.pid})" for m in self.members))
        deadline = time.monotonic() + START_SECONDS
        while not all(m.ready for m in self.members if m.fate == "running"):
            if time.monotonic() > deadline:
                raise DemoFailed(f"the consumers did not start within {START_SECONDS:g} s")
            self.attend(0.1)

    def attend(self, wait: float) -> None:
        """Deal with what the consumers said, or what became of them; wait so many seconds for the first news."""
        with contextlib.suppress(Empty):
            self._hear(*self._news.get(timeout=wait) if wait else self._news.get_nowait())
            while True:
                self._hear(*self._news.get_nowait())

    def finish(self) -> None:
        """Stop the consumers, and see that each ended well."""
        self._stopping = True
        running = [m for m in self.members if m.fate == "running"]
        for m in running:
            _close_stdin(m)
        for m in running:
            try:
                code = m.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"consumer {m.name} did not stop within {STOP_SECONDS:g} s") from None
            if code:
                raise DemoFailed(f"consumer {m.name} ended with exit code {code}{_last_words(m)}")
            m.fate = "finished"

    def close(self) -> None:
        """Leave no process behind, whatever happened."""
        self._stopping = True
        for m in self.members:
            _close_stdin(m)
        deadline = time.monotonic() + STOP_SECONDS / 5
        for m in self.members:
            try:
                m.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                m.process.kill()
                m.process.wait()
            m.errors.close()

    def _hire(self, pause_after: int | None = None) -> None:
        options = self._options
        # Small runs in small batches: every consumer is to have its part of them.
        batch = min(BATCH_MAX, max(2, self._source.count // (8 * options.consumers)))
        task = Task(
            queue=str(options.queue),
            name=f"c{len(self.members) + 1}",
            durability=options.durability,
            batch=batch,
            lease_seconds=options.lease_seconds,
            chain=self._source.chain,
            pause_after=pause_after,
        )
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
            [sys.executable, "-m", "strictq.demo.consumer", task.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # A Ctrl-C is for the parent, which then stops its consumers in order.
            process_group=0,
        )
        member = Member(task.name, process, errors)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()

    def _listen(self, member: Member) -> None:
        stdout = member.process.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                said = line.decode().strip()
                if said.startswith("paused "):
                    self._decide(member)
                self._news.put((member, said))
        self._news.put((member, "gone"))

    def _decide(self, member: Member) -> None:
        """Kill the first consumer that pauses, let the others go on."""
        # Here and at once: it holds the write lock, and the main thread may be waiting for that to send.
        if self._victim.acquire(blocking=False):
            member.victim = True
            member.process.kill()
        else:
            _write(member, b"go\n")

    def _hear(self, member: Member, said: str) -> None:
        if said == "ready":
            member.ready = True
        elif said.startswith("paused ") and member.victim:
            self._killed(member, int(said.split()[1]))
        elif said == "gone" and member.fate == "running" and not member.victim and not self._stopping:
            self._lost(member)

    def _killed(self, member: Member, held: int) -> None:
        member.process.wait()
        member.fate, member.held = "killed", held
        self._watch.tell(
            f"killed {member.name} (pid {member.process.pid}) with -9, in the middle of a transaction, "
            f"with {held} messages in its hands"
        )
        self._replace(member)

    def _lost(self, member: Member) -> None:
        """It ended, though nobody told it to. A kill from outside is borne, a failure of its own is not."""
        code = member.process.wait()
        if code >= 0 or -code not in FORGIVEN_SIGNALS:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise DemoFailed(f"consumer {member.name} {how}{_last_words(member)}")
        member.fate = "killed by somebody else"
        self._watch.tell(f"somebody killed {member.name} (pid {member.process.pid}) with signal {-code}")
        if sum(m.fate == member.fate for m in self.members) > STRANGERS_KILLS_MAX:
            raise DemoFailed("somebody keeps killing the consumers")
        self._replace(member)

    def _replace(self, member: Member) -> None:
        _close_stdin(member)
        self._hire()
        new = self.members[-1]
        self._watch.tell(f"started {new.name} (pid {new.process.pid}) in its place")


def _write(member: Member, data: bytes) -> None:
    assert member.process.stdin is not None
    # ValueError: closed meanwhile by the main thread; then it is told to stop anyway.
    with contextlib.suppress(OSError, ValueError):
        member.process.stdin.write(data)
        member.process.stdin.flush()


def _close_stdin(member: Member) -> None:
    assert member.process.stdin is not None
    with contextlib.suppress(OSError):
        member.process.stdin.close()


def _last_words(member: Member) -> str:
    member.errors.seek(0)
    lines = member.errors.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
