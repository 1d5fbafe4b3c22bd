"""A consistency check of one shard: every invariant of the tables, verified by reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import apsw
import attrs

from ... import _files as files
from ..._errors import StoreCorrupt, StoreError, StrictqError
from ..._findings import Problem
from ..._hashing import hash_key
from ..._keys import decode_key, encode_key, is_keyless, shared_key
from ..._sql import CHECK, CLAIM, LANES, SETTLE, SHARD
from .. import catalog
from ..commit.calls import bound
from ..commit.tx import TOKEN_BITS, Totals, Tx
from ..hot.audit import Audit
from ..onelane import checking
from ..onelane.shard_lanes import ShardLanes, last_outbox
from . import lanes
from .sweeps import SCAN_PAUSE

if TYPE_CHECKING:
    from ..store import Store

Fix = Callable[[Tx], None]
Finding = tuple[str, str, Fix | None]
"""rule, detail, and the repair, if one is possible without a loss."""

FINDINGS_MAX: Final = 1000


def check(db: apsw.Connection, shard: int, owns: Callable[[int], bool], shards: int) -> list[tuple[Problem, Fix | None]]:
    """Return every broken invariant of a shard, at most FINDINGS_MAX, in one read transaction.

    Args:
        owns: whether a hash belongs to this shard.
        shards: the number of the queue's shards.
    """
    return _found(db, shard, _all(db, owns, shards))


def check_lanes(db: apsw.Connection, shard: int, owns: Callable[[int], bool], shards: int) -> list[tuple[Problem, Fix | None]]:
    """Do the same for a shard of format 3."""
    return _found(db, shard, checking.problems(db, shard, owns, shards))


def _found(db: apsw.Connection, shard: int, findings: Iterable[Finding]) -> list[tuple[Problem, Fix | None]]:
    damage = [row[0] for row in db.execute(CHECK.integrity) if row[0] != "ok"]
    if damage:
        # The contents of the tables are not reliable.
        return [(Problem(shard, "integrity", text), None) for text in damage]
    found: list[tuple[Problem, Fix | None]] = []
    try:
        for rule, detail, fix in islice(findings, FINDINGS_MAX):
            found.append((Problem(shard, rule, detail, fixable=fix is not None), fix))
    except UnicodeDecodeError as e:
        found.append((Problem(shard, "unreadable", f"a text is not UTF-8: {e}"), None))
    return found


def check_logs(db: apsw.Connection, shard: int) -> list[tuple[Problem, Fix | None]]:
    """Return what is wrong with the logs of hot lanes. If anything is, the tables can't be checked."""
    if db.execute(SHARD.read_counter).get is None:
        return []  # `check` reports it
    return [(Problem(shard, "log", text), None) for text in islice(Audit(db).findings(), FINDINGS_MAX)]


def _all(db: apsw.Connection, owns: Callable[[int], bool], shards: int) -> Iterator[Finding]:
    if db.execute(SHARD.read_counter).get is None:
        yield "counter", "the counter row is missing", None
        return
    yield from _keys(db, owns)
    yield from _counts(db)
    yield from _places(db)
    yield from _leases(db)
    yield from _bodies(db)
    yield from _handouts(db)
    yield from _counter(db)
    for destination, i in db.execute(CHECK.outbox_nowhere, (shards,)):
        yield "outbox", f"send {i} is for shard {destination}, which does not exist", None


def _keys(db: apsw.Connection, owns: Callable[[int], bool]) -> Iterator[Finding]:
    for lane, key in db.execute(CHECK.lane_keys):
        if not _is_key(key):
            yield "key", f"lane {lane} has the malformed key {key!r}", None
        elif not owns(hash_key(shared_key(key))):
            yield "hash_range", f"lane {lane} with key {key!r} belongs to another shard", None
    for table, lane in db.execute(CHECK.orphans):
        yield "orphan", f"{table} has rows of lane {lane}, which does not exist", None


