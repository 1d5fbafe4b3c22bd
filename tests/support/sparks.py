"""How tests set Spark up, in this process and in programs they start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import strictq
from strictq.spark import session_options

ROOT = Path(strictq.__file__).parent.parent


def environment(place: Path) -> dict[str, str]:
    """Variables that must be set before the session starts: nothing leaves this machine, and workers find strictq."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


def settings(place: Path) -> dict[str, str]:
    """Of the session: small, quiet, and all of its files under `place`."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={place}",
        **session_options(),
    }
