"""The protocol of the adapters, through which queues are compared.

An adapter uses its peer in the documented way with the best known settings, at the requested durability, and reads the settings
back from the connection that it uses, because defaults differ.
"""

from __future__ import annotations

import importlib.metadata
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import attrs

from benchmarks.measure import Durability, resident_mib, written_bytes
from strictq import Clock

Feature = Literal[
    "order per key",
    "ack",
    "nack",
    "lease",
    "fencing",
    "attempts",
    "dead letters",
    "redrive",
    "dedup",
    "atomic hand-on",
    "several processes",
]
"""Features that a program with order per key may need. An adapter names those that its peer documents."""

FEATURES: Final[dict[Feature, str]] = {
    "order per key": "no second consumer is given a later message of a key that is in hand",
    "ack": "a message stays until it is acknowledged, also where its consumer dies",
    "nack": "a message can be given back",
    "lease": "a call, or time alone, gives what was held too long to another consumer",
    "fencing": "a consumer that lost its message can change nothing any more",
    "attempts": "attempts count starts of a handler, not deliveries",
    "dead letters": "a message can be put aside as failed",
    "redrive": "what was put aside can be put back",
    "dedup": "a send that is repeated under the same id is stored once",
    "atomic hand-on": "an ack and a send commit together",
    "several processes": "several processes may use one queue",
}

SYNCHRONOUS: Final[dict[Durability, str]] = {"full": "FULL", "process": "NORMAL"}
"""SQLite's level for each durability in WAL mode: an fsync in every commit, or none."""
SYNCHRONOUS_NAMES: Final = ("OFF", "NORMAL", "FULL", "EXTRA")

BUSY_SECONDS: Final = 60.0
"""Seconds that a peer on SQLite may wait for another's lock."""


class NotOffered(Exception):
    """The peer has no documented way to do this."""


@attrs.frozen(kw_only=True)
class About:
    """Facts about a peer, shown with its figures.

    Attributes:
        distributions: its packages; the first one is its name on the package index.
        sends, receives, acks: how it handles a batch.
        offers: the features in its documentation.
        kind: where it stores its data.
        shared: whether threads share one object, according to its documentation. Otherwise each has its own.
        remark: other important facts.
    """

    name: str
    distributions: tuple[str, ...]
    kind: Literal["strictq", "SQLite", "server", "floor"]
    sends: str
    receives: str
    acks: str
    offers: frozenset[Feature]
    shared: bool = True
    remark: str = ""

    @property
    def lacks(self) -> list[Feature]:
        """The features that it does not offer, in the order of FEATURES."""
        return [f for f in FEATURES if f not in self.offers]

    def versions(self) -> dict[str, str]:
        """Return the versions of its packages.

        Raises:
            importlib.metadata.PackageNotFoundError: a package is not installed.
        """
        return {d: importlib.metadata.version(d) for d in self.distributions}

    def calls(self) -> str:
        """Return how it handles a batch, in one phrase."""
        return f"send {self.sends}, receive {self.receives}, ack {self.acks}"


class Host:
    """The process that keeps a peer's data. A library has none, because its data is in files."""

    def written(self) -> int | None:
        """Return the bytes passed to write() for files so far, by the process that writes them."""
        return written_bytes()

    def processor(self) -> float | None:
        """Return the seconds of processor time so far, of the client and of its server."""
        beside = self.beside()
        return None if beside is None else time.process_time() + beside

    def beside(self) -> float | None:
        """Return the seconds of processor time so far of the server; None if unknown."""
        return 0.0

    def resident(self) -> tuple[float, float] | None:
        """Return the resident memory of the server now and at its peak, MiB; None if there is no server."""
        return None

    def kill(self) -> None:
        """Kill the server with -9 and start it again. Does nothing for a library."""


@attrs.frozen
class Opening:
    """The options with which a peer is opened.

    Attributes:
        directory: an existing directory for this queue alone, initially empty.
        lease_seconds: how long a message may be held, if that is configurable.
        recover: whether this is a restart after a crash, so that held messages may be recovered.
        clock: the clock for strictq; other queues do not support one.
        writers: number of processes that will write batches at once, from which strictq's number of shards follows.
    """

    directory: Path
    durability: Durability
    lease_seconds: float = attrs.field(default=3600.0, kw_only=True)
    recover: bool = attrs.field(default=False, kw_only=True)
    clock: Clock | None = attrs.field(default=None, kw_only=True)
    writers: int = attrs.field(default=1, kw_only=True)


