"""The environment of a scenario: one queue, the processes that use it, and time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import strictq
from benchmarks.measure import Durability, child, report_of
from benchmarks.peers.peer import Host, NotOffered, Opening, Peer
from benchmarks.peers.strict import Strictq

DURABILITY: Final[Durability] = "process"
SHORT_LEASE_SECONDS: Final = 0.3
"""The lease of peers. Their clock cannot be set, so a scenario waits. Leases are only checked in `receive_again`."""
LEASE_SECONDS: Final = 3600.0
"""The lease of strictq, which uses the clock that it is given."""


class ShiftedClock(strictq.SystemClock):
    """The machine's clocks, shifted ahead."""

    def __init__(self) -> None:
        self._ahead = 0

    def wall(self) -> int:
        return super().wall() + self._ahead

    def boot(self) -> int:
        return super().boot() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += round(seconds * 1_000_000)


class Stage:
    """One queue, initially empty."""

    def __init__(self, name: str, kind: type[Peer], directory: Path, host: Host, stack: ExitStack) -> None:
        self.name, self.kind, self.directory, self.host = name, kind, directory, host
        self._stack = stack
        self._clock = ShiftedClock()
        self.lease_seconds = LEASE_SECONDS if issubclass(kind, Strictq) else SHORT_LEASE_SECONDS

    def open(self, *, recover: bool = False) -> Peer:
        """Open one more consumer. It is closed at the end of the stage at the latest."""
        opening = Opening(self.directory, DURABILITY, lease_seconds=self.lease_seconds, recover=recover, clock=self._clock)
        peer = self.kind(opening)
        self._stack.callback(peer.close)
        return peer

    def pass_a_lease(self) -> None:
        """Advance the time by more than a lease."""
        if issubclass(self.kind, Strictq):
            self._clock.advance(self.lease_seconds + 1.0)
        else:
            time.sleep(self.lease_seconds + 0.05)

    @contextmanager
    def process(self, role: str, **arguments: Any) -> Iterator[Any]:
        """Run a process in a role of `benchmarks.child` on this queue."""
        with child(role, peer=self.name, path=self.directory, durability=DURABILITY, **arguments) as process:
            yield process

    def killed_while_holding(self, number: int) -> int:
        """Let a process receive messages, and kill it with -9. Return the number that it held."""
        with self.process("peer-receive", number=number, lease_seconds=self.lease_seconds) as process:
            received = int(report_of(process)["received"])
            process.kill()
            process.wait()
        return received


@contextmanager
def staged(name: str, kind: type[Peer], directory: Path) -> Iterator[Stage]:
    """Create a stage. Everything opened on it is closed at the end."""
    with kind.hosted(directory, DURABILITY) as host, ExitStack() as stack:
        yield Stage(name, kind, directory, host, stack)


def send(peer: Peer, *bodies: str) -> None:
    """Send messages one by one. The first letter of a body is its key."""
    for message in peer.native([(body[0], body.encode()) for body in bodies]):
        peer.send([message])


def texts(peer: Peer, handed: Sequence[Any]) -> list[str]:
    """Return the bodies as text."""
    return [peer.content(h)[1].decode() for h in handed]


def receive_again(peer: Peer, number: int) -> list[Any]:
    """Receive messages that others held for longer than the lease; from a peer without leases, waiting messages."""
    try:
        return peer.receive_again(number)
    except NotOffered:
        return peer.receive(number)


def one_by_one(peer: Peer, most: int = 100) -> list[str]:
    """Receive and ack one by one until none is left. Return the bodies."""
    taken: list[str] = []
    while len(taken) < most and (handed := peer.receive(1)):
        taken += texts(peer, handed)
        peer.ack(handed)
    return taken
