"""Lanes leave a shard and arrive in another one, in steps that any process may repeat or continue.

A lane is at rest when it leaves, so its row, the rows of its messages and what other tables have of it are all there is to it.
They go into a parcel, in one transaction, and arrive in one transaction of the other shard, behind its newest message. Between
the two no call finds the lane in either shard; the one that misses it carries the parcel over, and then repeats the call. The
rows of messages are only deleted afterwards, when no call waits any more.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import apsw
import attrs

from ..._sql import OUTBOX, RANGES, TABLES, TURNS, any_of, repeated
from ..._values import hints
from ..._values.errors import MoveBlocked, StoreCorrupt
from ..._values.keys import ASIDE, is_keyless, shared_key
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

NO_MESSAGES: Final[Mapping[int, MessageRow]] = {}
LANES_MAX: Final = 256
MESSAGES_MAX: Final = 2_500
BYTES_MAX: Final = 4 * 1024 * 1024
"""What leaves in one step, so that no lane waits for long. A lane that is larger leaves alone."""
_DEAD: Final = repeated(RANGES.dead, 256, 32, 4, 1)
_DEDUPS: Final = repeated(RANGES.dedup, 256, 32, 4, 1)
_DROP_LANES: Final = repeated(RANGES.drop_lanes, 256, 32, 4, 1)
_STATES: Final = repeated(RANGES.key_state, 256, 32, 4, 1)
SCAN: Final = 4_096
"""How many rows are read at once to find keys of the range."""
PASSED_MAX: Final = 16_384
"""How many lanes, most of which may stay, are looked at in one read transaction: the WAL can't be reset meanwhile."""


class Ahead(NamedTuple):
    """The next lanes of a range, which were looked for before they leave.

    Attributes:
        keys: of these lanes, in order. Lanes of parked messages have the key of the lane that these were sent to.
        after: the key up to which there are no others. None: there are none behind them. There may be no keys before it.
        messages: those that will probably leave with them, by arrival number. `sizes`: their bytes; 0 is the size of number 0.
    """

    keys: list[bytes]
    after: bytes | None
    messages: dict[int, MessageRow]
    sizes: dict[int, int]


class Left(NamedTuple):
    """What one step took out of a shard.

    Attributes:
        after: the key up to which every lane of the range has left. None: all have.
        waits: lanes of recorded batches, which cannot leave before these are acked or released.
        parcel: in which it is. None: nothing has left.
    """

    after: bytes | None
    waits: int
    parcel: Parcel | None


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


def is_behind(store: ShardLanes, upto: int) -> bool:
    """Return whether something that changed up to a position is not at rest."""
    memory = store.memory
    changed = next(iter(memory.dirty.values()), NEVER)
    return min(changed, memory.gone[0][0] if memory.gone else NEVER) <= upto


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


def ahead(db: apsw.Connection, shard: int, passage: Passage, after: bytes, chunk: int) -> Ahead:
    """Look for the next lanes of a range, and read their messages, in a read transaction: so neither is done while a lane waits.

    No lane of the range is created until they leave, except one of parked messages.

    Args:
        after: every lane of the range with a key up to this one has left.
    """
    keys, ids, messages = list[bytes](), list[list[int]](), 0
    end: bytes | None = None
    lanes, log = LaneRows(db, shard, chunk), LogRows(db, shard)
    for n, (key, deep, packed) in enumerate(db.execute(RANGES.keys_after, (after, PASSED_MAX)), 1):
        if passage.has(hash_of(key)):
            base = shared_key(key)
            if not keys or base != keys[-1]:
                if keys and (len(keys) >= LANES_MAX or messages + deep > MESSAGES_MAX):
                    end = after
                    break
                keys.append(base)
                ids.append([])
                messages += deep
            has_all = packed is None or len(packed) == ID_BYTES * deep
            ids[-1] += unpack((packed if has_all else _whole(lanes, lanes.row(key)).ids) or b"")
        after = key
        if n == PASSED_MAX:
            end = key
    sizes = {0: 0}
    fitting = _fitting(log, keys, ids, sizes)
    if fitting < len(keys):
        end = keys[fitting - 1]
    return Ahead(keys[:fitting], end, log.whole({i for some in ids[:fitting] for i in some}), sizes)


