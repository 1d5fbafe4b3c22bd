"""Both protocols: names, types, errors, and input that is no request."""

from __future__ import annotations

import json
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest

from strictq.server.sqs import wire
from strictq.server.sqs.errors import SqsError
from strictq.server.sqs.model import model
from tests.server.sqs.asgi import Caller, SqsRefused, calling


@pytest.fixture(scope="module")
def c() -> Iterator[Caller]:
    with calling() as caller:
        yield caller


def test_the_actions_are_those_that_the_endpoint_has(c: Caller) -> None:
    """A new action, or a new member of one, must be looked at. botocore's model says nothing about what it means."""
    assert len(model().actions) == 23
    members = {
        f"{name}.{member}" for name, action in model().actions.items() for member in model().shapes[action.takes]["members"]
    }
    assert len(members) == 60
    assert sorted(model().shapes["MessageAttributeValue"]["members"]) == [
        "BinaryListValues", "BinaryValue", "DataType", "StringListValues", "StringValue",
    ]  # fmt: skip


def test_every_member_of_a_list_or_map_has_a_name_in_the_query_protocol() -> None:
    shapes = model().shapes
    for shape in shapes.values():
        for member, m in shape.get("members", {}).items():
            if shapes[m["shape"]]["type"] in ("list", "map"):
                assert wire.query_name(member, m["shape"]) != member, member


def tree(body: bytes) -> ET.Element:
    root = ET.fromstring(body)
    for e in root.iter():
        e.tag = e.tag.removeprefix(f"{{{wire.NAMESPACE}}}")
    return root


def query(c: Caller, fields: dict[str, str], path: str = "/", method: str = "POST") -> tuple[int, ET.Element]:
    text = urllib.parse.urlencode(fields)
    headers = {"content-type": "application/x-www-form-urlencoded"}
    where, body = (path, text.encode()) if method == "POST" else (f"{path}?{text}", b"")
    status, got, answer = c.run(c.request(method, where, body, headers))
    assert got["content-type"] == "text/xml"
    assert tree(answer).find(".//RequestId").text == got["x-amzn-requestid"]  # type: ignore[union-attr]
    return status, tree(answer)


def test_a_message_goes_through_the_query_protocol(c: Caller) -> None:
    status, made = query(c, {
        "Action": "CreateQueue", "QueueName": "form", "Attribute.1.Name": "VisibilityTimeout", "Attribute.1.Value": "7",
        "Tag.1.Key": "k", "Tag.1.Value": "v",
    })  # fmt: skip
    url = made.findtext("CreateQueueResult/QueueUrl", "")
    assert (status, url) == (200, "http://localhost:9324/000000000000/form")
    path = urllib.parse.urlsplit(url).path
    _, sent = query(c, {
        "Action": "SendMessageBatch", "SendMessageBatchRequestEntry.2.Id": "two",
        "SendMessageBatchRequestEntry.2.MessageBody": "",
        "SendMessageBatchRequestEntry.1.Id": "one", "SendMessageBatchRequestEntry.1.MessageBody": "a & <b>\r\n",
        "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "bin",
        "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "Binary",
        "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.BinaryValue": "AAE=",
    }, path)  # fmt: skip
    assert sent.findtext(".//SendMessageBatchResultEntry/Id") == "one"
    assert sent.findtext(".//BatchResultErrorEntry/Id") == "two"
    assert sent.findtext(".//BatchResultErrorEntry/SenderFault") == "true"
    _, got = query(c, {"Action": "ReceiveMessage", "MessageAttributeName.1": "All", "AttributeName.1": "All"}, path, "GET")
    message = got.find("ReceiveMessageResult/Message")
    assert message is not None
    assert message.findtext("Body") == "a & <b>\r\n"
    assert message.findtext("MessageAttribute/Value/BinaryValue") == "AAE="
    assert {e.findtext("Name"): e.findtext("Value") for e in message.findall("Attribute")}["ApproximateReceiveCount"] == "1"
    _, deleted = query(c, {"Action": "DeleteMessage", "ReceiptHandle": message.findtext("ReceiptHandle", "")}, path)
    assert deleted.tag == "DeleteMessageResponse"
    _, tags = query(c, {"Action": "ListQueueTags", "QueueUrl": url})
    assert (tags.findtext(".//Tag/Key"), tags.findtext(".//Tag/Value")) == ("k", "v")


def test_an_error_of_the_query_protocol_has_the_old_code(c: Caller) -> None:
    status, answer = query(c, {"Action": "GetQueueUrl", "QueueName": "none"})
    assert status == 400
    assert answer.findtext("Error/Code") == "AWS.SimpleQueueService.NonExistentQueue"
    assert answer.findtext("Error/Type") == "Sender"


