"""Queues without hot lanes, for tests that look into the tables."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from strictq import QueueConfig


def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of a test a QueueConfig has no hot lanes unless it says otherwise."""
    before = QueueConfig.__init__

    @functools.wraps(before)
    def init(self: QueueConfig, **given: Any) -> None:
        before(self, **given)
        if "hot_lanes" not in given:
            object.__setattr__(self, "hot_lanes", False)

    monkeypatch.setattr(QueueConfig, "__init__", init)
