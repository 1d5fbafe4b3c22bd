"""A list whose elements are built when the first of them is used."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, SupportsIndex, TypeVar, overload

T = TypeVar("T")

_making = threading.RLock()
"""Held while elements are built, so that two threads get the same ones. Reentrant, because a finalizer may build others."""


class LazyList(MutableSequence[T]):
    """A mutable sequence with the methods of a list. `len` and `bool` build no elements.

    It is not a `list`, because C functions read a list's memory directly and would see an unbuilt one as empty.
    A slice, a sum and a copy are plain lists.
    """

    __slots__ = ("_elements",)

    _elements: list[T] | None
    """None: they are not built yet."""
    __hash__ = None  # type: ignore[assignment]

    def _make(self) -> list[T]:
        """Return the elements. Called once."""
        raise NotImplementedError

    def _count(self) -> int:
        """Return the number of elements without building them."""
        raise NotImplementedError

    @property
    def _list(self) -> list[T]:
        elements = self._elements
        if elements is None:
            with _making:
                if self._elements is None:
                    self._elements = self._make()
                elements = self._elements
        return elements

    def __len__(self) -> int:
        return self._count() if self._elements is None else len(self._elements)

    def __iter__(self) -> Iterator[T]:
        return iter(self._list)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._list)

    def __contains__(self, value: object) -> bool:
        return value in self._list

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | list[T]:
        return self._list[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._list[index] = value

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        del self._list[index]

    def insert(self, index: SupportsIndex, value: T) -> None:
        """Insert `value` before `index`."""
        self._list.insert(index, value)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place, as a list does."""
        self._list.sort(key=key, reverse=reverse)

    def copy(self) -> list[T]:
        """Return a list of the elements."""
        return self._list.copy()

    def __add__(self, other: Iterable[T]) -> list[T]:
        if not isinstance(other, list | LazyList):
            return NotImplemented
        return [*self._list, *other]

    # No __radd__: `held += batch` would call it before the list extends itself, and bind `held` to another list.

    def __mul__(self, times: SupportsIndex) -> list[T]:
        return self._list * times

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyList):
            other = other._list
        return self._list == other if isinstance(other, list) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._list,)

    def __repr__(self) -> str:
        return repr(self._list)


def _after_fork_in_child() -> None:
    """Replace the lock: the thread that held it at the fork exists in the parent only."""
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
