"""Bad input: each is refused with a typed error, and nothing changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from strictq import Delivery, Event, InvalidArgument, Message, MessageTooLarge, Queue, StrictqError
from strictq.testing import FakeClock
from tests.support.injection import fold, maintain, restamp
from tests.support.queues import Opener, drain, fill, keys_by_shard, labels
from tests.support.running import PATIENCE_SECONDS

pytestmark = pytest.mark.no_second_process("the arguments are refused before a shard is used")

NAN, INF = float("nan"), float("inf")


class OddStr(str):
    """A str of somebody's own."""


# --- keys ----------------------------------------------------------------------------------------------------------

BAD_KEYS: list[object] = [
    "",
    b"",
    "x" * 1_000_000,
    b"x" * 1_000_000,
    "ü" * 513,
    10**5_000,
    "\ud800",
    "a\udcffb",
    True,
    False,
    1.0,
    NAN,
    ("a",),
    ["a"],
    {"a": 1},
    bytearray(b"a"),
    memoryview(b"a"),
    object(),
]


def short(value: object) -> str:
    """A test id that is not a megabyte long and names no address."""
    if isinstance(value, int) and abs(value) > 10**9:
        return f"{type(value).__name__}-huge"
    if isinstance(value, tuple | dict):
        return f"{type(value).__name__}-{'-'.join(map(short, value.values() if isinstance(value, dict) else value))}"[:60]
    shown = ascii(value) if isinstance(value, str | bytes | int | float | complex | list | tuple | dict) else ""
    return f"{type(value).__name__}-{shown}"[:30]


ODD_KEYS: list[Any] = [
    "\x00",
    "a\x00b",
    "a\x00",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"a\x00b",
    " ",
    "\n",
    "../../etc/passwd",
    "'; DROP TABLE lane; --",
    "\U0001f980",
    "\ufeff",
    0,
    -(2**63) - 1,
    2**64,
    10**1_000,
    "x" * 1024,
    "ü" * 512,
]


def test_odd_keys_are_keys_of_their_own(make: Opener) -> None:
    q = make(shards=2)
    for key in ODD_KEYS:
        q.send(repr(key).encode(), key)
    got = q.receive(100)
    assert len(got) == len(ODD_KEYS)
    for d in got:
        assert (d.seq, d.body) == (1, repr(d.key).encode())
        d.ack()
    assert q.check() == []


def test_normal_forms_are_different_keys(q: Queue) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert [q.send(b"", key).seq for key in (composed, decomposed, composed)] == [1, 1, 2]


def test_str_subclass_is_its_text(q: Queue) -> None:
    q.send(b"", OddStr("k"))
    assert q.send(b"", "k").seq == 2


# --- bodies --------------------------------------------------------------------------------------------------------


def test_send_many_says_which_message_it_is(q: Queue) -> None:
    good = Message(b"", key="k")
    for bad in (Message("", key="k"), Message(b"", key=1.5), Message(b"", key="k", ttl=0.0)):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"^message 2 of 3: "):
            q.send_many([good, bad, good])
        with pytest.raises(InvalidArgument, match=r"^(?!message)"):
            q.send(bad.body, bad.key, ttl=bad.ttl)
    with pytest.raises(InvalidArgument, match=r"a list of Message objects, not a single one"):
        q.send_many(good)  # type: ignore[arg-type]


def test_limits_of_times_are_written_out(q: Queue) -> None:
    with pytest.raises(InvalidArgument, match=r"delay must be 0 to 315,360,000 seconds, not -1"):
        q.send(b"", "k", delay=-1)
    with pytest.raises(strictq.ConfigError, match=r"lease_seconds must be 0\.001 to 315,360,000 seconds, not 0"):
        strictq.QueueConfig(lease_seconds=0)
    with pytest.raises(InvalidArgument, match=r"process_seconds must be 0 to 315,360,000 seconds, not -1"):
        strictq.Worker(q, print, process_seconds=-1)


