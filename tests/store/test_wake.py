"""Wake waiting receivers, within a process and through the mapped file."""

from __future__ import annotations

import os
import threading
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import strictq
from strictq._platform import files
from strictq._store.disk import shared_flags
from strictq._store.disk.shared_flags import Waker, waker_of
from strictq._store.whole.store import Store
from tests.support.internals import store_of
from tests.support.running import PATIENCE_SECONDS, in_threads, run_python, until


def in_background(waker: Waker, seen: tuple[int, int], seconds: float = PATIENCE_SECONDS) -> threading.Thread:
    """Start a waiting thread, which lives until it is woken."""
    thread = threading.Thread(target=waker.wait, args=(seen, seconds), daemon=True)
    thread.start()
    return thread


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a wake file like a new queue's."""
    files.create_empty(tmp_path / "wake")
    return tmp_path / "wake"


def test_a_notify_wakes_every_waiter() -> None:
    waker = Waker()
    threads = [in_background(waker, waker.seen()) for _ in range(5)]
    until(lambda: waker._waiting == 5, "the waiters")
    waker.notify()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert waker._waiting == 0


def test_what_happened_between_looking_and_waiting_is_not_missed(file: Path) -> None:
    for waker in (Waker(), Waker(file)):
        seen = waker.seen()
        waker.notify()
        waker.wait(seen, 3600.0)  # returns at once


def test_a_wait_ends_with_its_time(file: Path) -> None:
    waker = Waker(file)
    waker.wait(waker.seen(), 0.0)
    waker.wait(waker.seen(), 0.01)
    waker.wait(waker.seen(), -1.0)


def test_another_object_on_the_file_is_woken(file: Path) -> None:
    """As between processes, only the file connects them."""
    one, two = Waker(file), Waker(file)
    thread = in_background(two, two.seen())
    until(lambda: two._waiting == 1, "the waiter")
    one.notify()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_reader_is_woken_and_writes_nothing(file: Path) -> None:
    writer, reader = Waker(file), Waker(file, read_only=True)
    before = file.read_bytes()
    reader.notify()
    assert file.read_bytes() == before
    seen = reader.seen()
    writer.notify()
    reader.wait(seen, 3600.0)


