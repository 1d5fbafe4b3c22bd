"""What looking for single things in a queue brings, and what a worker reports: plain, frozen, without behaviour of their own.

Each of these classes takes a third of a millisecond to make, and most programs need none of them: this module is imported where
one is made.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from ._keys import Key
from ._types import State, body_as_json
from ._views import Report


@attrs.frozen
class DeadLetter(Report):
    """A message that left its lane without an ack, kept for an operator.

    Attributes:
        kind: "rejected" (by a consumer), "poison" (out of attempts) or "expired".
        reason: the last error or the reason given.
        died_at: seconds since 1970.
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

    def json(self) -> Any:
        """The body, decoded as JSON."""
        return body_as_json(self.body, self.key, self.seq)


@attrs.frozen
class PeekedMessage(Report):
    """A message as it lies in its lane; looking at it changes nothing.

    Attributes:
        state: "ready", "in_flight", "delayed" or "held".
        due_at: seconds since 1970 before which it is not handed out, or None.
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
        """The body, decoded as JSON."""
        return body_as_json(self.body, self.key, self.seq)


@attrs.frozen
class HistoryRecord(Report):
    """How one message ended, kept where the queue's `history` setting asks for it.

    A message that died and was put back has a record of each of its ends.

    Attributes:
        shard, n: where the record lies; n ascends in the order of the ends within the shard, and is never reused.
        id: the message's arrival number.
        enqueued_at, first_attempt_at, done_at: seconds since 1970. first_attempt_at is when the first attempt that failed began,
            or the only attempt; None if no handler ever had it.
        attempts: starts of a handler, the last one included.
        prepare_seconds, process_seconds: what a worker measured for the last attempt, or None.
        size: of the body, bytes.
        size_hint: as sent.
        outcome: how it ended.
        body: where `history="bodies"` kept it, else None.
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


@attrs.frozen
class MessageStatus(Report):
    """Where one message is.

    Attributes:
        state: "ready", "in_flight", "delayed", "held" or "dead"; "resolved" for what is gone (acked, dropped, expired, purged).
        attempts: starts of a handler so far.
        consumer: who holds it, if it is in flight.
        until: seconds since 1970 at which that lease, or the delay, ends.
        last_error, last_output: what the last nack, reject or handler left.
    """

    key: Key
    seq: int
    state: State
    attempts: int = 0
    consumer: str | None = None
    until: float | None = None
    last_error: str | None = None
    last_output: str | None = None


@attrs.frozen
class Explanation(Report):
    """Why a key is, or is not, handed out now.

    Attributes:
        state: "ready", "in_flight", "delayed", "held" or "empty".
        text: one sentence for a person.
        head_seq: the next message to be resolved, or None.
        depth: unresolved messages of the key; dead: its dead letters.
        attempts: of the head.
        since, until: seconds since 1970, or None.
        by: the consumer that holds the lane, or the reason it was held for.
        solo: after a crash, handed out one message at a time until this range is resolved.
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
    """What the driver of a query last told of it: after every batch, about every ten seconds without one, and at its end.

    Attributes:
        name: as the program named the query; None: it did not.
        id: of the query, as in its checkpoint.
        state: "running"; "ended"; "failed" (see error); "gone": nobody told its end, and no process of it is left.
        batch: number of its newest batch; messages: in that; batch_seconds: what it took, from its trigger to its commit.
        messages_per_second: of the minute before `at`, or since the first batch of this run, if that is later.
        at: seconds since 1970 at which the driver told this.
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
    """A named consumer, whose hand-outs are recorded and stay leased until they are acked.

    Attributes:
        last: number of the newest hand-out; acked: up to here they are acked or released.
        open: hand-outs that are not; in_flight: their unresolved messages.
        since: seconds since 1970 at which the oldest open one was made, or None.
        kept: hand-outs that can be read, the open ones included; kept_bytes: of what they keep.
        active: a holder has the consumer now.
        lag: messages that it has yet to process, now: its own in flight, and all that are ready, for which others may compete.
        age_seconds: of the oldest of these; None: there are none.
        query: the last report of the query that it is, or was; None: there was none.
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
    """One of the deepest, or oldest, keys."""

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
        fixable: `check(fix=True)` can put it right without losing anything.
        fixed: it did.
    """

    shard: int
    rule: str
    detail: str
    fixable: bool = False
    fixed: bool = False


