"""Keys as bytes, and their stable hash.

A key is stored as one type byte and its content, so that 1, "1" and b"1" are three keys:

    s + UTF-8      str (no normalisation: NFC and NFD forms are different keys)
    b + raw bytes  bytes
    i + decimal    int
    n + decimal    a lane for keyless messages; not reachable through a user's key
"""

from __future__ import annotations

import re
from typing import Final

from . import hints
from .errors import InvalidArgument, StoreCorrupt

Key = str | bytes | int
"""The strict order parameter: a non-empty str, non-empty bytes, or an int."""

KEY_BYTES_MAX: Final = 1024
"""Longest key, in stored bytes without the type byte."""

KEYLESS: Final = b"n"
_INT: Final = re.compile(rb"-?[0-9]{1,%d}" % KEY_BYTES_MAX)
ASIDE: Final = b"!"
"""A mark in the key of a lane that holds one parked keyless message."""
DEDUP_LANES: Final = 64


def encode_key(key: object) -> bytes:
    """Return the stored form of a key.

    Raises:
        InvalidArgument: the key is not a str, bytes or int; or is empty, not encodable as UTF-8, or longer than KEY_BYTES_MAX.
    """
    if type(key) is str:
        try:
            raw = b"s" + key.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("a str key must be encodable as UTF-8: it has a lone surrogate") from None
    elif type(key) is int:
        # The length is tested first, because str(int) is quadratic and limited by the interpreter.
        if key.bit_length() > KEY_BYTES_MAX * 4:
            raise InvalidArgument(f"an int key must have at most {KEY_BYTES_MAX} digits")
        raw = b"i%d" % key
    elif type(key) is bytes:
        raw = b"b" + key
    elif isinstance(key, str):
        return encode_key(str.__str__(key))  # a subclass, such as an enum
    elif isinstance(key, bytes):
        return encode_key(bytes(key))
    elif isinstance(key, int) and not isinstance(key, bool):
        return encode_key(int(key))
    else:
        hint = None if key is None else hints.CONVERT_KEY
        raise InvalidArgument(f"a key must be str, bytes or int, not {type(key).__name__}", hint=hint)
    if len(raw) == 1:
        raise InvalidArgument("a key must not be empty")
    if len(raw) > KEY_BYTES_MAX + 1:
        raise InvalidArgument(f"a key must be at most {KEY_BYTES_MAX} bytes, not {len(raw) - 1}")
    return raw


def decode_key(raw: bytes) -> Key | None:
    """Return the key that `encode_key` stored; None for a lane of keyless messages.

    Raises:
        StoreCorrupt: it is not a key that `encode_key` stores.
    """
    kind, rest = raw[:1], raw[1:]
    if kind == b"s":
        try:
            return rest.decode()
        except UnicodeDecodeError as e:
            if e.object != rest:
                raise  # of a signal handler
            raise StoreCorrupt(f"a stored key can't be read: {raw!r}", shard=-1, cause=e) from e
    if kind == b"b":
        return rest
    if kind == b"i":
        if not _INT.fullmatch(rest):
            raise StoreCorrupt(f"a stored key can't be read: {raw!r}", shard=-1)
        return int(rest)
    return None


def is_keyless(raw: bytes) -> bool:
    """Return whether this is the key of a lane for keyless messages."""
    return raw.startswith(KEYLESS)


def keyless_lane(lane: int) -> bytes:
    """Return the stored key of one of the lanes for keyless messages."""
    return KEYLESS + b"%d" % lane


def keyless_by_hash(dedup_id: str) -> bytes:
    """Return the lane that a dedup id chooses. It does not depend on `keyless_lanes`, so a repeated send is recognised."""
    from .hashing import hash_key

    return keyless_lane(hash_key(dedup_id.encode()) % DEDUP_LANES)


def shared_key(raw: bytes) -> bytes:
    """Return the key that state is stored under. A parked keyless message shares the state of its original lane."""
    return raw.split(ASIDE)[0] if raw.startswith(KEYLESS) else raw
