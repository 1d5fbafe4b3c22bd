"""Frozen values that queries about single messages, keys and consumers return, and that a worker reports.

Defining each of these classes takes a third of a millisecond, and most programs need none of them, so this module is imported
late.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from .keys import Key
from .types import State, body_as_json
from .views import Report


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
        dedup_id: as of a delivery.
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
    dedup_id: str | None = None

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
        dedup_id: as of a delivery.
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
    dedup_id: str | None = None

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
class Progress(Report):
    """How far a running handler is, as it reported with `job.progress`.

    Attributes:
        fraction: 0.0 to 1.0.
        text: what it works on; may be empty.
        at: seconds since 1970 at which the handler reported it.
    """

    fraction: float
    text: str
    at: float


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
        progress: what its running handler reported last with `job.progress`; None: no handler runs, or it reported nothing.
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
    progress: Progress | None = None


@attrs.frozen
class Explanation(Report):
    """Whether a key can be delivered now and, if not, why.

    Attributes:
        state: "ready", "in_flight", "delayed", "held", "paused" (otherwise ready, but the queue is paused),
            "throttled" (otherwise ready, but its tenant is paused or throttled) or "empty".
        text: the explanation, as one sentence.
        head_seq: the next message to be resolved, or None.
        depth: unresolved messages of the key; dead: its dead letters.
        attempts: starts of a handler of the head.
        since, until: seconds since 1970, or None.
        by: the consumer that holds the lane, or the reason it was held for.
        solo: whether the next message is delivered alone, because it may have killed its consumer.
        shard: number of the shard that holds the key.
        progress: what the running handler of the next message reported last; see MessageStatus.
    """

    key: Key
    state: Literal["ready", "in_flight", "delayed", "held", "paused", "throttled", "empty"]
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
    progress: Progress | None = None


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
class TenantStatus(Report):
    """A tenant: what it has in the queue, and the limits that apply to it.

    Attributes:
        tenant: its name; empty: that of all keys without a separator.
        depth: unresolved messages; keys: keys that have some.
        oldest_age_seconds: age of the oldest one; None: it has none.
        in_flight: keys that are leased.
        weight, max_depth, send_rate, receive_rate, burst, concurrency, target_age_seconds, paused: see TenantLimit.
        throttled_seconds: seconds after which its rate permits the next delivery; 0: now; None: not by itself, because it is
            paused.

    Source: docs/explanation/fairness.md
    """

    tenant: str
    depth: int
    keys: int
    oldest_age_seconds: float | None
    in_flight: int
    weight: float
    max_depth: int | None
    send_rate: float | None
    receive_rate: float | None
    burst: int | None
    concurrency: int | None
    target_age_seconds: float | None
    paused: bool
    throttled_seconds: float | None


@attrs.frozen
class ConsumersNeeded(Report):
    """How many consumers keep up with what arrives, and process the backlog in time.

    Attributes:
        consumers: so many, each with `concurrency` slots; live: so many are there.
        slots: messages that must be processed at the same time: arrivals_per_second * process_seconds / 0.8, and
            backlog * process_seconds / drain_seconds.
        concurrency: slots of a consumer: the mean of the live workers, or 8.
        arrivals_per_second: as measured just now.
        process_seconds: the mean duration of a message.
        backlog: unresolved messages that are ready or in flight; keys: keys with messages. More slots than keys are useless.
        shards: more consumers than shards repeat each other's work.
        drain_seconds: as passed.
        key, key_seconds: the key with most messages, and how long these take one after the other. No consumer
            can make that shorter.

    Source: docs/explanation/consumers.md
    """

    consumers: int
    live: int
    slots: float
    concurrency: int
    arrivals_per_second: float
    process_seconds: float
    backlog: int
    keys: int
    shards: int
    drain_seconds: float
    key: Key | None
    key_seconds: float


@attrs.frozen
class ConsumerStatus(Report):
    """A consumer: a running worker, a running loop that joined, or a named consumer, whose batches are recorded (a stream).

    The fields of streams are None for the others, and those of the others for streams.

    Attributes:
        kind: "worker", "loop" or "stream".
        in_flight: messages that it holds. Consumers with equal names hold them together.
        since: seconds since 1970 at which it started; of a stream, at which its oldest unacked batch was leased, or None.
        active: it runs; of a stream: a running process holds the consumer.
        last: number of a stream's newest batch; acked: number up to which its batches are acked or released.
        open: number of its unacked batches.
        kept: number of its batches that can be read again, including unacked ones; kept_bytes: their size.
        lag: messages that a stream has yet to process: its own in flight, and all ready ones, for which others may compete.
        age_seconds: age of the oldest of these; None if there are none.
        query: the last report of a stream's query, or None.
        host, pid: where it runs.
        slow: its loop has not turned for a second, so others receive messages of its shards meanwhile.
        affinity: "prefer", "own" or "none"; shards: the numbers of the shards that are its own.
        concurrency: most handlers that it runs at once; running: handlers running at its last report.
        busy_ratio: fraction of its slots that ran handlers in the last seconds.

    Source: docs/explanation/consumers.md
    """

    name: str
    last: int | None = None
    acked: int | None = None
    open: int | None = None
    in_flight: int = 0
    since: float | None = None
    kept: int | None = None
    kept_bytes: int | None = None
    active: bool = True
    lag: int | None = None
    age_seconds: float | None = None
    query: QueryReport | None = None
    kind: Literal["worker", "loop", "stream"] = "stream"
    host: str | None = None
    pid: int | None = None
    slow: bool | None = None
    affinity: str | None = None
    shards: tuple[int, ...] | None = None
    concurrency: int | None = None
    running: int | None = None
    busy_ratio: float | None = None


@attrs.frozen
class LaneLease(Report):
    """A lease of a key's lane that has not ended.

    Attributes:
        key: None: the lane is one of keyless messages.
        consumer: the consumer that holds it, as shown by `explain`.
        token: the lease's fencing token.
        first_seq: the first message that it still holds; messages: how many it still holds.
        since, until: seconds since 1970 at which it began, and at which it ends unless it is extended. `until` is None for a
            recorded batch of a stream, which does not end by itself.
        shard: number of the shard that holds the key.
    """

    key: Key | None
    consumer: str
    token: int
    first_seq: int
    messages: int
    since: float
    until: float | None
    shard: int


@attrs.frozen
class KeyDepth(Report):
    """A key with its number of messages and the age of the oldest.

    Attributes:
        state: "ready", "in_flight", "delayed", "held", "paused" or "throttled", as in an Explanation.
        reason: why it waits, such as the reason of a hold, or that its tenant is paused; None: no reason is known.
    """

    key: Key | None
    depth: int
    oldest_age_seconds: float
    state: Literal["ready", "in_flight", "delayed", "held", "paused", "throttled"]
    reason: str | None = None


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
            "breaker_opened", "breaker_closed", "worker_source_failed" and "worker_source_works" concern no message: key is None,
            and seq, token and attempt are 0.
        at: `time.monotonic()`; for a queue behind an endpoint, a clock that also counts the time in which the machine sleeps.
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
class BackedUp(Report):
    """The result of `backup`.

    Attributes:
        path: the copy's directory.
        queue_id: the same as the original's.
        history_id: the copy's history, which differs from the original's.
        at: the time of the copied state, seconds since 1970.
        copied_bytes: the size of the queue's databases in that state.
    """

    path: str
    queue_id: str
    history_id: str
    at: float
    copied_bytes: int


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
        copied_history_id: the history that the copy had before; None: none, because the original was never replicated.
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


@attrs.frozen
class ShardRange(Report):
    """What one shard owns and holds.

    Attributes:
        shard: its number.
        ranges: (first, last) hash of each of its ranges. Hashes have 64 bits.
        messages, lanes: what it holds now.
        write_share: its part of all messages that were ever sent to the queue's shards, 0 to 1.
        retired: it owns nothing.
    """

    shard: int
    ranges: tuple[tuple[int, int], ...]
    messages: int
    lanes: int
    write_share: float
    retired: bool


@attrs.frozen
class Move(Report):
    """A range of hashes that moves from one shard to another."""

    source: int
    target: int
    lo: int
    hi: int


@attrs.frozen
class Topology(Report):
    """The result of `Queue.topology`.

    Attributes:
        shards: by number.
        moving: the move that runs, or was left unfinished. None: there is none.
    """

    shards: tuple[ShardRange, ...]
    moving: Move | None


@attrs.frozen
class Moved(Report):
    """The result of a split, a merge, a move or an isolation.

    Attributes:
        lanes, messages: what moved. Dead letters are messages.
        seconds: how long it took.
        longest_pause: how long a lane could not be used at most, seconds.
    """

    lanes: int
    messages: int
    seconds: float
    longest_pause: float


@attrs.frozen
class Advice(Report):
    """One thing that `Queue.advise` suggests.

    Attributes:
        what: "split" or "isolate".
        shard: the shard that it concerns.
        key: the key to isolate; None for a split.
        why: one sentence.
    """

    what: str
    shard: int
    key: Key | None
    why: str
