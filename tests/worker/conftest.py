"""Queues for the worker's tests: in memory and on disk, with the machine's own clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Queue, QueueConfig, Worker
from tests.support.queues import AT_ONCE

Make = Callable[..., Queue]


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Let a worker drain its queue in a thread. At the end of the block, wait for it."""
    thread = threading.Thread(target=worker.run, kwargs={"drain": True})
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the queue of this test."""
    opened: list[Queue] = []

    def open_it(*, shards: int | None = None, **settings: Any) -> Queue:
        path = ":memory:" if request.param == "memory" else str(tmp_path / "queue")
        config = QueueConfig(**(AT_ONCE | settings))
        q = strictq.open(path, shards=shards, durability="process", config=config)
        opened.append(q)
        return q

    yield open_it
    for q in opened:
        q.close()


@pytest.fixture
def q(make: Make) -> Queue:
    return make()
