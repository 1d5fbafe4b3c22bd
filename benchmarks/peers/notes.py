"""What has to be said beside a figure, as it is measured; and the same taken out of a record again, where the figure is shown."""

from __future__ import annotations

import re
from typing import Any, Final

APART: Final = "; "
MESSAGES: Final = re.compile(r"[\d,]+ and [\d,]+ messages a round(, )?")
COUNTED: Final = re.compile(r"([\d,]+) sent and ([\d,]+) acked")


def joined(*notes: str) -> str:
    """Several notes as one; those that say nothing fall away."""
    return APART.join(note for note in notes if note)


def scaled(size: int, meant: int) -> str:
    """A size is less than in the long form; empty if it isn't."""
    return "" if size == meant else f"{size:,} here, {meant:,} in the long form"


def waiting(name: str, number: int, seconds: float) -> str:
    """A queue could not be given its whole backlog in time."""
    return f"{name} had {number:,} waiting after {seconds:.0f} s"


def counted(name: str, sent: int, acked: int) -> str:
    """More or less was acked than sent."""
    return f"{name}: {sent:,} sent and {acked:,} acked"


def lacks(features: list[Any]) -> str:
    """What a queue does not offer."""
    return f"lacks {', '.join(features)}" if features else ""


def shown(note: str) -> list[str]:
    """What a figure can't be understood without. How many messages a round had is a detail; what a queue lacks is said once."""
    parts = (MESSAGES.sub("", part) for part in note.split(APART))
    return [part for part in parts if part and not part.startswith("lacks ")]


def of_the_point(note: str) -> bool:
    """It is said of everybody who was measured there."""
    return note.endswith(" in the long form")


def of_queue(note: str, name: str) -> bool:
    """It is said of this queue, by name."""
    return note.startswith((f"{name} ", f"{name}: "))


def waited(figure: dict[str, Any], name: str) -> int:
    """How many messages really waited in a queue; in all but a few figures that is the size they are for."""
    found = re.search(rf"(?:^|{APART}){re.escape(name)} had ([\d,]+) waiting", figure["note"])
    return _number(found[1]) if found else int(figure["size"])


def miscounts(note: str) -> list[tuple[int, int]]:
    """(sent, acked) of the rounds in which they differed."""
    return [(_number(sent), _number(acked)) for sent, acked in COUNTED.findall(note)]


def _number(text: str) -> int:
    return int(text.replace(",", ""))
