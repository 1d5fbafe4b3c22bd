"""The benchmarks run, from end to end, at sizes that measure nothing."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PARTS = 3
"""Each case is in one of so many runs."""
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from benchmarks.__main__ import main; sys.exit(main())"

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not part of the wheel")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


@pytest.mark.in_turn
@pytest.mark.parametrize("part", range(PARTS))
def test_every_case_is_measured_and_printed(tmp_path: Path, part: int) -> None:
    file = tmp_path / "figures.json"
    every = run("-c", "from benchmarks.cases import CASES; print(*CASES)").stdout.split()
    assert len(every) >= 17
    listed = every[part::PARTS]
    done = run("-m", "benchmarks", "--tiny", "--only", *listed, "--json", str(file), "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["form"] == "tiny"
    assert report["failures"] == {}
    assert {"strictq", "python", "sqlite", "apsw", "kernel", "cores", "filesystem", "load"} == set(report["versions"])
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
    assert title == "strictq benchmarks, tiny form, 1 rounds"
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


@pytest.mark.in_turn
@pytest.mark.parametrize("chosen", [["nack-100", "send-dedup"], ["live-one", "state-1"], ["worker", "look-lost"]], ids=" ".join)
def test_patterns_are_measured_beside_another_version(tmp_path: Path, chosen: list[str]) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--tiny", "--no-peers", "--only", *chosen, "--against", f"same={ROOT}", "--json", str(file)]
    done = run("-m", "benchmarks", "patterns", *arguments, "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["failures"] == {}
    assert list(report["figures"]) == chosen
    for sides in report["figures"].values():
        assert set(sides) == {"strictq", "same"}
        assert all(math.isfinite(value) for values in sides.values() for value in values)
    assert list(tmp_path.iterdir()) == [file], "the run leaves nothing behind"


@pytest.mark.in_turn
@pytest.mark.parametrize(("pattern", "bare"), [("one", {"bare SQLite"}), ("consume-3", set())])
def test_peers_do_the_patterns_that_they_can(tmp_path: Path, pattern: str, bare: set[str]) -> None:
    """Bare SQLite has one reader."""
    file = tmp_path / "figures.json"
    done = run("-m", "benchmarks", "patterns", "--tiny", "--only", pattern, "--json", str(file), "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " failed: " not in done.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    peers = {"litequeue", "persist-queue", "huey", "diskcache", "redis"} - set(report["missing"])
    assert set(report["figures"][pattern]) == {"strictq", *bare, *peers}


def test_a_program_that_lost_a_message_is_a_failure(tmp_path: Path) -> None:
    # A version of strictq in which `stats` counts one message more.
    package = tmp_path / "other" / "strictq"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"""
import importlib.util, sys, types
spec = importlib.util.spec_from_file_location("strictq", {str(ROOT / "strictq" / "__init__.py")!r},
                                              submodule_search_locations=[{str(ROOT / "strictq")!r}])
module = importlib.util.module_from_spec(spec)
sys.modules["strictq"] = module
spec.loader.exec_module(module)
stats = module.Queue.stats
module.Queue.stats = lambda self: types.SimpleNamespace(depth=stats(self).depth + 1)
""",
        encoding="utf-8",
    )
    done = run("-m", "benchmarks", "patterns", "--tiny", "--no-peers", "--only", "one", "--against", f"off={tmp_path / 'other'}")
    assert done.returncode == 0, "only this version's failures count"
    assert "off failed: RuntimeError: 1 messages are left, expected 0" in done.stderr


def test_the_bounds_of_the_patterns_are_judged() -> None:
    code = """
from benchmarks.patterns.command import broken
figures = {"consume-1": {"strictq": [10.0, 12.0]}, "consume-3": {"strictq": [31.0, 36.0]}, "look-peek": {"strictq": [250.0]}}
print(*broken(figures), sep="\\n")
"""
    done = run("-c", code)
    assert done.stdout.splitlines() == [
        "consume-3 / consume-1 at most 3; it is 3.05",
        "look-peek at most 200 µs; it is 250",
    ]


def test_a_difference_below_the_noise_is_no_figure() -> None:
    code = """
from benchmarks.patterns.command import table
figures = {"one": {"strictq": [20.0, 22.0], "huey": [10.0, 11.0]}, "worker-process": {"strictq": [-3.0], "huey": [2.0]}}
print(table(figures, ["huey"]))
"""
    assert run("-c", code).stdout.splitlines()[2:] == [
        "| send, receive, ack one at a time | 21.0 | 10.5 (2.00×) |",
        "| worker, handlers in 2 processes | – | 2.00 |",
    ]


def test_the_floor_reads_what_was_appended(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from strictq.bench.floor import Floor, rows
lines = rows(10, b"x")
with Floor(Path({str(tmp_path / "floor")!r}), "process") as floor:
    floor.life(lines, 1)
    floor.life(lines, 3)
    floor.append(lines[:4])
    print([row[1] for row in floor.read(2)])
    floor.delete(2)
    floor.append(lines[4:6])
    print([row[1] for row in floor.read(4)])
    floor.delete(4)
    floor.append_one_by_one(lines[6:8])
    print([row[1] for row in floor.read(9)])
    floor.life(lines[8:10], 1)
    print([row[1] for row in floor.read(9)])
    floor.empty()
    floor.append(lines[:1])
    print([row[1] for row in floor.read(9)])
"""
    done = run("-c", code)
    assert done.stdout.splitlines() == ["[0, 1]", "[2, 3, 4, 5]", "[6, 7]", "[8, 9]", "[0]"], done.stderr


def test_a_take_over_is_the_first_message_of_a_key_of_the_lost_consumer() -> None:
    code = (
        "from benchmarks.takeover import _took, told\n"
        "lost, other = [(9.6, 'a'), (9.7, 'b')], [(9.5, 'c'), (9.8, 'b'), (10.1, 'c'), (10.2, 'b'), (10.5, 'a'), (10.6, 'a')]\n"
        "print(_took(lost, other, at=10.0), _took(lost, other[:-2], at=10.0))\n"
        "print(told([0.5, 0.1, 0.2]), told([]), sep='; ')\n"
    )
    assert run("-c", code).stdout.splitlines() == ["0.5 None", "0.10 s, median 0.20 s, at most 0.50 s; never"]
