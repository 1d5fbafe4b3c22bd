"""RemoteQueue: a queue behind an endpoint, as `connect` returns it. A Worker takes it, and it can be sent to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Unpack

import attrs

from .._client import validate
from .._platform.clock import Clock, SystemClock
from .._platform.observe import EventHook, Observation, Observer, Observers
from .._values import hints
from .._values.config import QueueConfig
from .._values.errors import ConfigError, ForkedProcess, InvalidArgument, QueueClosed
from .._values.keys import Key
from .._values.types import Body, Event, Message, SendOptions, to_send
from .._values.views import Report
from ..queue import Queue
from . import sending
from .client import RemoteEndpoint, log, make_client
from .sending import RemoteReceipt
from .url import parse

if TYPE_CHECKING:
    from ..worker.source import Source

LEASE_SECONDS_MIN: Final = 2
LEASE_SECONDS_MAX: Final = 43_200
POLL_SECONDS: Final = 5.0
POLL_SECONDS_MAX: Final = 20
FETCHERS: Final = 2
FETCHERS_MAX: Final = 16
SETTLERS_MAX: Final = 64
LIMIT_MIN: Final = 3
"""With a lower limit of receives, every message may be the one that killed a worker before."""
USUAL_LEASE_SECONDS: Final = 30
MARGIN_SECONDS: Final = 0.5
MARGIN_RATIO: Final = 0.02
"""How long before the end of a lease no handler starts any more: the larger one of the two. The rates of clocks differ."""
CONFIRM: Final = ("before_next", "behind")
UNSEEN: Final = "SQS shows a message only to a consumer that receives it"
TABLES: Final = "SQS has no transactions, and no tables"
LIVE: Final = "SQS knows nothing of consumers"
OPERATED: Final = "it is operated where it is: with strictq on the host of `strictq serve sqs`, or with Amazon's console"
REASONS: Final[Mapping[str, str]] = {
    name: reason
    for reason, names in (
        (UNSEEN, "peek status explain top_keys dead_letters output leases wait_ready"),
        ("SQS keeps no history", "history purge_history"),
        ("send(strictq.Message.json(value, key=key)) does the same", "send_json"),
        (TABLES, "transaction app_schema query"),
        (LIVE, "consumers consumers_needed join release_consumer"),
        ("only a Worker takes its messages", "receive consume delivery ack_many nack_many extend_many"),
        ("it has no shards here", "shards topology split merge move isolate cancel_move advise"),
        ("its durability is the endpoint's", "durability backup check configure_replication detach replication"),
        ("its clock is the endpoint's", "now"),
        ("the durations that a worker learned are not stored", "reset_estimates"),
    )
    for name in names.split()
}
"""Why a verb of a local queue is not one of a remote queue. All others: OPERATED."""


@attrs.frozen
class RedrivePolicy(Report):
    """When the endpoint makes a dead letter of a message.

    Attributes:
        target: the ARN of the queue for dead letters.
        receives_max: the number of receives after which the next one makes a dead letter of it. Receives count, not attempts.
    """

    target: str
    receives_max: int


@attrs.frozen
class RemoteStats(Report):
    """Counts of a remote queue, and of what this process did on it.

    Attributes:
        ready, in_flight, delayed: the endpoint's numbers of messages. Amazon's are approximate.
        requests: this process's requests by action, as {"receive_message": 12}.
        entries: the messages that they carried, by action.
        failures: failed requests, and failed entries of batches, by the code of the error.
        empty_polls: receives that returned nothing.
        renewals: messages whose visibility timeout was extended.
        late_deletes: messages whose handler returned after the lease had ended. They were deleted, or are processed again.
        round_trip_seconds: the mean time of recent requests; None: none was answered.
    """

    ready: int
    in_flight: int
    delayed: int
    requests: Mapping[str, int]
    entries: Mapping[str, int]
    failures: Mapping[str, int]
    empty_polls: int
    renewals: int
    late_deletes: int
    round_trip_seconds: float | None

    @property
    def depth(self) -> int:
        """The number of messages that are not deleted."""
        return self.ready + self.in_flight + self.delayed


@attrs.frozen
class SourceSettings:
    """The arguments of `connect`, checked.

    Attributes:
        lease: the visibility timeout of each receive, seconds.
        poll: how long a receive waits for a message, seconds.
        limit: receives after which the endpoint makes a dead letter of a message; None: no limit.
        behind: whether a message of a group starts before the delete of the one before it is confirmed.
    """

    lease: int
    poll: int
    fetchers: int = 1
    settlers: int = 4
    limit: int | None = None
    behind: bool = False

    def with_lease(self, seconds: int) -> SourceSettings:
        """Return them with another lease."""
        return attrs.evolve(self, lease=seconds, poll=min(self.poll, seconds // 2))

    @property
    def margin(self) -> float:
        """Seconds before the end of a lease in which no handler starts."""
        return max(MARGIN_SECONDS, MARGIN_RATIO * self.lease)

    @property
    def config(self) -> QueueConfig:
        """What a worker reads of them."""
        return QueueConfig(lease_seconds=float(self.lease), max_attempts=self.limit)


class RemoteQueue:
    """A queue behind an SQS-compatible endpoint. `strictq.connect` returns it. Close it, or use it as a context manager.

    A Worker takes it as it takes a local queue, and any number of threads may send. Verbs that SQS has nothing for raise
    InvalidArgument, with the reason.

    Attributes:
        path: the URL.
        queue_id: the URL by which the endpoint knows the queue.
        config: what a worker reads of a queue's settings: `lease_seconds`, and `max_attempts`, which is the limit of receives.
        redrive: when the endpoint makes a dead letter of a message; None: never.
    """

    def __init__(
        self, endpoint: RemoteEndpoint, settings: SourceSettings, redrive: RedrivePolicy | None, *, owns_client: bool
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._owns_client = owns_client
        self._process = os.getpid()
        self._closed = False
        self.observers = Observers()
        self.redrive = redrive
        self.path = endpoint.text
        self.queue_id = endpoint.url
        self.config = settings.config

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps the messages of a group in order. A standard queue has no order, and no groups."""
        return self._endpoint.is_fifo

    @property
    def lease_seconds(self) -> float:
        """For how long a receive hides a message from other consumers."""
        return float(self._settings.lease)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def send(self, body: Body | Message, key: Key | None = None, **options: Unpack[SendOptions]) -> RemoteReceipt:
        """Send a message to the endpoint. It has the message on return.

        What was not answered is repeated for ten seconds, which a FIFO queue takes as one message. It needs the network at once.
        Send what must not be lost to a local queue, and forward it.

        Args:
            body: the content, bytes-like; or a Message, which has all the rest.
            key: str, bytes or int. Messages of one key keep their order on a FIFO queue. None: a message for itself.
            dedup_id: within the queue's window, a second send with the same id stores nothing. FIFO queues only; Amazon compares
                ids of all keys unless the queue's DeduplicationScope is messageGroup.
            delay, at: when it is delivered, at most 900 seconds from now, rounded up to whole ones. Standard queues only.
            ttl: seconds after which a worker of strictq drops it.
            headers: str → str.
            The other options of `Queue.send` are refused: SQS has no place for them.
        Raises:
            InvalidArgument, MessageTooLarge: the message is invalid, or the endpoint refuses it; it was not sent.
            OutcomeUnknown: a request was not answered; it may have been sent.
            QueueNotFound, ServerRefused, ServerUnreachable, ConfigError: it was not sent.
            QueueClosed: the connection was closed; it was not sent.
        Source: docs/howto/forward.md
        """
        self.require_open()
        return sending.send(self._endpoint, to_send(body, key, **options))

    def send_many(self, messages: Iterable[Message]) -> list[RemoteReceipt]:
        """Send messages, those of a key in order, in requests of up to ten.

        All are validated before the first is sent. Nothing is sent behind a message of its key that failed.

        Returns:
            The receipts, in the order of the messages.
        Raises:
            InvalidArgument, MessageTooLarge: a message is invalid; nothing was sent.
            PartialFailure: some were not sent; results has the receipt or the error of each.
            OutcomeUnknown, QueueNotFound, ServerRefused, ServerUnreachable, ConfigError: as `send`, for all of them.
        Source: docs/howto/forward.md
        """
        self.require_open()
        return sending.send_many(self._endpoint, messages)

    def _source(self, *, batch: int, lease_seconds: float | None) -> Source:
        """Return a source for one run of a worker.

        Args:
            batch: most messages to hold that were postponed.
            lease_seconds: None: the queue's.
        Raises:
            InvalidArgument: lease_seconds is not whole, or not 2 to 43,200.
        """
        from .source import SqsSource

        self.require_open()
        settings = self._settings
        if lease_seconds is not None:
            settings = settings.with_lease(_whole_seconds("lease_seconds", lease_seconds, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX))
        return SqsSource(self, settings, batch)

    def stats(self) -> RemoteStats:
        """Ask the endpoint for its counts, and add those of this process.

        Raises:
            QueueClosed: it was closed.
            QueueNotFound, ServerRefused, ServerUnreachable, ConfigError: the endpoint did not answer it. Nothing was changed.
        """
        self.require_open()
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
        found = self._endpoint.read(*names)
        ready, in_flight, delayed = (int(found.get(name, 0)) for name in names)
        done = self._endpoint.counts()
        return RemoteStats(
            ready, in_flight, delayed, done.requests, done.entries, done.failures, done.empty_polls, done.renewals,
            done.late_deletes, done.round_trip_seconds,
        )  # fmt: skip

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call `hook(event)` for each event of this object's workers. See Queue.on_event."""
        if not callable(hook):
            raise InvalidArgument("an on_event hook must be callable")
        self.observers.add(EventHook(hook))

    def observe(self, observer: Observer) -> Observation:
        """Call the observer's methods for events of this object's workers, and durations of their handlers. See Queue.observe."""
        return self.observers.add(observer)

    def close(self) -> None:
        """Close the connections. Messages that a worker holds come back when their leases end. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            if self._owns_client and os.getpid() == self._process:
                self._endpoint.close()

    def require_open(self) -> None:
        """Raise if the queue cannot be used.

        Raises:
            QueueClosed: it was closed.
            ForkedProcess: it was connected before a fork, whose child would share its connections.
        """
        if self._closed:
            raise QueueClosed(f"{self.path} was closed", hint=hints.CONNECT_AGAIN)
        if os.getpid() != self._process:
            raise ForkedProcess(f"{self.path} was connected before a fork", hint=hints.CONNECT_AGAIN)

    def __enter__(self) -> RemoteQueue:
        self.require_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument("a RemoteQueue can't be pickled or copied: it has connections", hint=hints.CONNECT_AGAIN)

    def __repr__(self) -> str:
        return f"<strictq.RemoteQueue {self.path!r}>"

    if not TYPE_CHECKING:  # a type checker knows that there are no such methods

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Queue, name):
                raise AttributeError(f"a RemoteQueue has no attribute {name!r}")
            if isinstance(vars(Queue).get(name), property):
                raise AttributeError(f"a RemoteQueue has no attribute {name!r}: {REASONS.get(name, OPERATED)}")

            def refuse(*_arguments: object, **_options: object) -> NoReturn:
                raise needs_local(f"{name}()", REASONS.get(name, OPERATED))

            return refuse


def needs_local(what: str, reason: str) -> InvalidArgument:
    """Return the error of a verb or an argument that a remote queue does not have."""
    return InvalidArgument(f"{what} needs a local queue: {reason}", hint=hints.LOCAL_BEFORE_REMOTE)


def connect(
    url: str,
    *,
    client: Any = None,
    lease_seconds: float | None = None,
    poll_seconds: float = POLL_SECONDS,
    fetchers: int = FETCHERS,
    settlers: int = 4,
    confirm: Literal["before_next", "behind"] = "before_next",
    clock: Clock | None = None,
) -> RemoteQueue:
    """Connect to a queue behind an SQS-compatible endpoint: Amazon SQS, or `strictq serve sqs` on another host.

    Two requests are made, for the queue's URL and its attributes. It needs the extra `sqs`. Credentials come from boto3's chain:
    the environment, the files of the AWS command line, or the role of the machine.

    Args:
        url: `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME`, or `sqs+http://HOST:PORT/queue/NAME` or `sqs+https://…` for another
            endpoint.
        client: a boto3 client for SQS to use. It is not closed. One that repeats requests by itself is accepted.
        lease_seconds: the visibility timeout of each receive, whole seconds, 2 to 43,200; None: the queue's attribute.
        poll_seconds: how long a receive waits for a message, whole seconds, 0 to 20. Half of the lease at most is used. With 0,
            an idle worker still waits a second in each receive. A stop waits for the receive that is under way.
        fetchers: threads of a worker that receive, 1 to 16. More than one is used only while receives return ten messages.
        settlers: threads of a worker that delete messages and change visibility timeouts, 1 to 64.
        confirm: "before_next": a message of a group starts after the endpoint has confirmed the delete of the one before it.
            "behind": it starts when that one's handler has returned, and deletes follow. This is faster over a slow network;
            after a crash, up to ten messages of a group are processed again.
        clock: for tests; None: the machine's.
    Raises:
        InvalidArgument: an argument is invalid, or the URL contains a password.
        MissingExtra: boto3 is not installed.
        QueueNotFound: there is no such queue.
        ServerRefused: the credentials do not permit it.
        ServerUnreachable: the endpoint did not answer.
        ConfigError: there are no credentials, or the queue's visibility timeout is shorter than two seconds.
    Source: docs/howto/remote-workers.md
    """
    place = parse(url)
    if lease_seconds is not None:
        lease_seconds = _whole_seconds("lease_seconds", lease_seconds, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)
    poll = _whole_seconds("poll_seconds", poll_seconds, 0, POLL_SECONDS_MAX)
    validate.whole("fetchers", fetchers, 1, FETCHERS_MAX)
    validate.whole("settlers", settlers, 1, SETTLERS_MAX)
    if confirm not in CONFIRM:
        raise InvalidArgument(f"confirm must be 'before_next' or 'behind', not {confirm!r}")
    if client is not None and not callable(getattr(client, "receive_message", None)):
        raise InvalidArgument(f"client must be a boto3 client for SQS, not {type(client).__name__}")
    if clock is not None and not isinstance(clock, Clock):
        raise InvalidArgument("clock must have wall(), boot() and boot_id()")
    owns = client is None
    if owns:
        client = make_client(place, poll_seconds=float(poll), connections=fetchers + settlers + 2)
    endpoint = RemoteEndpoint(client, place, clock or SystemClock())
    try:
        endpoint.connect()
        redrive = _redrive(endpoint.attributes)
        lease = _lease(endpoint, lease_seconds)
    except BaseException:
        if owns:
            endpoint.close()
        raise
    settings = SourceSettings(
        lease, min(poll, lease // 2), fetchers, settlers, None if redrive is None else redrive.receives_max, confirm == "behind"
    )
    _warn(endpoint, settings, redrive)
    return RemoteQueue(endpoint, settings, redrive, owns_client=owns)


def _whole_seconds(name: str, value: Any, least: int, most: int) -> int:
    """Return whole seconds. SQS knows no parts of them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not least <= value <= most:
        raise InvalidArgument(f"{name} must be whole seconds from {least:,} to {most:,}, not {validate.shown(value)}")
    return int(value)


