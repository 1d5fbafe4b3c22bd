"""The block server, asked as executors ask it, without a Spark: what it answers, whom it refuses, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trustme

import strictq
from strictq import (
    ConfigError,
    InvalidArgument,
    Message,
    Queue,
    QueueNotFound,
    ServerRefused,
    ServerUnreachable,
)
from strictq._net import admission
from strictq._store.api import Block
from strictq.spark import BlockServer, _block_client, _block_protocol, _block_server, serve
from strictq.spark._block_protocol import Served
from strictq.spark._recorded_batches import Holder
from tests.support.running import PATIENCE_SECONDS, until

TOKEN = "a-token-of-the-tests"
PAYLOAD = 1000


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "queue", shards=2, durability="process") as q:
        yield q


@pytest.fixture
def server(q: Queue) -> Iterator[BlockServer]:
    with serve(q, token=TOKEN) as server:
        yield server


def known(server: BlockServer, q: Queue, **changes: Any) -> Served:
    """How to reach it, as a driver's process finds out."""
    served = _block_protocol.find(server.options["server"], q.path)
    assert served is not None
    return attrs.evolve(served, **changes)


def record_batch(q: Queue, messages: int = 20) -> tuple[int, list[tuple[int, int, int]], list[bytes]]:
    """A recorded batch: its number, its blocks, and their data. A block says what it is."""

    def encode(leases: Any, shard: int) -> Iterator[Block]:
        for n, held in enumerate(leases):
            yield Block(len(held.rows), True, json.dumps([shard, n, held.key.hex()]).encode() * PAYLOAD)

    q.send_many(Message(b"%d" % n, key=f"k{n}") for n in range(messages))
    held = Holder(q, "etl", encode)
    held.attach()
    n = held.take(held.acked)
    ranges = [(p.shard, p.part, p.part) for p in held.parts(n)]
    held.close()
    from strictq.spark._recorded_batches import read_block

    return n, ranges, [read_block(q, "etl", n, shard, first) for shard, first, _ in ranges]


# ---- connections


@contextmanager
def serving(q: Queue) -> Iterator[tuple[_block_server.Server, Served]]:
    """A server in this process, on every address of this machine, and how to reach it."""
    listening = socket.create_server(("0.0.0.0", 0), backlog=128)
    server = _block_server.Server(listening, q.path, TOKEN, None, os.getppid())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, Served(q.path, "127.0.0.1", listening.getsockname()[1], TOKEN, None, PATIENCE_SECONDS)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def half_open(served: Served, host: str, count: int, sent: bytes = b"POST /1/bl") -> Iterator[list[socket.socket]]:
    """Connections from an address of 127/8 that never show a token."""
    with ExitStack() as stack:
        where = ("127.0.0.1", served.port)
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(where, PATIENCE_SECONDS, source_address=(host, 0)))
            one.sendall(sent)
            found.append(one)
        yield found


def is_open(connection: socket.socket) -> bool:
    """Has the server not closed it?"""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def open_ones(connections: list[socket.socket]) -> int:
    return sum(map(is_open, connections))


