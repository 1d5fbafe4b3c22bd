"""The queues of an endpoint: a file of JSON for each, beside the queue's directory, replaced atomically and durably.

A queue is deleted in three steps: its file says so, its directory is removed, its file is removed. What a crash left of that is
finished at the next start.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Final

import attrs

from ..._platform import files
from ..._values import hints
from ..._values.errors import ConfigError, StoreCorrupt
from . import rules
from .rules import Redrive

REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"
SUFFIX: Final = ".sqs.json"
LOCK: Final = ".sqs-server"
ENTRY_BYTES_MAX: Final = 64 << 20
MOVES_KEPT: Final = 10


@attrs.define
class Entry:
    """What is stored about one queue.

    Attributes:
        attributes: those that were set, normalized.
        created, modified: seconds since 1970.
        moves: move tasks of which it is the source, newest first.
        hidden: of a FIFO queue, the table of hidden messages that a clean stop left.
        values: the attributes with defaults; derived.
        redrive: the redrive policy; derived.
    """

    name: str
    attributes: dict[str, str]
    tags: dict[str, str]
    created: int
    modified: int
    moves: list[dict[str, Any]] = attrs.field(factory=list)
    hidden: dict[str, Any] | None = None
    deleted: bool = False
    fifo: bool = attrs.field(init=False)
    values: dict[str, str] = attrs.field(init=False)
    redrive: Redrive | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.fifo = rules.is_fifo(self.name)
        self.derive()

    def derive(self) -> None:
        """Compute what follows from the attributes."""
        self.values = rules.DEFAULTS | (rules.FIFO_DEFAULTS if self.fifo else {}) | self.attributes
        self.redrive = Redrive.of(self.attributes.get("RedrivePolicy"))

    @property
    def arn(self) -> str:
        """The queue's ARN."""
        return arn_of(self.name)

    def number(self, name: str) -> int:
        """Return a numeric attribute."""
        return int(self.values[name])


def arn_of(name: str) -> str:
    """Return the ARN of a queue."""
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


_STORED: Final = ("name", "attributes", "tags", "created", "modified", "moves", "hidden", "deleted")


class Catalogue:
    """The queues of a directory, or of this process's memory. A second endpoint on the directory is refused.

    Attributes:
        entries: by name. Not those that are being deleted.
    """

    def __init__(self, directory: Path | None) -> None:
        """Read the directory.

        Raises:
            ConfigError: another endpoint serves this directory.
            StoreCorrupt: a file can't be read.
        """
        self.directory = directory
        self.entries: dict[str, Entry] = {}
        self._held: files.Lock | None = None
        self._writing = threading.RLock()
        if directory is None:
            return
        with files.typed(f"{directory} can't be used"):
            files.make_directories(directory)
            lock = files.Lock(directory / LOCK)
            if not lock.alone(0.0):
                raise ConfigError(f"another server has {directory} open", hint=hints.ONE_SQS_SERVER)
            self._held = lock
            try:
                self._read(directory)
            except BaseException:
                self.close()
                raise

    def _read(self, directory: Path) -> None:
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            raw = files.content(path, ENTRY_BYTES_MAX)
            try:
                found = json.loads(raw or b"")
                entry = Entry(**{name: found[name] for name in _STORED})
                assert entry.name == path.name.removesuffix(SUFFIX)
            except (ValueError, TypeError, KeyError, AssertionError) as e:
                raise StoreCorrupt(f"{path.name} can't be read", shard=-1, hint=hints.SQS_ENTRY) from e
            if entry.deleted:
                self.remove(entry)
            else:
                self.entries[entry.name] = entry

    def path(self, name: str) -> str:
        """Return what opens a queue: its directory, or ":memory:"."""
        return ":memory:" if self.directory is None else str(self.directory / f"{name}.strictq")

    def find(self, arn: str) -> Entry | None:
        """Return the queue with an ARN."""
        prefix, _, name = arn.rpartition(":")
        return self.entries.get(name) if f"{prefix}:" == arn_of("") else None

    def sources(self, entry: Entry) -> list[str]:
        """Return the names of the queues whose dead letters go to this one."""
        entries = list(self.entries.values())  # a thread may add one meanwhile
        return [other.name for other in entries if other.redrive and other.redrive.target == entry.arn]

    def rows(self) -> list[dict[str, Any]]:
        """Return what the console shows of each queue."""
        entries = list(self.entries.values())
        return [{"name": one.name, "attributes": one.attributes, "tags": one.tags, "created": one.created} for one in entries]

    def save(self, entry: Entry) -> None:
        """Store an entry, durably. If that fails, `entry` is not stored, and is in `entries` only if it was."""
        with self._writing:
            self._save(entry)

    def _save(self, entry: Entry) -> None:
        if self.directory is not None:
            stored = attrs.asdict(entry, filter=lambda a, _: a.name in _STORED)
            data = json.dumps(stored, separators=(",", ":")).encode()
            with files.typed(f"{entry.name} can't be stored"):
                files.replace_durably(self._file(entry), data)
        if not entry.deleted:
            self.entries[entry.name] = entry

    def change(self, entry: Entry, **changes: Any) -> None:
        """Change an entry and store it. If it can't be stored, nothing is changed."""
        with self._writing:
            old = {name: getattr(entry, name) for name in changes}
            self._set(entry, changes)
            try:
                self._save(entry)
            except BaseException:
                self._set(entry, old)
                raise

    @staticmethod
    def _set(entry: Entry, changes: dict[str, Any]) -> None:
        for name, value in changes.items():
            setattr(entry, name, value)
        entry.derive()

    def remove(self, entry: Entry) -> None:
        """Remove the files of a queue that is stored as deleted, and that is closed."""
        if self.directory is not None:
            files.remove_tree(self.path(entry.name))
            with files.typed(f"{entry.name} can't be deleted"):
                os.unlink(self._file(entry))
                files.sync_directory(self.directory)

    def _file(self, entry: Entry) -> Path:
        assert self.directory is not None
        return self.directory / f"{entry.name}{SUFFIX}"

    def close(self) -> None:
        """Let another endpoint serve the directory."""
        if self._held is not None:
            self._held.leave()
            self._held = None
