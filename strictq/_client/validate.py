"""Validate arguments before anything is changed, and convert them to the store's form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .._platform.files import real_path
from .._store.api import HEADER_BYTES_FREE, MEMORY, Item, Options, header_bytes_max
from .._values import hints
from .._values.config import FOREVER_SECONDS, LAST_SECOND, QueueConfig
from .._values.errors import InvalidArgument, MessageTooLarge
from .._values.keys import Key, encode_key
from .._values.types import CONTENT_HASH, ContentHash, Message, Receipt

if TYPE_CHECKING:
    from datetime import datetime

Hook = TypeVar("Hook")

MESSAGES_MAX: Final = 100_000
"""The most messages of one receive."""
DEDUP_CHARS_MAX: Final = 256
TEXT_CHARS_MAX: Final = 10_000
"""Longest stored reason or output, characters; the rest is cut off."""
PROGRESS_CHARS_MAX: Final = 140
"""Longest text of a handler's progress."""
NUMBER_MAX: Final = 1e300
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PASSWORD: Final = re.compile(r"//[^/]*@")
"""The user and the password of a URL. Errors are logged, so they must not be in their messages."""
_MICROSECONDS: Final = 1_000_000
_options: Final = tuple.__new__
"""Makes a NamedTuple without its constructor, which costs as much as the rest."""
_SHOWN_BITS: Final = 256
_SHOWN_CHARS: Final = 200


def shown(value: object) -> str:
    """Return a refused value for an error message, cut to a line. Python refuses to convert very large integers to text."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def path_text(path: object, name: str = "path") -> str:
    """Return a path of a queue as text, with ~ expanded.

    Raises:
        InvalidArgument: it can't be the path of a directory that SQLite opens files in.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise InvalidArgument(f"{name} must be a str or a path, not {type(path).__name__}")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidArgument(f"{name} must not be empty or contain NUL characters")
    if url := _URL.match(text):
        rest = text[url.end() :] if text[url.end() :].startswith("/") else "orders.strictq"  # not a host's name
        local = hints.NOT_A_URL.of(path=rest if text.startswith("file:") else rest.lstrip("/"))
        hint = hints.CONNECT_URL if text.startswith(("sqs+", "http:", "https:")) else local
        shown = _PASSWORD.sub("//", text)
        raise InvalidArgument(f"{name} must be the path of a directory, not a URL: {shown!r}", hint=hint)
    if text.startswith("~"):
        text = os.path.expanduser(text)
        if text.startswith("~"):
            raise InvalidArgument(f"the home directory of {text!r} is unknown", hint=hints.NO_HOME)
    try:
        resolved = text if text == MEMORY else real_path(text)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} must be encodable for the file system: it has a lone surrogate") from None
    try:
        resolved.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{name} must be valid UTF-8, because SQLite requires it; {resolved!r} is not",
            hint=hints.NAMES_IN_UTF8,
        ) from None
    return text


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


def seconds(name: str, value: object, *, minimum: float = 0.0) -> float:
    """Return seconds, rounded to whole microseconds. Raises as `microseconds`."""
    return microseconds(name, value, minimum=minimum) / _MICROSECONDS


def place(receipt: Receipt, shards: int) -> tuple[int, int]:
    """Return the shard and the id of a keyless message, which its receipt names."""
    return whole("shard", receipt.shard, 0, shards - 1), whole("id", receipt.id, 1, 2**62)


def message_of(verb: str, of: Key | Receipt, seq: int | None, shards: int) -> tuple[bytes, int] | tuple[int, int]:
    """Return the key in its stored form and the seq of a message; of a keyless one, the shard and the id."""
    if isinstance(of, Receipt):
        if seq is not None:
            raise InvalidArgument("a receipt contains the seq: do not pass seqs as well")
        if of.key is None:
            return place(of, shards)
        return encode_key(of.key), whole("seq", of.seq, 1, 2**62)
    if seq is None:
        raise InvalidArgument(f"{verb}() with a key needs the seq of a message", hint=hints.KEY_AND_SEQ)
    return encode_key(of), whole("seq", seq, 1, 2**62)


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


