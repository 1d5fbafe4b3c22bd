"""Living replicas: segments to feed them, processes that receive and are killed, and connections that are cut."""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import strictq
from strictq import Queue
from strictq.replication import replica, replica_log
from strictq.replication.directory import DirectoryTarget
from strictq.replication.replica_home import ApplyingMark, LastContact
from tests.support.forked import forked
from tests.support.running import PATIENCE_SECONDS, until

TOKEN = "correct-horse-battery-staple"
FAST = 0.02
STEPS = ("claimed", "appended", "confirmed", "page", "applied", "synced", "stored", "trimmed")
"""The steps of a replica for each segment."""


def token_file(place: Path) -> Path:
    file = place / "token"
    if not file.exists():
        file.write_text(f"{TOKEN}\n", encoding="ascii")
    return file


def segments(target: Path) -> list[bytes]:
    """Return what a queue shipped to a directory."""
    place = DirectoryTarget(target)
    return [place.get(n) for n in place.numbers()]


def bodies(path: Path, key: str = "k") -> list[bytes]:
    """Return the messages of a key, as a read-only view of a replica or a queue shows them. Also checks the queue."""
    with strictq.open(path, read_only=True) as q:
        assert q.check() == []
        return [m.body for m in q.peek(key, 100_000)]


def is_shipped(q: Queue) -> bool:
    """Return whether its target has everything."""
    found = q.replication()
    if found is None or found.segment is None:
        return False
    return found.lag_bytes == 0 and found.last_error is None and not found.lapsed


def ship_to(q: Queue, address: str, token: Path) -> None:
    """Ship there from now on. Return when everything is there."""
    q.configure_replication(f"tcp://{address}", interval_seconds=FAST, token_file=token)
    until(lambda: is_shipped(q))


def until_applied(home: Path, segment: int) -> None:
    """Wait until live/ has this segment."""
    clock = strictq.SystemClock()
    until(lambda: (found := ApplyingMark.read(home, clock)) is not None and found.n >= segment)


def until_level(q: Queue, home: Path) -> None:
    """Wait until the replica has applied everything that the queue has."""
    until(lambda: is_shipped(q))
    found = q.replication()
    assert found is not None
    assert found.segment is not None
    until_applied(home, found.segment)


def forget_contact(home: Path) -> None:
    """Pretend that the primary was last heard of an hour ago."""
    found = LastContact.read(home)
    assert found is not None
    LastContact(found.x, found.boot - 3_600_000_000, found.boot_id, found.wall - 3_600_000_000).write(home)


# ---- processes


def receive(answer: Connection, home: Path, listen: str, step: str, count: int, rotate: int, forward_to: str) -> None:
    """Receive for a replica, for ever or until a step, and answer with the address first."""
    left = count

    def kill(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    replica_log.ROTATE_BYTES = rotate  # type: ignore[misc]
    replica.ReceivedSegments = functools.partial(replica.ReceivedSegments, on_step=kill)  # type: ignore[misc, assignment]
    with strictq.Replica(home, listen=listen, token_file=token_file(home.parent), forward_to=forward_to or None) as receives:
        answer.send(receives.address)
        receives.wait()


class Receiver:
    """A process that receives for a replica until it is killed.

    Args:
        step: it kills itself when it reaches this for the `count`-th time.
        rotate: see ROTATE_BYTES.
        forward_to: the next replica of the chain; "": there is none.
    """

    def __init__(
        self, home: Path, listen: str = "127.0.0.1:0", *, step: str = "", count: int = 1, rotate: int = 64 << 20,
        forward_to: str = "",
    ) -> None:  # fmt: skip
        token_file(home.parent)
        answers, answer = Pipe(duplex=False)
        self._process = forked(None, receive, answer, home, listen, step, count, rotate, forward_to)
        answer.close()
        with answers:
            self.address: str = answers.recv()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait until it has ended. Return the signal."""
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode is not None, "it does not end"
        return -self._process.exitcode


@contextmanager
def receiving(home: Path, listen: str = "127.0.0.1:0", **options: object) -> Iterator[Receiver]:
    """Run a process that is killed at the end of the block, if it still lives."""
    receiver = Receiver(home, listen, **options)  # type: ignore[arg-type]
    try:
        yield receiver
    finally:
        receiver.kill()


# ---- connections


class CuttingProxy:
    """Forwards connections to an address, and cuts each after this many bytes to it."""

    def __init__(self, to: str, after: int) -> None:
        self.after = after
        self.cuts = 0
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._to) as server:
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()
            passed = 0
            while data := client.recv(1 << 16):
                allowed = data[: max(self.after - passed, 0)]
                server.sendall(allowed)
                passed += len(allowed)
                if len(allowed) < len(data):
                    self.cuts += 1
                    break
            server.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _back(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])
