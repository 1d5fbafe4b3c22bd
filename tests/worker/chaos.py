"""What the handlers of the stress run do, chosen by chance: succeed, with effects or without, fail, hang, or die.

At the top level of a module, so that they can run in processes of their own. STRESS_SEED and STRESS_DEATH (how often a
handler takes its process with it) are in the environment.
"""

from __future__ import annotations

import os
import random
import threading
import time
from functools import cache
from itertools import count
from typing import Any

import anyio

from strictq import Reject, Retry
from tests.support.recorded import body_of
from tests.support.stress_worker import KEYS

_names = count()


@cache
def _chance() -> random.Random:
    return random.Random(f"{os.environ['STRESS_SEED']} {os.getpid()}")


@cache
def _death() -> float:
    return float(os.environ["STRESS_DEATH"])


def _name() -> str:
    """A new name for an effect or a message, in any process."""
    return f"h{os.getpid():x}-{time.time_ns():x}-{threading.get_ident() & 0xFFFF:x}-{next(_names)}"


def prepare(job: Any) -> int:
    chance = _chance().random()
    if chance < 0.03:
        raise OSError("no such file")
    if chance < 0.06:
        time.sleep(0.02)
    return int(job.seq)


def _decide(job: Any) -> float:
    """How long it takes, if it comes to its end."""
    assert job.prepared == job.seq
    chance = _chance().random()
    if chance < _death():
        os.kill(os.getpid(), 9)
    if chance < 0.05:
        raise ValueError("broken")
    if chance < 0.08:
        raise Retry(_chance().choice((None, 0.01)))
    if 0.1 < chance < 0.4:
        _effects(job)
    return 0.4 if chance > 0.995 else 0.002 if chance > 0.9 else 0.0


def _effects(job: Any) -> None:
    """Leave a row, count it in the key's state, send on: as recorded transactions do."""
    n = int(job.key_state or b"0")
    job.key_state = b"%d" % (n + 1)
    job.execute("INSERT INTO app_effects (effect, lane, n) VALUES (?, ?, ?)", (_name(), repr(job.key), n))
    if _chance().random() < 0.3:
        job.send(body_of(_name()), _chance().choice(KEYS))


def process(job: Any) -> None:
    time.sleep(_decide(job))


def process_batch(jobs: list[Any]) -> None:
    """Some fail alone, some take all of the batch with them."""
    seconds = 0.0
    for job in jobs:
        job.prepared = job.seq
        try:
            seconds = max(seconds, _decide(job))
        except Exception as e:
            if _chance().random() < 0.1:
                raise
            job.fail(Reject("chance") if _chance().random() < 0.3 else e)
    time.sleep(seconds)


async def aprocess_batch(jobs: list[Any]) -> None:
    process_batch(jobs)
    await anyio.sleep(0)


async def aprocess(job: Any) -> None:
    await anyio.sleep(_decide(job))
