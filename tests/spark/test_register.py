"""Setting Spark up: what is needed, and what is said where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
import strictq.spark
from strictq import InvalidArgument
from strictq._platform import extras as _extras
from strictq.spark._interpreter import require_interpreter
from tests.support.queues import Opener
from tests.support.running import PATIENCE_SECONDS, ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_registering_twice_does_no_harm(spark: SparkSession) -> None:
    strictq.spark.register(spark)
    strictq.spark.register(spark)


@pytest.mark.parametrize("given", [None, "local", 5, strictq.QueueConfig()])
def test_what_is_no_session_or_frame_is_refused(given: Any, disk: Opener) -> None:
    calls: dict[str, Callable[[], object]] = {
        "spark must be a SparkSession": lambda: strictq.spark.register(given),
        "spark must be a SparkSession, not": lambda: strictq.spark.pipeline(given, disk(), process=print),
        "df must be a DataFrame": lambda: strictq.spark.ordered(given),
    }
    for says, call in calls.items():
        with pytest.raises(InvalidArgument, match=f"{says}.*{type(given).__name__}") as e:
            call()
        assert e.value.hint


@pytest.mark.parametrize("given", [{"queue": None}, {"host": 5}, {"announce": 5}, {"certificate": 5}, {"token": 5}])
def test_a_server_is_refused_what_is_no_text(given: dict[str, Any], queue_path: str) -> None:
    with strictq.open(queue_path), pytest.raises(InvalidArgument):
        strictq.spark.serve(**{"queue": queue_path, **given})


def test_the_fast_settings_are_set(spark: SparkSession) -> None:
    for name, value in strictq.spark.session_options().items():
        assert spark.conf.get(name) == value


def test_every_setting_says_what_it_costs() -> None:
    from strictq.spark.settings import SETTINGS

    assert {s.name for s in SETTINGS} == set(strictq.spark.session_options())
    assert all(len(s.why) > 40 for s in SETTINGS)


def test_importing_it_imports_neither_pyspark_nor_arrow() -> None:
    code = "import strictq.spark, sys; print(*({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "numpy"])
def test_a_missing_extra_is_named(package: str) -> None:
    # None in sys.modules makes an import fail as if nothing were there.
    code = f"import sys; sys.modules[{package!r}] = None; import strictq.spark; strictq.spark.register(None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode != 0
    assert f'MissingExtra: this needs {package} (pip install "strictq[spark]")' in done.stderr


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    with pytest.raises(strictq.ConfigError, match=r"4\.1\.3 is too old.*4\.2 or newer"):
        _extras.need_spark()


def test_a_pyspark_that_nobody_installed(tmp_path: Path) -> None:
    """A downloaded Spark brings one: it can be imported, and has no metadata."""
    import pyspark

    for package in Path(pyspark.__file__).parent.parent.iterdir():
        if package.suffix not in (".dist-info", ".pth"):
            (tmp_path / package.name).symlink_to(package)
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
    code = f"{paths}from strictq._platform.extras import need_spark; need_spark()"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, timeout=PATIENCE_SECONDS)


# ---- the interpreter of Spark's Python processes
#
# Nothing is registered under an interpreter that is none: the session, which other tests use, would keep it.


def script(path: Path, says: str) -> str:
    """A program that takes any arguments."""
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter of this version that has nothing but the standard library, and finds nothing where the program runs."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=PATIENCE_SECONDS)
    return str(tmp_path / "bare" / "bin" / "python")


def test_an_interpreter_that_lacks_packages(spark: SparkSession, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("strictq").mkdir()  # a folder of that name, say with queues in it, is not the package
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    with pytest.raises(strictq.ConfigError, match=r"bare/bin/python', which does not have strictq, apsw, attrs, .*pyarrow") as e:
        strictq.spark.register(spark)
    assert "PYSPARK_PYTHON" in str(e.value)
    assert 'strictq and its extra "spark" are installed' in str(e.value)


def test_what_spark_gives_to_its_processes_counts(spark: SparkSession, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    require_interpreter(spark)


def test_an_interpreter_of_another_version(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", script(tmp_path / "python3.2", "echo strictq 3 2"))
    with pytest.raises(strictq.ConfigError, match=r"python3\.2', which is Python 3\.2, and this program is 3\."):
        strictq.spark.register(spark)


def test_an_interpreter_that_is_not_there(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    with pytest.raises(strictq.ConfigError, match="can't be started: '/nowhere/python': No such file"):
        strictq.spark.register(spark)


@pytest.mark.parametrize("says", ["echo welcome", "exit 3", "echo strictq; exit 1"])
def test_what_can_not_be_known_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", script(tmp_path / "wrapper", says))
    require_interpreter(spark)


def test_it_is_looked_at_once(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = f"echo >> {tmp_path / 'looks'}; echo strictq {sys.version_info[0]} {sys.version_info[1]}"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", script(tmp_path / "counting", says))
    for _ in range(3):
        require_interpreter(spark)
    assert (tmp_path / "looks").read_text() == "\n"


def test_a_pipeline_looks_where_spark_works_for_it(
    spark: SparkSession, queue_path: str, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    with strictq.open(queue_path) as q:
        with pytest.raises(strictq.ConfigError, match="does not have strictq"):
            strictq.spark.pipeline(spark, q, prepare=lambda batch: batch, prepared="n bigint", process=print)
        with pytest.raises(strictq.ConfigError, match="does not have strictq"):
            strictq.spark.pipeline(spark, q, process=print, where="executors")
        strictq.spark.pipeline(spark, q, process=print)  # in this program
        monkeypatch.setattr(spark.sparkContext, "master", "spark://elsewhere:7077")
        strictq.spark.pipeline(spark, q, process=print, where="executors")  # of other machines


# ---- without registering


def test_spark_finds_it_by_itself() -> None:
    """As Spark looks for data sources, in a process of its own: what it writes names each source it found."""
    from io import BytesIO

    from pyspark.sql.worker.lookup_data_sources import _main

    found = BytesIO()
    _main(BytesIO(), found)
    assert b"\0\0\0\7strictq" in found.getvalue()
    assert b"strictq.spark.datasource" in found.getvalue()


def test_a_session_that_nobody_registered_with_reads_and_writes(spark: SparkSession, queue_path: str) -> None:
    strictq.open(queue_path).close()
    fresh = spark.newSession()
    rows = fresh.createDataFrame([("k", "b")], "key string, body string")  # makes it the active session of this thread
    rows.write.format("strictq").options(path=queue_path, jobId="j").mode("append").save()
    assert fresh.read.format("strictq").load(queue_path).count() == 1


def test_a_thread_that_registers_reads_and_writes(spark: SparkSession, queue_path: str) -> None:
    strictq.open(queue_path).close()

    def write() -> None:
        strictq.spark.register(spark)
        rows = spark.sql("SELECT 'k' AS key, 'b' AS body")
        rows.write.format("strictq").options(path=queue_path, jobId="j").mode("append").save()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    with strictq.open(queue_path) as q:
        assert [d.body for d in q.receive()] == [b"b"]


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "numpy"])
def test_without_the_extra_other_sources_go_on(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import pyspark_strictq; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == "imported\n", done.stderr
