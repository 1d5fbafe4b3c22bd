"""Forwarder: send the messages of a local queue to an SQS-compatible endpoint, in order per key."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import attrs

from ._client import validate
from ._platform.clock import MICROSECONDS
from ._platform.log import Log
from ._store.api import AT_REBOOT
from ._values import hints
from ._values.errors import InvalidArgument, LeaseLost, ServerUnreachable, StrictqError, UnknownMessage
from ._values.findings import WorkerEvent
from ._values.keys import Key, decode_key, shared_key
from ._values.views import Report
from .delivery import describe
from .queue import Queue
from .remote.client import CallFailure, RemoteEndpoint, Waits, make_client
from .remote.mapping import Encoded, SourcePosition, content_id, encode
from .remote.queue import RemoteQueue, connect
from .remote.sending import BATCH_MAX, Accepted, pick, request, too_large
from .remote.url import parse
from .transaction import Transaction
from .worker import Defer, Job, Reject, Worker

if TYPE_CHECKING:
    from .aio import AsyncQueue
    from .remote.aio import AsyncRemoteQueue
    from .worker.job import HeldLane

log: Final = Log("strictq.forward")

FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 15.0
"""The waits between requests while the endpoint fails."""
ENTRY_WAIT_SECONDS: Final = 1.0
"""The delay of a message that failed while others of its request were accepted."""
LOOK_SECONDS: Final = 0.2
"""How often a handler that waits for the endpoint looks whether the forwarder stops."""
ROUNDS: Final = 10
"""How many requests a handler sends, about, before it acks their messages together."""
DRAIN_FAILURES_MAX: Final = 6
"""So many failures in a row end a run with drain."""
REQUEST_SECONDS: Final = 19.0
"""How long a request of a client of `strictq.connect` takes at most."""
WINDOW_SECONDS: Final = 300.0
"""How long SQS recognises a duplicate."""
WINDOW_PART: Final = 0.8
"""The part of that time after which a message that was perhaps sent is marked."""
MARGIN_SECONDS: Final = 1.0
PREVIOUS_BOOT: Final = ""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS app_forward_doubt (
    key ANY,
    lane BLOB NOT NULL,
    seq INTEGER NOT NULL,
    target TEXT NOT NULL,
    since INTEGER NOT NULL,
    boot TEXT NOT NULL,
    UNIQUE (key, lane, seq, target)
) STRICT
"""
"""Messages that were perhaps sent: which, where, since what time of the queue in microseconds, and in which boot. Rows move with
their keys; those of keyless messages, and of integers of more than 64 bits, have none."""
KEY_COLUMNS: Final = {"app_forward_doubt": "key"}
DOUBTS: Final = "SELECT lane, seq, since, boot FROM app_forward_doubt WHERE target = ?"
ADD_DOUBT: Final = "INSERT INTO app_forward_doubt VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
END_DOUBT: Final = "DELETE FROM app_forward_doubt WHERE key IS ? AND lane = ? AND seq = ? AND target = ?"
INTEGER_BITS: Final = 63


@attrs.frozen
class ForwarderStats(Report):
    """A frozen snapshot of a forwarder's counts since it was made.

    Attributes:
        forwarded: messages that the endpoint has accepted.
        refused: messages that it refuses for their content. They are dead letters, or their keys are held.
        requests: requests to send.
        failed: those that failed as a whole.
        unanswered: messages of requests whose outcome is not known. They are sent again.
        maybe_duplicates: messages sent with the mark `strictq-maybe-duplicate`.
        lost: messages whose lease another consumer took over.
        error: the newest failure, if the endpoint does not work now; None: it works.
    """

    forwarded: int = 0
    refused: int = 0
    requests: int = 0
    failed: int = 0
    unanswered: int = 0
    maybe_duplicates: int = 0
    lost: int = 0
    error: str | None = None


class Ready(NamedTuple):
    """A message as it is sent. `raw` is its key as stored, or that of its lane."""

    job: Job
    raw: bytes
    encoded: Encoded

    @property
    def place(self) -> Place:
        return shared_key(self.raw), self.job.seq


