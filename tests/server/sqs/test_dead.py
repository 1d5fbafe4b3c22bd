"""Dead letters and move tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from strictq import StoreBusy
from strictq.server.sqs.errors import SqsError
from strictq.server.sqs.received import Received
from strictq.server.sqs.served import ServedQueue
from tests.server.sqs.asgi import Caller, SqsRefused, bodies, calling, counts


def arn(c: Caller, url: str) -> str:
    return str(c.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def with_dead(c: Caller, fifo: bool, receives: int = 1) -> tuple[str, str]:
    make, suffix = (c.fifo, ".fifo") if fifo else (c.standard, "")
    dead = make(f"dead{suffix}")
    policy = json.dumps({"deadLetterTargetArn": arn(c, dead), "maxReceiveCount": str(receives)})
    return make(f"q{suffix}", RedrivePolicy=policy), dead


def fail(c: Caller, url: str, times: int = 1) -> None:
    for _ in range(times):
        c.receive(url, VisibilityTimeout=10)
        c.clock.advance(10.0)


def move(c: Caller, dead: str, **options: Any) -> dict[str, Any]:
    """Run a move task to its end."""
    c.call("StartMessageMoveTask", SourceArn=arn(c, dead), **options)

    async def ended() -> dict[str, Any]:
        while True:
            (task,) = (await c.acall("ListMessageMoveTasks", SourceArn=source))["Results"]
            if task["Status"] != "RUNNING":
                return dict(task)
            await asyncio.sleep(0.001)

    source = arn(c, dead)
    return c.run(ended())


@pytest.mark.parametrize("fifo", [True, False])
def test_other_requests_are_answered_while_many_messages_die(fifo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq.server.sqs.served.DYING_MAX", 20)
    with calling() as c:
        url, dead = with_dead(c, fifo)
        for n in range(100):
            c.send(url, str(n), f"g{n % 50}")
        for _ in range(10):
            c.receive(url, VisibilityTimeout=10)
        c.clock.advance(10.0)
        turns = 0

        async def during() -> Any:
            nonlocal turns
            receiving = asyncio.create_task(c.acall("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10))
            while not receiving.done():
                turns += 1
                await asyncio.sleep(0)
            return receiving.result()

        assert c.run(during()) == {}
        assert turns >= 5
        assert sum(len(c.receive(dead)) for _ in range(20)) == 100


@pytest.mark.parametrize("fifo", [True, False])
def test_a_message_dies_at_the_receive_that_would_exceed_the_count(c: Caller, fifo: bool) -> None:
    url, dead = with_dead(c, fifo, 2)
    sent = c.send(url, "x", "g", MessageAttributes={"a": {"DataType": "Number", "StringValue": "1"}})
    c.send(url, "y", "g")
    fail(c, url, 2)
    assert c.receive(dead) == []
    assert c.receive(url) == []
    got = c.receive(dead, MessageAttributeNames=["All"])
    assert sorted(bodies(got)) == ["x", "y"]
    (m,) = [m for m in got if m["Body"] == "x"]
    assert m["MessageId"] == sent["MessageId"]
    assert m["MessageAttributes"] == {"a": {"DataType": "Number", "StringValue": "1"}}
    assert m["Attributes"]["DeadLetterQueueSourceArn"] == arn(c, url)
    assert m["Attributes"]["MessageGroupId"] == "g"
    assert counts([m]) == [3]
    if fifo:
        assert bodies(got) == ["x", "y"]
        assert len(m["Attributes"]["MessageDeduplicationId"]) == 64


@pytest.mark.parametrize("fifo", [True, False])
def test_a_message_that_dies_twice_within_the_window_is_not_a_duplicate(c: Caller, fifo: bool) -> None:
    url, dead = with_dead(c, fifo)
    sent = c.send(url, "x", "g")
    for _ in range(2):
        fail(c, url)
        assert c.receive(url) == []
        task = move(c, dead)
        assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
        assert c.receive(dead) == []
    (m,) = got = c.receive(url)
    assert counts(got) == [1]
    assert m["MessageId"] == sent["MessageId"]
    assert "DeadLetterQueueSourceArn" not in m["Attributes"]
    c.delete(url, m["ReceiptHandle"])
    c.clock.advance(60.0)
    assert c.receive(url) == c.receive(dead) == []


@pytest.mark.parametrize("fifo", [True, False])
def test_a_crash_between_the_send_and_the_ack_repeats_neither(disk: Caller, fifo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    c = disk
    url, dead = with_dead(c, fifo)
    c.send(url, "x", "g")
    fail(c, url)
    sends = []

    def send_only(self: ServedQueue, m: Any, target: str) -> bool:
        class Crashing:
            def ack(self) -> None:
                raise SqsRefused(0, "crash", "before the ack", "")

        hold, m.hold = m.hold, Crashing()
        try:
            return bury(self, m, target)
        finally:
            m.hold = hold
            sends.append(m)

    bury = ServedQueue._bury
    with monkeypatch.context() as patched:
        patched.setattr(ServedQueue, "_bury", send_only)
        with pytest.raises(SqsRefused):
            c.receive(url, VisibilityTimeout=10)
    assert len(sends) == 1
    c.crash()
    c.clock.advance(10.0)
    assert c.receive(url) == []
    assert bodies(c.receive(dead)) == ["x"]


def test_a_dead_letter_queue_that_was_deleted_keeps_its_messages_here(c: Caller) -> None:
    url, dead = with_dead(c, True)
    c.send(url, "x", "g")
    fail(c, url)
    c.call("DeleteQueue", QueueUrl=dead)
    assert counts(c.receive(url)) == [2]


def test_the_rest_of_a_group_follows_its_dead_head(c: Caller) -> None:
    url, dead = with_dead(c, True)
    for i in range(3):
        c.send(url, str(i), "g")
    fail(c, url)
    c.send(url, "new", "g")
    (m,) = c.receive(url, 1)
    assert m["Body"] == "new"
    assert bodies(c.receive(dead)) == ["0", "1", "2"]


def test_a_move_to_another_queue_and_its_errors(c: Caller) -> None:
    _, dead = with_dead(c, True)
    other, plain = c.fifo("other.fifo"), c.standard("plain")
    for i in range(30):
        c.send(dead, str(i), f"g{i % 3}")
    for wrong, code in (
        ({"SourceArn": arn(c, other)}, "InvalidParameterValueException"),
        ({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:none"}, "ResourceNotFoundException"),
        ({"SourceArn": arn(c, dead), "DestinationArn": "x"}, "ResourceNotFoundException"),
        ({"SourceArn": arn(c, dead), "DestinationArn": arn(c, plain)}, "InvalidParameterValueException"),
        ({"SourceArn": arn(c, dead), "MaxNumberOfMessagesPerSecond": 501}, "InvalidParameterValueException"),
    ):
        with pytest.raises(SqsRefused) as e:
            c.call("StartMessageMoveTask", **wrong)
        assert e.value.code == code
    assert move(c, dead)["FailureReason"] == "CouldNotDetermineMessageSource"
    task = move(c, dead, DestinationArn=arn(c, other))
    assert task["ApproximateNumberOfMessagesMoved"] == 30
    got = [m for _ in range(3) for m in c.receive(other)]
    for g in range(3):
        assert [int(b) for b in bodies(got) if int(b) % 3 == g] == list(range(g, 30, 3))
    with pytest.raises(SqsRefused) as e:
        c.call("CancelMessageMoveTask", TaskHandle="none")
    assert (e.value.code, e.value.status) == ("InvalidParameterValueException", 400)


def test_a_move_is_cancelled(c: Caller) -> None:
    _, dead = with_dead(c, True)
    other = c.fifo("other.fifo")
    for i in range(3):
        c.send(dead, str(i), "g")
    handle = c.call("StartMessageMoveTask", SourceArn=arn(c, dead), DestinationArn=arn(c, other), MaxNumberOfMessagesPerSecond=1)[
        "TaskHandle"
    ]
    with pytest.raises(SqsRefused, match="already a task running"):
        c.call("StartMessageMoveTask", SourceArn=arn(c, dead))
    moved = c.call("CancelMessageMoveTask", TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert moved < 3
    (task,) = c.call("ListMessageMoveTasks", SourceArn=arn(c, dead))["Results"]
    assert task["Status"] == "CANCELLED"
    assert "TaskHandle" not in task
    with pytest.raises(SqsRefused):
        c.call("CancelMessageMoveTask", TaskHandle=handle)


@pytest.mark.parametrize("fifo", [True, False])
def test_a_message_that_dies_again_while_the_same_task_runs_is_no_duplicate(c: Caller, fifo: bool) -> None:
    url, dead = with_dead(c, fifo)
    for body in "ab":
        c.send(url, body, body)
    fail(c, url, 2)
    handle = c.call("StartMessageMoveTask", SourceArn=arn(c, dead), MaxNumberOfMessagesPerSecond=10)["TaskHandle"]
    source = arn(c, dead)

    async def die_again() -> None:
        while True:
            (task,) = (await c.acall("ListMessageMoveTasks", SourceArn=source))["Results"]
            if task["Status"] != "RUNNING" or task["ApproximateNumberOfMessagesMoved"] > 4:
                return
            await c.acall("ReceiveMessage", QueueUrl=url, VisibilityTimeout=0)
            await asyncio.sleep(0.005)

    c.run(die_again())
    with suppress(SqsRefused):  # it may have ended, in a moment in which nothing was dead
        c.call("CancelMessageMoveTask", TaskHandle=handle)
    assert sorted(bodies([*c.receive(url), *c.receive(dead)])) == ["a", "b"]


def test_a_move_goes_on_after_a_crash(disk: Caller) -> None:
    c = disk
    _, dead = with_dead(c, True)
    other = c.fifo("other.fifo")
    for i in range(25):
        c.send(dead, str(i), f"g{i % 5}")
    c.call("StartMessageMoveTask", SourceArn=arn(c, dead), DestinationArn=arn(c, other))
    c.crash()
    c.clock.advance(61.0)  # what the crash left hidden

    async def moved() -> list[Any]:
        got: list[Any] = []
        while len(got) < 25:
            got += (await c.acall("ReceiveMessage", QueueUrl=other, MaxNumberOfMessages=10)).get("Messages", [])
            await asyncio.sleep(0.001)
        return got

    got = c.run(asyncio.wait_for(moved(), 30))
    assert sorted(int(m["Body"]) for m in got) == list(range(25))


def test_a_move_waits_for_what_the_interrupted_server_had_received(disk: Caller) -> None:
    c = disk
    _, dead = with_dead(c, True)
    other = c.fifo("other.fifo")
    for i in range(6):
        c.send(dead, str(i), f"g{i % 2}")
    assert bodies(c.receive(dead, 1, VisibilityTimeout=50)) == ["0"]  # as a move does: the rest of the group waits, too
    c.call("StartMessageMoveTask", SourceArn=arn(c, dead), DestinationArn=arn(c, other))
    c.crash()

    async def moved(n: int) -> list[str]:
        got: list[str] = []
        while len(got) < n:
            answer = await c.acall("ReceiveMessage", QueueUrl=other, MaxNumberOfMessages=10, VisibilityTimeout=600)
            got += bodies(answer.get("Messages", []))
            await asyncio.sleep(0.001)
        return got

    source = arn(c, dead)
    assert c.run(asyncio.wait_for(moved(3), 30)) == ["1", "3", "5"]
    assert c.call("ListMessageMoveTasks", SourceArn=source)["Results"][0]["Status"] == "RUNNING"
    c.clock.advance(50.0)
    assert c.run(asyncio.wait_for(moved(3), 30)) == ["0", "2", "4"]

    async def ended() -> int:
        while True:
            task = (await c.acall("ListMessageMoveTasks", SourceArn=source))["Results"][0]
            if task["Status"] == "COMPLETED":
                return int(task["ApproximateNumberOfMessagesMoved"])
            await asyncio.sleep(0.001)

    assert c.run(asyncio.wait_for(ended(), 30)) >= 3


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("no", "not a valid JSON map"),
        ("[]", "not a valid JSON map"),
        ("{}", "deadLetterTargetArn"),
        ('{"deadLetterTargetArn": "ARN"}', "maxReceiveCount"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": 0}', "between 1 and 1000"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": true}', "between 1 and 1000"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": [1]}', "between 1 and 1000"),
        ('{"deadLetterTargetArn": "ARN", "maxReceiveCount": 1001}', "between 1 and 1000"),
        ('{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:none", "maxReceiveCount": 1}', "does not exist"),
        ('{"deadLetterTargetArn": ["x"], "maxReceiveCount": 1}', "does not exist"),
        ('{"deadLetterTargetArn": "FIFO", "maxReceiveCount": 1}', "same type"),
        ('{"deadLetterTargetArn": "DENIES", "maxReceiveCount": 1}', "does not allow"),
    ],
)
def test_a_wrong_redrive_policy_is_refused(policy: str, reason: str) -> None:
    with calling() as c:
        arns = {
            "ARN": arn(c, c.standard("d")),
            "FIFO": arn(c, c.fifo()),
            "DENIES": arn(c, c.standard("x", RedriveAllowPolicy='{"redrivePermission": "denyAll"}')),
        }
        for name, value in arns.items():
            policy = policy.replace(f'"{name}"', f'"{value}"')
        with pytest.raises(SqsRefused, match=reason):
            c.standard("q", RedrivePolicy=policy)


@pytest.mark.parametrize("fifo", [True, False])
def test_a_receive_that_hides_nothing_returns_a_message_once_although_others_die(
    c: Caller, fifo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, dead = with_dead(c, fifo)
    c.send(url, "old", "g1")
    fail(c, url)
    c.send(url, "new", "g2")
    lives = ServedQueue.lives

    def slowly(served: ServedQueue, m: Received) -> bool:
        c.clock.advance(0.002)  # longer than the lease of what is not hidden
        return lives(served, m)

    monkeypatch.setattr(ServedQueue, "lives", slowly)
    assert bodies(c.receive(url, VisibilityTimeout=0)) == ["new"]
    assert bodies(c.receive(dead)) == ["old"]


@pytest.mark.parametrize("error", [SqsError("ServiceUnavailable", "closing"), StoreBusy("busy", shard=0)])
@pytest.mark.parametrize("fifo", [True, False])
def test_what_a_receive_has_is_answered_although_a_message_cannot_die(
    c: Caller, fifo: bool, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, dead = with_dead(c, fifo)
    c.send(url, "a1", "a")
    fail(c, url)
    c.send(url, "b1", "b")
    monkeypatch.setattr(ServedQueue, "_bury", raises(error))
    assert bodies(c.receive(url)) == ["b1"]
    assert c.receive(url) == []
    monkeypatch.undo()
    c.clock.advance(30.0)
    c.receive(url)
    assert sorted(bodies(c.receive(dead))) == ["a1", "b1"]


def test_a_group_with_a_hidden_message_is_answered_although_another_group_cannot_die(
    c: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = with_dead(c, True, 2)
    for body in ("a1", "a2", "b1", "b2"):
        c.send(url, body, body[0])
    a1, _, b1, _ = c.receive(url)
    c.hide(url, b1["ReceiptHandle"], 0)
    (b1,) = c.receive(url)
    c.hide(url, a1["ReceiptHandle"], 0)
    c.hide(url, b1["ReceiptHandle"], 0)
    monkeypatch.setattr(ServedQueue, "_bury", raises(StoreBusy("busy", shard=0)))
    assert bodies(c.receive(url)) == ["a1"]


def raises(error: Exception) -> Callable[..., bool]:
    def bury(*_: object) -> bool:
        raise error

    return bury
