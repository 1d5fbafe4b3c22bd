"""A full disk: sends are refused and nothing changes, consumers drain through the reserve, and sends then resume.

Most tests run on a small file system, mounted for the test. Where mounting is not permitted they are skipped, and a limit on the
database's pages is used instead.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import strictq
from strictq import Message, Queue, StoreFull
from strictq._platform import files
from strictq._store.disk import layout
from strictq._store.disk import reserve as reserve_file
from tests.support.internals import at_rest, connection_of, shard_of, store_of, writer_of
from tests.support.queues import drain, fill, labels, shard_file
from tests.support.running import in_threads, mounted, run_python, stuff, unmounted

MEGABYTES = 32


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system, of as many megabytes as the test's parameter says."""
    place = tmp_path / "small"
    place.mkdir()
    if not mounted("-t", "tmpfs", "-o", f"size={getattr(request, 'param', MEGABYTES)}m", "tmpfs", str(place)):
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    unmounted(place)


@pytest.fixture
def make(small: Path) -> Iterator[Callable[..., Queue]]:
    """Yield a function that opens the queue on the small file system."""
    opened: list[Queue] = []

    def open_it(**options: object) -> Queue:
        options.setdefault("durability", "process")
        q = strictq.open(small / "queue", **options)  # type: ignore[arg-type]
        opened.append(q)
        store_of(q).waker.notify()  # a wake file without a block is tested separately
        return q

    yield open_it
    for q in opened:
        q.close()


def soon(q: Queue) -> None:
    """Let the next send check for room for the reserve at once, instead of after a second."""
    assert store_of(q).reserve is not None
    store_of(q).reserve._next_try = store_of(q).reserve._next_look = 0.0


def send_until_full(q: Queue, size: int = 700) -> int:
    """Return how many messages of "k" were accepted before the disk was full."""
    for n in range(100_000):
        try:
            q.send(b"x" * size, "k")
        except StoreFull:
            return n
    raise AssertionError("the disk does not fill")


@pytest.mark.parametrize("durability", ["process", "full"])
def test_a_send_on_a_full_disk_changes_nothing_and_says_so(make: Callable[..., Queue], small: Path, durability: str) -> None:
    q = make(durability=durability)
    fill(q, "k", 3)
    stuff(small)
    taken = send_until_full(q)
    for _ in range(3):
        with pytest.raises(StoreFull) as caught:
            q.send_many([Message(b"x" * 3000, key=f"k{n}") for n in range(300)])
        assert caught.value.transient
        assert caught.value.shard == 0
        assert at_rest(q)
    assert q.stats().depth == 3 + taken
    assert [k.key for k in q.top_keys()] == ["k"]
    assert q.check() == []
    with make(durability=None) as other:
        assert other.stats().depth == 3 + taken


@pytest.mark.parametrize("durability", ["process", "full"])
def test_consumers_drain_through_the_reserve_and_sends_resume(make: Callable[..., Queue], small: Path, durability: str) -> None:
    q = make(durability=durability)
    q.send_many([Message(b"x" * 700, key=f"k{n % 20}") for n in range(1000)])
    stuffing = stuff(small)
    send_until_full(q)
    depth = q.stats().depth
    assert (small / "queue" / "reserve").exists()

    got = drain(q)  # every receive and every ack succeeds, one by one
    assert len(got) == len(set(got)) == depth
    assert not (small / "queue" / "reserve").exists()
    stuff(small, "more")
    for _ in range(3):
        soon(q)
        with pytest.raises(StoreFull, match="reserve"):
            q.send(b"", "k")
    assert q.stats().depth == 0

    stuffing.unlink()
    soon(q)
    q.send(b"again", "k")
    assert (small / "queue" / "reserve").stat().st_size == reserve_file.RESERVE_BYTES
    assert [d.body for d in q.receive()] == [b"again"]
    assert q.check() == []


