"""`python -m benchmarks takeover`: how soon the keys of a consumer that dies or hangs are served by another.

    python -m benchmarks takeover --rounds 5

Two consumers with affinity "prefer" divide four shards, while messages of 32 keys are sent. One of them is killed, or stopped.
The time is that from then until the other one gets a first message of a key that it did not serve before. Exit code 1: it never
did.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import strictq

KEYS: Final = [f"key-{n}" for n in range(32)]
SEND_SECONDS: Final = 0.005
BEFORE_SECONDS: Final = 1.5
AFTER_SECONDS: Final = 2.5
LEASE_SECONDS: Final = 3.0
PATIENCE_SECONDS: Final = 60.0
CONSUMER: Final = """
import sys, time, strictq
def handle(message):
    sys.stdout.write(f"{time.monotonic()} {message.key}\\n")
    sys.stdout.flush()
q = strictq.open(sys.argv[1])
if sys.argv[2] == "worker":
    strictq.Worker(q, handle, concurrency=4, affinity="prefer").run()
with q.join(affinity="prefer") as consumer:
    for d in consumer.consume():
        with d:
            handle(d)
"""
ENDS: Final = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks takeover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    code = 0
    for kind in ("loop", "worker"):
        for name, end in ENDS.items():
            seconds = [took for _ in range(options.rounds) if (took := measure(kind, end)) is not None]
            code |= len(seconds) < options.rounds
            print(f"{kind}, {name}: {told(seconds)}, load {os.getloadavg()[0]:.1f}", flush=True)
    return code


def told(seconds: list[float]) -> str:
    """Return the least, median and longest of some times."""
    if not seconds:
        return "never"
    return f"{min(seconds):.2f} s, median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s"


def measure(kind: str, end: signal.Signals) -> float | None:
    """Return the seconds until a key of the lost consumer is served. None: it is not."""
    directory = Path(tempfile.mkdtemp(prefix="strictq-takeover-"))
    config = strictq.QueueConfig(lease_seconds=LEASE_SECONDS)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with strictq.open(directory / "queue", shards=4, durability="process", config=config) as q:
            for n in range(2):
                with (directory / str(n)).open("wb") as out:
                    command = [sys.executable, "-c", CONSUMER, str(q.path), kind]
                    processes.append(subprocess.Popen(command, stdout=out))
            patience = time.monotonic() + PATIENCE_SECONDS
            while len(q.consumers()) < 2 and time.monotonic() < patience:
                time.sleep(0.05)
            send(q, time.monotonic() + BEFORE_SECONDS)
            at = time.monotonic()
            processes[0].send_signal(end)
            send(q, at + AFTER_SECONDS)
        return _took(*(served(directory / str(n)) for n in range(2)), at=at)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def send(q: strictq.Queue, until: float) -> None:
    """Send messages of all keys in turn."""
    n = 0
    while time.monotonic() < until:
        q.send(b"", KEYS[n % len(KEYS)])
        n += 1
        time.sleep(SEND_SECONDS)


def served(path: Path) -> list[tuple[float, str]]:
    """Return when a consumer got a message of which key."""
    lines = path.read_text().splitlines()
    return [(float(at), key) for at, _, key in (line.partition(" ") for line in lines)]


def _took(lost: list[tuple[float, str]], other: list[tuple[float, str]], *, at: float) -> float | None:
    recently = at - BEFORE_SECONDS / 2
    own = {key for t, key in lost if t >= recently} - {key for t, key in other if recently <= t < at}
    return next((t - at for t, key in other if t > at and key in own), None)
