"""The queue as documented: lists and dictionaries, no files, no SQL.

The model gets each call and its result, and asserts that the documentation permits it. If the documentation leaves a choice (the
order of lanes, when an expired message is noticed, whether a lane is still delivered one message at a time after an operator's
action), both outcomes are accepted, and the model finds out which one occurred.

Times are whole microseconds on the model's own scale, which only `advance` moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from strictq import MessageStatus
from strictq._values.keys import Key

SECOND = 1_000_000
Look = Callable[[Key, int], MessageStatus]


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * SECOND)


@dataclass
class Settings:
    """The part of the configuration that the model implements."""

    lease_seconds: float = 30.5
    max_attempts: int | None = 3
    on_poison: Literal["dead_letter", "hold", "drop"] = "dead_letter"
    retry_delay_seconds: float = 0.0
    retry_for_seconds: float = 0.0
    dedup_window_seconds: float = 60.5
    ttl_seconds: float | None = None
    on_expire: Literal["drop", "dead_letter"] = "drop"

    def retry_delay(self, attempts: int) -> tuple[float, float]:
        """Return the bounds of a delay, which doubles with each attempt up to 900 seconds, and deviates by up to a quarter."""
        wait = min(self.retry_delay_seconds * 2.0 ** (attempts - 1), 720.0)
        return 0.75 * wait, 1.25 * wait

    def worn(self, attempts: int, crashes: int, failing: int | None = None) -> bool:
        """Return whether a message is out of attempts. `failing`: since when, if an attempt has just failed; None: at a claim."""
        if self.max_attempts is None:
            return False
        if not self.retry_for_seconds:
            return attempts >= self.max_attempts
        if crashes >= self.max_attempts:
            return True
        return failing is not None and attempts >= self.max_attempts and failing >= micros(self.retry_for_seconds)


@dataclass
class Stored:
    """One message.

    Attributes:
        due: not delivered before this.
        doubtful_until: before this it may or may not be delivered.
        handed_out: it was delivered before, so its TTL may no longer count.
        redriving: dead, and put back as soon as the lane's lease ends.
        maybe_one_more: whether the last start counts is the queue's choice.
    """

    seq: int
    id: int | None
    body: bytes
    due: int
    expires: int | None
    dedup_id: str | None = None
    attempts: int = 0
    crashes: int = 0
    failing_since: int | None = None
    state: Literal["queued", "leased", "dead", "gone"] = "queued"
    doubtful_until: int = 0
    handed_out: bool = False
    redriving: bool = False
    maybe_one_more: bool = False


@dataclass
class Held:
    """A lease: `members` are its unresolved seqs, `charged` those that count an attempt because of it."""

    token: int
    deadline: int
    members: set[int]
    low: int
    high: int
    size: int
    since: int
    charged: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    rebooted: bool = False


@dataclass
class Lane:
    """One key.

    Attributes:
        solo_to: up to this seq messages must be delivered one by one; maybe_solo_to: they may be.
        disturbed_to: heads up to this seq are not in the order of arrival, because of an earlier operation on them.
    """

    key: Key
    messages: list[Stored] = field(default_factory=list)
    lease: Held | None = None
    on_hold: bool = False
    solo_to: int = 0
    maybe_solo_to: int = 0
    disturbed_to: int = 0
    token: int = 0
    state: bytes | None = None
    dedup: dict[str, tuple[Stored, int]] = field(default_factory=dict)
    maybe_dedup: set[str] = field(default_factory=set)

    def unresolved(self) -> list[Stored]:
        return [m for m in self.messages if m.state in ("queued", "leased")]

    def at(self, seq: int) -> Stored:
        return self.messages[seq - 1]

    def disturb(self) -> None:
        """Leave the lane's place among the others to the queue, up to the newest message."""
        self.disturbed_to = len(self.messages)


