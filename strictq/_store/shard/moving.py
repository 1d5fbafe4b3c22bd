"""Lanes leave a shard and arrive in another one, in steps that any process may repeat or continue.

A lane is at rest when it leaves, so its row, the rows of its messages and what other tables have of it are all there is to it.
They go into a parcel, in one transaction, and arrive in one transaction of the other shard, behind its newest message. Between
the two no call finds the lane in either shard; the one that misses it carries the parcel over, and then repeats the call. The
rows of messages are only deleted afterwards, when no call waits any more.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import apsw
import attrs

from ..._sql import OUTBOX, RANGES, TABLES, TURNS, any_of, repeated
from ..._values import hints
from ..._values.errors import MoveBlocked, StoreCorrupt
from ..._values.keys import is_keyless, shared_key
from ..._values.tenants import tenant_of
from ..lane.entries import ID_BYTES, NEVER, TOKEN_BITS, pack, unpack
from ..lane.live_lane import LaneAtRest
from ..lane.memory import MessageRow
from ..lane.order import place_of_arrival
from ..lane.ranges import Passage, Ranges, hash_of
from ..tables import app_rows, gone, key_states, mark, parcels
from ..tables.app_rows import KeyedTable
from ..tables.lane_rows import LaneRows
from ..tables.log_rows import LogRows, in_parts
from . import expiring
from .shard_lanes import ShardLanes, Tx

LANES_MAX: Final = 256
MESSAGES_MAX: Final = 2_500
AHEAD_MIN: Final = 1_000
"""Fewer messages are read while their lanes wait: that is shorter than to look for them before."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""What leaves in one step, so that no lane waits for long. A lane that is larger leaves alone."""
_DEAD: Final = repeated(RANGES.dead, 256, 32, 4, 1)
_DEDUPS: Final = repeated(RANGES.dedup, 256, 32, 4, 1)
_DROP_LANES: Final = repeated(RANGES.drop_lanes, 256, 32, 4, 1)
_STATES: Final = repeated(RANGES.key_state, 256, 32, 4, 1)
SCAN: Final = 4_096
"""How many rows are read at once to find the next lanes of the range."""


class Left(NamedTuple):
    """What one step took out of a shard.

    Attributes:
        lanes, messages: how many. A dead letter is a message.
        after: the key up to which every lane of the range has left. None: all have.
        waits: lanes of recorded batches, which cannot leave before these are acked or released.
    """

    lanes: int
    messages: int
    after: bytes | None
    waits: int


def of_shard(store: ShardLanes, first: tuple[int, int]) -> Ranges:
    """Return the ranges of a shard.

    Args:
        first: what it owns if nothing has moved from it or to it.
    """
    known = store.memory.ranges
    if known is not None:
        return known
    return Ranges(own=(first,) if first[0] <= first[1] else ())


def set_ranges(tx: Tx, ranges: Ranges) -> None:
    """Store the ranges of a shard. The caller ends with `change_rows`, or `tell`, by which every process notices."""
    store = tx.lanes
    if not store.memory.mark.features & mark.RANGES:
        parcels.create(tx.db)
        store.memory.mark.features |= mark.RANGES
        store.mark_changed = True
    parcels.set_ranges(tx.db, ranges)
    store.memory.ranges = ranges


def tell(tx: Tx, ranges: Ranges) -> None:
    """Store the ranges of a shard, and let every process read them."""
    set_ranges(tx, ranges)
    tx.lanes.rest()
    tx.lanes.change_rows()
    tx.wake = True


def own(tx: Tx, lo: int, hi: int) -> None:
    """Let a shard own hashes that no shard owns."""
    ranges = tx.lanes.memory.ranges
    assert ranges is not None
    tell(tx, ranges.with_range(lo, hi))


def has_lane_within(store: ShardLanes, lo: int, hi: int) -> bool:
    """Return whether a lane of the shard has a hash in an interval."""
    if any(lane.tail and lo <= hash_of(key) <= hi for key, lane in store.memory.lanes.items()):
        return True
    after = b""
    while rows := store.run(RANGES.keys_after, (after, SCAN)).fetchall():
        if any(lo <= hash_of(key) <= hi for key, *_ in rows):
            return True
        after = rows[-1][0]
    return False


