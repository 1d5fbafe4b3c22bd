"""The options `path` and `paths`: one queue, or several by a list or a pattern, and the existing queues among them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import has_magic, iglob
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import attrs

from .._values import hints
from .._values.errors import InvalidArgument

MEMORY: Final = ":memory:"
PATHS_MAX: Final = 10_000
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
CATALOG: Final = "queue.db"
"""The file that every queue's directory has."""
FIRST_SHARD: Final = "shard-0000.db"
"""Another one. An open queue keeps it open, so no other file gets its number."""


@attrs.frozen
class Paths:
    """The paths of a read's queues.

    Attributes:
        listed: absolute paths and patterns.
        many: whether several queues are meant, even if only one exists now.
    """

    listed: tuple[str, ...]
    many: bool

    @property
    def one(self) -> str:
        """The only path.

        Raises:
            InvalidArgument: there are several, or a pattern.
        """
        if self.many:
            raise InvalidArgument("this needs one queue", hint=hints.ONE_PATH)
        return self.listed[0]

    def found(self) -> Iterator[str]:
        """Yield the directories that have a queue's catalog now, in a fixed order, each of them once."""
        seen: set[str] = set()
        for listed in self.listed:
            for path in sorted(iglob(listed, recursive=True)) if is_pattern(listed) else [listed]:
                plain = path.rstrip("/") or path
                if plain not in seen and may_be_queue(plain):
                    seen.add(plain)
                    yield plain

    def missing(self) -> list[str]:
        """Return the listed paths, not the patterns, that have no queue."""
        return [p for p in self.listed if not is_pattern(p) and not may_be_queue(p)]


def may_be_queue(path: str) -> bool:
    """Return whether a directory has a queue's catalog, or can't be read. Opening it then reports the reason."""
    try:
        os.stat(os.path.join(path, CATALOG))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def place_of(path: str, name: str = CATALOG) -> tuple[int, int] | None:
    """Return the identity of a file in a queue's directory; None: there is none."""
    try:
        found = os.stat(os.path.join(path, name))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards and is not the literal name of a directory."""
    return has_magic(path) and not os.path.isdir(path)


def paths_of(options: Mapping[str, str]) -> Paths:
    """Parse the options path and paths.

    Raises:
        InvalidArgument: neither or both are set, or a path is not on this host.
    """
    text, many = options.get("path"), options.get("paths")
    if text and many:
        raise InvalidArgument("the options path and paths are both given", hint=hints.PATH_OR_PATHS)
    given = many or text
    if not given:
        raise InvalidArgument("the option path is missing", hint=hints.OPTION_PATH)
    if many or given.startswith("["):
        listed = _list(given)
        if listed is None and many:
            raise InvalidArgument(f"the option paths must be a JSON list of paths, not {many!r}", hint=hints.PATHS_LIST)
        texts = [given] if listed is None else listed
    else:
        texts = [given]
    if len(texts) > PATHS_MAX:
        raise InvalidArgument(f"the option paths has {len(texts):,} paths, and may have {PATHS_MAX:,}", hint=hints.PATHS_PATTERN)
    plain = tuple(dict.fromkeys(map(_local, texts)))
    return Paths(plain, len(plain) > 1 or is_pattern(plain[0]))


def path_of(options: Mapping[str, str]) -> str:
    """Return the directory of the only queue, absolute.

    Raises:
        InvalidArgument: the options name no path on this host, or several.
    """
    return paths_of(options).one


def is_many(options: Mapping[str, str]) -> bool:
    """Return whether several queues are meant. Invalid options are reported elsewhere."""
    with suppress(InvalidArgument):
        return paths_of(options).many
    return False


def _list(text: str) -> Sequence[str] | None:
    """Parse a JSON list of texts; None: it is something else."""
    try:
        listed: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str) and each for each in listed):
        return None
    return listed


def _local(text: str) -> str:
    if "\0" in text:
        raise InvalidArgument("the option path has a NUL character", hint=hints.OPTION_PATH)
    if text == MEMORY:
        raise InvalidArgument("Spark can't read a queue in memory", hint=hints.ON_DISK)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return os.path.abspath(text)
    uri = urlsplit(text)
    if scheme[1].lower() != "file" or uri.netloc not in ("", "localhost"):
        where = f"{scheme[1]}:" if scheme[1].lower() != "file" else f"the host {uri.netloc}"
        raise InvalidArgument(f"a queue is on a local disk, not at {where}", hint=hints.LOCAL_PATH)
    # "?" is a wildcard here, not the start of a query.
    rest = f"{uri.path}?{uri.query}" if uri.query else uri.path
    return os.path.abspath(unquote(rest))
