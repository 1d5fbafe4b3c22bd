"""Fit handler durations to message sizes, and store the queue's estimates from the result. Imported late, with pyspark."""

from __future__ import annotations

import math
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .. import _validate as validate
from .._durations import OUTLIER, SECONDS_MAX, SIZE_MAX, Model
from .._errors import InvalidArgument
from .._stats import DurationEstimate
from ..queue import Queue
from ._queries import ROWS_MAX, positive, require_columns

STAGES: Final = ("prepare", "process")
CLIP_ROUNDS: Final = 2
MODELS: Final = pa.schema(
    [
        ("stage", pa.string()),
        ("samples", pa.int64()),
        *((name, pa.float64()) for name in ("mean_size", "mean_seconds", "size_variance", "covariance")),
        *((name, pa.float64()) for name in ("deviation_seconds", "slope", "intercept_seconds")),
    ]
)


@attrs.frozen
class Line:
    """The regression of one stage: the population moments of its points."""

    samples: int
    mean_size: float
    mean_seconds: float
    size_variance: float
    covariance: float

    @property
    def slope(self) -> float:
        # The same rule as the worker's for sizes that differ too little.
        return self.covariance / self.size_variance if self.size_variance > 1e-9 * (1.0 + self.mean_size**2) else 0.0


def duration_models(df: DataFrame, *, clip: float | None = OUTLIER) -> DataFrame:
    """Fit each stage's duration to the message's size: a linear regression over all acked messages.

    The size is the message's size_hint, or the size of its body if it has none, as for a worker. Messages without measurements
    are left out. To learn from the newest messages only, filter `df` by done_at. Computed when called, in a few passes over
    the data.

    Args:
        clip: limit the error of each duration to this many mean distances from a first line, so that one
            disk stall does not distort the result, as a worker does. Applied twice. None: plain least squares.
    Returns:
        stage ("prepare" or "process"), samples, mean_size, mean_seconds, size_variance, covariance (of size and seconds;
        both of the population), deviation_seconds (mean distance from the line), slope (seconds per unit of size; 0 if sizes
        do not differ), intercept_seconds; one row for each stage that was measured.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    limit = math.inf if clip is None else positive("clip", clip)
    points = _points(df)
    lines = _fit(points)
    for _ in range(CLIP_ROUNDS if lines and clip is not None else 0):
        seconds = _clipped(lines, {stage: limit * off for stage, off in _distances(points, lines).items()})
        points = points.select("stage", "size", seconds.alias("seconds"))
        lines = _fit(points)
    distances = _distances(points, lines) if lines else {}
    rows = [
        {
            "stage": stage,
            **attrs.asdict(line),
            "deviation_seconds": distances[stage],
            "slope": line.slope,
            "intercept_seconds": line.mean_seconds - line.slope * line.mean_size,
        }
        for stage, line in sorted(lines.items())
    ]
    return df.sparkSession.createDataFrame(pa.Table.from_pylist(rows, MODELS))


def duration_samples(df: DataFrame, n: int = 2_000, *, seed: int = 0) -> DataFrame:
    """Return a random sample of measured messages per stage, to plot together with `duration_models`.

    Args:
        n: the most messages per stage, 1..100,000.
        seed: the same seed chooses the same messages from the same files.
    Returns:
        stage, size, seconds.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    validate.whole("n", n, 1, ROWS_MAX)
    validate.whole("seed", seed, 0, 2**62)
    points = _points(df)
    chosen = [points.where(F.col("stage") == stage).orderBy(F.rand(seed)).limit(n) for stage in STAGES]
    return chosen[0].unionByName(chosen[1])


def store_estimates(queue: Queue, models: DataFrame) -> dict[str, DurationEstimate]:
    """Store the result of `duration_models` as the queue's estimates, from which workers started later continue to learn.

    A running worker does not read them, and overwrites them with its own, so stop it first. Stages that `models`
    lacks keep their estimates. After some hundred messages, a worker's estimates depend only on those.

    Args:
        models: the result of `duration_models`, or any DataFrame with its columns; collected here.
    Returns:
        The stored estimates by stage, as shown by `q.stats()`.
    Raises:
        InvalidArgument: a column is missing, a stage is unknown or repeated, or a value is not finite; nothing was changed.
        ReadOnlyQueue: nothing was changed.
    """
    columns = ("samples", "mean_size", "mean_seconds", "size_variance", "covariance", "deviation_seconds")
    require_columns(models, "stage", *columns)
    stored: dict[str, Model] = {}
    for stage, samples, *numbers in models.select("stage", *columns).take(3):
        if stage not in STAGES or stage in stored:
            raise InvalidArgument(f"a model's stage must be 'prepare' or 'process', each once, not {stage!r}")
        if any(value is None or not math.isfinite(value) for value in numbers):
            raise InvalidArgument(f"the model of {stage} has a value that is no finite number")
        stored[stage] = Model(validate.whole("samples", samples, 1, 2**62), *map(float, numbers))
    queue._operations.set_estimates({stage: model.to_json() for stage, model in stored.items()})
    return {stage: model.snapshot() for stage, model in stored.items()}


def _points(df: DataFrame) -> DataFrame:
    """Return stage, size and seconds of the measurements that a worker would have learned from."""
    require_columns(df, "prepare_seconds", "process_seconds", "size", "size_hint", "outcome")
    size = F.least(F.coalesce("size_hint", F.col("size").cast("double")), F.lit(SIZE_MAX))
    stages = F.array(*(F.struct(F.lit(s).alias("stage"), F.col(f"{s}_seconds").alias("seconds")) for s in STAGES))
    measured = df.where(F.col("outcome") == "acked").select(size.alias("size"), F.inline(stages))
    usable = F.col("seconds").between(0.0, SECONDS_MAX) & (F.col("size") >= 0.0) & ~F.isnan("size")
    return measured.where(usable).select("stage", "size", "seconds")


def _fit(points: DataFrame) -> dict[str, Line]:
    moments = points.groupBy("stage").agg(
        F.count(F.lit(1)), F.avg("size"), F.avg("seconds"), F.var_pop("size"), F.covar_pop("size", "seconds")
    )
    return {stage: Line(*of_stage) for stage, *of_stage in moments.collect()}


def _distances(points: DataFrame, lines: dict[str, Line]) -> dict[str, float]:
    """Return the mean distance of durations from their line, by stage."""
    off = F.abs(F.col("seconds") - _expected(lines))
    return dict(points.groupBy("stage").agg(F.avg(off)).collect())


def _clipped(lines: dict[str, Line], limits: dict[str, float]) -> Column:
    """Return the durations, clipped to their stage's limit around the line."""
    expected = _expected(lines)
    limit = _of_stage(limits)
    return F.greatest(F.least("seconds", expected + limit), expected - limit, F.lit(0.0))


def _expected(lines: dict[str, Line]) -> Column:
    slope, size, seconds = (
        _of_stage({stage: getattr(line, name) for stage, line in lines.items()})
        for name in ("slope", "mean_size", "mean_seconds")
    )
    return seconds + slope * (F.col("size") - size)


def _of_stage(values: dict[str, float]) -> Column:
    found = F.lit(None).cast("double")
    for stage, value in values.items():
        found = F.when(F.col("stage") == stage, F.lit(value)).otherwise(found)
    return found
