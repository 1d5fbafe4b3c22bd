"""Requests of the SDK to an endpoint without TLS, over connections of its own.

The SDK's own way to a connection, through urllib3, takes as long as all the rest of a request. Proxies and TLS are left to it.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

SCHEME: Final = "http://"


class PlainHttp:
    """Connections to one endpoint, which any number of threads share. `send` is a handler of the SDK's event before-send."""

    def __init__(self, endpoint: str, *, connect_seconds: float, read_seconds: float) -> None:
        """
        Args:
            endpoint: "http://", host and port.
        """
        self._endpoint = endpoint
        self._netloc = endpoint.removeprefix(SCHEME)
        host, _, port = self._netloc.rpartition(":") if not self._netloc.endswith("]") else ("", "", "")
        self._address = (host or self._netloc).strip("[]"), int(port) if host else 80
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._closed = False

    def send(self, request: Any, **_: Any) -> Any:
        """Send a prepared request. Return its answer; None: it goes elsewhere.

        Raises:
            botocore.exceptions.HTTPClientError: there is no answer.
        """
        from botocore import exceptions as sdk
        from botocore.awsrequest import AWSResponse

        url = request.url
        path = url.removeprefix(self._endpoint)
        if path is url or not path.startswith("/"):
            return None
        body = request.body or b""
        lines = [f"{request.method} {path} HTTP/1.1", f"Host: {self._netloc}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value.decode() if isinstance(value, bytes) else value}" for name, value in request.headers.items()]
        head = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
        try:
            connection = self._taken() or self._connected()
        except TimeoutError as e:
            raise sdk.ConnectTimeoutError(endpoint_url=url, error=e) from e
        except OSError as e:
            raise sdk.EndpointConnectionError(endpoint_url=url, error=e) from e
        keeps = False
        try:
            connection.sendall(head + (body.encode() if isinstance(body, str) else body))
            with HTTPResponse(connection, method=request.method) as answer:
                answer.begin()
                content = answer.read()
                keeps = not answer.will_close
        except TimeoutError as e:
            raise sdk.ReadTimeoutError(endpoint_url=url, error=e) from e
        except (HTTPException, OSError) as e:
            raise sdk.ConnectionClosedError(endpoint_url=url, error=e, request=request) from e
        finally:
            self._returned(connection, keeps)
        return AWSResponse(url, answer.status, answer.headers, _Content(content))

    def close(self) -> None:
        """Close the connections. Those of running requests are closed when these end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(self._address, self._connect_seconds)
        connection.settimeout(self._read_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def _taken(self) -> socket.socket | None:
        """Return a connection that the endpoint has not closed; None: there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if not poll.poll(0):  # what can be read between two requests is the connection's end
                return connection
            connection.close()

    def _returned(self, connection: socket.socket, keeps: bool) -> None:
        with self._lock:
            if keeps and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


class _Content:
    """The content of an answer, as the SDK reads it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content