def leave(tx: Tx, passage: Passage, found: Ahead) -> Left | None:
    """Put the next lanes of a range into a parcel. None: nothing may leave, because the move has been cancelled, or because sends
    of the shard to others have not arrived.

    Otherwise a later transaction on a key, in its new shard, could overtake what an earlier one has sent.
    """
    store = tx.lanes
    memory = store.memory
    if memory.ranges is None or memory.ranges.leaving != passage or tx.run(OUTBOX.any).get is not None:
        return None
    tables = app_tables(tx.db, store.shard)
    store.rest()
    there = store.rows.load(_with_parked(tx, found.keys))
    free = [_whole(store.rows, row) for row in there if row.deadline != NEVER]
    ids = [unpack(row.ids or b"") for row in free]
    lanes = free[: _fitting(store.log, [row.key for row in free], ids, found.sizes)]
    rows = _rows_of(tx, tables, [row.key for row in lanes])
    lanes = lanes[: len(rows)]
    after = found.after if len(lanes) == len(free) else lanes[-1].key
    waits = sum(row.deadline == NEVER and (after is None or row.key <= after) for row in there)
    memory.totals.lanes -= sum(row.tail > 0 for row in lanes)
    return Left(after, waits, _send_off(tx, passage, lanes, rows, found.messages))


def _with_parked(tx: Tx, keys: Sequence[bytes]) -> Iterator[bytes]:
    """Return keys of lanes, and those of the messages of these lanes that were parked: they leave together."""
    for key in keys:
        yield key
        if is_keyless(key):
            yield from (parked for (parked,) in tx.run(RANGES.parked, (key + ASIDE, key + ASIDE + b"\xff")).fetchall())


