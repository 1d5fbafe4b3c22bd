"""What a forwarder sends of a queue, in which order, and what becomes of messages that the endpoint does not accept."""

from __future__ import annotations

import math
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from strictq import Forwarder, InvalidArgument, Message, Queue, QueueConfig
from strictq import forwarding as module
from strictq._values.keys import Key
from strictq.testing import FakeClock, SqsEndpoint, sqs_endpoint
from tests.remote.arrived import NAME, arrived, by_key, sent, to
from tests.support import fake_sqs
from tests.support.fake_sqs import FakeSqs, Fault
from tests.support.running import until

CONFIG = QueueConfig(max_attempts=None, keyless="random")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def q(clock: FakeClock) -> Iterator[Queue]:
    with strictq.open(":memory:", clock=clock, config=CONFIG) as queue:
        yield queue


@pytest.fixture(params=[None, "1.0"], ids=["sqs", "strictq"])
def sqs(request: pytest.FixtureRequest, clock: FakeClock) -> FakeSqs:
    """Amazon's, and the own endpoint."""
    return FakeSqs(clock, strictq_version=request.param)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(module, "LONGEST_WAIT_SECONDS", 0.002)


def forward(q: Queue, target: strictq.RemoteQueue, **options: Any) -> strictq.ForwarderStats:
    forwarder = Forwarder(q, target, **options)
    forwarder.run(drain=True)
    return forwarder.stats()


def doubts(q: Queue) -> list[Any]:
    return list(q.query("SELECT target, key, seq FROM app_forward_doubt ORDER BY 1, 2, 3"))


# ---- what arrives


KEYS: list[Key] = ["a", "~a", "é", "x" * 200, 1, "1", b"1", -5, b"\xff\0"]


@pytest.mark.parametrize("name", [NAME, "standard"])
def test_messages_arrive_with_key_body_and_headers(q: Queue, sqs: FakeSqs, name: str) -> None:
    bodies = [bytes([value]) for value in range(256)] + [b"", b"text", "é".encode()]
    for n, body in enumerate(bodies):
        q.send(body, key=KEYS[n % len(KEYS)], headers={"n": f"{n}\n"} if n % 2 else None)
    stats = forward(q, to(sqs, name))
    got = arrived(sqs, name)
    assert stats.forwarded == len(got) == len(bodies)
    assert (q.stats().depth, stats.refused, stats.failed, stats.unanswered, stats.error) == (0, 0, 0, 0, None)
    for i, key in enumerate(KEYS):
        mine = sorted((m for m in got if (m.key, type(m.key)) == (key, type(key))), key=lambda m: m.source_seq or 0)
        assert [m.body for m in mine] == bodies[i :: len(KEYS)]
        assert [m.source_seq for m in mine] == list(range(1, len(mine) + 1))
        assert [m.headers.get("n") for m in mine] == [f"{n}\n" if n % 2 else None for n in range(i, len(bodies), len(KEYS))]
    assert {m.source for m in got} == {q.queue_id}
    assert not any(m.maybe_duplicate for m in got)
    if name == NAME:
        assert by_key(got) == {key: bodies[i :: len(KEYS)] for i, key in enumerate(KEYS)}


def test_keyless_messages_do_not_wait_for_each_other(q: Queue, sqs: FakeSqs) -> None:
    q.send_many([Message(b"%d" % n) for n in range(30)])
    forward(q, to(sqs))
    assert sorted(m.body for m in arrived(sqs)) == sorted(b"%d" % n for n in range(30))
    assert {m.key for m in arrived(sqs)} == {None}
    assert len({m.group for m in sqs.stored(NAME)}) == 30


def test_a_request_has_one_message_of_a_key_unless_the_endpoint_keeps_prefixes(q: Queue, sqs: FakeSqs) -> None:
    for key in "abcdefghijkl":
        q.send_many([Message(b"%d" % n, key=key) for n in range(25)])
    forward(q, to(sqs))
    most = [max(list(map(_group, call.entries)).count(g) for g in map(_group, call.entries)) for call in sent(sqs)]
    assert max(most) == (1 if sqs.strictq_version is None else 10)
    assert sum(len(call.entries) for call in sent(sqs)) == 300
    assert len(sent(sqs)) <= 60  # most are full
    assert by_key(arrived(sqs)) == {key: [b"%d" % n for n in range(25)] for key in "abcdefghijkl"}


