"""A worker whose process dies of some messages: `python -m tests.support.deadly LOG HOW CONCURRENCY QUEUE...`.

The log gets a line "began KEY SEQ ATTEMPT PID" or "ended KEY SEQ ATTEMPT PID" for each handler. The body b"deadly" kills the
worker's process, and b"failing" raises an exception twice.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import anyio

import strictq

HOWS = ("plain", "async", "process", "batch", "prepare", "several")
"""`several`: two workers in one process, each with a queue of its own."""
BATCH_MAX = 3
LOG = "DEADLY_LOG"
"""The environment variable with the log's path, for the handlers' processes."""


def note(what: str, job: Any) -> None:
    log = os.open(os.environ[LOG], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(log, f"{what} {job.key} {job.seq} {job.attempt} {worker_process()}\n".encode())
    finally:
        os.close(log)


def worker_process() -> int:
    import multiprocessing

    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def seconds(job: Any) -> float:
    return random.Random(f"{job.key} {job.seq}").uniform(0.0, 0.03)


def finish(job: Any) -> None:
    """End a handler: it dies, fails or returns."""
    if job.body == b"deadly":
        os.kill(worker_process(), signal.SIGKILL)
        time.sleep(60.0)  # in a handler's process, which ends with the worker
    note("ended", job)
    if job.body == b"failing" and job.attempt < 3:
        raise ValueError("as told")


def handle(job: Any) -> None:
    note("began", job)
    time.sleep(seconds(job))
    finish(job)


async def handle_async(job: Any) -> None:
    note("began", job)
    await anyio.sleep(seconds(job))
    finish(job)


def handle_batch(jobs: list[Any]) -> None:
    for job in jobs:
        note("began", job)
    for job in jobs:
        time.sleep(seconds(job))
    for job in jobs:
        try:
            finish(job)
        except ValueError as e:
            job.fail(e)


def prepare(job: Any) -> int:
    time.sleep(seconds(job))
    return int(job.seq)


def main(log: str, how: str, concurrency: str, *paths: str) -> None:
    os.environ[LOG] = log
    queues = [strictq.open(path, create=False) for path in paths]
    options: dict[str, Any] = {"concurrency": int(concurrency), "process": handle, "batch": 20, "breaker": None}
    options |= {
        "async": {"process": handle_async},
        "process": {"executor": "process"},
        "batch": {"process": None, "process_batch": handle_batch, "batch_max": BATCH_MAX},
        "prepare": {"prepare": prepare},
    }.get(how, {})
    strictq.Worker(queues, **options).run(drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
