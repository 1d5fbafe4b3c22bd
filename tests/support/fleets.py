"""Fleets of queues, and a substitute for Spark's micro-batch loop that can be killed anywhere. It is fast: it starts no JVM.

It calls a stream reader in Spark's documented order (latestOffset, log offsets, commit the previous batch, partitions, read,
sink, log the commit), keeps its checkpoint as JSON text, and has a sink in which a batch number replaces earlier rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strictq
from strictq import Queue
from tests.support.ledgers import bodies

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

Row = tuple[str, str, int, str]
"""Queue, key, seq, body."""


class Killed(Exception):
    """The driver dies here."""


def make(place: Path, names: Iterable[str], shards: int = 1) -> dict[str, Queue]:
    """Create queues in a directory, open for sending."""
    return {name: strictq.open(place / name, shards=shards, durability="process") for name in names}


class Loop:
    """A query over processes that die. Each `process()` starts a new one with the same checkpoint.

    Attributes:
        offsets: the checkpoint's log; commits: the number of batches that it has committed.
        sink: batch number → rows.
    """

    def __init__(self, paths: Any, **options: Any) -> None:
        many = isinstance(paths, list)
        self.options: dict[str, Any] = {"consumer": "etl", "paths" if many else "path": json.dumps(paths) if many else paths}
        self.options |= {name: str(value) for name, value in options.items()}
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, list[Row]] = {}
        self.reader: Any = None
        self._limit: ReadLimit | None = None

    # ---- one process

    def process(self, *, available_now: bool = False) -> None:
        """Start a new process."""
        from pyspark.sql.datasource import CaseInsensitiveDict

        from strictq.spark.datasource import StrictqDataSource

        self.kill()
        source = StrictqDataSource(CaseInsensitiveDict(self.options))
        self.reader = source.streamReader(source.schema())
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._limit = self.reader.getDefaultReadLimit()

    def kill(self) -> None:
        """Discard the process. What it held is free, as after its death."""
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    def _start(self, batch: int) -> Any:
        return json.loads(self.offsets[batch - 1]) if batch else self.reader.initialOffset()

    def step(self, die: str = "") -> bool:
        """Run the next batch, or the unfinished one. Return False if there is nothing to do.

        Args:
            die: "planned" (before the offset is logged), "logged", "read", "written" (by the sink, before Spark's commit).
        """
        batch = self.commits
        start = self._start(batch)
        if len(self.offsets) == batch:
            end = self.reader.latestOffset(start, self._limit)
            self._die(die, "planned")
            if json.dumps(end) == json.dumps(start):
                return False
            self.offsets.append(json.dumps(end))
            self._die(die, "logged")
            if batch:
                self.reader.commit(json.loads(self.offsets[batch - 1]))
        rows: list[Row] = []
        for task in self.reader.partitions(start, json.loads(self.offsets[batch])):
            for found in self.reader.read(task):
                columns = [found.column(name).to_pylist() if name in found.schema.names else [""] * len(found)
                           for name in ("queue", "key", "seq", "body")]  # fmt: skip
                rows += ((q, k, s, b.decode()) for q, k, s, b in zip(*columns, strict=True))
        self._die(die, "read")
        if batch in self.sink:
            assert sorted(self.sink[batch]) == sorted(rows), f"batch {batch} came again with other rows"
        self.sink[batch] = rows
        self._die(die, "written")
        self.commits += 1
        return True

    @staticmethod
    def _die(wanted: str, here: str) -> None:
        if wanted == here:
            raise Killed(here)

    def run(self) -> None:
        """Process everything that is available, in a new process."""
        self.process(available_now=True)
        while self.step():
            pass
        if self.offsets:
            self.reader.commit(json.loads(self.offsets[-1]))
        self.kill()

    def lose(self, batches: int) -> None:
        """Drop the newest files of the checkpoint, as a power cut does."""
        self.offsets = self.offsets[: max(1, len(self.offsets) - batches)]
        self.commits = min(self.commits, len(self.offsets))

    # ---- the results

    def chains(self) -> dict[tuple[str, str], list[str]]:
        """Return bodies by queue and key, in the order of the batches."""
        found: dict[tuple[str, str], list[str]] = {}
        for batch in sorted(self.sink):
            for queue, key, _, body in self.sink[batch]:
                found.setdefault((queue, key), []).append(body)
        return found

    def require(self, sent: dict[tuple[str, str], int]) -> None:
        """Require every message of these chains exactly once, each chain in its order."""
        found = self.chains()
        assert found.keys() == {each for each, n in sent.items() if n}, "queues or keys"
        for (queue, key), count in sent.items():
            if count:
                assert found[queue, key] == [b.decode() for b in bodies(key, count)], f"the chain of {key} of {queue} is broken"
