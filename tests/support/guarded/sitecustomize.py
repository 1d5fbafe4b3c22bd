"""Runs in the Python processes of executors: an access to a file under STRICTQ_FORBIDDEN fails with an error.

Python imports this module by its name at startup. An audit hook sees Python's own file calls; the connection's class sees
SQLite's.
Spark passes its settings of executors to the driver's own Python processes, too. Those are identified by their JVM, and may
access
the files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import apsw

PLACE = os.environ["STRICTQ_FORBIDDEN"]
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Touched(BaseException):
    """Raised on an access. Not an Exception, so that no code handles it by accident."""


def refuse(what: str, paths: tuple[Any, ...]) -> None:
    for path in paths:
        if isinstance(path, bytes | os.PathLike):
            path = os.fsdecode(path)
        if isinstance(path, str) and PLACE in path:
            raise Touched(f"an executor touched the queue's files: {what} {path}")


class Connection(apsw.Connection):
    def __init__(self, filename: str, *args: Any, **kwargs: Any) -> None:
        refuse("SQLite", (filename,))
        super().__init__(filename, *args, **kwargs)


def in_executor() -> bool:
    pid = os.getppid()
    while pid > 1:
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


if in_executor():
    apsw.Connection = Connection  # type: ignore[misc]
    sys.addaudithook(refuse)
