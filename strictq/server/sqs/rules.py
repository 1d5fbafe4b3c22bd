"""What SQS accepts: names, attributes, bounds, sizes; and its digests. The model has none of these."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .errors import SqsError, bad, invalid, missing

Attributes = Mapping[str, Any]
"""Attributes of a message, as the model has checked them."""

MESSAGE_BYTES_MAX: Final = 1_048_576
BATCH_MAX: Final = 10
ATTRIBUTES_MAX: Final = 10
TAGS_MAX: Final = 50
TAG_KEY_CHARS_MAX: Final = 128
TAG_VALUE_CHARS_MAX: Final = 256
WAIT_SECONDS_MAX: Final = 20
VISIBILITY_SECONDS_MAX: Final = 43_200
PAGE_MAX: Final = 1_000
DEDUPLICATION: Final = "StrictqDeduplicationSeconds"
VERSION: Final = "StrictqVersion"

NUMBERS: Final[Mapping[str, tuple[int, int, int | None]]] = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": (0, WAIT_SECONDS_MAX, 0),
    "VisibilityTimeout": (0, VISIBILITY_SECONDS_MAX, 30),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, None),
    DEDUPLICATION: (1, 1_209_600, None),
}
"""Numeric attributes of a queue: least, most, and the default."""
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "SqsManagedSseEnabled": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_BOOLEAN: Final = ("true", "false")
FIFO_DEFAULTS: Final = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
DEFAULTS: Final = {name: str(default) for name, (_, _, default) in NUMBERS.items() if default is not None} | {
    "SqsManagedSseEnabled": "true"
}
READ_ONLY: Final = (
    "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed", VERSION,
)  # fmt: skip
_REMOVABLE: Final = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId")
"""Attributes that an empty value removes."""
KNOWN: Final = frozenset((*NUMBERS, *CHOICES, *READ_ONLY, *_REMOVABLE))

_EVERY: Final = frozenset(("All", "*", ".*"))
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ID: Final = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
_ATTRIBUTE: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE: Final = re.compile(r"-?[0-9]{1,9}")
_NAME_CHARS_MAX: Final = 80
_ATTRIBUTE_CHARS_MAX: Final = 256
_RECEIVES_MAX: Final = 1_000
_DELAY_SECONDS_MAX: Final = 900
_BAD_NAME: Final = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_BAD_ID: Final = "can only include alphanumeric and punctuation characters. 1 to 128 in length."
_BAD_CHARACTERS: Final = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF."
)
_UNPAID_ID: Final = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"


# ---- queues


def is_fifo(name: str) -> bool:
    """Return whether a queue of this name is a FIFO queue."""
    return name.endswith(".fifo")


def check_name(name: str, given: Mapping[str, str]) -> None:
    """Check the name of a new queue, and whether it agrees with the attribute FifoQueue."""
    fifo = given.get("FifoQueue", "").lower() == "true"
    if fifo and not is_fifo(name):
        raise invalid(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo "
            "suffix and be 1 to 80 in length."
        )
    if not _NAME.fullmatch(name.removesuffix(".fifo")) or len(name) > _NAME_CHARS_MAX or (is_fifo(name) and not fifo):
        raise invalid(_BAD_NAME)


def checked_attributes(
    name: str, given: Mapping[str, str], old: Mapping[str, str], redrive: Callable[[str], str]
) -> dict[str, str]:
    """Return the attributes of a queue with these changes, normalized.

    Args:
        redrive: returns a redrive policy, normalized.
    """
    found = dict(old)
    for key, text in given.items():
        value = text.lower() if CHOICES.get(key) == _BOOLEAN else text
        _check_attribute(key, value, fifo=is_fifo(name))
        if value == "" and key in _REMOVABLE:
            found.pop(key, None)
        elif key == "RedrivePolicy":
            found[key] = redrive(value)
        elif key in NUMBERS:
            found[key] = str(int(value))
        else:
            found[key] = value
    if found.get("FifoThroughputLimit") == "perMessageGroupId" and found.get("DeduplicationScope") != "messageGroup":
        raise _wrong_value(
            "FifoThroughputLimit",
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
        )
    return found


def _check_attribute(name: str, value: str, *, fifo: bool) -> None:
    if name not in KNOWN or name in READ_ONLY or (not fifo and name in ("FifoQueue", "ContentBasedDeduplication")):
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    if not fifo and name in (*FIFO_DEFAULTS, DEDUPLICATION):
        raise SqsError("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true.")
    if name in NUMBERS:
        least, most, _ = NUMBERS[name]
        if not _WHOLE.fullmatch(value) or not least <= int(value) <= most:
            raise _wrong_value(name)
    elif name in CHOICES:
        if value not in CHOICES[name]:
            raise _wrong_value(name)
        if name == "FifoQueue" and value == "false":
            raise _wrong_value(name, "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.")
    elif value and name in ("Policy", "RedriveAllowPolicy"):
        document = _object(value)
        if document is None:
            raise _wrong_value(name)
        if name == "RedriveAllowPolicy" and document.get("redrivePermission") not in ("allowAll", "denyAll", "byQueue"):
            raise _wrong_value(name)


def _wrong_value(name: str, reason: str = "") -> SqsError:
    return SqsError("InvalidAttributeValue", reason or f"Invalid value for the parameter {name}.")


def _object(text: str) -> dict[str, Any] | None:
    """Return a JSON object; None if the text is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class Redrive(NamedTuple):
    """A redrive policy."""

    target: str
    receives: int

    @classmethod
    def of(cls, text: str | None) -> Redrive | None:
        """Return the policy of a normalized attribute."""
        if text is None:
            return None
        policy = json.loads(text)
        return cls(policy["deadLetterTargetArn"], policy["maxReceiveCount"])

    def __str__(self) -> str:
        return json.dumps({"deadLetterTargetArn": self.target, "maxReceiveCount": self.receives}, separators=(",", ":"))


