"""What a plot shows of an export is what plain Python says of the same records."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import strictq
from strictq import ExportError, HistoryRecord, InvalidArgument, QueueConfig, Worker
from strictq._values.durations import Model
from strictq.history import _summaries, export_history, store_estimates
from strictq.history._summaries import OUTCOMES, Export
from strictq.worker.estimates import Estimates
from tests.support.records import generate, microseconds, with_durations, write

HOUR = 3600.0
RECORDS = generate(6_000)
ACKED = pc.field("outcome") == "acked"
TRIED = pc.field("first_attempt_at").is_valid()


def exported(place: Path, records: list[HistoryRecord], seconds: float = HOUR) -> Export:
    return Export(write(records, place / "out"), round(seconds * 1e6))


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    return exported(tmp_path_factory.mktemp("history"), RECORDS)


def by_window(records: Iterable[HistoryRecord], at: Callable[[HistoryRecord], float]) -> dict[float, list[HistoryRecord]]:
    found: dict[float, list[HistoryRecord]] = defaultdict(list)
    for r in records:
        found[at(r) // HOUR * HOUR].append(r)
    return dict(sorted(found.items()))


def starts(rows: list[dict[str, Any]]) -> list[float]:
    return [row["window_start"].timestamp() for row in rows]


def is_percentile(values: list[float], value: float, percentile: float) -> bool:
    """Whether no value lies between this one and the percentile of these."""
    ordered = sorted(values)
    wanted = percentile * (len(ordered) - 1)
    low, high = bisect_left(ordered, value - 1e-7), bisect_right(ordered, value + 1e-7) - 1
    return low <= high and low - 1 < wanted < high + 1


def age(r: HistoryRecord) -> float:
    return microseconds(r.done_at - r.enqueued_at)


def wait(r: HistoryRecord) -> float:
    return microseconds((r.first_attempt_at or 0.0) - r.enqueued_at)


@pytest.mark.parametrize("first", [False, True], ids=["ages", "first attempts"])
def test_ages(export: Export, first: bool) -> None:
    if first:
        rows = export.ages("first_attempt_at", TRIED)
        expected = by_window((r for r in RECORDS if r.first_attempt_at), lambda r: r.first_attempt_at or 0.0)
    else:
        rows = export.ages("done_at", ACKED)
        expected = by_window((r for r in RECORDS if r.outcome == "acked"), lambda r: r.done_at)
    assert starts(rows) == list(expected)
    assert 4 <= len(rows) <= 14
    for row, records in zip(rows, expected.values(), strict=True):
        values = [wait(r) if first else age(r) for r in records]
        for percentile, name in ((0.5, "p50_seconds"), (0.9, "p90_seconds"), (0.99, "p99_seconds")):
            assert is_percentile(values, row[name], percentile)


def test_outcomes_of_every_window_with_zeros_between(export: Export) -> None:
    rows = export.outcomes()
    expected = by_window(RECORDS, lambda r: r.done_at)
    assert starts(rows) == [min(expected) + n * HOUR for n in range(round((max(expected) - min(expected)) / HOUR) + 1)]
    assert len(rows) > len(expected), "an hour has no messages"
    for row in rows:
        records = expected.get(row["window_start"].timestamp(), [])
        ended = Counter(r.outcome for r in records)
        assert {name: row[name] for name in OUTCOMES} == {name: ended[name] for name in OUTCOMES}
        assert (row["messages"], row["messages_per_second"]) == (len(records), pytest.approx(len(records) / HOUR))
        assert row["retries"] == sum(max(0, r.attempts - 1) for r in records)


def test_durations_are_points_of_acked_messages_and_a_line(export: Export) -> None:
    points, lines = export.durations()
    assert [line["stage"] for line in lines] == ["prepare", "process"]
    for line, (intercept, slope) in zip(lines, ((0.05, 0.001), (0.2, 0.003)), strict=True):
        measured = [r for r in RECORDS if r.process_seconds is not None]
        stage = line["stage"]
        there = {(float(r.size) if r.size_hint is None else r.size_hint, getattr(r, f"{stage}_seconds")) for r in measured}
        here = [(point["size"], point["seconds"]) for point in points if point["stage"] == stage]
        assert len(here) == line["samples"] == min(len(measured), 2_000)
        assert set(here) <= there
        assert line["slope"] == pytest.approx(slope, rel=0.05)
        assert line["intercept_seconds"] == pytest.approx(intercept, abs=0.05)


def test_durations_of_one_size_are_a_level(tmp_path: Path) -> None:
    points, lines = exported(tmp_path, with_durations([(5.0, 1.0), (5.0, 3.0)])).durations()
    assert len(points) == 2
    assert lines == [{"stage": "process", "slope": 0.0, "intercept_seconds": 2.0, "samples": 2}]


def test_an_empty_export(tmp_path: Path) -> None:
    export = exported(tmp_path, [])
    assert (export.ages("done_at", ACKED), export.outcomes(), export.durations()) == ([], [], ([], []))


def test_too_many_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_summaries, "WINDOWS_MAX", 2)
    with pytest.raises(InvalidArgument, match="at most 2 windows"):
        exported(tmp_path, RECORDS).outcomes()


def test_what_is_no_export_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("not Parquet")
    with pytest.raises(ExportError, match=r"can't be read: .*x\.parquet"):
        Export(tmp_path, 1).outcomes()
    with strictq.open(":memory:") as q, pytest.raises(ExportError, match="can't be read"):
        store_estimates(q, tmp_path)


# ---- what a worker learns from it


def test_a_worker_starts_with_what_the_history_taught(queue_path: str, tmp_path: Path) -> None:
    """prepare takes 0.05 s and 1 ms a unit of size, process 0.2 s and 3 ms: a worker that never ran expects just that."""
    out = write(RECORDS[:2_000], tmp_path / "out")
    with strictq.open(queue_path, durability="process") as q:
        stored = store_estimates(q, out)
    with strictq.open(queue_path) as q:
        worker = Worker(q, lambda job: None, lambda job: None)
        for known in (q.stats(), worker.stats()):
            assert {"prepare": known.prepare, "process": known.process} == stored
        estimates = Estimates()
        estimates.load(q._storage.estimates())
        assert estimates.of_process(None, 1_000.0) == pytest.approx(0.2 + 3.0, abs=0.2)
        assert estimates.of_prepare(None, 1_000.0) == pytest.approx(0.05 + 1.0, abs=0.1)
        q.send(b"x" * 100, "k")
        worker.run(drain=True)
        assert q.stats().process.samples == stored["process"].samples + 1, "it learns on from there"


def test_what_is_learned_is_what_a_worker_would_learn(tmp_path: Path) -> None:
    with strictq.open(":memory:", config=QueueConfig(history="records")) as q:
        q.send_many([strictq.Message(b"x" * n, key=n % 3) for n in range(30)])
        Worker(q, lambda job: None).run(drain=True)
        export_history(q, tmp_path / "out")
        measured = sorted((r.done_at, float(r.size), r.process_seconds or 0.0) for r in q.history())
    model = Model()
    for _, size, seconds in measured:
        model.learn(size, seconds)
    with strictq.open(":memory:") as fresh:
        stored = store_estimates(fresh, tmp_path / "out")["process"]
        assert stored.samples == 30
        assert stored.mean_size == pytest.approx(statistics.fmean(size for _, size, _ in measured))
        assert stored.mean_seconds == pytest.approx(model.mean_seconds, rel=0.2)


def test_estimates_of_one_stage_leave_the_other(tmp_path: Path) -> None:
    out = write(with_durations([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]), tmp_path / "out")
    with strictq.open(":memory:") as q:
        q._storage.set_estimates({"prepare": Model(3, 1.0, 9.0).to_json()})
        assert list(store_estimates(q, out)) == ["process"]
        stats = Worker(q, lambda job: None).stats()
        assert (stats.prepare.mean_seconds, stats.process.mean_seconds) == (9.0, pytest.approx(2.0))


def test_estimates_of_a_read_only_queue_are_refused(queue_path: str, tmp_path: Path) -> None:
    out = write(with_durations([(1.0, 1.0)]), tmp_path / "out")
    strictq.open(queue_path).close()
    with strictq.open(queue_path, read_only=True) as q, pytest.raises(strictq.ReadOnlyQueue):
        store_estimates(q, out)
