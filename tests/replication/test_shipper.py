"""A shipper that is stopped at any step, or meets what it did not expect, and the one that goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import strictq
from strictq import Diverged, Message, Queue, ReplicaGap, TargetUnavailable
from strictq.replication import shipper as module
from strictq.replication.directory import DirectoryTarget
from strictq.replication.restoring import look, points_of, restore
from strictq.replication.segment import SegmentHeader
from strictq.replication.shipper import Shipper
from strictq.testing import FakeClock
from tests.support.queues import Opener
from tests.support.shipping import ship_once, shipper_of, shipping_to


class StoppedHere(Exception):
    """In the place of a kill."""


def bodies(path: Path) -> list[bytes]:
    """What a restored queue has, by key and seq."""
    with strictq.open(path, read_only=True) as q:
        keys = sorted({str(k.key) for k in q.top_keys(10_000)})
        assert q.check() == []
        return [m.body for key in keys for m in q.peek(key, 100_000)]


def restored(target: Path, cut: int | None = None) -> list[bytes]:
    """What the newest state has."""
    place = target.with_name(f"restored-{len(list(target.parent.iterdir()))}")
    restore(target, place, cut=cut)
    return bodies(place)


def expected(*numbers: int) -> list[bytes]:
    return [b"%d" % n for n in numbers]


def send(q: Queue, *numbers: int) -> None:
    for n in numbers:
        q.send(b"%d" % n, key="k")


def test_rounds_ship_what_changed_and_nothing_else(disk: Opener, target: Path) -> None:
    q = disk(shards=2)
    shipper = shipper_of(q, target)
    send(q, 1)
    assert shipper.round()
    assert not shipper.round()
    send(q, 2)
    assert shipper.round()
    assert shipper.done.segments == 2
    assert shipper.done.pages > DirectoryTarget(target).header(1).parts[0].count  # the base has far more
    assert len(DirectoryTarget(target).header(1).parts) == 1  # one shard changed
    shipper.close()
    assert [restored(target, n) for n in (0, 1)] == [expected(1), expected(1, 2)]


def test_the_next_shipper_goes_on_where_the_last_one_stopped(disk: Opener, target: Path) -> None:
    q = disk(shards=2)
    send(q, 1)
    ship_once(q, target)
    send(q, 2)
    after = ship_once(q, target)
    assert (after.done.resumed, after.done.wholes, after.done.segments) == (2, 0, 1)
    assert restored(target) == expected(1, 2)


def test_the_next_process_goes_on_with_the_wal_that_was_left(disk: Opener, target: Path) -> None:
    q = disk()
    q.configure_replication(target, interval_seconds=3600)
    send(q, 1)
    q.close()
    assert restored(target) == expected(1)
    again = disk()
    send(again, 2)
    again.close()
    assert [DirectoryTarget(target).header(n).base for n in DirectoryTarget(target).numbers()[1:]] == [0] * (
        look(target).points - 1
    )
    assert restored(target) == expected(1, 2)


def test_a_wal_that_began_again_is_distinguished_from_one_that_was_lost(
    disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shipper that is killed behind a seal: the next one finds the next WAL, and that nothing is missing in between."""
    q = disk()
    first = shipper_of(q, target)
    first.round()
    first._capture._seal_at = 1
    send(q, 1)
    send(q, 2)
    first.round()  # seals
    send(q, 3)  # begins the WAL again, which is shorter now
    first.close()
    after = ship_once(q, target)
    assert (after.done.resumed, after.done.wholes) == (1, 0)
    assert restored(target) == expected(1, 2, 3)


def test_seals_let_the_wal_begin_again(disk: Opener, target: Path) -> None:
    q = disk()
    shipper = shipper_of(q, target)
    shipper._capture._seal_at = 50
    most = 0
    for n in range(1, 60):
        send(q, n)
        shipper.round()
        most = max(most, q.stats().wal_bytes)
    shipper.close()
    assert most < 80 * 4120
    assert restored(target) == expected(*range(1, 60))
    assert [restored(target, n) for n in (5, 30, 58)] == [expected(*range(1, last)) for last in (7, 32, 60)]


