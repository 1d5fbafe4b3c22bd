"""The counts of rounds on which calls wait for the replica."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from strictq import StoreError
from strictq._store.catalog.contents import Replication
from strictq._store.shipping.confirming import Rounds
from tests.support.running import PATIENCE_SECONDS, until

HERE = Replication("h", 1, "confirmed", "file:/t")


def rounds_of(directory: Path, replication: Replication = HERE, boot: str = "boot") -> Rounds:
    return Rounds(directory, replication, boot)


def test_a_call_waits_for_the_end_of_a_round_that_begins_later(tmp_path: Path) -> None:
    shipper, caller = rounds_of(tmp_path), rounds_of(tmp_path)
    assert caller.next is None
    shipper.take_over()
    number = caller.next
    assert number == 1
    assert caller.want(number)
    assert not caller.want(number)
    assert shipper.wanted
    shipper.begin()
    late = caller.next
    assert late == 2
    assert not shipper.wanted
    assert not caller.has_ended(number)
    shipper.end()
    assert caller.has_ended(number)
    assert not caller.has_ended(late)
    shipper.begin()
    shipper.end()
    assert caller.has_ended(late)


def test_a_round_that_was_begun_by_a_killed_shipper_never_ends(tmp_path: Path) -> None:
    first, caller = rounds_of(tmp_path), rounds_of(tmp_path)
    first.take_over()
    first.begin()
    number = caller.next
    second = rounds_of(tmp_path)
    second.take_over()
    assert number is not None
    assert not caller.has_ended(number - 1)
    second.begin()
    second.end()
    assert caller.has_ended(number)


@pytest.mark.parametrize(
    "other",
    [
        (HERE._replace(history_id="i"), "boot"),
        (HERE._replace(term=2), "boot"),
        (HERE._replace(target="file:/u"), "boot"),
        (HERE, "another boot"),
    ],
)
def test_rounds_of_something_else_say_nothing(tmp_path: Path, other: tuple[Replication, str]) -> None:
    old = rounds_of(tmp_path, *other)
    old.take_over()
    for _ in range(5):
        old.begin()
        old.end()
    old.answered(7)
    caller = rounds_of(tmp_path)
    assert (caller.next, caller.has_ended(1), caller.answered_at) == (None, False, 0)
    shipper = rounds_of(tmp_path)
    shipper.take_over()
    number = caller.next
    assert number is not None
    assert not caller.has_ended(number)
    assert caller.answered_at == 0
    assert not old.has_ended(1)


def test_a_file_that_says_more_ended_than_began_confirms_nothing(tmp_path: Path) -> None:
    """A power cut may leave such a file: its parts need not reach the disk together."""
    (tmp_path / "ship-rounds").write_bytes(b"".join(n.to_bytes(8, "little") for n in (1, 3, 9, 9, 9)))
    shipper, caller = rounds_of(tmp_path), rounds_of(tmp_path)
    shipper.take_over()
    number = caller.next
    assert number is not None
    assert not caller.has_ended(number)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ship-rounds").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        rounds_of(tmp_path)


def test_only_those_are_woken_whose_round_has_ended(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path)
    rounds.take_over()
    returned: list[int] = []

    def rest(number: int) -> None:
        rounds.rest(number, PATIENCE_SECONDS)
        returned.append(number)

    threads = [threading.Thread(target=rest, args=(number,)) for number in (1, 2, 1)]
    for thread in threads:
        thread.start()
    until(lambda: len(rounds._waiting) == 3)
    rounds.begin()
    rounds.end()
    until(lambda: len(returned) == 2)
    assert returned == [1, 1]
    assert threads[1].is_alive()
    rounds.begin()
    rounds.end()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert returned == [1, 1, 2]
    began = time.monotonic()
    rounds.rest(2, PATIENCE_SECONDS)  # it has ended already
    rounds.rest(3, 0.01)  # and this one does not
    assert time.monotonic() - began < PATIENCE_SECONDS
    rounds.after_fork_in_child()
    assert not rounds._waiting


def test_threads_that_stop_waiting_are_forgotten(tmp_path: Path) -> None:
    """The target may be away for hours, and no round ends in that time."""
    rounds = rounds_of(tmp_path)
    rounds.take_over()
    for _ in range(100):
        rounds.rest(1, 0.0001)
    assert not rounds._waiting
    rounds.begin()
    rounds.end()
    rounds.rest(1, PATIENCE_SECONDS)
    assert not rounds._waiting
