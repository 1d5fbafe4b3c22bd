"""Small programs that tests run in their own processes: `python -m tests.support.programs NAME ARGUMENTS`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import apsw

import strictq
from strictq import Delivery, LeaseLost, Queue
from tests.support.formats import add_column, become_next
from tests.support.internals import store_of

LEASE_SECONDS = 0.3


def zombie(path: str, *verbs: str) -> None:
    """Lease the lanes taken-VERB and quiet-VERB, stop, and use each verb once continued. Prints the outcomes."""
    outcomes = {}
    with strictq.open(path, create=False) as queue:
        deliveries = queue.receive(1000, lease_seconds=LEASE_SECONDS)
        assert len(deliveries) == 2 * len(verbs)
        os.kill(os.getpid(), signal.SIGSTOP)
        for d in deliveries:
            key = str(d.key)
            try:
                _use(queue, d, key.partition("-")[2])
                outcomes[key] = "ok"
            except LeaseLost:
                outcomes[key] = "LeaseLost"
    print(json.dumps(outcomes))


def _use(queue: Queue, d: Delivery, verb: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "ack": d.ack,
        "nack": d.nack,
        "defer": lambda: d.defer(0.0),
        "reject": lambda: d.reject("late"),
        "extend": lambda: d.extend(0.001),
        "start": d.start,
        "more": lambda: d.lease.more(1),
        "release": d.lease.release,
    }
    if verb != "transact":
        calls[verb]()
        return
    with queue.transaction(d) as tx:
        tx.key_state = b"set by a zombie"
        tx.execute("INSERT INTO app_effects (effect, lane, n) VALUES (?, 'lane', 0)", (str(d.key),))
        tx.send(str(d.key).encode(), "sent-by-zombie")


def pipeline(path: str) -> None:
    """Forward every message of in-N to out-N and without a key, with an effect and a count, one transaction each.

    Keyless messages fail at their first attempt, so that they are parked. The keys out-N are held. Ends when nothing is left.
    """
    with strictq.open(path, create=False) as queue:
        # Leases of killed processes end soon: three empty receives in a row mean the end.
        empty = 0
        while empty < 3:
            got = queue.receive(5, lease_seconds=LEASE_SECONDS, wait=LEASE_SECONDS)
            empty = 0 if got else empty + 1
            for d in got:
                with suppress(LeaseLost):
                    if d.key is None and d.attempt == 1:
                        d.nack(delay=0.001)
                        continue
                    with queue.transaction(d) as tx:
                        tx.execute("INSERT INTO app_effects VALUES (?, ?, 0)", (d.body.decode(), str(d.key)))
                        if d.key is not None:
                            tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
                            tx.send(d.body, d.key.replace("in", "out"))
                            tx.send(d.body)


def killed(path: str, how: str, log: str) -> None:
    """Handle everything in large leases, through `how` ("consume", "with" or "worker"), and die of each message b"deadly".

    Writes key, seq and attempt of each message to the log before it handles it.
    """
    handled = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def handle(message: Any) -> None:
        os.write(handled, b"%s %d %d\n" % (message.key.encode(), message.seq, message.attempt))
        if message.body == b"deadly":
            os.kill(os.getpid(), signal.SIGKILL)

    with strictq.open(path, create=False) as queue:
        if how == "worker":

            def work(job: Any) -> None:
                time.sleep(0.005)  # long enough that no handler is started ahead of a free slot
                handle(job)

            strictq.Worker(queue, work, concurrency=1, batch=400, lease_seconds=1.0).run(drain=True)
            return
        for d in queue.consume(400, wait=0.0, lease_seconds=1.0):
            if how == "with":
                with d:
                    handle(d)
            else:
                handle(d)
                d.ack()


def waiter(path: str, keys: str = "") -> None:
    """Print "waiting", then wait for a message and print its body."""
    with strictq.open(path, create=False) as queue:
        print("waiting", flush=True)
        for d in queue.receive(1, wait=3600.0, keys=keys.split(",") if keys else None):
            print(d.body.decode(), flush=True)
            d.ack()


def maker(path: str) -> None:
    """Print "opening", create a queue, and use it."""
    print("opening", flush=True)
    with strictq.open(path, shards=4, durability="full") as queue:
        queue.send(b"hello", "k")
        print("sent", flush=True)


def migrator(path: str) -> None:
    """Migrate a queue slowly, as a later version. Prints a line when it is in a shard."""

    def slow(db: apsw.Connection) -> None:
        if db.filename:
            print("in a shard", flush=True)
            time.sleep(0.15)
        add_column(db)
        if db.filename:
            time.sleep(0.15)

    import pytest

    with pytest.MonkeyPatch.context() as patch:
        become_next(patch, slow)
        strictq.migrate(path)
    print("done", flush=True)


def checkpointer(path: str) -> None:
    """Send, receive, ack and checkpoint as fast as possible. Prints the seq of each send that returned."""
    with strictq.open(path, create=False) as queue:
        while True:
            print(queue.send(b"x" * 5000, "k").seq, flush=True)
            queue.ack_many(queue.receive(2, keys=["acked"]))
            queue.send(b"y" * 5000, "acked")
            for shard in store_of(queue).shards:
                shard.checkpoint()


PROGRAMS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (zombie, pipeline, killed, waiter, maker, migrator, checkpointer)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
