"""Frozen values that queries about single messages, keys and consumers return, and that a worker reports.

Defining each of these classes takes a third of a millisecond, and most programs need none of them, so this module is imported
late.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from ._keys import Key
from ._types import State, body_as_json
from ._views import Report


@attrs.frozen
class AttemptError(Report):
    """The error of one failed attempt of a message.

    Attributes:
        attempt: number of the start of a handler, from 1.
        at: time of the report, or the end of an expired lease; seconds since 1970.
        error: the first 2,000 bytes of the reason.
        traceback: the last 4,000 bytes of the traceback; None: there was none.
    """

    attempt: int
    at: float
    error: str
    traceback: str | None = None


@attrs.frozen
class DeadLetter(Report):
    """A message that left its lane without an ack, kept for an operator.

    Attributes:
        kind: "rejected" (by a consumer), "poison" (out of attempts) or "expired".
        reason: the last error, or the reason of the reject.
        died_at: seconds since 1970.
        errors: the errors of its last five failed attempts, oldest first.
        output: the last output of its handler, or None.
    """

    key: Key | None
    seq: int
    id: int
    body: bytes
    headers: dict[str, str]
    kind: Literal["rejected", "poison", "expired"]
    reason: str | None
    attempts: int
    enqueued_at: float
    died_at: float
    errors: tuple[AttemptError, ...] = ()
    output: str | None = None

    def json(self) -> Any:
        """Return the body decoded as JSON."""
        return body_as_json(self.body, self.key, self.seq)


@attrs.frozen
class PeekedMessage(Report):
    """An unresolved message, read without leasing it.

    Attributes:
        state: "ready", "in_flight", "delayed" or "held".
        due_at: seconds since 1970 before which it is not delivered, or None.
        expires_at: seconds since 1970 at which it expires, or None.
    """

    key: Key | None
    seq: int
    id: int
    body: bytes
    headers: dict[str, str]
    state: State
    attempts: int
    enqueued_at: float
    due_at: float | None
    expires_at: float | None

    def json(self) -> Any:
        """Return the body decoded as JSON."""
        return body_as_json(self.body, self.key, self.seq)


@attrs.frozen
class HistoryRecord(Report):
    """The record of a finished message, if the queue's setting `history` keeps them.

    A message that became a dead letter and was redriven has a record of each outcome.

    Attributes:
        shard, n: the record's shard and number; n ascends in the order in which messages finished, and is never reused.
        id: the message's arrival number.
        enqueued_at, first_attempt_at, done_at: seconds since 1970. first_attempt_at is the start of the first failed attempt,
            or of the only attempt; None if no handler ever had the message.
        attempts: starts of a handler, including the last one.
        prepare_seconds, process_seconds: durations of the last attempt, measured by a worker; or None.
        size: the size of the body, bytes.
        size_hint: the sender's size hint, or None.
        outcome: how the message finished.
        body: the body, if `history="bodies"` kept it; otherwise None.
        errors: the errors of its last five failed attempts, oldest first.
        output: the last output of its handler, or None.
    """

    shard: int
    n: int
    key: Key | None
    seq: int
    id: int
    enqueued_at: float
    first_attempt_at: float | None
    done_at: float
    attempts: int
    prepare_seconds: float | None
    process_seconds: float | None
    size: int
    size_hint: float | None
    outcome: Literal["acked", "rejected", "poison", "expired", "dropped", "purged"]
    body: bytes | None
    errors: tuple[AttemptError, ...] = ()
    output: str | None = None


@attrs.frozen
class MessageStatus(Report):
    """The state of one message.

    Attributes:
        state: "ready", "in_flight", "delayed", "held" or "dead"; "resolved" if it was acked, dropped, expired or purged.
        attempts: starts of a handler so far.
        consumer: the consumer that holds it, if it is in flight.
        until: seconds since 1970 at which that lease, or the delay, ends.
        last_error, last_output: the reason and output of the last nack, defer, reject or handler.
        errors: the errors of its last five failed attempts, oldest first.
    """

    key: Key | None
    seq: int
    state: State
    attempts: int = 0
    consumer: str | None = None
    until: float | None = None
    last_error: str | None = None
    last_output: str | None = None
    errors: tuple[AttemptError, ...] = ()


@attrs.frozen
class Explanation(Report):
    """Whether a key can be delivered now and, if not, why.

    Attributes:
        state: "ready", "in_flight", "delayed", "held" or "empty".
        text: the explanation, as one sentence.
        head_seq: the next message to be resolved, or None.
        depth: unresolved messages of the key; dead: its dead letters.
        attempts: starts of a handler of the head.
        since, until: seconds since 1970, or None.
        by: the consumer that holds the lane, or the reason it was held for.
        solo: whether the next message is delivered alone, because it may have killed its consumer.
        shard: number of the shard that holds the key.
    """

    key: Key
    state: Literal["ready", "in_flight", "delayed", "held", "empty"]
    text: str
    head_seq: int | None
    depth: int
    dead: int
    attempts: int
    since: float | None
    until: float | None
    by: str | None
    token: int | None
    last_error: str | None
    solo: bool
    shard: int


@attrs.frozen
class QueryReport(Report):
    """The last report of a query's driver. It reports after every batch, about every ten seconds without one, and at the end.

    Attributes:
        name: the query's name, or None if it has none.
        id: the query's id, as in its checkpoint.
        state: "running"; "ended"; "failed" (see error); "gone": its process died without a report.
        batch: number of its newest batch; messages: messages in it; batch_seconds: its duration, from trigger to commit.
        messages_per_second: over the minute before `at`, or since the first batch of this run, if that is later.
        at: time of the report, seconds since 1970.
    """

    name: str | None
    id: str
    state: Literal["running", "ended", "failed", "gone"]
    batch: int
    messages: int
    batch_seconds: float
    messages_per_second: float
    at: float
    error: str | None = None


@attrs.frozen
class ConsumerStatus(Report):
    """A named consumer, whose batches are recorded and stay leased until they are acked.

    Attributes:
        last: number of the newest batch; acked: number up to which batches are acked or released.
        open: number of unacked batches; in_flight: their unresolved messages.
        since: seconds since 1970 at which the oldest unacked batch was leased, or None.
        kept: number of batches that can be read again, including unacked ones; kept_bytes: their size.
        active: a running process holds the consumer.
        lag: messages that it has yet to process: its own in flight, and all ready ones, for which other consumers may compete.
        age_seconds: age of the oldest of these; None if there are none.
        query: the last report of its query, or None.
    """

    name: str
    last: int
    acked: int
    open: int
    in_flight: int
    since: float | None
    kept: int
    kept_bytes: int
    active: bool
    lag: int = 0
    age_seconds: float | None = None
    query: QueryReport | None = None


@attrs.frozen
class KeyDepth(Report):
    """A key with its number of messages and the age of the oldest."""

    key: Key | None
    depth: int
    oldest_age_seconds: float
    state: State


@attrs.frozen
class Problem(Report):
    """One broken invariant that `check()` found.

    Attributes:
        shard: the shard's number; -1 for queue.db.
        rule: the invariant's short name; docs/explanation/storage.md lists them.
        detail: what was found.
        fixable: whether `check(fix=True)` can repair it without losing data.
        fixed: whether it was repaired.
    """

    shard: int
    rule: str
    detail: str
    fixable: bool = False
    fixed: bool = False


@attrs.frozen
class WorkerEvent(Report):
    """A change of a job's state, or of a breaker's, for `Worker(on_event=...)` and `Observer.worker_event`.

    Hooks are called in the worker's threads, after the change.

    Attributes:
        kind: "leased", "preparing", "prepared", "processing", "acked", "retried", "deferred", "poison", "rejected", "lost",
            "timeout", "released". "poison" replaces "retried" if the message is out of attempts.
            "breaker_opened" and "breaker_closed" concern no message: key is None, and seq, token and attempt are 0.
        at: `time.monotonic()`.
        seconds: duration of the handler, if one returned.
        detail: the error or reason, as text.
        where: the line of the handler's code that raised the error, or "".
        max_attempts: the queue's setting; None: no limit.
        wait_seconds: for "retried" and "deferred", seconds until the next attempt.
        error: for "retried", "poison" and "rejected", the exception of the handler, or the cause of a Reject.
    """

    kind: str
    key: Any
    seq: int
    token: int
    attempt: int
    at: float
    seconds: float | None = None
    detail: str = ""
    where: str = ""
    max_attempts: int | None = None
    wait_seconds: float | None = None
    error: BaseException | None = None


@attrs.frozen
class LostRange(Report):
    """A range of seqs of a key that could not be read, or not be verified. Unresolved messages that could not be read are lost.

    Attributes:
        key: None for keyless messages, and for a key that could not be read.
        first, last: both included; last is None if the end is unknown.
    """

    shard: int
    key: Key | None
    first: int
    last: int | None


@attrs.frozen
class Salvaged(Report):
    """The result of `salvage`.

    Attributes:
        messages, dead: unresolved messages and dead letters in the new queue.
        lost: ranges in which messages or dead letters may be missing; empty if none are.
        unverified: ranges in which messages were saved that are not certain. Their pages have a wrong checksum, but SQLite
            reads the whole shard without an error, so their contents may have changed. Or what became of them is lost, so
            they may have been acked.
        notes: other damage and doubts, as text.
    """

    messages: int
    dead: int
    lost: tuple[LostRange, ...]
    notes: tuple[str, ...]
    unverified: tuple[LostRange, ...] = ()


@attrs.frozen
class Migration(Report):
    """The result of `migrate`.

    Attributes:
        before: the oldest format of the queue's files; format: the format of this version.
        files: number of files, queue.db and one per shard; old: number of files with an older format.
        needs_bytes: free space that the migration needs.
        done: whether every file has the current format.
    """

    before: int
    format: int
    files: int
    old: int
    needs_bytes: int
    done: bool


@attrs.frozen
class ReplicaReport(Report):
    """The contents of a replication target.

    Attributes:
        target: the directory.
        queue_id, history_id: the queue and history that it is a replica of.
        segments: number of segments; stored_bytes: their size on disk.
        points: number of states that can be restored.
        oldest_at, newest_at: times of the first and the last state, seconds since 1970; None if there is none.
        newest: the number of the last state.
        missing: the number of a missing or damaged segment, without which the target's newest state can't be restored; None: it
            can be, according to the segments' headers.
    """

    target: str
    queue_id: str
    history_id: str
    segments: int
    stored_bytes: int
    points: int
    oldest_at: float | None
    newest_at: float | None
    newest: int | None
    missing: int | None = None


@attrs.frozen
class Restored(Report):
    """The result of `strictq.restore`.

    Attributes:
        path: the new queue's path, also in a dry run.
        queue_id: the id of the original.
        history_id: the new queue's history, which differs from the original's; None in a dry run.
        at: the time of the restored state, seconds since 1970.
        segment: the number of the state's last segment. Restoring by this number gives the same state.
        base: the number of the first segment that was read.
        segments: number of segments read; stored_bytes: their size.
        waiting: whether the queue must be put in service before it can be written to.
    """

    path: str
    queue_id: str
    history_id: str | None
    at: float
    segment: int
    base: int
    segments: int
    stored_bytes: int
    waiting: bool


@attrs.frozen
class ChainMember(Report):
    """One member of a chain.

    Attributes:
        address: the replica's address; None for the first primary, which does not listen.
        primary: whether it is the primary, from which all others get their changes.
        here: whether it is on this host.
        version: version of the membership that it stores; None: it did not answer, or stores none.
        error: the error if it did not answer, or None.
    """

    address: str | None
    primary: bool
    here: bool
    version: int | None
    error: str | None = None


@attrs.frozen
class Members(Report):
    """The members of a chain: see `strictq.members`.

    Attributes:
        path: the directory of the member on this host.
        version: version of the membership, incremented by each change and each promotion.
        term: the primary's term.
    """

    path: str
    queue_id: str
    version: int
    term: int
    members: tuple[ChainMember, ...]


@attrs.frozen
class MessageName(Report):
    """The identity of a message: its key, or None for a keyless one, and its seq."""

    key: Key | None
    seq: int


@attrs.frozen
class MergedSend(Report):
    """A send of the old queue that `strictq.merge` appended to the new one.

    Attributes:
        seq: its seq in the old queue; None: it was still in an outbox.
        new_seq: its seq in the new queue; None in a dry run.
        duplicate: whether the new queue already had a message with its dedup id, which is the one with `new_seq`.
    """

    key: Key | None
    seq: int | None
    new_seq: int | None
    duplicate: bool


@attrs.frozen
class AppRowsDiffer(Report):
    """An app_* table whose rows differ between the two sides of a merge.

    Attributes:
        only_old, only_into: number of rows that only the old queue, or only the new one, has.
    """

    table: str
    shard: int
    only_old: int
    only_into: int


@attrs.frozen
class KeyStateDiffers(Report):
    """A key whose state differs between the two sides of a merge.

    Attributes:
        in_old, in_into: whether the old queue, and the new one, have a state of the key.
    """

    key: Key | None
    in_old: bool
    in_into: bool


@attrs.frozen
class Merged(Report):
    """The result of `strictq.merge`.

    Attributes:
        old, into: the directories of both queues.
        history_id, term: the old queue's history and term.
        dry_run: whether it was a dry run, which changes nothing.
        sent: sends that were appended to the new queue.
        earlier: number of sends that an earlier merge appended.
        acked: messages resolved in the old queue, and now in the new one, too. In a dry run, also those that
            would be skipped because a consumer of the new queue holds them.
        leased: messages resolved in the old queue that a consumer of the new queue holds now. They were not changed.
        twice: messages resolved on both sides after the fork, and those in `leased`; they were probably processed
            twice. Excludes keyless messages. None: unknown, because too many messages were unresolved at the fork.
        dead: dead letters from after the fork that only the old queue has. They stay there.
        key_states: keys whose states differ. app_rows: tables whose rows differ. Neither is merged.
    """

    old: str
    into: str
    history_id: str
    term: int
    dry_run: bool
    sent: tuple[MergedSend, ...]
    earlier: int
    acked: tuple[MessageName, ...]
    leased: tuple[MessageName, ...]
    twice: tuple[MessageName, ...] | None
    dead: tuple[MessageName, ...]
    key_states: tuple[KeyStateDiffers, ...]
    app_rows: tuple[AppRowsDiffer, ...]


@attrs.frozen
class Adopted(Report):
    """The result of `strictq.adopt`.

    Attributes:
        path: the directory of the copy.
        queue_id: the same as the original's.
        history_id: the copy's new history.
        copied_history_id: the history that it shared with its original; None: the original was never replicated.
    """

    path: str
    queue_id: str
    history_id: str
    copied_history_id: str | None


@attrs.frozen
class Promoted(Report):
    """The result of `strictq.promote`.

    Attributes:
        path: the queue's path. `strictq.open` also accepts the replica's directory.
        queue_id: the same as its primary's.
        history_id: the queue's new history; None in a dry run.
        term: the queue's term. A primary of an earlier term is refused.
        at: time of the promoted state, seconds since 1970. Later commits of the primary are missing.
        segment: number of the last segment of that state.
        contact_at: time of the last contact with the primary, seconds since 1970; None: there was none.
        silent_seconds: seconds since that contact. Commits of the primary in this time were not shipped.
        missing_segments: number of received segments of a later, incomplete state, which is discarded.
        alive: whether the last contact is so recent that the primary may still run.
        confirmed: whether the primary was in confirmed mode at the last contact. If so, this state has every call that
            returned there.
    """

    path: str
    queue_id: str
    history_id: str | None
    term: int
    at: float
    segment: int
    contact_at: float | None
    silent_seconds: float | None
    missing_segments: int
    alive: bool
    confirmed: bool
