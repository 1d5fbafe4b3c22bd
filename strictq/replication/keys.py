"""The secret with which segments are hashed, so that write access to a target is not enough to forge one."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

from .._platform import files
from .._values import hints
from .._values.errors import ConfigError, StoreError

SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 1 << 16


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Return the key derived from a file's content without surrounding white space.

    Raises:
        ConfigError: the file is missing, can't be read, or is too short or too long.
    """
    try:
        fd = files.open_regular(Path(path), os.O_RDONLY)
    except (OSError, StoreError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise ConfigError(f"the key file {os.fspath(path)} can't be read: {reason}", hint=hints.KEY_FILE) from e
    try:
        with files.typed("the key file can't be read"):
            secret = os.read(fd, SECRET_BYTES_MAX + 1).strip()
    finally:
        os.close(fd)
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"the key file {os.fspath(path)} must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX:,} bytes", hint=hints.KEY_FILE
        )
    return blake2b(secret, digest_size=32, person=b"strictq segments").digest()


def key_id(key: bytes) -> str:
    """Return an identifier of this key, which reveals nothing else of it."""
    return blake2b(b"", digest_size=8, key=key, person=b"strictq key id").hexdigest()
