"""A forwarder's queue at "full", and a power cut at any moment: no message is lost, and none arrives twice within the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forwarded_cuts import cut_the_power


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_was_sent_arrives_once_and_in_order_whenever_the_power_goes(place: Path, seed: int) -> None:
    assert cut_the_power(place, seed, share=0.2) > 10
