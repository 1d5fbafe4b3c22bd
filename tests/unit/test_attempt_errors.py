"""What failed attempts leave: the newest errors of a message, wherever it is looked at, bounded; and what its handler said."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import strictq
from strictq import AttemptError, Message, Queue
from strictq.testing import FakeClock, Machine
from tests.support.queues import AT_ONCE, Opener


def fail(q: Queue, error: Exception) -> None:
    (d,) = q.receive(1)
    with pytest.raises(type(error)), d:
        raise error


def summary(errors: tuple[AttemptError, ...]) -> list[tuple[int, str]]:
    return [(e.attempt, e.error) for e in errors]


def test_a_message_that_never_failed_has_none(q: Queue) -> None:
    q.send(b"", "k")
    assert q.status("k", 1).errors == ()
    (d,) = q.receive()
    assert (d.errors, d.last_error) == ((), None)


def test_each_attempt_leaves_its_error_with_time_and_traceback(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=None, **AT_ONCE)
    q.send(b"", "k")
    begun = clock.wall() / 1e6
    for n in range(3):
        clock.advance(10.0)
        fail(q, ValueError(f"no paper {n}\nin tray 2"))
    found = q.status("k", 1)
    assert summary(found.errors) == [(n + 1, f"ValueError: no paper {n}\nin tray 2") for n in range(3)]
    assert [e.at for e in found.errors] == pytest.approx([begun + 10.0 * (n + 1) for n in range(3)])
    assert found.last_error == "ValueError: no paper 2\nin tray 2"
    for e in found.errors:
        assert e.traceback is not None
        assert e.traceback.startswith("Traceback (most recent call last):")
        assert "in fail\n" in e.traceback
    (d,) = q.receive()
    assert d.attempt == 4
    assert d.errors == found.errors
    assert d.last_error == found.errors[-1]


def test_the_last_five_are_kept(make: Opener) -> None:
    q = make(max_attempts=None, **AT_ONCE)
    q.send(b"", "k")
    for n in range(8):
        q.receive(1)[0].nack(reason=f"try {n}")
    assert summary(q.status("k", 1).errors) == [(n + 1, f"try {n}") for n in range(3, 8)]
    assert all(e.traceback is None for e in q.status("k", 1).errors)


@pytest.mark.parametrize("piece", ["x", "ü", "\0", "\N{PILE OF POO}", '"\\'])
def test_what_is_kept_is_bounded_in_bytes(make: Opener, piece: str) -> None:
    """However long the error, and however many bytes its characters take."""
    q = make(max_attempts=None, **AT_ONCE)
    q.send(b"", "k")
    for _ in range(6):
        fail(q, RuntimeError(piece * 50_000))
    errors = q.status("k", 1).errors
    assert 1 <= len(errors) <= 5
    assert errors[-1].attempt == 6
    for e in errors:
        assert e.traceback is not None
        assert len(e.error.encode()) <= 2_000
        assert len(e.traceback.encode()) <= 4_000
        assert e.error.startswith(f"RuntimeError: {piece}")
        assert e.traceback.endswith(piece)


def test_a_nack_without_a_reason_leaves_none(make: Opener) -> None:
    q = make(**AT_ONCE)
    q.send(b"", "k")
    q.receive()[0].nack(reason="first")
    q.receive()[0].nack()
    assert summary(q.status("k", 1).errors) == [(1, "first")]


def test_a_deferred_message_keeps_its_errors(make: Opener, clock: FakeClock) -> None:
    q = make(**AT_ONCE)
    q.send(b"", "k")
    q.receive()[0].nack(reason="first")
    q.receive()[0].defer(5.0)
    clock.advance(6.0)
    (d,) = q.receive()
    assert summary(d.errors) == [(1, "first")]


@pytest.mark.one_shard("the history of the first shard")
@pytest.mark.parametrize("end", ["rejected", "poison"])
def test_a_dead_letter_has_them_and_a_redrive_keeps_them(make: Opener, end: str) -> None:
    q = make(max_attempts=2, history="records", **AT_ONCE)
    q.send(b"", "k")
    q.receive()[0].nack(reason="first", output="page 1")
    (d,) = q.receive()
    if end == "rejected":
        d.reject("no order", output="page 2")
    else:
        d.nack(reason="no order", output="page 2")
    expected = [(1, "first"), (2, "no order")]
    (dead,) = q.dead_letters()
    assert (dead.kind, summary(dead.errors), dead.output) == (end, expected, "page 2")
    assert summary(q.status("k", 1).errors) == expected
    (record,) = q.history()
    assert (record.outcome, summary(record.errors), record.output) == (end, expected, "page 2")
    q.redrive("k")
    (again,) = q.receive()
    assert (again.attempt, summary(again.errors)) == (1, expected)
    again.ack()
    assert summary(q.history()[-1].errors) == expected


@pytest.mark.one_shard("the history of the first shard")
def test_history_has_the_errors_of_what_succeeded_in_the_end(make: Opener) -> None:
    q = make(history="bodies", **AT_ONCE)
    q.send_many([Message(b"a", key="k"), Message(b"b", key="k")])
    q.receive(1)[0].nack(reason="busy", output="looked")
    q.ack_many(q.receive())
    first, second = q.history()
    assert (first.body, summary(first.errors), first.output) == (b"a", [(1, "busy")], "looked")
    assert (second.body, second.errors, second.output) == (b"b", (), None)
    assert first.to_dict()["errors"] == [{"attempt": 1, "at": first.errors[0].at, "error": "busy", "traceback": None}]


def test_a_keyless_message_keeps_them_in_its_own_lane(make: Opener) -> None:
    q = make(keyless="round_robin", **AT_ONCE)
    q.send(b"")
    q.receive()[0].nack(reason="first")
    (d,) = q.receive()
    assert (d.key, d.attempt, summary(d.errors)) == (None, 2, [(1, "first")])


def test_keyless_messages_keep_them_in_every_shard(make: Opener) -> None:
    """The hash of the key of such a lane is not that of the shard in which the message is."""
    q = make(shards=4, keyless="round_robin", keyless_lanes=32, **AT_ONCE)
    q.send_many([Message(b"")] * 32)
    q.nack_many(q.receive(32), reason="first")
    again = q.receive(32)
    assert [summary(d.errors) for d in again] == [[(1, "first")]] * 32
    assert {d.shard for d in again} == {0, 1, 2, 3}


def test_the_awaited_delivery_has_them(make: Opener, clock: FakeClock) -> None:
    async def look() -> None:
        async with strictq.open_async(":memory:", clock=clock, config=strictq.QueueConfig(**AT_ONCE)) as q:
            await q.send(b"", "k")
            (d,) = await q.receive()
            with pytest.raises(ValueError, match="no paper"):
                async with d:
                    raise ValueError("no paper")
            (d,) = await q.receive()
            assert summary(await d.errors()) == [(1, "ValueError: no paper")]
            last = await d.last_error()
            assert last is not None
            assert "look" in str(last.traceback)

    anyio.run(look)


def expire(q: Queue, clock: FakeClock, consumer: str, *, seconds: float = 30.0) -> None:
    """Receive, start every message, and let the lease expire."""
    for d in q.receive(lease_seconds=seconds, consumer=consumer):
        d.start()
    clock.advance(seconds + 5.0)


def test_an_expired_lease_leaves_who_held_it_and_for_how_long(make: Opener, clock: FakeClock) -> None:
    q = make(**AT_ONCE)
    q.send(b"", "k")
    q.receive()[0].nack(reason="first")
    begun = clock.wall() / 1e6
    expire(q, clock, "press:17")
    assert summary(q.status("k", 1).errors) == [(1, "first")], "it is written when the lane is taken again"
    (d,) = q.receive()
    lost = "the lease ended after 30 s without an outcome; press:17 held it"
    assert summary(d.errors) == [(1, "first"), (2, lost)]
    assert d.last_error == AttemptError(2, pytest.approx(begun + 30.0), lost)  # type: ignore[arg-type]
    found = q.status("k", 1)
    assert (found.last_error, found.attempts) == (lost, 3)
    assert q.explain("k").last_error == lost


def test_messages_that_were_not_started_have_no_error_of_an_expired_lease(make: Opener, clock: FakeClock) -> None:
    q = make(**AT_ONCE)
    q.send_many([Message(b"", key="k") for _ in range(3)])
    first, *_ = q.receive(consumer="press:17")
    first.start()
    clock.advance(31.0)
    q.receive()
    assert [len(q.status("k", seq).errors) for seq in (1, 2, 3)] == [1, 0, 0]


def test_every_started_message_of_an_expired_lease_has_its_own_attempt(make: Opener, clock: FakeClock) -> None:
    q = make(**AT_ONCE)
    q.send_many([Message(b"", key="k") for _ in range(2)])
    q.receive()[0].nack(reason="first")
    expire(q, clock, "press:17")
    q.receive()
    assert [[e.attempt for e in q.status("k", seq).errors] for seq in (1, 2)] == [[1, 2], [1]]


def test_the_last_five_of_expired_leases_are_kept(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=None, **AT_ONCE)
    q.send(b"", "k")
    q.receive()[0].nack(reason="first")
    for n in range(6):
        expire(q, clock, f"press:{n}")
    (d,) = q.receive()
    assert [e.attempt for e in d.errors] == [3, 4, 5, 6, 7]
    assert d.errors[-1].error.endswith("; press:5 held it")


@pytest.mark.one_shard("the history of the first shard")
@pytest.mark.parametrize("retry_for_seconds", [0.0, 3600.0])
def test_a_message_that_killed_its_consumers_says_so_as_a_dead_letter(
    make: Opener, clock: FakeClock, retry_for_seconds: float
) -> None:
    q = make(max_attempts=2, history="records", retry_delay_seconds=0.0, retry_for_seconds=retry_for_seconds)
    q.send(b"", "k")
    for n in range(2):
        expire(q, clock, f"press:{n}")
    assert q.receive() == []
    (dead,) = q.dead_letters()
    expected = [(n + 1, f"the lease ended after 30 s without an outcome; press:{n} held it") for n in range(2)]
    assert summary(dead.errors) == expected
    assert dead.reason is not None
    assert dead.reason.endswith(expected[-1][1])
    assert summary(q.history()[0].errors) == expected


def test_a_lease_that_a_reboot_ended_says_so(tmp_path: Path, clock: FakeClock) -> None:
    with Machine(tmp_path, clock) as machine:
        q = machine.open("reboot")
        q.send(b"", "k")
        q.receive(consumer="press:17")
        q.close()
        machine.reboot()
        (d,) = machine.open("reboot").receive()
        assert summary(d.errors) == [(1, "the lease ended at a reboot without an outcome; press:17 held it")]


def test_a_consumer_name_of_any_characters_is_kept(make: Opener, clock: FakeClock) -> None:
    q = make(**AT_ONCE)
    q.send(b"", "k")
    name = 'a"\\\n\N{PILE OF POO}' + "x" * 240
    expire(q, clock, name)
    (d,) = q.receive()
    assert d.last_error is not None
    assert d.last_error.error.endswith(f"; {name} held it")
    d.nack(reason="then")
    assert [e.attempt for e in q.status("k", 1).errors] == [1, 2]
