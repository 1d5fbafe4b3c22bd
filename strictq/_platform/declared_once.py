"""Give a function the arguments, and a class the properties, that another one declares."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def same_arguments(as_: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Declare a function's arguments to be those of another one."""

    def declare(call: Callable[..., T]) -> Callable[P, T]:
        call.__wrapped__ = as_  # type: ignore[attr-defined]  # for inspect.signature
        return call

    return declare


class _Mirrored:
    def __init__(self, of: type, behind: str) -> None:
        self._of, self._behind = of, behind

    def __set_name__(self, owner: type, name: str) -> None:
        doc = getattr(getattr(self._of, name, None), "__doc__", None) or f"See {self._of.__name__}."
        setattr(owner, name, property(attrgetter(f"{self._behind}.{name}"), doc=doc))


def mirrored(of: type, behind: str) -> Any:
    """Return a read-only property of the object behind this one, with the docstring that it has there.

    Args:
        of: the class of the object behind.
        behind: the attribute that has the object.
    """
    return _Mirrored(of, behind)
