"""The kinds of queue that tests run on: the second process writes before each call, and leaves nothing that a test receives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from strictq import Queue
from strictq.testing import FakeClock
from tests.support.folds import cut_to
from tests.support.queues import KINDS, Kind, Opener, fill, labels
from tests.support.running import fast_directory
from tests.support.second_process import SecondProcess

(SHARED,) = [kind for kind in KINDS if kind.second_process]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    with fast_directory(tmp_path) as directory:
        yield str(directory / "queue")


def shared(place: str, clock: FakeClock, second_process: SecondProcess, kind: Kind = SHARED) -> Opener:
    return Opener(place, clock, kind, second_process)


def sends(q: Queue) -> list[int]:
    return [shard.sends for shard in q.stats().shards]


def test_every_shard_is_written_to_before_each_of_the_first_calls(
    place: str, clock: FakeClock, second_process: SecondProcess
) -> None:
    opener = shared(place, clock, second_process)
    q = opener()
    assert (q.shards, q.durability) == (4, "full")
    # At least one of two consecutive writes sends messages.
    seen = [sends(q) for _ in range(6)]
    for earlier, later in zip(seen, seen[2:], strict=False):
        assert all(a < b for a, b in zip(earlier, later, strict=True)), seen
    assert (q.receive(100), q.stats().depth, q.stats().dead) == ([], 0, 0)
    assert q.check() == []
    opener.close()


def test_it_folds_the_lanes_of_the_test(place: str, clock: FakeClock, second_process: SecondProcess) -> None:
    opener = shared(place, clock, second_process)
    q = opener()
    shard = fill(q, "k", 20)[0].shard
    assert cut_to(q, shard) > 0
    assert labels(q.receive(20)) == [("k", n) for n in range(1, 21)]
    opener.close()


def test_without_messages_every_shard_is_written_to_as_well(place: str, clock: FakeClock, second_process: SecondProcess) -> None:
    opener = shared(place, clock, second_process, attrs.evolve(SHARED, foreign_messages=False))
    q = opener()
    for n in range(1, 4):
        assert len(q.query("SELECT n FROM app_second_process")) == n * q.shards
    assert sends(q) == [0, 0, 0, 0]
    assert q.stats().lanes == 0
    opener.close()


@pytest.mark.slow
def test_a_failure_of_the_second_process_fails_the_test_and_no_other(place: str, clock: FakeClock) -> None:
    process = SecondProcess()
    opener = shared(place, clock, process)
    with pytest.raises(AssertionError, match="there is no queue at"):
        process.write(place, clock)
    q = opener()
    assert process.process is not None
    process.process.kill()
    with pytest.raises(AssertionError, match="it ended"):
        q.send(b"", "k")
    assert q.send(b"", "k").seq == 1
    opener.close()
    process.end()


def test_it_leaves_the_queue_before_the_last_object_is_closed(
    place: str, clock: FakeClock, second_process: SecondProcess
) -> None:
    opener = shared(place, clock, second_process)
    one, two = opener(), opener()
    one.send(b"", "k")
    one.close()
    two.send(b"", "k")
    two.close()
    clock.reboot()  # with an object open, this would be a second machine's clock
    assert opener().send(b"", "k").seq == 3
    opener.close()