def test_a_stranger_is_cut_off(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that shows no token within the time."""
    monkeypatch.setattr(admission, "ADMISSION_SECONDS", 0.0)
    with serving(q) as (_, served), half_open(served, "127.0.0.1", 1) as (connection,):
        assert connection.recv(1) == b""


def test_there_is_a_limit_on_connections(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "CONNECTIONS_MAX", 1)
    with serving(q) as (_, served), half_open(served, "127.0.0.1", 1), half_open(served, "127.0.0.2", 1) as (another,):
        assert another.recv(1) == b""


@pytest.mark.parametrize("client", ["127.0.0.1", "127.0.0.2"], ids=["of the same address", "of another address"])
def test_half_open_connections_do_not_keep_a_client_out(q: Queue, client: str) -> None:
    """More than the server has room for at all; it answers while they are there, and at the first try."""
    n, ranges, data = record_batch(q)
    with serving(q) as (server, served):
        refuse_to_wait = attrs.evolve(served, wait_seconds=0.0, host="127.0.0.1")
        with half_open(served, client, admission.CONNECTIONS_MAX + 20) as connections:
            assert list(_block_client.blocks(refuse_to_wait, q.queue_id, "etl", n, ranges)) == data
            until(lambda: open_ones(connections) <= admission.STRANGERS_PER_ADDRESS, "the limit for an address")
        until(lambda: not server.strangers._waiting, "all of them to be forgotten")


def test_strangers_of_many_addresses_share_a_limit(q: Queue) -> None:
    with serving(q) as (server, served), ExitStack() as stack:
        connections = [one for host in range(2, 12) for one in stack.enter_context(half_open(served, f"127.0.0.{host}", 20))]
        until(lambda: open_ones(connections) <= admission.STRANGERS_MAX, "the limit for all unknown addresses")
        assert len(server.strangers._waiting) <= admission.STRANGERS_MAX


def test_a_known_address_keeps_its_room(q: Queue) -> None:
    """Its connections outlive any number of others, and it may have more of them."""
    n, ranges, data = record_batch(q)
    more = admission.STRANGERS_MAX + 10
    with serving(q) as (_, served):
        assert list(_block_client.blocks(served, q.queue_id, "etl", n, ranges)) == data  # 127.0.0.1 is known from here on
        with half_open(served, "127.0.0.1", more) as ours, ExitStack() as stack:
            theirs = [one for host in range(2, 8) for one in stack.enter_context(half_open(served, f"127.0.0.{host}", 40))]
            until(lambda: open_ones(theirs) <= admission.STRANGERS_MAX, "the limit for all unknown addresses")
            assert open_ones(ours) == more


# ---- a server that is lost


def test_a_killed_server_is_started_again(q: Queue, server: BlockServer) -> None:
    """In the middle of an answer: what is left comes from its successor."""
    n, ranges, data = record_batch(q)
    found: list[bytes] = []
    first = server.pid
    for block in _block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges):
        found.append(block)
        if len(found) == 1:
            os.kill(first, signal.SIGKILL)
    assert found == data
    assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges)) == data
    until(lambda: server.pid != first, "the next process")  # it answers a moment before its program knows


def test_a_server_that_breaks_off_is_asked_for_the_rest(q: Queue) -> None:
    """It answers each request with one block, and drops the connection."""
    asked: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for n in range(4):
                connection, _ = listening.accept()
                with connection, connection.makefile("rb") as file:
                    length = 0
                    while (line := file.readline().strip()) != b"":
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    asked.append(json.loads(file.read(length))["blocks"])
                    frame = _block_protocol.HEAD.pack(_block_protocol.DATA, 1) + b"%d" % n
                    if n == 3:
                        frame += _block_protocol.HEAD.pack(_block_protocol.END, 0)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + frame + b"D"[: n % 2])

        thread = threading.Thread(target=answer)
        thread.start()
        served = Served(q.path, "127.0.0.1", listening.getsockname()[1], TOKEN, None, PATIENCE_SECONDS)
        assert list(_block_client.blocks(served, q.queue_id, "etl", 1, [(0, 4, 6), (1, 1, 1)])) == [b"0", b"1", b"2", b"3"]
        thread.join()
    assert asked == [[[0, 4, 6], [1, 1, 1]], [[0, 5, 6], [1, 1, 1]], [[0, 6, 6], [1, 1, 1]], [[1, 1, 1]]]


def test_a_scan_that_is_broken_off_is_for_spark_to_repeat(q: Queue) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + _block_protocol.HEAD.pack(_block_protocol.DATA, 1) + b"1")

        thread = threading.Thread(target=answer)
        thread.start()
        served = Served(q.path, "127.0.0.1", listening.getsockname()[1], TOKEN, None, PATIENCE_SECONDS)
        found = _block_client.scanned(served, {})
        assert next(found) == b"1"
        with pytest.raises(ServerUnreachable, match="closed the connection"):
            next(found)
        thread.join()


def test_patience_ends(q: Queue, server: BlockServer) -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    served = known(server, q)
    server.close()
    patience = _block_client.ServerPatience(served, lambda: now[0], sleep)
    with pytest.raises(ServerUnreachable, match="did not answer for 60 seconds") as caught:
        list(_block_client.blocks(served, q.queue_id, "etl", 1, [(0, 1, 1)], patience))
    assert caught.value.address == server.address
    assert caught.value.transient
    assert "the program that called strictq.spark.serve is running" in str(caught.value)
    assert sum(slept) == pytest.approx(60.0)
    assert 30 < len(slept) < 120
    assert max(slept) <= _block_client.PAUSE_SECONDS_MAX


def test_a_server_that_can_not_live_is_given_up(
    q: Queue, server: BlockServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from strictq.spark import serving

    monkeypatch.setattr(serving, "RESTARTS_MAX", 1)
    monkeypatch.setattr(serving, "_PROGRAM", "import sys; sys.exit(3)")
    served = known(server, q, wait_seconds=0.0)
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: "not restarting it" in caplog.text, "the log")
    assert "did not start: it exited with 3" in caplog.text
    with pytest.raises(ServerUnreachable, match="ConnectionRefusedError"):
        list(_block_client.blocks(served, q.queue_id, "etl", 1, [(0, 1, 1)]))


def test_it_ends_with_its_program(q: Queue) -> None:
    """Killed with -9, which leaves it no time to end anything."""
    code = "import os, signal, sys, strictq.spark as s; b = s.serve(sys.argv[1]); print(b.pid, b.options['server'], flush=True); "
    done = subprocess.run(
        [sys.executable, "-c", code + "os.kill(os.getpid(), signal.SIGKILL)", q.path],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    pid, file = done.stdout.split()
    until(lambda: not _alive(int(pid)), "its end")
    assert Path(file).exists(), "nobody was left to remove it"
    with serve(q):
        assert not Path(file).exists(), "the next one does"


def _alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


# ---- where it is


def test_the_token_stands_in_one_private_file(q: Queue) -> None:
    with serve(q) as server:
        assert set(server.options) == {"path", "server"}
        file = Path(server.options["server"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.token in file.read_text()
        assert len(server.token) >= 43
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes() + Path(f"/proc/{server.pid}/environ").read_bytes()
        for shown in (repr(server), repr(known(server, q)), str(server.options), command.decode(errors="replace")):
            assert server.token not in shown
        other = [p for p in Path(q.path).iterdir() if p != file and p.is_file() and server.token.encode() in p.read_bytes()]
        assert other == []
    assert not file.exists()
    server.close()  # again: does nothing
    assert "closed" in repr(server)


def test_each_server_has_a_token_of_its_own(q: Queue) -> None:
    with serve(q) as one, serve(q) as two:
        assert one.token != two.token
        assert one.options["server"] != two.options["server"]
        assert known(one, q) != known(two, q)


def test_the_next_one_at_an_address_has_its_file(q: Queue) -> None:
    with serve(q, token=TOKEN) as one:
        options, port = one.options, int(one.address.rpartition(":")[2])
    with serve(q, port=port, token=TOKEN) as two:
        assert two.options == options
        assert two.token == TOKEN


def test_find(q: Queue, server: BlockServer, tmp_path: Path) -> None:
    assert _block_protocol.find(None, q.path) is None
    assert _block_protocol.find("", q.path) is None
    file = Path(server.options["server"])
    with pytest.raises(InvalidArgument, match="the block server serves"):
        _block_protocol.find(str(file), str(tmp_path))
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "text").write_text("no")
    (tmp_path / "other").write_text("{}")
    for name in ("link", "text", "other", "."):
        with pytest.raises(InvalidArgument, match="not a file of a block server"):
            _block_protocol.find(str(tmp_path / name), q.path)
    server.close()
    with pytest.raises(ServerUnreachable, match="is no longer running"):
        _block_protocol.find(str(file), q.path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"port": -1}, {"port": 70_000}, {"token": "short"}, {"token": "with a space in it"}, {"token": "a new\r\nline: in it"},
        {"wait_seconds": -1.0}, {"wait_seconds": 1e6}, {"host": "0.0.0.0"}, {"host": "::"}, {"authority": "x"},
        {"private_key": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_can_not_work(q: Queue, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        serve(q, **arguments)
    assert arguments.get("token", "no token") not in str(caught.value)
    assert not list(Path(q.path).glob("server-*"))


def test_there_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        serve(tmp_path / "nowhere")


def test_a_port_that_is_taken(q: Queue, server: BlockServer) -> None:
    with pytest.raises(ConfigError, match="can't listen at"):
        serve(q, port=int(server.address.rpartition(":")[2]))
    with pytest.raises(ConfigError, match="can't listen at"):
        serve(q, host="no.such.host.invalid")


def test_it_is_announced_under_another_name(q: Queue) -> None:
    n, ranges, data = record_batch(q)
    with serve(q, host="0.0.0.0", announce="localhost") as server:
        assert server.address.startswith("localhost:")
        assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges)) == data


# ---- TLS


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates for 127.0.0.1 and for another host, and who signed them."""
    place = tmp_path_factory.mktemp("papers")
    ours, theirs = trustme.CA(), trustme.CA()
    here, elsewhere = ours.issue_cert("127.0.0.1"), ours.issue_cert("example.org")
    here.private_key_and_cert_chain_pem.write_to_path(place / "here")
    elsewhere.private_key_and_cert_chain_pem.write_to_path(place / "elsewhere")
    ours.cert_pem.write_to_path(place / "ours")
    theirs.cert_pem.write_to_path(place / "theirs")
    return {name: place / name for name in ("here", "elsewhere", "ours", "theirs")}


def test_tls(q: Queue, papers: dict[str, Path]) -> None:
    n, ranges, data = record_batch(q)
    with serve(q, certificate=papers["here"], authority=papers["ours"]) as server:
        served = known(server, q)
        assert "PRIVATE KEY" not in Path(server.options["server"]).read_text()
        assert list(_block_client.blocks(served, q.queue_id, "etl", n, ranges)) == data
        os.kill(server.pid, signal.SIGKILL)
        assert list(_block_client.blocks(served, q.queue_id, "etl", n, ranges)) == data
        with pytest.raises(ServerRefused, match="does not accept this token"):
            list(_block_client.blocks(attrs.evolve(served, token="x"), q.queue_id, "etl", n, ranges))
        with pytest.raises(ServerUnreachable):
            list(_block_client.blocks(attrs.evolve(served, authority=None, wait_seconds=0.0), q.queue_id, "etl", n, ranges))


@pytest.mark.parametrize(("certificate", "authority"), [("here", "theirs"), ("elsewhere", "ours")])
def test_a_certificate_that_is_not_accepted(q: Queue, papers: dict[str, Path], certificate: str, authority: str) -> None:
    n, ranges, _ = record_batch(q)
    with serve(q, certificate=papers[certificate], authority=papers[authority]) as server:
        served = known(server, q)
        with pytest.raises(ServerRefused, match=f"the certificate of the block server at {server.address} is not accepted"):
            list(_block_client.blocks(served, q.queue_id, "etl", n, ranges))


def test_a_certificate_that_can_not_be_used(q: Queue, papers: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "no").write_text("no")
    for certificate, authority in ((tmp_path / "no", None), (papers["ours"], None), (papers["here"], tmp_path / "no")):
        with pytest.raises(ConfigError, match="can't use this certificate"):
            serve(q, certificate=certificate, authority=authority)
    assert not list(Path(q.path).glob("server-*"))
