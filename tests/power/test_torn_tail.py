"""What one power cut took from a WAL does not return after the next cut, which may complete the torn WAL."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import strictq
from strictq._store.commit import checkpoint
from strictq._store.disk import layout, wal_file
from strictq._store.whole.store import Store
from strictq.testing import FakeClock
from tests.support.internals import store_of
from tests.support.powercut import quiet, recording
from tests.support.powercut_disk import Platter, put_out
from tests.support.powercut_run import PLACE

FRAME = wal_file.FRAME_HEADER_BYTES + 4096


def wal_of(queue: Path) -> Path:
    return queue / "shard-0000.db-wal"


def bodies(queue: Path, clock: FakeClock) -> list[bytes]:
    with quiet(clock), strictq.open(queue, clock=clock, create=False) as q:
        found = [m.body for m in q.peek("k", 100)]
        store_of(q).die()
    return found


def first_boot(place: Path, clock: FakeClock) -> tuple[Path, bytes]:
    """Send five messages at "process", and cut the power: the frames of the third are lost, and later ones are not.

    Return the queue, and the complete WAL.
    """
    queue = place / PLACE
    with quiet(clock), strictq.open(queue, durability="process", clock=clock) as q:
        ends = []
        for n in range(5):
            q.send(b"%d" % n, "k")
            ends.append(wal_of(queue).stat().st_size)
        whole, marks = wal_of(queue).read_bytes(), (queue / layout.MARKS).read_bytes()
        store_of(q).die()
    (queue / layout.MARKS).write_bytes(marks)  # the power was cut before the process ended
    torn = bytearray(whole)
    torn[ends[1] : ends[1] + 512] = bytes(512)
    wal_of(queue).write_bytes(torn)
    (queue / "shard-0000.db-shm").unlink()
    clock.reboot()
    return queue, whole


def second_boot(queue: Path, clock: FakeClock, place: Path) -> tuple[list[bytes], Path]:
    """Open the queue, let it commit, and cut the power again: only what was synced is on the disk.

    Return what it delivered first, and the remaining disk.
    """
    with recording(queue.parent, clock) as journal:
        q = strictq.open(queue, clock=clock, create=False)
        found = [m.body for m in q.peek("k", 100)]
        q.send(b"later", "other")
        journal.recording = False
        store_of(q).die()
    platter = Platter(journal.start)
    for op in journal.ops:
        platter.follow(op)
    put_out(platter.cut("none", random.Random(0)), place / "image", random.Random(3))
    clock.reboot()
    return found, place / "image" / PLACE


def make_whole(queue: Path, whole: bytes) -> None:
    """Complete the WAL, as the second cut may: the sectors where it was torn hold what the first boot was to write there.

    A commit of the second boot writes these sectors. Of two writes of one page most sectors are equal.
    """
    raw = bytearray(wal_of(queue).read_bytes())
    torn = next((at for at in range(0, min(len(raw), len(whole)), 512) if raw[at : at + 512] != whole[at : at + 512]), None)
    if torn is not None:
        raw[torn : torn + 1024] = whole[torn : torn + 1024]
    wal_of(queue).write_bytes(raw)


def test_what_a_cut_took_stays_away_after_the_next_cut(place: Path) -> None:
    (place / "recorded").mkdir()
    clock = FakeClock()
    queue, whole = first_boot(place / "recorded", clock)
    found, image = second_boot(queue, clock, place)
    assert found == [b"0", b"1"]
    make_whole(image, whole)
    assert bodies(image, clock) in ([b"0", b"1"], [b"0", b"1", b"2"]), "no commit behind the tear"


def test_the_old_way_brings_it_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous test would notice it."""
    monkeypatch.setattr(checkpoint.ShardWal, "drop_torn", lambda *_args: None)
    (place / "recorded").mkdir()
    clock = FakeClock()
    queue, whole = first_boot(place / "recorded", clock)
    found, image = second_boot(queue, clock, place)
    assert found == [b"0", b"1"]
    make_whole(image, whole)
    assert bodies(image, clock) == [b"%d" % n for n in range(5)]


def test_only_what_lies_behind_the_last_commit_is_dropped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first open of a boot drops it, before anything is written."""
    monkeypatch.setattr(Store, "_end_boot", lambda _store: None)  # the first write, which ends the leases of the last boot
    clock = FakeClock()
    queue, whole = first_boot(place, clock)
    torn = wal_of(queue).stat().st_size
    assert bodies(queue, clock) == [b"0", b"1"]
    kept = wal_of(queue).read_bytes()
    assert 0 < len(kept) < torn
    assert kept == whole[: len(kept)]
    assert (len(kept) - wal_file.HEADER_BYTES) % FRAME == 0
    assert bodies(queue, clock) == [b"0", b"1"]
