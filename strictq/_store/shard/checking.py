"""Check a shard: a memory that is built anew is compared with the rows of lanes, of messages, of dead letters, and with `gone`.

Nothing that was read is kept loaded: of a deep lane, which may have most of a queue, only arrival numbers are held.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final

import apsw

from ..._sql import CHECK, LOOKS, OUTPUTS, TABLES, TURNS
from ..._values.errors import StoreCorrupt, StrictqError
from ..._values.findings import Problem
from ..._values.hashing import hash_key
from ..._values.keys import ASIDE, decode_key, encode_key, is_keyless, shared_key
from ..lane import entries as kinds
from ..lane.entries import NEVER, TOKEN_BITS, Entry, encode_keys
from ..lane.live_lane import LaneAtRest, LiveLane, parse_done
from ..lane.memory import Group, ShardMemory, StoreLimits
from ..lane.totals import RunningTotals, StoredMark
from ..tables import gone, mark, outputs, parcels, tenant_depths, turn_rows
from .counting import depths_by_tenant, lanes_at_rest
from .loading import KINDS_WITHOUT_LANES, Loader
from .looking import LaneView, depth_of
from .messages import decode
from .shard_lanes import ShardLanes, Tx, last_outbox

Fix = Callable[[Tx], None]
Finding = tuple[str, str, Fix | None]
"""rule, detail, and the repair, if one is possible without a loss."""
Found = list[tuple[Problem, Fix | None]]

STEP: Final = 1_000
FINDINGS_MAX: Final = 100
PROBLEMS_MAX: Final = 1_000
_ALL: Final = 1 << 40
_INVALID: Final = (StoreCorrupt, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


def check(db: apsw.Connection, shard: int, owns: Callable[[int], bool], shards: int) -> Found:
    """Return every broken invariant of a shard, at most PROBLEMS_MAX, in one read transaction.

    Args:
        owns: whether a hash belongs to this shard.
        shards: the number of the queue's shards.
    """
    damage = [row[0] for row in db.execute(CHECK.integrity) if row[0] != "ok"]
    if damage:
        # The contents of the tables are not reliable.
        return [(Problem(shard, "integrity", text), None) for text in damage]
    found: Found = []
    try:
        for rule, detail, fix in islice(problems(db, shard, owns, shards), PROBLEMS_MAX):
            found.append((Problem(shard, rule, detail, fixable=fix is not None), fix))
    except UnicodeDecodeError as e:
        found.append((Problem(shard, "unreadable", f"a text is not UTF-8: {e}"), None))
    return found


def problems(db: apsw.Connection, shard: int, owns: Callable[[int], bool], shards: int) -> Iterator[Finding]:
    """Return what is wrong with a shard, in one read transaction.

    Every row of a message is that of an unresolved message of its lane, of a dead letter, or of a resolved message that is noted
    in `gone` or waits for the next fold. Every unresolved message has its row.

    Args:
        owns: whether a hash belonged to this shard when it was created. Ranges that have moved since are taken from the shard.
        shards: the number of the queue's shards.
    """
    memory = AuditedMemory(shard, StoreLimits())
    store = ShardLanes(shard, memory=memory)
    try:
        store.follow(db)
    except _INVALID as e:
        # Without a memory, nothing else can be compared.
        yield "log", _text(e), None
        return
    check = _Check(store, owns if memory.ranges is None else memory.ranges.may_hold)
    for problem in [*memory.findings[:FINDINGS_MAX], *islice(check.arrivals(), FINDINGS_MAX)]:
        check.doubtful = True
        yield "log", problem, None
    yield from check.lanes()
    yield from check.turns()
    yield from check.depths()
    yield from check.parcels()
    yield from check.messages()
    yield from check.dead_letters()
    yield from check.others()
    yield from check.recorded()
    yield from check.totals()
    for destination, i in db.execute(CHECK.outbox_nowhere, (shards,)):
        yield "outbox", f"send {i} is for shard {destination}, which does not exist", None


def _text(e: BaseException) -> str:
    return Exception.__str__(e) if isinstance(e, StrictqError) else f"{type(e).__name__}: {e}"


class _Check:
    """One check of a shard.

    Attributes:
        unresolved: the arrival numbers of all unresolved messages, without those of unreadable lanes.
        unreadable: the number of these.
        leaving: the arrival numbers of messages on their way to another shard.
        doubtful: lanes may have lost messages, so that a repair must not delete rows or set a total.
        endless: by token, how many messages leases without a deadline have. `endless_of`: their lanes and consumers.
    """

    def __init__(self, store: ShardLanes, owns: Callable[[int], bool]) -> None:
        self._store = store
        self._db = store.db
        self._run: Any = store.db.execute
        self._owns = owns
        self.unresolved = array("q")
        self.leaving: set[int] = set()
        self.n_lanes = 0
        self.unreadable = 0
        self.doubtful = False
        self.endless: Counter[int] = Counter()
        self.endless_of: list[tuple[int, str, bytes]] = []

    # ---- the logs

    def arrivals(self) -> Iterator[str]:
        """Return what is wrong with the messages that arrived since the totals were stored. None of them was deleted since."""
        store, memory = self._store, self._store.memory
        before: int = memory.mark.counted_top
        rows: list[Any] = self._run(TABLES.some_messages, (before, _ALL)).fetchall()
        ends: dict[bytes, int] = {}
        for i, key, seq in rows:
            if i != before + 1:
                yield f"the rows of messages {before + 1} to {i - 1} are missing"
            if seq < 1 or ends.setdefault(key, seq - 1) != seq - 1:
                yield f"row {i} of `message` has seq {seq} of key {key!r} after {ends.get(key, 0)}"
            before, ends[key] = i, seq
        if memory.top > before:
            yield f"the rows of messages {before + 1} to {memory.top} are missing"
        store.loader.load(ends)
        for key, seq in ends.items():
            if (tail := memory.lanes[key].tail) != seq:
                yield f"the newest message of key {key!r} has seq {seq}, but the tail is {tail}"

    # ---- lanes

    def lanes(self) -> Iterator[Finding]:
        store = self._store
        lanes, dirty = store.memory.lanes, store.memory.dirty
        after = b""
        for key, lane in list(lanes.items()):
            if key in dirty:
                yield from self._lane(lane if not lane.rest else store.loader.lane(key), None)
        while rows := self._run(TABLES.some_lanes, (after, STEP)).fetchall():
            after = rows[-1][0]
            for (key,) in rows:
                if key in dirty:
                    continue
                try:
                    row = store.rows.row(key)
                    (lane,) = lanes_at_rest(store, [key])
                except _INVALID as e:
                    self.unreadable += 1
                    yield "lane", f"lane {key!r}: {_text(e)}", None
                    continue
                yield from self._lane(lane, row)

    def _lane(self, lane: LiveLane, row: LaneAtRest | None) -> Iterator[Finding]:
        """Check one lane.

        Args:
            row: its row, which must say the same. None: it was changed since the row was written.
        """
        key, store = lane.key, self._store
        self.n_lanes += lane.tail > 0
        yield from self._key(key, "lane")
        try:
            view = LaneView(store, lane, 0)
            messages = view.unresolved(0, _ALL)
            done = lane.done if row is None else parse_done(row.done)
        except _INVALID as e:
            self.unreadable += 1
            yield "lane", f"lane {key!r}: {_text(e)}", None
            return
        self.unresolved.extend([i for _, i in messages])
        rows = store.log.keys([i for _, i in messages])
        for seq, i in messages:
            if not _is_of(rows.get(i), key, seq):
                self.doubtful = True
                yield "message", f"message {seq} of lane {key!r} has no row {i} in `message`", None
        if len(messages) != depth_of(lane):
            yield "lane", f"lane {key!r} has {len(messages)} messages, but its row counts {depth_of(lane)}", _rewrite(key)
        newest = store.memory.new_token() - 1
        for token in (lane.grant.token if lane.grant is not None else 0, done[0] if done is not None else 0):
            if token > newest:
                yield "token", f"the token {token} of lane {key!r} is newer than any issued", None
        yield from self._lease(lane, view, [seq for seq, _ in messages])
        times = store.log.times([i for _, i in messages])
        spared = lane.rare.redriven if lane.rare is not None else ()
        soonest = min((end for i, (_, end) in times.items() if end is not None and i not in spared), default=None)
        if soonest is not None and not 0 < lane.expires <= soonest:
            yield "expires", f"a message of lane {key!r} expires at {soonest}, but the lane at {lane.expires}", None
        if row is not None:
            yield from self._at_rest(lane, messages, times, row)

    def _lease(self, lane: LiveLane, view: LaneView, seqs: list[int]) -> Iterator[Finding]:
        """Check the lease of a lane, and what waits for its end."""
        key, lease, rare = lane.key, view.last_lease, lane.rare
        waiting = {seq for seq, _ in rare.waiting} if rare is not None else set()
        if lease is None:
            if waiting:
                yield "redrive", f"message {min(waiting)} of lane {key!r} waits for a lease that is not there", _revive(key)
            return
        if not lease.lo <= lease.hi <= lane.tail or not lease.lo - 1 <= lease.started <= lane.tail:
            detail = f"has {lease.lo}..{lease.hi}, started {lease.started}, but the tail is {lane.tail}"
            yield "lease", f"the lease of lane {key!r} {detail}", None
        leased = lane.leased()
        before = [seq for seq in seqs if seq < min(lease.lo, leased[0][0]) and seq not in waiting] if leased else []
        if before or (leased and leased[0][0] < lease.lo):
            seq = before[0] if before else leased[0][0]
            yield "lease_order", f"message {seq} of lane {key!r} comes before its lease, and is not part of it", None
        if lease.deadline == NEVER:
            self.endless[lease.token] += len(leased)
            self.endless_of.append((lease.token, lease.consumer, key))

    def _at_rest(
        self,
        lane: LiveLane,
        messages: list[tuple[int, int]],
        times: dict[int, tuple[int | None, int | None]],
        row: LaneAtRest,
    ) -> Iterator[Finding]:
        """Compare the columns by which a lane at rest is found with its contents."""
        position, due, held_at, lsn = row.position, row.due, row.held_at, row.lsn
        rare = lane.rare
        hold = rare is not None and rare.hold is not None
        waiting = {i for _, i in rare.waiting} if rare is not None else set()
        head = next(((seq, i) for seq, i in messages if i not in waiting), None)
        wanted = 0
        if head is not None and rare is not None:
            seq, i = head
            if i in rare.tried:
                wanted = rare.tried[i][2]
            elif seq <= rare.delayed and i not in rare.redriven:
                wanted = times.get(i, (None, None))[0] or 0
        problem = None
        if (held_at is not None) != hold:
            problem = "is held" if hold else "is not held, but listed as held"
        elif hold or lane.grant is not None or head is None:
            if position is not None or due is not None:
                state = "is held" if hold else "is leased" if lane.grant is not None else "has no message"
                problem = f"{state}, and listed as well"
        elif wanted and (due != wanted or position is not None):
            problem = f"is due at {wanted}, but listed at {due}"
        elif not wanted and (due is not None or position is None):
            problem = "is ready, but not listed so"
        if problem:
            yield "place", f"lane {lane.key!r} {problem}", _rewrite(lane.key)
        if lsn > self._store.memory.seen:
            yield "lsn", f"the row of lane {lane.key!r} includes entry {lsn}, but the newest is {self._store.memory.seen}", None

    def _key(self, key: bytes, what: str) -> Iterator[Finding]:
        if not is_key(key):
            yield "key", f"a {what} has the malformed key {key!r}", None
        elif not self._owns(hash_key(shared_key(key))):
            yield "hash_range", f"a {what} with key {key!r} belongs to another shard", None

    # ---- messages

    def turns(self) -> Iterator[Finding]:
        """Check that the ready lanes at rest are those that tenants take turns with."""
        store = self._store
        if not store.memory.mark.features & mark.TURNS:
            return
        separator = turn_rows.separator_of(store.db)
        if separator is not None:
            for (key,) in store.run(TURNS.wrong, (FINDINGS_MAX,)):
                yield "turn", f"lane {key!r} is not listed where its row says", _fill_turns(separator)

    def depths(self) -> Iterator[Finding]:
        """Check that the depths of tenants are those of their lanes."""
        store, counts = self._store, self._store.memory.counts
        if counts is None or self.doubtful:
            return
        stored, counted = store.tenant_depths(), depths_by_tenant(store, counts.separator)
        if stored != counted:
            name = next(name for name in sorted(stored | counted) if stored.get(name) != counted.get(name))
            detail = f"tenant {name!r} has {counted[name]} unresolved messages, not {stored.get(name, 0)}"
            yield "tenant_depth", detail, _fill_depths(counts.separator)

    def parcels(self) -> Iterator[Finding]:
        """Check that lanes on their way to another shard have their messages, and are not here as well."""
        store = self._store
        if not store.memory.mark.features & mark.RANGES:
            return
        for number in parcels.numbers(self._db):
            try:
                found = parcels.rows(self._db, number)
                arrivals = parcels.arrivals(found)
                keys = [row[0] for row in found.get(parcels.LANE, ())]
            except _INVALID as e:
                self.unreadable += 1
                yield "parcel", f"parcel {number}: {_text(e)}", None
                continue
            self.leaving.update(arrivals)
            missing = set(arrivals).difference(store.log.keys(arrivals))
            if missing and parcels.FLOORS in found:
                yield "parcel", f"parcel {number} has no row {min(missing)} in `message`", None
            for row in store.rows.load(keys):
                yield "parcel", f"lane {row.key!r} has left with parcel {number}, and is still here", None

    def messages(self) -> Iterator[Finding]:
        store, run = self._store, self._run
        memory = store.memory
        fresh = {i for _, ids in memory.gone for i in ids}
        mine = array("q", sorted(self.unresolved))
        for one, other in pairwise(mine):
            if one == other:
                self.doubtful = True
                yield "arrival", f"message {one} is in two places", None
        self.unresolved = mine
        at, after = 0, 0
        buckets: dict[int, int] = {}
        seen_key = b""
        while rows := run(LOOKS.all_messages, (after, STEP)).fetchall():
            after = rows[-1][0]
            dead = {i for (i,) in run(LOOKS.dead_between, (rows[0][0], after)).fetchall()}
            for i, key, seq, opts, due, expires, has_body in rows:
                bucket = i >> gone.BUCKET_BITS
                if bucket not in buckets:
                    try:
                        buckets = {bucket: gone.bits_of(self._db, memory.shard, bucket)}
                    except _INVALID as e:
                        buckets = {bucket: 0}
                        yield "gone", _text(e), _drop_bucket(bucket)
                while at < len(mine) and mine[at] < i:
                    at += 1
                is_pending, is_dead = at < len(mine) and mine[at] == i, i in dead
                if key != seen_key and (is_pending or is_dead or memory.ranges is None):
                    seen_key = key
                    yield from self._key(key, "message")
                noted = bool(buckets[bucket] >> (i & gone.BUCKET_MASK) & 1)
                where = f"row {i} of `message`, seq {seq} of key {key!r},"
                if is_pending and is_dead:
                    yield "dead_seq", f"{where} is unresolved and a dead letter", None
                elif noted and (is_pending or is_dead or i in self.leaving):
                    yield "gone", f"{where} is not resolved, but noted as such", _unnote(i)
                elif not (is_pending or is_dead or noted or i in fresh or i in self.leaving or self.unreadable):
                    self.doubtful |= memory.totals.pending != len(mine)
                    fix = None if self.doubtful else _note(i)
                    yield "gone", f"{where} is resolved, but its row is not noted for deletion", fix
                if is_pending or is_dead:
                    if not has_body:
                        yield "body", f"{where} has no body", None
                    if not _are_possible(opts, due, expires, memory.shard):
                        yield "value", f"{where} has values that no send writes", None

    def dead_letters(self) -> Iterator[Finding]:
        for key, seq, i, of, sent in self._run(LOOKS.dead_rows).fetchall():
            if not _is_of((of, sent), key, seq):
                yield "dead_seq", f"dead letter {seq} of lane {key!r} has no row {i} in `message`", None
            yield from self._key(key, "dead letter")

    # ---- other tables

    def others(self) -> Iterator[Finding]:
        run, memory = self._run, self._store.memory
        # Like the history, kept outputs stay where a message has ended.
        for (key,) in run(OUTPUTS.keys) if outputs.has_table(memory.mark) and memory.ranges is None else ():
            yield from self._key(key, "kept output")
        for (key,) in run(LOOKS.parts_of_none):
            yield "pending", f"there are ids of lane {key!r}, which has none", _delete(LOOKS.drop_parts_of_none, key)
        for i, attempts in run(LOOKS.trouble_of_none):
            if attempts >= 0:
                yield "trouble", f"there are errors of message {i}, which does not exist", _delete(LOOKS.drop_trouble_of, i)
            else:
                yield "value", f"message {i} has {attempts} attempts", None
        for bucket, bits in run(LOOKS.all_gone).fetchall():
            first = bucket << gone.BUCKET_BITS
            rows = {i for (i,) in run(LOOKS.messages_between, (first, first + gone.BUCKET_MASK)).fetchall()}
            noted = int.from_bytes(bits, "little")
            if any(noted >> at & 1 and first + at not in rows for at in range(gone.BUCKET_MASK + 1)):
                yield "gone", f"bucket {bucket} of `gone` notes messages that do not exist", _clean_bucket(bucket)
        for table, key in run(LOOKS.other_keys).fetchall():
            yield from self._key(key, table)
        for key, dedup_id in run(LOOKS.dedup_over_top, (memory.top,)):
            yield "dedup", f"dedup id {dedup_id!r} of lane {key!r} points past the newest message", None
        if memory.mark.cut > memory.seen or memory.mark.counted > memory.seen:
            yield "mark", f"`mark` includes entry {max(memory.mark.cut, memory.mark.counted)}, the newest is {memory.seen}", None
        newest: int = run(LOOKS.newest_outbox).get
        if newest > (issued := last_outbox(self._db)):
            yield "counter", f"last_outbox is {issued}, but {newest} was issued", None

    def recorded(self) -> Iterator[Finding]:
        """Check the batches of named consumers: their rows, their blocks, and the leases of open ones."""
        run = self._run
        for consumer, n, state, last, acked, floor in run(CHECK.recorded_batch_consumers):
            row = "no row" if last is None else f"newest {last}, acked {acked}, not kept {floor}"
            yield "recorded_batch", f"batch {n} of {consumer!r} is {state}, but the consumer has {row}", None
        for consumer, n, state, messages, size, blocks, packed, stored, newest in run(CHECK.recorded_batch_blocks):
            if newest + 1 != blocks:
                yield "recorded_batch", f"batch {n} of {consumer!r} lacks a block", None
            elif (0 if state == "released" else messages, size) != (packed, stored):
                detail = f"has {messages} messages in {size} bytes, its blocks {packed} in {stored}"
                yield "recorded_batch", f"batch {n} of {consumer!r} {detail}", None
        for what, consumer, n in run(CHECK.recorded_batch_orphans):
            yield "recorded_batch", f"there is a {what} of batch {n} of {consumer!r}, which does not exist", None
        states: dict[tuple[str, int], str] = {}
        for consumer, n, state, token, messages, rejected in run(LOOKS.recorded_batches):
            states[consumer, token] = state
            pending = self.endless[token]
            if state == "open" and messages != pending + rejected:
                detail = f"was made of {messages} messages and holds {pending + rejected}"
                yield "recorded_batch", f"batch {n} of {consumer!r} {detail}", None
        for token, consumer, key in self.endless_of:
            state = states.get((consumer, token), "")
            if state != "open":
                fix = _end_lease(key, token) if state == "released" else None
                yield "recorded_batch", f"the lease of lane {key!r} has no end, but belongs to no open batch of {consumer!r}", fix

    def totals(self) -> Iterator[Finding]:
        totals = self._store.memory.totals
        dead: int = self._run(LOOKS.all_dead).get
        for name, need in (("pending", len(self.unresolved)), ("dead", dead), ("lanes", self.n_lanes)):
            have = getattr(totals, name)
            if have != need:
                fix = None if self.unreadable or self.doubtful else _set_total(name)
                yield "counter", f"{name} is {have}, but there are {need}", fix


def _is_of(place: tuple[bytes, int] | None, key: bytes, seq: int) -> bool:
    """Return whether a message with this key and seq may be in the lane of a key at a seq.

    A parked message has the key of the lane that it was sent to, unless format 2 has parked it.
    """
    return place == (key, seq) or (is_keyless(key) and place == (key.split(ASIDE)[0], seq))


def is_key(key: bytes) -> bool:
    """Return whether it is a key that `encode_key` writes, or the key of a lane for keyless messages."""
    if is_keyless(key):
        return len(key) > 1
    try:
        return encode_key(decode_key(key)) == key
    except (ValueError, StrictqError):
        return False


def _are_possible(opts: str | None, due: int | None, expires: int | None, shard: int) -> bool:
    try:
        headers, *numbers, dedup_id = decode(opts, shard)
        if headers is not None:
            json.loads(headers)
        if dedup_id is not None and not isinstance(dedup_id, str):
            return False
        return (due or 0) >= 0 and (expires or 0) >= 0 and all(n is None or isinstance(n, (int, float)) for n in numbers)
    except _INVALID:
        return False


# ---- every lane, as a whole


def unresolved_of(lane: LiveLane) -> list[tuple[int, int]]:
    """Return (seq, arrival number) of the unresolved messages of a lane that is wholly loaded."""
    rare = lane.rare
    some = [(seq, i) for seq, i in enumerate(lane.ids or (), lane.first) if i]
    return some if rare is None else [*rare.front, *rare.waiting, *some]


def lanes_of(db: apsw.Connection, loader: Loader) -> Iterator[LiveLane]:
    """Return all lanes, each with all of its ids: those with rows, and those that are only in the logs."""
    run: Any = db.execute
    memory: ShardMemory = loader.memory
    after = b""
    done: set[bytes] = set()
    while rows := run(TABLES.some_lanes, (after, STEP)).fetchall():
        after = rows[-1][0]
        for (key,) in rows:
            done.add(key)
            yield _whole(loader, key)
    for key in [key for key in memory.lanes if key not in done]:
        yield _whole(loader, key)


def _whole(loader: Loader, key: bytes) -> LiveLane:
    lane = loader.lane(key)
    while lane.split:
        loader.extend(lane, lane.deep)
    return lane


# ---- repairs


def _delete(statement: str, value: Any) -> Fix:
    def fix(tx: Tx) -> None:
        tx.run(statement, (value,))

    return fix


def _fill_turns(separator: str) -> Fix:
    def fix(tx: Tx) -> None:
        turn_rows.rebuild(tx.db, separator, create=False)

    return fix


def _fill_depths(separator: bytes) -> Fix:
    def fix(tx: Tx) -> None:
        store = tx.lanes
        tenant_depths.rebuild(tx.db, depths_by_tenant(store, separator), create=False)
        if store.memory.counts is not None:
            store.memory.counts.forget_depths(tenant_depths.some(tx.db))
        store.add_feature(mark.TENANT_DEPTHS)  # writes the mark as of now

    return fix


def _rewrite(key: bytes) -> Fix:
    """Write the row of a lane again. Every memory begins anew, because its indexes may have been read."""

    def fix(tx: Tx) -> None:
        store = tx.lanes
        if key in store.memory.dirty:
            return  # the next fold writes it
        lane = store.loader.lane(key)
        store.rows.write([lane], lane.lsn)
        store.begin_anew()

    return fix


def _revive(key: bytes) -> Fix:
    """Let redriven messages be unresolved that wait for a lease that is not there."""

    def fix(tx: Tx) -> None:
        store = tx.lanes
        lane = store.loader.lane(key)
        if lane.grant is None and lane.rare is not None and lane.rare.waiting:
            store.append(kinds.RELEASE, [(lane, [])], holder=kinds.BY_KEY, data=encode_keys([key]))
            tx.wake = True

    return fix


def _note(arrival: int) -> Fix:
    def fix(tx: Tx) -> None:
        store = tx.lanes
        memory = store.memory
        place = store.log.keys([arrival]).get(arrival)
        if place is None or tx.run(LOOKS.dead_with, (arrival,)).get or any(arrival in ids for _, ids in memory.gone):
            return
        lane = store.loader.lane(store.loader.keys_of([arrival])[arrival])
        if place[1] <= lane.tail and LaneView(store, lane, 0).arrival_of(place[1]) is None:
            gone.delete(tx.db, store.log, memory.shard, [arrival], memory.top)

    return fix


def _unnote(arrival: int) -> Fix:
    def fix(tx: Tx) -> None:
        bucket = arrival >> gone.BUCKET_BITS
        bits = gone.bits_of(tx.db, tx.shard, bucket) & ~(1 << (arrival & gone.BUCKET_MASK))
        gone.write(tx.db, tx.shard, bucket, bits)

    return fix


def _drop_bucket(bucket: int) -> Fix:
    """Forget which rows of a bucket may be deleted. Those that are resolved are noted again."""

    def fix(tx: Tx) -> None:
        try:
            gone.bits_of(tx.db, tx.shard, bucket)
        except _INVALID:
            tx.run(TABLES.drop_gone, (bucket,))

    return fix


def _clean_bucket(bucket: int) -> Fix:
    def fix(tx: Tx) -> None:
        first = bucket << gone.BUCKET_BITS
        rows: list[Any] = tx.run(LOOKS.messages_between, (first, first + gone.BUCKET_MASK)).fetchall()
        present = sum(1 << (i & gone.BUCKET_MASK) for (i,) in rows)
        gone.write(tx.db, tx.shard, bucket, gone.bits_of(tx.db, tx.shard, bucket) & present)

    return fix


def _end_lease(key: bytes, token: int) -> Fix:
    def fix(tx: Tx) -> None:
        store = tx.lanes
        lane = store.loader.lane(key)
        if lane.grant is not None and lane.grant.token == token:
            store.append(kinds.RELEASE, [(lane, [])], token=token, holder=kinds.BY_KEY, data=encode_keys([key]))
            tx.wake = True

    return fix


def _set_total(name: str) -> Fix:
    def fix(tx: Tx) -> None:
        # Count again: the finding was made before this transaction.
        store = tx.lanes
        check = _Check(store, lambda _hash: True)
        for _ in check.lanes():
            pass
        counted = {"pending": len(check.unresolved), "dead": tx.run(LOOKS.all_dead).get, "lanes": check.n_lanes}
        setattr(store.memory.totals, name, counted[name])
        store.mark_changed = True

    return fix


# ---- a memory in use


def differences(store: ShardLanes) -> Iterator[str]:
    """Return in what a memory in use differs from one that is built anew, in one read transaction."""
    other = ShardLanes(store.shard)
    other.follow(store.db)
    mine, fresh = store.memory, other.memory
    if (mine.seen, mine.top, mine.last_token, mine.floor) != (fresh.seen, fresh.top, fresh.last_token, fresh.floor):
        yield f"it is at entry {mine.seen}, message {mine.top}, and the file at {fresh.seen}, {fresh.top}"
    for name in ("lanes", "pending", "dead"):
        if getattr(mine.totals, name) != getattr(fresh.totals, name):
            yield f"its total {name} is {getattr(mine.totals, name)}, not {getattr(fresh.totals, name)}"
    if store.tenant_depths() != other.tenant_depths():
        yield "its depths of tenants differ"
    if mine.dirty.keys() != fresh.dirty.keys():
        yield f"it has {len(mine.dirty)} changed lanes, not {len(fresh.dirty)}"
    for key, lane in list(mine.lanes.items()):
        if not lane.rest and brief(store, lane) != (wanted := brief(other, other.loader.lane(key))):
            yield f"lane {key!r} is {brief(store, lane)}, not {wanted}"


def brief(store: ShardLanes, lane: LiveLane) -> tuple[Any, ...]:
    """Return what must be equal in every memory of a lane. The first item is its tail."""
    view = LaneView(store, lane, 0)
    rare = lane.rare
    tried = {} if rare is None else {i: one for i, one in rare.tried.items() if any(one)}
    return (view.tail, view.depth, view.unresolved(0, 64), view.last_lease, view.hold, view.due, view.solo, tried)


_OF_LEASE: Final = frozenset((
    kinds.MORE, kinds.ACK, kinds.ACK_FIRST, kinds.NACK, kinds.DEFER, kinds.REJECT, kinds.DROP, kinds.START, kinds.EXTEND,
    kinds.RELEASE,
))  # fmt: skip
"""Kinds of entries whose token, if they have one, is that of the lanes' leases."""
_RESOLVES: Final = frozenset((kinds.ACK, kinds.REJECT, kinds.DROP, kinds.PURGE, kinds.EXPIRE))


