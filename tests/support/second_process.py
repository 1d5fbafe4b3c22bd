"""A second process that writes to the queue of a test between the calls of the test.

Its writes leave nothing behind that the contract of a call shows: the messages are on keys of its own, one in each shard, and
are resolved before the test's call begins. It folds the logs after a few rows, so the lanes of the test are moved beneath the
memory of the test's process, too. Counts of the whole queue do show it.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import attrs

import strictq
from strictq import Delivery, Message, Queue
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.folds import narrow
from tests.support.internals import store_of

RARER = 4
"""Each of a queue object's first calls, this many, finds new writes. Later ones find them less and less often."""
LEASE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]


class SecondProcess:
    """The process, as the tests see it. It is started by its first write, and serves one test after the other."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def write(self, path: str, clock: FakeClock, *, messages: bool = True) -> None:
        """Change every shard of a queue. Return when that is committed.

        Args:
            messages: send, receive and ack messages. Otherwise, write to a table of its own, which no count shows.
        """
        self._ask("write", path, messages, clock.wall(), clock.boot(), clock.boot_id())

    def leave(self) -> None:
        """Close its queue."""
        if self.process is not None:
            self._ask("leave")

    def end(self) -> None:
        if self.process is not None:
            self.process.communicate()
            self.process = None

    def _ask(self, *command: Any) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the test's process
        with self._lock:
            if self.process is None:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            with suppress(BrokenPipeError):
                print(json.dumps(command), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
            if not answer:
                self.end()  # the next test starts another one
        error = json.loads(answer) if answer else "it ended"
        assert error is None, f"the second process failed: {error}"

    def write_between(self, q: Queue, clock: FakeClock, *, messages: bool, is_last: Callable[[], bool]) -> None:
        """Let it write before each call of this queue object, and leave the queue before the last object is closed.

        Args:
            messages: see `write`.
            is_last: returns whether all other objects of the test are closed.
        """
        store = store_of(q)
        require_open, close = store.require_open, store.close
        calls, due = itertools.count(1), 1

        def write_before(*, writing: bool = True, inside: bool = False) -> None:
            nonlocal due
            n = next(calls)
            # A shard is busy in a transaction of the test, which the second process would wait for in vain.
            if n >= due and not (store.closed or any(shard.busy for shard in store.shards)):
                due = n + 1 + n // RARER
                self.write(q.path, clock, messages=messages)
            require_open(writing=writing, inside=inside)

        def leave_before() -> None:
            if is_last():
                self.leave()
            close()

        store.require_open = write_before  # type: ignore[method-assign]
        q._storage.require_open = write_before  # type: ignore[misc]
        store.close = leave_before  # type: ignore[method-assign]


# ---- in the second process


class CopiedClock:
    """The clock of the test, as of the last command."""

    def __init__(self) -> None:
        self.times: tuple[Any, ...] = (0, 0, "")

    def wall(self) -> int:
        return int(self.times[0])

    def boot(self) -> int:
        return int(self.times[1])

    def boot_id(self) -> str:
        return str(self.times[2])


def _life(q: Queue, keys: Sequence[str]) -> None:
    q.send_many([Message(b"", key=key) for key in keys])
    q.ack_many(_receive(q, keys))


def _retry(q: Queue, keys: Sequence[str]) -> None:
    q.send_many([Message(b"", key=key, headers={"n": "1"}) for key in keys])
    for d in _receive(q, keys):
        d.defer(0.0)
    q.ack_many(_receive(q, keys))


def _transact(q: Queue, keys: Sequence[str]) -> None:
    for key, following in zip(keys, [*keys[1:], keys[0]], strict=True):
        with q.transaction(key=key) as tx:
            tx.key_state = b"state"
            tx.send(b"", following)
    q.ack_many(_receive(q, keys))


def _hold(q: Queue, keys: Sequence[str]) -> None:
    for key in keys:
        q.hold(key)
        assert q.release(key)


def _write_rows(q: Queue, keys: Sequence[str]) -> None:
    q.app_schema("CREATE TABLE IF NOT EXISTS app_second_process (n INTEGER PRIMARY KEY) STRICT")
    for key in keys:
        with q.transaction(key=key) as tx:
            tx.execute("INSERT INTO app_second_process DEFAULT VALUES")


def _receive(q: Queue, keys: Sequence[str]) -> list[Delivery]:
    # One by one: a receive from several shards skips those that the test's process is writing to.
    batch = [d for key in keys for d in q.receive(1, keys=[key], lease_seconds=LEASE_SECONDS)]
    assert len(batch) == len(keys), "a thread of the test received one; mark the test with own_messages"
    return batch


Writes = tuple[Callable[[Queue, Sequence[str]], None], ...]
WRITES: Writes = (_life, _hold, _life, _life, _transact, _life, _life, _retry)
WRITES_IF_FULL: Writes = (_transact, _hold)
"""Those that a queue with a maximum depth accepts, however full it is."""
WRITES_WITHOUT_MESSAGES: Writes = (_write_rows,)
"""Those that neither counts nor the history show."""


class Writer:
    """A queue that the second process has open."""

    def __init__(self, path: str, clock: CopiedClock) -> None:
        self.path = path
        self._q = strictq.open(path, clock=clock, create=False)
        self._keys = _a_key_in_each_shard(self._q)
        self._n = 0

    def write(self, *, messages: bool) -> None:
        self._q._storage.refresh_settings()
        config = self._q.config
        if not messages or config.history != "off":
            writes = WRITES_WITHOUT_MESSAGES
        else:
            depths = [config.max_depth, config.max_key_depth, *(limit.max_depth for limit in config.limits)]
            writes = WRITES if depths.count(None) == len(depths) else WRITES_IF_FULL
        writes[self._n % len(writes)](self._q, self._keys)
        self._n += 1

    def close(self) -> None:
        self._q.close()


def _a_key_in_each_shard(q: Queue) -> list[str]:
    found: dict[int, str] = {}
    for n in itertools.count():
        if len(found) == q.shards:
            break
        key = f"second-process-{n}"
        found.setdefault(q._storage.shard_of(encode_key(key)), key)
    return list(found.values())


@attrs.define
class Commands:
    """Executes the commands of the tests."""

    clock: CopiedClock = attrs.field(factory=CopiedClock)
    writer: Writer | None = None

    def write(self, path: str, messages: bool, *times: Any) -> None:
        """Write to the queue at a path, which is opened if necessary."""
        self.clock.times = times
        if self.writer is not None and self.writer.path != path:
            self.leave()
        if self.writer is None:
            self.writer = Writer(path, self.clock)
        self.writer.write(messages=messages)

    def leave(self) -> None:
        """Close the queue."""
        if self.writer is not None:
            writer, self.writer = self.writer, None
            writer.close()


def main(lines: IO[str]) -> None:
    """Execute the command of each line, and answer it with a line: null, or what went wrong."""
    commands = Commands()
    for line in lines:
        verb, *arguments = json.loads(line)
        error = None
        try:
            getattr(commands, verb)(*arguments)
        except Exception:
            error = traceback.format_exc()
        print(json.dumps(error), flush=True)


if __name__ == "__main__":
    with narrow(window=8, step=2):
        main(sys.stdin)
