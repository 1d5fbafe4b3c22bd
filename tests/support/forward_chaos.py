"""Forwarders in processes of their own, from a local queue to an endpoint, while both are killed and answers are cut off.

At the end, the endpoint must have exactly what was sent, in the order of each key.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import strictq
from strictq import Message, QueueConfig
from strictq._values.keys import Key, encode_key
from strictq.remote.mapping import group_of
from strictq.testing.sqs import ANY_KEY, REGION
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running import PATIENCE_SECONDS, ROOT, until
from tests.support.sqs_chaos import QUEUE, Chaos

FORWARDER: Final = """
import json, sys
import strictq
given = json.loads(sys.argv[1])
with strictq.open(given["queue"], create=False) as q:
    strictq.Forwarder(q, given["url"], per_key=given["per_key"], concurrency=2).run()
"""


class ForwardChaos(Chaos):
    """One run. `run` returns what broke the rules.

    Attributes:
        forwarder_kills: how many forwarders were killed; `kills` is that of the endpoint.
        cuts: how many answers were cut off.
    """

    def __init__(
        self, directory: Path, seed: int, *, forwarders: int = 2, keys: int = 30, messages: int = 100, cut: float = 0.05,
        per_key: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(directory / "queues", seed, groups=keys)
        self.place, self.local = directory, directory / "local"
        self.forwarders, self.messages, self.per_key = forwarders, messages, per_key
        self.forwarder_kills = self.cuts = 0
        self.problems: list[str] = []
        self._random = random.Random(seed)
        self._proxy = CuttingProxy(self.port, cut=cut, seed=seed)
        self._running: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def run(self, forwarder_kills: int = 12, kills: int = 5) -> list[str]:  # type: ignore[override]
        """Send and kill, and wait until everything was forwarded. Return what broke the rules."""
        attacks = [self._kill_forwarder] * forwarder_kills + [self._kill_endpoint] * kills
        self._random.shuffle(attacks)
        keys: list[Key] = [f"key {n}" if n % 3 else n for n in range(self.groups)]
        with self._proxy, strictq.open(self.local, durability="process", config=QueueConfig(max_attempts=None)) as q:
            self.start()
            self.call("CreateQueue", QueueName=QUEUE, Attributes={"FifoQueue": "true"})
            self._running = [self._forwarder() for _ in range(self.forwarders)]
            try:
                share = -(-self.messages // (len(attacks) + 1))
                for first in range(0, self.messages, share):
                    numbers = range(first, min(first + share, self.messages))
                    q.send_many([Message(f"{key} {n}".encode(), key=key) for n in numbers for key in keys])
                    if attacks:
                        time.sleep(self._random.uniform(0.2, 0.8))
                        attacks.pop()()
                until(lambda: q.stats().depth == q.stats().dead, "everything to be forwarded")
                if q.stats().dead:
                    self.problems.append(f"there are {q.stats().dead} dead letters: {q.dead_letters()[0].reason}")
                if left := q.query("SELECT * FROM app_forward_doubt"):
                    self.problems.append(f"{len(left)} doubts are left")
            finally:
                self._end()
        self.cuts = self._proxy.cuts
        self.kill()
        self.kills -= 1
        self.endpoint.close()
        return [*self.problems, *self._compared(keys)]

    def _compared(self, keys: list[Key]) -> list[str]:
        found = []
        with strictq.open(self.directory / f"{QUEUE}.strictq", read_only=True) as q:
            for key in keys:
                got = [m.body.decode().rpartition(" ")[2] for m in q.peek(group_of(encode_key(key)), 2 * self.messages)]
                if got != list(map(str, range(self.messages))):
                    found.append(f"key {key!r} arrived as {got}")
        return found

    # ---- forwarders

    def _forwarder(self) -> subprocess.Popen[bytes]:
        self._started += 1
        url = f"sqs+http://127.0.0.1:{self._proxy.port}/queue/{QUEUE}"
        given = {"queue": str(self.local), "url": url, "per_key": self.per_key}
        keys = {"AWS_ACCESS_KEY_ID": ANY_KEY, "AWS_SECRET_ACCESS_KEY": ANY_KEY, "AWS_DEFAULT_REGION": REGION}
        with open(self.place / f"forwarder-{self._started}.err", "wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-c", FORWARDER, json.dumps(given)], cwd=ROOT, env={**os.environ, **keys}, stderr=errors
            )

    def _kill_forwarder(self) -> None:
        i = self._random.randrange(len(self._running))
        self._check(self._running[i])
        self._running[i].kill()
        self._running[i].wait()
        self.forwarder_kills += 1
        self._running[i] = self._forwarder()

    def _kill_endpoint(self) -> None:
        self.kill()
        time.sleep(self._random.uniform(0.0, 0.5))
        self.start()

    def _check(self, it: subprocess.Popen[bytes]) -> None:
        if it.poll() is not None:
            texts = [path.read_text()[-2000:] for path in sorted(self.place.glob("forwarder-*.err"))]
            self.problems.append(f"a forwarder ended by itself with {it.returncode}: {''.join(texts)}")

    def _end(self) -> None:
        for it in self._running:
            self._check(it)
            it.terminate()
        for it in self._running:
            if it.wait(PATIENCE_SECONDS) != 0:
                self.problems.append(f"a forwarder that was stopped ended with {it.returncode}")
