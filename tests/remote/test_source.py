"""The source of a worker on a remote queue, without its threads: each request is made when the test says so.

A test that quotes a rule fails if the rule is removed.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, QueueNotFound, Reject, ServerRefused
from strictq.remote.delivery import RemoteDelivery
from strictq.remote.source import SqsSource
from strictq.testing import FakeClock
from strictq.worker.ending import DEFERRED, FAILED, REJECTED, Ending
from tests.support.fake_sqs import (
    ACCESS_DENIED,
    CUT,
    EXPIRED_TOKEN,
    NO_CREDENTIALS,
    NO_QUEUE,
    THROTTLED,
    TIMED_OUT,
    UNAVAILABLE,
    UNREACHABLE,
    FakeSqs,
    entries_fail,
    entries_missing,
    meanwhile,
    refused,
)
from tests.support.running import until

FIFO, STANDARD = "orders.fifo", "orders"


class Rig:
    """A queue of a fake service, and a source on it that a test drives.

    Attributes:
        woken: how often the keeper was woken.
        crashed: the errors that ended the run.
        told: kinds of events.
    """

    def __init__(
        self, name: str = FIFO, limit: int | None = None, options: dict[str, Any] | None = None, **attributes: Any
    ) -> None:
        self.clock = FakeClock()
        self.sqs = FakeSqs(self.clock)
        if limit is not None:
            attributes["RedrivePolicy"] = self.sqs.dead_letters("dead" + name.removeprefix("orders"), limit)
        self.url = self.sqs.queue(name, **{"VisibilityTimeout": 30, **attributes})
        self.queue = strictq.connect(self.url, client=self.sqs, clock=self.clock, **{"poll_seconds": 0, **(options or {})})
        self.woken = 0
        self.crashed: list[BaseException] = []
        self.told: list[str] = []
        # A poll that finds nothing ends at once, and its time has passed.
        self.sqs._changed.wait = lambda _=None: self.clock.advance(1)  # type: ignore[method-assign, func-returns-value, assignment]
        self.source = self.new()
        self.sqs.calls.clear()

    def new(self, *, drain: bool = False) -> SqsSource:
        """Return another source on the queue."""
        source = self.queue._source(batch=50, lease_seconds=None)
        source._begin(self._wake, self.crashed.append, lambda kind, _: self.told.append(kind), drain=drain)
        return source

    def wait_in_polls(self) -> None:
        """Let a poll that finds nothing wait until it is ended, because another thread makes it."""
        del self.sqs._changed.wait

    def _wake(self) -> None:
        self.woken += 1

    def send(self, *bodies: str, group: str | None = "g", **more: Any) -> None:
        for body in bodies:
            given = {"MessageGroupId": group, "MessageDeduplicationId": f"{group}-{body}"} if group and self.queue.is_fifo else {}
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body, **given, **more)

    def take(self, room: int = 100, source: SqsSource | None = None) -> list[RemoteDelivery]:
        """Say how much is wanted, receive once if the source wants to, and take what came."""
        source = source or self.source
        found = list(source.take(room, 8))
        if not found and source.fetch(wait=False):
            found = list(source.take(room, 8))
        return found  # type: ignore[return-value]

    def settle(self, source: SqsSource | None = None) -> None:
        """Send everything that can be sent now."""
        while (source or self.source).settle_batch(wait=False):
            pass

    def ack(self, *deliveries: RemoteDelivery) -> None:
        """Run the handlers of messages, and hand over their acks."""
        for d in deliveries:
            self.source.began(d)
            self.source.returned(d)
            assert self.source.settle([(d, None)], []) == {}

    def outcomes(self) -> dict[str, Exception | None]:
        return {text(o.delivery): o.error for o in self.source.completed()}  # type: ignore[arg-type]

    def left(self) -> list[str]:
        return self.sqs.bodies(self.url)

    def visible(self) -> list[str]:
        """Return what another consumer would receive, without a trace."""
        return [m.body for m in self.sqs._held(self.url).visible(self.clock.boot())]

    def requests(self, action: str) -> int:
        return len(self.sqs.made(action))


def text(d: RemoteDelivery) -> str:
    return d.body.decode()


def texts(deliveries: Sequence[RemoteDelivery]) -> list[str]:
    return [text(d) for d in deliveries]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits after failures have their longest duration."""
    monkeypatch.setattr("random.uniform", lambda _low, high: high)


# ---- receiving


def test_a_group_is_a_lane_in_the_order_of_the_answer(rig: Rig) -> None:
    rig.send("1", "2", group="a")
    rig.send("3", group="b")
    found = rig.take()
    assert texts(found) == ["1", "2", "3"]
    assert [d.key for d in found] == ["a", "a", "b"]
    assert found[0].lease is found[1].lease is not found[2].lease
    assert [d.seq for d in found] == [1, 2, 3]
    (call,) = rig.sqs.made("receive_message")
    assert call.params["VisibilityTimeout"] == 30
    assert call.params["MaxNumberOfMessages"] == 10
    assert "ReceiveRequestAttemptId" in call.params


def test_the_order_in_a_lane_is_not_that_of_sequence_numbers(rig: Rig) -> None:
    """Those of moto are random digits."""
    rig.send("1", "2", "3")
    receive = rig.sqs.receive_message

    def shuffled(**parameters: Any) -> Any:
        answer = receive(**parameters)
        for n, m in zip("735", answer["Messages"], strict=True):
            m["Attributes"]["SequenceNumber"] = n * 20
        return answer

    rig.sqs.receive_message = shuffled  # type: ignore[attr-defined]
    assert texts(rig.take()) == ["1", "2", "3"]


def test_a_standard_queue_has_a_lane_for_each_message() -> None:
    rig = Rig(STANDARD)
    rig.send("1", "2")
    found = rig.take()
    assert len({id(d.lease) for d in found}) == 2
    assert [(d.key, d.sequence_number, d.token) for d in found] == [(None, None, 0)] * 2
    assert "ReceiveRequestAttemptId" not in rig.sqs.made("receive_message")[0].params


@pytest.mark.parametrize(("name", "room", "asked"), [(FIFO, 3, 10), (STANDARD, 3, 3), (STANDARD, 30, 10)])
def test_how_many_messages_a_receive_asks_for(name: str, room: int, asked: int) -> None:
    rig = Rig(name)
    rig.take(room)
    assert rig.sqs.made("receive_message")[0].params["MaxNumberOfMessages"] == asked


def test_nothing_is_received_that_is_not_wanted(rig: Rig) -> None:
    rig.send("1", "2", "3")
    assert not rig.source.fetch(wait=False)
    assert texts(rig.take(2)) == ["1", "2", "3"]  # a group comes as a whole
    rig.send("4", group="b")
    rig.source.take(1, 8)
    assert rig.source.fetch(wait=False)
    assert not rig.source.fetch(wait=False)  # one came, and it is not taken yet
    assert texts(rig.take(1)) == ["4"]
    rig.source.take(0, 8)
    assert not rig.source.fetch(wait=False)


