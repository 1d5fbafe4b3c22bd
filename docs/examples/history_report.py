"""A queue's history analysed on Spark: ages, hot and slow keys, outcomes. Run it: python history_report.py

Needs strictq's extra "spark" and Java 17 or newer. A worker handles orders, some of which it rejects. The queue keeps a
record of each, which is exported to Parquet files. The queries over these files are functions to copy and change. At the end the
totals are computed a second time, from the queue's own records, and compared.
"""

import argparse
import logging
import os
import random
import sys
import tempfile
from collections import Counter

import strictq
import strictq.spark
from strictq.history import export_history


def ages(history, window="1 hour", percentiles=(0.5, 0.9, 0.99)):
    """The age of messages when they were acked, per window."""
    from pyspark.sql import functions as F

    seconds = F.expr("(unix_micros(done_at) - unix_micros(enqueued_at)) / 1e6")
    acked = history.where("outcome = 'acked'").select(
        F.window("done_at", window).start.alias("window_start"), seconds.alias("age")
    )
    columns = [F.percentile_approx("age", p).alias(f"p{100 * p:g}_seconds") for p in percentiles]
    return acked.groupBy("window_start").agg(F.count("age").alias("messages"), *columns).orderBy("window_start")


def outcomes(history, window="1 hour"):
    """How messages ended, and their attempts after the first, per window."""
    from pyspark.sql import functions as F

    rows = history.select(F.window("done_at", window).start.alias("window_start"), "outcome", "attempts")
    retries = F.sum(F.greatest(F.col("attempts") - 1, F.lit(0))).alias("retries")
    return (
        rows.groupBy("window_start", "outcome")
        .agg(F.count("outcome").alias("messages"), retries)
        .orderBy("window_start", "outcome")
    )


def hot_keys(history, n=100):
    """The keys with the most messages, and their share of all."""
    from pyspark.sql import functions as F

    keyed = history.where("key IS NOT NULL")
    counts = keyed.groupBy("key_type", "key").agg(
        F.count("seq").alias("messages"), F.sum("process_seconds").alias("process_seconds")
    )
    return counts.withColumn("share", F.col("messages") / keyed.count()).orderBy(F.desc("messages"), "key").limit(n)


def slow_keys(history, n=100, percentile=0.9):
    """The keys whose handlers take longest, as measured by workers."""
    from pyspark.sql import functions as F

    measured = history.where("key IS NOT NULL AND process_seconds IS NOT NULL").groupBy("key_type", "key")
    slow = measured.agg(F.count("seq").alias("messages"), F.percentile_approx("process_seconds", percentile).alias("seconds"))
    return slow.orderBy(F.desc("seconds"), "key").limit(n)


def durations(history):
    """Seconds of handlers by size: a least-squares line per stage."""
    from pyspark.sql import functions as F

    size = F.coalesce("size_hint", F.col("size").cast("double"))
    rows = history.where("outcome = 'acked'").select(
        size.alias("size"), F.expr("stack(2, 'prepare', prepare_seconds, 'process', process_seconds) AS (stage, seconds)")
    )
    return (
        rows.where("seconds IS NOT NULL")
        .groupBy("stage")
        .agg(
            F.count("seconds").alias("samples"),
            F.regr_slope("seconds", "size").alias("slope"),
            F.regr_intercept("seconds", "size").alias("intercept_seconds"),
        )
    )


def settle(job):
    """Every twentieth order is garbage; others take longer the larger they are."""
    if job.body == b"garbage":
        raise strictq.Reject("not an order")
    sum(job.body)


def work(place, orders, seed=1):
    """Fill the queue and empty it. Returns its records of finished messages."""
    chance = random.Random(seed)
    config = strictq.QueueConfig(history="records")
    with strictq.open(f"{place}/orders.strictq", shards=2, durability="process", config=config) as q:
        messages = [
            strictq.Message(
                b"garbage" if n % 20 == 19 else bytes(chance.randrange(10_000)), key=f"customer-{int(20 * chance.random() ** 2)}"
            )
            for n in range(orders)
        ]
        q.send_many(messages)
        strictq.Worker(q, settle).run(drain=True)
        done = export_history(q, f"{place}/history")
        print(f"{done.records:,} records in {len(done.files)} files")
        return [r for shard in range(q.shards) for r in q.history(shard=shard, limit=100_000)]


def compare(found, records):
    """What Spark says of the history is what plain Python says of the same records."""
    ended = Counter()
    for row in found[outcomes]:
        ended[row.outcome] += row.messages
    differ = ended != Counter(r.outcome for r in records)
    differ += {row.key: row.messages for row in found[hot_keys]} != Counter(r.key for r in records)
    differ += sum(row.messages for row in found[ages]) != ended["acked"]
    differ += [row.samples for row in found[durations]] != [ended["acked"]]
    print(
        f"\nacked {ended['acked']:,}, rejected {ended['rejected']:,}; figures that differ from the queue's records: {int(differ)}"
    )
    assert not differ


def main():
    parser = argparse.ArgumentParser(description="The history of a queue, analysed on Spark.")
    parser.add_argument("--orders", type=int, default=5_000)
    options = parser.parse_args()
    logging.getLogger("strictq").setLevel(logging.CRITICAL)  # a line for each rejected order
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as place:
        records = work(place, options.orders)
        builder = SparkSession.builder.appName("history").master("local[2]").config("spark.sql.shuffle.partitions", "2")
        builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        spark = builder.config("spark.sql.warehouse.dir", f"{place}/warehouse").getOrCreate()
        try:
            history = spark.read.parquet(f"{place}/history")
            found = {}
            for report in (ages, outcomes, hot_keys, slow_keys, durations):
                found[report] = report(history).collect()
                print(f"\n{report.__doc__}")
                for row in found[report][:10]:
                    print(
                        "  ",
                        *(
                            f"{name}={value:.4g}" if type(value) is float else f"{name}={value}"
                            for name, value in row.asDict().items()
                        ),
                    )
            compare(found, records)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
