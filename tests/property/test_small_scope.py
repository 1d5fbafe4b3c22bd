"""Every sequence of a few steps of two consumers on two keys: tests/support/small_scope.py.

`python -m tests.campaigns enumerate` runs all sequences of five steps. STRICTQ_SMALL_SCOPE_SEED selects others for the test,
and another sixth of the sequences of four steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.campaigns import BEGINNINGS, MOVING_BEGINNINGS
from tests.support.running import fast_directory
from tests.support.small_scope import Enumeration

SEED = int(os.environ.get("STRICTQ_SMALL_SCOPE_SEED", "0"))
SHARES = 6


@pytest.fixture
def enumeration(tmp_path: Path) -> Iterator[Enumeration]:
    with fast_directory(tmp_path) as place:
        made = Enumeration(place, witnessed=0.06)
        yield made
        made.close()


def test_every_sequence_of_three_steps(enumeration: Enumeration) -> None:
    assert len(enumeration.beginnings(2)) == BEGINNINGS
    enumeration.all_below((), 3)
    assert enumeration.done["of 3"] > 300


def test_a_sixth_of_the_sequences_of_four_steps_and_some_of_five(enumeration: Enumeration) -> None:
    for beginning in enumeration.beginnings(2)[SEED % SHARES :: SHARES]:
        enumeration.all_below(beginning, 5, share=0.003, seed=SEED)
    assert enumeration.done["of 4"] > 600
    assert enumeration.done["of 5"] > 25
    assert enumeration.done["opened by another process"] > 0


@pytest.mark.slow
def test_a_sixth_of_the_sequences_of_three_steps_in_which_keys_move(tmp_path: Path) -> None:
    with fast_directory(tmp_path) as place, closing(Enumeration(place, witnessed=0.06, shards=2)) as enumeration:
        beginnings = enumeration.beginnings(2)
        assert len(beginnings) == MOVING_BEGINNINGS
        for beginning in beginnings[SEED % SHARES :: SHARES]:
            enumeration.all_below(beginning, 4, share=0.02, seed=SEED)
        assert enumeration.done["of 3"] > 90
        assert enumeration.done["of 4"] > 5
