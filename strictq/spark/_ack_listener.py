"""Acks what Spark has committed as soon as the driver hears of it: the last batch of a query, above all.

Spark itself tells a source only when the batch after it is built, so what a stopped query did last would stay leased until
it starts again. Imported late, with pyspark.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.sql.streaming.listener import StreamingQueryListener

from .._consumers import acknowledge
from .._errors import StrictqError
from ..opening import open as open_queue
from ._monitor import Monitor, Read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger("strictq")
_sessions: WeakSet[SparkSession] = WeakSet()


def listen(spark: SparkSession) -> None:
    """Add the listener to a session, once."""
    if spark not in _sessions:
        spark.streams.addListener(AckListener())
        _sessions.add(spark)


class AckListener(StreamingQueryListener):
    """Runs in the driver, on a thread of Spark's. It raises nothing: a batch that it can't ack is acked by the next start.

    What it hears is reported, too: `q.consumers()` and `strictq stats` show it.
    """

    def __init__(self) -> None:
        self._monitor = Monitor()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is committed: ack what it read."""
        progress = event.progress
        read: list[Read] = []
        for source in progress.sources:
            offset = _offset(source.endOffset)
            if offset is None:
                continue
            read.append(Read(offset["path"], offset["queue"], offset["consumer"], source.numInputRows))
            if source.numInputRows == 0:
                continue
            try:
                with open_queue(offset["path"], create=False) as queue:
                    if queue.queue_id == offset["queue"]:
                        acknowledge(queue._storage, offset["consumer"], offset["n"])
            except StrictqError as e:
                _log.warning("batch %s of consumer %s is not acked yet: %s", progress.batchId, offset["consumer"], e)
        if read:
            seconds = progress.batchDuration / 1000
            self._monitor.batch(str(progress.runId), str(progress.id), progress.name, progress.batchId, seconds, read)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new is committed; the query is alive."""
        self._monitor.idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its last progress was told before."""
        self._monitor.end(str(event.runId), event.exception)


def _offset(text: Any) -> dict[str, Any] | None:
    """An offset of ours; None: it is another source's."""
    try:
        offset = json.loads(text)
    except (TypeError, ValueError):
        return None
    if not isinstance(offset, dict) or offset.keys() - {"history"} != {"queue", "consumer", "after", "n", "path"}:
        return None
    return offset
