"""Histories: the calls of many threads and processes to a queue, and its answers.

A call is two events: `Invoke`, recorded before the call, and `Return`, recorded after it. A call without a `Return` (its process
was killed) may or may not have happened. Times are nanoseconds of the clock of the queue's leases, which all processes of a
machine share. The contents of an event depend on its verb:

| verb | items of the Invoke | items of the Return |
|---|---|---|
| send | `Sent`, one per message | `Stored` for each of them, or the name of its error |
| receive | one `Wanted` | `Handed`, one per delivery |
| more | one `Act` | `Handed`, one per delivery |
| ack nack defer reject start extend done release | `Act`, one per delivery | "ok" or an error's name for each, or nothing |
| transact | one `Tx` | nothing |
| hold unhold purge redrive | one `Operated` | nothing |
| reboot | nothing: every lease ends here | nothing |
| final | nothing | `Left`, one per remaining message, and `Effect`, one per effect found |

If a Return has no items, its outcome is that of every item of the Invoke.

A file holds one event per line as JSON, each appended with one write, so that a process can be killed at any point: at most its
last line is torn, and a torn line is ignored.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

OK = "ok"
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode  # json.dumps would make an encoder for each event


class Sent(NamedTuple):
    """A message to send. `mid` names this attempt to send it, and is in its body."""

    key: str
    mid: str
    dedup: str | None = None
    delay: int = 0
    ttl: int | None = None


class Stored(NamedTuple):
    """A receipt."""

    seq: int
    duplicate: bool = False


class Wanted(NamedTuple):
    """The arguments of a receive; `lease` in nanoseconds."""

    lease: int
    ack_first: bool = False
    keys: Sequence[str] | None = None


class Handed(NamedTuple):
    """A delivery. `deadline`: the earliest end of its lease; None: count from the call."""

    key: str
    seq: int
    mid: str
    token: int
    deadline: int | None = None


class Act(NamedTuple):
    """A holder's call. `seq` None: on the whole lease. `arg`: the delay of a nack or a defer, or the length of an extend."""

    key: str
    seq: int | None
    token: int
    arg: int | None = None


class Tx(NamedTuple):
    """A transaction: acks (seq, token) of key if there is a seq, leaves `effect`, sends `sends`."""

    effect: str
    key: str
    seq: int | None
    token: int | None
    sends: Sequence[Sent] = ()


class Operated(NamedTuple):
    """An operator's call on a key (None: on all). `dead`: a purge of dead letters."""

    key: str | None
    seqs: Sequence[int] | None = None
    dead: bool = False


class Left(NamedTuple):
    """A message found at the end: `state` is "pending" or "dead"."""

    state: str
    key: str
    seq: int
    mid: str


class Effect(NamedTuple):
    """How often a transaction's effect was found at the end."""

    effect: str
    times: int


@attrs.define
class Invoke:
    """A call begins."""

    call: int
    at: int
    process: int
    thread: int
    verb: str
    items: list[Any]


@attrs.define
class Return:
    """A call ends. `outcome` is "ok" or the name of the error that it raised."""

    call: int
    at: int
    verb: str
    outcome: str
    items: list[Any]


Event = Invoke | Return

_ARGUMENTS: dict[str, type[Any]] = {"send": Sent, "receive": Wanted, "transact": Tx} | {
    "hold": Operated,
    "unhold": Operated,
    "purge": Operated,
    "redrive": Operated,
}
_RESULTS: dict[str, type[Any]] = {"send": Stored, "receive": Handed, "more": Handed}


if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> int:
        """Return nanoseconds on the clock of the leases."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:

    def now() -> int:
        """Return nanoseconds on the clock of the leases."""
        return time.monotonic_ns()


class Recorder:
    """Records the history of one process. Thread-safe.

    An event is written to the kernel before its call begins, so that it survives a kill.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Record to a file.

        Args:
            path: the file to append to. None: keep the events in `events`.
        """
        self.events: list[Event] = []
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = 0
        self._calls = itertools.count()

    def invoke(self, verb: str, items: Iterable[Any] = ()) -> int:
        """Record that a call begins. Return the number to pass to `result`."""
        process = os.getpid()
        if process != self._process:  # the first call, or the first after a fork
            self._process, self._calls = process, itertools.count(secrets.randbits(40) << 22)
        call = next(self._calls)
        self._put(Invoke(call, now(), process, threading.get_ident(), verb, list(items)))
        return call

    def result(self, call: int, verb: str, outcome: str = OK, items: Iterable[Any] = ()) -> None:
        """Record that it ended."""
        self._put(Return(call, now(), verb, outcome, list(items)))

    def _put(self, event: Event) -> None:
        if self._file is None:
            self.events.append(event)
            return
        line = encode(event)
        if os.write(self._file, line) != len(line):
            raise OSError("the history could not be written in one piece")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def encode(event: Event) -> bytes:
    if isinstance(event, Invoke):
        row = [0, event.call, event.at, event.process, event.thread, event.verb, event.items]
    else:
        row = [1, event.call, event.at, event.verb, event.outcome, event.items]
    return _encode(row).encode() + b"\n"


def decode(line: bytes) -> Event:
    """Decode a line.

    Raises:
        ValueError: it is not an event.
    """
    match json.loads(line):
        case [0, int() as call, int() as at, int() as process, int() as thread, str() as verb, list() as items]:
            return Invoke(call, at, process, thread, verb, _typed(_ARGUMENTS.get(verb, Act), items))
        case [1, int() as call, int() as at, str() as verb, str() as outcome, list() as items]:
            if verb == "final":
                return Return(call, at, verb, outcome, [Left(*i) if len(i) == 4 else Effect(*i) for i in items])
            return Return(call, at, verb, outcome, _typed(_RESULTS.get(verb), items))
    raise ValueError(f"not an event: {line[:80]!r}")


def _typed(shape: type[Any] | None, items: list[Any]) -> list[Any]:
    if shape is None:
        return items
    if shape is Tx:
        return [shape(*item[:4], [Sent(*sent) for sent in item[4]]) for item in items]
    return [shape(*item) if isinstance(item, list) else item for item in items]


def write(path: Path, events: Iterable[Event]) -> None:
    with path.open("ab") as file:
        file.writelines(map(encode, events))


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a file. What follows its last newline was torn by a kill and is ignored.

    Raises:
        ValueError: an earlier line is not an event.
    """
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    for line in whole.splitlines():
        yield decode(line)


def read_all(directory: Path) -> list[Event]:
    """Return the events of every file in a directory."""
    return [event for path in sorted(directory.glob("*.jsonl")) for event in read(path)]
