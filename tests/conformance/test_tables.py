"""The tables of conformance name what there is, leave nothing out, and are those of the record."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.conformance import tables
from benchmarks.conformance.command import main
from benchmarks.conformance.scenarios import SCENARIOS, Harm
from benchmarks.report import put

ROOT = Path(__file__).resolve().parents[2]
TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:\[([\w-]+)\])?`")

PROMISES = (
    "P1 Order",
    "P2 One holder",
    "P3 Fencing",
    "P4 No loss",
    "P5 Exactly-once hand-off",
    "P6 A blocked key blocks only itself",
    "P7 Bad input is refused",
    "P8 Honest failure",
    "P9 Threads, tasks and processes",
)
COMPLAINTS = (
    "one unacked message stalls other keys",
    "only the first 120,000 messages are considered",
    "a nack reorders its key",
    "a dead letter and its redrive break the order",
    "a limit on concurrency expires while the job runs",
    "a late worker deletes a message that another worker has received",
    "fetching in batches ran a serial queue's jobs in parallel",
    "the other messages of a failing message's batch use up their receive count",
    "a redrive policy sends innocent messages of a batch to the dead-letter queue",
    "why is this key stuck?",
    "a killed worker loses its task",
    "items lost or doubled with several processes",
    "the next message of a key is wanted before the last one is acked",
    "a purge leaves the dedup cache behind",
    "order is wrong in test doubles",
)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    text = tables.PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def defined(file: Path) -> set[str]:
    """Names at the top of a test module: its functions, its classes, and what is assigned there."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize(
    ("heading", "expected"), [("Promises", PROMISES), ("Complaints", COMPLAINTS)], ids=["promises", "complaints"]
)
def test_nothing_is_left_out(heading: str, expected: tuple[str, ...]) -> None:
    found = [row[0] for row in rows(heading)]
    assert len(found) == len(expected)
    for said, start in zip(found, expected, strict=True):
        assert said.startswith(start)


def test_every_promise_of_the_guarantees_is_there() -> None:
    text = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^## (P\d .+)$", text, re.MULTILINE)) == PROMISES


@pytest.mark.parametrize("heading", ["Promises", "Complaints"])
def test_every_row_names_tests_that_exist(heading: str) -> None:
    for _, answer, shown in rows(heading):
        assert answer
        ids = TEST_ID.findall(shown)
        assert len(ids) == shown.count("::") > 0, shown
        for file, name, parameter in ids:
            assert name in defined(ROOT / file), f"{file}::{name}"
            assert name.lower().startswith("test")
            if parameter:
                assert file == "tests/conformance/test_scenarios.py"
                assert parameter in SCENARIOS


def test_the_tables_are_those_of_the_record() -> None:
    record = json.loads(tables.JSON.read_text(encoding="utf-8"))
    for page, text in tables.pages(record).items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run `python -m benchmarks conformance --write`"


def test_what_became_of_messages_is_said_of_those_that_claim_nothing_better() -> None:
    def result(outcome: str, seen: str = "", harm: str = "") -> dict[str, str]:
        return {"outcome": outcome, "seen": seen, "harm": harm}

    results = {
        "strictq": result("passes", "well"),
        "litequeue": result("fails", "badly", "lost"),
        "persist-queue": result("not offered", "badly", "doubled"),
        "huey": result("not offered", "badly"),
        "redis": result("not offered"),
    }
    record = {
        "versions": {name: {name: "1"} for name in results},
        "scenarios": {"made-up": {"title": "made up", "needs": []}},
        "results": {"made-up": results},
    }
    assert tables.table(record).splitlines()[-1] == "| made up | yes | **no** | – doubled | – | – |"
    assert tables.details(record) == "- **made up.** litequeue (fails): badly; persist-queue, huey (not offered): badly."


def test_every_harm_of_the_record_is_in_its_tables_and_in_their_key() -> None:
    record = json.loads(tables.JSON.read_text(encoding="utf-8"))
    names = list(record["versions"])
    marks = {m for scenario in record["results"].values() for r in scenario.values() if (m := r["harm"])}
    assert marks <= set(get_args(Harm))
    for page, scenarios in ((tables.README, tables.README_ROWS), (tables.PAGE, record["scenarios"])):
        text = page.read_text(encoding="utf-8")
        assert f"{tables.KEY}." in " ".join(text.split())
        for scenario in scenarios:
            title = re.escape(record["scenarios"][scenario]["title"])
            (line,) = re.findall(rf"^\| {title} \| (.+) \|$", text, re.MULTILINE)
            for name, mark in zip(names, line.split(" | "), strict=True):
                result = record["results"][scenario][name]
                assert (mark == f"– {result['harm']}") == (result["outcome"] == "not offered" and bool(result["harm"]))
    for harm in filter(None, get_args(Harm)):
        assert f"*{harm}*: " in tables.KEY


def test_the_tables_are_written_of_a_record_without_playing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "record.json"
    assert main(["--from", str(tables.JSON), "--json", str(copy)]) == 0
    assert copy.read_bytes() == tables.JSON.read_bytes()
    assert tables.table(json.loads(copy.read_text(encoding="utf-8"))) in capsys.readouterr().out


def test_a_page_without_its_place_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: written by me -->\nold\n<!-- table: end -->\nrest\n", encoding="utf-8")
    assert put(page, "table", "new") == "<!-- table: written by me -->\n\nnew\n\n<!-- table: end -->\nrest\n"
    for name in ("other", "tab"):
        with pytest.raises(RuntimeError, match=r"page\.md has no place"):
            put(page, name, "new")
