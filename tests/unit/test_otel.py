"""Spans and metrics for OpenTelemetry, as its SDK exports them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strictq

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from strictq import otel
from strictq.otel import instrument


class Exported:
    """What the SDK exports."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self.reader])

    def instrument(self, q: Any, **more: Any) -> otel.Instrumentation:
        return instrument(q, name="orders", tracer_provider=self.tracers, meter_provider=self.meters, **more)

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Return the points of each metric as (attributes, value), and the count of a histogram as its value."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = point.value if hasattr(point, "value") else point.count
                        found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
        return found


@pytest.fixture
def exported() -> Iterator[Exported]:
    found = Exported()
    yield found
    found.tracers.shutdown()
    found.meters.shutdown()


@pytest.fixture
def q() -> Iterator[strictq.Queue]:
    with strictq.open(":memory:") as queue:
        yield queue


def context_of(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


class ToFile(SpanExporter):
    """Appends spans to a file, a line of JSON each."""

    def __init__(self, path: str) -> None:
        self.path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(self.path, "a") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


class Elsewhere:
    """A handler in another process, which sets up the SDK there if it has a file."""

    def __init__(self, seen: str, path: str = "") -> None:
        self.seen, self.path = seen, path

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
        if self.path:
            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(ToFile(self.path)))
            trace.set_tracer_provider(provider)

    def __call__(self, job: strictq.Job) -> None:
        with open(self.seen, "a") as file:
            file.write(f"{trace.get_current_span().get_span_context().span_id}\n")
        if job.body == b"fail":
            raise strictq.Reject("no such order")
        if job.body == b"send":
            job.send(b"more", key="other")


def worked(q: strictq.Queue, handler: Any, **options: Any) -> None:
    strictq.Worker(q, handler, **options).run(drain=True)


class TestProcesses:
    @pytest.mark.slow
    def test_the_handlers_process_has_a_span_below_that_of_the_worker(self, tmp_path: Path, exported: Exported) -> None:
        seen, path = tmp_path / "seen", tmp_path / "spans"
        with strictq.open(tmp_path / "q", durability="process") as q, exported.instrument(q):
            for key, body in (("a", b""), ("b", b"fail"), ("c", b"send")):
                q.send(body, key=key)
            worked(q, Elsewhere(str(seen), str(path)), executor="process", concurrency=1)
        made = {span["attributes"]["strictq.key"]: span for span in map(json.loads, path.read_text().splitlines())}
        workers = {
            str((span.attributes or {})["strictq.key"]): span for span in exported.spans() if span.name == "process orders"
        }
        assert made.keys() == workers.keys() == {"a", "b", "c", "other"}
        for key, span in made.items():
            trace_id, span_id = context_of(workers[key])
            assert (span["name"], span["kind"]) == ("process orders", "SpanKind.INTERNAL")
            assert (int(span["context"]["trace_id"], 16), int(span["parent_id"], 16)) == (trace_id, span_id)
            assert span["attributes"]["process.pid"] != os.getpid()
        assert {key: span["attributes"].get("error.type") for key, span in made.items() if key in "ab"} == {
            "a": None, "b": "strictq.worker.job.Reject",
        }  # fmt: skip
        assert sorted(map(int, seen.read_text().split())) == sorted(int(span["context"]["span_id"], 16) for span in made.values())

    @pytest.mark.slow
    def test_without_the_sdk_there_the_handler_has_the_workers_context(self, tmp_path: Path, exported: Exported) -> None:
        seen = tmp_path / "seen"
        with strictq.open(tmp_path / "q", durability="process") as q, exported.instrument(q):
            q.send(b"", key="a")
            worked(q, Elsewhere(str(seen)), executor="process", concurrency=1)
        assert int(seen.read_text()) == exported.span("process orders").context.span_id


