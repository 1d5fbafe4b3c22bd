"""Messages as they are sent: plain values, and the rules that need nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..._platform.lazy import LazyList
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import InvalidArgument, MessageTooLarge
from ..._values.keys import is_keyless
from ..commit.tx import SECOND

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
