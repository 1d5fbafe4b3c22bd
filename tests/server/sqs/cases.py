"""Behaviour of SQS that AWS documents, or that is published as recorded from it, one case a row, each with its source.

API: the API reference of AWS (as in botocore's service model). GUIDE: the developer guide.
LS: a test of LocalStack's suite that is marked as validated against AWS, with answers recorded from AWS where it has a snapshot.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Callable
from typing import Any

from tests.server.sqs.playing import JSON, QUERY, Absent, Call, Case, Check, Done, Env, Error, Tick

API = "AWS API reference: {}".format
GUIDE = "SQS developer guide: {}".format
LS = "LocalStack tests/aws/services/sqs/test_sqs.py::{} (validated against AWS)".format
MOVES = "LocalStack tests/aws/services/sqs/test_sqs_move_task.py::{} (validated against AWS)".format

INVALID, MISSING = "InvalidParameterValue", "MissingParameter"
NAME, VALUE = "InvalidAttributeName", "InvalidAttributeValue"
GONE, HANDLE = "AWS.SimpleQueueService.NonExistentQueue", "ReceiptHandleIsInvalid"
EXPIRED = "The receipt handle has expired"
MIB = 1_048_576


# ---- the steps


def queue(
    alias: str = "q", fifo: bool = False, expect: Any = None, tags: Any = None, suffix: str = "", **attributes: Any
) -> Call:
    """Create a queue, and call it `alias` from here on."""
    end = suffix or (".fifo" if fifo else "")
    attributes = {k: v if callable(v) else str(v) for k, v in attributes.items()}
    params: dict[str, Any] = {"QueueName": lambda env: f"{env.prefix}-{alias}{end}"}
    if fifo:
        attributes = {"FifoQueue": "true", **attributes}
    if attributes:
        params["Attributes"] = attributes
    if tags:
        params["tags"] = tags
    ok = {"QueueUrl": str} if expect is None else expect
    return Call("CreateQueue", params, ok, {} if isinstance(ok, Error) else {alias: "QueueUrl"})


def fifo(alias: str = "q", **attributes: Any) -> Call:
    return queue(alias, fifo=True, **attributes)


def cbd(alias: str = "q", **attributes: Any) -> Call:
    """Create a FIFO queue with deduplication by content."""
    return queue(alias, fifo=True, **{"ContentBasedDeduplication": "true", **attributes})


def send(body: str = "m", expect: Any = None, q: str = "q", g: str | None = None, d: str | None = None, **params: Any) -> Call:
    keep = params.pop("keep", {})
    more = {k: v for k, v in (("MessageGroupId", g), ("MessageDeduplicationId", d)) if v is not None}
    ok = {"MessageId": str, "MD5OfMessageBody": md5(body)} if expect is None else expect
    return Call("SendMessage", {"QueueUrl": f"${q}", "MessageBody": body, **more, **params}, ok, keep)


def take(*bodies: str, n: int = 10, q: str = "q", save: str = "h", expect: Any = None, **params: Any) -> Call:
    """Receive exactly these bodies, in this order if the queue is FIFO. Handles are kept as "h:BODY"."""
    given = {"QueueUrl": f"${q}", "MaxNumberOfMessages": n, **params}
    return Call("ReceiveMessage", given, {} if expect is None else expect, {}, bodies if expect is None else None, save)


def look(message: Any, q: str = "q", **params: Any) -> Call:
    """Receive one message and compare its members. It stays visible."""
    return Call("ReceiveMessage", {"QueueUrl": f"${q}", "VisibilityTimeout": 0, **params}, {"Messages": [message]})


def poll(name: str, *bodies: str, q: str = "q", n: int = 10, seconds: int = 10, **params: Any) -> Call:
    """Start a long poll. Done(name) awaits its answer."""
    given = {"QueueUrl": f"${q}", "MaxNumberOfMessages": n, "WaitTimeSeconds": seconds, **params}
    return Call("ReceiveMessage", given, {}, {}, bodies, "h", name)


def delete(body: str, expect: Any = None, q: str = "q", h: str = "h") -> Call:
    return Call("DeleteMessage", {"QueueUrl": f"${q}", "ReceiptHandle": f"${h}:{body}"}, expect or {})


def hide(body: str, seconds: int, expect: Any = None, q: str = "q", h: str = "h") -> Call:
    params = {"QueueUrl": f"${q}", "ReceiptHandle": f"${h}:{body}", "VisibilityTimeout": seconds}
    return Call("ChangeMessageVisibility", params, expect or {})


def batch(action: str, *entries: dict[str, Any], expect: Any = None, q: str = "q") -> Call:
    entries_ = [{"Id": str(i), **e} for i, e in enumerate(entries)]
    ok = {"Successful": [{"Id": e["Id"]} for e in entries_], "Failed": Absent} if expect is None else expect
    return Call(action, {"QueueUrl": f"${q}", "Entries": entries_}, ok)


def sends(*entries: dict[str, Any] | str, expect: Any = None, q: str = "q") -> Call:
    return batch("SendMessageBatch", *({"MessageBody": e} if isinstance(e, str) else e for e in entries), expect=expect, q=q)


def entry(body: str, g: str | None = None, d: str | None = None, **more: Any) -> dict[str, Any]:
    ids = {k: v for k, v in (("MessageGroupId", g), ("MessageDeduplicationId", d)) if v is not None}
    return {"MessageBody": body, **ids, **more}


def deletes(*bodies: str, expect: Any = None, q: str = "q") -> Call:
    return batch("DeleteMessageBatch", *({"ReceiptHandle": f"$h:{b}"} for b in bodies), expect=expect, q=q)


def attributes(expect: dict[str, Any], *names: str, q: str = "q") -> Call:
    params = {"QueueUrl": f"${q}", "AttributeNames": list(names or expect)}
    return Call("GetQueueAttributes", params, {"Attributes": expect} if expect else {"Attributes": Absent})


def configure(expect: Any = None, q: str = "q", **values: Any) -> Call:
    given = {k: v if callable(v) else str(v) for k, v in values.items()}
    return Call("SetQueueAttributes", {"QueueUrl": f"${q}", "Attributes": given}, expect or {})


def counts(visible: int, hidden: int = 0, delayed: int = 0, q: str = "q") -> Call:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
    return attributes(dict(zip(names, map(str, (visible, hidden, delayed)), strict=True)), q=q)


def do(action: str, expect: Any = None, keep: dict[str, str] | None = None, **params: Any) -> Call:
    return Call(action, params, expect or {}, keep or {})


def dead_to(alias: str, count: Any) -> Callable[[Env], str]:
    return lambda env: json.dumps({"deadLetterTargetArn": env.arn(alias), "maxReceiveCount": count})


def arn(alias: str, more: str = "") -> Callable[[Env], str]:
    return lambda env: env.arn(alias) + more


# ---- what is expected


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def md5_of(**values: tuple[str, str | bytes]) -> str:
    """Return the digest of message attributes, as the guide defines it."""
    out = b""
    for name, (kind, value) in sorted(values.items()):
        raw = value if isinstance(value, bytes) else value.encode()
        for part in (name.encode(), kind.encode()):
            out += struct.pack(">I", len(part)) + part
        out += (b"\2" if kind.startswith("Binary") else b"\1") + struct.pack(">I", len(raw)) + raw
    return hashlib.md5(out).hexdigest()


def text(value: str, kind: str = "String") -> dict[str, Any]:
    return {"DataType": kind, "StringValue": value}


def binary(value: bytes, kind: str = "Binary") -> dict[str, Any]:
    return {"DataType": kind, "BinaryValue": value}


def like(pattern: str) -> Check:
    return Check(lambda v, _: isinstance(v, str) and re.fullmatch(pattern, v), f"like {pattern}")


def as_json(wanted: Any) -> Check:
    """A member that is JSON text with these members."""
    return Check(
        lambda v, env: json.loads(v).items() >= (wanted(env) if callable(wanted) else wanted).items(), f"JSON with {wanted}"
    )


def ends(*names: str) -> Check:
    """URLs that end in these names, in any order."""

    def holds(v: list[str], env: Env) -> bool:
        return sorted(u.rpartition("/")[2] for u in v) == sorted(f"{env.prefix}-{n}" for n in names)

    return Check(holds, f"the URLs of {names}")


MILLIS, SECONDS = like(r"1\d{12}"), like(r"1\d{9}")
GREATER = Check(lambda v, env: int(v) > int(env["first"]), "greater than the first")
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

CASES: list[Case] = []


def case(name: str, source: str, *steps: Any, only: str = "") -> None:
    CASES.append(Case(name, source, steps, only))


# A table: one case a row, however long.
# ruff: noqa: E501
# fmt: off

# ---- queues: names, creation, listing

for bad in ("", "a b", "a/b", "ümlaut", "a.b", "a" * 81, "b" * 76 + ".fifo"):
    case(f"no queue is named {bad[:12]!r} ({len(bad)})", API("CreateQueue, QueueName"), do("CreateQueue", Error(INVALID), QueueName=bad))
case("a queue's name has up to 80 characters", API("CreateQueue, QueueName"),
     Call("CreateQueue", {"QueueName": lambda env: (env.prefix + "x" * 80)[:80]}, {"QueueUrl": like(r"http://.*/\w{80}")}))
case("names may have hyphens and underscores", API("CreateQueue, QueueName"), queue("a-b_C9"))
case("a FIFO name without FifoQueue is refused", LS("test_standard_queue_cannot_have_fifo_suffix"), queue(suffix=".fifo", expect=Error(INVALID)))
case("FifoQueue needs the suffix", LS("test_fifo_queue_requires_suffix"), queue(FifoQueue="true", expect=Error(INVALID)))
case("FifoQueue=false on a standard queue is unknown", LS("test_create_standard_queue_with_fifo_attribute_raises_error"),
     queue(expect=Error(NAME, "Unknown Attribute FifoQueue."), FifoQueue="false"))
for attribute, value, message in (
    ("ContentBasedDeduplication", "false", "Unknown Attribute ContentBasedDeduplication."),
    ("DeduplicationScope", "queue", "You can specify the DeduplicationScope only when FifoQueue is set to true."),
    ("FifoThroughputLimit", "perQueue", "You can specify the FifoThroughputLimit only when FifoQueue is set to true."),
):
    case(f"a standard queue has no {attribute}", LS("test_create_standard_queue_with_fifo_attribute_raises_error"),
         queue(expect=Error(NAME, message), **{attribute: value}))
case("creating a queue again returns its URL", LS("test_create_queue_without_attributes_is_idempotent"),
     queue(), queue(expect={"QueueUrl": "$q"}))
case("creating it again with the same attributes returns its URL", LS("test_create_queue_with_same_attributes_is_idempotent"),
     queue(VisibilityTimeout=69), queue(VisibilityTimeout=69, expect={"QueueUrl": "$q"}))
case("creating it again with the default values returns its URL", LS("test_create_queue_with_default_attributes_is_idempotent"),
     queue(), queue(VisibilityTimeout=30, DelaySeconds=0, expect={"QueueUrl": "$q"}))
case("creating it again with other attributes is refused", LS("test_create_queue_with_different_attributes_raises_exception"),
     queue(DelaySeconds=1), queue(DelaySeconds=2, expect=Error(
         "QueueAlreadyExists", "A queue already exists with the same name and a different value for attribute DelaySeconds")))
case("a FIFO queue again with another deduplication", LS("test_create_fifo_queue_with_different_attributes_raises_error"),
     cbd(), cbd(ContentBasedDeduplication="false", expect=Error("QueueAlreadyExists", "attribute ContentBasedDeduplication")))
case("creating it again compares with the attributes of now", LS("test_create_queue_after_modified_attributes"),
     queue(VisibilityTimeout=1), configure(VisibilityTimeout=2), queue(VisibilityTimeout=1, expect=Error("QueueAlreadyExists")))
case("creating it again after a send keeps its messages", LS("test_create_queue_after_send"),
     queue(), send("a"), queue(), take("a"))
case("booleans in any case", LS("test_fifo_delete_after_visibility_timeout"),
     fifo(FifoQueue="True", ContentBasedDeduplication="True"), attributes({"FifoQueue": "true", "ContentBasedDeduplication": "true"}))
case("GetQueueUrl finds a queue", API("GetQueueUrl"),
     queue(), do("GetQueueUrl", {"QueueUrl": "$q"}, QueueName=lambda env: f"{env.prefix}-q"))
case("names are case-sensitive", API("GetQueueUrl, QueueName"),
     queue(), do("GetQueueUrl", Error(GONE, "The specified queue does not exist"), QueueName=lambda env: f"{env.prefix}-Q"))
case("a URL names the queue last", LS("test_create_and_send_to_fifo_queue"),
     fifo(expect={"QueueUrl": Check(lambda v, env: v.endswith(f"/{env.prefix}-q.fifo"), "the name at the end")}))
case("ListQueues by prefix", LS("test_list_queues"),
     queue("a1"), queue("a2"), queue("b1"), do("ListQueues", {"QueueUrls": ends("a1", "a2")}, QueueNamePrefix=lambda env: f"{env.prefix}-a"))
case("ListQueues without a match has no list", LS("test_list_queues"),
     do("ListQueues", {"QueueUrls": Absent, "NextToken": Absent}, QueueNamePrefix="no-such-queue-"))
case("ListQueues page by page", LS("test_list_queues_pagination"),
     *(queue(f"p{i}") for i in range(5)),
     do("ListQueues", {"QueueUrls": ends("p0", "p1"), "NextToken": str}, {"t": "NextToken"},
        QueueNamePrefix=lambda env: env.prefix, MaxResults=2),
     do("ListQueues", {"QueueUrls": ends("p2", "p3", "p4"), "NextToken": Absent},
        QueueNamePrefix=lambda env: env.prefix, MaxResults=10, NextToken="$t"))
case("ListQueues: MaxResults is at most 1,000", API("ListQueues, MaxResults"), do("ListQueues", Error(INVALID), MaxResults=1001))
case("ListQueues: MaxResults is at least 1", API("ListQueues, MaxResults"), do("ListQueues", Error(INVALID), MaxResults=0))
case("a deleted queue is gone", LS("test_non_existent_queue"),
     queue(), do("DeleteQueue", QueueUrl="$q"), do("GetQueueAttributes", Error(GONE, "The specified queue does not exist"), QueueUrl="$q"))
case("a deleted queue takes its messages with it", API("DeleteQueue"),
     queue(), send("a"), do("DeleteQueue", QueueUrl="$q"), Tick(61), queue(), take())
case("nothing is sent to a queue that is not there", API("SendMessage, QueueDoesNotExist"),
     send("a", Error(GONE), QueueUrl="http://127.0.0.1/000000000000/no-such-queue"))
case("an error about a missing queue names the WSDL in the query protocol", LS("test_non_existent_queue"),
     do("GetQueueUrl", Error(GONE, "The specified queue does not exist for this wsdl version."), QueueName="no-such-queue"), only=QUERY)
case("a queue may be named where a URL is expected", LS("test_posting_to_queue_via_queue_name"),
     queue(), send("a", QueueUrl=lambda env: f"{env.prefix}-q"), take("a"))

# ---- attributes of queues

RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, MIB),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
}
for attribute, (low, high) in RANGES.items():
    for wrong in (low - 1, high + 1, "x"):
        case(f"{attribute} is not {wrong}", API(f"CreateQueue, {attribute}"), queue(expect=Error(VALUE), **{attribute: str(wrong)}))
    case(f"{attribute} is {low} to {high}", API(f"SetQueueAttributes, {attribute}"),
         queue(**{attribute: low}), configure(**{attribute: high}), attributes({attribute: str(high)}),
         configure(Error(VALUE), **{attribute: high + 1}), attributes({attribute: str(high)}))
case("the attributes of a new queue", LS("test_set_queue_attributes_default_values"), queue(), attributes({
    "ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesDelayed": "0", "ApproximateNumberOfMessagesNotVisible": "0",
    "CreatedTimestamp": SECONDS, "LastModifiedTimestamp": SECONDS, "DelaySeconds": "0", "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600", "QueueArn": like(r"arn:aws:sqs:us-east-1:\d{12}:c\w{12}-q"),
    "ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "true", "VisibilityTimeout": "30",
    "FifoQueue": Absent, "RedrivePolicy": Absent, "Policy": Absent, "KmsMasterKeyId": Absent}, "All"))
case("the attributes of a new FIFO queue", LS("test_fifo_set_content_based_deduplication_strategy"), cbd(),
     attributes({"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": "queue",
                 "FifoThroughputLimit": "perQueue", "VisibilityTimeout": "30"}, "All"),
     configure(ContentBasedDeduplication="false"), attributes({"ContentBasedDeduplication": "false"}))
case("only the attributes that were asked for", LS("test_create_queue_and_get_attributes"),
     queue(), attributes({"VisibilityTimeout": "30", "DelaySeconds": Absent, "QueueArn": str}, "VisibilityTimeout", "QueueArn"))
case("no names, no attributes", API("GetQueueAttributes, AttributeNames"),
     queue(), do("GetQueueAttributes", {"Attributes": Absent}, QueueUrl="$q"))
case("an unknown attribute cannot be read", LS("test_get_queue_attributes_with_invalid_arg_returns_error"),
     queue(), do("GetQueueAttributes", Error(NAME, "Unknown Attribute Foobar."), QueueUrl="$q", AttributeNames=["Foobar"]))
case("an unknown attribute cannot be set", API("SetQueueAttributes, InvalidAttributeName"),
     queue(), configure(Error(NAME, "Unknown Attribute Foobar."), Foobar=1))
case("an attribute that SQS computes cannot be set", API("SetQueueAttributes, Attributes"),
     queue(), configure(Error(NAME), QueueArn="arn:aws:sqs:us-east-1:000000000000:x"))
case("attributes change together and others stay", LS("test_create_and_update_queue_attributes"),
     queue(MessageRetentionPeriod=604800, ReceiveMessageWaitTimeSeconds=10, VisibilityTimeout=20),
     configure(MaximumMessageSize=2048, VisibilityTimeout=69, DelaySeconds=420),
     attributes({"DelaySeconds": "420", "MaximumMessageSize": "2048", "MessageRetentionPeriod": "604800",
                 "ReceiveMessageWaitTimeSeconds": "10", "VisibilityTimeout": "69"}, "All"))
case("a refused change changes nothing", API("SetQueueAttributes"),
     queue(), configure(Error(VALUE), VisibilityTimeout=10, DelaySeconds=901), attributes({"VisibilityTimeout": "30", "DelaySeconds": "0"}))
case("a standard queue does not become FIFO", LS("test_set_unsupported_attribute_standard"),
     queue(), configure(Error(NAME, "Unknown Attribute FifoQueue."), FifoQueue="true"),
     configure(Error(NAME, "Unknown Attribute FifoQueue."), FifoQueue="false"))
case("a FIFO queue stays FIFO", LS("test_set_unsupported_attribute_fifo"),
     fifo(), configure(FifoQueue="true"),
     configure(Error(VALUE, "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."), FifoQueue="false"))
case("perMessageGroupId needs the scope messageGroup", API("CreateQueue, FifoThroughputLimit"),
     fifo(expect=Error(VALUE), FifoThroughputLimit="perMessageGroupId"))
case("high throughput is set by both attributes", LS("test_fifo_change_to_high_throughput_after_creation"),
     fifo(), configure(DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId"),
     attributes({"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}))
for attribute in ("DeduplicationScope", "FifoThroughputLimit", "ContentBasedDeduplication"):
    case(f"{attribute} has named values", API(f"CreateQueue, {attribute}"),
         fifo(expect=Error(VALUE), **{attribute: "x"}))
case("a KMS key switches the managed keys off", LS("test_sse_queue_attributes"),
     queue(), configure(KmsMasterKeyId="testKeyId", KmsDataKeyReusePeriodSeconds=6000, SqsManagedSseEnabled="false"),
     attributes({"KmsMasterKeyId": "testKeyId", "KmsDataKeyReusePeriodSeconds": "6000", "SqsManagedSseEnabled": "false"}))
case("a policy is kept", LS("test_set_queue_policy"),
     queue(), configure(Policy=json.dumps({"Version": "2012-10-17", "Statement": []})), attributes({"Policy": as_json({"Version": "2012-10-17"})}))
case("an empty policy removes it", LS("test_set_empty_queue_policy"),
     queue(), configure(Policy=json.dumps({"Version": "2012-10-17", "Statement": []})), configure(Policy=""), attributes({"Policy": Absent}, "All"))

# ---- tags and permissions

case("tags are added and removed", LS("test_tag_untag_queue"),
     queue(), do("TagQueue", QueueUrl="$q", Tags={"tag1": "value1", "tag2": "value2", "tag3": ""}),
     do("ListQueueTags", {"Tags": {"tag1": "value1", "tag2": "value2", "tag3": ""}}, QueueUrl="$q"),
     do("UntagQueue", QueueUrl="$q", TagKeys=["tag1", "tag3"]),
     do("ListQueueTags", {"Tags": {"tag1": Absent, "tag2": "value2"}}, QueueUrl="$q"),
     do("UntagQueue", QueueUrl="$q", TagKeys=["tag2"]), do("ListQueueTags", {"Tags": Absent}, QueueUrl="$q"))
case("tags are case-sensitive", LS("test_tags_case_sensitive"),
     queue(), do("TagQueue", QueueUrl="$q", Tags={"MyTag": "1", "mytag": "2"}),
     do("ListQueueTags", {"Tags": {"MyTag": "1", "mytag": "2"}}, QueueUrl="$q"))
case("a tag is overwritten", LS("test_tag_queue_overwrites_existing_tag"),
     queue(), do("TagQueue", QueueUrl="$q", Tags={"a": "1", "b": "2"}), do("TagQueue", QueueUrl="$q", Tags={"a": "3"}),
     do("ListQueueTags", {"Tags": {"a": "3", "b": "2"}}, QueueUrl="$q"))
case("removing a tag that is not there", LS("test_untag_queue_ignores_non_existing_tag"),
     queue(tags={"a": "1"}), do("UntagQueue", QueueUrl="$q", TagKeys=["b"]), do("ListQueueTags", {"Tags": {"a": "1"}}, QueueUrl="$q"))
case("a queue is created with tags", LS("test_create_queue_with_tags"),
     queue(tags={"a": "1", "b": "2"}), do("ListQueueTags", {"Tags": {"a": "1", "b": "2"}}, QueueUrl="$q"))
case("a new queue has no tags", LS("test_queue_list_nonexistent_tags"), queue(), do("ListQueueTags", {"Tags": Absent}, QueueUrl="$q"))
case("a permission is added to the policy and removed", LS("test_sqs_permission_lifecycle"),
     queue(), do("AddPermission", QueueUrl="$q", AWSAccountIds=["668614515564"], Actions=["ReceiveMessage"], Label="l"),
     attributes({"Policy": Check(lambda v, _: json.loads(v)["Statement"][0]["Action"] == "SQS:ReceiveMessage"
                                 and json.loads(v)["Statement"][0]["Sid"] == "l", "a statement l for SQS:ReceiveMessage")}),
     do("AddPermission", Error(INVALID, "Value l for parameter Label is invalid. Reason: Already exists."),
        QueueUrl="$q", AWSAccountIds=["668614515564"], Actions=["ReceiveMessage"], Label="l"),
     do("RemovePermission", QueueUrl="$q", Label="l"), do("GetQueueAttributes", {"Attributes": Absent}, QueueUrl="$q", AttributeNames=["Policy"]),
     do("RemovePermission", Error(INVALID, "can't find label"), QueueUrl="$q", Label="l"))

# ---- sending

case("a message is sent and received", LS("test_send_receive_message"),
     queue(), send("message", {"MD5OfMessageBody": "78e731027d8fd50ed642340b7c9a63b3", "MessageId": str}, keep={"id": "MessageId"}),
     take(n=1, expect={"Messages": [{"MessageId": "$id", "Body": "message", "MD5OfBody": "78e731027d8fd50ed642340b7c9a63b3",
                                     "ReceiptHandle": str, "Attributes": Absent, "MessageAttributes": Absent}]}))
case("an empty message is refused", LS("test_send_empty_message"),
     queue(), send("", Error(MISSING, "The request must contain the parameter MessageBody.")))
case("a body is kept as it is", LS("test_send_receive_message_encoded_content"), queue(), send('"&quot;&quot;\r'), take('"&quot;&quot;\r'))
case("a carriage return survives", LS("test_message_with_carriage_return"), queue(), send("{\r\n\"machineID\" : \"d357006e26ff47439e1ef894225d4307\"}"),
     take("{\r\n\"machineID\" : \"d357006e26ff47439e1ef894225d4307\"}"))
case("XML and blanks in a body", GUIDE("Message metadata"), queue(), send("  <a b='c'>&amp;</a>\t\n "), take("  <a b='c'>&amp;</a>\t\n "))
case("characters beyond 16 bits", API("SendMessage, MessageBody"), queue(), send("grüße 😀 \U0010fffd"), take("grüße 😀 \U0010fffd"))
for bad in ("\0", "\x08", "\x1f", "￾", "￿"):
    case(f"{bad!r} is in no body", LS("test_send_message_with_invalid_payload_characters"), queue(), send(f"a{bad}b", Error("InvalidMessageContents")))
case("a body of 1 MiB", API("SendMessage, MessageBody"), queue(), send("x" * MIB), take("x" * MIB))
case("a message over 1 MiB with its attributes", LS("test_send_oversized_message"),
     queue(), send("a" * (MIB - 7), Error(INVALID, "Message must be shorter than 1048576 bytes."), MessageAttributes={"k": text("x")}))
case("a message over the queue's limit", LS("test_send_message_with_updated_maximum_message_size"),
     queue(), configure(MaximumMessageSize=1024), send("a" * 1024),
     send("a" * 1017, Error(INVALID, "Message must be shorter than 1024 bytes."), MessageAttributes={"k": text("x")}))
case("the limit counts bytes", API("CreateQueue, MaximumMessageSize"),
     queue(MaximumMessageSize=1024), send("ü" * 512), send("ü" * 513, Error(INVALID)))
case("an unknown system attribute cannot be sent", API("SendMessage, MessageSystemAttributes"),
     queue(), send("a", Error(INVALID), MessageSystemAttributes={"Foo": text("x")}))
case("a trace header comes with the message", LS("test_aws_trace_header_propagation"),
     queue(), send("a", MessageSystemAttributes={"AWSTraceHeader": text(TRACE)}),
     look({"Attributes": {"AWSTraceHeader": TRACE, "SenderId": Absent}}, AttributeNames=["AWSTraceHeader"]))
case("system attributes have a digest of their own", LS("test_system_attributes_have_no_effect_on_attr_md5"),
     queue(), send("a", {"MD5OfMessageAttributes": md5_of(k=("String", "v")),
                         "MD5OfMessageSystemAttributes": md5_of(AWSTraceHeader=("String", TRACE))},
                   MessageAttributes={"k": text("v")}, MessageSystemAttributes={"AWSTraceHeader": text(TRACE)}))
for seconds in (-1, 901):
    case(f"no message is delayed {seconds} s", API("SendMessage, DelaySeconds"), queue(), send("a", Error(INVALID), DelaySeconds=seconds))
case("a delayed message comes later", LS("test_send_delay_and_wait_time"),
     queue(), send("a", DelaySeconds=2), counts(0, 0, 1), take(), Tick(2), take("a"))
case("a queue delays its messages", API("CreateQueue, DelaySeconds"),
     queue(DelaySeconds=2), send("a"), take(), Tick(2), take("a"))
case("a message's delay wins over its queue's", API("SendMessage, DelaySeconds"),
     queue(DelaySeconds=900), send("a", DelaySeconds=0), take("a"))
case("delayed messages are counted apart", LS("test_approximate_number_of_messages_delayed"),
     queue(), send("a"), send("b", DelaySeconds=5), counts(1, 0, 1))
case("a standard queue takes no deduplication id", API("SendMessage, MessageDeduplicationId"),
     queue(), send("a", Error(INVALID), d="x"))
case("a group on a standard queue makes it fair", LS("test_fair_queue_with_message_group_id"),
     queue(), send("message", g="test"), look({"Attributes": {"MessageGroupId": "test", "SequenceNumber": Absent}}, AttributeNames=["All"]))
case("a group on a standard queue does not block", GUIDE("Amazon SQS fair queues"),
     queue(), send("a", g="t"), send("b", g="t"), take(n=1, expect={"Messages": [{"Body": str}]}), take(n=1, expect={"Messages": [{"Body": str}]}))
for bad in ("", "a" * 129, "group 123"):
    case(f"a group of a standard queue is not {bad[:10]!r}", LS("test_send_message_to_standard_queue_with_invalid_message_group_id"),
         queue(), send("a", Error(INVALID, "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length."), g=bad))

# ---- message attributes

case("attributes are received as they were sent", LS("test_send_message_with_attributes"),
     queue(), send("a", {"MD5OfMessageAttributes": md5_of(a1=("String", "test1"), a2=("Number", "-12.5"))},
                   MessageAttributes={"a1": text("test1"), "a2": text("-12.5", "Number")}),
     look({"MessageAttributes": {"a1": text("test1"), "a2": text("-12.5", "Number")},
           "MD5OfMessageAttributes": md5_of(a1=("String", "test1"), a2=("Number", "-12.5"))}, MessageAttributeNames=["All"]))
case("a binary attribute", LS("test_send_message_with_binary_attributes"),
     queue(), send("a", MessageAttributes={"attr1": binary(b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")}),
     look({"MessageAttributes": {"attr1": binary(b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")},
           "MD5OfMessageAttributes": "8cbe4db156db8a94db8b801b7addb984"}, MessageAttributeNames=["All"]))
case("a custom type", GUIDE("Message metadata, custom data types"),
     queue(), send("a", {"MD5OfMessageAttributes": md5_of(k=("Number.int", "5"), b=("Binary.gif", b"\0\xff"))},
                   MessageAttributes={"k": text("5", "Number.int"), "b": binary(b"\0\xff", "Binary.gif")}),
     look({"MessageAttributes": {"k": text("5", "Number.int"), "b": binary(b"\0\xff", "Binary.gif")}}, MessageAttributeNames=["All"]))
HELLO = {"Help.Me": text("Me"), "Hello": text("There"), "General": text("Kenobi")}
for names, wanted, digest in (
    ([], (), None),
    (["All"], tuple(HELLO), "4c360f3fdafd970e05fae2f149d997f5"),
    (["*"], tuple(HELLO), "4c360f3fdafd970e05fae2f149d997f5"),
    ([".*"], tuple(HELLO), "4c360f3fdafd970e05fae2f149d997f5"),
    (["Foo", "Help"], (), None),
    (["Hello", "General"], ("Hello", "General"), None),
    (["Foo", "Hello"], ("Hello",), "a311262e065454b75da111d535b8dacd"),
    (["Hel.*"], ("Hello", "Help.Me"), "83fee93c1bcd8b9a5a923ffacdc636c7"),
    (["AWS."], (), None),
    (["..foo"], (), None),
):
    shown: Any = {k: HELLO[k] if k in wanted else Absent for k in HELLO} if wanted else Absent
    case(f"MessageAttributeNames {names}", LS("test_receive_message_message_attribute_names_filters"),
         queue(), send("msg", {"MD5OfMessageAttributes": "4c360f3fdafd970e05fae2f149d997f5"}, MessageAttributes=HELLO),
         look({"MessageAttributes": shown, "MD5OfMessageAttributes": digest or (str if wanted else Absent)}, MessageAttributeNames=names))
case("an attribute with an empty value", LS("test_send_message_with_empty_string_attribute"),
     queue(), send("a", Error(INVALID, "Message (user) attribute 'ErrorDetails' must contain a non-empty value of type 'String'."),
                   MessageAttributes={"ErrorDetails": text("")}))
case("an attribute's name may have letters of any alphabet", LS("test_send_message_with_invalid_string_attributes"),
     queue(), send("a", MessageAttributes={"attr.1øßä": text("Valida")}), look({"MessageAttributes": {"attr.1øßä": text("Valida")}}, MessageAttributeNames=["All"]))
for bad in ("aWs.x", "AMAZON.x", ".x", "x.", "a!b", 'a"b', "a§b", "a(b", "a?b", "L" * 257):
    case(f"no attribute is named {bad[:10]!r}", LS("test_send_message_with_invalid_string_attributes"),
         queue(), send("a", Error(INVALID), MessageAttributes={bad: text("v")}))
for kind in ("Invalid", "", "string", "Number." + "L" * 256):
    case(f"no attribute is of type {kind[:10]!r}", LS("test_send_message_with_invalid_string_attributes"),
         queue(), send("a", Error(INVALID), MessageAttributes={"k": text("v", kind)}))
case("control characters are in no attribute", LS("test_send_message_with_invalid_string_attributes"),
     queue(), send("a", Error("InvalidParameterValue|InvalidMessageContents"), MessageAttributes={"k": text("a\x08b")}))
case("a number is a number", API("SendMessage, MessageAttributes"), queue(), send("a", Error(INVALID), MessageAttributes={"k": text("five", "Number")}))
case("a binary attribute without a value", GUIDE("Message metadata"), queue(), send("a", Error(INVALID), MessageAttributes={"k": {"DataType": "Binary"}}))
case("a message has ten attributes at most", GUIDE("Message quotas"),
     queue(), send("a", MessageAttributes={f"k{i}": text("v") for i in range(10)}),
     send("a", Error(INVALID), MessageAttributes={f"k{i}": text("v") for i in range(11)}))
case("attributes stay after a receive", LS("test_sent_message_retains_attributes_after_receive"),
     queue(), send("a", MessageAttributes={"k": text("v")}), *[look({"MessageAttributes": {"k": text("v")}}, MessageAttributeNames=["All"])] * 2)

# ---- receiving

case("an empty queue has no list of messages", LS("test_receive_empty_queue"), queue(), take(expect={"Messages": Absent}))
for wrong in (0, 11):
    case(f"MaxNumberOfMessages is not {wrong}", LS("test_send_receive_max_number_of_messages"),
         queue(), take(n=wrong, expect=Error(INVALID, f"Value {wrong} for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.")))
for wrong in (-1, 21):
    case(f"WaitTimeSeconds is not {wrong}", LS("test_send_receive_wait_time_seconds"),
         queue(), take(expect=Error(INVALID, f"Value {wrong} for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."), WaitTimeSeconds=wrong))
for wrong in (-1, 43201):
    case(f"VisibilityTimeout of a receive is not {wrong}", API("ReceiveMessage, VisibilityTimeout"),
         queue(), take(expect=Error(INVALID), VisibilityTimeout=wrong))
case("one message without MaxNumberOfMessages", API("ReceiveMessage, MaxNumberOfMessages"),
     queue(), send("a"), send("b"), do("ReceiveMessage", {"Messages": [{"Body": str}]}, QueueUrl="$q"))
case("ten messages at a time", API("ReceiveMessage, MaxNumberOfMessages"),
     queue(), sends(*"abcdefghij"), take(*"abcdefghij"))
case("queues do not share messages", LS("test_send_receive_message_multiple_queues"), queue("p"), queue(), send("a"), take(q="p"), take("a"))
case("system attributes of a receive", LS("test_receive_message_attribute_names_filters"),
     queue(), send("msg", MessageAttributes={"Foo": text("Bar")}),
     look({"Attributes": {"ApproximateFirstReceiveTimestamp": MILLIS, "ApproximateReceiveCount": "1", "SenderId": str, "SentTimestamp": MILLIS},
           "MessageAttributes": Absent}, AttributeNames=["All"]),
     look({"Attributes": {"ApproximateReceiveCount": "2"}, "MessageAttributes": {"Foo": text("Bar")},
           "MD5OfMessageAttributes": "ae7155c6026991b6d54b11589678bf9c"}, AttributeNames=["All"], MessageAttributeNames=["All"]),
     look({"Attributes": {"SenderId": str, "SentTimestamp": Absent}}, AttributeNames=["SenderId"]),
     look({"Attributes": {"SenderId": str, "SequenceNumber": Absent}}, AttributeNames=["SenderId", "SequenceNumber"]))
case("the newer name of the system attributes", LS("test_receive_message_message_system_attribute_names_filters"),
     queue(), send("msg"), look({"Attributes": {"SenderId": str, "SentTimestamp": MILLIS}}, MessageSystemAttributeNames=["All"]))
case("both names of the system attributes", LS("test_message_system_attribute_names_with_attribute_names"),
     queue(), send("msg"), look({"Attributes": {"SenderId": str, "SentTimestamp": MILLIS}}, MessageSystemAttributeNames=["All"], AttributeNames=["SenderId"]))
case("the receive count counts", API("ReceiveMessage, ApproximateReceiveCount"),
     queue(), send("a"), *[look({"Attributes": {"ApproximateReceiveCount": str(i)}}, AttributeNames=["ApproximateReceiveCount"]) for i in (1, 2, 3)])
case("a poll does not wait where messages are", LS("test_receive_message_wait_time_seconds_and_max_number_of_messages_does_not_block"),
     queue(), send("a"), take("a", n=3, WaitTimeSeconds=20))
case("a poll is answered by a send", LS("test_wait_time_seconds_waits_correctly"), queue(), poll("p", "a", seconds=20), Tick(0.05), send("a"), Done("p"))
case("a poll of the queue's own wait", LS("test_wait_time_seconds_queue_attribute_waits_correctly"),
     queue(ReceiveMessageWaitTimeSeconds=20), Call("ReceiveMessage", {"QueueUrl": "$q"}, {}, {}, ("a",), "h", "p"), Tick(0.05), send("a"), Done("p"))
case("a poll ends without messages", LS("test_receive_empty_queue"), queue(), take(expect={"Messages": Absent}, WaitTimeSeconds=1))
case("a poll of a FIFO group waits for the delete", LS("test_fifo_message_group_visibility"),
     cbd(VisibilityTimeout=60), send("a", g="1"), send("b", g="1"), take("a", n=1), poll("p", "b", seconds=20), Tick(0.05), delete("a"), Done("p"))
case("a poll is answered when a message becomes visible", LS("test_receive_after_visibility_timeout"),
     queue(), send("a"), take("a", VisibilityTimeout=2), poll("p", "a", seconds=20), Tick(2), Done("p"))
case("a poll is answered by a message given back", API("ChangeMessageVisibility"),
     queue(), send("a"), take("a"), poll("p", "a", seconds=20), Tick(0.05), hide("a", 0), Done("p"))

# ---- visibility and deletes, standard

case("a receive hides a message", GUIDE("Visibility timeout"), queue(), send("a"), take("a"), counts(0, 1), take(), Tick(30), counts(1), take("a"))
case("the queue's timeout", LS("test_receive_after_visibility_timeout"),
     queue(VisibilityTimeout=1), send("a"), take("a", save="old"), take(), Tick(1), take("a"),
     Call("GetQueueUrl", {"QueueName": lambda env: f"{env.prefix}-q"}, Check(lambda _, env: env["old:a"] != env["h:a"], "a newer handle")))
case("a receive's timeout wins over the queue's", LS("test_receive_message_with_visibility_timeout_updates_timeout"),
     queue(), send("a"), take("a", VisibilityTimeout=0), take("a", VisibilityTimeout=3), take(), Tick(3), take("a"))
case("a timeout of 0 hides nothing", LS("test_receive_terminate_visibility_timeout"), queue(), send("a"), take("a", VisibilityTimeout=0), take("a"), take())
case("a timeout is extended from now", API("ChangeMessageVisibility"),
     queue(VisibilityTimeout=2), send("a"), take("a"), *[Tick(1), hide("a", 2), take()] * 3, Tick(2), take("a"))
case("a change is not permanent", LS("test_change_message_visibility_not_permanent"),
     queue(), send("a"), take("a"), hide("a", 0), take("a"), take(), Tick(29), take(), Tick(1), take("a"))
case("an old handle ends the timeout of a newer receive", LS("test_terminate_visibility_timeout_after_receive"),
     queue(), send("a"), take("a", VisibilityTimeout=0, save="old"), take("a", VisibilityTimeout=30), hide("a", 0, h="old"), take("a"))
case("a timeout is extended after its end", LS("test_change_message_visibility_after_visibility_timeout_expiration"),
     queue(VisibilityTimeout=1), send("a"), take("a"), Tick(2), hide("a", 2), take(), Tick(2), take("a"))
for wrong in (-1, 43201):
    case(f"a timeout is not changed to {wrong}", API("ChangeMessageVisibility"), queue(), send("a"), take("a"), hide("a", wrong, Error(INVALID)))
case("no message is hidden longer than 12 hours in all", API("ChangeMessageVisibility"),
     queue(), send("a"), take("a", VisibilityTimeout=43200), Tick(600), hide("a", 43200, Error(INVALID)))
case("a made up handle", LS("test_invalid_receipt_handle_should_return_error_message"),
     queue(), do("ChangeMessageVisibility", Error(HANDLE), QueueUrl="$q", ReceiptHandle="INVALID", VisibilityTimeout=60))
case("a deleted message is gone", GUIDE("Message lifecycle"), queue(), send("a"), take("a"), delete("a"), counts(0, 0, 0), Tick(31), take())
case("deleting twice is no error", LS("test_delete_message_with_deleted_receipt_handle"), queue(), send("a"), take("a"), *[delete("a")] * 3)
case("a delete after the timeout", LS("test_delete_after_visibility_timeout"),
     queue(VisibilityTimeout=1), send("a"), take("a"), Tick(1), delete("a"), take())
case("a delete with an old handle", LS("test_remove_message_with_old_receipt_handle"),
     queue(), send("a"), take("a", VisibilityTimeout=1), Tick(2), delete("a"), counts(0))
case("a delete by garbage", LS("test_delete_message_with_illegal_receipt_handle"),
     queue(), do("DeleteMessage", Error(HANDLE, 'The input receipt handle "garbage" is not a valid receipt handle.'), QueueUrl="$q", ReceiptHandle="garbage"))
case("a delete after a change of the timeout", LS("test_delete_message_deletes_with_change_visibility_timeout"),
     queue(), send("a"), take("a"), take(), hide("a", 0), take("a"), delete("a"), take())
case("a deleted message is not hidden", LS("test_change_visibility_on_deleted_message_raises_invalid_parameter_value"),
     queue(), send("a"), take("a"), hide("a", 42), delete("a"), hide("a", 42, Error(
         INVALID, "Message does not exist or is not available for visibility timeout change.")))
case("messages in flight are counted", LS("test_approximate_number_of_messages_not_visible"),
     queue(VisibilityTimeout=5), sends(*"abcdef"), take(n=1, expect={"Messages": [{"Body": str}]}), counts(5, 1), Tick(5), counts(6))
case("a message waits behind its timeout while others come", LS("test_inflight_message_requeue"),
     queue(), send("a"), take("a", VisibilityTimeout=3), send("b"), take("b"), Tick(3), take("a"))
case("messages expire after the retention", LS("test_message_retention"),
     queue(MessageRetentionPeriod=60), send("a"), send("b"), Tick(65), take(), counts(0))
case("messages of a FIFO queue expire", LS("test_message_retention_fifo"),
     cbd(MessageRetentionPeriod=60), send("a", g="1"), send("b", g="2"), Tick(65), take())
case("a message in flight expires, too", LS("test_message_retention_with_inflight"),
     queue(MessageRetentionPeriod=60, VisibilityTimeout=60), send("a"), Tick(5), take("a"), Tick(61), take(), Tick(8), take(), delete("a"))
case("a purge takes what waits", LS("test_purge_queue"), queue(), sends(*"abc"), do("PurgeQueue", QueueUrl="$q"), take(), counts(0), send("d"), take("d"))
case("a purge takes what is in flight", LS("test_purge_queue_deletes_inflight_messages"),
     queue(), sends(*"abcd"), take(n=2, VisibilityTimeout=3, expect={"Messages": [{}, {}]}), do("PurgeQueue", QueueUrl="$q"), Tick(3), take(), counts(0))
case("a purge takes what is delayed", LS("test_purge_queue_deletes_delayed_messages"),
     queue(), send("a", DelaySeconds=2), do("PurgeQueue", QueueUrl="$q"), Tick(2), take(), counts(0))
case("a purge forgets deduplication ids", LS("test_purge_queue_clears_fifo_deduplication_cache"),
     fifo(), send("a", g="g", d="1"), do("PurgeQueue", QueueUrl="$q"), send("b", g="g", d="1"), take("b"))
case("a purge of a FIFO queue takes what is in flight", API("PurgeQueue"),
     cbd(), send("a", g="g"), send("b", g="g"), take("a", n=1), do("PurgeQueue", QueueUrl="$q"), send("c", g="g"), take("c"))

# ---- batches

case("a batch is sent", LS("test_send_message_batch"),
     queue(), sends("m-0", "m-1", expect={"Successful": [{"Id": "0", "MessageId": str, "MD5OfMessageBody": md5("m-0")}, {"Id": "1"}], "Failed": Absent}),
     take("m-0", "m-1"), take())
case("a batch is received and deleted", LS("test_publish_get_delete_message_batch"), queue(), sends(*"abcdefghij"), take(*"abcdefghij"), deletes(*"abcdefghij"),
     counts(0, 0), Tick(31), take())
for action in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
    case(f"{action} without entries", API(f"{action}, EmptyBatchRequest"),
         queue(), batch(action, expect=Error("AWS.SimpleQueueService.EmptyBatchRequest")), only=JSON)
    extra = {"MessageBody": "x"} if action == "SendMessageBatch" else {"ReceiptHandle": "x", "VisibilityTimeout": 1}
    if action == "DeleteMessageBatch":
        extra.pop("VisibilityTimeout")
    case(f"{action} of 20 entries", LS("test_too_many_entries_in_batch_request and others"),
         queue(), batch(action, *[extra] * 20, expect=Error("AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
                                                            "Maximum number of entries per request are 10. You have sent 20.")))
    for bad in ("", "invalid:id", "testLongId" * 9):
        case(f"{action}: no entry's id is {bad[:10]!r}", LS("test_invalid_batch_id, test_delete_message_batch_invalid_msg_id"),
             queue(), batch(action, {**extra, "Id": bad}, expect=Error(
                 "AWS.SimpleQueueService.InvalidBatchEntryId",
                 "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.")))
    case(f"{action}: ids are distinct", API(f"{action}, BatchEntryIdsNotDistinct"),
         queue(), batch(action, {**extra, "Id": "a"}, {**extra, "Id": "a"}, expect=Error("AWS.SimpleQueueService.BatchEntryIdsNotDistinct")))
case("a batch of more than 1 MiB", LS("test_send_message_batch_with_oversized_contents"),
     queue(), sends(entry("a" * (MIB - 8), MessageAttributes={"k": text("x")}), "a", expect=Error(
         "AWS.SimpleQueueService.BatchRequestTooLong", "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.")), counts(0))
case("a batch fails by entry", LS("test_send_batch_message_size"),
     queue(MaximumMessageSize=1024), sends("a" * 1024, "a" * 1025, expect={"Successful": [{"Id": "0"}], "Failed": [
         {"Id": "1", "SenderFault": True, "Code": INVALID, "Message": like(".*Message must be shorter than 1024 bytes.")}]}), counts(1))
case("each entry has the queue's limit", LS("test_send_message_batch_with_oversized_contents_with_updated_maximum_message_size"),
     queue(), configure(MaximumMessageSize=2048), sends(entry("a" * 2040, MessageAttributes={"k": text("x")}), "a"))
case("entries have delays of their own", API("SendMessageBatch, DelaySeconds"), queue(), sends(entry("a"), entry("b", DelaySeconds=2)), take("a"), Tick(2), take("b"))
case("a batch with a wrong character", API("SendMessageBatch, InvalidMessageContents"),
     queue(), sends("a", "b\0", expect={"Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "SenderFault": True, "Code": "InvalidMessageContents"}]}))
case("a batch of deletes with a wrong handle", API("DeleteMessageBatch"),
     queue(), send("a"), take("a"), batch("DeleteMessageBatch", {"ReceiptHandle": "$h:a"}, {"ReceiptHandle": "garbage"}, expect={
         "Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "SenderFault": True, "Code": HANDLE}]}))
case("a batch of timeouts", API("ChangeMessageVisibilityBatch"),
     queue(), sends("a", "b"), take("a", "b"), batch("ChangeMessageVisibilityBatch", {"ReceiptHandle": "$h:a", "VisibilityTimeout": 0},
                                                     {"ReceiptHandle": "$h:b", "VisibilityTimeout": 60}), take("a"))
case("a batch of timeouts fails by entry", API("ChangeMessageVisibilityBatch"),
     queue(), send("a"), take("a"), batch("ChangeMessageVisibilityBatch", {"ReceiptHandle": "$h:a", "VisibilityTimeout": 0},
                                          {"ReceiptHandle": "garbage", "VisibilityTimeout": 60}, expect={
         "Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "SenderFault": True, "Code": HANDLE}]}), take("a"))
case("a FIFO batch keeps its order", API("SendMessageBatch"), cbd(), sends(*(entry(b, "g") for b in "cabed")), take(*"cabed"))
case("a FIFO batch without a deduplication id fails whole", LS("test_send_batch_missing_deduplication_id_for_fifo_queue"),
     fifo(), sends(entry("a", "g", "d"), entry("b", "g"), expect=Error(
         INVALID, "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")), counts(0))
case("a FIFO batch without a group fails whole", LS("test_send_batch_missing_message_group_id_for_fifo_queue"),
     cbd(), sends(entry("a", "g"), entry("b"), expect=Error(INVALID, "The request must contain the parameter MessageGroupId.")), counts(0))
case("duplicates in a FIFO batch", API("SendMessageBatch, MessageDeduplicationId"), fifo(), sends(entry("a", "g", "1"), entry("b", "g", "1")), take("a"))

# ---- FIFO: sending

case("a FIFO queue needs a group", LS("test_posting_to_fifo_requires_deduplicationid_group_id"),
     cbd(), send("a", Error(MISSING, "The request must contain the parameter MessageGroupId.")))
case("a FIFO queue needs a deduplication id", LS("test_posting_to_fifo_requires_deduplicationid_group_id"),
     fifo(), send("a", Error(INVALID, "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"), g="g"))
case("no delay by message on a FIFO queue", LS("test_fifo_queue_send_message_with_delay_seconds_fails"),
     cbd(), send("a", Error(INVALID, "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type."), g="1", DelaySeconds=2))
case("a delay of 0 on a FIFO queue", LS("test_send_message_with_delay_0_works_for_fifo"), cbd(), send("a", g="g", DelaySeconds=0), take("a"))
case("a delay of 0 leaves the FIFO queue's delay", LS("test_fifo_queue_send_message_with_zero_delay_defaults_to_queue_delay"),
     cbd(DelaySeconds=2), send("a", g="g", DelaySeconds=0), take(), Tick(2), take("a"))
case("a FIFO queue's delay", LS("test_fifo_queue_send_message_with_delay_on_queue_works"),
     cbd(DelaySeconds=2), *(send(b, g="g") for b in "abc"), take(), Tick(2), take(*"abc", n=3))
case("a deduplication id of 128 characters", LS("test_message_deduplication_id_success"), fifo(), send("a", g="g", d="a" * 128), take("a"))
for bad in ("", "a" * 129, "group 123"):
    case(f"a deduplication id is not {bad[:10]!r}", LS("test_message_deduplication_id_invalid"),
         fifo(), send("a", Error(INVALID, "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length."), g="g", d=bad))
for bad in ("a" * 129, "a b", "ü"):
    case(f"a FIFO group is not {bad[:10]!r}", API("SendMessage, MessageGroupId"), cbd(), send("a", Error(INVALID), g=bad))
case("punctuation in both ids", API("SendMessage, MessageGroupId"),
     fifo(), send("a", g="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", d="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
     look({"Attributes": {"MessageGroupId": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "MessageDeduplicationId": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"}}, AttributeNames=["All"]))
case("attributes of a FIFO message", LS("test_fifo_message_attributes"),
     cbd(VisibilityTimeout=0, DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId"),
     send("message-body-1", {"MD5OfMessageBody": "19c9e282d65f9733bc6b35d50062c7ee", "SequenceNumber": like(r"\d{20}")}, g="group-1", d="dedup-1", keep={"seq": "SequenceNumber"}),
     *(look({"Attributes": {"ApproximateFirstReceiveTimestamp": MILLIS, "ApproximateReceiveCount": n, "MessageDeduplicationId": "dedup-1",
                            "MessageGroupId": "group-1", "SenderId": str, "SentTimestamp": MILLIS, "SequenceNumber": "$seq"}}, AttributeNames=["All"]) for n in "12"))
case("sequence numbers grow", LS("test_fifo_sequence_number_increases"),
     cbd(), send("a", g="g", keep={"first": "SequenceNumber"}), send("b", {"SequenceNumber": GREATER}, g="g"), send("c", {"SequenceNumber": GREATER}, g="g"))
case("a standard queue has no sequence numbers", LS("test_sequence_number"), queue(), send("a", {"SequenceNumber": Absent}))
case("the digest of the content is the deduplication id", API("SendMessage, MessageDeduplicationId"),
     cbd(), send("a", g="g"), look({"Attributes": {"MessageDeduplicationId": hashlib.sha256(b"a").hexdigest()}}, AttributeNames=["All"]))

# ---- FIFO: deduplication

case("a duplicate is accepted and not delivered", API("SendMessage, MessageDeduplicationId"),
     fifo(), send("a", g="g", d="1", keep={"id": "MessageId", "seq": "SequenceNumber"}),
     send("b", {"MessageId": "$id", "SequenceNumber": "$seq", "MD5OfMessageBody": md5("b")}, g="g", d="1"), take("a"), counts(0, 1))
case("content is deduplicated", LS("test_fifo_content_based_message_deduplication_arrives_once"),
     cbd(), send("a", g="g"), send("a", g="g"), take("a", n=1), take())
case("attributes do not count as content", API("SendMessage, MessageDeduplicationId"),
     cbd(), send("a", g="g"), send("a", g="g", MessageAttributes={"k": text("v")}), counts(1))
case("an explicit id wins over the content", API("SendMessage, MessageDeduplicationId"), cbd(), send("a", g="g", d="1"), send("a", g="g", d="2"), take("a", "a"))
case("an explicit id that is the content's", API("SendMessage, MessageDeduplicationId"),
     cbd(), send("a", g="g"), send("b", g="g", d=hashlib.sha256(b"a").hexdigest()), take("a"))
for by_content in (False, True):
    case(f"a duplicate after the delete{', by content' * by_content}", LS("test_fifo_deduplication_arrives_once_after_delete"),
         (cbd if by_content else fifo)(), send("a", g="g", d=None if by_content else "1"), take("a"), delete("a"),
         send("a", g="g", d=None if by_content else "1"), take())
    case(f"a duplicate in another group{', by content' * by_content}", LS("test_fifo_deduplication_not_on_message_group_id"),
         (cbd if by_content else fifo)(), send("a", g="1", d=None if by_content else "1"), send("a", g="2", d=None if by_content else "1"),
         take("a"), take())
case("no duplicate in another group by scope", LS("test_fifo_high_throughput_ordering"),
     fifo(DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId"),
     send("a", g="1", d="same"), take("a"), delete("a"), send("b", g="2", d="same"), take("b"))
case("the scope does not depend on the throughput", LS("test_sqs_fifo_message_group_scope_no_throughput_setting"),
     cbd(DeduplicationScope="messageGroup"), send("a", g="1"), take("a"), delete("a"), send("a", g="2"), take("a"))
case("a duplicate in the same group by scope", API("CreateQueue, DeduplicationScope"),
     fifo(DeduplicationScope="messageGroup"), send("a", g="1", d="x"), send("b", g="1", d="x"), take("a"))
case("deduplication ends after five minutes", LS("test_deduplication_interval"),
     fifo(), send("a", g="g", d="1"), take("a"), delete("a"), Tick(290), send("b", g="g", d="1"), take(), Tick(15), send("c", g="g", d="1"), take("c"))
case("ids are kept apart by queue", API("SendMessage, MessageDeduplicationId"),
     fifo("p"), fifo(), send("a", g="g", d="1", q="p"), send("b", g="g", d="1"), take("a", q="p"), take("b"))

# ---- FIFO: order and visibility

case("a group comes in order", GUIDE("FIFO queue delivery logic"), cbd(), *(send(b, g="g") for b in "cab"), take("c", "a", "b"))
case("one by one, each after the delete", LS("test_fifo_queue_send_multiple_messages_multiple_single_receives"),
     cbd(), *(send(b, g="g") for b in "abc"), *(s for b in "abc" for s in (take(b, n=1), take(), delete(b))))
case("a group is hidden while one of its messages is", GUIDE("FIFO queue delivery logic"),
     cbd(), send("a", g="1"), send("b", g="1"), send("c", g="2"), take("a", n=1), take("c"), take())
case("as many of one group as possible", LS("test_fifo_receive_message_group_id_ordering"),
     cbd(), send("a1", g="a"), send("b1", g="b"), send("a2", g="a"), send("a3", g="a"), take("a1", "a2", "a3", "b1"))
case("a group is received again in order after the timeout", LS("test_fifo_messages_in_order_after_timeout"),
     cbd(VisibilityTimeout=1), *(send(b, g="g") for b in "abc"), take(*"abc"), Tick(2), take(*"abc"))
case("the rest of a group waits for its first messages", LS("test_fifo_receive_message_visibility_timeout_shared_in_group"),
     cbd(VisibilityTimeout=2), *(send(b, g="1") for b in ("a1", "a2", "a3", "a4")), send("b1", g="2"), take("a1", "a2", n=2), take("b1", n=1), take(),
     Tick(3), take(n=10, expect={"Messages": Check(lambda v, _: [m["Body"] for m in v if m["Body"][0] == "a"] == ["a1", "a2", "a3", "a4"] and len(v) == 5,
                                                   "a1 to a4 in order, and b1")}))
case("a timeout of 0 on a FIFO queue", LS("test_fifo_receive_message_with_zero_visibility_timeout"),
     cbd(), send("a1", g="a"), send("b1", g="b"), send("b2", g="b"), send("a2", g="a"), take("a1", "a2", "b1", n=3, VisibilityTimeout=0),
     take(expect={"Messages": Check(lambda v, _: sorted(m["Body"] for m in v) == ["a1", "a2", "b1", "b2"]
                                    and [m["Body"] for m in v if m["Body"][0] == "b"] == ["b1", "b2"], "all four, groups in order")}, VisibilityTimeout=0))
case("a message given back comes alone while later ones are hidden", LS("test_fifo_message_group_visibility_after_terminate_visibility_timeout"),
     cbd(), send("a1", g="a"), send("a2", g="a"), take("a1", "a2"), hide("a1", 0), take("a1"), take())
case("a message whose changed timeout ended comes alone", LS("test_fifo_message_group_visibility_after_change_message_visibility"),
     cbd(), send("a1", g="a"), send("a2", g="a"), take("a1", "a2"), hide("a1", 1), Tick(2), take("a1"), take())
for i, rest in enumerate(((), ("foo",), ("foo", "bar"))):
    case(f"the timeout of message {i} holds back it and what follows", LS("test_fifo_group_visibility_extends_with_change_message_visibility"),
         cbd(VisibilityTimeout=1), *(send(b, g="1") for b in ("foo", "bar", "baz")), take("foo", "bar", "baz"), hide(("foo", "bar", "baz")[i], 4),
         Tick(2), take(*rest))
case("a group is visible after all deletes", LS("test_fifo_message_group_visibility_after_delete"),
     cbd(), *(send(b, g="a") for b in ("a1", "a2", "a3")), take("a1", "a2", n=2), delete("a1"), delete("a2"), take("a3"))
case("a group is hidden after some deletes", LS("test_fifo_message_group_visibility_after_partial_delete"),
     cbd(), *(send(b, g="a") for b in ("a1", "a2", "a3")), send("b1", g="b"), take("a1", "a2", n=2), delete("a1"), take("b1"), take())
case("a delete out of order", GUIDE("FIFO queue delivery logic"),
     cbd(VisibilityTimeout=2), *(send(b, g="a") for b in "abc"), take(*"abc"), delete("b"), Tick(3), take("a", "c"))
case("a message that arrives behind hidden ones waits", GUIDE("FIFO queue delivery logic"),
     cbd(), send("a", g="g"), take("a"), send("b", g="g"), take(), delete("a"), take("b"))
case("a group that was emptied works again", LS("test_fifo_empty_message_groups_added_back_to_queue"),
     cbd(), send("a", g="g"), take("a"), delete("a"), take(), send("b", g="g"), take("b"))
case("a delete after the timeout is refused on FIFO", LS("test_fifo_delete_after_visibility_timeout"),
     cbd(VisibilityTimeout=1), send("a", g="1"), take("a"), Tick(1), delete("a", Error(INVALID, EXPIRED)), take("a"))
case("a delete with a handle from before another receive is refused on FIFO", API("ReceiveMessage, ReceiveRequestAttemptId"),
     cbd(VisibilityTimeout=1), send("a", g="1"), take("a", save="old"), Tick(1), take("a"), delete("a", Error(INVALID), h="old"), delete("a"), take())
case("a delete within an extended timeout", LS("test_fifo_delete_after_visibility_timeout_extended"),
     cbd(VisibilityTimeout=1), send("a", g="1"), take("a"), hide("a", 5), Tick(1.5), delete("a"), Tick(5), take())
case("deleting twice on FIFO", API("DeleteMessage"), cbd(), send("a", g="1"), take("a"), delete("a"), delete("a"))
case("FIFO: a timeout is not extended after its end", API("ChangeMessageVisibility"),
     cbd(VisibilityTimeout=1), send("a", g="1"), take("a"), Tick(2), hide("a", 5, Error(INVALID)), take("a"))
case("FIFO: messages in flight are counted, not groups", LS("test_fifo_approximate_number_of_messages_not_visible"),
     cbd(VisibilityTimeout=5), *(send(f"m{i}", g=str(i // 2)) for i in range(6)), take("m0", n=1), take("m2", n=1), counts(4, 2), Tick(5), counts(6))
case("FIFO: the number of messages", LS("test_fifo_approx_number_of_messages"),
     cbd(), *(send(f"m{i}", g=g) for i, g in enumerate("11123")), counts(5), take(n=4, expect={"Messages": [{}, {}, {}, {}]}), counts(1, 4))
case("FIFO: a batch of deletes", API("DeleteMessageBatch"), cbd(), *(send(b, g="g") for b in "abc"), take(*"abc"), deletes(*"abc"), counts(0, 0), take())
case("FIFO: a batch of timeouts of 0 gives the group back in order", API("ChangeMessageVisibilityBatch"),
     cbd(), *(send(b, g="g") for b in "abc"), take(*"abc"),
     batch("ChangeMessageVisibilityBatch", *({"ReceiptHandle": f"$h:{b}", "VisibilityTimeout": 0} for b in "cba")), take(*"abc"))
case("FIFO: the receive count counts", API("ReceiveMessage, ApproximateReceiveCount"),
     cbd(), send("a", g="g"), *(look({"Attributes": {"ApproximateReceiveCount": n}}, AttributeNames=["All"]) for n in "123"))
case("FIFO: the receive count counts every message of a batch", GUIDE("Dead-letter queues, maxReceiveCount"),
     cbd(VisibilityTimeout=1), send("a", g="g"), send("b", g="g"), take("a", "b"), Tick(2),
     take(expect={"Messages": [{"Attributes": {"ApproximateReceiveCount": "2"}}] * 2}, AttributeNames=["All"]))
case("an attempt id repeats a receive", API("ReceiveMessage, ReceiveRequestAttemptId"),
     cbd(), send("a", g="g"), send("b", g="g"), take("a", n=1, ReceiveRequestAttemptId="x"), take(),
     take(n=1, expect={"Messages": [{"Body": "a", "ReceiptHandle": "$h:a"}]}, ReceiveRequestAttemptId="x"))
case("an attempt id renews the timeout", API("ReceiveMessage, ReceiveRequestAttemptId"),
     cbd(VisibilityTimeout=3), send("a", g="g"), take("a", ReceiveRequestAttemptId="x"), Tick(2), take("a", ReceiveRequestAttemptId="x"), Tick(2), take(),
     Tick(1.5), take("a"))
case("an attempt id is of no use after a delete", API("ReceiveMessage, ReceiveRequestAttemptId"),
     cbd(), send("a", g="g"), take("a", ReceiveRequestAttemptId="x"), delete("a"), take(ReceiveRequestAttemptId="x"))
case("an attempt id has 128 characters at most", API("ReceiveMessage, ReceiveRequestAttemptId"),
     cbd(), take(expect=Error(INVALID), ReceiveRequestAttemptId="a" * 129))

# ---- dead letters

case("a message is moved after maxReceiveCount receives", LS("test_dead_letter_queue_max_receive_count"),
     queue("dlq"), queue(RedrivePolicy=dead_to("dlq", 1), VisibilityTimeout=0), send("a", keep={"id": "MessageId"}), take("a"), take(),
     take(q="dlq", expect={"Messages": [{"MessageId": "$id", "Body": "a"}]}))
case("what a dead letter keeps", LS("test_dead_letter_queue_message_attributes"),
     queue("dlq"), queue(RedrivePolicy=dead_to("dlq", 1)), send("m", MessageAttributes={"k": text("v")}, MessageSystemAttributes={"AWSTraceHeader": text(TRACE)}),
     take("m", VisibilityTimeout=0), take(),
     take(q="dlq", expect={"Messages": [{"Attributes": {"AWSTraceHeader": TRACE, "ApproximateReceiveCount": "2", "SentTimestamp": MILLIS,
                                                         "DeadLetterQueueSourceArn": like(r"arn:aws:sqs:us-east-1:\d{12}:c\w{12}-q")},
                                          "MessageAttributes": {"k": text("v")}}]}, AttributeNames=["All"], MessageAttributeNames=["All"]))
case("FIFO: a dead letter lets its group go on", LS("test_dead_letter_queue_with_fifo_and_content_based_deduplication"),
     cbd("dlq"), cbd(RedrivePolicy=dead_to("dlq", 2)), send("a", g="1", keep={"id": "MessageId"}), send("b", g="1"),
     *[take("a", n=1, VisibilityTimeout=0)] * 2, take("b", n=1), take(q="dlq", expect={"Messages": [{"MessageId": "$id", "Body": "a"}]}),
     send("c", g="1"), delete("b"), take("c"))
case("FIFO: dead letters keep their group and order", GUIDE("Dead-letter queues"),
     cbd("dlq"), cbd(RedrivePolicy=dead_to("dlq", 1)), *(send(b, g="g") for b in "abc"), take(*"abc", VisibilityTimeout=0), take(), take(*"abc", q="dlq"))
case("FIFO: a message that dies twice within five minutes", GUIDE("Dead-letter queues, redrive"),
     cbd("dlq"), cbd(RedrivePolicy=dead_to("dlq", 1)), send("a", g="g"), take("a", VisibilityTimeout=0), take(), counts(1, q="dlq"),
     do("StartMessageMoveTask", SourceArn=arn("dlq")), take("a", WaitTimeSeconds=5, VisibilityTimeout=0), take(), counts(1, q="dlq"), take("a", q="dlq"))
for name, policy in {
    "without a count": lambda env: json.dumps({"deadLetterTargetArn": env.arn("dlq")}),
    "without a target": lambda _env: json.dumps({"maxReceiveCount": "42"}),
    "with a count that is none": dead_to("dlq", "invalid"),
    "with a count of 0": dead_to("dlq", 0),
    "with a count of 1,001": dead_to("dlq", 1001),
    "that is no JSON": lambda _env: "{",
}.items():
    case(f"a redrive policy {name}", LS("test_redrive_policy_attribute_validity"), queue("dlq"), queue(), configure(Error(INVALID), RedrivePolicy=policy))
case("a redrive policy with a dummy target", LS("test_invalid_dead_letter_arn_rejected_before_lookup"),
     queue(expect=Error(INVALID), RedrivePolicy=json.dumps({"deadLetterTargetArn": "dummy", "maxReceiveCount": 42})))
case("a redrive policy to a queue that is not there", API("CreateQueue, RedrivePolicy"),
     queue(), configure(Error(INVALID), RedrivePolicy=lambda env: json.dumps({"deadLetterTargetArn": env.arn("q") + "x", "maxReceiveCount": 1})))
case("a redrive policy with the count as text", LS("test_redrive_policy_attribute_validity"),
     queue("dlq"), queue(), configure(RedrivePolicy=dead_to("dlq", "42")), attributes({"RedrivePolicy": as_json(lambda env: {"deadLetterTargetArn": env.arn("dlq"), "maxReceiveCount": 42})}))
case("a redrive policy is removed", LS("test_set_empty_redrive_policy"),
     queue("dlq"), queue(RedrivePolicy=dead_to("dlq", 42)), configure(RedrivePolicy=""), attributes({"RedrivePolicy": Absent}, "All"))
case("the dead-letter queue of a FIFO queue is FIFO", API("CreateQueue, RedrivePolicy"), queue("dlq"), fifo(), configure(Error(INVALID), RedrivePolicy=dead_to("dlq", 1)))
case("the dead-letter queue of a standard queue is standard", API("CreateQueue, RedrivePolicy"), fifo("dlq"), queue(), configure(Error(INVALID), RedrivePolicy=dead_to("dlq", 1)))
case("the sources of a dead-letter queue", LS("test_dead_letter_queue_list_sources"),
     queue("dlq"), queue("a", RedrivePolicy=dead_to("dlq", 50)), queue("b", RedrivePolicy=dead_to("dlq", 50)), queue("c"),
     do("ListDeadLetterSourceQueues", {"queueUrls": ends("a", "b")}, QueueUrl="$dlq"))
case("a queue that denies to be a dead-letter queue", API("CreateQueue, RedriveAllowPolicy"),
     queue("dlq", RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"})), queue(), configure(Error(INVALID), RedrivePolicy=dead_to("dlq", 1)))
case("a queue that allows some sources", API("CreateQueue, RedriveAllowPolicy"),
     queue(), queue("p"), queue("dlq", RedriveAllowPolicy=lambda env: json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [env.arn("q")]})),
     configure(RedrivePolicy=dead_to("dlq", 1)), configure(Error(INVALID), q="p", RedrivePolicy=dead_to("dlq", 1)))
case("a permission to redrive has named values", API("CreateQueue, RedriveAllowPolicy"),
     queue(expect=Error(VALUE), RedriveAllowPolicy=json.dumps({"redrivePermission": "some"})))

# ---- moving dead letters

DYING = (queue("dlq"), queue(RedrivePolicy=dead_to("dlq", 1)), send("a"), send("b"), *[take(expect={}, VisibilityTimeout=0)] * 2, counts(2, q="dlq"))
case("dead letters are moved to another queue", MOVES("test_basic_move_task_workflow"),
     *DYING, queue("to"), do("StartMessageMoveTask", {"TaskHandle": str}, SourceArn=arn("dlq"), DestinationArn=arn("to")),
     take(q="to", n=1, expect={"Messages": [{"Body": str}]}, WaitTimeSeconds=5), take(q="to", n=1, expect={"Messages": [{"Body": str}]}, WaitTimeSeconds=5), Tick(1),
     do("ListMessageMoveTasks", {"Results": [{"ApproximateNumberOfMessagesMoved": 2, "ApproximateNumberOfMessagesToMove": 2, "Status": "COMPLETED",
                                              "TaskHandle": Absent, "StartedTimestamp": int, "DestinationArn": str}]}, SourceArn=arn("dlq")), take(q="dlq"))
case("dead letters are moved back", MOVES("test_move_task_workflow_with_default_destination"),
     *DYING, do("StartMessageMoveTask", {"TaskHandle": str}, SourceArn=arn("dlq")), Tick(1), take("a", "b", WaitTimeSeconds=5),
     do("ListMessageMoveTasks", {"Results": [{"DestinationArn": Absent, "Status": "COMPLETED"}]}, SourceArn=arn("dlq")))
case("dead letters of two sources are moved back", MOVES("test_move_task_workflow_with_multiple_sources_as_default_destination"),
     *DYING, queue("r", RedrivePolicy=dead_to("dlq", 1)), send("c", q="r"), *[take(q="r", expect={}, VisibilityTimeout=0)] * 2, counts(3, q="dlq"),
     do("StartMessageMoveTask", SourceArn=arn("dlq")), Tick(1), take("a", "b", WaitTimeSeconds=5), take("c", q="r", WaitTimeSeconds=5))
case("FIFO: dead letters are moved back in order", GUIDE("Dead-letter queue redrive"),
     cbd("dlq"), cbd(RedrivePolicy=dead_to("dlq", 1)), *(send(b, g="g") for b in "abc"), take(*"abc", VisibilityTimeout=0), take(),
     do("StartMessageMoveTask", SourceArn=arn("dlq")), Tick(1), take(*"abc", WaitTimeSeconds=5))
case("only a dead-letter queue is moved", MOVES("test_source_needs_redrive_policy"),
     queue(), queue("to"), do("StartMessageMoveTask", Error(INVALID, "Source queue must be configured as a Dead Letter Queue."), SourceArn=arn("q"), DestinationArn=arn("to")))
case("the source of a move exists", API("StartMessageMoveTask, ResourceNotFoundException"),
     queue(), do("StartMessageMoveTask", Error("ResourceNotFoundException", "SourceArn parameter doesn't exist", 404), SourceArn=arn("q", "x")))
case("the target of a move exists", MOVES("test_destination_needs_to_exist"),
     *DYING[:2], do("StartMessageMoveTask", Error("ResourceNotFoundException", "The resource that you specified for the DestinationArn parameter doesn't exist.", 404),
                    SourceArn=arn("dlq"), DestinationArn=arn("q", "doesntexist")))
for rate in (0, 501):
    case(f"no move has a rate of {rate}", API("StartMessageMoveTask, MaxNumberOfMessagesPerSecond"),
         *DYING[:2], do("StartMessageMoveTask", Error(INVALID), SourceArn=arn("dlq"), MaxNumberOfMessagesPerSecond=rate))
case("one move at a time, which can be cancelled", MOVES("test_start_multiple_move_tasks, test_move_task_cancel"),
     *DYING, sends(*"cdefghij"), *[take(expect={}, VisibilityTimeout=0)] * 2,
     do("StartMessageMoveTask", {"TaskHandle": str}, {"task": "TaskHandle"}, SourceArn=arn("dlq"), MaxNumberOfMessagesPerSecond=1),
     do("StartMessageMoveTask", Error(INVALID, "There is already a task running. Only one active task is allowed for a source queue arn at a given time."), SourceArn=arn("dlq")),
     do("ListMessageMoveTasks", {"Results": [{"Status": "RUNNING", "TaskHandle": "$task", "MaxNumberOfMessagesPerSecond": 1}]}, SourceArn=arn("dlq")),
     do("CancelMessageMoveTask", {"ApproximateNumberOfMessagesMoved": int}, TaskHandle="$task"), Tick(1),
     do("ListMessageMoveTasks", {"Results": [{"Status": Check(lambda v, _: v in ("CANCELLED", "CANCELLING"), "cancelled")}]}, SourceArn=arn("dlq")),
     take(q="dlq", n=1, expect={"Messages": [{"Body": str}]}))
case("a task handle names its task and source", MOVES("test_basic_move_task_workflow"),
     *DYING[:2], do("StartMessageMoveTask", {"TaskHandle": Check(lambda v, env: json.loads(base64.b64decode(v))["sourceArn"] == env.arn("dlq"), "base64 of JSON")}, SourceArn=arn("dlq")))
case("a task handle that is none", MOVES("test_cancel_with_invalid_task_handle"), do("CancelMessageMoveTask", Error(INVALID, "Value for parameter TaskHandle is invalid."), TaskHandle="foobared"))


def task(of: str) -> Callable[[Env], str]:
    return lambda env: base64.b64encode(json.dumps({"taskId": "10f57157-fc38-4da9-a113-4de7e12d05aa", "sourceArn": env.arn("q") + of}).encode()).decode()


case("a task handle of no task", MOVES("test_cancel_with_invalid_task_id_in_task_handle"),
     queue(), do("CancelMessageMoveTask", Error("ResourceNotFoundException", "Task does not exist.", 404), TaskHandle=task("")))
case("a task handle of no queue", MOVES("test_cancel_with_invalid_source_arn_in_task_handle"),
     queue(), do("CancelMessageMoveTask", Error("ResourceNotFoundException", "SourceArn parameter doesn't exist", 404), TaskHandle=task("x")))
case("a list of moves has ten at most", API("ListMessageMoveTasks, MaxResults"), *DYING[:2], do("ListMessageMoveTasks", Error(INVALID), SourceArn=arn("dlq"), MaxResults=11))
case("no moves, an empty list", API("ListMessageMoveTasks"), *DYING[:2], do("ListMessageMoveTasks", {"Results": Check(lambda v, _: not v, "empty")}, SourceArn=arn("dlq")), only=JSON)

# ---- what is missing

for action, params, name in (
    ("SendMessage", {"QueueUrl": "$q"}, "MessageBody"),
    ("DeleteMessage", {"QueueUrl": "$q"}, "ReceiptHandle"),
    ("ChangeMessageVisibility", {"QueueUrl": "$q", "ReceiptHandle": "x"}, "VisibilityTimeout"),
    ("CreateQueue", {}, "QueueName"),
    ("TagQueue", {"QueueUrl": "$q"}, "Tags"),
):
    case(f"{action} without {name}", LS("test_valid_action_with_missing_parameter_raises_exception"),
         queue(), Call(action, params, Error(MISSING, f"The request must contain the parameter {name}.")))
