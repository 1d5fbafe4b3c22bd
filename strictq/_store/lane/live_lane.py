"""One lane in memory, and what may happen to it.

A lane's messages have consecutive seqs, so a *position* in `ids` is a seq: that of `ids[0]` is `first`. A resolved message in the
middle is a 0. A deep lane has only a window of its ids in memory, at the head; the ids behind the window are in its row, and
those of the messages that arrived since are in `new`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from ..._values.tenants import tenant_of
from .entries import LaneHolder

Tried = tuple[int, int, int]
"""Of a message that was attempted or postponed: starts that ended, those of them without an outcome, and when it is due."""
UNTRIED: Final[Tried] = (0, 0, 0)
HOLES_MAX: Final = 4_096
"""A lane whose unresolved messages are farther apart has the first ones in `front`, as redriven ones are."""
TAKEN: Final = -1
"""`LiveLane.listed` of a lane that a plan has taken, and that had no place in the order."""
Done = tuple[int, int, int, int, Sequence[int]]
"""A lane's last resolution: token, kind of the entry, lowest and highest seq, and the seqs between them that it left out. A call
that is repeated under the same token succeeds if the first one did."""


class LaneAtRest(NamedTuple):
    """A row of `lane`. `first` is the lowest unresolved seq; `tail` + 1: there is none."""

    key: bytes
    lsn: int
    tail: int
    first: int
    position: int | None = None
    due: int | None = None
    expires: int | None = None
    token: int | None = None
    deadline: int | None = None
    held: int | None = None
    started: int | None = None
    holder: str | None = None
    held_at: int | None = None
    active_at: int = 0
    opts: str | None = None
    done: str | None = None
    ids_from: int | None = None
    ids: bytes | None = None


class Grant:
    """What the leases of one claim have in common.

    Attributes:
        holder: as in the entry, see `entries.LaneHolder`.
        lanes: those that it leased. Some of them may have left it.
        left: how many have not.
    """

    __slots__ = ("at", "deadline", "holder", "lanes", "left", "token")

    def __init__(self, token: int, deadline: int, at: int, holder: str, lanes: list[LiveLane]) -> None:
        self.token = token
        self.deadline = deadline
        self.at = at
        self.holder = holder
        self.lanes = lanes
        self.left = len(lanes)

    def lose_lane(self) -> None:
        """Count a lane that has left. The last one lets their objects be freed: the order keeps the grant until its deadline."""
        self.left -= 1
        if not self.left:
            self.lanes = []


class RareState:
    """State that most lanes do not have.

    Attributes:
        tried: by arrival number.
        hold: since when an operator or a poison message holds the lane, and why.
        solo: messages up to this seq are delivered one at a time.
        front: redriven messages (seq, arrival number), ascending. They are delivered before `first`.
        front_held: how many of them are leased.
        waiting: messages whose redrive waits for the end of a lease.
        back: redriven messages of a deep lane, by seq. The parts of its ids that are at rest have a 0 there.
        delayed: the highest seq that was sent with a delay.
        dues: the ends of such delays, of messages that were read lately.
        redriven: unresolved messages that were dead. Their delay and their TTL no longer count.
        closed: a part of the lease was returned, so it can't grow.
        issuer: the shard that issued the token of the lease, plus 1; 0: this one. The lane has moved since.
    """

    __slots__ = (
        "back", "closed", "delayed", "dues", "front", "front_held", "hold", "issuer", "redriven", "solo", "tried", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tried: dict[int, Tried] = {}
        self.hold: tuple[int, str] | None = None
        self.solo = 0
        self.front: list[tuple[int, int]] = []
        self.front_held = 0
        self.waiting: list[tuple[int, int]] = []
        self.back: dict[int, int] = {}
        self.delayed = 0
        self.dues: dict[int, int] = {}
        self.redriven: set[int] = set()
        self.closed = False
        self.issuer = 0


_STATE_NAMES: Final = ("tried", "hold", "solo", "front", "waiting", "delayed", "closed", "back", "redriven", "issuer")


class LiveLane:
    """One lane.

    Attributes:
        tail: the newest seq; 0: no message was ever sent to it.
        first: the seq of `ids[0]`; `tail` + 1: it has no unresolved message in `ids`.
        deep: how many ids behind the window are only in its row.
        new: ids since its row was written, if it is deep.
        rest: only `tail` and `new` are known. The rest is in its row.
        split: it is `rest` or deep, so a new id does not belong into `ids`.
        holes: seqs of resolved messages behind the window.
        held: how many positions from `first` are leased. Resolved ones count.
        low: the first seq of the lease. `started`: the last one whose handler was started; `low` - 1: none was.
        listed: its place in the order; 0: it has none. Negative: the place that it had when a plan took it, or TAKEN. Until the
            plan's entry is applied or refused, nothing may list it again.
        due: when the head may be delivered; 0: at any time.
        expires: no message of it expires before; 0: none ever does.
        lsn: its row includes the entries up to this one; 0: this object does not come from a row.
        bare: it was made from its tail alone, so its last resolution is only in its row.
        active: when a message last left it, as far as memory knows.
        tenant: the name of its tenant, once it was looked for.
    """

    __slots__ = (
        "active", "bare", "deep", "done", "due", "expires", "first", "grant", "held", "holes", "ids", "key", "listed", "low",
        "lsn", "new", "rare", "rest", "split", "started", "tail", "tenant",
    )  # fmt: skip

    def __init__(self, key: bytes, tail: int) -> None:
        self.key = key
        self.tail = tail
        self.first = tail + 1
        self.ids: list[int] | None = None
        self.deep = 0
        self.new: list[int] | None = None
        self.rest = False
        self.split = False
        self.holes: set[int] | None = None
        self.grant: Grant | None = None
        self.held = 0
        self.low = 0
        self.started = 0
        self.listed = 0
        self.due = 0
        self.expires = 0
        self.rare: RareState | None = None
        self.lsn = 0
        self.bare = False
        self.active = 0
        self.done: Done | None = None
        self.tenant: bytes | None = None

    # ---- what it has

    def tenant_by(self, separator: bytes) -> bytes:
        """Return the name of its tenant. It is kept: memory forgets the names once the separator changes."""
        name = self.tenant
        if name is None:
            name = self.tenant = tenant_of(self.key, separator)
        return name

    @property
    def is_plain_and_empty(self) -> bool:
        """Return whether its tail and its last resolution are all that there is to it."""
        return not (self.ids or self.grant or self.split or self.rest or self.new or self.due or self.rare or self.holes)

    def with_rare_state(self) -> RareState:
        """Return its rare state, which is created if it has none."""
        rare = self.rare
        if rare is None:
            rare = self.rare = RareState()
        return rare

    def tidy(self) -> None:
        """Forget rare state that says nothing any more."""
        rare = self.rare
        if rare is None:
            return
        head = rare.front[0][0] if rare.front else self.first
        if rare.delayed < self.first:
            rare.delayed = 0
            rare.dues.clear()
        if rare.solo < head:
            rare.solo = 0
        if rare.back:
            rare.back = {seq: i for seq, i in rare.back.items() if seq >= self.first} if self.deep else {}
        if not any(getattr(rare, name) for name in _STATE_NAMES):
            self.rare = None

    def leased(self) -> list[tuple[int, int]]:
        """Return (seq, arrival number) of the unresolved messages of its lease."""
        ids, rare = self.ids or (), self.rare
        some = [(seq, i) for seq, i in zip(range(self.first, self.first + self.held), ids, strict=False) if i]
        return rare.front[: rare.front_held] + some if rare is not None and rare.front_held else some

    @property
    def lease_end(self) -> int:
        """The last seq of its lease; `low` - 1 or less: it has none."""
        rare = self.rare
        if not self.held and rare is not None and rare.front_held:
            return rare.front[rare.front_held - 1][0]
        return self.first + self.held - 1

    def holds(self, ids: list[int]) -> bool:
        """Return whether these messages are unresolved and of its lease."""
        window, n = self.ids, len(ids)
        if window is not None and n <= self.held and window[:n] == ids:
            return True
        return {i for _, i in self.leased()}.issuperset(ids)

    def has(self, seq: int, arrival: int) -> bool:
        """Return whether a message is unresolved in the window, in `new` or in `front`."""
        at, ids = seq - self.first, self.ids
        if ids is not None and 0 <= at < len(ids):
            return ids[at] == arrival
        if self.new and arrival in self.new:
            return True
        return self.rare is not None and (seq, arrival) in (*self.rare.front, *self.rare.waiting)

    def seq_of(self, arrival: int) -> int:
        """Return the seq of an unresolved message in the window or in `front`.

        Raises:
            ValueError: it is not there.
        """
        rare = self.rare
        if rare is not None:
            for seq, i in (*rare.front, *rare.waiting):
                if i == arrival:
                    return seq
        return self.first + (self.ids or []).index(arrival)

    def attempts(self, arrival: int) -> Tried:
        return UNTRIED if self.rare is None else self.rare.tried.get(arrival, UNTRIED)

    # ---- changes. The caller lists the lane afterwards.

    def trim(self) -> int:
        """Forget resolved messages at its beginning; of a lease, only leased ones. Return how many positions there were.

        `held` counts positions, so leading ones may go only within it. Holes behind an empty window go, too: `first` must be the
        same in every process, however much of the lane it has loaded, because a row's ids begin there. The result is negative
        if the ids in `new` join the window.
        """
        ids = self.ids
        removed = 0
        while ids and not ids[0]:
            most = self.held or len(ids)
            n = 1
            while n < most and not ids[n]:
                n += 1
            del ids[:n]
            self.first += n
            removed += n
            if self.held:
                self.held -= n
        if not ids and self.holes and self.deep and not self.held:
            removed -= self._pass_holes(self.holes)
        return removed

    def _pass_holes(self, holes: set[int]) -> int:
        """Forget resolved messages behind an empty window. Return by how many positions the window became longer."""
        while self.deep and self.first in holes:
            holes.discard(self.first)
            self.first += 1
            self.deep -= 1
        if not holes:
            self.holes = None
        if self.deep:
            return 0
        self.split = False
        self.ids, self.new = self.new, None
        return len(self.ids or ()) - self.trim()

    def resolve(self, ids: list[int]) -> int:
        """Remove resolved messages. Return by how many positions the window became shorter."""
        window, n = self.ids, len(ids)
        removed = 0
        if window is not None and window[:n] == ids:
            if n == len(window):
                self.ids = None  # not emptied: `ids` may be the same list
            else:
                del window[:n]
            self.first += n
            self.held = self.held - n if self.held > n else 0
            removed = n
        elif window:
            if n == 1:
                if ids[0] in window:
                    window[window.index(ids[0])] = 0
            else:
                gone = set(ids)
                left = len(gone)
                for at in range(window.index(ids[0]) if ids[0] in window else 0, len(window)):
                    if window[at] in gone:
                        window[at] = 0
                        left -= 1
                        if not left:
                            break
        rare = self.rare
        if rare is not None:
            self._forget_rare(rare, ids)
        return removed + self.trim()

    def withdraw(self, arrival: int) -> int:
        """Remove an unleased message that goes on in another lane. Return by how many positions the window became shorter."""
        if self.new and arrival in self.new:
            self.new[self.new.index(arrival)] = 0
            if self.rare is not None:
                self._forget_rare(self.rare, [arrival])
            return 0
        return self.resolve([arrival])

    @staticmethod
    def _forget_rare(rare: RareState, ids: list[int]) -> None:
        for i in ids:
            rare.tried.pop(i, None)
            rare.dues.pop(i, None)
        rare.redriven.difference_update(ids)
        if rare.back:
            rare.back = {seq: i for seq, i in rare.back.items() if i not in ids}
        if rare.front or rare.waiting:
            gone = set(ids)
            held = rare.front[: rare.front_held]
            rare.front_held -= sum(i in gone for _, i in held)
            rare.front = [one for one in rare.front if one[1] not in gone]
            rare.waiting = [one for one in rare.waiting if one[1] not in gone]

    @property
    def lease_is_settled(self) -> bool:
        """Return whether its lease has no unresolved message left."""
        return not self.held and (self.rare is None or not self.rare.front_held)

    def take(self, grant: Grant, ids: list[int], charged: bool) -> None:
        """Lease its messages up to the last of these. No lease is live."""
        n, rare = len(ids), self.rare
        low, rest = self.first, n
        if rare is not None and rare.front and rare.front[0][1] == ids[0]:
            low = rare.front[0][0]
            rare.front_held = min(n, len(rare.front))
            rest = n - rare.front_held
        if rest:
            window = self.ids or []
            self.held = rest if window[rest - 1] == ids[-1] else window.index(ids[-1]) + 1
        self.grant = grant
        self.low = low
        self.started = low if charged and n == 1 else low - 1
        self.listed = 0

    def grow(self, ids: list[int]) -> None:
        """Add messages behind its lease."""
        self.held = (self.ids or []).index(ids[-1]) + 1

    def unlist(self) -> None:
        """Take it from the order. A plan that has taken it keeps it."""
        if self.listed > 0:
            self.listed = 0

    def leave_lease(self) -> None:
        """End its lease. Messages whose redrive waited for that come back."""
        grant = self.grant
        if grant is not None:
            grant.lose_lane()
            self.grant = None
        self.held = self.low = self.started = 0
        self.unlist()
        rare = self.rare
        if rare is not None:
            rare.front_held = 0
            rare.closed = False
            rare.issuer = 0
            if rare.waiting:
                waiting, rare.waiting = rare.waiting, []
                for seq, i in waiting:
                    self.revive(seq, i)

    def give_back(self, arrival: int) -> list[tuple[int, int]]:
        """Return a message of the lease and all behind it to the lane. Returns them; the lease may be settled then.

        Raises:
            ValueError: it is not of the lease.
        """
        before: list[tuple[int, int]] = []
        after: list[tuple[int, int]] = []
        for one in self.leased():
            (after if after or one[1] == arrival else before).append(one)
        if not after:
            raise ValueError("a message is not of its lane's lease")
        rare = self.rare
        if rare is not None:
            rare.front_held = min(rare.front_held, len(before))
        first = after[0][0]
        self.held = first - self.first if before and first > self.first else 0
        if before:
            self.with_rare_state().closed = True
        return after

    def charge(self, arrival: int, *, crashed: bool = False, due: int | None = None, starts: int = 1) -> None:
        """Count an attempt of a message that has ended.

        Args:
            due: when it may be delivered again; None: as before.
        """
        tried = self.with_rare_state().tried
        before, crashes, until = tried.get(arrival, UNTRIED)
        tried[arrival] = (before + starts, crashes + crashed, until if due is None else due)

    def expire_lease(self, *, suspects: bool) -> None:
        """End a lease after its deadline. What was started is charged, and may have killed the holder.

        If nothing was started, the holder may have run handlers without saying so. If it settled its first message, it settles
        as it goes: then only the first that is left was in a handler. If that is wrong, each crash leaves fewer messages.
        """
        left = self.leased()
        grant = self.grant
        if grant is None or not left:
            self.leave_lease()
            return
        low, started = self.low, self.started
        for seq, i in left:
            if seq <= started:
                self.charge(i, crashed=True)
        if suspects:
            solo = 0
            if started >= low:
                solo = started
            elif not LaneHolder.decode(grant.holder).says_starts:
                solo = left[0][0] if left[0][0] > low else left[-1][0]
            if solo >= left[0][0]:
                rare = self.with_rare_state()
                rare.solo = max(rare.solo, solo)
        self.leave_lease()

    def revive(self, seq: int, arrival: int) -> None:
        """Make a dead message unresolved again, at its own seq. It waits for the end of a live lease."""
        rare = self.with_rare_state()
        rare.tried.pop(arrival, None)
        rare.redriven.add(arrival)
        head = rare.front[0][0] if rare.front else self.first
        if rare.solo < head:
            rare.solo = 0  # its range is resolved, and must not concern this message
        if self.grant is not None:
            rare.waiting.append((seq, arrival))
        elif seq < self.first:
            rare.front = sorted([*rare.front, (seq, arrival)])
        else:
            if self.ids and seq < self.first + len(self.ids):
                self.ids[seq - self.first] = arrival
            if self.deep:
                rare.back[seq] = arrival
            if self.holes is not None:
                self.holes.discard(seq)

    # ---- its row

    @property
    def place(self) -> int | None:
        """Return the place in the order that its row has."""
        return self.listed if self.grant is None and not self.due and self.listed > 0 else None

    def row(self, lsn: int) -> LaneAtRest:
        """Return its row, without the columns of its ids. `split` lanes have `first` even if the window is empty."""
        hold = None if self.rare is None else self.rare.hold
        row = LaneAtRest(
            key=self.key,
            lsn=lsn,
            tail=self.tail,
            first=self.first if self.ids or self.deep else self.tail + 1,
            position=self.place,
            due=self.due or None if self.grant is None and hold is None else None,
            expires=self.expires or None,
            held_at=None if hold is None else hold[0],
            active_at=self.active,
            opts=self.opts(),
            done=self.done_text(),
        )
        grant = self.grant
        if grant is None:
            return row
        holder = f"{grant.at},{self.low},{grant.holder}"
        return row._replace(token=grant.token, deadline=grant.deadline, held=self.held, started=self.started, holder=holder)

    def opts(self) -> str | None:
        """Return its rare state and holes as JSON."""
        self.tidy()
        holes = list(self.holes or ())
        if self.ids and 0 in self.ids:
            # The chunks of a deep lane are never written again, so they still have these. Those of another lane have zeros there,
            # and a reader that loads only its head counts them by this.
            holes += [self.first + at for at, i in enumerate(self.ids) if not i]
        if self.new and 0 in self.new:
            holes += self.holes_of_new()
        rare = self.rare
        if rare is None and not holes:
            return None
        found: dict[str, Any] = {}
        if holes:
            found["holes"] = sorted(holes)
        if rare is not None:
            state = {
                "tried": [[i, *tried] for i, tried in rare.tried.items()],
                "hold": rare.hold,
                "solo": rare.solo,
                "front": rare.front,
                "front_held": rare.front_held,
                "waiting": rare.waiting,
                "back": list(rare.back.items()),
                "redriven": sorted(rare.redriven),
                "delayed": rare.delayed,
                "closed": rare.closed,
                "issuer": rare.issuer,
            }
            found |= {name: value for name, value in state.items() if value}
        return json.dumps(found, separators=(",", ":"))

    def holes_of_new(self) -> list[int]:
        """Return the seqs of parked messages among those that arrived since its row was written."""
        new = self.new or []
        return [seq for seq, i in enumerate(new, self.tail - len(new) + 1) if not i]

    def adopt_opts(self, text: str | None) -> None:
        """Take the rare state of its row.

        Raises:
            ValueError, TypeError, KeyError: the text is not what `opts` returns.
        """
        self.rare, self.holes = None, None
        if text is None:
            return
        found = json.loads(text)
        self.holes = set(found.pop("holes", ())) or None
        if found:
            rare = self.rare = RareState()
            rare.tried = {i: (starts, crashes, due) for i, starts, crashes, due in found.pop("tried", ())}
            hold = found.pop("hold", None)
            rare.hold = None if hold is None else (hold[0], hold[1])
            rare.front = [(seq, i) for seq, i in found.pop("front", ())]
            rare.waiting = [(seq, i) for seq, i in found.pop("waiting", ())]
            rare.back = dict(found.pop("back", ()))
            rare.redriven = set(found.pop("redriven", ()))
            for name, value in found.items():
                setattr(rare, name, value)

    def done_text(self) -> str | None:
        """Return its last resolution as JSON. None: the one in its row is the last."""
        done = self.done
        if done is None:
            return None
        token, kind, low, high, left_out = done
        return f"[{token},{kind},{low},{high},{list(left_out) if left_out else '[]'}]"

    def fill_holes(self) -> None:
        """Mark the resolved and the redriven messages among ids that were read from its row."""
        holes, ids = self.holes, self.ids
        if not ids:
            return
        first, end = self.first, self.first + len(ids)
        if self.rare is not None:
            for seq, i in self.rare.back.items():
                if first <= seq < end:
                    ids[seq - first] = i
        if not holes:
            return
        for seq in [seq for seq in holes if seq < end]:
            holes.discard(seq)
            if seq >= first:
                ids[seq - first] = 0
        if not holes:
            self.holes = None


_TENANT_OF: Final = attrgetter("tenant")
_LANE_OF: Final = itemgetter(0)
_IDS_OF: Final = itemgetter(1)


def tenants_of(lanes: Iterable[LiveLane], separator: bytes) -> list[bytes]:
    """Return the tenant of each of some lanes, without a step of Python for each whose name is known."""
    names = [*map(_TENANT_OF, lanes)]
    return [lane.tenant_by(separator) for lane in lanes] if None in names else names


def messages_of_tenants(
    groups: Sequence[tuple[LiveLane, Sequence[int]]], separator: bytes
) -> tuple[Counter[bytes], dict[bytes, int]]:
    """Return how many messages each tenant has in groups, and how many in its last one."""
    names = tenants_of([*map(_LANE_OF, groups)], separator)
    sizes = [*map(len, map(_IDS_OF, groups))]
    return Counter(chain.from_iterable(map(repeat, names, sizes))), dict(zip(names, sizes, strict=True))


def dense_from(messages: Sequence[tuple[int, int]], tail: int) -> int:
    """Return the index of the first message from which on seqs have few gaps, up to the tail. Those before belong in `front`."""
    begin, end, holes = len(messages), tail + 1, 0
    for at in range(len(messages) - 1, -1, -1):
        seq = messages[at][0]
        holes += end - seq - 1
        if holes > HOLES_MAX + 2 * (len(messages) - at):
            break
        begin, end = at, seq
    return begin


def parse_done(text: str | None) -> Done | None:
    """Return the last resolution that a row has.

    Raises:
        ValueError, TypeError: the text is not what `LiveLane.done_text` returns.
    """
    if text is None:
        return None
    token, kind, low, high, left_out = json.loads(text)
    return token, kind, low, high, tuple(left_out)


def lease_of_row(row: LaneAtRest) -> tuple[int, int, str]:
    """Return when a row's lease began, its first seq, and its holder.

    Raises:
        ValueError: the column is not what `LiveLane.row` writes.
    """
    at, low, holder = (row.holder or "").split(",", 2)
    return int(at), int(low), holder
