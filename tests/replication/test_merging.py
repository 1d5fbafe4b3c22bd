"""Two histories of a queue that become one: what is sent, resolved and reported, and that it happens once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import (
    AppRowsDiffer,
    ForwardPending,
    InvalidArgument,
    KeyStateDiffers,
    Merged,
    MergedSend,
    Message,
    MessageName,
    Queue,
    QueueConfig,
    QueueNotFound,
    ReadOnlyQueue,
    Replica,
    StoreBusy,
    StrictqError,
)
from strictq.testing import FakeClock
from tests.support.command import in_process
from tests.support.forks import drained, fork
from tests.support.replicas import forget_contact, ship_to, token_file, until_level
from tests.support.running import ROOT

SHARDS = 2


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    """The queue that goes on; a merge needs it closed."""
    with strictq.open(tmp_path / "old", durability="process", shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def merged(q: Queue, new: Path, **options: bool) -> Merged:
    q.close()
    return strictq.merge(q.path or "", new, **options)


def names(found: tuple[MessageName, ...] | None) -> list[tuple[object, int]]:
    assert found is not None
    return [(name.key, name.seq) for name in found]


def ack(q: Queue, *keys: str) -> None:
    """Ack the first message of each of these keys."""
    for key in keys:
        (d,) = q.receive(1, keys=[key])
        d.ack()


# ---- sends


@pytest.mark.smoke
def test_sends_behind_the_fork_are_appended_in_order(q: Queue, new: Path) -> None:
    q.send_many([Message(b"before", key=f"k{n}") for n in range(4)])
    fork(q, new)
    for n in range(8):
        q.send(b"old %d" % n, key=f"k{n % 4}", headers={"h": "v"} if n % 2 else None)
    with strictq.open(new) as r:
        r.send(b"new", key="k0")
    done = merged(q, new)
    assert done.sent == tuple(
        sorted(
            (MergedSend(f"k{n % 4}", 2 + n // 4, (3 if n % 4 == 0 else 2) + n // 4, False) for n in range(8)),
            key=done.sent.index,
        )
    )
    assert (done.old, done.into, done.term, done.dry_run, done.earlier) == (q.path, str(new), 1, False, 0)
    with strictq.open(new) as r:
        (_, _, d) = r.receive(3, keys=["k0"])
        assert d.headers == {"strictq-merged-history": done.history_id, "strictq-merged-term": "1", "strictq-merged-seq": "2"}
        (_, d, _) = r.receive(3, keys=["k1"])
        assert (d.body, d.headers["h"]) == (b"old 1", "v")
        r.nack_many([d])
    assert strictq.merge(done.old, new).sent == ()


def test_a_dry_run_changes_nothing_and_says_the_same(q: Queue, new: Path) -> None:
    q.send_many([Message(b"1", key="a"), Message(b"1", key="b")])
    fork(q, new)
    q.send(b"2", key="a")
    ack(q, "b")
    q.close()
    before = {path: path.read_bytes() for path in sorted(new.glob("*.db"))}
    said = strictq.merge(q.path or "", new, dry_run=True)
    assert {path: path.read_bytes() for path in sorted(new.glob("*.db"))} == before
    done = strictq.merge(q.path or "", new)
    assert [(s.key, s.seq, s.new_seq) for s in said.sent] == [("a", 2, None)]
    assert [(s.key, s.seq, s.new_seq) for s in done.sent] == [("a", 2, 2)]
    assert said.acked == done.acked == (MessageName("b", 1),)
    assert (said.dry_run, strictq.merge(q.path or "", new, dry_run=True).earlier) == (True, 1)


def test_times_options_and_large_bodies_come_along(tmp_path: Path) -> None:
    clock = FakeClock()
    new = tmp_path / "new"
    with strictq.open(tmp_path / "old", durability="process", clock=clock) as q:
        q.configure_replication(tmp_path / "target")
        q.close()
    strictq.restore(tmp_path / "target", new, alone=True)
    with strictq.open(tmp_path / "old", durability="process", clock=clock) as q:
        q.detach()
        clock.advance(100.0)
        q.send(b"x" * 5000, key="k", size_hint=7.0, prepare_seconds=0.5, process_seconds=1.5)
        q.send(b"late", key="late", delay=50.0)
        q.send(b"over", key="over", ttl=10.0)
    clock.advance(20.0)
    strictq.merge(tmp_path / "old", new, clock=clock)
    with strictq.open(new, clock=clock) as r:
        (d,) = r.receive(10)
        assert (d.body, d.size_hint, d.prepare_seconds, d.process_seconds) == (b"x" * 5000, 7.0, 0.5, 1.5)
        d.ack()
        clock.advance(31.0)
        assert [d.body for d in r.receive(10)] == [b"late"]


def test_what_lies_in_outboxes_comes_first(q: Queue, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends of transactions before the fork precede the merged ones. If they can't arrive now, nothing is merged."""
    fork(q, new)
    q.send(b"1", key="k")

    def forward(_self: object, _shard: int) -> None:
        raise ForwardPending("a shard is busy")

    with monkeypatch.context() as patch:
        patch.setattr(type(q._storage.transactions), "forward", forward)
        with pytest.raises(ForwardPending):
            merged(q, new)
    with strictq.open(new, read_only=True) as look:
        assert look.stats().depth == 0
    assert len(merged(q, new).sent) == 1


