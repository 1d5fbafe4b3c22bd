"""A queue that ships to a replica in another process: what arrives, and what interruptions leave."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme

import strictq
from strictq import (
    ConfigError,
    Diverged,
    Event,
    InvalidArgument,
    Message,
    Queue,
    ReadOnlyQueue,
    Replica,
    StoreBusy,
    TargetUnavailable,
)
from strictq._net.frames import FrameConnection
from strictq.replication import keeper
from strictq.replication.places import parse
from strictq.replication.remote import FRAMES, ReplicaTarget
from strictq.replication.replica import SMALL_BYTES_MAX
from strictq.replication.restoring import look, restore
from tests.support.replicas import (
    FAST,
    STEPS,
    TOKEN,
    CuttingProxy,
    bodies,
    free_port,
    is_shipped,
    receiving,
    ship_to,
    until_applied,
    until_level,
)
from tests.support.running import PATIENCE_SECONDS, ROOT, until
from tests.support.shipping import begin_tasks, pass_on, problems_of, working

# ---- shipping and looking


@pytest.mark.smoke
def test_what_was_sent_arrives(q: Queue, replica: Replica, home: Path, token: Path) -> None:
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    q.send(b"2", key="k")
    until_level(q, home)
    assert bodies(home) == [b"1", b"2"]
    status = q.replication()
    assert status is not None
    assert (status.target, status.mode, status.lag_seconds) == (f"tcp://{replica.address}", "async", 0.0)
    assert replica.error is None
    assert not replica.promoted


def test_everything_can_be_looked_at_and_nothing_written(q: Queue, replica: Replica, home: Path, token: Path) -> None:
    q.send_many([Message(b"%d" % n, key="k") for n in range(3)])
    q.receive(1)[0].reject("bad")
    ship_to(q, replica.address, token)
    until_level(q, home)
    with strictq.open(home, read_only=True) as r:
        assert [d.reason for d in r.dead_letters()] == ["bad"]
        assert r.explain("k").key == "k"
        assert r.status("k", 2).state == q.status("k", 2).state
        assert [k.key for k in r.top_keys()] == ["k"]
        status = r.replication()
        assert status is not None
        assert (status.mode, status.target, status.shipping, status.term) == ("replica", "", True, 1)
        assert status.lag_seconds is not None
        assert status.lag_seconds < 60
        for write in (lambda: r.send(b"x", key="k"), lambda: r.receive(1), lambda: r.purge("k"), lambda: r.check(fix=True)):
            with pytest.raises(ReadOnlyQueue, match="a replica that receives changes") as e:
                write()
            assert "strictq promote" in e.value.hint
    for path in (home, home / "live"):
        with pytest.raises(ReadOnlyQueue) as e:
            strictq.open(path)
        assert f"strictq promote {home}" in e.value.hint
    with pytest.raises(ReadOnlyQueue):
        strictq.migrate(home / "live")
    assert not [name for name in os.listdir(home / "live") if name.startswith("ship")]


def test_a_look_sees_one_state_while_it_lasts(q: Queue, replica: Replica, home: Path, token: Path) -> None:
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    with strictq.open(home, read_only=True) as first, strictq.open(home, read_only=True) as second:
        for n in range(2, 5):
            q.send(b"%d" % n, key="k")
            until(lambda: is_shipped(q))
        assert first.stats().ready == second.stats().ready == 1
    until_level(q, home)
    assert len(bodies(home)) == 4


def test_a_replica_that_is_watched_goes_on(q: Queue, replica: Replica, home: Path, token: Path) -> None:
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    command = [sys.executable, "-m", "strictq", "stats", home, "--watch", "--interval", "0.1", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["ready"] == 1
            q.send(b"2", key="k")
            assert any(json.loads(line)["ready"] == 2 for line in itertools.islice(watching.stdout, 1_000))
        finally:
            watching.kill()


def test_the_replica_hears_of_a_primary_that_is_idle(
    q: Queue, replica: Replica, home: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "BEAT_SECONDS", 0.05)
    q.configure_replication(f"tcp://{replica.address}", interval_seconds=3600, token_file=token)
    until(lambda: is_shipped(q))
    beats: list[int] = []
    receiver = replica.receiving()
    receiver.beat = lambda *_args, **_said: beats.append(1)  # type: ignore[method-assign]
    until(lambda: len(beats) > 2)


def test_a_replica_on_its_way_down(home: Path, token: Path) -> None:
    replica = Replica(home, token_file=token)
    assert "live" not in repr(replica)
    replica.close()
    replica.close()
    assert "closed" in repr(replica)
    assert replica.wait(0.0)


# ---- interruptions


@pytest.mark.in_turn
@pytest.mark.parametrize("step", STEPS)
def test_a_replica_that_is_killed_at_any_step_goes_on(q: Queue, home: Path, token: Path, step: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    q.send(b"0", key="k")
    with receiving(home, address, step=step, count=1 if step == "claimed" else 2, rotate=1) as receiver:
        if step == "claimed":
            with pytest.raises(TargetUnavailable):
                q.configure_replication(f"tcp://{address}", interval_seconds=FAST, token_file=token)
        else:
            q.configure_replication(f"tcp://{address}", interval_seconds=FAST, token_file=token)
            n = 0
            while receiver.alive:
                n += 1
                q.send(b"%d" % n, key="k")
        assert receiver.wait() == signal.SIGKILL
    with receiving(home, address):
        ship_to(q, address, token)
        q.send(b"last", key="k")
        until_level(q, home)
        assert bodies(home) == [m.body for m in q.peek("k", 100_000)]
    status = q.replication()
    assert status is not None
    assert not status.stopped


def test_what_a_killed_replica_confirmed_is_there(q: Queue, home: Path, token: Path) -> None:
    with receiving(home) as receiver:
        ship_to(q, receiver.address, token)
        for n in range(20):
            q.send(b"%d" % n, key="k")
        until(lambda: is_shipped(q))
    q.close()
    with Replica(home, token_file=token) as again:
        assert again.error is None
        assert bodies(home) == [b"%d" % n for n in range(20)]


def test_primaries_that_are_killed_lose_nothing_that_was_shipped(tmp_path: Path, home: Path, token: Path) -> None:
    """Each state of the replica is one that the queue had, and the next process goes on shipping."""
    with receiving(home) as receiver:
        with strictq.open(tmp_path / "q", durability="process", shards=3) as q:
            begin_tasks(q, range(30))
            ship_to(q, receiver.address, token)
            first = q.replication()
        assert first is not None
        assert first.segment is not None
        segment = first.segment
        for _ in range(3):
            with working(tmp_path / "q"):
                segment += 5
                until_applied(home, segment)
            with strictq.open(home, read_only=True) as r:
                assert r.check() == []
                found = [int(m.body) for stage in range(6) for m in r.peek(f"stage-{stage}", 1000)]
                assert len(found) == len(set(found))
        with strictq.open(tmp_path / "q", durability="process") as q:
            pass_on(q)
            until_level(q, home)
            with strictq.open(home, read_only=True) as r:
                assert r.stats().depth == q.stats().depth
    assert problems_of(tmp_path / "q") == []


@pytest.mark.parametrize("after", [100, 500, 5_000, 50_000, 200_000])
def test_a_connection_that_is_cut_in_the_middle(q: Queue, replica: Replica, home: Path, token: Path, after: int) -> None:
    proxy = CuttingProxy(replica.address, 1 << 30)
    ship_to(q, proxy.address, token)
    proxy.after = after
    for n in range(30):
        q.send(os.urandom(5_000), key=f"k{n}")
    q.send(b"big" + os.urandom(300_000), key="k")
    if after < 200_000:
        until(lambda: proxy.cuts)
    proxy.after = 1 << 30
    until_level(q, home)
    assert bodies(home) == [m.body for m in q.peek("k", 10)]
    proxy.close()


def test_a_replica_that_is_away_for_a_while(q: Queue, home: Path, token: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with receiving(home, address):
        ship_to(q, address, token)
    q.send(b"1", key="k")
    until(lambda: (found := q.replication()) is not None and found.last_error)
    status = q.replication()
    assert status is not None
    assert "can't be reached" in str(status.last_error)
    assert status.lag_bytes
    q.send(b"2", key="k")
    with receiving(home, address):
        until_level(q, home)
        assert bodies(home) == [b"1", b"2"]


def test_a_replica_that_is_away_too_long_gets_shards_whole(tmp_path: Path, home: Path, token: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    events: list[Event] = []
    with strictq.open(tmp_path / "q", durability="process", on_event=events.append) as q:
        with receiving(home, address):
            q.configure_replication(f"tcp://{address}", interval_seconds=FAST, max_lag_bytes=1 << 20, token_file=token)
            until(lambda: is_shipped(q))
        for n in range(60):
            q.send(os.urandom(50_000), key=f"k{n}")
        until(lambda: (found := q.replication()) is not None and found.lapsed)
        with receiving(home, address):
            until_level(q, home)
            with strictq.open(home, read_only=True) as r:
                assert r.stats().ready == 60
                assert r.check() == []
        until(lambda: "replication_resumed" in [e.kind for e in events])
    assert [e.kind for e in events if e.kind.startswith("replication")] == ["replication_lapsed", "replication_resumed"]


def test_a_replica_that_has_more_than_its_primary_is_not_overwritten(
    tmp_path: Path, replica: Replica, home: Path, token: Path
) -> None:
    """The primary's directory is put back to an earlier state, as from a snapshot of its virtual machine."""
    events: list[Event] = []
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send(b"1", key="k")
        ship_to(q, replica.address, token)
    shutil.copytree(tmp_path / "q", tmp_path / "copy")
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send(b"2", key="k")
        until_level(q, home)
    with strictq.open(tmp_path / "copy", durability="process", on_event=events.append) as old:
        until(lambda: (found := old.replication()) is not None and found.stopped)
        old.send(b"other", key="k")
        with pytest.raises(Diverged):
            raise Diverged(str(old.replication()))
    assert [e.kind for e in events if e.kind.startswith("replication")] == ["replication_stopped"]
    assert bodies(home) == [b"1", b"2"]


