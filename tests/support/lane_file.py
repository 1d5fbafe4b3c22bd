"""One opener of a shard of format 3, without a queue: a connection, its lanes, a clock, and transactions as `Writer` runs them.

The caller is one thread. Every verb is the store's own; this module adds only what `commit/writer.py` does around it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from strictq._sql import FORMAT_3
from strictq._store.commit import connection
from strictq._store.commit.tx import SECOND
from strictq._store.commit.writer import CATCH_UP_MAX
from strictq._store.lane import entries as kinds
from strictq._store.lane.entries import Entry
from strictq._store.lane.live_lane import LiveLane
from strictq._store.lane.memory import MessageRow, RunningTotals, StoreLimits
from strictq._store.shard import checking, claiming, sending, settling
from strictq._store.shard.failures import AttemptFailure
from strictq._store.shard.leases import ID, KEY, SEQ, Claimed, Lost, Request, Row, Settlement
from strictq._store.shard.messages import Item, Options, Sent
from strictq._store.shard.shard_lanes import ShardLanes, Tx
from strictq._values.config import QueueConfig
from strictq._values.errors import LeaseLost

T = TypeVar("T")
CONFIG = QueueConfig(max_attempts=None, retry_delay_seconds=0.0)


class NoEmptyReceives:
    """Stands for the queue, which counts receives that found nothing."""

    def take_empty_receives(self, shard: int) -> int:
        return 0


def new_file(path: Path) -> None:
    """Create the file of an empty shard."""
    path.touch()
    db = connection.connect(str(path), durability="process", fresh=True)
    db.execute("BEGIN IMMEDIATE")
    db.execute(FORMAT_3).fetchall()
    db.execute("COMMIT")
    db.close()


def item(key: bytes, body: bytes = b"", **options: Any) -> Item:
    """Return a message to send. Durations are microseconds."""
    return key, body, Options(**options) if options else None, None


def request(room: int = 10, per_key: int | None = None, *, lease: int = 30 * SECOND, **other: Any) -> Request:
    return Request(room, per_key, lease, other.pop("consumer", "c"), **{"charge": False, **other})


def rows_of(claimed: Claimed) -> list[list[Row]]:
    """Return the messages of each lease of a claim."""
    return [list(held.rows) for held in claimed.leases]


def groups_of(claimed: Claimed) -> list[tuple[bytes, list[int]]]:
    """Return the key and the seqs of each lease of a claim."""
    return [(held.key, [row[SEQ] for row in held.rows]) for held in claimed.leases]


def batches(token: int, groups: Sequence[tuple[bytes, Sequence[int]]]) -> list[Settlement]:
    return [Settlement(key, token, seqs) for key, seqs in groups]


def state_of(lane: LiveLane) -> tuple[Any, ...]:
    """Return all of a lane's state that does not depend on how much of it is loaded, once all of its ids are."""
    lane.tidy()
    rare, grant = lane.rare, lane.grant
    held = [i for _, i in lane.leased()]
    return (
        lane.tail,
        [(seq, i) for seq, i in enumerate(lane.ids or (), lane.first) if i],
        None if grant is None else (grant.token, grant.deadline, grant.at, grant.holder, held, lane.low, lane.started),
        lane.due,
        None if rare is None else (dict(sorted(rare.tried.items())), rare.hold, rare.solo, rare.closed, rare.issuer),
        [] if rare is None else rare.front,
        [] if rare is None else sorted(rare.waiting),
    )  # fmt: skip


