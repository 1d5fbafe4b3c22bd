"""Where a worker's messages come from: the interface of a source, and the source that is a queue of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from secrets import randbits
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from .._client import validate
from .._client.consumers import affinity as checked_affinity
from .._client.consumers import join
from .._client.receiving import default_consumer
from .._platform.clock import MICROSECONDS
from .._store.api import LOOK_SECONDS, NAME_BITS
from .._values.errors import LeaseLost, PartialFailure, SchemaMismatch, StoreCorrupt, StoreError
from .job import EFFECTS, HeldLane

if TYPE_CHECKING:
    from .._platform.observe import Observers
    from .._store.api import AttemptFailure, Joined, LiveConsumer, OnlyConsumer, ProcessHold
    from .._values.config import QueueConfig
    from .._values.keys import Key
    from .._values.tenants import TenantRules
    from ..delivery import Delivery
    from ..queue import Queue
    from .ending import Ending

HOPELESS: Final = (StoreCorrupt, SchemaMismatch)
"""Permanent failures: the shard is unusable until an operator has repaired it. The other shards keep working."""

# What a source may be able to do, besides EFFECTS.
BATCHES: Final = "batches"
"""Ack several messages of a lane at a time, for `process_batch`."""
KEYS: Final = "keys"
"""Receive the messages of some keys only."""
SHARING: Final = "sharing"
"""Know of idle consumers, which get lanes that were not started."""
GROWING: Final = "growing"
"""Grow a lease over later messages of its lane."""
STORED_ESTIMATES: Final = "stored_estimates"
"""Store the learned durations."""
JOINED_RECEIVE: Final = "joined_receive"
"""Receive in the transaction that commits acks."""
HOLDING: Final = "holding"
"""Keep postponed messages leased, because giving them back counts as an attempt."""
EVERYTHING: Final = frozenset({EFFECTS, BATCHES, KEYS, SHARING, GROWING, STORED_ESTIMATES, JOINED_RECEIVE})
"""The capabilities of a queue of this machine."""

LOAD: Final = "load"
"""A kind of report: how busy the worker is, as fields of a Description."""
OUTPUT: Final = "output"
"""A kind of report: pairs of a delivery, and what its running handler has said so far."""

AT_ONCE: Final = "at_once"
BEFORE_NEXT: Final = "before_next"
BEHIND: Final = "behind"
Confirm = Literal["at_once", "before_next", "behind"]
"""When an ack is confirmed: by `settle` itself; later, and the next message of the lane waits for it; later, and it does not."""

SourceEvent = Literal["worker_source_failed", "worker_source_works"]


class AckOutcome(NamedTuple):
    """The outcome of an ack that was handed over, or of an extension that failed.

    Attributes:
        error: None: confirmed. LeaseLost: this message, and the later ones of its lane, are lost. Another error: try again.
    """

    delivery: Delivery
    error: Exception | None = None


class HasSource(Protocol):
    """A queue behind an endpoint, which has sources of its own."""

    @property
    def queue_id(self) -> str: ...

    def _source(self, *, batch: int, lease_seconds: float | None) -> Source:
        """Return a new source, for one run of a worker.

        Args:
            batch: most messages to hold.
            lease_seconds: None: the queue's.
        Raises:
            InvalidArgument: lease_seconds is invalid.
        """
        ...


class Source(Protocol):
    """A queue that a worker works on.

    Only the worker's keeper calls the methods, from one thread, except `began`, `returned`, `estimates` and `keep_estimates`.
    None of them waits for a network. A source that needs one has threads of its own, and wakes the keeper when they have
    something to report.

    A delivery has the attributes of `strictq.Delivery` that a Job shows. Its `lease` is one object per lane and receive, has
    `key`, `shard`, `_held.key` (the lane's name, bytes), `_open` (the number of unsettled messages, above 0 if it may grow),
    `_seconds` (its length) and `_deadline` (on the source's `now`, both in microseconds). The deliveries of a lane come in
    the order of their arrival, with ascending `seq`, and together.

    Attributes:
        path: the queue's name, for reports.
        capabilities: what it can do besides.
        confirm: when acks are confirmed.
        config: the queue's settings, which may change while the worker runs.
        keeps_ends: whether an ack stores how long its handler took, and its output.
        observers: of the queue's object.
        consumer: the worker's name.
        keys: the keys to which it is restricted; None: all.
        tenancy: the rules by which tenants take turns; None: they do not.
        holder: notes the claims of this process; None: they end at their deadlines only.
        own: the shards that are this worker's; None: they are not divided.
        clock: the worker's clock: seconds, on which `HeldLane.until` is.
        round_trip: seconds until an ack is confirmed, a recent mean; 0.0: at once.
        again_seconds: set by `take`: when to look again even if nothing changes, because a delay or a lease may end.
        hopeless: set by `take` when it raises: whether no part of the source can work again without an operator.
        drained: whether nothing is ready now that a draining run should wait for. Asked while nothing is held.
        watched: whether a console shows the worker's handlers now.
        closed: whether the queue was closed, so that nothing can be settled.
    """

    @property
    def path(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[str]: ...
    @property
    def confirm(self) -> Confirm: ...
    @property
    def config(self) -> QueueConfig: ...
    @property
    def keeps_ends(self) -> bool: ...
    @property
    def observers(self) -> Observers: ...
    @property
    def consumer(self) -> str: ...
    @property
    def keys(self) -> Sequence[Key] | None: ...
    @property
    def tenancy(self) -> TenantRules | None: ...
    @property
    def holder(self) -> ProcessHold | None: ...
    @property
    def own(self) -> frozenset[int] | None: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def round_trip(self) -> float: ...
    @property
    def again_seconds(self) -> float: ...
    @property
    def hopeless(self) -> bool: ...
    @property
    def drained(self) -> bool: ...
    @property
    def watched(self) -> bool: ...
    @property
    def closed(self) -> bool: ...

    # ---- the run

    def open(
        self,
        wake: Callable[[], None],
        crash: Callable[[BaseException], None],
        tell: Callable[[SourceEvent, str], None],
        *,
        slots: int,
        drain: bool,
    ) -> None:
        """Begin to work.

        Args:
            wake: wakes the keeper. Callable from any thread.
            crash: ends the run with an error. For a thread of the source that ends with one; callable from any thread.
            tell: reports that the source fails, or works again, with the details. Callable from any thread.
            slots: how many messages the worker runs at once.
            drain: the run ends when nothing is ready.
        """
        ...

    def stop_receiving(self) -> None:
        """Receive nothing more. Return what was received and not taken. The acks and the rest continue."""
        ...

    def close(self, deadline: float) -> None:
        """End. What was handed over is settled before this time of `clock`; `completed` has its outcomes afterwards."""
        ...

    def require_open(self) -> None:
        """Raise unless the queue is open.

        Raises:
            QueueClosed: it was closed.
        """
        ...

    def now(self) -> int:
        """Return the time on which the deadlines of leases are, microseconds."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970."""
        ...

    # ---- receiving

    def take(self, room: int, per_key: int, keys: Sequence[Key] | None = None) -> Sequence[Delivery]:
        """Return messages that are ready now, and note how many are wanted.

        Args:
            room: about how many; 0: none are wanted any more.
            per_key: most messages of a lane, if the source can divide lanes.
            keys: only of these keys, which are due now. A source without the capability looks among what it holds only.
        Raises:
            StoreError, PartialFailure: it failed; see `hopeless`. Nothing was leased.
        """
        ...

    def changed(self) -> object:
        """Return a value that changes when `take` may return more."""
        ...

    def more(self, wanted: Sequence[tuple[HeldLane, int]]) -> Iterable[tuple[HeldLane, Sequence[Delivery] | Exception]]:
        """Grow the leases of lanes over up to so many later messages each, if there are new ones. Yield what each one got.

        An exception is LeaseLost or a StoreError; nothing of this lane was leased.
        """
        ...

    # ---- settling

    def began(self, delivery: Delivery) -> None:
        """Note that a process handler begins. Called from any thread, unless `confirm` is "at_once"."""
        ...

    def returned(self, delivery: Delivery) -> None:
        """Note that it returned, whether or not its outcome still counts. Called from any thread, before that is settled."""
        ...

    def settle(
        self,
        acks: Sequence[tuple[Delivery, Delivery | None]],
        starts: Sequence[Delivery],
        receive: Callable[[], object] | None = None,
    ) -> Mapping[Delivery, Exception]:
        """Ack messages and start others.

        Args:
            acks: each with the next message of its lane that starts with the ack, or None. At most one ack per lane.
            starts: messages whose handlers may start when this returns without an error for them.
            receive: calls `take` in the transaction of the acks, with the capability for that.
        Returns:
            The messages that failed, with their errors: LeaseLost and permanent failures, or others, after which to try again.
            Unless `confirm` is "at_once", the acks are handed over, and `completed` returns their outcomes.
        """
        ...

    def completed(self) -> Sequence[AckOutcome]:
        """Return the outcomes since the last call, in any order. Empty if `confirm` is "at_once"."""
        ...

    def ack_each(self, deliveries: Sequence[Delivery]) -> Sequence[Exception | None]:
        """Ack messages of batches, several of a lane in order. Return None or the error for each."""
        ...

    def fail(self, delivery: Delivery, ending: Ending) -> float | None:
        """Nack, postpone or dead-letter a message, with the later ones of its lane, except after a dead letter.

        Returns:
            The seconds until the next attempt; None: there is none.
        Raises:
            LeaseLost, StoreError: nothing was changed.
        """
        ...

    def hold(
        self, deliveries: Sequence[Delivery], seconds: float, why: Sequence[AttemptFailure] | str, *, began: bool = True
    ) -> Sequence[Exception | None]:
        """Postpone messages with the later ones of their lanes, with no attempt charged.

        Args:
            why: the failure of each, or one reason for all of them, after which the errors so far are kept.
            began: False: their handlers did not run.
        Returns:
            None or the error for each.
        """
        ...

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return messages with the later ones of their lanes, as if they had not been leased. Lost ones are skipped."""
        ...

    def extend(self, lanes: Sequence[HeldLane]) -> Sequence[tuple[HeldLane, Exception]]:
        """Extend the leases of lanes by their lengths, now or soon, and set `HeldLane.until` then.

        Returns:
            The lanes that failed at once, with the errors. Those that fail later are in `completed`.
        """
        ...

    def end_delays(self, keys: Sequence[Key] | None = None, *, one: bool = False) -> bool:
        """Make messages due now that wait because they failed. Return whether there were any.

        Args:
            keys: only of these; None: of all.
            one: only of one key.
        Raises:
            StoreError: it failed; nothing was changed.
        """
        ...

    # ---- estimates, other consumers, reports

    def estimates(self) -> dict[str, str]:
        """Return the stored durations; empty: there are none."""
        ...

    def keep_estimates(self, rows: dict[str, str] | None) -> None:
        """Store the learned durations; None: delete the stored ones.

        Raises:
            StrictqError: it failed.
        """
        ...

    def turn(self, *, behind: bool) -> None:
        """Note that the keeper's loop turns.

        Args:
            behind: whether lanes wait for a slot.
        """
        ...

    def idle(self) -> None:
        """Show other consumers that a slot is free, and that there is no message for it."""
        ...

    def another_idle(self) -> bool:
        """Return whether another consumer shows that."""
        ...

    def report(self, kind: object, value: Any, of: Hashable = None) -> None:
        """Show operators and other processes a value, instead of the last one of this kind.

        Args:
            kind: LOAD, OUTPUT, or a class of notices.
            value: None: remove it.
            of: tells several notices of one class apart.
        Raises:
            OSError, StoreError: it failed. The work does not depend on it.
        """
        ...


class LocalSource:
    """A queue of this machine. Everything is answered at once."""

    capabilities: frozenset[str] = EVERYTHING
    confirm: Confirm = "at_once"
    round_trip = 0.0

    def __init__(
        self,
        queue: Queue,
        *,
        lease_seconds: float | None = None,
        keys: Sequence[Key] | None = None,
        consumer: str | None = None,
        affinity: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to work on a queue. See Worker.

        Raises:
            InvalidArgument: an argument is invalid.
        """
        self._queue = queue
        self._storage = queue._client.storage
        self._settling = queue._client.settling
        self._receiving = queue._receiving
        self._request = self._receiving.request(1, None, lease_seconds, keys, consumer, charge=False, starts=True)
        checked_affinity(affinity, self._storage)
        self._affinity = affinity
        self._consumer = consumer
        self._name = randbits(NAME_BITS)
        self._wake: Callable[[], None] = lambda: None
        self._live: LiveConsumer | OnlyConsumer | None = None
        """The worker among the live consumers, from whose shards it claims."""
        self._joined: Joined | None = None
        """The acks to commit with the next receive."""
        self._asked_at = 0.0
        """`clock()` of the last receive, if it found nothing."""
        self._notices: dict[Hashable, Any] = {}
        self.keys = keys
        self.clock = clock
        self.now = self._storage.now
        self.changed = self._storage.waker.seen
        self.require_open = self._storage.require_open
        self.observers: Observers = self._storage.observers
        self.path = queue.path
        self.holder: ProcessHold | None = None
        self.again_seconds = 0.0
        self.hopeless = False

    @property
    def config(self) -> QueueConfig:
        return self._storage.config

    @property
    def keeps_ends(self) -> bool:
        return self._storage.config.keeps_ends

    @property
    def tenancy(self) -> TenantRules | None:
        return self._storage.tenancy

    @property
    def consumer(self) -> str:
        return self._consumer or default_consumer()

    @property
    def own(self) -> frozenset[int] | None:
        live = self._live
        return None if live is None or live.described.affinity == "none" else live.own

    @property
    def drained(self) -> bool:
        return not self._storage.is_throttled

    @property
    def watched(self) -> bool:
        return self._storage.workers_are_watched()

    @property
    def closed(self) -> bool:
        return self._storage.closed

    # ---- the run

    def open(
        self,
        wake: Callable[[], None],
        crash: Callable[[BaseException], None],  # noqa: ARG002
        tell: Callable[[SourceEvent, str], None],  # noqa: ARG002
        *,
        slots: int,
        drain: bool,
    ) -> None:
        affinity = self._affinity
        if self.keys is not None or (drain and affinity is None):
            affinity = "none"  # a draining run ends when nothing is ready, in any shard
        self._live = join(self._storage, "worker", self._consumer, affinity, concurrency=slots)
        self._wake = wake
        self._storage.waker.listen(wake)
        self.holder = self._storage.hold_with_process()

    def stop_receiving(self) -> None:
        """Do nothing: it receives only when it is asked to."""

    def close(self, deadline: float) -> None:  # noqa: ARG002
        self._storage.waker.unlisten(self._wake)
        if self._live is not None:
            self._live.end()
        for notice in self._notices.values():
            notice.remove()
        self._notices.clear()

    def wall(self) -> float:
        return self._storage.clock.wall() / MICROSECONDS

    # ---- receiving

    def take(self, room: int, per_key: int, keys: Sequence[Key] | None = None) -> Sequence[Delivery]:
        if not room:
            return ()
        storage, began = self._storage, self.clock()
        if keys is None:
            if self._asked_at:
                storage.count_waiting(began - self._asked_at)
            self._asked_at = began
        request = self._request._replace(room=room, per_key=per_key)
        if keys is not None:
            request = request._replace(keys=validate.keys(keys))
        deliveries = self._receiving.batch(request)
        try:
            soonest = self._receiving.receive_now(deliveries, request, wait_for_busy=False, joined=self._joined, live=self._live)
        except (StoreError, PartialFailure):
            self.hopeless = all(isinstance(failure, HOPELESS) for failure in storage.failures(request.keys))
            raise
        if keys is None:
            seconds = storage.look_again(soonest)
            # The shards to claim from change without a wake-up.
            self.again_seconds = seconds if self.own is None else min(seconds, LOOK_SECONDS)
        if deliveries:
            self._asked_at = 0.0 if keys is None else self._asked_at
            if self.holder is not None:
                self.holder.note(deliveries.tokens())
        return deliveries

    def more(self, wanted: Sequence[tuple[HeldLane, int]]) -> Iterator[tuple[HeldLane, Sequence[Delivery] | Exception]]:
        seen: dict[int, int] = {}
        for lane, n in wanted:
            shard = lane.lease.shard
            try:
                if shard not in seen:
                    # A send to a leased lane wakes no consumer, so this is polled.
                    seen[shard] = self._storage.arrivals(shard)
                if lane.grown == seen[shard]:
                    continue
                more = lane.lease.more(n)
            except (LeaseLost, StoreError) as e:
                yield lane, e
                continue
            if not more:
                lane.grown = seen[shard]  # until a message arrives
            yield lane, more

    # ---- settling

    def began(self, delivery: Delivery) -> None:
        """Do nothing: the store refuses what a lost lease does."""

    def returned(self, delivery: Delivery) -> None:
        """Do nothing, as `began`."""

    def settle(
        self,
        acks: Sequence[tuple[Delivery, Delivery | None]],
        starts: Sequence[Delivery],
        receive: Callable[[], object] | None = None,
    ) -> Mapping[Delivery, Exception]:
        return self._settling.advance(acks, starts, None if receive is None else partial(self._receive_joined, receive))

    def _receive_joined(self, receive: Callable[[], object], joined: Joined) -> None:
        self._joined = joined
        try:
            receive()
        finally:
            self._joined = None

    def completed(self) -> Sequence[AckOutcome]:
        return ()

    def ack_each(self, deliveries: Sequence[Delivery]) -> Sequence[Exception | None]:
        return self._settling.ack_each(list(deliveries))

    def fail(self, delivery: Delivery, ending: Ending) -> float | None:
        return ending.settle(self._settling, delivery)

    def hold(
        self, deliveries: Sequence[Delivery], seconds: float, why: Sequence[AttemptFailure] | str, *, began: bool = True
    ) -> Sequence[Exception | None]:
        if isinstance(why, str):
            try:
                self._settling.defer(deliveries, seconds, why)
            except (LeaseLost, PartialFailure, StoreError) as e:
                return [e] * len(deliveries)
            return [None] * len(deliveries)
        return self._settling.defer_failed(deliveries, seconds, why, began=began)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self._settling.release_rest(deliveries)

    def extend(self, lanes: Sequence[HeldLane]) -> Sequence[tuple[HeldLane, Exception]]:
        failed: list[tuple[HeldLane, Exception]] = []
        by_length: dict[float, list[HeldLane]] = {}
        for lane in lanes:
            by_length.setdefault(lane.length, []).append(lane)
        for length, some in by_length.items():
            results = self._settling.extended([lane.lease for lane in some], length)
            offset = self.clock() - self.now() / MICROSECONDS
            for lane, error in zip(some, results, strict=True):
                if error is None:
                    lane.until = lane.lease._deadline / MICROSECONDS + offset
                else:
                    failed.append((lane, error))
        return failed

    def end_delays(self, keys: Sequence[Key] | None = None, *, one: bool = False) -> bool:
        return bool(self._storage.operate.end_failure_delays(validate.keys(self.keys if keys is None else keys), one=one))

    # ---- estimates, other consumers, reports

    def estimates(self) -> dict[str, str]:
        return self._storage.estimates()

    def keep_estimates(self, rows: dict[str, str] | None) -> None:
        self._storage.set_estimates(rows)

    def turn(self, *, behind: bool) -> None:
        if self._live is not None:
            self._live.turn()
            self._live.found(0, behind=behind)

    def idle(self) -> None:
        if self.keys is None and self._live is not None and self._live.helps:
            self._storage.waker.show_idle(self._name)

    def another_idle(self) -> bool:
        return self._storage.waker.is_another_idle(self._name)

    def report(self, kind: Any, value: Any, of: Hashable = None) -> None:
        if kind is LOAD:
            if self._live is not None:
                self._live.describe(**value)
        elif kind is OUTPUT:
            self._settling.note(value)
        elif value is not None:
            if (kind, of) not in self._notices:
                self._notices[kind, of] = self._storage.notice(kind)
            self._notices[kind, of].put(value)
        elif (notice := self._notices.get((kind, of))) is not None:
            notice.remove()
            if of is not None:
                del self._notices[kind, of]