@pytest.mark.parametrize("size", [200, 5000])
@pytest.mark.parametrize("durability", ["process", "full"])
def test_a_disk_that_the_queue_itself_filled_can_be_drained(make: Callable[..., Queue], durability: str, size: int) -> None:
    """Only the queue's messages are on it. A checkpoint must be able to add the WAL's pages to the database."""
    q = make(durability=durability)
    sent = 0
    with pytest.raises(StoreFull):
        while True:
            q.send_many([Message(b"x" * 900, key=f"k{n % 10}") for n in range(size)])
            sent += size
    assert sent > 5000
    got = 0
    while batch := q.receive(100):
        q.ack_many(batch)
        got += len(batch)
    assert got == sent
    assert q.check() == []


@pytest.mark.in_turn
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("small", [6, 8, 32], indirect=True)
def test_the_next_send_after_the_drain_is_taken_however_small_the_disk(make: Callable[..., Queue], shards: int) -> None:
    """The database does not shrink, so the space of deleted messages counts as room. No other thread helps."""
    q = make(shards=shards)
    store_of(q)._upkeep.stop()
    for _ in range(3):
        sent = 0
        with pytest.raises(strictq.StrictqError) as caught:
            while True:
                q.send_many([Message(b"x" * 700, key="k")] * 50)
                sent += 50
        assert isinstance(caught.value, StoreFull)
        assert sent > 500
        got = 0
        while batch := q.receive(100):
            q.ack_many(batch)
            got += len(batch)
        assert got == sent
        soon(q)
        assert q.send(b"x" * 700, "k").seq
        (d,) = q.receive()
        d.ack()
    assert q.check() == []


@pytest.mark.in_turn
@pytest.mark.parametrize("size", [700, 3000])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("small", [6, 8], indirect=True)
def test_rounds_of_filling_and_draining_level_off(make: Callable[..., Queue], small: Path, shards: int, size: int) -> None:
    """With the small reserve, too, every receive and every ack succeeds, and the databases stop growing."""
    q = make(shards=shards)
    store_of(q)._upkeep.stop()
    grown = []
    for _ in range(8):
        full: list[strictq.StrictqError] = []
        while not full:
            try:
                q.send_many([Message(b"x" * size, key=f"k{n % 7}") for n in range(14)])
            except (StoreFull, strictq.PartialFailure) as e:  # in some shards
                full.append(e)
        depth, got = q.stats().depth, 0
        while batch := q.receive(100):
            q.ack_many(batch)
            got += len(batch)
        assert got == depth > 100
        soon(q)
        grown.append(sum(file.stat().st_size for file in (small / "queue").glob("shard-*.db")))
    assert len(set(grown[-3:])) == 1, grown
    soon(q)
    store_of(q).tidy()
    assert (small / "queue" / "reserve").stat().st_size == reserve_file.SMALL_RESERVE_BYTES
    assert q.check() == []


@pytest.mark.parametrize("small", [8], indirect=True)
def test_sends_are_refused_until_consumers_have_got_somewhere(make: Callable[..., Queue], small: Path) -> None:
    """The released space is not taken back at the first ack."""
    q = make()
    with pytest.raises(StoreFull):
        while True:
            q.send_many([Message(b"x" * 700, key="k")] * 50)
    depth = q.stats().depth
    while q.stats().depth > depth * 2 // 3:
        q.ack_many(q.receive(50))
        if not (small / "queue" / "reserve").exists():
            soon(q)
            with pytest.raises(StoreFull, match="reserve"):
                q.send(b"", "k")
    assert not (small / "queue" / "reserve").exists()


def test_sends_resume_by_themselves(make: Callable[..., Queue], small: Path) -> None:
    """The engine's own thread restores the reserve within seconds. The test calls it."""
    q = make()
    stuffing = stuff(small)
    send_until_full(q)
    drain(q)
    stuffing.unlink()
    soon(q)
    store_of(q).tidy()
    assert (small / "queue" / "reserve").exists()
    q.send(b"", "k")


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "extend", "start", "release", "transaction", "transaction with SQL"])
def test_each_verb_of_a_holder_works_on_a_full_disk(make: Callable[..., Queue], small: Path, verb: str) -> None:
    q = make()
    q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
    q.send_many([Message(b"x" * 700, key=f"k{n}") for n in range(20)])
    got = q.receive(20)
    d = got[0]
    store_of(q)._upkeep.stop()  # prevents checkpoints, which would make room in the WAL
    stuff(small)
    while True:  # until not even the smallest write fits
        try:
            q.send(b"", "filler")
        except StoreFull:
            break
    if verb == "ack":
        d.ack()
    elif verb == "nack":
        d.nack(delay=5.0, reason="r" * 100)
    elif verb == "reject":
        d.reject("no")
    elif verb == "extend":
        d.extend(60.0)
    elif verb == "start":
        d.start()
    elif verb == "release":
        d.lease.release()
    else:
        with q.transaction(d) as tx:
            tx.send(b"", "next")
            if verb.endswith("SQL"):
                tx.execute("INSERT INTO app_t VALUES (1)")
    assert at_rest(q)
    assert q.check() == []