def _is_key(key: bytes) -> bool:
    """Return whether it is a key that `encode_key` writes, or the key of a lane for keyless messages."""
    if is_keyless(key):
        return len(key) > 1
    try:
        return encode_key(decode_key(key)) == key
    except (ValueError, StrictqError):
        return False


def _counts(db: apsw.Connection) -> Iterator[Finding]:
    for lane, last_seq, resolved, rows, newest, _ in db.execute(CHECK.seq_over_tail):
        yield (
            "lane_counts",
            f"lane {lane}: {rows} messages and {resolved} resolved, but the tail is {max(newest, last_seq)}",
            None,
        )
    for lane, seq in db.execute(CHECK.dead_over_tail):
        yield "dead_seq", f"dead letter {seq} of lane {lane} was never issued, or is in the lane as well", None
    for (arrival,) in db.execute(CHECK.twice_arrived):
        yield "arrival", f"two messages have the arrival number {arrival}", None
    for lane, seq in db.execute(CHECK.bad_types):
        yield "value", f"message {seq} of lane {lane} has values that no send writes", None
    for lane, hold in db.execute(CHECK.holds):
        try:
            hold.decode()
        except UnicodeDecodeError:
            yield "value", f"the reason why lane {lane} is held is not text", None
    for lane, dedup_id in db.execute(CHECK.dedup_over_tail):
        yield "dedup", f"dedup id {dedup_id!r} of lane {lane} points past the newest message", None


def _places(db: apsw.Connection) -> Iterator[Finding]:
    for lane, head, due, hold, expired, _ack_first, position, careful, listed_due, solo_to in db.execute(CHECK.lane_places):
        leased = expired is not None and not expired
        listed = (position is not None) + (listed_due is not None)
        problem = None
        if head is None:
            if listed and not (expired and position is not None):
                problem = "is listed, but has no message"
        elif hold is not None and listed:
            problem = "is held, and listed as well"
        elif leased and listed:
            problem = "is leased, and listed as well"
        elif hold is None and not leased and listed == 0:
            problem = "has messages, but is neither listed, held nor leased"
        elif listed == 2:
            problem = "is listed as ready and as delayed"
        elif listed_due is not None and listed_due != due:
            problem = f"is listed as due at {listed_due}, its head at {due}"
        elif position is not None and not careful and (expired or solo_to >= head):
            problem = "must be claimed carefully, but is not marked so"
        if problem:
            yield "place", f"lane {lane} {problem}", _replace(lane)
    for lane, seq in db.execute(CHECK.redrive_flags):
        yield "redrive", f"dead letter {seq} of lane {lane} waits for a lease that is not there", _revive(lane, seq)


def _replace(lane: int) -> Fix:
    def fix(tx: Tx) -> None:
        lanes.unlist(tx, lane)
        lease = lanes.lease_of(tx, lane)
        if lease is None:
            lanes.place(tx, lane)
        elif lease.expired and lanes.get(tx, lane).hold is None:
            lanes.list_ready(tx, lane, tx.new_position(), careful=True)

    return fix


def _revive(lane: int, seq: int) -> Fix:
    def fix(tx: Tx) -> None:
        if not tx.run(CHECK.redrive_stuck, (lane, seq)).get:
            return  # another caller has repaired it
        lanes.revive(tx, lane, seq)
        lanes.unlist(tx, lane)
        if lanes.lease_of(tx, lane) is None:
            lanes.place(tx, lane)

    return fix


def _leases(db: apsw.Connection) -> Iterator[Finding]:
    totals = Totals.read(db)
    newest = (totals.epoch << TOKEN_BITS) + totals.last_token
    for lane, pending, rows, lo, hi, started, token, ack_first, tail in db.execute(CHECK.lease_counts):
        if not ack_first and pending != rows:
            yield (
                "lease",
                f"the lease of lane {lane} counts {pending} messages, {rows} lie in {lo}..{hi}",
                _set_pending(lane) if rows else None,
            )
        elif not ack_first and rows == 0:
            yield "lease", f"the lease of lane {lane} holds nothing", None
        if tail is not None and (hi > tail or started < lo - lanes.SAYS_STARTS):
            yield "lease", f"the lease of lane {lane} has {lo}..{hi}, started {started}, but the tail is {tail}", None
        if token > newest:
            yield "token", f"the token {token} of lane {lane} is newer than any issued", None
    for lane, seq in db.execute(CHECK.lease_skips):
        yield "lease_order", f"message {seq} of lane {lane} comes before its lease, and is not part of it", None