class TestSpans:
    def test_a_message_has_the_context_of_its_send_and_its_handler_is_linked(self, q: strictq.Queue, exported: Exported) -> None:
        seen = []

        def handler(job: strictq.Job) -> None:
            seen.append((dict(job.headers), trace.get_current_span().get_span_context().span_id))

        with exported.instrument(q), exported.tracers.get_tracer("t").start_as_current_span("request") as request:
            q.send(b"x", key="k", headers={"tenant": "a"})
            worked(q, handler)
        send, process = exported.span("send orders"), exported.span("process orders")
        assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert send.parent is not None
        assert send.parent.span_id == request.get_span_context().span_id
        ((headers, current),) = seen
        assert headers["tenant"] == "a"
        assert headers["traceparent"].startswith("00-{:032x}-{:016x}-".format(*context_of(send)))
        assert current == process.context.span_id
        assert linked(process) == linked(exported.span("receive orders")) == [context_of(send)]
        assert process.attributes == {
            "messaging.system": "strictq", "messaging.destination.name": "orders", "messaging.operation.name": "process",
            "messaging.operation.type": "process", "strictq.key": "k", "strictq.seq": 1, "strictq.attempt": 1,
        }  # fmt: skip

    def test_what_a_handler_sends_is_in_its_trace(self, q: strictq.Queue, exported: Exported) -> None:
        def handler(job: strictq.Job) -> None:
            if job.key == "first":
                job.send(b"next", key="second")

        with exported.instrument(q):
            q.send(b"x", key="first")
            worked(q, handler)
        first, second = [span for span in exported.spans() if span.name == "process orders"]
        sent = [span for span in exported.spans() if span.name == "send orders"]
        assert sent[1].parent is not None
        assert (sent[1].parent.trace_id, sent[1].parent.span_id) == context_of(first)
        assert linked(second) == [context_of(sent[1])]

    def test_a_context_of_another_program_is_used(self, q: strictq.Queue, exported: Exported) -> None:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        q.send(b"x", key="k", headers={"traceparent": parent})
        with exported.instrument(q):
            q.receive()
        assert linked(exported.span("receive orders")) == [(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)]

    def test_a_header_that_the_program_sets_stays(self, q: strictq.Queue, exported: Exported) -> None:
        own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        with exported.instrument(q):
            q.send(b"x", key="k", headers=own)
            q.send_many([strictq.Message(b"x", key="k", headers=own), strictq.Message(b"x", key="k")])
        first, second, third = q.receive()
        assert first.headers == second.headers == own
        assert third.headers["traceparent"] != own["traceparent"]

    def test_a_batch_is_one_span_and_its_receive_has_one_link(self, q: strictq.Queue, exported: Exported) -> None:
        with exported.instrument(q):
            q.send_many(strictq.Message(b"x", key=str(n)) for n in range(5))
            q.receive(9)
        send, receive = exported.spans()
        assert (send.attributes or {})["messaging.batch.message_count"] == 5
        assert (receive.attributes or {})["messaging.batch.message_count"] == 5
        assert linked(receive) == [context_of(send)]
        assert receive.start_time is not None
        assert receive.end_time is not None
        assert receive.start_time <= receive.end_time

    def test_empty_receives_make_no_span(self, q: strictq.Queue, exported: Exported) -> None:
        with exported.instrument(q):
            q.receive()
        assert exported.spans() == []

    def test_failures_are_errors_and_deferred_messages_are_not(self, exported: Exported) -> None:
        def handler(job: strictq.Job) -> None:
            if job.key == "bad":
                raise ValueError("no such order")
            raise strictq.Defer(60.0)

        config = strictq.QueueConfig(max_attempts=1)
        with strictq.open(":memory:", config=config) as q, exported.instrument(q):
            with suppress(strictq.MessageTooLarge):
                q.send(b"x" * (q.config.max_body_bytes + 1), key="k")
            q.send(b"x", key="bad")
            q.send(b"x", key="later")
            worked(q, handler)
            failed = {str((s.attributes or {}).get("strictq.key")): s for s in exported.spans() if s.name == "process orders"}
            assert (failed["bad"].status.is_ok, failed["later"].status.is_ok) == (False, True)
            assert (failed["bad"].attributes or {})["error.type"] == "ValueError"
            assert failed["bad"].events[0].name == "exception"
            assert not exported.spans()[0].status.is_ok
            points = {attributes.get("error.type"): n for attributes, n in exported.metrics()["messaging.process.duration"]}
            assert points == {"ValueError": 1, None: 1}

    def test_async_queues_and_handlers_have_the_context_of_their_task(self, exported: Exported) -> None:
        async def handler(job: strictq.Job) -> None:
            await asyncio.sleep(0)
            job.send(b"x", key=f"{job.key}'") if "'" not in str(job.key) else None

        async def run() -> None:
            async with strictq.open_async(":memory:") as q:
                with exported.instrument(q), exported.tracers.get_tracer("t").start_as_current_span("request"):
                    await q.send(b"x", key="a")
                    await strictq.Worker(q, handler).serve(drain=True)

        asyncio.run(run())
        request = exported.span("request")
        sends = [span for span in exported.spans() if span.name == "send orders"]
        processes = [span for span in exported.spans() if span.name == "process orders"]
        assert sends[0].parent is not None
        assert sends[0].parent.span_id == request.context.span_id
        assert sends[1].parent is not None
        assert sends[1].parent.span_id == processes[0].context.span_id
        assert linked(processes[1]) == [context_of(sends[1])]

    def test_a_batch_handler_has_one_span(self, q: strictq.Queue, exported: Exported) -> None:
        with exported.instrument(q):
            for n in range(3):
                q.send(b"x", key=str(n))
            strictq.Worker(q, process_batch=lambda jobs: None).run(drain=True)
        sends = [context_of(span) for span in exported.spans() if span.name == "send orders"]
        processes = [span for span in exported.spans() if span.name == "process orders"]
        assert sorted(link for span in processes for link in linked(span)) == sorted(sends)

    def test_a_transaction_sends_the_context_too(self, q: strictq.Queue, exported: Exported) -> None:
        with exported.instrument(q), q.transaction(key="k") as tx:
            tx.send(b"x", key="k")
        (d,) = q.receive()
        sent = trace.get_current_span(propagate.extract(d.headers)).get_span_context()
        assert (sent.trace_id, sent.span_id) == context_of(exported.span("send orders"))

    def test_after_close_nothing_is_added(self, q: strictq.Queue, exported: Exported) -> None:
        done = exported.instrument(q)
        done.close()
        done.close()
        q.send(b"x", key="k")
        assert q.receive()[0].headers == {}
        assert exported.spans() == []

    def test_without_an_sdk_messages_get_no_headers(self, q: strictq.Queue) -> None:
        with instrument(q, tracer_provider=trace.NoOpTracerProvider()):
            q.send(b"x", key="k")
            worked(q, lambda job: None)
            q.send(b"x", key="k")
        assert q.receive()[0].headers == {}


