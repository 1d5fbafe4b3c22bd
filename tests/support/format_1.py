"""Directories made by the last version of format 1, on a FakeClock: one was closed, and the process of the other was killed."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

from strictq import Queue
from tests.support.queues import drain
from tests.support.recorded_batches import holder, read
from tests.support.running import ROOT

OLD: Final = ROOT / "tests" / "store" / "format_1"


def unpacked(name: str, place: Path, directory: Path = OLD) -> Path:
    """Unpack a queue's directory that an earlier version made."""
    with tarfile.open(directory / f"{name}.tar.xz") as tar:
        tar.extractall(place, filter="data")
    return place


def require_busy(q: Queue) -> None:
    """Verify everything in busy.tar.xz, in a queue that was just opened. Consumes it, except for the leased lane."""
    assert q.check() == []
    stats = q.stats()
    assert (stats.dead, stats.outbox) == (1, 0), "what waited in an outbox was forwarded"
    assert q.send(b"", key="once", dedup_id="d-1").duplicate
    assert [(d.key, d.seq, d.reason) for d in q.dead_letters()] == [("dead", 1, "no good")]
    assert [m.state for m in q.peek("held")] == ["held"] * 3
    assert [m.state for m in q.peek("late")] == ["delayed"]
    assert [m.seq for m in q.peek("leased", 5)] == [1, 2, 3]
    assert q.query("SELECT key, n FROM app_done") == [("acked", 1)]
    assert [(r.key, r.seq) for r in q.history()] == [("dead", 1), ("acked", 1)]
    h = holder(q, "etl")
    assert read(q, h, h.last) == [("shanded", n + 1, str(n)) for n in range(4)]
    h.ack(h.last)
    q.release("held")
    assert q.redrive("dead") == 1
    (d,) = q.receive(1, keys=["acked"])
    with q.transaction(d) as tx:
        assert tx.key_state == b"a state"
    got = drain(q)
    expected = {f"backlog{n}": 5 for n in range(3)} | {"large": 1, "once": 1, "held": 3, "dead": 3, "nacked": 1}
    expected |= {f"effect{n}": 1 for n in range(4)}
    for key, count in expected.items():
        assert [seq for k, seq in got if k == key] == list(range(1, count + 1)), key
    assert {k for k, _ in got} - {"leased"} == set(expected)
