"""Validate arguments before anything is changed, and convert them to the store's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from . import _hints as hints
from ._config import FOREVER_SECONDS, QueueConfig
from ._errors import InvalidArgument, MessageTooLarge
from ._keys import encode_key
from ._store.api import Item, Options
from ._types import CONTENT_HASH, ContentHash, Message

if TYPE_CHECKING:
    from datetime import datetime

MESSAGES_MAX: Final = 100_000
"""The most messages of one receive."""
DEDUP_CHARS_MAX: Final = 256
HEADER_BYTES_MAX: Final = 64 * 1024
TEXT_CHARS_MAX: Final = 10_000
"""Longest stored reason or output, characters; the rest is cut off."""
NUMBER_MAX: Final = 1e300
_MICROSECONDS: Final = 1_000_000
_SHOWN_BITS: Final = 256
_SHOWN_CHARS: Final = 200


def shown(value: object) -> str:
    """Return a refused value for an error message, cut to a line. Python refuses to convert very large integers to text."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def microseconds(name: str, value: object, *, minimum: float = 0.0) -> int:
    """Convert seconds to whole microseconds.

    Raises:
        InvalidArgument: the value is not a finite number between minimum and ten years.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = hints.TOTAL_SECONDS if hasattr(value, "total_seconds") else None
        raise InvalidArgument(f"{name} must be a number of seconds, not {type(value).__name__}", hint=hint)
    # Compared before the conversion, because an int may be too large for a float.
    if not minimum <= value <= FOREVER_SECONDS:
        raise InvalidArgument(f"{name} must be {minimum:g} to {FOREVER_SECONDS:,.10g} seconds, not {shown(value)}")
    return round(value * _MICROSECONDS)


def whole(name: str, value: object, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidArgument(f"{name} must be a whole number from {minimum:,} to {maximum:,}, not {shown(value)}")
    return value


def number(name: str, value: object) -> float | None:
    """Return a finite, non-negative number as a float, or None. NaN fails every comparison."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= NUMBER_MAX:
        raise InvalidArgument(f"{name} must be a number, 0 to {NUMBER_MAX:g}, not {shown(value)}")
    return float(value)


def text(name: str, value: object, maximum: int = TEXT_CHARS_MAX) -> str | None:
    """Return a reason or an output, cut to the stored length, with lone surrogates replaced."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a str, not {type(value).__name__}")
    return value[:maximum].encode("utf-8", "replace").decode()


def reason(value: object) -> str:
    """Return the reason of a reject, which must not be empty."""
    found = text("reason", value)
    if not found:
        raise InvalidArgument("reject needs a reason", hint=hints.GIVE_REASON)
    return found


def name(what: str, value: object) -> str:
    """Return a short identifier: 1 to 256 characters that UTF-8 can encode, without NUL."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a str, not {type(value).__name__}")
    if not 1 <= len(value) <= DEDUP_CHARS_MAX:
        raise InvalidArgument(f"{what} must have 1 to {DEDUP_CHARS_MAX} characters, not {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be encodable as UTF-8: it has a lone surrogate") from None
    if "\0" in value:
        raise InvalidArgument(f"{what} must not contain NUL characters")
    return str(value)


def header_names(value: object) -> tuple[str, ...]:
    """Return names of headers as a tuple.

    Raises:
        InvalidArgument: the value is not a list of valid names.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgument(f"propagate must be a list of names of headers, not {shown(value)}")
    return tuple(name("a header's name", each) for each in value)


_as_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def headers(value: object) -> str | None:
    """Return headers as JSON; None if there are none."""
    if value is None:
        return None
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidArgument(f"headers must map str to str, not be {type(value).__name__}")
    if not all(type(k) is str and type(v) is str for k, v in value.items()):
        k, v = next((k, v) for k, v in value.items() if type(k) is not str or type(v) is not str)
        raise InvalidArgument(f"headers must map str to str: {shown(k)} maps to {shown(v)}")
    try:
        encoded = _as_json(dict(value))
        size = len(encoded.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("headers must be encodable as UTF-8: there is a lone surrogate") from None
    if size > HEADER_BYTES_MAX:
        raise InvalidArgument(f"headers must be at most {HEADER_BYTES_MAX:,} bytes, not {size:,}")
    return encoded if value else None


def body_bytes(value: object) -> bytes:
    """Return a body as bytes. A mutable body is copied.

    Raises:
        InvalidArgument: it is not bytes-like.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(memoryview(value))
        except (ValueError, BufferError) as e:
            raise InvalidArgument(f"the body can't be read: {e}") from None
    raise InvalidArgument(f"a body must be bytes-like, not {type(value).__name__}", hint=hints.ENCODE_BODY)


