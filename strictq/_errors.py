"""Every error strictq raises.

```
StrictqError                     .transient  .hint
├── InvalidArgument (ValueError)     an argument that can never work; nothing changed
│   └── MessageTooLarge              the body is over QueueConfig.max_body_bytes
├── ConfigError (ValueError)         configuration contradicts itself, or what is stored
├── QueueNotFound                    no queue at that path
├── QueueClosed                      this object was closed
├── ReadOnlyQueue                    opened with read_only=True
├── LeaseLost                        the token is dead, or the message is resolved; nothing changed
├── QueueFull                        QueueConfig.max_depth is reached; nothing changed
├── UnknownMessage                   that (key, seq) was never sent
├── InvalidBody (ValueError)         json() of a message whose body is not JSON
├── ConsumerBusy                     another holder has the named consumer; nothing changed
├── ConsumerLost                     the named consumer was taken over or released; nothing changed
├── HandoutGone                      that hand-out can't be served; nothing changed
├── ServerUnreachable                a block server did not answer; nothing changed
├── ServerRefused                    a block server refused its client, or is not the one that was meant; nothing changed
├── PartialFailure                   a call over several items or shards: .results says which took effect
├── ForwardPending                   committed; a send to another shard has yet to arrive there
├── MissingExtra (ImportError)       something optional is not installed
├── ExportError                      an export's directory is not as it must be; no file was changed
├── ForkedProcess                    the queue came through a fork that it could not prepare for
├── TargetUnavailable                where a queue ships to, or is restored from, can't be read or written; nothing was lost
├── ReplicaGap                       segments are missing or damaged; nothing was changed
├── Diverged                         the target has what this queue does not have; nothing was overwritten
└── StoreError                       .shard  .cause
    ├── StoreBusy                    the write lock was not had in time; nothing changed
    ├── StoreFull                    the disk is full; nothing changed
    ├── StoreCorrupt                 the file is damaged or not what it should be; it is quarantined
    ├── SchemaMismatch               written by a newer strictq
    └── OutcomeUnknown               the COMMIT itself failed: it may or may not have happened
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _hints as hints


class StrictqError(Exception):
    """Root of every error that strictq raises.

    Attributes:
        transient: the same call may succeed later without anybody changing anything.
        hint: what to do about it, one sentence.
        hint_code: names the hint, whatever its words are; "" of a hint that is not strictq's own.
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
        """Return it as values that JSON can hold: type, message, hint, code (of the hint), transient, and fields of its own."""
        from ._views import error_dict

        return error_dict(self)


class InvalidArgument(StrictqError, ValueError):
    """An argument that can never work. Nothing changed."""


class MessageTooLarge(InvalidArgument):
    """The body is larger than `QueueConfig.max_body_bytes`. Nothing changed."""

    hint = hints.MESSAGE_TOO_LARGE


class ConfigError(StrictqError, ValueError):
    """The configuration contradicts itself or what the queue has stored. Nothing changed."""


class QueueNotFound(StrictqError):
    """There is no queue at that path, and this call may not create one."""

    hint = hints.QUEUE_NOT_FOUND


class QueueClosed(StrictqError):
    """The queue object was closed. Nothing changed."""

    hint = hints.QUEUE_CLOSED


class ReadOnlyQueue(StrictqError):
    """The queue was opened with read_only=True. Nothing changed."""

    hint = hints.READ_ONLY_QUEUE


class LeaseLost(StrictqError):
    """The lease is no longer this holder's, or this message was resolved already. Nothing changed.

    Attributes:
        key: the lane's key (None for a keyless message).
        seq: the message's position in its key.
        token: the fencing token that was refused.
        lease_seconds: how long the lease was; None: not known here.
        over_seconds: how long ago it ended, as far as this process knows; negative: its time was not over.
        holder: the consumer that holds the lane now; None: no other one, or not known.
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
        """Add what the holder knew of its lease: see the attributes. given_back: with an earlier message of its key."""
        self.lease_seconds, self.over_seconds, self.holder = length, over, holder
        parts = [str(self.args[0])]
        if given_back:
            parts.append("it was given back together with an earlier message of its key")
        elif length is not None and over is not None and over >= 0:
            parts.append(f"its lease of {length:g} s has been over for {over:.1f} s")
            self.hint = hints.LEASE_OVER
        if holder is not None:
            parts.append(f"consumer {holder} holds the key now")
        self.args = ("; ".join(parts),)


class QueueFull(StrictqError):
    """`QueueConfig.max_depth` is reached. Nothing changed."""

    transient = True
    hint = hints.QUEUE_FULL


class UnknownMessage(StrictqError):
    """No message with that key and seq was ever sent."""


class InvalidBody(StrictqError, ValueError):
    """`json()` was called on a message whose body is not JSON. Nothing changed.

    Attributes:
        key: of the message; None for a keyless one.
        seq: its position in its key.
    """

    hint = hints.JSON_BODY

    def __init__(self, key: str | bytes | int | None, seq: int, why: str) -> None:
        super().__init__(f"the body of key {key!r}, seq {seq} is not JSON: {why}")
        self.key = key
        self.seq = seq


class ConsumerBusy(StrictqError):
    """A named consumer has one holder at a time, and another one has it now. Nothing changed."""

    transient = True
    hint = hints.CONSUMER_BUSY


class ConsumerLost(StrictqError):
    """The named consumer was taken over by another holder, or released by an operator. Nothing changed."""

    hint = hints.CONSUMER_LOST


class HandoutGone(StrictqError):
    """A hand-out can't be served: it is older than what is kept, was released, or is not of this queue. Nothing changed."""

    hint = hints.HANDOUT_GONE