def test_headers_may_have_what_the_body_leaves(make: Opener) -> None:
    q = make(max_body_bytes=200_000)
    large = {"h": "x" * 150_000}
    assert q.send(b"x" * 40_000, "k", headers=large).seq == 1
    with pytest.raises(MessageTooLarge, match="headers must be at most 140,000 bytes"):
        q.send(b"x" * 60_000, "k", headers=large)
    with pytest.raises(MessageTooLarge), q.transaction(key="k") as tx:
        tx.send(b"x" * 60_000, "k", headers=large)
    small = {"h": "x" * 60_000}
    q.send_many([Message(b"x" * 200_000, key="k", headers=small)])
    (first, second) = q.receive(2)
    assert (first.headers, len(first.body)) == (large, 40_000)
    assert (second.headers, second.seq) == (small, 2)
    q.configure(max_body_bytes=50_000)
    with pytest.raises(MessageTooLarge):
        q.send(b"", "k", headers=large)


def test_large_headers_are_read_again_where_memory_does_not_keep_them(q: Queue) -> None:
    for n in range(10):
        q.send(b"%d" % n, "k", headers={"h": chr(97 + n) * 1_000_000})
    q.send_many([Message(b"%d" % n, key="k", headers={"h": chr(97 + n) * 1_000_000}) for n in range(10, 20)])
    assert [(int(d.body), d.headers["h"][0]) for d in q.receive(20, keys=["k"])] == [(n, chr(97 + n)) for n in range(20)]


def test_body_over_the_limit(make: Opener) -> None:
    q = make(max_body_bytes=1_000)
    q.send(b"x" * 1_000, "k")
    with pytest.raises(MessageTooLarge):
        q.send(b"x" * 1_001, "k")
    with pytest.raises(MessageTooLarge):
        q.send_many([Message(b"", key="k"), Message(b"x" * 1_001, key="k")])
    with pytest.raises(MessageTooLarge), q.transaction(key="k") as tx:
        tx.send(b"x" * 1_001, "k")
    assert q.send(b"", "k").seq == 2


def test_body_of_two_gibibytes(q: Queue) -> None:
    try:
        # Zeroed memory straight from the system: pages nobody reads cost nothing.
        body = bytes(2 << 30)
    except MemoryError:
        pytest.skip("this machine does not give out 2 GiB of address space")
    with pytest.raises(MessageTooLarge):
        q.send(body, "k")
    assert q.send(b"", "k").seq == 1


def test_key_state_over_any_limit(q: Queue) -> None:
    try:
        state = bytes(2 << 30)
    except MemoryError:
        pytest.skip("this machine does not give out 2 GiB of address space")
    with pytest.raises(InvalidArgument), q.transaction(key="k") as tx:
        tx.key_state = state
    with q.transaction(key="k") as tx:
        assert tx.key_state is None


# --- numbers -------------------------------------------------------------------------------------------------------


def in_service(q: Queue) -> bool:
    """Is no shard quarantined, and does sending work?"""
    q.send(b"", "in service")
    return [s.quarantined for s in q.stats().shards] == [None] * q.shards and q.check() == []


def test_a_value_of_too_many_bytes_is_no_damage(q: Queue) -> None:
    q.app_schema("CREATE TABLE app_t (x)")
    with pytest.raises(InvalidArgument), q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_t VALUES (zeroblob(2000000000))")
    assert in_service(q)


# --- text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [" ", "a\x00b", "x" * 100_000, "ü\n"], ids=short)
def test_odd_reasons_are_only_text(q: Queue, text: str) -> None:
    fill(q, "k", 1)
    q.receive()[0].nack(reason=text)
    q.receive()[0].reject(text)
    assert len(q.dead_letters()) == 1
    q.hold("k", text)
    assert q.explain("k").state in ("held", "empty")
    assert q.check() == []


def test_reason_with_a_lone_surrogate_settles_nevertheless(q: Queue) -> None:
    # A handler's exception may quote anything; that must not keep its message from being given back.
    fill(q, "k", 2)
    (d,) = q.receive(1)
    d.nack(reason="bad \ud800")
    (d,) = q.receive(1)
    with pytest.raises(ValueError), d:
        raise ValueError("\udcff")
    assert q.status("k", 1).attempts == 2
    assert "bad" not in str(q.status("k", 1).last_error)


# --- arguments -----------------------------------------------------------------------------------------------------

