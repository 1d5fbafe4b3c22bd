"""A list whose elements are made when the first of them is used."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, Final, SupportsIndex, TypeVar, overload

T = TypeVar("T")

_MAKING: Final = threading.RLock()
"""Held while elements are made, so that two threads get the same ones. A finalizer may make others meanwhile."""


class LazyList(MutableSequence[T]):
    """What a list does, but `len` and `bool` make no elements.

    It is not a `list`: C functions read the memory of a list directly, and would find one whose elements are not made empty.
    A slice, a sum and a copy are lists.
    """

    __slots__ = ("_elements",)

    _elements: list[T] | None
    """None: they are not made."""
    __hash__ = None  # type: ignore[assignment]

    def _make(self) -> list[T]:
        """Return the elements. Called once."""
        raise NotImplementedError

    def _count(self) -> int:
        """Return how many elements there will be."""
        raise NotImplementedError

    @property
    def _list(self) -> list[T]:
        elements = self._elements
        if elements is None:
            with _MAKING:
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

    def __radd__(self, other: list[T]) -> list[T]:
        return [*other, *self._list] if isinstance(other, list) else NotImplemented

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
