"""The commands that look and operate, beside a program that has the queue open."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Message
from tests.support.command import in_process, json_lines, strictq_command
from tests.support.injection import lose_ready
from tests.support.recorded_batches import holder, read
from tests.support.running import until


@pytest.fixture
def q(path: Path) -> Iterator[strictq.Queue]:
    """The program that the commands look at from outside."""
    with strictq.open(path) as opened:
        yield opened


def values(command: str, path: Path, *args: object) -> dict[str, Any]:
    result = in_process(command, path, "--json", *args)
    assert result.exit_code == 0, result.stderr
    (found,) = json_lines(result.stdout)
    return dict(found)


def lines(command: str, path: Path, *args: object) -> list[Any]:
    result = in_process(command, path, "--json", *args)
    assert result.exit_code == 0, result.stderr
    return json_lines(result.stdout)


def text(*args: object) -> str:
    result = in_process(*args)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def fill(q: strictq.Queue, key: Any, count: int) -> None:
    q.send_many([Message(b"body %d" % n, key=key) for n in range(1, count + 1)])


# ---------------------------------------------------------------- looking


@pytest.mark.parametrize("command", ["explain", "check", "config", "shards"])
def test_a_url_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = in_process(command, "sqs+http://user:secret@host/queue/x", "key")
    assert result.exit_code == 2
    assert "a path is needed, not a URL" in result.stderr
    assert "secret" not in result.stderr


def test_top_keys(q: strictq.Queue, path: Path) -> None:
    assert text("top-keys", path) == "no key has messages"
    for key, count in (("a", 3), (7, 5), (b"\x00", 4)):
        fill(q, key, count)
    assert [(k["key"], k["key_type"], k["depth"], k["state"]) for k in lines("top-keys", path)] == [
        (7, "int", 5, "ready"), ("AA==", "bytes", 4, "ready"), ("a", "str", 3, "ready"),
    ]  # fmt: skip
    assert [k["key"] for k in lines("top-keys", path, "--by", "age", "--limit", 1)] == ["a"]
    assert "hex:00 4" in text("top-keys", path)


@pytest.mark.parametrize(
    ("key", "args"),
    [
        ("order", ["order"]),
        (7, ["7", "--key-type", "int"]),
        (-7, ["--key-type", "int", "--", "-7"]),
        (b"\xff", ["ff", "--key-type", "hex"]),
    ],
)
def test_explain(q: strictq.Queue, path: Path, key: Any, args: list[str]) -> None:
    assert values("explain", path, *args)["state"] == "empty"
    fill(q, key, 2)
    (d,) = q.receive(1, consumer="printer-2")
    found = values("explain", path, *args)
    assert [found[name] for name in ("state", "by", "head_seq", "depth", "dead", "token")] == [
        "in_flight",
        "printer-2",
        1,
        2,
        0,
        d.token,
    ]
    assert "held by printer-2" in text("explain", path, *args)
    d.nack(reason="no\x1b[31m paper")
    assert "no\N{REPLACEMENT CHARACTER}[31m paper" in text("explain", path, *args)


def test_explain_speaks_of_commands(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 1)
    q.hold("k", "customer called")
    for shown in (text("explain", path, "k"), values("explain", path, "k")["text"]):
        assert "release it with strictq release" in shown
        assert "q." not in shown


def test_peek_and_status(q: strictq.Queue, path: Path) -> None:
    assert text("peek", path, "k") == "no message is waiting"
    fill(q, "k", 3)
    q.send(b"\xff" * 500, "k", delay=60, ttl=120, headers={"a": "b"})
    found = lines("peek", path, "k")
    assert [m["seq"] for m in found] == [1, 2, 3, 4]
    assert set(found[0]) == {
        "key", "key_type", "seq", "id", "headers", "dedup_id", "state", "attempts", "enqueued_at", "due_at", "expires_at",
        "body", "body_encoding",
    }  # fmt: skip
    assert (found[3]["headers"], found[3]["body_encoding"]) == ({"a": "b"}, "base64")
    assert len(lines("peek", path, "k", "--limit", 2)) == 2
    assert "body 1" in text("peek", path, "k")
    (d,) = q.receive(1, consumer="me")
    assert values("status", path, "k", 1) | {"until": 0} == {
        "key": "k", "key_type": "str", "seq": 1, "state": "in_flight", "attempts": 1, "consumer": "me", "until": 0,
        "last_error": None, "last_output": None, "errors": [], "progress": None,
    }  # fmt: skip
    d.ack()
    assert values("status", path, "k", 1)["state"] == "resolved"
    assert text("status", path, "k", 2) == "key k seq 2 state ready attempts 0"
    result = in_process("status", path, "k", 9)
    assert (result.exit_code, result.stderr) == (1, "strictq: key 'k' has no message with seq 9\n")


def test_output(q: strictq.Queue, path: Path) -> None:
    q.configure(output_seconds=60.0, keyless="round_robin")
    fill(q, "k", 1)
    receipt = q.send(b"")
    result = in_process("output", path, "k", 1)
    assert result.exit_code == 1
    assert result.stderr.startswith("strictq: no output of this message is kept, or it has not ended\n")
    assert in_process("output", path, "k", 1, "--json", "--wait", 0.01).exit_code == 1
    for d in q.receive():
        d.ack(output=f"page 1\n{d.key} \x1b[31m")
    assert text("output", path, "k", 1) == "page 1 k �[31m"
    assert values("output", path, "k", 1) == {"key": "k", "key_type": "str", "seq": 1, "output": "page 1\nk \x1b[31m"}
    assert values("output", path, "--id", receipt.id, "--shard", receipt.shard)["output"] == "page 1\nNone \x1b[31m"
    for words in (("k", 9), ("nobody", 1), ("--id", 99, "--shard", 0)):
        assert in_process("output", path, *words).exit_code == 1
    for words in (("k",), (), ("k", 1, "--id", 1), ("k", 1, "--shard", 0), ("k", 1, "--wait", -1), ("k", 0)):
        assert in_process("output", path, *words).exit_code == 2


def test_keyless_messages_are_found_by_id(q: strictq.Queue, path: Path) -> None:
    q.configure(keyless="round_robin")
    receipt = q.send(b"text")
    keyed = q.send(b"", 42)
    args = ("--id", receipt.id, "--shard", receipt.shard)
    found = values("status", path, *args)
    assert (found["key"], found["key_type"], found["seq"], found["state"]) == (None, None, 1, "ready")
    assert [m["body"] for m in lines("peek", path, *args)] == ["text"]
    assert "state ready" in text("status", path, *args)
    assert values("status", path, 42, 1, "--key-type", "int")["state"] == "ready"
    for of in (keyed, receipt):
        if of is receipt:
            q.ack_many(q.receive())
        result = in_process("status", path, "--id", of.id, "--shard", of.shard)
        assert result.exit_code == 1
        assert f"no keyless message has id {of.id}: it is resolved, or has a key" in result.stderr
        assert lines("peek", path, "--id", of.id, "--shard", of.shard) == []


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("status", "--id", 99, "--shard", 0), 1, "shard 0 has issued no id 99"),
        (("status", "--id", 1), 2, "ids are per shard; give the shard with --shard"),
        (("peek", "--id", 1, "--shard", 2), 2, "there is no shard 2; the last one is 1"),
        (("status", "k", "--id", 1), 2, "use either KEY or --id, not both"),
        (("status", "k"), 2, "give KEY and SEQ"),
        (("status",), 2, "give KEY and SEQ"),
        (("peek", "--shard", 1), 2, "--shard requires --id"),
        (("status", "--id", 0), 2, "--id"),
    ],
)
def test_what_is_wrong_with_an_id(q: strictq.Queue, path: Path, args: tuple[Any, ...], code: int, said: str) -> None:
    result = in_process(args[0], path, *args[1:])
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


def test_peek_without_a_key_shows_the_oldest(q: strictq.Queue, path: Path) -> None:
    assert text("peek", path) == "no message is waiting"
    for n in range(6):
        q.send(b"body %d" % n, key=n % 4)
    assert [(m["key"], m["body"]) for m in lines("peek", path, "--limit", 5)] == [(n % 4, f"body {n}") for n in range(5)]
    assert text("peek", path).startswith("key seq state attempts sent due body 0 1 ready 0")


def test_dead_and_redrive(q: strictq.Queue, path: Path) -> None:
    assert text("dead", path) == "no dead letters"
    for key in ("a", "b"):
        fill(q, key, 3)
        for d in q.receive(3, keys=[key]):
            d.reject("not an order")
    found = lines("dead", path)
    assert len(found) == 6
    assert set(found[0]) == {
        "key", "key_type", "seq", "id", "headers", "dedup_id", "kind", "reason", "attempts", "enqueued_at", "died_at",
        "body", "body_encoding", "errors", "output",
    }  # fmt: skip
    assert [(d["seq"], d["kind"], d["reason"]) for d in lines("dead", path, "a")] == [
        (n, "rejected", "not an order") for n in (1, 2, 3)
    ]
    result = in_process("dead", path, "--limit", 2)
    assert "6 in total" in result.stderr
    assert values("redrive", path, "a", "--seq", 3, "--seq", 1) == {"redriven": 2, "all": False, "key": "a", "key_type": "str"}
    assert [m["seq"] for m in lines("peek", path, "a")] == [1, 3]
    assert text("redrive", path, "--all") == "4 dead letters redriven"
    assert text("redrive", path, "--all") == "0 dead letters redriven"


def test_errors_are_shown_line_by_line(q: strictq.Queue, path: Path) -> None:
    q.configure(max_attempts=2, retry_for_seconds=0.0, retry_delay_seconds=0.0)
    fill(q, "k", 1)
    for _ in range(2):
        (d,) = q.receive(1)
        with pytest.raises(ValueError, match="no paper"), d:
            raise ValueError("no paper\x1b[2J\nin tray 2")
    for args in (("status", path, "k", 1), ("dead", path, "k", "--errors")):
        result = in_process(*args)
        assert result.exit_code == 0, result.stderr
        shown = [line.strip() for line in result.stdout.splitlines()]
        assert "\x1b" not in result.stdout
        assert sum(line.startswith("attempt ") for line in shown) == 2
        assert shown.count("in tray 2") == 5 if args[0] == "status" else 4
        assert shown.count("Traceback (most recent call last):") == 2
    assert "attempt" not in text("dead", path).replace("attempts", "")


def test_a_dead_letter_without_errors_says_so(q: strictq.Queue, path: Path) -> None:
    q.configure(on_expire="dead_letter")
    q.send(b"", "k", ttl=0.001)
    time.sleep(0.01)
    q.receive()
    assert "no attempt left an error" in text("dead", path, "--errors")


def test_history(q: strictq.Queue, path: Path) -> None:
    assert text("history", path) == "no records: the setting history is off"
    q.configure(history="bodies")
    for key in ("a", "b", "c", "d"):
        fill(q, key, 3)
    q.ack_many(q.receive(100))
    records = lines("history", path)
    assert len(records) == 12
    assert {(r["outcome"], r["body_encoding"]) for r in records} == {("acked", "utf-8")}
    assert [(r["seq"], r["body"]) for r in lines("history", path, "a")] == [(n, f"body {n}") for n in (1, 2, 3)]
    of_shards = [lines("history", path, "--shard", n) for n in (0, 1)]
    assert [*of_shards[0], *of_shards[1]] == records
    some = max(of_shards, key=len)
    assert lines("history", path, "--shard", some[0]["shard"], "--after", some[1]["n"]) == some[2:]
    assert len(lines("history", path, "--limit", 5)) == 5
    assert "acked" in text("history", path)
    place = lines("history", path, "a")[0]
    assert [r["seq"] for r in lines("history", path, "a", "--shard", place["shard"], "--after", place["n"])] == [2, 3]
    for args in (["--after", 1], ["--shard", 7]):
        assert in_process("history", path, *args).exit_code == 2
    assert in_process("purge", path, "a", "--history").exit_code == 0
    assert lines("history", path, "a") == []
    q.configure(history="records")
    fill(q, "e", 1)
    q.ack_many(q.receive())
    (record,) = lines("history", path, "e")
    assert (record["body"], record["body_encoding"], record["size"]) == (None, None, 6)


def test_hold_and_release(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 1)
    assert values("hold", path, "k", "--reason", "customer called") == {
        "held": True, "key": "k", "key_type": "str", "in_flight": False,
    }  # fmt: skip
    assert q.receive() == []
    assert values("explain", path, "k")["by"] == "customer called"
    assert text("release", path, "k") == "k: released"
    assert values("release", path, "k") == {"released": False, "key": "k", "key_type": "str"}
    (d,) = q.receive(consumer="me")
    assert text("hold", path, "k") == "k is held; me may finish the messages that it has leased"
    d.ack()
    assert values("release", path, "--keyless")["released"] is False


def test_release_of_a_consumer(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 3)
    h = holder(q, "etl")
    h.take(0)
    assert "until the batch is acked or released with strictq release --consumer etl" in text("explain", path, "k")
    result = in_process("release", path, "--consumer", "elt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no named consumer elt\n  hint: the queue has etl" in result.stderr
    result = in_process("release", path, "--consumer", "etl")
    assert (result.exit_code, q.stats().in_flight) == (1, 3)
    assert "is in use by a running process\n  hint: stop its query, or use --force" in result.stderr
    assert values("release", path, "--consumer", "etl", "--force") == {
        "released": True, "key": None, "key_type": None, "consumer": "etl", "messages": 3,
    }  # fmt: skip
    with pytest.raises(strictq.ConsumerLost):
        h.take(1)
    h.close()
    assert q.stats().ready == 3
    assert text("release", path, "--consumer", "etl") == "consumer etl: 0 messages released"


def test_a_message_that_a_consumer_holds_is_settled_by_force(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 4)
    held = q.receive(4, keys=["k"])
    result = in_process("reject", path, "k", 1, "--reason", "it hangs")
    assert result.exit_code == 1
    assert "--force" in result.stderr
    assert values("reject", path, "k", 1, "--reason", "it hangs", "--force") == {
        "rejected": [1], "resolved": [], "key": "k", "key_type": "str",
    }  # fmt: skip
    assert values("resolve", path, "k", 2, 1) == {"acked": [2], "resolved": [1], "key": "k", "key_type": "str"}
    assert text("resolve", path, "k", 3) == "k: 1 message acked"
    result = in_process("resolve", path, "k", 9)
    assert result.exit_code == 1
    assert "has no message with seq 9" in result.stderr
    with pytest.raises(strictq.LeaseLost):
        held[3].ack()
    assert [d.seq for d in q.receive(4, keys=["k"])] == [4]
    assert [d.reason for d in q.dead_letters("k")] == ["it hangs"]


def test_reject(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 5)
    h = holder(q, "etl")
    h.take(0, messages_max=4)
    assert values("reject", path, "k", 2, "--reason", "it kills the job") == {
        "rejected": [2], "resolved": [], "key": "k", "key_type": "str",
    }  # fmt: skip
    assert [(d.seq, d.kind, d.reason) for d in q.dead_letters()] == [(2, "rejected", "it kills the job")]
    assert [seq for _, seq, _ in read(q, h, 1)] == [1, 3, 4]
    assert text("reject", path, "k", 2, 3, "--reason", "too") == "k: 1 message rejected; resolved already: seq 2"
    result = in_process("reject", path, "k", 4, 9, "--reason", "and these", "--json")
    assert (result.exit_code, json.loads(result.stdout)["rejected"]) == (1, [4])
    assert "has no message with seq 9" in result.stderr
    h.take(1)
    h.ack(2)
    fill(q, "w", 2)
    (d,) = q.receive(1, keys=["w"])
    result = in_process("reject", path, "w", 1, "--reason", "a worker has it")
    assert result.exit_code == 1
    assert "is held by" in result.stderr
    d.ack()
    assert values("reject", path, "--reason", "n", "--key-type", "str", "--", "w", 2)["rejected"] == [2]


def test_purge(q: strictq.Queue, path: Path) -> None:
    fill(q, "a", 3)
    fill(q, "b", 2)
    assert values("purge", path, "a") == {"purged": 3, "all": False, "key": "a", "key_type": "str"}
    result = in_process("purge", path, "--all")
    assert (result.exit_code, "confirm with --yes" in result.stderr, q.stats().ready) == (2, True, 2)
    for d in q.receive(1):
        d.reject("bad")
    assert text("purge", path, "--all", "--yes") == "1 message deleted"
    assert values("purge", path, "--all", "--dead", "--yes")["purged"] == 1
    assert in_process("purge", path, "--all", "--yes", "--quiet").stdout == ""


def test_purging_the_records_alone(q: strictq.Queue, path: Path) -> None:
    q.configure(history="records")
    fill(q, "a", 3)
    fill(q, "b", 2)
    q.ack_many([d for d in q.receive() if d.seq < 2 or d.key == "a"])
    assert values("history", "purge", path, "a") == {"purged": 3, "all": False, "key": "a", "key_type": "str"}
    assert [r["key"] for r in lines("history", path)] == ["b"]
    result = in_process("history", "purge", path, "--all")
    assert (result.exit_code, "confirm with --yes" in result.stderr, len(lines("history", path))) == (2, True, 1)
    assert text("history", "purge", path, "--all", "--yes") == "1 record deleted"
    assert (q.stats().depth, lines("history", path)) == (1, [])
    for args in ([], ["a", "--all", "--yes"]):
        assert in_process("history", "purge", path, *args).exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ["redrive"],
        ["redrive", "k", "--all"],
        ["redrive", "--all", "--seq", "1"],
        ["release"],
        ["release", "k", "--keyless"],
        ["release", "k", "--consumer", "etl"],
        ["release", "k", "--force"],
        ["reject", "k", "1"],
        ["reject", "k", "--reason", "no"],
        ["reject", "k", "0", "--reason", "no"],
        ["reject", "k", "1", "--reason", ""],
        ["purge"],
        ["purge", "k", "--all", "--yes"],
        ["explain"],
        ["explain", "x", "--key-type", "int"],
        ["explain", "x", "--key-type", "base64"],
        ["explain", ""],
        ["status", "k", "0"],
        ["peek", "k", "--limit", "0"],
        ["hold"],
    ],
)
def test_wrong_usage(q: strictq.Queue, path: Path, args: list[str]) -> None:
    fill(q, "k", 1)
    result = in_process(args[0], path, *args[1:])
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert result.stderr
    assert "Traceback" not in result.stderr
    assert q.stats().ready == 1


# ---------------------------------------------------------------- as processes of their own


@pytest.fixture
def busy(q: strictq.Queue) -> Iterator[Callable[[], int]]:
    """The program uses its queue all the time; says how many messages of its own it has done."""
    stopping, seen = threading.Event(), [0]

    def work() -> None:
        while not stopping.is_set():
            q.send(b"traffic", key="busy")
            for d in q.receive(keys=["busy"]):
                d.ack()
                seen[0] += 1

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        yield lambda: seen[0]
        stopping.set()
        working.result()


def taken(q: strictq.Queue) -> list[int]:
    """What the program gets of k, in order."""
    return [d.seq for d in q.receive(keys=["k"])]


def dead(q: strictq.Queue) -> list[tuple[int, str, str]]:
    return [(d.seq, d.kind, d.reason) for d in q.dead_letters("k")]


def reject_all(q: strictq.Queue) -> None:
    for d in q.receive(keys=["k"]):
        d.reject("bad")


def lose_the_place(q: strictq.Queue) -> None:
    """No receive of all keys would return k any more."""
    lose_ready(q, "k")
    assert {problem.rule for problem in q.check()} == {"place"}


def fail_once(q: strictq.Queue) -> list[tuple[int, str, str]]:
    (d,) = q.receive(1, keys=["k"])
    d.nack(reason="no paper")
    return dead(q)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words", "before", "effect", "expected"),
    [
        ("hold", ["k", "--reason", "called"], None, lambda q: (q.explain("k").by, taken(q)), ("called", [])),
        ("release", ["k"], lambda q: q.hold("k", "called"), taken, [1, 2, 3]),
        ("redrive", ["k"], reject_all, lambda q: (dead(q), taken(q)), ([], [1, 2, 3])),
        ("reject", ["k", "2", "--reason", "bad"], None, lambda q: (dead(q), taken(q)), ([(2, "rejected", "bad")], [1, 3])),
        ("purge", ["k"], None, lambda q: (taken(q), q.explain("k").depth), ([], 0)),
        ("config", ["max_attempts=1"], None, fail_once, [(1, "poison", "no paper")]),
        ("check", ["--fix"], lose_the_place, taken, [1, 2, 3]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operating_from_another_process(
    q: strictq.Queue,
    path: Path,
    tmp_path: Path,
    busy: Callable[[], int],
    command: str,
    words: list[str],
    before: Callable[[strictq.Queue], object] | None,
    effect: Callable[[strictq.Queue], object],
    expected: object,
) -> None:
    """Beside the program, which is this process: it goes on, and meets what the command did."""
    fill(q, "k", 3)
    if before is not None:
        before(q)
    status, _, err = strictq_command(tmp_path, command, str(path), *words)
    assert (status, err) == (0, "")
    was = busy()
    until(lambda: busy() > was, "the program's own messages")
    assert effect(q) == expected
    assert q.check() == []


# ---------------------------------------------------------------- query


def test_query(q: strictq.Queue, path: Path) -> None:
    q.app_schema("CREATE TABLE app_t (name TEXT PRIMARY KEY, cents INTEGER, share REAL, blob BLOB)")
    for key in ("a", "b", "c"):
        with q.transaction(key=key) as tx:
            tx.execute("INSERT INTO app_t VALUES (?, 5, 9e999, x'00ff')", (key,))
    found = sorted(lines("query", path, "SELECT * FROM app_t"), key=lambda row: row["name"])
    assert found == [{"name": key, "cents": 5, "share": "inf", "blob": {"base64": "AP8="}} for key in ("a", "b", "c")]
    assert lines("query", path, "SELECT cents, cents FROM app_t WHERE name = ?", "--param", "a") == [{"cents": 5, "cents_2": 5}]
    assert lines("query", path, "SELECT 1 a, 2 a, 3 a_2, 4 a, 5 a_3, 6 a_2", "--key", "a") == [
        {"a": 1, "a_4": 2, "a_2": 3, "a_5": 4, "a_3": 5, "a_2_6": 6}
    ]
    assert lines("query", path, "SELECT ? AS x, ? AS y, ? AS z", "-p", "1", "-p", "null", "-p", "one", "--key", "a") == [
        {"x": 1, "y": None, "z": "one"}
    ]
    shown = text("query", path, "SELECT name, cents, blob FROM app_t WHERE name = 'a'")
    assert shown.startswith("name cents blob")
    assert shown.endswith("a 5 hex:00ff")
    assert text("query", path, "SELECT * FROM app_t WHERE 0") == "no rows"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM message",
        "DELETE FROM app_t",
        "nonsense",
        "SELECT * FROM app_nowhere",
        "SELECT 1; SELECT 1, 2",
        "",
        "SELECT ?",
    ],
)
def test_query_refuses(q: strictq.Queue, path: Path, sql: str) -> None:
    q.app_schema("CREATE TABLE app_t (name TEXT)")
    with q.transaction(key="a") as tx:
        tx.execute("INSERT INTO app_t VALUES ('x')")
    result = in_process("query", path, sql)
    assert (result.exit_code == 2) is (sql != ""), result.stderr
    assert "Traceback" not in result.stderr
    assert q.query("SELECT name FROM app_t") == [("x",)]


def test_columns_of_a_query_are_known(q: strictq.Queue) -> None:
    q.app_schema("CREATE TABLE app_t (name TEXT)")
    assert q.query("SELECT name AS n FROM app_t").columns == ()
    with q.transaction(key="a") as tx:
        tx.execute("INSERT INTO app_t VALUES ('x')")
        assert tx.run(lambda db: db.execute("SELECT name FROM app_t").columns) == ("name",)
    assert q.query("SELECT name AS n, 1 AS one FROM app_t").columns == ("n", "one")


# ---------------------------------------------------------------- a damaged shard


@pytest.fixture
def damaged(path: Path) -> Path:
    """Shard 1 of the queue is not there any more; shard 0 has a message and a row."""
    with strictq.open(path) as q:
        q.app_schema("CREATE TABLE app_t (name TEXT)")
        for n in range(20):
            with q.transaction(key=f"k{n}") as tx:
                tx.execute("INSERT INTO app_t VALUES (?)", (f"k{n}",))
    for file in path.glob("shard-0001.db*"):
        file.unlink()
    return path


def test_what_is_left_of_a_damaged_queue(damaged: Path) -> None:
    result = in_process("stats", damaged, "--json")
    assert result.exit_code == 1
    shards = json.loads(result.stdout)["shards"]
    assert [s["quarantined"] is None for s in shards] == [True, False]
    shown = in_process("stats", damaged).stdout
    for said in (shown, shards[1]["quarantined"]):
        assert said.count("shard 1: shard-0001.db is missing (restore the file from a backup, or salvage") == 1
        assert "strictq check QUEUE --salvage OUT" in said
        assert "strictq.salvage" not in said
    result = in_process("query", damaged, "SELECT name FROM app_t", "--json")
    assert result.exit_code == 1
    assert 0 < len(json_lines(result.stdout)) < 20
    assert "shard 1" in result.stderr
    result = in_process("check", damaged, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["problems"][0]["shard"]) == (False, 1)


def test_check(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 3)
    assert values("check", path) == {"ok": True, "problems": []}
    assert text("check", path) == "no problems found"
    assert in_process("check", path, "--quiet").stdout == ""


def test_check_saves_what_can_be_saved(q: strictq.Queue, path: Path, tmp_path: Path) -> None:
    fill(q, "k", 3)
    q.close()
    found = values("check", path, "--salvage", tmp_path / "whole")
    assert found == {"messages": 3, "dead": 0, "lost": [], "notes": [], "unverified": []}
    assert in_process("check", path, "--salvage", tmp_path / "again", "--quiet").stdout == ""
    assert in_process("check", path, "--salvage", tmp_path / "whole").exit_code == 2, "it exists"
    assert in_process("check", path, "--salvage", tmp_path / "new", "--fix").exit_code == 2
    with strictq.open(path, create=False) as again, strictq.open(tmp_path / "whole", create=False) as saved:
        shard = next(s.shard for s in again.stats().shards if s.depth)
        assert [m.seq for m in saved.peek("k")] == [1, 2, 3]
    for suffix in ("", "-wal"):
        Path(f"{path / f'shard-{shard:04d}.db'}{suffix}").unlink()
    result = in_process("check", path, "--salvage", tmp_path / "part")
    assert result.exit_code == 1
    assert "saved 0 messages" in result.stdout
    assert "possibly lost" in result.stdout


def test_check_fixes(q: strictq.Queue, path: Path) -> None:
    fill(q, "k", 3)
    lose_ready(q, "k")
    result = in_process("check", path, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (1, False)
    assert all(p["fixable"] and not p["fixed"] for p in found["problems"])
    assert "--fix can repair" in in_process("check", path).stdout
    result = in_process("check", path, "--fix", "--json")
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (0, True)
    assert all(p["fixed"] for p in json.loads(result.stdout)["problems"])
    assert values("check", path) == {"ok": True, "problems": []}


# ---------------------------------------------------------------- create and config


def test_create_and_config(tmp_path: Path) -> None:
    where = tmp_path / "new.strictq"
    made = values(
        "create", where, "max_attempts=10", "on_poison=hold", "lease_seconds=1.5", "--shards", 3, "--durability", "process"
    )
    assert (made["shards"], made["durability"], made["path"]) == (3, "process", str(where.resolve()))
    assert [made["config"][n] for n in ("max_attempts", "on_poison", "lease_seconds")] == [10, "hold", 1.5]
    assert values("config", where)["config"] == made["config"]
    changed = values("config", where, "max_attempts=none", "on_poison=dead_letter", "max_depth=1_000")["config"]
    assert [changed[n] for n in ("max_attempts", "on_poison", "max_depth")] == [None, "dead_letter", 1000]
    shown = text("config", where)
    assert "max_depth 1000 (changed)" in shown
    assert "ttl_seconds none" in shown
    result = in_process("create", where)
    assert (result.exit_code, "Traceback" in result.stderr) == (2, False)
    assert "change one with strictq config QUEUE NAME=VALUE" in result.stderr
    assert "q.configure" not in result.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_attempts", "'max_attempts' is not NAME=VALUE"),
        ("max_attempt=3", "unknown setting 'max_attempt'"),
        ("max_attempts=0", "max_attempts must be"),
        ("max_attempts=many", "max_attempts must be"),
        ("max_attempts=-1", "max_attempts must be"),
        ("on_poison=explode", "on_poison must be"),
        ("max_body_bytes=1.5", "max_body_bytes must be"),
    ],
)
def test_settings_that_cannot_be(path: Path, setting: str, message: str) -> None:
    before = values("config", path)
    result = in_process("config", path, setting)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert values("config", path) == before
    result = in_process("create", path.parent / "never", setting)
    assert (result.exit_code, (path.parent / "never").exists()) == (2, False)


def test_an_obsolete_setting_is_reported_and_ignored(path: Path) -> None:
    before = values("config", path)
    for args in (("config", path), ("create", path.parent / "new")):
        result = in_process(*args, "hot_lanes=false", "--json")
        assert result.exit_code == 0
        assert "strictq: the setting hot_lanes has no effect any more" in result.stderr
    assert values("config", path) == before


def test_looking_changes_nothing(path: Path) -> None:
    with strictq.open(path) as q:
        fill(q, "k", 3)
        q.hold("other")
    before = {p.name: p.read_bytes() for p in path.glob("*.db")}
    for args in (["stats"], ["top-keys"], ["explain", "k"], ["peek", "k"], ["status", "k", "1"], ["dead"], ["check"], ["config"]):
        assert in_process(args[0], path, *args[1:]).exit_code == 0
    assert {p.name: p.read_bytes() for p in path.glob("*.db")} == before
    shutil.rmtree(path)
    for args in (["stats"], ["hold", "k"], ["purge", "k"], ["config", "max_depth=1"]):
        result = in_process(args[0], path, *args[1:])
        assert (result.exit_code, "there is no queue" in result.stderr) == (2, True)
    assert not path.exists()
