"""Every queue with hot lanes: `STRICTQ_HOT_LANES=1 python -m pytest …`; and the tests that look into the tables without."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from strictq import QueueConfig

WANTED = os.environ.get("STRICTQ_HOT_LANES") == "1"


def by_default() -> None:
    """From here on a QueueConfig has hot lanes unless it says otherwise."""
    QueueConfig.__init__ = _init(hot=True)  # type: ignore[method-assign]


def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of a test it has none."""
    monkeypatch.setattr(QueueConfig, "__init__", _init(hot=False))


def _init(*, hot: bool) -> Callable[..., None]:
    before = QueueConfig.__init__

    @functools.wraps(before)
    def init(self: QueueConfig, **given: Any) -> None:
        before(self, **given)
        if "hot_lanes" not in given:
            object.__setattr__(self, "hot_lanes", hot)

    return init
