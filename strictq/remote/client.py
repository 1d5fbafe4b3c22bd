"""The client of an endpoint: how it is made, what its errors mean, how long to wait after one, and what it has done."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from .._platform.clock import MICROSECONDS, Clock
from .._platform.extras import need
from .._platform.log import Log
from .._values import hints
from .._values.errors import ConfigError, QueueNotFound, ServerRefused, ServerUnreachable, StrictqError
from .url import QueueUrl

log: Final = Log("strictq.remote")
EXTRA: Final = "sqs"
CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 10.0
"""How long a request waits for its answer, beyond the time of its poll."""
USUAL_REGION: Final = "us-east-1"
"""For an endpoint that has no regions. A signature names one nevertheless."""
OWN: Final = "StrictqVersion"
"""The attribute by which `strictq serve sqs` is recognised."""
LEGACY: Final = "AWS.SimpleQueueService."
THROTTLING: Final = frozenset({
    "RequestThrottled", "OverLimit", "KmsThrottled", "Throttling", "ThrottlingException", "ThrottledException",
    "TooManyRequestsException", "RequestLimitExceeded", "SlowDown", "BandwidthLimitExceeded", "PriorRequestNotComplete",
})  # fmt: skip
EXPIRED: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed", "TokenRefreshRequired"}
)
"""Credentials that were right, or a wrong clock. The SDK fetches new ones, or an operator does."""
SKEWED: Final = ("Signature expired", "Signature not yet current")
"""The beginnings of the text that the endpoint gives as the reason if this machine's clock is wrong. Time sets it right."""
DENIED: Final = frozenset({
    "AccessDenied", "AccessDeniedException", "KmsAccessDenied", "InvalidSecurity", "SignatureDoesNotMatch",
    "InvalidClientTokenId", "UnrecognizedClientException", "MissingAuthenticationToken", "IncompleteSignature",
    "AuthFailure", "OptInRequired",
    "NotAuthorized", "InvalidAccessKeyId", "403",
})  # fmt: skip
NO_QUEUE: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently"})
STALE_HANDLE: Final = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
TOO_LARGE: Final = "413"
"""The status with which a proxy refuses a request for its size."""
RETRY_AFTER_MAX: Final = 60.0
"""The longest wait that an endpoint can ask for, seconds: what asks for more may be a proxy with a wrong page."""
WARN_AT: Final = 5
WARN_SECONDS: Final = 60.0
LATEST: Final = 0.1
"""The weight of the newest round trip in the mean."""

SourceEvent = Literal["worker_source_failed", "worker_source_works"]
Kind = Literal["again", "denied", "no_queue", "stale", "refused"]


@attrs.frozen
class CallFailure:
    """Why a request or an entry of a batch failed.

    Attributes:
        kind: "again": for a passing reason, or for one that an operator can end, as an expired token; "denied": the credentials
            do not permit it; "no_queue"; "stale": the receipt handle is no longer valid; "refused": the endpoint will not do it.
        sent: whether the endpoint may have done it nevertheless.
        after: seconds that it asks to wait before the next request, with the header Retry-After.
    """

    kind: Kind
    code: str
    text: str
    sent: bool = False
    after: float = 0.0

    def __str__(self) -> str:
        return f"{self.code}: {self.text}" if self.text else self.code