def test_two_copies_that_ship_to_one_replica(tmp_path: Path, replica: Replica, home: Path, token: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        ship_to(q, replica.address, token)
    shutil.copytree(tmp_path / "q", tmp_path / "copy")
    with strictq.open(tmp_path / "q", durability="process") as q, strictq.open(tmp_path / "copy", durability="process") as copy:
        for n in range(50):
            q.send(b"q%d" % n, key="k")
            copy.send(b"c%d" % n, key="k")
        until(lambda: any((found := each.replication()) is not None and found.stopped for each in (q, copy)))
        stopped = [each for each in (q, copy) if (found := each.replication()) is not None and found.stopped]
        assert len(stopped) == 1
        (goes_on,) = {q, copy} - {*stopped}
        until_level(goes_on, home)
        assert bodies(home) == [m.body for m in goes_on.peek("k", 100)]


# ---- whose it is, and who may come in


def test_the_replica_of_another_queue(q: Queue, tmp_path: Path, replica: Replica, home: Path, token: Path) -> None:
    q.send(b"ours", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    with strictq.open(tmp_path / "other") as other:
        with pytest.raises(Diverged, match="another queue"):
            other.configure_replication(f"tcp://{replica.address}", token_file=token)
        assert other.replication() is None
    assert bodies(home) == [b"ours"]


def test_another_history_of_the_queue(q: Queue, tmp_path: Path, replica: Replica, home: Path, token: Path) -> None:
    q.configure_replication(tmp_path / "t", interval_seconds=FAST)
    until(lambda: is_shipped(q))
    ship_to(q, replica.address, token)
    restore(tmp_path / "t", tmp_path / "restored", alone=True)
    with strictq.open(tmp_path / "restored") as restored, pytest.raises(Diverged, match="another history"):
        restored.configure_replication(f"tcp://{replica.address}", token_file=token)


def test_a_wrong_token(q: Queue, replica: Replica, tmp_path: Path, token: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("x" * 32)
    with pytest.raises(TargetUnavailable, match="does not accept this token") as e:
        q.configure_replication(f"tcp://{replica.address}", token_file=wrong)
    assert not e.value.transient
    assert q.replication() is None
    ship_to(q, replica.address, token)
    token.write_text("y" * 32)  # by mistake, while it ships
    q.close()
    with strictq.open(tmp_path / "q") as again:
        again.send(b"1", key="k")
        until(lambda: (found := again.replication()) is not None and "token" in str(found.last_error))


@pytest.mark.parametrize("content", ["", "short", "with space in it, and long enough", "é" * 30])
def test_a_token_file_that_is_none(home: Path, tmp_path: Path, q: Queue, content: str) -> None:
    file = tmp_path / "bad"
    file.write_text(content)
    for bad in (file, tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match="token file"):
            Replica(home, token_file=bad)
        with pytest.raises(ConfigError, match="token file"):
            q.configure_replication("tcp://127.0.0.1:1", token_file=bad)
    assert not home.exists()
    assert q.replication() is None


STRANGERS = [
    b"",
    b"\x00" * 1000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"PUT /1/segment/0 HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    f"PUT /1/segment/0 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 3\r\n\r\nxyz".encode(),
    f"GET /1/head HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode(),
]  # fmt: skip


@pytest.mark.parametrize("said", STRANGERS, ids=range(len(STRANGERS)))
def test_a_strangers_bytes_change_nothing(
    said: bytes, q: Queue, replica: Replica, home: Path, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, _, port = replica.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    assert b" 200 " not in answer
    assert b" 101 " not in answer
    assert "Traceback" not in capsys.readouterr().err
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    assert bodies(home) == [b"1"]


ODD_REQUESTS = [
    ("PUT /1/segment/-1", b"x", HTTPStatus.NOT_FOUND),
    ("PUT /1/segment/../x", b"x", HTTPStatus.NOT_FOUND),
    ("PUT /1/segment/0", b"xyz", HTTPStatus.UNPROCESSABLE_ENTITY),
    ("PUT /1/head", b"xyz", HTTPStatus.NOT_FOUND),
    ("POST /1/claim", b"{}", HTTPStatus.UNPROCESSABLE_ENTITY),
    ("POST /1/claim", b'{"queue_id": "../x", "history_id": [], "key_id": "k"}', HTTPStatus.UNPROCESSABLE_ENTITY),
    ("POST /1/claim", bytes(SMALL_BYTES_MAX + 1), HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    ("POST /1/beat", b"[[[[[[", HTTPStatus.UNPROCESSABLE_ENTITY),
    ("POST /1/vote", b"no", HTTPStatus.UNPROCESSABLE_ENTITY),
    ("POST /1/other", b"", HTTPStatus.NOT_FOUND),
    ("GET /1/other", b"", HTTPStatus.NOT_FOUND),
    ("GET /1/after/x", b"", HTTPStatus.NOT_FOUND),
    ("GET /1/head", b"x", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    ("DELETE /1/segment/0", b"", HTTPStatus.NOT_FOUND),
    ("", b"", HTTPStatus.NOT_FOUND),
]


@pytest.mark.parametrize(("target", "body", "status"), ODD_REQUESTS, ids=range(len(ODD_REQUESTS)))
def test_an_odd_request_changes_nothing(
    target: str, body: bytes, status: HTTPStatus, q: Queue, replica: Replica, home: Path, token: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    host, _, port = replica.address.rpartition(":")
    opening = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
    connection = FrameConnection(opening, FRAMES, {"Authorization": f"Bearer {TOKEN}"}, lambda _seconds: None)
    try:
        connection.open()
        assert connection.ask(target, body, 1 << 20)[0] == status
    finally:
        connection.close()
    assert "Traceback" not in capsys.readouterr().err
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    assert bodies(home) == [b"1"]


def test_what_is_no_replica_at_all(q: Queue, token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        import threading

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[{}]")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(TargetUnavailable, match="not a replica of this version") as e:
            q.configure_replication(f"tcp://127.0.0.1:{port}", token_file=token)
    assert not e.value.transient
    with pytest.raises(TargetUnavailable, match="can't be reached") as e:
        q.configure_replication(f"tcp://127.0.0.1:{port}", token_file=token)
    assert e.value.transient


# ---- TLS


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    ca = trustme.CA()
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "replica.pem"))
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ca


def test_shipping_over_tls(q: Queue, home: Path, tmp_path: Path, token: Path, authority: trustme.CA) -> None:
    q.send(b"1", key="k")
    with Replica(home, token_file=token, certificate=tmp_path / "replica.pem") as replica:
        q.configure_replication(
            f"tcps://{replica.address}", interval_seconds=FAST, token_file=token, authority=tmp_path / "ca.pem"
        )
        until_level(q, home)
        q.detach()
        with pytest.raises(TargetUnavailable):  # no TLS
            q.configure_replication(f"tcp://{replica.address}", token_file=token)
    assert bodies(home) == [b"1"]


def test_a_wrong_certificate(q: Queue, home: Path, tmp_path: Path, token: Path, authority: trustme.CA) -> None:
    other = trustme.CA()
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    other.issue_cert("elsewhere.example").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "elsewhere.pem"))
    for certificate, trusted in (("replica.pem", "other.pem"), ("elsewhere.pem", "other.pem"), ("replica.pem", None)):
        with Replica(home, token_file=token, certificate=tmp_path / certificate) as replica:
            with pytest.raises(TargetUnavailable, match="certificate is not accepted") as e:
                q.configure_replication(f"tcps://{replica.address}", token_file=token, authority=trusted and tmp_path / trusted)
            assert not e.value.transient
    with pytest.raises(ConfigError, match="can't be used"):
        q.configure_replication("tcps://127.0.0.1:1", token_file=token, authority=tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match="can't use this certificate"):
        Replica(home, token_file=token, certificate=tmp_path / "ca.pem")
    assert q.replication() is None


def test_a_network_is_not_shown_tokens_without_plaintext(q: Queue, home: Path, token: Path) -> None:
    for host in ("0.0.0.0", "10.0.0.2", "host.example", "[::]"):
        with pytest.raises(InvalidArgument, match="without TLS"):
            Replica(home, listen=f"{host}:0", token_file=token)
        with pytest.raises(InvalidArgument, match="without TLS"):
            q.configure_replication(f"tcp://{host}:7400", token_file=token)
    assert not home.exists()
    with Replica(home, listen="0.0.0.0:0", token_file=token, plaintext=True) as replica:
        assert replica.address.startswith("0.0.0.0:")


# ---- arguments


@pytest.mark.parametrize(
    "name", ["tcp://", "tcp://host", "tcp:host:1", "tcp://host:0", "tcp://host:x", "tcp://host:99999", "tcp://user@host:1",
             "tcp://host:1/path", "udp://host:1", "tcp://[::1:1"],
)  # fmt: skip
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        parse(name)


def test_names_as_they_are_written() -> None:
    assert parse("TCP://host:7400") == "tcp://host:7400"
    assert parse("tcps://[::1]:7400") == "tcps://[::1]:7400"
    assert str(ReplicaTarget("tcps", "::1", 7400)) == "tcps://[::1]:7400"


def test_arguments_that_are_refused(q: Queue, tmp_path: Path, home: Path, token: Path) -> None:
    for target, options in [
        ("tcp://127.0.0.1:1", {}),
        ("tcp://127.0.0.1:1", {"token_file": token, "authority": token}),
        (tmp_path / "t", {"token_file": token}),
        (tmp_path / "t", {"authority": token}),
        ("tcp://127.0.0.1:1", {"token_file": 5}),
    ]:
        with pytest.raises(InvalidArgument):
            q.configure_replication(target, **options)  # type: ignore[arg-type]
    for options in ({"listen": "nowhere"}, {"listen": 5}, {"private_key": token}, {"path": 5}, {"queue_id": ""}):
        with pytest.raises(InvalidArgument):
            Replica(**({"path": home, "token_file": token} | options))  # type: ignore[arg-type]
    assert not home.exists()
    for call in (lambda: look("tcp://127.0.0.1:1"), lambda: restore("tcps://h:1", tmp_path / "r")):
        with pytest.raises(InvalidArgument, match="keeps no segments"):
            call()


def test_a_port_that_is_taken_leaves_the_replica_free(home: Path, token: Path, replica: Replica, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="can't listen"):
            Replica(tmp_path / "other", listen=replica.address, token_file=token)


def test_one_process_receives(home: Path, token: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    from strictq.replication import received

    monkeypatch.setattr(received, "LOCK_SECONDS", 0.0)
    with pytest.raises(StoreBusy):
        Replica(home, token_file=token)