class ServerUnreachable(StrictqError):
    """The block server of `strictq.spark.serve` did not answer, however often it was asked. Nothing changed.

    Attributes:
        address: host and port; or the file that was to say it.
    """

    transient = True
    hint = hints.SERVER_UNREACHABLE

    def __init__(self, message: str, address: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class ServerRefused(StrictqError):
    """The block server does not know the token, or whoever answered is not the block server. Nothing changed.

    Attributes:
        address: host and port.
    """

    hint = hints.SERVER_REFUSED

    def __init__(self, message: str, address: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.address = address


class PartialFailure(StrictqError):
    """A call over several items failed for some of them. What succeeded stays done.

    Attributes:
        results: one entry per item, in the order given: what the call returns for it (None where it returns nothing),
            or the exception that it met.
    """

    hint = hints.PARTIAL_FAILURE

    def __init__(self, message: str, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = list(results)
        errors = [r for r in self.results if isinstance(r, BaseException)]
        self.transient = bool(errors) and all(getattr(e, "transient", False) for e in errors)


class ForwardPending(StrictqError):
    """The transaction is committed; some of its sends to other shards have not arrived there yet, but will.

    They are forwarded by the next call that can, in this process or another, or at the next open.
    """

    hint = hints.FORWARD_PENDING


class ForkedProcess(StrictqError):
    """The queue was inherited through a fork that it could not prepare for. Nothing changed.

    Raised for in-memory queues in a child, and where a fork bypassed `os.register_at_fork`.
    """

    hint = hints.FORKED_PROCESS


class MissingExtra(StrictqError, ImportError):
    """An optional part of strictq was used whose packages are not installed. Nothing changed.

    Attributes:
        package: what could not be imported.
        extra: the extra of strictq that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}", hint=hints.INSTALL_EXTRA.of(extra=extra))
        self.package = package
        self.extra = extra


class ExportError(StrictqError):
    """An export can't go on in its directory. Files that are there stay as they are, and nothing is removed from the queue.

    Attributes:
        path: the directory, or the file in it that is in the way.
    """

    def __init__(self, message: str, path: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.path = path


class TargetUnavailable(StrictqError):
    """The directory or object store that a queue ships to, or is restored from, can't be read or written, or does not answer.

    The queue itself is unharmed. Not transient where credentials are missing or refused.

    Attributes:
        target: its name.
    """

    transient = True
    hint = hints.TARGET_UNAVAILABLE

    def __init__(self, message: str, target: str, *, hint: str | None = None, transient: bool | None = None) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.target = target


class ReplicaGap(StrictqError):
    """Segments of a replica are missing or damaged. Nothing was changed.

    Attributes:
        segment: the number of the first one.
    """

    hint = hints.REPLICA_GAP

    def __init__(self, message: str, segment: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.segment = segment


class Diverged(StrictqError):
    """The target holds what this queue does not have: another queue or history, or newer writes. Nothing was overwritten."""

    hint = hints.DIVERGED


class StoreError(StrictqError):
    """A shard's file could not do what was asked.

    Attributes:
        shard: the shard's number; -1 for queue.db.
        cause: the underlying exception, if there was one.
    """

    def __init__(
        self,
        message: str,
        *,
        shard: int,
        cause: BaseException | None = None,
        hint: str | None = None,
        transient: bool | None = None,
    ) -> None:
        where = "queue.db" if shard < 0 else f"shard {shard}"
        super().__init__(f"{where}: {message}", hint=hint, transient=transient)
        self.shard = shard
        self.cause = cause


class StoreBusy(StoreError):
    """The shard's write lock was not had in time. Nothing changed."""

    transient = True
    hint = hints.STORE_BUSY


class StoreFull(StoreError):
    """The disk is full. Nothing changed; acks still work for a while from a reserve kept for them."""

    transient = True
    hint = hints.STORE_FULL


class StoreCorrupt(StoreError):
    """The file is missing, damaged, or not this queue's. The shard is quarantined; the others go on."""

    hint = hints.STORE_CORRUPT


class SchemaMismatch(StoreError):
    """The file was written by a newer strictq. Nothing changed."""

    hint = hints.SCHEMA_MISMATCH


class OutcomeUnknown(StoreError):
    """The COMMIT failed in a way that leaves open whether it happened. The shard was closed and will be reopened.

    Repeat the call: an ack, nack or transaction under the same token succeeds if the first one did, and a send is safe to
    repeat where it carries a dedup_id.
    """

    transient = True
    hint = hints.OUTCOME_UNKNOWN