def test_dedup_ids_are_honoured(q: Queue, new: Path) -> None:
    fork(q, new)
    q.send(b"a", key="k", dedup_id="both")
    q.send(b"b", key="k", dedup_id="old")
    with strictq.open(new) as r:
        r.send(b"first", key="k")
        r.send(b"a", key="k", dedup_id="both")
    assert merged(q, new).sent == (MergedSend("k", 1, 2, True), MergedSend("k", 2, 3, False))
    with strictq.open(new) as r:
        assert r.send(b"b", key="k", dedup_id="old").duplicate
    assert drained(new) == {"k": [b"first", b"a", b"b"]}


def test_keyless_messages_come_along(tmp_path: Path) -> None:
    new = tmp_path / "new"
    config = QueueConfig(keyless="round_robin", retry_delay_seconds=0.001)
    with strictq.open(tmp_path / "old", durability="process", config=config) as q:
        q.send_many([Message(b"1"), Message(b"2")])
        fork(q, new)
        q.ack_many(q.receive(1))
        q.send_many([Message(b"3"), Message(b"4")])
        q.send(b"5", delay=0.001)
        for d in q.receive(1):
            d.nack(reason="parked")
    done = strictq.merge(tmp_path / "old", new)
    assert (len(done.acked), len(done.sent), {s.key for s in done.sent}) == (1, 3, {None})
    assert sorted(drained(new)[None]) == [b"2", b"3", b"4", b"5"]


# ---- what is resolved


def test_what_the_old_queue_resolved_is_resolved(q: Queue, new: Path) -> None:
    q.send_many([Message(b"%d" % n, key=key) for key in "abcd" for n in range(3)])
    fork(q, new)
    ack(q, "a", "a", "b", "c")
    with strictq.open(new) as r:
        ack(r, "b")
        held = r.receive(1, keys=["c"])
        done = merged(q, new)
        held[0].ack()
    assert names(done.acked) == [("a", 1), ("a", 2)]
    assert names(done.leased) == [("c", 1)]
    assert sorted(names(done.twice)) == [("b", 1), ("c", 1)]
    again = strictq.merge(q.path or "", new)
    assert (again.acked, again.leased) == ((), ())
    assert sorted(names(again.twice)) == [("b", 1), ("c", 1)]
    assert drained(new) == {"a": [b"2"], "b": [b"1", b"2"], "c": [b"1", b"2"], "d": [b"0", b"1", b"2"]}


def test_an_expired_lease_holds_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    new = tmp_path / "new"
    with strictq.open(tmp_path / "old", durability="process", clock=clock) as q:
        q.send_many([Message(b"1", key="k"), Message(b"2", key="k")])
        fork(q, new)
        ack(q, "k")
    with strictq.open(new, clock=clock) as r:
        r.receive(1, lease_seconds=1.0)
        clock.advance(2.0)
    done = strictq.merge(tmp_path / "old", new, clock=clock)
    assert (names(done.acked), done.leased) == ([("k", 1)], ())
    with strictq.open(new, clock=clock) as r:
        assert r.check() == []
        assert [d.body for d in r.receive(10)] == [b"2"]


def test_acked_beats_dead_and_dead_letters_behind_the_fork_are_reported(q: Queue, new: Path) -> None:
    q.send(b"x" * 2000, key="k")
    q.send(b"dead at the fork", key="both")
    q.receive(1, keys=["both"])[0].reject("no")
    fork(q, new)
    with strictq.open(new) as r:
        r.receive(1, keys=["k"])[0].reject("no")
    ack(q, "k")
    q.send(b"y", key="later")
    q.receive(1, keys=["later"])[0].reject("no")
    done = merged(q, new)
    assert (names(done.acked), names(done.dead), done.sent) == ([("k", 1)], [("later", 1)], ())
    with strictq.open(new) as r:
        assert r.check() == []
        assert [(d.key, d.body) for d in r.dead_letters()] == [("both", b"dead at the fork")]
    with strictq.open(q.path or "", read_only=True) as left:
        assert {d.key for d in left.dead_letters()} == {"later", "both"}


