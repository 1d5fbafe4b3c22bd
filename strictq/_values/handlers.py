"""Check handlers: reject functions that would not run when they are called. The header of a handler type, and its pause."""

from __future__ import annotations

import inspect
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeVar

from . import hints
from .errors import InvalidArgument

T = TypeVar("T")
TYPE_HEADER: Final = "strictq-type"
"""The header with a message's type, for an App."""
NESTED_MAX: Final = 16
"""Depth up to which wrappers are inspected. Behind deeper ones, `require_ran` detects a handler that did not run."""
_UNRUN: Final = (GeneratorType, AsyncGeneratorType, CoroutineType)


def paused(type: str | None) -> str:
    """Return why a message of a paused type is not processed."""
    return f"handlers of {type!r} are paused"


def is_async(handler: Any) -> bool:
    """Return whether the handler, or its __call__, is an `async def` without a yield."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def require_runs(what: str, handler: Any) -> None:
    """Raise for a function with a yield in it, because calling it runs none of its code.

    Looks through functools.partial, methods, objects with a __call__, and decorators that use functools.wraps.

    Raises:
        InvalidArgument: it is a generator function or an async generator function, or not callable.
    """
    if not callable(handler):
        raise InvalidArgument(f"{what} must be callable, not {type(handler).__name__}")
    inner = handler
    for _ in range(NESTED_MAX):
        if is_async(inner):
            return  # its code runs when it is awaited, whatever it wraps
        if _yields(inner):
            raise InvalidArgument(
                f"{what} is a generator function: calling it would run none of its code",
                hint=hints.HANDLER_YIELDS.of(what=what),
            )
        inner = _inside(inner)


def _yields(handler: Any) -> bool:
    return inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)


def _inside(handler: Any) -> Any:
    """Return the function that calling this one calls; the function itself if it wraps none."""
    if isinstance(handler, partial):
        return handler.func
    wrapped = getattr(handler, "__wrapped__", None)
    if callable(wrapped):
        return wrapped
    if inspect.isroutine(handler) or inspect.isclass(handler):
        return handler
    return getattr(handler, "__call__", handler)  # noqa: B004 - the bound method itself


def require_ran(what: str, result: T) -> T:
    """Return the handler's result, unless it shows that the handler did not run.

    Raises:
        InvalidArgument: it is a generator, an async generator or a coroutine.
    """
    if result is not None and isinstance(result, _UNRUN):
        kind = type(result).__name__.replace("_", " ")
        if not isinstance(result, AsyncGeneratorType):
            result.close()  # otherwise Python warns that it was never awaited
        raise InvalidArgument(
            f"{what} returned a {kind}, so its work is not done",
            hint=hints.HANDLER_SHAPE,
        )
    return result