def test_more_than_one_receive_at_a_time_only_while_answers_are_full() -> None:
    rig = Rig(STANDARD)
    rig.send(*map(str, range(15)))
    receives = rig.source._receives
    rig.source.take(100, 8)
    assert receives.next(0.0, alone=False) is not None
    assert receives.next(0.0, alone=False) is None  # one is under way, and nothing is known of more messages
    receives.flying = 0
    assert rig.source.fetch(wait=False)  # ten
    assert [receives.next(0.0, alone=False) is not None for _ in range(3)] == [True, True, True]
    receives.flying = 0
    assert rig.source.fetch(wait=False)  # five
    assert receives.next(0.0, alone=False) is not None
    assert receives.next(0.0, alone=False) is None


def test_receives_under_way_are_demand_that_is_met() -> None:
    rig = Rig(STANDARD)
    rig.source.take(20, 8)
    rig.source._receives._plenty = True
    assert [rig.source._receives.next(0.0, alone=False) is not None for _ in range(3)] == [True, True, False]


def test_what_a_job_sees(rig: Rig) -> None:
    rig.send("12", MessageAttributes={"trace": {"DataType": "String", "StringValue": "t-1"}})
    (d,) = rig.take()
    assert (d.key, d.body, d.headers, d.attempt, d.dedup_id, d.id) == ("g", b"12", {"trace": "t-1"}, 1, "g-12", d.seq)
    assert d.enqueued_at == rig.clock.now
    assert d.sequence_number is not None
    assert d.token == int(d.sequence_number) * 1024 + 1
    assert (d.json(), d.size_hint, d.shard, d.errors, d.last_error) == (12, 2.0, 0, (), None)
    assert (d.handle, d.message_id) == (d.attributes["ReceiptHandle"], d.attributes["MessageId"])
    assert (d.source, d.source_seq, d.expires_at) == (None, None, None)
    assert "attempt=1" in repr(d)
    with pytest.raises(InvalidArgument):
        _ = d.key_state


def test_the_token_ascends_with_each_receive(rig: Rig) -> None:
    rig.send("1", "2")
    (first, second) = rig.take()
    rig.clock.advance(31)
    (again, _) = rig.take()
    assert first.token < again.token < second.token
    assert again.attempt == 2


