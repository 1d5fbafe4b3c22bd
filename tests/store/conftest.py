"""Fixtures of the store's tests: a clock that stands still, and one queue on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strictq.testing import FakeClock
from tests.support.queues import Opener


@pytest.fixture
def clock() -> FakeClock:
    """Time that moves only when the test says so."""
    return FakeClock()


@pytest.fixture
def disk(tmp_path: Path, clock: FakeClock) -> Iterator[Opener]:
    """Opens the queue of this test on disk, as often as wanted."""
    opener = Opener(str(tmp_path / "queue"), clock)
    yield opener
    opener.close()
