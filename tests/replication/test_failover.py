"""Primaries that are killed at any moment, and work that goes on at a replica that was promoted.

By the history checker, what a call returned in confirmed mode holds across the promotion; in asynchronous mode, what is lost is a
suffix in time. Some seconds each. The long form:

    python -m tests.campaigns failovers --count 500
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaign import tally
from tests.support.failover import KINDS, Kind, fail_over


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
def test_work_goes_on_at_a_promoted_replica(tmp_path: Path, kind: Kind) -> None:
    times = 2 if kind == "chain" else 1
    campaign, events = fail_over(tmp_path, seed=1, kind=kind, times=times, shards=2)
    assert campaign.failovers == times
    counts = tally(events)
    for verb in ("send", "receive", "ack"):
        assert counts[verb] > 10, counts
