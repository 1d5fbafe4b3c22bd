"""strictq: a durable message queue with strict order per key, on sharded SQLite files, with no server.

import strictq

with strictq.open("orders.strictq") as q:
    q.send(b"paid", key="order-17")
    with q.receive() as batch:
        for d in batch:
            with d:
                print(d.key, d.seq, d.body)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._client.effects import PendingReceipt
from ._platform.clock import Clock, SystemClock
from ._platform.observe import Observation, Observer
from ._values.config import QueueConfig
from ._values.errors import (
    ConfigError,
    ConsumerBusy,
    ConsumerLost,
    Diverged,
    ExportError,
    Fenced,
    ForkedProcess,
    ForwardPending,
    InvalidArgument,
    InvalidBody,
    LeaseLost,
    MessageTooLarge,
    MissingExtra,
    MoveBlocked,
    MoveInProgress,
    NotConfirmed,
    NotElected,
    OutcomeUnknown,
    PartialFailure,
    PrimaryAlive,
    QueueClosed,
    QueueFull,
    QueueNotFound,
    ReadOnlyQueue,
    RecordedBatchGone,
    ReplicaGap,
    SchemaMismatch,
    ServerRefused,
    ServerUnreachable,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
    TargetUnavailable,
    Throttled,
    UnknownMessage,
)
from ._values.stats import (
    DurationEstimate,
    OpenBreaker,
    ReplicaProof,
    ReplicationStatus,
    ShardStats,
    Stats,
    TenantDepth,
    WorkerLoad,
)
from ._values.tenants import TenantLimit
from ._values.types import CONTENT_HASH, Event, Message, Receipt
from .delivery import Batch, Delivery, Lease
from .handle import DeliveryRef
from .opening import migrate, open_async, salvage
from .opening import open as open
from .queue import Queue
from .transaction import Transaction

if TYPE_CHECKING:
    from ._values.findings import (
        Adopted,
        Advice,
        AppRowsDiffer,
        AttemptError,
        BackedUp,
        ChainMember,
        ConsumersNeeded,
        ConsumerStatus,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        KeyStateDiffers,
        LaneLease,
        LostRange,
        Members,
        Merged,
        MergedSend,
        MessageName,
        MessageStatus,
        Migration,
        Move,
        Moved,
        PeekedMessage,
        Problem,
        Progress,
        Promoted,
        QueryReport,
        ReplicaReport,
        Restored,
        Salvaged,
        ShardRange,
        TenantStatus,
        Topology,
        WorkerEvent,
    )
    from .aio import AsyncBatch, AsyncConsumer, AsyncDelivery, AsyncDeliveryRef, AsyncLease, AsyncQueue, AsyncTransaction
    from .app import App
    from .consumer import Consumer
    from .forwarding import Forwarder, ForwarderStats
    from .relaying import relay
    from .remote.aio import AsyncRemoteQueue, connect_async
    from .remote.queue import RedrivePolicy, RemoteQueue, RemoteStats, connect
    from .remote.sending import RemoteReceipt
    from .replication.adopting import adopt
    from .replication.members import members
    from .replication.merging_histories import merge
    from .replication.promoting import promote
    from .replication.replica import Replica
    from .replication.restoring import restore
    from .worker import Breaker, Defer, Job, Reject, Retry, Worker, WorkerStats

# `open` is left out: `from strictq import *` must not hide the built-in.
__all__ = [
    "CONTENT_HASH",
    "Adopted",
    "Advice",
    "App",
    "AppRowsDiffer",
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncDeliveryRef",
    "AsyncLease",
    "AsyncQueue",
    "AsyncRemoteQueue",
    "AsyncTransaction",
    "AttemptError",
    "BackedUp",
    "Batch",
    "Breaker",
    "ChainMember",
    "Clock",
    "ConfigError",
    "Consumer",
    "ConsumerBusy",
    "ConsumerLost",
    "ConsumerStatus",
    "ConsumersNeeded",
    "DeadLetter",
    "Defer",
    "Delivery",
    "DeliveryRef",
    "Diverged",
    "DurationEstimate",
    "Event",
    "Explanation",
    "ExportError",
    "Fenced",
    "ForkedProcess",
    "ForwardPending",
    "Forwarder",
    "ForwarderStats",
    "HistoryRecord",
    "InvalidArgument",
    "InvalidBody",
    "Job",
    "KeyDepth",
    "KeyStateDiffers",
    "LaneLease",
    "Lease",
    "LeaseLost",
    "LostRange",
    "Members",
    "Merged",
    "MergedSend",
    "Message",
    "MessageName",
    "MessageStatus",
    "MessageTooLarge",
    "Migration",
    "MissingExtra",
    "Move",
    "MoveBlocked",
    "MoveInProgress",
    "Moved",
    "NotConfirmed",
    "NotElected",
    "Observation",
    "Observer",
    "OpenBreaker",
    "OutcomeUnknown",
    "PartialFailure",
    "PeekedMessage",
    "PendingReceipt",
    "PrimaryAlive",
    "Problem",
    "Progress",
    "Promoted",
    "QueryReport",
    "Queue",
    "QueueClosed",
    "QueueConfig",
    "QueueFull",
    "QueueNotFound",
    "ReadOnlyQueue",
    "Receipt",
    "RecordedBatchGone",
    "RedrivePolicy",
    "Reject",
    "RemoteQueue",
    "RemoteReceipt",
    "RemoteStats",
    "Replica",
    "ReplicaGap",
    "ReplicaProof",
    "ReplicaReport",
    "ReplicationStatus",
    "Restored",
    "Retry",
    "Salvaged",
    "SchemaMismatch",
    "ServerRefused",
    "ServerUnreachable",
    "ShardRange",
    "ShardStats",
    "Stats",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StrictqError",
    "SystemClock",
    "TargetUnavailable",
    "TenantDepth",
    "TenantLimit",
    "TenantStatus",
    "Throttled",
    "Topology",
    "Transaction",
    "UnknownMessage",
    "Worker",
    "WorkerEvent",
    "WorkerLoad",
    "WorkerStats",
    "__version__",
    "adopt",
    "connect",
    "connect_async",
    "members",
    "merge",
    "migrate",
    "open_async",
    "promote",
    "relay",
    "restore",
    "salvage",
]


# Module → names imported on first use: few programs need them, or they take longer to import than the rest together.
_LATE = {
    "_values.findings": (
        "Adopted", "Advice", "AppRowsDiffer", "AttemptError", "BackedUp", "ChainMember", "ConsumersNeeded", "ConsumerStatus",
        "DeadLetter", "Explanation", "HistoryRecord", "KeyDepth", "KeyStateDiffers", "LaneLease", "LostRange", "Members",
        "Merged", "MergedSend", "MessageName", "MessageStatus", "Migration", "Move", "Moved", "PeekedMessage", "Problem",
        "Progress", "Promoted", "QueryReport", "ReplicaReport", "Restored", "Salvaged", "ShardRange", "TenantStatus",
        "Topology", "WorkerEvent",
    ),
    "aio": ("AsyncBatch", "AsyncConsumer", "AsyncDelivery", "AsyncDeliveryRef", "AsyncLease", "AsyncQueue", "AsyncTransaction"),
    "app": ("App",),
    "consumer": ("Consumer",),
    "forwarding": ("Forwarder", "ForwarderStats"),
    "relaying": ("relay",),
    "remote.aio": ("AsyncRemoteQueue", "connect_async"),
    "remote.queue": ("RedrivePolicy", "RemoteQueue", "RemoteStats", "connect"),
    "remote.sending": ("RemoteReceipt",),
    "replication.adopting": ("adopt",),
    "replication.members": ("members",),
    "replication.merging_histories": ("merge",),
    "replication.promoting": ("promote",),
    "replication.replica": ("Replica",),
    "replication.restoring": ("restore",),
    "worker": ("Breaker", "Defer", "Job", "Reject", "Retry", "Worker", "WorkerStats"),
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("strictq")
    if name == "HandoutGone":  # the old name, which goes with the next version
        import warnings

        warnings.warn("HandoutGone is now named RecordedBatchGone", DeprecationWarning, stacklevel=2)
        return RecordedBatchGone
    for module, names in _LATE.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
