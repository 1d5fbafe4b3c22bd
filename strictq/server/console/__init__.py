"""The console: pages for a browser that show queues live, and let operators act on them if that is allowed.

console   the part: files, views as JSON, samples as server-sent events, actions
sampler   takes the samples, at a bounded cost
views     what the pages show of a queue
actions   what they may change
static    the pages: HTML, style and script, written by hand
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..parts import ServerContext
    from .console import Console


def make(context: ServerContext) -> Console:
    """Make the part."""
    from .console import Console

    return Console(context)
