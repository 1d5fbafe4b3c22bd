"""A hook of the site's build: links that lead out of docs/ are for readers of the repository, and become text on the site."""

import posixpath
import re
from typing import Any

# Not in code: a fence, or text between backticks. What is left of a line is searched for links.
CODE = re.compile(r"(^ *(`{3,}).*?^ *\2 *$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def unlinked(match: re.Match[str]) -> str:
        target = match["target"].partition("#")[0]
        if "://" in target or not posixpath.normpath(posixpath.join(folder, target)).startswith(".."):
            return match[0]
        return match["text"]

    parts = re.split(CODE, markdown)
    # re.split gives text, code, and the fence of that code, in turn.
    return "".join(LINK.sub(unlinked, part) if i % 3 == 0 else part for i, part in enumerate(parts) if i % 3 != 2 and part)
