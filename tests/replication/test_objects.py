"""Shipping to an object store, here moto's S3 server: writing once, and every way in which it may fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import Diverged, InvalidArgument, MissingExtra, QueueNotFound, ReplicaGap, TargetUnavailable
from strictq.replication import shipper as shipping
from strictq.replication.objects import ObjectTarget
from strictq.replication.places import parse, target_of
from strictq.replication.restoring import look, points_of, restore
from strictq.replication.segment_files import MARKER_SECONDS
from tests.support.objects import BUCKET, ObjectStore, change, delete_bucket, object_store, stored
from tests.support.queues import Opener
from tests.support.replicas import is_shipped
from tests.support.running import PATIENCE_SECONDS, ROOT, until
from tests.support.shipping import (
    begin_tasks,
    pass_on,
    require_states,
    ship_once,
    shipper_of,
    shipping_to,
    working,
)

PLACE = f"s3://{BUCKET}/orders"
OWN = {"format": 1, "queue_id": "q", "history_id": "h"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(monkeypatch) as made:
        yield made


@pytest.fixture
def target(store: ObjectStore, tmp_path: Path) -> ObjectTarget:
    made = target_of(parse(PLACE))
    assert isinstance(made, ObjectTarget)
    made.prepare(tmp_path / "q")
    made.claim(OWN)
    return made


def ready(path: Path) -> int:
    with strictq.open(path, read_only=True) as q:
        assert q.check() == []
        return q.stats().ready


# ---- names


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("s3://bucket/orders", "s3://bucket/orders"),
        ("S3://bucket/orders/", "s3://bucket/orders"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b c", "s3://bucket/a/b c"),
    ],
)
def test_names_of_places_in_stores(name: str, full: str) -> None:
    assert parse(name) == full
    assert str(target_of(full)) == full


@pytest.mark.parametrize(
    "name",
    ["s3:bucket/x", "s3:///x", "s3://B/x", "s3://bucket//x", "s3://bucket/../x", "s3://bucket/*", "s3://key:secret@bucket/x",
     "s3://bucket/a\nb", "s3://", "gs://bucket/x", "memory://x", "https://host/x"],
)  # fmt: skip
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as e:
        parse(name)
    assert e.value.hint


# ---- writing once


def test_a_name_is_written_once(target: ObjectTarget) -> None:
    target.put(0, b"data")
    target.put(0, b"data")
    with pytest.raises(Diverged):
        target.put(0, b"other")
    assert target.get(0) == b"data"
    assert target.numbers() == [0]
    assert sorted(stored("")) == ["orders/0000000000000000.seg", "orders/replica.json"]


def test_a_store_that_overwrites_is_distinguished_from_one_that_refuses(target: ObjectTarget, store: ObjectStore) -> None:
    assert target.is_write_once()
    store.ignores_conditions = True
    assert not target.is_write_once()
    assert sorted(stored("")) == ["orders/replica.json"]


def test_where_the_store_does_not_refuse_it_names_are_looked_for_first(target: ObjectTarget, store: ObjectStore) -> None:
    store.ignores_conditions = True
    careful = target_of(parse(PLACE), write_once=False)
    careful.put(0, b"data")
    careful.put(0, b"data")
    with pytest.raises(Diverged):
        careful.put(0, b"other")
    assert careful.get(0) == b"data"


@pytest.mark.in_turn
@pytest.mark.parametrize("does", ["keeps", "ignores", "refuses"])
def test_what_the_store_does_is_recorded_when_it_is_configured(
    disk: Opener, store: ObjectStore, tmp_path: Path, does: str
) -> None:
    store.ignores_conditions, store.refuses_conditions = does == "ignores", does == "refuses"
    q = disk()
    found = q.configure_replication(PLACE, interval_seconds=3600)
    assert found.write_once == (does == "keeps")
    q.send(b"1", key="k")
    q.close()
    with disk() as again:
        status = again.replication()
        assert status is not None
        assert status.write_once == (does == "keeps")
        again.configure_replication(PLACE, interval_seconds=3600)
    assert "orders/probe" not in stored("")
    restore(PLACE, tmp_path / "r")
    assert ready(tmp_path / "r") == 1


def test_a_put_behind_a_hole_is_refused(target: ObjectTarget) -> None:
    target.put(0, b"data")
    with pytest.raises(ReplicaGap) as e:
        target.put(2, b"data")
    assert e.value.segment == 1
    change("orders/0000000000000003.seg", b"")
    with pytest.raises(ReplicaGap, match="is not a segment"):
        target.header(3)


# ---- the whole way


def test_a_queue_is_shipped_and_restored(tmp_path: Path, store: ObjectStore) -> None:
    with strictq.open(tmp_path / "q", shards=2) as q:
        assert q.configure_replication(PLACE, interval_seconds=0.02).target == PLACE
        for n in range(30):
            q.send(b"%d" % n, key=f"k{n % 5}")
        until(lambda: is_shipped(q))
        point = points_of(PLACE)[-1]
        q.send(b"later", key="k")
    done = strictq.restore(PLACE, tmp_path / "r", alone=True)
    assert ready(tmp_path / "r") == 31
    assert done.stored_bytes == sum(len(data) for name, data in stored("orders/").items() if name.endswith(".seg"))
    strictq.restore(PLACE, tmp_path / "before", cut=point[0])
    assert ready(tmp_path / "before") == 30
    found = look(PLACE)
    assert (found.target, found.segments) == (PLACE, len([name for name in stored("orders/") if name.endswith(".seg")]))
    with strictq.open(tmp_path / "q") as q:  # and it goes on in the same chain
        q.send(b"more", key="k")
    strictq.restore(PLACE, tmp_path / "r2")
    assert ready(tmp_path / "r2") == 32


@pytest.mark.in_turn
@pytest.mark.parametrize("content", [None, b"", b"\0" * 100])
def test_the_newest_state_is_not_replaced_by_an_older_one(
    disk: Opener, tmp_path: Path, store: ObjectStore, content: bytes | None
) -> None:
    q = disk()
    for n in range(4):
        q.send(b"%d" % n, key="k")
        ship_once(q, PLACE)
    ObjectTarget(f"{BUCKET}/orders").remove(["0000000000000002.seg"])
    if content is not None:
        change("orders/0000000000000002.seg", content)
    with pytest.raises(ReplicaGap) as e:
        restore(PLACE, tmp_path / "r")
    assert e.value.segment == 2
    assert "cut=1" in e.value.hint
    assert not (tmp_path / "r").exists()
    assert look(PLACE).missing == 2
    restore(PLACE, tmp_path / "r", cut=1)
    assert ready(tmp_path / "r") == 2


@pytest.mark.parametrize("lost", ["0000000000000001.seg", "replica.json"])
def test_a_gap_is_noticed_and_healed(disk: Opener, tmp_path: Path, store: ObjectStore, lost: str) -> None:
    q = disk()
    with shipping_to(q, PLACE) as shipper:
        for n in range(3):
            q.send(b"%d" % n, key="k")
            shipper.round()
        ObjectTarget(f"{BUCKET}/orders").remove([lost])
        disk.clock.advance(60)
        with pytest.raises(ReplicaGap, match=f"{lost}|segment 1 is missing"):
            shipper.round()
        assert shipper.round()
    restore(PLACE, tmp_path / "r")
    assert ready(tmp_path / "r") == 3


def test_a_fork_ships_to_a_store(tmp_path: Path, store: ObjectStore) -> None:
    q = strictq.open(tmp_path / "q")
    q.configure_replication(PLACE, interval_seconds=0.02)
    q.send(b"1", key="k")
    until(lambda: is_shipped(q))
    program = """