class AuditedMemory(ShardMemory):
    """The memory of a check.

    Attributes:
        findings: what is wrong with entries.
    """

    def clear(self, mark: StoredMark, totals: RunningTotals) -> None:
        super().clear(mark, totals)
        self.findings: list[str] = []
        self._last_claim = 0
        self._last_top = 0

    def apply(self, entry: Entry, groups: Sequence[Group]) -> None:
        where = f"row {entry[0]} of its journal"
        self.findings += [f"{where} {problem}" for problem in self._problems(entry, groups)]
        super().apply(entry, groups)

    def ack_one(self, entry: Entry) -> bool:  # noqa: ARG002 - the base defines the signature
        """Leave every entry to `apply`, which compares it with the state before it."""
        return False

    def _problems(self, entry: Entry, groups: Sequence[Group]) -> Iterator[str]:
        _, kind, at, top, token, _, _, data = entry
        if at < self.at:
            yield "is older than the row before it"
        if top < self._last_top:
            yield "has an older newest message than the row before it"
        self._last_top = max(top, self._last_top)
        if not data and kind not in KINDS_WITHOUT_LANES:
            yield "names no message and no key"
        if kind == kinds.CLAIM:
            if token <= self._last_claim:
                yield "has a token that was issued before"
            if token >> TOKEN_BITS > self.mark.epoch:
                yield "has a token of a later epoch"
            self._last_claim = max(token, self._last_claim)
        for lane, ids in groups:
            problem = self._problem(kind, token, lane, ids)
            if problem is not None:
                yield f"{problem} of lane {lane.key!r}"

    @staticmethod
    def _problem(kind: int, token: int, lane: LiveLane, ids: list[int]) -> str | None:
        if kind == kinds.CLAIM:
            return None if _unresolved(lane)[: len(ids)] == ids else "claims other messages than the first ones"
        if kind in _OF_LEASE and token:
            if lane.grant is None or lane.grant.token != token:
                return "has another token than the lease"
            if kind == kinds.MORE:
                n = len(lane.leased())
                return None if _unresolved(lane)[n : n + len(ids)] == ids else "claims other messages than the next ones"
            return None if {i for _, i in lane.leased()}.issuperset(ids) else "names messages that are not in the lease"
        if kind in _RESOLVES:
            waiting = [i for _, i in lane.rare.waiting] if lane.rare is not None else []
            known = {*_unresolved(lane), *(lane.new or ()), *waiting}
            return None if known.issuperset(ids) else "resolves messages that are not unresolved"
        return None


def _unresolved(lane: LiveLane) -> list[int]:
    """Return the loaded unresolved messages of a lane, in the order in which they are delivered."""
    front = [i for _, i in lane.rare.front] if lane.rare is not None else []
    return [*front, *filter(None, lane.ids or ())]
