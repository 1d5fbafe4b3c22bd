"""Queries over the history of a queue: ages, hot and slow keys, retries, throughput, and duration by size.

```python
from strictq.history import analytics

history = analytics.read(spark, "orders-history")
analytics.ages(history, window_seconds=3600.0).show()
```

Each takes a DataFrame with the columns of an export and returns a small one, computed by Spark. To query a
part of the history, filter it first. Windows begin at multiples of their length since 1970-01-01 00:00 UTC.
Source: docs/howto/history.md

Importing this module imports pyspark, and raises MissingExtra if it is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from .._extras import need_spark

need_spark()

from pyspark.sql import DataFrame, SparkSession  # noqa: E402 - after the check that it is installed
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402

from .. import _validate as validate  # noqa: E402
from ._queries import (  # noqa: E402
    ACCURACY,
    KEY,
    OUTCOMES,
    PERCENTILES,
    ROWS_MAX,
    WINDOW_SECONDS,
    age,
    gapless,
    of,
    one_of,
    over_time,
    percentile_name,
    require_columns,
    retries,
    spread,
    width_of,
    window,
)
from ._records import SCHEMA  # noqa: E402
from ._regression import duration_models, duration_samples, store_estimates  # noqa: E402

__all__ = [
    "ages",
    "duration_models",
    "duration_samples",
    "first_attempt_ages",
    "hot_keys",
    "outcomes",
    "read",
    "slow_keys",
    "store_estimates",
    "throughput",
]


def read(spark: SparkSession, out: str | os.PathLike[str]) -> DataFrame:
    """Return the history in a directory of `export_history` as a DataFrame; no rows if the directory is empty.

    Source: docs/reference/history.md
    """
    return spark.read.schema(from_arrow_schema(SCHEMA)).parquet(os.path.abspath(os.fspath(out)))


# ---- over time


def ages(
    df: DataFrame,
    window_seconds: float = WINDOW_SECONDS,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    outcomes: Sequence[str] | None = ("acked",),
    accuracy: int = ACCURACY,
) -> DataFrame:
    """Return the age of messages when they finished: done_at − enqueued_at, per window of done_at.

    Args:
        window_seconds: length of a window, seconds.
        percentiles: each 0..1.
        outcomes: only messages with these outcomes; None: all.
        accuracy: 1..1,000,000. Each percentile is the age of a message whose rank is off by at most messages ÷ accuracy;
            exact if a window has no more messages than accuracy. Memory grows with it.
    Returns:
        window_start (timestamp), messages, mean_seconds, one column for each percentile (p50_seconds, p99_9_seconds …),
        max_seconds; one row per window with messages, ascending.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    require_columns(df, "done_at", "enqueued_at", "outcome")
    return over_time(of(df, outcomes), "done_at", age("done_at"), window_seconds, percentiles, accuracy)


def first_attempt_ages(
    df: DataFrame, window_seconds: float = WINDOW_SECONDS, *, percentiles: Sequence[float] = PERCENTILES, accuracy: int = ACCURACY
) -> DataFrame:
    """Return the wait of messages for their first attempt: first_attempt_at − enqueued_at, per window of first_attempt_at.

    Includes all outcomes, but no messages without an attempt, such as rejected ones. A message returned by
    `redrive` waits a second time, and is included with both waits, each since its send.

    Returns:
        The columns of `ages`.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    require_columns(df, "first_attempt_at", "enqueued_at")
    tried = df.where("first_attempt_at IS NOT NULL")
    return over_time(tried, "first_attempt_at", age("first_attempt_at"), window_seconds, percentiles, accuracy)


def throughput(df: DataFrame, window_seconds: float = WINDOW_SECONDS, *, outcomes: Sequence[str] | None = None) -> DataFrame:
    """Return the number and bytes of messages that finished, per window of done_at.

    Args:
        window_seconds: length of a window, seconds.
        outcomes: only messages with these outcomes; None: all.
    Returns:
        window_start (timestamp), messages, messages_per_second, bytes (of bodies), bytes_per_second; one row per window
        from the first to the last one with messages, including empty ones, ascending. The first and the last window are
        treated as complete.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    require_columns(df, "done_at", "size", "outcome")
    width = width_of(window_seconds)
    counts = of(df, outcomes).groupBy(window("done_at", width)).agg(
        F.count(F.lit(1)).alias("messages"), F.sum("size").alias("bytes")
    )  # fmt: skip
    per_second = width / 1e6
    return gapless(counts, width).select(
        "window_start",
        "messages",
        (F.col("messages") / per_second).alias("messages_per_second"),
        "bytes",
        (F.col("bytes") / per_second).alias("bytes_per_second"),
    )


