"""A receive at "full" is not synced: what a power cut may lose of it, and what it may not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

import strictq
from strictq._store.commit.writer import Writer
from strictq._store.disk import layout, wal_file
from strictq.testing import FakeClock
from tests.support.internals import store_of
from tests.support.powercut import Journal, quiet, recording
from tests.support.powercut_disk import Platter, put_out
from tests.support.powercut_run import PLACE
from tests.support.recorded_batches import holder

FRAME = wal_file.FRAME_HEADER_BYTES + 4096


def boot(root: Path, clock: FakeClock, program: Callable[[strictq.Queue, Journal], None]) -> Path:
    """Run a program on the queue under `root`, cut the power at its end, and boot.

    Return a new root, with only what was synced.
    """
    root.mkdir(exist_ok=True)
    with recording(root, clock) as journal:
        queue = strictq.open(journal.root / PLACE, clock=clock)
        program(queue, journal)
        journal.recording = False
        store_of(queue).die()
    platter = Platter(journal.start)
    for op in journal.ops:
        platter.follow(op)
    image = root.with_name(f"{root.name}-cut")
    put_out(platter.cut("none", random.Random(0)), image, random.Random(3))
    clock.reboot()
    return image


def syncs(journal: Journal) -> int:
    return sum(op.kind == "sync" for op in journal.ops)


def test_a_power_cut_may_forget_a_receive_and_its_attempt_but_no_token(place: Path) -> None:
    clock = FakeClock()
    tokens: list[int] = []

    def receives(queue: strictq.Queue, journal: Journal) -> None:
        queue.send(b"body", "k")
        before = syncs(journal)
        (d,) = queue.receive(1)
        assert syncs(journal) == before
        tokens.append(d.token)

    image = boot(place / "first", clock, receives)
    with quiet(clock), strictq.open(image / PLACE, clock=clock) as queue:
        (d,) = queue.receive(1)
        assert (d.body, d.attempt) == (b"body", 1)
        assert d.token > tokens[0]
        d.ack()
        assert queue.check() == []


def test_an_ack_takes_the_receive_before_it_along(place: Path) -> None:
    clock = FakeClock()

    def acks(queue: strictq.Queue, journal: Journal) -> None:
        queue.send(b"1", "k")
        queue.send(b"2", "other")
        (d,) = queue.receive(1)
        queue.receive(1)
        before = syncs(journal)
        d.ack()
        assert syncs(journal) == before + 1

    image = boot(place / "first", clock, acks)
    with quiet(clock), strictq.open(image / PLACE, clock=clock) as queue:
        assert [(d.body, d.attempt) for d in queue.receive(10)] == [(b"2", 2)]


def test_a_message_that_brings_the_machine_down_is_found(place: Path) -> None:
    """Messages stored when the machine booted are leased with a sync, so each later power cut charges an attempt."""
    clock = FakeClock()
    attempts: list[int] = []

    def dies(queue: strictq.Queue, journal: Journal) -> None:
        if not attempts:
            queue.send(b"panic", "k")
        queue.send(b"later", "other")
        (d,) = queue.receive(1, keys=["k"])
        attempts.append(d.attempt)

    root = place / "boot"
    for _ in range(4):
        root = boot(root, clock, dies)
    assert attempts == [1, 1, 2, 3]


def test_what_was_sent_since_the_boot_is_leased_without_a_sync(place: Path) -> None:
    clock = FakeClock()
    image = boot(place / "first", clock, lambda queue, _journal: queue.send(b"old", "k") and None)

    def receives(queue: strictq.Queue, journal: Journal) -> None:
        queue.send(b"new", "other")
        before = syncs(journal)
        (old,) = queue.receive(1)
        assert (old.body, syncs(journal)) == (b"old", before + 1)
        (new,) = queue.receive(1)
        assert (new.body, syncs(journal)) == (b"new", before + 1)

    boot(image, clock, receives)


def test_of_many_receives_some_are_synced(place: Path) -> None:
    """So a power cut can't tear more commits than the damage detector allows for, in any number of processes."""
    clock = FakeClock()
    synced: list[int] = []

    def receives(queue: strictq.Queue, journal: Journal) -> None:
        queue.send_many([strictq.Message(b"", key=f"k{n}") for n in range(12)])
        with strictq.open(journal.root / PLACE, clock=clock) as other:
            other.receive(1)  # opens its connection
            for n in range(10):
                before = syncs(journal)
                (queue, other)[n % 2].receive(1)
                synced.append(syncs(journal) - before)

    boot(place / "first", clock, receives)
    assert sum(synced) == 2
    first, second = (n for n, some in enumerate(synced) if some)
    assert second - first == wal_file.UNSYNCED_MAX + 1


