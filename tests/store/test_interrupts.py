"""Interrupts at the worst moments inside the store: no lock stays held, no lane stays leased, and no caller waits for ever."""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType

import anyio
import apsw
import pytest

import strictq
from strictq import Queue
from strictq._store.whole import receive
from tests.support.internals import Faulty, at_rest, connections, shard_of, store_of, writer_of
from tests.support.running import PATIENCE_SECONDS


def test_an_interrupted_leader_never_leaves_the_shard_without_one(tmp_path) -> None:
    with strictq.open(tmp_path / "queue") as q:  # durability full: callers are grouped
        grouping = writer_of(q)._grouping

        class Gate:  # Ctrl-C lands as the `with` on the gate ends
            def __init__(self, lock):
                self.lock, self.armed = lock, True

            def __enter__(self):
                return self.lock.__enter__()

            def __exit__(self, *a):
                self.lock.__exit__(*a)
                if self.armed:
                    self.armed = False
                    raise KeyboardInterrupt

        grouping._gate = Gate(grouping._gate)
        with pytest.raises(KeyboardInterrupt):
            q.send(b"", "k")
        t = threading.Thread(target=lambda: q.send(b"", "k"), daemon=True)
        t.start()
        t.join(3.0)
        assert not t.is_alive()


def test_a_fork_elsewhere_does_not_break_a_close(disk) -> None:
    q = disk()
    upkeep = store_of(q)._upkeep
    errors: list[BaseException] = []

    def close() -> None:
        try:
            q.close()
        except BaseException as e:
            errors.append(e)

    with upkeep._condition:
        t = threading.Thread(target=close)
        t.start()
        t.join(0.2)  # it waits in stop() for the condition
        upkeep.resume(child=False)  # what after_fork does, in the parent too
    t.join(PATIENCE_SECONDS)
    assert errors == []


@pytest.mark.parametrize("durability", ["full", "process"])
def test_tasks_that_began_inside_a_transaction_are_not_inside_it_when_it_is_over(tmp_path: Path, durability: str) -> None:
    """They inherit its name. A write by one of them must not look to the others like the transaction that they are in."""

    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue", durability=durability) as q:  # type: ignore[arg-type]
            over = anyio.Event()
            inside, go = threading.Event(), threading.Event()
            writer = writer_of(q.sync)

            def occupy() -> None:
                def wait(_tx: object) -> None:
                    inside.set()
                    go.wait(PATIENCE_SECONDS)

                writer.run(wait)

            async def first() -> None:
                await over.wait()
                await anyio.to_thread.run_sync(occupy)

            async def second() -> None:
                await over.wait()
                await anyio.to_thread.run_sync(inside.wait, 60.0)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(q.send, b"", "k")
                    await anyio.sleep(0.01)
                    go.set()

            async with anyio.create_task_group() as tasks:
                async with q.transaction(key="k") as tx:
                    tx.set_key_state(b"s")
                    tasks.start_soon(first)
                    tasks.start_soon(second)
                over.set()
            assert (await q.stats()).depth == 1

    anyio.run(main)


