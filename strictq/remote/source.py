"""SqsSource: the source of a worker on a queue behind an endpoint. Its threads make the requests; no method waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from .._client.receiving import default_consumer
from .._platform.clock import MICROSECONDS, SteeredClock
from ..worker.ending import DEFERRED, REJECTED, Ending
from ..worker.source import BEFORE_NEXT, BEHIND, HOLDING, AckOutcome, Confirm, SourceEvent
from .client import CallFailure, SourceTrouble, error_of, failure_of, log, permission_of
from .delivery import ACK, ASK, BURY, HELD, OPEN, TAKEN, WAITING, Operation, RemoteDelivery, RemoteLane
from .queue import UNSEEN, RemoteQueue, SourceSettings, needs_local
from .receiving import ASK_SECONDS, Receive, Receives
from .settling import RETRY_SECONDS_MAX, Settlements

if TYPE_CHECKING:
    from .._platform.observe import Observers
    from .._store.api import AttemptFailure
    from .._values.config import QueueConfig
    from .._values.keys import Key
    from ..delivery import Delivery
    from ..worker.job import HeldLane

LOOK_SECONDS: Final = 1.0
"""Longest sleep of a thread. A suspended machine does not wake it in time."""
LOOK_AGAIN_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 10.0
ANSWERED_SECONDS: Final = 1.0
"""How long a stop waits for the answer of a receive after the end of its poll."""
REASON_CHARS_MAX: Final = 500
ATTRIBUTES_MAX: Final = 10
REASON: Final = "strictq-reason"


class SqsSource:
    """The source of a worker on a RemoteQueue. See worker/source.py for its methods.

    One lock guards all its state. `fetch` and `settle_batch` each make one request; the threads call them again and again.
    """

    capabilities: Final = frozenset({HOLDING})
    keys: Final = None
    tenancy: Final = None
    holder: Final = None
    own: Final = None
    keeps_ends: Final = False
    watched: Final = False
    hopeless: Final = False

    def __init__(self, queue: RemoteQueue, settings: SourceSettings, batch: int = 2_000) -> None:
        """Prepare to work on a queue.

        Args:
            batch: most messages that are held because they were postponed. Others go back, which costs each of them a receive.
        """
        self._queue = queue
        self._batch = batch
        self._settings = settings
        self._endpoint = endpoint = queue._endpoint
        self.consumer = default_consumer()
        self.path = queue.path
        self.observers: Observers = queue.observers
        self.config: QueueConfig = settings.config
        self.confirm: Confirm = BEHIND if settings.behind else BEFORE_NEXT
        self.clock = endpoint.now
        self.again_seconds = LOOK_AGAIN_SECONDS
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        """Fetchers wait for it."""
        self._handed = threading.Condition(self._lock)
        """Settlers wait for it, and so does `close`."""
        self._receives = Receives(endpoint, settings)
        self._settlements = Settlements(endpoint, settings)
        self._running: dict[str, set[RemoteDelivery]] = {}
        """By group, the messages whose handlers run here. One that lost its lease is among them until its handler returns."""
        self._held: dict[RemoteLane, None] = {}
        self._alone: RemoteLane | None = None
        """The suspect that waits until nothing else is held here, or runs then; see Careful."""
        self._wake: Callable[[], None] = lambda: None
        self._crash: Callable[[BaseException], None] = lambda _: None
        self._trouble = SourceTrouble(lambda _kind, _detail: None)
        self._fetching: list[threading.Thread] = []
        self._settling: list[threading.Thread] = []
        self._ended = False
        self._target: str | None = None

    # ---- what a worker asks

    @property
    def round_trip(self) -> float:
        return self._settlements.round_trip

    @property
    def drained(self) -> bool:
        return self._receives.proven

    @property
    def closed(self) -> bool:
        return self._queue.is_closed

    def require_open(self) -> None:
        self._queue.require_open()

    def now(self) -> int:
        return self._endpoint.clock.boot()

    def wall(self) -> float:
        return self._endpoint.clock.wall() / MICROSECONDS

    # ---- the run

    def open(
        self,
        wake: Callable[[], None],
        crash: Callable[[BaseException], None],
        tell: Callable[[SourceEvent, str], None],
        *,
        slots: int,  # noqa: ARG002
        drain: bool,
    ) -> None:
        self._queue.require_open()
        self._begin(wake, crash, tell, drain=drain)
        settings = self._settings
        try:
            for kind, number, threads, work in (
                ("fetch", settings.fetchers, self._fetching, self.fetch),
                ("settle", settings.settlers, self._settling, self.settle_batch),
            ):
                for n in range(number):
                    thread = threading.Thread(target=self._loop, args=(work,), name=f"strictq-sqs-{kind}-{n}", daemon=True)
                    thread.start()
                    threads.append(thread)
        except RuntimeError:  # the system starts no more threads
            self.close(self.clock())
            raise

    def _begin(
        self,
        wake: Callable[[], None],
        crash: Callable[[BaseException], None],
        tell: Callable[[SourceEvent, str], None],
        *,
        drain: bool = False,
    ) -> None:
        self._wake, self._crash, self._trouble = wake, crash, SourceTrouble(tell)
        self._receives.draining = drain
        if isinstance(self._endpoint.clock, SteeredClock):
            self._endpoint.clock.listen(self._moved)

    def _moved(self) -> None:
        """Look again, because a test moved the clock."""
        with self._lock:
            self._wanted.notify_all()
            self._handed.notify_all()
        self._wake()

    def stop_receiving(self) -> None:
        now = self.clock()
        with self._lock:
            self._receives.stopping = True
            for lane in self._receives.waiting:
                self._return(lane.open, now)
            self._receives.waiting.clear()
            for lane in list(self._held):
                self._return(lane.open, now, max(0.0, lane.due - now))
            self._held.clear()
            self._wanted.notify_all()
            self._handed.notify_all()

    def close(self, deadline: float) -> None:
        self.stop_receiving()
        left = max(0.0, deadline - self.clock())
        # By the machine's clock, because a test's clock may stand still.
        end = time.monotonic() + min(left, self._settings.poll + ANSWERED_SECONDS)
        for thread in self._fetching:  # what a receive that is under way returns goes back
            thread.join(max(0.0, end - time.monotonic()))
        end = time.monotonic() + min(left, CLOSE_SECONDS, float(self._settings.lease))
        with self._lock:
            self._settlements.closing = True
            self._handed.notify_all()
            self._handed.wait_for(lambda: not self._settlements.busy, max(0.0, end - time.monotonic()))
            self._ended = True
            self._handed.notify_all()
        for thread in self._settling:
            thread.join(max(0.0, end - time.monotonic()))

    # ---- threads

    def _loop(self, work: Callable[[], bool]) -> None:
        try:
            while work():
                pass
        except BaseException as e:
            self._crash(e)

    def fetch(self, *, wait: bool = True) -> bool:
        """Wait until something is wanted, and receive once. Return False at the end, or without a wait if nothing is wanted."""
        with self._lock:
            while (request := self._next_receive()) is None:
                if not wait or self._receives.stopping:
                    return False
                self._wanted.wait(min(self._receives.wait_seconds(self.clock()) or LOOK_SECONDS, LOOK_SECONDS))
        self._receive(request)
        return True

    def settle_batch(self, *, wait: bool = True) -> bool:
        """Wait until something is to be settled, and send a batch. Return False at the end, or without a wait if nothing is."""
        with self._lock:
            while (batch := self._next_batch()) is None:
                if not wait or self._ended:
                    return False
                self._handed.wait(min(max(self._settlements.wait_seconds(self.clock()), 0.001), LOOK_SECONDS))
        self._send(batch)
        return True

    # ---- requests

    def _next_receive(self) -> Receive | None:
        lanes = self._settlements.lanes
        alone = not self._settlements.busy and all(lane.place == HELD for lane in lanes)
        return self._receives.next(self.clock(), alone=alone)

    def _next_batch(self) -> Sequence[Operation] | None:
        outcomes = self._settlements.outcomes
        before = len(outcomes)
        batch = self._settlements.next(self.clock())
        if len(outcomes) != before:
            self._wake()  # leases have ended
        if batch is None and self._settlements.closing:
            self._handed.notify_all()  # `close` waits until nothing is left
        elif batch is not None and self._settlements.has_more:
            self._hand_over()
        return batch

    def _hand_over(self) -> None:
        """Wake a settler. `close` waits for the same condition, and may be the one that wakes."""
        self._handed.notify(2 if self._settlements.closing else 1)

    def _receive(self, request: Receive) -> bool:
        """Receive, and return whether there were messages."""
        action = "receive_message"
        answer = self._endpoint.call(action, **request.parameters(self._endpoint, self._settings.lease))
        now = self.clock()
        self._note(action, answer, now)
        with self._lock:
            if isinstance(answer, CallFailure):
                self._receives.failed(request, now, answer.after)
                return False
            lanes = self._receives.received(request, answer.get("Messages") or (), now)
            for lane in lanes:
                self._settlements.add(lane)
                if self._receives.stopping:
                    self._return(lane.deliveries, now)
                    self._hand_over()
            if lanes:
                self._wanted.notify()  # there may be enough for one more receive at a time
            ended = self._ended
        self._wake()
        while ended and self.settle_batch(wait=False):  # the settlers have ended, so this thread returns what it received
            pass
        return bool(lanes)

    def _note(self, action: str, answer: Mapping[str, Any] | CallFailure, now: float) -> None:
        """Report how a request ended. What was never permitted, and a queue that does not exist, end the run."""
        if not isinstance(answer, CallFailure):
            self._trouble.works(now)
        elif answer.kind == "no_queue" or (answer.kind == "denied" and not self._endpoint.has_worked(action)):
            self._crash(error_of(answer, self.path, permission_of(action)))
        else:
            self._trouble.failed(now, action, answer)

    def _send(self, batch: Sequence[Operation]) -> None:
        """Do a batch of operations, and record their outcomes."""
        purpose = batch[0].purpose
        if purpose == ASK:
            self._ask()
        elif purpose == BURY:
            failure = self._bury(batch[0].message, batch[0].reason)
            with self._lock:
                self._settlements.buried(batch[0], failure, self.clock())
        else:
            action, entries = self._settlements.request(batch)
            began = self.clock()
            answer = self._endpoint.call(action, QueueUrl=self._endpoint.url, Entries=entries)
            now = self.clock()
            self._note(action, answer, now)
            with self._lock:
                self._settlements.answered(batch, answer, began, now)
                if purpose == ACK and any(not op.message.lease.held for op in batch) and self._receives.should_ask(now):
                    self._settlements.ask(now, ASK_SECONDS)
        self._wake()

    def _ask(self) -> None:
        """Receive without waiting, because a group was freed while a receive waits."""
        with self._lock:
            request = self._receives.ask(self.clock())
        found = False
        try:
            found = request is not None and self._receive(request)
        finally:
            with self._lock:
                if request is not None:
                    self._receives.ask_answered(found, self.clock())
                self._settlements.asked()

    def _bury(self, d: RemoteDelivery, reason: str) -> CallFailure | None:
        """Send a message to the target of the redrive policy. Return why it failed."""
        redrive = self._queue.redrive
        if redrive is None:
            return CallFailure("refused", "NoRedrivePolicy", "the queue has no redrive policy")
        if self._target is None:
            *_, account, name = redrive.target.split(":")
            options = {"QueueOwnerAWSAccountId": account} if account.strip("0") else {}
            answer = self._endpoint.call("get_queue_url", QueueName=name, **options)
            if isinstance(answer, CallFailure):
                return answer
            self._target = str(answer["QueueUrl"])
        message = d.attributes
        made: dict[str, Any] = {"QueueUrl": self._target, "MessageBody": message["Body"]}
        attributes = dict(message.get("MessageAttributes") or {})
        if len(attributes) < ATTRIBUTES_MAX:
            attributes[REASON] = {"DataType": "String", "StringValue": shown(reason)}
        made["MessageAttributes"] = attributes
        if self._endpoint.is_fifo:
            made["MessageGroupId"] = d.lease.group
            place = f"{self._endpoint.url}/{d.lease.group}/{d.sequence_number}"
            made["MessageDeduplicationId"] = sha256(place.encode()).hexdigest()
        try:
            answer = self._endpoint.call("send_message", **made)
        except Exception as e:  # of an attribute that this client does not send
            answer = failure_of(e) or CallFailure("refused", type(e).__name__, str(e))
        return answer if isinstance(answer, CallFailure) else None

    # ---- receiving

    def take(self, room: int, per_key: int, keys: Sequence[Key] | None = None) -> Sequence[Delivery]:  # noqa: ARG002
        self._queue.require_open()
        now = self.clock()
        taken: list[Any] = []
        with self._lock:
            self._wake_held(now)
            receives = self._receives
            left: list[RemoteLane] = []
            waiting = list(receives.waiting)
            receives.waiting.clear()
            alone = receives.careful.active and self._isolate(waiting, now)
            waits = LOOK_SECONDS if alone else LOOK_AGAIN_SECONDS
            for lane in waiting:
                self._drop_expired(lane, now)
                if not (ready := lane.open):
                    continue
                unwanted = len(taken) >= room or (keys is not None and lane.key not in keys)
                if unwanted or lane.group in self._running or not self._may_run(lane):
                    left.append(lane)
                elif lane._deadline <= now * MICROSECONDS:
                    left.append(lane)  # it is being extended, or dropped
                    waits = LOOK_SECONDS
                else:
                    lane.place = TAKEN
                    taken += ready
            receives.waiting.extend(left)
            if keys is None:
                receives.wanted = 0 if alone else room - len(taken) - sum(len(lane.deliveries) for lane in left)
            if receives.wanted > 0:
                self._wanted.notify_all()
            dues = (lane.due - now for lane in self._held)
            self.again_seconds = max(0.001, min(waits, *dues)) if self._held else waits
        return taken

    def _isolate(self, waiting: list[RemoteLane], now: float) -> bool:
        """Choose the suspect that runs alone. Return whether there is one. Other suspects among those that wait go back."""
        suspects = self._receives.careful.suspects
        if self._alone is not None and not (self._alone.place != HELD and any(map(suspects, self._alone.held))):
            self._alone = None
        for lane in list(waiting):
            if lane is self._alone or not (ready := lane.open) or not suspects(ready[0]):
                continue
            if self._alone is None:
                self._alone = lane
            else:
                waiting.remove(lane)
                self._return(ready, now)
                self._hand_over()
        return self._alone is not None

    def _may_run(self, lane: RemoteLane) -> bool:
        """Return whether no suspect keeps a lane from running: others run before it, and it when nothing else is held.

        What a handler deferred is held for long, and does not count.
        """
        if lane is not self._alone:
            return self._alone is None or self._alone.place == WAITING
        others = (other for other in self._settlements.lanes if other is not lane and not (other.place == HELD and other.asked))
        return not self._receives.flying and not any(other.held for other in others)

    def _drop_expired(self, lane: RemoteLane, now: float) -> None:
        """Delete the messages whose time to live is over. No handler sees them."""
        wall = self.wall()
        for d in lane.open:
            if d.expires_at is not None and d.expires_at <= wall:
                self._settlements.drop(d, now)

    def changed(self) -> object:
        # A suspect waits for the ends of others, and others for its end.
        return self._receives.arrivals, None if self._alone is None else (len(self._settlements.lanes), self._receives.flying)

    def more(self, wanted: Sequence[tuple[HeldLane, int]]) -> Iterable[tuple[HeldLane, Sequence[Delivery] | Exception]]:  # noqa: ARG002
        return ()

    # ---- handlers

    def began(self, delivery: Any) -> None:
        """Note that a handler runs for a message."""
        with self._lock:
            self._running.setdefault(delivery.lease.group, set()).add(delivery)

    def returned(self, delivery: Any) -> None:
        """Note that a handler returned, also if its lease is lost. What came for its group meanwhile may run now."""
        now = self.clock()
        with self._lock:
            delivery.returned = now
            unparked = self._forget_handler(delivery)
        if unparked:
            self._wake()

    def _forget_handler(self, d: RemoteDelivery) -> bool:
        """Wait for the handler of a message no longer. Return whether its group was parked because of it."""
        group = d.lease.group
        running = self._running.get(group, set())
        if d not in running:
            return False
        running.discard(d)
        if running:
            return False
        del self._running[group]
        parked = any(lane.group == group for lane in self._receives.waiting)
        self._receives.arrivals += parked
        return parked

    # ---- settling

    def settle(
        self,
        acks: Sequence[tuple[Any, Any]],
        starts: Sequence[Delivery],  # noqa: ARG002 - SQS knows of no starts
        receive: Callable[[], object] | None = None,  # noqa: ARG002 - it has no such transactions
    ) -> Mapping[Any, Exception]:
        failed: dict[Any, Exception] = {}
        now = self.clock()
        with self._lock:
            for d, _ in acks:
                if d.state == OPEN:
                    self._settlements.ack(d, now)
                else:
                    failed[d] = d.lost("its lease was lost")
            self._hand_over()
        return failed

    def completed(self) -> Sequence[AckOutcome]:
        with self._lock:
            found, self._settlements.outcomes[:] = list(self._settlements.outcomes), []
        return [AckOutcome(d, error) for d, error in found]  # type: ignore[arg-type]

    def ack_each(self, deliveries: Sequence[Delivery]) -> Sequence[Exception | None]:  # noqa: ARG002
        raise needs_local("process_batch", UNSEEN)

    def fail(self, delivery: Any, ending: Ending) -> float | None:
        if delivery.state != OPEN:
            raise delivery.lost("its lease was lost")
        if ending.kind == DEFERRED:
            wait = ending.delay or 0.0
            self._postpone(delivery, wait, asked=True)
            return wait
        now = self.clock()
        with self._lock:
            self._hand_over()
            self._forget_handler(delivery)  # one that did not return was abandoned, because of its time limit
            if ending.kind == REJECTED:
                if self._queue.redrive is not None:
                    self._settlements.bury(delivery, ending.reason or "", now)
                    return None
                log.error(
                    "key %r, seq %d was rejected, and the queue has no redrive policy; it is retried: %s",
                    delivery.key, delivery.seq, ending.reason,
                )  # fmt: skip
                wait = float(RETRY_SECONDS_MAX)
            elif self._settings.limit is not None and delivery.attempt >= self._settings.limit:
                self._return(delivery.later(), now)  # the endpoint makes a dead letter of it at the next receive
                return None
            else:
                usual = min(2.0 ** (delivery.attempt - 1), RETRY_SECONDS_MAX) if delivery.attempt < 11 else RETRY_SECONDS_MAX
                wait = float(usual if ending.delay is None else ending.delay)
            self._return(delivery.later(), now, wait)
        return wait

    def hold(
        self,
        deliveries: Sequence[Any],
        seconds: float,
        why: Sequence[AttemptFailure] | str,  # noqa: ARG002 - SQS stores no reasons
        *,
        began: bool = True,  # noqa: ARG002
    ) -> Sequence[Exception | None]:
        results: list[Exception | None] = []
        for d in deliveries:
            if d.state == OPEN:
                self._postpone(d, seconds, asked=False)
                results.append(None)
            else:
                results.append(d.lost("its lease was lost"))
        return results

    def release(self, deliveries: Sequence[Any]) -> None:
        now = self.clock()
        with self._lock:
            for d in deliveries:
                self._return(d.later(), now)
            self._hand_over()

    def extend(self, lanes: Sequence[HeldLane]) -> Sequence[tuple[HeldLane, Exception]]:
        now = self.clock()
        with self._lock:
            for held in lanes:
                lane: Any = held.lease
                lane.worker_lane = held
                held.until = lane._deadline / MICROSECONDS
                if held.until - now < held.length / 2:
                    self._settlements.renew(lane, now)
            self._hand_over()
        return ()

    def end_delays(self, keys: Sequence[Key] | None = None, *, one: bool = False) -> bool:
        now = self.clock()
        with self._lock:
            found = [lane for lane in self._held if not lane.asked and (keys is None or lane.key in keys)][: 1 if one else None]
            for lane in found:
                lane.due = now
            self._wake_held(now)
        return bool(found)

    # ---- what is held here

    def _return(self, deliveries: Sequence[RemoteDelivery], now: float, seconds: float = 0.0) -> None:
        """Return messages of one lane to the endpoint."""
        if deliveries:
            self._receives.careful.returned(deliveries[0], now, seconds)
            self._receives.proven = False
            self._settlements.give_back(deliveries, now, seconds)

    def _postpone(self, d: RemoteDelivery, seconds: float, *, asked: bool) -> None:
        """Hold a message and the later ones of its lane, and hand them out again when they are due. No receive is counted."""
        now = self.clock()
        with self._lock:
            rest = d.later()
            held = sum(len(lane.deliveries) for lane in self._held)
            if seconds > RETRY_SECONDS_MAX or self._receives.stopping or held + len(rest) > self._batch:
                self._return(rest, now, seconds)
            else:
                lane = self._divide(d.lease, rest)
                lane.place, lane.due, lane.asked = HELD, now + seconds, asked
                self._held[lane] = None
            self._hand_over()

    def _divide(self, lane: RemoteLane, rest: Sequence[RemoteDelivery]) -> RemoteLane:
        """Make a lane of the last messages of another one."""
        new = RemoteLane(lane.group, self._settings.lease, self._settings.margin)
        lane.deliveries = [d for d in lane.deliveries if d not in rest]
        for d in rest:
            new.add(d)
            d.returned = None
        self._settlements.add(new)
        self._settlements.forget_ended(lane)
        return new

    def _wake_held(self, now: float) -> None:
        """Move the lanes that are due to those that wait, before the ones that were received later."""
        due = [lane for lane in self._held if lane.due <= now]
        for lane in reversed(due):
            del self._held[lane]
            lane.place = WAITING
            self._receives.waiting.appendleft(lane)
        if due:
            self._receives.arrivals += 1

    # ---- what SQS has nothing for

    def estimates(self) -> dict[str, str]:
        return {}

    def keep_estimates(self, rows: dict[str, str] | None) -> None:
        """Do nothing: a queue of SQS stores no durations."""

    def turn(self, *, behind: bool) -> None:
        """Do nothing: other consumers do not see this one."""

    def idle(self) -> None:
        """Do nothing."""

    def another_idle(self) -> bool:
        return False

    def report(self, kind: object, value: Any, of: Hashable = None) -> None:
        """Do nothing: other processes of this machine do not see a remote queue."""


def shown(reason: str) -> str:
    """Return a reason in characters that SQS accepts."""
    return "".join(c if c.isprintable() else " " for c in reason[:REASON_CHARS_MAX]) or "?"