def _send_off(
    tx: Tx, passage: Passage, lanes: list[LaneAtRest], rows: RowsOfKeys, known: Mapping[int, MessageRow] = NO_MESSAGES
) -> Parcel | None:
    """Put lanes, and the program's rows of their keys, into a parcel. None: there are no lanes."""
    if not lanes:
        return None
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
    number, put = parcels.put(
        tx.db,
        {
            parcels.FLOORS: [(memory.floor, memory.last_token, memory.mark.features, passage.move, sends)],
            parcels.LANE: lanes,
            parcels.DEAD: dead,
            parcels.TROUBLE: _trouble(tx, arrivals),
            parcels.DEDUP: dedups,
            parcels.STATE: states,
            parcels.APP: list(app_rows.packed(by_table, parcels.COLUMNS)),
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
    return Parcel(number, put, known)


def _fitting(log: LogRows, keys: Sequence[bytes], ids: Sequence[list[int]], sizes: dict[int, int]) -> int:
    """Return how many of these lanes leave in one step: one, with its parked messages, if it is too large for others to join it.

    Args:
        ids: the arrival numbers of each lane's messages.
        sizes: of messages, if they are known. The others are added.
    """
    others = [i for some in ids for i in some if i not in sizes]
    sizes.update(zip(others, log.sizes(others), strict=True))
    count = total = 0
    for n, some in enumerate(ids):
        count += len(some)
        total += sum(map(sizes.__getitem__, some))
        if n and (count > MESSAGES_MAX or total > BYTES_MAX) and not _same(keys[n - 1], keys[n]):
            return n
    return len(keys)


def _same(before: bytes, key: bytes) -> bool:
    return is_keyless(key) and shared_key(before) == shared_key(key)  # other lanes have no parked messages


RowsOfKeys = dict[bytes, dict[KeyedTable, list[Any]]]
"""The program's rows of each key, by table."""


def _rows_of(tx: Tx, tables: Sequence[KeyedTable], keys: Sequence[bytes]) -> RowsOfKeys:
    """Return the program's rows of these keys, or of the first ones if all would have too many."""
    if not tables:
        return {key: {} for key in keys}
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
        if keys := _keys_after(db, table, after):
            found = [key for key, _ in keys if key is not None and passage.has(hash_of(key)) and not _has_lane(db, key)]
            return found, (name, keys[-1][1])
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
    """A parcel that has left. It never changes.

    Attributes:
        number: among those of the shard that it left.
        rows: by kind.
        messages: by arrival number. Some may have to be read, others may not be of it.
    """

    number: int
    rows: dict[int, list[Any]]
    messages: Mapping[int, MessageRow]


def read(db: apsw.Connection, shard: int, number: int, left: Parcel | None) -> Parcel | None:
    """Read a parcel of a shard with its messages, in a read transaction. None: it has arrived, and is being swept.

    Args:
        left: a parcel that need not be read, if it is this one. Its messages are read that are missing.
    Raises:
        StoreCorrupt: some of its messages are missing.
    """
    if left is None or left.number != number:
        rows = parcels.rows(db, number)
        if parcels.FLOORS not in rows:
            return None
        left = Parcel(number, rows, NO_MESSAGES)
    missing = {i for i in parcels.listed(left.rows) if i not in left.messages}
    if not missing:
        return left
    found = LogRows(db, shard).whole(missing)
    if len(found) != len(missing):
        raise StoreCorrupt(f"{len(missing) - len(found)} messages of parcel {number} are missing", shard=shard)
    return left._replace(messages={**left.messages, **found})


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
    new = {i: n for n, i in enumerate(parcels.listed(rows), memory.top + 1)}
    store.log.insert([(n, *parcel.messages[i][1:]) for i, n in new.items()])
    memory.top += len(new)
    lsn = memory.seen + 1
    lanes = [_renumbered(row, new, lsn, store.shard, arriving.shard) for row in rows.get(parcels.LANE, ())]
    turns: list[Any] = []
    separator = tx.config.tenant_separator if memory.mark.features & mark.TURNS else None
    ended = memory.mark.epoch << TOKEN_BITS
    late: list[bytes] = []
    try:
        store.rows.put(lanes, TABLES.insert)
    except apsw.ConstraintError as e:
        raise StoreCorrupt("a lane arrives from another shard, and is here already", shard=store.shard, cause=e) from e
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
    memory.totals.pending += len(new) - len(dead)
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
    ids = [new.get(i, 0) for i in unpack(row.ids or b"")]
    head = next(filter(None, ids), 0)
    text = None
    if row.opts is not None or row.token is not None or 0 in ids:
        opts: dict[str, Any] = json.loads(row.opts) if row.opts else {}
        for name in {"front", "waiting"} & opts.keys():
            opts[name] = [[seq, new[i]] for seq, i in opts[name]]
        if "tried" in opts:
            opts["tried"] = [[new[i], *tried] for i, *tried in opts["tried"] if i in new]
        if "redriven" in opts:
            opts["redriven"] = sorted(new[i] for i in opts["redriven"] if i in new)
        issuer = opts.pop("issuer", origin + 1)
        if row.token is not None and issuer != here + 1:
            opts["issuer"] = issuer
        if 0 in ids:
            opts["holes"] = [seq for seq, i in enumerate(ids, row.first) if not i]
        head = opts["front"][0][1] if opts.get("front") else head
        text = json.dumps(opts) if opts else None
    position = None if row.position is None else place_of_arrival(head)
    return row._replace(lsn=lsn, position=position, opts=text, ids=pack(ids))


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
    "has_lane_within", "inlet", "is_behind", "is_in_use", "is_loose", "leave", "leave_loose", "long_key", "loose",
    "newest_arrival", "note_sends", "of_shard", "own", "read", "rows_in_the_way", "sends_arrived", "sends_inlet",
    "set_ranges", "sweep", "tell",
]  # fmt: skip
