"""The test suite that docs/howto/testing.md shows passes, and its failure looks as shown there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_code_blocks import ROOT, blocks

pytest_plugins = ["pytester"]
PAGE = ROOT / "docs" / "howto" / "testing.md"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    files = {}
    for block in blocks(PAGE):
        name = block.lines[0].removeprefix("# ")
        if block.language == "python" and name.endswith(".py"):
            files[name] = block.text
    assert set(files) == {"shop.py", "test_shop.py"}
    for name, text in files.items():
        (pytester.path / name).write_text(text, encoding="utf-8")
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    return pytester.path


@pytest.mark.parametrize("options", [["-p", "no:xdist"], ["--strictq-disk", "-n", "2"]], ids=["memory", "disk in parallel"])
def test_the_suite_passes(suite: Path, pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=7)


def test_a_failure_looks_as_shown(suite: Path, pytester: pytest.Pytester) -> None:
    shop = suite / "shop.py"
    text = shop.read_text(encoding="utf-8")
    assert '"%s: %d"' in text
    shop.write_text(text.replace('"%s: %d"', '"%s: %d USD"'), encoding="utf-8")
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-k", "acknowledged")
    result.assert_outcomes(failed=1, deselected=6)
    (shown,) = [b for b in blocks(PAGE) if b.language == "text"]
    printed = [line.rstrip() for line in result.outlines]
    start = printed.index(shown.lines[0])
    assert printed[start : start + len(shown.lines)] == shown.lines
