"""The protocol of block servers: their addresses, and the format of requests and answers. Shared by clients and servers.

Plain HTTP of the standard library. It is as fast as Arrow Flight, which reads requests of any size into memory
before it checks their token, and cannot use a socket that outlives the server.

Answers to reads are sequences of frames: one byte for the kind, four for the length, and the data.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from typing import Any, Final

import attrs

from .._client import validate
from .._net.transport import address
from .._platform import files
from .._platform.files import real_path
from .._values import hints
from .._values.errors import InvalidArgument, ServerUnreachable

SERVER: Final = "the block server"
"""The server's name in error texts."""
VERSION: Final = "/1/"
BLOCKS: Final = VERSION + "blocks"
SCAN: Final = VERSION + "scan"
STAGED: Final = VERSION + "staged"

HEAD: Final = struct.Struct(">cI")
DATA: Final = b"D"
FAILED: Final = b"F"
END: Final = b"E"
FRAME_BYTES_MAX: Final = 1_100_000_000
"""A block is one value of SQLite, which has at most a billion bytes."""
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a staged file that are sent at a time."""
NUMBER_MAX: Final = 2**62
"""The largest number in a request. No number in a queue is larger, and SQLite stores at most 2**63 - 1."""
ENTRIES_MAX: Final = 100_000
"""The most entries of a list in a request. A task requests fewer ranges."""
TEXT_CHARS_MAX: Final = 1 << 20
_FILE_BYTES_MAX: Final = 1 << 20


@attrs.frozen
class Served:
    """The address and credentials of a block server. Sent to executors with the tasks, and never shown.

    Attributes:
        path: the queue's directory on the server's host.
        authority: the CA certificates (PEM) for the server's; None: no TLS.
        wait_seconds: seconds for which a client tries to reach it.
    """

    path: str
    host: str
    port: int
    token: str = attrs.field(repr=False)
    authority: str | None = attrs.field(repr=False)
    wait_seconds: float

    @property
    def address(self) -> str:
        return address(self.host, self.port)


def find(file: str | None, path: str) -> Served | None:
    """Return the server of the option `server`, which names a file on the driver's host; None: the option is not set.

    The token is in that file, not in an option, because Spark shows options in plans and in its web UI.

    Raises:
        ServerUnreachable: the server was closed, or was never on this host.
        InvalidArgument: the file is not a server's, or the server has another queue.
    """
    if not file:
        return None
    try:
        served = _read(file)
    except FileNotFoundError as e:
        raise ServerUnreachable(f"the block server of {file} is no longer running", file, hint=hints.SERVE_AGAIN) from e
    except (OSError, ValueError, TypeError) as e:
        raise InvalidArgument(f"{file} is not a file of a block server", hint=hints.SERVER_OPTIONS) from e
    if real_path(path) != served.path:
        raise InvalidArgument(
            f"the block server serves {served.path}, not {real_path(path)}",
            hint=hints.SERVER_OPTIONS_PATH,
        )
    return served


def _read(file: str) -> Served:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(fd, "rb") as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        served = json.loads(f.read(_FILE_BYTES_MAX))
    return Served(**served)


def write(file: int, served: Served) -> None:
    """Write the contents for `find` to an open file that only its owner can read."""
    files.write_all(file, json.dumps(attrs.asdict(served)).encode())


# ---- validation of requests, before any look-up


def number(name: str, value: object) -> int:
    """Validate a number in a request.

    Raises:
        InvalidArgument: it is not a whole number from 0 to NUMBER_MAX.
    """
    return validate.whole(name, value, 0, NUMBER_MAX)


def flag(name: str, value: object) -> bool:
    """Validate a boolean in a request.

    Raises:
        InvalidArgument: it is not a boolean.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be true or false, not {type(value).__name__}")
    return value


def text(name: str, value: object) -> str:
    """Validate a text in a request.

    Raises:
        InvalidArgument: it is not a str, or longer than TEXT_CHARS_MAX.
    """
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise InvalidArgument(f"{name} must be a text of at most {TEXT_CHARS_MAX:,} characters")
    return value


def entries(name: str, value: object) -> list[Any]:
    """Validate a list in a request.

    Raises:
        InvalidArgument: it is not a list, or has more than ENTRIES_MAX entries.
    """
    if not isinstance(value, list) or len(value) > ENTRIES_MAX:
        raise InvalidArgument(f"{name} must be a list of at most {ENTRIES_MAX:,} entries")
    return value
