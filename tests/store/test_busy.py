"""Writing to one shard blocks no call that another shard can serve."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

import strictq
from strictq import Message, Queue, QueueConfig, StoreBusy
from strictq._store.commit import checkpoint, connection, writer
from strictq._store.shard.shard_file import Shard
from strictq._store.whole import receive as receiving
from strictq._store.whole.store import Store
from strictq._values.keys import encode_key
from tests.support.internals import store_of
from tests.support.queues import keys_by_shard
from tests.support.running import PATIENCE_SECONDS, until

T = TypeVar("T")
A, B = keys_by_shard(2).values()

HOLDER = """
import sys, strictq
with strictq.open(sys.argv[1]) as q, q.transaction(key=sys.argv[2]) as tx:
    tx.key_state = b"held"
    tx.run(lambda db: None)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call that waits for a lock wait for as long as the test runs."""
    monkeypatch.setattr(writer, "BUSY_SECONDS", 3600.0)
    monkeypatch.setattr(connection, "BUSY_SECONDS", 3600.0)


@pytest.fixture(params=["thread", "process", "memory"])
def holder(request: pytest.FixtureRequest) -> str:
    """Return what holds shard B."""
    return str(request.param)


@pytest.fixture(params=["full", "process"])
def q(request: pytest.FixtureRequest, holder: str, tmp_path: Path) -> Iterator[Queue]:
    """Yield a queue of two shards, whose depth is limited."""
    path = ":memory:" if holder == "memory" else tmp_path / "queue"
    config = QueueConfig(max_depth=1000)
    with strictq.open(path, shards=2, durability=request.param, config=config) as opened:
        yield opened


@contextmanager
def held(q: Queue, holder: str) -> Iterator[Callable[[], None]]:
    """Keep another thread, or another process, inside a transaction on shard B, until the yielded function is called."""
    if holder == "process":
        command = [sys.executable, "-c", HOLDER, q.path, B]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"held\n"
            try:
                yield process.stdin.close
            finally:
                process.stdin.close()
            assert process.wait(PATIENCE_SECONDS) == 0
        return
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        with q.transaction(key=B) as tx:
            tx.key_state = b"held"
            tx.run(lambda db: None)
            inside.set()
            go.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert inside.wait(PATIENCE_SECONDS)
    try:
        yield go.set
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)


class Started:
    """A call in its own thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as e:
            self._outcome.append(e)

    def result(self) -> Any:
        """Return its result, which comes soon."""
        self._thread.join(PATIENCE_SECONDS)
        assert self._outcome, "it waits for shard B"
        if isinstance(self._outcome[0], BaseException):
            raise self._outcome[0]
        return self._outcome[0]

    @property
    def waits(self) -> bool:
        return not self._outcome


def unhindered(call: Callable[[], T]) -> T:
    """Return the call's result, which must come while shard B is held."""
    result: T = Started(call).result()
    return result


def test_sends_to_another_shard(q: Queue, holder: str) -> None:
    q.send(b"", B)
    with held(q, holder):
        assert unhindered(lambda: q.send(b"", A)).seq == 1
        assert [r.seq for r in unhindered(lambda: q.send_many([Message(b"", key=A)] * 2))] == [2, 3]
    assert q.stats().depth == 4


def test_max_depth_counts_what_the_held_shard_has_committed(q: Queue, holder: str) -> None:
    q.configure(max_depth=3)
    q.send_many([Message(b"", key=B)] * 2)
    with held(q, holder):
        unhindered(lambda: q.send(b"", A))
        with pytest.raises(strictq.QueueFull):
            unhindered(lambda: q.send(b"", A))


def test_maximum_depths_are_compared_on_connections_that_are_free(tmp_path: Path) -> None:
    """Another connection would keep a second memory current."""
    with strictq.open(tmp_path / "queue", shards=2, config=QueueConfig(max_depth=3, tenant_separator="/")) as q:
        q.limit("*", max_depth=2)
        for key in (A, B, A, B):
            with suppress(strictq.QueueFull):
                q.send(b"", key)
        assert q.stats().depth == 2
        assert not any(shard._glances.opened for shard in store_of(q).shards)


@pytest.mark.parametrize("ready", [False, True], ids=["nothing else ready", "ready in both"])
def test_a_receive_brings_what_another_shard_has(q: Queue, holder: str, ready: bool) -> None:
    q.send_many([Message(b"", key=A)] * 4)
    if ready:
        q.send(b"", B)
    with held(q, holder):
        for n in range(1, 5):  # each begins with another shard
            (d,) = unhindered(lambda: q.receive(per_key=1))
            assert (d.key, d.seq) == (A, n)
            unhindered(d.ack)
    assert [d.key for d in q.receive()] == [B] * ready


def test_holders_in_another_shard_go_on(q: Queue, holder: str) -> None:
    q.send_many([Message(b"", key=A)] * 3)
    first, second, _ = q.receive()
    with held(q, holder):
        unhindered(lambda: second.extend(60.0))
        unhindered(first.ack)
        unhindered(lambda: second.nack(delay=0.0))
        assert [m.seq for m in unhindered(lambda: q.peek(A))] == [2, 3]
        (again,) = unhindered(lambda: q.receive(1))
        unhindered(again.lease.release)
        (again,) = unhindered(lambda: q.receive(1))
        assert (again.seq, again.attempt) == (2, 2)
        with q.transaction(again) as tx:
            tx.send(b"", A)
    assert [m.seq for m in q.peek(A)] == [3, 4]