BAD_SECONDS: list[object] = [-1, -0.001, NAN, INF, -INF, 1e300, 10**400, True, "5", b"5", [1], 1j]
INSERT = "INSERT INTO app_t VALUES (:x)"
SQL_VALUES: list[object] = [10**300, 2**63, -(2**63) - 1, 10**5000, "\ud800", object(), 1j, {1}]
"""What SQLite cannot store: the caller's mistake, never damage."""
Call = Callable[[Queue, Delivery, Any], object]


def in_transaction(q: Queue, act: Callable[[Any], object], key: Any = "k") -> None:
    with q.transaction(key=key) as tx:
        act(tx)


async def consume(keys: Any) -> None:
    async with strictq.open_async(":memory:") as other:
        async for _ in other.consume(keys=keys, wait=0.0):
            pass


REFUSED: dict[str, tuple[Sequence[object], Sequence[Call]]] = {
    "key": (
        BAD_KEYS,
        [
            lambda q, _, key: q.send(b"", key),
            lambda q, _, key: q.send_many([Message(b"", key="good"), Message(b"", key=key)]),
            lambda q, _, key: q.receive(keys=[key]),
            lambda q, _, key: q.peek(key),
            lambda q, _, key: q.status(key, 1),
            lambda q, _, key: q.explain(key),
            lambda q, _, key: q.hold(key),
            lambda q, _, key: q.release(key),
            lambda q, _, key: q.purge(key),
            lambda q, _, key: q.redrive(key),
            lambda q, _, key: q.dead_letters(key),
            lambda q, _, key: q.query("SELECT 1", key=key),
            lambda q, _, key: in_transaction(q, lambda tx: None, key),
        ],
    ),
    "no key": (
        [None],
        [
            lambda q, _, key: q.send(b"", key),
            lambda q, _, key: q.status(key, 1),
            lambda q, _, key: q.hold(key),
            lambda q, _, key: q.explain(key),
        ],
    ),
    # A str is a list of its letters, and nobody would ever send to these.
    "keys": (
        ["a", b"a", 5, True, "order-1", b"order-1", ""],
        [
            lambda q, _, keys: q.receive(keys=keys),
            lambda q, _, keys: next(iter(q.consume(keys=keys, wait=0.0)), None),
            lambda q, _, keys: anyio.run(consume, keys),
        ],
    ),
    "body": (
        ["text", None, 5, ["x"], array("B", [1])],
        [
            lambda q, _, body: q.send(body, "k"),
            lambda q, _, body: q.send_many([Message(b"good", key="k"), Message(body, key="k")]),
            lambda q, _, body: in_transaction(q, lambda tx: tx.send(body, "k")),
        ],
    ),
    "messages": ([[b"body"], ["text"], [None], [("body", "k")]], [lambda q, _, messages: q.send_many(messages)]),
    "seconds": (
        BAD_SECONDS,
        [
            lambda q, _, seconds: q.send(b"", "k", delay=seconds),
            lambda q, _, seconds: q.send(b"", "k", ttl=seconds),
            lambda q, _, seconds: q.send_many([Message(b"", key="k"), Message(b"", key="k", delay=seconds)]),
            lambda q, _, seconds: q.send_many([Message(b"", key="k"), Message(b"", key="k", ttl=seconds)]),
            lambda q, _, seconds: q.receive(lease_seconds=seconds),
            lambda q, d, seconds: d.nack(delay=seconds),
            lambda q, d, seconds: d.extend(seconds),
            lambda q, d, seconds: d.lease.extend(seconds),
            lambda q, d, seconds: q.nack_many([d], delay=seconds),
            lambda q, d, seconds: q.extend_many([d], seconds),
        ],
    ),
    "wait": (
        [-1.0, NAN, True, "5", [1]],
        [
            lambda q, _, wait: q.receive(wait=wait),
            lambda q, _, wait: q.wait_ready(wait),
            lambda q, _, wait: next(iter(q.consume(wait=wait))),
        ],
    ),
    "estimate": (
        [NAN, INF, 10**400, "5", True, b"5"],
        [
            lambda q, _, hint: q.send(b"", "k", size_hint=hint),
            lambda q, _, hint: q.send(b"", "k", prepare_seconds=hint),
            lambda q, _, hint: q.send(b"", "k", process_seconds=hint),
        ],
    ),
    "count": (
        [0, -1, 100_001, 10**30, True, 1.0, NAN, "1", None],
        [lambda q, _, count: q.receive(count), lambda q, d, count: d.lease.more(count)],
    ),
    "per key": ([0, -1, 10**30, True, 1.0, NAN, "1"], [lambda q, _, count: q.receive(per_key=count)]),
    "limit": (
        [-1, True, 1.5, "1", NAN, INF, 2**63, 10**300, 10**5000, "x" * 10**6],
        [
            lambda q, _, limit: q.peek("k", limit),
            lambda q, _, limit: q.dead_letters(limit=limit),
            lambda q, _, limit: q.top_keys(limit),
            lambda q, _, limit: q.history(limit=limit),
            lambda q, _, limit: q.history(after=limit),
            lambda q, _, limit: q.history(shard=limit),
            lambda q, _, limit: q.status("k", limit),
            lambda q, _, limit: q.reject("k", limit, "no"),
            lambda q, _, limit: q.redrive("k", seqs=[limit]),
        ],
    ),
    "seqs": ([["1"], [True], [1.5], [0], [-1], "12", 5], [lambda q, _, seqs: q.redrive("dead", seqs=seqs)]),
    "headers": (
        [{1: "a"}, {"a": 1}, {"a": None}, {"a": b"x"}, {b"a": "x"}, ["a"], "ab", 5, {"a": "\ud800"}, {"\ud800": "a"}],
        [
            lambda q, _, headers: q.send(b"", "k", headers=headers),
            lambda q, _, headers: q.send_many([Message(b"", key="k"), Message(b"", key="k", headers=headers)]),
        ],
    ),
    "dedup id": (["", "x" * 257, 5, True, b"x", "\ud800", ["x"]], [lambda q, _, given: q.send(b"", "k", dedup_id=given)]),
    "reason": (
        [5, b"x", ["x"], True],
        [lambda q, d, text: d.nack(reason=text), lambda q, d, text: d.reject(text), lambda q, _, text: q.hold("k", text)],
    ),
    "consumer": (["\ud800", 5, b"x"], [lambda q, _, consumer: q.receive(consumer=consumer)]),
    "charge": (["", "none", 5, ["all"], b"all"], [lambda q, _, charge: q.receive(charge=charge)]),
    "delivery": (
        [None, "d", 5, b"x"],
        [
            lambda q, _, bad: q.ack_many([bad]),
            lambda q, _, bad: q.nack_many([bad]),
            lambda q, _, bad: q.extend_many([bad], 5.0),
        ],
    ),
    "value in SQL": (
        [params for value in SQL_VALUES for params in ((value,), {"x": value})],
        [
            lambda q, _, params: q.query("SELECT :x", params),
            lambda q, _, params: q.query("SELECT :x", params, key="k"),
            lambda q, _, params: in_transaction(q, lambda tx: tx.execute(INSERT, params)),
            lambda q, _, params: in_transaction(q, lambda tx: tx.run(lambda db: db.execute(INSERT, params))),
        ],
    ),
    "SQL": (
        [(5, ()), (None, ()), ("SELECT ?", ()), ("SELECT ?", (object(),)), ("SELECT ?", (1, 2))],
        [lambda q, _, query: q.query(*query), lambda q, _, query: q.query(*query, key="k")],
    ),
}
"""An argument: values that it must not have, and calls that take it."""