class TestMetrics:
    def test_counts_and_durations_have_the_names_of_the_conventions(self, q: strictq.Queue, exported: Exported) -> None:
        with exported.instrument(q, traces=False, consumer_group="billing"):
            q.send_many(strictq.Message(b"x", key=str(n)) for n in range(3))
            worked(q, lambda job: None)
        found = exported.metrics()
        bound = {
            "messaging.system": "strictq",
            "messaging.destination.name": "orders",
            "messaging.consumer.group.name": "billing",
        }
        assert found["messaging.client.sent.messages"] == [({**bound, "messaging.operation.name": "send"}, 3)]
        assert found["messaging.client.consumed.messages"] == [({**bound, "messaging.operation.name": "receive"}, 3)]
        assert found["messaging.process.duration"] == [({**bound, "messaging.operation.name": "process"}, 3)]
        ((attributes, commits),) = found["messaging.client.operation.duration"]
        assert attributes == {**bound, "messaging.operation.name": "commit"}
        assert commits >= 2
        assert exported.spans() == []

    def test_totals_grow_over_exports_and_queue_objects(self, exported: Exported) -> None:
        for n in (1, 2):
            with strictq.open(":memory:") as q, exported.instrument(q):
                q.send(b"x", key="k")
            ((_, sent),) = exported.metrics()["messaging.client.sent.messages"]
            assert sent == n

    def test_only_the_newest_durations_are_kept_between_two_exports(
        self, q: strictq.Queue, exported: Exported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(otel, "DURATIONS_MAX", 5)
        with exported.instrument(q, traces=False):
            for _ in range(20):
                q.send(b"x", key="k")
        found = exported.metrics()
        assert [n for _, n in found["messaging.client.operation.duration"]] == [5]
        assert [n for _, n in found["messaging.client.sent.messages"]] == [20]


def test_wrong_arguments_are_refused(q: strictq.Queue) -> None:
    with pytest.raises(strictq.InvalidArgument, match="takes a Queue"):
        instrument(b"q")  # type: ignore[arg-type]
    with pytest.raises(strictq.InvalidArgument):
        instrument(q, name=1)  # type: ignore[arg-type]


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import strictq\n"
        "try: import strictq.otel\n"
        "except strictq.MissingExtra as e: print(e.extra)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "otel\n"
