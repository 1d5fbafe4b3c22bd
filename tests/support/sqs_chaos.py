"""Consumers of a FIFO queue of the SQS endpoint, while its server is killed; and consumers that open the queue itself.

Every consumer notes what it received and deleted, and when each call began and ended, by the machine's monotonic clock. For each
group must hold: a message is delivered only after a delete of each earlier one was begun, or in one batch with it; never by a
receive that began after its delete was confirmed; and all arrive.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.server.sqs.playing import JSON, Endpoint, Refused
from tests.support.running import ROOT

QUEUE: Final = "chaos.fifo"
TIMEOUT_SECONDS: Final = 2
GIVE_BACK, ABANDON = 0.08, 0.03

SERVER: Final = """
import sys
from strictq.testing import sqs_endpoint
with sqs_endpoint(sys.argv[1], port=int(sys.argv[2])):
    sys.stdin.read()
"""

NATIVE: Final = """
import json, random, sys, time
import strictq
rng = random.Random(int(sys.argv[3]))
out = open(sys.argv[2], "a", buffering=1)
with strictq.open(sys.argv[1], create=False) as q:
    while True:
        began = time.monotonic()
        got = q.receive(rng.choice((1, 3, 10)), wait=0.2, lease_seconds=2.0)
        ended = time.monotonic()
        out.write(json.dumps(["receive", began, ended, [d.body.decode() for d in got]]) + "\\n")
        for d in got:
            if rng.random() < 0.05:
                d.nack(delay=0.0)
                break
            time.sleep(rng.random() * 0.01)
            out.write(json.dumps(["deleting", time.monotonic(), d.body.decode()]) + "\\n")
            try:
                d.ack()
            except strictq.LeaseLost:
                break
            out.write(json.dumps(["deleted", time.monotonic(), d.body.decode()]) + "\\n")
"""


class Receive(NamedTuple):
    began: float
    ended: float
    bodies: tuple[str, ...]


class History:
    """What was sent, received and deleted. A body is "GROUP NUMBER"."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.receives: list[Receive] = []
        self.deleting: dict[str, float] = {}
        self.deleted: dict[str, float] = {}
        self._lock = threading.Lock()

    def received(self, began: float, ended: float, bodies: Sequence[str]) -> None:
        with self._lock:
            self.receives.append(Receive(began, ended, tuple(bodies)))

    def begins(self, body: str, at: float) -> None:
        with self._lock:
            self.deleting[body] = min(at, self.deleting.get(body, at))

    def confirmed(self, body: str, at: float) -> None:
        with self._lock:
            self.deleted[body] = min(at, self.deleted.get(body, at))

    def read(self, path: Path) -> None:
        """Add what a native consumer noted. A kill may have cut its last line."""
        for line in path.read_text().splitlines():
            try:
                kind, *rest = json.loads(line)
            except ValueError:
                continue
            if kind == "receive":
                self.received(*rest)
            else:
                at, body = rest
                (self.begins if kind == "deleting" else self.confirmed)(body, at)

    def problems(self) -> list[str]:
        """Return what broke the rules."""
        found = []
        for receive in self.receives:
            batch: dict[str, list[int]] = {}
            for body in receive.bodies:
                group, number = body.split()
                batch.setdefault(group, []).append(int(number))
                if self.deleted.get(body, receive.began) < receive.began:
                    found.append(f"{body} was received {receive.began - self.deleted[body]:.3f} s after its delete was confirmed")
            for group, numbers in batch.items():
                if numbers != sorted(set(numbers)):
                    found.append(f"group {group} was received as {numbers}")
                found += [
                    f"{group} {max(numbers)} overtook {group} {earlier}"
                    for earlier in sorted(set(range(max(numbers))) - set(numbers))
                    if self.deleting.get(f"{group} {earlier}", float("inf")) > receive.ended
                ]
        missing = self.sent - {b for r in self.receives for b in r.bodies}
        found += [f"{body} never arrived" for body in sorted(missing)]
        return found


