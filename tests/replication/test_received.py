"""What a replica takes, and what it refuses; and that it has what it confirmed, wherever it was ended."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import Diverged, Fenced, InvalidArgument, QueueNotFound, ReplicaGap, SchemaMismatch, StoreBusy, StoreFull
from strictq.replication import received as module
from strictq.replication import replica_log
from strictq.replication import shipper as shipping
from strictq.replication.keys import key_id
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import LOGS, ReplicaState
from strictq.replication.segment import MAGIC, START_BYTES, PagesOf, SegmentHeader, decode, decode_header, encode
from strictq.replication.target import Beat
from strictq.testing import FakeClock
from tests.support.queues import Opener
from tests.support.replicas import bodies, segments, until_applied
from tests.support.running import until
from tests.support.shipping import HISTORY, ship_once, shipper_of

MESSAGES = 4
"""What a primary in async mode says with a beat."""


@pytest.fixture
def shipped(disk: Opener, tmp_path: Path) -> list[bytes]:
    """Segments of a queue that has a message more with each."""
    q = disk(shards=2)
    shipper = shipper_of(q, tmp_path / "t")
    for n in range(MESSAGES):
        q.send(b"%d" % n, key="k")
        shipper.round()
    shipper.close()
    return segments(tmp_path / "t")


Begin = Callable[..., ReceivedSegments]


@pytest.fixture
def begin(home: Path) -> Iterator[Begin]:
    """Begin to receive; all are closed at the end."""
    opened: list[ReceivedSegments] = []

    def begun(**options: Any) -> ReceivedSegments:
        opened.append(ReceivedSegments(home, strictq.SystemClock(), **options))
        return opened[-1]

    yield begun
    for each in opened:
        each.close()


def header_of(data: bytes) -> SegmentHeader:
    return decode_header(data, -1)


def claim(replica: ReceivedSegments, data: bytes, key: str = "") -> None:
    header = header_of(data)
    replica.claim(header.queue_id, header.history_id, key)


def expected(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def changed(data: bytes, **values: Any) -> bytes:
    """The segment with another header, its hash right again."""
    header, parts = decode(data, -1)
    return encode(attrs.evolve(header, **values), [page for _, pages in parts for page in pages])


# ---- taking segments


def test_what_was_received_can_be_looked_at(home: Path, begin: Begin, shipped: list[bytes]) -> None:
    replica = begin()
    assert replica.head() is None
    claim(replica, shipped[0])
    with pytest.raises(QueueNotFound, match="no complete state"):
        strictq.open(home, read_only=True)
    for n, data in enumerate(shipped):
        replica.put(n, data)
        head = replica.head()
        assert head is not None
        assert (head.n, head.complete) == (n, header_of(data))
        until_applied(home, n)
        assert bodies(home) == expected(n + 1)
    assert replica.error is None


def test_a_segment_twice_is_the_same_as_once(home: Path, begin: Begin, shipped: list[bytes]) -> None:
    replica = begin()
    claim(replica, shipped[0])
    for n, data in enumerate(shipped):
        replica.put(n, data)
        replica.put(n, data)
    until_applied(home, len(shipped) - 1)
    assert bodies(home) == expected(MESSAGES)


def test_a_restart_goes_on(home: Path, begin: Begin, shipped: list[bytes]) -> None:
    for n, data in enumerate(shipped):
        replica = begin()
        claim(replica, data)
        replica.put(n, data)
        replica.close()
        assert bodies(home) == expected(n + 1)
        assert sum((home / name).stat().st_size for name in LOGS) == 0
    with pytest.raises(StoreBusy):
        replica.head()


def test_one_process_receives(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.0)
    begin()
    with pytest.raises(StoreBusy, match="another process"):
        begin()


def test_a_directory_with_something_else_is_left_alone(home: Path, begin: Begin, tmp_path: Path) -> None:
    home.mkdir()
    (home / "mine").touch()
    with pytest.raises(InvalidArgument, match="'mine'"):
        begin()
    assert os.listdir(home) == ["mine"]
    (home / "mine").unlink()
    home.rmdir()
    home.write_text("a file")
    with pytest.raises(InvalidArgument):
        begin()


def test_a_replica_that_was_made_halfway(home: Path, begin: Begin, shipped: list[bytes]) -> None:
    (home / "live").mkdir(parents=True)
    (home / "state.part").write_text("{")
    replica = begin()
    claim(replica, shipped[0])


# ---- what is refused


@pytest.fixture
def half(home: Path, begin: Begin, shipped: list[bytes]) -> ReceivedSegments:
    """A replica that has the first two segments, and must have them at the end."""
    replica = begin()
    claim(replica, shipped[0])
    for n in range(2):
        replica.put(n, shipped[n])
    return replica


REFUSED: list[tuple[str, Callable[[list[bytes]], tuple[int, bytes]], type[Exception]]] = [
    ("a hole", lambda s: (3, s[3]), ReplicaGap),
    ("another one with this number", lambda s: (1, changed(s[1], wall=5)), Diverged),
    ("an earlier one", lambda s: (0, s[0]), Diverged),
    ("another chain", lambda s: (2, changed(s[2], prev="0" * 64)), Diverged),
    ("another queue", lambda s: (2, changed(s[2], queue_id="1" * 32)), Diverged),
    ("another history", lambda s: (2, changed(s[2], history_id="1" * 32)), Diverged),
    ("another number", lambda s: (2, s[3]), ReplicaGap),
    ("a flipped bit", lambda s: (2, s[2][:-40] + bytes([s[2][-40] ^ 1]) + s[2][-39:]), ReplicaGap),
    ("a part", lambda s: (2, s[2][:-1]), ReplicaGap),
    ("more", lambda s: (2, s[2] + b"x"), ReplicaGap),
    ("nothing", lambda _: (2, b""), ReplicaGap),
    ("a stranger's bytes", lambda _: (2, b"GET / HTTP/1.1\r\n\r\n" * 10), ReplicaGap),
    ("a newer format", lambda s: (2, MAGIC[:-1] + b"\x02" + s[2][8:]), SchemaMismatch),
    ("huge sizes", lambda s: (2, s[2][:8] + b"\x7f" * 32 + s[2][START_BYTES:]), ReplicaGap),
    ("other shards", lambda s: (2, changed(s[2], shards=3)), ReplicaGap),
    ("an unknown shard", lambda s: (2, other_part(s[2], shard=2)), ReplicaGap),
    ("a negative shard", lambda s: (2, other_part(s[2], shard=-2)), ReplicaGap),
    ("a page behind the end", lambda s: (2, other_part(s[2], size=1)), ReplicaGap),
    ("a cut without its begin", lambda s: (2, changed(s[2], first=1)), ReplicaGap),
    ("a text for a number", lambda s: (2, changed(s[2], x="1")), ReplicaGap),
    ("a negative time", lambda s: (2, changed(s[2], x=-1)), ReplicaGap),
]  # fmt: skip


def other_part(data: bytes, **values: Any) -> bytes:
    part = header_of(data).parts[0]
    return changed(data, parts=(PagesOf(**(attrs.asdict(part) | values)), *header_of(data).parts[1:]))


@pytest.mark.parametrize(("make", "error"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_refused(
    make: Callable[[list[bytes]], tuple[int, bytes]], error: type[Exception], half: ReceivedSegments, home: Path,
    shipped: list[bytes],
) -> None:  # fmt: skip
    with pytest.raises(error):
        half.put(*make(shipped))
    half.put(2, shipped[2])
    until_applied(home, 2)
    assert bodies(home) == expected(3)
    assert sorted(os.listdir(home / "live"))[:2] == ["queue.db", "replica"]


def test_the_first_segments_have_all_of_the_queue(begin: Begin, shipped: list[bytes]) -> None:
    replica = begin()
    claim(replica, shipped[0])
    with pytest.raises(ReplicaGap, match="the whole queue"):
        replica.put(0, changed(shipped[1], n=0, first=0, base=-1, prev=""))
    replica.put(0, shipped[0])


def test_an_older_term_is_fenced_and_a_newer_one_kept(half: ReceivedSegments, home: Path, shipped: list[bytes]) -> None:
    half.put(2, changed(shipped[2], term=3))
    assert ReplicaState.read(home).term == 3
    with pytest.raises(Fenced, match="in term 3") as e:
        half.put(3, shipped[3])
    assert e.value.term == 3
    header = header_of(shipped[0])
    with pytest.raises(Fenced):
        half.beat(Beat(header.queue_id, header.history_id, 2, 0, False, 0))
    half.beat(Beat(header.queue_id, header.history_id, 3, 0, False, 0))


def test_a_replica_is_claimed_once(half: ReceivedSegments, shipped: list[bytes]) -> None:
    queue_id = header_of(shipped[0]).queue_id
    half.claim(queue_id, HISTORY, "")
    with pytest.raises(Diverged, match="another history"):
        half.claim(queue_id, "other", "")
    with pytest.raises(Diverged, match="another queue"):
        half.claim("other", HISTORY, "")
    with pytest.raises(Diverged):
        half.beat(Beat("other", HISTORY, 1, 0, False, 0))


def test_a_replica_that_was_made_for_a_queue(begin: Begin, shipped: list[bytes]) -> None:
    replica = begin(queue_id="other")
    with pytest.raises(Diverged, match="created for another queue"):
        claim(replica, shipped[0])
    replica.close()
    with pytest.raises(InvalidArgument, match="of another queue"):
        begin(queue_id=header_of(shipped[0]).queue_id)


def test_keyed_segments_need_the_key(tmp_path: Path, begin: Begin, shipped: list[bytes]) -> None:
    key = b"k" * 32
    with strictq.open(tmp_path / "keyed") as q:
        ship_once(q, tmp_path / "keyed-t", key=key)
        queue_id = q.queue_id
    data = (tmp_path / "keyed-t" / f"{0:016x}.seg").read_bytes()
    replica = begin(key=key)
    with pytest.raises(InvalidArgument, match="different key"):
        replica.claim(queue_id, HISTORY, "")
    replica.claim(queue_id, HISTORY, key_id(key))
    with pytest.raises(ReplicaGap):
        replica.put(0, shipped[0])
    replica.put(0, data)
    replica.close()
    for wrong in (b"", b"x" * 32):
        with pytest.raises(InvalidArgument, match="another key"):
            begin(key=wrong)


# ---- cuts of several segments


def test_a_cut_is_applied_when_all_of_it_is_there(
    disk: Opener, tmp_path: Path, home: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "PAGES_MAX", 5)
    q = disk()
    shipper = shipper_of(q, tmp_path / "t")
    q.send(b"0", key="k")
    shipper.round()
    base = len(segments(tmp_path / "t"))
    q.send(os.urandom(60_000), key="k")
    shipper.round()
    shipper.close()
    found = segments(tmp_path / "t")
    assert base > 1
    assert len(found) > base + 2
    replica = begin()
    claim(replica, found[0])
    for n, data in enumerate(found[:-1]):
        replica.put(n, data)
    head = replica.head()
    assert head is not None
    assert head.complete == header_of(found[base - 1])
    until_applied(home, base - 1)
    replica.close()
    assert len(bodies(home)) == 1
    again = begin()
    assert again.head() == head
    # Given up here, and begun anew: what came of it counts for nothing.
    last = len(found) - 1
    again.put(last, changed(found[base], n=last, first=last, prev=head.hash))
    for i, data in enumerate(found[base + 1 :], 1):
        following = again.head()
        assert following is not None
        again.put(last + i, changed(data, n=last + i, first=last, prev=following.hash))
    until_applied(home, last + len(found) - base - 1)
    assert len(bodies(home)) == 2


# ---- the log


def test_the_log_is_emptied_once_live_is_on_the_disk(
    home: Path, begin: Begin, shipped: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_log, "ROTATE_BYTES", 1)
    steps: list[str] = []
    replica = begin(on_step=steps.append)
    claim(replica, shipped[0])
    for n, data in enumerate(shipped):
        replica.put(n, data)
        until_applied(home, n)
    until(lambda: "trimmed" in steps)
    for before, after in (("synced", "stored"), ("stored", "trimmed")):
        assert steps.index(before) < steps.index(after)
    state = ReplicaState.read(home)
    assert state.applied is not None
    assert sum((home / name).stat().st_size for name in LOGS) < sum(map(len, shipped))
    replica.close()
    assert bodies(home) == expected(MESSAGES)


def test_what_was_not_applied_is_applied_at_the_next_start(
    home: Path, begin: Begin, shipped: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = begin()
    claim(replica, shipped[0])
    replica.put(0, shipped[0])
    until_applied(home, 0)
    with strictq.open(home, read_only=True) as look:
        for n in range(1, MESSAGES):
            replica.put(n, shipped[n])  # confirmed, whoever looks
        assert [m.body for m in look.peek("k", 10)] == expected(1)
        assert look.stats().ready == 1
        replica.close()
        assert [m.body for m in look.peek("k", 10)] == expected(1)
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.0)
    with strictq.open(home, read_only=True), pytest.raises(StoreBusy, match="open for reading"):
        begin()
    begin()
    assert bodies(home) == expected(MESSAGES)


def test_a_look_that_lasts_bounds_the_log(
    home: Path, begin: Begin, shipped: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = begin()
    claim(replica, shipped[0])
    replica.put(0, shipped[0])
    until_applied(home, 0)
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 0)
    with strictq.open(home, read_only=True), pytest.raises(StoreFull, match="can't apply"):
        replica.put(1, shipped[1])
    monkeypatch.undo()
    replica.put(1, shipped[1])


@pytest.mark.parametrize("kept", [0, 1, START_BYTES, 200, -1])
def test_a_torn_tail_of_the_log_is_cut_off(home: Path, begin: Begin, shipped: list[bytes], kept: int) -> None:
    write_log(home, begin, shipped[:2])
    size = (home / LOGS[0]).stat().st_size
    with (home / LOGS[0]).open("ab") as file:
        file.write(shipped[2][:kept] if kept >= 0 else shipped[2][:-60] + bytes(60))
    replica = begin()
    assert (home / LOGS[0]).stat().st_size == size
    replica.put(2, shipped[2])
    until_applied(home, 2)
    assert bodies(home) == expected(3)


def write_log(home: Path, begin: Begin, data: list[bytes]) -> None:
    """A replica that was killed when it had confirmed these, and applied none."""
    claim(replica := begin(), data[0])
    replica.close()
    (home / LOGS[0]).write_bytes(b"".join(data))


@pytest.mark.parametrize("at", [3, 20, START_BYTES + 5, 300])
def test_a_damaged_segment_that_was_confirmed_is_never_cut_off(home: Path, begin: Begin, shipped: list[bytes], at: int) -> None:
    write_log(home, begin, shipped)
    with (home / LOGS[0]).open("r+b") as file:
        file.seek(len(shipped[0]) + at)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 0x55]))
    before = (home / LOGS[0]).read_bytes()
    with pytest.raises(ReplicaGap, match="damaged in the replica's log"):
        begin()
    assert (home / LOGS[0]).read_bytes() == before


def test_a_hole_in_the_log_is_noticed(home: Path, begin: Begin, shipped: list[bytes]) -> None:
    write_log(home, begin, [shipped[0], shipped[2]])
    with pytest.raises(ReplicaGap, match="segment 1 is missing"):
        begin()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_full_disk_confirms_nothing_and_loses_nothing(
    home: Path, half: ReceivedSegments, shipped: list[bytes], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)

    def full(fd: int, *rest: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(LOGS):
            raise OSError(errno.ENOSPC, "full")
        return real(fd, *rest)

    until_applied(home, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StoreFull):
            half.put(2, shipped[2])
    head = half.head()
    assert head is not None
    assert head.n == 1
    half.put(2, shipped[2])
    until_applied(home, 2)
    assert bodies(home) == expected(3)


def test_what_can_not_be_applied_is_tried_again(
    home: Path, half: ReceivedSegments, shipped: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    until_applied(home, 1)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)

    def broken() -> int:
        raise StoreFull("the disk is full", shard=0)

    half._apply_cuts = broken  # type: ignore[method-assign]
    half.put(2, shipped[2])
    until(lambda: half.error)
    with pytest.raises(StoreBusy, match="interrupted") as e:
        strictq.open(home, read_only=True)
    assert "strictq replica" in e.value.hint
    del half._apply_cuts
    until_applied(home, 2)
    until(lambda: half.error is None)
    assert bodies(home) == expected(3)


def test_after_a_power_cut_a_look_waits_for_the_log(home: Path, half: ReceivedSegments, clock: FakeClock) -> None:
    """What was applied and not synced may be gone; another boot of the machine says so."""
    until_applied(home, 1)
    with pytest.raises(StoreBusy, match="interrupted"):
        strictq.open(home, read_only=True, clock=clock)
    half.close()
    with strictq.open(home, read_only=True, clock=clock) as look:  # synced: whole for good
        assert look.stats().ready == 2
