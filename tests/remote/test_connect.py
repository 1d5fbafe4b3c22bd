"""`connect`: which URLs, arguments, credentials and queues it takes, and what a RemoteQueue says."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from botocore.exceptions import ClientError, NoCredentialsError

import strictq
from strictq import (
    ConfigError,
    ForkedProcess,
    InvalidArgument,
    MissingExtra,
    Queue,
    QueueClosed,
    QueueNotFound,
    RedrivePolicy,
    RemoteQueue,
    ServerRefused,
    ServerUnreachable,
    StrictqError,
)
from strictq.remote import url as urls
from strictq.remote.client import SourceTrouble, failure_of, of_code
from strictq.testing import FakeClock, SqsEndpoint
from tests.support.running import PATIENCE_SECONDS

AMAZON = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo"
POLICY = {"deadLetterTargetArn": "arn:aws:sqs:eu-central-1:123456789012:dead.fifo", "maxReceiveCount": 5}


class Client:
    """A client of a queue with these attributes, or of one that answers with an error."""

    def __init__(
        self, error: Exception | None = None, seconds: float = 0.0, clock: FakeClock | None = None, **attributes: Any
    ) -> None:
        self.attributes = {"FifoQueue": "true", "VisibilityTimeout": "30", **attributes}
        self.error = error
        self.seconds = seconds
        self.clock = clock
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.closed = False

    def get_queue_attributes(self, **parameters: Any) -> Mapping[str, Any]:
        self.calls.append(("get_queue_attributes", parameters))
        if self.clock is not None:
            self.clock.advance(self.seconds)
        if self.error is not None:
            raise self.error
        return {"Attributes": self.attributes}

    def get_queue_url(self, **parameters: Any) -> Mapping[str, Any]:
        self.calls.append(("get_queue_url", parameters))
        return {"QueueUrl": "http://localhost:9324/000000000000/orders.fifo"}

    def receive_message(self, **_: Any) -> Mapping[str, Any]:
        raise AssertionError("connect does not receive")

    def close(self) -> None:
        self.closed = True


def refusal(code: str, status: int = 400, message: str = "as a test says") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetQueueUrl"
    )


def connected(**options: Any) -> RemoteQueue:
    return strictq.connect(AMAZON, client=Client(**options))


# ---- URLs


@pytest.mark.parametrize(
    ("text", "endpoint", "name", "region"),
    [
        (AMAZON, "https://sqs.eu-central-1.amazonaws.com", "orders.fifo", "eu-central-1"),
        ("https://sqs.ap-east-1.amazonaws.com/123456789012/q", "https://sqs.ap-east-1.amazonaws.com", "q", "ap-east-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q", "https://sqs.cn-north-1.amazonaws.com.cn", "q", "cn-north-1"),
        ("https://sqs-fips.us-east-1.amazonaws.com/123456789012/q", "https://sqs-fips.us-east-1.amazonaws.com", "q", "us-east-1"),
        ("https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com/123456789012/q",
         "https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com", "q", "us-east-1"),
        ("sqs+http://localhost:9324/queue/orders.fifo", "http://localhost:9324", "orders.fifo", None),
        ("sqs+https://Queues.Example.org/queue/a_b-1", "https://queues.example.org", "a_b-1", None),
        ("sqs+http://[::1]:9324/000000000000/q", "http://[::1]:9324", "q", None),
    ],
)  # fmt: skip
def test_urls_of_queues(text: str, endpoint: str, name: str, region: str | None) -> None:
    place = urls.parse(text)
    assert (place.text, place.endpoint, place.name, place.region) == (text, endpoint, name, region)
    assert place.queue_url == (text if region else None)
    assert place.is_fifo == name.endswith(".fifo")
    assert urls.is_url(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("orders.strictq", "open_directory"),
        ("/var/lib/orders.strictq", "open_directory"),
        (":memory:", "open_directory"),
        ("", "open_directory"),
        ("https://example.org/123456789012/q", "queue_url"),
        ("http://sqs.eu-central-1.amazonaws.com/123456789012/q", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com.evil.org/123456789012/q", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com:8443/123456789012/q", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com/orders/q", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/q/r", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/q?a=b", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/q#a", "queue_url"),
        (f"https://sqs.eu-central-1.amazonaws.com/123456789012/{'q' * 81}", "queue_url"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/../q", "queue_url"),
        ("sqs+http://localhost:9324/queue/a.b", "queue_url"),
        ("sqs+http://localhost:99999/queue/q", "queue_url"),
        ("sqs+http:///queue/q", "queue_url"),
        ("sqs+http://localhost/other/q", "queue_url"),
        ("sqs+http://localhost/queue/\N{LATIN SMALL LETTER E WITH ACUTE}", "queue_url"),
        ("sqs+http://loc\nalhost/queue/q", "queue_url"),
        ("tcps://localhost/queue/q", "queue_url"),
    ],
)
def test_other_urls_are_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        strictq.connect(text, client=Client())
    assert caught.value.hint_code == code


@pytest.mark.parametrize(
    "text", ["amqp://localhost/queue", "http://queues:9324/queue/q", "redis://localhost", "https://example.org/q"]
)
def test_what_is_no_endpoint_is_said_before_anything_else(text: str) -> None:
    with pytest.raises(InvalidArgument, match="neither Amazon's nor that of another endpoint"):
        strictq.connect(text, client=Client())


@pytest.mark.parametrize("text", ["sqs+https://me:secret@example.org/queue/q", "https://AKIA:secret@sqs.eu-central-1.amazonaws.com/1/q",
                                  "sqs+https://secret@example.org/queue/q"])  # fmt: skip
def test_a_password_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        strictq.connect(text)
    assert "secret" not in str(caught.value)
    assert caught.value.hint_code == "credentials_chain"


def test_a_path_object_is_no_url() -> None:
    with pytest.raises(InvalidArgument, match="must be a str"):
        strictq.connect(7)  # type: ignore[arg-type]


def test_a_url_is_no_directory() -> None:
    with pytest.raises(InvalidArgument) as caught:
        strictq.open("sqs+http://localhost:9324/queue/q")
    assert caught.value.hint_code == "connect_url"


# ---- arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lease_seconds": 1}, "lease_seconds must be whole seconds from 2 to 43,200"),
        ({"lease_seconds": 2.5}, "lease_seconds must be whole"),
        ({"lease_seconds": 43_201}, "lease_seconds"),
        ({"lease_seconds": float("nan")}, "lease_seconds"),
        ({"lease_seconds": True}, "lease_seconds"),
        ({"lease_seconds": "30"}, "lease_seconds"),
        ({"poll_seconds": -1}, "poll_seconds"),
        ({"poll_seconds": 21}, "poll_seconds"),
        ({"poll_seconds": 0.5}, "poll_seconds"),
        ({"fetchers": 0}, "fetchers"),
        ({"settlers": 65}, "settlers"),
        ({"confirm": "never"}, "confirm must be 'before_next' or 'behind'"),
        ({"clock": 5}, "clock"),
        ({"client": "sqs"}, "client must be a boto3 client"),
    ],
)
def test_arguments_are_checked_first(options: dict[str, Any], said: str) -> None:
    client = Client()
    with pytest.raises(InvalidArgument, match=said):
        strictq.connect(AMAZON, **{"client": client, **options})
    assert not client.calls


def test_the_facts_of_a_queue() -> None:
    client = Client(RedrivePolicy=json.dumps(POLICY), VisibilityTimeout="45")
    q = strictq.connect(AMAZON, client=client)
    assert (q.is_fifo, q.lease_seconds, q.path, q.queue_id) == (True, 45.0, AMAZON, AMAZON)
    assert q.redrive == RedrivePolicy(str(POLICY["deadLetterTargetArn"]), 5)
    assert (q.config.lease_seconds, q.config.max_attempts) == (45.0, 5)
    assert [name for name, _ in client.calls] == ["get_queue_attributes"]
    q.close()
    q.close()
    assert not client.closed  # it is the caller's


def test_another_endpoint_is_asked_for_the_url() -> None:
    client = Client()
    q = strictq.connect("sqs+http://localhost:9324/queue/orders.fifo", client=client, lease_seconds=60)
    assert client.calls[0] == ("get_queue_url", {"QueueName": "orders.fifo"})
    assert q.queue_id == "http://localhost:9324/000000000000/orders.fifo"
    assert q.lease_seconds == 60.0
    assert q.redrive is None
    assert q.config.max_attempts is None


@pytest.mark.parametrize(("lease", "poll", "used"), [(30, 5, 5), (4, 5, 2), (5, 20, 2), (60, 0, 0)])
def test_a_poll_takes_half_of_the_lease_at_most(lease: int, poll: int, used: int) -> None:
    assert strictq.connect(AMAZON, client=Client(), lease_seconds=lease, poll_seconds=poll)._settings.poll == used


# ---- what is wrong with the queue


@pytest.mark.parametrize("seconds", ["0", "1"])
def test_a_timeout_that_is_too_short_for_a_lease(seconds: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connected(VisibilityTimeout=seconds)
    assert caught.value.hint_code == "pass_lease_seconds"


def test_a_limit_of_receives_below_three_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "strictq.remote"):
        connected(RedrivePolicy=json.dumps({**POLICY, "maxReceiveCount": 3}))
        assert not caplog.records
        connected(RedrivePolicy=json.dumps({**POLICY, "maxReceiveCount": "2"}))
    assert "the limit of receives" in caplog.text


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null", '{"deadLetterTargetArn": "a", "maxReceiveCount": "many"}'])
def test_a_policy_that_cannot_be_read_is_as_none(text: str) -> None:
    assert connected(RedrivePolicy=text).redrive is None


def test_a_round_trip_that_is_too_long_for_the_lease_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with caplog.at_level(logging.WARNING, "strictq.remote"):
        strictq.connect(AMAZON, client=Client(clock=clock, seconds=0.1), clock=clock, lease_seconds=3)
        assert not caplog.records
        strictq.connect(AMAZON, client=Client(clock=clock, seconds=0.7), clock=clock, lease_seconds=3)
    assert "round trip" in caplog.text


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (refusal("AWS.SimpleQueueService.NonExistentQueue"), QueueNotFound, "remote_queue"),
        (refusal("QueueDoesNotExist"), QueueNotFound, "remote_queue"),
        (refusal("AccessDenied", 403), ServerRefused, "remote_permission"),
        (refusal("InvalidClientTokenId", 403), ServerRefused, "remote_permission"),
        (refusal("ServiceUnavailable", 503), ServerUnreachable, "remote_endpoint"),
        (refusal("RequestThrottled"), ServerUnreachable, "remote_endpoint"),
        (refusal("UnsupportedOperation"), ServerRefused, "remote_endpoint"),
        (NoCredentialsError(), ConfigError, "credentials"),
        (ConnectionResetError("cut"), ServerUnreachable, "remote_endpoint"),
    ],
)
def test_failures_of_connect(error: Exception, kind: type[StrictqError], code: str) -> None:
    with pytest.raises(kind) as caught:
        connected(error=error)
    assert caught.value.hint_code == code
    assert caught.value.transient == (kind is ServerUnreachable)
    if code == "remote_permission":
        assert "sqs:GetQueueAttributes" in caught.value.hint


def test_a_defect_of_a_client_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        connected(error=ZeroDivisionError())


def test_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(ConfigError, match="there are no credentials"):
        strictq.connect("sqs+http://127.0.0.1:1/queue/q")
    monkeypatch.setenv("AWS_PROFILE", "there-is-none")
    with pytest.raises(ConfigError, match="boto3 made no client"):
        strictq.connect("sqs+http://127.0.0.1:1/queue/q")


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with pytest.raises(ServerUnreachable) as caught:
        strictq.connect("sqs+http://127.0.0.1:1/queue/q")
    assert caught.value.address == "sqs+http://127.0.0.1:1/queue/q"


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra) as caught:
        strictq.connect(AMAZON)
    assert caught.value.extra == "sqs"
    assert not connected().path.startswith("sqs+")  # a client of the caller's needs none


# ---- the queue


def test_verbs_of_a_local_queue_say_why_they_are_not_there() -> None:
    q: Any = connected()
    reasons = set()
    for name in (name for name in vars(Queue) if not name.startswith("_") and name not in dir(q)):
        if isinstance(vars(Queue)[name], property):
            with pytest.raises(AttributeError, match="has no attribute"):
                getattr(q, name)
            continue
        with pytest.raises(InvalidArgument, match=rf"^{name}\(\) needs a local queue: ") as caught:
            getattr(q, name)("k", 1)
        assert caught.value.hint_code == "local_before_remote"
        reasons.add(str(caught.value).partition(": ")[2])
    assert len(reasons) > 5
    with pytest.raises(AttributeError):
        _ = q.never_heard_of


def test_a_closed_queue() -> None:
    with connected() as q:
        assert not q.is_closed
    with pytest.raises(QueueClosed):
        q.stats()
    with pytest.raises(QueueClosed), q:
        pass


def test_a_queue_that_a_fork_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    q = connected()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ForkedProcess):
        q.stats()


def test_it_cannot_be_pickled_or_copied() -> None:
    with pytest.raises(InvalidArgument, match="can't be pickled"):
        connected().__reduce__()


def test_events_and_observers() -> None:
    q = connected()
    q.on_event(lambda event: None)
    q.observe(strictq.Observer()).close()
    with pytest.raises(InvalidArgument):
        q.on_event(5)  # type: ignore[arg-type]
    assert len(q.observers.events) == 1


def test_a_real_endpoint(sqs_endpoint: SqsEndpoint) -> None:
    queue_url = sqs_endpoint.create_queue("orders.fifo", ContentBasedDeduplication=True, VisibilityTimeout=20)
    url = f"sqs+{sqs_endpoint.url}/queue/orders.fifo"
    sqs_endpoint.client.send_message(QueueUrl=queue_url, MessageBody="12", MessageGroupId="c-42")
    sqs_endpoint.client.send_message(QueueUrl=queue_url, MessageBody="13", MessageGroupId="c-43")
    sqs_endpoint.client.receive_message(QueueUrl=queue_url)
    with strictq.connect(url) as q:
        stats = q.stats()
        assert (q.is_fifo, q.lease_seconds, q.queue_id) == (True, 20.0, queue_url)
        assert (stats.ready, stats.in_flight, stats.delayed, stats.depth) == (1, 1, 0, 2)
        assert stats.requests == {"get_queue_url": 1, "get_queue_attributes": 2}
        assert stats.round_trip_seconds is not None
        assert stats.to_dict()["depth"] == 2
    with pytest.raises(QueueNotFound):
        strictq.connect(f"sqs+{sqs_endpoint.url}/queue/never.fifo")


def test_the_async_twin(sqs_endpoint: SqsEndpoint) -> None:
    sqs_endpoint.create_queue("orders")
    url = f"sqs+{sqs_endpoint.url}/queue/orders"

    async def main() -> None:
        q = strictq.connect_async(url)
        with pytest.raises(QueueClosed):
            q.sync.stats()
        async with q:
            assert (q.is_fifo, q.path, q.lease_seconds, q.redrive, q.queue_id) == (False, url, 30.0, None, q.sync.queue_id)
            assert q.config.max_attempts is None
            assert (await q.stats()).depth == 0
            q.observe(strictq.Observer()).close()
            q.on_event(lambda event: None)
            await q.close()
            with pytest.raises(QueueClosed):
                await q.stats()
        with pytest.raises(QueueClosed):
            async with q:
                pass
        with pytest.raises(InvalidArgument):
            q.__reduce__()

    anyio.run(main)


def test_import_strictq_imports_nothing_of_it() -> None:
    program = "import strictq, sys; print('strictq.remote' in sys.modules, 'boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.split() == ["False", "False"]


# ---- errors, and reports of them


@pytest.mark.parametrize(
    ("code", "message", "fault", "kind"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", "", True, "no_queue"),
        ("com.amazonaws.sqs#QueueDoesNotExist", "", True, "no_queue"),
        ("RequestThrottled", "", True, "again"),
        ("OverLimit", "", True, "again"),
        ("KmsThrottled", "", True, "again"),
        ("ExpiredToken", "", True, "again"),
        ("SignatureDoesNotMatch", "Signature expired: 19700101T000312Z is now earlier than 20261127T", True, "again"),
        ("InvalidSignatureException", "Signature not yet current: 20380101T000000Z is still later than", True, "again"),
        ("SignatureDoesNotMatch", "The request signature we calculated does not match", True, "denied"),
        ("AccessDenied", "", True, "denied"),
        ("ReceiptHandleIsInvalid", "", True, "stale"),
        ("InvalidParameterValue", "Reason: The receipt handle has expired.", True, "stale"),
        ("InvalidParameterValue", "Reason: Must be between 0 and 43200.", True, "refused"),
        ("InternalError", "", False, "again"),
        ("", "", True, "refused"),
        ("302", "", True, "again"),
        ("404", "", True, "again"),
        ("403", "", True, "denied"),
        ("413", "", True, "refused"),
    ],
)
def test_what_codes_mean(code: str, message: str, fault: bool, kind: str) -> None:
    assert of_code(code, message, fault=fault).kind == kind


def test_an_error_whose_answer_is_none_is_known() -> None:
    from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ParamValidationError

    closed = failure_of(ConnectionClosedError(endpoint_url="http://localhost"))
    assert closed is not None
    assert (closed.kind, closed.sent) == ("again", True)
    unsent = failure_of(EndpointConnectionError(endpoint_url="http://localhost"))
    assert unsent is not None
    assert not unsent.sent
    assert failure_of(ParamValidationError(report="a wrong type")) is None


def test_trouble_is_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    trouble = SourceTrouble(lambda kind, _: told.append(kind))
    failure = of_code("RequestThrottled", "", fault=True)
    with caplog.at_level(logging.WARNING, "strictq.remote"):
        for second in range(50):  # it fails now and then
            trouble.failed(float(second), "receive_message", failure)
            trouble.works(second + 0.5)
        assert told == ["worker_source_failed", "worker_source_works"]
        assert len(caplog.records) == 2
        for second in range(100, 250):  # it fails all the time
            trouble.failed(float(second), "receive_message", failure)
        assert told[2:] == ["worker_source_failed"]
        assert len(caplog.records) == 2 + 2 + 2  # the first and the fifth, and two minutes
        trouble.works(251.0)
        assert told[3:] == ["worker_source_works"]
        assert "150 failures" in caplog.text
