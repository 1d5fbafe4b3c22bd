"""Traces and metrics of a queue for OpenTelemetry. Needs the extra `otel`; the program sets up the SDK and its exporters.

    instrument(q)

A send is a span of kind producer, and its context travels in the message's headers. A receive is a client span, and a worker's
handler a consumer span; both are linked to the sends of their messages. What a handler sends is in the trace of its span.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from ._platform.extras import need
from ._platform.observe import Observation, Observer
from ._values.errors import InvalidArgument

need("opentelemetry", "otel")

from opentelemetry import metrics, propagate, trace  # noqa: E402
from opentelemetry.trace import Link, SpanKind, StatusCode  # noqa: E402

from ._client.validate import text  # noqa: E402
from .worker.job import Defer  # noqa: E402

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["Instrumentation", "instrument"]

# ---- the names of the semantic conventions for messaging, which are experimental

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
PROCESS_ID: Final = "process.pid"
KEY, SEQ, ATTEMPT = "strictq.key", "strictq.seq", "strictq.attempt"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
BOUNDARIES_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

LINKS_MAX: Final = 128
"""Most links of a span, the SDK's own limit."""
DURATIONS_MAX: Final = 1000
"""Most durations of one kind that are kept between two exports. Recording one in a histogram of the SDK takes 10 µs."""
_NAME: Final = "strictq"


class _Queue(Protocol):
    """A Queue or an AsyncQueue."""

    @property
    def path(self) -> str: ...
    def observe(self, observer: Observer, /) -> Observation: ...


