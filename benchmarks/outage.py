"""`python -m benchmarks outage`: an outage of a dependency of a worker's handlers, in real time.

    python -m benchmarks outage --seconds 5
    python -m benchmarks outage --seconds 600

A worker drains a queue of many keys through a dependency that fails every call during the outage. The dependency records the
accepted calls, which are compared with the sends. Exit code 1: a message was dead-lettered, lost, duplicated or reordered, or
the queue was not drained within 10 s of the dependency's return.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

import strictq
from strictq import Job, Message, Queue, Worker

DONE_SECONDS: Final = 10.0
"""The limit for draining the queue after the dependency's return."""
PATIENCE_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.02


class DependencyDown(Exception):
    """The dependency does not answer."""


class Dependency:
    """The dependency of the handlers. It fails from a given call on, and recovers after a given time."""

    def __init__(self, down_after: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a dependency that fails from call number `down_after` on; the first call is 1."""
        self._clock = clock
        self._lock = threading.Lock()
        self._down_after = down_after
        self._seconds = seconds
        self._back_at: float | None = None
        self.calls = self.refused = 0
        self.accepted: defaultdict[str, list[int]] = defaultdict(list)
        self.last_at = 0.0

    @property
    def back_at(self) -> float:
        """The time of its recovery."""
        assert self._back_at is not None, "it has not been down"
        return self._back_at

    def call(self, key: str, number: int) -> None:
        """Record a call for a key. Each key's numbers are 0, 1, 2 …, in the order of the sends."""
        with self._lock:
            now = self._clock()
            self.calls += 1
            if self.calls == self._down_after:
                self._back_at = now + self._seconds
            if self._back_at is not None and now < self._back_at:
                self.refused += 1
                raise DependencyDown("connection refused")
            self.accepted[key].append(number)
            self.last_at = now


@attrs.frozen
class Outcome:
    """The result for the messages.

    Attributes:
        accepted, refused: number of calls of the dependency.
        dead, lost, repeated, reordered: number of messages. A message is reordered if a later one of its key was accepted before.
        done_seconds: seconds from the dependency's return to its last call.
    """

    accepted: int
    refused: int
    dead: int
    lost: int
    repeated: int
    reordered: int
    done_seconds: float

    @property
    def good(self) -> bool:
        """Whether the queue kept its promises and was drained in time."""
        return not (self.dead or self.lost or self.repeated or self.reordered) and self.done_seconds <= DONE_SECONDS

    def line(self) -> str:
        """Return the result as one line of text."""
        return (
            f"accepted {self.accepted:,}, refused {self.refused:,}: dead letters {self.dead:,}, lost {self.lost:,}, "
            f"repeated {self.repeated:,}, reordered {self.reordered:,}; all done {self.done_seconds:.1f} s after its return"
        )


def fill(q: Queue, messages: int, keys: int) -> None:
    """Send the messages, one per key in turn."""
    sent = [Message(b"%d" % (n // keys), key=f"key-{n % keys}") for n in range(messages)]
    q.send_many(sent)


def handle(dependency: Dependency) -> Callable[[Job], None]:
    """Return the handler."""

    def process(job: Job) -> None:
        assert isinstance(job.key, str)
        dependency.call(job.key, int(job.body))

    return process


def judge(q: Queue, dependency: Dependency, messages: int, keys: int) -> Outcome:
    """Compare the calls that the dependency accepted with the sends."""
    repeated = reordered = 0
    for numbers in dependency.accepted.values():
        repeated += sum(n - 1 for n in Counter(numbers).values())
        reordered += sum(later < max(numbers[:i]) for i, later in enumerate(numbers) if i)
    sent = {(f"key-{n % keys}", n // keys) for n in range(messages)}
    lost = len(sent - {(key, n) for key, numbers in dependency.accepted.items() for n in numbers})
    return Outcome(
        accepted=sum(map(len, dependency.accepted.values())),
        refused=dependency.refused,
        dead=q.stats().dead,
        lost=lost,
        repeated=repeated,
        reordered=reordered,
        done_seconds=dependency.last_at - dependency.back_at,
    )


def run(place: Path, seconds: float, messages: int, keys: int, *, breaker: bool = True) -> Outcome:
    """Run one outage in real time."""
    dependency = Dependency(max(1, messages // 10), seconds)
    with strictq.open(place / "outage.strictq") as q:
        fill(q, messages, keys)
        worker = Worker(q, handle(dependency)) if breaker else Worker(q, handle(dependency), breaker=None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        until = time.monotonic() + seconds + PATIENCE_SECONDS
        while q.stats().depth and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        worker.stop()
        thread.join()
        return judge(q, dependency, messages, keys)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Return 0:

    no message was harmed, and the queue was drained in time; 1: otherwise; 2: invalid arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks outage", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the dependency is down [5]")
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--no-breaker", action="store_true", help="to compare: the worker goes on starting handlers")
    parser.add_argument("--dir", type=Path, help="where the queue is made; default: the system's temporary directory")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("strictq.worker").addFilter(lambda record: "breaker" in record.getMessage()[:20])
    place = Path(tempfile.mkdtemp(prefix="strictq-outage-", dir=options.dir))
    try:
        print(f"{options.messages:,} messages, {options.keys:,} keys, dependency down for {options.seconds:g} s", flush=True)
        outcome = run(place, options.seconds, options.messages, options.keys, breaker=not options.no_breaker)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(outcome.line())
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
