"""Messages of a queue as messages of SQS, and back.

A key is its message group if SQS accepts it as one. A body is the text of the message if it is text. What SQS has no place for is
in attributes whose names begin with `strictq-`, so that a receiver gets the key, the body and the headers of the sender.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .._values.errors import StrictqError
from .._values.keys import Key, decode_key, encode_key, is_keyless, shared_key

PREFIX: Final = "strictq-"
ENCODING: Final = f"{PREFIX}encoding"
HEADERS: Final = f"{PREFIX}headers"
KEY: Final = f"{PREFIX}key"
MAYBE_DUPLICATE: Final = f"{PREFIX}maybe-duplicate"
SENT_AT: Final = f"{PREFIX}sent-at"
SEQ: Final = f"{PREFIX}seq"
SOURCE: Final = f"{PREFIX}source"
TTL: Final = f"{PREFIX}ttl"

MARK_SIZE: Final = len(MAYBE_DUPLICATE) + len("String") + len("1")

BASE64: Final = "base64"
EMPTY: Final = "empty"
EMPTY_BODY: Final = "-"
"""SQS refuses an empty body. This one stands for it."""
KEYLESS_GROUP: Final = "~."
"""The beginning of the group of a keyless message. Each has a group of its own, so that none waits for another."""

_ID: Final = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
"""What SQS accepts as the id of a group or of a deduplication."""
_TEXT: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
"""The characters of XML 1.0, which are those of SQS."""
_NUMBER: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,9})?")
_ID_CHARS_MAX: Final = 128


class Undecodable(ValueError):
    """A received message has `strictq-` attributes that no sender of strictq writes."""


class SourcePosition(NamedTuple):
    """Where a forwarded message is in its queue.

    Attributes:
        source: the id of its queue.
        sent_at: the stored time of its send, microseconds. It never changes, unlike `enqueued_at`.
    """

    source: str
    seq: int
    sent_at: int


class Encoded(NamedTuple):
    """A message as SQS takes it.

    Attributes:
        once: the deduplication id.
        attributes: values by name.
        size: the bytes that SQS counts, with the mark that a forwarded message may get later.
        delay: seconds before it is delivered. Only standard queues have delays of single messages.
    """

    group: str
    once: str
    body: str
    attributes: dict[str, str]
    size: int
    delay: int = 0

    def entry(self, *, fifo: bool, maybe_duplicate: bool = False) -> dict[str, Any]:
        """Return the parameters of SendMessage, without the URL.

        Args:
            fifo: the queue has groups and deduplication.
        """
        attributes = {**self.attributes, MAYBE_DUPLICATE: "1"} if maybe_duplicate else self.attributes
        made: dict[str, Any] = {"MessageBody": self.body}
        if fifo:
            made |= {"MessageGroupId": self.group, "MessageDeduplicationId": self.once}
        if self.delay:
            made["DelaySeconds"] = self.delay
        if attributes:
            made["MessageAttributes"] = {
                name: {"DataType": _type(name), "StringValue": value} for name, value in attributes.items()
            }
        return made


class Decoded(NamedTuple):
    """A received message.

    Attributes:
        key: the sender's; of another program's message its group; None on a standard queue, and for a keyless message.
        source, source_seq, sent_at: of a forwarded message: the id of its queue, its seq there, and the stored time of its send,
            as text of seconds. None: it was not forwarded.
        expires_at: seconds since 1970 by the endpoint's clock; None: never.
        maybe_duplicate: whether the sender could not know whether it had sent the message before.
    """

    key: Key | None
    body: bytes
    headers: dict[str, str]
    source: str | None = None
    source_seq: int | None = None
    sent_at: str | None = None
    expires_at: float | None = None
    maybe_duplicate: bool = False


def _type(name: str) -> str:
    return "Number" if name in (SEQ, TTL) else "String"


# ---- to SQS


def encode(
    raw: bytes,
    body: bytes,
    headers: Mapping[str, str] | None,
    once: str,
    *,
    fifo: bool,
    position: SourcePosition | None = None,
    ttl: float | None = None,
    delay: int = 0,
) -> Encoded:
    """Return a message as SQS takes it.

    Args:
        raw: the stored form of its key, or of the lane of a keyless message.
        once: the deduplication id.
        fifo: the queue has groups. Otherwise the key is always an attribute.
        ttl: seconds from now after which the message expires.
    """
    attributes: dict[str, str] = {}
    group = group_of(raw, once)
    if not fifo or _text_key(raw) != group:
        attributes[KEY] = _packed(shared_key(raw))
    text = _text(body)
    if text is None:
        text = base64.b64encode(body).decode() or EMPTY_BODY
        attributes[ENCODING] = BASE64 if body else EMPTY
    if headers:
        attributes[HEADERS] = json.dumps(dict(headers), separators=(",", ":"))
    if ttl is not None:
        attributes[TTL] = f"{ttl:.6f}"
    if position is not None:
        attributes[SOURCE] = position.source
        attributes[SEQ] = str(position.seq)
        attributes[SENT_AT] = f"{position.sent_at // 1_000_000}.{position.sent_at % 1_000_000:06d}"
    length = len(text) if text.isascii() else len(text.encode())
    size = length + sum(len(name) + len(_type(name)) + len(value) for name, value in attributes.items())
    if position is not None:
        size += MARK_SIZE
    return Encoded(group, once, text, attributes, size, delay)


def group_of(raw: bytes, once: str = "") -> str:
    """Return the message group of a key in its stored form. No two keys have the same.

    Args:
        once: names a keyless message.
    """
    if is_keyless(raw):
        return KEYLESS_GROUP + hashlib.sha256(once.encode()).hexdigest()
    text = _text_key(raw)
    if text is not None and _ID.fullmatch(text) and not text.startswith("~"):
        return text
    packed = f"~{_packed(raw)}"
    return packed if len(packed) <= _ID_CHARS_MAX else f"~#{hashlib.sha256(raw).hexdigest()}"


def dedup_id_of(text: str) -> str:
    """Return a program's dedup id as SQS accepts it."""
    if _ID.fullmatch(text) and not text.startswith("~"):
        return text
    return f"~#{hashlib.sha256(text.encode()).hexdigest()}"


