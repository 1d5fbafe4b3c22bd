"""`strictq send`: what is sent, what is not, and what it says of both."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strictq
from strictq import Message, OutcomeUnknown, PartialFailure, StoreBusy
from strictq._client.sending import Sending
from strictq.cli._delivering import Sender
from tests.support.command import (
    COLOUR,
    MAIN,
    environment,
    in_a_terminal,
    in_process,
    json_lines,
    start,
    strictq_command,
    wait_until_asleep,
)
from tests.support.running import PATIENCE_SECONDS, until


def contents(path: Path) -> dict[Any, list[bytes]]:
    """The bodies of every key, in order."""
    found: dict[Any, list[bytes]] = {}
    with strictq.open(path) as q:
        for d in q.receive(100_000):
            found.setdefault(d.key, []).append(d.body)
    return found


def summary(result: Any) -> dict[str, Any]:
    (values,) = json_lines(result.stdout)
    return dict(values)


# ---------------------------------------------------------------- what is sent


def test_lines_are_bodies_as_they_are_and_in_order(path: Path) -> None:
    lines = [f'{{"n":{n},   "k": "k{n % 3}" }}' for n in range(100)]
    result = in_process("send", path, "-", "--key-field", "k", "--json", "--batch", 7, input="\n".join(lines))
    assert result.exit_code == 0, result.stderr
    assert contents(path) == {f"k{k}": [x.encode() for x in lines[k::3]] for k in range(3)}
    values = summary(result)
    assert values.pop("seconds") > 0
    assert values.pop("lines_per_second") > 0
    assert values == {
        "lines": 100, "sent": 100, "duplicates": 0, "bad": 0, "blank": 0, "unknown": 0, "stopped_at": None, "key_types": ["str"],
    }  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_plain_or_gzip(path: Path, tmp_path: Path, packed: bool) -> None:
    text = b"".join(b'{"k": %d}\n' % (n % 5) for n in range(30_000))
    # Two members, as of `cat a.gz b.gz`.
    (tmp_path / "in").write_bytes(gzip.compress(text[:200_000]) + gzip.compress(text[200_000:]) if packed else text)
    result = in_process("send", path, tmp_path / "in", "-k", "k")
    assert result.exit_code == 0, result.stderr
    assert "sent 30,000 lines" in result.stderr
    assert {k: len(v) for k, v in contents(path).items()} == dict.fromkeys(range(5), 6000)


@pytest.mark.parametrize("key", ["--key-field", "--key"])
def test_gzip_through_a_pipe_has_advice(path: Path, key: str) -> None:
    packed = gzip.compress(numbered(1000).encode())
    result = in_process("send", path, key, "k", input=packed)
    assert result.exit_code == 1
    hint = "this is gzip data, which is unpacked only from a file: strictq send QUEUE FILE.gz"
    told = f"strictq: stdin: line 1: not UTF-8 at byte 2\n  hint: {hint}\n"
    assert result.stderr.startswith(told)
    assert result.stderr.count("hint") == 1
    assert in_process("send", path, "--raw", "--key", "k", input=packed).exit_code == 0, "any bytes are lines"


@pytest.mark.slow
def test_damaged_gzip_loses_nothing_before_the_damage(path: Path, tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(b'{"k": "a", "n": %d}\n' % n for n in range(100_000)))
    (tmp_path / "in").write_bytes(packed[: len(packed) // 2])
    result = in_process("send", path, tmp_path / "in", "-k", "k", "--json")
    assert result.exit_code == 1
    assert "the gzip data ends too early" in result.stderr
    sent = summary(result)["sent"]
    assert sent > 10_000
    assert contents(path) == {"a": [b'{"k": "a", "n": %d}' % n for n in range(sent)]}


def test_line_ends(path: Path) -> None:
    data = b'\xef\xbb\xbf{"k": 1}\r\n\r\n  \n{"k": 1}\r\n{"k":  1}'
    result = in_process("send", path, "-k", "k", "--json", input=data)
    assert result.exit_code == 0, result.stderr
    assert contents(path) == {1: [b'{"k": 1}', b'{"k": 1}', b'{"k":  1}']}
    assert summary(result)["blank"] == 2


def test_raw_lines_are_any_bytes(path: Path) -> None:
    result = in_process("send", path, "--raw", "--key", "k", input=b"\xff\x00a\r\n\nlast")
    assert result.exit_code == 0, result.stderr
    assert contents(path) == {"k": [b"\xff\x00a\r", b"", b"last"]}


@pytest.mark.parametrize(
    ("kind", "values", "keys"),
    [
        ("auto", ["a", 7, "7", -3, 2**70], ["a", 7, "7", -3, 2**70]),
        ("str", ["a", 7, "7"], ["a", "7"]),
        ("int", ["7", 7, "-3"], [7, -3]),
        ("bytes", ["a", "ä"], [b"a", "ä".encode()]),
        ("hex", ["00ff"], [b"\x00\xff"]),
        ("base64", ["AP8="], [b"\x00\xff"]),
    ],
)
def test_key_types(path: Path, kind: str, values: list[Any], keys: list[Any]) -> None:
    text = "\n".join(json.dumps({"k": v, "x": 1.5}) for v in values)
    result = in_process("send", path, "-k", "k", "--key-type", kind, input=text)
    assert result.exit_code == 0, result.stderr
    assert set(contents(path)) == set(keys)


def test_keys_of_mixed_types_are_reported(path: Path) -> None:
    result = in_process("send", path, "-k", "k", input='{"k": 7}\n{"k": "7"}\n')
    assert result.exit_code == 0
    assert '7 and "7" are different keys' in result.stderr


def test_options_of_every_message(path: Path) -> None:
    result = in_process(
        "send", path, "-k", "k", "--delay", 3600, "--ttl", 7200, "-H", "a=1", "--header", "b=x=y", input='{"k": "k"}\n'
    )
    assert result.exit_code == 0, result.stderr
    with strictq.open(path) as q:
        (m,) = q.peek("k")
    assert (m.state, m.headers) == ("delayed", {"a": "1", "b": "x=y"})
    assert m.due_at is not None
    assert m.expires_at is not None
    assert (round(m.due_at - m.enqueued_at), round(m.expires_at - m.enqueued_at)) == (3600, 7200)


def test_a_repeated_run_with_dedup_sends_nothing_twice(path: Path) -> None:
    text = "".join(f'{{"k": "k{n % 2}", "id": {n}}}\n' for n in range(50))
    first = in_process("send", path, "-k", "k", "--dedup-field", "id", "--json", input=text)
    again = in_process("send", path, "-k", "k", "--dedup-field", "id", "--json", input=text + '{"k": "k0", "id": "new"}\n')
    assert (first.exit_code, again.exit_code) == (0, 0), again.stderr
    assert [(summary(r)["sent"], summary(r)["duplicates"]) for r in (first, again)] == [(50, 0), (1, 50)]
    assert sum(map(len, contents(path).values())) == 51


def test_keyless_where_the_queue_allows_it(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(keyless="random")):
        pass
    assert in_process("send", tmp_path / "q", "--raw", input="a\nb\n").exit_code == 0
    assert {k: sorted(v) for k, v in contents(tmp_path / "q").items()} == {None: [b"a", b"b"]}


# ---------------------------------------------------------------- bad lines


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"k": "\xff"}', "not UTF-8 at byte 8"),
        (b'{"k": "a"', "not JSON: Expecting ',' delimiter at column 10"),
        (b"[1]", "not a JSON object but a list"),
        (b"{}", "there is no key field 'k'; the row's fields: none"),
        (b'{"j": 1}', "there is no key field 'k'; the row's fields: 'j'"),
        (b'{"k": null}', "key field 'k' must be a string or a whole number, not null"),
        (b'{"k": true}', "not true or false"),
        (b'{"k": 1.0}', "must be a string or a whole number, not a number"),
        (b'{"k": ""}', "key field 'k': a key must not be empty"),
        (b'{"k": "\\ud800"}', "lone surrogate"),
        (b'{"k": "' + b"x" * 1025 + b'"}', "a key must be at most 1024 bytes"),
        (b'{"k": "a", "n": NaN}', "NaN is not JSON"),
        (b'{"k":' * 100_000, "not usable JSON"),
        ('{"k": "a"}'.encode("utf-16"), "not UTF-8"),
        (b"\x00", "not JSON"),
    ],
)
@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_a_bad_line(path: Path, mode: str, line: bytes, why: str) -> None:
    good = [b'{"k": 1, "n": %d}' % n for n in range(6)]
    data = b"\n".join([*good[:2], line, *good[2:4], line, *good[4:]])
    result = in_process("send", path, "-k", "k", "--on-error", mode, "--json", input=data)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert re.search(rf"^strictq: stdin: line 3: .*{re.escape(why)}", result.stderr, re.MULTILINE), result.stderr
    assert ("line 6: " in result.stderr) is (mode == "skip")
    # A key that was seen in a good line, spelled true or 1.0 in a bad one, is no key.
    assert contents(path) == {1: good[:2] if mode == "stop" else good}
    values = summary(result)
    assert (values["sent"], values["bad"], values["stopped_at"]) == ((2, 1, 3) if mode == "stop" else (6, 2, None))


def test_lines_that_need_not_be_json_get_a_hint(path: Path) -> None:
    for options, told in (("--key", "a"), True), (("--key-field", "k"), False):
        result = in_process("send", path, *options, input="hello\n")
        assert result.exit_code == 1
        assert ("hint: use --raw for lines that are not JSON" in result.stderr) is told


@pytest.mark.parametrize("value", ["null", '""', '"' + "x" * 257 + '"', '{"a": 1}'])
def test_a_bad_dedup_field(path: Path, value: str) -> None:
    result = in_process("send", path, "-k", "k", "--dedup-field", "id", input=f'{{"k": 1, "id": {value}}}\n')
    assert (result.exit_code, "line 1: dedup field 'id'" in result.stderr) == (1, True), result.stderr


def test_a_key_that_is_not_of_its_type(path: Path) -> None:
    text = '{"k": "1"}\n{"k": "one"}\n{"k": 2}\n'
    result = in_process("send", path, "-k", "k", "--key-type", "int", "--on-error", "skip", input=text)
    assert "line 2: key field 'k': --key-type int: 'one' is not a whole number" in result.stderr
    result = in_process("send", path, "-k", "k", "--key-type", "hex", input=text)
    assert "line 1: key field 'k': --key-type hex: '1' is not hex" in result.stderr
    result = in_process("send", path, "-k", "k", "--key-type", "bytes", input='{"k": 2}')
    assert "--key-type bytes: the field holds a number" in result.stderr
    assert list(contents(path)) in ([1, 2], [2, 1])


@pytest.mark.parametrize("raw", [False, True])
def test_a_line_of_100_mb_is_refused_without_being_kept(path: Path, tmp_path: Path, raw: bool) -> None:
    with (tmp_path / "in").open("wb") as f:
        f.write(b'{"k": 1}\n{"k": "')
        for _ in range(100):
            f.write(b"x" * 1_000_000)
        f.write(b'"}\n{"k": 2}\n')
    key = ["--raw", "--key", "k"] if raw else ["--key-field", "k"]
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (90_000_000, 90_000_000)); "
    done = subprocess.run(
        [sys.executable, "-c", limit + MAIN, "send", str(path), "in", *key, "--on-error", "skip"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "in: line 2: the line has 100,000,009 bytes; the maximum is 16,777,216" in done.stderr
    assert sorted(body for bodies in contents(path).values() for body in bodies) == [b'{"k": 1}', b'{"k": 2}']


def test_the_limit_of_the_queue_counts(path: Path) -> None:
    with strictq.open(path) as q:
        q.configure(max_body_bytes=20)
    text = '{"k": "a"}\n{"k": "a", "pad": "xxxxxxxx"}\n'
    result = in_process("send", path, "-k", "k", input=text)
    assert (result.exit_code, "line 2: the line has 29 bytes; the maximum is 20" in result.stderr) == (1, True), result.stderr


# ---------------------------------------------------------------- a queue that does not take everything


class Refusing:
    """send_many that fails as it is told, call by call, and does it then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failures: Callable[[list[Message]], BaseException | None]) -> None:
        self.failures = list(failures)
        for name in ("send_many", "send_plain"):
            monkeypatch.setattr(Sending, name, self._refusing(getattr(Sending, name)))

    def _refusing(self, genuine: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def send(sending: Sending, messages: list[Any]) -> list[Any]:
            error = self.failures.pop(0)(messages) if self.failures else None
            if error is not None:
                raise error
            return genuine(sending, messages)

        return send


def numbered(count: int) -> str:
    return "".join(f'{{"k": "k", "n": {n}}}\n' for n in range(count))


def bodies(count: int) -> list[bytes]:
    return numbered(count).encode().splitlines()


def test_a_full_queue_takes_what_has_room(path: Path) -> None:
    with strictq.open(path) as q:
        q.configure(max_depth=37)
    result = in_process("send", path, "-k", "k", "--json", input=numbered(100))
    assert result.exit_code == 1
    assert "line 38: " in result.stderr
    assert "strictq config QUEUE max_depth=" in result.stderr
    assert "no line from 38 on was sent" in result.stderr
    assert (summary(result)["sent"], summary(result)["stopped_at"]) == (37, 38)
    assert contents(path) == {"k": bodies(37)}


def test_it_waits_for_room(path: Path) -> None:
    with strictq.open(path) as q:
        q.configure(max_depth=10)
        got: list[bytes] = []

        def consume() -> None:
            while len(got) < 100:
                for d in q.receive(3, wait=1.0):
                    got.append(d.body)
                    d.ack()

        consumer = threading.Thread(target=consume)
        consumer.start()
        result = in_process("send", path, "-k", "k", "--wait", 60, input=numbered(100))
        consumer.join(PATIENCE_SECONDS)
    assert result.exit_code == 0, result.stderr
    assert got == bodies(100)


def test_a_busy_queue_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = StoreBusy("the write lock was not had", shard=0)
    Refusing(monkeypatch, lambda _: None, lambda _: busy, lambda _: busy)
    result = in_process("send", path, "-k", "k", "--batch", 10, "--wait", 60, input=numbered(30))
    assert result.exit_code == 0, result.stderr
    assert contents(path) == {"k": bodies(30)}


def test_a_busy_queue_without_patience(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, lambda _: None, lambda _: StoreBusy("the write lock was not had", shard=0))
    result = in_process("send", path, "-k", "k", "--batch", 10, "--json", input=numbered(30))
    assert result.exit_code == 1
    assert "line 11: shard 0: the write lock was not had" in result.stderr
    assert (summary(result)["sent"], summary(result)["stopped_at"]) == (10, 11)
    assert contents(path) == {"k": bodies(10)}


def test_what_one_shard_refused_is_sent_again_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = strictq.Queue.send_many

    def partly(messages: list[tuple[str, bytes]]) -> BaseException:
        with strictq.open(path) as q:
            results: list[Any] = [
                StoreBusy("busy", shard=1) if key == "b" else genuine(q, [Message(body, key=key)])[0] for key, body in messages
            ]
        return PartialFailure("some shards did not take their messages", results)

    Refusing(monkeypatch, partly)
    text = "".join(f'{{"k": "{"ab"[n % 2]}", "n": {n}}}\n' for n in range(20))
    result = in_process("send", path, "-k", "k", "--wait", 60, "--json", input=text)
    assert (result.exit_code, summary(result)["sent"]) == (0, 20), result.stderr
    lines = text.encode().splitlines()
    assert contents(path) == {"a": lines[::2], "b": lines[1::2]}

    Refusing(monkeypatch, partly)
    result = in_process("send", path, "-k", "k", "--json", input=text)
    assert (result.exit_code, summary(result)["sent"], summary(result)["stopped_at"]) == (1, 10, 2)
    assert "9 later lines, of other keys, were sent" in result.stderr


def test_an_unknown_outcome_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f'{{"k": "k", "n": {n}}}\n' for n in range(30))
    Refusing(monkeypatch, lambda _: None, lambda _: OutcomeUnknown("the COMMIT failed", shard=0))
    result = in_process("send", path, "-k", "k", "--batch", 10, "--wait", 60, "--json", input=text)
    assert result.exit_code == 1
    assert "lines 11 to 20 may or may not have been sent" in result.stderr
    assert (summary(result)["sent"], summary(result)["unknown"]) == (10, 10)
    # With dedup ids the same is simply done again.
    Refusing(monkeypatch, lambda _: OutcomeUnknown("the COMMIT failed", shard=0))
    result = in_process("send", path, "-k", "k", "--dedup-field", "n", "--wait", 60, "--json", input=text)
    assert (result.exit_code, summary(result)["sent"]) == (0, 30)


