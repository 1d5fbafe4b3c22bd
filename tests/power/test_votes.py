"""Whenever the power of a member's host goes, what its voter has answered is there: it promises nothing twice."""

from __future__ import annotations

import random
from pathlib import Path

from strictq.replication.membership import Votes
from strictq.replication.voting import Ballot, Membership, Question
from strictq.testing import FakeClock
from tests.support.powercut import recording
from tests.support.powercut_disk import MODES, Platter, put_out
from tests.support.running import fast_directory


def test_what_a_voter_answered_survives_a_power_cut(tmp_path: Path) -> None:
    with fast_directory(tmp_path) as place:
        (place / "recorded" / "r").mkdir(parents=True)
        with recording(place / "recorded", FakeClock()) as journal:
            votes = Votes(journal.root / "r")
            with votes.held() as state:
                own = state.id
            first = Membership(1, 1, "q", ((own, "tcp://b"), ("C", "tcp://c")), "C", "h")
            votes.answered(Question("learn", first))
            for number in range(1, 4):
                assert votes.answered(Question("prepare", first, Ballot(number, "C"))).yes
                journal.note("answered", at=number)
            journal.recording = False
        platter, answered, images = Platter(journal.start), 0, 0
        for i, op in enumerate(journal.ops):
            platter.follow(op)
            if op.kind == "answered":
                answered = op.at
            if not answered:
                continue
            for mode in MODES:
                chance = random.Random(i)
                put_out(platter.cut(mode, chance), place / "image", chance)
                found = Votes(place / "image" / "r").look()
                assert found is not None
                assert found.id == own
                assert found.promised is not None
                assert found.promised.number >= answered
                images += 1
        assert images > 10
