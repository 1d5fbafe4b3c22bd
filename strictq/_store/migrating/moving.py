"""Move one shard of format 2 to the next format, in transactions of bounded size.

The new tables are filled beside the old ones, under other names. A last transaction drops the old tables, gives the new ones
their names, and stamps the file. Until then the shard has format 2; an interrupted move leaves tables that the next one drops.
No bodies are kept in memory: a part of the messages is read and written at a time.
Source: docs/explanation/storage.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw

from ..._sql import LOG, MIGRATING, SHARD, TABLES, insert_into
from ..._values.errors import StoreCorrupt
from ..commit.tx import RARE
from ..disk import formats as migrate
from ..disk import layout
from ..lane import entries as kinds
from ..lane.entries import TOKEN_BITS, LaneHolder, pack
from ..lane.live_lane import Done, Grant, LaneAtRest, LiveLane, Tried, dense_from
from ..lane.order import PLACE_BITS, place_of_arrival
from ..lane.totals import RunningTotals, StoredMark
from ..tables import gone, mark
from .reader import OldShard
from .values import OldDeadLetter, OldLane, OldLease, OldMessage

WAL_BYTES: Final = 16 << 20
"""A WAL of this size is checkpointed between two transactions."""
CHUNK: Final = 512
"""How many ids of a lane one row of `pending` has."""
_PART_IDS: Final = 20_000
_PART_ROWS: Final = 5_000
_VOID: Final = 1
"""The entry with which the journal begins."""
_KINDS: Final = {"ack": kinds.ACK, "nack": kinds.NACK, "reject": kinds.REJECT}

_TOTALS: Final = (
    "sends", "claims", "receives", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "empty_receives",
    "ack_rate", "ack_rate_at",
)  # fmt: skip
"""Columns of the counter row that `mark` has, too."""

_SCHEMA: Final = "\n".join((LOG.schema, TABLES.schema))
_INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX[^;]*;")
_TABLES: Final = tuple(re.findall(r"CREATE TABLE (\w+)", _SCHEMA))
_OLD_TABLES: Final = tuple(re.findall(r"CREATE TABLE (\w+)", "\n".join((SHARD.schema, SHARD.logs))))
_NEW: Final = {name: migrate.LEFT_OVER + name for name in _TABLES}
_CREATE: Final = re.sub(r"(CREATE TABLE|INSERT INTO) (\w+)", rf"\1 {migrate.LEFT_OVER}\2", _INDEX.sub("", _SCHEMA))
_DROP_NEW: Final = "\n".join([f"DROP TABLE IF EXISTS {name};" for name in _NEW.values()])
_DROP_OLD: Final = "\n".join([f"DROP TABLE {name};" for name in _OLD_TABLES])
_RENAME: Final = "\n".join([f"ALTER TABLE {new} RENAME TO {name};" for name, new in _NEW.items()])
_CREATE_INDEXES: Final = "\n".join(_INDEX.findall(_SCHEMA))
_HEAD: Final = len(LaneAtRest._fields) - 2
"""The columns of a lane without those of its ids."""


def move(
    db: apsw.Connection, file: Path, shard: int, owns: Callable[[int], bool],
    on_messages: Callable[[int, int], None] = lambda _done, _all: None,
) -> None:  # fmt: skip
    """Move a shard that `migrate.require` accepted and that has format 2. No other process has it open.

    Args:
        db: a connection for writing.
        owns: whether the hash of a key belongs to the shard.
        on_messages: called after each part with the number of copied messages and the total.
    Raises:
        StoreCorrupt: its rows contradict each other. It keeps its format.
    """
    db.execute(_DROP_NEW).fetchall()  # what an interrupted move left
    with closing(OldShard(file, shard)) as old:
        move = _Move(db, file, shard, old, owns)
        move.copy(on_messages)
    move.finish()


class _Move:
    def __init__(self, db: apsw.Connection, file: Path, shard: int, old: OldShard, owns: Callable[[int], bool]) -> None:
        self._db = db
        self._many: Any = db.executemany
        self._file = file
        self._shard = shard
        self._old = old
        self._owns = owns
        self._totals = old.totals()
        self._meta = old.meta()
        self._tried: dict[int, Tried] = {}
        """Attempts, and the end of the delay, of messages that were attempted."""
        self._delayed: dict[bytes, int] = {}
        """By key, the highest seq that has a delay."""
        self._expires: dict[bytes, int] = {}
        """By key, the earliest end of a TTL."""
        self._waiting: dict[bytes, list[tuple[int, int]]] = {}
        """By key, dead letters that return to their lane when its lease ends. In the next format, they are not dead any more."""
        self._returned = 0
        """How many these are."""
        self._unused = 0
        """Lanes to which nothing was ever sent. The next format has no rows for them, unless they are held."""

    def copy(self, on_messages: Callable[[int, int], None]) -> None:
        """Fill the new tables."""
        with self._part():
            self._db.execute(_CREATE).fetchall()
        copied = 0
        for part in self._old.messages():
            with self._part():
                self._add_messages(part)
            copied += len(part)
            on_messages(copied, self._totals["pending"])
        for dead in _in_parts(self._old.dead(), _PART_ROWS):
            with self._part():
                self._add_dead(dead)
        left = self._add_lanes()
        if left != copied or copied != self._totals["pending"]:
            what = f"it has {copied} messages, its lanes have {left}, and the counter row says {self._totals['pending']}"
            raise StoreCorrupt(what, shard=self._shard)
        self._add_dedup()
        for states in _in_parts(self._old.key_states(), _PART_ROWS):
            with self._part():
                self._insert("key_state", states)

    @contextmanager
    def _part(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        if layout.wal_bytes(self._file) > WAL_BYTES:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        some = list(rows)
        if some:
            self._many(insert_into(_NEW[table], len(some[0])), some)

    # ---- messages

    def _add_messages(self, part: list[OldMessage]) -> None:
        troubles: list[tuple[Any, ...]] = []
        for m in part:
            if m.due is not None:
                self._delayed[m.key] = max(self._delayed.get(m.key, 0), m.seq)
            if m.expires is not None:
                self._expires[m.key] = min(self._expires.get(m.key, m.expires), m.expires)
            failure = m.failure
            if failure is not None:
                troubles.append((m.id, failure.starts, failure.first_at, failure.error, failure.output, failure.errors))
                if failure.starts or failure.crashes:
                    self._tried[m.id] = (failure.starts, failure.crashes, m.due or 0)
        self._insert("message", [(m.id, m.key, m.seq, m.sent_at, m.due, m.expires, _opts(m), m.body) for m in part])
        self._insert("trouble", troubles)

    def _add_dead(self, dead: list[OldDeadLetter]) -> None:
        self._insert("message", [(d.id, d.key, d.seq, d.sent_at, None, None, _opts(d), d.body) for d in dead])
        self._insert("dead", [(d.key, d.id, d.seq, d.died_at, d.kind, d.reason) for d in dead if not d.redrive])
        failed = [d for d in dead if not d.redrive and (d.attempts or d.output is not None or d.errors is not None)]
        self._insert("trouble", [(d.id, d.attempts, None, None, d.output, d.errors) for d in failed])
        for d in dead:
            if d.redrive:
                self._waiting.setdefault(d.key, []).append((d.seq, d.id))
                self._returned += 1

    # ---- lanes

    def _add_lanes(self) -> int:
        """Write the rows of lanes. Return the number of their messages."""
        found = 0
        lanes = iter(self._old.lanes())
        ended = False
        while not ended:
            rows: list[tuple[Any, ...]] = []
            parts: list[tuple[bytes, int, bytes]] = []
            ids = 0
            ended = True
            for old in lanes:
                ids += len(old.ids)
                self._add_lane(old, rows, parts)
                if ids >= _PART_IDS or len(rows) >= _PART_ROWS:
                    ended = False
                    break
            found += ids
            with self._part():
                self._insert("lane", rows)
                self._insert("pending", parts)
        return found

    def _add_lane(self, old: OldLane, rows: list[tuple[Any, ...]], parts: list[tuple[bytes, int, bytes]]) -> None:
        lane = self._live(old)
        if not lane.tail:
            self._unused += 1
            if lane.is_plain_and_empty:
                return
        row, ids = lane.row(_VOID), lane.ids
        if not ids:
            rows.append((*row[:_HEAD], None, None))
            return
        sealed = (len(ids) - 1) // CHUNK * CHUNK
        parts += [(lane.key, lane.first + at, pack(ids[at : at + CHUNK])) for at in range(0, sealed, CHUNK)]
        rows.append((*row[:_HEAD], lane.first + sealed, pack(ids[sealed:])))

    def _live(self, old: OldLane) -> LiveLane:
        """Return a lane as it is in memory."""
        lane = LiveLane(old.key, old.tail)
        lane.active = old.active_at
        lane.expires = self._expires.pop(old.key, 0)
        if old.done is not None:
            done = old.done
            known: Done = (done.token, _KINDS[done.kind], done.lo, done.hi, tuple(done.gaps))
            lane.done = known
        waiting = sorted(self._waiting.pop(old.key, ()))
        messages = list(zip(old.seqs, old.ids, strict=True))
        if waiting:
            lane.with_rare_state().redriven.update(i for _, i in waiting)
            if old.lease is None:
                messages = sorted([*messages, *waiting])
            else:
                lane.with_rare_state().waiting = waiting
        begin = self._lease(lane, old.lease, messages)
        self._fill(lane, messages, dense_from(messages, old.tail) if begin is None else begin)
        if old.hold is not None:
            lane.with_rare_state().hold = (old.held_at or 0, old.hold)
        self._delay(lane, messages)
        if old.solo_to:
            lane.with_rare_state().solo = old.solo_to
        if lane.grant is None and messages and old.hold is None and not lane.due:
            lane.listed = place_of_arrival(messages[0][1]) if old.position is None else old.position << PLACE_BITS
        return lane

    @staticmethod
    def _lease(lane: LiveLane, lease: OldLease | None, messages: list[tuple[int, int]]) -> int | None:
        """Give a lane its lease. Return where the window must begin; None: anywhere."""
        if lease is None:
            return None
        before = lease.lo - 1
        holder = LaneHolder(lease.consumer, says_starts=lease.started < before).encode()
        lane.grant = Grant(lease.token, lease.deadline, lease.leased_at, holder, [lane])
        lane.low, lane.started = lease.lo, max(lease.started, before)
        if lease.closed:
            lane.with_rare_state().closed = True
        held = [at for at, (seq, _) in enumerate(messages) if lease.lo <= seq <= lease.hi]
        if not held or lease.ack_first:
            return None
        window = dense_from(messages, lane.tail)
        if held[0] == 0 and window > 0:
            # They are far apart. All of the lease is in `front` then.
            lane.with_rare_state().front_held = len(held)
            return max(window, len(held))
        lane.held = min(lease.hi, lane.tail) - messages[held[0]][0] + 1
        return held[0]

    @staticmethod
    def _fill(lane: LiveLane, messages: list[tuple[int, int]], begin: int) -> None:
        """Give a lane its messages: those from `begin` on in consecutive positions, and the others in `front`."""
        if begin:
            lane.with_rare_state().front = messages[:begin]
        rest = messages[begin:]
        if rest:
            lane.first = rest[0][0]
            ids = lane.ids = [0] * (lane.tail - lane.first + 1)
            for seq, i in rest:
                ids[seq - lane.first] = i

    def _delay(self, lane: LiveLane, messages: list[tuple[int, int]]) -> None:
        """Give a lane the attempts of its messages, and what holds it back until a time."""
        delayed = self._delayed.pop(lane.key, 0)
        if delayed:
            lane.with_rare_state().delayed = delayed
        rare = lane.rare
        n = len(rare.front) if rare is not None else 0
        for at, (seq, i) in enumerate(messages):
            tried = self._tried.pop(i, None)
            due = None
            if seq <= delayed and at <= n:
                due = self._db.execute(MIGRATING.due_of, (i,)).get
                if at < n and tried is None and due:
                    tried = (0, 0, due)  # the heads of `front` are delayed by this alone
            if tried is not None:
                lane.with_rare_state().tried[i] = tried
                due = tried[2]
            if not at and due and lane.grant is None and (rare is None or rare.hold is None):
                lane.due = due

    # ---- the rest

    def _add_dedup(self) -> None:
        of_queue: list[tuple[Any, ...]] = []
        for some in _in_parts(self._old.dedup(), _PART_IDS):
            with self._part():
                self._insert("dedup", [(d.key, d.dedup_id, d.seq, d.id, d.until, None) for d in some if d.seq is not None])
            of_queue += [(d.dedup_id, d.id, d.until, d.key) for d in some if d.seq is None]
        with self._part():
            self._many(MIGRATING.add_wide_dedup, of_queue)

    def finish(self) -> None:
        """Replace the old tables by the new ones, in one transaction."""
        self._db.pragma("legacy_alter_table", "on")  # otherwise a view of the program that does not work fails it
        try:
            with self._part():
                self._replace()
        finally:
            self._db.pragma("legacy_alter_table", "off")

    def _replace(self) -> None:
        db, totals, meta = self._db, self._totals, self._meta
        top: int = totals["last_id"]
        for sql in (_DROP_OLD, _RENAME, _CREATE_INDEXES):
            db.execute(sql).fetchall()
        gone.keep_newest(db, self._shard, top, self._owns)
        db.execute(LOG.append, (_VOID, kinds.VOID, totals["last_time"] + 1, top, 0, 0, None, b""))
        stored = StoredMark(
            fold_position=_VOID + top, cut=_VOID, mid=top, counted=_VOID, counted_top=top, epoch=totals["epoch"],
            config_version=totals["config_version"], time_offset=totals["time_offset"], seq_floor=totals["seq_floor"],
            last_token=max(totals["last_token"], (db.execute(MIGRATING.last_token).get or 0) & ((1 << TOKEN_BITS) - 1)),
        )  # fmt: skip
        known = RunningTotals(
            pending=totals["pending"] + self._returned, dead=totals["dead"] - self._returned,
            lanes=totals["lanes"] - self._unused, **{name: totals[name] for name in _TOTALS},
            **{name: meta.get(name, 0) for name in RARE},
        )  # fmt: skip
        mark.write(db, stored, known)
        self._many(MIGRATING.forget_meta, [(name,) for name in RARE])
        db.execute(SHARD.write_meta, ("last_outbox", totals["last_outbox"]))
        migrate.stamp(db, migrate.SHARD_ID, migrate.ONE_LANE)


def _opts(m: OldMessage | OldDeadLetter) -> str | None:
    numbers = [m.size_hint, m.prepare_seconds, m.process_seconds]
    if numbers == [None, None, None]:
        return m.headers
    return f"{json.dumps(numbers)[:-1]},{m.headers or 'null'}]"


def _in_parts(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    following = iter(rows)
    while some := list(islice(following, size)):
        yield some