def test_settings_that_become_stricter_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tighten(messages: list[Message]) -> None:
        with strictq.open(path) as q:
            q.configure(max_body_bytes=18)

    Refusing(monkeypatch, tighten)
    lines = [*bodies(5), b'{"k": "k", "n": 1000}', *bodies(3)]
    result = in_process("send", path, "-k", "k", "--on-error", "skip", "--json", input=b"\n".join(lines))
    assert (result.exit_code, summary(result)["sent"], summary(result)["bad"]) == (1, 8, 1), result.stderr
    assert "line 6: a body may have 18 bytes" in result.stderr
    assert contents(path) == {"k": [*bodies(5), *bodies(3)]}


# ---------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{q}"], "give the key: --key-field FIELD, or --key KEY"),
        (["{q}", "--raw", "-k", "k"], "--raw lines have no fields"),
        (["{q}", "-k", "k", "--key", "x"], "use either --key-field or --key, not both"),
        (["{q}", "missing.jsonl", "-k", "k"], "missing.jsonl: No such file or directory"),
        (["{q}", ".", "-k", "k"], ". is a directory, not a file"),
        (["{q}", "-k", "k", "-H", "x"], "--header 'x' is not NAME=VALUE"),
        (["{q}", "-k", "k", "--ttl", "1e12"], "--ttl': 1e12 seconds are more than"),
        (["{q}", "-k", "k", "-H", os.fsdecode(b"a=\xff")], "strictq: header"),
        (["{q}", "--key", "x", "--key-type", "int"], "--key-type int: 'x' is not a whole number"),
        (["{q}", "-k", "k", "--shards", "2"], "require --create"),
        (["{q}", "-k", "k", "--on-error", "ask"], "--on-error"),
        (["{q}", "-k", "k", "--batch", "0"], "--batch"),
        (["nowhere", "-k", "k"], "hint: check the path, or create the queue: strictq create QUEUE"),
        ([".", "-k", "k"], "is a directory, but not a queue"),
        (["file", "-k", "k"], "is not a directory"),
        ([":memory:", "-k", "k"], "a queue in memory is always new"),
    ],
)
def test_wrong_usage(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    result = in_process("send", *[a.replace("{q}", str(path)) for a in args], input='{"k": 1}\n')
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_a_queue_that_several_make_at_once(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(numbered(200))
    args = ("send", "new.strictq", "in", "-k", "k", "--create", "--shards", "2", "--json")
    several = [start(tmp_path, *args) for _ in range(4)]
    results = [(p.communicate(timeout=PATIENCE_SECONDS), p.returncode) for p in several]
    assert [code for _, code in results] == [0] * 4, results
    with strictq.open(tmp_path / "new.strictq") as q:
        assert (q.shards, q.stats().ready, q.check()) == (2, 800, [])
    code, _, err = strictq_command(tmp_path, "send", "new.strictq", "in", "-k", "k", "--create", "--shards", "3")
    assert (code, "shard" in err) == (2, True), err


# ---------------------------------------------------------------- pipes, signals and terminals


def test_a_pipe_is_sent_as_it_comes(path: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "send", str(path), "-k", "k", "--json", stdin=subprocess.PIPE)
    assert process.stdin is not None
    with strictq.open(path, read_only=True) as q:
        for n in range(1, 4):
            # The end of this line, and the beginning of the next one, which waits for its own end.
            process.stdin.write('{"k": "k"}\n{"k"' if n == 1 else ': "k"}\n{"k"')
            process.stdin.flush()
            until(lambda n=n: q.stats().depth == n)  # type: ignore[misc]
    out, _ = process.communicate(': "k"}', timeout=PATIENCE_SECONDS)
    assert (process.returncode, json.loads(out)["sent"]) == (0, 4)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_it_waits_for_lines(path: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path, "send", str(path), "-k", "k", "--json", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(numbered(5))
    process.stdin.flush()
    with strictq.open(path, read_only=True) as q:
        until(lambda: q.stats().depth == 5)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (code, "")
    assert (json.loads(out)["sent"], json.loads(out)["stopped_at"]) == (5, 6)


TELLS_OF_THE_FIFO = """
import os, sys
sys.addaudithook(lambda event, args: event == "open" and str(args[0]) == "fifo" and os.write(2, b"it is opened\\n"))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_a_fifo_has_no_writer(path: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    process = start(tmp_path, "send", str(path), "fifo", "-k", "k", "--json", main=TELLS_OF_THE_FIFO + MAIN)
    assert process.stderr is not None
    assert process.stderr.readline() == "it is opened\n"
    wait_until_asleep(process)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (code, "", "")


def test_a_signal_on_the_way_lets_the_batch_finish(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: list[Message]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    Refusing(monkeypatch, lambda _: None, interrupt)
    result = in_process("send", path, "-k", "k", "--batch", 10, "--json", input=numbered(100))
    assert result.exit_code == 130
    assert (summary(result)["sent"], summary(result)["stopped_at"]) == (20, 21)
    assert contents(path) == {"k": bodies(20)}


def test_a_second_signal_does_not_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt_twice(_: list[Message]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE_SECONDS)

    Refusing(monkeypatch, lambda _: None, interrupt_twice)
    result = in_process("send", path, "-k", "k", "--batch", 10, "--json", input=numbered(100))
    assert result.exit_code == 130
    assert (summary(result)["sent"], summary(result)["unknown"], summary(result)["stopped_at"]) == (10, 10, 11)
    assert contents(path) == {"k": bodies(10)}


def test_estimates_go_with_each_message(path: Path) -> None:
    text = '{"k": "a", "pages": 3}\n{"k": "b", "pages": 0.5}\n'
    args = ("--size-field", "pages", "--prepare-seconds", 0.25, "--process-seconds", 2)
    assert in_process("send", path, "-k", "k", *args, input=text).exit_code == 0
    with strictq.open(path) as q:
        found = {d.key: (d.size_hint, d.prepare_seconds, d.process_seconds) for d in q.receive()}
    assert found == {"a": (3.0, 0.25, 2.0), "b": (0.5, 0.25, 2.0)}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"k": 1}', "there is no size field 'pages'; the row's fields: 'k'"),
        ('{"k": 1, "pages": "3"}', "size field 'pages' must be a number, not a string"),
        ('{"k": 1, "pages": true}', "size field 'pages' must be a number, not true or false"),
        ('{"k": 1, "pages": null}', "size field 'pages' must be a number, not null"),
        ('{"k": 1, "pages": -1}', "size field 'pages': its value must be a number, 0 to 1e+300, not -1"),
        ('{"k": 1, "pages": 1e301}', "size field 'pages': its value must be a number, 0 to 1e+300, not 1e+301"),
    ],
)
def test_a_bad_size_field(path: Path, row: str, why: str) -> None:
    result = in_process("send", path, "-k", "k", "--size-field", "pages", input=f"{row}\n")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (1, f"strictq: stdin: line 1: {why}")


def test_raw_lines_have_no_size_field(path: Path) -> None:
    result = in_process("send", path, "--raw", "--key", "k", "--size-field", "n", input="x\n")
    assert (result.exit_code, "--raw lines have no fields" in result.stderr) == (2, True)


@pytest.mark.parametrize("repeatable", [False, True], ids=["", "dedup"])
@pytest.mark.parametrize("where", ["sent", "counted"])
def test_a_second_signal_after_the_commit_leaves_a_doubt(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: str, repeatable: bool
) -> None:
    """It comes when the batch is in the queue, and the command does not know it yet, or not all of it."""
    holder, name = (Sending, "send_many" if repeatable else "send_plain") if where == "sent" else (Sender, "_count")
    genuine = getattr(holder, name)
    calls: list[object] = []

    def interrupted(*args: Any) -> Any:
        result = genuine(*args)
        calls.append(None)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(holder, name, interrupted)
    more = ["--dedup-field", "n"] if repeatable else []
    result = in_process("send", path, "-k", "k", "--batch", 10, "--json", *more, input=numbered(100))
    assert result.exit_code == 130
    found = summary(result)
    assert (found["sent"], found["unknown"], found["stopped_at"]) == (10, 10, 11)
    again = (
        "sending them again within dedup_window_seconds is" if repeatable else "with --dedup-field, sending them again would be"
    )
    assert result.stderr == f"strictq: stdin: lines 11 to 20 may or may not have been sent; {again} safe\n"
    assert contents(path) == {"k": bodies(20)}


@pytest.mark.slow
def test_a_killed_run_has_sent_what_a_repeated_one_need_not(path: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f'{{"k": "k{n % 7}", "id": {n}}}\n' for n in range(20_000)))
    args = ("send", str(path), "in", "-k", "k", "--dedup-field", "id", "--batch", "50", "--json")
    process = start(tmp_path, *args)
    with strictq.open(path, read_only=True) as q:
        until(lambda: q.stats().depth >= 500)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    code, out, err = strictq_command(tmp_path, *args)
    assert code == 0, err
    values = json.loads(out)
    assert values["sent"] + values["duplicates"] == 20_000
    assert values["duplicates"] >= 500
    found = contents(path)
    assert {k: [json.loads(b)["id"] for b in v] for k, v in found.items()} == {
        f"k{k}": list(range(k, 20_000, 7)) for k in range(7)
    }


@pytest.mark.parametrize(
    ("seconds", "window", "more", "warned"),
    [
        (301.0, None, ["--dedup-field", "n"], True),
        (299.0, None, ["--dedup-field", "n"], False),
        (301.0, None, ["--dedup-field", "n", "--quiet"], True),
        (301.0, None, ["--dedup-field", "n", "--json"], True),
        (301.0, 86400.0, ["--dedup-field", "n"], False),
        (301.0, None, [], False),
        (301.0, None, ["--dedup-field", "missing"], False),  # nothing was sent
    ],
)
def test_a_run_that_outlasts_the_dedup_window_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, window: float | None, more: list[str], warned: bool
) -> None:
    if window is not None:
        with strictq.open(path) as q:
            q.configure(dedup_window_seconds=window)
    at = iter((1000.0, 1000.0 + seconds))
    monkeypatch.setattr(importlib.import_module("strictq.cli.send"), "time", SimpleNamespace(monotonic=lambda: next(at)))
    result = in_process("send", path, "-k", "k", *more, input=numbered(3))
    text = (
        "strictq: stdin: the run took 301 s, longer than dedup_window_seconds (300): repeating it now would send its first "
        "lines twice\n  hint: raise the window first: strictq config QUEUE dedup_window_seconds=SECONDS"
    )
    assert (text in result.stderr) == warned, result.stderr
    assert ("dedup_window" in result.stderr) == warned


def test_the_help_tells_of_the_dedup_window() -> None:
    assert "dedup_window_seconds (default 300)" in " ".join(in_process("send", "--help").stdout.split())
    assert strictq.QueueConfig().dedup_window_seconds == 300


@pytest.mark.slow
def test_a_progress_bar_on_a_terminal_only(path: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(numbered(300))
    code, shown = in_a_terminal(tmp_path, "send", str(path), "in", "-k", "k", "--batch", "100")
    assert (code, "300 lines" in shown, bool(COLOUR.search(shown))) == (0, True, True)
    code, shown = in_a_terminal(tmp_path, "send", str(path), "in", "-k", "k", "--batch", "100", NO_COLOR="1", COLUMNS="40")
    assert (code, COLOUR.findall(shown)) == (0, [])
    code, shown = in_a_terminal(tmp_path, "send", str(path), "in", "-k", "k", "--quiet")
    assert (code, shown) == (0, "")
    code, out, err = strictq_command(tmp_path, "send", str(path), "in", "-k", "k")
    assert (code, out, "\x1b" in err, err.count("\n")) == (0, "", False, 1)


def test_lines_typed_at_a_terminal(path: Path, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "send", str(path), "-k", "k"],
        cwd=tmp_path, env=environment(tmp_path), stdin=child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(child)
    os.write(parent, b'{"k": "typed"}\n\x04')
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    os.close(parent)
    assert process.returncode == 0
    assert "end with Ctrl-D" in err
    assert list(contents(path)) == ["typed"]


def test_no_stdin(path: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.stdin = None; {MAIN}"
    done = subprocess.run(
        [sys.executable, "-c", code, "send", str(path), "-k", "k"],
        env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "strictq: there is no stdin to read\n")
