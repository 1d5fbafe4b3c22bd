"""Batches whose messages are packed column by column, compared with what was sent, and with batches of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import strictq
from strictq import OutcomeUnknown, Queue, QueueConfig, StoreError
from strictq._store.api import Block, Held, PackedColumns
from strictq._store.shard import columns
from strictq._store.shard.shard_file import Shard
from strictq.spark._recorded_batches import Holder
from strictq.testing import FakeClock
from tests.support.queues import fill
from tests.support.recorded_batches import by_key, drain, encode, holder, read

KEYS = st.sampled_from(["a", "b", "c", "d", None])
BODIES = st.sampled_from([b"", b"\0", b"1", b"22", b",", b"x" * 900])
SENT = st.tuples(KEYS, BODIES, st.sampled_from([None, None, None, {"h": "1"}]), st.sampled_from([0.0, 0.0, 0.0, 50.0]))
KEYED = st.tuples(st.sampled_from("abcd"), BODIES, st.none(), st.just(0.0))
PLAIN = st.tuples(KEYS, BODIES, st.none(), st.just(0.0))


@pytest.fixture
def q() -> Iterator[Queue]:
    with strictq.open(":memory:", clock=FakeClock()) as queue:
        yield queue


def noting(h: Holder, patch: pytest.MonkeyPatch) -> list[tuple[bytes, int, int]]:
    """Record the key, the number of rows and the number of packed messages of each later lease."""
    seen: list[tuple[bytes, int, int]] = []

    def note(leases: Sequence[Held | PackedColumns], shard: int) -> Iterator[Block]:
        for held in leases:
            if isinstance(held, PackedColumns):
                seen.extend(zip(held.keys, repeat(0), held.depths, strict=False))
            else:
                seen.append((held.key, len(held.rows), 0))
        return encode(leases, shard)

    patch.setattr(h, "encode", note)
    return seen


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(SENT, PLAIN), max_size=40), st.lists(PLAIN, max_size=20), st.integers(1, 6), st.integers(1, 30),
    st.sampled_from([1, 40, 1 << 20]), st.lists(st.sampled_from(["ack", "nack", "leave"]), max_size=6), st.booleans(),
)  # fmt: skip
@example([], [("d", b"", None, 0.0), ("b", b"22", None, 0.0), ("c", b"", None, 0.0)], 1, 3, 1, ["leave", "leave", "nack"], False)
def test_every_message_comes_once_and_in_order(
    first: list[Any], second: list[Any], step: int, most: int, bytes_max: int, ends: list[str], bounded: bool
) -> None:
    clock = FakeClock()
    config = QueueConfig(keyless="round_robin", keyless_lanes=2, max_attempts=None, lease_seconds=20.0)
    with pytest.MonkeyPatch.context() as patch, strictq.open(":memory:", shards=2, clock=clock, config=config) as q:
        patch.setattr(columns, "STEP", step)
        left: dict[str, dict[int, str]] = {key: {} for key in "abcd"}
        keyless: list[str] = []
        for key, body, headers, delay in [*first, *second]:
            receipt = q.send(body, key, headers=headers, delay=delay)
            if key is None:
                keyless.append(body.decode())
            else:
                left[key][receipt.seq] = body.decode()
        for end in ends:
            for d in q.receive(1):
                if end == "ack":
                    d.ack()
                    if d.key is None:
                        keyless.remove(d.body.decode())
                    else:
                        del left[d.key][d.seq]
                elif end == "nack":
                    d.nack(delay=7.0)
        h = holder(q)
        arrived = h.arrived() if bounded else None
        got = drain(q, h, messages_max=most, bytes_max=bytes_max, arrived=arrived)
        clock.advance(100.0)  # delays, and the leases that were left, are over
        got += drain(q, h, messages_max=most, bytes_max=bytes_max)
        for key, messages in left.items():
            assert [(seq, body) for k, seq, body in got if k == f"s{key}"] == sorted(messages.items())
        assert sorted(body for k, _, body in got if not k.startswith("s")) == sorted(keyless)
        assert q.stats().depth == 0
        assert q.check() == []
        h.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(KEYED, max_size=40), st.integers(1, 30), st.sampled_from([5, 40, 1 << 20]))
def test_recorded_batches_have_the_messages_that_rows_make(sent: list[Any], most: int, bytes_max: int) -> None:
    """Lanes that are packed have another order among each other."""
    made = []
    for packed in (True, False):
        with pytest.MonkeyPatch.context() as patch, strictq.open(":memory:", clock=FakeClock()) as q:
            patch.setattr(columns, "STEP", 2)
            q.send_many([strictq.Message(body, key=key) for key, body, _, _ in sent])
            h = holder(q, packed=packed)
            handed = []
            while h.take(h.last, messages_max=most, bytes_max=bytes_max) != len(handed):
                labels = read(q, h, h.last)
                assert all(seqs == sorted(seqs) for seqs in by_key(labels).values())
                handed.append(sorted(labels))
            made.append(handed)
            h.close()
    assert made[0] == made[1]


def test_plain_lanes_come_packed_and_the_others_as_rows(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "STEP", 3)
    fill(q, "a", 3)
    fill(q, "b", 2, headers={"h": "1"})
    fill(q, "c", 2)
    h = holder(q)
    seen = noting(h, monkeypatch)
    assert h.take(0) == 1
    assert seen == [(b"sb", 2, 0), (b"sa", 0, 3), (b"sc", 0, 2)]
    assert by_key(read(q, h, 1)) == {"sa": [1, 2, 3], "sb": [1, 2], "sc": [1, 2]}


def test_a_deep_lane_comes_in_pieces_and_whole(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "STEP", 3)
    fill(q, "a", 8)
    for seq in (2, 5, 6):
        assert q.reject("a", seq, "gone")  # gaps: fewer messages than seqs in a step
    h = holder(q)
    seen = noting(h, monkeypatch)
    assert h.take(0) == 1
    assert seen == [(b"sa", 0, 3), (b"sa", 0, 2)]
    assert by_key(read(q, h, 1)) == {"sa": [1, 3, 4, 7, 8]}
    assert h.take(1) == 1
    assert q.stats().depth == 0


def test_a_lane_with_a_message_that_is_not_plain_comes_as_rows(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "STEP", 2)
    fill(q, "a", 3)
    q.send(b"4", "a", headers={"h": "1"})
    q.send(b"5", "a")
    h = holder(q)
    seen = noting(h, monkeypatch)
    assert h.take(0) == 1
    assert seen == [(b"sa", 5, 0)]
    assert by_key(read(q, h, 1)) == {"sa": [1, 2, 3, 4, 5]}
    assert q.check() == []


def test_a_lane_with_an_attempted_message_comes_as_rows(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns do not say how often a message was attempted."""
    fill(q, "a", 2)
    fill(q, "b", 2)
    q.receive(1)[0].nack(delay=0.0)
    h = holder(q)
    seen = noting(h, monkeypatch)
    assert h.take(0) == 1
    assert sorted(seen) == [(b"sa", 2, 0), (b"sb", 0, 2)]


