"""Bits that flip in the files of a closed queue: what is handed out is what was sent, or somebody is told.

A few hundred flips. For a long campaign set STRICTQ_FLIPS to their number (for each kind of file), and STRICTQ_FLIP_SEED to
start from other random numbers:

    STRICTQ_FLIPS=2000 python -m pytest -n 4 tests/faults/test_corruption.py
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.flips import FILES, MARKS, SHM, flip_some, original

FLIPS = int(os.environ.get("STRICTQ_FLIPS", "100"))
SEED = int(os.environ.get("STRICTQ_FLIP_SEED", "1"))


@pytest.mark.parametrize(("name", "checkpointed", "durability"), FILES)
def test_a_flipped_bit_is_never_silent_and_the_other_shard_goes_on(
    name: str, checkpointed: bool, durability: str, place: Path
) -> None:
    made = original(place, checkpointed=checkpointed, durability=durability)
    told = flip_some(made, name, random.Random(SEED), FLIPS)
    if name in (SHM, MARKS):
        assert not told
    else:
        assert told > FLIPS // 10, "the flips hit nothing"