def is_busy(store: ShardLanes) -> bool:
    """Return whether more has changed since the last fold than one slice writes."""
    memory = store.memory
    resolved = sum(len(ids) for _, ids in memory.gone)
    return len(memory.dirty) > memory.limits.slice or resolved > memory.limits.deleted


def app_tables(db: apsw.Connection, shard: int) -> list[KeyedTable]:
    """Return the program's own tables, whose rows move with their keys.

    Raises:
        MoveBlocked: one has rows, and it is not known which column has their keys.
    """
    tables, others = app_rows.keyed(db, shard)
    for name in others:
        if db.execute(any_of(name)).get:
            raise MoveBlocked(
                f"the table {name} has rows, and strictq does not know their keys; nothing was changed",
                hint=hints.NAME_KEY_COLUMNS,
            )
    return tables


def rows_in_the_way(db: apsw.Connection, shard: int, lo: int, hi: int) -> str | None:
    """Return a table with rows of keys of a range that this shard does not own, and which rows that arrive could meet."""
    for table in app_rows.keyed(db, shard)[0]:
        after = None
        while table.unique and (values := app_rows.values_after(db, table, after, SCAN)):
            if any(key is not None and lo <= hash_of(key) <= hi for key in map(app_rows.key_of, values)):
                return table.name
            after = values[-1]
    return None


def depths(store: ShardLanes) -> dict[bytes, int]:
    """Return how many positions of each loaded lane are unresolved."""
    return {key: lane.tail - lane.first + 1 for key, lane in store.memory.lanes.items()}


def long_key(
    db: apsw.Connection, shard: int, loaded: Mapping[bytes, int], spans: Sequence[tuple[int, int]], most: int
) -> tuple[bytes, int] | None:
    """Return a key of these ranges with more than so many messages, or rows of the program, and how many. None: there is none.

    Args:
        loaded: see `depths`. The rows of other lanes are read.
    """
    deep: list[Any] = [*loaded.items()]
    deep += [row for row in db.execute(RANGES.deep, (most,)).fetchall() if row[0] not in loaded]
    for table in app_rows.keyed(db, shard)[0]:
        deep += [(key, n) for value, n in app_rows.often(db, table, most) if (key := app_rows.key_of(value)) is not None]
    return next(((key, n) for key, n in deep if n > most and any(lo <= hash_of(key) <= hi for lo, hi in spans)), None)


def is_in_use(db: apsw.Connection, shard: int, first: tuple[int, int]) -> bool:
    """Return whether a shard owns a range, or gets one. Needs no memory, and is as new as the file."""
    found = parcels.stored_ranges(db, shard)
    return first[0] <= first[1] if found is None else bool(found.own) or found.arriving is not None


def departed(db: apsw.Connection) -> int:
    """Return a number that grows with each step in which lanes leave a shard."""
    return parcels.newest(db)


# ---- leaving


def ahead(db: apsw.Connection, shard: int, passage: Passage, after: bytes, chunk: int) -> tuple[bytes, dict[int, MessageRow]]:
    """Look for the next lanes of a range, in a read transaction. No lane of the range is created meanwhile.

    Returns:
        The key before the first of them, or the last key of all. And the messages that will probably leave with it: they need not
        be read while its lane waits.
    """
    run: Any = db.execute
    start, keys, messages = after, list[bytes](), 0
    while (
        messages < MESSAGES_MAX and len(keys) < LANES_MAX and (rows := run(RANGES.keys_after, (after, 2 * LANES_MAX)).fetchall())
    ):
        for key, deep, _ in rows:
            after = key
            if not passage.has(hash_of(key)):
                start = start if keys else key
                continue
            if messages >= MESSAGES_MAX or len(keys) >= LANES_MAX or (keys and messages + deep > MESSAGES_MAX):
                break
            keys.append(key)
            messages += deep
        else:
            continue
        break
    if messages < AHEAD_MIN:
        return start, {}
    lanes = LaneRows(db, shard, chunk)
    arrivals = {i for row in lanes.load(keys) for i in parcels.unresolved(_whole(lanes, row))}
    return start, LogRows(db, shard).whole(arrivals)


