"""FIFO queues. A group is a key: a receive returns a group's messages in order, up to the first one that is hidden.

The lease of a lane cannot say that its first message is visible and its second one hidden. So this module keeps a table of the
lanes that have hidden messages. Its rules:

1. The lease of a lane in the table ends when its last hidden message becomes visible. If all its messages are visible, the
   lane is released or its lease has ended; it leaves the table, and the queue delivers it again, with newer messages behind.
2. The lease is extended before an extension is confirmed, and before a message of the table is received again. If it is lost,
   the lane leaves the table.
3. A receive returns first the visible messages of lanes in the table, then what the queue delivers.
4. A receipt handle is honoured if it is the newest of its message, and the message is hidden.
5. A delete is confirmed only if the message is resolved.
6. Times are those of the queue's clock.
7. Bodies are kept up to 64 KiB each and 64 MiB together. Others are read again.

The table is lost with the process. Then leases end at their deadlines, and handles are checked by the queue alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ..._platform.clock import MICROSECONDS
from ..._values.errors import LeaseLost, StrictqError, UnknownMessage
from ..._values.keys import Key
from ..._values.types import Message, Receipt
from ...delivery import Delivery
from ...handle import DeliveryRef
from . import received
from .errors import expired
from .received import Received, Taken, Wanted
from .rules import Content
from .served import ERRORS, SHORTEST_LEASE_SECONDS, Failure, ServedQueue, not_hidden, wrong_handle

BODY_KEPT_MAX: Final = 64 << 10
BODIES_KEPT_MAX: Final = 64 << 20
REMEMBERED_MAX: Final = 100_000
ATTEMPT_SECONDS: Final = 300

Place = tuple[Key, int]
"""Group and seq of a message."""


class HeldGroup:
    """A lane with hidden messages.

    Attributes:
        messages: by seq, ascending.
        deadline: when the lease ends.
        due: when the lane is looked at: not later than its next message becomes visible.
    """

    __slots__ = ("deadline", "due", "messages")

    def __init__(self, deadline: int) -> None:
        self.messages: dict[int, Received] = {}
        self.deadline = self.due = deadline


class FifoQueue(ServedQueue):
    """A FIFO queue that is open."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._lanes: dict[Key, HeldGroup] = {}
        self._partly: dict[Key, None] = {}
        """The lanes of the table whose first message is visible, in the order in which it became so."""
        self._timers: list[tuple[int, int, Key]] = []
        """When lanes are looked at. An entry that is not its lane's `due` is void. The number makes entries comparable."""
        self._turn = itertools.count()
        self._known: dict[Place, Received] = {}
        """Messages that were received and not deleted, for their counts."""
        self._newest: dict[str, Received] = {}
        """Those messages, by their newest handles."""
        self._bodies = 0
        """Bytes of the bodies that are kept."""
        self._attempts: dict[str, tuple[int, Sequence[tuple[Received, str]]]] = {}
        """Receives that can be repeated by their ids: when, and what they returned."""

    # ---- sending

    def message(self, content: Content) -> Message:
        info = received.info_to_send(content)
        return received.message_of(content.body, _group(content.group), content.dedup_id, float(content.delay), info)

    def sent(self, receipt: Receipt) -> dict[str, str]:
        return {
            "MessageId": received.id_from(self.queue_id, receipt.key, receipt.seq),
            "SequenceNumber": received.sequence_number(receipt.seq),
        }

    # ---- receiving

    def receive(self, wanted: Wanted) -> list[Taken]:
        self._look()
        if wanted.attempt is not None and (repeated := self._repeated(wanted.attempt, wanted)) is not None:
            return repeated
        alive: list[Taken] = []
        for group in list(self._partly):
            if len(alive) == wanted.most:
                break
            self._again(group, wanted, alive)
        for batch in self.batches(alive, wanted):
            self._delivered(batch, wanted, alive)
        return self._noted(alive, wanted)

    def _noted(self, taken: list[Taken], wanted: Wanted) -> list[Taken]:
        """Remember what a receive returns, for a repetition of it."""
        for m, _, _ in taken:
            self._trim(m)
        if not wanted.visibility:
            for group in dict.fromkeys(_group(m.group) for m, _, _ in taken):
                if group in self._lanes:
                    self._settle(group)
        if wanted.attempt is not None and taken:
            self._attempts[wanted.attempt] = self.now(), [(m, handle) for m, handle, _ in taken]
        return taken

    def _delivered(self, batch: Sequence[Delivery], wanted: Wanted, alive: list[Taken]) -> None:
        """Put deliveries into the table, and add those that are not dead letters to `alive`."""
        until = self.now() + wanted.visibility * MICROSECONDS
        lease = None
        for i, d in enumerate(batch):
            group = _group(d.key)
            if d.lease is not lease:
                lease = d.lease
                self._forget_lane(group)  # if it is in the table, its lease was lost
                lane = self._lanes[group] = HeldGroup(until)
                self._schedule(group, lane, until)
            m = self._delivery(d, group)
            lane.messages[m.seq] = m
            self._hand_out(m, d.handle, until)
            try:
                lives = self.lives(m)
            except ERRORS:  # it stays hidden, and dies at a later receive
                if alive or i < len(batch) - 1:
                    continue
                raise
            if lives:
                alive.append(received.taken(m, wanted, fifo=True))
            else:
                self._remove(m)
        if len(self._known) > REMEMBERED_MAX + 2 * len(self._lanes):
            self._prune()

    def _delivery(self, d: Delivery, group: Key) -> Received:
        """Return what is known of a delivered message."""
        place = group, d.seq
        m = self._known.get(place)
        if m is None:
            m = self._known[place] = Received()
            m.group, m.first, m.handle, m.count, m.kept = group, self.wall(), "", 0, 0
        self._fill(m, d)
        m.message_id = m.info.get(received.ID) or received.id_from(self.queue_id, group, m.seq)
        m.count = max(m.count, int(m.info.get(received.RECEIVES, 0)) + d.attempt - 1)
        m.number = 0
        return m

    def _again(self, group: Key, wanted: Wanted, alive: list[Taken]) -> None:
        """Receive the visible messages at the head of a lane of the table once more. Add those that are not dead letters."""
        lane, now = self._lanes[group], self.now()
        head: list[Received] = []
        for m in lane.messages.values():
            if m.until > now or len(head) == wanted.most - len(alive):
                break
            head.append(m)
        until = now + wanted.visibility * MICROSECONDS
        if not self._extend(group, lane, max(until, lane.deadline)):  # another program may have ended it
            return
        for m in head:
            if m.body is None:
                self._read(m)
            self._hand_out(m, m.hold.handle, until)
            try:
                lives = self.lives(m)
            except ERRORS:  # it stays hidden, and dies at a later receive
                if alive:
                    break
                raise
            if lives:
                alive.append(received.taken(m, wanted, fifo=True))
            else:
                self._remove(m)
        if group in self._lanes:
            self._settle(group)

    def _hand_out(self, m: Received, base: str, until: int) -> None:
        """Count a receive of a message, and give it a new handle."""
        self._newest.pop(m.handle, None)
        m.count += 1
        m.number += 1
        m.until = until
        m.since = self.now()
        m.handle = f"{base}.{m.number}"
        self._newest[m.handle] = m

    def _repeated(self, attempt: str, wanted: Wanted) -> list[Taken] | None:
        """Return the messages of a receive again, if all of them are still hidden under the same handles."""
        now = self.now()
        while self._attempts and next(iter(self._attempts.values()))[0] <= now - ATTEMPT_SECONDS * MICROSECONDS:
            del self._attempts[next(iter(self._attempts))]
        _, before = self._attempts.pop(attempt, (0, ()))
        if not before or not all(self._is_hidden(m, handle, now) for m, handle in before):
            return None
        outcomes = self.change([(handle, wanted.visibility) for _, handle in before])
        if any(outcomes):
            return None
        for m, _ in before:
            if m.body is None:
                self._read(m)
        return self._noted([received.taken(m, wanted, fifo=True) for m, _ in before], wanted)

    def _is_hidden(self, m: Received | None, handle: str, now: int) -> bool:
        """Return whether a handle is honoured: it is its message's newest, and the message is hidden."""
        return m is not None and self._newest.get(handle) is m and m.until > now and m.group in self._lanes

    def give_back(self, taken: Sequence[Taken]) -> None:
        now = self.now()
        groups: dict[Key, None] = {}
        for m, handle, _ in taken:
            if self._is_hidden(m, handle, now):
                m.until = now
                m.count -= 1
                groups[_group(m.group)] = None
        for group in groups:
            self._settle(group, charge=False)

    # ---- settling

    def delete(self, handles: Sequence[str]) -> list[Failure | None]:
        outcomes: list[Failure | None] = [None] * len(handles)
        now = self.now()
        hidden: dict[int, Received] = {}
        given: set[str] = set()
        for i, handle in enumerate(handles):
            m = self._newest.get(handle)
            if m is None:
                outcomes[i] = self._delete_unknown(handle)
            elif not self._is_hidden(m, handle, now):
                outcomes[i] = expired(handle)
            elif handle not in given:
                given.add(handle)
                hidden[i] = m
        groups: dict[Key, None] = {}
        for (i, m), lost in zip(hidden.items(), self.ack([m.hold for m in hidden.values()]), strict=True):
            group = _group(m.group)
            if lost is None:
                self._remove(m)
                groups[group] = None
            elif isinstance(lost, LeaseLost):
                self._forget_lane(group)
                outcomes[i] = expired(handles[i])
            else:
                outcomes[i] = lost
        for group in groups:
            if group in self._lanes:
                with suppress(StrictqError):  # the delete is done; the others stay hidden for longer
                    self._settle(group)
        return outcomes

    def _delete_unknown(self, handle: str) -> Failure | None:
        """Delete a message by a handle that is not in the table: an old one, or one of before a restart."""
        try:
            ref = self._ref(handle)
            if (ref.key, ref.seq) in self._known:
                return expired(handle)
            ref.ack()
        except LeaseLost:
            return None if self._is_resolved(ref) else expired(handle)
        except ERRORS as e:
            return e
        return None

    def _ref(self, handle: str) -> DeliveryRef:
        base, dot, number = handle.rpartition(".")
        if not dot or not number.isdigit():
            raise wrong_handle(handle)
        return self.ref(base, handle)

    def _is_resolved(self, ref: DeliveryRef) -> bool:
        assert ref.key is not None
        try:
            return self.q.status(ref.key, ref.seq).state == "resolved"
        except UnknownMessage:
            return False

    def change(self, changes: Sequence[tuple[str, int]]) -> list[Failure | None]:
        outcomes: list[Failure | None] = []
        groups: dict[Key, None] = {}
        for handle, seconds in changes:
            try:
                self._change(handle, seconds, groups)
                outcomes.append(None)
            except LeaseLost:
                outcomes.append(not_hidden(handle))
            except ERRORS as e:
                outcomes.append(e)
        for group in groups:
            if group in self._lanes:
                self._settle(group)
        return outcomes

    def _change(self, handle: str, seconds: int, groups: dict[Key, None]) -> None:
        m, now = self._newest.get(handle), self.now()
        if m is None:
            ref = self._ref(handle)
            if (ref.key, ref.seq) in self._known:
                raise not_hidden(handle)
            if seconds:
                ref.extend(seconds, late=False)
            else:
                ref.nack(delay=0.0)
            return
        if not self._is_hidden(m, handle, now):
            raise not_hidden(handle)
        self.require_time_left(seconds, m.since)
        group, until = _group(m.group), now + seconds * MICROSECONDS
        lane = self._lanes[group]
        if until > lane.deadline and not self._extend(group, lane, until):
            raise not_hidden(handle)
        m.until = until
        groups[group] = None

    # ---- the table

    def _look(self) -> None:
        """Look at the lanes of which a message has become visible."""
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            at, _, group = heapq.heappop(self._timers)
            lane = self._lanes.get(group)
            if lane is None or lane.due != at:
                continue
            hidden = [m.until for m in lane.messages.values() if m.until > now]
            if hidden:
                self._schedule(group, lane, min(hidden))
                self._note_head(group, lane, now)
            else:
                self._forget_lane(group)

    def _schedule(self, group: Key, lane: HeldGroup, at: int) -> None:
        lane.due = at
        heapq.heappush(self._timers, (at, next(self._turn), group))
        if len(self._timers) > 2 * len(self._lanes) + 100:
            self._timers = [(lane.due, next(self._turn), group) for group, lane in self._lanes.items()]
            heapq.heapify(self._timers)

    def _note_head(self, group: Key, lane: HeldGroup, now: int) -> None:
        """Note whether the first message of a lane is visible."""
        if next(iter(lane.messages.values())).until <= now:
            self._partly.setdefault(group)
        else:
            self._partly.pop(group, None)

    def _settle(self, group: Key, *, charge: bool = True) -> bool:
        """Make a lane's lease end with its last hidden message, and release the lane if there is none.

        Return False if the lease was lost.

        Args:
            charge: a release counts as a receive of the first message.
        """
        lane, now = self._lanes[group], self.now()
        if not lane.messages:
            self._forget_lane(group)
            return True
        last = max(m.until for m in lane.messages.values())
        if last <= now:
            self._release(group, lane, charge=charge)
            return True
        if last != lane.deadline and not self._extend(group, lane, last):
            return False
        soonest = min(m.until for m in lane.messages.values() if m.until > now)
        if soonest < lane.due:
            self._schedule(group, lane, soonest)
        self._note_head(group, lane, now)
        return True

    def _extend(self, group: Key, lane: HeldGroup, until: int) -> bool:
        """Make a lane's lease end at a time, which may be sooner. Return False if it was lost."""
        seconds = max((until - self.now()) / MICROSECONDS, SHORTEST_LEASE_SECONDS)
        try:
            next(iter(lane.messages.values())).hold.extend(seconds, late=False)
        except LeaseLost:
            self._forget_lane(group)
            return False
        lane.deadline = until
        return True

    def _release(self, group: Key, lane: HeldGroup, *, charge: bool) -> None:
        """End the lease of a lane whose messages are all visible."""
        head = next(iter(lane.messages.values())).hold
        self._forget_lane(group)
        with suppress(LeaseLost):
            if charge:
                head.nack(delay=0.0)
            else:
                head.defer(0.0)

    def _forget_lane(self, group: Key) -> None:
        """Remove a lane from the table. Its messages are visible; their counts are kept."""
        lane = self._lanes.pop(group, None)
        self._partly.pop(group, None)
        if lane is not None:
            now = self.now()
            for m in lane.messages.values():
                m.until = min(m.until, now)
                self._drop(m)
                del m.hold

    def _remove(self, m: Received) -> None:
        """Remove a resolved message."""
        group = _group(m.group)
        self._drop(m)
        self._newest.pop(m.handle, None)
        self._known.pop((group, m.seq), None)
        lane = self._lanes.get(group)
        if lane is not None and lane.messages.get(m.seq) is m:
            del lane.messages[m.seq]
            if not lane.messages:
                self._forget_lane(group)

    def _prune(self) -> None:
        """Forget the counts of messages that were received long ago, and may have expired since."""
        for place, m in list(self._known.items())[: REMEMBERED_MAX // 2]:
            lane = self._lanes.get(place[0])
            if lane is None or lane.messages.get(place[1]) is not m:
                del self._known[place]
                self._newest.pop(m.handle, None)

    # ---- bodies

    def _fill(self, m: Received, d: Delivery) -> None:
        self.fill(m, d)
        m.kept = len(d.body)
        self._bodies += m.kept

    def _read(self, m: Received) -> None:
        """Read a message again whose body was not kept."""
        (found,) = self.q.peek(Receipt(m.group, m.seq, 0), 1)
        m.body = found.body
        m.info = received.info_of(found.headers)
        m.sent = found.enqueued_at
        m.message_id = m.info.get(received.ID) or received.id_from(self.queue_id, m.group, m.seq)
        m.dedup_id = found.dedup_id
        m.kept = len(found.body)
        self._bodies += m.kept

    def _trim(self, m: Received) -> None:
        """Drop a body that is too large to keep while its message is hidden."""
        if m.kept > BODY_KEPT_MAX or (m.kept and self._bodies > BODIES_KEPT_MAX):
            self._drop(m)
            if isinstance(m.hold, Delivery):  # it has the body, too
                m.hold = self.q.delivery(m.hold.handle)

    def _drop(self, m: Received) -> None:
        self._bodies -= m.kept
        m.kept = 0
        m.body = None

    # ---- the queue

    def due(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    @property
    def hides(self) -> bool:
        return bool(self._lanes)

    def counts(self) -> tuple[int, int, int]:
        self._look()  # the queue counts what a lease held that has ended
        visible, hidden, delayed = super().counts()
        now = self.now()
        shown = sum(m.until <= now for group in self._partly for m in self._lanes[group].messages.values())
        shown = min(shown, hidden)  # another program may have ended a lease
        return visible + shown, hidden - shown, delayed

    def purge(self) -> None:
        super().purge()
        for group in list(self._lanes):
            self._forget_lane(group)
        for table in (self._known, self._newest, self._attempts, self._timers):
            table.clear()

    # ---- restarts

    def saved(self) -> dict[str, Any] | None:
        if not self._lanes:
            return None
        return {
            "boot": self.clock.boot_id(),
            "lanes": [
                [lane.deadline, [[m.hold.handle, m.number, m.until, m.count, m.first] for m in lane.messages.values()]]
                for lane in self._lanes.values()
            ],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        if saved["boot"] != self.clock.boot_id():
            return
        for deadline, messages in saved["lanes"]:
            lane = HeldGroup(deadline)
            for handle, number, until, count, first in messages:
                m = Received()
                m.hold = ref = self.q.delivery(handle)
                group = _group(ref.key)
                self._lanes[group] = lane
                m.group, m.seq, m.number, m.until, m.count, m.first = group, ref.seq, number, until, count, first
                m.since = self.now()
                m.body, m.info, m.kept, m.handle = None, {}, 0, f"{handle}.{number}"
                lane.messages[m.seq] = self._known[group, m.seq] = self._newest[m.handle] = m
            self._schedule(group, lane, min(m.until for m in lane.messages.values()))


def _group(key: Key | None) -> Key:
    """Return the group of a message. FIFO queues have no messages without a key."""
    assert key is not None
    return key
