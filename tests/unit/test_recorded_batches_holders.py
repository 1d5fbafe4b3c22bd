"""Who may take recorded batches and ack them: one holder of a consumer at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import strictq
from strictq import ConsumerBusy, ConsumerLost, InvalidArgument, Queue, RecordedBatchGone
from strictq._client.consumers import acknowledge
from strictq.spark._recorded_batches import Holder
from tests.support.queues import Opener, fill, keys_by_shard
from tests.support.recorded_batches import by_key, encode, holder, read
from tests.support.running import PATIENCE_SECONDS, ROOT, in_threads


def test_a_second_holder_is_refused_while_the_first_lives(q: Queue) -> None:
    first = holder(q)
    second = Holder(q, "etl", encode)
    with pytest.raises(ConsumerBusy):
        second.attach(0.0)
    first.close()
    second.attach(0.0)
    with pytest.raises(InvalidArgument, match="attach first"):
        first.take(0)


def test_a_zombie_is_fenced(disk: Opener) -> None:
    q = disk(shards=2)
    for key in keys_by_shard(2).values():
        fill(q, key, 2)
    zombie = holder(q)
    zombie.take(0, messages_max=1)
    zombie._lock.leave()  # as if its machine's lock had ended with it
    h = holder(q)
    for start in (0, 1):
        if start:
            with pytest.raises(ConsumerLost):
                zombie.take(start)
        else:
            assert zombie.take(start) == 1, "what is recorded may be read by anybody"
    assert (h.acked, h.last) == (0, 1)
    assert q.check() == []


def test_a_zombie_learns_it_where_it_would_lease(q: Queue) -> None:
    zombie = holder(q)
    assert zombie.take(0) == 0
    zombie._lock.leave()
    h = holder(q)
    fill(q, "a", 1)
    with pytest.raises(ConsumerLost):
        zombie.take(0)
    assert h.take(0) == 1


def test_a_holder_takes_messages_of_a_shard_that_is_added_when_it_reads_its_state_again(disk: Opener) -> None:
    q = disk(shards=1)
    fill(q, "a", 2)
    fill(q, "b", 2)
    h = holder(q)
    assert h.take(0) == 1
    h.withdraw_newest()  # the state must be read again
    q.split(0)
    assert h.take(0) == 1
    assert by_key(read(q, h, 1)) == {"sa": [1, 2], "sb": [1, 2]}
    h.ack(1)
    assert q.stats().depth == 0


def test_two_processes_have_one_holder(tmp_path: Path) -> None:
    q = strictq.open(tmp_path / "queue")
    script = """
import sys, strictq
from strictq.spark._recorded_batches import Holder
from tests.support.recorded_batches import encode
with strictq.open(sys.argv[1]) as q:
    h = Holder(q, "etl", encode)
    h.attach()
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, q.path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert [c.active for c in q.consumers()] == [True]
        with pytest.raises(ConsumerBusy):
            holder(q)
        with pytest.raises(ConsumerBusy):
            q.release_consumer("etl")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
    holder(q).close()
    assert [c.active for c in q.consumers()] == [False]
    q.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_keep_the_consumer(disk: Opener) -> None:
    q = disk()
    h = holder(q)
    ready, tell = os.pipe()
    stop, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        try:
            h.take(0)
        except strictq.ForkedProcess:
            os.write(tell, b"refused")
        finally:
            os.close(tell)
            os.read(stop, 1)
            os._exit(0)
    os.close(tell)
    assert os.read(ready, 20) == b"refused"
    h.close()
    holder(q).close()
    os.close(end)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(stop)


@pytest.mark.own_messages("threads receive from every key")
def test_holders_in_threads_exclude_each_other(q: Queue) -> None:
    def attach() -> Holder:
        return holder(q)

    results = in_threads([attach] * 4)
    assert sorted(type(r).__name__ for r in results) == ["ConsumerBusy"] * 3 + ["Holder"]


# --- acks from elsewhere


def test_whoever_knows_that_a_batch_is_done_may_ack_it(q: Queue) -> None:
    fill(q, "a", 4)
    h = holder(q)
    h.take(0, messages_max=2)
    assert acknowledge(q._storage, "etl", 1) == 2
    assert acknowledge(q._storage, "etl", 1) == 0
    assert h.take(1) == 2
    assert by_key(read(q, h, 2)) == {"sa": [3, 4]}
    assert acknowledge(q._storage, "etl", 1) == 0, "late: it acks nothing that came later"
    assert q.stats().in_flight == 2
    with pytest.raises(RecordedBatchGone):
        acknowledge(q._storage, "etl", 3)
    with pytest.raises(RecordedBatchGone):
        acknowledge(q._storage, "nobody", 1)
