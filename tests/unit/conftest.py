"""Fixtures of the behaviour tests: a clock that stands still, and queues in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strictq import Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener


@pytest.fixture
def clock() -> FakeClock:
    """Time that moves only when the test says so."""
    return FakeClock()


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Opener]:
    """Opens the queue of this test, once in memory and once on disk."""
    opener = Opener(":memory:" if request.param == "memory" else str(tmp_path / "queue"), clock)
    yield opener
    opener.close()


@pytest.fixture
def disk(tmp_path: Path, clock: FakeClock) -> Iterator[Opener]:
    """Opens the queue of this test on disk, as often as wanted."""
    opener = Opener(str(tmp_path / "queue"), clock)
    yield opener
    opener.close()


@pytest.fixture
def q(make: Opener) -> Queue:
    """A queue of one shard with the default configuration."""
    return make()
