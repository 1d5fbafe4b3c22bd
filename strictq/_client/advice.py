"""How many consumers a queue needs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from .._platform import files
from .._store.api import Storage
from .._values import hints
from .._values.errors import InvalidArgument
from .._values.keys import encode_key
from . import validate

if TYPE_CHECKING:
    from .._values.findings import Advice, ConsumersNeeded, ShardRange

BUSY_RATIO: Final = 0.8
"""How busy slots should be: with more, waits grow quickly."""
CONCURRENCY: Final = 8
"""The slots of a consumer if no worker is live: a worker's default."""


def consumers_needed(
    storage: Storage, *, drain_seconds: float, sample_seconds: float, process_seconds: float | None
) -> ConsumersNeeded:
    """See Queue.consumers_needed."""
    with files.late():
        from .._values.findings import ConsumersNeeded

    drain = validate.microseconds("drain_seconds", drain_seconds, minimum=0.001) / 1e6
    sample = validate.microseconds("sample_seconds", sample_seconds) / 1e6
    given = None if process_seconds is None else validate.microseconds("process_seconds", process_seconds) / 1e6
    sends, began = storage.reports.stats().sends, time.monotonic()
    time.sleep(sample)
    found = storage.reports.stats()
    elapsed = time.monotonic() - began
    mean = given if given is not None else found.process.mean_seconds if found.process.samples else None
    if mean is None:
        raise InvalidArgument("no worker has learned yet how long a message takes", hint=hints.PASS_PROCESS_SECONDS)
    rate = (found.sends - sends) / elapsed if sample else 0.0
    backlog = found.ready + found.in_flight
    live = [seen for seen in storage.live() if seen.described.affinity != "none" or seen.described.kind == "worker"]
    slots = [seen.described.concurrency for seen in live if seen.described.kind == "worker"]
    concurrency = max(1, round(sum(slots) / len(slots))) if slots else CONCURRENCY
    needed = rate * mean / BUSY_RATIO + backlog * mean / drain
    deepest = storage.reports.top_keys(1, "depth")
    shards = sum(not one.retired for one in storage.reports.topology().shards)
    return ConsumersNeeded(
        consumers=math.ceil(needed / concurrency - 1e-9), live=len(live), slots=needed, concurrency=concurrency,
        arrivals_per_second=rate, process_seconds=mean, backlog=backlog, keys=found.lanes, shards=shards,
        drain_seconds=drain, key_seconds=deepest[0].depth * mean if deepest else 0.0,
        key=deepest[0].key if deepest else None,
    )  # fmt: skip


SPLIT_SHARE: Final = 2.0
"""A shard that takes so many times its part of the writes is worth a split."""
BUSY_BACKLOG: Final = 10_000
"""Below this number of messages, no backlog is worth a move."""
ISOLATE_SHARE: Final = 0.5
"""A key with so much of its shard's backlog makes the shard's other keys share a writer with it."""


def advise(storage: Storage) -> list[Advice]:
    """See Queue.advise."""
    with files.late():
        from .._values.findings import Advice
        from .._values.hashing import hash_key

    found: list[Advice] = []
    live = [one for one in storage.reports.topology().shards if not one.retired]
    consumers = sum(1 for seen in storage.live() if seen.described.affinity != "none")
    deepest = storage.reports.top_keys(1, "depth")
    key = deepest[0] if deepest and deepest[0].depth >= BUSY_BACKLOG else None
    hashed = None if key is None or key.key is None else hash_key(encode_key(key.key))
    home = next((one.shard for one in live if hashed is not None and any(lo <= hashed <= hi for lo, hi in one.ranges)), None)
    for one in live:
        alone = _owns_one_hash(one)
        if key is not None and home == one.shard and not alone and one.lanes > 1 and key.depth >= ISOLATE_SHARE * one.messages:
            why = f"its {key.depth:,} messages are most of the {one.messages:,} of shard {one.shard}"
            found.append(Advice("isolate", one.shard, key.key, why))
        elif len(live) > 1 and not alone and one.write_share * len(live) >= SPLIT_SHARE and one.messages >= BUSY_BACKLOG:
            why = f"it takes {one.write_share:.0%} of all messages, and has {one.messages:,} waiting"
            found.append(Advice("split", one.shard, None, why))
    if consumers > len(live) and not any(one.what == "split" for one in found):
        busiest = max(live, key=lambda one: one.messages)
        if not _owns_one_hash(busiest):
            why = f"{consumers} consumers share {len(live)} shards, so some repeat each other's work"
            found.append(Advice("split", busiest.shard, None, why))
    return found


def _owns_one_hash(one: ShardRange) -> bool:
    return sum(hi - lo + 1 for lo, hi in one.ranges) == 1
