"""A process that opens copies of queues on request, like one that starts after a crash: `python -m tests.support.witness`.

Lanes are in the memory of every process, and a process that starts rebuilds them from their rows and the journal. The caller's
memory, which saw all entries, and the rebuilt one must be equal, whatever folds have cut. The witness lives long: to start an
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import apsw

import strictq
from strictq import Queue
from strictq._store.catalog import queue_db
from strictq._store.commit.tx import bound
from strictq._store.commit.writer import in_read_transaction
from strictq._store.disk import layout
from strictq._store.shard.shard_file import Shard
from strictq._store.shard.shard_lanes import ShardLanes, Tx
from strictq._store.whole.upkeep import Upkeep
from strictq.replication.promoting import promote
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import LOGS
from strictq.testing import FakeClock
from tests.support.folds import Folds, has_begun, lanes_as_text, require_memories
from tests.support.internals import connected, store_of
from tests.support.replicas import segments
from tests.support.running import ROOT
from tests.support.shipping import HISTORY, ship_once


def shard_as_text(shard: Shard) -> str:
    """Return what this process's memory knows of a shard."""
    return shard.run(lambda tx: lanes_as_text(tx.lanes))


class Witness:
    """The process, which starts with the first request, unless `fork` has started it. Used by one thread at a time."""

    def __init__(self, place: Path) -> None:
        """
        Args:
            place: where copies are made.
        """
        self._place = place
        self._process: tuple[TextIO, TextIO, Callable[[], object]] | None = None
        """What it reads, what it answers, and how to wait for its end."""
        self.folds = Folds()
        """Those that `watch` has seen."""

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            asks, answers, wait = process
            asks.close()
            wait()
            answers.close()

    def fork(self) -> None:
        """Start the process now, as a fork of this one, in which nothing may be open. This takes no imports."""
        (asked, asks), (answers, answered) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(asks)  # else it would not see that this process is dead
            os.close(answers)
            try:
                serve(os.fdopen(asked), os.fdopen(answered, "w"))
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answered)
        self._process = os.fdopen(asks, "w"), os.fdopen(answers), lambda: os.waitpid(pid, 0)

    def watch(self, *queues: Queue) -> None:
        """Require a queue to be sound, here and for others, if its logs were cut since the last call.

        Args:
            queues: objects of one queue.
        Raises:
            AssertionError: it is not.
        """
        if self.folds.watch(*queues):
            self.require(queues[0])

    def require(self, q: Queue) -> None:
        """Require a copy, opened by the process and by a fork of it, to have the lanes that the caller's memory has.

        Raises:
            AssertionError: it has others, cannot be opened, or check() finds something.
        """
        with self._directory() as copy:
            self.require_equal(copy, copied(q, copy), q._storage.clock)

    def require_replicas(self, q: Queue, compare: Callable[[Queue], object], target: Path | None = None) -> None:
        """Ship a queue. Require a restored copy and a promoted replica to be sound, for the process and for a fork of it.

        Args:
            compare: raises an AssertionError if the promoted replica is not as it should be.
            target: what was shipped there before is kept, and is not shipped again. None: everything is shipped.
        Raises:
            AssertionError: one is not sound, or the restored copy has other lanes than the caller's memory.
        """
        clock = q._storage.clock
        with self._directory() as place:
            target = target or place / "target"
            ship_once(q, target)
            restored, replica = place / "restored", place / "replica"
            strictq.restore(target, restored, alone=True)
            self.require_equal(restored, [shard_as_text(shard) for shard in store_of(q).shards], clock)
            received = ReceivedSegments(replica, clock)
            received.claim(q.queue_id, HISTORY, "")
            received.close()
            (replica / LOGS[0]).write_bytes(b"".join(segments(target)))
            promote(replica, clock=clock)
            with strictq.open(replica, read_only=True, clock=clock) as promoted:
                compare(promoted)
            self.require_equal(replica, None, clock)

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        path = Path(tempfile.mkdtemp(prefix="copy-", dir=self._place))
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def require_equal(self, path: Path, expected: list[str] | None, clock: Any = None) -> None:
        """Require a closed queue to be sound, and to have these lanes in each shard; None: any.

        Raises:
            AssertionError: it is not, or has not.
        """
        if self._process is None:
            command = [sys.executable, "-m", "tests.support.witness"]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdin is not None
            assert process.stdout is not None
            self._process = process.stdin, process.stdout, process.wait
        asks, answers, _ = self._process
        now = (clock._wall, clock._boot, clock._boots) if isinstance(clock, FakeClock) else None
        print(json.dumps([str(path), now]), file=asks, flush=True)
        answer = json.loads(answers.readline() or '"it has died"')
        assert isinstance(answer, list), answer
        assert expected in (None, answer), f"a new process knows {answer} instead of {expected}"


def copied(q: Queue, to: Path) -> list[str]:
    """Copy an open queue, each shard under its write lock. Return what this process's memory knows of each.

    The copy is not replicated.
    """
    for file in Path(q.path).iterdir():
        if not file.name.startswith(("shard-", layout.RESERVE)):
            with suppress(FileNotFoundError):  # a consumer's file, which it removes as it leaves
                shutil.copyfile(file, to / file.name)
    if (replication := q._storage.replicating.known) is not None:
        queue_db.set_replication(to, replication._replace(mode="off"))

    def copy(tx: Tx, name: str) -> str | None:
        if has_begun(tx):
            return None  # the files lack what memory has
        for suffix in ("", "-wal"):  # in this order: a checkpoint in between copies from the WAL to the file
            file = Path(q.path) / f"{name}{suffix}"
            if file.exists():
                shutil.copyfile(file, to / file.name)
        return lanes_as_text(tx.lanes)

    found: list[str] = []
    for shard in store_of(q).shards:
        while (known := shard.run(bound(copy, layout.shard_file(shard.number)))) is None:
            pass
        found.append(known)
    return found


def require_same(q: Queue, other: Queue, keys: Iterable[Any]) -> None:
    """Require a queue to have the messages of another one."""
    for key in keys:
        assert [(m.seq, m.body) for m in q.peek(key, 10_000)] == [(m.seq, m.body) for m in other.peek(key, 10_000)], key


# ---- the process


def rebuilt(path: Path) -> list[str]:
    """Return what a new memory knows of each shard of a closed queue, or of a replica."""

    def read(db: Any, number: int) -> str:
        return lanes_as_text(ShardLanes(number).follow(db))

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


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until they end."""
    Upkeep._start = lambda _self: None  # type: ignore[method-assign]  # nothing else runs
    for line in requests:
        path, now = json.loads(line)
        answer: list[str] | str
        try:
            answer = opened(Path(path), None if now is None else tuple(now))
        except BaseException:
            answer = traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
