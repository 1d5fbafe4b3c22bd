"""Processes use a queue while its ranges move; some are killed, and some sleep. Nothing is lost, doubled or overtaken.

    python -m tests.support.range_chaos KIND QUEUE LOG SEED

runs one process of that kind until it is killed, or until the file `QUEUE.stop` exists. Each line of LOG is JSON. What may
happen without an answer is written before: `try`, with the body of a send, or the key and the seq of a settlement.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

import strictq
from strictq import LeaseLost, Message, Queue, QueueConfig, StrictqError, Worker
from tests.support.campaign import spawn
from tests.support.running import PATIENCE_SECONDS, until

KEYS: Final = 30
SHARDS_MAX: Final = 6
TABLE: Final = "CREATE TABLE app_done (key TEXT, seq INTEGER, PRIMARY KEY (key, seq))"
CONFIG: Final = QueueConfig(
    keyless="random", keyless_lanes=8, retry_delay_seconds=0.0, max_attempts=None, on_expire="dead_letter", lease_seconds=2.0,
    tenant_separator="/", dedup_window_seconds=30.0, history="bodies",
)  # fmt: skip
CLIENTS: Final = ("send", "send", "consume", "consume", "work", "wait")
"""Every kind that sends or settles. `wait` does it in an event loop."""
AWAIT_SECONDS: Final = 0.05
BACKLOG: Final = 1_000
"""With so many messages, senders slow down: consumers may have less of the processors."""


class Process:
    """One process, and its log."""

    def __init__(self, kind: str, queue: Path, log: Path, seed: str) -> None:
        self.kind, self.queue, self.seed = kind, queue, seed
        self.stop = queue.with_suffix(".stop")
        self.random = random.Random(f"{kind} {seed}")
        self.log = log.open("a", encoding="utf-8", buffering=1)
        self.n = 0

    def note(self, what: str, *values: object) -> None:
        self.log.write(json.dumps([what, *values]) + "\n")

    def run(self) -> None:
        if self.kind == "wait":
            asyncio.run(self.wait())
            return
        with strictq.open(self.queue, create=False) as q:
            while not self.stop.exists():
                with suppress(StrictqError):  # what is refused has not happened, and what is unanswered is noted as tried
                    getattr(self, self.kind)(q)

    # ---- senders

    def body(self, **more: object) -> bytes:
        self.n += 1
        body = json.dumps({"id": f"{self.seed}.{self.n}", **more}).encode()
        self.note("try", body.decode())
        return body

    def key(self) -> str:
        return f"t{self.random.randrange(3)}/{self.random.randrange(KEYS)}"

    def send(self, q: Queue) -> None:
        chance, options = self.random.random(), dict[str, Any]()
        if chance < 0.1:
            some = [Message(self.body(), key=self.key()) for _ in range(15)]
            for message, receipt in zip(some, q.send_many(some), strict=True):
                self.note("sent", message.key, receipt.seq, message.body.decode())  # type: ignore[union-attr]
            return
        if chance < 0.2:
            body = self.body()
            q.send(body, key=None)
            self.note("sent", None, 0, body.decode())
            return
        if chance < 0.3:
            options = {"dedup_id": f"{self.seed}.{self.n}"}
        elif chance < 0.35:
            options = {"delay": 0.05}
        elif chance < 0.4:
            options = {"ttl": 0.05}
        key, body = self.key(), self.body(ttl="ttl" in options)
        receipt = q.send(body, key=key, **options)
        self.note("sent", key, receipt.seq, body.decode())
        if "dedup_id" in options:
            assert q.send(body, key=key, **options).duplicate, "the id is known in every shard"
        time.sleep(self.random.choice((0.0, 0.002, 0.01)) if q.stats().depth < BACKLOG else AWAIT_SECONDS)

    # ---- consumers

    def got(self, d: Any) -> None:
        self.note("got", d.key, d.seq, d.token, d.body.decode())

    def consume(self, q: Queue) -> None:
        chance = self.random.random()
        with q.join(affinity=self.random.choice(("own", "prefer", "none"))):
            deliveries = q.receive(self.random.choice((1, 5, 20)), lease_seconds=self.random.choice((0.3, 3.0)), wait=0.05)
        for d in deliveries:
            self.got(d)
        if deliveries and chance < 0.1:
            deliveries[0].nack(delay=0.01)
            return
        for d in deliveries:
            with suppress(LeaseLost):
                self.settle(q, d)

    def settle(self, q: Queue, d: Any) -> None:
        act = self.random.random()
        if act < 0.05:
            d.defer(0.0)
        elif act < 0.1:
            d.reject("bad")
        elif act < 0.15:
            d.extend(3.0)
        else:
            self.note("try", d.key, d.seq, d.body.decode())
            if act < 0.4 and d.key is not None:
                with q.transaction(d) as tx:
                    tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
                    tx.execute("INSERT INTO app_done VALUES (?, ?)", (d.key, d.seq))
                    if not d.key.startswith("to-"):
                        tx.send(json.dumps({"id": f"{d.key}.{d.seq}", "from": [d.token, d.seq]}).encode(), f"to-{d.key}")
            elif act < 0.6:
                q.delivery(d.handle).ack()
            else:
                d.ack()
            self.note("acked", d.key, d.seq, d.body.decode())

    def work(self, q: Queue) -> None:
        def process(job: Any) -> None:
            self.got(job)
            self.note("try", job.key, job.seq, job.body.decode())
            if job.key is not None:
                job.key_state = b"%d" % (int(job.key_state or b"0") + 1)
                job.execute("INSERT INTO app_done VALUES (?, ?)", (job.key, job.seq))

        affinity = self.random.choice(("own", "prefer"))
        worker = Worker(q, process, concurrency=3, affinity=affinity)  # type: ignore[arg-type]
        worker.run(drain=True)
        time.sleep(AWAIT_SECONDS)

    async def wait(self) -> None:
        async with strictq.open_async(self.queue, create=False) as q:
            while not self.stop.exists():
                with suppress(StrictqError):
                    body = self.body()
                    key = self.key()
                    receipt = await q.send(body, key=key)
                    self.note("sent", key, receipt.seq, body.decode())
                    for d in await q.receive(5, per_key=2, wait=AWAIT_SECONDS):
                        self.got(d)
                        self.note("try", d.key, d.seq, d.body.decode())
                        await d.ack()
                        self.note("acked", d.key, d.seq, d.body.decode())

    # ---- operators

    def move(self, q: Queue) -> None:
        shards = q.topology().shards
        live = [one for one in shards if not one.retired]
        one, chance = self.random.choice(live), self.random.random()
        others = [other.shard for other in shards if other is not one]
        if len(shards) < SHARDS_MAX and chance < 0.2:
            q.split(one.shard)
        elif len(shards) < SHARDS_MAX and chance < 0.3:
            q.isolate(self.key())
        elif len(live) > 1 and chance < 0.6:
            q.merge(one.shard, into=self.random.choice(others))
        else:
            lo, hi = sorted(self.random.randint(*self.random.choice(one.ranges)) for _ in range(2))
            q.move(lo, hi, to=self.random.choice(others))
        self.note("moved")

    def operate(self, q: Queue) -> None:
        act, key = self.random.randrange(9), self.key()
        if act == 0:
            q.redrive()
        elif act == 1:
            q.hold(key)
            time.sleep(0.02)
            q.release(key)
        elif act == 2:
            q.pause()
            time.sleep(0.02)
            q.resume()
        elif act == 3 and self.random.random() < 0.5:
            q.cancel_move()
        elif act == 4:
            assert (found := q.check()) == [], found
        elif act == 5:
            with strictq.open(self.queue, read_only=True) as look:
                q.stats(), look.peek(key, 10), look.explain(key), look.topology()
        elif act == 6:
            copy = self.queue.with_suffix(f".copy-{self.seed}")
            q.backup(copy)
            with strictq.open(copy, read_only=True) as found_there:
                assert (found := found_there.check()) == [], found
            shutil.rmtree(copy)
        elif act == 7:
            with q.transaction(key=f"quiet-{key}") as tx:
                tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
                tx.execute("INSERT INTO app_done VALUES (?, ?)", (f"quiet-{key}", int(tx.key_state)))
        else:
            q.stats()
        time.sleep(0.02)


@attrs.define(eq=False)
class RangeChaos:
    """A queue in `directory`, and the processes that use it."""

    directory: Path
    seconds: float
    seed: int = 0
    durability: Any = "process"
    kills: int = 0
    stops: int = 0
    moves: int = 0
    deliveries: int = 0
    _started: int = 0
    _running: dict[subprocess.Popen[bytes], str] = attrs.Factory(dict)

    @property
    def queue(self) -> Path:
        return self.directory / "queue"

    def run(self) -> None:
        chance = random.Random(self.seed)
        with strictq.open(self.queue, shards=2, durability=self.durability, config=CONFIG) as q:
            q.app_schema(TABLE, key_columns={"app_done": "key"})
        try:
            logs = [self._start(kind) for kind in (*CLIENTS, "move", "move", "operate")]
            until(lambda: all(log.exists() for log in logs), "all to begin")
            end = time.monotonic() + self.seconds
            while time.monotonic() < end or self.kills < 2 or not self.stops:
                time.sleep(chance.uniform(0.05, 0.4))
                process = chance.choice(list(self._running))
                if chance.random() < 0.4:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.05, 1.2))
                    process.send_signal(signal.SIGCONT)
                    self.stops += 1
                elif process.poll() is not None:
                    raise AssertionError(self._errors())
                else:
                    self._start(self._kill(process))
            self.queue.with_suffix(".stop").touch()
            for process in self._running:
                assert process.wait(PATIENCE_SECONDS) == 0, self._errors()
        finally:
            for process in self._running:
                process.kill()
                process.wait()
        self._verify()

    def _start(self, kind: str) -> Path:
        self._started += 1
        name = self.directory / f"{kind}-{self._started}"
        with name.with_suffix(".err").open("wb") as errors:
            log = name.with_suffix(".log")
            process = spawn("range_chaos", kind, self.queue, log, f"{self.seed}-{self._started}", stderr=errors)
        self._running[process] = kind
        return log

    def _kill(self, process: subprocess.Popen[bytes]) -> str:
        process.kill()
        process.wait()
        self.kills += 1
        return self._running.pop(process)

    def _errors(self) -> str:
        return "\n".join(file.read_text()[-3000:] for file in self.directory.glob("*.err") if file.stat().st_size)

    # ---- what must hold

    def _verify(self) -> None:
        sent: list[Any] = []
        got: dict[Any, dict[int, int]] = defaultdict(dict)
        """By key and seq: the token of the first delivery."""
        bodies: dict[tuple[Any, Any], str] = {}
        acked: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        for log in self.directory.glob("*.log"):
            for line in log.read_text().splitlines():
                with suppress(ValueError):  # the last line of a process that was killed
                    what, *values = json.loads(line)
                    if what == "sent":
                        sent.append(values)
                    elif what == "moved":
                        self.moves += 1
                    elif what == "got":
                        self.deliveries += 1
                        self._got(got, bodies, *values)
                    elif what == "acked":
                        acked[f"{values[0]} {values[1]} {values[2]}"] += 1
                    elif what == "try" and len(values) == 3:
                        tried[f"{values[0]} {values[1]} {values[2]}"] += 1
        with strictq.open(self.queue) as q:
            until(lambda: q.topology().moving is None, "the last move to end")
            q.resume()
            for key in [f"t{tenant}/{n}" for tenant in range(3) for n in range(KEYS)]:
                q.release(key)
            assert q.check() == []
            _have_one_owner(q)

            def is_empty() -> bool:
                q.redrive()
                for d in q.receive(200, wait=AWAIT_SECONDS):
                    self._got(got, bodies, d.key, d.seq, d.token, d.body.decode())
                    d.ack()
                    acked[f"{d.key} {d.seq} {d.body.decode()}"] += 1
                counts = q.stats()
                return counts.depth == counts.dead == counts.outbox == 0

            until(is_empty, "all to be received")
            assert q.check() == []
            rows: list[Any] = q.query("SELECT key, seq FROM app_done")
            assert len(rows) == len(set(rows))
            for key, n in Counter(key for key, _ in rows).items():
                with q.transaction(key=key) as tx:
                    assert int(tx.key_state or b"0") == n, f"key {key}: its state and its rows differ"
        booked = set(rows)
        there = set(bodies.values())
        for key, seq, body in sent:
            assert body in there, f"{key} {seq} {body} is lost"
            assert key is None or bodies[key, seq] == body, f"{key} {seq}"
        assert len(there) == len(bodies), "a message has one place"
        for name, n in acked.items():
            assert n == 1, f"{name} was settled {n} times"
        for (key, seq), body in bodies.items():
            name = f"{key} {seq if key is not None else seq[1]} {body}"
            assert acked[name] or tried[name] or (key, seq) in booked, f"{name} is lost"
        for key, seqs in got.items():
            fresh = [seq for seq in sorted(seqs) if not json.loads(bodies[key, seq]).get("ttl")]
            assert sorted(seqs) == list(range(1, max(seqs) + 1)), f"key {key} has gaps"
            tokens = [seqs[seq] for seq in fresh]
            assert tokens == sorted(tokens), f"key {key}: overtaken"
            if key.startswith("to-"):
                origins = [json.loads(bodies[key, seq])["from"] for seq in sorted(seqs)]
                assert origins == sorted(origins), f"key {key}: sends of transactions were overtaken"
                assert len({seq for _, seq in origins}) == len(origins), f"key {key}: a send of a transaction was doubled"
                assert {(key[3:], seq) for _, seq in origins} <= booked

    @staticmethod
    def _got(got: Any, bodies: dict[tuple[Any, Any], str], key: Any, seq: int, token: int, body: str) -> None:
        place = key, (seq if key is not None else (body, seq))
        assert bodies.setdefault(place, body) == body, f"{key} {seq} is two messages"
        if key is not None:
            got[key][seq] = min(token, got[key].get(seq, token))


def _have_one_owner(q: Queue) -> None:
    """Require that each hash has one owner. `check` finds a lane that is in another shard than its hash's."""
    expected = 0
    for lo, hi in sorted(span for one in q.topology().shards for span in one.ranges):
        assert lo == expected
        expected = hi + 1
    assert expected == 1 << 64


def main(kind: str, queue: str, log: str, seed: str) -> None:
    Process(kind, Path(queue), Path(log), seed).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
