"""A target that hangs: nobody waits for it without end, and no WAL is kept for it beyond the limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import Event, Queue, TargetUnavailable
from strictq.replication import bounded, keeper
from strictq.replication.bounded import TargetThread
from strictq.replication.directory import DirectoryTarget
from strictq.replication.restoring import look, restore
from tests.support.replicas import is_shipped
from tests.support.running import PATIENCE_SECONDS, until

FAST = 0.02
LAG = 1 << 20


class Hanging:
    """Lets calls of one kind hang until it is told otherwise."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.hangs = threading.Event()
        self.entered = threading.Event()
        self.goes_on = threading.Event()
        real = getattr(DirectoryTarget, name)

        def call(*args: object) -> object:
            if self.hangs.is_set():
                self.entered.set()
                assert self.goes_on.wait(PATIENCE_SECONDS)
            return real(*args)

        patch.setattr(DirectoryTarget, name, call)

    def end(self) -> None:
        self.hangs.clear()
        self.goes_on.set()


@pytest.fixture(params=["create", "exists"])
def hanging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    made = Hanging(monkeypatch, request.param)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "HANGING_SECONDS", 0.3)
    monkeypatch.setattr(keeper, "BACKOFF_MAX_SECONDS", 0.2)
    monkeypatch.setattr(bounded, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(keeper, "LEFT_SECONDS", 1.5)


def fill_up(q: Queue, size: int) -> int:
    """Send more bytes than this. How many messages."""
    count = size // 50_000 + 1
    for n in range(count):
        q.send(os.urandom(50_000), key=f"k{n}")
    return count


# ---- calls


def test_a_call_returns_and_raises_what_its_work_does() -> None:
    calls = TargetThread("t")
    assert calls.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0)
    assert not calls.hangs
    ended = threading.Event()
    calls.close(ended.set)
    assert ended.wait(PATIENCE_SECONDS)


def test_a_call_that_takes_too_long_is_not_waited_for() -> None:
    calls = TargetThread("t", answer_seconds=0.1)
    goes_on, done = threading.Event(), []
    with pytest.raises(TargetUnavailable, match="does not answer"):
        calls.call(lambda: done.append(goes_on.wait(PATIENCE_SECONDS)))
    assert calls.hangs
    with pytest.raises(TargetUnavailable, match="has not answered for"):
        calls.call(lambda: done.append(False))
    goes_on.set()
    until(lambda: not calls.hangs)
    assert calls.call(lambda: 7) == 7
    assert done == [True]
    calls.close()


def test_what_is_to_be_done_at_the_end_is_done_when_the_call_returns() -> None:
    calls = TargetThread("t", answer_seconds=0.1)
    goes_on, ended = threading.Event(), threading.Event()
    with pytest.raises(TargetUnavailable):
        calls.call(lambda: goes_on.wait(PATIENCE_SECONDS))
    calls.close(ended.set)
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(PATIENCE_SECONDS)


# ---- queues


def test_a_target_that_hangs_keeps_no_wal_beyond_the_limit(tmp_path: Path, target: Path, hanging: Hanging) -> None:
    events: list[Event] = []
    with strictq.open(tmp_path / "q", durability="process", shards=2) as q:
        q.on_event(events.append)
        q.configure_replication(target, interval_seconds=FAST, max_lag_bytes=LAG)
        until(lambda: is_shipped(q))
        hanging.hangs.set()
        q.send(b"first", key="k")
        assert hanging.entered.wait(PATIENCE_SECONDS)
        sent = 1 + fill_up(q, 3 * LAG)
        until(lambda: [e for e in events if e.kind == "replication_lapsed"])
        status = q.replication()
        assert status is not None
        assert status.lapsed
        assert "answer" in str(status.last_error)
        before = q.stats().wal_bytes  # the size of the files, which begin again and do not shrink
        for _ in range(8):
            sent += fill_up(q, LAG)
            q._storage.checkpoint()
        assert q.stats().wal_bytes < before + 2 * LAG
        hanging.end()
        until(lambda: is_shipped(q))
        until(lambda: [e for e in events if e.kind == "replication_resumed"])
        assert [(e.kind, e.shard) for e in events] == [("replication_lapsed", -1), ("replication_resumed", -1)]
        assert "no restore points between" in events[1].detail
    restore(target, tmp_path / "r")
    with strictq.open(tmp_path / "r", read_only=True) as r:
        assert r.check() == []
        assert r.stats().ready == sent