def test_room_that_ends_in_a_lane_is_used_up(q: Queue) -> None:
    for key in ("a", "b", "c"):
        fill(q, key, 4)
    h = holder(q)
    assert h.take(0, messages_max=6) == 1
    assert by_key(read(q, h, 1)) == {"sa": [1, 2, 3, 4], "sb": [1, 2]}


def test_a_shard_that_fails_does_not_keep_the_others_from_giving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strictq.open(tmp_path / "queue", shards=3, clock=FakeClock(), durability="process") as q:
        for key in range(30):
            fill(q, key, 2)
        h = holder(q)
        run = Shard.run

        def failing(shard: Shard, *args: Any, **options: Any) -> Any:
            if shard.number == 1:
                raise StoreError("no", shard=1)
            return run(shard, *args, **options)

        monkeypatch.setattr(Shard, "run", failing)
        assert h.take(0) == 1
        assert {part.shard for part in h.parts(1)} == {0, 2}
        monkeypatch.setattr(Shard, "run", run)
        assert h.take(1) == 2
        assert {part.shard for part in h.parts(2)} == {1}
        assert h.take(2) == 2
        assert q.stats().depth == 0
        h.close()


def test_a_part_that_may_be_recorded_is_not_given_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not synced: a sink must not see what a power cut could take back."""
    with strictq.open(tmp_path / "queue", shards=2, clock=FakeClock(), durability="process") as q:
        for key in range(20):
            fill(q, key, 2)
        h = holder(q)
        run = Shard.run

        def unsure(shard: Shard, *args: Any, **options: Any) -> Any:
            done = run(shard, *args, **options)
            if shard.number == 1:
                raise OutcomeUnknown("COMMIT failed", shard=1)
            return done

        monkeypatch.setattr(Shard, "run", unsure)
        with pytest.raises(OutcomeUnknown):
            h.take(0)
        monkeypatch.setattr(Shard, "run", run)
        assert h.take(0) == 1
        assert {part.shard for part in h.parts(1)} == {0, 1}
        assert q.check() == []
        h.close()


def test_what_could_not_be_synced_is_synced_before_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink must not see what a power cut could take back."""
    with strictq.open(tmp_path / "queue", clock=FakeClock(), durability="process") as q:
        fill(q, "a", 2)
        h = holder(q)
        synced: list[int] = []
        fails = [True]

        def sync(shard: Shard) -> None:
            if fails:
                raise StoreError("its WAL could not be synced", shard=shard.number)
            synced.append(shard.number)

        monkeypatch.setattr(Shard, "sync", sync)
        for _ in range(2):
            with pytest.raises(StoreError, match="could not be synced"):
                h.take(0)
        fails.clear()
        assert h.take(0) == 1
        assert synced == [0]
        assert by_key(read(q, h, 1)) == {"sa": [1, 2]}
        h.close()


