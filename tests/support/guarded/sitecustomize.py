"""For Python processes of executors: whoever touches a file under STRICTQ_FORBIDDEN fails, and says so.

Python imports this by its name when it starts. Its own file calls are seen by an audit hook, SQLite's by the connection's class.
Spark gives its settings of executors to the driver's own Python processes, too: those are told by their JVM, and may.
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
    """No code handles it by accident."""


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