def content(q: Queue) -> list[object]:
    """Return everything that a call could have changed."""
    messages = [(m.key, m.seq, m.state, m.attempts, m.body) for key in ("k", "held", "dead", "good") for m in q.peek(key)]
    stats = q.stats()
    counts = (stats.depth, stats.in_flight, stats.held, stats.lanes, stats.sends, stats.retries, stats.purged, stats.redriven)
    return [messages, [(d.key, d.seq) for d in q.dead_letters()], counts, q.query("SELECT * FROM app_t")]


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_changes(make: Opener, name: str) -> None:
    values, calls = REFUSED[name]
    q = make(shards=2)
    q.app_schema("CREATE TABLE app_t (x)")
    fill(q, "dead", 1)
    q.receive()[0].reject("no")
    fill(q, "held", 1)
    (d,) = q.receive()
    fill(q, "k", 1)
    before = content(q)
    for value in values:
        for n, call in enumerate(calls):
            with pytest.raises(InvalidArgument) as caught:
                call(q, d, value)
                pytest.fail(f"call {n} took {short(value)}")
            assert len(str(caught.value)) < 400
            assert name != "keys" or "a list of keys" in str(caught.value)
        assert content(q) == before, short(value)
    d.ack()
    assert q.send(b"", "k").seq == 2
    assert in_service(q)


