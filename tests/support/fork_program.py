"""Programs that fork with a live queue: `python -m tests.support.fork_program STATE QUEUE HISTORY`.

Each runs in its own process, so that a fork never copies the test runner. Exit code 0: parent and children could all continue.
Their calls are in the history.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import strictq
from strictq import ForkedProcess, InvalidArgument, Queue, StrictqError
from tests.support.history import Recorder
from tests.support.recorded import Recorded
from tests.support.running import PATIENCE_SECONDS

LEASE_SECONDS = 0.4
KEYS = ["k0", "k1", "k2", "k3", "k4", "k5", "elsewhere"]


def fork(child: Callable[[], None]) -> int:
    """Fork. The child does its work and ends without the parent's cleanup."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def join(pid: int) -> None:
    """Wait for a child that must succeed."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
            return
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)


def work(recorded: Recorded, rounds: int = 5) -> None:
    """Use every part of the queue, as a parent or as a child."""
    for n in range(rounds):
        assert recorded.send(recorded.new(f"k{n % 3}")) is not None, repr(recorded.refusal)
        recorded.send_many([recorded.new(f"k{i}") for i in range(6)])
        got = recorded.receive(3, lease_seconds=LEASE_SECONDS, keys=KEYS)
        for d in got[:1]:
            recorded.transact(d, None, [recorded.new("elsewhere")])
        for d in got[1:]:
            recorded.act("ack", d)


def work_or_reopen(recorded: Recorded) -> None:
    """Do the same in a child of a fork inside a transaction, which may have to reopen the queue."""
    try:
        recorded.queue.stats()
    except (ForkedProcess, InvalidArgument):
        with strictq.open(recorded.queue.path, create=False) as own:
            work(Recorded(own, recorded.recorder), 2)
    else:
        work(recorded, 2)


def idle(queue: Queue, recorded: Recorded) -> None:
    """Fork while nothing runs. Children fork again."""
    work(recorded, 1)

    def grandparent() -> None:
        work(recorded)
        pid = fork(lambda: work(recorded))
        work(recorded)
        join(pid)

    pids = [fork(grandparent) for _ in range(2)]
    work(recorded)
    for pid in pids:
        join(pid)
    work(recorded, 1)


def child_closes(queue: Queue, recorded: Recorded) -> None:
    """Close the queue in a child, or free it there. The parent is not affected."""
    work(recorded, 1)
    got = queue.receive(1, keys=["k0"], lease_seconds=60.0)

    def close() -> None:
        work(recorded, 1)
        queue.close()

    for child in (queue.close, close, gc.collect):
        pid = fork(child)  # type: ignore[arg-type]
        work(recorded, 1)
        join(pid)
        work(recorded, 1)
    for d in got:
        d.nack()


def threads_sending(queue: Queue, recorded: Recorded) -> None:
    """Fork while other threads work. They do not exist in the child."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                work(recorded, 1)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            time.sleep(0.01)
            pids = [fork(lambda: work(recorded, 2)) for _ in range(2)]
            work(recorded, 1)
            for pid in pids:
                join(pid)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def waiting(queue: Queue, recorded: Recorded) -> None:
    """Fork while a thread waits for messages. The child's message wakes it."""
    got: list[int] = []

    def wait() -> None:
        deliveries = recorded.receive(1, wait=3600.0, lease_seconds=LEASE_SECONDS, keys=["awaited"])
        got.extend(d.seq for d in deliveries)
        for d in deliveries:
            recorded.act("ack", d)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.1)
    join(fork(lambda: work(recorded)))
    join(fork(lambda: recorded.send_many([recorded.new("awaited")])))
    thread.join(PATIENCE_SECONDS)
    assert got == [1]


CHILD_COMMITTED = 3


class Leave(Exception):
    """Raised to leave the parent's block in a child."""


def in_transaction(queue: Queue, recorded: Recorded) -> None:
    """Fork inside a transaction block that has read. It happens once, however and whenever the child leaves the block."""
    queue.send_many([strictq.Message(b"%d" % n, key="main") for n in range(6)])
    for leaves_by in ("exit", "exception", "end"):
        for child_first in (False, True):
            _leave(queue, recorded, leaves_by, child_first)


