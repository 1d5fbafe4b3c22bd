"""A naive model of the lanes of one shard: what each row of its two logs means, with lists and dicts, from the documentation.

It knows nothing of the store: it is fed the rows as they are in the file. An entry that the rules forbid raises `Forbidden`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import attrs

(CLAIM, MORE, ACK, ACK_FIRST, NACK, DEFER, REJECT, DROP, PURGE, EXPIRE, START, EXTEND, RELEASE, HOLD, RELEASE_HOLD, REDRIVE) = (
    range(1, 17)
)
PARK, FORGET, NOTE, VOID, FOLD = 18, 22, 23, 24, 25
TOTALS = (
    "lanes", "pending", "dead", "sends", "claims", "receives", "acks", "retries", "redeliveries", "expired", "dropped", "purged",
    "redriven", "dead_letters", "rejected",
)  # fmt: skip
RESOLVING = (ACK, ACK_FIRST, REJECT, DROP, PURGE, EXPIRE)


class Forbidden(AssertionError):
    """An entry breaks a rule."""


def require(condition: object, what: str, *details: object) -> None:
    if not condition:
        raise Forbidden(what, *details)


@attrs.define
class Sent:
    """A message."""

    id: int
    key: bytes  # of its lane: a parked message has another one than its row
    seq: int
    due: int
    expires: int | None
    starts: int = 0
    crashes: int = 0
    until: int | None = None  # of a nack or a defer
    redriven: bool = False

    @property
    def ready_at(self) -> int:
        if self.until is not None:
            return self.until
        return 0 if self.redriven else self.due


@attrs.define
class NaiveLease:
    token: int
    deadline: int
    low: int
    started: int
    says_starts: bool
    held: list[Sent]
    closed: bool = False


@attrs.define
class NaiveLane:
    key: bytes
    tail: int = 0
    messages: list[Sent] = attrs.field(factory=list)
    waiting: list[Sent] = attrs.field(factory=list)
    lease: NaiveLease | None = None
    solo: int = 0
    hold: tuple[int, str] | None = None
    done: tuple[int, int, set[int]] | None = None  # the last resolution: token, kind, seqs

    def end(self) -> None:
        self.lease = None
        for message in self.waiting:
            self.put_back(message)
        self.waiting = []

    def put_back(self, message: Sent) -> None:
        if not self.messages or self.solo < self.messages[0].seq:
            self.solo = 0
        self.messages = sorted([*self.messages, message], key=lambda m: m.seq)

    def ready(self, now: int, given_up: Callable[[Sent], bool] = lambda _: False) -> list[Sent]:
        """What a claim may take, in order; [] if it may take nothing. Of a lease that is over, as if it had just ended."""
        if self.hold or not self.messages or (self.lease and self.lease.deadline > now):
            return []
        found: list[Sent] = []
        if self.messages[0].ready_at > now:
            return []  # also if it has expired: nothing looks at the lane before
        for message in self.messages:
            if message.expires is not None and message.expires <= now and not message.redriven:
                continue
            if given_up(message):
                continue
            if message.ready_at > now:
                break
            found.append(message)
        return found

    def state(self) -> tuple[Any, ...]:
        """Return what `LiveLane.state` must show, in the form of `shown`."""
        lease = self.lease
        solo = self.solo if self.messages and self.solo >= self.messages[0].seq else 0
        tried = {m.id: (m.starts, m.crashes, m.until) for m in [*self.messages, *self.waiting] if m.until is not None or m.starts}
        return (
            self.tail,
            [(m.seq, m.id) for m in self.messages],
            sorted((m.seq, m.id) for m in self.waiting),
            None if lease is None else (lease.token, lease.deadline, [m.id for m in lease.held], lease.low, lease.started),
            self.messages[0].ready_at if self.messages and lease is None and not self.hold else 0,
            {i: (starts, crashes, until or 0) for i, (starts, crashes, until) in sorted(tried.items())},
            self.hold,
            solo,
            bool(lease and lease.closed),
        )


def shown(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a state of `LiveLane` in the form of the model's."""
    tail, ids, lease, due, rare, front, waiting = state
    tried, hold, solo, closed, _ = rare or ({}, None, 0, False, 0)
    kept = None if lease is None else (lease[0], lease[1], lease[4], lease[5], lease[6])
    return (
        tail, sorted([*front, *ids]), waiting, kept, due if lease is None and not hold else 0, tried, hold, solo, closed,
    )  # fmt: skip


