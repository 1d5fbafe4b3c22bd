from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.sqs.asgi import Caller, calling


@pytest.fixture(params=["memory", "process", "full"])
def c(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Caller]:
    disk = request.param != "memory"
    with calling(tmp_path if disk else None, durability=request.param if disk else "process") as caller:
        yield caller


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path) as caller:
        yield caller