HOSTILE = {
    "no attributes": lambda m: m.pop("Attributes"),
    "no count": lambda m: m["Attributes"].pop("ApproximateReceiveCount"),
    "a count that is none": lambda m: m["Attributes"].update(ApproximateReceiveCount="many"),
    "a long number": lambda m: m["Attributes"].update(SequenceNumber="9" * 5000),
    "other digits": lambda m: m["Attributes"].update(SequenceNumber="\N{SUPERSCRIPT TWO}"),
    "a time that is none": lambda m: m["Attributes"].update(SentTimestamp="soon"),
    "a thousand attributes": lambda m: m.update(
        MessageAttributes={f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(1000)}
    ),
    "binary attributes": lambda m: m.update(MessageAttributes={"b": {"DataType": "Binary", "BinaryValue": b"\x00"}}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_answers_stop_no_thread(rig: Rig, what: str) -> None:
    rig.send("1")
    receive = rig.sqs.receive_message

    def changed(**parameters: Any) -> Any:
        answer = receive(**parameters)
        HOSTILE[what](answer["Messages"][0])
        return answer

    rig.sqs.receive_message = changed  # type: ignore[attr-defined]
    (d,) = rig.take()
    assert d.body == b"1"
    _ = (d.key, d.token, d.attempt, d.enqueued_at, d.headers, d.size_hint)
    rig.ack(d)
    rig.settle()
    assert rig.outcomes() == {"1": None}


def test_a_message_that_cannot_be_decoded_rejects_itself(rig: Rig) -> None:
    """The fetcher never decodes it; the handler that reads it raises Reject. Everything that is shown of it works."""
    rig.send("%%%", MessageAttributes={"strictq-encoding": {"DataType": "String", "StringValue": "base64"}})
    (d,) = rig.take()
    assert (d.key, d.size_hint, d.source, d.source_seq, d.expires_at) == ("g", 3.0, None, None, None)
    assert "RemoteDelivery" in repr(d)
    for name in ("body", "headers"):
        with pytest.raises(Reject, match="cannot be decoded"):
            getattr(d, name)


def test_an_expired_message_is_deleted_unseen(rig: Rig) -> None:
    ttl = {"strictq-ttl": {"DataType": "Number", "StringValue": "5"}}
    rig.send("1", MessageAttributes=ttl)
    rig.send("2")
    rig.clock.advance(6)
    assert texts(rig.take()) == ["2"]
    rig.settle()
    assert rig.left() == ["2"]
    assert rig.outcomes() == {}


# ---- leases


def test_a_lease_begins_with_the_request(rig: Rig) -> None:
    """4.2: the endpoint's timer starts later, so the local lease never outlives it."""
    rig.send("1")
    rig.sqs.inject(meanwhile(before=lambda: rig.clock.advance(3), after=lambda: rig.clock.advance(4)), "receive_message")
    began = rig.source.clock()
    (d,) = rig.take()
    assert d.until == began + 30
    margin = max(0.5, 0.02 * 30)
    assert d.lease._deadline == int((d.until - margin) * 1e6)
    assert rig.sqs.stored(rig.url)[0].visible_at / 1e6 >= d.until


def test_an_answer_that_took_longer_than_the_lease_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(VisibilityTimeout=2)
    rig.send("1")
    rig.sqs.inject(meanwhile(after=lambda: rig.clock.advance(1.6)), "receive_message")
    with caplog.at_level(logging.WARNING):
        assert rig.take() == []
    assert "use a longer lease_seconds" in caplog.text
    rig.clock.advance(0.5)
    rig.settle()
    assert [type(o.error) for o in rig.source.completed()] == [LeaseLost]
    assert texts(rig.take()) == ["1"]


class HeldLane:
    """A worker's lane."""

    def __init__(self, d: RemoteDelivery) -> None:
        self.lease = d.lease
        self.until = d.lease._deadline / 1e6
        self.length = d.lease._seconds / 1e6
        self.alive = True


def test_leases_are_extended_at_half_time(rig: Rig) -> None:
    rig.send("1", "2", "3")
    found = rig.take()
    lane: Any = HeldLane(found[0])
    rig.clock.advance(14.9)
    rig.settle()
    assert rig.requests("change_message_visibility_batch") == 0
    rig.clock.advance(0.2)
    assert rig.source.extend([lane]) == ()
    rig.source.extend([lane])
    rig.settle()
    (call,) = rig.sqs.made("change_message_visibility_batch")  # one request for the lane
    assert [each["VisibilityTimeout"] for each in call.entries] == [30] * 3
    assert lane.until == pytest.approx(rig.source.clock() + 30 - 0.6)
    for _ in range(20):  # without the worker, too
        rig.clock.advance(10)
        rig.settle()
    assert rig.visible() == []
    assert rig.queue.stats().renewals > 20


def test_an_extension_begins_with_its_request(rig: Rig) -> None:
    rig.send("1")
    (d,) = rig.take()
    rig.clock.advance(16)
    began = rig.source.clock()
    rig.sqs.inject(meanwhile(after=lambda: rig.clock.advance(5)), "change_message_visibility_batch")
    rig.settle()
    assert d.until == began + 30


def test_nothing_is_extended_beyond_twelve_hours(rig: Rig) -> None:
    rig.queue._settings = rig.queue._settings.with_lease(20_000)
    rig.source = rig.new()
    rig.send("1")
    (d,) = rig.take()
    for _ in range(7):
        rig.clock.advance(7_000)
        rig.settle()
    assert d.until <= d.received + 43_200
    assert [call.got for call in rig.sqs.made("change_message_visibility_batch") if "Failed" in call.got] == []  # type: ignore[operator]
    assert [type(o.error) for o in rig.source.completed()] == [LeaseLost]


def test_a_message_that_cannot_be_extended_ends_the_lane_there(rig: Rig) -> None:
    """5.5: it and the later ones are dropped. The later ones go back, so that the group is not held up."""
    rig.send("1", "2", "3")
    one, two, _ = rig.take()
    rig.clock.advance(16)
    rig.sqs.inject(entries_fail(1, code="ReceiptHandleIsInvalid", sender=True), "change_message_visibility_batch")
    rig.settle()
    (outcome,) = rig.source.completed()
    assert (outcome.delivery, type(outcome.error)) == (two, LeaseLost)
    rig.ack(one)
    rig.settle()
    assert rig.outcomes() == {"1": None}
    rig.clock.advance(15)  # the lease of the second one is over, and the third one is visible behind it
    assert rig.visible() == ["2", "3"]


def test_an_extension_is_repeated_until_the_lease_ends(rig: Rig, quick: None) -> None:
    rig.send("1")
    (d,) = rig.take()
    rig.clock.advance(16)
    rig.sqs.inject(UNAVAILABLE, "change_message_visibility_batch", times=3)
    for _ in range(5):
        rig.settle()
        rig.clock.advance(0.5)
    assert d.until > rig.source.clock() + 25
    rig.sqs.inject(UNREACHABLE, "change_message_visibility_batch", times=float("inf"))
    for _ in range(40):
        rig.clock.advance(1)
        rig.settle()
    assert [type(o.error) for o in rig.source.completed()] == [LeaseLost]
    rig.sqs.heal()
    rig.clock.advance(10)
    before = rig.requests("change_message_visibility_batch")
    rig.settle()
    assert rig.requests("change_message_visibility_batch") == before  # nothing is extended after its end


def test_an_extension_never_begins_after_the_end_of_the_lease() -> None:
    """A standard queue would accept it, and conceal that another consumer had the message meanwhile."""
    rig = Rig(STANDARD)
    rig.send("1")
    rig.take()
    rig.clock.advance(16)
    rig.sqs.inject(UNREACHABLE, "change_message_visibility_batch")
    rig.settle()
    rig.clock.advance(15)
    rig.settle()
    assert rig.requests("change_message_visibility_batch") == 1
    assert [type(error) for error in rig.outcomes().values()] == [LeaseLost]


def test_a_suspended_machine_starts_nothing_of_an_old_lease(rig: Rig) -> None:
    rig.send("1", "2")
    one, two = rig.take()
    rig.clock.advance(100)  # the boot clock counts this time
    assert one.lease._deadline < rig.source.now()
    rig.settle()
    (outcome,) = rig.source.completed()
    assert outcome.delivery is one
    assert rig.source.settle([(one, None)], []).keys() == {one}
    assert texts(rig.take()) == ["1", "2"]
    assert two.attempt == 1


# ---- receives that fail


@pytest.mark.parametrize("fault", [CUT, TIMED_OUT])
def test_a_receive_without_an_answer_is_repeated_under_its_id(rig: Rig, fault: Any) -> None:
    """4.4: otherwise its messages would be hidden for a whole lease."""
    rig.send("1", "2")
    rig.sqs.inject(fault, "receive_message")
    assert rig.take() == []
    assert rig.visible() == []
    rig.clock.advance(1)
    assert texts(rig.take()) == ["1", "2"]
    first, second = rig.sqs.made("receive_message")
    assert first.params["ReceiveRequestAttemptId"] == second.params["ReceiveRequestAttemptId"]
    rig.take()
    assert rig.sqs.made("receive_message")[2].params["ReceiveRequestAttemptId"] != first.params["ReceiveRequestAttemptId"]


def test_an_id_is_not_used_longer_than_four_minutes(rig: Rig) -> None:
    rig.sqs.inject(UNREACHABLE, "receive_message")
    rig.take()
    rig.clock.advance(241)
    rig.take()
    first, second = rig.sqs.made("receive_message")
    assert first.params["ReceiveRequestAttemptId"] != second.params["ReceiveRequestAttemptId"]


@pytest.mark.parametrize("fault", [UNREACHABLE, UNAVAILABLE, THROTTLED, EXPIRED_TOKEN, NO_CREDENTIALS, refused("OverLimit")])
def test_receives_wait_longer_and_longer(rig: Rig, quick: None, fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    """4.7: one warning at the first failure, at the fifth, then one a minute, and one when it works again."""
    rig.sqs.inject(fault, "receive_message", times=float("inf"))
    rig.source.take(10, 8)
    at: list[float] = []
    with caplog.at_level(logging.WARNING, "strictq.remote"):
        for _ in range(600):
            if rig.source.fetch(wait=False):
                at.append(rig.source.clock())
            rig.clock.advance(0.1)
        waits = [round(b - a, 1) for a, b in itertools.pairwise(at)]
        assert waits[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6], abs=0.11)
        assert waits[-1] == pytest.approx(20, abs=0.2)
        assert len(caplog.records) == 2
        rig.sqs.heal()
        rig.clock.advance(21)
        rig.source.fetch(wait=False)
    assert len(caplog.records) == 3
    assert rig.told == ["worker_source_failed", "worker_source_works"]
    assert not rig.crashed
    assert sum(rig.queue.stats().failures.values()) == len(at)


@pytest.mark.parametrize(("asked", "seconds"), [("7", 7), ("86400", 60), ("Fri, 27 Nov 2026 16:00:00 GMT", 0), ("-1", 0)])
def test_a_receive_waits_as_long_as_the_endpoint_asks_for(rig: Rig, asked: str, seconds: float) -> None:
    """With Retry-After, but at most a minute: it may be that of a proxy."""
    rig.sqs.inject(refused("ServiceUnavailable", status=503, retry_after=asked), "receive_message")
    rig.source.take(10, 8)
    assert rig.source.fetch(wait=False)
    failed = rig.source.clock()
    while not rig.source.fetch(wait=False):
        rig.clock.advance(0.1)
    (_, again) = rig.sqs.made("receive_message")
    assert again.began / 1e6 - failed == pytest.approx(seconds, abs=0.21)


def test_a_delete_waits_as_long_as_the_endpoint_asks_for_but_not_until_its_lease_ends(rig: Rig) -> None:
    rig.send("1")
    rig.ack(*rig.take())
    for asked in ("3", "60"):
        rig.sqs.inject(refused("RequestThrottled", status=429, retry_after=asked), "delete_message_batch")
    while rig.requests("delete_message_batch") < 3:
        rig.settle()
        rig.clock.advance(0.5)
    first, second, third = (made.began / 1e6 for made in rig.sqs.made("delete_message_batch"))
    assert 3 <= second - first <= 4
    assert third - second > 4
    assert rig.outcomes() == {"1": None}


@pytest.mark.parametrize(("fault", "kind"), [(NO_QUEUE, QueueNotFound), (ACCESS_DENIED, ServerRefused)])
def test_what_can_never_work_ends_the_run(rig: Rig, fault: Any, kind: type[Exception]) -> None:
    rig.sqs.inject(fault, "receive_message")
    rig.take()
    (error,) = rig.crashed
    assert isinstance(error, kind)
    if kind is ServerRefused:
        assert "sqs:ReceiveMessage" in str(error)


def test_permission_that_is_taken_away_may_come_back(rig: Rig) -> None:
    rig.take()
    rig.sqs.inject(ACCESS_DENIED, "receive_message")
    rig.clock.advance(5)
    rig.take()
    assert not rig.crashed
    assert rig.told == ["worker_source_failed"]


@pytest.mark.parametrize("action", ["delete_message_batch", "change_message_visibility_batch"])
def test_missing_permission_to_settle_ends_the_run(rig: Rig, action: str) -> None:
    """Otherwise each message would be processed again and again."""
    rig.send("1")
    (d,) = rig.take()
    rig.sqs.inject(ACCESS_DENIED, action)
    if action == "delete_message_batch":
        rig.ack(d)
    else:
        rig.source.release([d])
    rig.settle()
    (error,) = rig.crashed
    assert isinstance(error, ServerRefused)
    assert ("sqs:DeleteMessage" if action.startswith("delete") else "sqs:ChangeMessageVisibility") in str(error)


# ---- groups with a running handler


def test_a_group_whose_handler_still_runs_is_parked(rig: Rig) -> None:
    """4.6 (seen: message 1 ran twice at the same time, in one worker)."""
    rig.send("1", "2")
    rig.send("3", group="b")
    one = rig.take()[0]
    rig.source.began(one)
    rig.sqs.inject(UNREACHABLE, "change_message_visibility_batch", times=float("inf"))
    rig.clock.advance(40)  # the endpoint was down for longer than the lease
    rig.settle()
    rig.sqs.heal()
    assert texts(rig.take()) == ["3"]
    before, woken = rig.source.changed(), rig.woken
    for _ in range(10):
        rig.clock.advance(10)
        rig.settle()  # what is parked is extended
    assert rig.visible() == []
    assert rig.source.take(100, 8) == []
    rig.source.returned(one)
    assert rig.source.changed() != before
    assert rig.woken > woken
    assert texts(rig.take()) == ["1", "2"]


def test_a_handler_that_was_abandoned_parks_no_group(rig: Rig) -> None:
    """The worker's time limit was over, so the message is tried again although its handler may hang for ever."""
    rig.send("1")
    (d,) = rig.take()
    rig.source.began(d)
    rig.source.fail(d, Ending(FAILED, delay=0.0))
    rig.settle()
    (again,) = rig.take()
    rig.source.began(again)
    rig.source.returned(d)
    rig.clock.advance(31)
    assert rig.take() == []  # the second handler runs
    rig.source.returned(again)
    assert texts(rig.take()) == ["1"]


def test_parked_lanes_are_demand_that_is_met(rig: Rig) -> None:
    rig.send("1")
    (d,) = rig.take()
    rig.source.began(d)
    rig.clock.advance(31)
    rig.take(1)
    assert not rig.source.fetch(wait=False)
    rig.source.take(2, 8)
    assert rig.source.fetch(wait=False)


# ---- innocent messages in the dead-letter queue


def test_a_source_begins_careful_for_two_leases() -> None:
    """4.1: a message that kills its worker each time takes no others with it."""
    rig = Rig(limit=10)
    rig.send("1", "2", "3")
    assert texts(rig.take()) == ["1"]
    rig.clock.advance(31)  # the worker is killed, and another one begins
    rig.source = rig.new()
    rig.send("x", group="fresh")
    assert sorted(texts(rig.take()) + texts(rig.take())) == ["1", "x"]
    rig.clock.advance(62)
    rig.settle()
    assert sorted(texts(rig.take())) == ["1", "2", "3", "x"]


def past_its_beginning(rig: Rig) -> Rig:
    rig.take()
    rig.clock.advance(62)
    return rig


def test_a_head_with_half_of_the_receives_makes_it_careful() -> None:
    rig = past_its_beginning(Rig(limit=4))
    rig.send("1", "2", "3")
    assert texts(rig.take()) == ["1", "2", "3"]
    rig.clock.advance(31)
    rig.settle()
    assert len(rig.take()) == 3  # the second receive, which is half of four
    rig.clock.advance(31)
    rig.settle()
    assert texts(rig.take()) == ["1"]


def test_a_suspect_that_goes_back_is_received_alone() -> None:
    rig = past_its_beginning(Rig(limit=4))
    rig.send("1", "2")
    one, _ = rig.take()
    rig.source.fail(one, Ending(FAILED, delay=3.0))
    rig.settle()
    rig.clock.advance(4)
    assert texts(rig.take()) == ["1"]


def second_receive(rig: Rig, *bodies: str) -> None:
    """Send messages of groups of their own that another consumer has received once."""
    for body in bodies:
        rig.send(body, group=body)
        answer = rig.sqs.receive_message(QueueUrl=rig.url, MaxNumberOfMessages=1, VisibilityTimeout=1)
        assert answer["Messages"][0]["Body"] == body
    rig.clock.advance(1)


def test_a_suspect_runs_when_nothing_else_is_held_and_nothing_is_received_meanwhile() -> None:
    rig = Rig(limit=3)
    rig.send("x", group="x")
    (x,) = rig.take()
    second_receive(rig, "bad")
    rig.send("y", group="y")
    before = rig.source.changed()
    assert rig.take() == []
    assert (rig.source.fetch(wait=False), rig.source.again_seconds) == (False, 1.0)
    rig.ack(x)
    assert rig.take() == []  # its delete is not confirmed
    rig.settle()
    assert rig.source.changed() != before
    (bad,) = rig.take()
    before = rig.source.changed()
    assert rig.take() == []  # y is not even received
    rig.ack(bad)
    rig.settle()
    assert rig.source.changed() != before
    assert texts(rig.take()) == ["y"]


def test_of_two_suspects_one_goes_back() -> None:
    rig = past_its_beginning(Rig(limit=4))
    second_receive(rig, "1", "2")
    assert rig.take() == []
    rig.settle()
    assert texts(rig.take()) == ["1"]
    assert rig.visible() == ["2"]


def test_a_suspect_waits_for_what_an_open_breaker_postponed_and_not_for_what_a_handler_did() -> None:
    rig = Rig(limit=3)
    rig.send("x", group="x")
    rig.send("y", group="y")
    (x,), (y,) = rig.take(), rig.take()
    rig.source.hold([x], 5.0, "an outage")
    rig.source.fail(y, Ending(DEFERRED, delay=600.0))
    second_receive(rig, "bad")
    assert rig.take() == []
    rig.clock.advance(5)
    assert texts(rig.take()) == ["x"]
    rig.ack(x)
    rig.settle()
    assert texts(rig.take()) == ["bad"]


def test_a_suspect_that_is_postponed_lets_others_run() -> None:
    rig = Rig(limit=3)
    second_receive(rig, "bad")
    (bad,) = rig.take()
    rig.source.hold([bad], 5.0, "an outage")
    rig.send("x", group="x")
    assert texts(rig.take()) == ["x"]


def test_a_message_that_fails_again_and_again_takes_no_others_along() -> None:
    """(seen: nine messages that no handler ever saw became dead letters)."""
    rig = Rig(limit=5)
    rig.send(*map(str, range(10)))
    handled: list[str] = []
    for _ in range(400):
        for d in rig.take():
            if d.state != 0:
                continue  # it went back with an earlier one
            handled.append(text(d))
            if text(d) == "0":
                rig.source.fail(d, Ending(FAILED))
            else:
                rig.ack(d)
        rig.settle()
        rig.source.completed()
        rig.clock.advance(0.5)
    assert rig.left() == []
    assert rig.sqs.bodies(rig.sqs.get_queue_url(QueueName="dead.fifo")["QueueUrl"]) == ["0"]
    assert handled.count("0") == 5
    assert sorted(set(handled)) == [str(n) for n in range(10)]


def test_without_a_limit_it_is_never_careful(rig: Rig) -> None:
    rig.send("1", "2")
    assert len(rig.take()) == 2
    rig.clock.advance(31)
    rig.source = rig.new()
    assert len(rig.take()) == 2


# ---- settling


def test_an_ack_is_confirmed_by_its_delete(rig: Rig) -> None:
    rig.send("1", "2")
    one, _ = rig.take()
    rig.ack(one)
    assert rig.outcomes() == {}
    rig.settle()
    assert rig.outcomes() == {"1": None}
    assert rig.left() == ["2"]


def test_deletes_that_accumulate_are_one_request(rig: Rig) -> None:
    for n in range(12):
        rig.send("m", group=f"g{n}")
    found = [*rig.take(), *rig.take()]
    rig.ack(*found)
    rig.settle()
    assert [len(call.entries) for call in rig.sqs.made("delete_message_batch")] == [10, 2]
    stats = rig.queue.stats()
    assert (stats.requests["delete_message_batch"], stats.entries["delete_message_batch"]) == (2, 12)


@pytest.mark.parametrize(
    "fault",
    [CUT, TIMED_OUT, THROTTLED, UNAVAILABLE, EXPIRED_TOKEN, entries_fail(0), entries_missing(0), entries_missing(0, happen=True),
     entries_fail(0, code="RequestThrottled", sender=True), refused("302", status=302)],
)  # fmt: skip
def test_a_delete_without_a_confirmation_is_repeated(rig: Rig, fault: Any) -> None:
    rig.send("1")
    rig.send("2", group="b")
    rig.ack(*rig.take())
    rig.sqs.inject(fault, "delete_message_batch")
    rig.settle()
    rig.clock.advance(1)
    rig.settle()
    assert rig.outcomes() == {"1": None, "2": None}
    assert rig.left() == []


def test_an_entry_that_fails_affects_no_other(rig: Rig) -> None:
    for n in range(3):
        rig.send(str(n), group=f"g{n}")
    found = rig.take()
    rig.ack(*found)
    rig.sqs.inject(entries_fail(1, code="ReceiptHandleIsInvalid", sender=True), "delete_message_batch")
    rig.settle()
    outcomes = rig.outcomes()
    assert {body for body, error in outcomes.items() if error is None} == {"0", "2"}
    error = outcomes["1"]
    assert isinstance(error, LeaseLost)
    assert (error.key, error.seq, error.token) == ("g1", found[1].seq, found[1].token)


def test_a_delete_is_repeated_until_the_lease_ends(rig: Rig) -> None:
    rig.send("1", "2")
    one, two = rig.take()
    rig.ack(one)
    rig.sqs.inject(UNREACHABLE, times=float("inf"))
    for _ in range(40):
        rig.settle()
        rig.clock.advance(1)
    assert {type(error) for error in rig.outcomes().values()} == {LeaseLost}
    assert two.state != 0  # nothing more of the lane starts
    rig.sqs.heal()
    assert texts(rig.take()) == ["1", "2"]


def test_leases_are_kept_while_a_delete_is_repeated(rig: Rig) -> None:
    rig.send("1", "2")
    one, _ = rig.take()
    rig.ack(one)
    rig.sqs.inject(UNAVAILABLE, "delete_message_batch", times=float("inf"))
    for _ in range(100):
        rig.settle()
        rig.clock.advance(1)
    rig.sqs.heal()
    rig.clock.advance(2)
    rig.settle()
    assert rig.outcomes() == {"1": None}


def test_a_handler_that_returned_too_late_is_lost_whatever_the_answer() -> None:
    """5.3 (seen: a worker that was stopped for 5 s reported "acked" for what another one had processed)."""
    rig = Rig(STANDARD)  # which confirms the delete of what is deleted
    rig.send("1")
    (d,) = rig.take()
    rig.source.began(d)
    rig.clock.advance(31)
    rig.source.returned(d)
    rig.source.settle([(d, None)], [])
    rig.settle()
    (outcome,) = rig.source.completed()
    assert isinstance(outcome.error, LeaseLost)
    assert rig.left() == []  # the delete was sent
    assert rig.queue.stats().late_deletes == 1


def test_a_delete_that_is_confirmed_after_the_deadline_counts() -> None:
    rig = Rig(VisibilityTimeout=3)
    rig.send("1")
    (d,) = rig.take()
    rig.ack(d)
    rig.sqs.inject(meanwhile(after=lambda: rig.clock.advance(4)), "delete_message_batch")
    rig.settle()
    assert rig.outcomes() == {"1": None}


def test_the_round_trip_is_from_the_ack_to_its_confirmation(rig: Rig) -> None:
    rig.send("1")
    rig.ack(*rig.take())
    rig.sqs.inject(meanwhile(after=lambda: rig.clock.advance(0.5)), "delete_message_batch")
    rig.settle()
    assert rig.source.round_trip == pytest.approx(0.05)


@pytest.mark.parametrize(("attempt", "delay", "wait"), [(1, None, 1), (3, None, 4), (1, 0.0, 0), (1, 2.2, 3), (1, 5000.0, 5000)])
def test_a_failed_message_is_hidden_and_the_later_ones_are_not(attempt: int, delay: float | None, wait: int) -> None:
    """5.4: the endpoint hands out only what is before the first hidden message."""
    rig = Rig()
    rig.send("1", "2", "3")
    for _ in range(attempt - 1):
        rig.take()
        rig.clock.advance(31)
        rig.settle()
        rig.source.completed()
    one = rig.take()[0]
    assert rig.source.fail(one, Ending(FAILED, "why", delay)) == (2.0 ** (attempt - 1) if delay is None else delay)
    rig.sqs.calls.clear()
    rig.settle()
    (call,) = rig.sqs.made("change_message_visibility_batch")
    assert [each["VisibilityTimeout"] for each in call.entries] == [0, 0, wait]
    rig.clock.advance(max(0.0, wait - 0.1))
    assert rig.visible() == ([] if wait else ["1", "2", "3"])
    rig.clock.advance(0.2)
    assert rig.visible() == ["1", "2", "3"]


def test_a_failure_at_the_limit_of_receives_is_the_last() -> None:
    """Without a delay: the endpoint makes a dead letter of the message when it is asked for the next one."""
    rig = Rig(limit=2)
    rig.send("1", "2")
    assert rig.source.fail(rig.take()[0], Ending(FAILED, delay=0.0)) == 0.0
    rig.settle()
    (one,) = rig.take()
    assert rig.source.fail(one, Ending(FAILED, delay=50.0)) is None
    rig.settle()
    assert texts(rig.take()) == ["2"]
    assert dead(rig) == ["1"]


def test_the_delay_has_a_limit(rig: Rig) -> None:
    rig.send("1")
    (d,) = rig.take()
    d.attempt = 2000
    assert rig.source.fail(d, Ending(FAILED)) == 900.0


def test_a_return_is_not_undone_by_an_extension_under_way(rig: Rig) -> None:
    """The extension would hide the message for another lease."""
    rig.send("1")
    (d,) = rig.take()
    rig.clock.advance(16)
    rig.sqs.inject(meanwhile(before=lambda: rig.source.release([d])), "change_message_visibility_batch")
    assert rig.source.settle_batch(wait=False)
    rig.settle()
    assert [[each["VisibilityTimeout"] for each in call.entries] for call in rig.sqs.made("change_message_visibility_batch")] == [
        [30],
        [0],
    ]
    assert rig.visible() == ["1"]


def test_an_ack_voids_an_extension_that_waits(rig: Rig) -> None:
    rig.send("1")
    (d,) = rig.take()
    rig.clock.advance(16)
    rig.source.extend([HeldLane(d)])  # type: ignore[list-item]
    rig.ack(d)
    rig.settle()
    assert rig.requests("change_message_visibility_batch") == 0
    assert rig.outcomes() == {"1": None}


def test_a_lost_message_cannot_be_settled(rig: Rig) -> None:
    rig.send("1")
    (d,) = rig.take()
    rig.clock.advance(31)
    rig.settle()
    with pytest.raises(LeaseLost):
        rig.source.fail(d, Ending(FAILED))
    assert [type(e) for e in rig.source.hold([d], 1.0, "why")] == [LeaseLost]
    rig.source.release([d])
    before = len(rig.sqs.calls)
    rig.settle()
    assert len(rig.sqs.calls) == before


# ---- held lanes


def test_a_postponed_lane_is_held_and_no_receive_is_counted(rig: Rig) -> None:
    """5.4 (seen: an outage of 30 s made 8 dead letters although the breaker was open)."""
    rig.send("1", "2")
    one, _ = rig.take()
    before = rig.source.changed()
    assert rig.source.fail(one, Ending(DEFERRED, delay=100.0)) == 100.0
    for _ in range(10):
        assert rig.source.take(100, 8) == []
        assert 0 < rig.source.again_seconds <= 60
        rig.clock.advance(10)
        rig.settle()
        assert rig.visible() == []
    found: Any = rig.source.take(100, 8)
    assert texts(found) == ["1", "2"]
    assert [d.attempt for d in found] == [1, 1]
    assert rig.source.changed() != before
    rig.ack(found[0])
    rig.settle()
    assert rig.outcomes() == {"1": None}


def test_lanes_of_an_open_breaker_are_due_when_it_closes(rig: Rig) -> None:
    for group in "abc":
        rig.send(group, group=group)
    a, b, c = rig.take()
    assert rig.source.hold([a, b], 500.0, "an outage") == [None, None]
    rig.source.fail(c, Ending(DEFERRED, delay=500.0))  # its handler asked for the delay
    assert rig.source.end_delays(["b"])
    assert texts(rig.source.take(10, 8)) == ["b"]  # type: ignore[arg-type]
    assert rig.source.end_delays(one=True)
    assert texts(rig.source.take(10, 8)) == ["a"]  # type: ignore[arg-type]
    assert not rig.source.end_delays()


def test_only_held_lanes_of_some_keys_can_be_taken(rig: Rig) -> None:
    rig.send("1", group="a")
    rig.send("2", group="b")
    rig.source.take(10, 8)
    rig.source.fetch(wait=False)
    assert texts(rig.source.take(1, 1, ["b"])) == ["2"]  # type: ignore[arg-type]
    assert texts(rig.source.take(1, 1)) == ["1"]  # type: ignore[arg-type]


def test_what_is_postponed_for_long_goes_back(rig: Rig) -> None:
    rig.send("1", "2")
    one, _ = rig.take()
    rig.source.fail(one, Ending(DEFERRED, delay=901.0))
    rig.settle()
    (call,) = rig.sqs.made("change_message_visibility_batch")
    assert [each["VisibilityTimeout"] for each in call.entries] == [0, 901]


def test_held_lanes_are_bounded_and_leave_room_for_others(rig: Rig) -> None:
    for n in range(61):
        rig.send("m", group=f"g{n}")
    found = [d for _ in range(6) for d in rig.take()]
    rig.source.hold(found, 300.0, "an outage")
    rig.settle()
    assert len(rig.source._held) == 50
    assert sum(len(call.entries) for call in rig.sqs.made("change_message_visibility_batch")) == 10
    assert len(rig.take(5)) == 1


def test_a_held_lane_may_be_lost(rig: Rig) -> None:
    rig.send("1")
    rig.source.hold(rig.take(), 300.0, "an outage")
    rig.sqs.inject(UNREACHABLE, "change_message_visibility_batch", times=float("inf"))
    rig.clock.advance(40)
    rig.settle()
    rig.sqs.heal()
    assert texts(rig.take()) == ["1"]  # it was received anew
    rig.clock.advance(300)
    rig.settle()
    assert rig.source.take(10, 8) == []


# ---- dead letters


def dead(rig: Rig) -> list[str]:
    name = "dead.fifo" if rig.queue.is_fifo else "dead"
    return rig.sqs.bodies(rig.sqs.get_queue_url(QueueName=name)["QueueUrl"])


@pytest.mark.parametrize("name", [FIFO, STANDARD])
def test_a_rejected_message_is_sent_to_the_dead_letter_queue(name: str) -> None:
    rig = Rig(name, limit=5)
    rig.send("1", MessageAttributes={"trace": {"DataType": "String", "StringValue": "t"}})
    (d,) = rig.take()
    assert rig.source.fail(d, Ending(REJECTED, "not an\x00 order")) is None
    assert rig.outcomes() == {}
    rig.settle()
    assert rig.outcomes() == {"1": None}
    assert (rig.left(), dead(rig)) == ([], ["1"])
    (call,) = rig.sqs.made("send_message")[-1:]
    attributes = call.params["MessageAttributes"]
    assert attributes["strictq-reason"]["StringValue"] == "not an  order"
    assert attributes["trace"]["StringValue"] == "t"
    assert ("MessageGroupId" in call.params) == (name == FIFO)


def test_a_dead_letter_is_sent_once_although_its_answer_is_lost() -> None:
    rig = Rig(limit=5)
    rig.send("1")
    rig.source.fail(rig.take()[0], Ending(REJECTED, "why"))
    rig.sqs.inject(CUT, "send_message")
    rig.settle()
    rig.clock.advance(1)
    rig.settle()
    assert rig.outcomes() == {"1": None}
    assert dead(rig) == ["1"]


def test_a_rejected_message_without_a_policy_is_retried_late(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("1")
    (d,) = rig.take()
    with caplog.at_level(logging.ERROR):
        assert rig.source.fail(d, Ending(REJECTED, "why")) == 900.0
    assert "no redrive policy" in caplog.text
    rig.settle()
    rig.clock.advance(899)
    assert rig.visible() == []
    rig.clock.advance(2)
    assert rig.visible() == ["1"]


@pytest.mark.parametrize(
    "fault", [(ACCESS_DENIED, "get_queue_url"), (ACCESS_DENIED, "send_message"), (NO_QUEUE, "get_queue_url")]
)
def test_a_dead_letter_that_is_refused_is_retried_late(fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(limit=5)
    rig.send("1")
    (d,) = rig.take()
    rig.sqs.inject(*fault)
    with caplog.at_level(logging.ERROR):
        assert rig.source.fail(d, Ending(REJECTED, "why")) is None
        rig.settle()
    assert "could not be made a dead letter" in caplog.text
    assert [type(error) for error in rig.outcomes().values()] == [LeaseLost]
    assert not rig.crashed
    rig.clock.advance(899)
    assert rig.visible() == []
    rig.clock.advance(2)
    assert rig.visible() == ["1"]


def test_ten_attributes_leave_no_room_for_the_reason() -> None:
    rig = Rig(limit=5)
    rig.send("1", MessageAttributes={f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(10)})
    rig.source.fail(rig.take()[0], Ending(REJECTED, "why"))
    rig.settle()
    assert dead(rig) == ["1"]


# ---- a receive between others


def polling(rig: Rig) -> Callable[[], None]:
    """Let a receive of another thread wait for messages. Return what ends it."""
    rig.wait_in_polls()
    thread = threading.Thread(target=lambda: rig.source.fetch(wait=False), daemon=True)
    thread.start()
    until(lambda: rig.requests("receive_message") == 2)

    def end() -> None:
        rig.sqs.end_polls()
        thread.join()

    return end


def freed() -> tuple[Rig, Callable[[], None]]:
    """Return a rig whose last message of a group is being deleted while a receive waits."""
    rig = Rig(options={"poll_seconds": 5})
    rig.send("1")
    (d,) = rig.take()
    rig.source.take(10, 8)
    end = polling(rig)
    rig.ack(d)
    rig.settle()
    return rig, end


def test_a_freed_group_is_asked_for_while_a_receive_waits() -> None:
    """4.8 (seen: moto's long poll does not notice a group that a delete has freed: 60 messages took 12.6 s)."""
    rig, end = freed()
    assert rig.requests("receive_message") == 2
    rig.clock.advance(0.021)
    rig.settle()
    assert [call.params["WaitTimeSeconds"] for call in rig.sqs.made("receive_message")] == [5, 5, 0]
    end()


def test_no_question_if_the_receive_was_answered() -> None:
    rig, end = freed()
    end()
    rig.clock.advance(0.021)
    rig.settle()
    assert rig.requests("receive_message") == 2


def test_no_question_if_no_slot_is_free() -> None:
    rig, end = freed()
    rig.source.take(0, 8)
    rig.clock.advance(0.021)
    rig.settle()
    assert rig.requests("receive_message") == 2
    end()


def test_ten_questions_in_vain_are_enough_for_a_minute() -> None:
    rig = Rig()
    receives = rig.source._receives
    receives.wanted, receives.polling = 5, 1
    for _ in range(10):
        assert receives.should_ask(1.0)
        assert receives.ask(1.0) is not None
        receives.ask_answered(False, 1.0)
    assert not receives.should_ask(60.9)
    assert receives.should_ask(61.1)
    receives.ask(61.1)
    receives.ask_answered(True, 61.1)
    assert receives.should_ask(61.2)


# ---- draining


def test_a_long_poll_that_found_nothing_proves_that_there_is_nothing(rig: Rig) -> None:
    """4.9: it began while nothing was held. An empty answer of a short one proves nothing."""
    rig.source = rig.new(drain=True)
    rig.send("1")
    (d,) = rig.take()
    rig.source.take(10, 8)
    assert rig.source.fetch(wait=False)  # empty, but a message is held
    assert rig.sqs.made("receive_message")[-1].params["WaitTimeSeconds"] == 0
    assert not rig.source.drained
    rig.ack(d)
    rig.clock.advance(1)
    assert rig.source.fetch(wait=False)
    assert not rig.source.drained  # its delete is not confirmed
    rig.settle()
    rig.clock.advance(2)
    assert rig.source.fetch(wait=False)
    assert rig.sqs.made("receive_message")[-1].params["WaitTimeSeconds"] == 1
    assert rig.source.drained
    assert not rig.source.fetch(wait=False)  # the run ends now


@pytest.mark.parametrize("poll", [0, 5])
def test_what_goes_back_is_looked_for_once_more(poll: int) -> None:
    rig = Rig(options={"poll_seconds": poll})
    rig.source = rig.new(drain=True)
    rig.send("1")
    (d,) = rig.take()
    rig.source.take(10, 8)
    rig.source.fetch(wait=False)
    assert rig.sqs.made("receive_message")[-1].params["WaitTimeSeconds"] == min(poll, 1)  # a draining run does not wait longer
    rig.source._receives.proven = True
    rig.source.release([d])
    assert not rig.source.drained
    rig.settle()
    rig.clock.advance(1)
    assert texts(rig.take()) == ["1"]


def test_short_polls_that_find_nothing_become_rarer(rig: Rig, quick: None) -> None:
    rig.send("1")
    rig.take()
    rig.source.take(10, 8)
    asked = 0
    for _ in range(200):
        asked += rig.source.fetch(wait=False)
        rig.clock.advance(0.05)
    assert 10 <= asked <= 16


# ---- the end


def test_a_stop_returns_what_was_not_taken(rig: Rig) -> None:
    rig.send("1", "2")
    rig.send("3", group="b")
    rig.source.take(10, 8)
    rig.source.fetch(wait=False)
    rig.source.stop_receiving()
    rig.source.stop_receiving()
    rig.settle()
    assert rig.visible() == ["1", "2", "3"]
    assert not rig.source.fetch(wait=False)


def test_a_stop_returns_what_is_held_for_the_rest_of_its_delay(rig: Rig) -> None:
    rig.send("1")
    rig.source.hold(rig.take(), 100.0, "an outage")
    for _ in range(2):
        rig.clock.advance(20)
        rig.settle()
    rig.sqs.calls.clear()
    rig.source.stop_receiving()
    rig.settle()
    (call,) = rig.sqs.made("change_message_visibility_batch")
    assert call.entries[0]["VisibilityTimeout"] == 60


def test_what_a_receive_returns_after_the_stop_goes_back(rig: Rig) -> None:
    rig.source.take(10, 8)
    rig.sqs.inject(meanwhile(before=lambda: (rig.send("1"), rig.source.stop_receiving())), "receive_message")
    rig.source.fetch(wait=False)
    assert rig.visible() == []
    rig.settle()
    assert rig.visible() == ["1"]


def test_the_threads_work_and_end(rig: Rig) -> None:
    rig.wait_in_polls()
    source = rig.queue._source(batch=50, lease_seconds=None)
    woken = threading.Event()
    source.open(woken.set, rig.crashed.append, lambda *_: None, slots=1, drain=False)
    rig.send("1", "2")
    found: list[Any] = []
    until(lambda: found.extend(source.take(10, 8)) or found)
    source.settle([(found[0], None)], [])
    until(lambda: any(o.delivery is found[0] for o in source.completed()))
    source.release([found[1]])
    rig.sqs.end_polls()
    source.close(source.clock() + 10)
    assert rig.visible() == ["2"]
    assert not [t for t in threading.enumerate() if t.name.startswith("strictq-sqs")]
    assert not rig.crashed


def test_threads_that_cannot_be_started_leave_none_behind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def few(thread: threading.Thread) -> None:
        if thread.name == "strictq-sqs-settle-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    source = rig.queue._source(batch=50, lease_seconds=None)
    with pytest.raises(RuntimeError):
        source.open(lambda: None, rig.crashed.append, lambda *_: None, slots=1, drain=False)
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("strictq-sqs")])


def test_an_error_that_ends_a_thread_ends_the_run(rig: Rig) -> None:
    """3.5 (seen: the settling thread died, and the worker neither worked nor stopped)."""
    rig.wait_in_polls()
    source = rig.queue._source(batch=50, lease_seconds=None)
    source.open(lambda: None, rig.crashed.append, lambda *_: None, slots=1, drain=False)
    rig.sqs.choose = lambda _action, _parameters: 1 / 0  # type: ignore[assignment, return-value]
    source.take(10, 8)
    until(lambda: rig.crashed)
    assert isinstance(rig.crashed[0], ZeroDivisionError)
    source.close(source.clock() + 10)


def test_a_stop_with_the_endpoint_down_ends(rig: Rig) -> None:
    rig.send("1")
    (d,) = rig.take()
    source = rig.source
    rig.ack(d)
    rig.sqs.inject(UNREACHABLE, times=float("inf"))
    source.stop_receiving()
    source._settlements.closing = True
    for _ in range(20):
        rig.settle()
        rig.clock.advance(0.5)
    assert not source._settlements.busy
    assert rig.requests("delete_message_batch") == 4
    assert [type(o.error) for o in source.completed()] == [LeaseLost]


def test_a_lease_of_a_worker_is_checked(rig: Rig) -> None:
    assert rig.queue._source(batch=1, lease_seconds=3).config.lease_seconds == 3.0
    assert rig.queue._source(batch=1, lease_seconds=3)._settings.poll == 0
    with pytest.raises(InvalidArgument):
        rig.queue._source(batch=1, lease_seconds=2.5)


def test_a_closed_queue_gives_nothing(rig: Rig) -> None:
    rig.queue.close()
    assert rig.source.closed
    with pytest.raises(strictq.QueueClosed):
        rig.source.take(1, 1)
    with pytest.raises(strictq.QueueClosed):
        rig.queue._source(batch=1, lease_seconds=None)


def test_what_sqs_has_nothing_for(rig: Rig) -> None:
    source = rig.source
    source.turn(behind=True)
    source.idle()
    source.report("load", {})
    source.keep_estimates({"process": "1"})
    assert (source.estimates(), source.another_idle(), source.watched, source.keeps_ends) == ({}, False, False, False)
    assert list(source.more([])) == []
    with pytest.raises(InvalidArgument):
        source.ack_each([])