def test_an_error_of_the_json_protocol_has_both_codes(c: Caller) -> None:
    body = json.dumps({"QueueName": "none"}).encode()
    status, headers, answer = c.run(c.request("POST", "/", body, {"x-amz-target": "AmazonSQS.GetQueueUrl"}))
    assert status == 400
    assert headers["content-type"] == "application/x-amz-json-1.0"
    assert json.loads(answer)["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    assert headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "SerializationException"),
        (b"[]", "SerializationException"),
        (b"[" * 200_000, "SerializationException"),
        (b'{"QueueName":' * 5_000, "SerializationException"),
        (b"\xff", "SerializationException"),
        (b'{"QueueName":1}', "SerializationException"),
        (b'{"QueueName":null}', "MissingRequiredParameterException"),
        (b'{"QueueName":"\\ud800"}', "InvalidMessageContents"),
        (b'{"QueueName":"a","Attributes":{"\\ud800":"x"}}', "InvalidMessageContents"),
        (b'{"QueueName":"a","tags":{"a":"\\udfff"}}', "InvalidMessageContents"),
        (b'{"QueueName":"a","Attributes":[]}', "SerializationException"),
        (b"", "MissingRequiredParameterException"),
    ],
)
def test_a_body_that_is_no_request_is_refused(c: Caller, body: bytes, code: str) -> None:
    status, _, answer = c.run(c.request("POST", "/", body, {"x-amz-target": "AmazonSQS.CreateQueue"}))
    assert status == 400
    assert json.loads(answer)["__type"].rpartition("#")[2] == code


@pytest.mark.parametrize("value", [True, 1.5, "1_0", " 1", "x", 10**30, [], float("nan"), "9" * 5000])
def test_what_is_no_number_is_refused(value: Any) -> None:
    check = model().actions["ReceiveMessage"].check
    with pytest.raises(SqsError, match="A number was expected"):
        check({"QueueUrl": "q", "WaitTimeSeconds": value})


@pytest.mark.parametrize("value", [3, "3", 3.0, "+3"])
def test_a_number_may_be_text(value: Any) -> None:
    assert model().actions["ReceiveMessage"].check({"QueueUrl": "q", "WaitTimeSeconds": value})["WaitTimeSeconds"] == 3


@pytest.mark.parametrize(
    "text",
    [
        "&".join(f"a{i}=1" for i in range(2_001)),
        "Action=CreateQueue&QueueName=a&" + ".".join("abcdefghi") + "=1",
        "Action=CreateQueue&QueueName=a&Attribute.x.Name=y",
        "Action=CreateQueue&QueueName=a&Attribute.1.Value=y",
        "Action=CreateQueue&QueueName=a&Attribute=1&Attribute.1.Name=y",
        "Action=CreateQueue&QueueName=a&Attribute.1.Name=y&Attribute.1=2",
        "Action=CreateQueue&QueueName.1=a",
        "Action=CreateQueue&QueueName=%ff",
        "Action=%00",
        "",
        "Action=Nothing",
    ],
)
def test_a_form_that_is_no_request_is_refused(c: Caller, text: str) -> None:
    status, _, answer = c.run(c.request("POST", "/", text.encode(), {}))
    assert status == 400
    assert tree(answer).find("Error") is not None


@pytest.mark.parametrize("member", ["AttributeNames", "MessageAttributeNames", "MessageSystemAttributeNames"])
def test_a_list_beyond_any_use_is_refused(c: Caller, member: str) -> None:
    url = c.standard()
    with pytest.raises(SqsRefused, match="MalformedInput"):
        c.call("ReceiveMessage", QueueUrl=url, **{member: ["All"] * 2_001})


def test_a_body_beyond_the_limit_is_refused(c: Caller) -> None:
    status, _, _ = c.run(c.request("POST", "/", b" " * ((8 << 20) + 1), {"x-amz-target": "AmazonSQS.ListQueues"}))
    assert status == 413


def test_an_unexpected_error_is_reported_without_its_cause(c: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setitem(c.endpoint._acts, "ListQueues", fails)
    status, headers, answer = c.run(c.request("POST", "/", b"{}", {"x-amz-target": "AmazonSQS.ListQueues"}))
    assert (status, json.loads(answer)["__type"]) == (500, "com.amazonaws.sqs#InternalFailure")
    assert headers["x-amzn-query-error"] == "InternalFailure;Receiver"
    assert b"secret" not in answer


@pytest.mark.parametrize(
    ("method", "path", "query", "mine"),
    [
        ("POST", "/", b"", True),
        ("POST", "/000000000000/a.fifo", b"", True),
        ("POST", "/queue/a", b"", True),
        ("GET", "/000000000000/a", b"Action=SendMessage", True),
        ("GET", "/", b"", False),
        ("POST", "/api/keys/x", b"", False),
        ("POST", "/_strictq/reset", b"", False),
        ("PUT", "/", b"", False),
    ],
)
def test_it_takes_requests_of_sqs(c: Caller, method: str, path: str, query: bytes, mine: bool) -> None:
    assert c.endpoint.takes({"method": method, "path": path, "query_string": query}) is mine