def _group(entry: Any) -> str:
    return str(entry["MessageGroupId"])


def test_delays_and_ttls(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    q.send(b"soon", key="a", ttl=100.0)
    q.send(b"later", key="b", delay=60.0)
    q.send(b"redriven", key="c", ttl=100.0)
    (d,) = q.receive(keys=["c"])
    d.reject("x")
    q.redrive("c")
    clock.advance(40)
    target = to(sqs)
    forward(q, target)
    now = clock.wall() / 1e6
    assert [(m.body, m.expires_at and round(m.expires_at - now, 2)) for m in arrived(sqs)] == [
        (b"soon", 60.0),
        (b"redriven", None),
    ]
    clock.advance(20)
    forward(q, target)
    assert [m.body for m in arrived(sqs)] == [b"soon", b"redriven", b"later"]


def test_forwarding_works_on_disk_async_and_with_several_shards(sqs: FakeSqs, tmp_path: Path, clock: FakeClock) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "q", shards=3, durability="process", clock=clock) as aq:
            await aq.send_many([Message(b"%d" % n, key=n % 7) for n in range(70)])
            forwarder = Forwarder(aq, to(sqs))
            await forwarder.serve(drain=True)
            assert forwarder.stats().forwarded == 70

    anyio.run(main)
    assert by_key(arrived(sqs)) == {k: [b"%d" % n for n in range(k, 70, 7)] for k in range(7)}


# ---- outages


OUTAGES = {
    name: getattr(fake_sqs, name)
    for name in ("THROTTLED", "UNAVAILABLE", "INTERNAL", "ACCESS_DENIED", "EXPIRED_TOKEN", "NO_QUEUE", "NO_CREDENTIALS",
                 "UNREACHABLE", "CUT", "CUT_EARLY", "TIMED_OUT")
}  # fmt: skip


