"""A copied directory that becomes a queue of its own, and a diverged one that makes room for a new replica."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import strictq
from strictq import (
    Adopted,
    InvalidArgument,
    LeaseLost,
    Queue,
    QueueNotFound,
    ReadOnlyQueue,
    RecordedBatchGone,
    Replica,
    StoreBusy,
)
from strictq.replication.adopting import move_aside
from strictq.testing import FakeClock
from tests.support.command import in_process
from tests.support.forks import drained, fork
from tests.support.replicas import FAST, bodies, forget_contact, is_shipped, ship_to, until_level
from tests.support.running import until


def copied(q: Queue, to: Path) -> Path:
    """cp -r of a queue that no process has open."""
    q.close()
    shutil.copytree(q.path or "", to)
    return to


# ---- copies


@pytest.mark.smoke
def test_a_copy_is_a_history_of_its_own(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    q.configure_replication(tmp_path / "target", interval_seconds=FAST)
    until(lambda: is_shipped(q))
    before = q.replication()
    assert before is not None
    copy = copied(q, tmp_path / "copy")
    done = strictq.adopt(copy)
    assert (done.path, done.queue_id, done.copied_history_id) == (str(copy), q.queue_id, before.history_id)
    with strictq.open(copy) as c:
        status = c.replication()
        assert status is not None
        assert (status.history_id, status.mode, status.target) == (done.history_id, "off", "")
        assert c.check() == []
        with pytest.raises(strictq.Diverged, match="another history"):
            c.configure_replication(tmp_path / "target")
        c.configure_replication(tmp_path / "own", interval_seconds=FAST)
        until(lambda: is_shipped(c))
    assert drained(copy) == {"k": [b"1"]}
    with strictq.open(q.path or "") as original:
        original.send(b"2", key="k")
        until(lambda: is_shipped(original))


def test_a_replica_refuses_an_adopted_copy(q: Queue, tmp_path: Path, token: Path) -> None:
    with Replica(tmp_path / "home", token_file=token) as replica:
        ship_to(q, replica.address, token)
        copy = copied(q, tmp_path / "copy")
        strictq.adopt(copy)
        with strictq.open(copy) as c, pytest.raises(strictq.Diverged, match="another history"):
            c.configure_replication(f"tcp://{replica.address}", token_file=token)


@pytest.mark.parametrize("replicated", [False, True])
def test_an_adopted_copy_refuses_its_originals_checkpoint(q: Queue, tmp_path: Path, *, replicated: bool) -> None:
    """Also a copy of the checkpoint: both would give the same number to different batches."""
    source = pytest.importorskip("strictq.spark.source")
    schema = pytest.importorskip("strictq.spark._table_columns").read_schema("string")
    if replicated:
        q.configure_replication(tmp_path / "target", interval_seconds=FAST)
        until(lambda: is_shipped(q))
    q.send(b"1", key="k")

    def reader(path: Path | str) -> source.StreamReader:  # type: ignore[name-defined]
        return source.StreamReader({"path": str(path), "consumer": "c"}, schema)

    original = reader(q.path or "")
    offset = original.latestOffset(original.initialOffset(), original.getDefaultReadLimit())
    original.stop()
    copy = copied(q, tmp_path / "copy")
    same = reader(copy)
    assert same._number(offset) == 1
    same.stop()
    strictq.adopt(copy)
    adopted = reader(copy)
    with pytest.raises(RecordedBatchGone, match="checkpoint"):
        adopted._number(offset)
    own = adopted.initialOffset()
    assert adopted._number(own) == 0
    adopted.stop()
    again = reader(q.path or "")
    assert again._number(offset) == 1
    again.stop()


def test_tokens_and_time_go_on_behind_the_originals(tmp_path: Path) -> None:
    clock = FakeClock()
    with strictq.open(tmp_path / "q", durability="process", clock=clock) as q:
        q.send(b"1", key="k")
        (held,) = q.receive(lease_seconds=1000.0)
        copy = copied(q, tmp_path / "copy")
    strictq.adopt(copy, clock=clock)
    with strictq.open(copy, clock=clock) as c:
        (d,) = c.receive()
        assert d.token > held.token + (1000 << 40)
        with pytest.raises(LeaseLost):
            c.delivery(held.handle).ack()
        d.ack()
    with strictq.open(tmp_path / "q", clock=clock) as q:
        q.delivery(held.handle).ack()


def test_what_cannot_be_adopted(q: Queue, tmp_path: Path, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq._store.disk.locks.ALONE_SECONDS", 0.05)
    Replica(tmp_path / "home", token_file=token).close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for path, kind, words in (
        (q.path, StoreBusy, "nothing was changed"),
        (tmp_path / "none", QueueNotFound, "no queue"),
        (tmp_path / "other", QueueNotFound, "not a queue"),
        (tmp_path / "home", ReadOnlyQueue, "a replica that receives changes"),
        (None, InvalidArgument, "must be the path"),
    ):
        with pytest.raises(kind, match=words):
            strictq.adopt(path)  # type: ignore[arg-type]
    assert q.replication() is None


def test_the_command(q: Queue, tmp_path: Path) -> None:
    copy = copied(q, tmp_path / "copy")
    shown = in_process("adopt", str(copy))
    assert (shown.exit_code, "a new history id" in shown.output) == (0, True)
    assert '"copied_history_id"' in in_process("adopt", str(copy), "--json").output
    assert in_process("adopt", str(tmp_path / "none")).exit_code == 2
    assert isinstance(strictq.adopt(copy), Adopted)


# ---- the old primary's host as a replica


def test_an_old_primary_rejoins_and_is_merged(q: Queue, tmp_path: Path, token: Path) -> None:
    home = tmp_path / "home"
    old = Path(q.path or "")
    with Replica(home, token_file=token) as replica:
        q.send(b"1", key="k")
        ship_to(q, replica.address, token)
        until_level(q, home)
        q.detach()
    q.send(b"2", key="k")
    q.close()
    forget_contact(home)
    strictq.promote(home)
    with pytest.raises(InvalidArgument, match="is a queue") as refused:
        Replica(old, token_file=token)
    assert "rejoin" in refused.value.hint
    with Replica(old, token_file=token, rejoin=True) as replica, strictq.open(home) as new:
        aside = Path(f"{old}.diverged-1")
        assert replica.moved_aside == str(aside)
        ship_to(new, replica.address, token)
        strictq.merge(aside, home)
        until_level(new, old)
        assert bodies(old) == [b"1", b"2"]
    with Replica(old, token_file=token, rejoin=True) as replica:
        assert replica.moved_aside is None  # it goes on
    forget_contact(old)
    assert strictq.promote(old).term == 3
    with Replica(old, token_file=token, rejoin=True) as replica:
        assert replica.moved_aside == f"{old}.diverged-3"
    assert bodies(Path(f"{old}.diverged-3")) == [b"1", b"2"]


def test_what_is_not_moved_aside(q: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq._store.disk.locks.ALONE_SECONDS", 0.05)
    old = Path(q.path or "")
    with pytest.raises(InvalidArgument, match="never replicated"):
        move_aside(old)
    fork(q, tmp_path / "new")
    with pytest.raises(StoreBusy, match="nothing was changed"):
        move_aside(old)
    q.close()
    Path(f"{old}.diverged-1").mkdir()
    assert move_aside(old) == Path(f"{old}.diverged-1-2")
    assert (move_aside(old), move_aside(tmp_path / "none")) == (None, None)
    (tmp_path / "empty").mkdir()
    assert move_aside(tmp_path / "empty") is None
