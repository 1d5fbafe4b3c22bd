"""Values that go in and come out: messages, their options, receipts, events. What `Queue.stats` returns is in `_stats`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict

import attrs

from . import _hints as hints
from ._errors import InvalidArgument, InvalidBody
from ._keys import Key
from ._views import Report, as_dict

if TYPE_CHECKING:
    from datetime import datetime

Body = bytes | bytearray | memoryview
"""What a message's content may be given as; stored, and received, as bytes."""
State = Literal["ready", "in_flight", "delayed", "held", "dead", "resolved"]


class Unset(Enum):
    """The type of UNSET. An enum, so that it is the same object in another process."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""A state of a key that was not given: None would delete it."""


class ContentHash(Enum):
    """The type of CONTENT_HASH. An enum, so that it is the same object in another process."""

    CONTENT_HASH = "content_hash"


CONTENT_HASH: Final = ContentHash.CONTENT_HASH
"""A dedup_id made of the body: a second send of the same bytes to the same key within the dedup window stores nothing."""


@attrs.frozen(kw_only=True)
class Message:
    """One message to send. Checked when it is sent.

    Attributes:
        body: the content, bytes-like; may be empty.
        key: str, bytes or int; messages of one key are handed out in order. None only where the queue allows keyless.
        dedup_id: within the dedup window a second send with the same key and id stores nothing. CONTENT_HASH: the id is a hash
            of the body.
        delay: seconds before it may be handed out; later messages of its key wait for it.
        at: instead of delay, the time of day before which it may not be handed out: an aware datetime. In the past: at once.
        ttl: seconds after which it expires if nobody holds it; None: the queue's ttl_seconds.
        headers: str → str, stored with the message.
        size_hint: what the duration of its work depends on, any unit; None: the body's size.
        prepare_seconds, process_seconds: estimates for a worker; None: learned.
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
        """A message whose body is `value` as compact UTF-8 JSON; options as for Message.

        Raises:
            InvalidArgument: the value cannot be written as JSON (NaN and infinity included).
        """
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return cls(text.encode(), **options)
        except (TypeError, ValueError, RecursionError) as e:
            raise InvalidArgument(f"the value cannot be written as JSON: {e}") from None


class SendOptions(TypedDict, total=False):
    """What a send may be given besides a body and a key. See Message."""

    dedup_id: str | ContentHash | None
    delay: float
    at: datetime | None
    ttl: float | None
    headers: Mapping[str, str] | None
    size_hint: float | None
    prepare_seconds: float | None
    process_seconds: float | None


def to_send(given: Body | Message, made: Message) -> Message:
    """Return the message that a send was given in the place of a body, or else the one made of its arguments.

    Args:
        made: of all arguments; where the first one is a Message, of the others.
    Raises:
        InvalidArgument: a Message was given with arguments that belong in it.
    """
    if not isinstance(given, Message):
        return made
    if made != Message(b""):
        raise InvalidArgument("send(Message(...)) takes no other arguments", hint=hints.INSIDE_MESSAGE)
    return given


def body_as_json(body: bytes, key: Key | None, seq: int) -> Any:
    """A body, decoded as JSON, for the message that it is of.

    Raises:
        InvalidBody: it is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:
        raise InvalidBody(key, seq, str(e)) from None


class Receipt(NamedTuple):
    """What a send returns.

    Attributes:
        key: as given; None for a keyless message.
        seq: position in its key's sequence, 1, 2, 3 …
        id: arrival number within its shard; unique together with the shard.
        duplicate: nothing was stored, because the same dedup_id was sent before; key, seq and id are the first one's.
        shard: number of the shard that holds the key.
    """

    key: Key | None
    seq: int
    id: int
    duplicate: bool = False
    shard: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON can hold. The key is key and key_type."""
        return as_dict(self)


@attrs.frozen
class Event(Report):
    """Something an operator wants to know, given to the `on_event` hooks after it was committed.

    Attributes:
        kind: "dead_letter", "poison", "lease_lost", "shard_quarantined", "shard_repaired"; "breaker_opened", "breaker_closed",
            "worker_started" or "worker_stopped", of a worker in this process; "replication_lapsed", "replication_resumed" or
            "replication_stopped", where this process ships. The last seven concern no shard (-1).
        detail: reason or error, for a person.
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
        "replication_lapsed",
        "replication_resumed",
        "replication_stopped",
    ]
    shard: int
    key: Key | None = None
    seq: int | None = None
    token: int | None = None
    detail: str = ""