def test_the_reserve_may_be_made_again_under_a_consumers_hands(make: Callable[..., Queue], small: Path) -> None:
    """A sender that checks the reserve just after a consumer released it takes the space again."""
    q, sender = make(), make()
    q.send_many([Message(b"x" * 700, key=f"k{n}") for n in range(20)])
    stuff(small)
    send_until_full(q, 0)
    assert store_of(q).reserve is not None
    give_up = store_of(q).reserve.give_up

    def raced() -> bool:
        gone = give_up()
        assert store_of(sender).reserve is not None
        store_of(sender).reserve.there()
        return gone

    store_of(q).reserve.give_up = raced  # type: ignore[method-assign]
    got = q.receive(20)
    q.ack_many(got)
    assert len(got) == 20


def test_two_consumers_that_meet_the_full_disk_together_both_go_on(make: Callable[..., Queue], small: Path) -> None:
    """The second consumer finds no reserve, but the space is free."""
    q, first = make(), make()
    q.send_many([Message(b"x" * 700, key=f"k{n}") for n in range(40)])
    stuff(small)
    send_until_full(q, 0)
    assert store_of(q).reserve is not None
    give_up = store_of(q).reserve.give_up
    taken: list[object] = []

    def raced() -> bool:
        taken.extend(first.receive(20))
        return give_up()

    store_of(q).reserve.give_up = raced  # type: ignore[method-assign]
    got = q.receive(20)
    assert len(taken) == 20
    assert len(got) == 20
    assert not {d.key for d in got} & {d.key for d in taken}  # type: ignore[attr-defined]


def test_senders_that_hammer_a_full_disk_do_not_stop_consumers(make: Callable[..., Queue], small: Path) -> None:
    q = make()
    q.send_many([Message(b"x" * 700, key=f"k{n % 5}") for n in range(500)])
    stuff(small)
    done = False

    def hammer() -> None:
        with make() as sender:
            while not done:
                with suppress(StoreFull):
                    sender.send(b"x" * 700, "hammered")

    def consume() -> list[object]:
        nonlocal done
        try:
            got: list[object] = []
            end = time.monotonic() + 30
            while sum(1 for key, _ in got if key != "hammered") < 500:  # type: ignore[misc]
                assert time.monotonic() < end, f"{len(got)} came"
                batch = q.receive(50)
                q.ack_many(batch)
                got += labels(batch)
            return got
        finally:
            done = True

    _, got = in_threads([hammer, consume])
    assert isinstance(got, list), got
    assert len(set(got)) == len(got)


def test_a_process_that_starts_on_a_full_disk_can_drain_it(make: Callable[..., Queue], small: Path) -> None:
    q = make(shards=2)
    q.send_many([Message(b"x" * 700, key=f"k{n % 20}") for n in range(200)])
    depth = 200
    q.close()
    stuff(small)
    q = make()
    got = drain(q)
    assert len(got) == len(set(got)) == depth
    assert q.check() == []


def test_a_worker_that_starts_on_a_full_disk_can_drain_it(make: Callable[..., Queue], small: Path) -> None:
    q = make()
    q.send_many([Message(b"x" * 700, key=f"k{n % 20}") for n in range(200)])
    stuff(small)
    depth = 200 + send_until_full(q)
    got: list[tuple[object, int]] = []
    strictq.Worker(q, lambda job: got.append((job.key, job.seq))).run(drain=True)
    assert len(got) == len(set(got)) == depth
    assert q.check() == []
    assert not [path.name for path in (small / "queue").iterdir() if layout.LIVE in path.name]


