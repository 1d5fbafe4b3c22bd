"""A living replica on another host, as its primary uses it: one connection, and one request per segment."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from .._net import error_frames, transport
from .._net.frames import FrameConnection, NotUpgraded
from .._values import hints
from .._values.errors import (
    Diverged,
    Fenced,
    InvalidArgument,
    ReplicaGap,
    SchemaMismatch,
    StrictqError,
    TargetUnavailable,
)
from .keys import key_id
from .membership import answer_from, message_values
from .segment import SEGMENT_BYTES_MAX, header_from
from .target import Beat, ChainHead, ShipTarget, TargetOptions
from .voting import Question, Vote

TIMEOUT_SECONDS: Final = 20.0
"""Seconds to wait for an answer. A replica syncs one segment in this time."""
ANSWER_BYTES_MAX: Final = 4 << 20
_VERSION: Final = "/1/"
FRAMES: Final = _VERSION + "frames"
"""Opens a connection; see strictq/_net/frames.py. The other paths are those of its requests."""
HEAD: Final = _VERSION + "head"
CLAIM: Final = _VERSION + "claim"
BEAT: Final = _VERSION + "beat"
SEGMENT: Final = _VERSION + "segment/"
AFTER: Final = _VERSION + "after/"
VOTE: Final = _VERSION + "vote"
_OURS: Final = (Diverged, Fenced, InvalidArgument, ReplicaGap, SchemaMismatch)
"""Errors of the replica about the chain or the arguments. All others are the replica's own failures, and may be transient."""


