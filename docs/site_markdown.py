"""A hook of the site's build: the pages are written for readers of the repository, and the site's Markdown is another.

Links that lead out of docs/ become text. A list may follow a paragraph without an empty line between them.
"""

import posixpath
import re
from typing import Any

CODE = re.compile(r"(^ *`{3,}[^`\n]*\n.*?^ *`{3,} *$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
QUOTE = re.compile(r"(?:> ?)*")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def unlinked(match: re.Match[str]) -> str:
        target = match["target"].partition("#")[0]
        inside = "://" in target or not posixpath.normpath(posixpath.join(folder, target)).startswith("..")
        return match[0] if inside else match["text"]

    # re.split gives text and code in turn.
    parts = CODE.split(markdown)
    return _lists_apart("".join(LINK.sub(unlinked, part) if i % 2 == 0 else part for i, part in enumerate(parts)))


def _quote(line: str) -> tuple[str, str]:
    """The marks of a quotation, and what is quoted."""
    quote = QUOTE.match(line)
    assert quote is not None  # it matches the empty string
    return quote[0], line[quote.end() :]


def _lists_apart(markdown: str) -> str:
    lines: list[str] = []
    in_code = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        quote, text = _quote(line)
        before = _quote(lines[-1])[1] if lines else ""
        # A paragraph before it: not empty, not an item, not the continuation of one.
        if not in_code and ITEM.match(text) and before.strip() and not ITEM.match(before) and not before.startswith(" "):
            lines.append(quote.rstrip())
        lines.append(line)
    return "\n".join(lines)
