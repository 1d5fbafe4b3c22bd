"""Show errors of strictq as one line in Spark's messages, instead of a Python traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, TypeVar

from .._values.errors import StrictqError

HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's Python processes read this variable when they report an exception. They end after that."""
OFFSET_METHODS: Final = (
    "initialOffset", "getDefaultReadLimit", "prepareForTriggerAvailableNow", "latestOffset", "reportLatestOffset", "partitions",
    "commit",
)  # fmt: skip
"""The methods that Spark calls in the process of a query."""
C = TypeVar("C", bound=type)


def plain(*methods: str) -> Callable[[C], C]:
    """Return a class decorator. Errors of strictq from these methods are reported by type, text and hint alone.

    Only in Spark's own processes. Other errors keep their traceback.
    """

    def decorate(cls: C) -> C:
        for name in methods:
            setattr(cls, name, _wrapped(getattr(cls, name)))
        return cls

    return decorate


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    if isgeneratorfunction(method):

        @wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                yield from method(*args, **kwargs)
            except StrictqError:
                _hide()
                raise

        return generate

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except StrictqError:
            _hide()
            raise

    return call


def is_of_spark() -> bool:
    """Return whether Spark started this process to run Python code."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _hide() -> None:
    if is_of_spark():
        os.environ[HIDE] = "1"