def test_a_leader_that_is_interrupted_as_it_begins_to_hand_over_leads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strictq.open(tmp_path / "queue") as q:
        grouping = writer_of(q)._grouping
        hand_over = grouping._end_lead
        interrupts = [KeyboardInterrupt()]

        def interrupted(*args: object) -> None:
            if interrupts:
                raise interrupts.pop()
            hand_over(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(grouping, "_end_lead", interrupted)
        with pytest.raises(KeyboardInterrupt) as kept:  # and so are the frames of the call, as in a notebook
            q.send(b"", "k")
        assert grouping._leader() is None
        assert kept.value is not None
        assert q.stats().depth == 1


def test_a_transaction_that_is_interrupted_on_its_way_out_keeps_no_lock(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue") as q:
        with pytest.raises(KeyboardInterrupt), q.transaction(key="k") as tx:
            tx.key_state = (tx.key_state or b"") + b"s"
            opened = tx._open
            assert opened is not None
            alone = opened._alone
            interrupts = [KeyboardInterrupt()]

            class Interrupted:
                def __getattr__(self, name: str) -> object:
                    if interrupts and name == "commit":
                        raise interrupts.pop()
                    return getattr(alone, name)

            opened._alone = Interrupted()  # type: ignore[assignment]
        assert at_rest(q)
        q.send(b"", "k")
        (d,) = q.receive()
        assert d.key_state is None


@pytest.mark.parametrize("behind", [True, False], ids=["behind it", "in front of it"])
@pytest.mark.parametrize("statement", ["BEGIN", "SELECT", "ROLLBACK"])
def test_a_look_that_is_interrupted_costs_later_looks_nothing(tmp_path: Path, statement: str, behind: bool) -> None:
    with strictq.open(tmp_path / "queue") as q:
        q.send(b"", "k")
        q.top_keys()
        shard = shard_of(q)
        real, interrupts = shard._reader._db, list[KeyboardInterrupt]()
        assert real is not None
        shard._reader._db = Faulty(  # type: ignore[assignment]
            real, lambda sql: interrupts.pop() if interrupts and sql.startswith(statement) else None, after=behind
        )
        q.top_keys()
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            q.top_keys()
        assert not interrupts
        shard._reader._db = real
        assert q.stats().depth == 1
        assert q.check() == []
        assert [k.key for k in q.top_keys()] == ["k"]


class InterruptBehindCalls:
    """Interrupts where Ctrl-C is noticed: after the n-th call that the code of some modules makes."""

    def __init__(self, n: int, *modules: ModuleType) -> None:
        self.files = {module.__file__ for module in modules}
        self.left = n

    def __enter__(self) -> InterruptBehindCalls:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        caller = frame if event == "c_return" else frame.f_back if event == "return" else None
        if caller is not None and caller.f_code.co_filename in self.files:
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["receive", "consume"])
def test_an_interrupt_behind_any_call_of_a_receive_leaves_nothing_leased(verb: str) -> None:
    interrupted = 0
    public = [strictq.queue] if verb == "receive" else []  # a generator that delegates to another one calls nothing
    for n in itertools.count(1):
        with strictq.open(":memory:") as q:
            q.send_many([strictq.Message(b"", key=k) for k in "abb"])
            consuming = q.consume()
            try:
                with InterruptBehindCalls(n, strictq._client.receiving, strictq.delivery, receive, *public):
                    handed = q.receive() if verb == "receive" else [next(consuming)]
            except KeyboardInterrupt:
                interrupted += 1
                assert q.stats().in_flight == 0, f"behind call {n}"
            else:
                assert handed[0].key == "a"
                break
    assert interrupted > 20


# ---- windows that left an object broken; test_every_interrupt.py tries every check for signals


def transact(q: Queue, d: strictq.Delivery, *, fails: bool = False) -> None:
    with q.transaction(d) as tx:
        tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1)"))
        if fails:
            raise ZeroDivisionError


PACKAGE = strictq.__path__[0]
WINDOWS = (
    ("_platform/leaving.py", "_wait", False),
    ("transaction.py", "_leave", False),
    ("transaction.py", "_end", False),
    ("_store/whole/transaction.py", "abandon", True),
    ("_store/commit/writer.py", "begin", False),
    ("_store/commit/writer.py", "close", False),
    ("_store/commit/writer.py", "close", True),
    ("_store/commit/writer.py", "_begin", False),
    ("_store/commit/writer.py", "_end", False),
    ("_store/commit/writer.py", "_leave", True),
    ("_store/commit/tx.py", "__init__", False),
    ("_store/commit/app_database.py", "run", False),
    ("_store/commit/app_database.py", "_authorize", False),
)
"""The file and the name of a function, and whether the block fails."""


