"""`strictq receive`: what is printed is acked, what is not is given back."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Delivery, LeaseLost, Message, PartialFailure
from strictq.cli import receive as module
from tests.support.command import MAIN, environment, in_process, json_lines, start, strictq_command
from tests.support.running import PATIENCE_SECONDS, until


def fill(path: Path, count: int, key: Any = "k", body: bytes = b"") -> None:
    with strictq.open(path) as q:
        q.send_many([Message(body or b"%d" % n, key=key) for n in range(1, count + 1)])


def counts(path: Path) -> tuple[int, int, int]:
    """(ready, in flight, acked)"""
    with strictq.open(path, read_only=True) as q:
        stats = q.stats()
    return stats.ready, stats.in_flight, stats.acks


def test_messages_as_json_lines(path: Path) -> None:
    with strictq.open(path) as q:
        q.send("ä".encode(), "a", headers={"h": "1"})
        q.send(b"\xff", b"\x00")
        q.send(b"", -5)
    result = in_process("receive", path, "--json")
    assert result.exit_code == 0, result.stderr
    found = {m["key_type"]: m for m in json_lines(result.stdout)}
    assert set(found["str"]) == {
        "key", "key_type", "seq", "id", "body", "body_encoding", "headers", "dedup_id", "attempt", "enqueued_at",
        "token", "shard",
    }  # fmt: skip
    assert [found["str"][n] for n in ("key", "seq", "body", "body_encoding", "headers", "attempt")] == [
        "a", 1, "ä", "utf-8", {"h": "1"}, 1,
    ]  # fmt: skip
    assert (found["bytes"]["key"], found["bytes"]["body"]) == (
        base64.b64encode(b"\x00").decode(), base64.b64encode(b"\xff").decode(),
    )  # fmt: skip
    assert (found["bytes"]["body_encoding"], found["int"]["key"], found["int"]["body"]) == ("base64", -5, "")
    assert counts(path) == (0, 0, 3)


def test_ten_by_default(path: Path) -> None:
    fill(path, 30)
    assert [m["seq"] for m in json_lines(in_process("receive", path).stdout)] == list(range(1, 11))
    assert len(json_lines(in_process("receive", path, "--max", 1).stdout)) == 1
    assert len(json_lines(in_process("receive", path, "--drain").stdout)) == 19
    result = in_process("receive", path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_raw_bodies(path: Path) -> None:
    fill(path, 2, body=b"\xff\x00")
    assert in_process("receive", path, "--raw").stdout_bytes == b"\xff\x00\n\xff\x00\n"


def test_only_some_keys(path: Path) -> None:
    fill(path, 2, 7)
    fill(path, 2, 8)
    fill(path, 2, "7")
    result = in_process("receive", path, "--key", 7, "--key", 8, "--key-type", "int", "--per-key", 1)
    assert sorted((m["key"], m["seq"]) for m in json_lines(result.stdout)) == [(7, 1), (7, 2), (8, 1), (8, 2)]
    assert counts(path) == (2, 0, 4)


def test_no_ack_gives_back_as_it_was(path: Path) -> None:
    fill(path, 3)
    for _ in range(3):
        (first, *_rest) = json_lines(in_process("receive", path, "--no-ack").stdout)
        assert (first["seq"], first["attempt"]) == (1, 1)
    assert counts(path) == (3, 0, 0)


def test_nack_is_an_attempt(path: Path) -> None:
    fill(path, 1)
    for attempt in (1, 2):
        (m,) = json_lines(in_process("receive", path, "--nack", "--reason", "no paper").stdout)
        assert m["attempt"] == attempt
    (dead,) = json_lines(in_process("dead", path, "--json").stdout)
    assert (dead["kind"], dead["reason"], dead["attempts"]) == ("poison", "no paper", 2)


def test_nack_with_a_delay_waits(path: Path) -> None:
    fill(path, 1)
    assert in_process("receive", path, "--nack", "--delay", 3600).exit_code == 0
    assert in_process("receive", path).stdout == ""
    assert json_lines(in_process("explain", path, "k", "--json").stdout)[0]["state"] == "delayed"


@pytest.mark.parametrize(
    "args",
    [
        ["--raw", "--json"],
        ["--nack", "--no-ack"],
        ["--delay", "1"],
        ["--reason", "x"],
        ["--no-ack", "--follow"],
        ["--nack", "--drain"],
        ["--max", "3", "--drain"],
        ["--drain", "--follow"],
        ["--key", ""],
        ["--max", "0"],
        ["--key", "x", "--key-type", "int"],
        ["--wait", "-1"],
    ],
)
def test_wrong_usage(path: Path, args: list[str]) -> None:
    fill(path, 1)
    result = in_process("receive", path, *args)
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert counts(path) == (1, 0, 0)


# ---------------------------------------------------------------- what was not written is not acked


def test_a_full_disk_acks_nothing(path: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    fill(path, 3)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "receive", str(path)],
            env=environment(tmp_path), stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "strictq: the output: No space left on device\n")
    assert counts(path) == (3, 0, 0)


def test_a_reader_that_is_gone_gets_nothing(path: Path, tmp_path: Path) -> None:
    fill(path, 3)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "receive", str(path)],
        env=environment(tmp_path), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
    with strictq.open(path) as q:
        assert (q.stats().receives, q.stats().ready) == (0, 3)


def test_a_reader_that_goes_in_the_middle(path: Path, tmp_path: Path) -> None:
    # Far more than a pipe holds: the write of a batch is under way when the reader goes.
    fill(path, 50, body=b"x" * 100_000)
    process = start(tmp_path, "receive", str(path), "--drain")
    assert process.stdout is not None
    read = json.loads(process.stdout.readline())
    process.stdout.close()
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (141, "")
    # Nothing is acked: the batch that the line belongs to was not written. What was given back is charged to nobody.
    assert read["seq"] == 1
    assert counts(path) == (50, 0, 0)
    with strictq.open(path) as q:
        (d,) = q.receive(1)
        assert (d.seq, d.attempt) == (1, 1)


@pytest.mark.slow
def test_a_follower_notices_that_its_reader_is_gone(path: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "receive", str(path), "--follow")
    fill(path, 1)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["seq"] == 1
    process.stdout.close()
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (141, "")
    fill(path, 1)
    assert counts(path) == (1, 0, 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_follower_ends_quietly(path: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path, "receive", str(path), "--follow")
    fill(path, 2)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["seq"] == 1
    until(lambda: counts(path) == (0, 0, 2))
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (code, "")


@pytest.mark.slow
def test_a_signal_while_the_reader_is_stuck_gives_back(path: Path, tmp_path: Path) -> None:
    fill(path, 50, body=b"x" * 100_000)
    process = start(tmp_path, "receive", str(path), "--drain")
    until(lambda: counts(path)[1] == 50)
    process.send_signal(signal.SIGINT)
    # Read only once it has ended: nothing may depend on it.
    until(lambda: counts(path)[1] == 0)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert counts(path) == (50, 0, 0)


def test_a_lost_lease_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 3)
    genuine = module.Out.write

    def slowly(out: Any, deliveries: list[Delivery], *, durable: bool) -> None:
        genuine(out, deliveries, durable=durable)
        deliveries[0].lease.release()

    monkeypatch.setattr(module.Out, "write", slowly)
    result = in_process("receive", path, "--max", 3)
    assert result.exit_code == 1
    assert len(json_lines(result.stdout)) == 3
    assert "3 messages printed but not acked: the lease was lost; they will be delivered again" in result.stderr
    assert counts(path) == (3, 0, 0)


def test_some_lost_leases_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 2)
    lost = LeaseLost("k", 1, 7)

    def partly(q: strictq.Queue, deliveries: list[Delivery]) -> None:
        raise PartialFailure("some", [lost, None])

    monkeypatch.setattr(strictq.Queue, "ack_many", partly)
    result = in_process("receive", path)
    assert (result.exit_code, "1 message printed but not acked" in result.stderr) == (1, True)


def test_a_file_is_on_disk_before_the_ack(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strictq.open(tmp_path / "full", durability="full") as q:
        q.send(b"x", "k")
    log: list[str] = []
    genuine_sync, genuine_ack = os.fsync, strictq.Queue.ack_many

    def sync(descriptor: int) -> None:
        log.append("fsync")
        genuine_sync(descriptor)

    def ack(q: strictq.Queue, deliveries: list[Delivery]) -> None:
        log.append("ack")
        genuine_ack(q, deliveries)

    with (tmp_path / "out").open("w+") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(strictq.Queue, "ack_many", ack)
        printer_out = module.Out(raw=True)
        with strictq.open(tmp_path / "full", create=False) as q:
            monkeypatch.setattr(os, "fsync", sync)
            module.Printer(q, printer_out, module.Settle("ack", None, None), None, None, None, None).run(10, 0.0)
            monkeypatch.setattr(os, "fsync", genuine_sync)
    assert log[:2] == ["fsync", "ack"]
    assert (tmp_path / "out").read_bytes() == b"x\n"


def test_no_stdout(path: Path, tmp_path: Path) -> None:
    fill(path, 1)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.stdout = None; {MAIN}", "receive", str(path)],
        env=environment(tmp_path), stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "strictq: there is no stdout to write to\n")
    assert counts(path) == (1, 0, 0)


def test_it_waits_for_a_first_message(path: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "receive", str(path), "--max", "1", "--wait", "60", "--raw")
    fill(path, 1)
    assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "1\n"


@pytest.mark.slow
def test_what_send_took_receive_gives(path: Path, tmp_path: Path) -> None:
    lines = [f'{{"k": "k{n % 5}", "n": {n}}}' for n in range(2_000)]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    assert strictq_command(tmp_path, "send", str(path), "in", "-k", "k")[0] == 0
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(
            [sys.executable, "-c", MAIN, "receive", str(path), "--drain", "--raw"],
            env=environment(tmp_path), stdout=out, check=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
    got = (tmp_path / "out").read_text().splitlines()
    for k in range(5):
        assert [x for x in got if f'"k{k}"' in x] == lines[k::5]
