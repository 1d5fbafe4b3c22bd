"""What the block server answers, and what it refuses: one server serves all of these requests, and stays in service."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import (
    InvalidArgument,
    Queue,
    QueueNotFound,
    RecordedBatchGone,
    ServerRefused,
    StoreCorrupt,
    StoreError,
    StrictqError,
)
from strictq._net import error_frames
from strictq._store.api import Staging, new_run
from strictq.spark import BlockServer, _block_client, _block_protocol, serve
from strictq.spark._block_protocol import Served
from tests.support.running import PATIENCE_SECONDS

from .test_serving import TOKEN, known, record_batch

Batch = tuple[int, list[tuple[int, int, int]], list[bytes]]


@pytest.fixture(scope="module")
def q(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    with strictq.open(tmp_path_factory.mktemp("served") / "queue", shards=2, durability="process") as q:
        yield q


@pytest.fixture(scope="module")
def server(q: Queue) -> Iterator[BlockServer]:
    with serve(q, token=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def batch(q: Queue) -> Batch:
    return record_batch(q)


# ---- answers


def test_blocks_come_as_they_were_recorded(q: Queue, server: BlockServer, batch: Batch) -> None:
    n, ranges, data = batch
    assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges)) == data
    joined = [(shard, min(r[1] for r in ranges if r[0] == shard), max(r[2] for r in ranges if r[0] == shard)) for shard in (0, 1)]
    assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, joined)) == data


def test_the_errors_of_the_server_have_their_types(q: Queue, server: BlockServer, batch: Batch) -> None:
    _, ranges, _ = batch
    with pytest.raises(RecordedBatchGone, match="batch 7 of consumer 'etl' is no longer kept"):
        list(_block_client.blocks(known(server, q), q.queue_id, "etl", 7, ranges))
    with pytest.raises(QueueNotFound, match="was replaced"):
        list(_block_client.blocks(known(server, q), "0" * 32, "etl", 1, ranges))
    for odd in ((0, 1, "x"), (9, 1, 1), (0, 1)):
        with pytest.raises(InvalidArgument, match=r"can't read this request|must be a whole number"):
            list(_block_client.blocks(known(server, q), q.queue_id, "etl", 1, [odd]))  # type: ignore[list-item]


ODD_NUMBERS = [10**300, 2**63, -1, 1.5, 1e300, float("nan"), float("inf"), "1", None, True, [1], {}]
ODD_TEXTS = ["", "x" * 300, "\ud800", "a\0b", 5, None, ["etl"]]
BLOCKS_REQUEST: dict[str, Any] = {"queue": "", "consumer": "etl", "n": 1, "blocks": [[0, 0, 0]]}
LANES_REQUEST: dict[str, Any] = {
    "queue": "", "kind": "lanes", "schema": "",
    "what": {"shard": 0, "dead": False, "key_type": "string", "place": [99, 99, 0, 99, 0]},
}  # fmt: skip
RECORDS_REQUEST: dict[str, Any] = {"queue": "", "kind": "records", "schema": "", "what": {"shard": 0, "first": 1, "last": 9}}
NUMBERS: list[tuple[str, dict[str, Any], list[Any]]] = [
    *((_block_protocol.BLOCKS, BLOCKS_REQUEST, at) for at in (["n"], *(["blocks", 0, i] for i in range(3)))),
    *((_block_protocol.SCAN, LANES_REQUEST, ["what", name]) for name in ("shard", "place")),
    *((_block_protocol.SCAN, LANES_REQUEST, ["what", "place", i]) for i in range(5)),
    *((_block_protocol.SCAN, RECORDS_REQUEST, ["what", name]) for name in ("shard", "first", "last")),
]
TEXTS: list[tuple[str, dict[str, Any], list[Any]]] = [
    (_block_protocol.BLOCKS, BLOCKS_REQUEST, ["consumer"]),
    (_block_protocol.SCAN, LANES_REQUEST, ["kind"]),
    (_block_protocol.SCAN, LANES_REQUEST, ["schema"]),
    (_block_protocol.SCAN, LANES_REQUEST, ["what", "key_type"]),
]


@pytest.mark.parametrize(("target", "request_", "at", "values"),
    [(*odd, ODD_NUMBERS) for odd in NUMBERS] + [(*odd, ODD_TEXTS[1:]) for odd in TEXTS],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) and len(value) < 5 else "",
)  # fmt: skip
def test_values_out_of_their_range_are_refused(
    q: Queue, server: BlockServer, batch: Batch, target: str, request_: dict[str, Any], at: list[Any], values: list[Any]
) -> None:
    """Each value is refused before it reaches a file: the shards stay in service, and the next reader gets everything."""
    n, ranges, data = batch
    for value in values:
        asked = json.loads(json.dumps({**request_, "queue": q.queue_id}))
        inner = asked
        for step in at[:-1]:
            inner = inner[step]
        inner[at[-1]] = value
        with pytest.raises(InvalidArgument):
            list(_block_client._frames(known(server, q), target, asked))
    assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges)) == data


def test_a_request_that_is_nested_too_deeply_is_refused(q: Queue, server: BlockServer, batch: Batch) -> None:
    n, ranges, data = batch
    body = b"[" * 200_000
    with pytest.raises(InvalidArgument, match="can't read this request"):
        list(frames_of(known(server, q), body))
    assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges)) == data


def frames_of(served: Served, body: bytes) -> Iterator[bytes]:
    """The frames that answer a body as it is."""
    with _block_client._asked(served, "POST", _block_protocol.BLOCKS, body) as response:
        kind, length = _block_protocol.HEAD.unpack(_block_client._exactly(response, _block_protocol.HEAD.size))
        data = _block_client._exactly(response, length)
        if kind == _block_protocol.FAILED:
            raise error_frames.decode(data)
        yield data


def test_too_many_ranges_are_refused(q: Queue, server: BlockServer) -> None:
    with pytest.raises(InvalidArgument, match="at most 100,000 entries"):
        list(_block_client.blocks(known(server, q), q.queue_id, "etl", 1, [(0, 0, 0)] * 100_001))


@pytest.mark.parametrize("offset", ["-1", "1" * 5000, "9" * 19, "9" * 20, "1.5", "nan", "\u0663", " 1", "1_0", ""])
def test_offsets_that_cannot_be(q: Queue, server: BlockServer, offset: str) -> None:
    name = "0-aaaaaaaaaaaa/aaaaaaaaaaaaaaaa.arrow"
    upload = _block_client.Upload(known(server, q), {"queue": q.queue_id, "writer": "w", "name": name})
    upload._sent = offset  # type: ignore[assignment]
    upload.write(b"data")
    with pytest.raises(InvalidArgument, match=r"offset must be|can't read this request"):
        upload.flush()
    assert not Staging(Path(q.path), "w").path(name).exists()


@pytest.mark.parametrize("writer", ["", "x" * 300, "a\0b"])
def test_writers_that_cannot_be(q: Queue, server: BlockServer, writer: str) -> None:
    _, file = _block_client.RemoteStaging(known(server, q), q.queue_id, writer).create(3, new_run())
    file.write(b"data")
    with pytest.raises(InvalidArgument, match="writer must"):
        file.flush()


def test_an_error_keeps_what_it_says() -> None:
    error = error_frames.decode(error_frames.encode(StoreCorrupt("torn", shard=3, cause=OSError(), hint="do this"), "this"))
    assert type(error) is StoreCorrupt
    assert (error.shard, error.hint, str(error)) == (3, "do this", "shard 3: torn (do this)")
    assert type(error_frames.decode(error_frames.encode(ZeroDivisionError("x"), "this"))) is StrictqError
    odd = json.loads(error_frames.encode(StrictqError("x"), "this")) | {"error": "Any"}
    assert type(error_frames.decode(json.dumps(odd).encode())) is StrictqError


def test_a_staged_file_arrives_whole(q: Queue, server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_block_protocol, "PIECE_BYTES", 1000)
    place, run = _block_client.RemoteStaging(known(server, q), q.queue_id, "writer a/../b\n"), new_run()
    name, file = place.create(3, run)
    data = os.urandom(12_345)
    for at in range(0, len(data), 777):
        assert file.write(data[at : at + 777]) == len(data[at : at + 777])
    file.flush()
    file.close()
    local = Staging(Path(q.path), "writer a/../b\n")
    assert local.path(name).read_bytes() == data
    place.drop([name])
    assert not local.path(name).exists()


def test_a_file_that_is_not_flushed_is_not_sent(q: Queue, server: BlockServer) -> None:
    name, file = _block_client.RemoteStaging(known(server, q), q.queue_id, "w").create(3, new_run())
    file.write(b"half")
    file.close()
    assert not Staging(Path(q.path), "w").path(name).exists()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "0-aaaaaaaaaaaa/../../x.arrow"])
def test_nothing_is_staged_elsewhere(q: Queue, server: BlockServer, name: str) -> None:
    upload = _block_client.Upload(known(server, q), {"queue": q.queue_id, "writer": "w", "name": name})
    upload.write(b"data")
    with pytest.raises(StoreError, match="not the name of a staging file"):
        upload.flush()


def test_nothing_is_staged_for_another_queue(q: Queue, server: BlockServer) -> None:
    name, file = _block_client.RemoteStaging(known(server, q), "0" * 32, "w").create(3, new_run())
    file.write(b"data")
    with pytest.raises(QueueNotFound, match="was replaced"):
        file.flush()
    assert not Staging(Path(q.path), "w").path(name).exists()


# ---- refusals


def ask(server: BlockServer, method: str, target: str, body: bytes = b"", **headers: str) -> int:
    """The status of an answer."""
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, target, body, headers)
        with connection.getresponse() as response:
            return response.status
    finally:
        connection.close()


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü" * 20])
def test_another_token_is_refused(q: Queue, server: BlockServer, batch: Batch, token: str) -> None:
    n, ranges, _ = batch
    with pytest.raises(ServerRefused, match="does not accept this token") as caught:
        list(_block_client.blocks(known(server, q, token=token), q.queue_id, "etl", n, ranges))
    assert server.address in str(caught.value)
    assert TOKEN not in str(caught.value)
    upload = _block_client.Upload(known(server, q, token=token), {"queue": q.queue_id, "writer": "w", "name": "x"})
    upload.write(bytes(_block_protocol.PIECE_BYTES - 1))
    with pytest.raises(ServerRefused, match="does not accept this token"):
        upload.flush()


@pytest.mark.parametrize(
    ("method", "target"), [("POST", _block_protocol.BLOCKS), ("PUT", _block_protocol.STAGED), ("DELETE", _block_protocol.STAGED)]
)
def test_no_request_is_taken_without_a_token(server: BlockServer, method: str, target: str) -> None:
    assert ask(server, method, target) == 401
    assert ask(server, method, target, Authorization=f"Basic {TOKEN}") == 401
    assert ask(server, method, target, Authorization=TOKEN) == 401


def test_what_there_is_not(q: Queue, server: BlockServer) -> None:
    bearer = f"Bearer {TOKEN}"
    assert ask(server, "POST", "/0/blocks", b"{}", Authorization=bearer) == 404
    assert ask(server, "PUT", "/0/staged", b"", Authorization=bearer) == 404
    assert ask(server, "GET", _block_protocol.BLOCKS, Authorization=bearer) == 501
    with pytest.raises(ServerRefused, match="not a block server of this version"):
        list(_block_client._frames(known(server, q), "/0/blocks", {}))


@pytest.mark.parametrize("length", ["999999999999", "-1", "x", "1" * 100])
def test_a_body_that_is_too_large_is_not_read(server: BlockServer, length: str) -> None:
    """It is refused before any of it has come."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        head = f"POST {_block_protocol.BLOCKS} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(1000)