def test_another_process_wakes_this_one(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue", durability="process") as q:
        waker = store_of(q).waker
        seen = waker.seen()
        run_python("import sys, strictq\nwith strictq.open(sys.argv[1]) as q: q.send(b'', 'k')", tmp_path / "queue")
        waker.wait(seen, 3600.0)


def test_two_writers_never_restore_a_value_that_was_seen(file: Path) -> None:
    """Two processes may have the same id: each is number 1 of its container, and they share a volume."""
    one, two = Waker(file), Waker(file)
    values = []
    for n in range(50):
        (one if n % 3 else two).notify()
        values.append(one._shared())
    assert len(set(values)) == len(values)


def test_listeners_hear_every_notify_until_they_leave() -> None:
    waker = Waker()
    heard: list[int] = []

    def listen() -> None:
        heard.append(1)

    waker.listen(listen)
    waker.notify()
    waker.unlisten(listen)
    waker.unlisten(listen)
    waker.notify()
    assert heard == [1]


def test_without_the_file_waiters_still_hear_their_own_process(tmp_path: Path) -> None:
    waker = Waker(tmp_path / "absent" / "wake")
    seen = waker.seen()
    waker.notify()
    waker.wait(seen, 3600.0)


def test_queues_on_one_directory_share_a_waker_and_a_map(tmp_path: Path) -> None:
    files.create_empty(tmp_path / "wake")
    (tmp_path / "link").symlink_to(tmp_path)
    user, other = Waker(), Waker()
    one, two = waker_of(tmp_path, "wake", user, read_only=False), waker_of(tmp_path / "link", "wake", other, read_only=False)
    assert one is two
    assert waker_of(tmp_path, "wake", user, read_only=True) is not one
    one.leave(user)
    assert waker_of(tmp_path, "wake", user, read_only=False) is one


def test_the_file_has_its_block_before_it_is_mapped(file: Path) -> None:
    """A store into a hole of a mapped file kills the process if the disk is full."""
    waker = Waker(file)
    assert file.stat().st_size == 4384
    with file.open("rb") as f:
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 4384
    waker.notify()


def test_a_shorter_file_of_an_earlier_version_keeps_what_it_says(file: Path) -> None:
    file.write_bytes(b"\x01" * 16)
    assert Waker(file).short_of_space
    assert file.read_bytes() == b"\x01" * 16 + bytes(4368)


def test_a_change_of_a_shard_is_seen_by_every_user(file: Path) -> None:
    mine, other = Waker(file), Waker(file)
    before = [mine.change(shard) for shard in range(3)]
    other.note_change(1)
    after = [mine.change(shard) for shard in range(3)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    mine.note_change(1)
    assert other.change(1) not in (before[1], after[1])
    assert Waker().change(0) is None, "without the file, nothing is known"


def test_who_only_looks_is_content_with_the_file_of_an_earlier_version(file: Path) -> None:
    file.write_bytes(b"\x01" * 24)
    assert Waker(file, read_only=True).short_of_space
    assert Waker(file, read_only=True)._map is not None


@pytest.mark.parametrize("shared", [False, True])
def test_a_consumer_that_waits_in_vain_is_seen_by_others_for_a_while(
    file: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10**15]
    monkeypatch.setattr("strictq._store.disk.shared_flags.time.monotonic_ns", lambda: now[0])
    one = Waker(file) if shared else Waker()
    two = Waker(file) if shared else one  # as in another process, or in this one
    assert not two.is_another_idle(7)
    one.show_idle(5)
    assert two.is_another_idle(7)
    assert not two.is_another_idle(5), "not by itself"
    now[0] += 90_000_000
    assert two.is_another_idle(7)
    now[0] += 20_000_000
    assert not two.is_another_idle(7)
    now[0] -= 10**12
    assert not two.is_another_idle(7), "a clock that stands elsewhere shows nobody"


def test_whoever_waits_for_anything_is_idle_and_whoever_waits_for_some_key_is_not(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue", durability="process") as q:
        waker = store_of(q).waker
        for keys, idle in ((["k"], False), (None, True)):
            thread = threading.Thread(target=q.receive, kwargs={"wait": PATIENCE_SECONDS, "keys": keys})
            thread.start()
            until(lambda: waker._waiting == 1, "the receive")
            assert waker.is_another_idle(7) is idle
            q.send(b"", "k" if keys else "another")
            thread.join()
            assert waker._idle_waiting == 0


def test_a_reader_shows_nothing(file: Path) -> None:
    Waker(file).notify()
    before = file.read_bytes()
    reader = Waker(file, read_only=True)
    reader.show_idle()
    assert file.read_bytes() == before


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "wake").symlink_to(tmp_path / "precious")
    with pytest.raises(strictq.StoreError, match="symbolic link"):
        Waker(tmp_path / "wake").notify()
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_close_wakes_those_who_wait_on_the_queue(tmp_path: Path) -> None:
    q = strictq.open(tmp_path / "queue", durability="process")
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            q.receive(wait=PATIENCE_SECONDS)
        except strictq.StrictqError as e:
            outcome.append(e)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: store_of(q).waker._waiting == 1, "the receive to wait")
    q.close()
    thread.join(PATIENCE_SECONDS)
    assert [type(e) for e in outcome] == [strictq.QueueClosed]


def test_a_failed_sync_is_known_to_every_process_until_somebody_has_put_it_right(file: Path) -> None:
    one, two = Waker(file), Waker(file)
    for waker in (one, two):
        waker.begin_boot("boot")
    one.suspect(3)
    assert (two.suspects(2), bool(two.suspects(3))) == (0, True)
    failure = Waker(file).suspects(3)  # for a process that comes after both are gone
    two.suspect(3)
    two.trust(3, failure)
    assert one.suspects(3), "another failure since then"
    two.trust(3, one.suspects(3))
    assert not one.suspects(3)


def test_a_failed_sync_is_forgotten_with_the_boot(file: Path) -> None:
    waker = Waker(file)
    waker.begin_boot("boot")
    waker.suspect(0)
    waker.begin_boot("boot")
    assert waker.suspects(0)
    waker = Waker(file)
    waker.begin_boot("another boot")
    assert not waker.suspects(0)


def test_failures_are_counted_in_a_byte(file: Path) -> None:
    waker = Waker(file)
    for _ in range(600):
        waker.suspect(255)
        assert waker.suspects(255)


def test_a_reader_gets_no_report_of_a_failure(file: Path) -> None:
    writer, reader, none = Waker(file), Waker(file, read_only=True), Waker()
    for waker in (writer, reader, none):
        waker.begin_boot("boot")
        waker.suspect(0)
    assert (bool(writer.suspects(0)), reader.suspects(0), none.suspects(0)) == (True, 0, 0)
    reader.trust(0, 1)
    assert writer.suspects(0)


# --- the end of it --------------------------------------------------------------------------------------------------------


def mapped(path: Path) -> list[str]:
    """Return the mappings and descriptors of this process for the wake file of a queue, as the kernel lists them."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f"{path}/wake")]
    return maps + descriptors(path)


def descriptors(path: Path) -> list[str]:
    """Return the files of a queue that this process has open."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(fd))
    return [file for file in found if file.startswith(f"{path}/")]


needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the kernel lists no mappings")


@needs_proc
@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_queue_has_nothing_mapped_or_open(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "queue"
    strictq.open(path).close()
    q, other = strictq.open(path, read_only=read_only), strictq.open(path, read_only=read_only)
    q.close()
    assert mapped(path), "the other queue object uses it"
    other.close()
    assert mapped(path) == []
    with strictq.open(path, read_only=read_only):
        assert mapped(path)
    assert mapped(path) == []


@needs_proc
def test_a_closed_async_queue_has_nothing_mapped_or_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            await q.send(b"", "k")
            assert mapped(tmp_path / "queue")
        assert mapped(tmp_path / "queue") == []

    anyio.run(main)


@needs_proc
def test_an_open_that_fails_leaves_nothing_mapped_or_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queue"
    strictq.open(path).close()
    real = Store._look_round

    def fail(store: Store) -> None:
        real(store)
        raise MemoryError

    monkeypatch.setattr(Store, "_look_round", fail)
    with pytest.raises(MemoryError):  # which still refers to what was opened
        strictq.open(path)
    assert mapped(path) == []


@needs_proc
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("prepared", [True, False])
def test_a_child_that_closes_the_queue_has_nothing_mapped_and_the_parent_keeps_it(tmp_path: Path, prepared: bool) -> None:
    path = tmp_path / "queue"
    with strictq.open(path) as q:
        if not prepared:
            store_of(q).before_fork = lambda: None  # type: ignore[method-assign]
        child = os.fork()
        if child == 0:
            q.close()
            os._exit(len([line for line in mapped(path) if line.endswith("wake")]))
        assert os.waitpid(child, 0)[1] == 0
        assert mapped(path)
        assert q.send(b"", "k").seq == 1


@pytest.mark.slow
@needs_proc
def test_opening_and_closing_many_times_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    strictq.open(path).close()
    kept = []
    for _ in range(100):
        q = strictq.open(path, read_only=True)
        q.close()
        kept.append(q)
    assert mapped(path) == []


@pytest.mark.slow
def test_who_waits_on_a_waker_that_ends_is_woken_and_reads_on(tmp_path: Path) -> None:
    """One thread closes the queue while others wait, read and notify."""
    for _ in range(20):
        q = strictq.open(tmp_path / "queue", durability="process")
        waker = store_of(q).waker
        over = threading.Event()

        def look(waker: Waker = waker, over: threading.Event = over) -> None:
            while not over.is_set():
                waker.wait((0, 0), 0.0)
                waker.show_idle()
                waker.is_another_idle(7)
                assert waker.suspects(0) == 0

        def wait(q: strictq.Queue = q) -> None:
            with pytest.raises(strictq.QueueClosed):
                q.receive(wait=None)

        def close(q: strictq.Queue = q, waker: Waker = waker, over: threading.Event = over) -> None:
            until(lambda: waker._waiting >= 2, "the receives to wait")
            q.close()
            over.set()

        assert in_threads([look, wait, wait, close]) == [None] * 4
        assert waker.ended


def test_a_sender_that_dies_before_it_says_so_delays_a_receive_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strictq.open(tmp_path / "q", shards=4) as q, strictq.open(tmp_path / "q") as other:
        assert not q.receive()
        monkeypatch.setattr(store_of(other), "note_change", lambda shard: None)
        other.send(b"", key="k")
        until(lambda: bool(q.receive()), "the receive of the message")


# ---- the thread that hears other processes


def test_many_waiters_share_one_thread_and_hear_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            paths = [tmp_path / f"{n}.strictq" for n in range(5)]
            queues = [await stack.enter_async_context(strictq.open_async(path, durability="process")) for path in paths]
            woken: list[int] = []

            async def wait(n: int) -> None:
                assert await queues[n].wait_ready(3600.0)
                woken.append(n)

            with anyio.fail_after(PATIENCE_SECONDS):
                async with anyio.create_task_group() as group:
                    for n in range(5):
                        group.start_soon(wait, n)
                    while len(shared_flags._watch._counts) < 5:
                        await anyio.sleep(0.01)
                    assert sum(thread.name == "strictq-watch" for thread in threading.enumerate()) == 1
                    assert not woken
                    await anyio.to_thread.run_sync(lambda: run_python(SEND_TO, *paths))
            assert sorted(woken) == [0, 1, 2, 3, 4]
            assert not shared_flags._watch._counts

    anyio.run(main)


def test_the_watching_thread_survives_a_fork_of_the_process(tmp_path: Path) -> None:
    queue = strictq.open(tmp_path / "queue", durability="process")
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(queue.wait_ready(3600.0)), daemon=True)
    thread.start()
    until(lambda: bool(shared_flags._watch._counts), "the waiter")
    if (child := os.fork()) == 0:
        os._exit(int(bool(shared_flags._watch._counts) or shared_flags._watch._thread is not None))
    assert os.waitpid(child, 0)[1] == 0
    run_python(SEND_TO, queue.path)
    thread.join(PATIENCE_SECONDS)
    assert got == [True]
    queue.close()


SEND_TO = """
import sys, strictq
for path in sys.argv[1:]:
    with strictq.open(path) as q:
        q.send(b"", "k")
"""
