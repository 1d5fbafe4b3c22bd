"""Record demo.svg, overlap.svg and outage.svg from real runs. Run it in this directory: python record.py"""

import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Final

COLUMNS: Final = 92
LINE_PIXELS: Final = 17
CHARACTER_PIXELS: Final = 7.85
MARGIN: Final = 14
TITLE_PIXELS: Final = 30
WRAP: Final = f"(.{{1,{COLUMNS}}})(?: |$)"
LEFT_OUT: Final = re.compile(r"(^sent [\d,]+, processed .*\n)+", re.MULTILINE)
"""Progress lines. The picture has an ellipsis instead."""


def demo(*options: str) -> list[str]:
    """Run the demo with its progress on stdout. Return the lines that it printed."""
    done = subprocess.run(  # noqa: S603 - this program
        [sys.executable, "-m", "strictq", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return LEFT_OUT.sub("…\n", done.stdout).splitlines()


def terminal(command: str, lines: list[str]) -> str:
    """Return an SVG picture of a terminal window."""
    shown = [
        f"$ {command}",
        *(part for line in lines for part in (re.findall(WRAP, line) or [""])),
    ]
    width = MARGIN * 2 + COLUMNS * CHARACTER_PIXELS
    height = TITLE_PIXELS + MARGIN + len(shown) * LINE_PIXELS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="13" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">',
        f"<title>{escape(command)}</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1d2430"/>',
        *(
            f'<circle cx="{18 + 18 * i}" cy="16" r="5" fill="#4a5568"/>'
            for i in range(3)
        ),
    ]
    for i, line in enumerate(shown):
        colour = (
            "#7ee787"
            if line.startswith(("$", "OK"))
            else "#ffa657"
            if line.startswith("killed")
            else "#d7dde6"
        )
        y = TITLE_PIXELS + MARGIN + i * LINE_PIXELS
        pixels = f"{len(line) * CHARACTER_PIXELS:.0f}"
        if line:
            parts.append(
                f'<text x="{MARGIN}" y="{y}" fill="{colour}" xml:space="preserve" textLength="{pixels}">{escape(line)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path("demo.svg").write_text(
        terminal("strictq demo", demo()), encoding="utf-8"
    )
    demo("--worker", "--events", "40", "--plot", "overlap.svg")
    subprocess.run(
        [
            sys.executable,
            "../examples/outage.py",
            "--seconds",
            "60",
            "--plot",
            "outage.svg",
        ],
        check=True,
    )