def outcomes(df: DataFrame, window_seconds: float = WINDOW_SECONDS) -> DataFrame:
    """Return the outcomes and retries of messages, per window of done_at.

    Returns:
        window_start (timestamp), messages, one column per outcome (acked, rejected, poison, expired, dropped, purged),
        retried (messages with more than one attempt), retries (attempts after the first, in total); one row per
        window from the first to the last one with messages, including empty ones, ascending.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    require_columns(df, "done_at", "outcome", "attempts")
    width = width_of(window_seconds)
    counts = df.groupBy(window("done_at", width)).agg(
        F.count(F.lit(1)).alias("messages"),
        *(F.count_if(F.col("outcome") == name).alias(name) for name in OUTCOMES),
        F.count_if(F.col("attempts") > 1).alias("retried"),
        F.sum(retries()).alias("retries"),
    )
    return gapless(counts, width)


# ---- keys


def hot_keys(
    df: DataFrame, n: int = 20, by: Literal["messages", "process_seconds", "retries", "bytes"] = "messages"
) -> DataFrame:
    """Return the keys with the most work. Keyless messages are left out.

    Args:
        n: 1..100,000 keys.
        by: the ranking: finished messages; seconds of their handlers, if measured by a worker (of the
            last attempt of each message); attempts after the first; or bytes of bodies.
    Returns:
        key, key_type, messages, process_seconds, retries, bytes (sums), share (of the total over all keys, in the ranking's
        unit; 0..1), by descending rank; equal keys in the order of key_type and key.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    ranks = ("messages", "process_seconds", "retries", "bytes")
    one_of("by", by, ranks)
    validate.whole("n", n, 1, ROWS_MAX)
    require_columns(df, *KEY, "process_seconds", "attempts", "size")
    sums = {
        "messages": F.count(F.lit(1)),
        "process_seconds": F.coalesce(F.sum("process_seconds"), F.lit(0.0)),
        "retries": F.sum(retries()),
        "bytes": F.sum("size"),
    }
    with_key = df.where("key IS NOT NULL")
    top = with_key.groupBy(*KEY).agg(*(what.alias(name) for name, what in sums.items())).orderBy(F.desc(by), *KEY).limit(n)
    total = with_key.agg(sums[by].alias("total"))
    share = F.when(F.col("total") > 0, F.col(by) / F.col("total")).otherwise(0.0)
    shared = top.crossJoin(F.broadcast(total)).select("key", "key_type", *ranks, share.alias("share"))
    return shared.orderBy(F.desc(by), *KEY)


def slow_keys(
    df: DataFrame,
    n: int = 20,
    by: Literal["process", "prepare", "age", "first_attempt_age"] = "process",
    *,
    percentile: float = 0.9,
    messages_min: int = 1,
    accuracy: int = ACCURACY,
) -> DataFrame:
    """Return the keys whose messages take longest. Keyless messages are left out.

    Args:
        n: 1..100,000 keys.
        by: seconds of the process or prepare handler, if measured by a worker; the age when acked; or the age at the
            first attempt.
        percentile: the percentile within a key by which keys are ranked, 0..1.
        messages_min: leave out keys with fewer measured messages.
        accuracy: accuracy of the percentiles, see `ages`.
    Returns:
        key, key_type, messages (measured ones), mean_seconds, a column for the percentile (p90_seconds), max_seconds; by
        descending percentile, equal keys in the order of key_type and key.
    Raises:
        InvalidArgument: a column is missing, or an argument is invalid.
    """
    needs = {
        "process": ("process_seconds",),
        "prepare": ("prepare_seconds",),
        "age": ("done_at", "enqueued_at", "outcome"),
        "first_attempt_age": ("first_attempt_at", "enqueued_at"),
    }
    one_of("by", by, tuple(needs))
    validate.whole("n", n, 1, ROWS_MAX)
    validate.whole("messages_min", messages_min, 1, 2**62)
    require_columns(df, *KEY, *needs[by])
    seconds = {
        "process": F.col("process_seconds"),
        "prepare": F.col("prepare_seconds"),
        "age": F.when(F.col("outcome") == "acked", age("done_at")),
        "first_attempt_age": age("first_attempt_at"),
    }[by]
    measured = df.where("key IS NOT NULL").select(*KEY, seconds.alias("seconds")).where("seconds IS NOT NULL")
    keys = measured.groupBy(*KEY).agg(*spread([percentile], accuracy))
    rank = percentile_name(percentile)
    return (
        keys.where(F.col("messages") >= messages_min)
        .select("key", "key_type", "messages", "mean_seconds", rank, "max_seconds")
        .orderBy(F.desc(rank), *KEY)
        .limit(n)
    )
