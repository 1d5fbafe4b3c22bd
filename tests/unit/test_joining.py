"""Loops that join: they share the shards, are listed, and are taken over when they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from strictq import ConsumerBusy, InvalidArgument, Message, Queue, ReadOnlyQueue
from tests.support.command import strictq_command
from tests.support.queues import keys_by_shard
from tests.support.running import PATIENCE_SECONDS, ROOT

KEYS = list(keys_by_shard(4).values())


def fill(q: Queue, each: int = 3) -> None:
    q.send_many([Message(b"", key=key) for _ in range(each) for key in KEYS])


def open_four(path: Path | str) -> Queue:
    return strictq.open(path, shards=4, durability="process")


def printed(place: Path, *command: str) -> list[dict[str, Any]]:
    """Return the lines of JSON that a command prints."""
    code, out, err = strictq_command(place, *command)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_joined_loops_take_their_own_shards_only(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q, q.join(affinity="own") as one, q.join(affinity="own") as other:
        fill(q)
        time.sleep(0.3)  # until each has looked at the other
        seen = []
        for consumer in (one, other, one, other):
            with consumer.receive(100) as batch:
                seen.append({d.key for d in batch})
        assert seen[:2] == seen[2:]
        assert not seen[0] & seen[1]
        assert seen[0] | seen[1] == set(KEYS)
        assert [len(consumer.shards) for consumer in (one, other)] == [2, 2]
        one.leave()
        time.sleep(0.3)
        assert {d.key for d in other.receive(100)} == set(KEYS)


def test_other_calls_of_the_queue_take_everything(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q, q.join(affinity="own"), q.join(affinity="own"):
        fill(q, 1)
        assert {d.key for d in q.receive(100)} == set(KEYS)


def test_consume_yields_and_acks(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q, q.join() as consumer:
        fill(q)
        done = []
        for d in consumer.consume(wait=0.0):
            with d:
                done.append((d.key, d.seq))
        assert sorted(done) == sorted((key, seq) for key in KEYS for seq in (1, 2, 3))
        assert q.stats().depth == 0


@pytest.mark.slow
def test_who_joined_is_listed(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q, q.join(name="loop-1") as consumer:
        fill(q, 1)
        held = consumer.receive(2)
        (found,) = q.consumers()
        assert (found.name, found.kind, found.pid, found.in_flight) == ("loop-1", "loop", os.getpid(), len(held))
        assert (found.affinity, found.shards, found.slow, found.last) == ("prefer", (0, 1, 2, 3), False, None)
        assert held[0].key in KEYS
        assert q.explain(held[0].key).by == "loop-1"
        assert [one["name"] for one in printed(tmp_path, "consumers", "q", "--json")] == ["loop-1"]
        assert "loop-1" in strictq_command(tmp_path, "consumers", "q")[1]
        assert [one["consumer"] for one in printed(tmp_path, "shards", "q", "--json")] == ["loop-1"] * 4
        consumer.leave()
        assert q.consumers() == []


def test_a_name_is_used_once(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q, q.join(name="one") as consumer:
        with pytest.raises(ConsumerBusy) as caught:
            q.join(name="one")
        assert caught.value.hint == "use another name, or none: then it has the host and the process id"
        assert [c.name for c in q.consumers()] == ["one"]
        consumer.leave()
        q.join(name="one").leave()


@pytest.mark.parametrize("wrong", [{"affinity": "mine"}, {"affinity": 1}, {"name": ""}, {"name": 3}, {"name": "a\0"}])
def test_bad_arguments_change_nothing(tmp_path: Path, wrong: dict[str, object]) -> None:
    with open_four(tmp_path / "q") as q:
        with pytest.raises(InvalidArgument):
            q.join(**wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            strictq.Worker(q, print, affinity="mine")  # type: ignore[arg-type]
        assert q.consumers() == []


def test_read_only_and_in_memory(tmp_path: Path) -> None:
    open_four(tmp_path / "q").close()
    with strictq.open(tmp_path / "q", read_only=True) as q, pytest.raises(ReadOnlyQueue):
        q.join()
    with open_four(":memory:") as q, q.join() as one, q.join() as other:
        fill(q, 1)
        assert {d.key for d in one.receive(100)} == set(KEYS)
        assert [c.affinity for c in q.consumers()] == ["none", "none"]
        other.leave()
        assert len(q.consumers()) == 1


def test_a_killed_loop_is_replaced(tmp_path: Path) -> None:
    program = """
import sys, time, strictq
with strictq.open(sys.argv[1]) as q, q.join(affinity="own", name="victim") as consumer:
    consumer.receive(0 + 1, wait=0.0)
    print("joined", flush=True)
    while True:
        consumer.receive(wait=1.0)
"""
    with open_four(tmp_path / "q") as q, q.join(affinity="own") as consumer:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "q")], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        end = time.monotonic() + PATIENCE_SECONDS
        while len(consumer.shards) == 4 and time.monotonic() < end:
            consumer.receive(wait=0.1)
        assert len(consumer.shards) == 2
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
        while len(consumer.shards) == 2 and time.monotonic() < end:
            consumer.receive(wait=0.1)
        assert consumer.shards == {0, 1, 2, 3}
        fill(q, 1)
        assert {d.key for d in consumer.receive(100)} == set(KEYS)


def test_async_loops_join(tmp_path: Path) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "q", shards=4) as q:
            for key in KEYS:
                await q.send(b"", key)
            async with q.join(name="a") as consumer:
                assert (consumer.name, consumer.affinity, consumer.shards) == ("a", "prefer", frozenset({0, 1, 2, 3}))
                async with await consumer.receive(1) as batch:
                    assert len(batch) == 1
                done = []
                async for d in consumer.consume(wait=0.0):
                    async with d:
                        done.append(d.key)
                assert sorted(done) == sorted(KEYS)
                assert [c.name for c in await q.consumers()] == ["a"]
            assert await q.consumers() == []

    anyio.run(main)


def test_a_worker_is_listed_and_can_have_affinity(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q:
        fill(q)
        listed = []
        worker = strictq.Worker(
            q, lambda job: listed.append((job.key, q.consumers())), affinity="own", consumer="w", concurrency=3
        )
        worker.run(drain=True)
        assert sorted(key for key, _ in listed) == sorted(KEYS * 3)
        (found,) = listed[0][1]
        assert (found.name, found.kind, found.affinity, found.concurrency) == ("w", "worker", "own", 3)
        assert q.consumers() == []


@pytest.mark.slow
def test_how_many_consumers_are_needed(tmp_path: Path) -> None:
    with open_four(tmp_path / "q") as q:
        with pytest.raises(InvalidArgument, match="no worker has learned"):
            q.consumers_needed(sample_seconds=0)
        q.send_many([Message(b"", key=n) for n in range(600)])
        found = q.consumers_needed(drain_seconds=60, sample_seconds=0, process_seconds=1.6)
        assert (found.slots, found.concurrency, found.consumers, found.live) == (16.0, 8, 2, 0)
        assert (found.backlog, found.keys, found.shards, found.key_seconds) == (600, 600, 4, 1.6)
        asked = ("shards", "advise", "q", "--sample-seconds", "0")
        assert printed(tmp_path, *asked, "--process-seconds", "1.6", "--drain-seconds", "60", "--json") == [
            found.to_dict() | {"moves": []}
        ]
        text = strictq_command(tmp_path, *asked, "--process-seconds", "100", "--drain-seconds", "10")[1]
        assert "larger consumers" in text
        assert "alone take" in text
