"""The diagrams of the documentation are what their script draws, and every picture that a page shows exists."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .test_code_blocks import PAGES, ROOT, case

PICTURES = ROOT / "docs" / "pictures"
PNG_BYTES_MAX = 200_000
IMAGE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def test_the_diagrams_are_what_the_script_draws() -> None:
    drawn = runpy.run_path(str(PICTURES / "diagrams.py"))["PICTURES"]
    for name, draw in drawn.items():
        assert (PICTURES / name).read_text(encoding="utf-8") == draw(), f"run docs/pictures/diagrams.py: {name} is out of date"


@pytest.mark.parametrize("page", PAGES, ids=case)
def test_pictures_exist_and_load_nothing(page: Path) -> None:
    for match in IMAGE.finditer(page.read_text(encoding="utf-8")):
        picture = page.parent / match["target"]
        assert picture.exists(), f"{case(page)}: {match['target']}"
        if picture.suffix == ".png":
            assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", picture.name
            assert picture.stat().st_size < PNG_BYTES_MAX, picture.name
            continue
        root = ElementTree.parse(picture).getroot()
        assert root.tag.endswith("svg")
        assert not [e.tag for e in root.iter() if e.tag.endswith(("image", "script"))], picture.name
        assert not [v for e in root.iter() for k, v in e.items() if k.endswith("href") and not v.startswith("#")], picture.name