def content_id(raw: bytes, position: SourcePosition, body: bytes) -> str:
    """Return the dedup id of a forwarded message: the same for each repetition, and different for each other message.

    The position alone would not do. A queue that lost its newest commits, or that was restored, issues a position again.

    Args:
        raw: the stored form of its key, or of the lane of a keyless message.
    """
    place = f"{position.source}/{shared_key(raw).hex()}/{position.seq}/{position.sent_at}/"
    return hashlib.sha256(place.encode() + body).hexdigest()


def _text_key(raw: bytes) -> str | None:
    return raw[1:].decode() if raw[:1] == b"s" else None


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def _packed(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


# ---- from SQS


def received(message: Mapping[str, Any]) -> Decoded:
    """Return a message that was received with all its attributes.

    Raises:
        Undecodable: its `strictq-` attributes are invalid.
    """
    system: Mapping[str, str] = message.get("Attributes") or {}
    given = {
        name: value["StringValue"]
        for name, value in (message.get("MessageAttributes") or {}).items()
        if isinstance(value.get("StringValue"), str)
    }
    headers = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
    return Decoded(
        _key(given.get(KEY), system.get("MessageGroupId")),
        _body(message.get("Body", ""), given.get(ENCODING)),
        headers | _headers(given.get(HEADERS)),
        given.get(SOURCE),
        None if SEQ not in given else _whole(given[SEQ]),
        None if SENT_AT not in given else _number(given[SENT_AT]),
        None if TTL not in given else _expiry(given[TTL], system.get("SentTimestamp")),
        given.get(MAYBE_DUPLICATE) == "1",
    )


def _key(packed: str | None, group: str | None) -> Key | None:
    """Return a message's key. It must be the one that its group is made of, or its order would not be the key's."""
    if packed is None:
        return group
    raw = _unpacked(packed)
    if is_keyless(raw):
        if group is not None and not group.startswith(KEYLESS_GROUP):
            raise Undecodable("the message says that it has no key, and its group is that of a key")
        return None
    try:
        key = decode_key(raw)
        valid = key is not None and encode_key(key) == raw
    except (StrictqError, ValueError):
        valid = False
    if not valid:
        raise Undecodable(f"the attribute {KEY} is not a key")
    if group is not None and group != group_of(raw):
        raise Undecodable(f"the attribute {KEY} is not the key of the message's group")
    return key


def _body(text: str, encoding: str | None) -> bytes:
    if encoding is None:
        return text.encode("utf-8", "surrogatepass")
    if encoding == EMPTY:
        return b""
    if encoding != BASE64:
        raise Undecodable(f"the attribute {ENCODING} names no known encoding")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Undecodable("the body is not base64") from None


def _headers(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Undecodable(f"the attribute {HEADERS} is not a JSON object of texts")
    try:
        "".join([*found, *found.values()]).encode()
    except UnicodeEncodeError:
        raise Undecodable(f"the attribute {HEADERS} has a lone surrogate") from None
    return found


def _unpacked(packed: str) -> bytes:
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise Undecodable(f"the attribute {KEY} is not base64") from None


def _number(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise Undecodable("an attribute of strictq is not a number")
    return text


def _whole(text: str) -> int:
    return int(_number(text).partition(".")[0])


def _expiry(ttl: str, sent: str | None) -> float | None:
    """Return when a message expires, by the clock of the endpoint, which wrote down when it took it."""
    return None if sent is None or not sent.isdigit() else int(sent) / 1000 + float(_number(ttl))
