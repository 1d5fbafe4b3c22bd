"""What the plots show, computed from the files of an export. Imported late, with pyarrow.

Windows begin at multiples of their length since 1970-01-01 00:00 UTC. Only the columns that a plot needs are read.
"""

from __future__ import annotations

import os
import random
import statistics
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from .._values import hints
from .._values.durations import SECONDS_MAX, SIZE_MAX
from .._values.errors import ExportError, InvalidArgument
from ._records import SCHEMA

STAGES: Final = ("prepare", "process")
OUTCOMES: Final = ("acked", "rejected", "poison", "expired", "dropped", "purged")
PERCENTILES: Final = (0.5, 0.9, 0.99)
WINDOWS_MAX: Final = 200_000
SAMPLES_MAX: Final = 2_000

Rows = list[dict[str, Any]]


class Export:
    """The files of one export.

    Args:
        out: the directory of the export.
        width: length of the windows, microseconds.
    """

    def __init__(self, out: str | os.PathLike[str], width: int = 0) -> None:
        self._out = os.fspath(out)
        self._width = width

    def _table(self, filtered: pc.Expression | None, **columns: pc.Expression) -> pa.Table:
        try:
            return ds.dataset(self._out, schema=SCHEMA, format="parquet").to_table(columns=columns, filter=filtered)
        except (pa.ArrowException, OSError) as e:
            raise ExportError(f"{self._out} can't be read: {str(e).splitlines()[0]}", self._out) from e

    def _window(self, at: str) -> pc.Expression:
        return pc.multiply(pc.divide(_micros(at), self._width), self._width)

    def ages(self, at: str, filtered: pc.Expression) -> Rows:
        """Return percentiles of `at` − enqueued_at per window of `at`: window_start, p50_seconds, p90_seconds, p99_seconds."""
        age = pc.subtract(_micros(at), _micros("enqueued_at"))
        ages = self._table(filtered, window=self._window(at), age=age).group_by("window").aggregate([("age", "list")])
        rows = []
        for window, values in zip(ages["window"].to_pylist(), ages["age_list"], strict=True):
            found = pc.quantile(values.values, list(PERCENTILES), interpolation="nearest").to_pylist()
            percentiles = {f"p{100 * p:g}_seconds": age / 1e6 for p, age in zip(PERCENTILES, found, strict=True)}
            rows.append({"window_start": _time(window), **percentiles})
        return sorted(rows, key=lambda row: row["window_start"])

    def outcomes(self) -> Rows:
        """Return window_start, messages, messages_per_second, retries and one column per outcome.

        There is one row per window from the first to the last one with messages, including empty ones.
        """
        retries = pc.max_element_wise(pc.subtract(pc.field("attempts"), 1), 0)
        table = self._table(None, window=self._window("done_at"), outcome=pc.field("outcome"), retries=retries)
        counts = table.group_by(["window", "outcome"]).aggregate([([], "count_all"), ("retries", "sum")])
        windows = counts["window"].to_pylist()
        if not windows:
            return []
        steps = range(min(windows), max(windows) + 1, self._width)
        if len(steps) > WINDOWS_MAX:
            raise InvalidArgument(f"a picture can show at most {WINDOWS_MAX:,} windows", hint=hints.LONGER_WINDOWS)
        rows: dict[int, dict[str, Any]]
        rows = {at: {"window_start": _time(at), "messages": 0, "retries": 0, **dict.fromkeys(OUTCOMES, 0)} for at in steps}
        for count in counts.to_pylist():
            row = rows[count["window"]]
            row["messages"] += count["count_all"]
            row["retries"] += count["retries_sum"]
            row[count["outcome"]] += count["count_all"]
        return [{**row, "messages_per_second": row["messages"] / self._width * 1e6} for row in rows.values()]

    def durations(self) -> tuple[Rows, Rows]:
        """Return a sample of the durations that workers measured, and a line through it for each stage.

        Returns:
            stage, size and seconds of each point; stage, slope, intercept_seconds and samples of each line.
        """
        points: Rows = []
        lines: Rows = []
        for stage in STAGES:
            table = self.measured(stage)
            if not table.num_rows:
                continue
            chosen = random.Random(0).sample(range(table.num_rows), min(table.num_rows, SAMPLES_MAX))
            sample = table.take(chosen).to_pydict()
            points += [
                {"stage": stage, "size": size, "seconds": seconds}
                for size, seconds in zip(sample["size"], sample["seconds"], strict=True)
            ]
            slope, intercept = 0.0, statistics.fmean(sample["seconds"])
            if len(set(sample["size"])) > 1:
                slope, intercept = statistics.linear_regression(sample["size"], sample["seconds"])
            lines.append({"stage": stage, "slope": slope, "intercept_seconds": intercept, "samples": len(chosen)})
        return points, lines

    def measured(self, stage: str) -> pa.Table:
        """Return size, seconds and done_at of the messages whose duration a worker would have learned from."""
        size = pc.min_element_wise(pc.coalesce(pc.field("size_hint"), pc.field("size").cast(pa.float64())), SIZE_MAX)
        seconds = pc.field(f"{stage}_seconds")
        usable = (pc.field("outcome") == "acked") & (seconds >= 0.0) & (seconds <= SECONDS_MAX) & (size >= 0.0)
        return self._table(usable, size=size, seconds=seconds, done_at=pc.field("done_at"))


def _micros(name: str) -> pc.Expression:
    return pc.field(name).cast(pa.int64())


def _time(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
