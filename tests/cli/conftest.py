"""A queue for a command to work on."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from tests.support.queues import AT_ONCE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with two shards, and two attempts for each message."""
    where = tmp_path / "queue"
    with strictq.open(where, shards=2, durability="process", config=strictq.QueueConfig(max_attempts=2, **AT_ONCE)):
        return where
