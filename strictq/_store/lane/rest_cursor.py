"""How far an index of lanes at rest was read."""

from __future__ import annotations

from collections import deque

from .entries import NEVER


class RestCursor:
    """How far an index of lanes at rest was read.

    Attributes:
        after: lanes up to this (value, key) were read.
        ahead: (value, key) of the next ones. Never rows: they may be written before they are used.
        next: no lane at rest that is to be read has a lower value.
    """

    __slots__ = ("after", "ahead", "next")

    def __init__(self) -> None:
        self.after: tuple[int, bytes] = (-NEVER, b"")
        self.ahead: deque[tuple[int, bytes]] = deque()
        self.next = -NEVER

    def lower(self, value: int) -> None:
        """Let a lane be read that was evicted. What was read ahead may lack it."""
        self.after = min(self.after, (value, b""))
        self.next = min(self.next, value)
        self.ahead.clear()
