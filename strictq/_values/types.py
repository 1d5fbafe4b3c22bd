"""Values of the public interface: messages, their options, receipts, events. `stats` has the result of `Queue.stats`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, Unpack

import attrs

from . import hints
from .errors import InvalidArgument, InvalidBody
from .keys import Key
from .views import Report, as_dict

if TYPE_CHECKING:
    from datetime import datetime

Body = bytes | bytearray | memoryview
"""Types that a body may have. It is stored and received as bytes."""
State = Literal["ready", "in_flight", "delayed", "held", "dead", "resolved"]


class Unset(Enum):
    """The type of UNSET. An enum, so that it is the same object in another process."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""A key state that was not given. None would delete the state."""


class ContentHash(Enum):
    """The type of CONTENT_HASH. An enum, so that it is the same object in another process."""

    CONTENT_HASH = "content_hash"


CONTENT_HASH: Final = ContentHash.CONTENT_HASH
"""A dedup_id derived from the body: within the dedup window, a second send of the same bytes to a key stores nothing."""


@attrs.frozen(kw_only=True)
class Message:
    """One message to send. It is validated when it is sent.

    Attributes:
        body: the content, bytes-like, possibly empty.
        key: str, bytes or int. Messages of one key are delivered in order. None only if the queue allows keyless messages.
        dedup_id: within the dedup window, a second send with the same key and id stores nothing. CONTENT_HASH: use a hash of
            the body.
        delay: seconds before it may be delivered. Later messages of its key wait for it.
        at: instead of delay, an aware datetime before which it may not be delivered. A time in the past means no delay.
        ttl: seconds after which it expires unless a consumer holds it; None: the queue's ttl_seconds.
        headers: str → str, stored with the message. As JSON at most 64 KiB, or what the body leaves of `max_body_bytes`.
        size_hint: a number on which the processing time depends, in any unit; None: the size of the body.
        prepare_seconds, process_seconds: estimates for a worker; None: learned.

    Examples:
        >>> strictq.Message(b"paid", key="order-1", ttl=3600.0).key
        'order-1'
        >>> strictq.Message.json({"cents": 500}, key="account-7").body
        b'{"cents":500}'
    """

    body: Body = attrs.field(kw_only=False)
    key: Key | None = None
    dedup_id: str | ContentHash | None = None
    delay: float = 0.0
    at: datetime | None = None
    ttl: float | None = None
    headers: Mapping[str, str] | None = None
    size_hint: float | None = None
    prepare_seconds: float | None = None
    process_seconds: float | None = None

    @classmethod
    def json(cls, value: Any, **options: Any) -> Message:
        """Return a message whose body is `value` as compact UTF-8 JSON; options as for Message.

        Raises:
            InvalidArgument: the value cannot be written as JSON (NaN and infinity included).
        """
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return cls(text.encode(), **options)
        except (TypeError, ValueError, RecursionError) as e:
            raise InvalidArgument(f"the value cannot be written as JSON: {e}") from None


class SendOptions(TypedDict, total=False):
    """The options of a send besides the body and the key. See Message."""

    dedup_id: str | ContentHash | None
    delay: float
    at: datetime | None
    ttl: float | None
    headers: Mapping[str, str] | None
    size_hint: float | None
    prepare_seconds: float | None
    process_seconds: float | None


def to_send(body: Body | Message, key: Key | None, **options: Unpack[SendOptions]) -> Message:
    """Return the message of these arguments, or the Message that was passed as the body.

    Raises:
        InvalidArgument: a Message was passed together with other arguments.
    """
    if not isinstance(body, Message):
        return Message(body, key=key, **options)
    if Message(b"", key=key, **options) != Message(b""):
        raise InvalidArgument("send(Message(...)) takes no other arguments", hint=hints.INSIDE_MESSAGE)
    return body


def body_as_json(body: bytes, key: Key | None, seq: int) -> Any:
    """Return a body decoded as JSON.

    Raises:
        InvalidBody: the body is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:
        raise InvalidBody(key, seq, str(e)) from None


class Receipt(NamedTuple):
    """The result of a send.

    Attributes:
        key: as given; None for a keyless message.
        seq: position in its key's sequence, 1, 2, 3 …
        id: arrival number within its shard; unique together with the shard.
        duplicate: True if nothing was stored, because the same dedup_id was sent before. Then key, seq and id are the first
            message's, whose key can differ only with `dedup_scope="queue"`.
        shard: number of the shard that holds the key.
    """

    key: Key | None
    seq: int
    id: int
    duplicate: bool = False
    shard: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as JSON values. The key is key and key_type."""
        return as_dict(self)


@attrs.frozen
class Event(Report):
    """An event for operators, passed to the `on_event` hooks after its commit.

    Attributes:
        kind: "dead_letter", "poison", "lease_lost", "shard_quarantined", "shard_repaired"; "breaker_opened", "breaker_closed",
            "worker_started", "worker_stopped", "worker_source_failed" or "worker_source_works" for a worker of this process;
            "replication_lapsed", "replication_resumed", "replication_stopped" or "replication_gap" if this process ships. For
            the last ten, shard is -1.
        detail: the reason or error, as text.
    """

    kind: Literal[
        "dead_letter",
        "poison",
        "lease_lost",
        "shard_quarantined",
        "shard_repaired",
        "breaker_opened",
        "breaker_closed",
        "worker_started",
        "worker_stopped",
        "worker_source_failed",
        "worker_source_works",
        "replication_lapsed",
        "replication_resumed",
        "replication_stopped",
        "replication_gap",
    ]
    shard: int
    key: Key | None = None
    seq: int | None = None
    token: int | None = None
    detail: str = ""
