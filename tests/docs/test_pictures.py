"""The diagrams are what their script draws, the console is as its pictures show, and every picture of a page exists."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.running import PATIENCE_SECONDS

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


def size(picture: Path) -> tuple[bytes, int]:
    """Return width and height of a picture, and how many kilobytes it has."""
    content = picture.read_bytes()
    return content[16:24], len(content) >> 10


def test_the_pictures_of_the_console_are_those_that_the_script_takes() -> None:
    shown = {Path(match["target"]).name for page in PAGES for match in IMAGE.finditer(page.read_text(encoding="utf-8"))}
    taken = runpy.run_path(str(PICTURES / "console.py"))["SHOWN"]
    assert {name for name in shown if name.startswith("console-")} == {f"console-{name}.png" for name in taken}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_the_script_takes_the_pictures_of_the_console(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    command = [sys.executable, PICTURES / "console.py", "--into", tmp_path, "--seconds", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in PICTURES.glob("console-*.png"))
    for taken in tmp_path.iterdir():
        (form, there), (wanted, here) = size(taken), size(PICTURES / taken.name)
        assert form == wanted
        assert there > here / 2, f"{taken.name} shows less than the picture of the documentation"