import os, sys, strictq
q = strictq.open(sys.argv[1])
q.send(b"2", key="k")
pid = os.fork()
if not pid:
    q.send(b"3", key="k")
    q.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
q.send(b"4", key="k")
q.close()
"""
    q.close()
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "q")], check=True, cwd=ROOT, timeout=PATIENCE_SECONDS)
    with strictq.open(tmp_path / "q") as again:  # on a busy machine the program may have ended before a call returned
        until(lambda: is_shipped(again))
    strictq.restore(PLACE, tmp_path / "r")
    assert ready(tmp_path / "r") == 4


def test_a_copy_that_ships_to_the_same_place_is_refused(tmp_path: Path, store: ObjectStore) -> None:
    with strictq.open(tmp_path / "q") as q:
        ship_once(q, PLACE)
    shutil.copytree(tmp_path / "q", tmp_path / "copy")
    with strictq.open(tmp_path / "q") as q:
        q.send(b"1", key="k")
        ship_once(q, PLACE)
    before = stored("")
    with strictq.open(tmp_path / "copy") as q:
        q.send(b"2", key="k")
        with pytest.raises(Diverged):
            ship_once(q, PLACE)
    assert stored("") == before


def test_another_queue_and_other_objects_are_refused(tmp_path: Path, store: ObjectStore) -> None:
    change("mine/letter.txt", b"dear")
    with strictq.open(tmp_path / "a") as a, strictq.open(tmp_path / "b") as b:
        a.configure_replication(PLACE, interval_seconds=3600)
        with pytest.raises(Diverged, match="another queue"):
            b.configure_replication(PLACE)
        for place in (f"s3://{BUCKET}/mine", f"s3://{BUCKET}"):
            with pytest.raises(InvalidArgument, match="other files"):
                b.configure_replication(place)
        assert b.replication() is None


def test_processes_that_are_killed_lose_nothing_that_was_shipped(tmp_path: Path, store: ObjectStore) -> None:
    """With -9, at any moment of a put."""
    with strictq.open(tmp_path / "q", durability="process", shards=3) as q:
        begin_tasks(q, range(20))
        q.configure_replication(PLACE, interval_seconds=0.02)
    for _ in range(3):
        with working(tmp_path / "q"):
            before = target_of(PLACE).numbers()[-1]
            until(lambda before=before: target_of(PLACE).numbers()[-1] >= before + 5)  # type: ignore[misc]
    with strictq.open(tmp_path / "q", durability="process") as q:
        pass_on(q)
    require_states(PLACE, tmp_path, [n for n, _ in points_of(PLACE)], 4)


def test_old_segments_go_but_none_that_a_restore_reads(
    disk: Opener, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "CHAIN_SEGMENTS_MAX", 3)
    q = disk()
    with shipping_to(q, PLACE, keep_seconds=0) as shipper:
        sent = 0

        def go_on(rounds: int) -> None:
            nonlocal sent
            for _ in range(rounds):
                sent += 1
                q.send(b"%d" % sent, key="k")
                shipper.round()
                disk.clock.advance(1)

        go_on(3)
        before = points_of(PLACE)[-1][0]
        restore(PLACE, tmp_path / "r", on_progress=lambda _done, _of: go_on(5))
        assert ready(tmp_path / "r") == 3
        go_on(5)
    assert target_of(PLACE).numbers()[0] > before
    assert not [name for name in stored("orders/") if "restore-" in name]


def test_a_restore_that_was_killed_holds_nothing_up_for_ever(target: ObjectTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        target.put(n, b"%d" % n)
    change("orders/restore-0011223344556677.json", b"1")
    assert target.delete_before(2) == 1
    real = ObjectTarget.written_at
    monkeypatch.setattr(
        ObjectTarget, "written_at", lambda self, name: (real(self, name) or 0) + MARKER_SECONDS * 2 * (name == "floor")
    )
    assert target.delete_before(2) == 1
    assert sorted(stored("")) == ["orders/0000000000000002.seg", "orders/floor", "orders/replica.json"]


def test_headers_are_asked_for_many_at_a_time(
    disk: Opener, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a restore of a day's segments, one request after the other, would take an hour before it begins."""
    q = disk()
    with shipping_to(q, PLACE) as shipper:
        for n in range(20):
            q.send(b"%d" % n, key="k")
            shipper.round()
    sizes = []
    real = ObjectTarget.read_many

    def counted(self: ObjectTarget, names: list[str], most: int) -> Iterator[bytes | Exception]:
        sizes.append(len(names))
        return real(self, names, most)

    monkeypatch.setattr(ObjectTarget, "read_many", counted)
    assert len(points_of(PLACE)) == 20
    assert max(sizes) == 20
    sizes.clear()
    restore(PLACE, tmp_path / "r")
    assert ready(tmp_path / "r") == 20
    assert len(sizes) < 12


