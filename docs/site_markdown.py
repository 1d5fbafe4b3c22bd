"""A hook of the site's build: the pages are written for readers of the repository, and the site's Markdown is another.

Links that lead out of docs/ become text. A list may follow a paragraph without an empty line between them. A public name that
no page of the reference has yet is put on one.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

CODE = re.compile(
    r"(^ *`{3,}[^`\n]*\n.*?^ *`{3,} *$|`[^`\n]*`)", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
QUOTE = re.compile(r"(?:> ?)*")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


REFERENCE = "reference/docstrings"
FOR_THE_REST = f"{REFERENCE}/values.md"


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the Markdown of a page. Called by mkdocs."""
    if page.file.src_uri == FOR_THE_REST:
        markdown += "".join(
            f"\n::: strictq.{name}\n"
            for name in _unplaced(Path(config["docs_dir"]))
        )
    folder = posixpath.dirname(page.file.src_uri)

    def unlinked(match: re.Match[str]) -> str:
        target = match["target"].partition("#")[0]
        inside = "://" in target or not posixpath.normpath(
            posixpath.join(folder, target)
        ).startswith("..")
        return match[0] if inside else match["text"]

    # re.split gives text and code in turn.
    parts = CODE.split(markdown)
    return _lists_apart(
        "".join(
            LINK.sub(unlinked, part) if i % 2 == 0 else part
            for i, part in enumerate(parts)
        )
    )


def _unplaced(docs: Path) -> list[str]:
    """Return the public names that no page of the reference shows."""
    module = ast.parse(
        (docs.parent / "strictq" / "__init__.py").read_text(encoding="utf-8")
    )
    public: list[str] = next(
        ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "__all__"
    )
    pages = "".join(
        page.read_text(encoding="utf-8")
        for page in sorted((docs / REFERENCE).glob("*.md"))
    )
    shown = set(re.findall(r"^::: strictq\.(\w+)$", pages, re.MULTILINE))
    return [
        name for name in public if name not in shown and name != "__version__"
    ]


def _quote(line: str) -> tuple[str, str]:
    """Return the quotation marks that begin a line, and the quoted text."""
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
        if (
            not in_code
            and ITEM.match(text)
            and before.strip()
            and not ITEM.match(before)
            and not before.startswith(" ")
        ):
            lines.append(quote.rstrip())
        lines.append(line)
    return "\n".join(lines)
