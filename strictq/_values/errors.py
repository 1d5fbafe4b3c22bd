"""Every error strictq raises.

```
StrictqError                     .transient  .hint
├── InvalidArgument (ValueError)     an argument is invalid; nothing was changed
│   └── MessageTooLarge              the body exceeds QueueConfig.max_body_bytes; nothing was changed
├── ConfigError (ValueError)         the configuration is inconsistent, or differs from the stored one; nothing was changed
├── QueueNotFound                    there is no queue at that path
├── QueueClosed                      the queue object was closed; nothing was changed
├── ReadOnlyQueue                    the queue was opened with read_only=True; nothing was changed
├── LeaseLost                        the token is dead, or the message is resolved; nothing was changed
├── QueueFull                        a maximum depth is reached; nothing of it was changed
├── Throttled                        a tenant sends more than its send_rate; nothing of it was changed
├── UnknownMessage                   no message with that key and seq was ever sent
├── InvalidBody (ValueError)         json() of a message whose body is not JSON
├── ConsumerBusy                     another holder uses the named consumer; nothing was changed
├── ConsumerLost                     the named consumer was taken over or released; nothing was changed
├── RecordedBatchGone                the batch of a named consumer is no longer kept; nothing was changed
├── ServerUnreachable                a block server or an SQS endpoint did not answer; nothing was changed
├── ServerRefused                    a block server or an SQS endpoint refused the token or the credentials; nothing was changed
├── MoveInProgress                   another range of the queue's keys is moving; nothing was changed
├── MoveBlocked                      a range of keys can't move now; the lanes that have moved stay where they are
├── PartialFailure                   a call failed for some items or shards; .results has the outcome of each
├── ForwardPending                   committed; a send to another shard has not arrived there yet
├── MissingExtra (ImportError)       a package of an optional extra is not installed
├── ExportError                      an export cannot continue in its directory; no file was changed
├── ForkedProcess                    the queue object was inherited through a fork; nothing was changed
├── TargetUnavailable                the replication target cannot be read or written; the queue is unharmed
├── ReplicaGap                       segments of a replica are missing or damaged; nothing was changed
├── Diverged                         the target has data that this queue does not have; nothing was overwritten
├── Fenced                           the replica was promoted, or is in a later term; nothing was shipped or changed
├── PrimaryAlive                     the replica has received a recent sign of its primary; nothing was promoted
├── NotElected                       the members of a chain, or its decider, did not agree; nothing was changed
└── StoreError                       .shard  .cause
    ├── StoreBusy                    timed out waiting for the write lock; nothing was changed
    ├── StoreFull                    the disk is full; nothing was changed
    ├── StoreCorrupt                 the file is missing or damaged; the shard is quarantined
    ├── SchemaMismatch               the file was written by a newer strictq; nothing was changed
    └── OutcomeUnknown               the COMMIT, or a step after it, failed; it may have taken effect
        └── NotConfirmed             committed here, but the replica did not confirm it: a promotion may lose it
```
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from . import hints


class Picklable(BaseException):
    """An exception that survives pickling, as between the processes of a pool, whatever its constructor takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, unpickling calls the constructor with wrong arguments, which breaks the pool.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class StrictqError(Picklable, Exception):
    """Root of every error that strictq raises.

    Attributes:
        transient: True if the same call may succeed later without intervention.
        hint: what to do about the error, in one sentence.
        hint_code: a stable identifier of the hint; "" for a hint that strictq does not define.
    """

    transient: bool = False
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None, transient: bool | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
        if transient is not None:
            self.transient = transient

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def hint_code(self) -> str:
        return getattr(self.hint, "code", "")

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON values: type, message, hint, code (of the hint), transient, and the class's attributes."""
        from .views import error_dict

        return error_dict(self)


class InvalidArgument(StrictqError, ValueError):
    """An argument is invalid. Nothing was changed."""


class MessageTooLarge(InvalidArgument):
    """The body is larger than `QueueConfig.max_body_bytes`. Nothing was changed."""

    hint = hints.MESSAGE_TOO_LARGE


class ConfigError(StrictqError, ValueError):
    """The configuration is inconsistent, or differs from the stored one. Nothing was changed."""


