"""Spark's setup in tests, in this process and in programs that they start."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import strictq
from strictq.spark import session_options
from tests.support import warm
from tests.support.running import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(strictq.__file__).parent.parent


def make_home(place: Path) -> Path | None:
    """Make a directory for SPARK_HOME: the installed Spark without its archive of Python sources. None: there is no Spark.

    Spark puts that archive before all else in the PYTHONPATH of its Python processes. They would import pyspark from it, and
    compile it anew in each process, which takes longer than all else that a process does to start. The installed package is
    the same, and its bytecode is kept.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    place.mkdir(exist_ok=True)
    for part in ("bin", "jars"):
        with suppress(FileExistsError):  # of another process of this run
            (place / part).symlink_to(Path(spec.origin).parent / part)
    return place


JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Spark's JVMs live for seconds here: the quick compiler alone takes a sixth less processor time."""


def archived(home: Path) -> Path:
    """Return where a SPARK_HOME has the archive of its classes. tests/support/spark_classes.py makes it."""
    return home / "classes.jsa"


def set_java_options() -> None:
    """Set the options of Spark's JVMs that this process starts, also in programs that name none: they have little data.

    A JVM that cannot use the archive loads its classes as usual.
    """
    options = f"{JAVA_OPTIONS} -XX:SharedArchiveFile={archived(Path(os.environ.get('SPARK_HOME', '')))}"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JAVA_OPTIONS)
    os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", options)
    small = "-Dspark.ui.enabled=false -Dspark.sql.shuffle.partitions=2"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f'{options} {small} -Dspark.executor.defaultJavaOptions="{options}"')


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings for many small queries: to compile a class for each takes longer than to run it."""


def environment(place: Path) -> dict[str, str]:
    """Return variables to set before the session starts: nothing leaves this machine, and workers find strictq."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "PYSPARK_PYTHON": os.environ.get(warm.PYTHON, sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def settings(place: Path) -> dict[str, str]:
    """Return the settings of a small and quiet session, with all of its files under `place`."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.python.authenticate.socketTimeout": "120s",  # on a busy machine a worker may take long to start
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        # Regular expressions of Spark's own recurse. One of some thousand queries overflowed the usual stack.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={place} -Xss4m",
        **session_options(),
    }


def run_driver(place: Path, home: Path, name: str, *arguments: object, seconds: float = 2 * PATIENCE_SECONDS) -> tuple[int, str]:
    """Run one of tests/support/spark_drivers.py to its end. Return the exit code and the end of what it printed."""
    driver = start_driver(place, home, name, *arguments)
    try:
        code = driver.wait(seconds)
    finally:
        driver.kill()
    return code, (place / "driver.log").read_text(errors="replace")[-3000:]


def start_driver(place: Path, home: Path, name: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start it. What it prints is appended to a file: what it leaves behind would keep a pipe open."""
    command = [sys.executable, "-m", "tests.support.spark_drivers", name, str(home), *map(str, arguments)]
    with (place / "driver.log").open("ab") as output:
        return subprocess.Popen(
            command, env={**os.environ, **environment(home)}, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


# ---- a cluster of two hosts


@contextmanager
def cluster(place: Path) -> Iterator[str]:
    """Run a standalone cluster on this machine: two workers with a core each, at two addresses. Yield its master's address.

    Spark's own local-cluster is one host, and Spark runs no second copy of a task on the host that has the first.
    """
    import pyspark
    import pytest

    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            pytest.skip("this machine has one loopback address only")
    started: list[subprocess.Popen[bytes]] = []

    def start(host: str, role: str, *arguments: str) -> Path:
        log = place / f"{role}-{host}.log"
        with log.open("wb") as output:
            program = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{role}"]
            command = [*program, "--host", host, "--webui-port", "0", *arguments]
            environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_HOME": str(home)}
            started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
        return log

    place.mkdir()
    try:
        log = start("127.0.0.1", "master.Master", "--port", "0")
        until = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(r"spark://127\.0\.0\.1:[1-9]\d*", log.read_text(errors="replace"))) is None:
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.05)
        for host in ("127.0.0.1", "127.0.0.2"):
            start(host, "worker.Worker", "--cores", "1", "--memory", "600m", "--work-dir", str(place / host), found[0])
        yield found[0]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ---- ledgers: rows that identify themselves, and the expected results


def ledger(spark: SparkSession, rows: int, *, keys: int = 10, partitions: int = 4, start: int = 0) -> DataFrame:
    """Return columns key, n and body. A key's numbers ascend by `keys`. A body has its key and number, with a checksum."""
    df = spark.range(start, start + rows, 1, partitions).selectExpr(f"concat('key-', id % {keys}) AS key", "id AS n")
    return df.selectExpr("key", "n", "concat(key, ':', n, ':', crc32(cast(concat(key, ':', n) AS BINARY))) AS body")


def write(df: DataFrame, path: str, job: str, **options: str) -> None:
    """Write a batch in the order of n."""
    options = {"path": path, "jobId": job, "orderBy": "n", **options}
    df.write.format("strictq").options(**options).mode("append").save()


def entries(path: str) -> list[tuple[str, int]]:
    """Receive everything from the queue: key and number, after checking each body's checksum."""
    found: list[tuple[str, int]] = []
    with strictq.open(path) as q:
        assert q.check() == []
        while ds := q.receive(10_000):
            for d in ds:
                text, _, checksum = d.body.decode().rpartition(":")
                assert int(checksum) == zlib.crc32(text.encode()), f"{d.body!r} was damaged"
                key, _, n = text.partition(":")
                assert key == d.key, f"{d.body!r} came under the key {d.key!r}"
                found.append((key, int(n)))
            q.ack_many(ds)
        assert q.stats().depth == 0
    return found


def assert_ledger(path: str, rows: int, *, keys: int = 10, start: int = 0) -> None:
    """Require every row of the ledger once, and those of a key in order. Empties the queue."""
    found = entries(path)
    for key in {key for key, _ in found}:
        numbers = [n for k, n in found if k == key]
        assert numbers == sorted(numbers), f"{key} is out of order"
    assert sorted(n for _, n in found) == list(range(start, start + rows))
    assert all(key == f"key-{n % keys}" for key, n in found)


def staged(path: str) -> list[str]:
    """Return the files that are left in the queue's staging directory."""
    return [str(p) for p in (Path(path) / "staging").rglob("*.arrow")]
