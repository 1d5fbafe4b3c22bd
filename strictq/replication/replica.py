"""A living replica: a server that receives a queue's segments over TCP, and keeps a copy that can be read and promoted.

A connection is opened by an HTTP request with the token. No received data is unpickled or executed, and peers send shard numbers,
never file names.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import socket
import ssl
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from .._net import error_frames, transport
from .._net.admission import TokenServer
from .._net.frames import FrameHandler
from .._platform.clock import Clock, SystemClock
from .._values.errors import InvalidArgument, StoreBusy, StrictqError
from .._values.stats import ReplicaProof
from .adopting import move_aside
from .keys import read_key
from .membership import Votes, answer_values, message_from, number
from .places import replica_at
from .proving import Proving
from .received import ReceivedSegments
from .remote import AFTER, BEAT, CLAIM, FRAMES, HEAD, SEGMENT, VOTE, ReplicaTarget
from .replica_home import ReplicaState, given_path, promotion_wanted
from .replica_log import position_of
from .segment import SEGMENT_BYTES_MAX, header_values
from .target import Beat
from .voting import Question, Vote

SMALL_BYTES_MAX: Final = 1 << 16
POLL_SECONDS: Final = 0.1
WHAT: Final = "the replica"
_NUMBER: Final = re.compile(r"-1|[0-9]{1,16}")
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_KEY_ID: Final = re.compile(r"[0-9a-f]{0,64}")


class ReplicaServer(TokenServer):
    """A server for one replica, on a socket that is already open."""

    def __init__(self, listening: socket.socket, replica: Replica, token: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(listening, ReplicaHandler, token, tls)
        self.replica = replica
        self._connected: set[socket.socket] = set()
        self._connecting = threading.Lock()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._connecting:
            self._connected.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._connecting:
                self._connected.discard(request)

    def service_actions(self) -> None:
        """Also release the replica if a process wants to promote it."""
        super().service_actions()
        self.replica.tend()

    def disconnect(self) -> None:
        """Close all connections."""
        with self._connecting:
            for connection in self._connected:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ReplicaHandler(FrameHandler):
    """One connection of a primary, or of another replica."""

    server: ReplicaServer
    opening = FRAMES
    bytes_max = MappingProxyType({"POST": SMALL_BYTES_MAX, "PUT": SEGMENT_BYTES_MAX})

    def answered(self, target: str, body: bytes) -> tuple[HTTPStatus, bytes]:
        method, _, path = target.partition(" ")
        try:
            found = {"GET": self._asked, "POST": self._small, "PUT": self._segment}.get(method, _unknown)(path, body)
        except Exception as e:
            if not isinstance(e, StrictqError):
                traceback.print_exception(e)
            return HTTPStatus.UNPROCESSABLE_ENTITY, error_frames.encode(e, WHAT)[: error_frames.ERROR_BYTES_MAX]
        if found is None:
            return HTTPStatus.NOT_FOUND, b""
        return HTTPStatus.OK, found if isinstance(found, bytes) else json.dumps(found).encode()

    def _asked(self, path: str, _body: bytes) -> dict[str, Any] | bytes | None:
        if path.startswith(AFTER):
            after = path.removeprefix(AFTER)
            return self.server.replica.receiving().after(int(after)) if _NUMBER.fullmatch(after) else None
        if path != HEAD:
            return None
        receiving = self.server.replica.receiving()
        head = receiving.head()
        complete = None if head is None or head.complete is None else header_values(head.complete)
        return receiving.status() | {"n": -1 if head is None else head.n, "hash": head and head.hash, "complete": complete}

    def _small(self, path: str, body: bytes) -> dict[str, Any] | None:
        if path == VOTE:
            return answer_values(self.server.replica.answered(message_from(body)))
        if path not in (CLAIM, BEAT):
            return None
        receiving = self.server.replica.receiving()
        try:
            said = json.loads(body)
            queue_id, history_id = _name(said["queue_id"], _ID), _name(said["history_id"], _ID)
            if path == CLAIM:
                receiving.claim(queue_id, history_id, _name(said["key_id"], _KEY_ID))
            else:
                term, x, generation = (number(said[name]) for name in ("term", "x", "generation"))
                receiving.beat(Beat(queue_id, history_id, term, x, said["confirmed"] is True, generation))
        except (ValueError, TypeError, LookupError, RecursionError) as e:
            if isinstance(e, StrictqError):
                raise
            raise InvalidArgument("the replica can't read this request") from e
        return {}

    def _segment(self, path: str, body: bytes) -> dict[str, Any] | None:
        number = path.removeprefix(SEGMENT)
        if not path.startswith(SEGMENT) or not _NUMBER.fullmatch(number) or number == "-1":
            return None
        self.server.replica.receiving().put(int(number), body)
        return {}


def _unknown(_path: str, _body: bytes) -> None:
    """Answer a request with an unknown method: there is nothing."""


def _name(value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError
    return value


class Replica:
    """A replica that receives until this object is closed. The queue that ships to it is on another host.

    ```
    with strictq.Replica("orders.replica", listen="10.0.0.2:7400", token_file="token", certificate="replica.pem") as replica:
        replica.wait()
    ```

    A replica belongs to one history of one queue: the first that ships to it. It can be read with
    `strictq.open(path, read_only=True)` while it receives. `strictq.promote` makes it a queue. From then on, a queue that ships
    to it is refused with Fenced.

    Args:
        path: its directory, created if it is missing. An existing one must be empty or a replica.
        listen: "HOST:PORT". Port 0: any free port, see `address`.
        token_file: a file with the token that a primary must send: 16 to 512 letters, digits and `._~+/=-`.
        certificate: a PEM file with its certificate and the intermediate ones. Enables TLS.
        private_key: a PEM file with its unencrypted key; None: the key is in `certificate`.
        plaintext: allow receiving without TLS from other machines, for a private network.
        key_file: the key file that was passed to `configure_replication`, if any.
        queue_id: the id of the only queue that may ship to it; None: the first queue that ships to it.
        forward_to: "tcps://HOST:PORT" or "tcp://HOST:PORT": forward to this replica, which has the same token and key file. In
            confirmed mode, nothing is confirmed before that replica has it.
        authority: a PEM file with the CA certificates for the next replica's; None: the system's trusted CAs.
        verify_seconds: the time between two proofs that it can be promoted, at least 1. The first is a minute after the start at
            the latest. It promotes and checks a copy, which needs the queue's size on its disk. See `proof`.
        rejoin: if the path is a queue whose replica was promoted, move it to `*.diverged-TERM` first, and start empty.
    Raises:
        InvalidArgument: an argument is invalid, or the path has other contents; nothing was changed.
        ConfigError: the address or a file can't be used; nothing was changed.
        StoreBusy: another process receives for it.
        ReplicaGap, StoreCorrupt: its data is damaged; nothing was changed.
    Source: docs/howto/replication.md
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        listen: str = "127.0.0.1:0",
        token_file: str | os.PathLike[str],
        certificate: str | os.PathLike[str] | None = None,
        private_key: str | os.PathLike[str] | None = None,
        plaintext: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        queue_id: str | None = None,
        forward_to: str | None = None,
        authority: str | os.PathLike[str] | None = None,
        verify_seconds: float = 3600.0,
        rejoin: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._path = given_path(path, "path must be the replica's directory")
        if queue_id is not None and (not isinstance(queue_id, str) or not queue_id):
            raise InvalidArgument(f"queue_id must be a queue's id, not {queue_id!r}")
        if (
            isinstance(verify_seconds, bool)
            or not isinstance(verify_seconds, int | float)
            or not 1.0 <= verify_seconds < math.inf
        ):
            raise InvalidArgument(f"verify_seconds must be a number of seconds from 1 on, not {verify_seconds!r}")
        host, port = transport.host_and_port("listen", listen)
        transport.require_protected(WHAT, host, tls=certificate is not None, plaintext=plaintext)
        if certificate is None and private_key is not None:
            raise InvalidArgument("private_key needs a certificate")
        token = transport.read_token(token_file)
        tls = None
        if certificate is not None:
            tls = transport.server_context(*transport.certified(WHAT, certificate, private_key, None)[0])
        self._key = b"" if key_file is None else read_key(key_file)
        self._next = self._next_of(forward_to, token_file, authority, plaintext=plaintext)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._closed = False
        self._moved = move_aside(self._path) if rejoin else None
        self._receiving: ReceivedSegments | None = self._began(queue_id)
        try:
            self._proving = Proving(self._path, self._key, self._clock, verify_seconds)
            self._listening = transport.listen(WHAT, host, port)
            self._server = ReplicaServer(self._listening, self, token, tls)
            self._thread = threading.Thread(
                target=self._server.serve_forever, args=(POLL_SECONDS,), name="strictq-receiving", daemon=True
            )
            self._thread.start()
        except BaseException:
            self._receiving.close()
            raise
        self._address = transport.address(host, self._listening.getsockname()[1])

    def _began(self, queue_id: str | None = None) -> ReceivedSegments:
        return ReceivedSegments(self._path, self._clock, key=self._key, queue_id=queue_id, next_replica=self._next())

    def _next_of(
        self, name: str | None, token: str | os.PathLike[str], authority: str | os.PathLike[str] | None, *, plaintext: bool
    ) -> Callable[[], ReplicaTarget | None]:
        """Return a function that returns the next replica, or None."""
        if name is None:
            if authority is not None:
                raise InvalidArgument("authority needs forward_to")
            return lambda: None
        reach = functools.partial(
            replica_at, name, token_file=token, authority=authority, key=self._key, plaintext=plaintext
        )  # fmt: skip
        reach()  # raises if an argument is invalid
        return reach

    @property
    def path(self) -> str:
        """The replica's directory."""
        return str(self._path)

    @property
    def moved_aside(self) -> str | None:
        """With `rejoin`, the new path of the queue that was moved aside; None: there was none."""
        return None if self._moved is None else str(self._moved)

    @property
    def address(self) -> str:
        """The address at which it listens, "HOST:PORT"."""
        return self._address

    @property
    def promoted(self) -> bool:
        """Whether it was promoted to a queue."""
        return ReplicaState.read(self._path).role != "replica"

    @property
    def error(self) -> str | None:
        """The error that prevents applying, forwarding or a promotion, or None. It goes on receiving."""
        receiving = self._receiving
        return None if receiving is None else receiving.trouble or self._unproven(receiving)

    def _unproven(self, receiving: ReceivedSegments) -> str | None:
        error = self._proving.last.error
        return None if error is None or receiving.state.role != "replica" else f"it could not be promoted: {error}"

    @property
    def proof(self) -> ReplicaProof:
        """When it last proved that it can be promoted, and the error if it could not be."""
        return self._proving.last

    def answered(self, message: Question) -> Vote:
        """Return the voter's answer, for the server."""
        receiving = self._receiving
        if receiving is not None and receiving.state.role == "replica":
            return receiving.answered(message)
        return Votes(self._path).answered(message, lambda: position_of(self._path, self._key))

    def receiving(self) -> ReceivedSegments:
        """Return the object that accepts segments, for the server.

        Raises:
            StoreBusy: it is being promoted.
        """
        receiving = self._receiving
        if receiving is None:
            raise StoreBusy("the replica is being promoted", shard=-1)
        return receiving

    def tend(self) -> None:
        """Release the directory if a process wants to promote it, reopen it after that, and prove that it can be promoted.

        Called by the server.
        """
        with self._lock:
            if self._closed:
                return
            receiving = self._receiving
            if receiving is not None:
                if receiving.state.role == "replica" and promotion_wanted(self._path):
                    self._receiving = None
                    self._proving.end()
                    with suppress(StrictqError, OSError):  # the server goes on, for the next round
                        receiving.close()
                elif receiving.state.role == "replica":
                    self._proving.tend(receiving)
            elif not promotion_wanted(self._path):
                with suppress(StrictqError, OSError):  # the promoting process has not released it yet; the next round tries again
                    self._receiving = self._began()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is closed, for at most `seconds`. Return whether it is closed."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop receiving. Confirmed changes stay, and shipping continues when it is opened again. Closing twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            receiving, self._receiving = self._receiving, None
        self._proving.end()
        if receiving is not None:
            receiving.close()
        self._server.shutdown()
        self._server.disconnect()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Replica {self._path} at {self._address}{', closed' if self._closed else ''}>"
