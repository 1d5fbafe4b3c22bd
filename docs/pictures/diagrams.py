"""Draw the diagrams of the documentation: lifecycle, lease, lanes, outbox, confirmed and chain.svg. Run it in this directory."""

from html import escape
from pathlib import Path
from typing import Final

INK: Final = "#1f2d3d"
LINE: Final = "#52687f"
FILL: Final = "#e3eef7"
GROUP: Final = "#f5f8fa"
HEAD: Final = 7
BOX_PIXELS: Final = 30

Point = tuple[float, float]


class Picture:
    """An SVG picture on a white ground, readable on light and dark pages."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        ]

    def text(
        self,
        at: Point,
        text: str,
        *,
        anchor: str = "middle",
        fill: str = INK,
        size: int = 12,
    ) -> None:
        """Write a line of text."""
        self._parts.append(
            f'<text x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">{escape(text)}</text>'
        )

    def box(
        self,
        at: Point,
        width: float,
        text: str,
        *,
        height: float = BOX_PIXELS,
        fill: str = FILL,
    ) -> None:
        """Draw a box with centred text; `at` is its upper left corner."""
        x, y = at
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{LINE}"/>'
        )
        self.text((x + width / 2, y + height / 2 + 4), text, size=13)

    def group(self, at: Point, width: float, height: float, title: str) -> None:
        """Draw a frame around what follows, with its title inside."""
        x, y = at
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{GROUP}" stroke="{LINE}" '
            'stroke-dasharray="5 4"/>'
        )
        self.text((x + 12, y + 20), title, anchor="start")

    def arrow(
        self,
        *points: Point,
        text: str = "",
        at: Point | None = None,
        anchor: str = "middle",
        dashed: bool = False,
    ) -> None:
        """Draw a line with a head at its end, and its text at `at`, or above the middle of a line of two points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.4"{dashes}/>'
        )
        (x0, y0), (x, y) = points[-2:]
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        u, v = (x - x0) / length, (y - y0) / length
        wings = [
            (x - HEAD * (u - v / 2), y - HEAD * (v + u / 2)),
            (x - HEAD * (u + v / 2), y - HEAD * (v - u / 2)),
        ]
        head = " ".join(f"{a:.1f},{b:.1f}" for a, b in [(x, y), *wings])
        self._parts.append(f'<polygon points="{head}" fill="{LINE}"/>')
        if text:
            self.text(
                at or ((x0 + x) / 2, (y0 + y) / 2 - 6), text, anchor=anchor
            )

    def line(self, start: Point, end: Point) -> None:
        """Draw a thin line."""
        self._parts.append(
            f'<path d="M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}" stroke="{LINE}" stroke-width="1"/>'
        )

    def svg(self) -> str:
        """Return the document."""
        return "\n".join([*self._parts, "</svg>", ""])


