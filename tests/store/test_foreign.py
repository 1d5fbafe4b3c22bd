"""Another SQLite program opens a shard and closes it last: its checkpoint is repaired, and damage remains damage."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import strictq
from strictq import Event, StoreCorrupt
from strictq._store.disk import layout, locks, wal_file
from tests.support.flips import flip
from tests.support.internals import PAGE_BYTES
from tests.support.queues import shard_file
from tests.support.running import PATIENCE_SECONDS, ROOT, run_python

SENT = 40
KILLED = """
import os, strictq, sys
q = strictq.open(sys.argv[1], durability=sys.argv[2], create=False)
for n in range(40):
    q.send(b"%d" % n, "k")
    if n == 19 and sys.argv[3] == "checkpointed":
        q._storage._store.shards[0].checkpoint()
q.send_many([strictq.Message(b"x" * 3000, key="big") for _ in range(20)])
os.kill(os.getpid(), 9)
"""
LOOK = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1], uri=True).execute("SELECT count(*) FROM message WHERE id > 0").fetchone()[0])
"""
DAMAGED = {"unreadable", "integrity"}
BODIES = [b"%d" % n for n in range(SENT)]


def look(queue: Path, mode: str = "rw") -> int:
    """Count the messages with Python's own SQLite, in its own process."""
    return int(run_python(LOOK, f"file:{shard_file(queue)}?mode={mode}"))


@pytest.fixture(params=["full", "process"])
def closed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a queue in which everything was sent, and that was closed."""
    path = tmp_path / "queue"
    with strictq.open(path, durability=request.param) as q:
        for body in BODIES:
            q.send(body, "k")
    return path


def killed(path: Path, durability: str = "full", how: str = "") -> Path:
    """Return a queue whose process was killed after its last send."""
    strictq.open(path, durability=durability).close()  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), durability, how], cwd=ROOT, capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return path


def wrong_pages(queue: Path) -> int:
    """Return the number of a shard's pages whose checksum is wrong."""
    script = """
import sys
from strictq._store.disk import pages
raw = open(sys.argv[1], "rb").read()
print(sum(not pages.sound(raw[at : at + 4096]) for at in range(0, len(raw), 4096)))
"""
    return int(run_python(script, shard_file(queue)))


def bodies(queue: Path, events: list[Event] | None = None) -> list[bytes]:
    with strictq.open(queue, create=False, on_event=None if events is None else events.append) as q:
        assert q.check() == []
        got = [d.body for d in q.receive(1000, keys=["k"])]
        if events is not None:
            assert len(q.receive(1000, keys=["big"])) == 20
        return got


def test_a_look_at_a_closed_queue_changes_nothing(closed: Path) -> None:
    before = shard_file(closed).read_bytes()
    assert look(closed) == SENT
    assert shard_file(closed).read_bytes() == before
    assert bodies(closed) == BODIES


def test_a_look_beside_a_process_that_has_the_queue_open_changes_nothing(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue") as q:
        for body in BODIES:
            q.send(body, "k")
        assert look(tmp_path / "queue") == SENT
        assert [d.body for d in q.receive(1000)] == BODIES


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("how", ["", "checkpointed"])
def test_what_a_foreign_checkpoint_did_is_repaired_and_reported(
    tmp_path: Path, durability: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path / "queue", durability, how)
    assert look(path) == SENT + 20
    assert wrong_pages(path) > 0
    events: list[Event] = []
    assert bodies(path, events) == BODIES
    assert [(e.kind, e.shard) for e in events] == [("shard_repaired", 0)]
    assert "another SQLite program" in caplog.text
    assert wrong_pages(path) == 0
    events.clear()
    with strictq.open(path, on_event=events.append) as q:
        assert q.check() == []
    assert events == []


def test_a_read_only_look_does_not_checkpoint(tmp_path: Path) -> None:
    """The documentation recommends this."""
    path = killed(tmp_path / "queue")
    before = shard_file(path).read_bytes(), Path(f"{shard_file(path)}-wal").read_bytes()
    assert look(path, "ro") == SENT + 20
    assert (shard_file(path).read_bytes(), Path(f"{shard_file(path)}-wal").read_bytes()) == before
    events: list[Event] = []
    assert bodies(path, events) == BODIES
    assert events == []


def test_who_may_only_read_is_told_what_to_do(tmp_path: Path) -> None:
    path = killed(tmp_path / "queue")
    look(path)
    with strictq.open(path, read_only=True) as q, pytest.raises(StoreCorrupt, match="once for writing"):
        q.peek("k")
    assert bodies(path) == BODIES


def test_an_interrupted_repair_is_begun_again(tmp_path: Path) -> None:
    path = killed(tmp_path / "queue")
    look(path)
    script = """
import os, sys, strictq
from strictq._store.disk import foreign
real = foreign.StoredPages.seal
def seal(self, numbers):
    if isinstance(numbers, list):  # the counter's page, which is the last
        os._exit(9)
    real(self, numbers)
foreign.StoredPages.seal = seal
strictq.open(sys.argv[1])
"""
    assert subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT, timeout=PATIENCE_SECONDS).returncode == 9
    assert wrong_pages(path) == 1
    assert bodies(path) == BODIES


def hit(queue: Path, chance: random.Random, bits: int = 1) -> None:
    for _ in range(bits):
        flip(shard_file(queue), chance)


