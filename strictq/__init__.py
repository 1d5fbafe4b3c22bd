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

from ._clock import Clock, SystemClock
from ._config import QueueConfig
from ._effects import PendingReceipt
from ._errors import (
    ConfigError,
    ConsumerBusy,
    ConsumerLost,
    Diverged,
    ExportError,
    Fenced,
    ForkedProcess,
    ForwardPending,
    HandoutGone,
    InvalidArgument,
    InvalidBody,
    LeaseLost,
    MessageTooLarge,
    MissingExtra,
    NotConfirmed,
    NotElected,
    OutcomeUnknown,
    PartialFailure,
    PrimaryAlive,
    QueueClosed,
    QueueFull,
    QueueNotFound,
    ReadOnlyQueue,
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
    UnknownMessage,
)
from ._observe import Observation, Observer
from ._stats import DurationEstimate, OpenBreaker, ReplicaProof, ReplicationStatus, ShardStats, Stats, WorkerLoad
from ._types import CONTENT_HASH, Event, Message, Receipt
from .batch import Batch
from .delivery import Delivery, Lease
from .handle import DeliveryRef
from .opening import migrate, open_async, salvage
from .opening import open as open
from .queue import Queue
from .transaction import Transaction

if TYPE_CHECKING:
    from ._findings import (
        Adopted,
        AppRowsDiffer,
        AttemptError,
        ChainMember,
        ConsumerStatus,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        KeyStateDiffers,
        LostRange,
        Members,
        Merged,
        MergedSend,
        MessageName,
        MessageStatus,
        Migration,
        PeekedMessage,
        Problem,
        Promoted,
        QueryReport,
        ReplicaReport,
        Restored,
        Salvaged,
        WorkerEvent,
    )
    from .aio import AsyncBatch, AsyncDelivery, AsyncDeliveryRef, AsyncLease, AsyncQueue, AsyncTransaction
    from .app import App
    from .replication.adopting import adopt
    from .replication.members import members
    from .replication.merging import merge
    from .replication.promoting import promote
    from .replication.replica import Replica
    from .replication.restoring import restore
    from .worker import Breaker, Defer, Job, Reject, Retry, Worker, WorkerStats

# `open` is left out: `from strictq import *` must not hide the built-in.
__all__ = [
    "CONTENT_HASH",
    "Adopted",
    "App",
    "AppRowsDiffer",
    "AsyncBatch",
    "AsyncDelivery",
    "AsyncDeliveryRef",
    "AsyncLease",
    "AsyncQueue",
    "AsyncTransaction",
    "AttemptError",
    "Batch",
    "Breaker",
    "ChainMember",
    "Clock",
    "ConfigError",
    "ConsumerBusy",
    "ConsumerLost",
    "ConsumerStatus",
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
    "HandoutGone",
    "HistoryRecord",
    "InvalidArgument",
    "InvalidBody",
    "Job",
    "KeyDepth",
    "KeyStateDiffers",
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
    "Promoted",
    "QueryReport",
    "Queue",
    "QueueClosed",
    "QueueConfig",
    "QueueFull",
    "QueueNotFound",
    "ReadOnlyQueue",
    "Receipt",
    "Reject",
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
    "ShardStats",
    "Stats",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StrictqError",
    "SystemClock",
    "TargetUnavailable",
    "Transaction",
    "UnknownMessage",
    "Worker",
    "WorkerEvent",
    "WorkerLoad",
    "WorkerStats",
    "__version__",
    "adopt",
    "members",
    "merge",
    "migrate",
    "open_async",
    "promote",
    "restore",
    "salvage",
]


# Module → names imported on first use: few programs need them, or they take longer to import than the rest together.
_LATE = {
    "_findings": (
        "Adopted", "AppRowsDiffer", "AttemptError", "ChainMember", "ConsumerStatus", "DeadLetter", "Explanation",
        "HistoryRecord", "KeyDepth", "KeyStateDiffers", "LostRange", "Members", "Merged", "MergedSend", "MessageName",
        "MessageStatus", "Migration", "PeekedMessage", "Problem", "Promoted", "QueryReport", "ReplicaReport", "Restored",
        "Salvaged", "WorkerEvent",
    ),
    "aio": ("AsyncBatch", "AsyncDelivery", "AsyncDeliveryRef", "AsyncLease", "AsyncQueue", "AsyncTransaction"),
    "app": ("App",),
    "replication.adopting": ("adopt",),
    "replication.members": ("members",),
    "replication.merging": ("merge",),
    "replication.promoting": ("promote",),
    "replication.replica": ("Replica",),
    "replication.restoring": ("restore",),
    "worker": ("Breaker", "Defer", "Job", "Reject", "Retry", "Worker", "WorkerStats"),
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("strictq")
    for module, names in _LATE.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