class QueueNotFound(StrictqError):
    """There is no queue at that path, and this call may not create one."""

    hint = hints.QUEUE_NOT_FOUND


class QueueClosed(StrictqError):
    """The queue object was closed. Nothing was changed."""

    hint = hints.QUEUE_CLOSED


class ReadOnlyQueue(StrictqError):
    """The queue was opened with read_only=True. Nothing was changed."""

    hint = hints.READ_ONLY_QUEUE


class LeaseLost(StrictqError):
    """The lease now belongs to another holder, or the message is already resolved. Nothing was changed.

    Attributes:
        key: the lane's key (None for a keyless message).
        seq: the message's position in its key.
        token: the fencing token that was refused.
        lease_seconds: the length of the lease in seconds; None if this process does not know it.
        over_seconds: seconds since the lease expired, as far as this process knows; negative if it had not expired.
        holder: the consumer that holds the lane now; None if there is no other holder or it is unknown.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> _ = q.send(b"", key="k")
        >>> (d,) = q.receive()
        >>> d.lease.release()
        >>> try:
        ...     d.ack()
        ... except strictq.LeaseLost as e:
        ...     print(e.key, e.seq)
        k 1
    """

    hint = hints.LEASE_LOST

    def __init__(
        self, key: str | bytes | int | None, seq: int, token: int, why: str = "the lease was lost", *, hint: str | None = None
    ) -> None:
        super().__init__(f"{why}: key {key!r}, seq {seq}, token {token}", hint=hint)
        self.key = key
        self.seq = seq
        self.token = token
        self.lease_seconds: float | None = None
        self.over_seconds: float | None = None
        self.holder: str | None = None

    def explain(self, length: float | None, over: float | None, holder: str | None, *, given_back: bool = False) -> None:
        """Add the holder's knowledge of its lease.

        given_back: the lane was returned by a nack of an earlier message of the key.
        """
        self.lease_seconds, self.over_seconds, self.holder = length, over, holder
        parts = [str(self.args[0])]
        if given_back:
            parts.append("it was released together with an earlier message of its key")
        elif length is not None and over is not None and over >= 0:
            parts.append(f"its lease of {length:g} s expired {over:.1f} s ago")
            self.hint = hints.LEASE_OVER
        if holder is not None:
            parts.append(f"consumer {holder} holds the key now")
        self.args = ("; ".join(parts),)


