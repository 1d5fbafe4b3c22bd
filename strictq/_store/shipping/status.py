"""What the shipper of a queue publishes for every process: its progress, and its errors.

The lock file holds a few bytes: the queue time up to which everything is at the target, written after every round, and the
hashes of the last segments that were put from this directory. The rest changes with a segment or an error, and has its own file.
The target determines where to continue. The hashes only show whether it was this directory that shipped there last.
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from ..._platform import files
from ..._values.errors import StoreError
from ..disk import layout

STATUS_BYTES_MAX: Final = 1 << 16
_X: Final = struct.Struct(">q")
_HASH_BYTES: Final = 32
_HASHES: Final = 2
"""The last two hashes: a process may be killed before or after it puts a segment."""


@attrs.frozen
class ShipStatus:
    """The state of shipping.

    Attributes:
        history_id: of the queue. A status of another history is ignored.
        segment: the number of the newest segment; -1: there is none.
        wall: the wall time of its cut, microseconds; 0: there is none.
        captured: for each shard, the salts of its WAL and the number of its frames at the target.
        error: the last failure, if the last attempt failed.
        stopped: shipping has ended until it is configured again.
        lapsed: the WAL is no longer kept for the target, because it was unreachable for too long.
    """

    history_id: str
    segment: int = -1
    wall: int = 0
    captured: tuple[tuple[str, int], ...] = ()
    error: str = ""
    stopped: bool = False
    lapsed: bool = False

    def write(self, directory: Path) -> None:
        """Publish the status. Not synced; errors are ignored."""
        with suppress(OSError, StoreError):
            files.replace(directory / layout.SHIP_STATUS, json.dumps(attrs.asdict(self)).encode())

    @classmethod
    def read(cls, directory: Path, history_id: str) -> ShipStatus:
        """Return the published status of this history."""
        raw = files.content(directory / layout.SHIP_STATUS, STATUS_BYTES_MAX)
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            values = json.loads(raw or b"{}")
            values["captured"] = tuple((str(salts), int(frames)) for salts, frames in values["captured"])
            found = cls(**values)
            if found.history_id == history_id:
                return found
        return cls(history_id)


class ShipProgress:
    """The progress of shipping, in the lock file.

    A copy of the directory has its own copy, which does not follow the original.
    """

    def __init__(self, directory: Path) -> None:
        self._fd = files.open_regular(directory / layout.SHIP_LOCK, os.O_RDWR | os.O_CREAT)

    def write(self, x: int) -> None:
        with suppress(OSError):
            os.pwrite(self._fd, _X.pack(x), 0)

    def attempt(self, n: int, digest: str) -> None:
        """Record that segment `n` with this hash is put next."""
        with suppress(OSError):
            os.pwrite(self._fd, bytes.fromhex(digest), _X.size + n % _HASHES * _HASH_BYTES)

    def last_attempt(self, n: int) -> str:
        """Return the hash of segment `n`, if it was one of the last put from this directory, and otherwise another one."""
        return os.pread(self._fd, _HASH_BYTES, _X.size + n % _HASHES * _HASH_BYTES).hex()

    def close(self) -> None:
        os.close(self._fd)

    @staticmethod
    def read(directory: Path) -> int:
        """Return the progress in queue time; 0: nothing was shipped yet."""
        raw = files.content(directory / layout.SHIP_LOCK, _X.size)
        x: int = _X.unpack(raw)[0] if raw is not None and len(raw) == _X.size else 0
        return x
