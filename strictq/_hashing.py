"""The hash that chooses a key's shard. By itself: hashlib brings OpenSSL, and a queue of one shard has no use for either."""

from __future__ import annotations

from hashlib import blake2b


def hash_key(raw: bytes) -> int:
    """64 bits of BLAKE2b over the stored form, big-endian. The same on every platform, for ever."""
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")


def content_id(body: bytes) -> str:
    """The dedup id that stands for a body. The same on every platform, for ever."""
    return f"blake2b:{blake2b(body, digest_size=32).hexdigest()}"
