"""The table of faults in the page on Spark names tests that are there."""

from __future__ import annotations

import ast
import re

from .test_code_blocks import ROOT

PAGE = ROOT / "docs" / "explanation" / "spark.md"
NAMED = re.compile(r"`(?P<file>test_\w+\.py)?::(?P<test>test_\w+)(?:\[(?P<case>[\w ]+)\])?`")


def rows() -> list[str]:
    """The lines of the table, without its head."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Faults, and the tests that show them\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_fault_has_a_test_that_exists() -> None:
    assert len(rows()) > 20
    for row in rows():
        named = list(NAMED.finditer(row))
        assert named, row
        file = ""
        for match in named:
            file = match["file"] or file  # a name without a file is in the one before
            text = (ROOT / "tests" / "spark" / file).read_text(encoding="utf-8")
            functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
            assert match["test"] in functions, row
            if match["case"]:
                given = ast.unparse(ast.Tuple(functions[match["test"]].decorator_list))
                assert f"'{match['case']}'" in given, row