class Peer(ABC):
    """One open queue, or one connection to it."""

    about: ClassVar[About]

    @abstractmethod
    def __init__(self, opening: Opening) -> None:
        """Open it."""

    @classmethod
    @contextmanager
    def hosted(cls, directory: Path, durability: Durability) -> Iterator[Host]:
        """Run the server that the peer needs, if any."""
        del directory, durability
        yield Host()

    @classmethod
    def missing(cls) -> str | None:
        """Return why it cannot run here; None if it can."""
        try:
            cls.about.versions()
        except importlib.metadata.PackageNotFoundError as error:
            return f"the package {error.name} is not installed"
        return None

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """Return the settings that determine its durability, read back from the connection in use."""

    @abstractmethod
    def durable_at(self, settings: dict[str, str]) -> Durability | None:
        """Return the durability of these settings; None if it is neither."""

    @staticmethod
    @abstractmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[Any]:
        """Return messages in the peer's form, from pairs of key and body, before the clock starts."""

    @staticmethod
    @abstractmethod
    def content(handed: Any) -> tuple[str, bytes]:
        """Return key and body of a received message."""

    @abstractmethod
    def send(self, todo: Sequence[Any]) -> None:
        """Send messages. A single one is sent by the call for one."""

    @abstractmethod
    def receive(self, number: int) -> list[Any]:
        """Receive up to `number` messages, without waiting. A single one is received by the call for one."""

    @abstractmethod
    def ack(self, handed: Sequence[Any]) -> None:
        """Ack messages. Does nothing if a receive removes them."""

    def rest(self) -> None:  # noqa: B027 - most have no background work
        """Wait for background work, which is part of its messages' time and must not slow down others."""

    @abstractmethod
    def close(self) -> None:
        """Close it without losing data."""

    # Used by the conformance scenarios only.

    def receive_again(self, number: int) -> list[Any]:
        """Receive up to `number` messages that others held for longer than the lease, in the documented way."""
        raise NotOffered("lease")

    def nack(self, handed: Any) -> None:
        """Nack a message."""
        raise NotOffered("nack")

    def attempt(self, handed: Any) -> int:
        """Return the number of the attempt, from 1."""
        raise NotOffered("attempts")

    def reject(self, handed: Any) -> None:
        """Dead-letter a message."""
        raise NotOffered("dead letters")

    def redrive(self) -> None:
        """Redrive the dead letters."""
        raise NotOffered("redrive")

    def send_once(self, message: Any, dedup_id: str) -> None:
        """Send with a dedup id, so that a repetition is not stored."""
        raise NotOffered("dedup")

    def purge(self) -> None:
        """Delete all waiting messages."""
        raise NotOffered("dedup")

    def finish(self, handed: Any, message: Any, *, fail: bool = False) -> None:
        """Ack one message and send another, atomically. With `fail`, raise ZeroDivisionError before the end."""
        raise NotOffered("atomic hand-on")

    def hand_on(self, message: Any, *, fail: bool) -> None:
        """Receive a message, ack it and send another, atomically, or at least the last two."""
        (handed,) = self.receive(1)
        self.finish(handed, message, fail=fail)


def pragmas(execute: Callable[[str], Any]) -> dict[str, str]:
    """Return the durability settings of an SQLite connection."""
    ((level,),) = list(execute("pragma synchronous"))
    ((mode,),) = list(execute("pragma journal_mode"))
    ((version,),) = list(execute("select sqlite_version()"))
    return {"synchronous": SYNCHRONOUS_NAMES[int(level)], "journal_mode": str(mode), "sqlite": str(version)}


class SqlitePeer(Peer):
    """A peer on SQLite in WAL mode, where the same settings have the same meaning."""

    def durable_at(self, settings: dict[str, str]) -> Durability | None:
        if settings["journal_mode"] != "wal":
            return None
        return next((d for d, level in SYNCHRONOUS.items() if level == settings["synchronous"]), None)


class TakingPeer(SqlitePeer):
    """A peer whose messages are one value, key and body together, and which removes them on receive."""

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[bytes]:
        return [key.encode() + b"\0" + body for key, body in pairs]

    @staticmethod
    def content(handed: bytes) -> tuple[str, bytes]:
        key, _, body = handed.partition(b"\0")
        return key.decode(), body

    def ack(self, handed: Sequence[bytes]) -> None:
        pass


def resident_with(host: Host) -> tuple[float, float] | None:
    """Return the resident memory of this process and of the server, MiB: now, and the sum of the peaks."""
    mine, beside = resident_mib(), host.resident()
    if mine is None or beside is None:
        return mine
    return mine[0] + beside[0], mine[1] + beside[1]
