"""The demo's events: made here, or read from a file of JSON lines. Both can be read again, for the verification."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Protocol

import attrs

from strictq._config import QueueConfig
from strictq.demo.rows import BadInput, key_in, row_of

LONGEST: Final = QueueConfig().max_body_bytes
GZIP_MAGIC: Final = b"\x1f\x8b"
CHAIN_GUESS: Final = ("old", "new")

__all__ = ["BadInput", "Chain", "Event", "FileEvents", "LedgerEvents", "Source", "canonical"]


@attrs.frozen
class Event:
    """One event as it is sent.

    Attributes:
        line: its line in the file, from 1; for made events its number.
        key: the order parameter.
        body: the line itself.
    """

    line: int
    key: str | int
    body: bytes


@attrs.frozen
class Chain:
    """Two fields that tie each event of a key to the one before it: its `old` is the other's `new`.

    Attributes:
        first: what `old` is in the first event of every key, as `canonical` writes it; None: it differs between keys.
    """

    old: str
    new: str
    first: str | None = None

    def links(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """What this row follows, and what the next row of its key must follow."""
        return canonical(row[self.old]), canonical(row[self.new])


class Source(Protocol):
    """Events in order; iterating again gives the same ones."""

    @property
    def name(self) -> str:
        """What the events are, for a person."""
        ...

    @property
    def count(self) -> int:
        """How many events there are."""
        ...

    @property
    def keys(self) -> int:
        """How many keys they have."""
        ...

    @property
    def chain(self) -> Chain | None:
        """The chain that a consumer can check, if the events have one."""
        ...

    def __iter__(self) -> Iterator[Event]: ...


def canonical(value: Any) -> str:
    """A JSON value as text: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@attrs.frozen
class LedgerEvents:
    """Entries of bank accounts. Each carries the balance before and after it, so a lost, doubled or swapped one shows.

    Every account has at least one entry if there are enough; the rest falls on few accounts mostly, as in real life.
    """

    count: int
    keys: int
    seed: int = 1
    name: str = "account ledgers made for this demo"
    chain: Chain | None = Chain("before", "after", first="0")

    @classmethod
    def make(cls, count: int, keys: int, seed: int = 1) -> LedgerEvents:
        """`count` entries over `keys` accounts, or over `count` accounts if that is less."""
        return cls(count, min(count, keys), seed)

    def __iter__(self) -> Iterator[Event]:
        rng = random.Random(self.seed)
        balances = [0] * self.keys
        entries = [0] * self.keys
        for line in range(1, self.count + 1):
            i = line - 1 if line <= self.keys else int(self.keys * rng.random() ** 3)
            before = balances[i]
            amount = rng.randint(1, 90_000) if before < 10_000 else rng.choice((-1, 1)) * rng.randint(1, before)
            balances[i] = before + amount
            entries[i] += 1
            account = f"account-{i + 1:04d}"
            row = {"account": account, "entry": entries[i], "before": before, "amount": amount, "after": balances[i]}
            yield Event(line, account, json.dumps(row, separators=(",", ":")).encode())


@attrs.frozen
class FileEvents:
    """The rows of a file of JSON objects, one a line, plain or gzip. Make it with `scan`, which reads it all once.

    Attributes:
        last_line: rows after it, added since the scan, are ignored.
    """

    path: Path
    key_field: str
    name: str
    count: int
    keys: int
    chain: Chain | None
    last_line: int

    @classmethod
    def scan(cls, path: Path, key_field: str, chain: tuple[str, str] | None = None) -> FileEvents:
        """Read the file once and check every row.

        Args:
            key_field: the field that holds the key, a string or a whole number.
            chain: the names of two fields; None: `old` and `new` are used where every row has them and they do chain.
        Raises:
            BadInput: the file or one of its rows cannot be used; nothing was sent.
        """
        if not path.exists():
            raise BadInput(f"{path}: no such file")
        if not path.is_file():
            raise BadInput(f"{path}: not a regular file; the demo reads it twice")
        links = _Links(*(chain or CHAIN_GUESS), required=chain is not None)
        keys: set[str | int] = set()
        count = line = 0
        for line, raw in _lines(path):
            try:
                row = row_of(raw, LONGEST)
                key = key_in(row, key_field)
                links.follow(line, key, row)
            except BadInput as e:
                raise BadInput(f"{path}: line {line}: {e}") from None
            keys.add(key)
            count += 1
        if not count:
            raise BadInput(f"{path}: there are no events in it")
        return cls(path, key_field, path.name, count, len(keys), links.chain(), line)

    def __iter__(self) -> Iterator[Event]:
        for line, raw in _lines(self.path):
            if line > self.last_line:
                return
            yield Event(line, key_in(row_of(raw, LONGEST), self.key_field), raw)


class _Links:
    """Follows the chain of every key through a file."""

    def __init__(self, old: str, new: str, *, required: bool) -> None:
        self._chain = Chain(old, new)
        self._required = required
        self._holds = True
        self._last: dict[str | int, tuple[str, int]] = {}
        self._firsts: set[str] = set()

    def follow(self, line: int, key: str | int, row: Mapping[str, Any]) -> None:
        if not self._holds:
            return
        problem = self._follow(line, key, row)
        if problem and self._required:
            raise BadInput(problem)
        self._holds = not problem

    def _follow(self, line: int, key: str | int, row: Mapping[str, Any]) -> str | None:
        for field in (self._chain.old, self._chain.new):
            if field not in row:
                return f"there is no field {field!r}"
        old, new = self._chain.links(row)
        before = self._last.get(key)
        self._last[key] = (new, line)
        if before is None:
            if len(self._firsts) < 2:
                self._firsts.add(old)
            return None
        expected, where = before
        if old != expected:
            return f"the chain is broken: {self._chain.old!r} is {old}, but line {where} left key {key!r} at {expected}"
        return None

    def chain(self) -> Chain | None:
        if not self._holds:
            return None
        first = next(iter(self._firsts)) if len(self._firsts) == 1 else None
        return attrs.evolve(self._chain, first=first)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line) without the line's end; blank lines are left out."""
    line = 0
    try:
        with _open(path) as f:
            for line, raw in enumerate(f, 1):
                if text := raw.strip():
                    yield line, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise BadInput(f"{path}: line {line + 1}: the gzip data is damaged: {e}") from None
    except OSError as e:
        raise BadInput(f"{path}: {e.strerror or e}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    f = path.open("rb")
    magic = f.read(len(GZIP_MAGIC))
    f.seek(0)
    if magic != GZIP_MAGIC:
        return f
    f.close()
    return gzip.open(path, "rb")
