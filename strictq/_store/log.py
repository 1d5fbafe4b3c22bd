"""The package's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger() -> logging.Logger:
    """Its module is imported when there is something to say: most programs that open a queue never log."""
    import logging

    return logging.getLogger("strictq")
