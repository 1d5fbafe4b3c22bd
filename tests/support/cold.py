"""Every queue without hot lanes, for a run of the tests on the tables alone: `STRICTQ_HOT_LANES=0 python -m pytest …`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from strictq import QueueConfig

WANTED = os.environ.get("STRICTQ_HOT_LANES") == "0"


def by_default() -> None:
    """From here on a QueueConfig has no hot lanes unless it says otherwise."""
    QueueConfig.__init__ = _init()  # type: ignore[method-assign]


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same until the end of a test."""
    monkeypatch.setattr(QueueConfig, "__init__", _init())


def _init() -> Callable[..., None]:
    before = QueueConfig.__init__

    @functools.wraps(before)
    def init(self: QueueConfig, **given: Any) -> None:
        before(self, **given)
        if "hot_lanes" not in given:
            object.__setattr__(self, "hot_lanes", False)

    return init