# ---- what fails


def test_without_the_extra_its_name_is_reported(disk: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    q = disk()
    with pytest.raises(MissingExtra) as e:
        q.configure_replication(PLACE)
    assert e.value.extra == "remote"
    with pytest.raises(MissingExtra):
        strictq.restore(PLACE, tmp_path / "r")
    assert q.replication() is None


def test_a_queue_without_a_store_does_not_import_its_client(tmp_path: Path) -> None:
    script = "import sys, strictq\nq = strictq.open(sys.argv[1])\nq.configure_replication(sys.argv[2])\nq.close()\n"
    script += "assert not {'s3fs', 'fsspec', 'botocore'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "q"), str(tmp_path / "t")], check=True, cwd=ROOT)


def test_missing_credentials(disk: Opener, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    q = disk()
    with pytest.raises(TargetUnavailable, match="credentials") as e:
        q.configure_replication(PLACE)
    assert not e.value.transient
    assert "AWS_ACCESS_KEY_ID" in e.value.hint
    assert q.replication() is None


@pytest.mark.parametrize(("method", "part"), [("PUT", ".seg"), ("GET", "replica.json"), ("PUT", "replica.json")])
def test_a_store_that_refuses_access(disk: Opener, store: ObjectStore, target: ObjectTarget, method: str, part: str) -> None:
    store.refuse = method, part
    with pytest.raises(TargetUnavailable) as e:
        if part == ".seg":
            target.put(0, b"data")
        elif method == "GET":
            target.identity()
        else:
            target_of(f"s3://{BUCKET}/other").claim(OWN)
    assert not e.value.transient
    assert [name for name in stored("") if name.endswith(".seg")] == []


def test_a_bucket_that_is_not_there(disk: Opener, store: ObjectStore, tmp_path: Path) -> None:
    q = disk()
    with pytest.raises(TargetUnavailable, match="no bucket nowhere-to-be"):
        q.configure_replication("s3://nowhere-to-be/orders")
    with pytest.raises(QueueNotFound):
        strictq.restore("s3://nowhere-to-be/orders", tmp_path / "r")
    with pytest.raises(InvalidArgument, match="not a replica"):
        strictq.restore(f"s3://{BUCKET}/empty", tmp_path / "r")
    assert q.replication() is None
    assert os.listdir(tmp_path) == ["queue"]


def test_a_bucket_that_is_gone_and_comes_back_empty(disk: Opener, store: ObjectStore, target: ObjectTarget) -> None:
    target.put(0, b"data")
    delete_bucket()
    for use in (target.numbers, target.identity, lambda: target.put(1, b"x"), lambda: target.require(OWN)):
        with pytest.raises(TargetUnavailable):
            use()


def test_objects_that_were_deleted_are_not_written_behind(disk: Opener, target: ObjectTarget) -> None:
    target.put(0, b"data")
    target.remove(target.names())
    with pytest.raises(TargetUnavailable, match="emptied"):
        target.put(1, b"x")
    assert stored("") == {}


def test_a_store_that_is_away_loses_nothing(tmp_path: Path, store: ObjectStore) -> None:
    with strictq.open(tmp_path / "q") as q:
        q.configure_replication(PLACE, interval_seconds=0.02)
        until(lambda: is_shipped(q))
        store.refuse, store.status = ("PUT", ".seg"), "400 Bad Request"
        q.send(b"1", key="k")
        until(lambda: (status := q.replication()) is not None and status.last_error)
        assert not q.replication().stopped  # type: ignore[union-attr]
        store.refuse = None
        until(lambda: is_shipped(q))
    strictq.restore(PLACE, tmp_path / "r")
    assert ready(tmp_path / "r") == 1


def test_a_put_whose_answer_was_lost_is_put_once(disk: Opener, store: ObjectStore, tmp_path: Path) -> None:
    q = disk()
    shipper = shipper_of(q, PLACE)
    q.send(b"1", key="k")
    real = ObjectTarget.create

    def lost(self: ObjectTarget, name: str, data: bytes) -> bool:
        real(self, name, data)
        raise OSError("connection reset")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectTarget, "create", lost)
        with pytest.raises(TargetUnavailable):
            shipper.round()
    q.send(b"2", key="k")
    assert shipper.round()
    shipper.close()
    restore(PLACE, tmp_path / "r")
    assert ready(tmp_path / "r") == 2
