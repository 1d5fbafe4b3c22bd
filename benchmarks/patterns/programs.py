"""The programs of the patterns, run as `python programs.py PROGRAM ARGUMENTS` with a version of strictq on PYTHONPATH.

This file imports nothing but strictq and the standard library, and uses only strictq's public interface, so the same program
measures this version and an older one. Each program checks that it processed what it sent, and prints one JSON object:
`{"micros": CPU microseconds per message or call}`, over all processes that worked for it.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import strictq

AT_ONCE = 1000
IDLE_SECONDS = 0.5
LEASE_SECONDS = 3600.0


def cpu() -> float:
    """Return the CPU seconds of this process so far, its ended children included."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def key_name(number: int) -> str:
    return f"customer-{number}"


def messages(number: int, keys: int, body_bytes: int = 100, seed: int = 1) -> list[strictq.Message]:
    """Return messages with keys that are chosen uniformly at random."""
    rnd = random.Random(seed)
    body = rnd.randbytes(body_bytes)
    return [strictq.Message(body, key=key_name(rnd.randrange(keys))) for _ in range(number)]


def send_all(q: strictq.Queue, todo: list[strictq.Message], batch: int = AT_ONCE) -> None:
    for start in range(0, len(todo), batch):
        q.send_many(todo[start : start + batch])


def drain(q: strictq.Queue) -> None:
    while ds := q.receive(10_000):
        q.ack_many(ds)


def opened(path: Path, keys: int = 1000, shards: int = 1, durability: Any = "process", **options: Any) -> strictq.Queue:
    """Open a new queue in which every lane exists, and no message waits."""
    config = strictq.QueueConfig(lease_seconds=LEASE_SECONDS, retry_delay_seconds=0.0, **options)
    q = strictq.open(path, shards=shards, durability=durability, config=config)
    send_all(q, [strictq.Message(b"", key=key_name(n)) for n in range(keys)], 10_000)
    drain(q)
    return q


