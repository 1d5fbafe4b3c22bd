"""The column `opts` of a message: its headers, size hint, estimates and dedup id.

It is NULL for most messages. Headers alone are stored as the JSON object that they are. A dedup id precedes them with its length:
`#5:order{"a":"b"}`. With numbers it is a JSON array: size_hint, prepare_seconds, process_seconds, the headers or null, and the
dedup id if there is one.
"""

from __future__ import annotations

import json
from typing import Final

import apsw

from ..._values.errors import StoreCorrupt
from ..disk.stored import json_of
from ..lane.damage import is_of_values
from ..lane.memory import MessageRow
from .leases import Row
from .messages import Options

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