def test_a_queue_can_be_closed_while_its_target_hangs(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "STOP_SECONDS", 3.0)
    monkeypatch.setattr(keeper, "GRACE_SECONDS", 2.0)
    hanging = Hanging(monkeypatch, "create")
    q = strictq.open(tmp_path / "q", durability="process")
    q.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(q))
    hanging.hangs.set()
    q.send(b"1", key="k")
    assert hanging.entered.wait(PATIENCE_SECONDS)
    q.close()
    with strictq.open(tmp_path / "q", durability="process") as again:
        again.send(b"2", key="k")
        again._storage.replicating.ship()
        status = again.replication()
        assert status is not None
        assert status.shipping  # the call may still write: nobody else ships there meanwhile
        assert not [t for t in threading.enumerate() if t.name == "strictq-shipper"]
        hanging.end()
        until(lambda: is_shipped(again))
        assert not again.replication().stopped  # type: ignore[union-attr]
    restore(target, tmp_path / "r")
    with strictq.open(tmp_path / "r", read_only=True) as r:
        assert r.stats().ready == 2


def test_another_target_can_be_chosen_while_one_hangs(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "GRACE_SECONDS", 2.0)
    hanging = Hanging(monkeypatch, "exists")  # before each segment but the first
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.configure_replication(target, interval_seconds=FAST)
        until(lambda: is_shipped(q))
        hanging.hangs.set()
        q.send(b"1", key="k")
        assert hanging.entered.wait(PATIENCE_SECONDS)
        q.configure_replication(tmp_path / "other", interval_seconds=3600)
        until(lambda: is_shipped(q))
        assert look(tmp_path / "other").points
        hanging.end()


def test_a_target_that_hangs_when_it_is_configured(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetThread.__init__, "__kwdefaults__", {"answer_seconds": 0.2, "on_wait": lambda _seconds: None})
    hanging = Hanging(monkeypatch, "make")
    hanging.hangs.set()
    with strictq.open(tmp_path / "q", durability="process") as q:
        with pytest.raises(TargetUnavailable, match="does not answer"):
            q.configure_replication(target)
        assert q.replication() is None
        hanging.end()


def test_no_wal_is_kept_when_shipping_has_stopped(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.on_event(events.append)
        q.configure_replication(target, interval_seconds=FAST)
        until(lambda: is_shipped(q))
        DirectoryTarget(target).put(1, b"of another process")
        q.send(b"1", key="k")
        until(lambda: (status := q.replication()) is not None and status.stopped)
        until(lambda: not [t for t in threading.enumerate() if t.name == "strictq-shipper"])
        assert [e.kind for e in events] == ["replication_stopped"]
        q._storage.replicating.ship()  # as the upkeep does
        most = 0
        for _ in range(5):
            fill_up(q, 5 * LAG)
            q._storage.checkpoint()
            most = max(most, q.stats().wal_bytes)
        assert most < 12 * LAG
        q.configure_replication(tmp_path / "t2", interval_seconds=FAST)
        until(lambda: is_shipped(q))


def test_a_process_that_lacks_something_lets_another_one_ship(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key, here; or credentials."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.configure_replication(target, interval_seconds=FAST, key_file=secret)
        until(lambda: is_shipped(q))
        q._storage.replicating.stop(flush=False)
        os.rename(secret, tmp_path / "away")
        monkeypatch.setattr(keeper, "BACKOFF_MAX_SECONDS", 3600.0)
        q._storage.replicating.ship()
        until(lambda: (status := q.replication()) is not None and "key file" in str(status.last_error))
        until(lambda: not q.replication().shipping)  # type: ignore[union-attr]
        os.rename(tmp_path / "away", secret)
        q.send(b"1", key="k")
        with strictq.open(tmp_path / "q", durability="process") as other:
            until(lambda: is_shipped(other))
    restore(target, tmp_path / "r", key_file=secret)
