"""The benchmarks run, from end to end, at sizes that measure nothing."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from benchmarks.__main__ import main; sys.exit(main())"

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not part of the wheel")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_every_case_is_measured_and_printed(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = run("-m", "benchmarks", "--tiny", "--json", str(file), "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["form"] == "tiny"
    assert report["failures"] == {}
    assert {"strictq", "python", "sqlite", "apsw", "kernel", "cores", "filesystem", "load"} == set(report["versions"])
    listed = run("-c", "from benchmarks.cases import CASES; print(*CASES)").stdout.split()
    assert len(listed) >= 17
    assert list(dict.fromkeys(f["case"] for f in report["figures"])) == listed
    for figure in report["figures"]:
        assert figure["case"] in done.stdout
        assert figure["what"] in done.stdout
        assert figure["values"]
        assert all(math.isfinite(v) and v >= 0 for v in figure["values"]), figure
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert figure["goal"] is None, "sizes this small are not judged"
    assert list(tmp_path.iterdir()) == [file], "the run leaves nothing behind"


def test_plain_text_without_rich(tmp_path: Path) -> None:
    done = run("-c", WITHOUT_RICH, "--tiny", "--only", "open-memory", "import", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    title, versions, headers, *rows = done.stdout.splitlines()
    assert title == "strictq benchmarks, tiny form, 2 rounds"
    assert "sqlite" in versions
    assert headers.split()[:3] == ["Case", "Figure", "Median"]
    assert [r.split()[0] for r in rows] == ["open-memory", "import"]


def test_an_unknown_case_is_refused() -> None:
    done = run("-m", "benchmarks", "--only", "no-such-case")
    assert done.returncode == 2
    assert "life-wide" in done.stderr


def test_a_figure_of_any_unit_can_be_printed() -> None:
    code = """
from typing import get_args
from benchmarks import report
from benchmarks.measure import Figure, Goal, Unit

figures = [Figure(case=unit, what="any", unit=unit, values=[1234.5, 2.0], goal=Goal("at least", 1.0)) for unit in get_args(Unit)]
report.print_table(figures, "every unit")
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert "per second" in done.stdout