def leave(tx: Tx, passage: Passage, after: bytes) -> Left | None:
    """Put the next lanes of a range into a parcel. None: nothing may leave, because the move has been cancelled, or because sends
    of the shard to others have not arrived.

    Otherwise a later transaction on a key, in its new shard, could overtake what an earlier one has sent.

    Args:
        after: every lane of the range with a key up to this one has left.
    """
    store = tx.lanes
    memory = store.memory
    if memory.ranges is None or memory.ranges.leaving != passage or tx.run(OUTBOX.any).get is not None:
        return None
    tables = app_tables(tx.db, store.shard)
    store.rest()
    keys, last, waits = _next(tx, passage, after)
    lanes = [_whole(store.rows, row) for row in store.rows.load(keys)]
    if len(lanes) > 1:
        kept = _fitting(store, lanes)
        if len(kept) < len(lanes):
            lanes, last = kept, kept[-1].key
    rows = _rows_of(tx, tables, [row.key for row in lanes])
    if len(rows) < len(lanes):
        lanes, last = lanes[: len(rows)], lanes[len(rows) - 1].key
    memory.totals.lanes -= sum(row.tail > 0 for row in lanes)
    return Left(len(lanes), _send_off(tx, passage, lanes, rows), last, waits)


def _send_off(tx: Tx, passage: Passage, lanes: list[LaneAtRest], rows: RowsOfKeys) -> int:
    """Put lanes, and the program's rows of their keys, into a parcel. Return how many messages left."""
    if not lanes:
        return 0
    store = tx.lanes
    memory = store.memory
    keys = [row.key for row in lanes]
    dead = [*in_parts(tx.run, _DEAD, keys)]
    dedups = [*in_parts(tx.run, _DEDUPS, keys)]
    states = [*in_parts(tx.run, _STATES, keys)]
    of_lanes = [parcels.unresolved(row) for row in lanes]
    unresolved = set().union(*of_lanes)
    arrivals = sorted({*unresolved, *(row[1] for row in dead)})
    by_table: dict[KeyedTable, list[Any]] = {}
    for key in keys if rows else ():
        for table, some_rows in rows[key].items():
            by_table.setdefault(table, []).extend(some_rows)
    sends = json.dumps(sends_arrived(tx.db, store.shard))
    parcels.put(
        tx.db,
        {
            parcels.FLOORS: [(memory.floor, memory.last_token, memory.mark.features, passage.move, sends)],
            parcels.LANE: lanes,
            parcels.DEAD: dead,
            parcels.TROUBLE: _trouble(tx, arrivals),
            parcels.DEDUP: dedups,
            parcels.STATE: states,
            parcels.APP: app_rows.packed(by_table, parcels.COLUMNS),
        },
        arrivals,
    )
    for table in by_table:
        app_rows.delete(tx.db, table, keys)
    list(in_parts(tx.run, _DROP_LANES, keys))
    if tx.run(TABLES.any_part).get:
        tx.many(RANGES.drop_pending, [(key,) for key in keys])
    if memory.mark.features & mark.TURNS:
        tx.many(TURNS.delete, [(key,) for key in keys])
    tx.many(TABLES.unbury, [row[:2] for row in dead])
    tx.many(TABLES.drop_dedup, [row[:2] for row in dedups])
    tx.many(TABLES.delete_key_state, [row[:1] for row in states])
    if memory.ranges is not None and any(map(is_keyless, keys)):
        set_ranges(tx, attrs.evolve(memory.ranges, keyless_upto=memory.top))
    memory.totals.pending -= len(unresolved)
    memory.totals.dead -= len(dead)
    if memory.counts is not None:
        for row, some in zip(lanes, of_lanes, strict=True):
            memory.counts.add(row.key, -len(some))
    store.change_rows()
    return len(arrivals)