def _leave(queue: Queue, recorded: Recorded, leaves_by: str, child_first: bool) -> None:
    d = queue.receive(1, keys=["main"], lease_seconds=60.0)[0]
    child_left, parent_done = os.pipe(), os.pipe()
    child, committed = -1, False
    try:
        with queue.transaction(d) as tx:
            tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
            tx.execute("INSERT INTO app_effects VALUES (?, 'main', 0)", (f"{d.seq}",))
            tx.send(d.body, "handed-on")
            child = os.fork()
            if child == 0:
                os.close(parent_done[1])
                if not child_first:
                    os.read(parent_done[0], 1)
                if leaves_by == "exit":
                    os._exit(0)
                if leaves_by == "exception":
                    raise Leave
            elif child_first:
                os.close(child_left[1])
                os.read(child_left[0], 1)
        committed = True
    except (Leave, StrictqError) as e:
        print(f"leaving by {leaves_by}, child first: {child_first}, child {child}: {e!r}", file=sys.stderr)
    if child == 0:
        code = 1
        try:
            os.write(child_left[1], b"x")
            if child_first:
                os.read(parent_done[0], 1)
            work_or_reopen(recorded)
            code = CHILD_COMMITTED if committed else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    work(recorded, 1)
    os.close(parent_done[1])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, CHILD_COMMITTED), f"the child that left by {leaves_by} failed, child first: {child_first}"
    work(recorded, 1)
    if not committed and code == 0:
        with queue.transaction(d) as tx:  # it did not happen, and can be repeated
            tx.execute("INSERT INTO app_effects VALUES (?, 'main', 0)", (f"{d.seq}",))
            tx.send(d.body, "handed-on")
    rows = queue.query("SELECT effect FROM app_effects WHERE lane = 'main' AND effect = ?", (f"{d.seq}",))
    assert len(rows) == 1, f"{rows} after leaving by {leaves_by}, child first: {child_first}"


def in_run(queue: Queue, recorded: Recorded) -> None:
    """Fork in the program's function inside the write transaction, which is the worst moment."""
    queue.send(b"0", "main")
    d = queue.receive(1, keys=["main"], lease_seconds=60.0)[0]
    pids: list[int] = []

    def forks(db: object) -> None:
        pids.append(fork(lambda: work_or_reopen(recorded)))

    try:
        with queue.transaction(d) as tx:
            tx.send(d.body, "handed-on")
            tx.execute("INSERT INTO app_effects VALUES (?, 'main', 0)", (f"{d.seq}",))
            tx.run(forks)
    except StrictqError:
        # The fork closed the connection under the transaction. Then nothing of it happened, and it can be repeated.
        assert queue.query("SELECT * FROM app_effects WHERE lane = 'main'") == []
        with queue.transaction(d) as tx:
            tx.send(d.body, "handed-on")
            tx.execute("INSERT INTO app_effects VALUES (?, 'main', 0)", (f"{d.seq}",))
    for pid in pids:
        join(pid)
    work(recorded)


def memory(queue: Queue, recorded: Recorded) -> None:
    """Verify that an in-memory queue stays private to its creator."""
    with strictq.open(":memory:") as volatile:
        volatile.send(b"1", "k")

        def child() -> None:
            for use in (lambda: volatile.send(b"2", "k"), lambda: volatile.receive(1), lambda: volatile.stats()):
                try:
                    use()
                except ForkedProcess:
                    continue
                raise AssertionError("the child could use it")
            with strictq.open(":memory:") as own:
                own.send(b"x", "k")
                assert [d.body for d in own.receive(5)] == [b"x"]

        join(fork(child))
        volatile.send(b"2", "k")
        assert [d.body for d in volatile.receive(5)] == [b"1", b"2"]
    work(recorded)


STATES = {f.__name__: f for f in (idle, child_closes, threads_sending, waiting, in_transaction, in_run, memory)}

if __name__ == "__main__":
    recorder = Recorder(Path(sys.argv[3]) / "fork.jsonl")
    with strictq.open(sys.argv[2], create=False) as inherited:
        STATES[sys.argv[1]](inherited, Recorded(inherited, recorder))
    recorder.close()