def outcome(queue: Path) -> tuple[list[bytes], list[str]]:
    """Return what is delivered, and what is reported."""
    told: list[str] = []
    got: list[bytes] = []
    with strictq.open(queue, on_event=lambda e: told.append(e.kind)) as q:
        try:
            got = [d.body for d in q.receive(1000, keys=["k"])]
        except StoreCorrupt:
            told.append("StoreCorrupt")
        told += [p.rule for p in q.check()]
    return got, told


@pytest.mark.parametrize("seed", range(6))
def test_a_bit_that_flips_after_the_repair_is_found(tmp_path: Path, seed: int) -> None:
    path = killed(tmp_path / "queue")
    look(path)
    assert bodies(path) == BODIES
    hit(path, random.Random(seed))
    assert DAMAGED & set(outcome(path)[1])


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("seed", range(3))
def test_a_bit_that_flips_without_a_foreign_look_is_never_silent(tmp_path: Path, durability: str, seed: int) -> None:
    path = killed(tmp_path / "queue", durability, "checkpointed")
    hit(path, random.Random(seed), 20)
    got, told = outcome(path)
    assert "shard_repaired" not in told
    assert got == BODIES or told


@pytest.mark.parametrize("seed", range(6))
def test_a_look_with_nothing_to_checkpoint_excuses_no_flipped_bit(closed: Path, seed: int) -> None:
    hit(closed, random.Random(seed))
    look(closed)
    told = set(outcome(closed)[1])
    assert DAMAGED & told
    assert "shard_repaired" not in told


def test_a_bit_that_flipped_before_a_foreign_checkpoint_is_found(tmp_path: Path) -> None:
    """The checksum identifies it: a lower bit of a word, in a page that no later commit wrote."""
    path = killed(tmp_path / "queue", "full", "checkpointed")
    raw = bytearray(shard_file(path).read_bytes())
    with wal_file.Wal.of(shard_file(path)) as found:
        assert found is not None
        header = found.header()
        assert header is not None
        written = {frame.page for frame in found.frames(header)}
    page = next(n for n in range(1, len(raw) // PAGE_BYTES + 1) if n not in written)
    raw[(page - 1) * PAGE_BYTES + 2000] ^= 1
    shard_file(path).write_bytes(raw)
    look(path)
    assert "shard_quarantined" in outcome(path)[1]


@pytest.mark.parametrize("damage", ["another queue's mark", "a flipped bit", "no mark"])
def test_without_a_mark_that_proves_it_wrong_checksums_are_damage_and_salvage_saves_all(tmp_path: Path, damage: str) -> None:
    path = killed(tmp_path / "queue")
    marks = path / layout.MARKS
    look(path)
    if damage == "no mark":
        marks.unlink()
    elif damage == "a flipped bit":
        flip(marks, random.Random(1))
    else:
        wal_file.write_mark(marks, 0, wal_file.Mark(bytes(8), 0, b"its boot"))
    assert outcome(path)[1][0] == "shard_quarantined"
    found = strictq.salvage(path, tmp_path / "saved")
    assert (found.messages, found.lost) == (SENT + 20, ())
    assert {(r.key, r.first, r.last) for r in found.unverified} == {("k", 1, SENT), ("big", 1, 20)}
    assert bodies(tmp_path / "saved", []) == BODIES


def test_a_wal_that_a_person_deleted_proves_nothing(tmp_path: Path) -> None:
    """A foreign checkpoint would have written the counter's page."""
    path = killed(tmp_path / "queue", "full", "checkpointed")
    hit(path, random.Random(4))
    Path(f"{shard_file(path)}-wal").unlink()
    assert "shard_repaired" not in outcome(path)[1]


OPENED = """
import strictq, sys
q = strictq.open(sys.argv[1], create=False)
q.send(b"opened", "other")
print("opened", flush=True)
sys.stdin.readline()
q.send_many([strictq.Message(b"x" * 3000, key="big") for _ in range(20)])
print("sent", flush=True)
sys.stdin.readline()
"""


def test_what_is_committed_while_the_last_process_closes_the_queue_is_repaired(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = strictq.open(closed)
    other: list[subprocess.Popen[str]] = []
    is_last = locks.Presence.is_last

    def is_last_and_another_opens(presence: locks.Presence) -> bool:
        last = is_last(presence)
        if not other:
            command = [sys.executable, "-c", OPENED, str(closed)]
            other.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert other[0].stdout is not None
            assert other[0].stdout.readline() == "opened\n"
        return last

    monkeypatch.setattr(locks.Presence, "is_last", is_last_and_another_opens)
    q.close()
    monkeypatch.undo()
    with other[0] as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "sent\n"
        process.kill()
    assert look(closed) == SENT + 21
    events: list[Event] = []
    assert bodies(closed, events) == BODIES
    assert [e.kind for e in events] == ["shard_repaired"]


KILLED_COMMITTING = """
import os, strictq, sys
from strictq._store.commit.checkpoint import ShardWal
ShardWal._committed = lambda *_: os.kill(os.getpid(), 9)
strictq.open(sys.argv[1], create=False).send_many([strictq.Message(b"x" * 3000, key="big") for _ in range(20)])
"""


def test_a_commit_whose_process_was_killed_before_it_returned_is_repaired(closed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_COMMITTING, str(closed)], cwd=ROOT, capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert look(closed) == SENT + 20
    events: list[Event] = []
    assert bodies(closed, events) == BODIES
    assert [e.kind for e in events] == ["shard_repaired"]
