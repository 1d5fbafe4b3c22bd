"""Living replicas: segments to feed them, processes that receive and are killed, and connections that are cut."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import strictq
from strictq import Queue
from strictq.replication.directory import DirectoryTarget
from strictq.replication.replica_home import ApplyingMark, LastContact
from tests.support.running import PATIENCE_SECONDS, ROOT, until

TOKEN = "correct-horse-battery-staple"
FAST = 0.02
STEPS = ("claimed", "appended", "confirmed", "page", "applied", "synced", "stored", "trimmed")
"""The steps of a replica for each segment."""


def token_file(place: Path) -> Path:
    """Return the file with the token of all replicas here."""
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

RECEIVER = """
import functools, os, signal, sys
import strictq
from strictq.replication import replica as module, replica_log

home, listen, token, step, count, rotate, forward_to = sys.argv[1:]
left = [int(count)]

def kill(name):
    if name == step:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

replica_log.ROTATE_BYTES = int(rotate)
module.ReceivedSegments = functools.partial(module.ReceivedSegments, on_step=kill)
with strictq.Replica(home, listen=listen, token_file=token, forward_to=forward_to or None) as replica:
    print(replica.address, flush=True)
    replica.wait()
"""


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
        self._process = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, home, listen, token_file(home.parent), step, str(count), str(rotate), forward_to],
            stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the replica did not begin"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait until it has ended. Return the signal."""
        code = -self._process.wait(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


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
