"""The server is killed while clients consume: groups keep their order, and nothing is lost or comes back.

The long form: python -m tests.campaigns sqskills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sqs_chaos import Chaos, History


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("natives", [0, 2])
def test_groups_keep_their_order_while_the_server_is_killed(natives: int, tmp_path: Path) -> None:
    chaos = Chaos(tmp_path / "queues", 1, consumers=6, natives=natives)
    assert chaos.run(4.0, 2.0) == []
    assert chaos.kills >= 2
    assert len(chaos.history.sent) > 50


def test_the_checker_finds_what_it_looks_for() -> None:
    history = History()
    history.sent = {"1 0", "1 1", "1 2", "2 0"}
    history.received(0.0, 1.0, ["1 0"])
    history.received(2.0, 3.0, ["1 1"])  # before any delete of the first
    history.begins("1 0", 4.0)
    history.confirmed("1 0", 5.0)
    history.received(6.0, 7.0, ["1 0"])
    history.received(8.0, 9.0, ["1 2", "1 1"])
    found = history.problems()
    assert "1 1 overtook 1 0" in found
    assert "1 0 was received 1.000 s after its delete was confirmed" in found
    assert "group 1 was received as [2, 1]" in found
    assert "2 0 never arrived" in found
