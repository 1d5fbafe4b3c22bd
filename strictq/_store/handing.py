"""What holders of named consumers and operators call for hand-outs, in one place."""

from __future__ import annotations

from .claim import Held, Request
from .frame import Totals, Tx
from .handout import (
    Block,
    Encode,
    Known,
    Part,
    Standing,
    ack,
    block,
    finish_release,
    look,
    parts,
    pending_behind,
    prune,
    record,
    reject,
    rejected,
    release,
    require,
    take_over,
)
from .packing import Piece

__all__ = [
    "Block", "Encode", "Held", "Known", "Part", "Piece", "Request", "Standing", "Totals", "Tx", "ack", "block", "finish_release",
    "look", "parts", "pending_behind", "prune", "record", "reject", "rejected", "release", "require", "take_over",
]  # fmt: skip
