"""How named consumers stand: what they have yet to process, and what the driver of their query last told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import ConsumerStatus, QueryReport, Queue, StoreError
from strictq._client import consumers
from tests.support.queues import Opener, fill
from tests.support.recorded_batches import holder

REPORT = QueryReport("orders", "0-1", "running", 7, 400, 0.25, 1600.0, 1_700_000_000.5)


def standing(q: Queue) -> tuple[int, float | None]:
    """Lag and age of the only consumer."""
    (c,) = q.consumers()
    return c.lag, c.age_seconds


def test_lag_and_age_are_those_of_now(make: Opener) -> None:
    q = make(shards=1, lease_seconds=5.0)
    clock = make.clock
    h = holder(q)
    assert standing(q) == (0, None)
    fill(q, "a", 3)
    clock.advance(10.0)
    fill(q, "b", 2)
    assert standing(q) == (5, 10.0)
    h.take(0, messages_max=3)
    assert standing(q) == (5, 10.0), "its own are not processed yet"
    h.take(1)
    assert standing(q) == (2, 0.0)
    h.close()
    fill(q, "b", 1)
    clock.advance(2.0)
    assert standing(q) == (3, 2.0), "nobody has it, and what comes waits for it"


def test_what_others_hold_or_nobody_may_have_is_not_its_lag(make: Opener) -> None:
    q = make(shards=1, lease_seconds=5.0)
    holder(q)
    other = holder(q, "other")
    fill(q, "a", 2)
    other.take(0)
    fill(q, "b", 2)
    (d,) = q.receive(1, keys=["b"])
    q.hold("c")
    fill(q, "c", 2)
    fill(q, "late", 1, delay=100.0)
    assert {c.name: c.lag for c in q.consumers()} == {"etl": 1, "other": 3}, "the second of b is ready, as everywhere"
    make.clock.advance(6.0)
    assert {c.name: (c.lag, c.age_seconds) for c in q.consumers()} == {"etl": (2, 6.0), "other": (4, 6.0)}, "a lease ran out"
    assert d.key == "b"


def write(q: Queue, report: QueryReport, consumer: str = "etl") -> None:
    consumers.write_report(q.path, q.queue_id, consumer, report)


def status(q: Queue) -> ConsumerStatus:
    (c,) = q.consumers()
    return c


def test_the_last_report_is_shown(disk: Opener) -> None:
    q = disk()
    h = holder(q)
    assert status(q).query is None
    write(q, REPORT)
    assert status(q).query == REPORT
    write(q, attrs.evolve(REPORT, batch=8), "other")
    assert status(q).query == REPORT, "each consumer has its own"
    h.close()
    assert status(q).query == attrs.evolve(REPORT, state="gone"), "nobody told its end, and nobody is there"
    write(q, attrs.evolve(REPORT, state="failed", error="no disk"))
    assert status(q).query == attrs.evolve(REPORT, state="failed", error="no disk")


def test_it_is_private_and_small(disk: Opener) -> None:
    q = disk()
    holder(q, "../../x")
    write(q, attrs.evolve(REPORT, error="\N{SNOWMAN}" * 100_000, name="n" * 100_000), "../../x")
    (file,) = Path(q.path).glob(f"{consumers.QUERY}*")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < consumers.BYTES_MAX
    assert status(q).query is not None


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 10_000, b'{"queue": "another"}',
        {"queue": "0" * 32}, {"consumer": "other"}, {"batch": "7"}, {"at": None}, {"state": "asleep"}, {"name": 3}, {"new": 1},
        {"at": 1e300}, {"messages_per_second": float("nan")},
    ],
    ids=repr,
)  # fmt: skip
def test_a_report_that_can_not_be_read_is_none(disk: Opener, damage: Any) -> None:
    q = disk()
    holder(q)
    write(q, REPORT)
    (file,) = Path(q.path).glob(f"{consumers.QUERY}*")
    if isinstance(damage, dict):
        damage = json.dumps({**json.loads(file.read_bytes()), **damage}).encode()
    file.write_bytes(damage)
    assert status(q).query is None
    write(q, REPORT)
    assert status(q).query == REPORT


def test_nothing_is_read_or_written_through_a_link(disk: Opener, tmp_path: Path) -> None:
    q = disk()
    holder(q)
    write(q, REPORT)
    (file,) = Path(q.path).glob(f"{consumers.QUERY}*")
    elsewhere = tmp_path / "elsewhere"
    os.rename(file, elsewhere)
    file.symlink_to(elsewhere)
    assert status(q).query is None
    before = elsewhere.read_bytes()
    file.with_name(f"{file.name}.part").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="symbolic link"):
        write(q, attrs.evolve(REPORT, batch=9))
    assert elsewhere.read_bytes() == before


def test_a_queue_in_memory_has_no_reports() -> None:
    with strictq.open(":memory:") as q:
        holder(q)
        assert status(q).query is None