def failure_of(error: BaseException) -> CallFailure | None:
    """Return what an exception of the SDK means; None: it is a defect, of this program or of its client."""
    from botocore import exceptions as sdk
    from botocore.parsers import ResponseParserError

    if isinstance(error, sdk.ClientError):
        answer = error.response or {}
        found = answer.get("Error", {})
        about = answer.get("ResponseMetadata", {})
        status = about.get("HTTPStatusCode", 400)
        failure = of_code(str(found.get("Code", "")), str(found.get("Message", "")), fault=status < 500, status=status)
        return attrs.evolve(failure, after=_retry_after(about.get("HTTPHeaders") or {}))
    if isinstance(error, sdk.ParamValidationError):
        return None
    if isinstance(error, ResponseParserError | UnicodeDecodeError):  # of a proxy or a captive portal
        return CallFailure("again", type(error).__name__, str(error), sent=True)
    if isinstance(error, sdk.BotoCoreError | OSError):
        unsent = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.NoCredentialsError, sdk.CredentialRetrievalError)
        return CallFailure("again", type(error).__name__, str(error), sent=not isinstance(error, unsent))
    return None


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of Retry-After; 0: there is none, or it is a date, which needs two clocks that agree."""
    given = str(headers.get("retry-after", "")).strip()
    return min(float(given), RETRY_AFTER_MAX) if given.isascii() and given.isdigit() else 0.0


def of_code(code: str, text: str, *, fault: bool, status: int = 400) -> CallFailure:
    """Return what an answer's code means.

    Args:
        code: of JSON or of the query protocol.
        fault: whether the endpoint says that the request was wrong.
    """
    name = code.rpartition("#")[2].removeprefix(LEGACY)
    if name in THROTTLING or name in EXPIRED or status == 429 or text.startswith(SKEWED):
        return CallFailure("again", name, text)
    if name in NO_QUEUE:
        return CallFailure("no_queue", name, text)
    if name in DENIED or status in (401, 403):
        return CallFailure("denied", name, text)
    if name in STALE_HANDLE or (name.startswith("InvalidParameterValue") and "expired" in text.lower()):
        return CallFailure("stale", name, text)
    if not fault or (name.isdigit() and name != TOO_LARGE):  # SQS names its errors; numbers are those of a proxy on the way
        return CallFailure("again", name, text, sent=True)
    return CallFailure("refused", name, text)


def error_of(failure: CallFailure, url: str, permission: str) -> StrictqError:
    """Return the exception for a caller that does not repeat the request.

    Args:
        permission: of IAM, as "sqs:ReceiveMessage".
    """
    if failure.kind == "no_queue":
        return QueueNotFound(f"{url} does not exist", hint=hints.REMOTE_QUEUE)
    if failure.kind == "denied":
        return ServerRefused(f"{url} refused the request: {failure}", url, hint=hints.REMOTE_PERMISSION.of(permission=permission))
    if failure.code in ("NoCredentialsError", "PartialCredentialsError"):
        return ConfigError(f"there are no credentials for {url}", hint=hints.CREDENTIALS)
    if failure.kind == "again":
        return ServerUnreachable(f"{url} did not answer: {failure}", url, hint=hints.REMOTE_ENDPOINT)
    return ServerRefused(f"{url} refused the request: {failure}", url, hint=hints.REMOTE_ENDPOINT)


def permission_of(action: str) -> str:
    """Return the permission that an action needs. A batch needs that of a single one."""
    return "sqs:" + "".join(map(str.title, action.removesuffix("_batch").split("_")))


def make_client(place: QueueUrl, *, poll_seconds: float, connections: int) -> Any:
    """Return a boto3 client that repeats nothing by itself: a hidden repetition makes the start of a lease unknown.

    Raises:
        MissingExtra: boto3 is not installed.
        ConfigError: the SDK cannot be configured.
    """
    need("boto3", EXTRA)
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        retries={"total_max_attempts": 1}, connect_timeout=CONNECT_SECONDS, read_timeout=poll_seconds + ANSWER_SECONDS,
        max_pool_connections=connections, tcp_keepalive=True,
        parameter_validation=False,  # it takes a third of the time of a batch, and all parameters are made here
        user_agent=f"Boto3/{boto3.__version__} strictq",  # the SDK would make a longer one, twice for each request
    )  # fmt: skip
    try:
        session = boto3.session.Session()
        region = place.region or session.region_name or USUAL_REGION
        return session.client("sqs", endpoint_url=place.endpoint, region_name=region, config=config)
    except (BotoCoreError, ValueError) as e:
        raise ConfigError(f"boto3 made no client: {e}", hint=hints.CREDENTIALS) from e


def refuse_wrong_answers(client: Any) -> None:
    """Make a client of the SDK raise for an answer that the connection cut off, or that is not JSON, as a captive portal's.

    botocore does not compare the length of an answer with its header. It takes both for an empty success, which would be a
    receive without messages. A client that is not the SDK's is left as it is.
    """
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register("response-received.sqs", _check_answer, unique_id="strictq-answer")


def _check_answer(response_dict: Mapping[str, Any] | None = None, **_: Any) -> None:
    from botocore.exceptions import IncompleteReadError
    from botocore.parsers import ResponseParserError

    if response_dict is None:  # there is an exception already
        return
    headers, body = response_dict["headers"], response_dict["body"]
    length = str(headers.get("content-length", ""))
    # Without a length it ended among its headers, unless its body has none by intent.
    whole = int(length) == len(body) if length.isdigit() else bool(body) or "transfer-encoding" in headers
    if not whole:
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=length or "unknown")
    if body and response_dict["status_code"] < 300:
        try:
            json.loads(body)
        except ValueError as e:
            raise ResponseParserError(f"the answer is not one of SQS: {e}") from e


class Waits:
    """The waits after failures: they double, with jitter, until something works."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self.failures = 0

    def next(self, at_least: float = 0.0) -> float:
        """Count a failure, and return the seconds until the next try."""
        self.failures += 1
        return max(jittered(self._first, self._most, self.failures), at_least)

    def reset(self) -> None:
        """Begin anew, because something worked."""
        self.failures = 0


