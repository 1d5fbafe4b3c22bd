"""Random walks of two openers of one shard of format 3, against a naive model: see `tests/support/lane_walk.py`.

`python -m tests.campaigns walks` takes as many as one likes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.lane_walk import STEPS, walk

WALKS = 40


@pytest.mark.slow
def test_both_memories_and_one_built_afresh_equal_the_model_after_each_step(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    for seed in range(WALKS):
        try:
            done += walk(seed, tmp_path)
        except BaseException as e:
            e.add_note(f"seed {seed}: python -m tests.campaigns walks --seed {seed} --rounds 1")
            raise
    assert done.keys() == {*STEPS, "interrupted"}  # each kind of step was taken


def test_a_redriven_message_behind_the_window_of_another_process(tmp_path: Path) -> None:
    """The one that wrote the row had less of the lane loaded: the parts of its ids do not have the message."""
    walk(9027, tmp_path)
