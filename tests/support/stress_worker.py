"""One process of the stress tests: threads that make every call to a queue, until killed or asked to stop.

SIGTERM: finish the call and exit with 0. Any error exits with a traceback.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal

import strictq
from strictq import Delivery, Fenced, Message, NotConfirmed, TargetUnavailable, TenantLimit
from tests.support.folds import Folds, narrow
from tests.support.history import Recorder
from tests.support.recorded import Recorded
from tests.support.witness import Witness

KEYS: list[Any] = [*(f"lane-{i}" for i in range(12)), *range(4), *(b"\x00lane\xff%d" % i for i in range(4))]
HANDLED = "lane-handled-at-once"
"""The only key that is received with ack_first: an unanswered receive may have resolved what it asked for."""
SHORT_LIVED = "lane-short-lived"
"""A key whose messages expire."""
PURGED = "lane-purged"
"""A key that is purged occasionally."""
ALL_KEYS = [*KEYS, HANDLED, SHORT_LIVED, PURGED]
UNCONFIRMED = (NotConfirmed, TargetUnavailable, Fenced)
"""Errors of a replicated queue whose replica is away, or was promoted."""


def share(queue: strictq.Queue, chance: random.Random) -> None:
    """Change the tenants of the keys and their limits, or what is sidelined."""
    what = chance.random()
    if what < 0.4:
        separator = chance.choice((None, "-", "-", "1"))
        limits = (TenantLimit("*", weight=chance.choice((1.0, 5.0)), receive_rate=chance.choice((None, None, 500.0))),)
        queue.configure(tenant_separator=separator, limits=() if separator is None else limits)
    elif what < 0.8:
        queue.sideline(chance.choice((None, time.time(), time.time() - 0.3)))
    else:
        queue.configure(sideline_seconds=chance.choice((None, 0.05, 0.5)))


class Stress:
    """The work of one thread, chosen by its own random numbers."""

    def __init__(self, recorded: Recorded, seed: int, lease: float, affinity: str | None = None) -> None:
        self.recorded = recorded
        self.random = random.Random(seed)
        self.lease = lease
        affinity = affinity or random.Random(f"joined {seed}").choice((None, "none", "own", "prefer"))
        self.later: deque[tuple[float, list[Delivery]]] = deque()
        """What it holds and leaves for a while, and until when."""
        self.joined: Any = None if affinity is None else recorded.queue.join(affinity=affinity)

    def step(self) -> None:
        if self.later and self.later[0][0] <= time.monotonic():
            self.handle(self.later.popleft()[1])
            return
        chance = self.random.random()
        if chance < 0.22:
            self.recorded.send(self.message())
        elif chance < 0.32:
            self.recorded.send_many([self.message() for _ in range(self.random.randint(1, 25))])
        elif chance < 0.34:
            self.recorded.transact(None, self.random.choice(KEYS), self.messages(), fail=self.random.random() < 0.2)
        elif chance < 0.355:
            self.operate()
        elif chance < 0.37:
            self.handled_at_once()
        elif chance < 0.38:
            with suppress(*UNCONFIRMED):
                self.look()
        else:
            self.consume()

    def message(self) -> Message:
        key = self.random.choice(ALL_KEYS)
        chance = self.random.random()
        dedup_id = f"dedup-{self.random.randrange(4)}" if chance < 0.1 else None
        delay = self.random.choice((0.01, 0.05)) if 0.1 < chance < 0.12 else 0.0
        return self.recorded.new(key, dedup_id=dedup_id, delay=delay, ttl=0.1 if key == SHORT_LIVED else None)

    def messages(self) -> list[Message]:
        """Return what a handler sends: little, so that the queue does not grow without limit."""
        return [self.recorded.new(self.random.choice(KEYS)) for _ in range(self.random.choice((0, 0, 1, 2)))]

    def operate(self) -> None:
        chance = self.random.random()
        if chance < 0.5:
            self.recorded.operate("redrive", self.random.choice([*KEYS, None]))
        elif chance < 0.8:
            key = self.random.choice(KEYS)
            self.recorded.operate("hold", key)
            self.recorded.operate("unhold", key)
        else:
            self.recorded.operate("purge", PURGED)

    def look(self) -> None:
        """Make operators' calls. None may fail or disturb, whatever else runs."""
        queue, key = self.recorded.queue, self.random.choice(ALL_KEYS)
        chance = self.random.random()
        if chance < 0.2:
            stats = queue.stats()
            assert min(stats.ready, stats.in_flight, stats.delayed, stats.held, stats.dead, stats.outbox) >= 0, stats
        elif chance < 0.4:
            seqs = [m.seq for m in queue.peek(key, 20)]
            assert seqs == sorted(set(seqs))
        elif chance < 0.6:
            assert queue.explain(key).text
        elif chance < 0.7:
            queue.top_keys(5)
            queue.dead_letters(key)
        elif chance < 0.8:
            assert queue.check() == []
        else:
            queue.configure(lease_seconds=self.random.choice((1.0, 2.0)))
            if self.random.random() < 0.5:
                self.share(queue)

    def share(self, queue: strictq.Queue) -> None:
        share(queue, self.random)

    def handled_at_once(self) -> None:
        got = self.recorded.receive(self.random.randint(1, 5), lease_seconds=self.lease, keys=[HANDLED], ack_first=True)
        if got and self.random.random() < 0.9:
            self.recorded.act("done", got[-1])

    def consume(self) -> None:
        got = self.recorded.receive(
            self.random.choice((1, 5, 20, 60)),
            per_key=self.random.choice((None, None, 1, 3)),
            lease_seconds=self.random.choice((self.lease, self.lease, self.lease / 10)),
            wait=self.random.choice((0.0, 0.0, 0.02)),
            keys=self.random.choice((None, None, None, None, [SHORT_LIVED, PURGED, *self.random.sample(KEYS, 4)])),
            joined=self.joined,
        )
        lanes: dict[tuple[Any, int], list[Delivery]] = {}
        for d in got:
            lanes.setdefault((d.key, d.token), []).append(d)
        if got and self.random.random() < 0.4:
            batch = list(got)
            if self.random.random() < 0.2:
                self.random.shuffle(batch)
            if self.random.random() < 0.1:
                self.recorded.act_many("extend", batch, arg=self.lease)
            self.recorded.act_many("ack", batch)
            return
        for lane in lanes.values():
            self.handle(lane)

    def handle(self, lane: list[Delivery]) -> None:
        """Handle one lane's deliveries, or fail to."""
        while lane:
            d = lane[0]
            chance = self.random.random()
            if chance < 0.02:
                return  # abandoned: the lease expires
            if chance < 0.023:
                self.leave(lane, self.lease * 1.2)  # too late, if another consumer wants the lane
                return
            if chance > 0.93:
                self.leave(lane, self.lease / 8)  # longer than the short leases
                return
            if chance < 0.2:
                self.recorded.act("start", d)
            if 0.2 < chance < 0.25:
                self.recorded.act("extend", d, arg=self.lease)
            if 0.25 < chance < 0.3:
                lane += self.recorded.more(d, 3)
            if not self.settle(lane, d):
                return

    def leave(self, lane: list[Delivery], seconds: float) -> None:
        """Do other things for so long, and go on with the lane then, unaware of what has become of it."""
        self.later.append((time.monotonic() + seconds, lane))

    def settle(self, lane: list[Delivery], d: Delivery) -> bool:
        """Settle a delivery. Return whether the lease continues."""
        chance = self.random.random()
        if chance < 0.05:
            last = self.random.choice(lane)
            if self.random.random() < 0.3:
                self.recorded.act("defer", last, arg=self.random.choice((0.0, 0.03)))
            else:
                self.recorded.act("nack", last, arg=self.random.choice((None, 0.0, 0.03)))
            given_back = lane[lane.index(last) :]
            del lane[lane.index(last) :]
            if self.random.random() < 0.5:
                self.recorded.act(self.random.choice(("ack", "start", "reject")), given_back[-1])  # it is no longer the holder's
            return True
        if chance < 0.07:
            self.recorded.act_many("nack", lane, arg=0.0)
            return False
        if chance < 0.09:
            self.recorded.act("release", d)
            return False
        del lane[0]
        if chance < 0.12:
            return self.recorded.act("reject", d) == "ok"
        if chance < 0.5:
            outcome = self.recorded.transact(d, None, self.messages(), fail=self.random.random() < 0.1)
            if outcome == "Raised":
                outcome = self.recorded.act("nack", d)
                return False
            return outcome in ("ok", "ForwardPending")
        return self.recorded.act("ack", d) == "ok"


