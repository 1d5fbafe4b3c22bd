"""App: handlers selected by the type of a message, called with JSON arguments."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar

import attrs

from ._client import validate
from ._platform.clock import MICROSECONDS
from ._platform.log import Log
from ._values import hints
from ._values.errors import InvalidArgument, InvalidBody
from ._values.handlers import TYPE_HEADER, is_async, paused, require_ran, require_runs
from ._values.keys import Key
from ._values.types import Message, Receipt, SendOptions
from .delivery import describe
from .queue import Queue
from .worker import AsyncJob, Defer, Job, Reject, Retry, Worker
from .worker.schedules import Schedule, Ticker, Ticks, schedule

if TYPE_CHECKING:
    from ._client.effects import PendingReceipt
    from .aio import AsyncQueue
    from .remote.aio import AsyncRemoteQueue
    from .remote.queue import RemoteQueue

UNKNOWN_SECONDS: Final = 1.0
UNKNOWN_SECONDS_MAX: Final = 30.0
"""The first and the longest delay of a message whose type has no handler."""
PAUSED_SECONDS_MAX: Final = 10.0
"""The longest delay of a message whose type is paused: so long a resumed type waits at most."""
UNKNOWN_TYPES_MAX: Final = 1000
log: Final = Log("strictq.worker")
F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen
class Registered:
    """A registered handler and its policy.

    Attributes:
        takes_job: the function has a parameter `job`, which gets the Job.
    """

    type: str
    function: Callable[..., Any]
    signature: inspect.Signature
    takes_job: bool
    timeout_seconds: float | None
    attempts_max: int | None
    retry_delay_seconds: float | None
    max_running: int | None

    def arguments(self, job: Job) -> dict[str, Any]:
        """Return the function's arguments.

        Raises:
            Reject: the body is not a JSON object, or its arguments do not match the function.
        """
        try:
            given = job.json()
        except InvalidBody as e:
            raise Reject(str(e)) from None
        if not isinstance(given, dict):
            raise Reject(f"the body of a {self.type!r} message must be a JSON object of arguments")
        arguments = {**given, "job": job} if self.takes_job else given
        try:
            self.signature.bind(**arguments)
        except TypeError as e:
            raise Reject(f"the arguments do not match the handler of {self.type!r}: {e}") from None
        return arguments

    def call(self, job: Job) -> None:
        """Call the function, which is plain."""
        arguments = self.arguments(job)
        try:
            require_ran("the handler", self.function(**arguments))
        except Exception as e:
            self.fail(job, e)

    def fail(self, job: Job, error: Exception) -> NoReturn:
        """Raise the exception that the handler's policy requires for a failure."""
        if isinstance(error, Retry | Defer | Reject):
            raise error
        if self.attempts_max is not None and job.attempt >= self.attempts_max:
            raise Reject(f"failed {job.attempt} times; the last error: {describe(error)}"[: validate.TEXT_CHARS_MAX]) from error
        if self.retry_delay_seconds is not None:
            raise Retry(self.retry_delay_seconds, describe(error)) from error
        raise error


class Postponed:
    """The delays of messages whose type has no handler here, or is paused: those of a type double together.

    Args:
        now: returns seconds of the queue's clock.
        most: the longest delay, seconds.
        until: what the messages wait for, for the log.
    """

    def __init__(self, now: Callable[[], float], most: float, until: str) -> None:
        self._most = most
        self._until = until
        self._now = now
        self._lock = threading.Lock()
        self._delays: dict[str, tuple[float, float]] = {}
        """By type, the least recently used first: the delay, and the time `now()` until which it is not doubled."""

    def defer(self, type: str, reason: str) -> Defer:
        """Return the exception that postpones a message of this type. Log a warning whenever the delay is set anew."""
        now = self._now()
        with self._lock:
            delay, until = self._delays.pop(type, (0.0, now))
            doubles = now >= until
            if doubles:
                # A type that was not seen for long begins anew: it belongs to another deploy.
                before = delay if now - until < 2 * self._most else 0.0
                delay = min(max(2 * before, UNKNOWN_SECONDS), self._most)
                until = now + delay
            self._delays[type] = (delay, until)
            if len(self._delays) > UNKNOWN_TYPES_MAX:
                del self._delays[next(iter(self._delays))]
        if doubles:
            log.warning("%s; its messages wait %s, and are tried again after %g s", reason, self._until, delay)
        return Defer(delay, reason)


