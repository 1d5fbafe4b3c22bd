"""Random walks of two openers of one shard of format 3, against a naive model: see `tests/support/lane_walk.py`.

STRICTQ_LANE_WALKS=2000 takes that many walks, from a seed of its own, instead of the few that the suite always takes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

from tests.support.lane_walk import STEPS, walk

WALKS = int(os.environ.get("STRICTQ_LANE_WALKS", "0"))


def test_both_memories_and_one_built_afresh_equal_the_model_after_each_step(tmp_path: Path) -> None:
    first = random.randrange(1 << 30) if WALKS else 0
    done: Counter[str] = Counter()
    for seed in range(first, first + (WALKS or 40)):
        try:
            done += walk(seed, tmp_path)
        except BaseException as e:
            e.add_note(f"seed {seed}: python -m tests.support.lane_walk {seed} {seed + 1}")
            raise
    assert done.keys() == {*STEPS, "interrupted"}  # each kind of step was taken
