"""Sending to an endpoint: in batches, in order per key, repeated until each message was answered."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import attrs

from .._client import validate
from .._client.effects import ANY_QUEUE
from .._platform.clock import MICROSECONDS, SystemClock
from .._values import hints
from .._values.errors import InvalidArgument, MessageTooLarge, OutcomeUnknown, PartialFailure, ServerUnreachable, StrictqError
from .._values.keys import Key, encode_key, keyless_lane
from .._values.types import Message
from .._values.views import as_dict
from .client import TOO_LARGE, CallFailure, RemoteEndpoint, Waits, error_of, of_code
from .mapping import Encoded, dedup_id_of, encode

BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 1_048_576
SEND_SECONDS: Final = 10.0
"""How long a send repeats what was not answered."""
FIRST_WAIT_SECONDS: Final = 0.1
LONGEST_WAIT_SECONDS: Final = 2.0
DELAY_SECONDS_MAX: Final = 900
PERMISSION: Final = "sqs:SendMessage"

ENTRY_CODES: Final = frozenset({
    "InvalidMessageContents", "InvalidParameterValue", "InvalidParameterValueException", "MissingParameter",
    "MissingRequiredParameterException", "InvalidAttributeValue", "UnsupportedOperation",
})  # fmt: skip
"""Codes of an entry that the endpoint refuses for its content."""
REQUEST_CODES: Final = frozenset({
    "BatchRequestTooLong", "RequestEntityTooLarge", "InvalidMessageContents", "SerializationException", TOO_LARGE,
})  # fmt: skip
"""Codes of a whole request that are about its messages. Other ones are about the queue or its settings."""
UNMENTIONED: Final = CallFailure("again", "Unmentioned", "the answer does not say what became of the message", sent=True)
BEHIND: Final = CallFailure("again", "NotSent", "an earlier message of its key was not sent")

T = TypeVar("T")


class RemoteReceipt(NamedTuple):
    """The result of a send to an endpoint.

    Attributes:
        key: as given; None for a keyless message.
        message_id: the endpoint's. A duplicate has that of the first message.
        sequence_number: 20 digits that ascend within a group; None on a standard queue.
    """

    key: Key | None
    message_id: str
    sequence_number: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as JSON values. The key is key and key_type."""
        return as_dict(self)


class Accepted(NamedTuple):
    """A message that the endpoint has."""

    message_id: str
    sequence_number: str | None


def request(
    endpoint: RemoteEndpoint, messages: Sequence[Encoded], doubtful: frozenset[int] = frozenset()
) -> list[Accepted | CallFailure]:
    """Send up to ten messages in one request, in more if they are too long for one. Return what became of each.

    A failure of the kind "refused" is about the message itself. After a failure nothing more of its group is sent, unless the
    endpoint breaks that rule for the messages of one request.

    Args:
        doubtful: the indices of the messages that may have been sent before.
    """
    entries = [
        {"Id": str(n), **each.entry(fifo=endpoint.is_fifo, maybe_duplicate=n in doubtful)} for n, each in enumerate(messages)
    ]
    answer = endpoint.call("send_message_batch", QueueUrl=endpoint.url, Entries=entries)
    if not isinstance(answer, CallFailure):
        return _outcomes(endpoint, answer, len(messages))
    if answer.code not in REQUEST_CODES:
        return [_passing(answer) if answer.kind in ("refused", "stale") else answer] * len(messages)
    if len(messages) == 1:
        return [answer]
    half = len(messages) // 2
    first = request(endpoint, messages[:half], frozenset(n for n in doubtful if n < half))
    failed = {each.group for each, outcome in zip(messages, first, strict=False) if isinstance(outcome, CallFailure)}
    rest = [n for n in range(half, len(messages)) if messages[n].group not in failed]
    second = (
        request(endpoint, [messages[n] for n in rest], frozenset(rest.index(n) for n in doubtful if n in rest)) if rest else []
    )
    known = dict(zip(rest, second, strict=True))
    return [*first, *(known.get(n, BEHIND) for n in range(half, len(messages)))]


