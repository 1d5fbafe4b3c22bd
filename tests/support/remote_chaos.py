"""Workers in processes of their own on a queue of an SQS endpoint, while both are killed, and answers are delayed and cut off.

Each handler notes when it starts, fails and succeeds, by the machine's monotonic clock. For each group must hold: no message
starts before the handlers of all earlier ones have succeeded, and none starts after a later one has succeeded. In one process,
none starts while another one of its group runs. All messages arrive, and the queue is empty at the end. A message that always
fails becomes a dead letter; its neighbours do not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from strictq.testing.sqs import ANY_KEY, REGION
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running import PATIENCE_SECONDS, ROOT
from tests.support.sqs_chaos import QUEUE, Chaos

LEASE_SECONDS: Final = 3
JUST_CONTINUED_SECONDS: Final = 0.1
"""A handler that starts so soon after its process was continued may have been about to start when it was stopped."""
DEAD: Final = "dead.fifo"

WORKER: Final = """
import json, os, random, signal, sys, time
import strictq

given = json.loads(sys.argv[1])
rng = random.Random(given["seed"])
log = os.open(given["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(kind, job):
    line = json.dumps([kind, time.monotonic(), os.getpid(), job.body.decode(), job.attempt])
    os.write(log, line.encode() + b"\\n")


def process(job):
    note("start", job)
    if job.body.decode() == given["bad"]:
        if given["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        note("fail", job)
        raise strictq.Retry(0.0)
    time.sleep(given["lease"] + 1.0 if rng.random() < given["long"] else rng.random() * given["seconds"])
    if rng.random() < given["failures"]:
        note("fail", job)
        raise strictq.Retry(0.0) if rng.random() < 0.8 else ValueError("by chance")
    note("end", job)


while True:
    try:
        q = strictq.connect(given["url"], lease_seconds=given["lease"], poll_seconds=1.0, confirm=given["confirm"])
        break
    except strictq.ServerUnreachable:  # its supervisor would start it again
        time.sleep(0.1)
strictq.Worker(q, process, prepare=lambda job: job.body, concurrency=given["slots"]).run()
"""


class Noted(NamedTuple):
    """What a handler noted. `attempt` is the count of receives."""

    kind: str
    at: float
    pid: int
    body: str
    attempt: int


class Stop(NamedTuple):
    """A process that was stopped for a while."""

    pid: int
    began: float
    ended: float


def problems(noted: Sequence[Noted], sent: set[str], stops: Sequence[Stop] = (), dead: Sequence[str] = ()) -> list[str]:
    """Return what broke the rules. A body is "GROUP NUMBER"; dead letters leave a gap in their group."""
    found = []
    done: dict[str, dict[int, float]] = {}
    running: dict[tuple[int, str], str] = {}
    for note in sorted(noted, key=lambda n: n.at):
        group, number = note.body.split()
        ends = done.setdefault(group, {})
        if note.kind != "start":
            running.pop((note.pid, group), None)
            if note.kind == "end":
                ends.setdefault(int(number), note.at)
            continue
        if other := running.get((note.pid, group)):
            found.append(f"{note.body} started while {other} ran in the same process")
        running[note.pid, group] = note.body
        if any(s.pid == note.pid and s.began <= note.at <= s.ended + JUST_CONTINUED_SECONDS for s in stops):
            continue
        missing = [n for n in range(int(number)) if n not in ends and f"{group} {n}" not in dead]
        if missing:
            found.append(f"{note.body} started before {group} {missing[0]} had succeeded (attempt {note.attempt})")
        later = [n for n in ends if n > int(number)]
        if later:
            found.append(f"{note.body} started after {group} {later[0]} had succeeded (attempt {note.attempt})")
    arrived = {f"{group} {n}" for group, ends in done.items() for n in ends}
    found += [f"{body} never succeeded" for body in sorted(sent - arrived - set(dead))]
    return found + [f"{body} succeeded, and is a dead letter" for body in sorted(set(dead) & arrived)]


class RemoteChaos(Chaos):
    """One run. `run` and `poison` return what broke the rules.

    Attributes:
        worker_kills, stops: what was done to the workers so far; `kills` is what was done to the endpoint.
        cuts: answers that were cut off.
        innocent: other messages that became dead letters where that could not be avoided.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        workers: int = 2,
        groups: int = 20,
        messages: int = 60,
        round_trip: float = 0.0,
        cut: float = 0.05,
        failures: float = 0.06,
        long: float = 0.0,
        confirm: str = "before_next",
        lease_seconds: int = LEASE_SECONDS,
    ) -> None:
        super().__init__(directory / "queues", seed, groups=groups)
        self.place, self.workers, self.messages = directory, workers, messages
        self.confirm, self.lease_seconds, self.failures, self.long = confirm, lease_seconds, failures, long
        self.log = directory / "noted"
        self.worker_kills = 0
        self.stops: list[Stop] = []
        self.problems: list[str] = []
        self.cuts = self.innocent = 0
        self.sent: set[str] = set()
        self._random = random.Random(seed)
        self._proxy = CuttingProxy(self.port, round_trip=round_trip, cut=cut, seed=seed)
        self._running: list[subprocess.Popen[bytes]] = []
        self._errors: dict[int, Path] = {}
        self._started = 0

    # ---- workers

    def work(self, *, bad: str = "", dies: bool = False, slots: int = 4, seconds: float = 0.01) -> subprocess.Popen[bytes]:
        """Start a worker."""
        self._started += 1
        given = {
            "url": f"sqs+http://127.0.0.1:{self._proxy.port}/queue/{QUEUE}", "log": str(self.log), "lease": self.lease_seconds,
            "seed": self.seed * 1000 + self._started, "failures": self.failures, "long": self.long, "confirm": self.confirm,
            "bad": bad, "dies": dies, "slots": slots, "seconds": seconds,
        }  # fmt: skip
        keys = {"AWS_ACCESS_KEY_ID": ANY_KEY, "AWS_SECRET_ACCESS_KEY": ANY_KEY, "AWS_DEFAULT_REGION": REGION}
        path = self.place / f"worker-{self._started}.err"
        with open(path, "wb") as errors:
            it = subprocess.Popen(
                [sys.executable, "-c", WORKER, json.dumps(given)], cwd=ROOT, env={**os.environ, **keys}, stderr=errors
            )
        self._errors[it.pid] = path
        return it

    def _replace(self, i: int, **given: Any) -> None:
        self._running[i] = self.work(**given)

    def _kill_worker(self) -> None:
        i = self._random.randrange(len(self._running))
        self._check(self._running[i])
        self._running[i].kill()
        self._running[i].wait()
        self.worker_kills += 1
        self._replace(i)

    def _stop_worker(self) -> None:
        """Stop a worker for longer than its leases."""
        it = self._random.choice(self._running)
        self._check(it)
        began = time.monotonic()
        it.send_signal(signal.SIGSTOP)
        time.sleep(self.lease_seconds + 1.5)
        it.send_signal(signal.SIGCONT)
        self.stops.append(Stop(it.pid, began, time.monotonic()))

    def _check(self, it: subprocess.Popen[bytes]) -> None:
        if it.poll() is not None:
            self.problems.append(f"a worker ended by itself with {it.returncode}: {self._errors[it.pid].read_text()[-2000:]}")

    def _end_workers(self) -> None:
        for it in self._running:
            self._check(it)
            it.send_signal(signal.SIGTERM)
        for it in self._running:
            try:
                if it.wait(60) not in (0, -signal.SIGTERM):  # the latter: it had not begun to work
                    self.problems.append(f"a worker that was stopped ended with {it.returncode}")
            except subprocess.TimeoutExpired:
                self.problems.append("a worker did not stop within 60 s")
                it.kill()
                it.wait()

    def noted(self) -> list[Noted]:
        """Return what the handlers noted. A kill may have cut a line."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            try:
                found.append(Noted(*json.loads(line)))
            except (ValueError, TypeError):
                continue
        return found

    # ---- runs

    def run(self, worker_kills: int = 12, kills: int = 8, stops: int = 0, outages: int = 0) -> list[str]:  # type: ignore[override]
        """Send, work and kill; then drain. Return what broke the rules.

        Args:
            stops, outages: a worker is stopped, or the endpoint is down, for longer than a lease.
        """
        attacks = [self._kill_worker] * worker_kills + [self._kill_endpoint] * kills
        attacks += [self._stop_worker] * stops + [self._outage] * outages
        self._random.shuffle(attacks)
        with self._proxy:
            self.start()
            self._create()
            self._running = [self.work() for _ in range(self.workers)]
            try:
                self._attack(attacks)
                self._wait_until_empty(240.0)
            finally:
                self._finish()
        return [*self.problems, *problems(self.noted(), self.sent, self.stops)]

    def _create(self, **attributes: str) -> None:
        self.call("CreateQueue", QueueName=QUEUE, Attributes={
            "FifoQueue": "true", "VisibilityTimeout": str(self.lease_seconds), **attributes
        })  # fmt: skip

    def _attack(self, attacks: Sequence[Any]) -> None:
        """Send the messages between the attacks, an equal number each time."""
        numbers = iter(range(self.messages))
        for left in range(len(attacks), -1, -1):
            share = -(-self.messages // (len(attacks) + 1))
            for _ in range(share if left else self.messages):
                if (number := next(numbers, None)) is None:
                    break
                for group in range(self.groups):
                    self._send(f"{group} {number}")
            if left:
                time.sleep(self._random.uniform(0.3, 1.3))
                attacks[left - 1]()

    def _send(self, body: str) -> None:
        group = body.partition(" ")[0]
        ids = {"MessageGroupId": f"g{group}", "MessageDeduplicationId": body.replace(" ", "-")}
        while self.call("SendMessage", MessageBody=body, **ids) is None:
            pass
        self.sent.add(body)

    def _kill_endpoint(self) -> None:
        self.kill()
        time.sleep(self._random.uniform(0.0, 1.0))
        self.start()

    def _outage(self) -> None:
        self.kill()
        time.sleep(self.lease_seconds + 1.0)
        self.start()

    def _wait_until_empty(self, seconds: float) -> None:
        """Wait until the queue has no messages."""
        until = time.monotonic() + seconds
        while any(left := self._counts(QUEUE)):
            if time.monotonic() > until:
                self.problems.append(f"messages that are left, hidden and delayed after {seconds:.0f} s: {left}")
                return
            time.sleep(0.1)

    def _counts(self, name: str) -> list[int]:
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        got = self.call("GetQueueAttributes", QueueUrl=name, AttributeNames=names)
        return [1] if got is None else [int(got["Attributes"][each]) for each in names]

    def _finish(self) -> None:
        self._end_workers()
        self.cuts = self._proxy.cuts
        self.kill()
        self.kills -= 1
        self.endpoint.close()

    def poison(self, limit: int, *, dies: bool) -> list[str]:
        """Process groups of which message "0 0" always fails, or kills its process. Only it may become a dead letter.

        With a low limit and many workers, SQS charges other messages too often for that: they are counted only.
        """
        bad = "0 0"
        with self._proxy:
            self.start()
            self.call("CreateQueue", QueueName=DEAD, Attributes={"FifoQueue": "true"})
            policy = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:000000000000:{DEAD}", "maxReceiveCount": limit}
            self._create(RedrivePolicy=json.dumps(policy))
            for number in range(self.messages):
                for group in range(self.groups):
                    self._send(f"{group} {number}")
            # Handlers that are not done when the bad one kills their process.
            seconds = 0.3 if dies else 0.01
            self._running = [self.work(bad=bad, dies=dies, seconds=seconds) for _ in range(self.workers)]
            try:
                self._until_dead(bad, dies, seconds)
                letters = self._letters()
            finally:
                self._finish()
        others = [body for body in letters if body != bad]
        if -(-limit // 2) + self.workers - 1 > limit:
            self.innocent = len(others)
        else:
            self.problems += [f"{body} is a dead letter" for body in others]
        missing = [] if bad in letters else [f"{bad} is not a dead letter"]
        return [*self.problems, *missing, *problems(self.noted(), self.sent, dead=letters)]

    def _until_dead(self, bad: str, dies: bool, seconds: float) -> None:
        """Wait until the queue is empty. Replace the workers that a message killed."""
        until = time.monotonic() + PATIENCE_SECONDS
        while any(left := self._counts(QUEUE)):
            assert time.monotonic() < until, f"messages are left: {left}"
            for i, it in enumerate(self._running):
                if dies and it.poll() == -signal.SIGKILL:
                    self.worker_kills += 1
                    if self.workers == 1:  # no other leases: end the dead worker's now
                        moved = json.dumps({"advance": self.lease_seconds})
                        self.endpoint.request("POST", "/_strictq/clock", moved, {})
                    self._replace(i, bad=bad, dies=dies, seconds=seconds)
            time.sleep(0.1)

    def _letters(self) -> list[str]:
        found: list[str] = []
        while True:
            got = self.call("ReceiveMessage", QueueUrl=DEAD, MaxNumberOfMessages=10, VisibilityTimeout=600) or {}
            if not got.get("Messages"):
                return found
            found += [m["Body"] for m in got["Messages"]]
