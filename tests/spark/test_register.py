"""Setting Spark up: what is needed, and what is said where it is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

import strictq
import strictq.spark
from strictq.spark import _extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_registering_twice_does_no_harm(spark: SparkSession) -> None:
    strictq.spark.register(spark)
    strictq.spark.register(spark)


def test_the_fast_settings_are_set(spark: SparkSession) -> None:
    for name, value in strictq.spark.session_options().items():
        assert spark.conf.get(name) == value


def test_every_setting_says_what_it_costs() -> None:
    from strictq.spark.settings import SETTINGS

    assert {s.name for s in SETTINGS} == set(strictq.spark.session_options())
    assert all(len(s.why) > 40 for s in SETTINGS)


def test_importing_it_imports_neither_pyspark_nor_arrow() -> None:
    code = "import strictq.spark, sys; print(*({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_a_missing_extra_is_named(package: str) -> None:
    # None in sys.modules makes an import fail as if nothing were there.
    code = f"import sys; sys.modules[{package!r}] = None; import strictq.spark; strictq.spark.register(None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f'MissingExtra: this needs {package} (pip install "strictq[spark]")' in done.stderr


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extra, "version", lambda name: "4.1.3" if name == "pyspark" else metadata.version(name))
    with pytest.raises(strictq.ConfigError, match=r"4\.1\.3 is too old"):
        _extra.require()
