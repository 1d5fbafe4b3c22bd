"""What the rows of a damaged shard say of its lanes and of how its messages ended.

A lane's row says what the lane was as of an entry, and the journal what happened since. Unlike memory (lane/memory.py), which
refuses what does not fit together, this takes from each what can be read. So nothing here is found by its position in a lane:
`LiveLane.rare.front` has the leased messages of a lane, and no others, until `arrange` gives the lane all of its messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from ..._values.keys import ASIDE, is_keyless
from ..lane import entries as kinds
from ..lane.entries import Entry, decode_groups, decode_keys, is_charged, unpack
from ..lane.live_lane import Grant, LaneAtRest, LiveLane, dense_from, lease_of_row
from ..lane.order import place_of_arrival
from ..lane.totals import RunningTotals
from ..shard.loading import KINDS_WITH_KEYS, KINDS_WITHOUT_LANES, parked_key

Place = tuple[int, int]
"""Seq and arrival number of a message."""
ENDED, DIED, BACK = "ended", "died", "back"
"""What the journal says last of a message: it was resolved, it became a dead letter, it was redriven."""
UNKNOWN: Final = -1
"""An arrival number that can't be read."""
_RESOLVING: Final = frozenset((kinds.ACK, kinds.ACK_FIRST, kinds.REJECT, kinds.DROP, kinds.PURGE, kinds.EXPIRE))
_GAP_MAX: Final = 1 << 20
_ID_BYTES: Final = 8
INVALID: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError)


class KnownLane:
    """A lane.

    Attributes:
        live: its state without its messages.
        first, ids: the arrival numbers that its row has, seq by seq. 0: resolved. UNKNOWN: that part can't be read.
        beside: unresolved messages that its row has elsewhere: redriven ones.
        is_at_rest: it has a row. False: nothing is known of it but its messages.
        is_verified: the row was on pages with right checksums, and is valid.
        seqs, arrivals: its unresolved messages. Filled by the caller.
        newest: the highest seq that was found.
    """

    __slots__ = ("arrivals", "beside", "first", "ids", "is_at_rest", "is_verified", "live", "newest", "seqs")

    def __init__(self, key: bytes) -> None:
        self.live = LiveLane(key, 0)
        self.first = 1
        self.ids: array[int] = array("q")
        self.beside: set[Place] = set()
        self.is_at_rest = False
        self.is_verified = False
        self.seqs: array[int] = array("q")
        self.arrivals: array[int] = array("q")
        self.newest = 0

    @property
    def tail(self) -> int:
        """The newest seq that its row includes."""
        return self.live.tail

    def lists(self, seq: int, arrival: int) -> bool | None:
        """Return whether its row has a message as unresolved. None: it says nothing about it."""
        if (seq, arrival) in self.beside:
            return True
        if not self.is_at_rest or seq > self.tail:
            return None
        at = seq - self.first
        if at >= len(self.ids) or (at >= 0 and self.ids[at] == UNKNOWN):
            return None
        return at >= 0 and self.ids[at] == arrival

    def found(self, seq: int, arrival: int) -> None:
        """Note that the row of a message was found. `listed` leaves it out from now on."""
        self.beside.discard((seq, arrival))
        at = seq - self.first
        if 0 <= at < len(self.ids) and self.ids[at] == arrival:
            self.ids[at] = 0

    def listed(self) -> Iterable[Place]:
        """Return the messages that its row has as unresolved."""
        yield from sorted(self.beside)
        yield from ((seq, i) for seq, i in enumerate(self.ids, self.first) if i > 0)

    def lease(self, grant: Grant, some: Sequence[Place]) -> None:
        """Lease messages."""
        rare = self.live.with_rare_state()
        rare.front = sorted(some)
        rare.front_held = len(rare.front)
        self.live.grant = grant

    def settle(self) -> None:
        """Forget what is not leased any more. A lease that holds no message ends, also one that `ack_first` left."""
        live, rare = self.live, self.live.rare
        if rare is not None:
            rare.front = rare.front[: rare.front_held]
            rare.waiting = []
        if live.grant is not None and live.lease_is_settled:
            live.leave_lease()


