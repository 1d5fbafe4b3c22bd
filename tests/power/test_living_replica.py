"""After a power cut of a replica's host, everything confirmed is stored, and receiving and promoting continue."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import QueueNotFound, StoreBusy, StrictqError
from strictq import _files as files
from strictq._store.shipping.rebuild import PageFiles
from strictq.replication import replica_log
from strictq.replication.promoting import promote
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import STATE, ApplyingMark
from strictq.replication.segment import decode_header
from strictq.testing import FakeClock
from tests.support.powercut import quiet, recording
from tests.support.powercut_campaign import fast_directory
from tests.support.powercut_disk import MODES, Op, Platter, put_out
from tests.support.powercut_verify import Broken
from tests.support.replicas import segments
from tests.support.shipping import shipping_to, until

MESSAGES = 4
EVERY = 10
"""One of so many points is cut in the normal case."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as directory:
        yield directory


@attrs.frozen
class ReceivedRun:
    """The recording. Entries "confirmed" have the number of messages that the replica certainly has; "promoted" ends it."""

    start: Any
    ops: list[Op]
    segments: list[bytes]


def shipped(place: Path, clock: FakeClock) -> list[bytes]:
    """Return the segments of a queue that gets one more message with each."""
    with quiet(clock), strictq.open(place / "q", durability="process", clock=clock) as q, shipping_to(q, place / "t") as shipper:
        for n in range(MESSAGES):
            q.send(b"%d" % n, key="k")
            shipper.round()
            clock.advance(1)
    return segments(place / "t")


def begin(home: Path, clock: FakeClock) -> ReceivedSegments:
    return ReceivedSegments(home, clock)


def record(place: Path, clock: FakeClock) -> ReceivedRun:
    """Receive one segment after the other, in two processes, and promote."""
    data = shipped(place, clock)
    header = decode_header(data[0], 0)
    (place / "recorded").mkdir()
    with recording(place / "recorded", clock) as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_log, "ROTATE_BYTES", 1)  # so that the log is emptied after each segment
        home = journal.root / "r"
        for part in (range(MESSAGES // 2), range(MESSAGES // 2, MESSAGES)):
            replica = begin(home, clock)
            replica.claim(header.queue_id, header.history_id, "")
            for n in part:
                replica.put(n, data[n])
                journal.note("confirmed", at=n + 1)
                _until_applied(home, n, clock)
            replica.close()
        clock.advance(60)
        promote(home, clock=clock)
        journal.note("promoted")
        journal.recording = False
    return ReceivedRun(journal.start, journal.ops, data)


def _until_applied(home: Path, n: int, clock: FakeClock) -> None:
    until(lambda: (found := ApplyingMark.read(home, clock)) is not None and found.n >= n)


def judge(run: ReceivedRun, image: Path, clock: FakeClock, *, every: int) -> int:
    """Cut the power at each point, start again, and verify the result. Return the number of images.

    Raises:
        Broken: something confirmed is missing, or receiving or promoting does not continue.
    """
    platter, confirmed, promoted, judged = Platter(run.start), 0, False, set()
    for i, op in enumerate(run.ops):
        platter.follow(op)
        if op.kind == "confirmed":
            confirmed = op.at
        elif op.kind == "promoted":
            promoted = True
        elif i % every:
            continue
        for mode in MODES:
            chance = random.Random(i)
            disk = platter.cut(mode, chance)
            if (disk.fingerprint(), confirmed, promoted) in judged:
                continue
            judged.add((disk.fingerprint(), confirmed, promoted))
            put_out(disk, image, chance)
            try:
                with quiet(clock):
                    _go_on(run, image / "r", confirmed, promoted, clock)
            except StrictqError as e:
                raise Broken(f"behind entry {i}, {mode}, of {confirmed} confirmed: {e}") from e
    return len(judged)


def _go_on(run: ReceivedRun, home: Path, confirmed: int, promoted: bool, clock: FakeClock) -> None:
    clock.reboot()
    _look(home, clock)
    replica = begin(home, clock)
    try:
        if replica.state.role == "replica":
            if promoted:
                raise Broken("it was promoted, and is a replica again")
            header = decode_header(run.segments[0], 0)
            replica.claim(header.queue_id, header.history_id, "")
            head = replica.head()
            have = 0 if head is None else head.n + 1
            if have < confirmed:
                raise Broken(f"{confirmed} segments were confirmed, and there are {have}")
            for n in range(have, MESSAGES):
                replica.put(n, run.segments[n])
            _until_applied(home, MESSAGES - 1, clock)
            with strictq.open(home, read_only=True, clock=clock) as look:
                _require(look)
    finally:
        replica.close()
    promote(home, force=True, clock=clock)
    with strictq.open(home, durability="process", clock=clock) as q:
        _require(q)
        if len(q.receive(100)) != MESSAGES:
            raise Broken("it does not hand out what it has")


def _look(home: Path, clock: FakeClock) -> None:
    """Look before the replica is started: that is refused, or shows a state of the queue."""
    try:
        look = strictq.open(home, read_only=True, clock=clock)
    except (StoreBusy, QueueNotFound):
        return
    with look:
        found = [m.body for m in look.peek("k", 100)]
        if found != [b"%d" % n for n in range(len(found))] or look.check():
            raise Broken("a look sees no state of the queue")


def _require(q: strictq.Queue) -> None:
    if [m.body for m in q.peek("k", 100)] != [b"%d" % n for n in range(MESSAGES)] or q.check():
        raise Broken("messages are missing, or damaged")


def test_what_a_replica_confirmed_survives_a_power_cut(place: Path) -> None:
    clock = FakeClock()
    assert judge(record(place, clock), place / "image", clock, every=EVERY) > 60


class UnsyncedLog:
    """The module os for the log, with an fdatasync that does nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        """Leave it to the system."""


def _unsynced_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_log, "os", UnsyncedLog())


def _unsynced_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageFiles, "sync", lambda _self: None)


def _unsynced_state(patch: pytest.MonkeyPatch) -> None:
    real = files.replace_durably

    def replace(path: Path, data: bytes) -> None:
        (files.replace if path.name == STATE else real)(path, data)

    patch.setattr(files, "replace_durably", replace)


def _unsynced_mark(patch: pytest.MonkeyPatch) -> None:
    """Keep the mark that live/ was synced when it is written to."""

    def begin(self: ApplyingMark) -> None:
        self._write(False, self._boot)

    patch.setattr(ApplyingMark, "begin", begin)


@pytest.mark.parametrize("weaken", [_unsynced_log, _unsynced_pages, _unsynced_state, _unsynced_mark])
def test_each_sync_of_a_replica_is_needed(
    weaken: Callable[[pytest.MonkeyPatch], None], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with monkeypatch.context() as patch:
        weaken(patch)
        run = record(place, clock)
    with pytest.raises(Broken):
        judge(run, place / "image", clock, every=1)
