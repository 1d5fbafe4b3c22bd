"""Stress campaigns: start worker processes on one queue, disturb them, and verify the whole history at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

import attrs

import strictq
from strictq import QueueConfig
from tests.support import history, running, stress_worker
from tests.support.checker import Policy, check
from tests.support.forked import forked
from tests.support.history import Event, Invoke, Recorder, Return
from tests.support.recorded import SCHEMA, SECOND, Recorded
from tests.support.running import ROOT, until
from tests.support.stress_worker import ALL_KEYS, KEYS, share

DEDUP_SECONDS = 2.0
EXPECTED = {"ok", "LeaseLost", "StoreBusy", "ForwardPending", "PartialFailure", "Raised"}


def spawn(module: str, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start a module of tests/support in its own process."""
    command = [sys.executable, "-m", f"tests.support.{module}", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, **options)


@attrs.define(eq=False)
class Campaign:
    """A queue in `directory`, and the processes that work on it."""

    directory: Path
    shards: int = 1
    durability: Literal["full", "process"] = "process"
    threads: int = 1
    lease: float = 0.4
    seed: int = 0
    workers: list[ForkServerProcess] = attrs.Factory(list)
    kills: int = 0
    stops: int = 0
    expected: set[str] = attrs.Factory(EXPECTED.copy)
    witnessed: bool = False
    """Whether another process opens a copy of the queue after each fold."""
    window: int = 200
    """The number of rows of a shard's logs after which workers fold them."""
    affinities: tuple[str, ...] = ()
    """What workers join with, one after the other. Empty: each thread of them chooses."""
    _started: int = 0

    @property
    def queue(self) -> Path:
        return self.directory / "stress.strictq"

    @property
    def histories(self) -> Path:
        return self.directory / "history"

    def create(self) -> None:
        """Create the queue. Attempts are unlimited, because unseen kills would make messages poisonous at unknown times."""
        self.histories.mkdir()
        config = QueueConfig(
            lease_seconds=self.lease, max_attempts=None, dedup_window_seconds=DEDUP_SECONDS, on_expire="dead_letter"
        )
        with strictq.open(self.queue, shards=self.shards, durability=self.durability, config=config) as queue:
            queue.app_schema(SCHEMA)

    # The processes.

    def start(self, **options: Any) -> None:
        self._started += 1
        arguments: dict[str, Any] = {
            "seed": self.seed * 100 + self._started,
            "threads": self.threads,
            "durability": self.durability,
            "lease": self.lease,
            "window": self.window,
        }
        if self.affinities:
            arguments["affinity"] = self.affinities[self._started % len(self.affinities)]
        if self.witnessed:
            arguments["witness"] = self.directory
        self.run(stress_worker.work, self.queue, self.histories, **(arguments | options))

    def run(self, work: Callable[..., object], *arguments: object, **options: object) -> None:
        """Start a function in a process, as one of the workers."""
        self.workers.append(forked(self.directory / f"worker-{self._started}.log", work, *arguments, **options))

    def written(self, worker: ForkServerProcess) -> int:
        """Return the size of a worker's history. It grows while the worker lives and works."""
        return sum(path.stat().st_size for path in self.histories.glob(f"{worker.pid}-*.jsonl"))

    def assert_alive(self) -> None:
        for worker in self.workers:
            if worker.exitcode is not None:
                raise AssertionError(f"a worker ended by itself with {worker.exitcode}:\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("worker-*.log")))

    def progress(self, least: int = 4_000) -> None:
        """Wait until every worker has made progress, so that none is dead and none hangs."""
        before = [(worker, self.written(worker)) for worker in self.workers]

        def done() -> bool:
            self.assert_alive()
            return all(self.written(worker) >= size + least for worker, size in before)

        until(done, "every worker to get on with its work")

    def kill(self, worker: ForkServerProcess) -> None:
        """Kill a worker with SIGKILL, whatever it is doing."""
        worker.kill()
        worker.join()
        self.workers.remove(worker)
        self.kills += 1

    def freeze(self, worker: ForkServerProcess, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Stop a worker for longer than its leases last, so that others take over, and let it continue unaware of that.

        Args:
            meanwhile: called repeatedly. The worker is not among `workers` then. It may hold locks, for which others wait.
        """
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        self.workers.remove(worker)
        end = time.monotonic() + self.lease * 1.5
        try:
            while time.monotonic() < end:
                meanwhile()
                time.sleep(0.01)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
            self.workers.append(worker)
        self.stops += 1

    def disturb(self, processes: int, seconds: float, between: Callable[[], object] = lambda: None) -> None:
        """Keep this many workers running for this long, and kill or stop one after the other.

        While one is stopped, others are killed at any moment, even before they have begun.

        Args:
            between: called before each kill or stop.
        """
        chance = random.Random(self.seed)
        end = time.monotonic() + seconds

        def kill_one() -> None:
            time.sleep(chance.uniform(0.0, 0.15))
            self.assert_alive()
            self.kill(chance.choice(self.workers))
            self.start()

        for _ in range(processes):
            self.start()
        while True:
            self.progress()
            if time.monotonic() >= end and self.kills and self.stops:
                return
            between()
            if not self.kills or (self.stops and chance.random() < 0.7):
                kill_one()
            else:
                time.sleep(chance.uniform(0.0, 0.15))
                self.freeze(chance.choice(self.workers), kill_one)

    def disturb_sharing(self, processes: int, seconds: float) -> Counter[str]:
        """Do the same while limits of tenants change, and lanes are sidelined and return.

        Returns:
            How many live consumers were seen, and how often what was changed.
        """
        chance, seen = random.Random(f"sharing {self.seed}"), Counter[str]()
        with strictq.open(self.queue, durability=self.durability, create=False) as queue:

            def change() -> None:
                for _ in range(3):
                    share(queue, chance)
                seen["changes"] += 3
                seen["sidelined"] += queue.stats().sidelined_before is not None
                seen["consumers"] = max(seen["consumers"], len(queue.consumers()))

            self.disturb(processes, seconds, change)
            queue.sideline(None)
            queue.configure(tenant_separator=None, limits=(), sideline_seconds=None)
        return seen

    def stop(self) -> None:
        """Let every worker finish what it does.

        Raises:
            AssertionError: one has failed.
        """
        for worker in self.workers:
            worker.terminate()
        self.finish()

    def finish(self, codes: Collection[int] = (0,)) -> None:
        """Wait until every worker has ended.

        Raises:
            AssertionError: one has failed.
        """
        for worker in self.workers:
            worker.join(running.PATIENCE_SECONDS)
            assert worker.exitcode in codes, self.logs()
        self.workers.clear()

    def abandon(self) -> None:
        """Kill all workers that still run."""
        for worker in self.workers:
            worker.kill()
            worker.join()

    # The accounts.

    def settle(self) -> list[Event]:
        """Drain the queue, and verify what is left and every answer. Return the history.

        Raises:
            AssertionError: anything is wrong.
        """
        recorder = Recorder(self.histories / f"{os.getpid()}-final.jsonl")
        with strictq.open(self.queue, durability=self.durability, create=False) as queue:
            recorded = Recorded(queue, recorder)
            assert queue.check() == []
            for key in KEYS:
                assert recorded.operate("unhold", key) == "ok"
            self._drain(recorded)
            stats = queue.stats()
            assert (stats.depth, stats.outbox) == (0, 0), stats
            recorded.final(ALL_KEYS)
            self._key_states(recorded)
            assert queue.check() == []
        recorder.close()
        events = history.read_all(self.histories)
        policy = Policy(dedup_window=int(DEDUP_SECONDS * SECOND), killed=self.killed(events))
        found = check(events, policy)
        assert found == [], f"{len(found)} violations, {Counter(v.rule for v in found)}, the first: {found[:10]}"
        odd = Counter(o for o in _outcomes(events) if o not in self.expected)
        assert not odd, odd
        return events

    def killed(self, events: list[Event]) -> dict[int, int]:
        """Return the processes whose leases ended with them, and the time of their last action."""
        return {}

    def _drain(self, recorded: Recorded) -> None:
        end = time.monotonic() + running.PATIENCE_SECONDS
        while recorded.queue.stats().depth:
            assert time.monotonic() < end, f"the queue does not run dry: {recorded.queue.stats()}"
            got = recorded.receive(200, lease_seconds=running.PATIENCE_SECONDS, wait=0.05)
            if got:
                recorded.act_many("ack", got)

    def _key_states(self, recorded: Recorded) -> None:
        """Verify that each key's state counted its transactions: exactly those whose effects exist, without gaps."""
        rows: dict[str, list[int]] = defaultdict(list)
        for lane, n in recorded.queue.query("SELECT lane, n FROM app_effects"):
            rows[lane].append(n)
        for key in ALL_KEYS:
            with recorded.queue.transaction(key=key) as tx:
                count = int(tx.key_state or b"0")
            assert sorted(rows[repr(key)]) == list(range(count)), f"key {key!r}: {count} transactions"


def _outcomes(events: list[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, Return):
            yield event.outcome
            if event.verb not in ("send", "receive", "more", "final"):
                yield from event.items


def tally(events: list[Event]) -> Counter[str]:
    """Count the calls of each verb that returned "ok", and those that never returned ("lost")."""
    returned = {e.call for e in events if isinstance(e, Return)}
    counts = Counter(e.verb for e in events if isinstance(e, Return) and e.outcome == "ok")
    counts["lost"] = sum(1 for e in events if isinstance(e, Invoke) and e.call not in returned)
    return counts