def of_row(row: LaneAtRest, parts: Sequence[tuple[int, bytes]], *, is_verified: bool) -> KnownLane:
    """Return the lane of a row.

    Args:
        parts: of `pending`: first seq and arrival numbers.
    """
    lane = KnownLane(row.key)
    live = lane.live
    live.tail = lane.newest = row.tail
    live.lsn, live.active = row.lsn, row.active_at
    lane.first, lane.is_at_rest, lane.is_verified = row.first, True, is_verified
    try:
        live.adopt_opts(row.opts)
        lane.ids = _ids_of(row, parts)
    except INVALID:
        lane.is_verified = False
        live.rare = live.holes = None
        lane.ids = array("q")
    holes, rare = live.holes or (), live.rare
    live.holes = None
    for seq in holes:
        _set(lane, seq, 0)
    if rare is not None:
        for seq, i in rare.back.items():
            _set(lane, seq, i)
        rare.back = {}
        lane.beside.update(rare.front, rare.waiting)
        rare.front, rare.waiting = rare.front[: rare.front_held], []
    if row.token is not None:
        with suppress(*INVALID):
            at, low, holder = lease_of_row(row)
            some = [(seq, i) for seq, i in enumerate(lane.ids[: row.held or 0], lane.first) if i > 0]
            lane.lease(Grant(row.token, row.deadline or 0, at, holder, [live]), [*(rare.front if rare else ()), *some])
            live.low, live.started = low, row.started or 0
    return lane


