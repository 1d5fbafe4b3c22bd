"""Notes on figures: written during the measurement, and parsed again where a figure is shown."""

from __future__ import annotations

import re
from typing import Any, Final

APART: Final = "; "
MESSAGES: Final = re.compile(r"[\d,]+ and [\d,]+ messages a round(, )?")
COUNTED: Final = re.compile(r"([\d,]+) sent and ([\d,]+) acked")


def joined(*notes: str) -> str:
    """Join several notes, without the empty ones."""
    return APART.join(note for note in notes if note)


def scaled(size: int, meant: int) -> str:
    """Return a note that a size is smaller than in the long form; empty if it is not."""
    return "" if size == meant else f"{size:,} here, {meant:,} in the long form"


def waiting(name: str, number: int, seconds: float) -> str:
    """Return a note that a queue could not be filled with its whole backlog in time."""
    return f"{name} had {number:,} waiting after {seconds:.0f} s"


def counted(name: str, sent: int, acked: int) -> str:
    """Return a note that the numbers of acked and sent messages differ."""
    return f"{name}: {sent:,} sent and {acked:,} acked"


def lacks(features: list[Any]) -> str:
    """Return a note on the features that a queue does not offer."""
    return f"lacks {', '.join(features)}" if features else ""


def shown(note: str) -> list[str]:
    """Return the notes needed to understand a figure, without details and without missing features, which are listed once."""
    parts = (MESSAGES.sub("", part) for part in note.split(APART))
    return [part for part in parts if part and not part.startswith("lacks ")]


def of_the_point(note: str) -> bool:
    """Return whether a note is about the whole point."""
    return note.endswith(" in the long form")


def of_queue(note: str, name: str) -> bool:
    """Return whether a note is about this queue, by name."""
    return note.startswith((f"{name} ", f"{name}: "))


def waited(figure: dict[str, Any], name: str) -> int:
    """Return the number of messages that actually waited in a queue, which is usually the figure's size."""
    found = re.search(rf"(?:^|{APART}){re.escape(name)} had ([\d,]+) waiting", figure["note"])
    return _number(found[1]) if found else int(figure["size"])


def miscounts(note: str) -> list[tuple[int, int]]:
    """Return (sent, acked) of the rounds in which they differed."""
    return [(_number(sent), _number(acked)) for sent, acked in COUNTED.findall(note)]


def _number(text: str) -> int:
    return int(text.replace(",", ""))
