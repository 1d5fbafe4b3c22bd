"""Executors without the queue's files: a block server, which the driver program starts and ends."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from .. import _files as files
from .. import _hints as hints
from .. import _validate as validate
from .._errors import InvalidArgument, QueueNotFound, StoreError, StrictqError
from .._extras import need_spark
from .._net import telling
from .._net.transport import certified, listen, require_token
from .._store.api import Storage
from ..queue import Queue
from . import _block_protocol
from ._block_protocol import Served

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("strictq.spark")

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 60.0
"""A server that lived so long and died has not failed to start."""
RESTARTS_MAX: Final = 10
WHAT: Final = "the block server"
_EVERYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened at
_PROGRAM: Final = "import sys; sys.path[:] = sys.argv[1:]; from strictq.spark._block_server import main; main()"


class BlockServer:
    """A server of one queue, made by `strictq.spark.serve`. A context manager; `close` ends it.

    It is a process of its own, which is started again if it dies. This object keeps the socket: who comes meanwhile waits.
    """

    def __init__(self, served: Served, queue_id: str, listening: socket.socket, tls: tuple[str, str | None] | None) -> None:
        self._served = served
        self._queue_id = queue_id
        self._listening = listening
        self._tls = tls
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        try:
            self._file, self._fd = _publish(served)
        except BaseException:
            self._end(self._process)
            raise
        threading.Thread(target=self._watch, name="strictq-block-server", daemon=True).start()

    @property
    def options(self) -> dict[str, str]:
        """Of a read or a write that goes through the server: `path` and `server`. Neither is a secret."""
        return {"path": self._served.path, "server": str(self._file)}

    @property
    def address(self) -> str:
        """What executors connect to: host and port."""
        return self._served.address

    @property
    def token(self) -> str:
        """What executors show it. Whoever has it may read the queue's messages, and stage rows."""
        return self._served.token

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return self._process.pid

    def close(self) -> None:
        """End the server. Tasks that are reading fail. Again: does nothing."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._end(self._process)
        with suppress(FileNotFoundError):
            self._file.unlink()  # before the port is free: whoever listens there next writes a file of the same name
        os.close(self._fd)
        self._listening.close()

    def __enter__(self) -> BlockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BlockServer of {self._served.path} at {self.address}{', closed' if self._closing.is_set() else ''}>"

    # ---- the process

    def _start(self) -> subprocess.Popen[str]:
        """A process that serves.

        Raises:
            StrictqError: it did not start.
        """
        fd = self._listening.fileno()
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
            # With this program's own search path, whatever has changed it.
            [sys.executable, "-P", "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[fd],
        )  # fmt: skip
        certificate, private_key = self._tls or (None, None)
        config = {
            "fd": fd, "path": self._served.path, "queue": self._queue_id, "token": self._served.token,
            "certificate": certificate, "private_key": private_key, "parent": os.getpid(),
        }  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Timer(START_SECONDS, process.kill)
        overdue.start()
        said = ""
        try:
            with process.stdout, suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(config) + "\n")  # not as an argument: everybody may see those
                process.stdin.flush()
                said = process.stdout.readline()
        finally:
            overdue.cancel()
        if said.strip() != "{}":
            self._end(process)
            if said:
                raise telling.told(said.encode())
            raise StrictqError(f"the block server did not start: it exited with {process.returncode}", hint=hints.SEE_STDERR)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _watch(self) -> None:
        """Start it again where it ends by itself."""
        failures = 0
        began = time.monotonic()
        while True:
            self._process.wait()
            if self._closing.is_set():
                return
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            if failures > RESTARTS_MAX:
                log.error("the block server at %s has died %s times in a row; not restarting it", self.address, failures)
                self._listening.shutdown(socket.SHUT_RDWR)  # refused at once is better than waiting in vain
                return
            log.warning("the block server at %s exited with %s; restarting it", self.address, self._process.returncode)
            # At once the first time; a process that can't live is not to take all of the machine.
            self._closing.wait(0.0 if failures == 1 else min(0.1 * 2**failures, 10.0))
            began = time.monotonic()
            try:
                with self._lock:
                    if self._closing.is_set():
                        return
                    self._process = self._start()
            except (StrictqError, OSError) as e:
                log.warning("the block server at %s could not be started: %s", self.address, e)


def serve(
    queue: Queue | str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    announce: str | None = None,
    token: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    private_key: str | os.PathLike[str] | None = None,
    authority: str | os.PathLike[str] | None = None,
    wait_seconds: float = 60.0,
) -> BlockServer:
    """Serve a queue to Spark executors that do not have its files, as long as this program runs or until `close`.

    ```
    with strictq.spark.serve("orders.strictq", host=spark.conf.get("spark.driver.host")) as server:
        spark.readStream.format("strictq").options(**server.options).option("consumer", "etl").load()
    ```

    The server reads what executors may read (recorded hand-outs, scans of tables) and stages what they write. What leases, acks
    and commits runs on this host as without a server. Each request carries a token; without a certificate it and the messages
    cross the network in the clear.

    Args:
        queue: the directory, or an open Queue. It must be on this host, and so must the Spark driver.
        host: where to listen. Executors on other machines can't reach 127.0.0.1: give this machine's address then.
        port: 0: any that is free. With a port and a token of your own, a server that is started later takes the place of this
            one for queries that are running.
        announce: the host that executors connect to, where it is another than `host`.
        token: 16 to 512 letters, digits and `._~+/=-`; None: a new one of 256 random bits.
        certificate: a PEM file with the server's certificate and those between it and the authority; with it, TLS.
        private_key: a PEM file with its key, not encrypted; None: it is in `certificate`.
        authority: a PEM file with what executors trust; None: the certificate itself.
        wait_seconds: how long an executor tries to reach the server before its task fails, 0 to 86,400.
    Returns:
        The server; `options` goes into reads and writes.
    Raises:
        MissingExtra: pyspark or pyarrow is not installed.
        QueueNotFound, StoreError: there is no queue that could be served.
        InvalidArgument: an argument can never work.
        ConfigError: it can't listen there, or the certificate can't be used.
    Source: docs/howto/spark-cluster.md
    """
    need_spark()
    path = Path(os.path.realpath(queue.path if isinstance(queue, Queue) else queue))
    known = Storage.facts(path)
    if known is None:
        raise QueueNotFound(f"there is no queue at {path}", hint=hints.MAKE_QUEUE)
    validate.whole("port", port, 0, 65_535)
    validate.microseconds("wait_seconds", wait_seconds)
    if wait_seconds > 86_400:
        raise InvalidArgument(f"wait_seconds must be at most 86,400, not {wait_seconds!r}")
    if announce is None and host in _EVERYWHERE:
        raise InvalidArgument(f"executors can't connect to {host!r}", hint=hints.GIVE_ANNOUNCE)
    if token is not None:
        require_token(token)
    if certificate is None and (private_key is not None or authority is not None):
        raise InvalidArgument("private_key and authority need a certificate")
    tls, trusted = (None, None) if certificate is None else certified(WHAT, certificate, private_key, authority)
    listening = listen(WHAT, host, port)
    try:
        port = listening.getsockname()[1]
        token = token or secrets.token_urlsafe(32)
        served = Served(str(path), announce or host, port, token, trusted, float(wait_seconds))
        return BlockServer(served, known.queue_id, listening, tls)
    except BaseException:
        listening.close()
        raise


def _publish(served: Served) -> tuple[Path, int]:
    """Write the file that tells a driver's processes of the server, beside the queue, readable by its owner only.

    It is locked while the server is there: those that killed programs left behind are removed.

    Raises:
        StoreError: it can't be written.
    """
    directory = Path(served.path)
    try:
        for old in directory.glob("server-*.json"):
            _remove_if_dead(old)
        # By its address: queries find a server that takes the place of another one.
        file = directory / f"server-{re.sub('[^A-Za-z0-9.]', '-', served.host)}-{served.port}.json"
        making = directory / f"server-{secrets.token_hex(6)}.tmp"
        fd = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)  # before it has the name by which it may be removed
        _block_protocol.write(fd, served)
        os.rename(making, file)
    except OSError as e:
        raise StoreError(f"{directory} can't be written: {e.strerror or e}", shard=-1, cause=e) from e
    return file, fd


def _remove_if_dead(file: Path) -> None:
    if fcntl is None:
        return
    with suppress(OSError, StoreError):
        fd = files.open_regular(file, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
        finally:
            os.close(fd)