@attrs.frozen
class WorkerEvent(Report):
    """A change of a job's state, or of a breaker's, for `Worker(on_event=...)` and `Observer.worker_event`.

    They are called in the worker's threads, after the change.

    Attributes:
        kind: "leased", "preparing", "prepared", "processing", "acked", "retried", "deferred", "poison", "rejected", "lost",
            "timeout", "released". "poison" instead of "retried" where the message is out of attempts.
            "breaker_opened" and "breaker_closed" concern no message: key is None, and seq, token and attempt are 0.
        at: `time.monotonic()`.
        seconds: how long the handler took, where one came back.
        detail: error or reason, for a person.
        where: the line of the handler's code that raised the error, or "".
        max_attempts: the queue's; None: no limit.
        wait_seconds: of "retried" and "deferred": until the next try.
        error: of "retried", "poison" and "rejected": what the handler raised, or for Reject what it was raised from.
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
    """Seqs of a key that could not be read, or not be verified. Of the first, those that were not resolved are lost.

    Attributes:
        key: None: of a keyless message, or of a key that could not be read.
        first, last: both included; last is None where nobody knows how far it went.
    """

    shard: int
    key: Key | None
    first: int
    last: int | None


@attrs.frozen
class Salvaged(Report):
    """What `salvage` saved of a damaged queue, and what it could not.

    Attributes:
        messages, dead: unresolved messages and dead letters in the new queue.
        lost: where messages or dead letters may be missing; empty: none are.
        unverified: messages and dead letters that were saved from pages whose checksum is wrong, because SQLite reads the whole
            shard without complaint. What they say may have changed.
        notes: what else was damaged, or is doubtful; for a person.
    """

    messages: int
    dead: int
    lost: tuple[LostRange, ...]
    notes: tuple[str, ...]
    unverified: tuple[LostRange, ...] = ()


@attrs.frozen
class Migration(Report):
    """What `migrate` did, or would do.

    Attributes:
        before: the oldest format that a file of the queue had; format: the one that this strictq writes.
        files: how many files the queue has: queue.db and one for each shard; old: how many had an older format.
        needs_bytes: free space that the migration asks for.
        done: every file has the format now.
    """

    before: int
    format: int
    files: int
    old: int
    needs_bytes: int
    done: bool


@attrs.frozen
class ReplicaReport(Report):
    """What a target holds that a queue shipped to.

    Attributes:
        target: the directory.
        queue_id, history_id: whose replica it is.
        segments: how many there are, of all points and bases; stored_bytes: what they take on the disk.
        points: how many states of the queue can be restored.
        oldest_at, newest_at: when the first and the last of them was, seconds since 1970; None: there is none.
        newest: the number of the last one.
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


@attrs.frozen
class Restored(Report):
    """What `strictq.restore` made, or would make.

    Attributes:
        path: the new queue; in a dry run, where it would be.
        queue_id: as the original's.
        history_id: of the new queue, which is another one than the original's; None: it was a dry run.
        at: when the queue was in this state, seconds since 1970.
        segment: the number of the last segment of that state: restoring it by its number gives the same again.
        base: the number of the first segment that was read.
        segments: how many were read; stored_bytes: their size.
        waiting: the queue is to be put in service before it can be written to.
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
class Promoted(Report):
    """What `strictq.promote` made of a replica, or would make.

    Attributes:
        path: the queue. `strictq.open` takes the replica's directory for it, too.
        queue_id: as its primary's.
        history_id: of the queue, which is another one than its primary's; None: it was a dry run.
        term: that it is in; a primary of an earlier one is refused.
        at: when the primary was in this state, seconds since 1970; what it committed later is missing here.
        segment: the number of the last segment of that state.
        contact_at: when the primary was heard of last, seconds since 1970; None: never.
        silent_seconds: how long ago that was. What the primary committed meanwhile was not shipped.
        missing_segments: received of a later state that did not arrive whole, and is given up.
        alive: the primary was heard of so recently that it may live.
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