def _next(tx: Tx, passage: Passage, after: bytes) -> tuple[list[bytes], bytes | None, int]:
    """Return the keys of the next lanes of a range, the last key that was passed (None: all were), and how many must wait."""
    keys: list[bytes] = []
    messages = waits = 0
    last = after
    for passed, (key, deep, endless) in enumerate(_rows(tx, after)):
        # The lanes of parked messages leave with the lane that these were sent to.
        if not (keys and _same(keys[-1], key)) and (passed >= SCAN or len(keys) >= LANES_MAX or messages >= MESSAGES_MAX):
            return keys, last, waits
        if passage.has(hash_of(key)):
            if endless:
                waits += 1
            elif keys and not _same(keys[-1], key) and messages + deep > MESSAGES_MAX:
                return keys, last, waits
            else:
                keys.append(key)
                messages += deep
        last = key
    return keys, None, waits


def _fitting(store: ShardLanes, lanes: list[LaneAtRest]) -> list[LaneAtRest]:
    """Return the first of these lanes whose bodies have BYTES_MAX together, or the first one alone, with its parked messages."""
    ids = [[i for i in unpack(row.ids or b"") if i] for row in lanes]
    sizes = iter(store.log.sizes([i for some in ids for i in some]))
    total = 0
    for n, some in enumerate(ids):
        total += sum(next(sizes) for _ in some)
        if n and total > BYTES_MAX and not _same(lanes[n - 1].key, lanes[n].key):
            return lanes[:n]
    return lanes


def _same(before: bytes, key: bytes) -> bool:
    return is_keyless(key) and shared_key(before) == shared_key(key)  # other lanes have no parked messages


def _rows(tx: Tx, after: bytes) -> Iterator[tuple[bytes, int, bool]]:
    """Return the key of each lane, how many positions of it are unresolved, and whether a recorded batch has it."""
    run: Any = tx.run
    while rows := run(RANGES.keys_after, (after, 2 * LANES_MAX)).fetchall():
        for key, deep, deadline in rows:
            yield key, deep, deadline == NEVER
        after = rows[-1][0]


RowsOfKeys = dict[bytes, dict[KeyedTable, list[Any]]]
"""The program's rows of each key, by table."""


def _rows_of(tx: Tx, tables: Sequence[KeyedTable], keys: Sequence[bytes]) -> RowsOfKeys:
    """Return the program's rows of these keys, or of the first ones if all would have too many."""
    found: RowsOfKeys = {}
    count = total = 0
    for n, key in enumerate(keys):
        some = {table: rows for table in tables if (rows := app_rows.of(tx.db, table, key))}
        count += sum(map(len, some.values()))
        total += sum(_size(value) for rows in some.values() for row in rows for value in row)
        if n and (count > MESSAGES_MAX or total > BYTES_MAX) and not _same(keys[n - 1], key):
            return found
        found[key] = some
    return found


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


# ---- what has no lane

Place = tuple[str, Any]
"""Where a search for keys without lanes goes on: the table, and the last key or value of it that was read."""
STATES: Final = ""
BEGIN: Final[Place] = STATES, None


def loose(db: apsw.Connection, shard: int, passage: Passage, place: Place) -> tuple[list[bytes], Place | None]:
    """Return some keys of a range that have a state or rows of the program, and no lane; and where to go on. None: at the end.

    They get no lane in this shard any more: see `leave`.
    """
    tables: list[KeyedTable | None] = [None, *app_tables(db, shard)]
    begin, after = place
    for table in tables:
        name = STATES if table is None else table.name
        if name < begin:
            continue
        while keys := _keys_after(db, table, after):
            after = keys[-1][1]
            found = [key for key, _ in keys if key is not None and passage.has(hash_of(key)) and not _has_lane(db, key)]
            if found:
                return found, (name, after)
        after = None
    return [], None


def _keys_after(db: apsw.Connection, table: KeyedTable | None, after: Any) -> list[tuple[bytes | None, Any]]:
    """Return the next keys of a table, with the values that they are."""
    if table is not None:
        return [(app_rows.key_of(value), value) for value in app_rows.values_after(db, table, after, SCAN)]
    states: list[Any] = db.execute(RANGES.states_after, (after or b"", SCAN)).fetchall()
    return [(key, key) for (key,) in states]


