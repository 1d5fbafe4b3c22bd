"""Draw the diagrams of the documentation: lifecycle, lease, lanes, outbox, ranges, confirmed and chain.svg. Run it in this directory."""

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
        halo: bool = False,
    ) -> None:
        """Write a line of text; with a halo, it can be read across a line."""
        white = (
            ' stroke="#ffffff" stroke-width="4" paint-order="stroke"'
            if halo
            else ""
        )
        self._parts.append(
            f'<text x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}"{white}>{escape(text)}</text>'
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
            middle = ((x0 + x) / 2, (y0 + y) / 2 - 6)
            self.text(at or middle, text, anchor=anchor, halo=True)

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
    p.group((170, 88), 140, 212, "")
    p.box((190, 110), 100, "ready")
    p.box((190, 250), 100, "delayed")
    p.box((420, 110), 100, "in_flight")
    p.box((420, 330), 100, "held")
    p.box((630, 110), 110, "resolved")
    p.box((630, 250), 110, "dead")
    p.arrow((40, 118), (190, 118), text="send", at=(105, 112))
    p.arrow((40, 265), (190, 265), text="send with delay", at=(105, 259))
    p.arrow(
        (212, 250),
        (212, 140),
        text="delay is over",
        at=(218, 200),
        anchor="start",
    )
    p.arrow((290, 118), (420, 118), text="receive")
    p.arrow(
        (420, 134), (290, 134), text="release, lease expires", at=(355, 150)
    )
    p.arrow((520, 125), (630, 125), text="ack")
    p.arrow(
        (436, 140),
        (350, 262),
        (290, 262),
        text="nack, defer",
        at=(402, 205),
        anchor="start",
    )
    p.arrow((520, 138), (630, 258))
    p.text((502, 205), "reject, or", anchor="start", halo=True)
    p.text((502, 221), "out of attempts", anchor="start", halo=True)
    p.arrow(
        (470, 140),
        (470, 330),
        text="out of attempts, on_poison=hold",
        at=(476, 306),
        anchor="start",
    )
    p.arrow((250, 300), (250, 354), (420, 354), text="hold(key)", at=(335, 370))
    p.arrow(
        (420, 338), (285, 338), (285, 300), text="release(key)", at=(352, 331)
    )
    p.arrow(
        (255, 110),
        (255, 62),
        (680, 62),
        (680, 110),
        text="TTL expires, or purge",
        at=(460, 56),
    )
    p.arrow(
        (215, 110),
        (215, 30),
        (752, 30),
        (752, 265),
        (740, 265),
        text="TTL expires, on_expire=dead_letter",
        at=(460, 24),
    )
    p.arrow((690, 250), (690, 140), text="purge", at=(697, 200), anchor="start")
    p.arrow(
        (685, 280),
        (685, 386),
        (20, 386),
        (20, 132),
        (190, 132),
        text="redrive",
        at=(600, 380),
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
    p.group(
        (180, 12), 564, 190, "the file of a shard, which every process reads"
    )
    p.box((16, 44), 108, "send", fill=GROUP)
    p.box((16, 86), 108, "receive, ack", fill=GROUP)
    p.box((200, 44), 524, "message: every message, in the order of arrival")
    p.box((200, 86), 524, "journal: every change of state, one row per call")
    p.box((474, 156), 250, "lane: one row per lane at rest")
    p.box((200, 240), 220, "memory: loaded lanes", height=40)
    p.arrow((124, 59), (200, 59), text="append", at=(152, 53))
    p.arrow((124, 101), (200, 101), text="append", at=(152, 95))
    p.arrow((300, 116), (300, 240), text="apply", at=(307, 224), anchor="start")
    p.arrow((420, 252), (560, 252), (560, 186), text="fold", at=(490, 246))
    p.arrow(
        (640, 186),
        (640, 270),
        (420, 270),
        text="load",
        at=(490, 285),
        dashed=True,
    )
    p.arrow(
        (690, 156), (690, 116), text="then cut", at=(683, 140), anchor="end"
    )
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


def ranges() -> str:
    """Draw how lanes move from a shard to another one."""
    p = Picture(760, 330, "A lane moves to another shard")
    p.group((20, 20), 340, 190, "the shard that the range leaves")
    p.group((400, 20), 340, 190, "the shard that it moves to")
    p.box((40, 60), 130, "row of the lane")
    p.box((40, 150), 130, "messages")
    p.box((210, 60), 130, "parcel")
    p.box((590, 60), 130, "row of the lane")
    p.box((590, 150), 130, "messages")
    p.arrow((170, 75), (210, 75), text="1")
    p.arrow((340, 75), (590, 75), text="2", at=(465, 69))
    p.arrow((170, 165), (590, 165), text="2", at=(465, 159))
    p.text((105, 198), "3: deleted", size=11)
    p.text((275, 108), "3: deleted", size=11)
    steps = (
        "1  leaves: one transaction, then synced. No call finds the lane here any more.",
        "2  arrives: one transaction of the other shard, then synced. Calls find it there.",
        "3  is swept: one transaction. No call waits for it.",
    )
    for n, text in enumerate(steps):
        p.text((40, 240 + 20 * n), text, anchor="start")
    p.text(
        (40, 310),
        "Any process may do step 2 or 3, any number of times: the parcel and its messages do not change.",
        anchor="start",
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
    "ranges.svg": ranges,
    "confirmed.svg": confirmed,
    "chain.svg": chain,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        Path(name).write_text(draw(), encoding="utf-8")
