"""What a Spark engineer does wrong at first: each is refused with strictq's own sentence and a hint, and nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import strictq
from strictq import QueueConfig
from tests.support.formats import FORMAT
from tests.support.injection import restamp

from .streams import END_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT = 4
BEFORE_MAX = 600
"""Characters of Spark's own before the sentence: what it was doing, and the id of the query."""
GOOD = "SELECT 'k' AS key, 'b' AS body"


@attrs.frozen
class Place:
    """Where a mistake is made.

    Attributes:
        path: of a queue with messages.
        other: a directory of this mistake alone.
    """

    spark: SparkSession
    path: str
    other: Path

    def stream(self, **options: str) -> DataFrame:
        options = {"path": self.path, "consumer": "etl", **options}
        return self.spark.readStream.format("strictq").options(**{k: v for k, v in options.items() if v}).load()

    def table(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("strictq").options(**{"path": self.path, **options})
        return (reader if schema is None else reader.schema(schema)).load()

    def write(self, sql: str = GOOD, mode: str = "append", **options: str) -> None:
        options = {"path": self.path, "jobId": "job", **options}
        writer = self.spark.sql(sql).write.format("strictq").options(**{k: v for k, v in options.items() if v})
        writer.mode(mode).save()

    def sink(self, df: DataFrame, mode: str = "append", trigger: dict[str, Any] | None = None, **options: str) -> None:
        """A stream that is written to the queue."""
        options = {"path": self.path, "checkpointLocation": str(self.other / "checkpoint"), **options}
        writer = df.writeStream.format("strictq").options(**options).outputMode(mode)
        self.end(writer.trigger(**(trigger or {"availableNow": True})).start())

    @staticmethod
    def end(query: Any) -> None:
        try:
            assert query.awaitTermination(END_SECONDS)
        finally:
            query.stop()


@attrs.frozen
class Mistake:
    """What is done, and what is said then.

    Attributes:
        says: begins strictq's sentence.
        hint: is in the parentheses behind it.
        in_user_code: it is raised by a call in the program's own function, and Spark shows where.
    """

    do: Callable[[Place], object]
    says: str
    hint: str
    in_user_code: bool = False


def of_format(place: Place, step: int) -> None:
    """Read a queue of another format."""
    path = place.other / "formatted"
    strictq.open(path).close()
    restamp(path / "queue.db", step)
    place.table(path=str(path)).count()


def of_another_queue(place: Place) -> None:
    """Go on with the checkpoint of another queue."""
    checkpoint = str(place.other / "checkpoint")
    with strictq.open(place.other / "mine", durability="process") as q:
        q.send(b"x", "k")
    for path in (str(place.other / "mine"), place.path):
        writer = place.stream(path=path, consumer="moved").writeStream.format("noop")
        place.end(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())


def twice_in_foreach_batch(place: Place) -> None:
    """Write a batch to one queue in two steps, as if Spark told them apart."""
    target = spare(place)

    def write(df: DataFrame, batch: int) -> None:
        for _ in range(2):
            df.select("key", "body").write.format("strictq").mode("append").save(target)

    path = place.other / "source"
    with strictq.open(path, durability="process") as q:
        q.send(b"x", "k")
    writer = place.stream(path=str(path)).writeStream.foreachBatch(write)
    place.end(writer.option("checkpointLocation", str(place.other / "c")).trigger(availableNow=True).start())


def counted(place: Place) -> DataFrame:
    df = place.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    return df.groupBy((df.value % 2).cast("string").alias("key")).count().selectExpr("key", "CAST(count AS STRING) AS body")


def twice(place: Place) -> None:
    place.write("SELECT 'k' AS key, 'b' AS body WHERE false UNION ALL SELECT 'k', 'c'", jobId="twice", path=spare(place))
    place.write("SELECT 'k' AS key, explode(array('b', 'c')) AS body", jobId="twice", path=spare(place))


def spare(place: Place) -> str:
    """A queue of this mistake's own, with small limits."""
    path = place.other / "spare"
    strictq.open(path, durability="process", config=QueueConfig(max_body_bytes=10) if not path.exists() else None).close()
    return str(path)


def inserted(place: Place, sql: str) -> None:
    place.spark.sql(f"CREATE TABLE mistaken USING strictq OPTIONS (path '{place.path}')")
    try:
        place.spark.sql(sql)
    finally:
        place.spark.sql("DROP TABLE mistaken")


MISTAKES = {
    # ---- Kafka's options, and the file source's
    "maxOffsetsPerTrigger": Mistake(
        lambda p: p.stream(maxOffsetsPerTrigger="10"),
        "there is no option maxoffsetspertrigger",
        "use the option maxMessagesPerTrigger",
    ),
    "startingOffsets": Mistake(
        lambda p: p.stream(startingOffsets="latest"), "there is no option startingoffsets", "to skip a backlog, call q.purge()"
    ),
    "endingOffsets": Mistake(
        lambda p: p.table(endingOffsets="latest"), "there is no option endingoffsets", "use .trigger(availableNow=True)"
    ),
    "subscribe": Mistake(lambda p: p.stream(path="", subscribe="orders"), "there is no option subscribe", "use the option path"),
    "kafka.bootstrap.servers": Mistake(
        lambda p: p.stream(**{"kafka.bootstrap.servers": "h:9092"}),
        "there is no option kafka.bootstrap.servers",
        "a queue is a directory",
    ),
    "group.id": Mistake(
        lambda p: p.stream(**{"kafka.group.id": "g"}), "there is no option kafka.group.id", "use the option consumer"
    ),
    "an option of files": Mistake(
        lambda p: p.stream(latestFirst="true"), "there is no option latestfirst", "the options are path, paths,"
    ),
    "topic": Mistake(lambda p: p.write(topic="t"), "there is no option topic", "use the option path"),
    "an option of written files": Mistake(
        lambda p: p.write(compression="zstd"), "there is no option compression", "the options are path, paths,"
    ),
    # ---- options of strictq's, wrong
    "a typing error": Mistake(
        lambda p: p.stream(maxMessagePerTrigger="10"),
        "there is no option maxmessagepertrigger",
        "did you mean maxMessagesPerTrigger?",
    ),
    "an option of another use": Mistake(
        lambda p: p.table(consumer="etl").count(),
        "there is no option consumer of spark.read",
        "it is an option of spark.readStream",
    ),
    "no consumer": Mistake(
        lambda p: p.stream(consumer="", maxMessagesPerTrigger="10"), "the option consumer is missing", "name this query"
    ),
    "a negative limit": Mistake(
        lambda p: p.stream(maxMessagesPerTrigger="-1"),
        "the option maxMessagesPerTrigger must be a whole number from 1",
        "not '-1'",
    ),
    "a limit that is no whole number": Mistake(
        lambda p: p.stream(maxMessagesPerTrigger="1e5"),
        "the option maxMessagesPerTrigger must be a whole number from 1",
        "not '1e5'",
    ),
    "keeping no batches": Mistake(
        lambda p: p.stream(keepBatches="0"), "the option keepBatches must be a whole number from 1", "not '0'"
    ),
    "a key type of Spark's": Mistake(
        lambda p: p.stream(keyType="long"), "the option keyType must be one of string", "not 'long'"
    ),
    "a body type of Spark's": Mistake(
        lambda p: p.table(bodyType="json"), "the option bodyType must be binary or string", "not 'json'"
    ),
    "a truth that is none": Mistake(
        lambda p: p.table(includeHeaders="yes"), "the option includeHeaders must be true or false", "not 'yes'"
    ),
    "dead letters as a stream": Mistake(lambda p: p.stream(state="dead"), "a stream reads what is pending", "spark.read"),
    "keys that are no JSON": Mistake(lambda p: p.table(keys="a,b"), "the option keys must be a JSON list of keys", '["a", "b"]'),
    # ---- where the queue is
    "no path": Mistake(lambda p: p.stream(path=""), "the option path is missing", '.option("path", "…")'),
    "an object store": Mistake(
        lambda p: p.stream(path="s3a://lake/q"), "a queue is on a local disk, not at s3a:", "strictq.spark.serve"
    ),
    "DBFS": Mistake(lambda p: p.table(path="dbfs:/mnt/q"), "a queue is on a local disk, not at dbfs:", "strictq.spark.serve"),
    "memory": Mistake(lambda p: p.table(path=":memory:"), "Spark can't read a queue in memory", "open it at a path"),
    "a directory that is no queue": Mistake(lambda p: p.table(path=str(p.other)), "there is no queue at", "strictq.open(path)"),
    "a path that is not there": Mistake(lambda p: p.write(path=str(p.other / "q")), "there is no queue at", "strictq.open(path)"),
    "a file of the queue": Mistake(
        lambda p: p.table(path=f"{p.path}/queue.db"), "queue.db is not a directory", "a queue is a directory"
    ),
    "a pattern without a queue": Mistake(lambda p: p.stream(path=f"{p.other}/*/"), "there is no queue at", "check the pattern"),
    "a queue of an older format": Mistake(
        lambda p: of_format(p, -1), f"queue.db: its format {FORMAT - 1} is older", "strictq.migrate(path)"
    ),
    "a queue of a newer format": Mistake(
        lambda p: of_format(p, 1), f"queue.db: its format {FORMAT + 1} is newer", "upgrade strictq"
    ),
    # ---- schemas
    "Kafka's columns": Mistake(
        lambda p: p.table("key STRING, value STRING").count(),
        "a queue has columns of its own, and value is none of them",
        "omit .schema(",
    ),
    "a column of another type": Mistake(
        lambda p: p.table("key STRING, seq STRING").count(),
        "a queue has columns of its own: seq is BIGINT, not STRING",
        "CAST it",
    ),
    "keys of another type": Mistake(
        lambda p: p.table(keyType="int").collect(), "the key 'k0' does not fit keyType=int", "keyType"
    ),
    # ---- writes
    "no body": Mistake(lambda p: p.write("SELECT 'k' AS key, 1 AS n"), "the column body is missing", "key, n"),
    "no key": Mistake(lambda p: p.write("SELECT 'b' AS body"), "the column key is missing", "body"),
    "a body that is a number": Mistake(
        lambda p: p.write("SELECT 'k' AS key, 1 AS body"), "the column body must be binary or string", "not int"
    ),
    "a body that is a struct": Mistake(
        lambda p: p.write("SELECT 'k' AS key, struct(1 AS n) AS body"),
        "the column body must be binary or string",
        "not struct<n:int>",
    ),
    "more columns": Mistake(
        lambda p: p.write("SELECT 'k' AS key, 'b' AS body, 1 AS n"), "the column n is not part of a message", "select"
    ),
    "a key that is NULL": Mistake(
        lambda p: p.write("SELECT CAST(NULL AS STRING) AS key, 'b' AS body"), "column key: NULL in row 1", "keyless"
    ),
    "a body that is too large": Mistake(
        lambda p: p.write("SELECT 'k' AS key, repeat('b', 11) AS body", path=spare(p)),
        "column body, key 'k': a body may have 10 bytes",
        "max_body_bytes",
    ),
    "overwriting": Mistake(lambda p: p.write(mode="overwrite"), "a queue can't be overwritten", 'use .mode("append")'),
    "no job id": Mistake(lambda p: p.write(jobId=""), "the option jobId is missing", "name this write"),
    "a job id for other rows": Mistake(twice, "job twice was written with 1 messages, and is now repeated with 2", "onMismatch"),
    "an INSERT without a job id": Mistake(
        lambda p: inserted(p, "INSERT INTO mistaken (key, body) VALUES ('k', CAST('b' AS BINARY))"),
        "the option jobId is missing",
        "INSERT INTO",
    ),
    "two writes of a batch": Mistake(
        twice_in_foreach_batch, "writes to this queue a second time", "job id of its own", in_user_code=True
    ),
    # ---- queries
    "output mode complete": Mistake(
        lambda p: p.sink(counted(p), "complete"), "a queue can't be overwritten", '.outputMode("append")'
    ),
    # Spark refuses these two by itself, and names strictq.
    "output mode update": Mistake(lambda p: p.sink(counted(p), "update"), "strictq does not support Update mode", ""),
    "a continuous trigger": Mistake(
        lambda p: p.sink(p.stream().select("key", "body"), trigger={"continuous": "1 second"}),
        "Data source strictq does not support continuous processing",
        "",
    ),
    "all columns of one queue into another": Mistake(
        lambda p: p.sink(p.stream(consumer="copy", path=spare(p))),
        "the column seq is not part of a message",
        "select only the columns",
    ),
    "the checkpoint of another queue": Mistake(of_another_queue, "the checkpoint is of queue", "the query's own checkpoint"),
}


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[strictq.Queue]:
    """A queue with messages, for all mistakes: none of them changes it."""
    with strictq.open(tmp_path_factory.mktemp("mistakes") / "queue", durability="process") as q:
        q.send_many(strictq.Message(b"%d" % n, key=f"k{n}") for n in range(SENT))
        yield q


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence(spark: SparkSession, queue: strictq.Queue, tmp_path: Path, name: str) -> None:
    mistake = MISTAKES[name]
    with pytest.raises(Exception, match=r".") as caught:
        mistake.do(Place(spark, queue.path, tmp_path))
    text = str(caught.value)
    assert mistake.says in text, text
    before, _, after = text.partition(mistake.says)
    assert mistake.hint in after.partition("\n")[0], text
    stats = queue.stats()
    assert (stats.depth, stats.in_flight) == (SENT, 0)
    if mistake.in_user_code:
        return
    assert "Traceback" not in text, text
    assert not re.search(r"^\s+at ", before, re.MULTILINE), f"a Java trace comes first: {text}"
    assert len(before) < BEFORE_MAX, f"the sentence comes late: {text}"
