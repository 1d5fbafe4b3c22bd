"""What a queue must be able to do to be compared: the protocol behind which every adapter stands.

An adapter gives its peer the documented idiom and the best settings known, at the durability asked for, and reads the settings
back from the connection it uses, because defaults differ.
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
"""What a program that needs order per key may ask of its queue, as one word each. An adapter names what its peer documents."""

FEATURES: Final[dict[Feature, str]] = {
    "order per key": "no second consumer is given a later message of a key that is in hand",
    "ack": "a message stays until it is acknowledged, also where its consumer dies",
    "nack": "a message can be given back",
    "lease": "a call, or time alone, gives what was held too long to another consumer",
    "fencing": "a consumer that lost its message can change nothing any more",
    "attempts": "attempts count starts of a handler, not hand-outs",
    "dead letters": "a message can be put aside as failed",
    "redrive": "what was put aside can be put back",
    "dedup": "a send that is repeated under the same id is stored once",
    "atomic hand-on": "an ack and a send commit together",
    "several processes": "several processes may use one queue",
}

SYNCHRONOUS: Final[dict[Durability, str]] = {"full": "FULL", "process": "NORMAL"}
"""SQLite's level for each durability, in WAL mode: an fsync in every commit, or none."""
SYNCHRONOUS_NAMES: Final = ("OFF", "NORMAL", "FULL", "EXTRA")

BUSY_SECONDS: Final = 60.0
"""How long a peer on SQLite may wait for another's lock."""


class NotOffered(Exception):
    """The peer has no documented way of doing this."""


@attrs.frozen(kw_only=True)
class About:
    """What has to be said beside a peer's figures.

    Attributes:
        distributions: the packages it is made of; the first one is its name on the package index.
        sends, receives, acks: how a batch is done.
        offers: what its documentation offers.
        kind: where its data lies.
        shared: threads share one object, as its documentation says; else each has its own.
        remark: anything else that a reader has to know.
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
        """What it does not offer, in the order of FEATURES."""
        return [f for f in FEATURES if f not in self.offers]

    def versions(self) -> dict[str, str]:
        """Versions of its packages.

        Raises:
            importlib.metadata.PackageNotFoundError: one is not installed.
        """
        return {d: importlib.metadata.version(d) for d in self.distributions}

    def calls(self) -> str:
        """How a batch is done, in one phrase."""
        return f"send {self.sends}, receive {self.receives}, ack {self.acks}"


class Host:
    """What holds a peer's data while clients come and go. For a library that is nobody: the data lies in files."""

    def written(self) -> int | None:
        """Bytes that were passed to write() for files so far, by the process that writes them."""
        return written_bytes()

    def processor(self) -> float | None:
        """Seconds of processor time so far, of the client and of what it needs beside it."""
        beside = self.beside()
        return None if beside is None else time.process_time() + beside

    def beside(self) -> float | None:
        """Seconds of processor time so far of everything beside the client; None: nobody counts it."""
        return 0.0

    def resident(self) -> tuple[float, float] | None:
        """Resident memory now and at its peak, MiB, of everything beside the client; None: there is nothing beside it."""
        return None

    def kill(self) -> None:
        """kill -9 whatever holds the data, and start it again. For a library its users are all there is."""


@attrs.frozen
class Opening:
    """Where and how a peer is opened.

    Attributes:
        directory: exists, is empty at first, and is this queue's alone.
        lease_seconds: how long a message may be held, where that can be said.
        recover: this is a restart after a crash: what was in hand then may be taken up.
        clock: what strictq goes by instead of the machine's; others know no such thing.
        writers: processes that are going to write in batches at once: strictq's files are as many as it says one should have.
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
        """Run what the peer needs beside its clients."""
        del directory, durability
        yield Host()

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run here; None if it can."""
        try:
            cls.about.versions()
        except importlib.metadata.PackageNotFoundError as error:
            return f"the package {error.name} is not installed"
        return None

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """What makes it durable, read back from the connection in use."""

    @abstractmethod
    def durable_at(self, settings: dict[str, str]) -> Durability | None:
        """The durability these settings amount to; None if to neither."""

    @staticmethod
    @abstractmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[Any]:
        """(key, body) of messages as the peer takes them: built before the clock starts."""

    @staticmethod
    @abstractmethod
    def content(handed: Any) -> tuple[str, bytes]:
        """(key, body) of what was received."""

    @abstractmethod
    def send(self, todo: Sequence[Any]) -> None:
        """Send messages, by the call for one if it is one."""

    @abstractmethod
    def receive(self, number: int) -> list[Any]:
        """Up to so many, by the call for one if it is one; does not wait."""

    @abstractmethod
    def ack(self, handed: Sequence[Any]) -> None:
        """Done with these. Nothing where the receive removed them."""

    def rest(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait for what it still does in the background. It is part of what its messages took, and must not slow others down."""

    @abstractmethod
    def close(self) -> None:
        """Close it; nothing it did is lost."""

    # What only the conformance scenarios ask for.

    def receive_again(self, number: int) -> list[Any]:
        """Up to so many of what others hold for longer than the lease, by the documented way."""
        raise NotOffered("lease")

    def nack(self, handed: Any) -> None:
        """Give it back."""
        raise NotOffered("nack")

    def attempt(self, handed: Any) -> int:
        """Which attempt this is, 1 for the first."""
        raise NotOffered("attempts")

    def reject(self, handed: Any) -> None:
        """Put it aside as failed."""
        raise NotOffered("dead letters")

    def redrive(self) -> None:
        """Put back what was put aside."""
        raise NotOffered("redrive")

    def send_once(self, message: Any, dedup_id: str) -> None:
        """Send under an id, so that a repetition is not stored."""
        raise NotOffered("dedup")

    def purge(self) -> None:
        """Forget everything that waits."""
        raise NotOffered("dedup")

    def finish(self, handed: Any, message: Any, *, fail: bool = False) -> None:
        """Ack it and send another, as one. `fail`: break off with ZeroDivisionError before the end."""
        raise NotOffered("atomic hand-on")

    def hand_on(self, message: Any, *, fail: bool) -> None:
        """Receive one, ack it and send another, as one, or the last two of these."""
        (handed,) = self.receive(1)
        self.finish(handed, message, fail=fail)


def pragmas(execute: Callable[[str], Any]) -> dict[str, str]:
    """What an SQLite connection says of its own durability."""
    ((level,),) = list(execute("pragma synchronous"))
    ((mode,),) = list(execute("pragma journal_mode"))
    ((version,),) = list(execute("select sqlite_version()"))
    return {"synchronous": SYNCHRONOUS_NAMES[int(level)], "journal_mode": str(mode), "sqlite": str(version)}


class SqlitePeer(Peer):
    """A peer on SQLite in WAL mode: the same words mean the same there."""

    def durable_at(self, settings: dict[str, str]) -> Durability | None:
        if settings["journal_mode"] != "wal":
            return None
        return next((d for d, level in SYNCHRONOUS.items() if level == settings["synchronous"]), None)


class TakingPeer(SqlitePeer):
    """One whose messages are one value, key and body together, and which removes what it hands out."""

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
    """Resident memory of this process and of what it needs beside it, MiB: now, and the sum of the peaks."""
    mine, beside = resident_mib(), host.resident()
    if mine is None or beside is None:
        return mine
    return mine[0] + beside[0], mine[1] + beside[1]
