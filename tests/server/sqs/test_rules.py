"""What SQS accepts of messages, and its digests, against botocore's own where it has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strictq.server.sqs import rules
from tests.server.sqs.asgi import Caller, SqsRefused, bodies, calling


@pytest.fixture(scope="module")
def c() -> Iterator[Caller]:
    with calling() as caller:
        caller.fifo("f.fifo")
        caller.call("CreateQueue", QueueName="ids.fifo", Attributes={"FifoQueue": "true"})
        caller.standard("s")
        yield caller


def test_digests_are_those_that_aws_documents() -> None:
    assert rules.md5(b"This is a test message") == "fafb00f5732ab283681e124bf8747ed1"
    attributes = {
        "test": {"DataType": "String", "StringValue": "value"},
        "binary": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "n": {"DataType": "Number", "StringValue": "1"},
    }
    stored = rules._as_json(attributes)
    assert stored is not None
    assert rules.digest_of_stored(stored) == rules.digest(attributes)


def value(kind: str = "String", **others: Any) -> dict[str, Any]:
    return {"a": {"DataType": kind, **(others or {"StringValue": "x"})}}


WRONG = [
    ("s", {"MessageBody": "\ufffe"}, "InvalidMessageContents"),
    ("s", {"MessageBody": "a\u0000"}, "InvalidMessageContents"),
    ("s", {"MessageBody": "x" * (rules.MESSAGE_BYTES_MAX + 1)}, "InvalidParameterValueException"),
    ("s", {"MessageBody": "x" * (rules.MESSAGE_BYTES_MAX - 7), "MessageAttributes": value()}, "InvalidParameterValueException"),
    ("s", {"DelaySeconds": -1}, "InvalidParameterValueException"),
    ("s", {"DelaySeconds": 901}, "InvalidParameterValueException"),
    ("s", {"MessageDeduplicationId": "d"}, "InvalidParameterValueException"),
    ("s", {"MessageGroupId": ""}, "InvalidParameterValueException"),
    ("s", {"MessageGroupId": "a b"}, "InvalidParameterValueException"),
    ("s", {"MessageGroupId": "a" * 129}, "InvalidParameterValueException"),
    ("f.fifo", {}, "MissingRequiredParameterException"),
    ("f.fifo", {"MessageGroupId": "ä"}, "InvalidParameterValueException"),
    ("f.fifo", {"MessageGroupId": "g", "DelaySeconds": 1}, "InvalidParameterValueException"),
    ("f.fifo", {"MessageGroupId": "g", "MessageDeduplicationId": ""}, "InvalidParameterValueException"),
    ("ids.fifo", {"MessageGroupId": "g"}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {f"a{i}": value()["a"] for i in range(11)}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {"": value()["a"]}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {"aws.x": value()["a"]}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {"Amazon.x": value()["a"]}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {".x": value()["a"]}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {"a..x": value()["a"]}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": {"a" * 257: value()["a"]}}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("Text")}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("")}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("String", StringValue="")}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("String", BinaryValue="eA==")}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("Binary", StringValue="x")}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("Binary", BinaryValue="?")}, "SerializationException"),
    ("s", {"MessageAttributes": value("Number", StringValue="one")}, "InvalidParameterValueException"),
    ("s", {"MessageAttributes": value("String", StringValue="\u0001")}, "InvalidMessageContents"),
    ("s", {"MessageAttributes": value("String", StringListValues=["x"])}, "UnsupportedOperation"),
    ("s", {"MessageAttributes": {"a": {"StringValue": "x"}}}, "MissingRequiredParameterException"),
    ("s", {"MessageSystemAttributes": value()}, "InvalidParameterValueException"),
]


@pytest.mark.parametrize(("name", "wrong", "code"), WRONG)
def test_a_wrong_message_is_refused(c: Caller, name: str, wrong: dict[str, Any], code: str) -> None:
    with pytest.raises(SqsRefused) as e:
        c.call("SendMessage", **{"QueueUrl": name, "MessageBody": "x", **wrong})
    assert (e.value.status, e.value.code) == (400, code)


@pytest.mark.parametrize(
    "good",
    [
        {"MessageBody": "\t\n\r ü \U0001f600"},
        {"MessageBody": "x" * rules.MESSAGE_BYTES_MAX},
        {"MessageGroupId": "".join(map(chr, range(33, 127)))},
        {"MessageAttributes": value("Number.int", StringValue="-1.5e10")},
        {"MessageAttributes": value("Binary", BinaryValue="AA==")},
        {"MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}},
    ],
)
def test_a_message_comes_as_it_was_sent(c: Caller, good: dict[str, Any]) -> None:
    c.call("PurgeQueue", QueueUrl="s")
    sent = c.call("SendMessage", **{"QueueUrl": "s", "MessageBody": "x", **good})
    (m,) = c.receive("s", MessageAttributeNames=["All"])
    assert m["Body"] == good.get("MessageBody", "x")
    assert m["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert m.get("MD5OfMessageAttributes") == sent.get("MD5OfMessageAttributes")
    assert m.get("MessageAttributes") == good.get("MessageAttributes")
    assert m["Attributes"].get("MessageGroupId") == good.get("MessageGroupId")
    assert m["Attributes"].get("AWSTraceHeader") == ("Root=1" if "MessageSystemAttributes" in good else None)
    c.delete("s", m["ReceiptHandle"])


@pytest.mark.parametrize("character", ['"', "\\", "ü", "\n", "\U0001f600"])
def test_attributes_may_be_as_large_as_a_message(c: Caller, character: str) -> None:
    most = rules.MESSAGE_BYTES_MAX - len("x" + "a" + "String")
    given = value(StringValue=character * (most // len(character.encode())))
    c.send("s", "x", MessageAttributes=given)
    (m,) = c.receive("s", MessageAttributeNames=["All"])
    assert m["MessageAttributes"] == given
    c.delete("s", m["ReceiptHandle"])


def test_attributes_are_chosen_by_name_and_prefix(c: Caller) -> None:
    given = {name: value()["a"] for name in ("a.b", "a.c", "ab", "z")}
    for names, wanted in (
        (["All"], set(given)),
        ([".*"], set(given)),
        (["a.*"], {"a.b", "a.c", "ab"}),
        (["z", "none"], {"z"}),
        (["none"], set()),
        ([], set()),
    ):
        c.send("s", "x", MessageAttributes=given)
        (m,) = c.receive("s", MessageAttributeNames=names)
        assert set(m.get("MessageAttributes", {})) == wanted
        assert ("MD5OfMessageAttributes" in m) == bool(wanted)
        c.delete("s", m["ReceiptHandle"])


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([{"Id": str(i), "MessageBody": "x"} for i in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"Id": "", "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"Id": "a" * 81, "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"MessageBody": "x"}], "MissingRequiredParameterException"),
        ([{"Id": str(i), "MessageBody": "x" * 600_000} for i in range(2)], "BatchRequestTooLong"),
    ],
)
def test_a_wrong_batch_is_refused(c: Caller, entries: list[Any], code: str) -> None:
    with pytest.raises(SqsRefused) as e:
        c.call("SendMessageBatch", QueueUrl="s", Entries=entries)
    assert (e.value.status, e.value.code) == (400, code)


def test_a_fifo_batch_stores_a_prefix_of_each_group(c: Caller) -> None:
    def entry(name: str, body: str = "x") -> dict[str, str]:
        return {"Id": name, "MessageBody": body, "MessageGroupId": name[0], "MessageDeduplicationId": name}

    with pytest.raises(SqsRefused):  # fails whole
        c.call("SendMessageBatch", QueueUrl="ids.fifo", Entries=[entry("a1"), {"Id": "b", "MessageBody": "x"}])
    entries = [entry("a1"), entry("a2", "\u0001"), entry("b1"), entry("a3"), entry("b2")]
    got = c.call("SendMessageBatch", QueueUrl="ids.fifo", Entries=entries)
    assert [e["Id"] for e in got["Successful"]] == ["a1", "b1", "b2"]
    assert [e["Id"] for e in got["Failed"]] == ["a2", "a3"]
    assert len(bodies(c.receive("ids.fifo"))) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": -1},
        {"WaitTimeSeconds": 21},
        {"VisibilityTimeout": -1},
        {"VisibilityTimeout": 43_201},
        {"ReceiveRequestAttemptId": ""},
    ],
)
def test_a_wrong_receive_is_refused(c: Caller, wrong: dict[str, Any]) -> None:
    with pytest.raises(SqsRefused) as e:
        c.call("ReceiveMessage", QueueUrl="f.fifo", **wrong)
    assert e.value.code == "InvalidParameterValueException"


@pytest.mark.parametrize("handle", ["", "x", "sq1.0.0", "sq1.0123456789abcdef.1.1.AAAA", "a.b.c.d.e.1", "é" * 10_000])
@pytest.mark.parametrize("name", ["s", "f.fifo"])
def test_what_is_no_handle_is_refused(c: Caller, name: str, handle: str) -> None:
    with pytest.raises(SqsRefused) as e:
        c.delete(name, handle)
    assert (e.value.status, e.value.code) == (400, "ReceiptHandleIsInvalid")
    with pytest.raises(SqsRefused) as e:
        c.hide(name, handle, 1)
    assert e.value.code == "ReceiptHandleIsInvalid"
