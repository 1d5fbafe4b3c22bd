"""Queues that are made of a replica: which state, what they may do, and what is refused."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import strictq
from strictq import (
    ConfigError,
    Diverged,
    InvalidArgument,
    LeaseLost,
    QueueNotFound,
    ReplicaGap,
    StrictqError,
    TargetUnavailable,
)
from strictq.replication import shipper as module
from strictq.replication.directory import DirectoryTarget
from strictq.replication.restoring import look, points_of, restore
from strictq.testing import FakeClock
from tests.support.command import in_process
from tests.support.queues import Opener
from tests.support.shipping import ship_once, shipper_of


@pytest.fixture
def times(disk: Opener, target: Path, clock: FakeClock) -> list[float]:
    """Ship five messages, a segment each, ten seconds apart. When each was shipped."""
    q = disk()
    shipper = shipper_of(q, target)
    found = []
    for n in range(5):
        q.send(b"%d" % n, key="k")
        shipper.round()
        found.append(clock.wall() / 1e6)
        clock.advance(10)
    shipper.close()
    return found


def count(path: Path) -> int:
    with strictq.open(path, read_only=True) as q:
        assert q.check() == []
        return q.stats().ready


# ---- which state


@pytest.mark.smoke
def test_the_newest_state(times: list[float], target: Path, tmp_path: Path) -> None:
    done = strictq.restore(target, tmp_path / "r")
    assert (done.segment, done.base, done.segments, done.at) == (4, 0, 5, times[4])
    assert count(tmp_path / "r") == 5
    assert done.stored_bytes == sum(file.stat().st_size for file in target.glob("*.seg"))


@pytest.mark.parametrize(("after", "messages"), [(0.0, 1), (9.9, 1), (10.0, 2), (25.0, 3), (40.0, 5), (40.1, 5), (1e9, 5)])
def test_a_point_in_time(times: list[float], target: Path, tmp_path: Path, after: float, messages: int) -> None:
    for i, at in enumerate((times[0] + after, datetime.fromtimestamp(times[0] + after, UTC))):
        done = restore(target, tmp_path / f"r{i}", at=at)
        assert done.segment == messages - 1
        assert count(tmp_path / f"r{i}") == messages


@pytest.mark.parametrize("after", [-0.1, -1e9])
def test_a_point_in_time_before_the_oldest_state(times: list[float], target: Path, tmp_path: Path, after: float) -> None:
    with pytest.raises(InvalidArgument, match="is before it"):
        restore(target, tmp_path / "r", at=times[0] + after)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("at", [True, "now", float("nan"), float("inf"), 1e30, datetime(2026, 1, 1)])
def test_a_point_in_time_that_is_none(times: list[float], target: Path, tmp_path: Path, at: object) -> None:
    with pytest.raises(InvalidArgument):
        restore(target, tmp_path / "r", at=at)  # type: ignore[arg-type]


def test_a_state_by_its_number(times: list[float], target: Path, tmp_path: Path) -> None:
    assert restore(target, tmp_path / "r", cut=2).at == times[2]
    assert count(tmp_path / "r") == 3
    for wrong in (5, -1, True, "2"):
        with pytest.raises(InvalidArgument):
            restore(target, tmp_path / "x", cut=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not both"):
        restore(target, tmp_path / "x", cut=1, at=times[0])


def test_a_wall_time_that_came_twice_is_ambiguous(disk: Opener, target: Path, clock: FakeClock, tmp_path: Path) -> None:
    q = disk()
    shipper = shipper_of(q, target)
    walls = []
    for n in range(6):
        q.send(b"%d" % n, key="k")
        shipper.round()
        walls.append(clock.wall() / 1e6)
        clock.advance(10)
        if n == 2:
            clock.jump_wall(-15)
    shipper.close()
    assert walls[3] < walls[2]
    with pytest.raises(InvalidArgument, match="occurred more than once") as e:
        restore(target, tmp_path / "r", at=walls[3] + 1)
    assert "cut=1" in e.value.hint
    assert restore(target, tmp_path / "r1", at=walls[0]).segment == 0
    assert restore(target, tmp_path / "r2", at=walls[5]).segment == 5


def test_a_dry_run_makes_nothing(times: list[float], target: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    done = restore(target, tmp_path / "r", at=times[1], dry_run=True)
    assert (done.segment, done.history_id) == (1, None)
    assert sorted(os.listdir(tmp_path)) == before
    assert sorted(os.listdir(target)) == sorted([*(f"{n:016x}.seg" for n in range(5)), "replica.json"])


def test_what_a_target_holds(times: list[float], target: Path) -> None:
    found = look(target)
    assert (found.segments, found.points, found.oldest_at, found.newest_at, found.newest) == (5, 5, times[0], times[4], 4)
    assert points_of(target) == list(enumerate(times))


# ---- what a restored queue is


def test_a_restored_queue_waits_until_it_is_put_in_service(times: list[float], target: Path, tmp_path: Path) -> None:
    done = restore(target, tmp_path / "r")
    assert done.waiting
    with pytest.raises(ConfigError, match="its original may still be in service") as e:
        strictq.open(tmp_path / "r")
    assert "--alone" in e.value.hint
    assert count(tmp_path / "r") == 5
    assert not restore(target, tmp_path / "alone", alone=True).waiting
    with strictq.open(tmp_path / "alone") as q:
        assert q.send(b"x", key="k").seq == 6


def test_a_restored_queue_is_the_same_queue_with_another_history(disk: Opener, target: Path, tmp_path: Path) -> None:
    q = disk()
    q.configure_replication(target)
    was = q.replication()
    q.close()
    done = restore(target, tmp_path / "r", alone=True)
    with strictq.open(tmp_path / "r") as r:
        now = r.replication()
        assert was is not None
        assert now is not None
        assert (r.queue_id, done.queue_id) == (q.queue_id, q.queue_id)
        assert now.history_id == done.history_id != was.history_id
        assert (now.mode, now.target, now.lag_seconds, now.shipping) == ("off", "", None, False)
        before = sorted(os.listdir(target))
        with pytest.raises(Diverged, match="another history"):
            r.configure_replication(target)
        assert sorted(os.listdir(target)) == before
        r.configure_replication(tmp_path / "t2")
    assert look(tmp_path / "t2").history_id == done.history_id


def test_tokens_go_on_above_those_of_the_original_and_leases_are_over(
    disk: Opener, target: Path, tmp_path: Path, clock: FakeClock
) -> None:
    q = disk(max_attempts=5, keyless="random")
    q.send(b"1", key="a")
    q.send(b"2", key="a")
    (held,) = q.receive(1)
    ship_once(q, target)
    restore(target, tmp_path / "r", alone=True)
    clock.advance(3)
    for _ in range(3):  # the original reboots on
        disk.close()
        clock.reboot()
        q = disk()
        (later,) = q.receive(1)
        later.nack(delay=0)
    with strictq.open(tmp_path / "r", clock=clock, durability="process") as r:
        (d,) = r.receive(1)
        assert (d.body, d.attempt) == (b"1", 2)
        assert d.token > later.token > held.token
        with pytest.raises(LeaseLost):
            r.delivery(held.handle).ack()
        d.ack()
        assert r.check() == []


def test_time_goes_on_behind_the_last_state(disk: Opener, target: Path, tmp_path: Path, clock: FakeClock) -> None:
    q = disk()
    q.send(b"x", key="a", delay=100)
    ship_once(q, target)
    before = q._storage.now()
    restore(target, tmp_path / "r", alone=True)
    clock.jump_wall(-1_000_000)
    with strictq.open(tmp_path / "r", clock=clock) as r:
        assert r._storage.now() >= before
        clock.advance(99)
        assert r.receive() == []
        clock.advance(2)
        assert len(r.receive()) == 1


def test_everything_a_queue_has_is_restored(disk: Opener, target: Path, tmp_path: Path, clock: FakeClock) -> None:
    q = disk(shards=3, history="bodies", max_attempts=1, on_poison="dead_letter")
    q.app_schema("CREATE TABLE app_ledger (n INTEGER) STRICT")
    for n in range(30):
        q.send(b"%d" % n, key=f"k{n}", headers={"n": str(n)}, dedup_id=f"d{n}", size_hint=float(n))
    for d in q.receive(10):
        with q.transaction(d) as tx:
            tx.send(b"next", key="elsewhere")
            tx.key_state = b"state"
            tx.execute("INSERT INTO app_ledger VALUES (?)", (d.seq,))
    for d in q.receive(5):
        d.reject("odd")
    q.hold("k29")
    q.send(bytes(100_000), key="large")
    ship_once(q, target)
    restore(target, tmp_path / "r", alone=True)
    with strictq.open(tmp_path / "r", clock=clock, durability="process") as r:
        assert r.check() == []
        assert r.config == q.config
        assert sorted(r.query("SELECT * FROM app_ledger")) == sorted(q.query("SELECT * FROM app_ledger"))
        assert [d.to_dict() for d in r.dead_letters()] == [d.to_dict() for d in q.dead_letters()]
        for key in [*(f"k{n}" for n in range(30)), "elsewhere", "large"]:
            assert [m.to_dict() for m in r.peek(key)] == [m.to_dict() for m in q.peek(key)], key
        assert [h for s in range(3) for h in r.history(shard=s)] == [h for s in range(3) for h in q.history(shard=s)]
        assert r.send(b"again", key="k20", dedup_id="d20").duplicate
        assert r.explain("k29").to_dict() == q.explain("k29").to_dict()


# ---- what is refused, and what is damaged


def test_what_is_there_is_not_overwritten(times: list[float], target: Path, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("dir", "file", "queue", "link", "t"):
        with pytest.raises(InvalidArgument, match="exists"):
            restore(target, tmp_path / place)
    with pytest.raises(InvalidArgument, match="is inside the replica"):
        restore(target, target / "r")
    assert not (tmp_path / "nowhere").exists()


def test_what_is_no_replica_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    strictq.open(tmp_path / "queue").close()
    for source, error in (("empty", InvalidArgument), ("queue", InvalidArgument), ("none", QueueNotFound)):
        with pytest.raises(error):
            restore(tmp_path / source, tmp_path / "r")
    with pytest.raises(InvalidArgument, match="kind 'ftp'"):
        restore("ftp://host/q", tmp_path / "r")
    (tmp_path / "empty" / "replica.json").write_text('{"queue_id": "x", "history_id": "y"}', encoding="utf-8")
    with pytest.raises(ReplicaGap, match="no complete state"):
        restore(tmp_path / "empty", tmp_path / "r")


HOLES = ("flip", "short", "cut", "missing", "renamed", "empty", "zeroed", "replaced", "header")


def damage(target: Path, broken: int, how: str) -> None:
    """Damage one of five segments."""
    file = target / f"{broken:016x}.seg"
    data = bytearray(file.read_bytes())
    if how == "flip":
        data[-40] ^= 1
    elif how == "header":
        data[0] ^= 1
    elif how == "short":
        del data[len(data) // 2 :]
    elif how == "cut":
        del data[20:]
    elif how == "empty":
        data.clear()
    elif how == "zeroed":
        data = bytearray(len(data))
    elif how == "replaced":
        data = bytearray((target / f"{(broken + 1) % 5:016x}.seg").read_bytes())
    file.unlink()
    if how == "renamed":
        (target / f"{broken + 1_000_000:016x}.seg").write_bytes(data)
    elif how != "missing":
        file.write_bytes(data)


@pytest.mark.parametrize("broken", [0, 2, 4])
@pytest.mark.parametrize("how", HOLES)
def test_the_newest_state_is_not_replaced_by_an_older_one(
    times: list[float], target: Path, tmp_path: Path, how: str, broken: int
) -> None:
    if (broken, how) == (4, "missing"):
        pytest.skip("nothing at the target shows that its newest segment is missing")
    damage(target, broken, how)
    for at in (None, times[4], times[4] + 1e6):
        with pytest.raises(ReplicaGap) as e:
            restore(target, tmp_path / "r", at=at)
        assert e.value.segment == broken
        assert (f"cut={broken - 1}" in e.value.hint) == (broken > 0)
    assert [name for name in os.listdir(tmp_path) if name.startswith((".", "r"))] == []
    result = in_process("restore", target, tmp_path / "r", "--alone")
    assert result.exit_code == 1
    assert not (tmp_path / "r").exists()
    seen = look(target).missing  # damage behind the header is not
    assert seen == broken or (seen is None and how in ("flip", "short"))
    assert in_process("replicas", target).exit_code == (seen is not None)
    if broken:
        assert restore(target, tmp_path / "at", at=times[broken - 1]).segment == broken - 1
        assert restore(target, tmp_path / "cut", cut=broken - 1).segment == broken - 1


def test_a_time_after_a_missing_segment_is_not_served_by_an_older_state(times: list[float], target: Path, tmp_path: Path) -> None:
    """The missing segment may be the state of that time."""
    damage(target, 2, "missing")
    for at in (times[1] + 1e-6, times[2], times[3]):
        with pytest.raises(ReplicaGap) as e:
            restore(target, tmp_path / "r", at=at)
        assert "cut=1" in e.value.hint
    for cut in (2, 3, 4):
        with pytest.raises(ReplicaGap):
            restore(target, tmp_path / "r", cut=cut)
    assert restore(target, tmp_path / "r", at=times[1]).segment == 1


def test_a_base_after_a_missing_segment_can_be_restored(
    disk: Opener, times: list[float], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHAIN_SEGMENTS_MAX", 3)
    q = disk()
    q.send(b"5", key="k")
    assert ship_once(q, target).done.wholes == 1
    damage(target, 2, "missing")
    assert (look(target).points, look(target).missing) == (3, None)
    assert restore(target, tmp_path / "r").segment == 5
    assert count(tmp_path / "r") == 6
    with pytest.raises(ReplicaGap):
        restore(target, tmp_path / "x", at=times[4])


def test_a_segment_that_appears_during_a_listing_is_no_gap(
    times: list[float], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, listings = DirectoryTarget.names, []

    def stale(self: DirectoryTarget) -> list[str]:
        listings.append(names(self))
        return [name for name in listings[-1] if len(listings) % 2 == 0 or name != f"{3:016x}.seg"]

    monkeypatch.setattr(DirectoryTarget, "names", stale)
    assert restore(target, tmp_path / "r").segment == 4


@pytest.mark.parametrize("broken", range(5))
@pytest.mark.parametrize("how", ["flip", "short", "missing", "replaced"])
def test_a_damaged_segment_is_never_believed(times: list[float], target: Path, tmp_path: Path, broken: int, how: str) -> None:
    """What lies before it can be restored; nothing that needs it is made."""
    damage(target, broken, how)
    made = 0
    for n in range(5):
        try:
            restore(target, tmp_path / f"r{n}", cut=n)
        except (ReplicaGap, InvalidArgument):
            assert n >= broken
            assert not (tmp_path / f"r{n}").exists()
        else:
            assert n < broken
            assert count(tmp_path / f"r{n}") == n + 1
            made += 1
    assert made == broken
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    assert not list(target.glob("restore-*"))


def test_segments_of_two_chains_are_not_mixed(disk: Opener, target: Path, tmp_path: Path) -> None:
    q = disk()
    for n in range(3):
        q.send(b"%d" % n, key="k")
        ship_once(q, target)
        disk.clock.advance(1)
        ship_once(q, tmp_path / "other")
        q.send(b"x", key="k")
    (target / f"{1:016x}.seg").write_bytes((tmp_path / "other" / f"{1:016x}.seg").read_bytes())
    with pytest.raises(ReplicaGap, match="does not follow"):
        restore(target, tmp_path / "r")


def test_a_cut_that_was_given_up_counts_for_nothing(
    disk: Opener, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGES_MAX", 2)
    q = disk()
    q.send(b"0", key="k")
    ship_once(q, target)
    points = points_of(target)
    put = DirectoryTarget.put

    def fails(self: DirectoryTarget, n: int, data: bytes) -> None:
        if n > points[-1][0] + 1:
            raise TargetUnavailable("gone", "t")
        put(self, n, data)

    q.send(bytes(20_000), key="k")
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryTarget, "put", fails)
        with pytest.raises(TargetUnavailable):
            ship_once(q, target)
    assert points_of(target) == points
    assert len(DirectoryTarget(target).numbers()) == points[-1][0] + 2
    restore(target, tmp_path / "r0")
    assert count(tmp_path / "r0") == 1
    ship_once(q, target)
    restore(target, tmp_path / "r1")
    assert count(tmp_path / "r1") == 2


def test_a_medium_that_can_only_be_read(
    times: list[float], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from strictq._platform import files as _files

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(_files, "replace", refuse)
    restore(target, tmp_path / "r", alone=True)
    assert count(tmp_path / "r") == 5


def test_lanes_that_no_fold_has_written_are_restored(disk: Opener, target: Path, tmp_path: Path, clock: FakeClock) -> None:
    q = disk.open()
    shipper = shipper_of(q, target)
    for n in range(10):
        q.send(b"%d" % n, key=f"k{n % 3}")
        if n % 3 == 2:
            for d in q.receive(1):
                d.ack()
        shipper.round()
    shipper.close()
    stats = q.stats()
    restore(target, tmp_path / "r", alone=True)
    with strictq.open(tmp_path / "r", clock=clock, durability="process") as r:
        assert r.check() == []
        assert (r.stats().ready, r.stats().acks) == (stats.ready, stats.acks)
        for key in ("k0", "k1", "k2"):
            assert [m.to_dict() for m in r.peek(key)] == [m.to_dict() for m in q.peek(key)]


def test_nothing_is_left_of_a_restore_that_fails(
    times: list[float], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(os.listdir(tmp_path))

    def stop(done: int, _of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(target, tmp_path / "r", on_progress=stop)
    assert sorted(os.listdir(tmp_path)) == before
    assert not list(target.glob("restore-*"))
    assert issubclass(ReplicaGap, StrictqError)
