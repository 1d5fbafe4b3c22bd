"""The documentation's text can be read in a diff and on a page: no long lines, and code that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_code_blocks import PAGES, ROOT, blocks, case

LINE_MAX = 99
CODE_MAX = 80
WHOLE_LINES = re.compile(r"\s*(\||<!--|!\[[^\]]*\]\(\S+\)$|\[[^\]]+\]: )")
"""Lines that Markdown can't fold: of tables, comments, pictures, and targets of links."""
INSTALLS = re.compile(r"pip install (?P<what>[^`\n]*)")
OF_STRICTQ = re.compile(r"(^|\s|\")(strictq\b|\.(\s|\[|\"|$)|-e )")
HOW_TO_INSTALL = {"docs/install.md", "README.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=case)
def test_lines_are_short(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    code = {number for block in blocks(page) for number in range(block.line, block.line + len(block.lines))}
    long = [
        number
        for number, line in enumerate(lines, 1)
        if number not in code and len(line) > LINE_MAX and not WHOLE_LINES.match(line) and " " in line.strip()
    ]
    assert not long, f"{case(page)}: over {LINE_MAX} characters in lines {long}"


@pytest.mark.parametrize("page", PAGES, ids=case)
def test_code_fits_the_page(page: Path) -> None:
    long = [
        block.line + i
        for block in blocks(page)
        if block.language != "text"  # the output of a program
        for i, line in enumerate(block.lines)
        if len(line) > CODE_MAX
    ]
    assert not long, f"{case(page)}: code over {CODE_MAX} columns in lines {long}"


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs" / "examples").glob("*.py"))], ids=case)
def test_one_page_says_how_to_install_strictq(page: Path) -> None:
    """The others link to it and name the extra, so that it can change in one place. README and CONTRIBUTING set up a checkout."""
    if case(page) not in HOW_TO_INSTALL:
        found = [m["what"] for m in INSTALLS.finditer(page.read_text(encoding="utf-8")) if OF_STRICTQ.search(m["what"])]
        assert not found, f"{case(page)}: {found}; link to docs/install.md"


@pytest.mark.parametrize("what", ["strictq", '"strictq[cli]"', ".", '".[cli]"', "-e .", "--upgrade strictq"])
def test_each_way_to_install_strictq_is_noticed(what: str) -> None:
    assert OF_STRICTQ.search(what)
    assert not OF_STRICTQ.search('"protobuf>=6.33.5"')
