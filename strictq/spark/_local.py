"""A local Spark session for commands. Imported late, with pyspark."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .. import _hints as hints
from .._errors import ConfigError, StrictqError
from .settings import session_options


@contextmanager
def local_session(name: str) -> Iterator[SparkSession]:
    """Yield the active session, or one on all cores that ends with the block. It listens on 127.0.0.1 only.

    Raises:
        ConfigError: there is no Java.
        StrictqError: Spark can't be started, or failed inside the block.
    """
    there = SparkSession.getActiveSession()
    spark = there or _begin(name)
    try:
        yield spark
    except (PySparkException, Py4JJavaError) as e:
        # Errors of Spark, and those of Java that Spark does not translate.
        text = e.java_exception.getMessage() if isinstance(e, Py4JJavaError) else str(e)
        raise StrictqError(f"Spark failed: {text.strip().splitlines()[0]}") from e
    finally:
        if there is None:
            spark.stop()


def _begin(name: str) -> SparkSession:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ConfigError("Spark needs Java, and no Java was found", hint=hints.INSTALL_JAVA)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "8",
        **session_options(),
    }
    builder = SparkSession.builder.appName(name).master("local[*]").config(map=settings)
    with _aside() as said:
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as e:
            said.seek(0)
            lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
            why = [line for line in lines if line and not line.startswith("WARNING")] or [str(e)]
            raise StrictqError(f"Spark can't be started: {why[0]}", hint=hints.JAVA_VERSION) from e


@contextmanager
def _aside() -> Iterator[IO[bytes]]:
    """Redirect the stderr of programs started in the block to a file, because Java and Spark print start messages there."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
