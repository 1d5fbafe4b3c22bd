"""Rows of the journal: their kinds, what memory keeps of them, and how their data is encoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CLAIM, ACK, START, COOL, EXTEND, RELEASE = 1, 2, 3, 4, 5, 6
"""Kinds of rows."""
ID_BYTES: Final = 8
"""The size of an arrival number in a row that names messages."""
_KEY_BYTES: Final = 2
"""The size of a key's length in a row that names keys."""

# A row of the journal without its data. A plain tuple of numbers, because the garbage collector does not traverse it again.
Entry = tuple[int, int, int, int, int]
"""Its id, kind and time, its number of messages, and the highest of their rows in the inbox."""
ENTRY_ID, ENTRY_HI = 0, 4


def encoded_keys(keys: Iterable[bytes]) -> bytes:
    """Return the data of a row that names keys."""
    return b"".join(len(key).to_bytes(_KEY_BYTES, "little") + key for key in keys)


def decoded_keys(data: bytes) -> list[bytes]:
    """Return the keys in the data of a row."""
    keys: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _KEY_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        keys.append(data[start:at])
    return keys
