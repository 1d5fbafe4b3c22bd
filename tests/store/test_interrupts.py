"""Interrupts at the worst moments inside the store: no lock stays held, no lane stays leased, and no caller waits for ever."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import FrameType, ModuleType

import anyio
import pytest

import strictq
from strictq._store import receive
from tests.support.internals import Faulty, at_rest, shard_of, store_of, writer_of


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
    t.join(10)
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
                    go.wait(60.0)

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
            block = opened._block
            interrupts = [KeyboardInterrupt()]

            class Interrupted:
                def __exit__(self, *args: object) -> bool | None:
                    if interrupts:
                        raise interrupts.pop()
                    return block.__exit__(*args)  # type: ignore[arg-type]

            opened._block = Interrupted()  # type: ignore[assignment]
        assert at_rest(q)
        q.send(b"", "k")
        (d,) = q.receive()
        assert d.key_state is None


@pytest.mark.parametrize("behind", [True, False], ids=["behind it", "in front of it"])
@pytest.mark.parametrize("statement", ["BEGIN", "SELECT", "ROLLBACK"])
def test_a_look_that_is_interrupted_costs_later_looks_nothing(tmp_path: Path, statement: str, behind: bool) -> None:
    with strictq.open(tmp_path / "queue") as q:
        q.send(b"", "k")
        q.stats()
        shard = shard_of(q)
        real, interrupts = shard._reader.db, list[KeyboardInterrupt]()
        assert real is not None
        shard._reader.db = Faulty(  # type: ignore[assignment]
            real, lambda sql: interrupts.pop() if interrupts and sql.startswith(statement) else None, after=behind
        )
        q.stats()
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            q.stats()
        assert not interrupts
        shard._reader.db = real
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
                with InterruptBehindCalls(n, strictq._receiving, strictq.batch, receive, *public):
                    handed = q.receive() if verb == "receive" else [next(consuming)]
            except KeyboardInterrupt:
                interrupted += 1
                assert q.stats().in_flight == 0, f"behind call {n}"
            else:
                assert handed[0].key == "a"
                break
    assert interrupted > 20
