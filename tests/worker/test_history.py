"""What a worker measured stands in the records of the messages that it acked."""

from __future__ import annotations

import time
from typing import Any

import pytest

from strictq import Job, Message, Worker


@pytest.mark.parametrize("effects", [False, True])
@pytest.mark.parametrize("prepares", [False, True])
def test_durations_are_recorded(make: Any, effects: bool, prepares: bool) -> None:
    q = make(history="records")
    q.send_many([Message(b"", key="k") for _ in range(4)])

    def prepare(job: Job) -> None:
        time.sleep(0.01)

    def process(job: Job) -> None:
        if effects:
            job.key_state = b"seen"
        time.sleep(0.03)
        if job.seq == 4:
            worker.stop()

    worker = Worker(q, process, prepare if prepares else None, concurrency=2)
    worker.run()
    records = q.history()
    assert [(r.seq, r.outcome, r.attempts) for r in records] == [(n, "acked", 1) for n in range(1, 5)]
    for r in records:
        assert r.process_seconds is not None
        assert r.process_seconds >= 0.03
        assert (r.prepare_seconds is not None) is prepares
        assert r.prepare_seconds is None or r.prepare_seconds >= 0.01
        assert r.first_attempt_at is not None
        assert r.enqueued_at <= r.first_attempt_at <= r.done_at
    starts = [r.first_attempt_at for r in records]
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] >= 3 * 0.03 - 0.001, "the handlers' starts, not the one delivery of all"