def test_what_was_checkpointed_while_nobody_shipped_is_shipped_whole(disk: Opener, target: Path) -> None:
    q = disk(shards=2)
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(20)])
    ship_once(q, target)
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(20, 40)])
    q._storage.checkpoint()  # as a release that knows nothing of replication does
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(40, 60)])
    after = ship_once(q, target)
    assert (after.done.resumed, after.done.wholes) == (0, 1)  # all of them whole: that is a base
    assert sorted(map(int, restored(target))) == list(range(60))


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("landed", [False, True])
def test_a_shipper_that_is_stopped_at_a_segment(
    disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch, step: int, landed: bool
) -> None:
    """Of a cut of several segments, too; before the segment is written, or behind it."""
    monkeypatch.setattr(module, "PAGES_MAX", 7)
    q = disk(shards=2)
    send(q, 1)
    count = 0
    put = DirectoryTarget.put

    def stops(self: DirectoryTarget, n: int, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == step + 1 and not landed:
            raise StoppedHere
        put(self, n, data)

    def stops_behind(_header: SegmentHeader) -> None:
        if count == step + 1 and landed:
            raise StoppedHere

    monkeypatch.setattr(DirectoryTarget, "put", stops)
    shipper = shipper_of(q, target, on_put=stops_behind)
    with pytest.raises(StoppedHere):
        for n in range(2, 9):
            shipper.round()
            send(q, n)
    shipper.close()
    sent = q.stats().sends
    ship_once(q, target)
    assert restored(target) == expected(*range(1, sent + 1))
    for n, _ in points_of(target):
        got = restored(target, n)
        assert got == expected(*range(1, len(got) + 1))


@pytest.mark.parametrize("landed", [False, True])
def test_a_put_that_failed_is_repeated(disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    """Whether it happened is not known: the answer was lost, say."""
    q = disk(shards=2)
    shipper = shipper_of(q, target)
    send(q, 1)
    shipper.round()
    put, fails = DirectoryTarget.put, [True] * 3

    def unsure(self: DirectoryTarget, n: int, data: bytes) -> None:
        if landed:
            put(self, n, data)
        if fails:
            fails.pop()
            raise TargetUnavailable("gone", "t")
        if not landed:
            put(self, n, data)

    monkeypatch.setattr(DirectoryTarget, "put", unsure)
    for n in range(2, 5):
        send(q, n)
        with pytest.raises(TargetUnavailable):
            shipper.round()
    send(q, 5)
    assert shipper.round()
    assert shipper.done.wholes == 1
    shipper.close()
    assert restored(target) == expected(1, 2, 3, 4, 5)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_segment_that_arrives_late_stops_nothing(
    disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Its connection was given up, and the target reads it when the next segment is on its way."""
    q = disk(shards=2)
    shipper = shipper_of(q, target)
    send(q, 1)
    shipper.round()
    put, late, arrived = DirectoryTarget.put, list[tuple[int, bytes]](), False

    def slow(self: DirectoryTarget, n: int, data: bytes) -> None:
        nonlocal arrived
        if len(late) < failures:
            late.append((n, data))
            raise TargetUnavailable("it took too long", "t")
        if not arrived:
            arrived = True
            put(self, *late[0])
        put(self, n, data)

    monkeypatch.setattr(DirectoryTarget, "put", slow)
    for n in range(2, 2 + failures):
        send(q, n)
        with pytest.raises(TargetUnavailable):
            shipper.round()
    send(q, 9)
    assert shipper.round()
    assert not shipper.round()
    assert shipper.done.wholes == 1
    shipper.close()
    assert restored(target) == expected(*range(1, 2 + failures), 9)


def test_a_segment_of_a_killed_process_that_arrives_late_stops_nothing(
    disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel goes on sending what the process had sent, and the next process ships meanwhile."""
    q = disk(shards=2)
    send(q, 1)
    ship_once(q, target)
    put, late = DirectoryTarget.put, list[tuple[int, bytes]]()

    def lose(_self: DirectoryTarget, n: int, data: bytes) -> None:
        late.append((n, data))
        raise TargetUnavailable("killed", "t")

    def arrive(self: DirectoryTarget, n: int, data: bytes) -> None:
        if late:
            put(self, *late.pop())
        put(self, n, data)

    monkeypatch.setattr(DirectoryTarget, "put", lose)
    send(q, 2)
    with pytest.raises(TargetUnavailable):
        ship_once(q, target)
    send(q, 3)
    monkeypatch.setattr(DirectoryTarget, "put", arrive)
    assert ship_once(q, target).done.wholes == 0
    assert not late
    assert restored(target) == expected(1, 2, 3)


def test_a_put_that_fails_behind_a_seal_loses_nothing(disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk()
    shipper = shipper_of(q, target)
    shipper.round()
    shipper._capture._seal_at = 1
    seal, put, seals = shipper._capture.seal, DirectoryTarget.put, []

    def write_and_seal() -> bool:
        send(q, 2)  # is captured by the seal alone
        seals.append(seal())
        return seals[-1]

    def fail(*_: object) -> None:
        raise TargetUnavailable("gone", "t")

    monkeypatch.setattr(shipper._capture, "seal", write_and_seal)
    monkeypatch.setattr(DirectoryTarget, "put", lambda self, n, data: fail() if seals else put(self, n, data))
    send(q, 1)
    with pytest.raises(TargetUnavailable):
        shipper.round()
    assert seals == [True]
    send(q, 3)  # in the next WAL
    monkeypatch.undo()
    shipper.round()
    shipper.close()
    assert restored(target) == expected(1, 2, 3)


def test_two_copies_of_a_queue_can_not_ship_to_one_place(disk: Opener, target: Path, tmp_path: Path) -> None:
    q = disk()
    send(q, 1)
    ship_once(q, target)
    q.close()
    shutil.copytree(tmp_path / "queue", tmp_path / "copy")
    one, other = disk(), strictq.open(tmp_path / "copy", durability="process", clock=disk.clock)
    first, second = shipper_of(one, target), shipper_of(other, target)
    first.round()
    second.round()
    send(one, 2)
    send(other, 3)
    assert second.round()
    with pytest.raises(Diverged, match="another process wrote"):
        first.round()
    first.close()
    with pytest.raises(Diverged, match="another copy"):  # nor does it overwrite the replica when it begins again
        ship_once(one, target)
    send(other, 4)
    assert second.round()
    second.close()
    other.close()
    assert restored(target) == expected(1, 3, 4)


def test_a_queue_that_was_put_back_does_not_overwrite_its_replica(disk: Opener, target: Path, tmp_path: Path) -> None:
    """A snapshot of a virtual machine, say."""
    q = disk()
    send(q, 1)
    ship_once(q, target)
    q.close()
    shutil.copytree(tmp_path / "queue", tmp_path / "before")
    disk.clock.advance(10)
    q = disk()
    send(q, 2)
    ship_once(q, target)
    q.close()
    shutil.rmtree(tmp_path / "queue")
    shutil.copytree(tmp_path / "before", tmp_path / "queue")
    q = disk()
    with pytest.raises(Diverged, match="restored to an earlier state"):
        ship_once(q, target)
    assert restored(target) == expected(1, 2)


def test_segments_that_were_deleted_are_replaced_by_a_base(disk: Opener, target: Path) -> None:
    q = disk()
    shipper = shipper_of(q, target)
    send(q, 1)
    shipper.round()
    send(q, 2)
    shipper.round()
    for file in target.glob("*.seg"):
        file.unlink()
    send(q, 3)
    with pytest.raises(ReplicaGap):
        shipper.round()
    assert shipper.round()
    shipper.close()
    assert restored(target) == expected(1, 2, 3)


def test_a_damaged_last_segment_is_followed_by_a_base(disk: Opener, target: Path) -> None:
    q = disk()
    send(q, 1)
    ship_once(q, target)
    last = target / "0000000000000000.seg"
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 4
    last.write_bytes(data)
    send(q, 2)
    heals(q, target)
    assert restored(target) == expected(1, 2)


# ---- a shipper notices that its target's newest state can't be restored


def heals(q: Queue, target: Path | str) -> None:
    """A shipper that starts reports the gap first. Then it ships a base, and so does its successor if it ends before that."""
    with shipping_to(q, target) as shipper:
        with pytest.raises(ReplicaGap, match="until the whole queue is shipped again"):
            shipper.round()
        assert shipper.heals
        shipper.round()
        assert (shipper.heals, shipper.done.wholes) == (False, 1)


def shipped_five(q: Queue, target: Path) -> Shipper:
    shipper = shipper_of(q, target, verify_seconds=600)
    for n in range(1, 6):
        send(q, n)
        shipper.round()
    return shipper


def spoil(target: Path, how: str, n: int = 2) -> None:
    file = target / f"{n:016x}.seg"
    data = file.read_bytes()
    if how == "identity":
        (target / "replica.json").unlink()
    elif how == "damaged identity":
        (target / "replica.json").write_bytes(b"{")
    elif how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "flipped":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        file.write_bytes((target / f"{1:016x}.seg").read_bytes())


@pytest.mark.parametrize("how", ["missing", "identity", "damaged identity"])
def test_a_gap_is_noticed_within_a_minute(disk: Opener, target: Path, clock: FakeClock, how: str) -> None:
    q = disk()
    shipper = shipped_five(q, target)
    clock.advance(59)
    spoil(target, how)
    shipper.round()  # the names are not listed in every round
    clock.advance(1)
    with pytest.raises(ReplicaGap) as e:
        shipper.round()
    assert "find out what deletes" in e.value.hint
    shipper.round()
    assert shipper.done.wholes == 2
    assert restored(target) == expected(1, 2, 3, 4, 5)
    clock.advance(60)
    shipper.round()
    shipper.close()


def test_a_gap_is_noticed_at_the_start(disk: Opener, target: Path) -> None:
    q = disk()
    shipped_five(q, target).close()
    spoil(target, "missing")
    heals(q, target)
    assert restored(target) == expected(1, 2, 3, 4, 5)


@pytest.mark.parametrize("how", ["empty", "flipped", "foreign"])
@pytest.mark.parametrize("n", range(5))
def test_every_segment_is_verified_once_per_period(disk: Opener, target: Path, clock: FakeClock, how: str, n: int) -> None:
    q = disk()
    shipper = shipped_five(q, target)
    if (how, n) == ("foreign", 1):
        pytest.skip("its own content")
    spoil(target, how, n)
    with pytest.raises(ReplicaGap) as e:
        for _ in range(10):
            clock.advance(60)
            shipper.round()
    assert e.value.segment == n
    shipper.round()
    shipper.close()
    assert restored(target) == expected(1, 2, 3, 4, 5)


def test_a_look_reads_a_share_of_the_segments(
    disk: Opener, target: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = disk()
    shipper = shipped_five(q, target)
    get, read = DirectoryTarget.get, []
    monkeypatch.setattr(DirectoryTarget, "get", lambda self, n: read.append(n) or get(self, n))
    for _ in range(10):
        shipper.round()
    assert read == []
    for _ in range(5):
        clock.advance(60)
        shipper.round()
    shipper.close()
    assert read == [4, 0, 4, 1, 4, 2, 4, 3, 4, 4]  # the last one at each look, and each one in turn


def test_a_gap_of_an_idle_queue_is_reported_and_healed(disk: Opener, target: Path, clock: FakeClock) -> None:
    q = disk()
    shipper = shipped_five(q, target)
    (target / f"{4:016x}.seg").unlink()  # only the shipper knows that it was there
    clock.advance(60)
    with pytest.raises(ReplicaGap, match="segment 4 is missing"):
        shipper.round()
    assert shipper.round()
    shipper.close()
    assert restored(target) == expected(1, 2, 3, 4, 5)


def test_an_emptied_target_is_not_claimed_again(disk: Opener, target: Path, clock: FakeClock) -> None:
    q = disk()
    shipper = shipped_five(q, target)
    for file in target.iterdir():
        file.unlink()
    clock.advance(60)
    for _ in range(2):
        with pytest.raises(TargetUnavailable, match="not mounted"):
            shipper.round()
    shipper.close()
    assert os.listdir(target) == []


def test_a_queue_that_was_put_back_does_not_heal_its_replica(disk: Opener, target: Path, tmp_path: Path) -> None:
    q = disk()
    send(q, 1)
    ship_once(q, target)
    q.close()
    shutil.copytree(tmp_path / "queue", tmp_path / "before")
    disk.clock.advance(10)
    q = disk()
    for n in (2, 3):
        send(q, n)
        ship_once(q, target)
    q.close()
    shutil.rmtree(tmp_path / "queue")
    shutil.copytree(tmp_path / "before", tmp_path / "queue")
    spoil(target, "missing", 1)
    q = disk()
    with shipping_to(q, target) as shipper:
        with pytest.raises(ReplicaGap):
            shipper.round()
        with pytest.raises(Diverged, match="restored to an earlier state"):
            shipper.round()


# ---- how long a chain gets, and what is kept of it


def test_a_long_chain_gets_a_new_base_and_old_segments_go(
    disk: Opener, target: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHAIN_SEGMENTS_MAX", 5)
    q = disk(shards=2)
    shipper = shipper_of(q, target, keep_seconds=100)
    for n in range(1, 41):
        send(q, n)
        shipper.round()
        clock.advance(10)
    shipper.close()
    assert shipper.done.wholes >= 6
    kept = points_of(target)
    assert kept[0][1] <= clock.wall() / 1e6 - 100
    assert 10 <= len(kept) <= 20
    for n, _ in kept:
        got = restored(target, n)
        assert got == expected(*range(1, len(got) + 1))
    assert restored(target) == expected(*range(1, 41))


def test_a_big_chain_gets_a_new_base(disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAIN_BYTES_MIN", 1 << 15)
    q = disk()
    shipper = shipper_of(q, target)
    for _ in range(20):
        q.send(os.urandom(3000), key="k")
        shipper.round()
    assert shipper.done.wholes >= 2
    shipper.close()
    assert len(restored(target)) == 20


def test_a_restore_is_not_disturbed_by_retention(
    disk: Opener, target: Path, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHAIN_SEGMENTS_MAX", 3)
    q = disk()
    shipper = shipper_of(q, target, keep_seconds=0)
    sent = 0

    def go_on(rounds: int) -> None:
        nonlocal sent
        for _ in range(rounds):
            sent += 1
            send(q, sent)
            shipper.round()
            clock.advance(1)

    go_on(3)
    before = points_of(target)[-1][0]
    restore(target, tmp_path / "r", on_progress=lambda _done, _of: go_on(5))
    assert bodies(tmp_path / "r") == expected(1, 2, 3)
    go_on(5)
    assert DirectoryTarget(target).numbers()[0] > before  # it goes when nobody reads it any more
    shipper.close()
