"""Standard queues. Each message has a lane of its own, so visibility, count, delay and late deletes are the queue's own.

Messages with a MessageGroupId form tenants, which take turns (a "fair queue").
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ..._values.errors import LeaseLost, StrictqError, UnknownMessage
from ..._values.keys import Key
from ..._values.types import Message, Receipt
from ...delivery import Delivery
from ...handle import DeliveryRef
from . import received
from .received import Received, Taken, Wanted
from .rules import Content
from .served import ERRORS, Failure, ServedQueue, not_hidden

REMEMBERED_MAX: Final = 200_000


class Newest(NamedTuple):
    """The newest receive of a message: a handle of an older one names the message, too.

    Attributes:
        first: the time of the first receive, seconds since 1970.
        since: the time of this one on the clock, microseconds.
    """

    first: float
    since: int
    handle: str


class StandardQueue(ServedQueue):
    """A standard queue that is open."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._newest: dict[tuple[Key | None, int], Newest] = {}

    # ---- sending

    def message(self, content: Content) -> Message:
        key = received.standard_key(content.group, received.new_id())
        return received.message_of(content.body, key, None, float(content.delay), received.info_to_send(content))

    def sent(self, receipt: Receipt) -> dict[str, str]:
        return {"MessageId": received.id_of_standard_key(self.queue_id, receipt.key, receipt.seq)[0]}

    # ---- receiving

    def receive(self, wanted: Wanted) -> list[Taken]:
        alive: list[Received] = []
        for batch in self.batches(alive, wanted):
            self._add_alive(batch, alive)
        if not wanted.visibility:
            for m in alive:
                with suppress(LeaseLost):
                    m.hold.nack(delay=0.0)
        return [received.taken(m, wanted, fifo=False) for m in alive]

    def _add_alive(self, batch: Sequence[Delivery], taken: list[Received]) -> None:
        """Add the messages that are not dead letters."""
        for i, d in enumerate(batch):
            m = self._received(d)
            try:
                if self.lives(m):
                    taken.append(m)
            except ERRORS:
                # The message stays hidden, and dies at a later receive. Those before it can be answered.
                if not taken and i == len(batch) - 1:
                    raise

    def _received(self, d: Delivery) -> Received:
        m = Received()
        self.fill(m, d)
        key = d.key
        m.message_id, m.group = received.id_of_standard_key(self.queue_id, key, m.seq)
        m.message_id = m.info.get(received.ID, m.message_id)
        m.count = d.attempt + int(m.info.get(received.RECEIVES, 0))
        m.handle = d.handle
        place = key, m.seq
        before = self._newest.pop(place, None)
        m.first = self.wall() if before is None else before.first
        self._newest[place] = Newest(m.first, self.now(), m.handle)
        if len(self._newest) > REMEMBERED_MAX:
            del self._newest[next(iter(self._newest))]
        return m

    def give_back(self, taken: Sequence[Taken]) -> None:
        for each in taken:
            with suppress(LeaseLost):
                each.message.hold.defer(0.0)

    def due(self) -> int | None:
        return None

    @property
    def hides(self) -> bool:
        return False

    # ---- settling

    def delete(self, handles: Sequence[str]) -> list[Failure | None]:
        outcomes: list[Failure | None] = [None] * len(handles)
        refs: dict[int, DeliveryRef] = {}
        for i, handle in enumerate(handles):
            try:
                refs[i] = self.ref(handle)
            except ERRORS as e:
                outcomes[i] = e
        for (i, ref), lost in zip(refs.items(), self.ack(list(refs.values())), strict=True):
            self._newest.pop((ref.key, ref.seq), None)
            outcomes[i] = lost
            if isinstance(lost, LeaseLost):  # an older handle, a message that is visible, or one that is deleted
                outcomes[i] = self._resolve(ref)
        return outcomes

    def _resolve(self, ref: DeliveryRef) -> Failure | None:
        assert ref.key is not None
        try:
            self.q.resolve(ref.key, ref.seq)
        except UnknownMessage:
            return None
        except StrictqError as e:
            return e
        return None

    def change(self, changes: Sequence[tuple[str, int]]) -> list[Failure | None]:
        outcomes: list[Failure | None] = []
        for handle, seconds in changes:
            try:
                self._change(handle, seconds)
                outcomes.append(None)
            except LeaseLost:
                outcomes.append(not_hidden(handle))
            except ERRORS as e:
                outcomes.append(e)
        return outcomes

    def _change(self, handle: str, seconds: int) -> None:
        ref = self.ref(handle)
        newest = self._newest.get((ref.key, ref.seq))
        if newest is not None:
            self.require_time_left(seconds, newest.since)
            if newest.handle != handle:
                ref = self.ref(newest.handle)
        if seconds:
            ref.extend(seconds)
        else:
            ref.nack(delay=0.0)

    def purge(self) -> None:
        super().purge()
        self._newest.clear()

    def saved(self) -> None:
        return None

    def restore(self, saved: object) -> None:
        """Do nothing: there was nothing to save."""
