"""The shape of what is handed out (the columns of a message's row, by name), and of what comes back."""

from __future__ import annotations

from .claim import ATTEMPTS, BODY, HEADERS, ID, KEY, LANE, PREPARE, PROCESS, SENT_AT, SEQ, SIZE_HINT, Claimed, Held, Row
from .settle import Batch

__all__ = [
    "ATTEMPTS",
    "BODY",
    "HEADERS",
    "ID",
    "KEY",
    "LANE",
    "PREPARE",
    "PROCESS",
    "SENT_AT",
    "SEQ",
    "SIZE_HINT",
    "Batch",
    "Claimed",
    "Held",
    "Row",
]
