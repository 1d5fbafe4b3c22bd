"""The last images of pages that are in several segments. Each page is then written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .segment import SegmentPages

if TYPE_CHECKING:
    from .._store.api import PageFiles


class NewestPages:
    """The pages of consecutive segments."""

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, bytes]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, parts: SegmentPages) -> None:
        for part, pages in parts:
            self._pages.setdefault(part.shard, {}).update(pages)
            self._sizes[part.shard] = part.size

    @property
    def count(self) -> int:
        """How many different pages there are."""
        return sum(map(len, self._pages.values()))

    def write(self, files: PageFiles, on_step: Callable[[str], object] = lambda _step: None) -> None:
        """Write them, and forget them.

        Args:
            on_step: called with "page" after each file, for tests that kill the process there.
        Raises:
            StoreFull, StoreError: they can't be written. Some may have been.
        """
        for shard, images in self._pages.items():
            size = self._sizes[shard]
            files.write(shard, size, ((page, images[page]) for page in sorted(images) if page <= size))
            on_step("page")
        self._pages, self._sizes = {}, {}
