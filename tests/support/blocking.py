"""The awaited interface, called from synchronous code, so that one test suite covers both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from anyio.from_thread import BlockingPortal

import strictq
from strictq._platform.lazy import LazyList


async def _finish(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    result = call(*args, **options)
    return await result if inspect.isawaitable(result) else result


def _bare(value: Any) -> Any:
    if isinstance(value, Blocking):
        return object.__getattribute__(value, "_target")
    return [_bare(item) for item in value] if isinstance(value, list | LazyList) else value


class Blocking:
    """A proxy for an object of the awaited interface. It runs the object's verbs in the portal's event loop."""

    def __init__(self, target: Any, portal: BlockingPortal) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_portal", portal)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._verb(value) if callable(value) else self._dressed(value)

    @property
    def key_state(self) -> bytes | None:
        """A property of the synchronous interface, and verbs of the awaited one, which may have to read it."""
        target = self._target
        read = target.get_key_state if isinstance(target, strictq.AsyncTransaction) else target.key_state
        state: bytes | None = self._verb(read)()
        return state

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._verb(self._target.set_key_state)(value)

    def _dressed(self, value: Any) -> Any:
        if isinstance(value, list | LazyList):
            return [self._dressed(item) for item in value]
        if hasattr(value, "__aenter__") and not isinstance(value, strictq.AsyncDelivery):
            return self._context(value)
        ours = type(value).__module__.startswith("strictq")
        return Blocking(value, self._portal) if ours and hasattr(value, "token") else value

    def _verb(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def blocking(*args: Any, **options: Any) -> Any:
            bare = tuple(_bare(arg) for arg in args)
            return self._dressed(self._portal.call(_finish, call, bare, options))

        return blocking

    def _context(self, manager: Any) -> AbstractContextManager[Any]:
        @contextmanager
        def blocking() -> Iterator[Any]:
            with self._portal.wrap_async_context_manager(manager) as entered:
                yield Blocking(entered, self._portal)

        return blocking()


def open_blocking(portal: BlockingPortal, path: str, **options: Any) -> Any:
    """Open with `strictq.open_async`, entered in the portal's event loop. The result has the verbs of a Queue."""
    target = portal.call(_finish, strictq.open_async, (path,), options)
    portal.call(_finish, target.__aenter__, (), {})
    return Blocking(target, portal)
