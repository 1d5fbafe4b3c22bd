"""The application in uvicorn: slow clients, many connections, and stopping."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import strictq
from strictq.cli.serve import _fitting
from strictq.server import running
from strictq.server.app import PARTS
from strictq.server.deadline import ConnectionLimits
from strictq.server.parts import Receive, Scope, Send, respond
from strictq.server.running import HttpServer
from tests.support.asgi import Echo, application
from tests.support.command import in_process, start
from tests.support.running import until

SHORT = ConnectionLimits(request_seconds=0.05, seconds_per_byte=0.0)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with running.running(application(port=0), SHORT) as found:
        yield found


def connected(server: HttpServer) -> socket.socket:
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=30)


def answer_on(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /echo HT",
        b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nhalf",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 99,
    ],
)
def test_a_request_that_does_not_arrive_is_ended(server: HttpServer, sent: bytes) -> None:
    with closing(connected(server)) as client:
        client.sendall(sent)
        assert answer_on(client) == b""
    counters = server.application.context.counters
    until(lambda: counters.connections == 0)
    assert counters.timeouts == 1


def test_endless_bodies_are_ended(server: HttpServer) -> None:
    with closing(connected(server)) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        with pytest.raises(OSError):
            for _ in range(1000):
                client.sendall(piece)


def test_too_many_connections_are_refused() -> None:
    with running.running(application(port=0), ConnectionLimits(connections=2)) as server:
        counters = server.application.context.counters
        with closing(connected(server)), closing(connected(server)):
            until(lambda: counters.connections == 2)
            with closing(connected(server)) as third:
                assert answer_on(third).startswith(b"HTTP/1.1 503 ")
        until(lambda: counters.connections == 0)
        assert counters.connections_refused == 1
        assert urlopen(f"{server.url}/echo").status == 200


class Waiting(Echo):
    """A part whose requests wait until the server drains them."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()

    async def start(self) -> None:
        self._drained = asyncio.Event()

    def drain(self) -> None:
        self._drained.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        self.entered.set()
        await self._drained.wait()
        await respond(send, 200, b"drained")


def test_stopping_answers_what_waits() -> None:
    part = Waiting()
    answers: list[bytes] = []
    with running.running(application(part, port=0)) as server:
        thread = threading.Thread(target=lambda: answers.append(urlopen(f"{server.url}/echo").read()))
        thread.start()
        assert part.entered.wait(30)
    thread.join(30)
    assert answers == [b"drained"]


def test_an_address_in_use_and_a_part_that_does_not_start_are_reported(server: HttpServer) -> None:
    with pytest.raises(strictq.ConfigError, match="can't listen"), running.running(application(port=urlsplit(server.url).port)):
        pass

    class Broken(Echo):
        async def start(self) -> None:
            raise strictq.ConfigError("it cannot start")

    with pytest.raises(strictq.ConfigError, match="it cannot start"), running.running(application(Broken(), port=0)):
        pass


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        with strictq.open(tmp_path / "orders.strictq", durability="process") as q:
            q.send(b"", key="k")
        return tmp_path / "orders.strictq"

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_serves_until_a_signal_and_exits_with_0(self, tmp_path: Path, path: Path, number: int) -> None:
        with start(tmp_path, "serve", "metrics", str(path), "--port", "0", "--json") as process:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            assert started["parts"] == ["metrics"]
            with urlopen(f"{started['url']}/metrics") as answer:
                assert b'strictq_messages{queue="orders",state="ready"} 1\n' in answer.read()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")

    def test_what_cannot_be_served_is_reported(self, tmp_path: Path, path: Path) -> None:
        def error_of(*words: object) -> str:
            result = in_process("serve", *words)
            assert (result.exit_code, result.stdout) == (2, "")
            return result.stderr

        assert "give a directory" in error_of()
        assert "sqs" not in error_of("metrics")
        assert "there is no directory nothing" in error_of("metrics", "nothing")
        assert "metrics has no token" in error_of("metrics", path, "--host", "0.0.0.0", "--port", "0")
        keys = tmp_path / "keys"
        keys.write_text("id secret\n")
        keys.chmod(0o644)
        assert "can be read by other users" in error_of("metrics", path, "--keys-file", keys)
        keys.chmod(0o600)
        keys.write_text("# comment\n\nid\n")
        assert "an access key id and a secret" in error_of("metrics", path, "--keys-file", keys)

    def test_all_is_what_fits_the_directories(self, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        empty = tmp_path / "sqs"
        empty.mkdir()
        assert "sqs" not in _fitting(PARTS, [path], memory=False)
        assert "sqs" not in _fitting(PARTS, [empty, empty], memory=False)
        assert capsys.readouterr().err.count("without the SQS endpoint") == 2
        assert _fitting(PARTS, [empty], memory=False) == _fitting(PARTS, [], memory=True) == list(PARTS)

    def test_a_missing_package_is_named_with_its_extra(self, tmp_path: Path, path: Path) -> None:
        main = "import sys; sys.modules['uvicorn'] = None; from _strictq_command import main; main()"
        with start(tmp_path, "serve", "metrics", str(path), main=main) as process:
            _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert 'pip install "strictq[server]"' in err

    def test_metrics_and_the_console_need_no_botocore(self) -> None:
        program = (
            "import sys; from strictq.server import app, parts, running; "
            "app.parts_of(['metrics', 'console'], parts.ServerContext()); print('botocore' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"