def lifecycle() -> str:
    """Draw the states of a message."""
    p = Picture(760, 400, "The states of a message")
    p.arrow((20, 125), (100, 125), text="send", at=(55, 118))
    p.arrow(
        (20, 275),
        (100, 275),
        text="send with delay",
        at=(24, 268),
        anchor="start",
    )
    p.box((100, 110), 100, "ready")
    p.box((340, 110), 100, "in_flight")
    p.box((620, 110), 110, "resolved")
    p.box((100, 260), 100, "delayed")
    p.box((340, 340), 100, "held")
    p.box((620, 260), 110, "dead")
    p.arrow((200, 118), (340, 118), text="receive")
    p.arrow(
        (340, 134), (200, 134), text="release, lease expires", at=(270, 150)
    )
    p.arrow((440, 125), (620, 125), text="ack")
    p.arrow(
        (340, 140),
        (270, 262),
        (200, 262),
        text="nack, defer",
        at=(315, 215),
        anchor="start",
    )
    p.arrow(
        (150, 260),
        (150, 140),
        text="delay is over",
        at=(146, 205),
        anchor="end",
    )
    p.arrow(
        (440, 138),
        (620, 262),
        text="reject, or out of attempts",
        at=(397, 225),
        anchor="start",
    )
    p.arrow(
        (390, 140),
        (390, 340),
        text="out of attempts, on_poison=hold",
        at=(396, 318),
        anchor="start",
    )
    p.arrow(
        (200, 282), (340, 345), text="hold(key)", at=(272, 340), anchor="end"
    )
    p.arrow(
        (104, 140),
        (60, 175),
        (60, 362),
        (340, 362),
        text="hold(key)",
        at=(160, 378),
    )
    p.arrow(
        (340, 350),
        (210, 310),
        (78, 310),
        (78, 200),
        (122, 140),
        text="release(key)",
        at=(92, 325),
        anchor="start",
    )
    p.arrow(
        (130, 110),
        (130, 30),
        (660, 30),
        (660, 110),
        text="TTL expires, or purge",
        at=(390, 24),
    )
    p.arrow(
        (170, 110),
        (170, 62),
        (560, 62),
        (560, 270),
        (620, 270),
        text="TTL expires, on_expire=dead_letter",
        at=(365, 56),
    )
    p.arrow((690, 260), (690, 140), text="purge", at=(700, 205), anchor="start")
    p.arrow(
        (675, 290),
        (675, 390),
        (40, 390),
        (40, 132),
        (100, 132),
        text="redrive",
        at=(590, 384),
    )
    return p.svg()


def lease() -> str:
    """Draw two consumers and one lane, when the first is slower than its lease."""
    p = Picture(760, 372, "A consumer that is slower than its lease")
    a, lane, b = 120.0, 380.0, 640.0
    for x, text in (
        (a, "consumer A"),
        (lane, "the lane of key ann"),
        (b, "consumer B"),
    ):
        p.box((x - 80, 12), 160, text)
        p.line((x, 42), (x, 360))
    steps = [
        (a, lane, "receive, lease of 30 s", False), (lane, a, "seq 1, token 7", True), (a, a, "processes for 40 s", False),
        (lane, lane, "the lease expires; seq 1 is ready again", False), (b, lane, "receive", False),
        (lane, b, "seq 1 again, token 8", True), (a, lane, "ack with token 7", False),
        (lane, a, "LeaseLost; nothing was changed", True), (b, lane, "ack with token 8", False),
        (lane, b, "resolved, never delivered again", True),
    ]  # fmt: skip
    for i, (start, end, text, dashed) in enumerate(steps):
        y = 72 + i * 31
        if start == end:
            p.box(
                (start - 130 if start == lane else start - 70, y - 18),
                260 if start == lane else 140,
                text,
                height=24,
            )
        else:
            p.arrow((start, y), (end, y), text=text, dashed=dashed)
    return p.svg()


def lanes() -> str:
    """Draw where a lane is: in memory while something happens to it, and in a row while it is at rest."""
    p = Picture(760, 300, "A lane in memory and at rest")
    p.box((16, 46), 108, "send", fill=GROUP)
    p.box((16, 118), 108, "receive, ack", fill=GROUP)
    p.group(
        (180, 12), 560, 138, "the file: two logs, which every process reads"
    )
    p.box((200, 46), 520, "message: every message, in the order of arrival")
    p.box(
        (200, 108), 520, "journal: every change of state, a row for each call"
    )
    p.arrow((124, 61), (200, 61), text="append", at=(152, 55))
    p.arrow((124, 133), (200, 125), text="append", at=(152, 118))
    p.box((200, 204), 220, "memory: loaded lanes", height=40)
    p.box((520, 204), 220, "lane: a row for each lane", height=40)
    p.arrow((310, 138), (310, 204), text="apply", at=(316, 182), anchor="start")
    p.arrow((420, 214), (520, 214), text="fold", at=(470, 207))
    p.arrow((520, 234), (420, 234), text="load", at=(470, 250), dashed=True)
    p.arrow(
        (630, 204),
        (630, 138),
        text="then cut",
        at=(636, 182),
        anchor="start",
    )
    p.text((310, 272), "changed while a call runs")
    p.text((630, 272), "exact as of one row of the journal")
    return p.svg()