def _set_pending(lane: int) -> Fix:
    def fix(tx: Tx) -> None:
        rows = tx.run(CHECK.leased_rows, (lane,)).get
        if rows:
            tx.run(SETTLE.shrink, (rows, lane))

    return fix


def _handouts(db: apsw.Connection) -> Iterator[Finding]:
    for consumer, n, state, last, acked, floor in db.execute(CHECK.handout_consumers):
        row = "no row" if last is None else f"newest {last}, acked {acked}, not kept {floor}"
        yield "handout", f"batch {n} of {consumer!r} is {state}, but the consumer has {row}", None
    for consumer, n, state, messages, size, blocks, packed, stored, newest in db.execute(CHECK.handout_blocks):
        if newest + 1 != blocks:
            yield "handout", f"batch {n} of {consumer!r} lacks a block", None
        elif (0 if state == "released" else messages, size) != (packed, stored):
            yield (
                "handout",
                f"batch {n} of {consumer!r} has {messages} messages in {size} bytes, its blocks {packed} in {stored}",
                None,
            )
    for consumer, n, messages, pending, rejected in db.execute(CHECK.handout_leases):
        if messages != pending + rejected:
            yield "handout", f"batch {n} of {consumer!r} was made of {messages} messages and holds {pending + rejected}", None
    for what, consumer, n in db.execute(CHECK.handout_orphans):
        yield "handout", f"there is a {what} of batch {n} of {consumer!r}, which does not exist", None
    for lane, consumer, state in db.execute(CHECK.lease_endless):
        yield (
            "handout",
            f"the lease of lane {lane} has no end, but belongs to no open batch of {consumer!r}",
            _end_lease(lane) if state == "released" else None,
        )


def _end_lease(lane: int) -> Fix:
    def fix(tx: Tx) -> None:
        if lane in {row[0] for row in tx.run(CHECK.lease_endless)}:
            lease = lanes.lease_of(tx, lane)
            assert lease is not None
            lanes.release_lane(tx, lease)

    return fix


def _bodies(db: apsw.Connection) -> Iterator[Finding]:
    for table, lane, seq in db.execute(CHECK.body_missing):
        yield "body", f"the body of {table} {seq} of lane {lane} is missing", None
    for (i,) in db.execute(CHECK.body_unused):
        yield "body_unused", f"body {i} belongs to no message", _drop_body(i)


def _drop_body(i: int) -> Fix:
    return lambda tx: _run(tx, LANES.delete_body, (i,))


def _counter(db: apsw.Connection) -> Iterator[Finding]:
    t = Totals.read(db)
    arrival, buried, position, lane, token, outbox, done = db.execute(CHECK.maxima).get
    messages, dead, lane_count = db.execute(CHECK.totals).get
    newest = (t.epoch << TOKEN_BITS) + t.last_token
    for name, have, need in (
        ("last_id", t.last_id, max(arrival, buried, position)),
        ("last_lane", t.last_lane, lane),
        ("last_token", newest, max(token, done)),
        ("last_outbox", t.last_outbox, outbox),
    ):
        if have < need:
            yield "counter", f"{name} is {have}, but {need} was issued", None
    for name, have, need in (("pending", t.pending, messages), ("dead", t.dead, dead), ("lanes", t.lanes, lane_count)):
        if have != need:
            yield "counter", f"{name} is {have}, but there are {need}", _set_total(name)

    soonest = db.execute(CLAIM.next_deadline).get[0]
    if soonest is not None and soonest + SCAN_PAUSE < t.next_deadline:
        yield "counter", f"next_deadline is {t.next_deadline}, but a lease ends at {soonest}", _look_at_leases