class NaiveShard:
    """The lanes, the totals, and everything that was ever sent."""

    def __init__(self) -> None:
        self.lanes: dict[bytes, NaiveLane] = {}
        self.sent: dict[int, Sent] = {}
        self.dead: dict[int, Sent] = {}
        self.resolved: set[int] = set()
        self.ends: dict[int, int] = {}
        """How often each message ended, dead letters included."""
        self.noted: set[int] = set()
        """Messages that have a row in `trouble`, at least."""
        self.floor = 0
        self.seen = self.top = 0
        self.last_token = 0
        self.totals = dict.fromkeys(TOTALS, 0)

    def lane(self, key: bytes) -> NaiveLane:
        return self.lanes.setdefault(key, NaiveLane(key))

    def park(self, message: Sent, due: int, tried: str) -> None:
        """Move an unleased keyless message to a lane of its own."""
        lane = self.lanes[message.key]
        require(message.key.startswith(b"n") and b"!" not in message.key, "keyless messages are parked, once", message)
        require(message in lane.messages, "it is unresolved", message)
        require(lane.lease is None or message not in lane.lease.held, "leased messages are not parked", message)
        starts, crashes, *_ = map(int, tried.split(","))
        require((starts, crashes) == (message.starts, message.crashes), "it keeps its attempts", message, tried)
        lane.messages.remove(message)
        message.key += b"!s%d" % message.seq
        require(message.key not in self.lanes, "a lane is parked in once", message)
        message.until, message.due = due if message.starts or due else None, 0
        self.lanes[message.key] = NaiveLane(message.key, message.seq, [message])
        self.totals["lanes"] += 1

    # ---- the rows

    def arrive(self, row: tuple[Any, ...]) -> None:
        id_, key, seq, _, due, expires = row[:6]
        require(id_ == self.top + 1, "arrival numbers have no gap", id_, self.top)
        lane = self.lane(key)
        require(seq == (lane.tail or self.floor) + 1, "seqs have no gap", key, seq, lane.tail)
        self.totals["lanes"] += not lane.tail
        lane.tail = seq
        self.top = id_
        self.sent[id_] = message = Sent(id_, key, seq, due or 0, expires)
        lane.messages.append(message)
        self.totals["sends"] += 1
        self.totals["pending"] += 1

    def apply(self, row: tuple[Any, ...]) -> None:
        id_, kind, at, top, token, deadline, holder, data = row
        require(id_ == self.seen + 1, "the journal has no gap", id_, self.seen)
        require(top == self.top, "top is the newest message", top, self.top)
        self.seen = id_
        if kind in (FOLD, NOTE, VOID):
            return
        if kind in (HOLD, RELEASE_HOLD, FORGET) or (kind in (RELEASE, EXTEND) and holder):
            for key in _keys(data):
                self.on_key(kind, self.lane(key), at, token, deadline, holder)
            return
        if kind == PARK:
            (arrival,) = struct.unpack("<q", data)
            self.park(self.sent[arrival], deadline, holder or "")
            return
        groups = list(self.groups(data))
        require(kind == PURGE or len({key for key, _ in groups}) == len(groups), "a lane is named once", groups)
        if kind == CLAIM:
            require(token > self.last_token, "tokens increase", token, self.last_token)
            self.last_token = token
            self.totals["claims"] += 1
        for key, messages in groups:
            self.on_messages(kind, self.lane(key), messages, (at, token, deadline, holder))

    def groups(self, data: bytes) -> Iterator[tuple[bytes, list[Sent]]]:
        some: list[Sent] = []
        for (i,) in struct.iter_unpack("<q", data):
            if i > 0 and some:
                yield some[0].key, some
                some = []
            require((i > 0) == (not some), "the first message of a lane is positive", i)
            some.append(self.sent[abs(i)])
        require(some, "an entry names a message")
        require(len({m.key for m in some}) == 1, "they are of one lane")
        yield some[0].key, some

    def on_messages(self, kind: int, lane: NaiveLane, messages: list[Sent], entry: tuple[int, int, int, str | None]) -> None:
        at, token, deadline, holder = entry
        n, lease, totals = len(messages), lane.lease, self.totals
        if kind == CLAIM:
            require(lease is None, "a leased lane is not claimed", lane.key)
            flags = int((holder or "?")[0])
            require(messages == lane.ready(at)[:n], "a claim takes the first messages", lane.key, messages, lane.messages[:3])
            if messages[0].seq <= lane.solo:
                require(n == 1, "suspects are delivered alone", lane.key)
            low = messages[0].seq
            started = low if n == 1 and flags & 1 else low - 1
            lane.lease = NaiveLease(token, deadline, low, started, bool(flags & 2), list(messages))
            totals["receives"] += n
            return
        if kind == REDRIVE:
            for message in messages:
                require(self.dead.pop(message.id, None), "only dead messages are redriven", message)
                message.starts = message.crashes = 0
                message.until, message.redriven = None, True
                if lease:
                    lane.waiting.append(message)
                else:
                    lane.put_back(message)
            totals["pending"] += n
            totals["dead"] -= n
            totals["redriven"] += n
            return
        if token:
            require(lease and lease.token == token, "the token is live", lane.key, token, lease)
        if lease and token:
            unheld = [m for m in messages if m not in lease.held]
            if kind == MORE:
                require(unheld == messages and not lease.closed, "more takes messages behind the lease")
                behind = [m for m in lane.messages if m.seq > lease.held[-1].seq]
                require(behind[:n] == messages, "more takes the next messages", lane.key)
            else:
                require(not unheld, "a lease holds what is settled", lane.key, unheld)
        if kind == MORE and lease:
            lease.held += messages
            totals["receives"] += n
        elif kind in RESOLVING:
            if token:
                lane.done = (token, kind, {m.seq for m in messages})
            self.resolve(kind, lane, messages, at, holder)
            if kind == ACK and holder == "n" and lease:
                require(lease.held, "a message of the lease follows", lane.key)
                lease.started = max(lease.started, lease.held[0].seq)
        elif kind in (NACK, DEFER) and lease and token:
            require(n == 1, "one message is nacked")
            lane.done = (token, kind, {messages[0].seq})
            if kind == NACK:
                self.noted.add(messages[0].id)
                totals["retries"] += 1
                for m in lease.held:
                    if m is messages[0] or (m.seq > messages[0].seq and m.seq <= lease.started):
                        m.starts += 1
                        m.until = m.until or 0
            messages[0].until = deadline
            self.give_back(lane, lease, messages[0])
        elif kind == DEFER:
            require(lease is None and messages == lane.messages[:1], "the head of a free lane gets another delay", lane.key)
            messages[0].until = deadline
        elif kind == RELEASE and lease:
            self.give_back(lane, lease, messages[0])
        elif kind == EXTEND and lease:
            lease.deadline = deadline
        elif kind == START and lease and holder == "s":
            lane.solo = max(lane.solo, messages[0].seq)
            lease.started = lease.low - 1
        elif kind == START and lease:
            lease.started = messages[0].seq - 1 if holder else max(lease.started, messages[0].seq)
        else:
            raise Forbidden("unknown", kind)

    @staticmethod
    def give_back(lane: NaiveLane, lease: NaiveLease, message: Sent) -> None:
        lease.held = lease.held[: lease.held.index(message)]
        lease.closed = True
        if not lease.held:
            lane.end()

    def resolve(self, kind: int, lane: NaiveLane, messages: list[Sent], at: int, holder: str | None) -> None:
        n, lease, totals = len(messages), lane.lease, self.totals
        if kind == PURGE and holder == "d":
            for message in messages:
                require(self.dead.pop(message.id, None), "it purges dead messages", message)
            totals["purged"] += n
            totals["dead"] -= n
            self.resolved.update(m.id for m in messages)
            return
        for message in messages:
            self.ends[message.id] = self.ends.get(message.id, 0) + 1
            require(message in lane.messages or message in lane.waiting, "it is unresolved", message)
            if kind == EXPIRE:
                require(lease is None or message not in lease.held, "leased messages do not expire")
                require(
                    message.expires is not None and message.expires <= at and not message.redriven, "its time is over", message
                )
            (lane.messages if message in lane.messages else lane.waiting).remove(message)
            message.starts = message.crashes = 0
            message.until = None
            message.redriven = False
        if lease:
            held, lease.held = lease.held, [m for m in lease.held if m not in messages]
            if held and not lease.held and kind != ACK_FIRST:
                lane.end()
        dead = kind == REJECT or (kind == EXPIRE and holder == "d")
        if dead:
            totals["dead_letters"] += n
            totals["rejected"] += n * (kind == REJECT and holder != "p")
        for message in messages:
            if dead:
                self.dead[message.id] = message
            else:
                self.resolved.add(message.id)
        totals["pending"] -= n
        totals["dead"] += n * dead
        for name, kinds in (("acks", (ACK, ACK_FIRST)), ("dropped", (DROP,)), ("purged", (PURGE,)), ("expired", (EXPIRE,))):
            totals[name] += n * (kind in kinds)

    def on_key(self, kind: int, lane: NaiveLane, at: int, token: int, deadline: int, holder: str | None) -> None:
        lease = lane.lease
        if kind == HOLD:
            lane.hold = (at, holder or "")
        elif kind == RELEASE_HOLD:
            poison = lane.hold is not None and lane.hold[1] == "poison"
            lane.hold, lane.solo = None, 0
            for m in [*lane.messages, *lane.waiting]:
                if poison and m.starts:
                    m.until = 0
                m.starts = m.crashes = 0
        elif kind == FORGET:
            require(not lane.messages and not lease and not lane.hold, "only empty lanes are forgotten")
            require(not any(m.key == lane.key for m in self.dead.values()), "lanes with dead letters are not forgotten")
            require(b"!" in lane.key or token >= lane.tail, "the floor is above a forgotten lane")
            self.floor = max(self.floor, token)
            del self.lanes[lane.key]
            self.totals["lanes"] -= 1
        elif kind == EXTEND and lease:
            require(lease.token == token, "the token is live")
            lease.deadline = deadline
        elif kind == RELEASE and lease:
            if holder in ("x", "s"):
                require(lease.deadline <= at, "the lease is over", lane.key, lease.deadline, at)
                self.totals["redeliveries"] += len(lease.held)
                self.noted |= {m.id for m in lease.held if m.seq <= lease.started}
                self.expire(lane, lease, suspects=holder == "s")
            else:
                require(lease.token == token, "the token is live")
            lane.end()
        else:
            raise Forbidden("unknown", kind)

    @staticmethod
    def expire(lane: NaiveLane, lease: NaiveLease, *, suspects: bool) -> None:
        """Charge what was started. What may have killed the holder is suspect."""
        if not lease.held:
            return
        for m in lease.held:
            if m.seq <= lease.started:
                m.starts += 1
                m.crashes += 1
                m.until = m.until or 0
        if not suspects:
            return
        if lease.started >= lease.low:
            solo = lease.started
        elif lease.says_starts:
            solo = 0
        elif lease.held[0].seq > lease.low:
            solo = lease.held[0].seq
        else:
            solo = lease.held[-1].seq
        lane.solo = max(lane.solo, solo)


def _keys(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        n = int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : at + 4 + n]
        at += 4 + n