@attrs.frozen
class Handlers:
    """Calls the handler of a message's type. It is sent to the handlers' processes."""

    by_type: Mapping[str, Registered]

    def __call__(self, job: Job) -> None:
        self.by_type[job.headers[TYPE_HEADER]].call(job)


class App:
    """Handlers for the messages of a queue, selected by the message's type.

    Handlers may be plain or `async def`. If one of them is async, all run in an event loop, and plain functions run in threads.
    In that case only async handlers can use `job.run`; plain ones use `job.execute`.

    Examples:
        >>> app = strictq.App(strictq.open(":memory:"))
        >>> @app.handler("charge")
        ... def charge(order: int, cents: int) -> None:
        ...     print(order, cents)
        >>> _ = app.send("charge", key="customer-7", order=1, cents=500)
        >>> app.worker().run(drain=True)
        1 500
    """

    def __init__(
        self,
        queue: Queue | AsyncQueue | RemoteQueue | AsyncRemoteQueue,
        *,
        propagate: Iterable[str] = (),
        unknown: Literal["wait", "reject"] = "wait",
    ) -> None:
        """Create an app without handlers.

        Args:
            queue: the queue to send to and to process. One that `connect` returned has no schedules.
            propagate: names of headers that `job.send` copies from the handler's message; see Worker.
            unknown: what happens to a message whose type has no handler. "wait": it is deferred, with no attempt charged, so
                that a worker with a newer version of the program can take it: by 1 second, doubled per type up to 30. Later
                messages of its key wait, too. "reject": it becomes a dead letter at once.
        Raises:
            InvalidArgument: an argument is invalid.
        """
        inner: Any = queue if isinstance(queue, Queue) else getattr(queue, "sync", queue)
        self._is_local = isinstance(inner, Queue)
        if not self._is_local and not callable(getattr(inner, "_source", None)):
            raise InvalidArgument(f"an App takes a Queue, not {type(queue).__name__}")
        if unknown not in ("wait", "reject"):
            raise InvalidArgument(f"unknown must be 'wait' or 'reject', not {unknown!r}")
        self.queue: Queue = inner
        self._unknown = Postponed(self._now, UNKNOWN_SECONDS_MAX, "for a worker that has one") if unknown == "wait" else None
        self._paused = Postponed(self._now, PAUSED_SECONDS_MAX, "until it is resumed")
        self._propagate = validate.header_names(propagate)
        self._handlers: dict[str, Registered] = {}
        self._schedules: dict[str, Schedule] = {}
        self._ticks = Ticks(self.queue, self._scheduled)

    def _now(self) -> float:
        return self.queue._client.storage.now() / MICROSECONDS if self._is_local else time.monotonic()

    @property
    def handlers(self) -> Mapping[str, Registered]:
        """The handlers by type."""
        return dict(self._handlers)

    def handler(
        self,
        type: str,
        *,
        timeout_seconds: float | None = None,
        attempts_max: int | None = None,
        retry_delay_seconds: float | None = None,
        max_running: int | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of a type. It is called with the arguments of `send`.

        A parameter named `job` gets the Job. The function itself is returned unchanged.

        Args:
            type: 1 to 256 characters. A type has one handler.
            timeout_seconds: a call that takes longer is abandoned, and its message retried. None: the worker's `timeout_seconds`.
            attempts_max: dead-letter the message after this many failed attempts. None: the queue's max_attempts decides, which
                applies in any case.
            retry_delay_seconds: seconds to wait before each retry. None: the queue's retry delay and backoff.
            max_running: how many calls may run at once in a worker, such as those that need a licence or much memory. The worker
                passes over keys whose next message is of this type while as many run, and goes on with other types. With a
                prepare handler, as many messages of the type are prepared or run. None: the worker's `concurrency`.
        Raises:
            InvalidArgument: the type already has a handler, or the function cannot be one; nothing was changed.
        """
        if callable(type):
            raise InvalidArgument("the decorator takes the type of the messages, such as @app.handler('report')")
        name = validate.name("type", type)
        if timeout_seconds is not None:
            validate.microseconds("timeout_seconds", timeout_seconds, minimum=0.001)
        if attempts_max is not None:
            validate.whole("attempts_max", attempts_max, 1, 1_000_000)
        if retry_delay_seconds is not None:
            validate.microseconds("retry_delay_seconds", retry_delay_seconds)
        if max_running is not None:
            validate.whole("max_running", max_running, 1, 10_000)

        def register(function: F) -> F:
            if name in self._handlers:
                raise InvalidArgument(f"the type {name!r} already has a handler")
            require_runs("handler", function)
            signature = inspect.signature(function)
            if any(p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values()):
                raise InvalidArgument("a handler's arguments are given by name: it must have no positional-only parameters")
            if taken := {"key", "options"} & signature.parameters.keys():
                raise InvalidArgument(f"a handler can't have a parameter {min(taken)!r}: send has one of that name")
            takes_job = "job" in signature.parameters
            self._handlers[name] = Registered(
                name, function, signature, takes_job, timeout_seconds, attempts_max, retry_delay_seconds, max_running
            )
            return function

        return register

    def schedule(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        key: Key | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        options: SendOptions | None = None,
    ) -> Callable[[F], F]:
        """Send a message for the decorated handler at each tick of a cron expression. Each tick is sent once.

        Every running worker of this app sends the ticks. The last tick is stored in the queue, in the transaction
        that sends it, so none is sent twice, even if a process dies. A new schedule begins when a worker first checks it.
        Of the ticks missed while no worker ran, only the latest is sent. The header `strictq-tick` has the tick's time.

        A function that is not a handler yet becomes the handler of the type with the function's name. Needs the extra `app`.

            @app.schedule("0 3 * * *", timezone="Europe/Berlin")
            def report() -> None: ...

        Args:
            expression: minute, hour, day of the month, month, day of the week; with six fields the first one is the second.
            timezone: an IANA name. Clock changes are handled as by Debian's cron: a tick in a skipped hour runs right
                after it, and a tick in a repeated hour runs once. Schedules that run every hour or more often are not affected.
            key: the key of the messages; None: the name. Messages of one key are never handled at the same time.
            name: the name under which the last tick is stored, needed if a handler has several schedules; None: the type.
            arguments: the handler's arguments.
            options: further options of `q.send`, such as {"ttl": 3600.0}.
        Raises:
            MissingExtra: cronsim is not installed.
            InvalidArgument: the expression, time zone or arguments are invalid, the name is taken, or the queue is behind an
                endpoint; nothing was changed.
        """
        if not self._is_local:
            raise InvalidArgument("a schedule needs a local queue, which stores its last tick", hint=hints.LOCAL_BEFORE_REMOTE)

        def register(function: F) -> F:
            of_type = next((n for n, handler in self._handlers.items() if handler.function is function), None)
            if of_type is None:
                of_type = validate.name("type", getattr(function, "__name__", ""))
            chosen = of_type if name is None else validate.name("name", name)
            if chosen in self._schedules:
                raise InvalidArgument(f"there is already a schedule {chosen!r}", hint=hints.NAME_OF_SCHEDULE)
            given: SendOptions = {} if options is None else options
            made = schedule(chosen, expression, timezone, of_type, chosen if key is None else key, arguments or {}, given)
            known = of_type in self._handlers
            try:
                if not known:
                    self.handler(of_type)(function)
                self.queue._client.sending.item(self._scheduled(made, given))
            except BaseException:
                if not known:
                    self._handlers.pop(of_type, None)
                raise
            self._schedules[chosen] = made
            return function

        return register

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The schedules by name."""
        return dict(self._schedules)

    def tick(self) -> list[PendingReceipt]:
        """Send the due ticks that were not sent, and return their receipts. Workers of the app do this by themselves.

        For tests, and for programs without a worker.

        Raises:
            StrictqError: as `q.transaction`.
        """
        return self._ticks.send_due(list(self._schedules.values())) if self._schedules else []

    def _scheduled(self, of: Schedule, options: SendOptions) -> Message:
        return self.message(of.type, of.key, options, **of.arguments)

    def message(self, type: str, /, key: Key | None = None, options: SendOptions | None = None, **arguments: Any) -> Message:
        """Return the message of a call, for `q.send`, `tx.send`, `job.send` and `q.send_many`.

        Raises:
            InvalidArgument: no handler has this type, the arguments do not match it, or they cannot be written as JSON.
        """
        handler = self._handlers.get(type)
        if handler is None:
            raise InvalidArgument(f"no handler of {type!r} is registered", hint=hints.TYPES_ARE.of(types=self._types()))
        try:
            handler.signature.bind(**arguments, **({"job": None} if handler.takes_job else {}))
        except TypeError as e:
            raise InvalidArgument(f"the arguments do not fit the handler of {type!r}: {e}") from None
        given: SendOptions = {} if options is None else options
        headers = {**(given.get("headers") or {}), TYPE_HEADER: type}
        return Message.json(arguments, key=key, **{**given, "headers": headers})

    def send(self, type: str, /, key: Key | None = None, options: SendOptions | None = None, **arguments: Any) -> Receipt:
        """Send a message for the handler of a type. Durable on return.

        Args:
            key: as for `q.send`. Messages of one key are handled in order.
            options: further options of `q.send`, such as {"delay": 5.0, "dedup_id": "x"}.
            arguments: the handler's arguments, JSON values.
        Raises:
            InvalidArgument: no handler has this type, the arguments do not match it, or they cannot be written as JSON; nothing
                was changed. Otherwise as `q.send`.
        """
        return self.queue.send(self.message(type, key, options, **arguments))

    # ---- work

    @property
    def process(self) -> Callable[[Any], Any]:
        """A handler for a Worker, or for `strictq.testing.drain`, that calls the handler of the message's type."""
        if any(is_async(handler.function) for handler in self._handlers.values()):
            return self._process_async
        return self._process

    def worker(self, **options: Any) -> Worker:
        """Return a Worker that runs the handlers and sends the ticks of the schedules. The options are those of Worker.

        With executor="process", handlers are plain functions at the top level of a module, and `job.run` is not available.
        """
        if not self._handlers:
            raise InvalidArgument("the app has no handlers")
        default = options.pop("timeout_seconds", None)
        options.setdefault("propagate", self._propagate)
        process = self.process
        if options.get("executor") == "process" and not is_async(process):
            process = Handlers(self.handlers)
        worker = Worker(self.queue, process, timeout_seconds=lambda job: self._timeout(job, default), **options)
        worker._check = self._of
        if any(handler.max_running is not None for handler in self._handlers.values()):
            worker._board.limit = self._limit
        if self._schedules:
            worker._beside = Ticker(self._ticks, list(self._schedules.values()), worker.stop)
        return worker

    def _types(self) -> str:
        return ", ".join(sorted(self._handlers)) or "none"

    def _of(self, job: Job) -> Registered:
        type = job.headers.get(TYPE_HEADER)
        if type is None:
            raise Reject(f"the message has no type: the header {TYPE_HEADER} is missing")
        handler = self._handlers.get(type)
        if type in self.queue.config.paused_types:
            raise self._paused.defer(type, paused(type))
        if handler is None:
            reason = f"no handler of {type!r} is registered; the types are {self._types()}"[: validate.TEXT_CHARS_MAX]
            raise Reject(reason) if self._unknown is None else self._unknown.defer(type, reason)
        return handler

    def _limit(self, job: Job) -> tuple[str, int] | None:
        """Return a job's type and its `max_running`; None: it has none."""
        handler = self._handlers.get(_type_of(job))
        return None if handler is None or handler.max_running is None else (handler.type, handler.max_running)

    def _timeout(self, job: Job, default: float | None) -> float | None:
        handler = self._handlers.get(_type_of(job))
        return default if handler is None or handler.timeout_seconds is None else handler.timeout_seconds

    def _process(self, job: Job) -> None:
        self._of(job).call(job)

    async def _process_async(self, job: AsyncJob) -> None:
        from anyio.to_thread import run_sync

        handler = self._of(job)
        arguments = handler.arguments(job)
        try:
            if is_async(handler.function):
                require_ran("the handler", await handler.function(**arguments))
            else:
                require_ran("the handler", await run_sync(lambda: handler.function(**arguments), abandon_on_cancel=True))
        except Exception as e:
            handler.fail(job, e)


def _type_of(job: Job) -> str:
    """Return the type of a job's message; "": it has none, or cannot be decoded, which its handler will report."""
    try:
        return job.headers.get(TYPE_HEADER, "")
    except Reject:
        return ""
