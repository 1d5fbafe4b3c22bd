"""A process that opens copies of queues on request, like one that starts after a crash: `python -m tests.support.witness`.

Hot lanes are in the memory of every process, and a process that starts rebuilds them from the logs. The caller's memory, which
saw all rows, and the rebuilt one must be equal, whatever was cut from the logs. The witness lives long, because starting an
interpreter takes longer than all else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

import strictq
from strictq import Queue
from strictq._store.commit.calls import bound
from strictq._store.commit.tx import Totals, Tx
from strictq._store.commit.writer import in_read_transaction
from strictq._store.disk import layout
from strictq._store.hot.memory import Memory
from strictq._store.shard import Shard
from strictq._store.upkeep import Upkeep
from strictq.testing import FakeClock
from tests.support.hot import cut_to, ready, require_memories, state
from tests.support.internals import connected, store_of
from tests.support.powercut_campaign import fast_directory
from tests.support.running import ROOT


def told(memory: Memory) -> str:
    """Return all that a memory knows, as text."""
    return repr((sorted(state(memory).items()), ready(memory)))


def told_of(shard: Shard) -> str:
    """Return what this process's memory knows of a shard."""
    return shard.run(lambda tx: told(tx.hot) if tx.hot is not None else "")


class Witness:
    """The process, and what it has seen of a queue. Used by one thread at a time."""

    def __init__(self, place: Path) -> None:
        """
        Args:
            place: where copies are made.
        """
        self._place = place
        self._cuts: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.witness"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folds = -1
        """The number of folds after which it was asked. It is also asked at the first look."""

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def watch(self, q: Queue) -> None:
        """Require the queue to be sound for others if its logs were cut since the last call.

        Raises:
            AssertionError: it is not.
        """
        cuts = [cut_to(q, number) for number in range(len(store_of(q).shards))]
        if cuts != self._cuts:
            self._cuts = cuts
            self.folds += 1
            self.require(q)

    def require(self, q: Queue) -> None:
        """Require a copy, opened by the process and by a fork of it, to have the hot lanes that the caller's memory has.

        Raises:
            AssertionError: it has others, cannot be opened, or check() finds something.
        """
        copy = Path(tempfile.mkdtemp(prefix="copy-", dir=self._place))
        try:
            self.require_equal(copy, copied(q, copy), q._storage.clock)
        finally:
            shutil.rmtree(copy)

    def require_equal(self, path: Path, expected: list[str] | None, clock: Any = None) -> None:
        """Require a closed queue to be sound, and to have these hot lanes in each shard; None: any.

        Raises:
            AssertionError: it is not, or has not.
        """
        now = (clock._wall, clock._boot, clock._boots) if isinstance(clock, FakeClock) else None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(path), now]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '"it has died"')
        assert isinstance(answer, list), answer
        assert expected in (None, answer), f"a new process knows {answer} instead of {expected}"


def copied(q: Queue, to: Path) -> list[str]:
    """Copy an open queue, each shard under its write lock. Return what this process's memory knows of each."""
    for file in Path(q.path).iterdir():
        if not file.name.startswith(("shard-", layout.RESERVE)):
            shutil.copyfile(file, to / file.name)

    def copy(tx: Tx, name: str) -> str | None:
        if tx.db.total_changes() != tx.changes_before:
            return None  # memory has what other calls of the same transaction changed, and the files do not
        for suffix in ("", "-wal"):  # in this order: a checkpoint in between copies from the WAL to the file
            file = Path(q.path) / f"{name}{suffix}"
            if file.exists():
                shutil.copyfile(file, to / file.name)
        return told(tx.hot) if tx.hot is not None else ""

    found: list[str] = []
    for shard in store_of(q).shards:
        while (known := shard.run(bound(copy, layout.shard_file(shard.number)))) is None:
            pass
        found.append(known)
    return found


@contextmanager
def witness(fallback: Path) -> Iterator[Witness]:
    """Run a witness until the end of the block."""
    with fast_directory(fallback) as place, closing(Witness(place)) as made:
        yield made


# ---- the process


def rebuilt(path: Path) -> list[str]:
    """Return what a new memory knows of each shard of a closed queue, or of a replica."""

    def read(db: Any, number: int) -> str:
        memory = Memory(number)
        memory.agree(db, Totals.read(db))
        return told(memory)

    found: list[str] = []
    for number, file in enumerate(sorted(path.rglob("shard-????.db"))):
        with closing(connected(file)) as db:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            found.append(in_read_transaction(db, lambda db: read(db, number)))  # noqa: B023 - called at once
    return found


def require_sound(q: Queue) -> None:
    """Require check() to find nothing. Shards that were copied one after the other may differ on what one sent to the other."""
    found = [p for p in q.check() if p.rule != "inlet"]
    assert not found, found
    require_memories(q)


def opened(path: Path, now: tuple[int, int, int] | None) -> list[str]:
    """Open a queue, here and in a fork, and return what a new memory knows of each shard."""
    found = rebuilt(path)
    clock = None
    if now is not None:
        clock = FakeClock()
        clock._wall, clock._boot, clock._boots = now
    with strictq.open(path, clock=clock) as q:
        wrong = [s.quarantined for s in q.stats().shards if s.quarantined is not None]
        assert not wrong, wrong
        require_sound(q)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                require_sound(q)
                q.receive(1)
                require_memories(q)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0, "a fork failed"
    return found


def main() -> None:
    """Answer requests until the input ends."""
    Upkeep._start = lambda _self: None  # type: ignore[method-assign]  # nothing else runs
    for line in sys.stdin:
        path, now = json.loads(line)
        answer: list[str] | str
        try:
            answer = opened(Path(path), None if now is None else tuple(now))
        except BaseException:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
