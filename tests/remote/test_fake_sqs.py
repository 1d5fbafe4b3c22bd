"""The fake SQS client behaves as the endpoint: the same cases, the same exceptions; and it fails as it is told to."""

from __future__ import annotations

import threading
import time
from typing import Any

import botocore
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ParamValidationError

from strictq.testing import FakeClock, RunningClock, SqsEndpoint
from tests.server.sqs.cases import CASES
from tests.server.sqs.playing import JSON, Call, Case, Endpoint, Refused, play
from tests.support import fake_sqs
from tests.support.fake_sqs import CUT, THROTTLED, FakeSqs, entries_fail, entries_missing, meanwhile
from tests.support.running import until

REAL_SECONDS = 0.1
"""Steps that wait less than this wait for another thread, and not for the queue's time."""
NOT_HERE = {
    "a poll ends without messages",  # it waits a second of the machine; test_a_poll_ends_with_the_clock moves the clock instead
    "a queue's name has up to 80 characters",  # the endpoint's URLs begin with http, the fake's with https as Amazon's
}


class Direct(Endpoint):
    """Plays cases on the fake, without HTTP."""

    def __init__(self, sqs: FakeSqs) -> None:
        super().__init__("http://fake", JSON, self._tick)
        self.sqs = sqs

    def _tick(self, seconds: float) -> None:
        if seconds < REAL_SECONDS:
            time.sleep(seconds)
        else:
            self.sqs.clock.advance(seconds)

    def call(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(getattr(self.sqs, botocore.xform_name(action))(**params))
        except ClientError as e:
            error, answer = e.response["Error"], e.response["ResponseMetadata"]
            raise Refused(error["Code"], error["Message"], answer["HTTPStatusCode"]) from None


def playable(case: Case) -> bool:
    """Return whether the fake has what a case needs: some need tags, permissions, moves or lists of queues."""
    calls = [step for step in case.steps if isinstance(step, Call)]
    has = all(hasattr(FakeSqs, f"_do_{botocore.xform_name(call.action)}") and "tags" not in call.params for call in calls)
    return has and case.only in ("", JSON) and case.name not in NOT_HERE


def test_the_fake_passes_the_cases_of_the_endpoint() -> None:
    sqs = FakeSqs(RunningClock())
    with Direct(sqs) as endpoint:
        played = [case for case in CASES if playable(case)]
        found = [(case.name, case.source, play(case, endpoint)) for case in played]
    by_boto3 = [each for each in found if "ParamValidationError" in str(each[-1])]  # it does not send these
    assert len(played) - len(by_boto3) > 250
    assert not [each for each in found if each[-1] and each not in by_boto3]


def test_exceptions_are_those_of_boto3(sqs_endpoint: SqsEndpoint) -> None:
    def errors(client: Any) -> list[Any]:
        url = client.create_queue(QueueName="o.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g", MessageDeduplicationId="1")
        (m,) = client.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
        handle = m["ReceiptHandle"]
        seen = []
        for action, params in (
            ("get_queue_url", {"QueueName": "none"}),
            ("receive_message", {"QueueUrl": url, "MaxNumberOfMessages": 11}),
            ("delete_message", {"QueueUrl": url, "ReceiptHandle": handle}),
            ("delete_message", {"QueueUrl": url, "ReceiptHandle": "x"}),
            ("change_message_visibility", {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 5}),
            ("delete_message_batch", {"QueueUrl": url, "Entries": []}),
            ("receive_message", {"QueueUrl": url, "Most": 1}),
        ):
            with pytest.raises((ClientError, ParamValidationError)) as e:
                getattr(client, action)(**params)
            said = e.value.response["Error"] if isinstance(e.value, ClientError) else {"Message": str(e.value)}
            seen.append([e.type if "Most" in params else ClientError, {**said, "Message": said["Message"].replace(handle, "H")}])
        return seen

    fake = errors(FakeSqs(FakeClock()))
    assert fake == errors(sqs_endpoint.client)
    assert fake[0][1]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


def three(sqs: FakeSqs, **attributes: Any) -> tuple[str, list[dict[str, Any]]]:
    """Create a queue with three messages of one group, and receive them."""
    url = sqs.queue("o.fifo", ContentBasedDeduplication=True, **attributes)
    for body in "abc":
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    return url, sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=30)["Messages"]


