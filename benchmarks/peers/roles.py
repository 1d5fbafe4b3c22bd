"""The roles of the comparison's child processes, called by `benchmarks.child`."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Durability, disk_bytes, grown, prebuilt, resident_mib, written_bytes

from . import ALL
from .contest import Entrant, fill
from .peer import Host, Opening
from .work import EMPTY_MAX, EMPTY_SECONDS, drain, life_beside_others, pairs

Report = Callable[..., None]


def everything(
    report: Report, peer: str, path: str, durability: Durability, number: int, keys: int, batch: int, seed: int
) -> None:
    """Send, receive and ack at a signal, together with other processes, until the queue is empty."""
    client = ALL[peer](Opening(Path(path), durability))
    todo = client.native(pairs(number, keys, seed))
    with prebuilt():
        report(ready=True)
        sys.stdin.readline()
        before, started = written_bytes(), time.perf_counter()
        acked, ended = life_beside_others(client, todo, batch)
        written = grown(before, written_bytes())
    client.close()
    report(acked=acked, started=started, ended=ended, written=written)


def backlog(report: Report, peer: str, path: str, number: int, keys: int, seconds: float) -> None:
    """Fill a queue and drain it. Report memory and disk space."""
    directory = Path(path)
    client = ALL[peer](Opening(directory, "process"))
    held = fill(Entrant(peer, directory, "process", Host(), client), number, keys, seconds)
    gc.collect()
    resident, full = resident_mib(), disk_bytes(directory)
    end = time.perf_counter() + seconds
    # If each receive is a single call, the time is checked more often.
    drained = drain(client, 1000 if client.about.receives.startswith("in one") else 20, lambda: time.perf_counter() > end)
    client.close()
    values: dict[str, Any] = {"held": held, "full": full, "left": held - drained, "drained": disk_bytes(directory)}
    report(**values, peak=None if resident is None else resident[1])


def receive_and_wait(report: Report, peer: str, path: str, durability: Durability, number: int, lease_seconds: float) -> None:
    """Receive, report it, and wait to be killed."""
    client = ALL[peer](Opening(Path(path), durability, lease_seconds=lease_seconds))
    handed = client.receive(number)
    report(received=len(handed))
    sys.stdin.read()


def send_and_wait(report: Report, peer: str, path: str, durability: Durability, number: int) -> None:
    """Send one by one, report each, and wait to be killed."""
    client = ALL[peer](Opening(Path(path), durability))
    for message in client.native([("k", b"%d" % n) for n in range(number)]):
        client.send([message])
        report(sent=True)
    sys.stdin.read()


def take_everything(report: Report, peer: str, path: str, durability: Durability) -> None:
    """Receive and ack one by one at a signal, together with other processes. Report the bodies."""
    client = ALL[peer](Opening(Path(path), durability))
    report(ready=True)
    sys.stdin.readline()
    taken: list[str] = []
    empty = 0
    while empty < EMPTY_MAX:
        if handed := client.receive(1):
            client.ack(handed)
            taken.extend(client.content(h)[1].decode() for h in handed)
            empty = 0
        else:
            empty += 1
            time.sleep(EMPTY_SECONDS)
    client.close()
    report(taken=taken)
