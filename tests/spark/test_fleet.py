"""Many queues as one stream, without a JVM: exactly once for each queue, in order for each key of it, whatever dies or goes."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Queue
from strictq.spark import _ack_listener, _members, fleet
from tests.support.fleets import Killed, Loop, make
from tests.support.ledgers import send_chains

KEYS = ("a", "b", "c")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits between two looks."""
    monkeypatch.setattr(_members, "FIND_SECONDS", 0.0)
    monkeypatch.setattr(_members, "FIND_SHARE", 0)
    monkeypatch.setattr(_members, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(fleet, "IDLE_SHARE", 0)
    monkeypatch.setattr(fleet, "REPORT_SHARE", 0)


class Fleet:
    """Queues in one directory, with what was sent to each."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.queues: dict[str, Queue] = {}
        self.sent: dict[tuple[str, str], int] = {}

    def add(self, *names: str) -> None:
        self.queues |= make(self.place, names)

    def send(self, name: str, count: int = 1, keys: tuple[str, ...] = KEYS) -> None:
        q = self.queues[name]
        for key in keys:
            done = self.sent.get((q.queue_id, key), 0)
            send_chains(q, [key], count, first=done + 1)
            self.sent[q.queue_id, key] = done + count

    def path(self, name: str) -> str:
        return str(self.place / name)

    def require(self, loop: Loop) -> None:
        loop.require(self.sent)
        for name in self.queues:
            with strictq.open(self.path(name), create=False) as q:
                assert (q.stats().depth, q.check()) == (0, [])


@pytest.fixture
def ships(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path / "fleet")
    yield found
    for q in found.queues.values():
        q.close()


def loop_of(ships: Fleet, **options: Any) -> Loop:
    return Loop(f"{ships.place}/*/", **options)


def rows_by_queue(rows: list[Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue, *_ in rows:
        counts[queue] = counts.get(queue, 0) + 1
    return counts


def test_queues_are_one_stream(ships: Fleet) -> None:
    ships.add("q1", "q2", "q3")
    for name in ships.queues:
        ships.send(name, 4)
    loop = loop_of(ships)
    loop.run()
    assert len(loop.sink) == 1
    ships.require(loop)
    listed = Loop([ships.path("q1"), ships.path("q3")], consumer="other")
    ships.send("q1")
    ships.send("q3")
    listed.run()
    assert rows_by_queue(listed.sink[0]) == {ships.queues[name].queue_id: 3 for name in ("q1", "q3")}


def test_the_columns_say_where_a_row_comes_from(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.send("q2")
    loop = loop_of(ships)
    loop.process()
    start = loop.reader.initialOffset()
    end = loop.reader.latestOffset(start, loop.reader.getDefaultReadLimit())
    (batch,) = [b for task in loop.reader.partitions(start, end) for b in loop.reader.read(task)]
    assert batch.schema.names[-2:] == ["queue", "path"]
    assert set(batch.column("queue").to_pylist()) == {ships.queues["q2"].queue_id}
    assert set(batch.column("path").to_pylist()) == {ships.path("q2")}


def test_the_limit_is_split_evenly_and_what_one_leaves_goes_to_others(ships: Fleet) -> None:
    ships.add("deep", "deeper", "small", "empty")
    ships.send("deep", 100)
    ships.send("deeper", 200)
    ships.send("small", 1)
    loop = loop_of(ships, maxMessagesPerTrigger=100)
    loop.process()
    assert loop.step()
    counts = rows_by_queue(loop.sink[0])
    deep, deeper, small = (counts[ships.queues[name].queue_id] for name in ("deep", "deeper", "small"))
    assert small == 3
    assert deep + deeper + small == 100
    assert abs(deep - deeper) <= 1
    loop.run()
    ships.require(loop)


def test_with_less_room_than_queues_each_has_its_turn(ships: Fleet) -> None:
    names = [f"q{n}" for n in range(6)]
    ships.add(*names)
    for name in names:
        ships.send(name, 2, ("a",))
    loop = loop_of(ships, maxMessagesPerTrigger=4)
    loop.run()
    assert all(len(rows) <= 4 for rows in loop.sink.values())
    first = rows_by_queue(loop.sink[0] + loop.sink[1])
    assert len(first) == 6, "nobody waits until others have none"
    ships.require(loop)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(6))
def test_drivers_that_die_anywhere(ships: Fleet, seed: int) -> None:
    """Also with the newest files of the checkpoint lost, as Spark syncs none of them; and with queues that come meanwhile."""
    random_ = random.Random(seed)
    names = [f"q{n}" for n in range(5)]
    ships.add(*names)
    loop = loop_of(ships, maxMessagesPerTrigger=20)
    for name in names:
        ships.send(name, 3)
    for round_ in range(12):
        loop.process(available_now=random_.random() < 0.3)
        try:
            for _ in range(random_.randrange(1, 5)):
                loop.step(random_.choice(["", "", "planned", "logged", "read", "written"]))
                ships.send(random_.choice(names), random_.randrange(1, 4))
        except Killed:
            if random_.random() < 0.5:
                loop.lose(random_.randrange(1, 4))
        if round_ in (3, 7):
            names.append(f"new{round_}")
            ships.add(names[-1])
            ships.send(names[-1], 2)
    loop.run()
    loop.run()
    ships.require(loop)


@pytest.mark.parametrize("joins", [False, True])
def test_a_recording_that_fails_late(ships: Fleet, joins: bool) -> None:
    """The queue's messages come in a later batch. After lost checkpoint files, both batches have the same rows again."""
    ships.add("q1", "q2")
    loop = loop_of(ships)
    loop.process()
    ships.send("q1")
    if not joins:
        ships.send("q2")
    assert loop.step()
    ships.send("q1")
    ships.send("q2")
    (member,) = (m for m in loop.reader._all() if m.path == ships.path("q2"))
    take = member.held.take

    def fail_late(*args: Any, **limits: Any) -> None:
        take(*args, **limits)
        raise strictq.StoreError("unplugged", shard=0)

    member.held.take = fail_late
    assert loop.step()
    q1, q2 = (ships.queues[name].queue_id for name in ("q1", "q2"))
    assert rows_by_queue(loop.sink[1]) == {q1: 3}
    ships.send("q2")
    assert loop.step()
    assert rows_by_queue(loop.sink[2]) == {q2: 6}
    loop.lose(2)
    loop.process()
    for _ in range(2):
        assert loop.step()  # which compares the rows of each batch with those that came before
    loop.run()
    ships.require(loop)


def test_twenty_queues_that_come_and_go(ships: Fleet) -> None:
    random_ = random.Random(20)
    names = [f"q{n:02}" for n in range(20)]
    ships.add(*names[:16])
    loop = loop_of(ships, maxMessagesPerTrigger=60, maxOpenQueues=7)
    for name in names[:16]:
        ships.send(name)
    away: list[str] = []
    for round_ in range(8):
        if round_ == 2:
            ships.add(*names[16:])
        for name in random_.sample(names[: 16 if round_ < 2 else 20], 6):
            if name not in away:
                ships.send(name)
        loop.process(available_now=True)
        try:
            while loop.step(random_.choice(["", "", "planned", "written"])):
                pass
            if round_ % 3 == 0:
                away = random_.sample(names[:16], 3)
                loop.kill()
                for name in away:
                    ships.queues[name].close()
                    os.rename(ships.path(name), ships.place.parent / name)
        except Killed:
            pass
        if round_ % 3 == 2:
            loop.kill()
            for name in away:
                os.rename(ships.place.parent / name, ships.path(name))
                ships.add(name)
            away = []
    assert len(loop.reader._members._used) <= 7 if loop.reader else True
    loop.kill()
    for name in away:
        os.rename(ships.place.parent / name, ships.path(name))
        ships.add(name)
    loop.run()
    loop.run()
    ships.require(loop)


def test_queues_that_appear_are_found_while_it_runs(ships: Fleet) -> None:
    ships.add("q1")
    ships.send("q1")
    loop = loop_of(ships)
    loop.process()
    assert loop.step()
    ships.add("q2")
    ships.send("q2")
    assert loop.step()
    assert rows_by_queue(loop.sink[1]) == {ships.queues["q2"].queue_id: 3}
    assert not loop.step()
    ships.require(loop)


def test_one_that_is_missing_is_reported_and_the_others_go_on(ships: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    ships.add("q1", "q2")
    for name in ships.queues:
        ships.send(name)
    loop = loop_of(ships)
    loop.run()
    ships.send("q1")
    ships.send("q2")
    away = ships.place.parent / "away"
    os.rename(ships.path("q2"), away)
    with caplog.at_level(logging.WARNING, "strictq"):
        loop.run()
        loop.run()
    q2 = ships.queues["q2"].queue_id
    assert q2 not in rows_by_queue(loop.sink[1])
    (warning,) = {r.getMessage() for r in caplog.records}
    assert q2 in warning
    os.rename(away, ships.place / "q2-under-another-name")
    loop.run()
    assert rows_by_queue(loop.sink[2]) == {q2: 3}, "by its id, wherever it is"
    loop.require(ships.sent)


def test_one_that_is_damaged_is_reported_until_it_is_whole(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.queues["q2"].close()
    good = (ships.place / "q2" / "queue.db").read_bytes()
    (ships.place / "q2" / "queue.db").write_bytes(b"nothing of SQLite" * 100)
    ships.send("q1")
    loop = loop_of(ships)
    loop.process()
    assert loop.step()
    assert rows_by_queue(loop.sink[0]) == {ships.queues["q1"].queue_id: 3}
    report = loop.reader.reportLatestOffset()
    assert list(report["missing"]) == [ships.path("q2")]
    assert report["queues"] == 1
    (ships.place / "q2" / "queue.db").write_bytes(good)
    ships.add("q2")
    ships.send("q2")
    assert loop.step()
    assert loop.reader.reportLatestOffset()["missing"] == {}
    loop.run()
    ships.require(loop)


def test_fail_on_missing_stops_the_query(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.send("q1")
    ships.send("q2")
    loop = loop_of(ships, failOnMissing="true")
    loop.run()
    os.rename(ships.path("q2"), ships.place.parent / "away")
    with pytest.raises(strictq.QueueNotFound, match=r"the queue \w{32}, which was at .*q2, is not found"):
        loop.run()
    with pytest.raises(strictq.QueueNotFound, match="there is no queue at"):
        Loop([ships.path("q1"), ships.path("q2")], failOnMissing="true").process()
    Loop([ships.path("q1"), ships.path("q2")], consumer="other").run()


def test_a_batch_never_comes_without_a_queue_that_it_has(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.send("q1")
    ships.send("q2")
    loop = loop_of(ships)
    loop.process()
    with pytest.raises(Killed):
        loop.step("logged")
    os.rename(ships.path("q2"), ships.place.parent / "away")
    loop.process()
    with pytest.raises(strictq.QueueNotFound, match=r"this batch has messages of the queue .* \(bring it back"):
        loop.step()
    os.rename(ships.place.parent / "away", ships.path("q2"))
    loop.run()
    ships.require(loop)


def test_a_new_checkpoint_begins_after_the_last_acks(ships: Fleet) -> None:
    ships.add("q1", "q2", "gone")
    for name in ships.queues:
        ships.send(name, 2)
    loop = loop_of(ships)
    loop.process()
    with pytest.raises(Killed):
        loop.step("logged")
    loop.kill()
    gone = ships.queues.pop("gone")
    gone.close()
    shutil.rmtree(ships.path("gone"))
    ships.sent = {(queue, key): n for (queue, key), n in ships.sent.items() if queue != gone.queue_id}
    fresh = loop_of(ships)
    fresh.run()
    ships.require(fresh)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_offsets_of_a_queue_that_joined_with_a_batch_of_another_query(
    ships: Fleet, tmp_path: Path, lost: int, restarts: bool
) -> None:
    """The sink has the lost batches. So each must come again with the same rows, also the first, recorded by the other query."""
    ships.add("q1", "q2")
    other = Loop(ships.path("q2"))
    ships.send("q2")
    other.process()
    with pytest.raises(Killed):
        other.step("planned")
    other.kill()
    away = tmp_path / "away"
    ships.queues["q2"].close()  # an open queue notices that its files are not there
    os.rename(ships.path("q2"), away)
    loop = loop_of(ships)
    for _ in range(2):
        ships.send("q1")
        loop.run()
    os.rename(away, ships.path("q2"))
    ships.add("q2")
    loop.process()
    ships.send("q1")
    assert loop.step()
    ships.send("q2")
    if restarts:
        loop.process()
    assert loop.step()
    q1, q2 = (ships.queues[name].queue_id for name in ("q1", "q2"))
    assert list(map(rows_by_queue, loop.sink.values())) == [{q1: 3}, {q1: 3}, {q2: 3}, {q1: 3, q2: 3}]
    loop.kill()
    loop.lose(lost)
    ships.send("q1")
    loop.run()
    ships.require(loop)


# ---- from one queue to many, and back


def test_a_checkpoint_of_one_path_stays_as_it_is_and_may_grow(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.send("q1", 2)
    loop = Loop(ships.path("q1"))
    loop.run()
    assert json.loads(loop.offsets[0]).keys() == {"queue", "consumer", "after", "n", "path"}
    ships.send("q1", 1)
    loop.process()
    with pytest.raises(Killed):
        loop.step("logged")
    one = ships.queues["q1"].queue_id
    loop.sink[0] = [(one, *row[1:]) for row in loop.sink[0]]
    loop.kill()
    loop.options = loop_of(ships).options
    ships.send("q2", 2)
    loop.run()
    assert json.loads(loop.offsets[-1])["queues"].keys() == {q.queue_id for q in ships.queues.values()}
    ships.require(loop)
    loop.options = Loop(ships.path("q1")).options
    ships.send("q1")
    with pytest.raises(strictq.RecordedBatchGone, match="the checkpoint is of several queues"):
        loop.run()
    loop.options = Loop([ships.path("q1"), ships.path("q2")]).options
    loop.run()
    ships.require(loop)


def test_a_list_of_one_path_is_one_queue(ships: Fleet) -> None:
    ships.add("q1")
    ships.send("q1")
    loop = Loop([ships.path("q1")])
    loop.run()
    assert "queue" in json.loads(loop.offsets[0])


def test_the_checkpoint_of_another_consumer_is_refused(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.send("q1")
    loop = loop_of(ships)
    loop.run()
    loop.options["consumer"] = "other"
    with pytest.raises(strictq.RecordedBatchGone, match="the checkpoint is of consumer 'etl'"):
        loop.run()


def test_a_restored_copy_is_another_queue(ships: Fleet, tmp_path: Path) -> None:
    """Its batches since the last segment are not in it: it begins after the last ack that it has."""
    ships.add("q1", "q2")
    q = ships.queues["q2"]
    q.configure_replication(tmp_path / "replica", interval_seconds=0.05)
    ships.send("q2")
    loop = loop_of(ships)
    loop.run()
    q.close()
    strictq.restore(tmp_path / "replica", tmp_path / "copy", alone=True)
    shutil.rmtree(ships.path("q2"))
    os.rename(tmp_path / "copy", ships.path("q2"))
    with strictq.open(ships.path("q2"), durability="full") as copy:
        left = copy.stats().depth
        copy.send(b"{}", "new")
    loop.run()
    assert sum(map(len, loop.sink.values())) == 3 + left + 1


@pytest.mark.parametrize("keep", [1, 100])
def test_a_restored_copy_begins_where_spark_is_also_with_a_batch_that_spark_never_knew(
    ships: Fleet, tmp_path: Path, keep: int
) -> None:
    ships.add("q1", "q2")
    q = ships.queues["q2"]
    q.configure_replication(tmp_path / "replica", interval_seconds=0.05)
    loop = loop_of(ships, keepBatches=keep)
    for _ in range(4):
        ships.send("q2")
        loop.run()
    ships.send("q2")
    loop.process()
    with pytest.raises(Killed):
        loop.step("planned")
    loop.kill()
    q.close()  # ships the last segment
    strictq.restore(tmp_path / "replica", tmp_path / "copy", alone=True)
    shutil.rmtree(ships.path("q2"))
    os.rename(tmp_path / "copy", ships.path("q2"))
    loop.run()
    loop.require(ships.sent)


def test_a_copy_of_a_directory_is_reported(ships: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    ships.add("q1")
    ships.send("q1")
    ships.queues["q1"].close()
    shutil.copytree(ships.path("q1"), ships.place / "q1-copy")
    os.symlink(ships.path("q1"), ships.place / "q1-link")
    loop = loop_of(ships)
    with caplog.at_level(logging.WARNING, "strictq"):
        loop.run()
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "is a copy of" in warning
    loop.require(ships.sent)


# ---- who holds the consumer


def test_a_second_query_of_the_name_is_refused(ships: Fleet) -> None:
    ships.add(*(f"q{n}" for n in range(12)))
    loop = loop_of(ships)
    loop.process()
    loop.step()
    other = loop_of(ships, consumerWaitSeconds=0)
    other.process()
    with pytest.raises(strictq.ConsumerBusy):
        other.step()
    other.kill()


def test_a_queue_that_another_holder_had_meanwhile(ships: Fleet) -> None:
    """With more queues than may be open, those that are closed are free: who takes one stops the query."""
    ships.add("q1", "q2")
    loop = loop_of(ships, maxOpenQueues=1)
    loop.process()
    loop.step()
    loop.step()
    (open_one,) = loop.reader._members.open_ones()
    (name,) = (name for name in ships.queues if ships.path(name) != open_one.path)
    other = Loop(ships.path(name))
    other.run()
    for _ in range(2):
        ships.send(name)
    with pytest.raises(strictq.ConsumerLost, match="had another holder in the meantime"):
        for _ in range(4):
            loop.step()
    loop.kill()


def test_the_wrong_key_type_stops_the_query(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.queues["q2"].send(b"x", 7)
    loop = loop_of(ships)
    with pytest.raises(strictq.InvalidArgument, match="does not fit keyType=string"):
        loop.run()
    assert ships.queues["q2"].check() == []


def test_the_report_says_the_lag_of_each(ships: Fleet) -> None:
    ships.add("q1", "q2")
    ships.send("q1", 4)
    ships.send("q2", 1)
    loop = loop_of(ships)
    loop.process()
    assert loop.step()
    ships.send("q2", 2)
    report = loop.reader.reportLatestOffset()
    one, two = (ships.queues[name].queue_id for name in ("q1", "q2"))
    assert (report["queues"], report["consumer"]) == (2, "etl")
    assert (report["lags"][one]["lag"], report["lags"][one]["path"]) == (12, ships.path("q1"))
    assert report["lag"] == sum(each["lag"] for each in report["lags"].values())
    assert list(report["lags"]) == [one, two]


def test_a_batch_that_was_released_does_not_stop_a_new_checkpoint(ships: Fleet) -> None:
    ships.add("q1", "q2")
    for name in ships.queues:
        ships.send(name)
    dead = loop_of(ships)
    dead.process()
    with pytest.raises(Killed):
        dead.step(die="logged")
    dead.kill()
    for q in ships.queues.values():
        assert q.release_consumer("etl")
    loop = loop_of(ships)
    loop.run()
    ships.require(loop)


def test_the_listener_acks_a_queue_that_the_query_has_closed(ships: Fleet) -> None:
    """The query acks a batch when the next one begins, but it has only some of its queues open."""
    ships.add("q1", "q2")
    for name in ships.queues:
        ships.send(name, keys=("a",))
    loop = loop_of(ships, maxOpenQueues=1)
    loop.process()
    later = _ack_listener.Later("run")
    for _ in range(2):
        assert loop.step()
        later.begin([end.ack for end in _ack_listener._ends(loop.offsets[-1], 1) if end.ack])
    loop.kill()
    later.finish()
    ships.require(loop)