def _has_lane(db: apsw.Connection, key: bytes) -> bool:
    return db.execute(RANGES.has_lane, (key,)).get is not None


def is_loose(db: apsw.Connection, shard: int, key: bytes) -> bool:
    """Return whether a key has a state or rows of the program in this shard, and no lane."""
    if _has_lane(db, key):
        return False
    return key_states.of(db, key) is not None or any(app_rows.of(db, table, key) for table in app_rows.keyed(db, shard)[0])


def leave_loose(tx: Tx, passage: Passage, keys: Sequence[bytes], forwards: bool = False) -> int | None:
    """Put states and rows of the first of these keys into a parcel, each with an empty lane. Return of how many keys.

    None: nothing may leave before the shard's sends to others have arrived. 0: the move has ended, or was cancelled.

    Args:
        forwards: the caller forwards these sends, and the next one can arrive only where the key goes.
    """
    store = tx.lanes
    if store.memory.ranges is None or store.memory.ranges.leaving != passage:
        return 0
    if not forwards and tx.run(OUTBOX.any).get is not None:
        return None
    store.rest()
    rows = _rows_of(tx, app_tables(tx.db, store.shard), keys)
    stated = {key for key, _ in in_parts(tx.run, _STATES, list(rows))}
    floor = store.memory.floor
    # Another process may have brought some of them.
    some = [key for key in rows if (rows[key] or key in stated) and not _has_lane(tx.db, key)]
    _send_off(tx, passage, [LaneAtRest(key, 0, floor, floor + 1) for key in some], rows)
    return len(rows)


def _whole(rows: LaneRows, row: LaneAtRest) -> LaneAtRest:
    """Return a row with all ids of the lane, of which the resolved ones are 0."""
    if row.opts is None and row.ids_from == row.first and row.ids and len(row.ids) == ID_BYTES * (row.tail - row.first + 1):
        return row
    ids = rows.window(row, row.first, row.tail + 1)
    opts: dict[str, Any] = json.loads(row.opts) if row.opts else {}
    for seq, i in opts.pop("back", ()):
        if row.first <= seq < row.first + len(ids):
            ids[seq - row.first] = i
    for seq in opts.pop("holes", ()):
        if row.first <= seq < row.first + len(ids):
            ids[seq - row.first] = 0
    return row._replace(opts=json.dumps(opts) if opts else None, ids_from=row.first, ids=pack(ids))


def _trouble(tx: Tx, arrivals: Sequence[int]) -> list[Any]:
    if not arrivals or not tx.run(TABLES.any_trouble).get:
        return []  # an array of SQLite must have a value
    found: list[Any] = tx.run(RANGES.trouble, (apsw.carray(array("q", arrivals)),)).fetchall()
    return found


# ---- arriving


class Parcel(NamedTuple):
    """A parcel that was read, with its messages.

    Attributes:
        number: among those of the shard that it left.
        rows: by kind.
    """

    number: int
    rows: dict[int, list[Any]]
    messages: list[MessageRow]


def read(db: apsw.Connection, shard: int, number: int, known: Mapping[int, MessageRow]) -> Parcel | None:
    """Read a parcel of a shard, in a read transaction. None: it has arrived, and is being swept.

    Args:
        known: messages that were read before; they never change.
    Raises:
        StoreCorrupt: some of its messages are missing.
    """
    rows = parcels.rows(db, number)
    if parcels.FLOORS not in rows:
        return None
    arrivals = parcels.listed(rows)
    missing = [i for i in arrivals if i not in known]
    found = {**known, **LogRows(db, shard).whole(missing)} if missing else known
    messages = [found[i] for i in arrivals if i in found]
    if len(messages) != len(arrivals):
        raise StoreCorrupt(f"{len(arrivals) - len(messages)} messages of parcel {number} are missing", shard=shard)
    return Parcel(number, rows, messages)


def arrivals(db: apsw.Connection) -> int:
    """Return a number that grows with each parcel that arrives in a shard."""
    found: int = db.execute(RANGES.arrivals, (inlet("*"),)).get
    return found


