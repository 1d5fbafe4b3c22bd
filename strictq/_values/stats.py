"""The values returned by `Queue.stats`:

counts of a queue and of its shards. `_store/shard/reporting.py` and `_store/whole/reports.py` fill them.
"""

from __future__ import annotations

import warnings

import attrs

from .views import Report


@attrs.frozen(kw_only=True)
class QueueCounts(Report):
    """What is counted of a shard, and of a queue as the sum over its shards.

    Each message is counted in exactly one of ready, in_flight, delayed and held. Messages behind the head of a lane in
    flight count as ready; messages behind a delayed or held head count as delayed or held.

    Totals, such as `sends`, count since the queue was created. `claims` and `empty_receives` count the attempts of receives to
    claim from this shard that found messages, or none. `dead_letters` counts messages that became one, `rejected` the rejected
    ones of them, `redriven` the dead letters that were redriven. These three count since the first version that has them.
    `redeliveries` counts messages whose lease expired. `recorded_batch_bytes` is the size of the batches kept for named
    consumers, which is part of disk_bytes.

    `oldest_age_seconds` is the age of the oldest head of a lane, `first_attempt_age_seconds` that of the oldest message
    without an attempt, at any position in its lane. If the 1,000 oldest messages all had one, it is an upper bound.
    """

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
    recorded_batch_bytes: int

    @property
    def handout_bytes(self) -> int:
        """`recorded_batch_bytes` under its old name, which goes with the next version."""
        warnings.warn("handout_bytes is now named recorded_batch_bytes", DeprecationWarning, stacklevel=2)
        return self.recorded_batch_bytes

    @property
    def depth(self) -> int:
        """The number of unresolved messages."""
        return self.ready + self.in_flight + self.delayed + self.held


@attrs.frozen(kw_only=True)
class ShardStats(QueueCounts):
    """Counts of one shard, from one consistent read. See QueueCounts.

    `hash_lo` and `hash_hi` are the first and last hash of the shard's range, 16 hex digits each. `quarantined` is why the shard
    is unavailable; None: it is available.
    """

    shard: int
    hash_lo: str
    hash_hi: str
    quarantined: str | None = None


@attrs.frozen
class DurationEstimate(Report):
    """The learned duration of one stage: an exponentially weighted regression of seconds on size.

    The estimate for a message is mean_seconds + slope * (size - mean_size), never less than 0.

    Attributes:
        samples: number of durations learned; 0: nothing was learned, and the other fields are 0.
        mean_seconds, mean_size: weighted means of about the last hundred. A size is the size_hint, or the body's bytes.
        slope: seconds per unit of size.
        deviation: mean absolute error of the estimates, seconds.
    """

    samples: int = 0
    mean_seconds: float = 0.0
    mean_size: float = 0.0
    slope: float = 0.0
    deviation: float = 0.0


@attrs.frozen
class OpenBreaker(Report):
    """An open circuit breaker: the worker starts no handlers of a group, or none at all, because most failed. See Breaker.

    Attributes:
        consumer: the worker's consumer name, as shown by `explain`.
        since: time at which it opened, seconds since 1970.
        failures, ends: number of handlers that failed, and that ended, in its window when it opened.
        error: the newest failure, as text.
        probes: number of probes that failed since.
        group: the group of keys that waits; None: all of the worker's messages wait.
    """

    consumer: str
    since: float
    failures: int
    ends: int
    error: str
    probes: int = 0
    group: str | None = None


@attrs.frozen
class WorkerLoad(Report):
    """The load of a worker in any process, reported from some seconds after its start until its end.

    Attributes:
        consumer: the worker's consumer name, as shown by `explain`.
        since: time of its start, seconds since 1970.
        concurrency: most handlers that it runs at once.
        running: number of handlers running at the last report.
        busy_ratio: fraction of its slots that ran handlers in the last seconds, 0 to 1.
    """

    consumer: str
    since: float
    concurrency: int
    running: int
    busy_ratio: float