class Instrumentation:
    """The result of `instrument`. End it with `close`, or use it as a context manager."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self._observations = observations

    def close(self) -> None:
        """Make no more spans, and count no more messages. What was counted is still exported. Closing twice does nothing."""
        for observation in self._observations:
            observation.close()

    def __enter__(self) -> Instrumentation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def instrument(
    queue: _Queue,
    *,
    name: str | None = None,
    consumer_group: str | None = None,
    traces: bool = True,
    metrics: bool = True,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Instrumentation:
    """Make spans and metrics of what this queue object does: its sends, its receives, and the handlers of its workers.

    Args:
        queue: a Queue, or an open AsyncQueue. Workers of the queue are instrumented with it, whenever they were created.
        name: the queue's name in spans and metrics; None: that of its directory, without the suffix .strictq.
        consumer_group: the name of its group of consumers, if there are several.
        traces: make spans, and add their context to the headers of messages that are sent.
        metrics: count messages, and measure durations.
        tracer_provider, meter_provider: None: those that the program has set for OpenTelemetry.
    Raises:
        InvalidArgument: an argument is invalid; nothing was changed.

    Examples:
        >>> import strictq
        >>> from strictq.otel import instrument
        >>> q = strictq.open(":memory:")
        >>> with instrument(q, name="orders"):
        ...     _ = q.send(b"paid", key="order-1")

    Source: docs/howto/metrics.md
    """
    if not hasattr(queue, "observe"):
        raise InvalidArgument(f"instrument takes a Queue or an AsyncQueue, not {type(queue).__name__}")
    found = text("name", name) or os.path.basename(queue.path).removesuffix(".strictq")
    bound = {SYSTEM: _NAME, DESTINATION: found}
    if text("consumer_group", consumer_group):
        bound[CONSUMER_GROUP] = str(consumer_group)
    observers: list[Observer] = []
    if traces:
        observers.append(_Spans(trace.get_tracer(_NAME, tracer_provider=tracer_provider), found, bound))
    if metrics:
        observers.append(_Measures(_instruments(meter_provider), bound))
    return Instrumentation([queue.observe(observer) for observer in observers])


# ---- spans


class _Spans(Observer):
    """Makes the spans of one queue."""

    def __init__(self, tracer: trace.Tracer, name: str, bound: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._send = f"send {name}", {**bound, OPERATION_NAME: "send", OPERATION_TYPE: "send"}
        self._receive = f"receive {name}", {**bound, OPERATION_NAME: "receive", OPERATION_TYPE: "receive"}
        self._stages = {
            stage: (f"{stage} {name}", {**bound, OPERATION_NAME: stage, OPERATION_TYPE: "process"}, kind)
            for stage, kind in (("prepare", SpanKind.INTERNAL), ("process", SpanKind.CONSUMER))
        }

    @contextmanager
    def sending(self, messages: int) -> Iterator[dict[str, str]]:
        name, bound = self._send
        attributes: dict[str, Any] = bound if messages == 1 else {**bound, BATCH_COUNT: messages}
        with self._span(name, SpanKind.PRODUCER, attributes, ()):
            headers: dict[str, str] = {}
            propagate.inject(headers)
            yield headers

    def received(self, deliveries: Sequence[Any], seconds: float) -> None:
        ended = time.time_ns()
        name, bound = self._receive
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes={**bound, BATCH_COUNT: len(deliveries)}, links=_links(deliveries),
            start_time=ended - int(seconds * 1e9),
        )  # fmt: skip
        span.end(ended)

    def handling(self, stage: str, jobs: Sequence[Any]) -> AbstractContextManager[object]:
        name, bound, kind = self._stages[stage]
        if len(jobs) == 1:
            job = jobs[0]
            attributes = {**bound, KEY: str(job.key), SEQ: job.seq, ATTEMPT: job.attempt}
        else:
            attributes = {**bound, BATCH_COUNT: len(jobs)}
        return self._span(name, kind, attributes, _links(jobs))

    def handling_elsewhere(self, stage: str, job: Any) -> Callable[[], AbstractContextManager[object]]:
        name, bound, _ = self._stages[stage]
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        attributes = {**bound, KEY: str(job.key), SEQ: job.seq, ATTEMPT: job.attempt}
        return partial(_span_elsewhere, name, attributes, carrier)

    def _span(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any], links: Sequence[Link]
    ) -> AbstractContextManager[Span]:
        return _span(self._tracer, name, kind, attributes, links)


@contextmanager
def _span(
    tracer: trace.Tracer, name: str, kind: SpanKind, attributes: Mapping[str, Any], links: Sequence[Link] = (), parent: Any = None
) -> Iterator[Span]:
    """Make a span around a block.

    Args:
        parent: the context of its parent; None: the current one.
    """
    with tracer.start_as_current_span(
        name, parent, kind=kind, attributes=attributes, links=links, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as e:
            if not isinstance(e, Defer):  # a handler that asks for a later time has not failed
                span.set_attribute(ERROR_TYPE, _type_of(e))
                span.record_exception(e)
                span.set_status(StatusCode.ERROR, str(e))
            raise


def _span_elsewhere(name: str, attributes: Mapping[str, Any], carrier: Mapping[str, str]) -> AbstractContextManager[Span]:
    """Make a span in a handler's process, by the provider of that process. Its parent is the span of the worker."""
    tracer = trace.get_tracer(_NAME)
    return _span(tracer, name, SpanKind.INTERNAL, {**attributes, PROCESS_ID: os.getpid()}, parent=propagate.extract(carrier))


def _links(messages: Iterable[Any]) -> list[Link]:
    """Return links to the sends of messages, each once."""
    found: dict[tuple[int, int], Link] = {}
    for message in messages:
        headers = message.headers
        if not headers:
            continue
        sent = trace.get_current_span(propagate.extract(headers)).get_span_context()
        if sent.is_valid:
            found[sent.trace_id, sent.span_id] = Link(sent)
            if len(found) == LINKS_MAX:
                break
    return list(found.values())


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# ---- metrics