# --- objects that are past use ---------------------------------------------------------------------------------------


def test_closed_queue(make: Opener) -> None:
    q = make()
    fill(q, "k", 2)
    one, two = q.receive()
    q.close()
    q.close()
    calls: list[Callable[[], object]] = [
        lambda: q.send(b"", "k"),
        lambda: q.send_many([Message(b"", key="k")]),
        q.receive,
        lambda: next(iter(q.consume(wait=0.0))),
        one.ack,
        one.nack,
        one.start,
        lambda: one.reject("x"),
        lambda: one.extend(5.0),
        one.lease.release,
        lambda: one.lease.more(1),
        lambda: q.ack_many([one, two]),
        lambda: q.peek("k"),
        lambda: q.status("k", 1),
        lambda: q.explain("k"),
        q.stats,
        q.top_keys,
        q.dead_letters,
        q.redrive,
        lambda: q.hold("k"),
        lambda: q.release("k"),
        q.purge,
        q.check,
        lambda: q.configure(max_attempts=2),
        lambda: q.query("SELECT 1"),
        lambda: q.app_schema("CREATE TABLE app_t (x)"),
    ]
    for call in calls:
        with pytest.raises(strictq.QueueClosed):
            call()
    with pytest.raises(strictq.QueueClosed), q.transaction(key="k"):
        pass


def test_foreign_delivery(make: Opener, tmp_path: Path, clock: FakeClock) -> None:
    q = make()
    q.send(b"", "k")
    (mine,) = q.receive()
    with strictq.open(tmp_path / "other", clock=clock, durability="process") as other:
        other.send(b"", "k")
        (foreign,) = other.receive()
        for call in (
            lambda: q.ack_many([foreign]),
            lambda: q.nack_many([foreign]),
            lambda: q.extend_many([foreign], 5.0),
            lambda: q.ack_many([mine, foreign]),
        ):
            with pytest.raises(StrictqError):
                call()
        with pytest.raises(StrictqError), q.transaction(foreign) as tx:
            tx.send(b"", "next")
        assert other.status("k", 1).state == "in_flight"
        assert q.peek("next") == []
        foreign.ack()


def test_delivery_used_twice_in_one_call(q: Queue) -> None:
    fill(q, "k", 2)
    one, two = q.receive()
    with pytest.raises(StrictqError):
        q.ack_many([one, two, one])
    assert q.stats().in_flight in (0, 2), "one copy of it may have taken effect, with its neighbour"
    assert q.check() == []


# --- paths -----------------------------------------------------------------------------------------------------------


def test_path_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    with pytest.raises(StrictqError):
        strictq.open(file)
    assert file.read_bytes() == b"precious"