def newest_arrival(db: apsw.Connection, origin: str) -> int:
    """Return the newest parcel of another shard that has arrived.

    Args:
        origin: the incarnation of that shard.
    """
    found: int | None = db.execute(OUTBOX.high_water, (inlet(origin),)).get
    return found or 0


def inlet(origin: str) -> str:
    """Return the name under which a shard notes which parcels of another one have arrived."""
    return f"{origin}:lanes"


def sends_inlet(origin: str, destination: int, here: int) -> str:
    """Return the name under which a shard notes which sends of transactions have arrived in it, or before in another one.

    Args:
        origin: the incarnation of the shard of the transactions.
        destination: the shard that the sends name. Each has numbers that ascend.
        here: this shard.
    """
    return origin if destination == here else f"{origin}:{destination}"


def sends_arrived(db: apsw.Connection, here: int) -> dict[str, int]:
    """Return what a shard knows of sends that have arrived. Where its lanes go, they must not arrive again.

    An origin may keep such a send in its outbox for long: its process died before it deleted the send.
    """
    rows: list[Any] = db.execute(OUTBOX.arrived).fetchall()
    return {name if ":" in name else f"{name}:{here}": number for name, number in rows}


def note_sends(tx: Tx, sends: Mapping[str, int]) -> None:
    """Let sends that have arrived in another shard not arrive in this one."""
    here = tx.lanes.shard
    some = ((*name.rpartition(":")[::2], number) for name, number in sends.items())
    tx.many(OUTBOX.raise_high_water, [(sends_inlet(origin, int(to), here), number) for origin, to, number in some])


def arrive(tx: Tx, origin: str, parcel: Parcel, keeps_leases: bool = False) -> bool:
    """Take in a parcel, unless it has arrived before. Return whether it is here: it may be of a later move, to another shard.

    Args:
        origin: the incarnation of the shard that it left.
        keeps_leases: leases of an earlier epoch do not end.
    """
    rows = parcel.rows
    if newest_arrival(tx.db, origin) >= parcel.number:
        return True
    store = tx.lanes
    memory = store.memory
    floor, last_token, features, move, sends = rows[parcels.FLOORS][0][:5]
    arriving = None if memory.ranges is None else memory.ranges.arriving
    if arriving is None or arriving.move != move:
        return False
    store.rest()
    memory.mark.features |= features & mark.DEDUP_IDS  # of the messages that arrive
    memory.floor = max(memory.floor, floor)
    memory.last_token = max(memory.last_token, last_token)
    messages = sorted(parcel.messages)
    new = {row[0]: n for n, row in enumerate(messages, memory.top + 1)}
    store.log.insert([(new[row[0]], *row[1:]) for row in messages])
    memory.top += len(messages)
    lsn = memory.seen + 1
    lanes = [_renumbered(LaneAtRest._make(row), new, lsn, store.shard, arriving.shard) for row in rows.get(parcels.LANE, ())]
    if twice := store.rows.load([row.key for row in lanes]):
        raise StoreCorrupt(f"lane {twice[0].key!r} arrives from another shard, and is here already", shard=store.shard)
    turns: list[Any] = []
    separator = tx.config.tenant_separator if memory.mark.features & mark.TURNS else None
    ended = memory.mark.epoch << TOKEN_BITS
    late: list[bytes] = []
    store.rows.put(lanes)
    for row in lanes:
        if separator is not None and row.position is not None:
            turns.append((row.key, tenant_of(row.key, separator.encode()), row.position))
        if row.token is not None and row.token < ended and row.deadline != NEVER and not keeps_leases:
            late.append(row.key)
    if turns:
        tx.many(TURNS.write, turns)
    dead = [(key, new[i], *rest) for key, i, *rest in (row[:6] for row in rows.get(parcels.DEAD, ()))]
    tx.many(TABLES.bury, dead)
    tx.many(TABLES.set_trouble, [(new[row[0]], *row[1:6]) for row in rows.get(parcels.TROUBLE, ()) if row[0] in new])
    tx.many(RANGES.add_dedup, [(*row[:3], new.get(row[3], 0), *row[4:6]) for row in rows.get(parcels.DEDUP, ())])
    tx.many(TABLES.set_key_state, [row[:2] for row in rows.get(parcels.STATE, ())])
    for table, columns, some in app_rows.unpacked(rows.get(parcels.APP, ()), parcels.COLUMNS):
        try:
            app_rows.insert(tx.db, table, columns, some)
        except (apsw.ConstraintError, apsw.SQLError) as e:
            raise MoveBlocked(f"rows of the table {table} can't arrive in shard {store.shard}: {e}", hint=hints.CLEAR_ROWS) from e
    memory.totals.lanes += sum(row.tail > 0 for row in lanes)
    memory.totals.pending += len(messages) - len(dead)
    memory.totals.dead += len(dead)
    if memory.counts is not None:
        for row in lanes:
            memory.counts.add(row.key, len(parcels.unresolved(row)))
    note_sends(tx, json.loads(sends) if sends else {})
    tx.run(OUTBOX.set_high_water, (inlet(origin), parcel.number))
    store.change_rows()
    if late:  # the machine has booted since they left
        store.loader.fill_heads(late)
        expiring.end(tx, [memory.lanes[key] for key in late])
    tx.wake = True
    return True


