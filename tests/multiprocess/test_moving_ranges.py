"""Processes of every kind use a queue while ranges move, and are killed and stopped: all arrives, once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.range_chaos import RangeChaos


@pytest.mark.slow
def test_clients_and_movers_are_killed_and_stopped(tmp_path: Path) -> None:
    RangeChaos(tmp_path, seconds=8.0, seed=1).run()