@pytest.mark.parametrize(("file", "name", "fails"), WINDOWS)
def test_a_transaction_that_is_interrupted_as_a_function_begins_holds_nothing(
    file: str, name: str, fails: bool, tmp_path: Path
) -> None:
    with strictq.open(tmp_path / "queue") as q:
        store_of(q)._upkeep.stop()  # it would release what stays held, two seconds later
        q.app_schema("CREATE TABLE IF NOT EXISTS app_t (a)")
        q.send_many([strictq.Message(b"", key="k") for _ in range(3)])
        other = strictq.open(tmp_path / "queue")
        (d,) = q.receive(1)
        with pytest.raises(KeyboardInterrupt) as kept, InterruptIn(file, name):
            transact(q, d, fails=fails)
        assert at_rest(q)
        other.send(b"", "elsewhere")
        thread = threading.Thread(target=q.send, args=(b"", "another thread"), daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        q.send(b"", "this thread")
        q.send(b"", "this thread", dedup_id="d", delay=1.0)  # a statement that was not prepared yet
        assert (q.query("SELECT * FROM app_t") == []) == (q.status("k", 1).state != "resolved")
        assert kept.value is not None
        other.close()


class InterruptIn:
    """Interrupts the first call of a function, as it begins, or as a generator continues."""

    def __init__(self, file: str, name: str) -> None:
        self.file, self.name = file, name

    def __enter__(self) -> InterruptIn:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == self.name and code.co_filename.endswith(f"{PACKAGE}/{self.file}"):
            if code.co_flags & inspect.CO_GENERATOR and frame.f_lasti < 10:
                return  # it is made, and has not waited yet
            sys.setprofile(None)
            raise KeyboardInterrupt


def test_an_interrupted_transaction_in_memory_is_rolled_back() -> None:
    """The connection holds the data, so it can't be closed."""
    with strictq.open(":memory:") as q:
        q.send(b"", "k")
        (d,) = q.receive()
        q.app_schema("CREATE TABLE app_t (a)")
        with pytest.raises(KeyboardInterrupt), InterruptIn("_platform/leaving.py", "_wait"):
            transact(q, d)
        assert at_rest(q)
        assert q.query("SELECT * FROM app_t") == []
        d.ack()


def test_reads_that_an_interrupt_left_in_a_traceback_do_not_go_on(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue") as q, strictq.open(tmp_path / "queue") as other:
        q.send_many([strictq.Message(b"", key="k") for _ in range(100)])

        def interrupted(db: apsw.Connection) -> None:
            rows = db.execute("SELECT id FROM message")  # the traceback keeps it
            next(rows)
            raise KeyboardInterrupt

        shard = shard_of(q)
        for read in (
            shard._writer.read,
            shard._glances.glance,
            shard._writer.use,
            lambda work: shard._writer.run(lambda tx: work(tx.db)),
        ):
            with pytest.raises(KeyboardInterrupt) as kept:
                read(interrupted)
            assert {db.txn_state("main") for db in connections(q)} <= {apsw.SQLITE_TXN_NONE}
            other.send(b"", "k")
            q.send(b"", "k")
            assert kept.value is not None


def recurse() -> object:
    return recurse()


@pytest.mark.parametrize(
    ("raises", "kind"),
    [
        (lambda: b"\xff".decode(), UnicodeDecodeError),
        (lambda: json.loads("{"), json.JSONDecodeError),
        (lambda: len(None), TypeError),  # type: ignore[arg-type]
        (lambda: int("x"), ValueError),
        (recurse, RecursionError),
    ],
)
def test_a_programs_exception_inside_a_transaction_is_raised_as_it_is(
    raises: Callable[[], object], kind: type[Exception], tmp_path: Path
) -> None:
    with strictq.open(tmp_path / "queue") as q:
        q.send(b"", "k")
        shard = shard_of(q)
        for call in (shard.run, shard.read, shard.glance, shard.look):
            with pytest.raises(kind) as raised:
                call(lambda _: raises())  # type: ignore[operator]
            assert type(raised.value) is kind
        assert shard.failed is None
        assert [d.key for d in q.receive()] == ["k"]