def _look_at_leases(tx: Tx) -> None:
    tx.totals.next_deadline = 0  # the next claim reads them all
    tx.dirty = True


def _set_total(name: str) -> Fix:
    def fix(tx: Tx) -> None:
        # Count again: the finding was made before this transaction.
        counted = dict(zip(("pending", "dead", "lanes"), tx.run(CHECK.totals).get, strict=True))
        setattr(tx.totals, name, counted[name])
        tx.dirty = True

    return fix


def _run(tx: Tx, statement: str, values: tuple[Any, ...]) -> None:
    tx.run(statement, values)


# ---- between the files of a queue


def check_queue(store: Store, *, fix: bool) -> list[Problem]:
    """Return every broken invariant of queue.db, of each shard, and between them.

    Args:
        fix: repair what can be repaired without a loss.
    Raises:
        StoreError: no file descriptor is left to read with.
    """
    problems = check_catalog(store)
    for shard in store.shards:
        try:
            found: list[tuple[Problem, Fix | None]] = []
            if shard.lanes is not None:
                with suppress(StoreCorrupt):  # reading the file again says what is wrong
                    found = shard.view(_check_memory)
            if shard.hot is not None:
                found = shard.look(bound(check_logs, shard.number), hot=False)
            if not found:
                if fix:
                    shard.cool()  # a repair refers to lanes of the tables
                look = check if shard.lanes is None else check_lanes
                found = shard.look(bound(look, shard.number, shard.range.owns, len(store.shards)))
        except StoreError as e:
            files.require_descriptors()
            problems.append(Problem(shard.number, "unreadable", str(e)))
            continue
        for problem, repair in found:
            if fix and repair is not None:
                shard.run(repair)
                problem = attrs.evolve(problem, fixed=True)
            problems.append(problem)
    return problems + check_inlets(store)


def _check_memory(lanes: ShardLanes) -> list[tuple[Problem, Fix | None]]:
    """Compare the memory of this process with one that is built anew. It is the file that counts, so a repair builds it anew."""

    def fix(tx: Tx) -> None:
        assert tx.lanes is not None
        tx.lanes.begin_anew()

    return [(Problem(lanes.shard, "memory", text, fixable=True), fix) for text in islice(checking.differences(lanes), 20)]


def check_catalog(store: Store) -> list[Problem]:
    """Return what is wrong with queue.db."""
    if store.directory is None:
        return []
    try:
        known = catalog.read(store.directory, read_only=True)
        damage = catalog.damage(store.directory)
    except StrictqError as e:
        files.require_descriptors()
        return [Problem(-1, "unreadable", str(e))]
    found = [Problem(-1, "integrity", text) for text in damage]
    if (known.queue_id, known.topology) != (store.catalog.queue_id, store.catalog.topology):
        found.append(Problem(-1, "identity", "queue.db was replaced by another queue's"))
    return found


def check_inlets(store: Store) -> list[Problem]:
    """Return shards that have recorded more arrivals from another shard than it ever sent. They would discard later sends."""
    has_lanes = store.catalog.has_lanes
    sent: dict[str, int] = {}
    had: list[tuple[int, str, int]] = []
    for shard in store.healthy():
        try:
            rows: list[Any] = shard.look(lambda db: db.execute(CHECK.inlets).fetchall())
        except (StrictqError, TypeError):
            continue  # reported as unreadable, or as a missing counter row
        had += [(shard.number, origin, high) for origin, high in rows]
    # Read what was sent after what has arrived: more may be sent, and arrive, in between.
    for shard in store.healthy():
        with suppress(StrictqError, TypeError):
            sent[shard.incarnation] = shard.look(lambda db: last_outbox(db) if has_lanes else Totals.read(db).last_outbox)
    return [
        Problem(number, "inlet", f"has had send {high} of shard file {origin}, which has sent {sent[origin]}")
        for number, origin, high in had
        if high > sent.get(origin, high)
    ]
