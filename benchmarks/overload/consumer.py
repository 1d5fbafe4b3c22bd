"""A consumer process: a worker whose handlers sleep, fail or die, and note when each message was started."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Final

import attrs

import strictq
from strictq import Job, Worker

from .scenarios import LOUD, SLOTS

ENVIRONMENT: Final = "STRICTQ_OVERLOAD"
"""The variable with the orders, which processes of handlers inherit."""


@attrs.frozen
class Orders:
    """What a consumer does.

    Attributes:
        path: of the queue. notes: the file to which starts are appended.
    """

    path: str
    notes: str
    handler_seconds: float
    loud_seconds: float
    fails: bool
    kills: bool
    breaker: bool
    executor: str


def orders() -> Orders:
    """Return the orders of this process."""
    return Orders(**json.loads(os.environ[ENVIRONMENT]))


def process(job: Job) -> None:
    """Handle a message: note its start, then work, fail or die."""
    given = orders()
    assert isinstance(job.key, str)
    note: dict[str, Any] = {"key": job.key, "seq": job.seq, "sent": float(job.body), "started": time.time()}
    notes = os.open(given.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(notes, json.dumps(note).encode() + b"\n")  # one write, because several processes append
    finally:
        os.close(notes)
    if not job.key.startswith(f"{LOUD}/"):
        time.sleep(given.handler_seconds)
        return
    if given.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(given.loud_seconds)
    if given.fails:
        raise TimeoutError("the service does not answer")


def main() -> int:
    """Work until killed."""
    given = orders()
    with strictq.open(given.path, create=False) as q:
        breaker = strictq.Breaker() if given.breaker else None
        executor: Any = given.executor
        print("ready", flush=True)
        Worker(q, process, concurrency=SLOTS, executor=executor, breaker=breaker).run()
    return 0


if __name__ == "__main__":
    # Handlers' processes import the handler by its name, which is not that of a main program.
    from benchmarks.overload import consumer

    sys.exit(consumer.main())