def sweep(tx: Tx, number: int) -> bool:
    """Delete a parcel that has arrived, and some of its messages. Return whether there are more."""
    store = tx.lanes
    some, more = parcels.sweep(tx.db, number)
    gone.delete(tx.db, store.log, store.shard, some, store.memory.top)
    return more


def _renumbered(row: LaneAtRest, new: dict[int, int], lsn: int, here: int, origin: int) -> LaneAtRest:
    """Return the row of a lane with the arrival numbers that its messages have here, and with the issuer of its lease.

    Args:
        here, origin: the numbers of the two shards.
    """
    opts: dict[str, Any] = json.loads(row.opts) if row.opts else {}
    of_pairs: Callable[[Any], Any] = lambda pairs: [[seq, new[i]] for seq, i in pairs]  # noqa: E731
    for name in ("front", "waiting"):
        if name in opts:
            opts[name] = of_pairs(opts[name])
    if "tried" in opts:
        opts["tried"] = [[new[i], *tried] for i, *tried in opts["tried"] if i in new]
    if "redriven" in opts:
        opts["redriven"] = sorted(new[i] for i in opts["redriven"] if i in new)
    issuer = opts.pop("issuer", origin + 1)
    if row.token is not None and issuer != here + 1:
        opts["issuer"] = issuer
    ids = [new.get(i, 0) for i in unpack(row.ids or b"")]
    if 0 in ids:
        opts["holes"] = [seq for seq, i in enumerate(ids, row.first) if not i]
    head = opts["front"][0][1] if opts.get("front") else next(filter(None, ids), 0)
    position = None if row.position is None else place_of_arrival(head)
    return row._replace(lsn=lsn, position=position, opts=json.dumps(opts) if opts else None, ids=pack(ids))


def admit(tx: Tx, key: bytes, move: str, floor: int) -> None:
    """Give a key an empty lane, in the shard that its range moves to: the other shard has no lane of it, and never will again.

    Args:
        floor: what new lanes of the other shard begin above.
    """
    store = tx.lanes
    memory = store.memory
    arriving = None if memory.ranges is None else memory.ranges.arriving
    if arriving is None or arriving.move != move or key in memory.lanes or key in memory.tails:
        return
    if store.rows.load([key]):
        return
    tail = max(memory.floor, floor)
    memory.totals.lanes += tail > 0  # the first message counts a lane that has no tail
    store.mark_changed = True
    tx.run(TABLES.write, (key, memory.seen + 1, tail, tail + 1, *[None] * 9, 0, *[None] * 4))


__all__ = [
    "BEGIN", "Left", "Parcel", "Place", "admit", "ahead", "app_tables", "arrivals", "arrive", "departed", "depths",
    "has_lane_within", "inlet", "is_busy", "is_in_use", "is_loose", "leave", "leave_loose", "long_key", "loose", "newest_arrival",
    "note_sends", "of_shard", "own", "read", "rows_in_the_way", "sends_arrived", "sends_inlet", "set_ranges", "sweep", "tell",
]  # fmt: skip