@attrs.frozen
class TenantDepth(Report):
    """The unresolved messages of a tenant.

    Attributes:
        tenant: its name; empty: that of all keys without a separator.
        depth: their number.
    """

    tenant: str
    depth: int


@attrs.frozen
class ReplicaProof(Report):
    """What a replica knows of whether it can be promoted. It regularly promotes a copy of itself, checks it and removes it.

    Attributes:
        at: when the last promotion of a copy succeeded, seconds since 1970; None: never yet.
        segment: the number of the last segment that the copy had; None: `at` is None.
        state_at: the time of that segment's state, seconds since 1970; None: `at` is None.
        seconds: how long it took; None: `at` is None.
        error: why a later one failed; None: none did.
    """

    at: float | None = None
    segment: int | None = None
    state_at: float | None = None
    seconds: float | None = None
    error: str | None = None


@attrs.frozen
class ReplicationStatus(Report):
    """The state of a queue's replication.

    Attributes:
        mode: "async"; "confirmed"; "fenced": its replica was promoted; "off" after `Queue.detach`; "replica": this queue is a
            living replica, opened read-only.
        target: the target of shipping, or the last one if the queue is fenced; "" if mode is "off".
        history_id: identifier of this line of changes. A restored queue has a new one.
        term: the term of this history.
        shipping: a process holds the shipper's lock. For a replica: a process receives for it.
        lag_bytes: bytes in the WALs that are not at the target.
        lag_seconds: age of the newest state at the target; 0 if lag_bytes is 0; None: nothing was shipped yet. For a replica:
            seconds since the last contact with its primary, which sends a heartbeat every two seconds.
        confirmed_at: time of that state, seconds since 1970; None: nothing was shipped yet.
        segment: number of the newest segment; None: nothing was shipped yet.
        last_error: the error of the last attempt to ship; None: it succeeded.
        stopped: shipping ended because of last_error, until it is configured again.
        lapsed: the target was unreachable for so long that the WAL is no longer kept for it. Whole shards are shipped
            when it is reachable again.
        write_once: when it was configured, the target refused to overwrite an existing name. Otherwise, two copies of
            the queue that ship there at the same time are detected later, not at once.
        proof: for a replica: when it last proved that it can be promoted. None: this is not a replica.
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
    proof: ReplicaProof | None = None


@attrs.frozen(kw_only=True)
class Stats(QueueCounts):
    """Counts of a queue: the sum over its shards, and each shard's own. See QueueCounts for what each one means.

    `prepare` and `process` are the durations that workers learned. A busy worker stores them with the queue once a
    minute and when it ends. `breakers` are the open circuit breakers of workers in all processes, the oldest first. `workers`
    has the load of the workers of all processes, and `busy_ratio` is the fraction of their slots that ran handlers in the last
    seconds; None: no worker reports. `empty_receive_ratio` is the fraction of claim attempts that found nothing; each second
    of waiting counts as one such attempt.
    `replication` is the state of replication; None: the queue was never replicated.
    `paused` is whether the queue is paused, and `paused_types` has the handler types that are.
    `tenants` has the 100 deepest tenants, and `other_tenants` is the number of unresolved messages of all others.
    `sidelined_before` is the time before which messages were sent that are sidelined, seconds since 1970; None: none are.
    """

    empty_receive_ratio: float
    shards: tuple[ShardStats, ...]
    prepare: DurationEstimate = DurationEstimate()
    process: DurationEstimate = DurationEstimate()
    breakers: tuple[OpenBreaker, ...] = ()
    workers: tuple[WorkerLoad, ...] = ()
    busy_ratio: float | None = None
    replication: ReplicationStatus | None = None
    paused: bool = False
    paused_types: tuple[str, ...] = ()
    sidelined_before: float | None = None
    tenants: tuple[TenantDepth, ...] = ()
    other_tenants: int = 0
