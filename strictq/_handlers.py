"""Handlers: what can be called with a message, and what only looks like it."""

from __future__ import annotations

import inspect
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeVar

from . import _hints as hints
from ._errors import InvalidArgument

T = TypeVar("T")
NESTED_MAX: Final = 16
"""Wrappers that are looked through. What hides behind more of them is found by what it returns."""
_UNRUN: Final = (GeneratorType, AsyncGeneratorType, CoroutineType)


def is_async(handler: Any) -> bool:
    """Is it, or is its __call__, an `async def` without a yield?"""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def require_runs(what: str, handler: Any) -> None:
    """Refuse a function with a yield in it: to call it runs none of its code.

    It is found behind functools.partial, methods, objects with a __call__, and plain decorators that use functools.wraps.

    Raises:
        InvalidArgument: it is a generator function or an async generator function, or not callable.
    """
    if not callable(handler):
        raise InvalidArgument(f"{what} must be callable, not {type(handler).__name__}")
    inner = handler
    for _ in range(NESTED_MAX):
        if is_async(inner):
            return  # its code runs when it is awaited, whatever it decorates
        if _yields(inner):
            raise InvalidArgument(
                f"{what} is a generator function: calling it would run none of its code",
                hint=hints.HANDLER_YIELDS.of(what=what),
            )
        inner = _inside(inner)


def _yields(handler: Any) -> bool:
    return inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)


def _inside(handler: Any) -> Any:
    """The function that a call of it calls; itself if there is none."""
    if isinstance(handler, partial):
        return handler.func
    wrapped = getattr(handler, "__wrapped__", None)
    if callable(wrapped):
        return wrapped
    if inspect.isroutine(handler) or inspect.isclass(handler):
        return handler
    return getattr(handler, "__call__", handler)  # noqa: B004 - the bound method itself


def require_ran(what: str, result: T) -> T:
    """What a handler returned, unless that shows that the handler did not run.

    Raises:
        InvalidArgument: it is a generator, an async generator or a coroutine.
    """
    if isinstance(result, _UNRUN):
        kind = type(result).__name__.replace("_", " ")
        if not isinstance(result, AsyncGeneratorType):
            result.close()  # else Python warns that it was never awaited
        raise InvalidArgument(
            f"{what} returned a {kind}, so its work is not done",
            hint=hints.HANDLER_SHAPE,
        )
    return result