def checked_redrive(text: str, *, fifo: bool, source: str, target: Callable[[str], Mapping[str, str] | None]) -> Redrive:
    """Check a redrive policy.

    Args:
        fifo, source: of the queue that has the policy; source is its ARN.
        target: returns the attributes of the queue with an ARN; None if there is none.
    """

    def refused(reason: str) -> SqsError:
        return invalid(f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}")

    policy = _object(text)
    if policy is None:
        raise refused("Redrive policy is not a valid JSON map.")
    if "deadLetterTargetArn" not in policy:
        raise refused("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
    if "maxReceiveCount" not in policy:
        raise refused("Redrive policy does not contain mandatory attribute: maxReceiveCount.")
    count = policy["maxReceiveCount"]
    if isinstance(count, bool) or not _WHOLE.fullmatch(str(count)) or not 1 <= int(count) <= _RECEIVES_MAX:
        raise refused("Invalid value for maxReceiveCount: must be between 1 and 1000.")
    arn = str(policy["deadLetterTargetArn"])
    attributes = target(arn)
    if attributes is None:
        raise refused("Dead letter target does not exist.")
    if is_fifo(arn) != fifo:
        raise refused("Dead-letter queue must be same type of queue as the source.")
    allow = json.loads(attributes.get("RedriveAllowPolicy", "{}"))
    permission = allow.get("redrivePermission")
    if permission == "denyAll" or (permission == "byQueue" and source not in (allow.get("sourceQueueArns") or ())):
        raise refused("Dead-letter queue does not allow this source queue.")
    return Redrive(arn, int(count))


# ---- requests


def between(value: int, name: str, least: int, most: int) -> int:
    """Return a number of a request that is within these bounds."""
    if not least <= value <= most:
        raise bad(value, name, f"Must be between {least} and {most}, if provided.")
    return value


def wait_seconds(value: int) -> int:
    """Return for how long a receive waits."""
    if not 0 <= value <= WAIT_SECONDS_MAX:
        raise bad(value, "WaitTimeSeconds", f"Must be >= 0 and <= {WAIT_SECONDS_MAX}, if provided.")
    return value


def visibility(value: int | None) -> int:
    """Return the timeout of a change of visibility, seconds."""
    if value is None:
        raise missing("VisibilityTimeout")
    if not 0 <= value <= VISIBILITY_SECONDS_MAX:
        raise bad(value, "VisibilityTimeout", f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_SECONDS_MAX}.")
    return value


def valid_id(value: str, name: str) -> str:
    """Return a group, deduplication or attempt id that is valid."""
    if not _ID.fullmatch(value):
        raise bad(value, name, f"{name} {_BAD_ID}")
    return value


def entries(request: Mapping[str, Any], kind: str) -> Sequence[Mapping[str, Any]]:
    """Return the entries of a batch whose number and ids are valid."""
    given: Sequence[Mapping[str, Any]] = request["Entries"]
    if not given:
        raise SqsError("EmptyBatchRequest", f"There should be at least one {kind}RequestEntry in the request.")
    if len(given) > BATCH_MAX:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(given)}.",
        )
    seen = set()
    for entry in given:
        name = entry["Id"]
        if not _NAME.fullmatch(name):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if name in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {name} repeated.")
        seen.add(name)
    return given


