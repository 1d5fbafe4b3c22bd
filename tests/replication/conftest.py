"""A queue, its replica with its token, and a directory that it is shipped to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import Queue, Replica
from tests.support.replicas import token_file


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "q", durability="process", shards=2) as opened:
        yield opened


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "replica"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return token_file(tmp_path)


@pytest.fixture
def replica(home: Path, token: Path) -> Iterator[Replica]:
    with Replica(home, token_file=token) as opened:
        yield opened
