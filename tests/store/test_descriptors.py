"""Without free file descriptors or disk space, every call fails with a typed error, and leaves nothing incomplete."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import StoreError, StoreFull
from strictq._values import hints
from strictq.testing import FakeClock
from tests.support.faults import CODES, Count, Plan, fresh
from tests.support.powercut import recording
from tests.support.queues import fill
from tests.support.running import PATIENCE_SECONDS, mounted, stuff, unmounted

SCRIPT = """
import json, os, resource, sys
from pathlib import Path
import strictq
from strictq import StoreError, StrictqError

def left(count):
    "As many descriptors as that, and no more: what is open in between is filled up."
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for fd in taken[:count]:
        os.close(fd)
    return taken[count:]

def met(work):
    try:
        work()
    except StrictqError as e:
        return [type(e).__name__, e.transient, str(e)]
    except BaseException as e:
        return ["raw", False, f"{type(e).__name__}: {e}"]
    return None

path, verb = Path(sys.argv[1]), sys.argv[2]
found = []
q = strictq.open(path) if verb in ("verbs",) else None
for count in range(int(sys.argv[3]), int(sys.argv[4])):
    taken = left(count)
    target = path if verb in ("open", "read_only", "verbs") else path.with_name(f"new{count}") / "deep"
    if verb == "open":
        error = met(lambda: strictq.open(path).close())
    elif verb == "read_only":
        error = met(lambda: strictq.open(path, read_only=True).close())
    elif verb == "create":
        error = met(lambda: strictq.open(target, shards=3).close())
    elif verb == "salvage":
        error = met(lambda: strictq.salvage(path, target))
    else:
        error = None
        for work in (q.check, q.stats, q.top_keys, q.dead_letters, q.consumers, q.history, lambda: q.peek("k"),
                     lambda: q.status("k", 1), lambda: q.explain("k"), lambda: q.receive(1)[0].lease.release(),
                     lambda: q.send(b"", "k"), lambda: q.query("SELECT 1"), lambda: q.configure(max_attempts=7)):
            error = met(work) or error
    for fd in taken:
        os.close(fd)
    made = target.exists() if target != path else None
    found.append([count, error, made])
if q is not None:
    assert q.check() == [], q.check()
    assert [s.quarantined for s in q.stats().shards] == [None] * q.shards
    q.close()
print(json.dumps(found))
"""


def limited(path: Path, verb: str, first: int, last: int) -> list[tuple[int, Any, Any]]:
    """Return a verb's results with `first` to `last` - 1 free descriptors, in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), verb, str(first), str(last)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in json.loads(done.stdout)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with strictq.open(tmp_path / "queue", shards=3) as q:
        fill(q, "k", 3)
    return tmp_path / "queue"


@pytest.mark.parametrize("verb", ["open", "read_only", "create", "salvage", "verbs"])
def test_with_any_number_of_descriptors(path: Path, verb: str) -> None:
    found = limited(path, verb, 0, 24)
    errors = [error for _, error, _ in found if error is not None]
    assert errors, "with none left it fails"
    for kind, transient, text in errors:
        assert (kind, transient) == ("StoreError", True), text
        assert "ulimit -n" in text
    for _, error, made in found:
        assert made in (None, error is None)
    assert found[-1][1] is None, "with enough it works"
    beside = {p.name for p in path.parent.iterdir()} - {"queue"}
    assert beside == {f"new{count}" for count, error, _ in found if error is None and verb in ("create", "salvage")}
    with strictq.open(path) as q:
        assert q.check() == []
        assert q.stats().depth >= 3


def test_create_says_it_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import resource, os, sys\n"
         "from strictq.cli import _group, configuring, _command\n"
         "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 1024))\n"
         "taken = []\n"
         "try:\n while True: taken.append(os.open(os.devnull, 0))\n"
         "except OSError: pass\n"
         "sys.exit(_group.run(['create', sys.argv[1]]))", str(tmp_path / "queue")],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("strictq: queue.db: this process, or the machine, has no file descriptor left")
    assert second == f"  hint: {hints.NO_DESCRIPTORS}"
    assert list(tmp_path.iterdir()) == []


# ---- the n-th call fails


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", ["write", "full", "open", "sync", "truncate", "size", "fsync", "put"])
def test_a_queue_is_made_whole_or_not_at_all(place: Path, fault: str) -> None:
    """Each call of that kind fails once. Of the writes, one in two fails with an I/O error, the others with a full disk."""
    count = Count()
    with recording(fresh(place), FakeClock()) as journal:
        journal.fault = count
        strictq.open(journal.root / "queue", shards=2).close()
    total = count.kinds[CODES[fault][0]]
    assert total > 0
    failed = 0
    expected = StoreFull if fault in ("full", "put") else StoreError
    first, step = {"write": (1, 2), "full": (2, 2)}.get(fault, (1, 1))
    for number in range(first, total + 1, step):
        with recording(fresh(place), FakeClock()) as journal:
            plan = journal.fault = Plan(fault, number)
            try:
                strictq.open(journal.root / "queue", shards=2).close()
            except expected:
                failed += 1
            journal.fault = None
            journal.recording = False
            left = [p.name for p in Path(journal.root).iterdir()]
            assert left in ([], ["queue"]), f"{plan}: {left}"
            with strictq.open(journal.root / "queue", shards=2) as q:
                assert q.check() == []
    assert failed


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "read_only"])
def test_each_file_that_cannot_be_opened(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, read_only: bool) -> None:
    """The n-th of strictq's own opens fails. The queue opens all the same, or reports why, and the next attempt works."""
    real = os.open
    number, seen = 0, 0

    def failing(*arguments: Any, **options: Any) -> int:
        nonlocal seen
        seen += 1
        if seen == number:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        strictq.open(path, read_only=read_only).close()
        total = seen
        refusals: list[StoreError] = []
        for number in range(1, total + 1):  # noqa: B007 - `failing` reads it
            seen = 0
            try:
                strictq.open(path, read_only=read_only).close()
            except StoreError as e:
                refusals.append(e)
    assert {e.transient for e in refusals} <= {code != errno.EIO}
    with strictq.open(path) as q:
        assert q.check() == []


# ---- a full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system."""
    place = tmp_path / "small"
    place.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)):
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    unmounted(place)


@pytest.mark.parametrize("free", [0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96])
def test_a_queue_on_a_disk_with_so_many_pages_left(small: Path, free: int) -> None:
    """The queue is created, or nothing of it is left. The command reports that in one line."""
    stuffing = stuff(small)
    with stuffing.open("r+b") as file:
        file.truncate(max(0, stuffing.stat().st_size - 4096 * free))
    done = subprocess.run(
        [sys.executable, "-m", "strictq", "create", str(small / "queue")],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    left = {p.name for p in small.iterdir()}
    if done.returncode == 0:
        assert left == {"stuffing", "queue"}
        return
    assert done.returncode == 1
    assert left == {"stuffing"}
    assert done.stderr.startswith("strictq: ")
    assert "full" in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 2
    with pytest.raises(StoreFull):
        strictq.open(small / "deep" / "queue")
    assert {p.name for p in small.iterdir()} == {"stuffing"}
