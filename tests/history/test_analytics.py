"""What Spark says of a history is what plain Python says of the same records."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import HistoryRecord, InvalidArgument, QueueConfig, Worker
from strictq._durations import Model
from strictq.history import analytics, export_history
from strictq.history._records import key_columns
from strictq.worker.estimates import Estimates
from tests.support.records import generate, microseconds, with_durations, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

HOUR = 3600.0
RECORDS = generate(6_000)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return analytics.read(spark, write(RECORDS, tmp_path_factory.mktemp("history") / "out")).cache()


def start(at: float, seconds: float = HOUR) -> float:
    return at // seconds * seconds


def starts(rows: Iterable[Row]) -> list[float]:
    return [row.window_start.timestamp() for row in rows]


def by_window(records: Iterable[HistoryRecord], at: Callable[[HistoryRecord], float]) -> dict[float, list[HistoryRecord]]:
    found: dict[float, list[HistoryRecord]] = defaultdict(list)
    for r in records:
        found[start(at(r))].append(r)
    return dict(sorted(found.items()))


def age(r: HistoryRecord) -> float:
    return microseconds(r.done_at - r.enqueued_at)


def rank_error(values: list[float], value: float, percentile: float) -> float:
    """How far a value's rank is from the percentile's, in values."""
    ordered = sorted(values)
    wanted = percentile * len(ordered)
    # Equal values have many ranks; a value's own rank is counted from 1.
    low, high = bisect_left(ordered, value - 1e-7) + 1, bisect_right(ordered, value + 1e-7)
    assert low <= high, f"{value} is no value of these"
    return max(0.0, low - wanted - 1, wanted - high)


# ---- over time


def test_ages(history: DataFrame) -> None:
    rows = analytics.ages(history).collect()
    expected = by_window((r for r in RECORDS if r.outcome == "acked"), lambda r: r.done_at)
    assert starts(rows) == list(expected)
    assert 4 <= len(rows) <= 8
    for row, records in zip(rows, expected.values(), strict=True):
        values = [age(r) for r in records]
        assert row.messages == len(values)
        assert row.mean_seconds == pytest.approx(statistics.fmean(values))
        assert row.max_seconds == pytest.approx(max(values))
        for percentile, value in ((0.5, row.p50_seconds), (0.9, row.p90_seconds), (0.99, row.p99_seconds)):
            assert rank_error(values, value, percentile) == 0.0, "exact where there are fewer than the accuracy"


def test_the_error_of_percentiles_is_as_documented(history: DataFrame) -> None:
    """One window with everything, at an accuracy that must lose something."""
    values = [age(r) for r in RECORDS]
    percentiles = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
    for accuracy in (20, 1_000):
        (row,) = analytics.ages(history, 3e8, percentiles=percentiles, outcomes=None, accuracy=accuracy).collect()
        for percentile, value in zip(percentiles, row[3:-1], strict=True):
            assert rank_error(values, value, percentile) <= len(values) / accuracy


def test_names_of_percentiles(history: DataFrame) -> None:
    names = analytics.ages(history, percentiles=(0.5, 0.999, 1)).columns
    assert names == ["window_start", "messages", "mean_seconds", "p50_seconds", "p99_9_seconds", "p100_seconds", "max_seconds"]


@pytest.mark.parametrize("outcomes", [None, ("expired", "purged")])
def test_ages_of_other_ends(history: DataFrame, outcomes: tuple[str, ...] | None) -> None:
    rows = analytics.ages(history, 3e8, percentiles=(), outcomes=outcomes).collect()
    values = [age(r) for r in RECORDS if outcomes is None or r.outcome in outcomes]
    assert [(row.messages, row.max_seconds) for row in rows] == [(len(values), pytest.approx(max(values)))]


def test_first_attempt_ages(history: DataFrame) -> None:
    rows = analytics.first_attempt_ages(history, percentiles=(0.5,)).collect()
    expected = by_window((r for r in RECORDS if r.first_attempt_at is not None), lambda r: r.first_attempt_at or 0.0)
    assert starts(rows) == list(expected)
    for row, records in zip(rows, expected.values(), strict=True):
        values = [microseconds((r.first_attempt_at or 0.0) - r.enqueued_at) for r in records]
        assert row.messages == len(values)
        assert row.mean_seconds == pytest.approx(statistics.fmean(values))
        assert rank_error(values, row.p50_seconds, 0.5) == 0.0


def test_windows_without_messages_are_there_with_zeros(history: DataFrame) -> None:
    rows = analytics.throughput(history).collect()
    expected = by_window(RECORDS, lambda r: r.done_at)
    grid = [min(expected) + n * HOUR for n in range(round((max(expected) - min(expected)) / HOUR) + 1)]
    assert starts(rows) == grid
    assert len(expected) < len(grid), "the hours that have none"
    for row, at in zip(rows, grid, strict=True):
        records = expected.get(at, [])
        size = sum(r.size for r in records)
        assert (row.messages, row.bytes) == (len(records), size)
        assert (row.messages_per_second, row.bytes_per_second) == (len(records) / HOUR, size / HOUR)


def test_throughput_of_one_outcome_in_short_windows(history: DataFrame) -> None:
    rows = analytics.throughput(history, 0.5, outcomes=["poison"]).where("messages > 0").collect()
    expected = Counter(start(r.done_at, 0.5) for r in RECORDS if r.outcome == "poison")
    assert dict(zip(starts(rows), (row.messages for row in rows), strict=True)) == expected


def test_outcomes(history: DataFrame) -> None:
    rows = {row.window_start.timestamp(): row for row in analytics.outcomes(history).collect()}
    expected = by_window(RECORDS, lambda r: r.done_at)
    for at, row in rows.items():
        records = expected.get(at, [])
        ends = Counter(r.outcome for r in records)
        assert {name: row[name] for name in ("acked", "rejected", "poison", "expired", "dropped", "purged")} == {
            name: ends[name] for name in ("acked", "rejected", "poison", "expired", "dropped", "purged")
        }
        assert row.messages == len(records)
        assert row.retried == sum(r.attempts > 1 for r in records)
        assert row.retries == sum(max(0, r.attempts - 1) for r in records)
    assert set(expected) <= set(rows)


def test_windows_do_not_follow_the_sessions_time_zone(spark: SparkSession, history: DataFrame) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    days = [analytics.throughput(history, 86_400.0).collect()]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        days.append(analytics.throughput(history, 86_400.0).collect())
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert days[0] == days[1]
    assert all(at % 86_400.0 == 0.0 for at in starts(days[0]))


# ---- keys


def of_keys(records: Iterable[HistoryRecord]) -> dict[tuple[str, str], list[HistoryRecord]]:
    found: dict[tuple[str, str], list[HistoryRecord]] = defaultdict(list)
    for r in records:
        key, kind = key_columns(r.key)
        if key is not None and kind is not None:
            found[kind, key].append(r)
    return found


@pytest.mark.parametrize("by", ["messages", "process_seconds", "retries", "bytes"])
def test_hot_keys(history: DataFrame, by: Any) -> None:
    rows = analytics.hot_keys(history, 5, by).collect()
    sums = {
        key: {
            "messages": len(records),
            "process_seconds": math.fsum(r.process_seconds or 0.0 for r in records),
            "retries": sum(max(0, r.attempts - 1) for r in records),
            "bytes": sum(r.size for r in records),
        }
        for key, records in of_keys(RECORDS).items()
    }
    total = sum(s[by] for s in sums.values())
    ranked = sorted(sums.items(), key=lambda item: (-item[1][by], item[0]))[:5]
    assert [(row.key_type, row.key) for row in rows] == [key for key, _ in ranked]
    for row, (_, expected) in zip(rows, ranked, strict=True):
        for name, value in expected.items():
            assert row[name] == pytest.approx(value), name
        assert row.share == pytest.approx(expected[by] / total)


def test_keys_of_different_types_are_different_keys(history: DataFrame) -> None:
    rows = analytics.hot_keys(history.where("key IN ('7', 'Nw==')"), 10).collect()
    assert {(row.key, row.key_type) for row in rows} == {("7", "str"), ("7", "int"), ("Nw==", "bytes")}
    assert math.fsum(row.share for row in rows) == pytest.approx(1.0)


MEASURES: dict[str, Callable[[HistoryRecord], float | None]] = {
    "process": lambda r: r.process_seconds,
    "prepare": lambda r: r.prepare_seconds,
    "age": lambda r: age(r) if r.outcome == "acked" else None,
    "first_attempt_age": lambda r: None if r.first_attempt_at is None else microseconds(r.first_attempt_at - r.enqueued_at),
}


@pytest.mark.parametrize("by", list(MEASURES))
def test_slow_keys(history: DataFrame, by: Any) -> None:
    rows = analytics.slow_keys(history, 7, by, percentile=0.8, messages_min=60).collect()
    measured = {
        key: sorted(v for r in records if (v := MEASURES[by](r)) is not None) for key, records in of_keys(RECORDS).items()
    }
    ranked = {key: values for key, values in measured.items() if len(values) >= 60}
    assert len(rows) == min(7, len(ranked))
    assert [row.p80_seconds for row in rows] == sorted((row.p80_seconds for row in rows), reverse=True)
    # The value whose rank is the percentile's, or the first above it.
    exact = sorted((values[math.ceil(0.8 * len(values)) - 1] for values in ranked.values()), reverse=True)
    assert [row.p80_seconds for row in rows] == pytest.approx(exact[:7])
    for row in rows:
        values = ranked[row.key_type, row.key]
        assert row.messages == len(values)
        assert (row.mean_seconds, row.max_seconds) == (pytest.approx(statistics.fmean(values)), pytest.approx(values[-1]))


# ---- size and duration


def points(records: Iterable[HistoryRecord], stage: str) -> list[tuple[float, float]]:
    return [
        (float(r.size) if r.size_hint is None else r.size_hint, getattr(r, f"{stage}_seconds"))
        for r in records
        if r.outcome == "acked" and getattr(r, f"{stage}_seconds") is not None
    ]


def fit(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    slope, intercept = statistics.linear_regression([x for x, _ in pairs], [y for _, y in pairs])
    return slope, intercept


def test_models_are_least_squares(history: DataFrame) -> None:
    rows = {row.stage: row for row in analytics.duration_models(history, clip=None).collect()}
    assert list(rows) == ["prepare", "process"]
    for stage, row in rows.items():
        pairs = points(RECORDS, stage)
        slope, intercept = fit(pairs)
        sizes, seconds = [x for x, _ in pairs], [y for _, y in pairs]
        assert row.samples == len(pairs) > 2_000
        assert (row.slope, row.intercept_seconds) == (pytest.approx(slope), pytest.approx(intercept))
        assert (row.mean_size, row.mean_seconds) == (
            pytest.approx(statistics.fmean(sizes)),
            pytest.approx(statistics.fmean(seconds)),
        )
        assert row.size_variance == pytest.approx(statistics.pvariance(sizes))
        assert row.covariance == pytest.approx(statistics.covariance(sizes, seconds) * (len(pairs) - 1) / len(pairs))
        assert row.deviation_seconds == pytest.approx(statistics.fmean(abs(y - slope * x - intercept) for x, y in pairs))
    assert (rows["process"].slope, rows["process"].intercept_seconds) == (
        pytest.approx(0.003, rel=0.02),
        pytest.approx(0.2, abs=0.02),
    )


def test_one_stalled_message_spoils_nothing(spark: SparkSession, tmp_path: Path) -> None:
    r = random.Random(3)
    pairs = [(float(n), 1.0 + 0.01 * n + r.uniform(-0.05, 0.05)) for n in range(400)]
    pairs[10] = (10.0, 600.0)
    df = analytics.read(spark, write(with_durations(pairs), tmp_path / "out"))
    (plain,) = analytics.duration_models(df, clip=None).collect()
    (clipped,) = analytics.duration_models(df).collect()
    assert abs(plain.slope - 0.01) > 0.005
    assert clipped.slope == pytest.approx(0.01, rel=0.1)
    # The same in plain Python.
    for _ in range(2):
        slope, intercept = fit(pairs)
        limit = 6.0 * statistics.fmean(abs(y - slope * x - intercept) for x, y in pairs)
        lines = [slope * x + intercept for x, _ in pairs]
        pairs = [(x, max(0.0, line - limit, min(y, line + limit))) for (x, y), line in zip(pairs, lines, strict=True)]
    assert (clipped.slope, clipped.intercept_seconds) == pytest.approx(fit(pairs))


def test_models_of_odd_samples(spark: SparkSession, tmp_path: Path) -> None:
    """The same size always; too little; what is no duration, or no size."""
    for n, (pairs, expected) in enumerate(
        [
            ([(5.0, 1.0), (5.0, 3.0)], (2, 5.0, 2.0, 0.0, 2.0)),
            ([(7.0, 0.5)], (1, 7.0, 0.5, 0.0, 0.5)),
            ([(1.0, 1.0), (3.0, 2.0), (2.0, -1.0), (2.0, 1e10), (2.0, math.nan)], (2, 2.0, 1.5, 0.5, 0.5)),
            ([(0.0, 1.0), (1e300, 1.0)], (2, 5e11, 1.0, 0.0, 1.0)),
        ]
    ):
        df = analytics.read(spark, write(with_durations(pairs), tmp_path / f"{n}", files=1))
        (row,) = analytics.duration_models(df, clip=None).collect()
        assert (row.samples, row.mean_size, row.mean_seconds, row.slope, row.intercept_seconds) == pytest.approx(expected)


def test_samples(history: DataFrame) -> None:
    rows = analytics.duration_samples(history, 100, seed=5).collect()
    assert Counter(row.stage for row in rows) == {"prepare": 100, "process": 100}
    for stage in ("prepare", "process"):
        there = set(points(RECORDS, stage))
        assert all((row["size"], row.seconds) in there for row in rows if row.stage == stage)
    assert analytics.duration_samples(history, 100, seed=5).collect() == rows
    assert analytics.duration_samples(history, 100, seed=6).collect() != rows


# ---- from a queue, and back to it


def test_a_worker_starts_with_what_the_history_taught(spark: SparkSession, queue_path: str, tmp_path: Path) -> None:
    """prepare takes 0.05 s and 1 ms a unit of size, process 0.2 s and 3 ms: a worker that never ran expects just that."""
    df = analytics.read(spark, write([r for r in RECORDS if r.n <= 2_000], tmp_path / "out"))
    models = analytics.duration_models(df, clip=None).collect()
    with strictq.open(queue_path, durability="process") as q:
        stored = analytics.store_estimates(q, spark.createDataFrame(models))
    with strictq.open(queue_path) as q:
        worker = Worker(q, lambda job: None, lambda job: None)
        for known in (q.stats(), worker.stats()):
            assert {"prepare": known.prepare, "process": known.process} == stored
        for row in models:
            assert (stored[row.stage].samples, stored[row.stage].slope) == (row.samples, pytest.approx(row.slope))
        estimates = Estimates()
        estimates.load(q._operations.estimates())
        assert estimates.of_process(None, 1_000.0) == pytest.approx(0.2 + 3.0, abs=0.1)
        assert estimates.of_prepare(None, 1_000.0) == pytest.approx(0.05 + 1.0, abs=0.05)
        # What a worker at work does with them: it learns on from there.
        q.send(b"x" * 100, "k")
        worker.run(drain=True)
        assert worker.stats().process.samples == stored["process"].samples + 1
        assert q.stats().process.samples == stored["process"].samples + 1


def test_from_one_queues_worker_to_anothers(spark: SparkSession, tmp_path: Path) -> None:
    """What a worker measured is exported, learned from, and known to a worker of a queue that has done nothing yet."""
    with strictq.open(":memory:", config=QueueConfig(history="records")) as q:
        q.send_many([strictq.Message(b"x" * n, key=n % 3) for n in range(30)])
        Worker(q, lambda job: None, lambda job: None).run(drain=True)
        export_history(q, tmp_path / "out")
        measured = [r for r in q.history() if r.process_seconds is not None and r.prepare_seconds is not None]
    assert len(measured) == 30
    models = analytics.duration_models(analytics.read(spark, tmp_path / "out"), clip=None)
    with strictq.open(":memory:") as fresh:
        analytics.store_estimates(fresh, models)
        stats = Worker(fresh, lambda job: None).stats()
    for known, stage in ((stats.prepare, "prepare"), (stats.process, "process")):
        assert known.samples == 30
        assert known.mean_seconds == pytest.approx(statistics.fmean(getattr(r, f"{stage}_seconds") for r in measured))
        assert known.mean_size == 14.5


def test_estimates_of_one_stage_leave_the_other(spark: SparkSession, tmp_path: Path) -> None:
    df = analytics.read(spark, write(with_durations([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]), tmp_path / "out"))
    with strictq.open(":memory:") as q:
        q._operations.set_estimates({"prepare": Model(3, 1.0, 9.0).to_json()})
        assert list(analytics.store_estimates(q, analytics.duration_models(df, clip=None))) == ["process"]
        stats = Worker(q, lambda job: None).stats()
        assert (stats.prepare.mean_seconds, stats.process.mean_seconds) == (9.0, 2.0)


@pytest.mark.parametrize(
    "rows",
    [
        [("other", 5, 1.0, 1.0, 1.0, 1.0, 1.0)],
        [("process", 5, 1.0, 1.0, 1.0, 1.0, 1.0)] * 2,
        [("process", 0, 1.0, 1.0, 1.0, 1.0, 1.0)],
        [("process", 5, 1.0, math.nan, 1.0, 1.0, 1.0)],
        [("process", 5, None, 1.0, 1.0, 1.0, 1.0)],
    ],
)
def test_wrong_models_are_refused(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    schema = (
        "stage string, samples long, mean_size double, mean_seconds double, size_variance double, covariance double,"
        "deviation_seconds double"
    )
    with strictq.open(":memory:") as q:
        with pytest.raises(InvalidArgument):
            analytics.store_estimates(q, spark.createDataFrame(rows, schema))
        assert q._operations.estimates() == {}


def test_an_export_of_a_queue(spark: SparkSession, tmp_path: Path) -> None:
    """From a queue's life to Spark's table: every column, times to the microsecond."""
    with strictq.open(":memory:", shards=2, config=QueueConfig(history="bodies")) as q:
        q.send_many([strictq.Message(b"%d" % n, key=n % 7, size_hint=float(n)) for n in range(100)])
        q.receive(1)[0].nack(0.0)
        while ds := q.receive(10):
            q.ack_many(ds)
        export_history(q, tmp_path / "out", file_records=30)
        expected = {(r.shard, r.n): r for shard in (0, 1) for r in q.history(shard=shard)}
    rows = analytics.read(spark, tmp_path / "out").collect()
    assert len(rows) == len(expected) == 100
    for row in rows:
        r = expected[row.shard, row.n]
        assert (row.key, row.key_type, row.seq, row.id, row.attempts, row.outcome, row.size, row.size_hint) == (
            str(r.key), "int", r.seq, r.id, r.attempts, r.outcome, r.size, r.size_hint,
        )  # fmt: skip
        assert bytes(row.body) == r.body
        assert row.done_at == datetime.fromtimestamp(r.done_at)
        assert (row.enqueued_at.timestamp(), row.first_attempt_at.timestamp()) == (r.enqueued_at, r.first_attempt_at)


def test_rejected_messages(spark: SparkSession, tmp_path: Path) -> None:
    """One before anybody had it, one by its handler and then put back and acked, one after a retry."""
    with strictq.open(":memory:", config=QueueConfig(history="records")) as q:
        q.send_many([strictq.Message(b"x", key=key) for key in ("untried", "redriven", "retried", "fine")])
        assert q.reject("untried", 1, "not wanted")
        q.receive(1, keys=["redriven"])[0].reject("not now")
        assert q.redrive("redriven") == 1
        q.receive(1, keys=["redriven"])[0].ack()
        q.receive(1, keys=["retried"])[0].nack(0.0)
        q.receive(1, keys=["retried"])[0].reject("never")
        q.receive(1)[0].ack()
        export_history(q, tmp_path / "out")
        ends = {(r.key, r.outcome): r for r in q.history()}
    assert [(key, r.attempts, r.first_attempt_at is None) for (key, _), r in ends.items()] == [
        ("untried", 0, True), ("redriven", 1, False), ("redriven", 1, False), ("retried", 2, False), ("fine", 1, False),
    ]  # fmt: skip
    df, day = analytics.read(spark, tmp_path / "out"), 3e8

    def assert_ages(rows: list[Row], values: list[float]) -> None:
        assert [(row.messages, row.max_seconds) for row in rows] == [(len(values), pytest.approx(max(values)))]

    rejected = [age(r) for (_, outcome), r in ends.items() if outcome == "rejected"]
    assert_ages(analytics.ages(df, day).collect(), [age(r) for (_, outcome), r in ends.items() if outcome == "acked"])
    assert_ages(analytics.ages(df, day, outcomes=["rejected"]).collect(), rejected)
    first = {end: microseconds(r.first_attempt_at - r.enqueued_at) for end, r in ends.items() if r.first_attempt_at is not None}
    assert len(first) == 4
    assert_ages(analytics.first_attempt_ages(df, day).collect(), list(first.values()))
    (row,) = analytics.outcomes(df, day).collect()
    assert (row.messages, row.acked, row.rejected, row.retried, row.retries) == (5, 2, 3, 1, 1)
    found = {row.key: (row.messages, row.retries) for row in analytics.hot_keys(df, by="retries").collect()}
    assert found == {"untried": (1, 0), "redriven": (2, 0), "retried": (1, 1), "fine": (1, 0)}
    slow = {row.key: row.messages for row in analytics.slow_keys(df, by="first_attempt_age").collect()}
    assert slow == {"redriven": 2, "retried": 1, "fine": 1}
    assert {row.key: row.messages for row in analytics.slow_keys(df, by="age").collect()} == {"redriven": 1, "fine": 1}


def test_an_empty_history(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    df = analytics.read(spark, tmp_path / "out")
    models = analytics.duration_models(df)
    results = [f(df) for f in (analytics.ages, analytics.throughput, analytics.outcomes, analytics.hot_keys, analytics.slow_keys)]
    assert [result.collect() for result in (*results, models)] == [[]] * 6
    with strictq.open(":memory:") as q:
        assert analytics.store_estimates(q, models) == {}


# ---- bad input


@pytest.mark.parametrize(
    "call",
    [
        lambda df: analytics.ages(df, 0.0),
        lambda df: analytics.ages(df, math.nan),
        lambda df: analytics.ages(df, percentiles=[1.5]),
        lambda df: analytics.ages(df, percentiles=[0.5, 0.5]),
        lambda df: analytics.ages(df, outcomes="acked"),
        lambda df: analytics.ages(df, outcomes=[]),
        lambda df: analytics.ages(df, outcomes=["done"]),
        lambda df: analytics.ages(df, accuracy=0),
        lambda df: analytics.throughput(df, -1.0),
        lambda df: analytics.hot_keys(df, 0),
        lambda df: analytics.hot_keys(df, by="age"),
        lambda df: analytics.slow_keys(df, by="messages"),
        lambda df: analytics.slow_keys(df, messages_min=0),
        lambda df: analytics.slow_keys(df, percentile=True),
        lambda df: analytics.duration_models(df, clip=0.0),
        lambda df: analytics.duration_samples(df, 10**9),
        lambda df: analytics.ages(df.drop("done_at")),
        lambda df: analytics.hot_keys(df.drop("key_type")),
        lambda df: analytics.duration_models(df.drop("size_hint")),
        lambda df: analytics.store_estimates(None, df),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(history: DataFrame, call: Callable[[DataFrame], object]) -> None:
    with pytest.raises(InvalidArgument):
        call(history)


def test_without_pyspark_the_extra_is_named() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import strictq.history.analytics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert 'MissingExtra: this needs pyspark (pip install "strictq[spark]")' in done.stderr
