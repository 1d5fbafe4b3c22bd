"""Ranges move while a queue is shipped: each state that is restored or promoted goes on with every key, in mid-move, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

import strictq
from strictq import Queue, Replica
from strictq.replication.received import ReceivedSegments
from strictq.replication.restoring import points_of
from strictq.replication.segment import decode_header
from strictq.testing import FakeClock
from tests.support.moved_ranges import CONFIG, HI, KEYS, LO, Before, after_each_commit, go_on, prepare, small_steps
from tests.support.replicas import FAST, bodies, is_shipped, segments, until_level
from tests.support.running import until
from tests.support.shipping import ship_once, shipper_of

EVERY = int(os.environ.get("STRICTQ_CUTS_EVERY", "5"))
"""Of so many states, one is judged."""


@pytest.fixture
def shipped(place: Path, clock: FakeClock) -> tuple[Path, Before]:
    """A target with a state after each step of a move to a new shard, and back; and what the queue had before."""
    with small_steps(), strictq.open(place / "q", durability="process", config=CONFIG, clock=clock) as q:
        prepare(q, clock)
        before = Before.of(q)
        shipper = shipper_of(q, place / "target")
        shipper.round()
        with after_each_commit(shipper.round):
            q.move(LO, HI, to=None)
            q.merge(1, into=0)
        shipper.close()
    return place / "target", before


def test_every_state_of_a_move_can_be_restored(shipped: tuple[Path, Before], place: Path, clock: FakeClock) -> None:
    target, before = shipped
    were_moving = []
    for n, _ in points_of(target)[::EVERY]:
        strictq.restore(target, place / f"restored-{n}", cut=n, alone=True)
        clock.reboot()
        with strictq.open(place / f"restored-{n}", clock=clock) as q:
            were_moving.append(go_on(q, clock, before, lambda _key, _new: []))
    assert set(were_moving) == {True, False}


def test_a_replica_is_promoted_in_the_middle_of_a_move(shipped: tuple[Path, Before], place: Path, clock: FakeClock) -> None:
    target, before = shipped
    data = segments(target)
    headers = [decode_header(one, -1) for one in data]
    assert [header.shards for header in headers] == sorted(header.shards for header in headers)
    assert headers[-1].shards == 2
    were_moving = []
    for last in range(0, len(data), 2 * EVERY):
        home = place / f"replica-{last}"
        replica = ReceivedSegments(home, clock)
        replica.claim(headers[0].queue_id, headers[0].history_id, "")
        for n, one in enumerate(data[: last + 1]):
            replica.put(n, one)
        replica.close()
        clock.advance(3600.0)
        strictq.promote(home, dead=True, clock=clock)
        with strictq.open(home, clock=clock) as q:
            were_moving.append(go_on(q, clock, before, lambda _key, _new: []))
    assert set(were_moving) == {True, False}


def test_a_shipper_that_begins_after_a_shard_was_added(q: Queue, tmp_path: Path) -> None:
    for key in KEYS:
        q.send(b"1", key=key)
    ship_once(q, tmp_path / "t")
    q.split(0)
    ship_once(q, tmp_path / "t")
    assert [decode_header(one, -1).is_base for one in segments(tmp_path / "t")] == [True, True]
    strictq.restore(tmp_path / "t", tmp_path / "restored", alone=True)
    with strictq.open(tmp_path / "restored") as restored:
        assert restored.check() == []
        assert len(restored.topology().shards) == 3
        assert sorted(d.key for d in restored.receive(100)) == sorted(KEYS)


def test_a_living_replica_follows_a_split(q: Queue, tmp_path: Path) -> None:
    q.configure_replication(tmp_path / "target", interval_seconds=0.02)
    q.send(b"1", key=KEYS[0])
    q.split(0)
    q.send(b"2", key=KEYS[0])
    until(lambda: is_shipped(q))
    strictq.restore(tmp_path / "target", tmp_path / "restored", alone=True)
    with strictq.open(tmp_path / "restored", read_only=True) as restored:
        assert [m.body for m in restored.peek(KEYS[0])] == [b"1", b"2"]
        assert restored.check() == []


@pytest.mark.parametrize("mode", ["async", "confirmed"])
def test_a_replica_on_another_host_follows_a_split(
    q: Queue, home: Path, token: Path, mode: Literal["async", "confirmed"]
) -> None:
    with Replica(home, token_file=token) as replica:
        q.send(b"1", key=KEYS[0])
        q.configure_replication(f"tcp://{replica.address}", mode, interval_seconds=FAST, token_file=token)
        until_level(q, home)
        q.split(0)
        q.send(b"2", key=KEYS[0])
        until_level(q, home)
        assert bodies(home, KEYS[0]) == [b"1", b"2"]
        with strictq.open(home, read_only=True) as look:
            assert len(look.topology().shards) == 3
