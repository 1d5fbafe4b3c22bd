"""A disk that can lose power: it has everything that was synced, and any part of everything else.

The model is the weakest that journalling file systems promise. Data becomes durable by a sync of its file, a name by a sync of
its directory. Names of one file system become durable in the order in which they changed (metadata is journalled). Data of
unsynced writes becomes durable in any order, sector by sector, or as garbage.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final, Literal

import attrs

SECTOR: Final = 512
ROOT: Final = 0
Mode = Literal["none", "all", "prefix", "subset", "torn", "sectors", "garbage"]
MODES: Final[tuple[Mode, ...]] = ("none", "all", "prefix", "subset", "torn", "sectors", "garbage")


@attrs.frozen(slots=True)
class Op:
    """One entry of the journal.

    `kind` is a change of the disk (write, truncate, sync, lost, link, unlink, rename, syncdir), or a note between changes.
    `file` is the number of the changed file or directory. For a link, `at` is 1 if it names a directory.
    """

    kind: str
    file: int = -1
    at: int = 0
    data: bytes = b""
    name: str = ""
    other: int = -1
    other_name: str = ""


SHM_BYTES: Final = 32768
NONSENSE_SHARE: Final = 0.2
"""How often SQLite's shared memory is full of garbage instead of missing."""
DATA: Final = frozenset({"write", "truncate"})
NAMES: Final = frozenset({"link", "unlink", "rename"})


class Disk:
    """Contents of files and directories by number. A fork shares what neither side has changed."""

    def __init__(self) -> None:
        self.files: dict[int, bytes | bytearray] = {}
        self.directories: dict[int, dict[str, int]] = {ROOT: {}}
        self._own: set[int] = set()

    def fork(self) -> Disk:
        """Return a copy."""
        fork = Disk()
        fork.files = {n: bytes(data) if isinstance(data, bytearray) else data for n, data in self.files.items()}
        self.files = dict(fork.files)
        self._own = set()
        fork.directories = {n: dict(names) for n, names in self.directories.items()}
        return fork

    def apply(self, op: Op) -> None:
        """Do what an entry of the journal says."""
        if op.kind == "write":
            self.write(op.file, op.at, op.data)
        elif op.kind == "truncate":
            data = self._writable(op.file)
            if op.at < len(data):
                del data[op.at :]
            else:
                data.extend(bytes(op.at - len(data)))
        elif op.kind == "link":
            self.directories.setdefault(op.file, {})[op.name] = op.other
            if op.at:
                self.directories.setdefault(op.other, {})
        elif op.kind == "unlink":
            self.directories.setdefault(op.file, {}).pop(op.name, None)
        elif op.kind == "rename":
            names = self.directories.setdefault(op.file, {})
            names.pop(op.name, None)
            names[op.other_name] = op.other

    def write(self, file: int, at: int, part: bytes) -> None:
        data = self._writable(file)
        if len(data) < at:
            data.extend(bytes(at - len(data)))
        data[at : at + len(part)] = part

    def _writable(self, file: int) -> bytearray:
        data = self.files.get(file, b"")
        if file in self._own:
            assert isinstance(data, bytearray)
            return data
        own = self.files[file] = bytearray(data)
        self._own.add(file)
        return own

    def put_out(self, place: Path, directory: int = ROOT) -> None:
        """Write everything that has a name to a real directory."""
        place.mkdir(mode=0o700, exist_ok=True)
        for name, number in self.directories.get(directory, {}).items():
            if number in self.directories:
                self.put_out(place / name, number)
            else:
                (place / name).write_bytes(self.files.get(number, b""))

    def take_in(self, place: Path, directory: int = ROOT, first: int = 1) -> int:
        """Read a real directory, with numbers from `first`. Return the next free number."""
        for entry in sorted(place.iterdir()):
            if entry.name.endswith("-shm"):
                continue  # no disk keeps it over a reboot
            number, first = first, first + 1
            self.directories[directory][entry.name] = number
            if entry.is_dir():
                self.directories[number] = {}
                first = self.take_in(entry, number, first)
            else:
                self.files[number] = entry.read_bytes()
        return first

    def file(self, directory: int, name: str) -> bytes | bytearray | None:
        """Return a file's content. None: no file has that name."""
        number = self.directories[directory].get(name)
        return None if number is None else self.files.get(number, b"")

    def contents(self, directory: int, *names: str) -> tuple[int | None, ...]:
        """Return values that are equal if these files of a directory are equal, within this process."""
        found = [self.file(directory, name) for name in names]
        return tuple(None if data is None else hash(bytes(data)) for data in found)

    def freeze(self) -> None:
        """Make the contents immutable, so that they are hashed only once."""
        for number in self._own:
            self.files[number] = bytes(self.files[number])
        self._own.clear()

    def names(self) -> frozenset[tuple[int, str]]:
        return frozenset((n, name) for n, names in self.directories.items() for name in names)

    def fingerprint(self) -> int:
        """Return a value that is equal for equal contents, within this process."""
        return hash((
            frozenset((n, bytes(data)) for n, data in self.files.items() if data),
            frozenset((n, frozenset(names.items())) for n, names in self.directories.items()),
        ))  # fmt: skip


