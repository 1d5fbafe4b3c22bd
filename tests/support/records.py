"""A history whose every figure is known: records made up at random, and what plain Python says of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from strictq import HistoryRecord
from strictq.history._records import CHUNK, SCHEMA, record_batch

START = 1_790_000_000.0
"""Not at the begin of any window of an hour."""
KEYS: list[Any] = ["a", "7", 7, b"7", *(f"customer-{n}" for n in range(30))]


def generate(count: int, *, seed: int = 1, hours: float = 6.0) -> list[HistoryRecord]:
    """Messages of some hours: most acked, some keyless, some never tried, half measured by a worker.

    process takes 0.2 s and 3 ms a unit of size, prepare 0.05 s and 1 ms, give or take; there is an hour without any.
    """
    r = random.Random(seed)
    made = []
    for n in range(1, count + 1):
        done = START + r.uniform(0.0, hours * 3600.0)
        if 2.0 <= (done - START) / 3600.0 < 4.0:
            done += 2.5 * 3600.0
        age = r.lognormvariate(2.0, 1.5)
        outcome = r.choices(("acked", "rejected", "poison", "expired", "dropped", "purged"), (90, 2, 2, 2, 2, 2))[0]
        tried = outcome not in ("rejected", "expired", "purged") or r.random() < 0.2  # an operator rejects what nobody had
        size = r.randrange(0, 2_000)
        hint = float(r.randrange(1, 500)) if r.random() < 0.3 else None
        measured = outcome == "acked" and r.random() < 0.5
        of = float(size) if hint is None else hint
        made.append(
            HistoryRecord(
                shard=n % 3, n=n, key=None if r.random() < 0.05 else r.choice(KEYS), seq=n, id=n,
                enqueued_at=microseconds(done - age), done_at=microseconds(done),
                first_attempt_at=microseconds(done - age * r.random()) if tried else None,
                attempts=r.choice((1, 1, 1, 2, 5)) if tried else 0,
                prepare_seconds=max(0.0, 0.05 + 0.001 * of + r.gauss(0.0, 0.02)) if measured else None,
                process_seconds=max(0.0, 0.2 + 0.003 * of + r.gauss(0.0, 0.1)) if measured else None,
                size=size, size_hint=hint, outcome=outcome, body=None,
            )
        )  # fmt: skip
    return made


def microseconds(seconds: float) -> float:
    """What a file keeps of a time."""
    return round(seconds * 1e6) / 1e6


def with_durations(durations: Sequence[tuple[float, float]]) -> list[HistoryRecord]:
    """Acked messages of such sizes whose process took such seconds."""
    (plain,) = (r for r in generate(50) if r.n == 1)
    return [
        attrs.evolve(
            plain, n=n, size=1, size_hint=size, process_seconds=seconds, prepare_seconds=None, outcome="acked", attempts=1
        )
        for n, (size, seconds) in enumerate(durations, 1)
    ]  # fmt: skip


def write(records: Sequence[HistoryRecord], out: Path, files: int = 2) -> Path:
    """Files as an export makes them, but for their names."""
    out.mkdir(exist_ok=True)
    step = max(1, -(-len(records) // files))
    for n in range(0, len(records), step):
        some = records[n : n + step]
        batches = [record_batch(some[i : i + CHUNK]) for i in range(0, len(some), CHUNK)]
        pq.write_table(pa.Table.from_batches(batches, SCHEMA), out / f"{n:09d}.parquet")
    return out
