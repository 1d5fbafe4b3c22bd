"""Fill a new shard with what can be read of a damaged one of the same format.

What has become of a message is known from three tables: `dead`, the journal, and `gone`, which has resolved messages whose rows
still exist. A message that none of them has ended is unresolved. Where a part of them is lost, the rows of lanes may tell. If
they do not, the message is kept, and reported.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import attrs

from ..._sql import CHECK, LOG, LOOKS, RECORDED_BATCHES, SALVAGE, SHARD, TABLES, insert_into
from ..._values.findings import LostRange
from ..._values.hashing import hash_key
from ..._values.keys import decode_key, is_keyless, shared_key
from ..disk import layout
from ..disk.pages import Row
from ..disk.topology import NOTHING, Range
from ..lane import entries as kinds
from ..lane.entries import TOKEN_BITS, Entry
from ..lane.live_lane import LaneAtRest
from ..lane.totals import RunningTotals, StoredMark
from ..shard.checking import is_key
from ..shard.loading import parked_key
from ..tables import dead, gone, mark, outputs, parcels
from ..tables.lane_rows import LaneRows
from ..tables.log_rows import LogRows
from .known import BACK, DIED, ENDED, INVALID, Journal, KnownLane, arrange, of_row
from .owning import Owned
from .reading import ShardPages

BATCH: Final = 2_000
CHUNK: Final = 512
"""How many ids of a lane one row of `pending` has."""
UNKNOWN_SEQS: Final = 1 << 40
"""How far a lane's next seq is moved if it is unknown which were issued, so that none is issued twice."""
UNKNOWN_ARRIVALS: Final = 1 << 32
"""The same for arrival numbers, whose places in the order must stay below 2**62."""
REFUSED: Final = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.SQLError, TypeError)
"""The errors of a row that a table refuses."""
RANGES_MAX: Final = 10_000
WAL_BYTES: Final = 16 << 20
"""A WAL of this size is checkpointed between two transactions."""
_COUNTED_MAX: Final = 1 << 20
_COPIED: Final = ("dead", "dedup", "key_state", "inlet", "history", "applied", "trouble")
_KIND_LEFT: Final = {"dead": parcels.DEAD, "dedup": parcels.DEDUP, "key_state": parcels.STATE}
_COLUMNS_LEFT: Final = {"dead": 6, "dedup": 6, "key_state": 2}
"""What a parcel has of these tables. Its messages, and what attempts left of them, are still where they were."""
_BUCKET: Final = 1 << gone.BUCKET_BITS
_ALL: Final = (1 << _BUCKET) - 1
_MARK_FIELDS: Final = len(attrs.fields(StoredMark))


class Filled(NamedTuple):
    """What a shard has now.

    Attributes:
        epoch: the newest of any token that was found.
        last_time: queue time of the newest write that was found.
        app_rows: of parcels: rows of the program that left with their keys and did not arrive in another shard.
    """

    epoch: int
    last_time: int
    app_rows: list[Row]