def check_batch_size(given: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a batch of messages that is too long as a whole."""
    total = 0
    for entry in given:
        total += len(entry["MessageBody"].encode())
        for name, value in entry.get("MessageAttributes", {}).items():
            total += len(name.encode()) + len(value["DataType"].encode()) + len(value.get("BinaryValue", b""))
            total += len(value.get("StringValue", "").encode())
    if total > MESSAGE_BYTES_MAX:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. You have sent {total} bytes.",
        )


class Content(NamedTuple):
    """One message to send, checked.

    Attributes:
        delay: seconds.
        attributes, system: in the form of JSON.
        answer: the digests for the answer.
    """

    body: bytes
    group: str | None
    dedup_id: str | None
    delay: int
    attributes: dict[str, Any] | None
    system: dict[str, Any] | None
    answer: dict[str, str]


def content(entry: Mapping[str, Any], queue: Mapping[str, str], *, fifo: bool) -> Content:
    """Check the message of a request or of a batch's entry.

    Args:
        queue: all attributes of the queue.
    """
    text = entry["MessageBody"]
    if not text:
        raise missing("MessageBody")
    if not text.isprintable() and _NOT_XML.search(text):
        raise SqsError("InvalidMessageContents", _BAD_CHARACTERS)
    body = text.encode()
    answer = {"MD5OfMessageBody": md5(body)}
    attributes = entry.get("MessageAttributes") or None
    system = entry.get("MessageSystemAttributes") or None
    size = len(body)
    if attributes is not None:
        size += _check_attributes(attributes)
        answer["MD5OfMessageAttributes"] = digest(attributes)
    if system is not None:
        for name, value in system.items():
            if name != "AWSTraceHeader":
                raise invalid(f"Message system attribute name '{name}' is invalid.")
            _value_size(name, value)
        answer["MD5OfMessageSystemAttributes"] = digest(system)
    if size > (most := int(queue["MaximumMessageSize"])):
        raise invalid(f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.")
    group, dedup_id, delay = entry.get("MessageGroupId"), entry.get("MessageDeduplicationId"), entry.get("DelaySeconds")
    if delay is not None and not 0 <= delay <= _DELAY_SECONDS_MAX:
        raise bad(delay, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {_DELAY_SECONDS_MAX}.")
    if group is not None:
        valid_id(group, "MessageGroupId")
    if dedup_id is not None:
        valid_id(dedup_id, "MessageDeduplicationId")
    if fifo:
        require_ids(entry, queue)
        if delay:
            raise bad(delay, "DelaySeconds", "The request include parameter that is not valid for this queue type.")
        delay = None
        if dedup_id is None:
            dedup_id = hashlib.sha256(body).hexdigest()
    elif dedup_id is not None:
        raise bad(dedup_id, "MessageDeduplicationId", "The request include parameter that is not valid for this queue type.")
    return Content(
        body, group, dedup_id, int(queue["DelaySeconds"]) if delay is None else delay,
        _as_json(attributes), _as_json(system), answer,
    )  # fmt: skip


def require_ids(entry: Mapping[str, Any], queue: Mapping[str, str], *, in_batch: bool = False) -> None:
    """Refuse a message for a FIFO queue that lacks its group or its deduplication id.

    Args:
        in_batch: AWS answers with another code then.
    """
    if entry.get("MessageGroupId") is None:
        refusal = missing("MessageGroupId")
        raise invalid(refusal.message) if in_batch else refusal
    if entry.get("MessageDeduplicationId") is None and queue["ContentBasedDeduplication"] != "true":
        raise invalid(_UNPAID_ID)


def _check_attributes(attributes: Attributes) -> int:
    """Return the size of a message's attributes."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].")
    size = 0
    for name, value in attributes.items():
        if len(name) > _ATTRIBUTE_CHARS_MAX or not _ATTRIBUTE.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")):
            raise invalid("Message (user) attribute name is invalid.")
        size += _value_size(name, value)
    return size


def _value_size(name: str, attribute: Attributes) -> int:
    kind = attribute["DataType"]
    base = kind.partition(".")[0]
    if base not in ("String", "Number", "Binary") or len(kind) > _ATTRIBUTE_CHARS_MAX or _NOT_XML.search(kind):
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes is "
            "Binary, Number, and String."
        )
    if "StringListValues" in attribute or "BinaryListValues" in attribute:
        raise SqsError("UnsupportedOperation", "Message attribute list values in SendMessage operation are not supported.")
    if base == "Binary":
        value = attribute.get("BinaryValue")
        if not value:
            raise _empty(name, base)
        length = len(value)
    else:
        value = attribute.get("StringValue")
        if not value:
            raise _empty(name, base)
        if _NOT_XML.search(value):
            raise SqsError("InvalidMessageContents", _BAD_CHARACTERS)
        if base == "Number" and not _NUMBER.fullmatch(value):
            raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
        length = len(value.encode())
    return len(name.encode()) + len(kind.encode()) + length