class LaneFile:
    """One opener.

    Attributes:
        epoch, version: of its queue's boot and configuration. A write transaction brings the shard to them.
        entries, messages: the rows that were written since `forget_rows`, by number. Those of a transaction that was rolled back
            are among them.
    """

    def __init__(
        self,
        path: Path,
        now: Callable[[], int],
        *,
        limits: StoreLimits | None = None,
        config: QueueConfig = CONFIG,
        db: apsw.Connection | None = None,
    ) -> None:
        self.db = connection.connect(str(path), durability="process") if db is None else db
        self.now = now
        self.config = config
        self.version = self.epoch = self.time_offset = 0
        self.keeps_leases = False
        self.lanes = ShardLanes(0, limits, claims=True)
        self.memory = self.lanes.memory
        self.entries: dict[int, Entry] = {}
        self.messages: dict[int, MessageRow] = {}
        self.look(lambda _: None)
        self._record()

    def _record(self) -> None:
        """Keep the rows of the logs as they are written: a fold in the same transaction may delete them."""
        log = self.lanes.log
        append, append_alone, insert, insert_alone = log.append, log.append_alone, log.insert, log.insert_alone

        def record(entry: Entry) -> None:
            self.entries[entry[0]] = entry
            append(entry)

        def record_alone(entry: Entry, *others: tuple[Any, ...] | None) -> bool:
            self.entries[entry[0]] = entry
            return append_alone(entry, *others)

        def record_rows(rows: Sequence[MessageRow]) -> None:
            self.messages.update({row[0]: row for row in rows})
            insert(rows)

        def record_row(row: MessageRow, seen: int, dedup: tuple[str, int] | None = None) -> bool:
            self.messages[row[0]] = row
            return insert_alone(row, seen, dedup)

        vars(log).update(append=record, append_alone=record_alone, insert=record_rows, insert_alone=record_row)

    def forget_rows(self) -> None:
        self.entries, self.messages = {}, {}

    # ---- transactions

    def transact(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in a write transaction of its own.

        Raises:
            Whatever `work` raises: nothing changed.
        """
        lanes, db = self.lanes, self.db
        try:
            tx = self._begin()
            result = work(tx)
            lanes.finish(tx, NoEmptyReceives())
            db.execute("COMMIT")
        except BaseException as e:
            with suppress(apsw.ConnectionClosedError):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            lanes.rolled_back(e)
            raise
        lanes.totals, lanes.unsure = tx.totals, False
        return result

    def _begin(self) -> Tx:
        lanes, db = self.lanes, self.db
        db.execute("BEGIN IMMEDIATE")
        totals = lanes.begin(db, CATCH_UP_MAX)
        if totals is None:
            db.execute("ROLLBACK")
            self.look(lambda _: None)
            db.execute("BEGIN IMMEDIATE")
            totals = lanes.begin(db)
        assert totals is not None
        if totals.config_version < self.version:
            totals.config_version = self.version
        tx = Tx(db, 0, lanes, totals, self.now(), self.config)
        lanes.now = tx.now
        lanes.separate(self.config)
        if totals.epoch < self.epoch:
            lanes.begin_epoch(tx, self.epoch, self.time_offset, keeps_leases=self.keeps_leases)
        return tx

    def group(self, operations: Sequence[Callable[[Tx], Any]]) -> list[Any]:
        """Run operations in one transaction. One that raises is rolled back alone. Return the results, or what was raised."""

        def together(tx: Tx) -> list[Any]:
            results: list[Any] = []
            for operation in operations:
                before, events, position = copy.copy(tx.totals), len(tx.events), self.lanes.commits
                tx.run("SAVEPOINT operation")
                try:
                    results.append(operation(tx))
                    tx.run("RELEASE operation")
                except Exception as e:
                    tx.run("ROLLBACK TO operation")
                    tx.run("RELEASE operation")
                    tx.totals = before
                    self.lanes.undone(e, position)
                    del tx.events[events:]
                    results.append(e)
            return results

        return self.transact(together)

    @property
    def may_be_alone(self) -> bool:
        """Return whether a single statement may be tried."""
        lanes = self.lanes
        alone = lanes.totals is not None and not self.db.in_transaction and self.config.history == "off"
        return alone and lanes.agrees(self.version, self.epoch) and (lanes.is_current or lanes.follow_alone())

    # ---- verbs that may be one statement

    def send(self, items: Sequence[Item]) -> Sequence[Sent]:
        if len(items) == 1 and self.config.max_depth is None and self.may_be_alone:
            done = sending.send_alone(self.lanes, self.now(), (items[0], self.config, 0))
            if done is not None:
                return [done]
        return self.transact(lambda tx: sending.send(tx, items, elsewhere=sending.NOTHING_ELSEWHERE))

    def claim(self, request: Request) -> Claimed:
        if self.may_be_alone:
            now = self.now()
            planned = claiming.claim_alone(self.lanes, request, now, self.config)
            if planned is not None and claiming.write_alone(self.lanes, *planned, request, now):
                return planned[0]
        return self.transact(lambda tx: claiming.claim(tx, request))

    def ack(self, batches: Sequence[Settlement]) -> list[Lost]:
        if len(batches) == len(batches[0].seqs) == 1 and batches[0].start is None and self.may_be_alone:
            (batch,) = batches
            if settling.ack_one_alone(self.lanes, self.now(), (batch.key, batch.token, batch.seqs[0], self.config)):
                return [{}]
        if self.may_be_alone and settling.ack_alone(self.lanes, self.now(), (batches, self.config)):
            return [{} for _ in batches]
        return self.transact(lambda tx: settling.ack(tx, batches))

    def nack(self, batches: Sequence[Settlement], delay: int | None, failure: AttemptFailure) -> list[int | LeaseLost | None]:
        if self.may_be_alone:
            done = settling.nack_alone(self.lanes, self.now(), (batches, delay, failure, self.config))
            if done is not None:
                return done
        return self.transact(lambda tx: settling.nack(tx, batches, delay, failure))

    # ---- looks

    def look(self, read: Callable[[ShardLanes], T]) -> T:
        """Run `read` on memory that agrees with the file, in a read transaction."""
        lanes, db = self.lanes, self.db
        try:
            db.execute("BEGIN")
            lanes.follow(db)
            lanes.unsure = True
            found = read(lanes)
            lanes.unsure = False
            return found
        finally:
            with suppress(apsw.ConnectionClosedError):
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def whole_lane(self, key: bytes) -> LiveLane:
        """Load a lane with all of its ids, within a look."""
        lane = self.lanes.loader.lane(key)
        while lane.split:
            self.lanes.loader.extend(lane, lane.deep)
        return lane

    def lane(self, key: bytes) -> tuple[Any, ...]:
        """Return all of a lane's state."""
        return self.look(lambda _: state_of(self.whole_lane(key)))

    def totals(self) -> RunningTotals:
        return self.look(lambda lanes: lanes.memory.totals)

    def check(self) -> list[str]:
        """Build a memory, compare it with the tables, and return what is wrong. Endless leases need no batch here."""
        found = self.look(lambda lanes: list(checking.problems(self.db, 0, lambda _: True, 1)))
        return [f"{rule}: {what}" for rule, what, _ in found if rule != "recorded_batch"]

    def close(self) -> None:
        self.db.close()


__all__ = [
    "CONFIG", "ID", "KEY", "SEQ", "LaneFile", "batches", "groups_of", "item", "kinds", "new_file", "request", "rows_of",
]  # fmt: skip
