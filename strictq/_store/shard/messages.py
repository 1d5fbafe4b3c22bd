"""Messages as they are sent, and the options in their rows: plain values, and the rules that need nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import apsw

from ..._platform.lazy import LazyList
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import InvalidArgument, MessageTooLarge, StoreCorrupt
from ..._values.keys import is_keyless
from ..commit.tx import SECOND
from ..disk.stored import json_of
from ..lane.damage import is_of_values
from ..lane.memory import MessageRow
from .leases import Row

HEADER_BYTES_FREE: Final = 64 * 1024
"""Headers of this size, as JSON, are permitted beside any body."""


class Options(NamedTuple):
    """A message's options, in stored units: microseconds, JSON."""

    dedup_id: str | None = None
    delay: int = 0
    ttl: int | None = None
    headers: str | None = None
    size_hint: float | None = None
    prepare_seconds: float | None = None
    process_seconds: float | None = None


class Times(NamedTuple):
    """The queue times at which a forwarded message was sent, is due, and expires. Its transaction fixed them."""

    sent_at: int
    due: int | None
    expires: int | None


Item = tuple[bytes, bytes, Options | None, Times | None]
"""Stored key, body, options (None: plain), times (None: now; only with options)."""
Sent = tuple[int, int, bytes | None]
"""seq, id, and the stored key of the earlier message with the same dedup id. None: the message is new."""


class SentInTurn(LazyList[Sent]):
    """The results for messages that arrived one after the other, computed on first use."""

    __slots__ = ("_first", "_seqs")

    def __init__(self, first: int, seqs: Sequence[int]) -> None:
        self._elements = None
        self._first = first
        self._seqs = seqs

    def _count(self) -> int:
        return len(self._seqs)

    def _make(self) -> list[Sent]:
        return [(seq, arrival, None) for arrival, seq in enumerate(self._seqs, self._first)]


def times_of(now: int, options: Options | None, config: QueueConfig) -> Times:
    """Return when a message that is sent now is due and expires."""
    ttl = options.ttl if options is not None and options.ttl is not None else None
    if ttl is None and config.ttl_seconds is not None:
        ttl = int(config.ttl_seconds * SECOND)
    delay = options.delay if options is not None else 0
    return Times(now, now + delay if delay > 0 else None, None if ttl is None else now + ttl)


def require_valid(items: Sequence[Item], config: QueueConfig) -> None:
    """Refuse messages that the configuration does not permit. It is newer than the one they were validated against.

    Raises:
        MessageTooLarge, InvalidArgument: nothing changed.
    """
    for item in items:
        if config.keyless == "refuse" and is_keyless(item[0]):
            raise InvalidArgument("a message needs a key", hint=hints.CONFIGURE_KEYLESS)
        if len(item[1]) > config.max_body_bytes:
            raise MessageTooLarge(f"a body may have {config.max_body_bytes:,} bytes, this one has {len(item[1]):,}")
        headers = None if item[2] is None else item[2].headers
        if headers is not None and len(headers.encode()) > (most := header_bytes_max(item[1], config)):
            raise MessageTooLarge(f"headers must be at most {most:,} bytes, not {len(headers.encode()):,}")


def header_bytes_max(body: bytes, config: QueueConfig) -> int:
    """Return the most bytes of a message's headers: with its body they may have `max_body_bytes`."""
    return max(HEADER_BYTES_FREE, config.max_body_bytes - len(body))


Opts = tuple[str | None, float | None, float | None, float | None, str | None]
"""Headers as JSON, size_hint, prepare_seconds, process_seconds, dedup id."""
NO_OPTS: Opts = (None, None, None, None, None)
_NO_NUMBERS: Final = (None, None, None)


def encode(options: Options) -> str | None:
    """Return the column of a message."""
    dedup_id, headers, numbers = options[0], options[3], options[4:]
    if numbers != _NO_NUMBERS:
        last = "" if dedup_id is None else f",{json.dumps(dedup_id)}"
        return f"{json.dumps(numbers)[:-1]},{headers or 'null'}{last}]"
    return headers if dedup_id is None else f"#{len(dedup_id)}:{dedup_id}{headers or ''}"


def decode(text: str | None, shard: int) -> Opts:
    """Return what `encode` stored.

    Raises:
        StoreCorrupt: no send wrote it.
    """
    if text is None:
        return NO_OPTS
    if text.startswith("{"):
        return text, None, None, None, None
    try:
        if text.startswith("#"):
            length, _, rest = text[1:].partition(":")
            n = int(length)
            return rest[n:] or None, None, None, None, rest[:n]
        size, prepare, process, headers, *last = json.loads(text)
        (dedup_id,) = last or (None,)
    except ValueError as e:
        if not is_of_values(e):
            raise
        raise StoreCorrupt(f"the options of a message can't be read: {e}", shard=shard, cause=e) from e
    shown = None if headers is None else json.dumps(headers, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return shown, size, prepare, process, dedup_id


def row_of(message: MessageRow, key: bytes, attempts: int, suspect: bool, shard: int) -> Row:
    """Return a message as a claim returns it.

    Args:
        key: of its lane. A parked message is not in the lane that it was sent to.
        suspect: it may have killed its process.
    """
    id_, _, seq, sent_at, due, expires, opts, body = message
    return id_, key, seq, sent_at, due, expires, None if opts is None else decode(opts, shard), body, attempts, suspect


def headers_of(text: str | None, shard: int) -> dict[str, str]:
    """Return a message's headers, from their stored text.

    Raises:
        StoreCorrupt: no send wrote these.
    """
    if not text:
        return {}
    try:
        values = json_of(text)
    except apsw.CorruptError as e:
        raise StoreCorrupt(f"the headers of a message can't be read: {e}", shard=shard, cause=e) from e
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise StoreCorrupt("the headers of a message do not map text to text", shard=shard)
    return values
