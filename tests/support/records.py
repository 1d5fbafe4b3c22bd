"""A history whose every figure is known: random records, and their evaluation in plain Python."""

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
"""Not at the beginning of an hour's window."""
KEYS: list[Any] = ["a", "7", 7, b"7", *(f"customer-{n}" for n in range(30))]


def generate(count: int, *, seed: int = 1, hours: float = 6.0) -> list[HistoryRecord]:
    """Generate messages of some hours: most acked, some keyless, some never tried, half measured by a worker.

    process takes 0.2 s plus 3 ms per unit of size, prepare 0.05 s plus 1 ms, with deviations. One hour has no messages.
    """
    r = random.Random(seed)
    made = []
    for n in range(1, count + 1):
        done = START + r.uniform(0.0, hours * 3600.0)
        if 2.0 <= (done - START) / 3600.0 < 4.0:
            done += 2.5 * 3600.0
        age = r.lognormvariate(2.0, 1.5)
        outcome = r.choices(("acked", "rejected", "poison", "expired", "dropped", "purged"), (90, 2, 2, 2, 2, 2))[0]
        tried = outcome not in ("rejected", "expired", "purged") or r.random() < 0.2  # operators reject unread ones
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
    """Round a time as a file stores it."""
    return round(seconds * 1e6) / 1e6


def with_durations(durations: Sequence[tuple[float, float]]) -> list[HistoryRecord]:
    """Return acked messages with these sizes and durations of process."""
    (plain,) = (r for r in generate(50) if r.n == 1)
    return [
        attrs.evolve(
            plain, n=n, size=1, size_hint=size, process_seconds=seconds, prepare_seconds=None, outcome="acked", attempts=1
        )
        for n, (size, seconds) in enumerate(durations, 1)
    ]  # fmt: skip


def write(records: Sequence[HistoryRecord], out: Path, files: int = 2) -> Path:
    """Write files like those of an export, except for their names."""
    out.mkdir(exist_ok=True)
    step = max(1, -(-len(records) // files))
    for n in range(0, len(records), step):
        some = records[n : n + step]
        batches = [record_batch(some[i : i + CHUNK]) for i in range(0, len(some), CHUNK)]
        pq.write_table(pa.Table.from_batches(batches, SCHEMA), out / f"{n:09d}.parquet")
    return out
