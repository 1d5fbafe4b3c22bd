"""Check that an optional dependency is installed, before the module that imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from .._values import hints
from .._values.errors import ConfigError, MissingExtra

SPARK_MODULES: Final = ("pyspark", "pyarrow", "numpy")
SPARK_OLDEST: Final = (4, 2)
"""Older versions of Spark do not pass the read limit to a stream source."""


def need(package: str, extra: str) -> None:
    """Raise if a package is not installed.

    Args:
        extra: the extra of strictq that installs the package.
    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import_module(package)
    except ModuleNotFoundError as e:
        if e.name != package:
            raise
        raise MissingExtra(package, extra) from e


def need_spark() -> None:
    """Raise if Spark cannot be used in this environment.

    Raises:
        MissingExtra: pyspark, pyarrow or numpy is not installed.
        ConfigError: pyspark is older than 4.2.
    """
    for package in SPARK_MODULES:
        need(package, "spark")
    # Not read from the package metadata, because the pyspark of a downloaded Spark has none.
    found: str = import_module("pyspark").__version__
    if tuple(int(part) for part in found.split(".")[:2]) < SPARK_OLDEST:
        raise ConfigError(f"pyspark {found} is too old", hint=hints.INSTALL_PYSPARK)
