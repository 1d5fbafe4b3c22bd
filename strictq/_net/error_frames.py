"""Errors of a server, sent to its client as JSON and restored there with the same type."""

from __future__ import annotations

import json
from typing import Any, Final

from .._values import errors as _errors
from .._values import hints
from .._values.errors import StoreError, StrictqError

ERROR_BYTES_MAX: Final = 1 << 20
_FIELDS: Final = {"segment": int, "term": int}
"""Attributes of errors that are sent with them, and their types."""


def encode(error: BaseException, server: str) -> bytes:
    """Encode an error of this server, for `decode`."""
    known = error if isinstance(error, StrictqError) else StrictqError(f"{server} failed: {type(error).__name__}: {error}")
    said = {
        "error": type(known).__name__,
        "text": str(known.args[0]) if known.args else "",
        "hint": known.hint,
        "hint_code": known.hint_code,
        "transient": known.transient,
        "shard": known.shard if isinstance(known, StoreError) else None,
        "fields": {name: getattr(known, name) for name in _FIELDS if hasattr(known, name)},
    }
    return json.dumps(said).encode()


def decode(data: bytes) -> StrictqError:
    """Decode an error that `encode` returned, with the same type."""
    said: Any = json.loads(data)
    kind = getattr(_errors, str(said["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, StrictqError)):
        kind = StrictqError
    error = kind.__new__(kind)
    # Bypasses the constructors, whose arguments differ. The text is complete already.
    hint, code = str(said["hint"]), str(said["hint_code"])
    StrictqError.__init__(
        error, str(said["text"]), hint=hints.Coded(hint, code=code) if code else hint, transient=bool(said["transient"])
    )
    if isinstance(error, StoreError):
        error.shard, error.cause = int(said["shard"]), None
    for name, type_ in _FIELDS.items():
        if name in said.get("fields", {}):
            setattr(error, name, type_(said["fields"][name]))
    return error