def test_looks_at_a_held_shard_on_disk_wait_for_nothing(q: Queue, holder: str) -> None:
    if holder == "memory":
        pytest.skip("in memory, a shard has one connection")
    q.send(b"", B)
    with held(q, holder):
        assert unhindered(q.stats).depth == 1
        assert [m.seq for m in unhindered(lambda: q.peek(B))] == [1]
        assert unhindered(lambda: q.status(B, 1)).state == "ready"
        assert unhindered(lambda: q.explain(B)).state == "ready"
        assert [k.key for k in unhindered(lambda: q.top_keys())] == [B]
        assert unhindered(q.check) == []


def test_an_empty_queue_is_reported_without_waiting(q: Queue, holder: str) -> None:
    if holder == "memory":
        pytest.skip("in memory, a shard has one connection")
    with held(q, holder):
        assert unhindered(q.receive) == []
        assert unhindered(lambda: q.receive(wait=0.05)) == []


@pytest.mark.parametrize("wait", [0.0, 0.05, None])
def test_what_is_ready_only_in_the_held_shard_is_waited_for(
    q: Queue, holder: str, wait: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive whose time is over waits for the lock. One with time left looks repeatedly."""
    q.send(b"", B)
    tries: list[float | None] = []
    claim_from = receiving._claim_from

    def claim(store: Store, shard: Shard, *args: Any) -> Any:
        if shard is store_of(q).shard_of(encode_key(B)):
            tries.append(args[-1])
        return claim_from(store, shard, *args)

    monkeypatch.setattr(receiving, "_claim_from", claim)
    with held(q, holder) as release:
        receive = Started(lambda: q.receive(wait=wait))
        until(lambda: len(tries) > 5 if wait is None else None in tries, "the receive to wait")
        assert receive.waits
        release()
        (d,) = receive.result()
        assert (d.key, d.seq) == (B, 1)


@pytest.mark.parametrize("ready", [False, True], ids=["B is empty", "B has a message"])
def test_a_waiting_receive_is_woken_by_a_send_to_another_shard(q: Queue, holder: str, ready: bool) -> None:
    if ready:
        q.send(b"", B)
    with held(q, holder):
        receive = Started(lambda: q.receive(wait=None))
        until(lambda: store_of(q).waker._waiting == 1, "the receive to wait")
        assert unhindered(lambda: q.send(b"", A)).seq == 1
        (d,) = receive.result()
        assert d.key == A


def test_an_async_queue_does_the_same(tmp_path: Path, holder: str) -> None:
    if holder == "memory":
        pytest.skip("its shards are those of the object")
    path = tmp_path / "queue"

    async def main() -> None:
        async with strictq.open_async(path, shards=2, config=QueueConfig(max_depth=100)) as queue:
            await queue.send_many([Message(b"", key=key) for key in (A, B)])
            with held(queue.sync, holder), anyio.fail_after(PATIENCE_SECONDS):
                assert (await queue.send(b"", A)).seq == 2
                for n in (1, 2):
                    (d,) = await queue.receive(per_key=1)
                    assert (d.key, d.seq) == (A, n)
                    await d.ack()
                async with anyio.create_task_group() as group:
                    got: list[Any] = []

                    async def receive() -> None:
                        got.extend(await queue.receive(wait=None))

                    group.start_soon(receive)
                    await queue.send(b"", A)
                assert [d.key for d in got] == [A]
            (d,) = await queue.receive()
            assert d.key == B

    anyio.run(main)


def test_a_call_that_gave_up_on_a_holder_does_not_wait_for_it_again(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue", shards=2) as q:
        writer = store_of(q).shard_of(encode_key(B))._writer
        waited: list[float | None] = []
        real = writer._grouping.commit

        def commit(call: Any) -> Any:
            waited.append(call.seconds)
            return real(call)

        writer._grouping.commit = commit  # type: ignore[method-assign]
        with held(q, "thread"):
            for _ in range(3):
                with pytest.raises(StoreBusy):
                    unhindered(lambda: writer.run(lambda tx: None, 0.01))
        writer.run(lambda tx: None, 0.01)
        writer.run(lambda tx: None, 0.01)
        assert waited == [0.01, 0.0, 0.0, 0.0, 0.01]


def test_a_follower_with_little_time_withdraws_and_the_others_are_served(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue", shards=2) as q:
        writer = store_of(q).shard_of(encode_key(B))._writer
        ran: list[str] = []
        with held(q, "process"):
            patient = Started(lambda: writer.run(lambda tx: ran.append("patient")))
            until(lambda: writer._grouping._leader() is not None, "the leader")
            another = Started(lambda: writer.run(lambda tx: ran.append("another")))
            until(lambda: len(writer._grouping._waiting) == 1, "a follower")
            with pytest.raises(StoreBusy):
                unhindered(lambda: writer.run(lambda tx: ran.append("hasty"), 0.01))
            assert patient.waits
            assert another.waits
        patient.result()
        another.result()
        assert sorted(ran) == ["another", "patient"]


def test_the_engines_thread_checkpoints_another_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "WAL_PAGES_MIN", 50)
    monkeypatch.setattr(checkpoint, "WAL_PAGES", 100)
    with strictq.open(tmp_path / "queue", shards=2, durability="process") as q:
        a, b = (store_of(q).shard_of(encode_key(key)) for key in (A, B))
        with held(q, "process"):
            b.wal.pages = 1000  # there is something to finish, which needs the write lock
            store_of(q).wal_grew(b.number)
            q.send_many([Message(b"x" * 700, key=A)] * 1000)
            store_of(q).wal_grew(a.number)
            until(lambda: a.number not in store_of(q)._upkeep._grown, "the checkpoint of shard A")
            store_of(q).tidy()
