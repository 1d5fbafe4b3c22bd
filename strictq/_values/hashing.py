"""The hash that chooses a key's shard. A separate module: hashlib loads OpenSSL, which a queue of one shard does not need."""

from __future__ import annotations

from hashlib import blake2b


def hash_key(raw: bytes) -> int:
    """Return 64 bits of BLAKE2b over the stored key, big-endian. Permanent, and the same on every platform."""
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")


def content_id(body: bytes) -> str:
    """Return the dedup id derived from a body. Permanent, and the same on every platform."""
    return f"blake2b:{blake2b(body, digest_size=32).hexdigest()}"