Place = tuple[bytes, int]
"""The stored key of a message, or of its lane if it has none, and its seq."""
Lanes = dict["HeldLane", deque[Job]]
"""The messages of a batch that were not sent yet."""


class Forwarder:
    """Sends the messages of a local queue to an SQS-compatible endpoint, and acks what the endpoint has accepted.

    It is a Worker of the queue: any number of them may run, and the messages of each key arrive in order. An outage of the
    endpoint charges no attempt, however long it lasts. A FIFO queue at the endpoint gets each message once, unless its outcome
    stays unknown for longer than the endpoint recognises duplicates. A forwarder runs once.
    """

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        to: RemoteQueue | AsyncRemoteQueue | str,
        *,
        concurrency: int = 4,
        batch: int = BATCH_MAX,
        per_key: int | None = None,
        on_refused: Literal["dead_letter", "hold"] = "dead_letter",
        consumer: str | None = None,
        on_event: Callable[[WorkerEvent], None] | None = None,
    ) -> None:
        """Create a forwarder. It starts with `run` or `serve`.

        Args:
            queue: the local queue. With `max_attempts=None`, no crash of the device ever makes a dead letter.
            to: the queue at the endpoint, or its URL, as for `strictq.connect`. With a URL, a forwarder that does not drain
                starts without a network, too. It closes the connection when it ends.
            concurrency: requests at a time, 1..100.
            batch: most messages of a request, 1..10.
            per_key: most messages of a key in a request, 1..10; None: 10 if the endpoint is `strictq serve sqs`, otherwise 1.
                SQS may accept a message of a request after it refused an earlier one, so more than 1 can break the order.
            on_refused: what becomes of a message that is too large, or that the endpoint refuses for its content. "hold": its
                key is held until an operator releases it; a keyless message becomes a dead letter nevertheless.
            consumer: the consumer's name, shown by explain; None: host and process id.
            on_event: called with a WorkerEvent at every change of a message's state.
        Raises:
            InvalidArgument: an argument is invalid; nothing was changed.
            ReadOnlyQueue: the queue was opened with read_only=True.
        """
        inner = queue if isinstance(queue, Queue) else getattr(queue, "sync", None)
        if not isinstance(inner, Queue):
            raise InvalidArgument(f"a forwarder takes a Queue, not {type(queue).__name__}")
        validate.whole("concurrency", concurrency, 1, 100)
        validate.whole("batch", batch, 1, BATCH_MAX)
        if per_key is not None:
            validate.whole("per_key", per_key, 1, BATCH_MAX)
        if on_refused not in ("dead_letter", "hold"):
            raise InvalidArgument(f"on_refused must be 'dead_letter' or 'hold', not {on_refused!r}")
        self._queue = inner
        self._target = ForwardTarget(to, concurrency)
        self._batch = batch
        self._per_key = per_key
        self._holds = on_refused == "hold"
        self._lease_seconds = max(inner.config.lease_seconds, 2 * self._target.request_seconds)
        # A batch is several requests, so that a commit acks many messages. Each request takes the first ones of many keys.
        self._worker = Worker(
            inner, process_batch=self._forward, batch_max=ROUNDS * batch, batch_per_key=ROUNDS * (per_key or 1),
            concurrency=concurrency, lease_seconds=self._lease_seconds, consumer=consumer, breaker=None, learn=False,
            on_event=on_event,
        )  # fmt: skip
        self._doubts = Doubts(inner, self._target.name)
        self._waits = Waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("forwarded", "refused", "requests", "failed", "unanswered", "maybe_duplicates"), 0)
        self._error: str | None = None
        self._not_before = 0.0
        """`time.monotonic()` before which nothing is sent, because the newest request failed."""
        self._drains = False

    # ---- running

    def run(self, *, drain: bool = False, grace_seconds: float | None = None) -> None:
        """Forward until stopped by `stop()`, SIGINT or SIGTERM. See Worker.run.

        Args:
            drain: return when no message is ready. Messages that the endpoint has not accepted yet remain.
            grace_seconds: seconds to wait for running requests after a signal; None: until they end.
        Raises:
            QueueNotFound, ServerRefused, ConfigError: the endpoint has no such queue, or refuses the credentials. Only at the
                start; later, the forwarder waits.
            ServerUnreachable: with drain: the endpoint does not answer. The messages remain.
            MissingExtra: boto3 is not installed.
            InvalidArgument, StrictqError: as Worker.run.
        """
        try:
            self._begin(drain)
            self._worker.run(drain=drain, grace_seconds=grace_seconds)
        finally:
            self._target.close()
        self._end()

    async def serve(self, *, drain: bool = False) -> None:
        """Forward until stopped, inside the caller's event loop of asyncio or trio. Signals are not handled. See `run`."""
        from anyio.to_thread import run_sync

        try:
            await run_sync(self._begin, drain)
            await self._worker.serve(drain=drain)
        finally:
            self._target.close()
        self._end()

    def stop(self, deadline_seconds: float | None = None) -> None:
        """Finish running requests, and release the rest. Returns at once; callable from any thread. See Worker.stop."""
        self._worker.stop(deadline_seconds)

    def stats(self) -> ForwarderStats:
        """Return the counts since the forwarder was made."""
        lost = self._worker.stats().lost
        with self._lock:
            return ForwarderStats(**self._counts, lost=lost, error=self._error)

    def _begin(self, drain: bool) -> None:
        self._drains = drain
        try:
            link = self._target.link()
        except ServerUnreachable as e:
            self._error = str(e)
            if drain:
                raise
            log.warning("%s; messages wait in the local queue", e)
        else:
            if not link.endpoint.is_fifo:
                log.warning("%s is a standard queue: it keeps no order, and may deliver a message twice", self._target.name)
        if self._queue.config.max_attempts is not None:
            log.warning(
                "the queue has max_attempts=%d: a message that is being sent during so many crashes becomes a dead letter; None "
                "is better", self._queue.config.max_attempts,
            )  # fmt: skip
        if self._queue.durability == "process" and self._queue._storage.directory is not None:
            log.warning(
                "the queue's durability is 'process': after a power cut a seq may be used again, so receivers must compare "
                "strictq-sent-at, too, before they drop a message as a duplicate"
            )
        self._doubts.begin()

    def _end(self) -> None:
        if self._drains and self._error is not None:
            raise ServerUnreachable(
                f"{self._target.name} did not answer: {self._error}; the messages remain in the queue", self._target.name,
                hint=hints.REMOTE_ENDPOINT,
            )  # fmt: skip

    # ---- a batch, in a handler's thread

    def _forward(self, jobs: list[Job]) -> None:
        """Send the messages of a batch. The failures of those that were not accepted charge no attempt."""
        lanes: Lanes = {}
        for job in jobs:
            lanes.setdefault(job._lane, deque()).append(job)
        try:
            if not self._wait():
                _put_off(lanes, 0.0, "the forwarder stopped")
                return
            self._doubts.load()
            self._send(self._target.link(), lanes)
        except StrictqError as e:
            _put_off(lanes, self._failed(str(e)), str(e))
        except Exception as e:
            log.exception("forwarding failed; its messages are sent again")
            _put_off(lanes, self._failed(describe(e)), describe(e))

    def _wait(self) -> bool:
        """Wait as long as the endpoint is not to be asked. Return False if the forwarder stops."""
        while self._worker._stop is None:
            left = self._not_before - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, LOOK_SECONDS))
        return False

    def _send(self, link: Link, lanes: Lanes) -> None:
        per_key = self._per_key or (BATCH_MAX if link.endpoint.keeps_prefixes else 1)
        while lanes:
            chosen = self._chosen(link, lanes, per_key)
            if not chosen:
                continue
            doubtful = self._doubts.doubtful(chosen, link.window_seconds)
            began = self._queue._storage.now()
            self._count(requests=1, maybe_duplicates=len(doubtful))
            outcomes = request(link.endpoint, [ready.encoded for ready in chosen], doubtful)
            if unsure := [each for each, outcome in zip(chosen, outcomes, strict=True) if _is_unsure(outcome)]:
                self._count(unanswered=len(unsure))
                self._doubts.add(unsure, began)
            if not self._settle(lanes, chosen, outcomes):
                return

    def _chosen(self, link: Link, lanes: Lanes, per_key: int) -> list[Ready]:
        """Return the messages of the next request. Those that the endpoint would refuse are refused here."""
        ready: dict[Job, Ready] = {}
        chosen: list[Ready] = []
        waiting: set[HeldLane] = set()

        def size(job: Job) -> int:
            ready[job] = made = self._ready(link, job)
            return made.encoded.size

        for lane, job in pick(lanes, per_key, self._batch, size):
            if lane not in lanes or lane in waiting:
                continue
            if why := too_large(link.endpoint, ready[job].encoded):
                if job is lanes[lane][0]:
                    self._refuse(lanes, job, why)
                else:
                    waiting.add(lane)  # until the earlier messages of its key are sent
            elif self._holds_lease(lanes, job, link.request_seconds):
                chosen.append(ready[job])
        return chosen

    def _ready(self, link: Link, job: Job) -> Ready:
        d = job._delivery
        raw = d.lease._held.key
        position = SourcePosition(self._queue.queue_id, job.seq, d._sent_at)
        left = None if d._expires_at is None else max((d._expires_at - self._queue._storage.now()) / MICROSECONDS, 0.001)
        once = content_id(raw, position, job.body)
        return Ready(job, raw, encode(raw, job.body, job.headers, once, fifo=link.endpoint.is_fifo, position=position, ttl=left))

    def _holds_lease(self, lanes: Lanes, job: Job, seconds: float) -> bool:
        """Return whether a message is leased for longer than a request takes. Otherwise drop its lane from the batch."""
        lease = job._delivery.lease
        try:
            if not job.cancelled and lease.expires_in < seconds:
                lease.extend(self._lease_seconds)
        except LeaseLost as e:
            job.fail(e)
            del lanes[job._lane]
            return False
        if job.cancelled:
            del lanes[job._lane]
        return not job.cancelled

    def _settle(self, lanes: Lanes, chosen: Sequence[Ready], outcomes: Sequence[Accepted | CallFailure]) -> bool:
        """Take the outcomes of a request into account. Return False if the endpoint does not work."""
        failures: dict[HeldLane, CallFailure] = {}
        sent = 0
        for ready, outcome in zip(chosen, outcomes, strict=True):
            lane = ready.job._lane
            if lane in failures or lane not in lanes or lanes[lane][0] is not ready.job:
                continue  # an earlier message of its key was not sent
            if isinstance(outcome, Accepted):
                sent += 1
                self._doubts.end(ready)
                _drop_first(lanes, lane)
            elif outcome.kind == "refused":
                self._refuse(lanes, ready.job, str(outcome))
            else:
                failures[lane] = outcome
        self._count(forwarded=sent)
        if not failures:
            self._works()
        elif sent:
            self._works()
            for lane, failure in failures.items():
                lanes.pop(lane)[0].fail(Defer(ENTRY_WAIT_SECONDS, str(failure)))
        else:
            failure = next(iter(failures.values()))
            _put_off(lanes, self._failed(str(failure), failure.after), str(failure))
            return False
        return True

    def _refuse(self, lanes: Lanes, job: Job, why: str) -> None:
        """Dead-letter a message, or hold its key."""
        self._count(refused=1)
        reason = f"{self._target.name} refuses the message: {why}"[: validate.TEXT_CHARS_MAX]
        log.warning("key %r, seq %d: %s", job.key, job.seq, reason)
        if self._holds and job.key is not None:
            self._queue.hold(job.key, reason)
            lanes.pop(job._lane)[0].fail(Defer(0.0, reason))
        else:
            job.fail(Reject(reason))
            _drop_first(lanes, job._lane)

    # ---- the endpoint's state

    def _failed(self, why: str, after: float = 0.0) -> float:
        """Note that the endpoint failed. Return the seconds to wait, `after` at least."""
        with self._lock:
            self._counts["failed"] += 1
            wait = self._waits.next(after)
            failures = self._waits.failures
            first, self._error = self._error is None, why
            self._not_before = time.monotonic() + wait
        if first:
            log.warning("%s failed; messages wait in the local queue: %s", self._target.name, why)
        if self._drains and failures >= DRAIN_FAILURES_MAX:
            self._worker.stop()
        return wait

    def _works(self) -> None:
        with self._lock:
            self._waits.reset()
            failed, self._error = self._error, None
            self._not_before = 0.0
        if failed is not None:
            log.warning("%s works again", self._target.name)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count


