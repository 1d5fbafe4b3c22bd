"""Is the extra `spark` installed, and new enough?"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from .._errors import ConfigError, MissingExtra

EXTRA: Final = "spark"
MODULES: Final = ("pyspark", "pyarrow", "numpy")
OLDEST: Final = (4, 2)
"""Before it a stream source is never told how much it may read."""


def need(name: str, extra: str = EXTRA) -> None:
    """Raise where a package is not installed.

    Raises:
        MissingExtra: it is not.
    """
    try:
        import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise
        raise MissingExtra(name, extra) from e


def require() -> None:
    """Raise where strictq.spark can't work in this environment.

    Raises:
        MissingExtra: pyspark, pyarrow or numpy is not installed.
        ConfigError: pyspark is older than 4.2.
    """
    for name in MODULES:
        need(name)
    # Not of its metadata: a downloaded Spark brings a pyspark that nobody installed.
    found: str = import_module("pyspark").__version__
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise ConfigError(f"pyspark {found} is too old", hint='install 4.2 or newer: pip install "strictq[spark]"')
