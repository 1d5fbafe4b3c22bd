"""The queues that the server shows: found in its directories, or opened by one of its parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from .._platform.log import log
from .._values.errors import QueueNotFound, StrictqError
from ..opening import open as open_queue
from ..queue import Queue

CATALOG: Final = "queue.db"
"""The file that makes a directory a queue."""
SUFFIX: Final = ".strictq"
PATIENCE: Final = 50
"""After queues were read for the console or for metrics, they are not read for so many times the processor time that it took.

So each of them uses 2 % of a core at most.
"""


def is_queue(directory: Path) -> bool:
    """Return whether a directory is a queue."""
    return (directory / CATALOG).is_file()


class Queues:
    """The queues of one server, by name. Safe to use from several threads.

    A queue is named after its directory, without the suffix .strictq; after its parent directory, too, if two have one name.
    A part that creates queues gives them other names (`name`), and lends those that are only in its memory (`lend`).

    Attributes:
        without_files: returns name, attributes, tags and creation time of the SQS queues that are only in memory.
    """

    def __init__(self, directories: tuple[Path, ...] = ()) -> None:
        self._directories = directories
        self._names: dict[Path, str] = {}
        self._lent: dict[str, Queue] = {}
        self._looks: dict[Path, tuple[tuple[int, int], Queue]] = {}
        self._unreadable: set[Path] = set()
        self._lock = threading.Lock()
        self.without_files: Callable[[], list[dict[str, Any]]] = list

    def name(self, path: Path, name: str) -> None:
        """Show the queue in this directory under this name."""
        self._names[path.absolute()] = name

    def lend(self, name: str, q: Queue) -> None:
        """Show a queue that the caller has open, until `take_back`. Needed for a queue in memory."""
        self._lent[name] = q  # without the lock, which is held while queues are opened: the caller may be the event loop

    def take_back(self, name: str) -> None:
        """End `lend`. The caller may then close the queue."""
        self._lent.pop(name, None)

    def paths(self) -> dict[str, Path]:
        """Return the directory of each queue that is on disk, by name. Queues that were created meanwhile are among them."""
        found: dict[str, Path] = {}
        for path in self._found():
            name = self._names.get(path) or path.name.removesuffix(SUFFIX)
            if name in found:
                name = f"{path.parent.name}/{name}"
            found.setdefault(name, path)
        return found

    def _found(self) -> Iterator[Path]:
        for given in self._directories:
            directory = given.absolute()
            try:
                if is_queue(directory):
                    yield directory
                elif directory.is_dir():
                    yield from sorted(filter(is_queue, directory.iterdir()))
                self._unreadable.discard(directory)
            except OSError as e:  # it was removed meanwhile, or may not be read
                if directory not in self._unreadable:
                    log.warning("the queues in %s are not shown: %s", directory, e)
                self._unreadable.add(directory)

    def found(self) -> dict[str, Path | None]:
        """Return the directory of each queue, by name; None: it was lent. Close those that have disappeared."""
        with self._lock:
            paths = self.paths()
            self._forget(set(paths.values()))
        return {name: paths.get(name) for name in sorted({*paths, *list(self._lent)})}

    def look(self, name: str, found: Mapping[str, Path | None] | None = None) -> Queue:
        """Return a queue to look at: the one that was lent, or its directory opened read-only. Do not close it.

        Args:
            found: what `found` returned, if the caller looks at many queues.
        Raises:
            QueueNotFound: no queue has this name.
            StrictqError: it cannot be opened.
        """
        with self._lock:
            return self._look(name, self.paths() if found is None else found)

    def _look(self, name: str, paths: Mapping[str, Path | None]) -> Queue:
        lent = self._lent.get(name)
        if lent is not None:
            return lent
        path = paths.get(name)
        if path is None:
            raise QueueNotFound(f"there is no queue {name!r} on this server")
        try:
            found = (path / CATALOG).stat()
        except OSError as e:
            raise QueueNotFound(f"there is no queue at {path}") from e
        identity = found.st_dev, found.st_ino
        known = self._looks.get(path)
        if known is not None and known[0] == identity:
            return known[1]
        if known is not None:  # the directory was replaced by another queue
            self._close(path)
        q = open_queue(path, read_only=True)
        self._looks[path] = identity, q
        return q

    def _forget(self, paths: set[Path]) -> None:
        for path in [path for path in self._looks if path not in paths]:
            self._close(path)

    def _close(self, path: Path) -> None:
        with suppress(StrictqError):
            self._looks.pop(path)[1].close()

    def close(self) -> None:
        """Close the queues that `look` opened."""
        with self._lock:
            self._forget(set())