@pytest.fixture
def sparse(q: Queue) -> Queue:
    """Return a queue with twelve lanes of one message each, a to l."""
    q.send_many([strictq.Message(b"1", key=key) for key in "abcdefghijkl"])
    return q


def test_lanes_of_few_messages_are_packed_together(sparse: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    h = holder(sparse)
    seen = noting(h, monkeypatch)
    assert h.take(0, messages_max=9) == 1
    assert sorted(by_key(read(sparse, h, 1))) == [f"s{key}" for key in "abcdefghi"]
    assert seen == [(f"s{key}".encode(), 0, 1) for key in "abcdefghi"]
    assert sparse.check() == []
    assert [d.key for d in sparse.receive(10)] == ["j", "k", "l"]
    sparse.send(b"2", "d")
    assert h.take(1) == 2
    assert by_key(read(sparse, h, 2)) == {"sd": [2]}
    assert h.take(2) == 2
    assert sparse.stats().depth == 3
    assert sparse.check() == []


def test_an_ack_of_many_lanes_leaves_the_messages_of_others(sparse: Queue) -> None:
    """That includes lanes between them, and messages after the delivered ones."""
    (e,) = sparse.receive(1, keys=["e"])
    sparse.hold("g")
    h = holder(sparse)
    assert h.take(0) == 1
    assert len(read(sparse, h, 1)) == 10
    sparse.send_many([strictq.Message(b"2", key=key) for key in "aeg"])
    assert h.take(1) == 2
    assert read(sparse, h, 2) == [("sa", 2, "2")]
    assert sparse.check() == []
    e.ack()
    sparse.release("g")
    assert h.take(2) == 3
    assert by_key(read(sparse, h, 3)) == {"sg": [1, 2], "se": [2]}
    assert h.take(3) == 3
    assert sparse.stats().depth == 0
    assert sparse.check() == []


def test_lanes_that_are_packed_together_end_where_a_bound_says(sparse: Queue) -> None:
    h = holder(sparse)
    arrived = h.arrived()
    sparse.send_many([strictq.Message(b"2", key=key) for key in "dm"])
    assert h.take(0, arrived=arrived) == 1
    assert by_key(read(sparse, h, 1)) == {f"s{key}": [1] for key in "abcdefghijkl"}
    assert h.take(1, bytes_max=1) == 2
    assert by_key(read(sparse, h, 2)) == {"sd": [2]}
    assert sparse.check() == []