def test_waking_on_a_full_disk_does_not_kill_the_process(small: Path) -> None:
    """Storing into a hole of a mapped file is a bus error if the disk has no block for it."""
    strictq.open(small / "queue").close()
    script = (
        "import os, sys, strictq\nfrom pathlib import Path\nfrom tests.support.running import stuff\n"
        "Path(sys.argv[1], 'queue', 'wake').write_bytes(b'')\n"  # like a new queue's
        "q = strictq.open(Path(sys.argv[1], 'queue'))\nstuff(Path(sys.argv[1]))\nq.close()\nprint('alive')\n"
    )
    assert run_python(script, small) == "alive\n"


def test_creating_a_queue_on_a_full_disk_leaves_nothing_behind(small: Path) -> None:
    stuff(small)
    with pytest.raises(strictq.StrictqError):
        strictq.open(small / "queue")
    assert [p.name for p in small.iterdir()] == ["stuffing"]


def test_a_checkpoint_on_a_full_disk_loses_nothing(make: Callable[..., Queue], small: Path) -> None:
    q = make()
    q.send_many([Message(b"x" * 700, key=f"k{n % 20}") for n in range(1000)])
    stuffing = stuff(small)
    with pytest.raises(StoreFull):
        shard_of(q).checkpoint()
    stuffing.unlink()
    pages, done = shard_of(q).checkpoint()
    assert pages == done > 0
    assert len(drain(q)) == 1000
    assert q.check() == []


def test_a_kill_on_a_full_disk_loses_nothing_that_was_acknowledged(make: Callable[..., Queue], small: Path) -> None:
    make().close()
    stuff(small)
    script = (
        "import sys, os, strictq\nq = strictq.open(sys.argv[1], durability='process')\nn = 0\n"
        "try:\n while True:\n  q.send(b'x' * 700, 'k'); n += 1\nexcept strictq.StoreFull: pass\n"
        "print(n, flush=True)\nos._exit(0)\n"
    )
    sent = int(run_python(script, small / "queue"))
    q = make()
    assert drain(q) == [("k", n) for n in range(1, sent + 1)]
    assert q.check() == []


# --- without a file system of one's own -----------------------------------------------------------------------------------


def test_a_database_that_may_not_grow(tmp_path: Path) -> None:
    """SQLITE_FULL occurs in the middle of a statement, not at the COMMIT."""
    with strictq.open(tmp_path / "queue", durability="full") as q:
        fill(q, "k", 3)
        most = connection_of(q).pragma("page_count") + 2
        for _ in range(3):
            connection_of(q).pragma("max_page_count", most)
            with pytest.raises(StoreFull):
                q.send(b"x" * 100_000, "k")
            connection_of(q).pragma("max_page_count", most)  # a single statement includes its COMMIT, so it had to be a new one
            with pytest.raises(StoreFull), q.transaction(key="k") as tx:
                tx.send(b"x" * 100_000, "k")
                tx.key_state = b"y"
            assert at_rest(q)
        assert drain(q) == [("k", n) for n in (1, 2, 3)]
        assert q.check() == []
        connection_of(q).pragma("max_page_count", 1_000_000)
        soon(q)
        assert q.send(b"x" * 100_000, "k").seq == 4


def test_sends_are_refused_while_the_reserve_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strictq.open(tmp_path / "queue", durability="process") as q:
        fill(q, "k", 2)
        assert store_of(q).reserve is not None
        monkeypatch.setattr(store_of(q).reserve, "make", lambda *_: False)
        assert store_of(q).reserve.give_up()
        assert not store_of(q).reserve.give_up()
        for call in (lambda: q.send(b"", "k"), lambda: q.send_many([Message(b"", key="k")])):
            with pytest.raises(StoreFull):
                call()
        (d, e) = q.receive()
        d.ack()
        with q.transaction(e) as tx:
            tx.send(b"", "next")  # a handler's sends are part of draining
        assert drain(q) == [("next", 1)]
        monkeypatch.undo()
        soon(q)
        assert q.send(b"", "k").seq == 3