def test_directory_that_is_something_else(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("precious")
    with pytest.raises(StrictqError):
        strictq.open(home)
    with pytest.raises(strictq.QueueNotFound):
        strictq.open(home, create=False)
    assert [p.name for p in home.iterdir()] == ["letters.txt"]


def test_empty_directory_becomes_a_queue(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir(mode=0o700)
    with pytest.raises(strictq.QueueNotFound):
        strictq.open(tmp_path / "queue", create=False)
    with strictq.open(tmp_path / "queue") as q:
        assert q.send(b"", "k").seq == 1


@pytest.mark.parametrize("path", ["", "a\x00b", 5, None, b"bytes", "x" * 5_000, "\ud800"], ids=short)
def test_path_that_cannot_be(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StrictqError):
        strictq.open(path)
    assert list(tmp_path.iterdir()) == []


def test_path_that_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite takes names in UTF-8 alone; what a path leads to counts, not how it is spelled."""
    odd = tmp_path / os.fsdecode(b"d\xff")
    odd.mkdir()
    (tmp_path / "link").symlink_to(odd)
    strictq.open(tmp_path / "good").close()
    monkeypatch.chdir(odd)
    for path in (odd, odd / "q", "q", tmp_path / "link" / "q"):
        with pytest.raises(InvalidArgument, match=r"path must be valid UTF-8, .*; '.*d\\udcff.*' is not") as caught:
            strictq.open(path)
        assert "choose another directory" in caught.value.hint
        with pytest.raises(InvalidArgument, match="must be valid UTF-8"):
            strictq.open(path, read_only=True)
        with pytest.raises(InvalidArgument, match="must be valid UTF-8"):
            strictq.salvage(tmp_path / "good", path)
        with pytest.raises(InvalidArgument, match="must be valid UTF-8"):
            strictq.salvage(path, tmp_path / "saved")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([odd.name, "good", "link"])
    assert list(odd.iterdir()) == []
    (odd / "back").symlink_to(tmp_path / "good")
    strictq.open(odd / "back", create=False).close()
    strictq.open(":memory:").close()


def test_parent_that_is_missing(tmp_path: Path) -> None:
    try:
        strictq.open(tmp_path / "a" / "b").close()
    except StrictqError:
        assert not (tmp_path / "a").exists()


def test_world_writable_directory(disk: Opener) -> None:
    disk().close()
    Path(disk.path).chmod(0o777)
    with pytest.raises(StrictqError):
        disk()
    Path(disk.path).chmod(0o700)
    disk().send(b"", "k")


@pytest.mark.parametrize("name", ["queue.db", "shard-0000.db"])
def test_symlinked_file(disk: Opener, tmp_path: Path, name: str) -> None:
    q = disk()
    q.send(b"", "k")
    q.close()
    elsewhere = tmp_path / "elsewhere.db"
    file = Path(disk.path) / name
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    content = elsewhere.read_bytes()
    with pytest.raises(StrictqError):
        disk().send(b"", "k")
    assert elsewhere.read_bytes() == content


READ_ONLY_SCRIPT = """
import os, sys, strictq
path = sys.argv[1]
with strictq.open(":memory:") as q:
    q.send(b"", "k")  # whatever is imported late is imported now
if os.geteuid() == 0:
    # To root, permissions mean nothing.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
assert not os.access(path, os.W_OK)
for options in ({}, {"read_only": True}):
    try:
        with strictq.open(path, **options) as q:
            q.stats()
    except strictq.StrictqError as e:
        print(type(e).__name__)
    else:
        print("opened", options)
"""


def test_read_only_directory() -> None:
    # At a place that another user can reach, unlike tmp_path.
    place = Path(tempfile.mkdtemp(prefix="strictq-read-only-"))
    try:
        place.chmod(0o755)
        with strictq.open(place / "queue", durability="process") as q:
            q.send(b"", "k")
        if os.geteuid() == 0:
            for file in [place / "queue", *(place / "queue").iterdir()]:
                os.chown(file, 65534, 65534)
        for file in (place / "queue").iterdir():
            file.chmod(0o400)
        (place / "queue").chmod(0o500)
        command = [sys.executable, "-c", READ_ONLY_SCRIPT, str(place / "queue")]
        root = Path(strictq.__file__).parent.parent
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
        writing, _reading = done.stdout.splitlines()
        assert not writing.startswith("opened"), "it cannot be written, and that must be said at once"
    finally:
        (place / "queue").chmod(0o700)
        shutil.rmtree(place)


# --- damaged files ---------------------------------------------------------------------------------------------------


def remove(file: Path) -> None:
    """The shard's file is gone."""
    file.unlink()


def truncate(file: Path) -> None:
    """Half of it is left, not even a whole page."""
    with file.open("r+b") as f:
        f.truncate(file.stat().st_size // 2 - 100)


def empty(file: Path) -> None:
    """Its name is left."""
    file.write_bytes(b"")


def noise(file: Path) -> None:
    """Something else was written over it."""
    file.write_bytes(os.urandom(file.stat().st_size))


def noise_in_the_middle(file: Path) -> None:
    """The first page is left as it was."""
    size = file.stat().st_size
    with file.open("r+b") as f:
        f.seek(4096)
        f.write(os.urandom(size - 4096))


def other_database(file: Path) -> None:
    """Another program's database lies in its place. Made elsewhere: two SQLite libraries never share a process."""
    file.unlink()
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('create table t (x)'); c.commit()"
    subprocess.run([sys.executable, "-c", script, str(file)], check=True, timeout=PATIENCE_SECONDS)
    file.chmod(0o600)


def newer(file: Path) -> None:
    """A version from the future wrote it."""
    restamp(file, 1000)


def without_side_files(path: Path) -> None:
    """Fold the WAL back, so that the damage below is the only copy."""
    for file in path.glob("*.db"):
        fold(file)
    for pattern in ("*-wal", "*-shm"):
        for file in path.glob(pattern):
            file.unlink()


DAMAGE = [remove, truncate, empty, noise, noise_in_the_middle, other_database]


@pytest.mark.parametrize("harm", [*DAMAGE, newer], ids=lambda f: f.__name__)
def test_damaged_shard_is_quarantined_and_the_others_go_on(disk: Opener, harm: Callable[[Path], None]) -> None:
    q = disk(shards=3)
    keys = keys_by_shard(3)
    for key in keys.values():
        fill(q, key, 3)
    q.close()
    without_side_files(Path(disk.path))
    harm(Path(disk.path) / "shard-0001.db")

    events: list[Event] = []
    q = disk.open(on_event=events.append)
    expected = strictq.SchemaMismatch if harm is newer else strictq.StoreCorrupt
    for _ in range(2):
        with pytest.raises(expected) as caught:
            q.send(b"", keys[1])
        assert caught.value.shard == 1
    quarantined = [e for e in events if e.kind == "shard_quarantined"]
    assert [e.shard for e in quarantined] == [1], "once, and the right one"
    assert q.stats().shards[1].quarantined
    assert q.send(b"", keys[0]).seq == 4
    got = q.receive(20)
    assert sorted(labels(got)) == sorted([(keys[0], n) for n in (1, 2, 3, 4)] + [(keys[2], n) for n in (1, 2, 3)])
    q.ack_many(got)
    with pytest.raises((strictq.PartialFailure, expected)):
        q.send_many([Message(b"", key=key) for key in keys.values()])
    assert any(p.shard == 1 for p in q.check())


@pytest.mark.parametrize("harm", [*DAMAGE, newer], ids=lambda f: f.__name__)
def test_damaged_queue_file_refuses_to_open(disk: Opener, harm: Callable[[Path], None]) -> None:
    q = disk(shards=2)
    fill(q, "k", 3)
    q.close()
    without_side_files(Path(disk.path))
    harm(Path(disk.path) / "queue.db")
    before = {p.name: p.read_bytes() for p in Path(disk.path).glob("shard-*.db")}
    with pytest.raises(StrictqError) as caught:
        disk()
    if harm is newer:
        assert isinstance(caught.value, strictq.SchemaMismatch)
    assert {p.name: p.read_bytes() for p in Path(disk.path).glob("shard-*.db")} == before


def test_a_directory_that_is_deleted_under_an_open_queue_is_reported(disk: Opener) -> None:
    events: list[Event] = []
    q = disk(shards=2, on_event=events.append)
    fill(q, "k", 3)
    shutil.rmtree(disk.path)
    maintain(q)
    assert [(e.kind, e.shard) for e in events] == [("shard_quarantined", 0), ("shard_quarantined", 1)]
    with pytest.raises(strictq.StoreCorrupt, match=r"was deleted while the queue was open"):
        q.send(b"", "k")
    with pytest.raises(strictq.PartialFailure) as caught:
        q.receive()
    assert {type(e) for e in caught.value.results} == {strictq.StoreCorrupt}
    q.close()


def test_undamaged_after_folding_back(disk: Opener) -> None:
    q = disk(shards=2)
    fill(q, "k", 3)
    q.close()
    without_side_files(Path(disk.path))
    assert drain(disk()) == [("k", 1), ("k", 2), ("k", 3)]
