"""Fleets on a real Spark: streams, tables, reports, and a driver that is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import Queue
from tests.support.fleets import make
from tests.support.ledgers import Ledger, bodies, send_chains
from tests.support.running import until
from tests.support.spark_drivers import of_fleet as stream
from tests.support.sparks import start_driver

from .streams import run, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = ("a", "b")


def report_of(progress: Any) -> dict[str, Any]:
    """What the source's latestOffset says."""
    found = json.loads(progress.sources[0].json)["latestOffset"]
    return found if isinstance(found, dict) else json.loads(found or "{}")  # type: ignore[no-any-return]


@pytest.fixture
def ships(tmp_path: Path) -> Iterator[dict[str, Queue]]:
    """Six queues with messages."""
    queues = make(tmp_path / "fleet", [f"q{n}" for n in range(6)])
    for q in queues.values():
        send_chains(q, KEYS, 3)
    yield queues
    for q in queues.values():
        q.close()


def require(ledger: Ledger, queues: dict[str, Queue], count: int) -> None:
    """Each queue's messages once and in order."""
    found = ledger.chains()
    expected = {f"{q.queue_id}/{key}": [b.decode() for b in bodies(key, count)] for q in queues.values() for key in KEYS}
    assert found == expected


def test_a_stream_of_a_pattern(spark: SparkSession, ships: dict[str, Queue], tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    df = stream(spark, tmp_path)
    query = start(df, tmp_path / "checkpoint", ledger, processingTime="10 milliseconds")
    try:
        until(lambda: all(q.stats().depth == 0 for q in ships.values()))  # the listener acks many, too
        new = make(tmp_path / "fleet", ["new"])
        ships |= new
        send_chains(new["new"], KEYS, 3)
        until(lambda: new["new"].stats().depth == 0)
        (c,) = new["new"].consumers()
        until(lambda: (found := new["new"].consumers()[0].query) is not None and found.messages == 6)
        assert c.lag == 0
    finally:
        query.stop()
    require(ledger, ships, 3)
    reports = [report_of(progress) for progress in query.recentProgress if progress.numInputRows]
    assert reports[0]["queues"] == 6
    assert reports[0]["lag"] == 36
    assert reports[0]["missing"] == {}
    assert all(q.check() == [] for q in ships.values())


def test_a_list_of_paths_and_a_chosen_schema(spark: SparkSession, ships: dict[str, Queue], tmp_path: Path) -> None:
    paths = json.dumps([q.path for q in ships.values()][:2])
    df = spark.readStream.format("strictq").options(paths=paths, consumer="etl").schema("path STRING, body STRING").load()
    found: list[tuple[str, str]] = []
    run(df, tmp_path / "checkpoint", lambda df, _: found.extend((r.path, r.body) for r in df.collect()))
    assert {path for path, _ in found} == {ships["q0"].path, ships["q1"].path}
    assert len(found) == 12


def test_a_table_of_many_queues(spark: SparkSession, ships: dict[str, Queue], tmp_path: Path) -> None:
    paths = [q.path for q in ships.values()]
    df = spark.read.format("strictq").load(paths[:3])
    assert df.columns[-2:] == ["queue", "path"]
    assert {tuple(r) for r in df.groupBy("queue", "path").count().collect()} == {
        (q.queue_id, q.path, 6) for q in list(ships.values())[:3]
    }
    every = spark.read.format("strictq").schema("queue STRING").load(f"{tmp_path}/fleet/*/")
    assert every.count() == 36
    with pytest.raises(Exception, match=r"there is no queue at .*nowhere"):
        spark.read.format("strictq").load([*paths, str(tmp_path / "nowhere")])
    others = spark.read.format("strictq").option("failOnMissing", "false").load([*paths, str(tmp_path / "nowhere")])
    assert others.count() == 36
    assert spark.read.format("strictq").option("keys", '["a"]').load(f"{tmp_path}/fleet/*/").count() == 18
    assert "queue" not in spark.read.format("strictq").load(paths[0]).columns


def test_the_driver_is_killed_again_and_again(
    spark: SparkSession, ships: dict[str, Queue], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With more messages for each batch, and a queue that comes between."""
    home = tmp_path_factory.mktemp("s")
    ledger = Ledger(tmp_path / "ledger")
    count = 3
    for round_ in range(2):
        driver = start_driver(tmp_path, home, "fleet", tmp_path)
        try:
            done = len(ledger.batches())
            for batches in range(done, done + 2):
                for q in ships.values():
                    send_chains(q, KEYS, 2, first=count + 1)
                count += 2
                until(lambda n=batches, driver=driver: len(ledger.batches()) > n or driver.poll() is not None)  # type: ignore[misc]
                assert driver.poll() is None, (tmp_path / "driver.log").read_text(errors="replace")[-3000:]
        finally:
            driver.kill()
            driver.wait()
        if round_ == 0:
            new = make(tmp_path / "fleet", ["new"])
            send_chains(new["new"], KEYS, count)
            ships |= new
    until(lambda: not any(c.active for q in ships.values() for c in q.consumers()))  # its Python processes are gone, too
    df = stream(spark, tmp_path)
    run(df, tmp_path / "checkpoint", ledger)
    require(ledger, ships, count)
    for q in ships.values():
        until(lambda q=q: q.stats().depth == 0)  # type: ignore[misc]
        assert q.check() == []


def test_a_damaged_queue_is_in_the_reports(spark: SparkSession, ships: dict[str, Queue], tmp_path: Path) -> None:
    """The others go on, and it comes with them once it is whole again."""
    ships["q3"].close()
    catalog = Path(ships["q3"].path) / "queue.db"
    whole = catalog.read_bytes()
    catalog.unlink()
    catalog.write_bytes(b"this is no database" * 100)
    ledger = Ledger(tmp_path / "ledger")
    query = start(stream(spark, tmp_path), tmp_path / "checkpoint", ledger, processingTime="10 milliseconds")
    try:
        until(lambda: all(q.stats().depth == 0 for name, q in ships.items() if name != "q3"))
        assert query.isActive
    finally:
        query.stop()
    assert any(str(catalog.parent) in report_of(progress).get("missing", {}) for progress in query.recentProgress)
    catalog.unlink()
    catalog.write_bytes(whole)
    catalog.chmod(0o600)
    run(stream(spark, tmp_path), tmp_path / "checkpoint", ledger)
    with strictq.open(catalog.parent) as q:
        require(ledger, {**ships, "q3": q}, 3)