def _outcomes(endpoint: RemoteEndpoint, answer: Mapping[str, Any], count: int) -> list[Accepted | CallFailure]:
    outcomes: list[Accepted | CallFailure] = [UNMENTIONED] * count
    for each in answer.get("Successful") or ():
        outcomes[int(each["Id"])] = Accepted(each["MessageId"], each.get("SequenceNumber"))
    for each in answer.get("Failed") or ():
        failure = of_code(each.get("Code", ""), each.get("Message") or "", fault=bool(each.get("SenderFault")))
        endpoint.failed_entry(failure)
        if failure.kind in ("refused", "stale"):
            failure = attrs.evolve(failure, kind="refused") if failure.code in ENTRY_CODES else _passing(failure)
        outcomes[int(each["Id"])] = failure
    return outcomes


def _passing(failure: CallFailure) -> CallFailure:
    return attrs.evolve(failure, kind="again")


def pick(lanes: Mapping[Any, Iterable[T]], per_key: int, most: int, size: Callable[[T], int]) -> list[tuple[Any, T]]:
    """Return the messages of the next request, with their lanes: the first ones of some lanes, as many as fit."""
    chosen: list[tuple[Any, T]] = []
    room = BATCH_BYTES_MAX
    for lane, waiting in lanes.items():
        for each in islice(waiting, per_key):
            room -= size(each)
            if len(chosen) == most or (chosen and room < 0):
                return chosen
            chosen.append((lane, each))
    return chosen


# ---- sending of a program


def send(endpoint: RemoteEndpoint, message: Message) -> RemoteReceipt:
    """Send a message. See RemoteQueue.send."""
    (result,) = _send(endpoint, [message])
    if isinstance(result, StrictqError):
        raise result
    return result