@pytest.mark.parametrize("crossing", ["a statement", "a transaction", "a record"])
def test_commits_of_two_processes_that_cross_are_counted(crossing: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process commits after this one has counted, or before this one records that its commit was synced."""
    clock = FakeClock()
    synced: list[bool] = []

    def receives(queue: strictq.Queue, journal: Journal) -> None:
        queue.send_many([strictq.Message(b"", key=f"k{n:02}") for n in range(40)])
        with strictq.open(journal.root / PLACE, clock=clock) as other:

            def receive(here: strictq.Queue) -> None:
                before = syncs(journal)
                assert here.receive(1)
                synced.append(syncs(journal) > before)

            def cross() -> None:
                monkeypatch.undo()
                for _ in range(wal_file.UNSYNCED_MAX):
                    receive(other)

            def counted(writer: Writer) -> int:
                commits = count(writer)
                cross()
                return commits

            def recorded(*args: int) -> None:
                synced.append(True)
                cross()
                record(*args)

            for here in (other, queue, other, queue):  # both have read what there is
                receive(here)
            queue.send(b"", key="k00")
            synced.append(True)
            store, count = store_of(queue), Writer._unsynced_commits
            record = store.note_synced
            if crossing == "a record":
                monkeypatch.setattr(store, "note_synced", recorded)
                queue.send(b"", key="k00")
            else:
                receive(queue)
                monkeypatch.setattr(Writer, "_unsynced_commits", counted)
                if crossing == "a transaction":
                    monkeypatch.setattr(Writer, "direct", lambda *_args, **_named: None)
                receive(queue)
            for n in range(2 * wal_file.UNSYNCED_MAX):
                receive((other, queue)[n % 2])

    boot(place / "first", clock, receives)
    runs = [len(list(run)) for some, run in groupby(synced) if not some]
    assert max(runs) <= wal_file.UNSYNCED_MAX
    assert len(synced) > 4 * wal_file.UNSYNCED_MAX
    assert sum(synced) < len(synced) / 2


@pytest.mark.parametrize("verb", ["ack first", "recorded batch"])
def test_what_a_receive_resolves_or_records_is_synced(verb: str, place: Path) -> None:
    clock = FakeClock()

    def receives(queue: strictq.Queue, journal: Journal) -> None:
        queue.send(b"1", "k")
        before = syncs(journal)
        if verb == "ack first":
            assert queue.receive(1, ack_first=True)
            assert syncs(journal) > before
        else:
            taker = holder(queue)
            before = syncs(journal)
            assert taker.take(0) == 1
            assert syncs(journal) > before

    image = boot(place / "first", clock, receives)
    with quiet(clock), strictq.open(image / PLACE, clock=clock) as queue:
        assert queue.receive(1) == []


def torn(queue: Path, behind: int) -> None:
    """Damage the frame that is followed by this many of the WAL's commits, of one page each."""
    wal = queue / "shard-0000.db-wal"
    raw = bytearray(wal.read_bytes())
    frames = (len(raw) - wal_file.HEADER_BYTES) // FRAME
    at = wal_file.HEADER_BYTES + (frames - behind - 1) * FRAME + wal_file.FRAME_HEADER_BYTES
    raw[at : at + 4] = struct.pack(">I", struct.unpack_from(">I", raw, at)[0] ^ 1)
    wal.write_bytes(raw)
    (queue / "shard-0000.db-shm").unlink(missing_ok=True)


def filled(queue: Path, clock: FakeClock) -> None:
    """Make a queue of a killed process, whose WAL ends in commits of one page."""
    with quiet(clock), strictq.open(queue, clock=clock) as q:
        for n in range(30):
            q.send(b"%d" % n, "k")
        marks = (queue / layout.MARKS).read_bytes()
        store_of(q).die()
    (queue / layout.MARKS).write_bytes(marks)  # it is killed before it can record the end of the WAL


@pytest.mark.parametrize(("behind", "rebooted", "damaged"), [(1, False, True), (4, True, False), (5, True, True)])
def test_more_commits_behind_a_tear_than_a_power_cut_can_leave_are_damage(
    behind: int, rebooted: bool, damaged: bool, tmp_path: Path
) -> None:
    """The last commit may be half written, and UNSYNCED_MAX before it may be unsynced. Within a boot nothing is torn."""
    clock = FakeClock()
    queue = tmp_path / PLACE
    filled(queue, clock)
    torn(queue, behind)
    if rebooted:
        clock.reboot()
    with quiet(clock):
        if damaged:
            with pytest.raises(strictq.StoreCorrupt, match="WAL is damaged"), strictq.open(queue, clock=clock) as q:
                q.send(b"", "k")
        else:
            with strictq.open(queue, clock=clock) as q:
                assert len(q.peek("k", 100)) == 30 - behind - 1