class _Totals:
    """What is counted under one set of attributes, of all queue objects that have it.

    Attributes:
        sent, received: numbers of messages.
        durations: seconds of commits, and of handlers by their error; the newest ones since the last export.
    """

    def __init__(self, bound: Mapping[str, str]) -> None:
        self.lock = threading.Lock()
        self.sent = 0
        self.received = 0
        self.of_sent = {**bound, OPERATION_NAME: "send"}
        self.of_received = {**bound, OPERATION_NAME: "receive"}
        self.of_commits = {**bound, OPERATION_NAME: "commit"}
        self.of_handlers = {**bound, OPERATION_NAME: "process"}
        self.commits: deque[float] = deque(maxlen=DURATIONS_MAX)
        self.handlers: deque[tuple[float, str | None]] = deque(maxlen=DURATIONS_MAX)


class _Instruments:
    """The instruments of one meter provider.

    The counters are read when the program exports metrics, so a message costs an addition and no call of the SDK. The durations
    that were kept are recorded at the same time.
    """

    def __init__(self, meter: metrics.Meter) -> None:
        self._known: dict[frozenset[tuple[str, str]], _Totals] = {}
        self._lock = threading.Lock()
        self._operations = meter.create_histogram(
            OPERATION_DURATION, "s", "Duration of commits", explicit_bucket_boundaries_advisory=BOUNDARIES_SECONDS
        )
        self._handlers = meter.create_histogram(
            PROCESS_DURATION, "s", "Duration of handlers", explicit_bucket_boundaries_advisory=BOUNDARIES_SECONDS
        )
        meter.create_observable_counter(SENT_MESSAGES, [self._sent], "{message}", "Messages that were sent")
        meter.create_observable_counter(CONSUMED_MESSAGES, [self._received], "{message}", "Messages that were delivered")

    def totals(self, bound: Mapping[str, str]) -> _Totals:
        """Return the totals of these attributes."""
        with self._lock:
            return self._known.setdefault(frozenset(bound.items()), _Totals(bound))

    def _all(self) -> list[_Totals]:
        with self._lock:
            return list(self._known.values())

    def _sent(self, _: CallbackOptions) -> Iterator[metrics.Observation]:
        for totals in self._all():
            self._record(totals)
            yield metrics.Observation(totals.sent, totals.of_sent)

    def _received(self, _: CallbackOptions) -> Iterator[metrics.Observation]:
        for totals in self._all():
            yield metrics.Observation(totals.received, totals.of_received)

    def _record(self, totals: _Totals) -> None:
        for _ in range(len(totals.commits)):
            self._operations.record(totals.commits.popleft(), totals.of_commits)
        for _ in range(len(totals.handlers)):
            seconds, error = totals.handlers.popleft()
            attributes = totals.of_handlers if error is None else {**totals.of_handlers, ERROR_TYPE: error}
            self._handlers.record(seconds, attributes)


_made: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_making = threading.Lock()


def _instruments(provider: MeterProvider | None) -> _Instruments:
    """Return the instruments of a provider, which are made once."""
    if provider is None:
        provider = metrics.get_meter_provider()
    with _making:
        if provider not in _made:
            _made[provider] = _Instruments(metrics.get_meter(_NAME, meter_provider=provider))
        return _made[provider]


class _Measures(Observer):
    """Counts the messages of one queue object, and keeps the durations of its commits and handlers."""

    def __init__(self, instruments: _Instruments, bound: Mapping[str, str]) -> None:
        self._totals = instruments.totals(bound)

    def count(self, name: str, n: int, shard: int) -> None:  # noqa: ARG002
        totals = self._totals
        if name == "sends":
            with totals.lock:
                totals.sent += n
        elif name == "receives":
            with totals.lock:
                totals.received += n

    def duration(self, name: str, seconds: float, shard: int) -> None:  # noqa: ARG002
        if name == "commit":
            self._totals.commits.append(seconds)

    @contextmanager
    def handling(self, stage: str, jobs: Sequence[Any]) -> Iterator[None]:  # noqa: ARG002
        began = time.perf_counter()
        error: str | None = None
        try:
            yield
        except BaseException as e:
            error = None if isinstance(e, Defer) else _type_of(e)
            raise
        finally:
            if stage == "process":
                self._totals.handlers.append((time.perf_counter() - began, error))
