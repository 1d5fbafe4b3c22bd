"""Pipeline handlers that prove order: every message's effect carries a hash of all earlier ones of its key."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from strictq.spark import BatchJob

PREPARED = "doubled bigint"


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return 2n for each message."""
    return pa.RecordBatch.from_pydict({"doubled": [2 * int(body) for body in batch.column("body").to_pylist()]})


def chain(job: BatchJob) -> None:
    """Add the message to the hash in the key's state, and send that on. Wrong order or a duplicate breaks the chain."""
    assert job.prepared["doubled"] == 2 * int(job.body)
    count, digest = json.loads(job.key_state or b'[0, ""]')
    if int(job.body) != count + 1:
        raise AssertionError(f"{job.key}: {int(job.body)} after {count}")
    digest = hashlib.blake2b(digest.encode() + job.body, digest_size=8).hexdigest()
    job.key_state = json.dumps([count + 1, digest]).encode()
    job.send(digest.encode(), key=f"out-{job.key}")


def expected(each: int) -> list[bytes]:
    digest, out = "", []
    for n in range(1, each + 1):
        digest = hashlib.blake2b(digest.encode() + b"%d" % n, digest_size=8).hexdigest()
        out.append(digest.encode())
    return out
