"""Of pages that are in several segments the last image is written, once, and none behind the end of its file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from strictq.replication.newest_pages import NewestPages
from strictq.replication.segment import PagesOf


class Written:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int, list[tuple[int, bytes]]]] = []

    def write(self, shard: int, size: int, pages: Iterator[tuple[int, bytes]]) -> None:
        """See PageFiles."""
        self.calls.append((shard, size, list(pages)))


def write(newest: NewestPages) -> list[tuple[int, int, list[tuple[int, bytes]]]]:
    files, steps = Written(), list[str]()
    newest.write(cast("Any", files), steps.append)
    assert steps == ["page"] * len(files.calls)
    return files.calls


def test_the_last_image_of_each_page_is_written_once() -> None:
    newest = NewestPages()
    newest.add([(PagesOf(0, 9, 3), [(7, b"7"), (2, b"2"), (9, b"9")]), (PagesOf(-1, 1, 1), [(1, b"c")])])
    newest.add([(PagesOf(0, 9, 1), [(2, b"later")]), (PagesOf(1, 4, 1), [(4, b"4")])])
    assert newest.count == 5
    assert write(newest) == [
        (0, 9, [(2, b"later"), (7, b"7"), (9, b"9")]),
        (-1, 1, [(1, b"c")]),
        (1, 4, [(4, b"4")]),
    ]
    assert newest.count == 0
    assert write(newest) == []


def test_a_file_that_became_shorter() -> None:
    newest = NewestPages()
    newest.add([(PagesOf(0, 9, 2), [(9, b"9"), (3, b"3")])])
    newest.add([(PagesOf(0, 5, 0), [])])
    assert write(newest) == [(0, 5, [(3, b"3")])]
    newest.add([(PagesOf(0, 2, 0), [])])
    assert write(newest) == [(0, 2, [])]