def _ids_of(row: LaneAtRest, parts: Sequence[tuple[int, bytes]]) -> array[int]:
    ids = array("q")
    own = [] if row.ids_from is None else [(row.ids_from, row.ids or b"")]
    for first, part in [*sorted(parts), *own]:
        some, end = unpack(part[: len(part) // _ID_BYTES * _ID_BYTES]), row.first + len(ids)
        if first + len(some) <= end:
            continue
        if first - end > _GAP_MAX:
            break
        ids.extend([UNKNOWN] * (first - end))
        ids.extend(some[max(0, end - first) :])
    return ids[: max(0, row.tail - row.first + 1)]


def _set(lane: KnownLane, seq: int, arrival: int) -> None:
    at = seq - lane.first
    if 0 <= at < len(lane.ids):
        lane.ids[at] = arrival


class Journal:
    """What the journal adds to the rows of lanes.

    Attributes:
        lanes: by key. Lanes without rows are added.
        parked: lanes of parked messages, by arrival number.
        ends: the last that it says of a message, and when: ENDED, DIED or BACK.
        floor: new lanes begin above it.
        skipped: entries that can't be understood.
    """

    def __init__(
        self,
        lanes: dict[bytes, KnownLane],
        totals: RunningTotals,
        counted: int,
        places: Mapping[int, tuple[bytes, int]],
    ) -> None:
        """
        Args:
            totals: they include entries up to `counted`.
            places: key and seq of messages. Lost ones are missing.
        """
        self.lanes = lanes
        self.parked: dict[int, bytes] = {}
        for key, lane in lanes.items():
            if ASIDE in key and is_keyless(key):
                self.parked.update((i, key) for _, i in lane.listed())
        self.ends: dict[int, tuple[str, int]] = {}
        self.floor = 0
        self.skipped = 0
        self._totals = totals
        self._counted = counted
        self._places = places

    def lane(self, key: bytes) -> KnownLane:
        found = self.lanes.get(key)
        if found is None:
            found = self.lanes[key] = KnownLane(key)
        return found

    def lane_of(self, arrival: int, key: bytes) -> KnownLane:
        """Return the lane of a message that was sent to a key."""
        return self.lane(self.parked.get(arrival, key))

    def add(self, entry: Entry) -> None:
        """Add an entry. They are added in order."""
        try:
            self._count(entry)
            self._add(entry)
        except INVALID:
            self.skipped += 1

    def _add(self, entry: Entry) -> None:
        id_, kind, at, _, token, _, holder, data = entry
        if kind == kinds.FORGET:
            self.floor = max(self.floor, token)
        if kind in kinds.OF_DEAD and holder == kinds.DEAD:
            self.ends.update((i, (ENDED, at)) for ids in decode_groups(data) for i in ids)
            return
        if kind in KINDS_WITHOUT_LANES or kind == kinds.FORGET:
            return
        if kind in KINDS_WITH_KEYS or (holder is not None and kind in (kinds.RELEASE, kinds.EXTEND)):
            for key in decode_keys(data):
                lane = self.lane(key)
                if lane.live.lsn < id_:
                    self._happen(lane, [], entry)
            return
        for ids in decode_groups(data):
            self._note_ends(ids, entry)
            known = [(self._places[i][1], i) for i in ids if i in self._places]
            if not known:
                continue
            lane = self._lane_of_group(known, entry)
            if lane.live.lsn < id_:
                self._happen(lane, known, entry)

    def _note_ends(self, ids: list[int], entry: Entry) -> None:
        _, kind, at, _, _, _, holder, _ = entry
        if kind in _RESOLVING:
            dies = kind == kinds.REJECT or (kind == kinds.EXPIRE and holder == kinds.DEAD)
            self.ends.update((i, (DIED if dies else ENDED, at)) for i in ids)
        elif kind == kinds.REDRIVE:
            self.ends.update((i, (BACK, at)) for i in ids)

    def _lane_of_group(self, known: list[Place], entry: Entry) -> KnownLane:
        seq, i = known[0]
        key = self._places[i][0]
        if entry[1] == kinds.PARK or (entry[1] == kinds.REDRIVE and entry[6] == kinds.PARKED and ASIDE not in key):
            self.parked[i] = parked_key(key, seq)
        lane = self.lane_of(i, key)
        if lane.live.key != key:
            lane.live.tail = lane.newest = max(lane.tail, seq)
        return lane

    def _happen(self, lane: KnownLane, some: list[Place], entry: Entry) -> None:
        _, kind, at, _, token, deadline, holder, _ = entry
        live, ids = lane.live, [i for _, i in some]
        if kind in (kinds.CLAIM, kinds.MORE):
            rare = live.rare
            if kind == kinds.CLAIM:
                low = some[0][0]
                lane.lease(Grant(token, deadline, at, holder or "", [live]), some)
                live.low, live.started = low, low if is_charged(holder) and len(some) == 1 else low - 1
            elif rare is not None and live.grant is not None:
                lane.lease(live.grant, [*rare.front, *some])
        elif kind in _RESOLVING:
            live.active = at
            live.resolve(ids)
            if holder == kinds.NEXT:
                live.started = max(live.started, live.first)
            lane.settle()
        elif kind in (kinds.NACK, kinds.DEFER):
            self._postpone(lane, ids[0], entry)
        elif kind == kinds.START:
            if holder == kinds.SUSPECT:
                state = live.with_rare_state()
                state.solo, live.started = max(state.solo, some[0][0]), live.low - 1
            else:
                live.started = some[0][0] - 1 if holder == kinds.UNCHARGE else max(live.started, some[0][0])
        elif kind == kinds.EXTEND:
            old = live.grant
            if old is not None:
                live.grant = Grant(old.token, deadline, old.at, old.holder, [live])
        elif kind == kinds.RELEASE:
            if holder in (kinds.OVER, kinds.OVER_SUSPECT):
                live.expire_lease(suspects=holder == kinds.OVER_SUSPECT)
            elif ids:
                live.give_back(ids[0])
            else:
                live.leave_lease()
            lane.settle()
        elif kind == kinds.HOLD:
            live.with_rare_state().hold = (at, holder or "")
        elif kind == kinds.RELEASE_HOLD:
            self._let_go(live, at)
        elif kind == kinds.REDRIVE:
            state = live.with_rare_state()
            state.redriven.update(ids)
            for i in ids:
                state.tried.pop(i, None)
        elif kind == kinds.PARK:
            starts, crashes, expires = map(int, (holder or "").split(","))
            state = live.with_rare_state()
            state.tried[ids[0]] = (starts, crashes, deadline)
            if expires == kinds.REDRIVEN:
                state.redriven.add(ids[0])

    @staticmethod
    def _postpone(lane: KnownLane, arrival: int, entry: Entry) -> None:
        kind, token, due = entry[1], entry[4], entry[5]
        live, started = lane.live, lane.live.started
        back: list[Place] = []
        if token:
            with suppress(ValueError):  # its claim can't be read
                back = live.give_back(arrival)
        live.charge(arrival, due=due, starts=int(kind == kinds.NACK and bool(token)))
        for seq, i in back[1:]:
            if kind == kinds.NACK and seq <= started:
                live.charge(i)
        lane.settle()

    @staticmethod
    def _let_go(live: LiveLane, at: int) -> None:
        live.active = at
        rare = live.with_rare_state()
        poison = rare.hold is not None and rare.hold[1] == kinds.POISON_HOLD
        rare.hold, rare.solo = None, 0
        rare.tried = {i: (0, 0, 0 if poison and starts else due) for i, (starts, _, due) in rare.tried.items()}

    def _count(self, entry: Entry) -> None:
        """Add to the totals what an entry says that they do not include yet."""
        id_, kind, at, _, token, _, holder, data = entry
        totals, n = self._totals, len(data or b"") // _ID_BYTES
        if id_ <= self._counted:
            return
        if kind in _RESOLVING:
            totals.ended(kind, holder, at, n)
        elif kind in (kinds.CLAIM, kinds.MORE):
            totals.claims += kind == kinds.CLAIM
            totals.receives += n
        elif kind == kinds.NACK and token:
            totals.retries += n
        elif kind == kinds.REDRIVE:
            totals.redriven += n
        elif kind == kinds.RELEASE and holder in (kinds.OVER, kinds.OVER_SUSPECT):
            totals.redeliveries += sum(len(self.lane(key).live.leased()) for key in decode_keys(data))


def arrange(lane: KnownLane, due_of: Callable[[int], int | None]) -> LiveLane:
    """Give a lane its messages, and what holds it back. Return it as memory has it.

    Args:
        due_of: the end of the delay that a message was sent with.
    """
    live, messages = lane.live, sorted(zip(lane.seqs, lane.arrivals, strict=True))
    live.tail = max(live.tail, lane.newest)
    live.first = live.tail + 1
    present = {i for _, i in messages}
    rare = live.with_rare_state()
    rare.tried = {i: tried for i, tried in rare.tried.items() if i in present}
    rare.redriven &= present
    leased = {i for _, i in live.leased()} & present
    rare.front, rare.front_held = [], 0
    if live.grant is not None and not leased:
        live.leave_lease()
    last = max((seq for seq, i in messages if i in leased), default=0)
    rare.waiting = [one for one in messages if one[0] < last and one[1] not in leased]
    messages = [one for one in messages if one[0] >= last or one[1] in leased]
    begin = dense_from(messages, live.tail)
    if leased and begin:
        begin, rare.front_held = max(begin, len(leased)), len(leased)
    elif leased:
        live.held = last - messages[0][0] + 1
    rare.front = messages[:begin]
    if rest := messages[begin:]:
        live.first = rest[0][0]
        ids = live.ids = [0] * (live.tail - live.first + 1)
        for seq, i in rest:
            ids[seq - live.first] = i
    _delay(live, messages, due_of)
    return live


def _delay(live: LiveLane, messages: list[Place], due_of: Callable[[int], int | None]) -> None:
    rare = live.with_rare_state()
    for seq, i in rare.front:
        if seq <= rare.delayed and i not in rare.tried and i not in rare.redriven and (due := due_of(i)):
            rare.tried[i] = (0, 0, due)  # what is in `front` is delayed by this alone
    if not messages or live.grant is not None or rare.hold is not None:
        return
    seq, i = messages[0]
    if i in rare.tried:
        live.due = rare.tried[i][2]
    elif seq <= rare.delayed and i not in rare.redriven:
        live.due = due_of(i) or 0
    if not live.due:
        live.listed = place_of_arrival(i)
