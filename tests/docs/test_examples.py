"""Every example runs on its own, in an empty directory, with nothing but strictq, and Spark where it is about that; each
verifies what it prints."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import strictq

from .test_code_blocks import ROOT

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))

# What a person is to read there, besides that it ended without an error: regular expressions.
SAYS = {
    "auctions.py": ["bids of one auction at once: up to 1", "differ from what was worked out by hand: 0"],
    "fleet.py": [
        r"\d s  north +\d+  east +\d+  south +\d+  west +\d+\n",
        "readings of 4 ships; sensors with one lost, doubled or out of order: 0",
    ],
    "history_report.py": ["1,000 records in 2 files", "acked 950, rejected 50; figures that differ from the queue's records: 0"],
    "ledger.py": ["orders sent 400, in the ledger 400, each once and as sent: True", "as worked out by hand: True"],
    "outage.py": [
        r"^[1-9][\d,]+ readings reported as stored, by a device that was killed 3 times\n",
        r"lost: 0; stored twice: 0; sensors out of order: 0\n",
    ],
    "sensor_buffer.py": [
        r'durability="full": 40 power cuts; .* told that [1-9]\d\d+ readings are stored\n'
        r" +missing: 0, .*\n +in order: True; problems .*: 0\n +acks undone: 0;",
        r'durability="process": 40 power cuts; .* told that [1-9]\d\d+ readings are stored\n'
        r" +missing: [1-9]\d*, .*\n +in order: True; problems .*: 0\n +acks undone: [1-9]",
    ],
    "web_events.py": [
        "to apply:",
        "1,000 events staged",
        "broken links: 0; users that differ from what was worked out by hand: 0",
    ],
}
ARGUMENTS = {
    "web_events.py": ["--events", "1000", "--users", "50", "--rate", "0"],
    "fleet.py": ["--seconds", "2"],
    "history_report.py": ["--orders", "1000"],
}
ON_SPARK = {"web_events.py", "fleet.py", "history_report.py"}
NEEDS = {
    "web_events.py": {"pyspark", "pyarrow"},
    "fleet.py": {"pyspark"},
    "history_report.py": {"pyspark"},
    "sensor_buffer.py": {"apsw"},
}
"""Besides strictq; it brings apsw along."""


def test_every_example_is_known_here() -> None:
    assert {e.name for e in EXAMPLES} == set(SAYS)


@pytest.mark.parametrize(
    "example", [pytest.param(e, id=e.name, marks=pytest.mark.in_turn if e.name in ON_SPARK else ()) for e in EXAMPLES]
)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    if example.name in ON_SPARK and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and no Java was found on this machine")
    path = os.pathsep.join(filter(None, [str(Path(strictq.__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), *ARGUMENTS.get(example.name, ())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" or example.name in ON_SPARK, done.stderr  # Java and Spark say there that they begin, and end
    for text in SAYS[example.name]:
        assert re.search(text, done.stdout), done.stdout
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_it_needs_nothing_else_and_says_how_to_run_it(example: Path) -> None:
    module = ast.parse(example.read_text(encoding="utf-8"))
    assert f"python {example.name}" in (ast.get_docstring(module) or "")
    used = {
        name.partition(".")[0]
        for node in ast.walk(module)
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert used <= {*sys.stdlib_module_names, "strictq", *NEEDS.get(example.name, ())}