def _lease(endpoint: RemoteEndpoint, given: float | None) -> int:
    """Return the length of a lease."""
    if given is not None:
        return int(given)
    seconds = int(endpoint.attributes.get("VisibilityTimeout", USUAL_LEASE_SECONDS))
    if seconds < LEASE_SECONDS_MIN:
        raise ConfigError(
            f"the visibility timeout of {endpoint.text} is {seconds} s, and a lease takes {LEASE_SECONDS_MIN} s at least",
            hint=hints.PASS_LEASE_SECONDS,
        )
    return seconds


def _redrive(attributes: Mapping[str, str]) -> RedrivePolicy | None:
    """Return the policy of a queue's attributes. One that cannot be read is as none: the endpoint knows what it means."""
    text = attributes.get("RedrivePolicy")
    try:
        policy = json.loads(text) if text else None
        return None if policy is None else RedrivePolicy(str(policy["deadLetterTargetArn"]), int(policy["maxReceiveCount"]))
    except (ValueError, TypeError, KeyError):
        log.warning("the redrive policy of the queue cannot be read: %.200r", text)
        return None


def _warn(endpoint: RemoteEndpoint, settings: SourceSettings, redrive: RedrivePolicy | None) -> None:
    """Warn of settings that lose messages to the dead-letter queue, or leases to the network."""
    if redrive is not None and redrive.receives_max < LIMIT_MIN:
        log.warning(
            "the limit of receives of %s is %d, so that every message runs alone on a FIFO queue: SQS counts a receive for all "
            "that a worker holds when one message kills it; use 3 or more, and twice the number of workers",
            endpoint.text, redrive.receives_max,
        )  # fmt: skip
    trip = endpoint.round_trip_seconds
    if trip is not None and 2 * trip + settings.margin > settings.lease / 2:
        log.warning(
            "a round trip to %s takes %.1f s: leases of %d s end before they can be extended; pass a longer lease_seconds",
            endpoint.text, trip, settings.lease,
        )  # fmt: skip