class Chaos:
    """One run. `run` returns what broke the rules."""

    def __init__(self, directory: Path, seed: int, *, consumers: int = 8, groups: int = 20, natives: int = 0) -> None:
        self.directory, self.seed = directory, seed
        self.consumers, self.groups, self.natives = consumers, groups, natives
        self.history = History()
        self.kills = 0
        self._sending, self._stopping = True, False
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self._server: subprocess.Popen[bytes] | None = None
        self.endpoint = Endpoint(f"http://127.0.0.1:{self.port}", JSON, time.sleep)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.directory), str(self.port)], cwd=ROOT, stdin=subprocess.PIPE
        )
        while True:
            try:
                self.endpoint.call("ListQueues", {})
                return
            except OSError:
                assert self._server.poll() is None, "the server does not start"
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        self._server.wait()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self.kills += 1

    def call(self, action: str, **params: Any) -> dict[str, Any] | None:
        """Call an action of the queue. None: no answer, so it may have happened or not."""
        try:
            return self.endpoint.call(action, {"QueueUrl": QUEUE, **params})
        except OSError:
            time.sleep(0.02)
        except ValueError:  # an answer that was cut
            pass
        except Refused as e:
            if e.status < 500:
                raise
            time.sleep(0.02)
        return None

    def produce(self, groups: range) -> None:
        number = 0
        while self._sending:
            for group in groups:
                body = f"{group} {number}"
                ids = {"MessageGroupId": f"g{group}", "MessageDeduplicationId": body.replace(" ", "-")}
                while self.call("SendMessage", MessageBody=body, **ids) is None:
                    pass
                self.history.sent.add(body)
            number += 1
            time.sleep(0.02)

    def consume(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stopping:
            began = time.monotonic()
            got = self.call(
                "ReceiveMessage", MaxNumberOfMessages=rng.choice((1, 3, 10)), WaitTimeSeconds=1, VisibilityTimeout=TIMEOUT_SECONDS
            )
            messages = (got or {}).get("Messages", [])
            self.history.received(began, time.monotonic(), [m["Body"] for m in messages])
            for m in messages:
                chance = rng.random()
                if chance < ABANDON:
                    break
                if chance < ABANDON + GIVE_BACK:
                    self._settle("ChangeMessageVisibility", ReceiptHandle=m["ReceiptHandle"], VisibilityTimeout=0)
                    break
                time.sleep(rng.random() * 0.01)
                self.history.begins(m["Body"], time.monotonic())
                if self._settle("DeleteMessage", ReceiptHandle=m["ReceiptHandle"]):
                    self.history.confirmed(m["Body"], time.monotonic())

    def _settle(self, action: str, **params: Any) -> bool:
        try:
            return self.call(action, **params) is not None
        except Refused:  # the timeout is over
            return False

    def run(self, seconds: float, kill_every: float) -> list[str]:
        """Run, drain, and return what broke the rules."""
        self.start()
        self.call("CreateQueue", QueueName=QUEUE, Attributes={"FifoQueue": "true", "VisibilityTimeout": str(TIMEOUT_SECONDS)})
        threads = [threading.Thread(target=self.consume, args=(self.seed * 100 + i,), daemon=True) for i in range(self.consumers)]
        makers = [threading.Thread(target=self.produce, args=(range(i, self.groups, 2),), daemon=True) for i in range(2)]
        logs = [self.directory.parent / f"native-{i}.log" for i in range(self.natives)]
        natives = []
        for thread in (*threads, *makers):
            thread.start()
        path = self.directory / f"{QUEUE}.strictq"
        while self.natives and not (path / "queue.db").exists():
            time.sleep(0.02)
        for i, log in enumerate(logs):
            natives.append(subprocess.Popen([sys.executable, "-c", NATIVE, str(path), str(log), str(self.seed + i)], cwd=ROOT))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(max(0.0, min(kill_every, end - time.monotonic())))
            self.kill()
            self.start()
        self._sending = False
        for thread in makers:
            thread.join(60)
        self._drain()
        for process in natives:
            assert process.poll() is None, "a native consumer has died"
            process.kill()
            process.wait()
        self._stopping = True
        for thread in threads:
            thread.join(60)
        self.kill()
        self.endpoint.close()
        for log in logs:
            self.history.read(log)
        return self.history.problems()

    def _drain(self) -> None:
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            got = self.call("GetQueueAttributes", AttributeNames=names)
            if got is not None and all(v == "0" for v in got["Attributes"].values()):
                return
            time.sleep(0.1)
        raise AssertionError(f"the queue is not empty: {got}")