class Filling:
    """One shard while it is filled."""

    def __init__(
        self,
        pages: ShardPages,
        db: apsw.Connection,
        file: Path,
        part: Range,
        owned: Owned,
        note: Callable[[str], None],
        lost: list[LostRange],
        unverified: list[LostRange],
    ) -> None:
        """
        Args:
            db: a new shard, in this file.
            lost, unverified: ranges are added to these.
        """
        self._pages = pages
        self._db = db
        self._file = file
        self._run: Any = db.execute
        self._part = part
        self._note = note
        self._lost = lost
        self._unverified = unverified
        self._is_marked = True
        self._mark, self._totals = self._read_mark()
        self._epoch, self._last_token = self._mark.epoch, self._mark.last_token
        self._meta = {row[0]: row[1] for _, row in pages.rows("meta") if len(row) == 2}
        self._owned = owned
        self._leaving, self._left = self._read_parcels()
        self._last_time = 0
        self._top = max(self._mark.mid, self._mark.counted_top)
        self._lsn = max(self._mark.cut, self._mark.counted)
        self._hole_end: float = 0
        """Entries up to this one may be lost."""
        self._noted: dict[int, tuple[int, int]] = {}
        self._doubtful: defaultdict[bytes, list[int]] = defaultdict(list)
        """By key, seqs of messages that were saved, and are not certain."""
        self._unverified_ids: set[int] = set()
        self._open_ended: dict[bytes, float] = {}
        """How many of the newest seqs of a lane may be lost."""
        self._unknown_lanes = False
        """Whether there may have been lanes of which nothing remains, not even their keys."""
        self._dues: dict[int, int] = {}
        self._ended: list[tuple[int]] = []
        self._deleted: list[tuple[int, bytes, bytes]] = []

    def fill(self) -> Filled:
        """Write the whole shard."""
        pages = self._pages
        lanes = self._read_lanes()
        self._read_gone()
        self._put("message", self._messages(lanes))
        for table in _COPIED:
            columns, rows = _COLUMNS_LEFT.get(table, 0), self._leaving.get(_KIND_LEFT.get(table, 0), ())
            self._put(table, chain(pages.whole_rows(table), (row[:columns] for row in rows)))
        self._save_outputs()
        self._save_ranges()
        hole = copy_recorded_batches(pages, self._put)
        self._save_outbox()
        journal = self._read_journal(lanes)
        self._decide(journal)
        self._report_lost(journal)
        self._report_doubtful()
        self._settle_recorded_batches(journal, hole=hole)
        self._write(journal)
        return Filled(self._epoch, self._last_time, self._leaving[parcels.APP])

    # ---- rows

    def _save_outputs(self) -> None:
        rows = iter(self._pages.whole_rows("kept_output"))
        if (first := next(rows, None)) is not None:
            outputs.create(self._db)
            self._put("kept_output", chain([first], rows))

    def _read_parcels(self) -> tuple[dict[int, list[Row]], set[int]]:
        """Return what left this shard and did not arrive in another one, by kind, and the messages of what did arrive."""
        back: dict[int, list[Row]] = defaultdict(list)
        left: set[int] = set()
        for number, some in groupby(self._pages.whole_rows("parcel"), key=itemgetter(0)):
            rows = parcels.by_kind(some)
            if number > self._owned.arrived:
                for kind, of_kind in rows.items():
                    back[kind] += of_kind
                continue
            try:
                left.update(parcels.arrivals(rows))
            except INVALID:
                self._note("which messages have moved to another shard is not known: they may be delivered again")
        return back, left

    def _save_ranges(self) -> None:
        """Keep what the shard owns. Lanes that were on their way from it are in it again."""
        if self._owned.ranges is None:
            return
        self._run("BEGIN IMMEDIATE")
        parcels.create(self._db)
        parcels.set_ranges(self._db, self._owned.ranges)
        self._run(SHARD.write_meta, (parcels.NUMBER, max(self._meta.get(parcels.NUMBER, 0), self._owned.arrived)))
        self._run("COMMIT")

    def _put(self, table: str, rows: Iterable[Row]) -> None:
        """Insert rows, in transactions of bounded size. Rows that the table refuses are left out, and reported."""
        rows, statement = iter(rows), ""
        while batch := list(islice(rows, BATCH)):
            statement = statement or insert_into(table, len(batch[0]))
            self._run("BEGIN IMMEDIATE")
            try:
                self._db.executemany(statement, batch)
            except REFUSED:
                self._run("ROLLBACK")
                self._run("BEGIN IMMEDIATE")
                for row in batch:
                    try:
                        self._run(statement, row)
                    except REFUSED as e:
                        self._note(f"a row that no send writes is left out ({e}): {table} {row[:2]!r}")
            self._commit()

    def _commit(self) -> None:
        self._run("COMMIT")
        if layout.wal_bytes(self._file) > WAL_BYTES:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _read_mark(self) -> tuple[StoredMark, RunningTotals]:
        for _, row in self._pages.rows("mark"):
            if len(row) == 1 + _MARK_FIELDS + len(attrs.fields(RunningTotals)):
                return StoredMark(*row[1 : 1 + _MARK_FIELDS]), RunningTotals(*row[1 + _MARK_FIELDS :])
        self._is_marked = False
        self._note("its counters are lost")
        return StoredMark(), RunningTotals()

    def _read_lanes(self) -> dict[bytes, KnownLane]:
        pages = self._pages
        parts: defaultdict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        unsure: set[bytes] = set()
        for _, row in pages.rows("pending"):
            parts[row[0]].append((row[1], row[2]))
            if not pages.is_verified:
                unsure.add(row[0])
        found: dict[bytes, KnownLane] = {}
        for row in chain((row for _, row in pages.rows("lane")), self._leaving.get(parcels.LANE, ())):
            if len(row) != len(LaneAtRest._fields) or not self._is_ours(row[0]):
                self._note(f"a row that no send writes is left out: lane {row[:2]!r}")
                continue
            rest = LaneAtRest._make(row)
            verified = pages.is_verified and rest.key not in unsure
            found[rest.key] = lane = of_row(rest, parts.get(rest.key, ()), is_verified=verified)
            self._lsn = max(self._lsn, rest.lsn)
            if lane.is_verified:
                self._top = max(self._top, max((i for _, i in lane.listed()), default=0))
            if rest.token is not None:
                self._saw_token(rest.token)
        if pages.holes["lane"]:
            self._unknown_lanes = True
            if not pages.is_lost:
                self._note("which of the lanes whose rows are lost were held is not known")
        return found

    def _is_ours(self, key: Any) -> bool:
        if not (isinstance(key, bytes) and is_key(key)):
            return False
        if self._owned.is_stored and self._owned.ranges is not None:
            return self._owned.ranges.may_hold(hash_key(shared_key(key)))
        # If what it owns is lost, it has the lanes that are there: no lane is in two shards.
        return self._owned.ranges is not None or self._part[2:] == NOTHING or self._part.owns(hash_key(shared_key(key)))

    def _saw_token(self, token: int) -> None:
        self._epoch = max(self._epoch, token >> TOKEN_BITS)
        self._last_token = max(self._last_token, token & ((1 << TOKEN_BITS) - 1))

    def _read_gone(self) -> None:
        for bucket, row in self._pages.rows("gone"):
            bits, deleted = row[1:3]
            if bucket is not None and self._pages.is_verified and len(bits) == len(deleted) == _BUCKET // 8:
                self._noted[bucket] = int.from_bytes(bits, "little"), int.from_bytes(deleted, "little")

    def _is_noted(self, arrival: int) -> bool:
        """Return whether a message was resolved, and its row may be deleted."""
        return bool(self._noted.get(arrival >> gone.BUCKET_BITS, (0, 0))[0] >> (arrival & gone.BUCKET_MASK) & 1)

    def _may_be_noted(self, arrival: int) -> bool:
        """Return whether the row that would say so is lost."""
        bucket = arrival >> gone.BUCKET_BITS
        return bucket not in self._noted and self._pages.is_missing("gone", (bucket,))

    def _messages(self, lanes: dict[bytes, KnownLane]) -> Iterator[Row]:
        """Yield the messages whose rows are not to be deleted."""
        pages = self._pages
        for arrival, row in pages.rows("message"):
            if not arrival or arrival < 0:
                continue
            key, seq, sent_at = row[1:4]
            if not seq and is_keyless(key):  # a row that only has the newest arrival number, see `gone.keep_newest`
                self._top = max(self._top, arrival)
                continue
            if self._is_noted(arrival) and not self._is_ours(key):
                self._top = max(self._top, arrival)  # its lane has moved to another shard
                continue
            if not self._is_ours(key) or seq < 1:
                self._note(f"a row that no send writes is left out: message {arrival} {row[1:3]!r}")
                continue
            self._top, self._last_time = max(self._top, arrival), max(self._last_time, sent_at)
            if arrival in self._left:
                continue
            lane = lanes.get(key)
            if lane is not None:
                lane.newest = max(lane.newest, seq)
            elif not self._is_noted(arrival) or pages.is_missing("lane", (key,)):
                lanes[key] = lane = KnownLane(key)
                lane.newest = seq
            if not self._is_noted(arrival):
                if not pages.is_verified:
                    self._unverified_ids.add(arrival)
                yield (arrival, *row[1:])

    def _save_outbox(self) -> None:
        pages, known = self._pages, self._meta
        waiting = [row for _, row in pages.rows("outbox")]
        incarnation = known.get("incarnation")
        if incarnation is None:
            if waiting or not pages.is_lost:
                self._note(f"{len(waiting)} sends to other shards are left out: whether they arrived can't be known")
            return
        self._put("outbox", waiting)
        self._run(SHARD.write_meta, ("incarnation", incarnation))
        issued = max([known.get("last_outbox", 0), *(row[1] for row in waiting)])
        self._run(SHARD.write_meta, ("last_outbox", issued))

    # ---- the journal

    def _read_journal(self, lanes: dict[bytes, KnownLane]) -> Journal:
        entries: dict[int, Entry] = {}
        for i, row in self._pages.rows("journal"):
            if i is not None and self._pages.is_verified:
                entries[i] = (i, *row[1:])
        some = [entries[i] for i in sorted(entries)]
        self._lsn = max([self._lsn, *(entry[0] for entry in some[-1:])])
        self._find_holes([entry[0] for entry in some if entry[0] > self._mark.cut])
        named: set[int] = set()
        for entry in some:
            self._last_time, self._top = max(self._last_time, entry[2]), max(self._top, entry[3])
            if entry[1] in (kinds.CLAIM, kinds.MORE):
                self._saw_token(entry[4])
            if len(entry[7] or b"") % 8 == 0:
                named.update(map(abs, kinds.unpack(entry[7] or b"")))
        journal = Journal(lanes, self._totals, self._mark.counted, LogRows(self._db, self._part.shard).keys(named))
        for entry in some:
            journal.add(entry)
        if journal.skipped:
            self._note(f"{journal.skipped} rows of its journal can't be understood")
            self._hole_end = math.inf
        if self._hole_end:
            self._note("a part of its journal is lost: messages that were acked a short time ago may be delivered again")
        self._totals.sends += max(0, self._top - self._mark.counted_top)
        return journal

    def _find_holes(self, ids: list[int]) -> None:
        """Find the last gap in the ids of entries. They have none, from the one after the cut on."""
        holes = self._pages.holes["journal"]
        before = self._mark.cut if self._is_marked or not ids or any(lo is None for lo, _ in holes) else ids[0] - 1
        for i in ids:
            if i != before + 1:
                self._hole_end = i - 1
            before = i
        if before < self._lsn or any(hi is None for _, hi in holes):
            self._hole_end = math.inf

    # ---- messages

    def _decide(self, journal: Journal) -> None:
        """Find which messages are unresolved, and give them to their lanes."""
        buried = {i for (i,) in self._run(SALVAGE.dead_ids)}
        attempts: dict[int, int] = dict(self._run(SALVAGE.attempts).fetchall())
        present: Counter[int] = Counter()
        bury: list[tuple[bytes, int, int, int]] = []
        after = 0
        while rows := self._run(SALVAGE.some_messages, (after, BATCH)).fetchall():
            after = rows[-1][0]
            for i, key, seq, due, expires in rows:
                lane = journal.lane_of(i, key)
                lane.newest = max(lane.newest, seq)
                fate = None if i in buried else self._fate(journal, lane, i, key, seq)
                lane.found(seq, i)
                if i in self._unverified_ids and fate != ENDED:
                    self._doubtful[key].append(seq)
                if fate == ENDED:
                    self._ended.append((i,))
                    continue
                present[i >> gone.BUCKET_BITS] |= 1 << (i & gone.BUCKET_MASK)
                if fate == DIED:
                    bury.append((lane.live.key, i, seq, journal.ends.get(i, ("", self._last_time))[1]))
                elif fate == BACK:
                    self._keep(lane, i, seq, due, expires)
                    if i in attempts and (self._hole_end > lane.live.lsn or self._lacks_row(lane)):
                        starts, crashes, until = lane.live.attempts(i)
                        lane.live.with_rare_state().tried[i] = (max(starts, attempts[i]), crashes, until)
        self._note_deleted(present)
        self._run("BEGIN IMMEDIATE")
        for key, i, seq, at in bury:
            dead.bury(self._db, key, [(seq, i)], at, "rejected", None)
        if bury:
            self._note(f"{len(bury)} dead letters are saved without their reasons")
        self._run("COMMIT")

    def _note_deleted(self, present: Mapping[int, int]) -> None:
        """Note in `gone` which messages have no rows, so that the last rows of a bucket are deleted once they are resolved."""
        for bucket, bits in present.items():
            issued = (1 << self._top - (bucket << gone.BUCKET_BITS) + 1) - 1 if bucket == self._top >> gone.BUCKET_BITS else _ALL
            if deleted := issued & ~bits:
                self._deleted.append((bucket, bytes(_BUCKET // 8), deleted.to_bytes(_BUCKET // 8, "little")))

    def _lacks_row(self, lane: KnownLane) -> bool:
        return not lane.is_at_rest and self._pages.is_missing("lane", (lane.live.key,))

    def _fate(self, journal: Journal, lane: KnownLane, i: int, key: bytes, seq: int) -> str:
        """Return what has become of a message that is no dead letter, as far as that can be read. BACK: it is unresolved."""
        pages = self._pages
        end, listed = journal.ends.get(i, ("", 0))[0], lane.lists(seq, i) if lane.is_verified else None
        is_dead_lost = pages.is_missing("dead", (lane.live.key, i))
        is_behind = self._hole_end > lane.live.lsn
        if end == ENDED:
            return ENDED
        if end == DIED and is_dead_lost:
            return DIED
        if end in (BACK, DIED):
            if end == DIED:
                self._doubtful[key].append(seq)  # it was redriven, and the entry is lost
            return BACK
        if listed is False and not is_behind:
            is_parked_lost = is_keyless(key) and pages.is_missing("lane", (parked_key(key, seq),))
            if is_dead_lost:
                if self._may_be_noted(i):
                    self._doubtful[key].append(seq)
                return DIED
            if not is_parked_lost:
                return ENDED
        if is_behind or (listed is None and self._may_be_noted(i) and not (lane.is_verified and seq > lane.tail)):
            self._doubtful[key].append(seq)
        return BACK

    def _keep(self, lane: KnownLane, i: int, seq: int, due: int | None, expires: int | None) -> None:
        lane.seqs.append(seq)
        lane.arrivals.append(i)
        live, rare = lane.live, lane.live.rare
        if due is not None:
            rare = live.with_rare_state()
            rare.delayed = max(rare.delayed, seq)
            self._dues[i] = due
        if expires is not None and not (rare is not None and i in rare.redriven):
            live.expires = min(live.expires or expires, expires)

    # ---- what is lost

    def _report_lost(self, journal: Journal) -> None:
        holes = [(0 if lo is None else lo[0], None if hi is None else hi[0]) for lo, hi in self._pages.holes["message"]]
        reported = 0
        for lane in journal.lanes.values():
            for seq, i in lane.listed():
                if journal.ends.get(i, ("",))[0] != ENDED and not self._is_noted(i):
                    self._report(lane.live.key, seq, seq)
                    reported += i > self._mark.mid
        for key, i, seq in self._run(SALVAGE.dead_without_message).fetchall():
            self._report(key, seq, seq)
            self._run(TABLES.unbury, (key, i))
        if holes:
            reported += self._report_gaps(journal, holes)
            missing = sum(self._count_missing(journal, lo, hi) for lo, hi in holes)
            tables = ("lane", "pending", "dead")
            if missing > reported or any(self._pages.holes[table] for table in tables):
                self._lost.append(LostRange(self._part.shard, None, 1, None))
                self._open_ended.update((key, missing) for key in journal.lanes)
                self._unknown_lanes = True
        if any(hi is None for _, hi in holes):
            self._top += UNKNOWN_ARRIVALS
        self._open_ended.update((key, math.inf) for key, lane in journal.lanes.items() if self._lacks_row(lane))

    def _report_gaps(self, journal: Journal, holes: list[tuple[int, int | None]]) -> int:
        """Report gaps between the messages of each lane that its row does not include yet. Return how many messages these are."""
        reported = 0
        for key, some in groupby(self._run(SALVAGE.by_key), key=lambda row: row[0]):
            lane = journal.lanes.get(key)
            before, seq = 0, lane.tail if lane is not None else 0
            for _, following, i in some:
                if following > seq + 1 and any((hi is None or before < hi) and lo < i for lo, hi in holes):
                    self._report(key, seq + 1, following - 1)
                    reported += following - seq - 1
                before, seq = max(before, i), max(seq, following)
        return reported

    def _count_missing(self, journal: Journal, lo: int, hi: int | None) -> float:
        """Return how many messages a hole may have had, after those that the rows of all lanes include."""
        lo = max(lo, self._mark.mid)
        if hi is None or hi - lo > _COUNTED_MAX:
            return math.inf
        found = {i for (i,) in self._run(LOOKS.messages_between, (lo + 1, hi - 1))}
        return sum(not self._is_over(journal, i) for i in range(lo + 1, hi) if i not in found)

    def _is_over(self, journal: Journal, arrival: int) -> bool:
        bits, deleted = self._noted.get(arrival >> gone.BUCKET_BITS, (0, 0))
        return bool((bits | deleted) >> (arrival & gone.BUCKET_MASK) & 1) or journal.ends.get(arrival, ("",))[0] == ENDED

    def _report(self, key: bytes, first: int, last: int) -> None:
        self._lost.append(self._range(key, first, last))

    def _report_doubtful(self) -> None:
        for key, seqs in islice(self._doubtful.items(), RANGES_MAX):
            self._unverified.append(self._range(key, min(seqs), max(seqs)))

    def _range(self, key: bytes, first: int, last: int | None) -> LostRange:
        return LostRange(self._part.shard, None if is_keyless(key) else decode_key(key), first, last)

    # ---- what was recorded

    def _settle_recorded_batches(self, journal: Journal, *, hole: bool) -> None:
        leased: Counter[int] = Counter()
        for lane in journal.lanes.values():
            grant = lane.live.grant
            if grant is not None and grant.deadline == kinds.NEVER:
                present = set(lane.arrivals)
                leased[grant.token] += sum(i in present for _, i in lane.live.leased())
        self._run("BEGIN IMMEDIATE")
        still = settle_recorded_batches(self._db, self._note, leased, hole=hole)
        self._commit()
        for lane in journal.lanes.values():
            grant = lane.live.grant
            if grant is not None and grant.deadline == kinds.NEVER and grant.token not in still:
                lane.live.leave_lease()

    # ---- the new shard

    def _write(self, journal: Journal) -> None:
        db, totals = self._db, self._totals
        void = self._lsn + 1
        issued = self._mark.seq_floor + max(totals.sends, self._top)
        beyond = issued if issued else UNKNOWN_SEQS
        rows = LaneRows(db, self._part.shard, CHUNK)
        totals.pending = totals.lanes = 0
        lanes = iter(journal.lanes.values())
        while batch := list(islice(lanes, BATCH)):
            some = []
            for lane in batch:
                lost = self._open_ended.get(lane.live.key, 0)
                lane.newest = max(lane.newest, beyond) if math.isinf(lost) else lane.newest + int(lost)
                totals.pending += len(lane.seqs)
                live = arrange(lane, self._dues.get)
                live.tidy()
                if live.tail or not live.is_plain_and_empty:
                    some.append(live)
                    totals.lanes += live.tail > 0
                journal.lanes[live.key] = KnownLane(live.key)  # it is not needed any more
            self._run("BEGIN IMMEDIATE")
            rows.write(some, void)
            self._commit()
        self._run("BEGIN IMMEDIATE")
        db.executemany(SALVAGE.drop_message, self._ended)
        db.executemany(TABLES.write_gone, self._deleted)
        self._run(SALVAGE.drop_trouble)
        gone.keep_newest(db, self._part.shard, self._top, self._part.owns)
        totals.dead = self._run(LOOKS.all_dead).get
        db.execute(LOG.append, (void, kinds.VOID, self._last_time, self._top, 0, 0, None, b""))
        stored, _ = mark.read(db, self._part.shard)
        stored.fold_position, stored.cut, stored.mid = void + self._top, void, self._top
        stored.counted, stored.counted_top = void, self._top
        stored.epoch, stored.last_token = self._epoch, self._last_token
        stored.features |= mark.DEDUP_IDS  # messages may have them
        stored.features |= mark.RANGES if self._owned.ranges is not None else 0
        stored.seq_floor = max(self._mark.seq_floor, journal.floor, beyond if self._unknown_lanes else 0)
        mark.write(db, stored, totals)
        self._run("COMMIT")


Put = Callable[[str, Iterable[Row]], None]
MARKERS_MAX: Final = 10_000


def copy_recorded_batches(pages: ShardPages, put: Put) -> bool:
    """Copy all readable rows. Return whether the list of batches has a hole."""
    for table in ("consumer", "handout", "handout_block", "handout_rejected"):
        put(table, pages.whole_rows(table))
    return bool(pages.holes["handout"]) and not pages.is_lost


def settle_recorded_batches(
    db: apsw.Connection, note: Callable[[str], None], leased: Mapping[int, int], *, hole: bool
) -> frozenset[int]:
    """Release incomplete batches. Return the tokens of those that stay open.

    Args:
        leased: by token, how many messages are left of the lease of a batch.
    """
    run: Any = db.execute
    for name, last in run(SALVAGE.recorded_batches_unknown).fetchall():
        # The consumer's row is lost: all that is known is that these batch numbers were issued.
        run(SALVAGE.add_consumer, (name, last, last))
    broken = set(run(SALVAGE.recorded_batches_beyond).fetchall())
    for name, n, _, messages, size, blocks, packed, stored, newest in run(CHECK.recorded_batch_blocks).fetchall():
        if (messages, size, blocks) != (packed, stored, newest + 1):
            broken.add((name, n))
    for name, n, state, token, messages, rejected in run(LOOKS.recorded_batches).fetchall():
        if state == "open" and messages != leased.get(token, 0) + rejected:
            broken.add((name, n))
    for name, _, last, _, floor in run(RECORDED_BATCHES.consumers).fetchall():
        known: dict[int, Any] = dict(run(SALVAGE.recorded_batches_of, (name,)).fetchall())
        _release(run, name, {n for n in known if (name, n) in broken or hole}, known, note)
        if hole:
            first = max(floor + 1, last - MARKERS_MAX)
            for n in range(first, last + 1):
                if n not in known:
                    run(SALVAGE.add_released, (name, n))
            run(RECORDED_BATCHES.set_acked, (last, name))
            note(f"batches of consumer {name!r} are lost: none of {first} to {last} can be read")
    run(SALVAGE.drop_blocks)
    run(SALVAGE.drop_rejected)
    return frozenset(token for _, _, state, token, *_ in run(LOOKS.recorded_batches).fetchall() if state == "open")


def _release(run: Any, name: str, broken: set[int], known: dict[int, Any], note: Callable[[str], None]) -> None:
    """Release the broken batches, and open ones before a broken one: a consumer's batches are acked in order."""
    last_open = max((n for n in broken if known[n] == "open"), default=0)
    for n in sorted(broken | {n for n, state in known.items() if state == "open" and n <= last_open}):
        if known[n] != "released":
            rest = ", and its messages are ready again" if known[n] == "open" else ""
            note(f"batch {n} of consumer {name!r} is incomplete and cannot be read{rest}")
        run(RECORDED_BATCHES.give_up, (name, n))
        run(SALVAGE.empty_recorded_batch, (name, n))
        run(RECORDED_BATCHES.set_acked, (n, name))