def progress(fraction: object, text: object) -> tuple[float, str]:
    """Return a handler's progress, with lone surrogates in the text replaced.

    Raises:
        InvalidArgument: the fraction is not a number from 0 to 1, or the text is too long.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidArgument(f"fraction must be a number from 0 to 1, not {shown(fraction)}")
    if not isinstance(text, str):
        raise InvalidArgument(f"text must be a str, not {type(text).__name__}")
    if len(text) > PROGRESS_CHARS_MAX:
        raise InvalidArgument(f"text may have {PROGRESS_CHARS_MAX} characters, this one has {len(text):,}")
    return float(fraction), text.encode("utf-8", "replace").decode()


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


_as_json: Final = json.encoder.encode_basestring


def headers(value: object, most: int = HEADER_BYTES_FREE) -> str | None:
    """Return headers as JSON; None if there are none.

    Args:
        most: the most bytes.
    """
    if value is None:
        return None
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidArgument(f"headers must map str to str, not be {type(value).__name__}")
    parts: list[str] = []
    for k, v in value.items():
        if type(k) is not str or type(v) is not str:
            raise InvalidArgument(f"headers must map str to str: {shown(k)} maps to {shown(v)}")
        parts.append(f"{_as_json(k)}: {_as_json(v)}")
    encoded = f"{{{', '.join(parts)}}}"
    try:
        size = len(encoded) if encoded.isascii() else len(encoded.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("headers must be encodable as UTF-8: there is a lone surrogate") from None
    if size > most:
        raise MessageTooLarge(f"headers must be at most {most:,} bytes, not {size:,}")
    return encoded if parts else None


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
    from .._values.hashing import content_id  # imported late: few programs need it

    return content_id(body)


def wall_microseconds(at: object, what: str = "at") -> int:
    """Convert an aware datetime to microseconds since 1970.

    Raises:
        InvalidArgument: it is naive, or not a datetime.
    """
    from datetime import UTC, datetime, timedelta

    if not isinstance(at, datetime):
        raise InvalidArgument(f"{what} must be a datetime, not {type(at).__name__}", hint=hints.AWARE_DATETIME)
    if at.utcoffset() is None:
        raise InvalidArgument(f"{what} must be an aware datetime: this one has no time zone", hint=hints.AWARE_DATETIME)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def age(what: str, at: object, wall: int) -> int:
    """Return how long ago a time was, microseconds. A time in the future counts as now.

    Args:
        at: an aware datetime, or seconds since 1970.
        wall: the wall clock now, microseconds since 1970.
    Raises:
        InvalidArgument: it is no such time.
    """
    if isinstance(at, int | float) and not isinstance(at, bool):
        if not 0 <= at <= LAST_SECOND:
            raise InvalidArgument(f"{what} must be a datetime, or seconds since 1970, not {at!r}")
        return max(0, wall - round(at * _MICROSECONDS))
    return max(0, wall - wall_microseconds(at, what))


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


Given = tuple[Any, Any, Any, Any, Any, Any, Any, Any]
"""The options of a message as the program gave them, in the order of `given_of`."""
given_of: Final[Callable[[Message], Given]] = attrgetter(
    "dedup_id", "delay", "at", "ttl", "headers", "size_hint", "prepare_seconds", "process_seconds"
)
PLAIN: Final[Given] = (None, 0.0, None, None, None, None, None, None)
_HEADERS: Final = 4
"""The place of the headers."""


def with_headers(given: Given, more: Mapping[str, str]) -> Given:
    """Return the options with further headers, except those that are given."""
    own = given[_HEADERS]
    if not more or not isinstance(own, Mapping | None):
        return given  # `headers` reports what is invalid
    return (*given[:_HEADERS], {**more, **(own or {})}, *given[_HEADERS + 1 :])


def item(body: object, given: Given, key: bytes, config: QueueConfig, wall: Callable[[], int]) -> Item:
    """Check a message and return it in the store's form. This is the only conversion between the two.

    Runs for every message. Plain messages are recognised by one comparison.

    Args:
        key: the key in its stored form.
        wall: returns the wall clock, microseconds since 1970.
    Raises:
        InvalidArgument, MessageTooLarge: the message is invalid for a queue with these settings.
    """
    if type(body) is not bytes:
        body = body_bytes(body)
    if len(body) > config.max_body_bytes:
        raise MessageTooLarge(f"a body may have {config.max_body_bytes:,} bytes, this one has {len(body):,}")
    if given == PLAIN and given[1] is not False:
        return (key, body, None, None)
    dedup, delay, at, ttl, header, size_hint, prepare_seconds, process_seconds = given
    wait = 0 if type(delay) is float and not delay else microseconds("delay", delay)
    if at is not None:
        if wait:
            raise InvalidArgument("use either delay or at, not both")
        wait = delay_until(at, wall())
    options = _options(
        Options,
        (
            None if dedup is None else dedup_id(dedup, body),
            wait,
            None if ttl is None else microseconds("ttl", ttl, minimum=0.001),
            None if header is None else headers(header, header_bytes_max(body, config)),
            None if size_hint is None else number("size_hint", size_hint),
            None if prepare_seconds is None else number("prepare_seconds", prepare_seconds),
            None if process_seconds is None else number("process_seconds", process_seconds),
        ),
    )
    return (key, body, options, None)


def hook(name: str, value: Hook) -> Hook:
    """Return a function that strictq calls, or None."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{name} must be callable, not {type(value).__name__}")
    return value


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


def key_columns(value: object) -> dict[str, str]:
    """Return the key columns of tables. SQLite does not distinguish the cases of their names."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"key_columns must be a dict of table and column, not {type(value).__name__}")
    for name in (*value.keys(), *value.values()):
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidArgument(f"key_columns must name tables and columns, not {shown(name)}")
    return {table.lower(): column.lower() for table, column in value.items()}