def send_many(endpoint: RemoteEndpoint, messages: Iterable[Message]) -> list[RemoteReceipt]:
    """Send messages. See RemoteQueue.send_many."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise InvalidArgument(f"send_many takes a list of Message objects, not {type(messages).__name__}")
    results = _send(endpoint, list(messages))
    receipts = [result for result in results if isinstance(result, RemoteReceipt)]
    if len(receipts) == len(results):
        return receipts
    first = next(result for result in results if isinstance(result, StrictqError))
    if not receipts and all(result is first for result in results):
        raise first
    raise PartialFailure("some of the messages were not sent", results) from first


def check(endpoint: RemoteEndpoint, message: Message) -> None:
    """Refuse a message that the queue would not accept. Nothing is sent.

    Raises:
        InvalidArgument, MessageTooLarge: it is invalid.
    """
    _converted(endpoint, message)


def _send(endpoint: RemoteEndpoint, messages: list[Message]) -> list[RemoteReceipt | StrictqError]:
    made = [_checked(endpoint, message, n, len(messages)) for n, message in enumerate(messages, 1)]
    lanes: dict[Hashable, deque[int]] = {}
    for n, encoded in enumerate(made):
        lanes.setdefault(encoded.group if endpoint.is_fifo else n, deque()).append(n)
    results: list[RemoteReceipt | StrictqError | None] = [None] * len(made)
    unsure: set[int] = set()
    waits = Waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    until = time.monotonic() + SEND_SECONDS
    per_key = BATCH_MAX if endpoint.keeps_prefixes else 1
    failure: CallFailure | None = None
    while lanes:
        chosen = pick(lanes, per_key, BATCH_MAX, lambda n: made[n].size)
        outcomes = request(endpoint, [made[n] for _, n in chosen])
        failure = None
        for (lane, n), outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, CallFailure) and outcome.sent:
                unsure.add(n)
            if lane not in lanes or lanes[lane][0] != n:
                continue  # an earlier message of its key was not sent
            if isinstance(outcome, Accepted):
                until = time.monotonic() + SEND_SECONDS
                results[n] = RemoteReceipt(messages[n].key, outcome.message_id, outcome.sequence_number)
                lanes[lane].popleft()
                if not lanes[lane]:
                    del lanes[lane]
            elif outcome.kind == "again":
                failure = outcome
            else:
                error = _error(endpoint, outcome)
                for behind in lanes.pop(lane):
                    results[behind] = error
        if failure is None:
            waits.reset()
        elif (left := until - time.monotonic()) <= 0:
            break
        else:
            time.sleep(min(waits.next(failure.after), left))
    if failure is not None:
        unreachable = _error(endpoint, failure)
        for n in (n for waiting in lanes.values() for n in waiting):
            results[n] = _unknown(endpoint, failure) if n in unsure else unreachable
    return [result for result in results if result is not None]


def _checked(endpoint: RemoteEndpoint, message: Message, number: int, count: int) -> Encoded:
    """Return a message as SQS takes it.

    Raises:
        InvalidArgument, MessageTooLarge: it is invalid; nothing was sent.
    """
    try:
        return _converted(endpoint, message)
    except InvalidArgument as e:
        if count > 1:
            e.args = (f"message {number:,} of {count:,}: {e.args[0]}",)
        raise


def _converted(endpoint: RemoteEndpoint, message: Message) -> Encoded:
    if not isinstance(message, Message):
        raise InvalidArgument(f"send_many takes Message objects, not {type(message).__name__}")
    raw = keyless_lane(0) if message.key is None else encode_key(message.key)
    _, body, options, _ = validate.item(message.body, validate.given_of(message), raw, ANY_QUEUE, SystemClock().wall)
    once, ttl, delay = uuid4().hex, None, 0
    if options is not None:
        if (options.size_hint, options.prepare_seconds, options.process_seconds) != (None, None, None):
            raise InvalidArgument("size_hint, prepare_seconds and process_seconds need a local queue: SQS has no place for them")
        delay = math.ceil(options.delay / MICROSECONDS)
        if delay and endpoint.is_fifo:
            raise InvalidArgument("a FIFO queue of SQS delays all messages or none", hint=hints.LOCAL_BEFORE_REMOTE)
        if delay > DELAY_SECONDS_MAX:
            raise InvalidArgument(f"SQS delays a message by at most {DELAY_SECONDS_MAX} s", hint=hints.LOCAL_BEFORE_REMOTE)
        ttl = None if options.ttl is None else options.ttl / MICROSECONDS
        if options.dedup_id is not None:
            if not endpoint.is_fifo:
                raise InvalidArgument("a standard queue of SQS recognises no duplicates: dedup_id needs a FIFO queue")
            once = dedup_id_of(options.dedup_id)
    encoded = encode(raw, body, message.headers, once, fifo=endpoint.is_fifo, ttl=ttl, delay=delay)
    if why := too_large(endpoint, encoded):
        raise MessageTooLarge(why, hint=hints.REFERENCE_TO_DATA)
    return encoded


def too_large(endpoint: RemoteEndpoint, encoded: Encoded) -> str | None:
    """Return why the queue would refuse a message for its size; None: it would not."""
    most = int(endpoint.attributes.get("MaximumMessageSize", BATCH_BYTES_MAX))
    if encoded.size <= most:
        return None
    return f"the message has {encoded.size:,} bytes as SQS counts them, and the queue accepts {most:,}"


def _error(endpoint: RemoteEndpoint, failure: CallFailure) -> StrictqError:
    if failure.kind == "refused":
        return InvalidArgument(f"{endpoint.text} refused the message: {failure}; it was not sent")
    return error_of(failure, endpoint.text, PERMISSION)


def _unknown(endpoint: RemoteEndpoint, failure: CallFailure) -> StrictqError:
    error = ServerUnreachable(str(failure), endpoint.text)
    return OutcomeUnknown(f"the message may have been sent: {failure}", shard=-1, cause=error, file=endpoint.text)
