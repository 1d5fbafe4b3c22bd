"""Errors of strictq as one line in Spark's messages, instead of a Python traceback before the sentence that counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, TypeVar

from .._errors import StrictqError

HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's Python processes look at this variable when they report an exception. They end after that."""
OFFSET_METHODS: Final = (
    "initialOffset", "getDefaultReadLimit", "prepareForTriggerAvailableNow", "latestOffset", "reportLatestOffset", "partitions",
    "commit",
)  # fmt: skip
"""What Spark calls in the process of a query."""
C = TypeVar("C", bound=type)


def plain(*methods: str) -> Callable[[C], C]:
    """Class decorator: an error of strictq that leaves one of these methods is reported by its type, sentence and hint alone.

    Only in Spark's own processes, and not for any other error: of those the traceback is wanted.
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


def _hide() -> None:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ[HIDE] = "1"
