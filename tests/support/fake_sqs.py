"""A boto3 SQS client without a server: queues in memory, a clock that a test moves, and calls that fail as the test says.

Use it where a test needs to know when a call began, what it said, or how it failed. Its rules are those of
`tests/server/sqs/cases.py`, which `test_fake_sqs.py` plays on it as `test_cases.py` does on the endpoint. It is stricter than the
endpoint in one way: like Amazon SQS, it treats the entries of a batch one by one, unless `strictq_version` is set.

    sqs = FakeSqs(FakeClock())
    url = sqs.queue("orders.fifo", VisibilityTimeout=30)
    sqs.inject(CUT, "delete_message_batch")        # the next one is done, and its answer is lost
    q = strictq.connect(url, client=sqs)

A long poll waits for a message, or until the clock has passed its end; `end_polls` answers those that wait.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import attrs
import botocore.session
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.validate import ParamValidator

from strictq.server.sqs import rules
from strictq.server.sqs.errors import SqsError, bad, expired, no_queue
from strictq.server.sqs.received import SENDER, SEQUENCE_BASE
from strictq.server.sqs.rules import Redrive
from strictq.server.sqs.served import not_hidden, wrong_handle
from strictq.testing import FakeClock, RunningClock

MICROSECONDS: Final = 1_000_000
BASE_URL: Final = "https://sqs.us-east-1.amazonaws.com/000000000000"
ARN: Final = "arn:aws:sqs:us-east-1:000000000000:"
WINDOW_SECONDS: Final = 300
LOOK_SECONDS: Final = 0.02
"""How often a long poll looks whether the clock has moved, seconds of the machine."""

Answer = dict[str, Any]
Parameters = Mapping[str, Any]


# ---- what may go wrong


@attrs.frozen
class Fault:
    """What goes wrong with one call.

    Attributes:
        error: makes the exception that the caller gets; None: the caller gets an answer.
        happens: the call takes effect, although its answer is an exception.
        positions: the entries of a batch that go wrong.
        code, sender: what is reported of these entries under Failed. Without a code they are in neither list.
        entries_happen: these entries take effect nevertheless.
        before, after: called before and after the call takes effect, without a lock: they may move the clock, or wait.
    """

    error: Callable[[str], Exception] | None = None
    happens: bool = False
    positions: frozenset[int] = frozenset()
    code: str | None = None
    sender: bool = False
    entries_happen: bool = False
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


def refused(code: str, message: str = "refused by a test", status: int = 400, **headers: str) -> Fault:
    """A call that the service refuses with this error. Nothing happens."""
    return Fault(lambda action: client_error(code, message, status, action, **headers))


def entries_fail(*positions: int, code: str = "InternalError", sender: bool = False) -> Fault:
    """A batch of which the entries at these positions are not done, and reported under Failed."""
    return Fault(positions=frozenset(positions), code=code, sender=sender)


def entries_missing(*positions: int, happen: bool = False) -> Fault:
    """A batch whose answer does not mention the entries at these positions."""
    return Fault(positions=frozenset(positions), entries_happen=happen)


def meanwhile(before: Callable[[], object] | None = None, after: Callable[[], object] | None = None) -> Fault:
    """A call that is answered, with something that a test does before and after it takes effect."""
    return Fault(before=before, after=after)


def client_error(code: str, message: str, status: int, action: str, shape: str = "", **headers: str) -> ClientError:
    """Return the exception of boto3 for an answer of the service. The names of headers have `_` for `-`."""
    error = {"Message": message, "Code": code}
    if shape:
        error |= {"QueryErrorCode": shape, "Type": "Sender" if status < 500 else "Receiver"}
    about = {"HTTPStatusCode": status, "RetryAttempts": 0, "HTTPHeaders": {n.replace("_", "-"): v for n, v in headers.items()}}
    return ClientError({"Error": error, "ResponseMetadata": about}, action)


THROTTLED: Final = refused("RequestThrottled")
UNAVAILABLE: Final = refused("ServiceUnavailable", status=503)
INTERNAL: Final = refused("InternalError", status=500)
ACCESS_DENIED: Final = refused("AccessDenied", status=403)
EXPIRED_TOKEN: Final = refused("ExpiredToken", status=403)
NO_QUEUE: Final = refused("AWS.SimpleQueueService.NonExistentQueue")
NO_CREDENTIALS: Final = Fault(lambda _: NoCredentialsError())
UNREACHABLE: Final = Fault(lambda _: EndpointConnectionError(endpoint_url=BASE_URL))
"""No connection: nothing was sent."""
CUT: Final = Fault(lambda _: ConnectionClosedError(endpoint_url=BASE_URL), happens=True)
"""The call was done, and the connection was closed before the answer arrived."""
CUT_EARLY: Final = Fault(lambda _: ConnectionClosedError(endpoint_url=BASE_URL))
"""The connection was closed before the service had the request. The caller cannot tell this from CUT."""
TIMED_OUT: Final = Fault(lambda _: ReadTimeoutError(endpoint_url=BASE_URL), happens=True)


@attrs.define
class Made:
    """A call that was made.

    Attributes:
        began, ended: microseconds of the clock; ended is None while the call runs.
        got: its answer, or the exception that it raised.
    """

    action: str
    params: Parameters
    began: int
    ended: int | None = None
    got: Answer | Exception | None = None

    @property
    def entries(self) -> Sequence[Parameters]:
        """The entries of a batch."""
        found: Sequence[Parameters] = self.params["Entries"]
        return found


# ---- queues


@attrs.define(eq=False)
class Stored:
    """A message of a queue.

    Attributes:
        number: its place in the queue.
        sent: microseconds since 1970.
        first: when it was first received, microseconds since 1970.
        visible_at: microseconds of the boot clock.
        since: its newest receive, on the boot clock.
        handle: the newest receipt handle.
        source: the ARN of the queue in which it became a dead letter.
    """

    content: rules.Content
    message_id: str
    dedup_id: str | None
    number: int
    sent: int
    visible_at: int
    count: int = 0
    first: int = 0
    since: int = 0
    handle: str = ""
    source: str | None = None
    gone: bool = False

    @property
    def body(self) -> str:
        return self.content.body.decode()

    @property
    def group(self) -> str | None:
        return self.content.group


@attrs.define(eq=False)
class Held:
    """A queue, with every handle that it gave out."""

    name: str
    attributes: dict[str, str]
    created: int
    messages: dict[int, Stored] = attrs.field(factory=dict)
    handles: dict[str, Stored] = attrs.field(factory=dict)
    duplicates: dict[tuple[str | None, str], tuple[int, Stored]] = attrs.field(factory=dict)
    attempts: dict[str, tuple[int, list[Stored], list[str]]] = attrs.field(factory=dict)
    number: int = 0

    @property
    def fifo(self) -> bool:
        return rules.is_fifo(self.name)

    @property
    def values(self) -> dict[str, str]:
        return rules.DEFAULTS | (rules.FIFO_DEFAULTS if self.fifo else {}) | self.attributes

    def seconds(self, name: str) -> int:
        return int(self.values[name]) * MICROSECONDS

    def visible(self, now: int) -> list[Stored]:
        """Return what a receive may return: of each group of a FIFO queue, the messages before its first hidden one."""
        if not self.fifo:
            return [m for m in self.messages.values() if m.visible_at <= now]
        groups: dict[str | None, list[Stored]] = {}
        ended: set[str | None] = set()
        for m in self.messages.values():
            if m.visible_at > now:
                ended.add(m.group)
            elif m.group not in ended:
                groups.setdefault(m.group, []).append(m)
        return [m for group in groups.values() for m in group]

    def remove(self, m: Stored) -> None:
        m.gone = True
        self.messages.pop(m.number, None)

    def add(self, m: Stored) -> Stored:
        self.number += 1
        m.number = self.number
        self.messages[m.number] = m
        return m


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("sqs")


class FakeSqs:
    """The client, and the service behind it. Any number of threads may call it.

    Attributes:
        calls: every call, in the order in which they began.
        choose: called with each action and its parameters; returns the fault of this call, or None. For random faults.
        meta: what a client of boto3 says of itself, as far as a caller may ask.
    """

    def __init__(self, clock: FakeClock | RunningClock, *, strictq_version: str | None = None) -> None:
        """Make a service without queues.

        Args:
            strictq_version: answer as `strictq serve sqs` of this version: the attribute StrictqVersion, and in a batch no entry
                is stored behind a refused one of its group.
        """
        self.clock = clock
        self.strictq_version = strictq_version
        self.calls: list[Made] = []
        self.choose: Callable[[str, Parameters], Fault | None] = lambda _action, _params: None
        self.meta = SimpleNamespace(endpoint_url=BASE_URL.rpartition("/")[0], region_name="us-east-1")
        self._queues: dict[str, Held] = {}
        self._planned: list[tuple[Fault, frozenset[str], list[float]]] = []
        self._changed = threading.Condition()
        self._ended_polls = 0

    # ---- for tests

    def queue(self, name: str, **attributes: Any) -> str:
        """Create a queue and return its URL. A dict is an attribute in JSON; a name that ends in ".fifo" is a FIFO queue."""
        if rules.is_fifo(name):
            attributes = {"FifoQueue": True, **attributes}
        texts = {k: json.dumps(v) if isinstance(v, dict) else str(v).lower() if isinstance(v, bool) else str(v)
                 for k, v in attributes.items()}  # fmt: skip
        return str(self.create_queue(QueueName=name, Attributes=texts)["QueueUrl"])

    def dead_letters(self, name: str, limit: int) -> dict[str, Any]:
        """Create a queue for dead letters, and return the redrive policy that names it."""
        self.queue(name)
        return {"deadLetterTargetArn": ARN + name, "maxReceiveCount": limit}

    def inject(self, fault: Fault, *actions: str, times: float = 1) -> None:
        """Let the next calls of these actions go wrong; of all actions if none is named.

        Args:
            times: so many calls; math.inf: until `heal`.
        """
        with self._changed:
            self._planned.append((fault, frozenset(actions), [times]))

    def heal(self) -> None:
        """Let everything work again."""
        with self._changed:
            self._planned.clear()
            self.choose = lambda _action, _params: None

    def end_polls(self) -> None:
        """Answer the long polls that wait now, without messages."""
        with self._changed:
            self._ended_polls += 1
            self._changed.notify_all()

    def made(self, *actions: str) -> list[Made]:
        """Return the calls of these actions so far; of all actions if none is named."""
        with self._changed:
            return [call for call in self.calls if not actions or call.action in actions]

    def bodies(self, url: str) -> list[str]:
        """Return the bodies of all messages of a queue, also of hidden ones, in order."""
        with self._changed:
            return [m.body for m in self._held(url).messages.values()]

    def stored(self, url: str) -> list[Stored]:
        """Return all messages of a queue, in order."""
        with self._changed:
            return list(self._held(url).messages.values())

    # ---- the client

    def close(self) -> None:
        """Answer what waits. The client may be used on."""
        self.end_polls()

    def can_paginate(self, _action: str) -> bool:
        return False

    def __getattr__(self, action: str) -> Callable[..., Answer]:
        act = getattr(type(self), f"_do_{action}", None)
        if act is None:
            raise AttributeError(f"the fake has no action {action}")

        def call(**params: Any) -> Answer:
            return self._call(action, act, params)

        return call

    def _call(self, action: str, act: Callable[..., Answer], params: Parameters) -> Answer:
        operation = "".join(map(str.title, action.split("_")))
        shape = _model().operation_model(operation).input_shape
        if (report := ParamValidator().validate(params, shape)).has_errors():
            raise ParamValidationError(report=report.generate_report())
        with self._changed:
            made = Made(action, params, self.clock.boot())
            self.calls.append(made)
            fault = self._fault(action, params) or Fault()
        try:
            if fault.before is not None:
                fault.before()
            if fault.error is None or fault.happens:
                made.got = self._act(operation, act, params, fault)
            if fault.after is not None:
                fault.after()
            if fault.error is not None:
                raise fault.error(operation)
            assert isinstance(made.got, dict)
            return {**made.got, "ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}
        except Exception as e:
            made.got = e
            raise
        finally:
            made.ended = self.clock.boot()

    def _fault(self, action: str, params: Parameters) -> Fault | None:
        for planned in self._planned:
            fault, actions, left = planned
            if not actions or action in actions:
                left[0] -= 1
                if left[0] <= 0:
                    self._planned.remove(planned)
                return fault
        return self.choose(action, params)

    def _act(self, operation: str, act: Callable[..., Answer], params: Parameters, fault: Fault) -> Answer:
        with self._changed:
            try:
                if "Entries" in params:
                    return act(self, params, fault)
                return act(self, params)
            except SqsError as e:
                raise client_error(e.old, e.message, e.status, operation, e.code) from None
            finally:
                self._changed.notify_all()

    def _held(self, url: str) -> Held:
        q = self._queues.get(url.rstrip("/").rpartition("/")[2])
        if q is None:
            raise no_queue()
        oldest = self.clock.wall() - q.seconds("MessageRetentionPeriod")
        for m in [m for m in q.messages.values() if m.sent <= oldest]:
            q.remove(m)
        return q

    # ---- queues

    def _checked(self, name: str, given: Mapping[str, str], old: Mapping[str, str]) -> dict[str, str]:
        def target(arn: str) -> Mapping[str, str] | None:
            q = self._queues.get(arn.removeprefix(ARN))
            return None if q is None else q.attributes

        return rules.checked_attributes(
            name, given, old,
            lambda text: str(rules.checked_redrive(text, fifo=rules.is_fifo(name), source=ARN + name, target=target)),
        )  # fmt: skip

    def _do_create_queue(self, params: Parameters) -> Answer:
        name, given = params["QueueName"], params.get("Attributes", {})
        rules.check_name(name, given)
        attributes = self._checked(name, given, {})
        q = self._queues.setdefault(name, Held(name, attributes, self.clock.wall()))
        for key in given:
            if q.values.get(key) != attributes.get(key):
                raise SqsError(
                    "QueueNameExists", f"A queue already exists with the same name and a different value for attribute {key}"
                )
        return {"QueueUrl": f"{BASE_URL}/{name}"}

    def _do_delete_queue(self, params: Parameters) -> Answer:
        del self._queues[self._held(params["QueueUrl"]).name]
        return {}

    def _do_get_queue_url(self, params: Parameters) -> Answer:
        return {"QueueUrl": f"{BASE_URL}/{self._held(params['QueueName']).name}"}

    def _do_set_queue_attributes(self, params: Parameters) -> Answer:
        q = self._held(params["QueueUrl"])
        q.attributes = self._checked(q.name, params["Attributes"], q.attributes)
        return {}

    def _do_get_queue_attributes(self, params: Parameters) -> Answer:
        q, names = self._held(params["QueueUrl"]), params.get("AttributeNames", ())
        for name in names:
            if name not in rules.KNOWN | {"All"} or (name == rules.VERSION and self.strictq_version is None):
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        now = self.clock.boot()
        shown = [m for m in q.messages.values() if m.visible_at <= now]
        hidden = [m for m in q.messages.values() if m.visible_at > now and m.count]
        found = q.values | {
            "QueueArn": ARN + q.name,
            "CreatedTimestamp": str(q.created // MICROSECONDS),
            "LastModifiedTimestamp": str(q.created // MICROSECONDS),
            "ApproximateNumberOfMessages": str(len(shown)),
            "ApproximateNumberOfMessagesNotVisible": str(len(hidden)),
            "ApproximateNumberOfMessagesDelayed": str(len(q.messages) - len(shown) - len(hidden)),
        }
        if rules.VERSION in names:
            found[rules.VERSION] = str(self.strictq_version)
        if "All" not in names:
            found = {name: value for name, value in found.items() if name in names}
        return {"Attributes": found} if found else {}

    def _do_purge_queue(self, params: Parameters) -> Answer:
        q = self._held(params["QueueUrl"])
        for m in list(q.messages.values()):
            q.remove(m)
        q.duplicates.clear()
        return {}

    # ---- sending

    def _do_send_message(self, params: Parameters) -> Answer:
        q = self._held(params["QueueUrl"])
        return self._send(q, rules.content(params, q.values, fifo=q.fifo))

    def _do_send_message_batch(self, params: Parameters, fault: Fault) -> Answer:
        q, given = self._held(params["QueueUrl"]), rules.entries(params, "SendMessageBatch")
        rules.check_batch_size(given)
        if q.fifo:
            for each in given:
                rules.require_ids(each, q.values, in_batch=True)
        broken: set[str] = set()

        def send(each: Parameters) -> Answer:
            group = each.get("MessageGroupId", "")
            if group in broken:
                raise SqsError("InvalidParameterValueException", "An earlier entry of this message group was refused.")
            return self._send(q, rules.content(each, q.values, fifo=q.fifo))

        def on_refusal(each: Parameters) -> None:
            if q.fifo and self.strictq_version is not None:
                broken.add(each.get("MessageGroupId", ""))

        return _batch(given, fault, send, on_refusal)

    def _send(self, q: Held, content: rules.Content) -> Answer:
        now = self.clock.boot()
        place = (content.group if q.values.get("DeduplicationScope") == "messageGroup" else None, content.dedup_id or "")
        since, m = q.duplicates.get(place, (0, None))
        if not q.fifo or m is None or since + WINDOW_SECONDS * MICROSECONDS <= now:
            m = q.add(
                Stored(content, str(uuid.uuid4()), content.dedup_id, 0, self.clock.wall(), now + content.delay * MICROSECONDS)
            )
            q.duplicates[place] = now, m
        answer = {**content.answer, "MessageId": m.message_id}
        return {**answer, "SequenceNumber": str(SEQUENCE_BASE + m.number)} if q.fifo else answer

    # ---- receiving

    def _do_receive_message(self, params: Parameters) -> Answer:
        q = self._held(params["QueueUrl"])
        most = rules.between(params.get("MaxNumberOfMessages", 1), "MaxNumberOfMessages", 1, rules.BATCH_MAX)
        wait = rules.wait_seconds(params.get("WaitTimeSeconds", int(q.values["ReceiveMessageWaitTimeSeconds"])))
        seconds = params.get("VisibilityTimeout", int(q.values["VisibilityTimeout"]))
        rules.between(seconds, "VisibilityTimeout", 0, rules.VISIBILITY_SECONDS_MAX)
        attempt = params.get("ReceiveRequestAttemptId")
        if attempt is not None:
            rules.valid_id(attempt, "ReceiveRequestAttemptId")
        end, ended = self.clock.boot() + wait * MICROSECONDS, self._ended_polls
        while True:
            found = self._repeated(q, attempt, seconds) or self._receive(q, most, seconds)
            if found or self.clock.boot() >= end or self._ended_polls != ended:
                break
            self._changed.wait(LOOK_SECONDS)
            q = self._held(params["QueueUrl"])
        if attempt is not None and found:
            q.attempts[attempt] = self.clock.boot(), found, [m.handle for m in found]
        return {"Messages": [_shown(q, m, params) for m in found]} if found else {}

    def _repeated(self, q: Held, attempt: str | None, seconds: int) -> list[Stored]:
        """Return what a receive with this attempt id returned, if all of it is still hidden under the same handles."""
        now = self.clock.boot()
        at, found, handles = q.attempts.pop(attempt or "", (0, [], []))
        if at + WINDOW_SECONDS * MICROSECONDS <= now or any(
            m.gone or m.visible_at <= now or m.handle != handle for m, handle in zip(found, handles, strict=True)
        ):
            return []
        for m in found:
            m.visible_at = now + seconds * MICROSECONDS
        return found

    def _receive(self, q: Held, most: int, seconds: int) -> list[Stored]:
        now = self.clock.boot()
        policy = Redrive.of(q.attributes.get("RedrivePolicy"))
        found: list[Stored] = []
        for m in q.visible(now):
            if len(found) == most:
                break
            if policy is not None and m.count >= policy.receives:
                self._bury(q, m, policy.target)
                continue
            m.count += 1
            m.first = m.first or self.clock.wall()
            m.since = now
            m.visible_at = now + seconds * MICROSECONDS
            m.handle = f"{q.name}/{m.number}/{uuid.uuid4()}"
            q.handles[m.handle] = m
            found.append(m)
        return found

    def _bury(self, q: Held, m: Stored, target: str) -> None:
        q.remove(m)
        dead = attrs.evolve(m, source=m.source or ARN + q.name, visible_at=self.clock.boot(), first=0, handle="", gone=False)
        if q.fifo:
            dead.sent = self.clock.wall()
        self._queues[target.removeprefix(ARN)].add(dead)

    # ---- settling

    def _do_delete_message(self, params: Parameters) -> Answer:
        self._delete(self._held(params["QueueUrl"]), params["ReceiptHandle"])
        return {}

    def _do_delete_message_batch(self, params: Parameters, fault: Fault) -> Answer:
        q, given = self._held(params["QueueUrl"]), rules.entries(params, "DeleteMessageBatch")
        return _batch(given, fault, lambda each: self._delete(q, each["ReceiptHandle"]))

    def _delete(self, q: Held, handle: str) -> Answer:
        m = q.handles.get(handle)
        if m is None:
            raise wrong_handle(handle)
        if m.gone:
            return {}
        if q.fifo and (m.handle != handle or m.visible_at <= self.clock.boot()):
            raise expired(handle)
        q.remove(m)
        return {}

    def _do_change_message_visibility(self, params: Parameters) -> Answer:
        self._change(self._held(params["QueueUrl"]), params)
        return {}

    def _do_change_message_visibility_batch(self, params: Parameters, fault: Fault) -> Answer:
        q, given = self._held(params["QueueUrl"]), rules.entries(params, "ChangeMessageVisibilityBatch")
        return _batch(given, fault, lambda each: self._change(q, each))

    def _change(self, q: Held, each: Parameters) -> Answer:
        handle, seconds, now = each["ReceiptHandle"], rules.visibility(each.get("VisibilityTimeout")), self.clock.boot()
        m = q.handles.get(handle)
        if m is None:
            raise wrong_handle(handle)
        if m.gone or (q.fifo and (m.handle != handle or m.visible_at <= now)):
            raise not_hidden(handle)
        if seconds + (now - m.since) // MICROSECONDS > rules.VISIBILITY_SECONDS_MAX:
            raise bad(seconds, "VisibilityTimeout", "Total VisibilityTimeout for the message is beyond the limit")
        m.visible_at = now + seconds * MICROSECONDS
        return {}


def _batch(
    given: Sequence[Parameters],
    fault: Fault,
    act: Callable[[Parameters], Answer],
    on_refusal: Callable[[Parameters], None] = lambda _: None,
) -> Answer:
    """Do the entries of a batch one by one, and report each, except those that a fault hides."""
    done: list[Answer] = []
    failed: list[Answer] = []
    for i, each in enumerate(given):
        broken = i in fault.positions
        try:
            if broken and not fault.entries_happen:
                raise SqsError(fault.code or "InternalError", "refused by a test", 400 if fault.sender else 500)
            answer = {"Id": each["Id"], **act(each)}
        except SqsError as e:
            on_refusal(each)
            if not broken or fault.code is not None:
                failed.append(e.entry(each["Id"]))
        else:
            if not broken:
                done.append(answer)
    return {name: found for name, found in (("Successful", done), ("Failed", failed)) if found}


def _shown(q: Held, m: Stored, params: Parameters) -> Answer:
    """Return a message as a receive answers it."""
    answer: Answer = {
        "MessageId": m.message_id, "ReceiptHandle": m.handle, "MD5OfBody": rules.md5(m.content.body), "Body": m.body,
    }  # fmt: skip
    names = {*params.get("AttributeNames", ()), *params.get("MessageSystemAttributeNames", ())}
    system = {name: value for name, value in _system(q, m) if "All" in names or name in names}
    if system:
        answer["Attributes"] = system
    wanted = params.get("MessageAttributeNames", ())
    if wanted and (chosen := rules.chosen(m.content.attributes or {}, wanted)):
        answer["MessageAttributes"] = {
            name: {**value, "BinaryValue": base64.b64decode(value["BinaryValue"])} if "BinaryValue" in value else value
            for name, value in chosen.items()
        }
        answer["MD5OfMessageAttributes"] = rules.digest_of_stored(chosen)
    return answer


def _system(q: Held, m: Stored) -> Iterator[tuple[str, str]]:
    yield "SenderId", SENDER
    yield "SentTimestamp", str(m.sent // 1000)
    yield "ApproximateReceiveCount", str(m.count)
    yield "ApproximateFirstReceiveTimestamp", str(m.first // 1000)
    if m.group is not None:
        yield "MessageGroupId", m.group
    if q.fifo:
        yield "MessageDeduplicationId", str(m.dedup_id)
        yield "SequenceNumber", str(SEQUENCE_BASE + m.number)
    if m.source is not None:
        yield "DeadLetterQueueSourceArn", m.source
    if m.content.system is not None:
        yield "AWSTraceHeader", m.content.system["AWSTraceHeader"]["StringValue"]
