"""Messages of SQS as messages of a queue, and back.

What a queue's message cannot say is in one header, `sqs`, as JSON: attributes, system attributes, and of a message that was moved
its first id, its receives, its origin and the time of its first send.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from ..._values.keys import Key
from ..._values.types import Message
from ...delivery import Delivery
from ...handle import DeliveryRef
from . import rules
from .rules import Content

HEADER: Final = "sqs"
ATTRIBUTES, SYSTEM, ID, RECEIVES, SOURCE, SENT, DEDUP_ID = "a", "s", "m", "n", "src", "at", "d"
"""Members of the header."""
TRACEPARENT: Final = "traceparent"
_W3C: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,200})?")
_XRAY_ROOT: Final = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_XRAY_PARENT: Final = re.compile(r"[0-9a-f]{16}")
SENDER: Final = "AIDASSYFHUBOBT7F4XT75"
SEQUENCE_BASE: Final = 10**19
_UUID_CHARS: Final = 36

Info = dict[str, Any]


class Received:
    """A message that was received, with what SQS says of it.

    Attributes:
        hold: settles it.
        body: None: it was not kept, and must be read again.
        count: how often it was received.
        first: the time of its first receive, seconds since 1970.
        until: the time on the clock at which it becomes visible, microseconds.
        since: the time on the clock of its newest receive, microseconds.
        number: how often it was received under its lease.
        handle: its newest receipt handle.
        dedup_id: the deduplication id that it was sent with.
        kept: bytes of the body, as far as they are counted.
    """

    __slots__ = (
        "body", "count", "dedup_id", "first", "group", "handle", "hold", "info", "kept", "message_id", "number", "sent", "seq",
        "since", "until",
    )  # fmt: skip

    hold: Delivery | DeliveryRef
    body: bytes | None
    info: Info
    group: Key | None
    seq: int
    message_id: str
    count: int
    first: float
    sent: float
    until: int
    since: int
    number: int
    handle: str
    dedup_id: str | None
    kept: int


class Wanted(NamedTuple):
    """What a receive asks for.

    Attributes:
        most: at most so many messages.
        visibility: seconds that they are hidden.
        system: names of system attributes.
        names: names of attributes.
        attempt: the id under which the receive can be repeated.
    """

    most: int
    visibility: int
    system: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    attempt: str | None = None


class Taken(NamedTuple):
    """A message as it is answered, and how to give it back."""

    message: Received
    handle: str
    answer: dict[str, Any]


def info_of(headers: dict[str, str]) -> Info:
    """Return the content of the header."""
    text = headers.get(HEADER)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:  # a program's own header of this name
        return {}
    return found if isinstance(found, dict) else {}


def message_of(body: bytes, key: Key, dedup_id: str | None, delay: float, info: Info) -> Message:
    """Return a message to send."""
    headers = None
    if info:
        headers = {HEADER: json.dumps(info, separators=(",", ":"), ensure_ascii=False)}
        if (trace := traceparent(info)) is not None:
            headers[TRACEPARENT] = trace
    return Message(body, key=key, dedup_id=dedup_id, delay=delay, headers=headers)


def traceparent(info: Info) -> str | None:
    """Return the W3C context of a message's trace, from its attribute traceparent, or from its AWSTraceHeader; None: neither."""
    given = (info.get(ATTRIBUTES) or {}).get(TRACEPARENT, {}).get("StringValue")
    if given is not None and _W3C.fullmatch(given):
        return str(given)
    header = (info.get(SYSTEM) or {}).get("AWSTraceHeader", {}).get("StringValue", "")
    fields = dict(field.strip().partition("=")[::2] for field in header.split(";"))
    root, parent = _XRAY_ROOT.fullmatch(fields.get("Root", "")), _XRAY_PARENT.fullmatch(fields.get("Parent", ""))
    if root is None or parent is None:
        return None
    return f"00-{root[1]}{root[2]}-{parent[0]}-{'01' if fields.get('Sampled') == '1' else '00'}"


def info_to_send(content: Content) -> Info:
    """Return the content of the header of a new message."""
    info: Info = {}
    if content.attributes is not None:
        info[ATTRIBUTES] = content.attributes
    if content.system is not None:
        info[SYSTEM] = content.system
    return info


# ---- ids


def id_from(*parts: object) -> str:
    """Return a UUID made from a hash."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:]}"


def new_id() -> str:
    """Return a random UUID. The class of the standard library takes four times as long."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def standard_key(group: str | None, message_id: str) -> str:
    """Return the key of a message of a standard queue: a lane of its own, named by its id, after its group."""
    if group is None:
        return message_id
    return f"{group.replace('%', '%25').replace('/', '%2F')}/{message_id}"


def id_of_standard_key(queue_id: str, key: Key | None, seq: int) -> tuple[str, str | None]:
    """Return id and group of a message of a standard queue. Another program's keys may be anything."""
    if type(key) is str:
        group, slash, name = key.rpartition("/")
        if len(name) == _UUID_CHARS and name[8] == name[13] == name[18] == name[23] == "-":
            return name, group.replace("%2F", "/").replace("%25", "%") if slash else None
    return id_from(queue_id, key, seq), None


# ---- answers


def sequence_number(seq: int) -> str:
    """Return a SequenceNumber: 20 digits, ascending in a group."""
    return str(SEQUENCE_BASE + seq)


def taken(m: Received, wanted: Wanted, *, fifo: bool) -> Taken:
    """Return a message as a receive answers it. Its body must be there."""
    body = m.body
    assert body is not None
    try:
        text = body.decode()
        digest = rules.md5(body)
    except UnicodeDecodeError:  # another program's
        text = body.decode("utf-8", "replace")
        digest = rules.md5(text.encode())
    answer: dict[str, Any] = {"MessageId": m.message_id, "ReceiptHandle": m.handle, "MD5OfBody": digest, "Body": text}
    if wanted.system and (found := _system_attributes(m, wanted.system, fifo=fifo)):
        answer["Attributes"] = found
    if wanted.names and ATTRIBUTES in m.info and (chosen := rules.chosen(m.info[ATTRIBUTES], wanted.names)):
        answer["MessageAttributes"] = chosen
        answer["MD5OfMessageAttributes"] = rules.digest_of_stored(chosen)
    return Taken(m, m.handle, answer)


def _system_attributes(m: Received, system: Collection[str], *, fifo: bool) -> dict[str, str]:
    found = {
        "SenderId": SENDER,
        "SentTimestamp": str(int(m.sent * 1000)),
        "ApproximateReceiveCount": str(m.count),
        "ApproximateFirstReceiveTimestamp": str(int(m.first * 1000)),
    }
    if m.group is not None:
        found["MessageGroupId"] = str(m.group)
    if fifo:
        found["MessageDeduplicationId"] = original_dedup_id(m)
        found["SequenceNumber"] = sequence_number(m.seq)
    if SOURCE in m.info:
        found["DeadLetterQueueSourceArn"] = m.info[SOURCE]
    if SYSTEM in m.info and "StringValue" in (trace := m.info[SYSTEM].get("AWSTraceHeader", {})):
        found["AWSTraceHeader"] = trace["StringValue"]
    return found if "All" in system else {name: value for name, value in found.items() if name in system}


def original_dedup_id(m: Received) -> str:
    """Return the deduplication id that SQS shows: that of the first send, or the hash of the content."""
    return m.info.get(DEDUP_ID) or m.dedup_id or hashlib.sha256(m.body or b"").hexdigest()
