"""An open queue of the endpoint: what standard and FIFO queues have in common.

Its methods are called by one thread at a time: the event loop's, or the queue's own at durability "full".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from ..._platform.clock import MICROSECONDS, Clock
from ..._values.config import QueueConfig
from ..._values.errors import PartialFailure, StrictqError
from ..._values.types import Message, Receipt
from ...delivery import Batch, Delivery
from ...handle import DeliveryRef
from ...opening import open as open_queue
from ...queue import Queue
from ..queues import CATALOG
from . import received, rules
from .catalogue import Entry
from .errors import SqsError, bad, invalid
from .received import Info, Received, Taken, Wanted
from .rules import Content

SHORTEST_LEASE_SECONDS: Final = 0.001
DEDUP_SECONDS: Final = 300.0
DYING_MAX: Final = 100
"""A receive moves so many dead letters at once. Then other requests are answered."""
USUAL_LEASE_SECONDS: Final = 30.0
IDLE_LANE_SECONDS: Final = 30.0
STORED_BYTES_MAX: Final = 6 * rules.MESSAGE_BYTES_MAX
"""The largest message with its header: JSON within JSON makes four characters of a quotation mark, base64 four of three."""

Bury = Callable[[Entry, str, Message], bool]
"""Sends a dead letter of a queue to the queue with an ARN. Returns False if there is none."""
Failure = SqsError | StrictqError
"""The error of one message."""
ERRORS: Final = (SqsError, StrictqError)


def config_of(entry: Entry) -> QueueConfig:
    """Return the settings of a queue."""
    common: dict[str, Any] = {
        "max_attempts": None, "retry_delay_seconds": 0.0, "retry_for_seconds": 0.0,
        "lease_seconds": float(entry.number("VisibilityTimeout") or USUAL_LEASE_SECONDS),
        "ttl_seconds": float(entry.number("MessageRetentionPeriod")),
        "dedup_window_seconds": float(entry.values.get(rules.DEDUPLICATION, DEDUP_SECONDS)),
        "max_body_bytes": STORED_BYTES_MAX,
    }  # fmt: skip
    if entry.fifo:
        scope: Literal["key", "queue"] = "key" if entry.values["DeduplicationScope"] == "messageGroup" else "queue"
        return QueueConfig(**common, dedup_scope=scope)
    return QueueConfig(**common, idle_lane_seconds=IDLE_LANE_SECONDS, tenant_separator="/")


class ServedQueue(ABC):
    """A queue that is open. Close it.

    Attributes:
        q: the queue. Its methods may be called by any thread.
        used_at: when it was last used, seconds of the event loop's clock.
        has_more: the last receive ended before all dead letters were moved, so it may have found nothing.
    """

    def __init__(self, entry: Entry, path: str, durability: Literal["full", "process"], clock: Clock, bury: Bury) -> None:
        """Open the queue, and create it if there is none.

        Raises:
            StrictqError: it can't be opened.
        """
        self.entry = entry
        self.clock = clock
        self.used_at = 0.0
        self.has_more = False
        self._send_dead = bury
        self._soonest: int | None = None
        stored = (Path(path) / CATALOG).exists()  # a queue of the level "full" stays one
        level = None if stored and durability == "process" else durability
        self.q: Queue = open_queue(path, durability=level, config=config_of(entry), on_config_mismatch="update", clock=clock)
        self.queue_id = self.q.queue_id

    def deliveries(self, most: int, visibility: int) -> Batch:
        """Receive from the queue, and hide for `visibility` seconds."""
        receiving = self.q._receiving
        request = receiving.request(most, None, visibility or SHORTEST_LEASE_SECONDS, charge="all")
        batch = receiving.batch(request)
        self._soonest = receiving.receive_now(batch, request, wait_for_busy=True)
        return batch

    def batches(self, alive: Sequence[object], wanted: Wanted) -> Iterator[Batch]:
        """Yield batches until a receive has enough, or all were alive, or DYING_MAX messages were dead letters.

        A receive that hides nothing ends with its first message: the next batch could have the same one.

        Args:
            alive: the messages of the receive so far. The caller adds those of each batch.
        """
        died = 0
        self.has_more = False
        while len(alive) < (wanted.most if wanted.visibility else 1):
            before = len(alive)
            batch = self.deliveries(wanted.most - before, wanted.visibility)
            if len(batch) == 0:
                return
            yield batch
            if len(alive) - before == len(batch):
                return
            died += len(batch) - (len(alive) - before)
            if died >= DYING_MAX:
                self.has_more = True
                return

    @contextmanager
    def watched(self, changed: Callable[[], None]) -> Iterator[float]:
        """Call `changed`, from any thread, when a message may have become visible, also by another process, within the block.

        Yields:
            The seconds after which to look in any case.
        """
        waker = self.q._storage.waker
        waker.listen(changed)
        try:
            with waker.watched() as most:
                yield most
        finally:
            waker.unlisten(changed)

    def seen(self) -> object:
        """Return a value that changes when a message may have become visible by a call of any process."""
        return self.q._storage.waker.seen()

    def seconds_until_due(self) -> float | None:
        """Return the seconds until a message becomes visible by itself, after a receive that found none; None: none will."""
        soonest, table = self._soonest, self.due()
        ends = [] if soonest is None else [soonest - self.q._storage.now()]
        if table is not None:
            ends.append(table - self.now())
        return max(min(ends) / MICROSECONDS, 0.001) if ends else None

    def now(self) -> int:
        """Return the time on the queue's clock, microseconds."""
        return self.clock.boot()

    def close(self) -> None:
        """Close the queue."""
        self.q.close()

    def configure(self) -> None:
        """Apply changed attributes."""
        new = config_of(self.entry)
        now = self.q.config
        changes = {name: getattr(new, name) for name in new.given if getattr(new, name) != getattr(now, name)}
        if changes:
            self.q.configure(**changes)

    # ---- sending

    @abstractmethod
    def message(self, content: Content) -> Message:
        """Return a checked message as one of the queue."""

    @abstractmethod
    def sent(self, receipt: Receipt) -> dict[str, str]:
        """Return what an answer says of a sent message besides digests."""

    def send(self, messages: Sequence[Message]) -> list[Receipt | Failure]:
        """Send messages. Return the receipt or the error of each."""
        if len(messages) == 1:
            m = messages[0]
            try:
                return [self.q.send(m.body, m.key, dedup_id=m.dedup_id, delay=m.delay, ttl=m.ttl, headers=m.headers)]
            except StrictqError as e:
                return [e]
        try:
            return list(self.q.send_many(messages))
        except PartialFailure as e:
            return list(e.results)
        except StrictqError as e:
            return [e] * len(messages)

    # ---- receiving

    @abstractmethod
    def receive(self, wanted: Wanted) -> list[Taken]:
        """Receive messages that are visible now, and hide them."""

    @abstractmethod
    def give_back(self, taken: Sequence[Taken]) -> None:
        """Make received messages visible again, as if they had not been received."""

    @abstractmethod
    def due(self) -> int | None:
        """Return when a hidden message becomes visible that the queue does not know of, microseconds; None: none does."""

    @property
    @abstractmethod
    def hides(self) -> bool:
        """Whether closing the queue would forget that messages are hidden."""

    def lives(self, m: Received) -> bool:
        """Return whether a received message may be received once more. A dead letter is moved to its queue."""
        policy = self.entry.redrive
        return policy is None or m.count <= policy.receives or not self._bury(m, policy.target)

    def _bury(self, m: Received, target: str) -> bool:
        """Move a dead letter: send it, then ack it. A crash in between repeats the send, which is a duplicate then."""
        once = received.id_from("dead", self.queue_id, m.hold.key, m.seq)
        info = m.info | {received.RECEIVES: m.count - 1, received.SOURCE: self.entry.arn}
        if not self._send_dead(self.entry, target, self.moved(m, info, once)):
            return False
        m.hold.ack()
        return True

    def moved(self, m: Received, info: Info, once: str) -> Message:
        """Return a message as one of another queue of the same type.

        Args:
            once: the same for each repetition of this move, and different for each other one. It is not the message's id: a
                message that dies, is moved back and dies again within the window is not a duplicate.
        """
        assert m.body is not None
        info = info | {received.ID: m.message_id}
        if self.entry.fifo:
            info[received.DEDUP_ID] = received.original_dedup_id(m)
            return received.message_of(m.body, m.group or "", once, 0.0, info)
        info[received.SENT] = m.sent
        group = None if m.group is None else str(m.group)
        return received.message_of(m.body, received.standard_key(group, once), once, 0.0, info)

    def fill(self, m: Received, d: Delivery) -> None:
        """Set what a delivery says of a message."""
        m.hold = d
        m.seq = d.seq
        m.body = d.body
        headers = d.headers
        m.info = received.info_of(headers) if headers else {}
        m.dedup_id = d.dedup_id
        m.sent = m.info.get(received.SENT) or d.enqueued_at

    def wall(self) -> float:
        """Return seconds since 1970."""
        return self.clock.wall() / MICROSECONDS

    # ---- settling

    @abstractmethod
    def delete(self, handles: Sequence[str]) -> list[Failure | None]:
        """Delete messages. Return None or the error of each."""

    @abstractmethod
    def change(self, changes: Sequence[tuple[str, int]]) -> list[Failure | None]:
        """Change the visibility of messages, given with seconds from now. Return None or the error of each."""

    def require_time_left(self, seconds: int, since: int) -> None:
        """Refuse to hide a message for longer than the maximum, counted from its receive."""
        if seconds + (self.now() - since) // MICROSECONDS > rules.VISIBILITY_SECONDS_MAX:
            raise bad(
                seconds, "VisibilityTimeout",
                f"Total VisibilityTimeout for the message is beyond the limit [{rules.VISIBILITY_SECONDS_MAX} seconds]",
            )  # fmt: skip

    def ref(self, handle: str, given: str = "") -> DeliveryRef:
        """Return the delivery that a handle of the queue identifies, which is part of the given receipt handle."""
        try:
            return self.q.delivery(handle)
        except StrictqError:
            raise wrong_handle(given or handle) from None

    def ack(self, holds: Sequence[Delivery | DeliveryRef]) -> list[StrictqError | None]:
        """Ack messages in one transaction. Return None or the error of each."""
        try:
            if len(holds) == 1:
                holds[0].ack()
            elif holds:
                self.q.ack_many(holds)
        except PartialFailure as e:
            return list(e.results)
        except StrictqError as e:
            return [e] * len(holds)
        return [None] * len(holds)

    # ---- the queue

    def counts(self) -> tuple[int, int, int]:
        """Return how many messages are visible, hidden and delayed."""
        stats = self.q.stats()
        return stats.ready, stats.in_flight, stats.delayed

    def purge(self) -> None:
        """Delete all messages, also hidden ones."""
        self.q.purge(in_flight=True)

    # ---- restarts

    @abstractmethod
    def saved(self) -> dict[str, Any] | None:
        """Return what `restore` needs of the hidden messages; None: the queue itself knows them."""

    @abstractmethod
    def restore(self, saved: dict[str, Any]) -> None:
        """Take over the hidden messages that a clean stop left."""


def wrong_handle(handle: str) -> SqsError:
    """Return the error of a text that is not a receipt handle of the queue."""
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')


def not_hidden(handle: str) -> SqsError:
    """Return the error of a change of the visibility of a message that is not hidden."""
    return invalid(
        f"Value {handle} for parameter ReceiptHandle is invalid. "
        "Reason: Message does not exist or is not available for visibility timeout change."
    )