def test_a_head_that_is_too_large_is_not_read(server: BlockServer) -> None:
    host, _, port = server.address.rpartition(":")
    for line in (b"X: " + b"y" * 1_000, b"X: " + b"y" * 100_000):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection, suppress(ConnectionError):
            connection.sendall(b"POST / HTTP/1.1\r\n")
            connection.sendall(b"\r\n".join([line] * 90) + b"\r\n\r\n")  # the library takes a hundred lines
            assert connection.recv(1) == b"", "it hangs up, and says nothing"


def test_a_frame_that_is_too_large_is_not_read(q: Queue) -> None:
    """A server that is none: it says that gigabytes follow."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + _block_protocol.HEAD.pack(_block_protocol.DATA, 4_000_000_000))

        thread = threading.Thread(target=answer)
        thread.start()
        served = Served(q.path, "127.0.0.1", listening.getsockname()[1], TOKEN, None, 10.0)
        with pytest.raises(ServerRefused, match="4,000,000,000 bytes"):
            list(_block_client.blocks(served, q.queue_id, "etl", 1, [(0, 1, 1)]))
        thread.join()


def test_garbage_does_no_harm(q: Queue, server: BlockServer, batch: Batch) -> None:
    host, _, port = server.address.rpartition(":")
    for garbage in (b"", b"\x16\x03\x01\x02\x00", b"\x00" * 100_000, b"POST / HTTP/1.1\r\n", b"A" * 70_000 + b"\r\n"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
            with suppress(OSError):  # it may hang up before everything was sent
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while connection.recv(10_000):
                    pass
    n, ranges, data = batch
    assert list(_block_client.blocks(known(server, q), q.queue_id, "etl", n, ranges)) == data
