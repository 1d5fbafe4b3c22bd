"""One process of the worker's stress and crash tests: workers on one queue, until killed or told to stop.

SIGTERM: stop and exit with 0.
"""

from __future__ import annotations

import os
import random
import threading
import time
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import strictq
from strictq import Queue, Worker
from strictq._client.receiving import Receiving
from strictq._client.settling import Settling
from strictq.delivery import Batch, Delivery
from tests.support.history import OK, Act, Recorder, Tx, Wanted
from tests.support.recorded import Recorded, _sent
from tests.support.stress_worker import KEYS
from tests.worker import chaos

LEASE_SECONDS = 0.5


class RecordedReceiving(Receiving[Batch]):
    """Writes down what a worker receives."""

    recorded: Recorded

    def receive_now(self, out: Any, request: Any, *, wait_for_busy: bool, joined: Any = None, live: Any = None) -> Any:
        recorder = self.recorded.recorder
        call = recorder.invoke("receive", [Wanted(int(self.recorded.queue.config.lease_seconds * 10**9))])
        try:
            soonest = super().receive_now(out, request, wait_for_busy=wait_for_busy, joined=joined, live=live)
        except strictq.StrictqError as e:
            recorder.result(call, "receive", type(e).__name__)
            raise
        self.recorded._handed(call, "receive", out)
        return soonest


class RecordedSettling(Settling):
    """Writes down what a worker asks for what it holds, and what it is answered."""

    recorder: Recorder
    recorded: Recorded

    def more(self, lease: Any, n: int) -> Any:
        call = self.recorder.invoke("more", [Act(repr(lease.key), None, lease.token)])
        try:
            rows = super().more(lease, n)
        except strictq.StrictqError as e:
            self.recorder.result(call, "more", type(e).__name__)
            raise
        self.recorded._handed(call, "more", [Delivery(row, lease) for row in rows])
        return rows

    def advance(self, done: Any, starting: Any, receive: Any = None) -> Any:
        acks = self.recorder.invoke("ack", [Act(repr(d.key), d.seq, d.token) for d, _ in done])
        starts = self.recorder.invoke("start", [Act(repr(d.key), d.seq, d.token) for d in starting])
        failed = super().advance(done, starting, receive)
        for call, verb, ds in ((acks, "ack", [d for d, _ in done]), (starts, "start", starting)):
            outcomes = [type(failed[d]).__name__ if d in failed else OK for d in ds]
            self.recorder.result(call, verb, "PartialFailure" if set(outcomes) - {OK} else OK, outcomes)
        return failed

    def ack(self, given: Any) -> None:
        acts = [Act(repr(d.key), d.seq, d.token) for d in given]
        call = self.recorder.invoke("ack", acts)
        try:
            super().ack(given)
        except strictq.PartialFailure as e:
            self.recorder.result(call, "ack", "PartialFailure", [OK if r is None else type(r).__name__ for r in e.results])
            raise
        except strictq.StrictqError as e:
            self.recorder.result(call, "ack", type(e).__name__)
            raise
        self.recorder.result(call, "ack")

    def _one(self, verb: str, act: Any, call: Any) -> Any:
        number = self.recorder.invoke(verb, [act])
        try:
            answer = call()
        except strictq.StrictqError as e:
            self.recorder.result(number, verb, type(e).__name__)
            raise
        self.recorder.result(number, verb)
        return answer

    def nack(self, given: Any, delay: Any, reason: Any, output: Any = None, traceback: Any = None) -> bool:
        d = given[0]
        act = Act(repr(d.key), d.seq, d.token, None if delay is None else int(delay * 10**9))
        return bool(self._one("nack", act, lambda: super(RecordedSettling, self).nack(given, delay, reason, output, traceback)))

    def reject(self, d: Any, reason: Any, output: Any, traceback: Any = None) -> None:
        act = Act(repr(d.key), d.seq, d.token)
        self._one("reject", act, lambda: super(RecordedSettling, self).reject(d, reason, output, traceback))

    def extended(self, leases: Any, seconds: float) -> Any:
        acts = [Act(repr(x.key), x._lo, x.token, int(seconds * 10**9)) for x in leases]
        call = self.recorder.invoke("extend", acts)
        results = super().extended(leases, seconds)
        outcomes = [OK if r is None else type(r).__name__ for r in results]
        self.recorder.result(call, "extend", "PartialFailure" if set(outcomes) - {OK} else OK, outcomes)
        return results

    def release_rest(self, waiting: Any) -> None:
        for d in list(waiting):
            call = self.recorder.invoke("release", [Act(repr(d.key), None, d.token)])
            super().release_rest([d])
            # Swallowed failures: it may or may not have happened, so it stays unanswered unless the lane is free.
            del call


def recorded_queue(plain: Queue, recorder: Recorder) -> tuple[Queue, Recorded]:
    """A queue that writes down what a worker asks of it; and its own verbs, recorded."""
    queue = Queue(plain._storage)
    recorded = Recorded(queue, recorder)
    client = queue._client
    settling = RecordedSettling(client.storage)
    settling.recorder, settling.recorded = recorder, recorded
    client.settling = settling
    receiving = RecordedReceiving(client, Batch)
    receiving.recorded = recorded
    queue._receiving = receiving
    return queue, recorded


def record_commits(recorder: Recorder) -> None:
    """Effects commit in the job, wherever its handler ran: what it kept until then says which they are."""
    from strictq.worker.job import Job

    commit = Job._commit

    def recorded(job: Job) -> None:
        assert job._effects is not None
        effect = job._effects.statements[0][1][0]
        sends = [_sent(send.message) for send in job._effects.sends]
        call = recorder.invoke("transact", [Tx(effect, repr(job.key), job.seq, job.token, sends)])
        try:
            commit(job)
        except strictq.StrictqError as e:
            recorder.result(call, "transact", type(e).__name__)
            raise
        recorder.result(call, "transact")

    Job._commit = recorded  # type: ignore[method-assign]


def work(path: Path, history: Path, seed: int, kind: str) -> None:
    """Work on a queue until SIGTERM.

    Args:
        kind: "plain", "async", "process" (handlers in processes of their own), "batch" or "async batch".
    """
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # else it may have no processes for handlers
    # Read by the handlers, in this process and in its children.
    os.environ |= {"STRESS_SEED": str(seed), "STRESS_DEATH": "0.01" if kind == "process" else "0.002"}
    recorder = Recorder(history / f"{os.getpid()}-{time.time_ns()}.jsonl")
    with strictq.open(path, create=False) as plain:
        queue, recorded = recorded_queue(plain, recorder)
        record_commits(recorder)
        stop = threading.Event()

        def feed() -> None:
            r = random.Random(seed + 1)
            while not stop.is_set():
                recorded.send_many([recorded.new(r.choice(KEYS)) for _ in range(r.randint(1, 10))])
                stop.wait(0.01)

        feeder = threading.Thread(target=feed)
        feeder.start()
        handlers: dict[str, Any] = {"process": chaos.aprocess if kind == "async" else chaos.process, "prepare": chaos.prepare}
        if "batch" in kind:
            handlers = {"process_batch": chaos.aprocess_batch if kind == "async batch" else chaos.process_batch, "batch_max": 10}
        worker = Worker(
            queue,
            **handlers,
            executor="process" if kind == "process" else "thread",
            concurrency=2 if kind == "process" else 4,
            timeout_seconds=0.3,
            lease_seconds=LEASE_SECONDS,
            breaker=None,  # most of what these handlers do is fail
        )
        try:
            worker.run()
        finally:
            stop.set()
            feeder.join()
    recorder.close()
