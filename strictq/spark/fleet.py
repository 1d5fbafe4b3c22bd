"""Several queues as one stream. A batch has a recorded batch of each queue with ready messages. Imported late, with pyspark.

An offset has the id and the position of each queue. See docs/explanation/spark.md for the reasoning.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .._values import hints
from .._values.errors import QueueNotFound, RecordedBatchGone
from ._members import FleetMembers, Member
from ._opened import settle
from ._options import StreamOptions
from ._plain import OFFSET_METHODS, plain
from ._recorded_batches import RECORDED_BATCH_MESSAGES_MAX
from ._shown import BODY, RowView
from .source import REPORT_SHARE, Blocks, recorded

if TYPE_CHECKING:
    from pyarrow import RecordBatch

IDLE_SHARE: Final = 3
"""Polls that find nothing take at most 1/(IDLE_SHARE + 1) of the time, because Spark polls every 12 ms."""
SHOWN_MAX: Final = 100
"""The most queues in a report: those with the greatest lags."""

Entry = dict[str, Any]
"""The entry of one queue in an offset. Its last batch begins after `after` and ends with `n`."""


@attrs.frozen
class FleetPosition:
    """The position of a fleet's stream.

    Attributes:
        line: the identifier of the checkpoint; None: it has no batch yet.
        round: number of its newest batch, ascending. The queues' batches are marked with line and round.
        queues: queue id → entry, for the queues that had a batch. Each has the number after which the queue begins (`begins`).
    """

    line: str | None
    round: int
    queues: Mapping[str, Entry]

    @classmethod
    def of(cls, offset: Mapping[str, Any], consumer: str) -> FleetPosition:
        """Return the position of an offset. A stream of one queue may have become a fleet's.

        Raises:
            RecordedBatchGone: the offset belongs to another consumer.
        """
        if offset.get("consumer") != consumer:
            raise RecordedBatchGone(
                f"the checkpoint is of consumer {offset.get('consumer')!r}, and this is {consumer!r}", hint=hints.OWN_CHECKPOINT
            )
        if "queues" in offset:
            return cls(offset["line"], int(offset["round"]), offset["queues"])
        return cls(None, 0, {offset["queue"]: {k: v for k, v in offset.items() if k not in ("queue", "consumer")}})

    def offset(self, consumer: str) -> dict[str, Any]:
        """Return the offset in the form that Spark stores."""
        return {"consumer": consumer, "line": self.line, "round": self.round, "queues": dict(self.queues)}

    def mark(self, begins: int) -> str:
        """Return what is stored in a queue's batch that is recorded with this one.

        Args:
            begins: the number after which the queue begins in this checkpoint.
        """
        return f"{self.line}/{self.round}/{begins}"

    def recorded(self, mark: str) -> tuple[int, int]:
        """Return the batch of this checkpoint with which a queue's batch was recorded, and after which number the queue begins.

        0, 0: another checkpoint recorded it.
        """
        line, *numbers = mark.split("/")
        if line != self.line or len(numbers) != 2:
            return 0, 0
        return int(numbers[0]), int(numbers[1])


@attrs.frozen
class FleetBlocks(InputPartition):
    """The blocks of some queues that one task reads, in order.

    Attributes:
        blocks: each with the value of the column path.
    """

    blocks: tuple[tuple[str, Blocks], ...]


@plain(*OFFSET_METHODS, "read")
class FleetReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements `spark.readStream.format("strictq")` for a list or a pattern of paths."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = options
        self._schema = schema
        self._line = secrets.token_hex(8)
        self._now = False
        self._behind: set[str] = set()
        """Queues that may have recorded more batches than Spark knows."""
        self._gone: dict[str, str] = {}
        """Queues of the checkpoint that are not found: id → path."""
        self._idle_until = 0.0
        self._report_at = 0.0
        self._reported: dict[str, Any] | None = None

    @cached_property
    def _options(self) -> StreamOptions:
        """The options, validated at the first use, as for one queue."""
        return StreamOptions.of(self._given, self._schema)

    @cached_property
    def _members(self) -> FleetMembers:
        return FleetMembers(self._options, self._schema)

    # ---- offsets

    def _all(self) -> list[Member]:
        return list(self._members.by_id.values())

    def initialOffset(self) -> dict[str, Any]:
        # Spark does not store it: each queue's start is determined when it has its first batch.
        return FleetPosition(None, 0, {}).offset(self._options.consumer)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._now = True
        self._members.find()

        def bound(member: Member) -> None:
            member.reader._arrived = member.held.arrived()
            member.bounded = True

        for chunk in self._members.chunks(self._all()):
            self._members.each(chunk, bound)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else RECORDED_BATCH_MESSAGES_MAX
        at = FleetPosition.of(start, self._options.consumer)
        began = time.monotonic()
        if began < self._idle_until and not self._now:
            return start
        self._members.find()
        self._look_for_gone(at)
        members = [m for m in self._all() if m.bounded or not self._now]
        # A process that died may have recorded batches that Spark lost or never knew, also one of another query before a queue
        # joined. They are delivered first, unchanged, and not together with new ones.
        for chunk in self._members.chunks([m for m in members if not m.examined]):
            behind = self._members.each(chunk, lambda m: self._is_behind(at, m))
            self._behind |= {name for name, is_behind in behind.items() if is_behind}
            for member in chunk:
                member.examined = True
        if self._behind:
            again = [m for m in members if m.queue_id in self._behind and m.last > self._number(at, m)]
            if again:
                return self._again(at, again).offset(self._options.consumer)
            self._behind.clear()
        chunks = self._members.chunks(members)
        for chunk in chunks:
            if len(chunks) > 1:
                self._members.went_on(len(chunk))
            following = self._step(at, chunk, most)
            if following is not None:
                return following.offset(self._options.consumer)
            if not self._now:
                break  # the next ones follow in the next call, which comes at once
        self._idle_until = time.monotonic() + IDLE_SHARE * (time.monotonic() - began)
        return start

    def _is_behind(self, at: FleetPosition, member: Member) -> bool:
        """Return whether a queue has recorded batches that Spark does not have.

        If its recording reported an error although it happened, Spark has the round without that batch. It is undone, and
        recorded again in the round that delivers it. Otherwise a replay would find it under a number with which Spark has other
        rows.
        """
        held, n = member.held, self._number(at, member) + 1
        if held.last == n > held.acked and 0 < at.recorded(member.marked(n))[0] <= at.round:
            held.withdraw_newest()
            member.last = held.last
        return held.last >= n

    def _look_for_gone(self, at: FleetPosition) -> None:
        """Report queues of the checkpoint that are not found."""
        self._gone = {name: entry["path"] for name, entry in at.queues.items() if name not in self._members.by_id}
        for name, path in self._gone.items():
            if path in self._members.failed:
                continue
            error = QueueNotFound(f"the queue {name}, which was at {path}, is not found", hint=hints.QUEUE_BACK)
            if self._options.fail_on_missing:
                raise error
            self._members.report(path, str(error.args[0]))

    def _again(self, at: FleetPosition, behind: Sequence[Member]) -> FleetPosition:
        """Return the next batch as it was recorded: the queues' batches of the next round, or else of the earliest."""
        rounds: dict[str, int] = {}
        for chunk in self._members.chunks(behind):
            rounds |= self._members.each(chunk, lambda m: at.recorded(m.marked(self._number(at, m) + 1))[0])
        number = at.round + 1
        wanted = number if number in rounds.values() else min(rounds.values(), default=0)
        shares = {name: RECORDED_BATCH_MESSAGES_MAX for name, recorded in rounds.items() if recorded == wanted}
        return self._took(at, max(number, wanted), [m for m in behind if m.queue_id in shares], shares)

    def _step(self, at: FleetPosition, chunk: Sequence[Member], most: int) -> FleetPosition | None:
        """Record a new batch of some queues. Return the new position; None: there are no new messages."""
        pending = self._members.each(chunk, lambda m: self._pending(at, m), quick=True)
        ready = [m for m in chunk if pending.get(m.queue_id)]
        shares = _shares([(m.queue_id, pending[m.queue_id]) for m in ready], most)
        if len(shares) < len(ready):
            self._members.went_on(len(shares))
        idle = [m for m in chunk if m.queue_id in pending and m.queue_id not in shares]
        self._members.each(idle, lambda m: m.held.ack(self._number(at, m)), quick=True)
        following = self._took(at, at.round + 1, [m for m in ready if m.queue_id in shares], shares)
        return None if following.queues == _carried(at) else following

    def _pending(self, at: FleetPosition, member: Member) -> int:
        """Return about how many messages a queue can give; at least 1 if it has recorded a batch that Spark does not know."""
        held, n = member.held, self._number(at, member)
        return 1 if held.last > n else held.pending(n, every=self._now) or 0

    def _took(self, at: FleetPosition, number: int, members: Sequence[Member], shares: Mapping[str, int]) -> FleetPosition:
        """Let members record their next batches, and return the new position."""
        size = self._options.bytes_max // max(1, len(members))
        entries = _carried(at)
        following = FleetPosition(at.line or self._line, number, entries)

        def take(member: Member) -> Entry | None:
            held, n = member.held, self._number(at, member)
            begins = (self._entry(at, member) or {}).get("begins", n)
            member.mark(following.mark(begins))
            arrived = member.reader._arrived
            last = held.take(n, messages_max=shares[member.queue_id], bytes_max=max(1, size), arrived=arrived)
            if last == n:
                return None
            member.last = max(member.last, last)
            offset = member.reader._offset(n, last)
            entry = {k: v for k, v in offset.items() if k not in ("queue", "consumer")}
            return {**entry, "begins": begins, "messages": sum(part.messages for part in held.parts(last))}

        for chunk in self._members.chunks(members):
            entries |= {name: entry for name, entry in self._members.each(chunk, take).items() if entry is not None}
        return following

    def _entry(self, at: FleetPosition, member: Member) -> Entry | None:
        """Return a queue's entry; None: it has none, or only its original has one."""
        entry = at.queues.get(member.queue_id)
        return None if entry is None or member.reader._is_original(entry) else entry

    def _number(self, at: FleetPosition, member: Member) -> int:
        """Return the number of a queue's last batch that Spark has; if there is none, the number after which the queue begins."""
        held, entry = member.held, self._entry(at, member)
        if entry is not None:
            n: int = entry["n"]
            return n
        if member.begins is None:
            # Spark may have lost the newest offsets with this queue. The batches recorded with them are delivered again.
            n = last = held.last
            while n:
                recorded, begins = at.recorded(member.marked(n))
                if recorded <= at.round:
                    break
                if member.queue_id not in at.queues:
                    n = begins
                    break
                n -= 1  # it is a copy, and `begins` is where its original began
            member.begins = min(n, held.acked) if n == last else n
        return member.begins

    # ---- other methods for Spark

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        entries = {name: e for name, e in FleetPosition.of(end, self._options.consumer).queues.items() if e["after"] < e["n"]}
        self._members.find()
        if entries.keys() - self._members.by_id.keys():
            self._members.find(now=True)  # it may have reappeared a moment ago

        def split(member: Member) -> list[Blocks]:
            member.held  # noqa: B018 - opens it
            entry = entries[member.queue_id]
            last = member.reader._number({"queue": member.queue_id, "consumer": self._options.consumer, **entry})
            return [b for n in range(entry["after"] + 1, last + 1) for b in member.reader._split(n, member.held.parts(n))]

        found: dict[str, list[Blocks]] = {}
        for chunk in self._members.chunks([m for m in self._all() if m.queue_id in entries]):
            found |= self._members.each(chunk, split)
        for name in entries.keys() - found.keys():
            # The batch must not be delivered without it, because Spark would never request that part again.
            path = entries[name]["path"]
            why = self._members.failed.get(path, "it is not found")
            raise QueueNotFound(f"this batch has messages of the queue {name}, which was at {path}: {why}", hint=hints.QUEUE_BACK)
        blocks = [(entries[name]["path"], each) for name in entries for each in found[name]]
        return list(_packed(blocks, self._options.partition_messages))

    def commit(self, end: dict[str, Any]) -> None:
        at = FleetPosition.of(end, self._options.consumer)
        members = [m for m in self._members.open_ones() if m.queue_id in at.queues]
        self._members.each(members, lambda m: m.held.ack(self._number(at, m)), quick=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest offset for Spark's progress: the remaining messages of the query, queue by queue.

        Counting takes at most a tenth of the time. For queues that are not open, the last count is used.
        """
        began = time.monotonic()
        if began >= self._report_at:
            self._reported = self._count()
            self._report_at = began + REPORT_SHARE * (time.monotonic() - began)
        return self._reported

    def _count(self) -> dict[str, Any]:
        def count(member: Member) -> None:
            member.lag = member.reader._count(member.held)

        self._members.each(self._members.open_ones(), count)
        lags = sorted((m for m in self._all() if m.lag is not None), key=lambda m: -m.lag["lag"])  # type: ignore[index]
        ages = [age for m in lags if (age := (m.lag or {})["oldest_age_seconds"]) is not None]
        missing = {**{path: f"the queue {name} is not found" for name, path in self._gone.items()}, **self._members.failed}
        return {
            "consumer": self._options.consumer, "queues": len(self._members.by_id),
            "lag": sum((m.lag or {})["lag"] for m in lags), "oldest_age_seconds": max(ages, default=None),
            "lags": {
                m.queue_id: {k: v for k, v in (m.lag or {}).items() if k not in ("queue", "consumer")} for m in lags[:SHOWN_MAX]
            },
            "missing": dict(list(missing.items())[:SHOWN_MAX]),
        }  # fmt: skip

    def stop(self) -> None:
        if "_members" in self.__dict__:
            self._members.close()

    # ---- in the workers

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, FleetBlocks):
            return  # an empty batch has a task without a partition
        view = RowView.of(self._schema, self._given.get("bodyColumn") or BODY, many=True)
        for path, blocks in partition.blocks:
            yield from recorded(blocks, view, path)
        settle()


def _carried(at: FleetPosition) -> dict[str, Entry]:
    """Return the entries of queues without messages in the next batch."""
    return {
        name: {k: v for k, v in {**entry, "after": entry["n"]}.items() if k != "messages"} for name, entry in at.queues.items()
    }


def _shares(pending: Sequence[tuple[str, int]], most: int) -> dict[str, int]:
    """Return each queue's share of a batch: an even part, plus the unused parts of others."""
    left, shares = most, {}
    order = sorted(pending, key=lambda each: each[1]) if most >= 2 * len(pending) else pending
    for i, (name, count) in enumerate(order):
        even = -(-left // (len(order) - i))
        share = min(max(1, count), even) if i < len(order) - 1 else even
        if left > 0:
            shares[name] = even
            left -= share
    return shares


def _packed(found: Iterable[tuple[str, Blocks]], messages: int) -> Iterator[FleetBlocks]:
    """Yield tasks of about the wanted size."""
    task: list[tuple[str, Blocks]] = []
    size = 0
    for each in found:
        if task and size >= messages:
            yield FleetBlocks(tuple(task))
            task, size = [], 0
        task.append(each)
        size += each[1].messages
    if task:
        yield FleetBlocks(tuple(task))
