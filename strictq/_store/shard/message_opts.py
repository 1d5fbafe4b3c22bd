"""The column `opts` of a message: its headers, size hint and estimates.

It is NULL for most messages. Headers alone are stored as the JSON object that they are. Otherwise it is a JSON array: size_hint,
prepare_seconds, process_seconds, and the headers or null.
"""

from __future__ import annotations

import json

from ..._errors import StoreCorrupt
from ..lane.damage import is_of_values
from ..lane.memory import MessageRow
from .leases import Row
from .messages import Options

Opts = tuple[str | None, float | None, float | None, float | None]
"""Headers as JSON, size_hint, prepare_seconds, process_seconds."""
NO_OPTS: Opts = (None, None, None, None)


def encode(options: Options) -> str | None:
    """Return the column of a message."""
    headers, *numbers = options.headers, options.size_hint, options.prepare_seconds, options.process_seconds
    if numbers == [None, None, None]:
        return headers
    return f"{json.dumps(numbers)[:-1]},{headers or 'null'}]"


def decode(text: str | None, shard: int) -> Opts:
    """Return what `encode` stored.

    Raises:
        StoreCorrupt: no send wrote it.
    """
    if text is None:
        return NO_OPTS
    if text.startswith("{"):
        return text, None, None, None
    try:
        size, prepare, process, headers = json.loads(text)
    except ValueError as e:
        if not is_of_values(e):
            raise
        raise StoreCorrupt(f"the options of a message can't be read: {e}", shard=shard, cause=e) from e
    shown = None if headers is None else json.dumps(headers, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return shown, size, prepare, process


def row_of(message: MessageRow, key: bytes, attempts: int, suspect: bool, shard: int) -> Row:
    """Return a message as a claim returns it.

    Args:
        key: of its lane. A parked message is not in the lane that it was sent to.
        suspect: it may have killed its process.
    """
    id_, _, seq, sent_at, due, expires, opts, body = message
    return id_, key, seq, sent_at, due, expires, None if opts is None else decode(opts, shard), body, attempts, suspect
