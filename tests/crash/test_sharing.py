"""Consumers that divide a queue keep every promise while they hang and die, limits change, and lanes are sidelined and return.

The long form is `python -m tests.campaigns sharing --minutes 60`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaign import Campaign, tally


@pytest.mark.slow
@pytest.mark.parametrize("affinities", [("prefer",), ("own",)], ids=lambda names: names[0])
def test_consumers_that_share_a_queue_keep_its_promises(affinities: tuple[str, ...], tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, shards=4, durability="process", seed=11, affinities=affinities, window=12)
    try:
        campaign.create()
        seen = campaign.disturb_sharing(processes=3, seconds=2.0)
        campaign.stop()
    finally:
        campaign.abandon()
    counts = tally(campaign.settle())
    assert all(counts[verb] > 10 for verb in ("send", "receive", "ack", "transact")), counts
    assert min(campaign.kills, campaign.stops, seen["changes"], seen["sidelined"]) > 0, (campaign, seen)
    assert seen["consumers"] >= 2, seen