class Model:
    """All lanes, and the totals."""

    def __init__(self, settings: Settings, *, one_shard: bool) -> None:
        self.settings = settings
        self.one_shard = one_shard
        self.now = 0
        self.lanes: dict[Key, Lane] = {}
        self.sends = 0
        self.acks = 0
        self.resolved_on_receive = 0
        self.purged = 0
        self.app_rows: list[int] = []

    def lane(self, key: Key) -> Lane:
        """Return the lane of a key, created if it is new."""
        return self.lanes.setdefault(key, Lane(key))

    # --- sending -----------------------------------------------------------------------------------------------------

    def sent(
        self,
        key: Key,
        body: bytes,
        receipt: Any | None,
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        dedup_id: str | None = None,
        together: Collection[int] = (),
    ) -> None:
        """Record a send that returned. There is no receipt if the transaction gave none.

        Args:
            together: the ids of all messages of the same call. Those of different keys may be numbered in any order.
        """
        lane = self.lane(key)
        if dedup_id is not None and self._is_duplicate(lane, dedup_id, receipt):
            return
        ttl = self.settings.ttl_seconds if ttl is None else ttl
        m = Stored(
            seq=len(lane.messages) + 1,
            id=None,
            body=body,
            due=self.now + micros(delay),
            expires=None if ttl is None else self.now + micros(ttl),
            dedup_id=dedup_id,
        )
        if receipt is not None:
            assert (type(receipt.key), receipt.key, receipt.seq) == (type(key), key, m.seq)
            assert not receipt.duplicate
            m.id = receipt.id
            if self.one_shard:
                earlier = [m.id for x in self.lanes.values() for m in x.messages if x is lane or m.id not in together]
                assert all(i is None or i < receipt.id for i in earlier), "ids ascend with arrival"
        lane.messages.append(m)
        if delay:
            lane.disturb()
        if dedup_id is not None:
            lane.dedup[dedup_id] = (m, self.now + micros(self.settings.dedup_window_seconds))
            lane.maybe_dedup.discard(dedup_id)
        self.sends += 1

    def _is_duplicate(self, lane: Lane, dedup_id: str, receipt: Any) -> bool:
        first, until = lane.dedup.get(dedup_id, (None, 0))
        if first is None or until <= self.now:
            return False
        if dedup_id in lane.maybe_dedup and not receipt.duplicate:
            return False
        assert receipt.duplicate, "a dedup id counts within its window"
        assert receipt.seq == first.seq
        assert first.id is None or receipt.id == first.id
        return True

    # --- receiving ---------------------------------------------------------------------------------------------------

    def settle_doubts(self, look: Look, taken: Collection[tuple[Key, int]] = ()) -> None:
        """Find out what happened to expired messages, and to messages whose attempts were used up by expiry.

        Messages that were just `taken` are excluded: they were delivered.
        """
        s = self.settings
        for lane in self.lanes.values():
            for m in lane.unresolved():
                lapsed = lane.lease is not None and lane.lease.deadline <= self.now
                if (m.state == "leased" and not lapsed) or (lane.key, m.seq) in taken:
                    continue
                old = m.expires is not None and m.expires <= self.now
                worn = s.worn(m.attempts + m.maybe_one_more, self._crashes(lane, m) + m.maybe_one_more)
                if not (old or worn):
                    continue
                state = look(lane.key, m.seq).state
                allowed = set()
                if old:
                    allowed.add("dead" if s.on_expire == "dead_letter" else "resolved")
                if worn:
                    allowed.add({"dead_letter": "dead", "hold": "held", "drop": "resolved"}[s.on_poison])
                if state == "held" and not lane.on_hold and worn:
                    assert "held" in allowed
                    lane.on_hold = True
                elif state in ("dead", "resolved"):
                    assert state in allowed, f"{lane.key!r} {m.seq} became {state}"
                else:
                    continue
                if lapsed:
                    self._lapse(lane)
                if state != "held":
                    m.state = "dead" if state == "dead" else "gone"
                    lane.disturb()

    def received(
        self,
        deliveries: Sequence[Any],
        look: Look,
        *,
        max_messages: int,
        per_key: int | None,
        keys: Iterable[Key] | None,
        lease_seconds: float | None,
        ack_first: bool,
    ) -> None:
        """Record a receive that returned."""
        assert len(deliveries) <= max_messages
        order: list[Key] = []
        batches: dict[Key, list[Any]] = {}
        for d in deliveries:
            if d.key not in batches:
                order.append(d.key)
            batches.setdefault(d.key, []).append(d)
        eligible = [x for x in self.lanes.values() if keys is None or x.key in set(keys)]
        assert set(order) <= {x.key for x in eligible}
        plain = {x.key: head for x in eligible if (head := self._plain_head(x)) is not None}
        self.settle_doubts(look, {(d.key, d.seq) for d in deliveries})
        full = len(deliveries) == max_messages
        for n, key in enumerate(order):
            may_be_cut = full and (not self.one_shard or n == len(order) - 1 or keys is not None)
            self._take(self.lanes[key], batches[key], look, per_key, lease_seconds, ack_first, may_be_cut)
        if not full:
            for lane in eligible:
                if lane.key not in batches:
                    assert not self._must_go_out(lane), f"{lane.key!r} is ready and was not handed out"
        if self.one_shard and keys is None:
            served = [plain[key] for key in order if key in plain]
            assert served == sorted(served), f"the oldest ready head comes first: {order} have heads {served}"
            if full and served:
                left = [plain[x.key] for x in eligible if x.key in plain and x.key not in batches and self._must_go_out(x)]
                assert not left or min(left) > max(served), "an older ready head was passed over"

    def _plain_head(self, lane: Lane) -> int | None:
        """Return the arrival id of the lane's head, if the lane is ready and nothing ever happened to that head."""
        if lane.lease is not None or not self._must_go_out(lane):
            return None
        head = lane.unresolved()[0]
        if head.seq <= lane.disturbed_to or (head.expires is not None and head.expires <= self.now):
            return None
        return head.id

    def _must_go_out(self, lane: Lane) -> bool:
        if lane.on_hold or (lane.lease is not None and lane.lease.deadline > self.now):
            return False
        batch = self._batch(lane)
        return bool(batch) and batch[0][1]

    def _batch(self, lane: Lane, after: int = 0) -> list[tuple[Stored, bool]]:
        """Return what a claim of this lane may take, in order, and whether it must if there is room."""
        s = self.settings
        certain = True
        batch: list[tuple[Stored, bool]] = []
        for m in lane.messages:
            if m.seq <= after or not (m.state in ("queued", "leased") or m.redriving):
                continue
            if m.due > self.now or (s.worn(m.attempts, self._crashes(lane, m)) and not m.redriving):
                break
            if m.expires is not None and m.expires <= self.now and not m.redriving:
                if not m.handed_out:
                    break
                certain = False
            if m.maybe_one_more and s.worn(m.attempts + 1, m.crashes + 1):
                certain = False
            certain = certain and m.doubtful_until <= self.now
            batch.append((m, certain))
            if m.seq <= lane.solo_to:
                break
            if m.seq <= lane.maybe_solo_to:
                certain = False
        return batch

    def _take(
        self,
        lane: Lane,
        mine: Sequence[Any],
        look: Look,
        per_key: int | None,
        lease_seconds: float | None,
        ack_first: bool,
        may_be_cut: bool,
    ) -> None:
        assert lane.lease is None or lane.lease.deadline <= self.now, f"{lane.key!r} has a live lease"
        assert not lane.on_hold, f"{lane.key!r} is held"
        self._lapse(lane)
        batch = self._batch(lane)
        got = [d.seq for d in mine]
        assert got == [m.seq for m, _ in batch][: len(got)], f"{lane.key!r}: {got} is not the front of the lane"
        assert per_key is None or len(got) <= per_key
        if not may_be_cut:
            must = sum(certain for _, certain in batch)
            assert len(got) >= min(must, per_key or must), f"{lane.key!r}: more of the lane fits"
        (token,) = {d.token for d in mine}
        assert token > lane.token, "tokens ascend"
        lane.token = token
        length = self.settings.lease_seconds if lease_seconds is None else lease_seconds
        lane.lease = lease = Held(token, self.now + micros(length), set(got), got[0], got[-1], len(got), self.now)
        for d, (m, _) in zip(mine, batch, strict=False):
            assert type(d.key) is type(lane.key)
            assert d.body == m.body
            assert m.id is None or m.id == d.id
            assert d.key_state == lane.state
            m.id, m.state, m.handed_out, m.due = d.id, "leased", True, 0
            if m.maybe_one_more and not ack_first:
                m.maybe_one_more = False
                m.attempts = m.crashes = look(lane.key, m.seq).attempts - (len(got) == 1)
            if len(got) == 1:
                m.attempts += 1
                lease.charged.add(m.seq)
            assert d.attempt == m.attempts + (len(got) > 1) or m.maybe_one_more
            if ack_first:
                m.state = "gone"
                lease.members.discard(m.seq)
                self.resolved_on_receive += 1

    def _lapse(self, lane: Lane) -> None:
        """End the lane's lease at its deadline, as noticed by a claim."""
        lease = lane.lease
        if lease is None:
            return
        if lease.members:
            suspect = self._suspect(lease)
            if not lease.rebooted:
                lane.solo_to = max(lane.solo_to, suspect)
            lane.maybe_solo_to = max(lane.maybe_solo_to, suspect)
        for seq in lease.members & lease.charged:
            lane.at(seq).crashes += 1
        self._give_back(lane, lease.members)
        self._end_lease(lane)

    def _suspect(self, lease: Held) -> int:
        """Return the last message that may have killed the lease's holder; 0: there is none, or it does not matter."""
        if self.settings.max_attempts is None:
            return 0
        if lease.charged:
            return max(lease.charged & lease.members, default=0)
        first = min(lease.members)
        return first if first > lease.low else max(lease.members)

    @staticmethod
    def _crashes(lane: Lane, m: Stored) -> int:
        """Return the starts that ended without an outcome, including one whose lease has expired unnoticed."""
        lease = lane.lease
        return m.crashes + (lease is not None and m.seq in lease.members & lease.charged)

    def _give_back(self, lane: Lane, seqs: Iterable[int]) -> None:
        for seq in list(seqs):
            lane.at(seq).state = "queued"
            if lane.lease is not None:
                lane.lease.members.discard(seq)
        lane.disturb()

    def _end_lease(self, lane: Lane) -> None:
        lane.lease = None
        for m in lane.messages:
            if m.redriving:
                m.redriving = False
                m.state, m.attempts, m.expires, m.due = "queued", 0, None, 0
                m.crashes, m.failing_since = 0, None
                lane.disturb()
                # If it returns before a range that is delivered one by one, it may be delivered alone as well.
                lane.maybe_solo_to = max(lane.maybe_solo_to, m.seq, lane.solo_to)
                lane.solo_to = 0

    # --- a holder's verbs --------------------------------------------------------------------------------------------

    def valid(self, d: Any) -> bool:
        """Return whether this delivery may still be settled."""
        lease = self.lanes[d.key].lease
        return lease is not None and lease.token == d.token and d.seq in lease.members

    def alive(self, d: Any) -> bool:
        """Return whether the delivery's lease is still its holder's."""
        lease = self.lanes[d.key].lease
        return lease is not None and lease.token == d.token

    def lowest(self, d: Any) -> bool:
        """Return whether it is the first unresolved message of its lease."""
        lease = self.lanes[d.key].lease
        return lease is not None and min(lease.members, default=0) == d.seq

    def started(self, d: Any) -> int:
        """Record start(). Return the number of the attempt."""
        lane = self.lanes[d.key]
        assert lane.lease is not None
        m = lane.at(d.seq)
        lane.lease.started.add(m.seq)
        if m.seq not in lane.lease.charged:
            lane.lease.charged.add(m.seq)
            m.attempts += 1
        return m.attempts

    def acked(self, d: Any) -> None:
        """Record ack(), or the end of a transaction."""
        self._resolve(d, "gone")
        self.acks += 1

    def rejected(self, d: Any) -> None:
        """Record reject()."""
        self._resolve(d, "dead")

    def _resolve(self, d: Any, state: Literal["gone", "dead"]) -> None:
        lane = self.lanes[d.key]
        assert lane.lease is not None
        lane.at(d.seq).state = state
        lane.lease.members.remove(d.seq)
        if not lane.lease.members:
            self._end_lease(lane)

    def nacked(self, d: Any, delay: float | None) -> None:
        """Record nack()."""
        s = self.settings
        lane = self.lanes[d.key]
        assert lane.lease is not None
        m = lane.at(d.seq)
        if m.seq not in lane.lease.charged:
            m.attempts += 1
        self._give_back(lane, [seq for seq in lane.lease.members if seq >= m.seq])
        if m.attempts == m.crashes + 1:
            m.failing_since = lane.lease.since
        least, most = map(micros, s.retry_delay(m.attempts) if delay is None else (delay, delay))
        assert m.failing_since is not None
        if s.worn(m.attempts, m.crashes, self.now - m.failing_since):
            if s.on_poison == "hold":
                lane.on_hold = True
            else:
                m.state = "dead" if s.on_poison == "dead_letter" else "gone"
            for later in lane.unresolved():
                if later.seq >= m.seq:
                    later.doubtful_until = max(later.doubtful_until, self.now + most)
        elif most:
            m.due, m.doubtful_until = self.now + least, max(m.doubtful_until, self.now + most)
        if not lane.lease.members:
            self._end_lease(lane)

    def deferred(self, d: Any, delay: float) -> None:
        """Record defer(): as if it had not been delivered, except for the delay."""
        lane = self.lanes[d.key]
        lease = lane.lease
        assert lease is not None
        later = [seq for seq in lease.members if seq >= d.seq]
        for seq in later:
            if seq in lease.charged:
                lane.at(seq).attempts -= 1
        self._give_back(lane, later)
        lane.at(d.seq).due = self.now + micros(delay)
        if not lease.members:
            self._end_lease(lane)

    def extended(self, d: Any, seconds: float) -> None:
        """Record extend(): from now, for the whole lease."""
        lease = self.lanes[d.key].lease
        assert lease is not None
        lease.deadline = self.now + micros(seconds)

    def given_back(self, d: Any, look: Look) -> None:
        """Record lease.release(): a charge for being delivered alone is undone."""
        lane = self.lanes[d.key]
        lease = lane.lease
        assert lease is not None
        for seq in lease.members & lease.charged:
            m = lane.at(seq)
            seen = look(lane.key, seq).attempts
            assert seen == max(m.attempts - 1, 0) or (seq in lease.started and seen == m.attempts)
            m.attempts = seen
        place = lane.disturbed_to
        self._give_back(lane, lease.members)
        lane.disturbed_to = place  # it stands where its head's arrival puts it
        self._end_lease(lane)

    def grown(self, d: Any, more: Sequence[Any], n: int) -> None:
        """Record lease.more()."""
        lane = self.lanes[d.key]
        lease = lane.lease
        assert lease is not None
        assert len(more) <= n
        got = [x.seq for x in more]
        given_back = any(m.state == "queued" and m.seq <= lease.high for m in lane.messages)
        waiting = any(m.redriving for m in lane.messages)
        batch = [(m, c) for m, c in self._batch(lane, after=lease.high)]
        assert got == [m.seq for m, _ in batch][: len(got)], "a lease grows over the next messages of its lane"
        assert not got or not (lane.on_hold or given_back or waiting)
        solo = bool(lease.members) and min(lease.members) <= max(lane.solo_to, lane.maybe_solo_to)
        if not (lane.on_hold or given_back or waiting or solo or lease.deadline <= self.now):
            assert len(got) >= min(n, sum(certain for _, certain in batch)), "more of the lane was there"
        for x, (m, _) in zip(more, batch, strict=False):
            assert x.token == lease.token
            assert x.body == m.body
            m.id, m.state, m.handed_out, m.due = x.id, "leased", True, 0
            lease.members.add(m.seq)
            lease.high = m.seq
            lease.size += 1

    def done(self, d: Any) -> None:
        """Record done(), after a receive with ack_first."""
        self._end_lease(self.lanes[d.key])

    # --- an operator's verbs -----------------------------------------------------------------------------------------

    def put_on_hold(self, key: Key) -> None:
        """Record hold()."""
        self.lanes[key].on_hold = True
        self.lanes[key].disturb()

    def let_go(self, key: Key, look: Look) -> None:
        """Record release(): attempts restart."""
        lane = self.lanes[key]
        if not lane.on_hold:
            return
        lane.on_hold = False
        lane.disturb()
        lane.maybe_solo_to, lane.solo_to = max(lane.maybe_solo_to, lane.solo_to), 0
        lapsed = lane.lease is not None and lane.lease.deadline <= self.now
        for m in lane.unresolved():
            seen = look(key, m.seq).attempts
            assert seen <= m.attempts
            assert seen == 0 or m.state == "leased", "attempts are reset"
            if m.attempts:
                # The delay after its last nack may end with it.
                m.doubtful_until = max(m.doubtful_until, m.due)
                m.due = 0
            m.maybe_one_more = lapsed and m.state == "leased"
            m.attempts = seen
            m.crashes, m.failing_since = 0, None

    def redriven(self, key: Key | None, count: int) -> None:
        """Record redrive() of a key, or of all."""
        expected = 0
        for lane in self.lanes.values():
            if key is not None and lane.key != key:
                continue
            for m in lane.messages:
                if m.state == "dead" and not m.redriving:
                    expected += 1
                    m.redriving = True
            if lane.lease is None:
                self._end_lease(lane)
        assert count == expected

    def purge_may_be_judged(self, key: Key) -> bool:
        """Return whether a purge is predictable: nothing is held or expired, and no dead letter waits to be redriven."""
        lane = self.lanes[key]
        lapsed = lane.lease is not None and lane.lease.deadline <= self.now
        expired = any(m.expires is not None and m.expires <= self.now for m in lane.unresolved())
        return not (lapsed or lane.on_hold or expired or any(m.redriving for m in lane.messages))

    def purge(self, key: Key, count: int) -> None:
        lane = self.lanes[key]
        gone = [m for m in lane.messages if m.state == "queued"]
        assert count == len(gone)
        for m in gone:
            m.state = "gone"
            if m.dedup_id is not None and lane.dedup.get(m.dedup_id, (None, 0))[0] is m:
                del lane.dedup[m.dedup_id]
        lane.maybe_dedup |= set(lane.dedup)
        lane.maybe_solo_to, lane.solo_to = max(lane.maybe_solo_to, lane.solo_to), 0
        lane.disturb()
        self.purged += count

    def rebooted(self) -> None:
        """End every timed lease."""
        for lane in self.lanes.values():
            if lane.lease is not None:
                lane.lease.deadline = min(lane.lease.deadline, self.now)
                lane.lease.rebooted = True

    # --- what can be observed --------------------------------------------------------------------------------------------

    def unresolved(self) -> int:
        """Return the number of unresolved messages."""
        return sum(len(lane.unresolved()) for lane in self.lanes.values())

    def compare_stats(self, stats: Any) -> None:
        """Compare all counts."""
        lanes = self.lanes.values()
        waiting = sum(m.redriving for lane in lanes for m in lane.messages)
        assert stats.depth == self.unresolved() + waiting
        assert stats.in_flight == sum(len(self.flying(lane)) for lane in lanes)
        assert stats.held == sum(
            len(lane.unresolved()) + sum(m.redriving for m in lane.messages) - len(self.flying(lane))
            for lane in lanes
            if lane.on_hold
        )
        assert stats.dead == sum(m.state == "dead" for lane in lanes for m in lane.messages) - waiting
        assert stats.sends == self.sends
        assert self.acks <= stats.acks <= self.acks + self.resolved_on_receive
        assert stats.purged == self.purged

    def flying(self, lane: Lane) -> set[int]:
        """Return the seqs that a live lease holds."""
        return lane.lease.members if lane.lease is not None and lane.lease.deadline > self.now else set()

    def compare_lane(self, key: Key, peeked: Sequence[Any]) -> None:
        lane = self.lane(key)
        there = [m for m in lane.messages if m.state in ("queued", "leased") or m.redriving]
        assert [(p.seq, p.body) for p in peeked] == [(m.seq, m.body) for m in there], f"lane {key!r}"
        flying = self.flying(lane)
        lapsed = lane.lease is not None and lane.lease.deadline <= self.now
        for p, m in zip(peeked, there, strict=True):
            states = {"in_flight"} if m.seq in flying else {"held"} if lane.on_hold else {"ready", "delayed"}
            if m is there[0] and states == {"ready", "delayed"} and m.doubtful_until <= self.now:
                states = {"delayed"} if m.due > self.now else {"ready"}
            assert p.state in states, f"{key!r} {m.seq}"
            if not (lapsed or m.redriving):
                assert m.attempts <= p.attempts <= m.attempts + m.maybe_one_more, f"attempts of {key!r} {m.seq}"

    def compare_dead(self, dead: Sequence[Any]) -> None:
        lanes = self.lanes.values()
        expected = {(lane.key, m.seq) for lane in lanes for m in lane.messages if m.state == "dead" and not m.redriving}
        assert {(x.key, x.seq) for x in dead} == expected