def _put_off(lanes: Lanes, seconds: float, why: str) -> None:
    """Return all messages of these lanes, with no attempt charged."""
    for jobs in lanes.values():
        jobs[0].fail(Defer(seconds, why))
    lanes.clear()


def _drop_first(lanes: Lanes, lane: HeldLane) -> None:
    lanes[lane].popleft()
    if not lanes[lane]:
        del lanes[lane]


def _is_unsure(outcome: Accepted | CallFailure) -> bool:
    return isinstance(outcome, CallFailure) and outcome.sent


class Link(NamedTuple):
    """The connection to an endpoint.

    Attributes:
        request_seconds: how long a request takes at most.
        window_seconds: how long the endpoint recognises a duplicate.
    """

    endpoint: RemoteEndpoint
    request_seconds: float
    window_seconds: float


class ForwardTarget:
    """Where a forwarder sends, and its connection, which is made when it is needed.

    Attributes:
        name: the URL.
        request_seconds: how long a request takes at most, as far as it is known.
    """

    def __init__(self, to: Any, connections: int) -> None:
        self._connections = connections
        self._client: Any = None
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._queue: RemoteQueue | None = None
        self._owns = isinstance(to, str)
        self.request_seconds = REQUEST_SECONDS
        if self._owns:
            self.name = parse(to).text
            return
        inner = to if isinstance(to, RemoteQueue) else getattr(to, "sync", None)
        if not isinstance(inner, RemoteQueue):
            raise InvalidArgument(f"a forwarder sends to a URL or to what strictq.connect() returns, not to {type(to).__name__}")
        inner.require_open()
        self._queue = inner
        self.name = inner.path
        self.request_seconds = _request_seconds(inner._endpoint.client)

    def link(self) -> Link:
        """Return the connection.

        Raises:
            StrictqError: as `strictq.connect`.
        """
        with self._lock:
            if self._link is None:
                if self._client is None and self._owns:
                    self._client = make_client(parse(self.name), poll_seconds=0.0, connections=self._connections)
                if self._queue is None:
                    self._queue = connect(self.name, client=self._client)
                endpoint = self._queue._endpoint
                given = endpoint.attributes.get("StrictqDeduplicationSeconds", WINDOW_SECONDS)
                window = float(given) if endpoint.is_fifo else 0.0
                self._link = Link(endpoint, _request_seconds(endpoint.client), window)
            self._queue_open()
            return self._link

    def _queue_open(self) -> None:
        if self._queue is not None:
            self._queue.require_open()

    def close(self) -> None:
        """Close a connection that was made here."""
        if self._owns:
            if self._queue is not None:
                self._queue.close()
            if self._client is not None:
                self._client.close()


