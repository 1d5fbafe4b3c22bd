"""A waiting receive is woken by whatever makes a message ready, in this process or in another.

The waits are longer than a test's patience: these tests tell woken from not woken, not fast from slow.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strictq
from strictq import Queue
from tests.support.campaign import spawn
from tests.support.running import PATIENCE_SECONDS

WAIT = 3600.0


def _send(queue: Queue) -> None:
    queue.send(b"hello", "k")


def _send_many(queue: Queue) -> None:
    queue.send_many([strictq.Message(b"hello", key="k")])


def _send_later(queue: Queue) -> None:
    queue.send(b"hello", "k", delay=0.3)


def _transact(queue: Queue) -> None:
    with queue.transaction(key="other") as tx:
        tx.send(b"hello", "k")


def _release(queue: Queue) -> None:
    queue.hold("k")
    queue.send(b"hello", "k")
    queue.release("k")


WAKERS = (_send, _send_many, _send_later, _transact, _release)


@pytest.fixture(params=[1, 4], ids=["1 shard", "4 shards"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "q.strictq", shards=request.param, durability="process") as queue:
        yield queue


@pytest.mark.parametrize("wake", WAKERS, ids=lambda f: f.__name__[1:])
def test_a_thread_wakes_another(queue: Queue, wake: Callable[[Queue], None]) -> None:
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(d.body for d in queue.receive(1, wait=WAIT)), daemon=True)
    thread.start()
    time.sleep(0.05)  # it may be waiting by now; if it is not, it finds the message at once
    wake(queue)
    thread.join(PATIENCE_SECONDS)
    assert got == [b"hello"]


@pytest.mark.in_turn
@pytest.mark.parametrize("wake", WAKERS, ids=lambda f: f.__name__[1:])
def test_a_process_wakes_another(queue: Queue, wake: Callable[[Queue], None]) -> None:
    waiter = spawn("programs", "waiter", queue.path, stdout=subprocess.PIPE)
    try:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == b"waiting\n"
        time.sleep(0.05)
        wake(queue)
        out, _ = waiter.communicate(timeout=PATIENCE_SECONDS)
        assert out == b"hello\n"
    finally:
        waiter.kill()
        waiter.communicate()


def test_a_nack_in_one_process_wakes_another(queue: Queue) -> None:
    queue.send(b"hello", "k")
    held = queue.receive(1, lease_seconds=3600.0)
    waiter = spawn("programs", "waiter", queue.path, "k", stdout=subprocess.PIPE)
    try:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == b"waiting\n"
        held[0].nack()
        out, _ = waiter.communicate(timeout=PATIENCE_SECONDS)
        assert out == b"hello\n"
    finally:
        waiter.kill()
        waiter.communicate()


def test_the_end_of_a_lease_ends_a_wait(queue: Queue) -> None:
    queue.send(b"hello", "k")
    assert len(queue.receive(1, lease_seconds=0.2)) == 1
    assert [d.attempt for d in queue.receive(1, wait=WAIT)] == [2]


def test_a_wait_ends_empty(queue: Queue) -> None:
    assert queue.receive(1, wait=0.05) == []


# ---- waiting without receiving


@pytest.mark.parametrize("wake", WAKERS, ids=lambda f: f.__name__[1:])
def test_a_waiter_that_receives_nothing_is_woken(queue: Queue, wake: Callable[[Queue], None]) -> None:
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(queue.wait_ready(WAIT)), daemon=True)
    thread.start()
    time.sleep(0.05)
    wake(queue)
    thread.join(PATIENCE_SECONDS)
    assert woken == [True]
    assert queue.stats().in_flight == 0