def entries(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]


def test_an_answer_is_lost_after_the_call_was_done() -> None:
    sqs = FakeSqs(FakeClock())
    url, got = three(sqs)
    sqs.inject(CUT, "delete_message_batch")
    with pytest.raises(ConnectionClosedError):
        sqs.delete_message_batch(QueueUrl=url, Entries=entries(got[:1]))
    assert sqs.bodies(url) == ["b", "c"]
    assert sqs.delete_message_batch(QueueUrl=url, Entries=entries(got[:1]))["Successful"] == [{"Id": "0"}]
    sqs.inject(THROTTLED, times=2)
    for _ in range(2):
        with pytest.raises(ClientError, match="RequestThrottled"):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=got[1]["ReceiptHandle"])
    assert [m.body for m in sqs.stored(url)] == ["b", "c"]
    assert [type(call.got) for call in sqs.made("delete_message")] == [ClientError, ClientError]


def test_single_entries_of_a_batch_fail_or_are_not_mentioned() -> None:
    sqs = FakeSqs(FakeClock())
    url, got = three(sqs)
    sqs.inject(entries_fail(0))
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=entries(got))
    assert answer["Successful"] == [{"Id": "1"}, {"Id": "2"}]
    assert [(f["Id"], f["Code"], f["SenderFault"]) for f in answer["Failed"]] == [("0", "InternalError", False)]
    assert sqs.bodies(url) == ["a"]
    sqs.inject(entries_missing(0))
    assert "Successful" not in sqs.delete_message_batch(QueueUrl=url, Entries=entries(got[:1]))
    assert sqs.bodies(url) == ["a"]
    sqs.inject(entries_missing(0, happen=True))
    assert "Successful" not in sqs.delete_message_batch(QueueUrl=url, Entries=entries(got[:1]))
    assert sqs.bodies(url) == []


def test_a_batch_fails_by_entry_or_by_group() -> None:
    """Amazon treats entries one by one. The endpoint stores nothing behind a refused entry of the same group."""
    for version, stored in ((None, ["b", "c"]), ("1", ["c"])):
        sqs = FakeSqs(FakeClock(), strictq_version=version)
        url = sqs.queue("o.fifo", ContentBasedDeduplication=True)
        sqs.inject(entries_fail(0), "send_message_batch")
        groups = zip("abc", "ggh", strict=True)
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": b, "MessageBody": b, "MessageGroupId": g} for b, g in groups])
        assert sqs.bodies(url) == stored


def test_a_call_says_when_it_began() -> None:
    clock = FakeClock()
    sqs = FakeSqs(clock)
    url, got = three(sqs)
    sqs.inject(meanwhile(before=lambda: clock.advance(29), after=lambda: clock.advance(5)), "change_message_visibility")
    began = clock.boot()
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got[0]["ReceiptHandle"], VisibilityTimeout=10)
    (call,) = sqs.made("change_message_visibility")
    assert (call.began, call.ended) == (began, began + 34_000_000)
    assert sqs.stored(url)[0].visible_at == began + 39_000_000


def test_a_poll_ends_with_the_clock() -> None:
    clock = FakeClock()
    sqs = FakeSqs(clock)
    url = sqs.queue("o")
    answers: list[Any] = []

    def poll() -> None:
        answers.append(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20).get("Messages"))

    for release in (lambda: clock.advance(20), sqs.end_polls, lambda: sqs.send_message(QueueUrl=url, MessageBody="a")):
        before = len(sqs.made("receive_message"))
        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        until(lambda n=before: len(sqs.made("receive_message")) > n)  # type: ignore[misc]
        release()
        thread.join(10)
    assert [bool(answer) for answer in answers] == [False, False, True]


def test_random_faults_end_when_healed() -> None:
    sqs = FakeSqs(FakeClock())
    url = sqs.queue("o")
    sqs.choose = lambda action, params: fake_sqs.UNAVAILABLE if action == "send_message" else None
    with pytest.raises(ClientError, match="ServiceUnavailable"):
        sqs.send_message(QueueUrl=url, MessageBody="a")
    sqs.heal()
    assert sqs.send_message(QueueUrl=url, MessageBody="a")["MessageId"]
