"""A message's headers, read from their stored text. If no send could have written it, the file is damaged."""

from __future__ import annotations

import apsw

from ..._values.errors import StoreCorrupt
from ..disk.stored import json_of


def headers(text: str | None, shard: int) -> dict[str, str]:
    """Return a message's headers.

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