def outbox() -> str:
    """Draw how a send reaches another shard."""
    p = Picture(760, 230, "A transaction that sends to another shard")
    p.group((16, 12), 330, 170, "one transaction in shard 0")
    p.box((36, 46), 290, "ack of account-1, seq 1")
    p.box((36, 90), 290, "key state, app_ rows")
    p.box((36, 134), 290, "outbox row: to key audit, shard 1")
    p.group((470, 12), 274, 126, "one transaction in shard 1")
    p.box((490, 46), 234, "message of key audit")
    p.box((490, 90), 234, "high-water mark of shard 0")
    p.arrow(
        (326, 149),
        (408, 149),
        (408, 61),
        (490, 61),
        text="1. after the commit",
        at=(408, 172),
    )
    p.arrow(
        (607, 138),
        (607, 205),
        (180, 205),
        (180, 164),
        text="2. delete the outbox row",
        at=(400, 198),
    )
    return p.svg()


def confirmed() -> str:
    """Draw who confirms what, and when, in each mode of replication."""
    p = Picture(760, 392, "Who confirms what, and when")
    caller, primary, shipper, replica = 90.0, 280.0, 470.0, 660.0
    for x, text in (
        (caller, "program"),
        (primary, "primary's WAL"),
        (shipper, "shipper"),
        (replica, "replica"),
    ):
        p.box((x - 75, 12), 150, text)
        p.line((x, 42), (x, 380))
    steps = [
        (caller, primary, "send", False), (primary, caller, "async: returns here", True),
        (shipper, primary, "takes the cut", False), (shipper, replica, "segment", False),
        (replica, replica, "checks, log, fdatasync", False), (replica, shipper, "confirmed", True),
        (shipper, caller, "confirmed mode: returns here", True), (replica, replica, "applies to live/", False),
        (shipper, replica, "later: a segment of an old term", False), (replica, shipper, "Fenced, if promoted", True),
    ]  # fmt: skip
    for i, (start, end, text, dashed) in enumerate(steps):
        y = 72 + i * 33
        if start == end:
            p.box((start - 85, y - 18), 170, text, height=24)
        else:
            p.arrow((start, y), (end, y), text=text, dashed=dashed)
    return p.svg()


def chain() -> str:
    """Draw what a chain of three confirms, and how its members elect the next primary."""
    p = Picture(760, 528, "A chain of three, and an election")
    caller, a, b, c = 90.0, 280.0, 470.0, 660.0
    for x, text in (
        (caller, "program"),
        (a, "A, primary"),
        (b, "B, first replica"),
        (c, "C, last replica"),
    ):
        p.box((x - 75, 12), 150, text)
        p.line((x, 42), (x, 316 if x == a else 516))
    steps = [
        (caller, a, "send", False), (a, b, "segment", False), (b, b, "log, fdatasync", False), (b, c, "the same segment", False),
        (c, c, "log, fdatasync", False), (c, b, "confirmed", True), (b, a, "confirmed", True), (a, caller, "returns", True),
        (b, b, "strictq promote", False), (b, c, "1. prepare: ballot 1 of B", False), (c, b, "promised; how far its log is", True),
        (c, b, "2. what the log of B lacks", True), (b, c, "3. accept: B is the primary", False),
        (c, b, "accepted: 2 of 3, decided", True),
    ]  # fmt: skip
    for i, (start, end, text, dashed) in enumerate(steps):
        y = 72 + i * 33
        if start == end:
            p.box((start - 70, y - 18), 140, text, height=24)
        else:
            p.arrow((start, y), (end, y), text=text, dashed=dashed)
    p.box((a - 75, 316), 150, "A is lost")
    return p.svg()


PICTURES: Final = {
    "lifecycle.svg": lifecycle,
    "lease.svg": lease,
    "lanes.svg": lanes,
    "outbox.svg": outbox,
    "confirmed.svg": confirmed,
    "chain.svg": chain,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        Path(name).write_text(draw(), encoding="utf-8")
