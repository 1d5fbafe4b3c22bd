"""Forwarders and their endpoint are killed, and answers are cut off: every message arrives once, in the order of its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forward_chaos import ForwardChaos


@pytest.mark.slow
def test_messages_arrive_once_and_in_order_while_forwarders_and_the_endpoint_are_killed(tmp_path: Path) -> None:
    chaos = ForwardChaos(tmp_path, 1, keys=10, messages=60)
    assert chaos.run(forwarder_kills=12, kills=2) == []
    assert (chaos.forwarder_kills, chaos.kills) == (12, 2)
