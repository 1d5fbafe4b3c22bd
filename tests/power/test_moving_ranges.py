"""The power is cut while a range moves: every key goes on, in the shard that has it, before anything is repaired."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Literal

import pytest

import strictq
from strictq import MoveBlocked
from strictq.testing import FakeClock
from tests.support.internals import store_of
from tests.support.moved_ranges import CONFIG, HI, KEYS, LO, Before, go_on, prepare, small_steps
from tests.support.powercut import quiet, recording
from tests.support.powercut_disk import MODES, Platter, put_out

IMAGES = int(os.environ.get("STRICTQ_POWERCUT_IMAGES", "1000")) // 100


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("durability", ["full", "process"])
def test_a_cut_at_any_point_of_a_move(durability: Literal["full", "process"], cancelled: bool, place: Path) -> None:
    """A range moves to a new shard, and back, or is cancelled in between. While lanes move, every key is sent to."""
    clock = FakeClock()
    sends: list[tuple[int, str, int]] = []
    """How much was written when a send had returned, its key and its seq."""
    (place / "recorded").mkdir()
    with small_steps(), recording(place / "recorded", clock) as journal:
        journal.reads_commits = False
        q = strictq.open(journal.root / "q", durability=durability, config=CONFIG, clock=clock)
        prepare(q, clock)
        for shard in store_of(q).shards:
            shard.sync()
        began, before = len(journal.ops), Before.of(q)

        def send(*_: int) -> None:
            for key in KEYS:
                seq = q.send(b"meanwhile", key=key).seq
                sends.append((len(journal.ops), key, seq))

        def cancel(*_: int) -> None:
            send()
            if len(sends) >= 2 * len(KEYS):
                assert q.cancel_move()
                send()

        if cancelled:
            with pytest.raises(MoveBlocked, match="cancelled"):
                q.move(LO, HI, to=None, on_progress=cancel)
        else:
            q.move(LO, HI, to=None, on_progress=send)
            q.merge(1, into=0, on_progress=send)
        journal.recording = False
        store_of(q).die()

    chance, platter = random.Random(f"{durability} {cancelled}"), Platter(journal.start)
    cuts = set(chance.sample(range(began, len(journal.ops)), min(IMAGES, len(journal.ops) - began)))
    were_moving = set()
    for index, op in enumerate(journal.ops):
        platter.follow(op)
        if index not in cuts:
            continue
        put_out(platter.cut(chance.choice(MODES) if platter.pending else "none", chance), place / "image", chance)

        def sent(key: str, new: int, index: int = index) -> list[int]:
            """Return the seqs of sends before the next one. At "full" all that had returned are there."""
            mine = [seq for at, of, seq in sends if of == key and (seq < new or (at <= index + 1 and durability == "full"))]
            return sorted(mine)

        clock.reboot()
        with quiet(clock), strictq.open(place / "image" / "q", clock=clock) as q:
            were_moving.add(go_on(q, clock, before, sent))
    assert were_moving == {True, False}