def jittered(first: float, most: float, failures: int) -> float:
    """Return the seconds to wait after so many failures."""
    return min(first * 2.0 ** min(failures - 1, 30), most) * random.uniform(0.5, 1.0)


class SourceTrouble:
    """Reports that an endpoint fails, and that it works again: once a minute, whether it fails all the time or now and then.

    Any number of threads may call it, without holding a lock: it calls hooks and log handlers.
    """

    def __init__(self, tell: Callable[[SourceEvent, str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failures = 0
        self._warned = False
        self._warned_at = -WARN_SECONDS

    def failed(self, now: float, what: str, failure: CallFailure) -> None:
        """Note a failure. Warn of the first and the fifth one, and then once a minute."""
        with self._lock:
            self._since = now if self._since is None else self._since
            self._failures += 1
            failures = self._failures
            warns = now - self._warned_at >= WARN_SECONDS or failures == WARN_AT
            first = warns and not self._warned
            if warns:
                self._warned, self._warned_at = True, now
        if warns:
            log.warning("%s failed (%d times since it worked), trying again: %s", what, failures, failure)
        if first:
            self._tell("worker_source_failed", f"{what}: {failure}")

    def works(self, now: float) -> None:
        """Note that the endpoint answered. Report it if the failures before were reported."""
        if self._since is None:
            return
        with self._lock:
            since, failures, warned = self._since, self._failures, self._warned
            self._since, self._failures, self._warned = None, 0, False
        if warned and since is not None:
            text = f"the endpoint works again, after {now - since:.1f} s and {failures} failures"
            log.warning("%s", text)
            self._tell("worker_source_works", text)


@attrs.frozen
class CallCounts:
    """What an endpoint's client has done in this process. See RemoteStats."""

    requests: Mapping[str, int]
    entries: Mapping[str, int]
    failures: Mapping[str, int]
    empty_polls: int
    renewals: int
    late_deletes: int
    round_trip_seconds: float | None


class RemoteEndpoint:
    """A queue's client, with its counters. Any number of threads may call it.

    Attributes:
        url: the queue's URL, as SQS knows it.
        text: the URL that the user gave.
        attributes: the queue's, as they were when it was connected.
        clock: for the starts of requests.
    """

    def __init__(self, client: Any, place: QueueUrl, clock: Clock) -> None:
        refuse_wrong_answers(client)
        self.client = client
        self.place = place
        self.clock = clock
        self.text = place.text
        self.name = place.name
        self.url = place.queue_url or ""
        self.attributes: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._entries: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._worked: set[str] = set()
        self._round_trip: float | None = None
        self._is_own: bool | None = None

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps the order of its groups."""
        return self.attributes.get("FifoQueue") == "true" if self.attributes else self.place.is_fifo

    @property
    def keeps_prefixes(self) -> bool:
        """Whether a request stores no message behind a refused one of its group, as `strictq serve sqs` promises.

        The endpoint is asked once. Amazon does not know the attribute, and refuses it.
        """
        if self._is_own is None:
            answer = self.call("get_queue_attributes", QueueUrl=self.url, AttributeNames=[OWN])
            if isinstance(answer, CallFailure) and answer.kind != "refused":
                return False  # it did not answer
            self._is_own = not isinstance(answer, CallFailure) and OWN in (answer.get("Attributes") or {})
        return self._is_own

    def now(self) -> float:
        """Return seconds of the boot clock. It counts the time of a suspended machine, which `time.monotonic()` does not."""
        return self.clock.boot() / MICROSECONDS

    def connect(self) -> None:
        """Ask for the queue's URL, unless it is known, and for its attributes.

        Raises:
            QueueNotFound, ServerRefused, ServerUnreachable, ConfigError: nothing was changed.
        """
        if not self.url:
            answer = self.ask("get_queue_url", QueueName=self.name)
            self.url = str(answer["QueueUrl"])
        self.attributes = self.read("All")

    def read(self, *names: str) -> Mapping[str, str]:
        """Return attributes of the queue, as they are now. Raises as `connect` does."""
        answer = self.ask("get_queue_attributes", QueueUrl=self.url, AttributeNames=list(names))
        return answer.get("Attributes") or {}

    def ask(self, action: str, **parameters: Any) -> Mapping[str, Any]:
        """Call an action once. Its failure is raised as an error of strictq."""
        answer = self.call(action, **parameters)
        if isinstance(answer, CallFailure):
            raise error_of(answer, self.text, permission_of(action))
        return answer

    def call(self, action: str, **parameters: Any) -> Mapping[str, Any] | CallFailure:
        """Call an action once, and return its answer or its failure.

        Raises:
            Exception: of a defect.
        """
        began = self.now()
        try:
            answer: Mapping[str, Any] = getattr(self.client, action)(**parameters)
        except Exception as e:
            failure = failure_of(e)
            with self._lock:
                self._requests[action] += 1
                self._failures[type(e).__name__ if failure is None else failure.code] += 1
            if failure is None:
                raise
            return failure
        entries: Sequence[Any] = parameters.get("Entries") or answer.get("Messages") or ()
        with self._lock:
            self._worked.add(action)
            self._requests[action] += 1
            self._entries[action] += len(entries)
            if not parameters.get("WaitTimeSeconds"):
                took = self.now() - began
                before = self._round_trip
                self._round_trip = took if before is None else before + LATEST * (took - before)
        return answer

    def failed_entry(self, failure: CallFailure) -> None:
        """Count the failure of an entry of a batch."""
        with self._lock:
            self._failures[failure.code] += 1

    def count(self, what: Literal["empty_polls", "renewals", "late_deletes"], n: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._others[what] += n

    def has_worked(self, action: str) -> bool:
        """Return whether an action was answered before. What was permitted may be permitted again."""
        return action in self._worked

    @property
    def round_trip_seconds(self) -> float | None:
        """The mean time of the newest requests that did not wait for messages; None: none was answered yet."""
        return self._round_trip

    def counts(self) -> CallCounts:
        """Return the counters."""
        with self._lock:
            return CallCounts(
                dict(self._requests), dict(self._entries), dict(self._failures), self._others["empty_polls"],
                self._others["renewals"], self._others["late_deletes"], self._round_trip,
            )  # fmt: skip

    def close(self) -> None:
        """Close the client's connections. Does nothing for one that cannot be closed."""
        close = getattr(self.client, "close", None)
        if close is not None:
            close()