def _empty(name: str, kind: str) -> SqsError:
    return invalid(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")


# ---- digests


def md5(data: bytes) -> str:
    """Return the digest that SQS calls MD5OfMessageBody."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def digest(attributes: Attributes) -> str:
    """Return the digest of a message's attributes, sorted by name: lengths, names, types and values."""
    out = bytearray()
    for name in sorted(attributes):
        attribute = attributes[name]
        kind = attribute["DataType"]
        binary = kind.startswith("Binary")
        value = attribute["BinaryValue"] if binary else attribute["StringValue"].encode()
        for part in (name.encode(), kind.encode()):
            out += struct.pack("!I", len(part)) + part
        out += b"\x02" if binary else b"\x01"
        out += struct.pack("!I", len(value)) + value
    return md5(bytes(out))


def digest_of_stored(attributes: Attributes) -> str:
    """Return the digest of attributes in the form of JSON."""
    return digest({
        name: {**value, "BinaryValue": base64.b64decode(value["BinaryValue"])} if "BinaryValue" in value else value
        for name, value in attributes.items()
    })  # fmt: skip


def _as_json(attributes: Attributes | None) -> dict[str, Any] | None:
    """Return attributes in the form of JSON, with what belongs to their types only."""
    if attributes is None:
        return None
    made = {}
    for name, value in attributes.items():
        kind = value["DataType"]
        if kind.startswith("Binary"):
            made[name] = {"DataType": kind, "BinaryValue": base64.b64encode(value["BinaryValue"]).decode()}
        else:
            made[name] = {"DataType": kind, "StringValue": value["StringValue"]}
    return made


def chosen(attributes: Attributes, names: Sequence[str]) -> Attributes:
    """Return the attributes that a receive asks for: by name; all by "All", "*" or ".*"; those that begin so by "prefix.*"."""
    if not _EVERY.isdisjoint(names):
        return attributes
    whole = {name for name in names if not name.endswith(".*")}
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in whole or (prefixes and name.startswith(prefixes))}
