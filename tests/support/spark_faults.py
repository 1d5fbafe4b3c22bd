"""The data source of the tests, with a fault at a chosen place. Spark calls the real one until it fails.

Spark creates these objects in its own processes, so their faults are files in a directory, the option `faults`. A file is removed
when its fault happens, so each happens once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import StructType

from strictq._store.api import Bulk
from strictq.spark.datasource import StrictqDataSource
from strictq.spark.sink import BatchWriter, StreamWriter
from tests.support.warm import STARTED_BY

COPY = "copy of task "
COPY_SECONDS = 300.0


def arm(place: Path, *faults: str) -> dict[str, str]:
    """Let these happen. Return the options of the write."""
    place.mkdir(exist_ok=True)
    for fault in faults:
        (place / fault).touch()
    return {"faults": str(place)}


def fires(place: str, fault: str) -> bool:
    """Return whether it must happen here and now."""
    try:
        os.unlink(os.path.join(place, fault))
    except FileNotFoundError:
        return False
    return True


def die() -> None:
    """End this process like kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_with_the_jvm() -> None:
    """Kill the JVM that this process works for, the driver's or an executor's, and this process too."""
    pid = int(os.environ.get(STARTED_BY, os.getpid()))
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
            os.kill(pid, signal.SIGKILL)
            break
    die()


def task() -> TaskContext:
    """Return the task that runs this."""
    context = TaskContext.get()
    assert context is not None
    return context


def copy_of(place: str) -> Path:
    """Return the file that marks that another attempt of this task has written all its rows."""
    return Path(place) / f"{COPY}{task().partitionId()}"


def wait_for_copy(place: str) -> None:
    """Wait so long that Spark runs the task a second time. Continue when that attempt has finished."""
    until = time.monotonic() + COPY_SECONDS
    while not copy_of(place).exists():
        if time.monotonic() > until:
            (Path(place) / "no copy came").touch()
            return
        time.sleep(0.02)


class Faulty:
    """Faults around the methods of a writer."""

    _faults: str

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self._broken(iterator))  # type: ignore[misc]

    def _broken(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            if fires(self._faults, "task dies"):
                die()
            if fires(self._faults, "task fails"):
                raise OSError("unplugged")
            if fires(self._faults, "executor dies"):
                die_with_the_jvm()
            if fires(self._faults, "task waits"):
                time.sleep(20.0)
            if fires(self._faults, "task waits for its copy"):
                wait_for_copy(self._faults)
        if task().attemptNumber():
            copy_of(self._faults).touch()

    def commit(self, messages: list[WriterCommitMessage | None], *batch: int) -> None:
        put = Bulk.put

        def put_and_die(*args: Any) -> None:
            put(*args)
            if fires(self._faults, "commit dies after a part"):
                die_with_the_jvm()
            if fires(self._faults, "commit fails after a part"):
                raise OSError("unplugged")

        Bulk.put = put_and_die  # type: ignore[method-assign]
        try:
            super().commit(messages, *batch)  # type: ignore[misc]
        finally:
            Bulk.put = put  # type: ignore[method-assign]
        if fires(self._faults, "driver dies after the commit"):
            die_with_the_jvm()
        if fires(self._faults, "commit fails after it"):
            raise OSError("unplugged")


def _without(options: Mapping[str, str]) -> CaseInsensitiveDict:
    rest = CaseInsensitiveDict(options)
    del rest["faults"]
    return rest


class FaultyBatchWriter(Faulty, BatchWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(_without(options), schema, overwrite=overwrite)
        self._faults = options["faults"]


class FaultyStreamWriter(Faulty, StreamWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(_without(options), schema, overwrite=overwrite)
        self._faults = options["faults"]


class FaultySource(StrictqDataSource):
    """`format("faulty")`: "strictq", with the option `faults`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(_without(options))
        self.options = options  # with the faults: both are needed later

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return FaultyBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return FaultyStreamWriter(self.options, schema, overwrite=overwrite)


def left(place: Path) -> list[str]:
    """Return the faults that have not happened."""
    return sorted(p.name for p in place.iterdir() if not p.name.startswith(COPY))
