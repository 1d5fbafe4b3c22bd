"""Pictures show the figures they are given; the command draws all of them from an export."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import strictq
from strictq import InvalidArgument, QueueConfig
from strictq.cli import app
from strictq.history import plots
from tests.support.records import generate, write
from tests.support.running import PATIENCE_SECONDS, ROOT

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hours(*numbers: int, **columns: list[Any]) -> list[dict[str, Any]]:
    """Rows of windows of an hour."""
    return [
        {"window_start": MIDNIGHT + n * HOUR, **{name: values[i] for name, values in columns.items()}}
        for i, n in enumerate(numbers)
    ]  # fmt: skip


def lines(axes: Any) -> dict[str, list[float]]:
    """Label → values of all lines of that color."""
    found: dict[str, list[float]] = {}
    names = {line.get_color(): line.get_label() for line in axes.lines if not line.get_label().startswith("_")}
    for line in axes.lines:
        found.setdefault(names.get(line.get_color(), "?"), []).extend(map(float, line.get_ydata()))
    return found


def texts(figure: Any) -> str:
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_ages_are_lines_with_gaps() -> None:
    rows = hours(0, 1, 5, p50_seconds=[1.0, 2.0, 3.0], p99_9_seconds=[100.0, 3600.0, 10.0], max_seconds=[1e9] * 3)
    figure = plots.plot_ages(rows, "Ages")
    (axes,) = figure.axes
    assert lines(axes) == {"p50": [1.0, 2.0, 3.0], "p99.9": [100.0, 3600.0, 10.0]}
    assert len(axes.lines) == 4, "each is broken where hours have no messages"
    assert axes.get_yscale() == "log"
    figure.canvas.draw()
    assert {"1 s", "10 s", "1 min", "10 min", "1 h"} <= {label.get_text() for label in axes.get_yticklabels()}
    assert "Ages" in texts(figure)


def test_ages_of_nearly_the_same_length_have_marks() -> None:
    figure = plots.plot_ages(hours(0, 1, p50_seconds=[2.9, 3.0]))
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["2 s"]


def test_throughput_is_a_step_line_to_the_end_of_the_last_window() -> None:
    (axes,) = plots.plot_throughput(hours(0, 1, 2, messages_per_second=[1.0, 0.0, 3.0])).axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == [1.0, 0.0, 3.0, 3.0]
    assert list(line.get_xdata()) == [MIDNIGHT + n * HOUR for n in range(4)]
    assert axes.get_ylim()[0] == 0.0


@pytest.mark.parametrize("numbers", [(0,), (0, 30)], ids=["one", "far apart"])
def test_windows_without_neighbours_are_drawn_where_they_are(numbers: tuple[int, ...]) -> None:
    """Their length is unknown to the rows; a minute, not an hour, and not the distance of the two."""
    minute = timedelta(minutes=1)
    rows = [{"window_start": MIDNIGHT + n * minute, "p50_seconds": 1.0, "messages_per_second": 1.0} for n in numbers]
    (axes,) = plots.plot_ages(rows, window_seconds=60.0).axes
    drawn = [at for line in axes.lines for at in line.get_xdata()]
    assert drawn == [row["window_start"] + minute / 2 for row in rows]
    (axes,) = plots.plot_throughput(rows, window_seconds=60.0).axes
    assert list(axes.lines[0].get_xdata()) == [*(row["window_start"] for row in rows), rows[-1]["window_start"] + minute]


def test_outcomes_are_shares() -> None:
    none = [0, 0, 0]
    ends = {"rejected": [1, 0, 0], "poison": none, "expired": [4, 0, 1], "dropped": none, "purged": none}
    rows = hours(0, 1, 2, messages=[10, 0, 4], retries=[5, 0, 2], **ends)
    figure = plots.plot_outcomes(rows)
    above, below = figure.axes
    tops = [max(y for _, y in area.get_paths()[0].vertices) for area in above.collections]
    assert tops == pytest.approx([0.1, 0.5]), "stacked: rejected, and expired on top of it"
    assert "expired" in texts(figure)
    assert "poison" not in texts(figure)
    (line,) = below.lines
    assert [None if math.isnan(y) else y for y in line.get_ydata()] == [0.5, None, 0.5, 0.5]


def test_durations_are_points_and_a_line() -> None:
    samples = [{"stage": "process", "size": float(n), "seconds": 1.0 + n / 10} for n in range(11)]
    models = [
        {"stage": "process", "slope": 0.1, "intercept_seconds": 1.0, "samples": 5_000},
        {"stage": "prepare", "slope": 0.0, "intercept_seconds": 0.0, "samples": 1},
    ]
    figure = plots.plot_durations(samples, models)
    prepare, process = figure.axes
    assert len(process.collections[0].get_offsets()) == 11
    assert list(process.lines[0].get_ydata()) == [1.0, 2.0]
    assert "1 s + 100 ms × size, of 5,000" in texts(figure)
    assert len(prepare.collections[0].get_offsets()) == 0


def test_nothing_to_draw_says_so(tmp_path: Path) -> None:
    for figure in (plots.plot_ages([]), plots.plot_throughput([]), plots.plot_outcomes([])):
        assert "no messages" in texts(figure)
        figure.savefig(tmp_path / "x.png")
    plots.plot_durations([], []).savefig(tmp_path / "x.png")


@pytest.mark.parametrize("seconds", [0.0, 4e-6, 0.004, 4.0, 400.0])
def test_odd_ages_can_be_drawn(tmp_path: Path, seconds: float) -> None:
    plots.plot_ages(hours(0, p50_seconds=[seconds])).savefig(tmp_path / "x.png")


def test_bad_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="messages_per_second"):
        plots.plot_throughput(hours(0, messages=[1]))
    monkeypatch.setattr(plots, "POINTS_MAX", 2)
    with pytest.raises(InvalidArgument, match="at most 2 rows"):
        plots.plot_throughput(hours(0, 1, 2, messages_per_second=[1.0] * 3))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (2e-6, "2 µs"), (0.0035, "3.5 ms"), (40.0, "40 s"), (90.0, "1.5 min"), (7200.0, "2 h"), (-3.0, "-3 s")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert plots.duration(seconds) == text


def test_without_matplotlib_the_extra_is_named() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import strictq.history.plots"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode != 0
    assert 'MissingExtra: this needs matplotlib (pip install "strictq[plot]")' in done.stderr


# ---- the commands


def run(*words: object) -> Any:
    return CliRunner().invoke(app(), ["history", *map(str, words)])


def test_the_command_draws_an_export_without_spark(tmp_path: Path) -> None:
    out = write(generate(500), tmp_path / "out")
    code = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; import runpy; runpy.run_module('strictq')"
    words = ["history", "plot", str(out), "--png", str(tmp_path / "png" / "here"), "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    files = [Path(file) for file in json.loads(done.stdout)["files"]]
    assert [file.name for file in files] == [
        "ages.png", "first-attempt-ages.png", "throughput.png", "outcomes.png", "durations.png",
    ]  # fmt: skip
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_without_measurements_there_is_no_plot_of_durations(tmp_path: Path) -> None:
    saved = plots.save_plots(write([], tmp_path / "out"), tmp_path / "png")
    assert [file.stem for file in saved] == ["ages", "first-attempt-ages", "throughput", "outcomes"]


def test_what_can_not_be_read_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.parquet").write_text("not Parquet")
    done = run("plot", tmp_path / "out", "--png", tmp_path / "png")
    assert done.exit_code == 1
    assert "can't be read: " in done.stderr
    assert "x.parquet" in done.stderr
    assert not (tmp_path / "png").exists()


def test_wrong_usage_of_plot(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run("plot", tmp_path / "none", "--png", tmp_path).exit_code == 2
    assert run("plot", tmp_path / "out", "--png", tmp_path / "out").exit_code == 2
    assert run("plot", tmp_path / "out", "--png", tmp_path, "--window", "nan").exit_code == 2
    assert run("plot", tmp_path / "out").exit_code == 2
    for bad in (0.0, -1.0, float("nan"), "1"):
        with pytest.raises(InvalidArgument, match="window_seconds"):
            plots.save_plots(tmp_path / "out", tmp_path / "png", bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="would stop the next export"):
        plots.save_plots(tmp_path / "out", tmp_path / "out")


def filled(path: Path, **settings: Any) -> None:
    with strictq.open(path, durability="process", config=QueueConfig(**settings)) as q:
        q.send_many([strictq.Message(b"x", key=n % 7) for n in range(50)])
        while ds := q.receive(100):
            q.ack_many(ds)


def test_the_command_exports_and_goes_on(tmp_path: Path) -> None:
    filled(tmp_path / "q", history="records")
    done = run("export", tmp_path / "q", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["records"], said["missing"], said["forgotten"], said["upto"]) == (50, 0, 0, {"0": 50})
    assert [Path(file).exists() for file in said["files"]] == [True]
    done = run("export", tmp_path / "q", tmp_path / "out", "--forget")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("0 records in 0 new files, 50 records forgotten, ")
    with strictq.open(tmp_path / "q") as q:
        assert q.history() == []


def test_bodies_are_left_out_when_asked(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    filled(tmp_path / "q", history="bodies")
    for name, options, body in (("with", [], b"x"), ("without", ["--no-bodies", "--quiet"], None)):
        done = run("export", tmp_path / "q", tmp_path / name, *options)
        assert done.exit_code == 0
        assert (done.stderr == "") == bool(options)
        (file,) = (tmp_path / name).iterdir()
        assert set(pq.read_table(file).column("body").to_pylist()) == {body}


def test_what_was_lost_is_said_even_quietly(tmp_path: Path) -> None:
    filled(tmp_path / "q", history="records")
    assert run("export", tmp_path / "q", tmp_path / "out").exit_code == 0
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send_many([strictq.Message(b"", key=1) for _ in range(5)])
        q.ack_many(q.receive())
        q.purge(history=True)
        q.send(b"", 1)
        q.receive()[0].ack()
    done = run("export", tmp_path / "q", tmp_path / "out", "--quiet")
    assert done.exit_code == 0
    assert done.stderr.startswith("strictq: the queue deleted 5 records before this export")


def test_a_queue_that_keeps_no_history_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "q")
    done = run("export", tmp_path / "q", tmp_path / "out")
    assert done.exit_code == 0
    assert "this queue keeps no history" in done.stderr


def test_exit_codes_of_export(tmp_path: Path) -> None:
    filled(tmp_path / "q", history="records")
    assert run("export", tmp_path / "none", tmp_path / "out").exit_code == 2
    assert run("export", tmp_path / "q", tmp_path / "q" / "out").exit_code == 2
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    done = run("export", tmp_path / "q", tmp_path / "out")
    assert done.exit_code == 1
    assert "mine is not a file of an export" in done.stderr
    assert "Traceback" not in done.stderr
