"""A list whose elements are made when they are used."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from strictq import Message, Queue, Receipt
from strictq._platform.lazy import LazyList


class Numbers(LazyList[int]):
    """0, 1, 2 …"""

    __slots__ = ("made", "n")

    def __init__(self, n: int) -> None:
        self._elements = None
        self.n = n
        self.made = 0

    def _count(self) -> int:
        return self.n

    def _make(self) -> list[int]:
        self.made += 1
        return list(range(self.n))


def test_its_length_makes_nothing_and_its_elements_are_made_once() -> None:
    numbers = Numbers(3)
    assert numbers
    assert len(numbers) == 3
    assert not Numbers(0)
    assert numbers.made == 0
    assert list(numbers) == [*numbers] == [numbers[0], 1, 2]
    assert numbers.made == 1


def test_it_does_what_a_list_does() -> None:
    numbers = Numbers(4)
    assert numbers == [0, 1, 2, 3] == numbers == Numbers(4)
    assert numbers != Numbers(3)
    assert numbers != (0, 1, 2, 3)
    assert (numbers[1:], numbers[-1], numbers.index(2), numbers.count(2), 3 in numbers) == ([1, 2, 3], 3, 2, 1, True)
    assert numbers + [9] == [0, 1, 2, 3, 9]  # noqa: RUF005 - this is about +
    assert Numbers(1) + Numbers(2) == [0, 0, 1]
    assert Numbers(1) * 2 == 2 * Numbers(1) == [0, 0]
    assert list(reversed(numbers)) == [3, 2, 1, 0]
    numbers.remove(0)
    numbers.append(5)
    numbers.insert(0, 7)
    numbers[1:3] = [8]
    assert numbers.pop() == 5
    assert numbers == [7, 8, 3]
    numbers.sort(reverse=True)
    numbers += [1]
    assert numbers.copy() == [8, 7, 3, 1]
    assert isinstance(numbers, Numbers)
    assert repr(numbers) == "[8, 7, 3, 1]"
    numbers.clear()
    assert not numbers
    with pytest.raises(IndexError):
        numbers[0]
    with pytest.raises(TypeError):
        hash(numbers)
    with pytest.raises(TypeError):
        numbers + (1,)  # noqa: RUF005


def test_no_c_function_takes_it_for_an_empty_list() -> None:
    with pytest.raises(TypeError):
        json.dumps(Numbers(2))
    assert json.dumps(list(Numbers(2))) == "[0, 1]"
    assert copy.copy(Numbers(2)) == copy.deepcopy(Numbers(2)) == pickle.loads(pickle.dumps(Numbers(2))) == [0, 1]
    assert tuple(Numbers(2)) == (0, 1)
    assert sum(Numbers(3), start=1) == 4


@pytest.mark.parametrize("shards", [1, 3])
def test_receipts_are_made_when_they_are_used(make_many: Queue) -> None:
    receipts = make_many.send_many([Message(b"", key=key) for key in ("a", "b", "a")])
    assert len(receipts) == 3
    assert all(isinstance(r, Receipt) for r in receipts)
    assert [(r.key, r.seq, r.duplicate, r.shard) for r in receipts] == [
        (key, seq, False, make_many.send(b"", key).shard) for key, seq in (("a", 1), ("b", 1), ("a", 2))
    ]
    assert receipts == list(receipts)


@pytest.fixture
def make_many(make: object, shards: int) -> Queue:
    """A queue of so many shards."""
    return make(shards=shards)  # type: ignore[operator, no-any-return]


def test_a_list_is_extended_in_place() -> None:
    held = kept = [1]
    held += Numbers(2)
    assert kept is held
    assert len(kept) == 3