def dedup_id(given: str | ContentHash, body: bytes) -> str:
    """Return the stored form of a dedup id.

    Raises:
        InvalidArgument: it is not a valid id.
    """
    if given is not CONTENT_HASH:
        return name("dedup_id", given)
    from ._hashing import content_id  # imported late: few programs need it

    return content_id(body)


def wall_microseconds(at: object) -> int:
    """Convert an aware datetime to microseconds since 1970.

    Raises:
        InvalidArgument: it is naive, or not a datetime.
    """
    from datetime import UTC, datetime, timedelta

    if not isinstance(at, datetime):
        raise InvalidArgument(f"at must be a datetime, not {type(at).__name__}", hint=hints.AWARE_DATETIME)
    if at.utcoffset() is None:
        raise InvalidArgument("at must be an aware datetime: this one has no time zone", hint=hints.AWARE_DATETIME)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def delay_until(at: datetime, wall: int) -> int:
    """Return the delay, microseconds, of a message that is due at this time; 0 if the time is past.

    Args:
        wall: the wall clock now, microseconds since 1970.
    Raises:
        InvalidArgument: `at` is not an aware datetime, or more than ten years away.
    """
    if wall_microseconds(at) - wall > FOREVER_SECONDS * _MICROSECONDS:
        raise InvalidArgument(f"at must be at most {FOREVER_SECONDS:,.10g} seconds from now, not {at.isoformat()}")
    return remaining(at, wall)


def remaining(at: datetime, wall: int) -> int:
    """Return the delay of a message that was checked before. It is never refused, even if the wall clock was set meanwhile."""
    return min(max(0, wall_microseconds(at) - wall), round(FOREVER_SECONDS * _MICROSECONDS))


_PARTS: Final = attrgetter("body", "dedup_id", "delay", "at", "ttl", "headers", "size_hint", "prepare_seconds", "process_seconds")
_PLAIN: Final = (None, 0.0, None, None, None, None, None, None)


def item(message: Message, key: bytes, config: QueueConfig, wall: Callable[[], int]) -> Item:
    """Check a message and return it in the store's form. This is the only conversion between the two.

    Runs for every message. Plain messages are recognised by one comparison.

    Args:
        key: the key in its stored form.
        wall: returns the wall clock, microseconds since 1970.
    Raises:
        InvalidArgument, MessageTooLarge: the message is invalid for a queue with these settings.
    """
    parts = _PARTS(message)
    body = parts[0]
    if type(body) is not bytes:
        body = body_bytes(body)
    if len(body) > config.max_body_bytes:
        raise MessageTooLarge(f"a body may have {config.max_body_bytes:,} bytes, this one has {len(body):,}")
    if parts[1:] == _PLAIN and parts[2] is not False:
        return (key, body, None, None)
    _, dedup, delay, at, ttl, header, size_hint, prepare_seconds, process_seconds = parts
    wait = microseconds("delay", delay)
    if at is not None:
        if wait:
            raise InvalidArgument("use either delay or at, not both")
        wait = delay_until(at, wall())
    options = Options(
        dedup_id=None if dedup is None else dedup_id(dedup, body),
        delay=wait,
        ttl=None if ttl is None else microseconds("ttl", ttl, minimum=0.001),
        headers=headers(header),
        size_hint=number("size_hint", size_hint),
        prepare_seconds=number("prepare_seconds", prepare_seconds),
        process_seconds=number("process_seconds", process_seconds),
    )
    return (key, body, options, None)


def several(value: Iterable[Any] | None) -> list[Any] | None:
    """Return keys as a list, so that a generator can be used twice."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgument("keys must be a list of keys, not a single one")
    return list(value)


def keys(value: Iterable[Any] | None) -> tuple[bytes, ...] | None:
    """Return a receive's keys in stored form, without duplicates."""
    given = several(value)
    return None if given is None else tuple(dict.fromkeys(encode_key(k) for k in given))