def test_senders_elsewhere_do_not_use_up_what_consumers_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another object, or process, saw the reserve a moment ago. The space that it released is not for sends."""
    with strictq.open(tmp_path / "queue", durability="process") as q, strictq.open(tmp_path / "queue") as sender:
        fill(sender, "k", 2)
        assert store_of(q).reserve is not None
        assert store_of(sender).reserve is not None
        monkeypatch.setattr(store_of(sender).reserve, "make", lambda *_: False)
        assert store_of(q).reserve.give_up()
        taken = 0
        with suppress(StoreFull):
            for taken in range(200):  # noqa: B007
                sender.send(b"x" * 700, "k")
        assert taken < 5, f"{taken} messages went into the room for acks"


def test_the_room_is_looked_for_once_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    now = 1000.0
    monkeypatch.setattr(reserve_file.time, "monotonic", lambda: now)
    reserve = reserve_file.Reserve(tmp_path)
    monkeypatch.setattr(reserve, "make", lambda *_: bool(tries.append(1)))
    for now in (1000.0, 1000.5, 1000.9, 1001.1, 1001.2, 1002.2):  # noqa: B007
        assert not reserve.there()
    assert len(tries) == 3


def test_a_reserve_that_is_too_small_is_not_one(tmp_path: Path) -> None:
    """A reserve whose writing was interrupted must not count as one."""
    reserve = reserve_file.Reserve(tmp_path)
    (tmp_path / layout.RESERVE).write_bytes(b"\0" * 10)
    assert reserve.there()
    assert (tmp_path / layout.RESERVE).stat().st_size == reserve_file.RESERVE_BYTES
    assert [p.name for p in tmp_path.iterdir()] == [layout.RESERVE]


def test_the_wal_of_a_failed_commit_is_not_read(make: Callable[..., Queue], small: Path) -> None:
    """Frames of a transaction that did not fit are in the WAL. They must never count as committed."""
    q = make()
    fill(q, "k", 2)
    stuff(small)
    taken = send_until_full(q, 700)
    with pytest.raises(StoreFull):
        q.send_many([Message(b"x" * 700, key="k") for _ in range(2000)])
    assert Path(f"{shard_file(small / 'queue')}-wal").stat().st_size > 0
    writer_of(q)._drop_connection()
    with make() as other:
        assert other.stats().depth == 2 + taken
    assert q.stats().depth == 2 + taken


LIMITED = """
import resource, sys
import strictq

path, durability, verb = sys.argv[1:]
q = strictq.open(path, durability=durability, shards=1)
q.app_schema("CREATE TABLE IF NOT EXISTS app_t (x INTEGER PRIMARY KEY, y BLOB) STRICT")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))


def send():
    if verb == "send":
        q.send(bytes(5000), "k")
    elif verb == "send_many":
        q.send_many([strictq.Message(bytes(2500), key="k"), strictq.Message(bytes(2500), key="l")])
    else:
        with q.transaction(key="k") as tx:
            tx.send(bytes(2500), key="k")
            tx.execute("INSERT OR REPLACE INTO app_t VALUES (1, zeroblob(2500))")


sent = 0
try:
    while True:
        send()
        sent += 1
except strictq.StoreFull as e:
    assert e.transient and "size limit" in str(e), e
except strictq.OutcomeUnknown as e:
    sys.exit(f"a write without room is not an unknown outcome: {e}")
depth = q.stats().depth
assert depth == sent * (2 if verb == "send_many" else 1), (depth, sent)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
got = 0
while batch := q.receive(1):
    batch[0].ack()
    got += 1
assert got == depth
send()
for d in q.receive(2):
    d.ack()
q.close()
with strictq.open(path) as q:
    assert q.check() == []
    assert q.stats().depth == 0
"""


@pytest.mark.parametrize("durability", ["process", "full"])
@pytest.mark.parametrize("verb", ["send", "send_many", "transaction"])
def test_a_file_that_may_not_grow_is_like_a_full_disk(tmp_path: Path, durability: str, verb: str) -> None:
    """SQLite reports it as a failed write, and only the system's error number tells it from a broken disk."""
    run_python(LIMITED, tmp_path / "queue", durability, verb)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_each_way_of_having_no_room_is_a_full_store(code: int) -> None:
    error = files.failure("it can't be written", OSError(code, os.strerror(code)))
    assert isinstance(error, StoreFull)
    assert error.transient