class ReplicaTarget(ShipTarget):
    """See ShipTarget.

    Args:
        scheme: "tcp", or "tcps" for TLS.
        token_file: a file with the replica's token, read at the first request.
        authority: a PEM file with the CA certificates for the replica's; "": the system's trusted CAs.
    """

    keeps_segments = False

    def __init__(self, scheme: str, host: str, port: int, key: bytes = b"", *, token_file: str = "", authority: str = "") -> None:
        super().__init__(key)
        self._scheme, self._host, self._port = scheme, host, port
        self._token_file = token_file
        self._authority = authority
        self._connection: FrameConnection | None = None
        self._opening: Callable[[Callable[[], None]], None] = lambda work: work()
        self._on_wait: Callable[[float], object] = lambda _seconds: None
        self._empty = True
        """Whether it had no segments at the last request."""

    @classmethod
    def parsed(cls, scheme: str, rest: str) -> str:
        name = f"{scheme}:{rest}"
        if not rest.startswith("//"):
            raise InvalidArgument(f"{name!r} has no host", hint=hints.TARGET_IS)
        host, port = transport.host_and_port("a replica", rest[2:])
        if not port:
            raise InvalidArgument(f"{name!r} has no port", hint=hints.TARGET_IS)
        return f"{scheme}://{transport.address(host, port)}"

    @classmethod
    def named(cls, name: str, key: bytes, options: TargetOptions) -> ReplicaTarget:
        scheme, _, rest = name.partition("://")
        host, port = transport.host_and_port("a replica", rest)
        return cls(scheme, host, port, key, token_file=options.token_file, authority=options.authority)

    def __str__(self) -> str:
        return f"{self._scheme}://{transport.address(self._host, self._port)}"

    def bound(self, opening: Callable[[Callable[[], None]], None], on_wait: Callable[[float], object]) -> None:
        """Bound the waits for it.

        Args:
            opening: makes the calls that open a connection: they look up the host's name, which has no time limit.
            on_wait: called several times per second during a request, with the seconds since its last bytes were sent. An
                exception from it ends the wait.
        """
        self._opening, self._on_wait = opening, on_wait

    # ---- identity

    def prepare(self, _queue: Path) -> None:
        self.reach()

    def identity(self) -> dict[str, Any] | None:
        found = self._ask("GET", HEAD)
        if not found.get("history_id"):
            return None
        self._empty = found.get("n", -1) == -1
        return {name: str(found.get(name, "")) for name in ("queue_id", "history_id", "key_id", "elected")}

    def require(self, identity: dict[str, Any], found: dict[str, Any] | None = None) -> None:
        found = self.identity() if found is None else found
        if found is not None and (self._empty or found.get("elected") == identity["history_id"]):
            # After an interrupted configuration, the replica lets the queue claim it again if nothing was shipped. So does a
            # member of the chain that has elected this queue.
            found = found | {"history_id": identity["history_id"]}
        super().require(identity, found)

    def claim(self, identity: dict[str, Any]) -> None:
        self._take(identity | ({"key_id": key_id(self.key)} if self.key else {}))

    def _take(self, identity: dict[str, Any]) -> None:
        said = {"queue_id": identity["queue_id"], "history_id": identity["history_id"], "key_id": identity.get("key_id", "")}
        self._ask("POST", CLAIM, json.dumps(said).encode())

    def is_write_once(self) -> bool:
        return True

    # ---- the chain

    def reach(self) -> None:
        self._ask("GET", HEAD)

    def head(self) -> ChainHead | None:
        found = self._ask("GET", HEAD)
        try:
            n, digest, complete = int(found["n"]), str(found["hash"] or ""), found["complete"]
            if n < 0:
                return None
            return ChainHead(n, digest, None if complete is None else header_from(complete, int(complete["n"])))
        except (ValueError, TypeError, LookupError, ReplicaGap) as e:
            raise self._stranger("its answer is invalid") from e

    def put(self, n: int, data: bytes) -> None:
        self._ask("PUT", f"{SEGMENT}{n}", data)

    def beat(self, beat: Beat) -> None:
        self._ask("POST", BEAT, json.dumps(beat._asdict()).encode())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        """Make a request of another thread fail now."""
        sock = getattr(self._connection, "sock", None)
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    # ---- questions to the members of a chain

    def vote(self, message: Question) -> Vote:
        """Ask the replica's voter, and return its answer.

        Raises:
            TargetUnavailable: there is no valid answer. It may have voted.
        """
        found = self._ask("POST", VOTE, json.dumps(message_values(message)).encode())
        try:
            return answer_from(found)
        except (ValueError, TypeError, LookupError) as e:
            raise self._stranger("its answer is invalid") from e

    def fetch(self, n: int) -> bytes:
        """Return the concatenated segments of its log after this one; b"": it does not have the next one.

        Raises:
            TargetUnavailable: it does not answer.
        """
        with self.reached("it can't be reached"):
            status, answer = self._answer("GET", f"{AFTER}{n}", b"", SEGMENT_BYTES_MAX)
        if status == HTTPStatus.OK:
            return answer
        self._require_json(status, answer)
        raise self._stranger(f"it answered with status {status}")

    # ---- one request

    def _ask(self, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        """Make a request, and return its answer.

        Raises:
            TargetUnavailable: it does not answer, refuses the token, or has no free connection.
            Diverged, Fenced, InvalidArgument, ReplicaGap, SchemaMismatch: raised by the replica.
        """
        with self.reached("it can't be reached"):
            status, answer = self._answer(method, path, body)
        found = self._require_json(status, answer)
        if found is None:
            raise self._stranger(f"it answered with status {status}")
        return found

    def _require_json(self, status: int, answer: bytes) -> dict[str, Any] | None:
        """Return the decoded answer, or raise the error in it; None: it has neither."""
        try:
            if status == HTTPStatus.OK:
                found = json.loads(answer)
                return found if isinstance(found, dict) else None
            if status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise self._said(error_frames.decode(answer))
        except (ValueError, TypeError, LookupError, RecursionError) as e:
            if isinstance(e, StrictqError):
                raise
            raise self._stranger("its answer is invalid") from e
        return None

    def _answer(self, method: str, path: str, body: bytes, most: int = ANSWER_BYTES_MAX) -> tuple[int, bytes]:
        """Return status and body. Reconnect if the replica closed the connection, because every request may be repeated."""
        fresh = self._connection is None
        try:
            return self._once(method, path, body, most)
        except BaseException as e:
            self.close()
            closed = isinstance(e, OSError | http.client.HTTPException) and not isinstance(e, TimeoutError | ssl.SSLError)
            if fresh or not closed:
                raise
        try:
            return self._once(method, path, body, most)
        except BaseException:
            self.close()
            raise

    def _once(self, method: str, path: str, body: bytes, most: int) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._unopened()
            self._opening(self._connection.open)
        return self._connection.ask(f"{method} {path}", body, most)

    def _unopened(self) -> FrameConnection:
        admission = {"Authorization": f"Bearer {transport.read_token(self._token_file)}"}
        if self._scheme != "tcps":
            http_ = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        else:
            context = transport.client_context(self._authority or None)
            http_ = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)
        return FrameConnection(http_, FRAMES, admission, self._on_wait)

    def _said(self, error: StrictqError) -> StrictqError:
        if isinstance(error, _OURS):
            return error
        return TargetUnavailable(f"{self}: {Exception.__str__(error)}", str(self), hint=error.hint or None)

    def _stranger(self, why: str) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self} is not a replica of this version of strictq: {why}", str(self), hint=hints.SAME_RELEASE, transient=False
        )

    def translated(self, what: str, error: Exception) -> StrictqError | None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return TargetUnavailable(
                f"{self}: its certificate is not accepted: {error.verify_message}", str(self),
                hint=hints.CERTIFICATE_OF_REPLICA, transient=False,
            )  # fmt: skip
        if isinstance(error, NotUpgraded):
            if error.status == HTTPStatus.UNAUTHORIZED:
                return TargetUnavailable(f"{self} does not accept this token", str(self), hint=hints.TOKEN_FILE, transient=False)
            return self._stranger(str(error))
        if isinstance(error, OSError | http.client.HTTPException):
            detail = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return TargetUnavailable(f"{self}: {what}: {detail}", str(self), hint=hints.REPLICA_RUNS)
        return None
