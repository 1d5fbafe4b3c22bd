"""Serve executors without the queue's files: a block server, which the driver program starts and ends."""

from __future__ import annotations

import json
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

from .._client import validate
from .._net import error_frames
from .._net.transport import certified, listen, require_token
from .._platform import files
from .._platform.extras import need_spark
from .._platform.files import real_path
from .._platform.log import Log
from .._store.api import Storage
from .._values import hints
from .._values.errors import InvalidArgument, QueueNotFound, StoreError, StrictqError
from ..queue import Queue
from . import _block_protocol
from ._block_protocol import Served

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

log = Log("strictq.spark")

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 60.0
"""A server that ran at least this long did not fail to start."""
RESTARTS_MAX: Final = 10
WHAT: Final = "the block server"
_EVERYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on
_PROGRAM: Final = "import sys; sys.path[:] = sys.argv[1:]; from strictq.spark._block_server import main; main()"


class BlockServer:
    """A server of one queue, created by `strictq.spark.serve`. A context manager; `close` ends it.

    It is a separate process, which is restarted if it dies. This object keeps the socket, so clients wait meanwhile.
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
        """The options of reads and writes through the server: `path` and `server`. Neither is a secret."""
        return {"path": self._served.path, "server": str(self._file)}

    @property
    def address(self) -> str:
        """The host and port that executors connect to."""
        return self._served.address

    @property
    def token(self) -> str:
        """The token that executors send. It permits reading the queue's messages, and staging rows."""
        return self._served.token

    @property
    def pid(self) -> int:
        """The id of the serving process."""
        return self._process.pid

    def close(self) -> None:
        """End the server. Tasks that are reading fail. Closing twice does nothing."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._end(self._process)
        with suppress(FileNotFoundError):
            self._file.unlink()  # before the port is free, because the next server at this port writes a file with the same name
        os.close(self._fd)
        self._listening.close()

    def __enter__(self) -> BlockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BlockServer of {self._served.path} at {self.address}{', closed' if self._closing.is_set() else ''}>"

    # ---- process

    def _start(self) -> subprocess.Popen[str]:
        """Start a serving process.

        Raises:
            StrictqError: it did not start.
        """
        fd = self._listening.fileno()
        process = subprocess.Popen(  # noqa: S603 - strictq's own interpreter and module, no shell
            # With this program's own search path, including its changes.
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
                process.stdin.write(json.dumps(config) + "\n")  # not as an argument, which every user of the machine can see
                process.stdin.flush()
                said = process.stdout.readline()
        finally:
            overdue.cancel()
        if said.strip() != "{}":
            self._end(process)
            if said:
                raise error_frames.decode(said.encode())
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
        """Restart the process if it ends by itself."""
        failures = 0
        began = time.monotonic()
        while True:
            self._process.wait()
            if self._closing.is_set():
                return
            failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            if failures > RESTARTS_MAX:
                log.error("the block server at %s has died %s times in a row; not restarting it", self.address, failures)
                self._listening.shutdown(socket.SHUT_RDWR)  # refuse connections at once, instead of letting clients wait
                return
            log.warning("the block server at %s exited with %s; restarting it", self.address, self._process.returncode)
            # At once the first time. Then with a growing delay, so that a process that cannot start does not load the machine.
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
    """Serve a queue to Spark executors without its files, until `close` or the end of this program.

    ```
    with strictq.spark.serve("orders.strictq", host=spark.conf.get("spark.driver.host")) as server:
        spark.readStream.format("strictq").options(**server.options).option("consumer", "etl").load()
    ```

    The server reads recorded batches and scans of tables for executors, and stages the rows that they write. Leases, acks
    and commits are done on this host as without a server. Each request carries a token. Without a certificate, the token and
    messages cross the network unencrypted.

    Args:
        queue: the directory, or an open Queue. The queue and the Spark driver must be on this host.
        host: the address to listen on. For executors on other machines, pass this machine's address.
        port: the port to listen on; 0: any free port. With an explicit port and token, a later server can replace this
            one for running queries.
        announce: the host that executors connect to, if it differs from `host`.
        token: 16 to 512 letters, digits and `._~+/=-`; None: a new one of 256 random bits.
        certificate: a PEM file with the server's certificate and the intermediate ones. Enables TLS.
        private_key: a PEM file with its unencrypted key; None: the key is in `certificate`.
        authority: a PEM file with the CA certificates that executors trust; None: the certificate itself.
        wait_seconds: seconds for which an executor tries to reach the server before its task fails, 0 to 86,400.
    Returns:
        The server. Pass its `options` to reads and writes.
    Raises:
        MissingExtra: pyspark or pyarrow is not installed.
        QueueNotFound, StoreError: there is no queue, or it can't be read.
        InvalidArgument: an argument is invalid.
        ConfigError: the address or the certificate can't be used.
    Source: docs/howto/spark-cluster.md
    """
    need_spark()
    path = Path(real_path(validate.path_text(queue.path if isinstance(queue, Queue) else queue, "queue")))
    known = Storage.facts(path)
    if known is None:
        raise QueueNotFound(f"there is no queue at {path}", hint=hints.MAKE_QUEUE)
    validate.whole("port", port, 0, 65_535)
    validate.microseconds("wait_seconds", wait_seconds)
    if wait_seconds > 86_400:
        raise InvalidArgument(f"wait_seconds must be at most 86,400, not {wait_seconds!r}")
    for name, text in (("host", host), ("announce", announce or host)):
        if not isinstance(text, str):
            raise InvalidArgument(f"{name} must be a str, not {type(text).__name__}")
    if announce is None and host in _EVERYWHERE:
        raise InvalidArgument(f"executors can't connect to {host!r}", hint=hints.GIVE_ANNOUNCE)
    if token is not None:
        require_token(token)
    for name, file in (("certificate", certificate), ("private_key", private_key), ("authority", authority)):
        if file is not None:
            validate.path_text(file, name)
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
    """Write the file that describes the server for the driver's processes, in the queue's directory, readable by its owner only.

    It is locked while the server runs. Files left by killed programs are removed.

    Raises:
        StoreError: it can't be written.
    """
    directory = Path(served.path)
    try:
        for old in directory.glob("server-*.json"):
            _remove_if_dead(old)
        # Named by its address, so that queries find a server that replaces another one.
        file = directory / f"server-{re.sub('[^A-Za-z0-9.]', '-', served.host)}-{served.port}.json"
        making = directory / f"server-{secrets.token_hex(6)}.tmp"
        fd = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)  # locked before it has the name by which it may be removed
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