class Platter:
    """Follows a journal: what is durable, and what is written but not synced."""

    def __init__(self, start: Disk) -> None:
        self.durable = start.fork()
        self.pending: list[Op] = []

    def follow(self, op: Op) -> None:
        """Apply one more entry."""
        if op.kind in DATA or op.kind in NAMES:
            self.pending.append(op)
        elif op.kind == "sync":
            self._settle(lambda p: p.kind in DATA and p.file == op.file)
        elif op.kind == "lost":
            # After a failed sync the kernel reports it once, and considers written what it could not write.
            self.pending = [p for p in self.pending if p.kind not in DATA or p.file != op.file]
        elif op.kind == "syncdir":
            self._settle(lambda p: p.kind in NAMES and p.file == op.file)

    def _settle(self, durable: object) -> None:
        assert callable(durable)
        rest = []
        for p in self.pending:
            if durable(p):
                self.durable.apply(p)
            else:
                rest.append(p)
        self.pending = rest

    def cut(self, mode: Mode, chance: random.Random) -> Disk:
        """Return a possible state after a power cut now."""
        disk = self._cut(mode, chance)
        disk.freeze()
        return disk

    def _cut(self, mode: Mode, chance: random.Random) -> Disk:
        disk = self.durable.fork()
        data = [p for p in self.pending if p.kind in DATA]
        names = [p for p in self.pending if p.kind in NAMES]
        if mode == "all":
            for op in self.pending:
                disk.apply(op)
            return disk
        if mode == "none":
            return disk
        for op in names[: chance.randint(0, len(names))]:
            disk.apply(op)
        if mode in ("prefix", "torn"):
            last = chance.randint(0, len(data))
            for op in data[:last]:
                disk.apply(op)
            if mode == "torn" and last < len(data):
                _tear(disk, data[last], chance)
        elif mode == "subset":
            share = chance.random()
            for op in data:
                if chance.random() < share:
                    disk.apply(op)
        else:
            share = chance.choice((0.05, 0.5, 0.95, chance.random()))
            for op in data:
                _scatter(disk, op, share, chance, garbage=mode == "garbage")
        return disk


def put_out(disk: Disk, place: Path, chance: random.Random) -> None:
    """Write the image to a real directory.

    SQLite's shared memory is worthless after a reboot: sometimes it is full of garbage.
    """
    shutil.rmtree(place, ignore_errors=True)
    disk.put_out(place)
    if chance.random() < NONSENSE_SHARE:
        for file in place.glob("**/shard-????.db"):
            Path(f"{file}-shm").write_bytes(chance.randbytes(SHM_BYTES))


def _tear(disk: Disk, op: Op, chance: random.Random) -> None:
    """Apply only the first sectors of a write, or only the last ones."""
    if op.kind != "write" or len(op.data) <= SECTOR:
        return
    middle = chance.randrange(SECTOR, len(op.data), SECTOR)
    if chance.random() < 0.7:
        disk.write(op.file, op.at, op.data[:middle])
    else:
        disk.write(op.file, op.at + middle, op.data[middle:])


def _scatter(disk: Disk, op: Op, share: float, chance: random.Random, *, garbage: bool) -> None:
    """Apply a part of a write's sectors. The others may become garbage or zeros, over whatever was durable there."""
    if op.kind != "write":
        if chance.random() < share:
            disk.apply(op)
        return
    for start in range(0, len(op.data), SECTOR):
        part = op.data[start : start + SECTOR]
        if chance.random() >= share:
            if not garbage or chance.random() < 0.3:
                continue
            part = bytes(len(part)) if chance.random() < 0.5 else chance.randbytes(len(part))
        disk.write(op.file, op.at + start, part)