class QueueFull(StrictqError):
    """The maximum depth of the queue, of a tenant or of a key is reached. Nothing of it was changed.

    Attributes:
        tenant: the name of the tenant whose `max_depth` is reached; None: another limit is.
        key: the key whose `QueueConfig.max_key_depth` is reached; None: another limit is.
        retry_after: an estimate of the seconds until there is room, from the rate of acks.
    """

    transient = True
    hint = hints.QUEUE_FULL

    def __init__(
        self, message: str, *, tenant: str | None = None, key: Any = None, retry_after: float = 1.0, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.tenant = tenant
        self.key = key
        self.retry_after = retry_after
        self._refused: Mapping[bytes, QueueFull] = {}
        """By stored key, why its messages are refused. Those of other keys in the call need not be. Empty: all are refused."""


class Throttled(StrictqError):
    """A tenant's `send_rate` is reached. Nothing of this tenant was changed.

    Attributes:
        tenant: its name.
        retry_after: seconds until as many messages may be sent.
    """

    transient = True
    hint = hints.THROTTLED

    def __init__(self, message: str, *, tenant: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.tenant = tenant
        self.retry_after = retry_after
        self._refused: Mapping[bytes, Throttled] = {}
        """As in QueueFull."""


Refusal = TypeVar("Refusal", QueueFull, Throttled)


def refusal_of(errors: Mapping[bytes, Refusal]) -> Refusal:
    """Return the error of a call of which only the messages of these stored keys must be refused, each for its own reason."""
    error = next(iter(errors.values()))
    error._refused = errors
    return error


def retry_after(error: BaseException) -> float | None:
    """Return after how many seconds a call may succeed that only limits refused. None: there is another reason."""
    if isinstance(error, QueueFull | Throttled):
        return error.retry_after
    if isinstance(error, PartialFailure):
        waits = [retry_after(one) for one in error.results if isinstance(one, BaseException)]
        return None if None in waits else min((one for one in waits if one is not None), default=None)
    return None


def refused_keys(error: QueueFull | Throttled) -> Mapping[bytes, QueueFull | Throttled]:
    """Return the stored keys whose messages are refused, with the reason. Empty: those of all keys of the call."""
    return error._refused


class UnknownMessage(StrictqError):
    """No message with that key and seq was ever sent."""


class InvalidBody(StrictqError, ValueError):
    """`json()` was called on a message whose body is not JSON. Nothing was changed.

    Attributes:
        key: the message's key; None for a keyless message.
        seq: its position in its key.
    """

    hint = hints.JSON_BODY

    def __init__(self, key: str | bytes | int | None, seq: int, why: str) -> None:
        super().__init__(f"the body of key {key!r}, seq {seq} is not JSON: {why}")
        self.key = key
        self.seq = seq


class ConsumerBusy(StrictqError):
    """Another holder uses the named consumer, which has one holder at a time. Nothing was changed."""

    transient = True
    hint = hints.CONSUMER_BUSY


class ConsumerLost(StrictqError):
    """Another holder took over the named consumer, or an operator released it. Nothing was changed."""

    hint = hints.CONSUMER_LOST


class RecordedBatchGone(StrictqError):
    """A named consumer's batch is no longer kept, was released, or belongs to another queue. Nothing was changed."""

    hint = hints.RECORDED_BATCH_GONE


class ServerUnreachable(StrictqError):
    """The block server of `strictq.spark.serve`, or the endpoint of a remote queue, did not answer. Nothing was changed.

    Attributes:
        address: host and port, or the file that should contain them; of a remote queue, its URL.
    """

    transient = True
    hint = hints.SERVER_UNREACHABLE

    def __init__(self, message: str, address: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class ServerRefused(StrictqError):
    """The block server refused the token, or another program answered at its address; or the endpoint of a remote queue refused
    the credentials or the request. Nothing was changed.

    Attributes:
        address: host and port; of a remote queue, its URL.
    """

    hint = hints.SERVER_REFUSED

    def __init__(self, message: str, address: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class MoveInProgress(StrictqError):
    """Another range of the queue's keys is moving: one at a time. Nothing was changed."""

    transient = True


class MoveBlocked(StrictqError):
    """A range of keys can't move now. The message says what holds it. The lanes that have moved stay where they are.

    It is also raised to the caller that moves a range, if another one has cancelled that. Then everything has come back.
    """


class PartialFailure(StrictqError):
    """A call over several items failed for some of them. What succeeded stays done.

    Attributes:
        results: one entry per item, in the order of the arguments: the call's result for the item (None if it has none), or
            the exception.
    """

    hint = hints.PARTIAL_FAILURE

    def __init__(self, message: str, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = list(results)
        errors = [r for r in self.results if isinstance(r, BaseException)]
        self.transient = bool(errors) and all(getattr(e, "transient", False) for e in errors)


class ForwardPending(StrictqError):
    """The transaction is committed, but some of its sends to other shards have not arrived there yet.

    A later call in any process, or the next open, forwards them.
    """

    hint = hints.FORWARD_PENDING


class ForkedProcess(StrictqError):
    """The queue object was inherited through a fork that strictq could not prepare for. Nothing was changed.

    Raised in a child process for in-memory queues, and after a fork that bypassed `os.register_at_fork`.
    """

    hint = hints.FORKED_PROCESS


class MissingExtra(StrictqError, ImportError):
    """A feature needs a package of an optional extra that is not installed. Nothing was changed.

    Attributes:
        package: the package that could not be imported.
        extra: the extra of strictq that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}", hint=hints.INSTALL_EXTRA.of(extra=extra))
        self.package = package
        self.extra = extra


class ExportError(StrictqError):
    """An export cannot continue in its directory. No file was changed, and nothing was deleted from the queue.

    Attributes:
        path: the directory, or the file in it that caused the error.
    """

    def __init__(self, message: str, path: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.path = path


class TargetUnavailable(StrictqError):
    """The directory or object store of a replica cannot be read or written, or does not answer.

    The queue itself is unharmed. The error is not transient if credentials are missing or refused.

    Attributes:
        target: the target's name.
    """

    transient = True
    hint = hints.TARGET_UNAVAILABLE

    def __init__(self, message: str, target: str, *, hint: str | None = None, transient: bool | None = None) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.target = target


class ReplicaGap(StrictqError):
    """Segments of a replica are missing or damaged. Nothing was changed.

    Attributes:
        segment: the number of the first missing or damaged segment.
    """

    hint = hints.REPLICA_GAP

    def __init__(self, message: str, segment: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.segment = segment


class Diverged(StrictqError):
    """The target holds another queue, another history, or newer writes than this queue. Nothing was overwritten."""

    hint = hints.DIVERGED


class Fenced(StrictqError):
    """The replica was promoted, or is in a later term of this history. Nothing was shipped.

    In confirmed mode every write of the old primary is refused with this error, and nothing is changed.

    Attributes:
        term: the replica's term.
    """

    hint = hints.FENCED

    def __init__(self, message: str, term: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.term = term


class PrimaryAlive(StrictqError):
    """The replica had contact with its primary a moment ago, so the primary may still accept messages. Nothing was promoted.

    Attributes:
        contact_at: time of the last contact, seconds since 1970.
    """

    transient = True
    hint = hints.PRIMARY_ALIVE

    def __init__(self, message: str, contact_at: float, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.contact_at = contact_at


class NotElected(StrictqError):
    """The members of a chain did not decide on a promotion or a change, or the decider refused it. Nothing was changed.

    A majority of the members must answer, and none of them may have more changes than the one to be promoted. Transient if too
    few members answered.
    """

    hint = hints.MAJORITY


class StoreError(StrictqError):
    """An operation on a shard's file failed.

    Attributes:
        shard: the shard's number; -1 for queue.db.
        cause: the underlying exception, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        shard: int,
        cause: BaseException | None = None,
        hint: str | None = None,
        transient: bool | None = None,
        file: str | None = None,
    ) -> None:
        where = str(file) if file else "queue.db" if shard < 0 else f"shard {shard}"
        super().__init__(f"{where}: {message}", hint=hint, transient=transient)
        self.shard = shard
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments, state = super().__reduce__()
        cause = self.cause
        if not isinstance(cause, Picklable | None) and type(cause).__module__ not in ("apsw", "builtins"):
            # A program's own exception need not survive pickling.
            state = {**state, "cause": RuntimeError(f"{type(cause).__name__}: {cause}")}
        return make, arguments, state


class StoreBusy(StoreError):
    """Timed out waiting for the shard's write lock. Nothing was changed."""

    transient = True
    hint = hints.STORE_BUSY


class StoreFull(StoreError):
    """The disk is full. Nothing was changed. Acks still work for a while: a reserve file is released for them."""

    transient = True
    hint = hints.STORE_FULL


class StoreCorrupt(StoreError):
    """The file is missing, damaged, or belongs to another queue. The shard is quarantined; the other shards keep working."""

    hint = hints.STORE_CORRUPT


class SchemaMismatch(StoreError):
    """The file was written by a newer strictq. Nothing was changed."""

    hint = hints.SCHEMA_MISMATCH


class OutcomeUnknown(StoreError):
    """The COMMIT, or a step after it, failed: the call may have taken effect, wholly or in part.

    After a failed COMMIT, the shard was closed and will be reopened.

    Repeat the call: an ack, nack or transaction under the same token succeeds if the first one did. Repeating a send is safe
    if it has a dedup_id.
    """

    transient = True
    hint = hints.OUTCOME_UNKNOWN


class NotConfirmed(OutcomeUnknown):
    """In confirmed mode: it is committed in this queue, but the replica did not confirm it in time.

    If the replica is promoted, it may be lost; otherwise it stays. A receive returned its leases. Repeat the call as after
    OutcomeUnknown: the repetition waits for the replica again. No shard was closed.
    """

    hint = hints.NOT_CONFIRMED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        StrictqError.__init__(self, message, hint=hint)
        self.shard = -1
        self.cause = None