def expect(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise RuntimeError(f"{found:,} {what}, expected {expected:,}")


def per_message(number: int, action: Callable[[], object]) -> float:
    """Return the CPU microseconds per message of an action, without the collection of objects that existed before it."""
    gc.collect()
    gc.freeze()
    began = cpu()
    action()
    return (cpu() - began) / number * 1e6


def life(
    path: Path, number: int, batch: int, *, keys: int = 1000, shards: int = 1, durability: str = "process",
    body_bytes: int = 100, nack_every: int = 0, observed: bool = False, behind: int = 0,
) -> float:  # fmt: skip
    """Send, receive and ack, batch by batch.

    Args:
        nack_every: one in so many messages is nacked once before it is acked; 0: none.
        observed: an observer is attached.
        behind: number of messages that wait all the time. The oldest messages are received, so the backlog slides.
    """
    with opened(path, keys, shards, durability, max_attempts=100) as q:
        if observed:
            q.observe(counting())
        for start in range(0, behind, 10_000):
            send_all(q, messages(10_000, keys, body_bytes, seed=start + 1))
        rehearsal, todo = messages(max(batch, number // 4), keys, body_bytes), messages(number, keys, body_bytes, 2)
        one_life(q, rehearsal, batch, nack_every)
        used = per_message(number, lambda: one_life(q, todo, batch, nack_every))
        expect(q.stats().depth, behind, "messages are left")
    return used


def one_life(q: strictq.Queue, todo: list[strictq.Message], batch: int, nack_every: int) -> None:
    sent = 0
    for start in range(0, len(todo), batch):
        part = todo[start : start + batch]
        if batch == 1:
            q.send(part[0].body, part[0].key)
        else:
            q.send_many(part)
        missing, sent = len(part), sent + len(part)
        # In each batch, the first messages are nacked: one, or all of it if batches are smaller than nack_every.
        nacks = 0 if not nack_every else (sent // nack_every) - ((sent - len(part)) // nack_every)
        while missing:
            ds = list(q.receive(missing))
            if not ds:
                raise RuntimeError(f"{missing} messages were sent and are not ready")
            while nacks and ds:
                nacks -= 1
                nacked = ds[-1]
                nacked.nack()
                ds = [d for d in ds if d.key != nacked.key or d.seq < nacked.seq]
            if batch == 1:
                for d in ds:
                    d.ack()
            elif ds:
                q.ack_many(ds)
            missing -= len(ds)


def counting() -> Any:
    """Return an observer of every kind, which does as little as possible. Older versions have no observers."""

    class Counting(strictq.Observer):
        seen = 0

        def event(self, event: Any) -> None:
            self.seen += 1

        def count(self, name: str, n: int, shard: int) -> None:
            self.seen += n

        def duration(self, name: str, seconds: float, shard: int) -> None:
            self.seen += 1

    return Counting()


def fill(path: Path, number: int, *, keys: int = 1000) -> float:
    """Send a backlog, in batches of 1,000."""
    with opened(path, keys) as q:
        todo = messages(number, keys)
        used = per_message(number, lambda: send_all(q, todo))
        expect(q.stats().depth, number, "messages wait")
    return used


def sends(path: Path, number: int, *, option: str = "") -> float:
    """Send messages one by one, with an option that each of them has."""
    with opened(path) as q:
        todo = messages(number, 1000)
        headers = {"content-type": "application/json", "trace": "4bf92f3577b34da6"}

        def run() -> None:
            for n, m in enumerate(todo):
                if option == "dedup_id":
                    q.send(m.body, m.key, dedup_id=f"id-{n}")
                elif option == "delay":
                    q.send(m.body, m.key, delay=3600.0)
                elif option == "headers":
                    q.send(m.body, m.key, headers=headers)
                else:
                    q.send(m.body, m.key)

        used = per_message(number, run)
        expect(q.stats().depth, number, "messages wait")
    return used


def settle(path: Path, number: int, *, shards: int = 1) -> float:
    """Receive and ack one message at a time."""
    with opened(path, shards=shards) as q:
        send_all(q, messages(number, 1000))

        def run() -> None:
            for _ in range(number):
                (d,) = q.receive(1)
                d.ack()

        used = per_message(number, run)
        expect(q.stats().depth, 0, "messages are left")
    return used


def consume(path: Path, number: int, *, consumers: int, style: str, live: int = 0, keys: int = 1000, shards: int = 1) -> float:
    """Let processes consume a backlog, or what this process sends meanwhile in batches of `live`."""
    with opened(path, keys, shards) as q:
        todo = messages(number, keys)
        if not live:
            send_all(q, todo)
        with started(consumers, path, style) as children:
            own = cpu()
            for child in children:
                tell(child)
            if live == 1:
                for m in todo:
                    q.send(m.body, m.key)
            elif live:
                send_all(q, todo, live)
            own = cpu() - own if live else 0.0
            reports = [hear(child) for child in children]
        expect(sum(r["number"] for r in reports), number, "messages were acked")
        expect(q.stats().depth, 0, "messages are left")
    return (own + sum(r["cpu"] for r in reports)) / number * 1e6


def consumer(path: Path, *, style: str) -> None:
    """Consume from a signal until no message has been ready for a while. Report the number, and the CPU seconds."""
    q = strictq.open(path, create=False)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    began = cpu()
    number = CONSUMERS[style](q)
    q.close()
    print(json.dumps({"number": number, "cpu": cpu() - began}), flush=True)


def in_a_loop(q: strictq.Queue) -> int:
    number = 0
    for d in q.consume(100, wait=IDLE_SECONDS):
        with d:
            number += 1
    return number


def in_batches(q: strictq.Queue) -> int:
    number = 0
    while ds := q.receive(100, wait=IDLE_SECONDS):
        q.ack_many(ds)
        number += len(ds)
    return number


def one_by_one(q: strictq.Queue) -> int:
    number = 0
    while ds := q.receive(1, wait=IDLE_SECONDS):
        ds[0].ack()
        number += 1
    return number


def in_transactions(q: strictq.Queue) -> int:
    number = 0
    for d in q.consume(100, wait=IDLE_SECONDS):
        with d, q.transaction(d) as tx:
            tx.key_state = b"%d" % d.seq
        number += 1
    return number


def reading_the_state(q: strictq.Queue) -> int:
    number = 0
    for d in q.consume(100, wait=IDLE_SECONDS):
        before = d.key_state
        with d, q.transaction(d) as tx:
            tx.key_state = b"%d" % (int(before or b"0") + 1)
        number += 1
    return number


CONSUMERS: dict[str, Callable[[strictq.Queue], int]] = {
    "consume": in_a_loop,
    "batch": in_batches,
    "one": one_by_one,
    "transaction": in_transactions,
    "state": reading_the_state,
}


def worker(path: Path, number: int, *, kind: str = "plain") -> float:
    """Let a worker with empty handlers drain a backlog. The cost of starting it, and its processes, is subtracted."""
    with opened(path) as q:
        used = []
        # The first run also pays for imports; the second one is what starting and stopping cost.
        for size in (8, 8, number):
            send_all(q, messages(size, 1000))
            began = cpu()
            if kind == "prepare":
                strictq.Worker(q, nothing, prepare=nothing, concurrency=8).run(drain=True)
            elif kind == "process":
                strictq.Worker(q, nothing, executor="process", concurrency=2).run(drain=True)
            else:
                strictq.Worker(q, nothing, concurrency=8).run(drain=True)
            used.append(cpu() - began)
            expect(q.stats().depth, 0, "messages are left")
    return (used[2] - used[1]) / number * 1e6


def nothing(job: Any) -> None:
    """Do nothing."""


def look(path: Path, number: int, *, what: str, pending: int) -> float:
    """Look while another process writes: the median over `number` calls. Before each, that process sends one message."""
    keys = max(1, pending // 4)
    with opened(path, keys) as q:
        send_all(q, messages(pending, keys))
        pick = random.Random(3).randrange
        (held,) = q.receive(1)
        (lost,) = q.receive(1)
        lost.lease.release()

        def lease_lost() -> None:
            try:
                lost.ack()
            except strictq.LeaseLost:
                return
            raise RuntimeError("a released lease was accepted")

        calls: dict[str, Callable[[], object]] = {
            "key_state": lambda: held.key_state,
            "peek": lambda: q.peek(key_name(pick(keys))),
            "explain": lambda: q.explain(key_name(pick(keys))),
            "status": lambda: q.status(held.key, held.seq),
            "lease_lost": lease_lost,
            "stats": q.stats,
            "top_keys": q.top_keys,
        }
        call, used = calls[what], []
        with started(1, path, "writer", keys=keys) as (writer,):
            for _ in range(number):
                tell(writer)
                hear(writer)
                began = time.process_time()
                call()
                used.append(time.process_time() - began)
        expect(q.stats().depth, pending + number, "messages wait")
    return statistics.median(used) * 1e6


def writer(path: Path, *, keys: int) -> None:
    """Send one message to a random key for each line that is read."""
    pick = random.Random(4).randrange
    with strictq.open(path, create=False) as q:
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            q.send(b"x" * 100, key_name(pick(keys)))
            print(json.dumps({"sent": True}), flush=True)


@contextmanager
def started(number: int, path: Path, role: str, **arguments: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes in a role: `writer`, or a style of consumer. They have opened the queue and wait for a signal."""
    name = "writer" if role == "writer" else "consumer"
    values = arguments if role == "writer" else {"style": role}
    command = [sys.executable, __file__, name, json.dumps({"path": str(path), **values})]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    try:
        for child in children:
            hear(child)
        yield children
    finally:
        for child in children:
            child.communicate()


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def hear(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next report of a child."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended without a report, exit code {child.wait()}")
    report: dict[str, Any] = json.loads(line)
    return report


PROGRAMS: dict[str, Callable[..., float]] = {
    "life": life,
    "fill": fill,
    "sends": sends,
    "settle": settle,
    "consume": consume,
    "worker": worker,
    "look": look,
}


def main(name: str, text: str) -> None:
    arguments = json.loads(text)
    path = Path(arguments.pop("path"))
    # A program that hangs must not hang the benchmark.
    alarm = threading.Timer(600.0, lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)))
    alarm.daemon = True
    alarm.start()
    if name in ("consumer", "writer"):
        {"consumer": consumer, "writer": writer}[name](path, **arguments)
    else:
        print(json.dumps({"micros": PROGRAMS[name](path, **arguments)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
