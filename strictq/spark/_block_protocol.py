"""A block server as its clients know it: where it is, and what travels between them. Both sides stand on this module.

Plain HTTP of the standard library. It serves as fast as Arrow Flight does, which takes requests of any size into memory
before it looks at their token, and can't be handed a socket that outlives the server.

What is read comes as frames: a byte that says the kind, four that say the length, and the data.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from typing import Any, Final

import attrs

from .. import _hints as hints
from .. import _validate as validate
from .._errors import InvalidArgument, ServerUnreachable
from .._net.transport import address

SERVER: Final = "the block server"
"""In messages."""
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
"""Of a staged file, sent at a time."""
NUMBER_MAX: Final = 2**62
"""Of any number in a request: greater ones stand nowhere in a queue, and SQLite has room for no more than 2**63 - 1."""
ENTRIES_MAX: Final = 100_000
"""Of a list in a request. A task asks for fewer ranges."""
TEXT_CHARS_MAX: Final = 1 << 20
_FILE_BYTES_MAX: Final = 1 << 20


@attrs.frozen
class Served:
    """How to reach a block server. It travels to executors with the tasks, and is never shown.

    Attributes:
        path: the queue's directory on the server's host.
        authority: certificates (PEM) that vouch for the server's; None: no TLS.
        wait_seconds: how long a client tries to reach it.
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
    """The server that the option `server` names, which is a file of the driver's host; None: there is none.

    The token stands in that file and not in an option, because Spark shows options in plans and in its web pages.

    Raises:
        ServerUnreachable: the server has been closed, or was never on this host.
        InvalidArgument: that is no such file, or the server is another queue's.
    """
    if not file:
        return None
    try:
        served = _read(file)
    except FileNotFoundError as e:
        raise ServerUnreachable(f"the block server of {file} is no longer running", file, hint=hints.SERVE_AGAIN) from e
    except (OSError, ValueError, TypeError) as e:
        raise InvalidArgument(f"{file} is not a file of a block server", hint=hints.SERVER_OPTIONS) from e
    if os.path.realpath(path) != served.path:
        raise InvalidArgument(
            f"the block server serves {served.path}, not {os.path.realpath(path)}",
            hint=hints.SERVER_OPTIONS_PATH,
        )
    return served


def _read(file: str) -> Served:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(fd, "rb") as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        told = json.loads(f.read(_FILE_BYTES_MAX))
    return Served(**told)


def write(file: int, served: Served) -> None:
    """Write what `find` reads into an open file that nobody else may read."""
    rest = memoryview(json.dumps(attrs.asdict(served)).encode())
    while rest:
        rest = rest[os.write(file, rest) :]


# ---- what a request says, checked before anything is looked up with it


def number(name: str, value: object) -> int:
    """A number of a request.

    Raises:
        InvalidArgument: it is not a whole number from 0 to NUMBER_MAX.
    """
    return validate.whole(name, value, 0, NUMBER_MAX)


def flag(name: str, value: object) -> bool:
    """A truth value of a request.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be true or false, not {type(value).__name__}")
    return value


def text(name: str, value: object) -> str:
    """A text of a request.

    Raises:
        InvalidArgument: it is none, or longer than TEXT_CHARS_MAX.
    """
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise InvalidArgument(f"{name} must be a text of at most {TEXT_CHARS_MAX:,} characters")
    return value


def entries(name: str, value: object) -> list[Any]:
    """A list of a request.

    Raises:
        InvalidArgument: it is none, or has more than ENTRIES_MAX entries.
    """
    if not isinstance(value, list) or len(value) > ENTRIES_MAX:
        raise InvalidArgument(f"{name} must be a list of at most {ENTRIES_MAX:,} entries")
    return value
