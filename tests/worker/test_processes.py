"""Handlers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, Queue, Worker
from tests.support.running import PATIENCE_SECONDS
from tests.worker import handlers


async def not_plain(job: Any) -> None:
    pass


def test_all_that_a_job_can_do(q: Queue) -> None:
    q.app_schema("CREATE TABLE app_seen (lane TEXT, n INTEGER) STRICT")
    for n in range(6):
        q.send(b"%d" % n, key=n % 2)
    worker = Worker(q, handlers.everything, handlers.twice, executor="process", concurrency=2, keys=[0, 1])
    worker.run(drain=True)
    assert worker.stats().acked == 6
    assert sorted(q.query("SELECT * FROM app_seen")) == [(k, n) for k in "01" for n in (1, 2, 3)]
    for key in (0, 1):
        with q.transaction(key=key) as tx:
            assert tx.key_state == b"3"
    out = [m.body.split() for m in q.peek("out", 10)]
    assert sorted(int(words[0]) for words in out) == [0, 2, 4, 6, 8, 10]
    assert str(os.getpid()).encode() not in {words[2] for words in out}


def test_raises_cross_over(make: Any) -> None:
    q = make()
    q.send(b"", key="k")
    Worker(q, handlers.fails_twice, executor="process", concurrency=1).run(drain=True)
    assert q.stats().retries == 2
    q.send(b"", key="k")
    Worker(q, handlers.rejects, executor="process", concurrency=1).run(drain=True)
    assert [d.reason for d in q.dead_letters()] == ["unwanted"]


def test_the_errors_of_the_attempts_before_cross_over(make: Any) -> None:
    q = make(history="records")
    q.send(b"", key="k")
    Worker(q, handlers.says_what_failed_before, executor="process", concurrency=1).run(drain=True)
    records = [r for shard in range(q.shards) for r in q.history(shard=shard)]
    assert [(r.outcome, r.attempts, r.output) for r in records] == [("acked", 2, "1 ValueError: no paper")]
    assert "in says_what_failed_before\n" in str(records[0].errors[0].traceback)


class Elsewhere(strictq.Observer):
    """Gives the handler's process what is not a context, or what can't be sent to it, or read there."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def handling_elsewhere(self, stage: str, job: Any) -> Any:
        return self.found


@pytest.mark.parametrize(
    "found", [lambda: None, handlers.NotReadable(), 7, handlers.fails_twice], ids=["local", "unreadable", "a number", "raises"]
)
def test_an_observer_that_fails_changes_nothing_for_the_handler(q: Queue, found: Any) -> None:
    q.send(b"1", key=0)
    with q.observe(Elsewhere(found)):
        Worker(q, handlers.nothing, executor="process", concurrency=1, keys=[0]).run(drain=True)
    assert (q.stats().acks, q.stats().retries) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_lets_the_handler_finish(make: Any, tmp_path: Path, number: signal.Signals) -> None:
    """A service manager signals every process of a unit. Only the worker decides what that means."""
    q = make(max_attempts=2)
    begun = tmp_path / "begun"
    q.send(str(begun).encode(), key="k")
    worker = Worker(q, handlers.waits_for_a_file, executor="process", concurrency=1)

    def tell_it() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(int(begun.read_text()), number)
        worker.stop()
        time.sleep(0.2)  # time to die, if it dies of it
        begun.with_suffix(".go").touch()

    teller = threading.Thread(target=tell_it)
    teller.start()
    worker.run()
    teller.join()
    assert (worker.stats().acked, worker.stats().retried) == (1, 0)


def test_a_deferral_crosses_over(make: Any) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")
    worker = Worker(q, handlers.defers, executor="process", concurrency=1)
    worker.run(drain=True)
    assert worker.stats().deferred == 1
    assert (q.status("k", 1).state, q.status("k", 1).attempts) == ("delayed", 0)


def test_a_handler_that_kills_its_process_hurts_no_other_and_ends_as_poison(make: Any) -> None:
    q = make(max_attempts=2)
    for body in (b"fine", b"kill", b"fine", b"exit", b"fine"):
        q.send(body, key="k")
    for n in range(4):
        q.send(b"fine", key=n)
    Worker(q, handlers.killed, executor="process", concurrency=2).run(drain=True)
    dead = {d.body: d for d in q.dead_letters()}
    assert set(dead) == {b"kill", b"exit"}
    assert "SIGKILL" in (dead[b"kill"].reason or "")
    assert "exit code 7" in (dead[b"exit"].reason or "")
    assert dead[b"kill"].attempts == 2
    assert q.stats().acks == 7


def test_a_handler_that_hangs_is_killed(q: Queue) -> None:
    q.send(b"", key="k")
    worker = Worker(q, handlers.hangs, executor="process", concurrency=1, timeout_seconds=1.0)
    worker.run(drain=True)
    assert worker.stats().timeouts == 1
    assert q.stats().acks == 1


@pytest.mark.parametrize(
    ("process", "prepare", "said"),
    [(handlers.nothing, handlers.unsendable, "can't be sent"), (handlers.uses_run, None, "another process")],
)
def test_what_can_not_cross_is_said(make: Any, process: Any, prepare: Any, said: str) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")
    Worker(q, process, prepare, executor="process", concurrency=1).run(drain=True)
    assert said in (q.dead_letters()[0].reason or "")


@pytest.mark.parametrize(("handler", "said"), [(lambda job: None, "sent"), (not_plain, "async")])
def test_handlers_that_can_not_be_sent_are_refused(q: Queue, handler: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Worker(q, handler, executor="process")
    with pytest.raises(InvalidArgument, match=said):
        Worker(q, handlers.nothing, handler, executor="process")


PROGRAM = """
import strictq
from strictq import Worker

def process(job):
    pass

with strictq.open("queue", durability="process") as q:
    q.send(b"", key="k")
    Worker(q, process, executor="process", concurrency=1).run(drain=True)
"""


def test_a_program_that_is_not_guarded_says_so_instead_of_starting_itself_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with strictq.open(tmp_path / "queue", durability="process", config=strictq.QueueConfig(max_attempts=1)):
        pass
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert "if __name__ == '__main__':" in done.stderr
    assert "can start" in done.stderr
    assert done.returncode == 1
    guarded = PROGRAM.replace("with strictq", "if __name__ == '__main__':\n  with strictq").replace("\n    q.", "\n      q.")
    (tmp_path / "program.py").write_text(guarded.replace("\n    Worker", "\n      Worker"))
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_handler_returns_is_not_acked_unrun(make: Any) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")
    Worker(q, handlers.unrun, executor="process", concurrency=1).run(drain=True)
    (dead,) = q.dead_letters()
    assert "the handler returned a generator" in dead.reason
