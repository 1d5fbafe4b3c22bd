"""Helpers of the queries over a history. Imported late, with pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .. import _hints as hints
from .. import _validate as validate
from .._errors import InvalidArgument

PERCENTILES: Final = (0.5, 0.9, 0.99)
ACCURACY: Final = 10_000
OUTCOMES: Final = ("acked", "rejected", "poison", "expired", "dropped", "purged")
WINDOW_SECONDS: Final = 3600.0
ROWS_MAX: Final = 100_000
"""Upper bound of n for results that are lists of the first n rows."""
KEY: Final = ("key_type", "key")


def over_time(
    df: DataFrame, at: str, seconds: Column, window_seconds: float, percentiles: Sequence[float], accuracy: int
) -> DataFrame:
    width = width_of(window_seconds)
    grouped = df.select(window(at, width), seconds.alias("seconds")).groupBy("window").agg(*spread(percentiles, accuracy))
    return grouped.select(
        F.timestamp_micros("window").alias("window_start"),
        *("messages", "mean_seconds"),
        *map(percentile_name, percentiles),
        "max_seconds",
    ).orderBy("window_start")


def spread(percentiles: Sequence[float], accuracy: int) -> list[Column]:
    """Return aggregates of a column `seconds`."""
    validate.whole("accuracy", accuracy, 1, 1_000_000)
    if len({percentile_name(p) for p in percentiles}) != len(percentiles):
        raise InvalidArgument("the same percentile is given twice")
    return [
        F.count(F.lit(1)).alias("messages"),
        F.avg("seconds").alias("mean_seconds"),
        *(F.percentile_approx("seconds", float(p), accuracy).alias(percentile_name(p)) for p in percentiles),
        F.max("seconds").alias("max_seconds"),
    ]


def percentile_name(p: float) -> str:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0.0 <= p <= 1.0:
        raise InvalidArgument(f"a percentile must be 0 to 1, not {p!r}")
    return f"p{100.0 * p:.10g}_seconds".replace(".", "_")


def gapless(counts: DataFrame, width: int) -> DataFrame:
    """Add a row of zeros for each empty window between others. Reads the data once."""
    values = [name for name in counts.columns if name != "window"]
    # One array of the few windows. With a window function over all rows, Spark would warn.
    ordered = counts.agg(F.array_sort(F.collect_list(F.struct("window", *values))).alias("this"))
    following = F.slice(F.transform("this", lambda row: row["window"]), 2, F.greatest(F.size("this"), F.lit(1)))
    paired = ordered.select("this", following.alias("following")).select(F.inline(F.arrays_zip("this", "following")))
    upto = F.coalesce(F.col("following") - width, F.col("this.window"))
    grid = F.explode(F.sequence("this.window", upto, F.lit(width).cast("long"))).alias("at")
    filled = paired.select("this.*", grid)
    there = F.col("at") == F.col("window")
    return filled.select(
        F.timestamp_micros("at").alias("window_start"), *(F.when(there, F.col(v)).otherwise(0).alias(v) for v in values)
    ).orderBy("window_start")


def window(at: str, width: int) -> Column:
    """Return the start of a time's window, in microseconds since 1970."""
    micros = F.unix_micros(at)
    return (micros - F.pmod(micros, F.lit(width).cast("long"))).alias("window")


def width_of(window_seconds: float) -> int:
    return validate.microseconds("window_seconds", window_seconds, minimum=0.001)


def age(at: str) -> Column:
    return (F.unix_micros(at) - F.unix_micros("enqueued_at")) / 1e6


def retries() -> Column:
    return F.greatest(F.col("attempts") - 1, F.lit(0))


def of(df: DataFrame, outcomes: Sequence[str] | None) -> DataFrame:
    if outcomes is None:
        return df
    if isinstance(outcomes, str) or not outcomes:
        raise InvalidArgument("outcomes must be a list of them, or None for all")
    for name in outcomes:
        one_of("an outcome", name, OUTCOMES)
    return df.where(F.col("outcome").isin(list(outcomes)))


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise InvalidArgument(f"{name} must be one of {', '.join(known)}, not {value!r}")


def positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= 1e9:
        raise InvalidArgument(f"{name} must be a number over 0, not {value!r}")
    return float(value)


def require_columns(df: DataFrame, *columns: str) -> None:
    missing = [name for name in dict.fromkeys(columns) if name not in df.columns]
    if missing:
        raise InvalidArgument(f"the DataFrame has no column {', '.join(missing)}", hint=hints.SEE_HISTORY)
