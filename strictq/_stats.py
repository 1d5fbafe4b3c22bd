"""What `Queue.stats` returns: counts of a queue and of its shards. `_store/lanes/inspect.py` and `_store/survey.py` fill them."""

from __future__ import annotations

import attrs

from ._views import Report


@attrs.frozen
class ShardStats(Report):
    """Counts of one shard, from one consistent read.

    Messages are counted in exactly one of ready, in_flight, delayed and held; those behind the head of a lane that is in
    flight count as ready, those behind a delayed or held head as delayed or held. Totals (`sends` …) count since the
    queue was created; `claims` and `empty_receives` count looks of receives at this shard that found something, or nothing;
    `dead_letters` messages that became one, `rejected` those of them that were rejected, `redriven` dead letters that were put
    back: all three since a version that counts them; `redeliveries` messages whose lease ran out; `handout_bytes` is what
    hand-outs to named consumers keep (within disk_bytes).
    `oldest_age_seconds` is the age of the oldest head of a lane, `first_attempt_age_seconds` that of the oldest message
    without an attempt, wherever in its lane. Ages are exact up to 10,000 lanes in a state, and a lower bound beyond.

    `hash_lo` and `hash_hi` are the first and the last hash of the keys that the shard holds, 16 hex digits each.
    """

    shard: int
    hash_lo: str
    hash_hi: str
    ready: int
    in_flight: int
    delayed: int
    held: int
    dead: int
    lanes: int
    oldest_age_seconds: float | None
    first_attempt_age_seconds: float | None
    sends: int
    receives: int
    claims: int
    empty_receives: int
    acks: int
    retries: int
    redeliveries: int
    expired: int
    dropped: int
    purged: int
    dead_letters: int
    rejected: int
    redriven: int
    outbox: int
    drain_seconds: float | None
    disk_bytes: int
    wal_bytes: int
    handout_bytes: int
    quarantined: str | None = None

    @property
    def depth(self) -> int:
        """Unresolved messages."""
        return self.ready + self.in_flight + self.delayed + self.held


@attrs.frozen
class DurationEstimate(Report):
    """What workers learned of how long one stage takes: an exponentially weighted regression of seconds on size.

    A message of some size is expected to take mean_seconds + slope * (size - mean_size), never less than 0.

    Attributes:
        samples: durations learned from; 0: nothing is known, and the rest is 0.
        mean_seconds, mean_size: of about the last hundred; a size is a message's size_hint, or its body's bytes.
        slope: seconds per unit of size.
        deviation: mean distance from what was expected, seconds.
    """

    samples: int = 0
    mean_seconds: float = 0.0
    mean_size: float = 0.0
    slope: float = 0.0
    deviation: float = 0.0


@attrs.frozen
class OpenBreaker(Report):
    """A worker's circuit breaker that is open: the worker starts no handlers, because most of them failed. See Breaker.

    Attributes:
        consumer: the worker's, as `explain` shows it.
        since: when it opened, seconds since 1970.
        failures, ends: of so many handlers that ended in its window then, so many failed.
        error: the newest failure.
        probes: tries that failed since.
    """

    consumer: str
    since: float
    failures: int
    ends: int
    error: str
    probes: int = 0


@attrs.frozen
class WorkerLoad(Report):
    """How busy a worker is, in whatever process. It is reported some seconds after the worker began, and no more when it ends.

    Attributes:
        consumer: the worker's, as `explain` shows it.
        since: when it began, seconds since 1970.
        concurrency: handlers that it may run at once.
        running: of these, how many ran when it was last looked at.
        busy_ratio: the part of the last seconds in which they ran, 0 to 1.
    """

    consumer: str
    since: float
    concurrency: int
    running: int
    busy_ratio: float


@attrs.frozen
class ReplicationStatus(Report):
    """How far the replica of a queue is.

    Attributes:
        mode: "async"; "confirmed"; "fenced": its replica was promoted; "off" after `Queue.detach`; "replica": this is a look at a
            living replica.
        target: where the queue ships to, or shipped to until it was fenced; "" where mode is "off".
        history_id: names this line of changes. A restored queue has another one than its original.
        term: of this history.
        shipping: a process holds the lock of the shipper; of a replica: a process receives for it.
        lag_bytes: what WALs hold that is not at the target.
        lag_seconds: the age of the newest state at the target; 0 where lag_bytes is. None: nothing was shipped yet. Of a replica:
            when it last heard of its primary, which shows itself every two seconds.
        confirmed_at: when that state was, seconds since 1970; None: nothing was shipped yet.
        segment: the number of the newest segment; None: nothing was shipped yet.
        last_error: why the last attempt to ship failed; None: it did not.
        stopped: shipping ended, because of last_error, until it is configured again.
        lapsed: the target was out of reach for so long that the WAL is not kept for it any more. What it lacks is shipped as
            whole shards when it is back.
        write_once: when it was configured, the target refused to write a name that was taken. Where it does not, two copies of
            the queue that ship there at the same moment are found out later, and not at once.
    """

    mode: str
    target: str
    history_id: str
    term: int
    shipping: bool
    lag_seconds: float | None
    lag_bytes: int
    confirmed_at: float | None
    segment: int | None
    last_error: str | None = None
    stopped: bool = False
    lapsed: bool = False
    write_once: bool = True


@attrs.frozen
class Stats(Report):
    """Counts of a queue: the sum over its shards, and each shard's own. See ShardStats for what each one means.

    `prepare` and `process` are what workers learned of durations, as it is stored with the queue: by a worker at work once a
    minute, and when it ends. `breakers` are the open circuit breakers of workers in all processes, the oldest first. `workers`
    says how busy the workers of all processes are, and `busy_ratio` the part of their slots that ran handlers in the last
    seconds; None: no worker reports. `empty_receive_ratio` is the part of looks that found nothing; a second of waiting counts
    as one such look.
    `replication` says how far the replica is; None: the queue was never replicated.
    """

    ready: int
    in_flight: int
    delayed: int
    held: int
    dead: int
    lanes: int
    oldest_age_seconds: float | None
    first_attempt_age_seconds: float | None
    empty_receive_ratio: float
    sends: int
    receives: int
    claims: int
    empty_receives: int
    acks: int
    retries: int
    redeliveries: int
    expired: int
    dropped: int
    purged: int
    dead_letters: int
    rejected: int
    redriven: int
    outbox: int
    drain_seconds: float | None
    disk_bytes: int
    wal_bytes: int
    handout_bytes: int
    shards: tuple[ShardStats, ...]
    prepare: DurationEstimate = DurationEstimate()
    process: DurationEstimate = DurationEstimate()
    breakers: tuple[OpenBreaker, ...] = ()
    workers: tuple[WorkerLoad, ...] = ()
    busy_ratio: float | None = None
    replication: ReplicationStatus | None = None

    @property
    def depth(self) -> int:
        """Unresolved messages."""
        return self.ready + self.in_flight + self.delayed + self.held