def _request_seconds(client: Any) -> float:
    """Return how long a request of a client of boto3 takes at most, with its own repetitions."""
    config = getattr(getattr(client, "meta", None), "config", None)
    if config is None:
        return REQUEST_SECONDS
    retries = config.retries or {}
    tries = retries.get("total_max_attempts") or retries.get("max_attempts", 4) + 1
    return float(config.connect_timeout + config.read_timeout) * int(tries) + MARGIN_SECONDS


class Doubt(NamedTuple):
    """Since when a message was perhaps sent: the queue's time, microseconds, and the boot in which that was."""

    since: int
    boot: str


class Doubts:
    """The messages that were perhaps sent to a target. They are in a table of the queue, which every forwarder reads.

    A request without an answer may have taken effect. So may one whose forwarder died: its message is delivered again as one that
    was started before.
    """

    def __init__(self, queue: Queue, target: str) -> None:
        self._queue = queue
        self._target = target
        self._known: dict[Place, Doubt] = {}
        self._boot = queue._storage.clock.boot_id()

    def begin(self) -> None:
        """Create the table, and remove what is over."""
        self._queue.app_schema(SCHEMA, key_columns=KEY_COLUMNS)
        self.load()
        for (raw, seq), doubt in tuple(self._known.items()):
            if self._is_over(raw, seq):
                self._run([(raw, END_DOUBT, self._row(raw, seq))])
                self._known.pop((raw, seq), doubt)

    def load(self) -> None:
        """Read the table. Other forwarders add to it, and their messages may come here next."""
        rows = self._queue.query(DOUBTS, (self._target,))
        # Rows that are gone stay here. To replace the dict would drop what another thread adds meanwhile.
        self._known |= {(raw, seq): Doubt(since, boot) for raw, seq, since, boot in rows}

    def _row(self, raw: bytes, seq: int) -> tuple[Key | None, bytes, int, str]:
        """Return what identifies the row of a message."""
        key = decode_key(raw)
        return (None if isinstance(key, int) and key.bit_length() > INTEGER_BITS else key), raw, seq, self._target

    def _is_over(self, raw: bytes, seq: int) -> bool:
        """Return whether a message has left its lane in another way than through a forwarder."""
        key = decode_key(raw)
        if key is None:
            return False
        with suppress(UnknownMessage):
            return self._queue.status(key, seq).state in ("resolved", "dead")
        return True

    def doubtful(self, chosen: Sequence[Ready], window: float) -> frozenset[int]:
        """Return the indices of the messages that the endpoint may no longer recognise as duplicates.

        Args:
            window: how long it does, seconds.
        """
        known = self._known
        died = [(each, self._since_death(each.job)) for each in chosen if _was_started(each.job) and each.place not in known]
        if died:
            self._add(died)
            known = known | {ready.place: doubt for ready, doubt in died}
        if not known:
            return frozenset()
        before = self._queue._storage.now() - int(window * WINDOW_PART * MICROSECONDS)
        found = ((n, known.get(ready.place)) for n, ready in enumerate(chosen))
        return frozenset(n for n, doubt in found if doubt is not None and (doubt.since < before or doubt.boot != self._boot))

    def _since_death(self, job: Job) -> Doubt:
        """Return since when a message was perhaps sent whose forwarder died."""
        error = job.last_error
        if error is None or error.error.startswith(AT_REBOOT):
            return Doubt(self._queue._storage.now(), PREVIOUS_BOOT)
        ago = self._queue._storage.clock.wall() - round(error.at * MICROSECONDS)
        return Doubt(self._queue._storage.now() - max(ago, 0), self._boot)

    def add(self, messages: Iterable[Ready], since: int) -> None:
        """Store that messages were perhaps sent."""
        self._add([(ready, Doubt(since, self._boot)) for ready in messages if ready.place not in self._known])

    def _add(self, some: Sequence[tuple[Ready, Doubt]]) -> None:
        for ready, doubt in some:
            self._known.setdefault(ready.place, doubt)
        self._run([(ready.raw, ADD_DOUBT, (*self._row(*ready.place), *doubt)) for ready, doubt in some])

    def _run(self, statements: Sequence[tuple[bytes, str, tuple[Any, ...]]]) -> None:
        """Run statements, in one transaction for each shard. Each comes with a key of its shard."""
        shards: dict[int, list[tuple[bytes, str, tuple[Any, ...]]]] = {}
        for each in statements:
            shards.setdefault(self._queue._storage.shard_of(each[0]), []).append(each)
        for some in shards.values():
            try:
                with Transaction(self._queue._client, (), some[0][0]) as tx:
                    for _, sql, parameters in some:
                        tx.execute(sql, parameters)
            except StrictqError as e:  # this process knows it nevertheless
                log.warning("which messages may have been sent was not stored: %s", e)

    def end(self, ready: Ready) -> None:
        """Forget a doubt with the ack of a message that was sent."""
        if self._known and self._known.pop(ready.place, None) is not None:
            ready.job.execute(END_DOUBT, self._row(*ready.place))


def _was_started(job: Job) -> bool:
    """Return whether a forwarder died, or lost its lease, while it had the message."""
    return job.attempt > 1 or job._delivery._is_suspect