def work(
    path: Path,
    histories: Path,
    *,
    seed: int,
    threads: int,
    durability: Literal["full", "process"],
    lease: float,
    window: int,
    affinity: str | None = None,
    steps: int | None = None,
    witness: Path | None = None,
) -> None:
    """Work on a queue until SIGTERM.

    Args:
        path: the queue, which must exist.
        histories: the directory that the history goes to, in a new file.
        affinity: join with it; by default, each thread chooses.
        steps: stop by itself after so many a thread.
        window: fold the logs after so many rows.
        witness: where another process opens a copy after each fold.
    Raises:
        BaseException: what the first thread that failed has raised.
    """
    stop = threading.Event()
    failures: list[BaseException] = []
    with ExitStack() as stack:
        watch: Callable[[strictq.Queue], object] = Folds().watch
        if witness:
            other = stack.enter_context(closing(Witness(witness)))
            other.fork()
            watch = other.watch
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        recorder = stack.enter_context(closing(Recorder(histories / f"{os.getpid()}-{time.time_ns()}.jsonl")))
        stack.enter_context(narrow(window, step=min(20, window // 4)))
        queue = stack.enter_context(strictq.open(path, durability=durability, create=False))
        watching = threading.Lock()
        recorded = Recorded(queue, recorder)

        def run(seed: int) -> None:
            stress = Stress(recorded, seed, lease, affinity)
            done = 0
            try:
                while not stop.is_set() and (steps is None or done < steps):
                    stress.step()
                    done += 1
                    if watching.acquire(blocking=False):
                        try:
                            with suppress(*UNCONFIRMED):
                                watch(queue)
                        finally:
                            watching.release()
            except BaseException as e:
                failures.append(e)
                stop.set()

        running = [threading.Thread(target=run, args=(seed * 1000 + i,)) for i in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            while thread.is_alive():
                thread.join(0.1)  # in small pieces: SIGTERM is handled between them
    if failures:
        raise failures[0]