@pytest.mark.parametrize("fault", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_charges_no_attempt(q: Queue, sqs: FakeSqs, clock: FakeClock, fault: Fault) -> None:
    q.configure(max_attempts=1)
    for key in "abc":
        q.send_many([Message(b"%d" % n, key=key) for n in range(3)])
    target = to(sqs)
    sqs.inject(fault, "send_message_batch", times=math.inf)
    with pytest.raises(strictq.ServerUnreachable, match="remain"):
        forward(q, target)
    assert [q.status(key, 1).attempts for key in "abc"] == [0, 0, 0]
    sqs.heal()
    clock.advance(1)
    stats = forward(q, target)
    assert by_key(arrived(sqs)) == {key: [b"0", b"1", b"2"] for key in "abc"}
    assert (q.stats().dead, q.stats().depth, doubts(q), stats.maybe_duplicates) == (0, 0, [], 0)


def test_a_forwarder_waits_as_long_as_the_endpoint_asks_for(q: Queue, sqs: FakeSqs, monkeypatch: pytest.MonkeyPatch) -> None:
    q.send(b"", key="a")
    target = to(sqs)
    sqs.inject(fake_sqs.refused("ServiceUnavailable", status=503, retry_after="9"), "send_message_batch")
    waits: list[float] = []
    monkeypatch.setattr(module, "_put_off", lambda lanes, seconds, why: waits.append(seconds))
    with pytest.raises(strictq.ServerUnreachable):
        forward(q, target)
    assert waits == [9.0]


def test_a_run_with_drain_gives_up(q: Queue, sqs: FakeSqs) -> None:
    q.send_many([Message(b"", key=n) for n in range(200)])
    target = to(sqs)
    sqs.inject(fake_sqs.UNREACHABLE, "send_message_batch", times=math.inf)
    with pytest.raises(strictq.ServerUnreachable, match="remain"):
        forward(q, target, batch=1, concurrency=1)
    assert len(sent(sqs)) == module.DRAIN_FAILURES_MAX
    assert q.stats().depth == 200


def test_a_forwarder_waits_for_the_endpoint_and_stops_at_once(q: Queue, sqs: FakeSqs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT_SECONDS", 3600.0)
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 3600.0)
    q.send_many([Message(b"", key=n) for n in range(200)])
    target = to(sqs)
    sqs.inject(fake_sqs.UNREACHABLE, "send_message_batch", times=math.inf)
    forwarder = Forwarder(q, target)
    thread = threading.Thread(target=forwarder.run)
    thread.start()
    until(lambda: forwarder.stats().error)
    assert "EndpointConnectionError" in (forwarder.stats().error or "")
    forwarder.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert len(sent(sqs)) <= 4  # one of each handler: the others wait, and nothing is committed meanwhile
    assert (q.stats().depth, q.stats().in_flight) == (200, 0)


def test_a_defect_is_logged_and_charges_no_attempt(
    q: Queue, sqs: FakeSqs, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    q.send(b"x", key="a")
    target = to(sqs)
    with monkeypatch.context() as m:
        m.setattr(module, "encode", lambda *_, **__: 1 / 0)
        with pytest.raises(strictq.ServerUnreachable):
            forward(q, target)
    clock.advance(1)
    assert "ZeroDivisionError" in caplog.text
    assert q.status("a", 1).attempts == 0
    assert forward(q, target).forwarded == 1


@pytest.mark.parametrize(
    "entry", [fake_sqs.entries_fail(0), fake_sqs.entries_missing(0), fake_sqs.entries_missing(0, happen=True)]
)
def test_an_entry_that_fails_holds_its_key_only(q: Queue, sqs: FakeSqs, clock: FakeClock, entry: Fault) -> None:
    for key in "abc":
        q.send_many([Message(b"%d" % n, key=key) for n in range(4)])
    target = to(sqs)
    sqs.inject(entry, "send_message_batch")
    forward(q, target)
    assert [len(by_key(arrived(sqs)).get(key, ())) for key in "bc"] == [4, 4]
    clock.advance(2)
    assert forward(q, target).maybe_duplicates == 0
    assert by_key(arrived(sqs)) == {key: [b"0", b"1", b"2", b"3"] for key in "abc"}
    assert doubts(q) == []


@pytest.mark.parametrize("code", ["AWS.SimpleQueueService.BatchRequestTooLong", "413"])
def test_a_request_that_is_too_long_is_divided(q: Queue, sqs: FakeSqs, code: str) -> None:
    q.send_many([Message(b"%d" % n, key=n % 4) for n in range(10)])
    target = to(sqs)
    sqs.inject(fake_sqs.refused(code), "send_message_batch", times=2)
    assert forward(q, target, concurrency=1).forwarded == 10
    assert by_key(arrived(sqs)) == {k: [b"%d" % n for n in range(k, 10, 4)] for k in range(4)}
    assert len(sent(sqs)) > 3


def test_requests_stay_below_the_size_of_a_batch(q: Queue, sqs: FakeSqs) -> None:
    q.send_many([Message(b"x" * 400_000, key=n) for n in range(5)])
    assert forward(q, to(sqs)).failed == 0
    assert [len(m.body) for m in arrived(sqs)] == [400_000] * 5


def test_a_forwarder_starts_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for name, value in SqsEndpoint("", FakeClock()).environment.items():
        monkeypatch.setenv(name, value)
    url = f"sqs+http://127.0.0.1:{port}/queue/o.fifo"
    with strictq.open(":memory:", config=CONFIG) as q:
        q.send_many([Message(b"%d" % n, key="k") for n in range(5)])
        with pytest.raises(strictq.ServerUnreachable):
            Forwarder(q, url).run(drain=True)
        forwarder = Forwarder(q, url)
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        until(lambda: forwarder.stats().failed >= 2)
        assert forwarder.stats().requests == 0
        with sqs_endpoint(port=port) as endpoint:
            endpoint.create_queue("o.fifo")
            until(lambda: q.stats().depth == 0)
            forwarder.stop()
            thread.join(60)
            got = endpoint.client.receive_message(QueueUrl="o.fifo", MaxNumberOfMessages=10)["Messages"]
    assert not thread.is_alive()
    assert [m["Body"] for m in got] == ["0", "1", "2", "3", "4"]
    assert forwarder.stats().error is None


@pytest.mark.parametrize("lost", [False, True])
def test_the_lease_is_checked_before_each_request(q: Queue, sqs: FakeSqs, clock: FakeClock, lost: bool) -> None:
    """The process sleeps past its lease while a request runs."""
    q.send_many([Message(b"%d" % n, key="a") for n in range(3)])
    target = to(sqs)

    def sleep() -> None:
        q.pause()  # or the worker would receive the messages again
        if lost:
            q.resolve("a", 1)  # ends the lease
        clock.advance(100)

    sqs.inject(fake_sqs.meanwhile(after=sleep), "send_message_batch")
    stats = forward(q, target, per_key=1)
    assert (len(sent(sqs)), stats.lost) == ((1, 1) if lost else (3, 0))
    q.resume()
    forward(q, target)
    assert by_key(arrived(sqs)) == {"a": [b"0", b"1", b"2"]}


# ---- refused content


REFUSED = fake_sqs.entries_fail(0, code="InvalidMessageContents", sender=True)


def fill(q: Queue) -> None:
    q.send_many([Message(body, key="a") for body in (b"0", b"1" * 5_000, b"2")])


def too_large(sqs: FakeSqs) -> strictq.RemoteQueue:
    return to(sqs, MaximumMessageSize=4096)


def test_what_is_too_large_becomes_a_dead_letter_before_the_first_request(q: Queue, sqs: FakeSqs) -> None:
    fill(q)
    stats = forward(q, too_large(sqs))
    assert (stats.forwarded, stats.refused) == (2, 1)
    assert by_key(arrived(sqs)) == {"a": [b"0", b"2"]}
    (dead,) = q.dead_letters()
    assert (dead.seq, dead.kind) == (2, "rejected")
    assert "4,096" in dead.reason


def test_a_message_is_never_too_large_for_its_mark(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    """With the mark it was refused, and so became a dead letter although it had arrived, or was lost on the way."""
    target = too_large(sqs)
    for size in range(3_860, 4_000, 10):
        q.send(b"1" * size, key="a")
        sqs.inject(fake_sqs.CUT, "send_message_batch", times=math.inf)
        with suppress(strictq.ServerUnreachable):
            forward(q, target)
        sqs.heal()
        clock.advance(305)
        assert forward(q, target).refused == 0
    assert q.stats().dead > 0


def test_what_the_endpoint_refuses_becomes_a_dead_letter(q: Queue, sqs: FakeSqs) -> None:
    q.send_many([Message(b"%d" % n, key="a") for n in range(3)])
    target = to(sqs)
    sqs.inject(REFUSED, "send_message_batch")
    stats = forward(q, target, batch=10, per_key=1)
    assert (stats.forwarded, stats.refused) == (2, 1)
    assert by_key(arrived(sqs)) == {"a": [b"1", b"2"]}
    assert "InvalidMessageContents" in q.dead_letters()[0].reason


def test_a_key_is_held_instead(q: Queue, sqs: FakeSqs) -> None:
    fill(q)
    q.send(b"other", key="b")
    target = too_large(sqs)
    stats = forward(q, target, on_refused="hold")
    assert (stats.forwarded, stats.refused) == (2, 1)
    assert by_key(arrived(sqs)) == {"a": [b"0"], "b": [b"other"]}
    assert (q.stats().held, q.stats().dead) == (2, 0)
    assert "4,096" in q.explain("a").text
    q.release("a")
    forward(q, target)
    assert by_key(arrived(sqs))["a"] == [b"0", b"2"]


def test_a_keyless_message_cannot_be_held(q: Queue, sqs: FakeSqs) -> None:
    q.send(b"1" * 5_000)
    forward(q, too_large(sqs), on_refused="hold")
    assert q.stats().dead == 1


# ---- doubts


def in_doubt(q: Queue, sqs: FakeSqs, target: strictq.RemoteQueue, fault: Fault = fake_sqs.CUT) -> None:
    """Send one message in a request whose answer is lost."""
    q.send(b"x", key="a")
    sqs.inject(fault, "send_message_batch")
    with pytest.raises(strictq.ServerUnreachable):
        forward(q, target)


@pytest.mark.parametrize(("seconds", "marked", "copies"), [(200, 0, 1), (245, 1, 1), (305, 1, 2)])
def test_a_message_in_doubt_is_marked_when_the_window_may_be_over(
    q: Queue, sqs: FakeSqs, clock: FakeClock, seconds: float, marked: int, copies: int
) -> None:
    target = to(sqs)
    in_doubt(q, sqs, target)
    assert doubts(q) == [(target.path, "a", 1)]
    clock.advance(seconds)
    stats = forward(q, target)
    assert (stats.maybe_duplicates, stats.forwarded) == (marked, 1)
    assert [m.maybe_duplicate for m in arrived(sqs)] == [False, True][:copies]
    assert (doubts(q), q.stats().depth) == ([], 0)


def test_what_was_not_sent_is_not_in_doubt(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    target = to(sqs)
    in_doubt(q, sqs, target, fake_sqs.UNREACHABLE)
    assert doubts(q) == []
    clock.advance(10_000)
    assert forward(q, target).maybe_duplicates == 0


def test_a_doubt_moves_with_its_key(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    target = to(sqs)
    in_doubt(q, sqs, target)
    q.isolate("a")
    assert q.query("SELECT key FROM app_forward_doubt", key="a") == [("a",)]
    clock.advance(1_000)
    assert forward(q, target).maybe_duplicates == 1
    assert (doubts(q), q.stats().depth) == ([], 0)


@pytest.mark.parametrize("key", [None, 10**30, b"\xff", -7, "\0"])
def test_keys_of_all_types_may_be_in_doubt(q: Queue, sqs: FakeSqs, clock: FakeClock, key: Any) -> None:
    target = to(sqs)
    q.send(b"x", key=key)
    sqs.inject(fake_sqs.CUT, "send_message_batch")
    with pytest.raises(strictq.ServerUnreachable):
        forward(q, target)
    assert len(doubts(q)) == 1
    clock.advance(1_000)
    assert forward(q, target).maybe_duplicates == 1
    assert (doubts(q), q.stats().depth) == ([], 0)


def test_a_window_of_the_own_endpoint_is_used(q: Queue, clock: FakeClock) -> None:
    sqs = FakeSqs(clock, strictq_version="1")
    target = to(sqs, StrictqDeduplicationSeconds=86_400)
    in_doubt(q, sqs, target)
    clock.advance(60_000)
    assert forward(q, target).maybe_duplicates == 0
    assert not arrived(sqs)[0].maybe_duplicate


def test_a_standard_queue_recognises_no_duplicate(q: Queue, sqs: FakeSqs, caplog: pytest.LogCaptureFixture) -> None:
    target = to(sqs, "standard")
    in_doubt(q, sqs, target)
    sqs.clock.advance(1)
    assert forward(q, target).maybe_duplicates == 1
    assert {m.source_seq for m in arrived(sqs, "standard")} == {1}
    assert "standard queue" in caplog.text


def test_a_doubt_is_about_one_target(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    in_doubt(q, sqs, to(sqs))
    clock.advance(1_000)
    other = to(sqs, "other.fifo")
    assert forward(q, other).maybe_duplicates == 0
    assert [m.maybe_duplicate for m in arrived(sqs, "other.fifo")] == [False]


def test_a_doubt_survives_a_reboot_with_a_wrong_clock(sqs: FakeSqs, clock: FakeClock, tmp_path: Path) -> None:
    target = to(sqs)
    with strictq.open(tmp_path / "q", clock=clock, config=CONFIG) as q:
        in_doubt(q, sqs, target)
    clock.advance(10_000)  # the endpoint's time, too
    clock.reboot()
    clock.jump_wall(-1_000_000_000)
    with strictq.open(tmp_path / "q", clock=clock) as q:
        clock.advance(1)
        assert forward(q, target).maybe_duplicates == 1


def test_a_wrong_clock_does_not_change_the_dedup_id(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    target = to(sqs)
    in_doubt(q, sqs, target)
    clock.jump_wall(-100_000_000)
    clock.advance(1)
    forward(q, target)
    first, *others = (call.entries[0] for call in sent(sqs))
    assert others
    assert {each["MessageDeduplicationId"] for each in others} == {first["MessageDeduplicationId"]}


@pytest.mark.parametrize(("seconds", "marked"), [(1, 0), (400, 1)])
def test_a_message_whose_forwarder_died_is_in_doubt(
    q: Queue, sqs: FakeSqs, clock: FakeClock, seconds: float, marked: int
) -> None:
    q.send(b"x", key="a")
    (d,) = q.receive(lease_seconds=30)
    d.start()
    clock.advance(30 + seconds)
    q.send(b"y", key="b")
    seen: list[Any] = []

    def look(action: str, _parameters: Any) -> None:
        if action == "send_message_batch":
            seen.append(doubts(q))

    target = to(sqs)
    sqs.choose = look  # type: ignore[assignment]
    stats = forward(q, target)
    assert [(target.path, "a", 1)] in seen
    assert (stats.maybe_duplicates, stats.forwarded, doubts(q)) == (marked, 2, [])
    assert {m.body: m.maybe_duplicate for m in arrived(sqs)} == {b"x": bool(marked), b"y": False}


def test_after_a_reboot_that_killed_a_forwarder_its_messages_are_marked(sqs: FakeSqs, clock: FakeClock, tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", clock=clock, config=CONFIG) as q:
        q.send(b"x", key="a")
        (d,) = q.receive(lease_seconds=30)
        d.start()
    clock.reboot()
    with strictq.open(tmp_path / "q", clock=clock) as q:
        assert forward(q, to(sqs)).maybe_duplicates == 1


def test_doubts_of_messages_that_have_left_are_removed(q: Queue, sqs: FakeSqs, clock: FakeClock) -> None:
    target = to(sqs)
    in_doubt(q, sqs, target)
    q.purge("a")
    forward(q, target)
    assert doubts(q) == []


def test_a_restored_queue_loses_no_message(sqs: FakeSqs, clock: FakeClock, tmp_path: Path) -> None:
    """It issues the seqs and arrival numbers of forwarded messages again. The endpoint must not take the new ones for those."""
    target = to(sqs)
    path, copy = tmp_path / "q", tmp_path / "copy"
    with strictq.open(path, clock=clock, config=CONFIG) as q:
        q.send(b"0", key="a")
        forward(q, target)
    shutil.copytree(path, copy)
    with strictq.open(path, clock=clock) as q:
        q.send(b"lost", key="a")
        forward(q, target)
    shutil.rmtree(path)
    copy.rename(path)
    clock.advance(1)
    with strictq.open(path, clock=clock) as q:
        assert q.send(b"new", key="a").seq == 2
        forward(q, target)
        assert q.send(b"new", key="a").seq == 3
        forward(q, target)
    assert by_key(arrived(sqs)) == {"a": [b"0", b"lost", b"new", b"new"]}


# ---- use


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"concurrency": 0}, "concurrency"), ({"concurrency": 101}, "concurrency"), ({"batch": 11}, "batch"), ({"batch": 0}, "batch"),
    ({"per_key": 0}, "per_key"), ({"on_refused": "drop"}, "on_refused"), ({"on_event": 1}, "on_event"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "name"), WRONG)
def test_wrong_arguments(q: Queue, clock: FakeClock, options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Forwarder(q, to(FakeSqs(clock)), **options)


@pytest.mark.parametrize("target", ["orders.strictq", "http://h/q", "sqs+http://u:p@h/queue/o", None, 1])
def test_wrong_targets(q: Queue, target: Any) -> None:
    with pytest.raises(InvalidArgument):
        Forwarder(q, target)
    with pytest.raises(InvalidArgument):
        Forwarder(target, "sqs+http://h/queue/o")


def test_a_queue_that_is_read_only_is_refused(tmp_path: Path) -> None:
    strictq.open(tmp_path / "q").close()
    with strictq.open(tmp_path / "q", read_only=True) as q, pytest.raises(strictq.ReadOnlyQueue):
        Forwarder(q, "sqs+http://127.0.0.1:1/queue/o.fifo").run(drain=True)


def test_settings_that_lose_messages_are_warned_of(sqs: FakeSqs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        forward(q, to(sqs))
    assert "max_attempts=5" in caplog.text
    assert "strictq-sent-at" in caplog.text


def test_a_closed_connection_is_reported(q: Queue, sqs: FakeSqs) -> None:
    target = to(sqs)
    target.close()
    with pytest.raises(strictq.QueueClosed):
        Forwarder(q, target)


def test_events_are_those_of_a_worker(q: Queue, sqs: FakeSqs) -> None:
    seen: list[str] = []
    q.send(b"x", key="a")
    forward(q, to(sqs), on_event=lambda event: seen.append(event.kind))
    assert seen[-1] == "acked"
