"""Workers and their endpoint are killed: each group keeps its order, all messages arrive, and only bad ones become dead letters.

The long form: python -m tests.campaigns remote poison.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.remote_chaos import Noted, RemoteChaos, Stop, problems


@pytest.mark.slow
def test_groups_keep_their_order_while_workers_and_the_endpoint_are_killed(tmp_path: Path) -> None:
    chaos = RemoteChaos(tmp_path, 1, groups=6, messages=10, round_trip=0.015, lease_seconds=2)
    assert chaos.run(worker_kills=1, kills=1) == []
    assert (chaos.worker_kills, chaos.kills, len(chaos.sent)) == (1, 1, 60)


@pytest.mark.slow
def test_a_worker_that_is_stopped_for_longer_than_its_leases_overtakes_nothing(tmp_path: Path) -> None:
    chaos = RemoteChaos(tmp_path, 1, groups=4, messages=6, lease_seconds=2)
    assert chaos.run(worker_kills=0, kills=0, stops=1) == []
    assert (len(chaos.stops), len(chaos.sent)) == (1, 24)


@pytest.mark.slow
def test_only_the_message_that_kills_becomes_a_dead_letter(tmp_path: Path) -> None:
    chaos = RemoteChaos(tmp_path, 1, workers=1, groups=1, messages=8, cut=0.0, failures=0.0, lease_seconds=60)
    assert chaos.poison(3, dies=True) == []
    assert chaos.worker_kills == 3


def test_the_checker_of_handlers_finds_what_it_looks_for() -> None:
    def note(kind: str, at: float, body: str, pid: int = 1) -> Noted:
        return Noted(kind, at, pid, body, 1)

    good = [
        note("start", 1, "g 0"),
        note("fail", 1.5, "g 0"),
        note("start", 2, "g 0"),
        note("end", 3, "g 0"),
        note("start", 4, "g 1"),
        note("end", 5, "g 1"),
    ]
    assert problems(good, {"g 0", "g 1"}) == []
    assert problems(good, {"g 0", "g 1", "g 2"}) == ["g 2 never succeeded"]
    assert problems([*good, note("start", 2.5, "g 1", 2)], set()) == ["g 1 started before g 0 had succeeded (attempt 1)"]
    assert problems([*good, note("start", 6, "g 0")], set()) == ["g 0 started after g 1 had succeeded (attempt 1)"]
    assert problems([note("start", 1, "g 0"), note("start", 2, "g 0")], set()) == [
        "g 0 started while g 0 ran in the same process"
    ]
    assert problems([*good, note("start", 6, "g 0", 2)], set(), [Stop(2, 3.5, 5.95)]) == []
    assert problems([*good, note("start", 6, "g 3")], set(), dead=["g 2"]) == []
    assert problems(good, set(), dead=["g 1"]) == ["g 1 succeeded, and is a dead letter"]