def test_too_many_to_say_what_was_processed_twice(q: Queue, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq._store.shipping.fork_point.PENDING_MAX", 1)
    q.send_many([Message(b"", key="k") for _ in range(3)])
    fork(q, new)
    ack(q, "k")
    with strictq.open(new) as r:
        ack(r, "k")
    done = merged(q, new)
    assert (done.twice, done.acked) == (None, ())


# ---- what is never merged


def test_key_states_and_rows_that_differ_are_reported(q: Queue, new: Path) -> None:
    q.app_schema("CREATE TABLE IF NOT EXISTS app_ledger (n INTEGER PRIMARY KEY, text TEXT) STRICT")
    with q.transaction(key="same") as tx:
        tx.key_state = b"1"
        tx.execute("INSERT INTO app_ledger VALUES (1, 'both')")
    fork(q, new)
    with q.transaction(key="same") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (2, 'old')")
    with q.transaction(key="same") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (3, 'old')")
    with q.transaction(key="other") as tx:
        tx.key_state = b"2"
    shard = q.explain("same").shard
    with strictq.open(new) as r, r.transaction(key="same") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (2, 'new')")
    done = merged(q, new)
    assert done.key_states == (KeyStateDiffers("other", in_old=True, in_into=False),)
    assert done.app_rows == (AppRowsDiffer("app_ledger", shard, 2, 1),)
    with strictq.open(new) as r:
        assert [tuple(row) for row in r.query("SELECT text FROM app_ledger ORDER BY n")] == [("both",), ("new",)]


# ---- once, whatever happens

KILLED = """
import os, signal, sys
from strictq.replication.merging_histories import merge

old, new, step, count = sys.argv[1:]
left = [int(count)]

def kill(name):
    if name == step:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

merge(old, new, on_step=kill)
"""


@pytest.mark.parametrize(("step", "count"), [("noted", 1), ("noted", 2), ("resolved", 1), ("sent", 1), ("sent", 2), ("sent", 3)])
def test_killed_at_any_step_and_merged_again(q: Queue, new: Path, step: str, count: int) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(70)])
    fork(q, new)
    ack(q, *(f"k{n}" for n in range(7)))
    q.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(70, 1400)])
    q.close()
    killed = subprocess.run([sys.executable, "-c", KILLED, q.path or "", new, step, str(count)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    done = strictq.merge(q.path or "", new)
    assert done.twice == ()
    assert done.earlier + len(done.sent) == 1330
    assert drained(new) == {f"k{k}": [b"%d" % n for n in range(k + 7, 1400, 7)] for k in range(7)}


@pytest.mark.parametrize("seed", range(6))
def test_writes_on_both_sides(q: Queue, new: Path, seed: int) -> None:
    rng = random.Random(seed)
    numbers = iter(range(10_000))

    def work(queue: Queue, name: bytes) -> None:
        for _ in range(60):
            key = f"k{rng.randrange(6)}"
            if rng.random() < 0.6:
                queue.send(name + b"%d" % next(numbers), key=key)
            else:
                with queue.receive(rng.randrange(1, 4), keys=[key]) as batch:
                    for d in batch[: rng.randrange(4)]:
                        d.ack()

    work(q, b"both ")
    fork(q, new)
    with strictq.open(new) as r:
        at_fork = contents(r)
        work(q, b"old ")
        work(r, b"new ")
        left, right = contents(q), contents(r)
    done = merged(q, new)
    lost = [(key, at_fork[key][b]) for key in KEYS for b in at_fork[key] if b not in left[key] and b not in right[key]]
    assert sorted(names(done.twice)) == sorted(lost)
    expected = {
        key: [b for b in right[key] if b in left[key] or b not in at_fork[key]] + [b for b in left[key] if b not in at_fork[key]]
        for key in KEYS
    }
    assert drained(new) == {key: bodies for key, bodies in expected.items() if bodies}
    assert strictq.merge(q.path or "", new).sent == ()
    assert drained(new) == {}


KEYS = [f"k{n}" for n in range(6)]


def contents(queue: Queue) -> dict[str, dict[bytes, int]]:
    """Of each key: its unresolved messages in order, and their seqs."""
    return {key: {m.body: m.seq for m in queue.peek(key, 1000)} for key in KEYS}


# ---- promoted queues, and histories that go on from one another


def promoted(q: Queue, home: Path) -> Path:
    token = token_file(home.parent)
    with Replica(home, token_file=token) as replica:
        ship_to(q, replica.address, token)
        until_level(q, home)
        q.detach()
    forget_contact(home)
    strictq.promote(home)
    return home


def test_into_a_promoted_replica_and_into_one_of_that(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    b = promoted(q, tmp_path / "b")
    q.send(b"2", key="k")
    ack(q, "k")
    with strictq.open(b) as second:
        second.send(b"3", key="k")
        c = promoted(second, tmp_path / "c")
        second.send(b"4", key="k")
    q.close()
    done = strictq.merge(q.path or "", c)
    assert (done.old, done.into, done.term) == (q.path, str(c / "live"), 1)
    assert [(s.seq, s.new_seq) for s in done.sent] == [(2, 3)]
    assert strictq.merge(b, c).term == 2
    assert drained(c) == {"k": [b"3", b"2", b"4"]}


def test_what_was_merged_once_is_merged_on(q: Queue, tmp_path: Path) -> None:
    """A merged send has the time of its first send, which may be before the second fork."""
    b = fork(q, tmp_path / "b")
    q.send(b"1", key="k")
    q.close()
    with strictq.open(b) as second:
        second.send(b"2", key="k")
        c = fork(second, tmp_path / "c")
    strictq.merge(q.path or "", b)
    done = strictq.merge(b, c)
    assert [(s.seq, s.new_seq) for s in done.sent] == [(2, 2)]
    with strictq.open(c) as r:
        (_, d) = r.receive(10)
        assert (d.body, d.headers["strictq-merged-seq"], d.headers["strictq-merged-term"]) == (b"1", "1", "1")


# ---- what is refused


def refused_arguments(q: Queue, tmp_path: Path) -> dict[str, tuple[object, object, type[StrictqError], str]]:
    new, other, home = fork(q, tmp_path / "new"), tmp_path / "other", tmp_path / "home"
    strictq.open(other).close()
    Replica(home, token_file=token_file(tmp_path)).close()
    copy = fork(q, tmp_path / "copy")
    return {
        "the same": (q.path, q.path, InvalidArgument, "the same queue"),
        "another queue": (other, new, InvalidArgument, "different queues"),
        "not its fork": (new, copy, InvalidArgument, "was not promoted or restored"),
        "the other way": (new, q.path, InvalidArgument, "was not promoted or restored"),
        "missing": (tmp_path / "none", new, QueueNotFound, "no queue"),
        "missing too": (q.path, tmp_path / "none", QueueNotFound, "no queue"),
        "a replica": (q.path, home, ReadOnlyQueue, "a replica that receives changes"),
        "from a replica": (home, new, ReadOnlyQueue, "a replica that receives changes"),
        "no path": (q.path, "", InvalidArgument, "must be the path"),
        "bytes": (b"x", new, InvalidArgument, "must be the path"),
    }


def test_what_is_refused(q: Queue, tmp_path: Path) -> None:
    refused = refused_arguments(q, tmp_path)
    q.close()
    for name, (old, into, kind, words) in refused.items():
        with pytest.raises(kind, match=words):
            strictq.merge(old, into)  # type: ignore[arg-type]
        assert name


def test_an_old_queue_that_is_in_use_is_refused(q: Queue, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq._store.disk.locks.ALONE_SECONDS", 0.05)
    fork(q, new)
    q.send(b"1", key="k")
    with pytest.raises(StoreBusy, match="nothing was changed"):
        strictq.merge(q.path or "", new)
    assert drained(new) == {}


# ---- the command


def test_the_command(q: Queue, new: Path) -> None:
    q.send_many([Message(b"1", key="a"), Message(b"1", key="b"), Message(b"1", key="c")])
    fork(q, new)
    q.send(b"2", key="a")
    ack(q, "b", "c")
    with strictq.open(new) as r:
        ack(r, "b")
    q.close()
    shown = in_process("merge", q.path or "", str(new), "--dry-run")
    assert (shown.exit_code, "1 send to append" in shown.output) == (0, True)
    shown = in_process("merge", q.path or "", str(new))
    assert "1 send appended, 0 appended by an earlier merge" in shown.output
    assert "processed twice" in shown.output
    again = in_process("merge", q.path or "", str(new), "--json")
    assert '"earlier":1' in again.output.replace(" ", "")
    assert in_process("merge", str(new), q.path or "").exit_code == 2
