"""Sends of a transaction to other shards: written with it, forwarded after it, and exactly once after any failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import ForwardPending, Queue, StoreBusy, StoreCorrupt, StrictqError
from strictq._store.disk import layout
from strictq._store.shard.shard_file import Shard
from strictq._store.whole import outbox
from strictq._store.whole.store import Store
from strictq.testing import FakeClock
from tests.support.internals import failing, shard_of, store_of, tamper
from tests.support.queues import Opener, drain, fill, keys_by_shard, labels, seqs, shard_file
from tests.support.running import run_python

KEYS = keys_by_shard(3)
HERE, THERE, ELSEWHERE = KEYS[0], KEYS[1], KEYS[2]


@pytest.fixture
def q(disk: Opener) -> Queue:
    return disk(shards=3)


def hand_on(q: Queue, bodies: list[bytes], to: str = THERE, **options: Any) -> None:
    """Run one transaction on HERE that acks a message and sends to another shard."""
    q.send(b"", HERE)
    (d,) = q.receive(1, keys=[HERE])
    with q.transaction(d) as tx:
        for body in bodies:
            tx.send(body, to, **options)


def waiting(q: Queue, number: int = 0) -> int:
    """Return the number of a shard's sends that have not arrived yet."""
    return q.stats().shards[number].outbox


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Disable forwarding, as if the process had died after the commit. The returned function ends that."""
    monkeypatch.setattr(Store, "forward", lambda self, origins=None: None)
    return monkeypatch.undo


def test_sends_arrive_before_the_call_returns(q: Queue) -> None:
    hand_on(q, [b"1", b"2"])
    assert waiting(q) == 0
    assert [m.body for m in q.peek(THERE)] == [b"1", b"2"]
    assert q.status(HERE, 1).state == "resolved"


def test_the_next_open_finishes_what_a_crash_left(q: Queue, disk: Opener, stuck: Callable[[], None]) -> None:
    hand_on(q, [b"1", b"2"])
    hand_on(q, [b"3"], ELSEWHERE)
    assert waiting(q) == 3
    assert q.peek(THERE) == []
    q.close()
    stuck()
    q = disk()
    assert waiting(q) == 0
    assert [m.body for m in q.peek(THERE)] == [b"1", b"2"]
    assert [m.body for m in q.peek(ELSEWHERE)] == [b"3"]
    assert q.check() == []


def test_any_other_process_finishes_it_too(q: Queue, disk: Opener, stuck: Callable[[], None]) -> None:
    other = disk()
    hand_on(q, [b"1"])
    stuck()
    store_of(other).tidy()
    assert [m.body for m in q.peek(THERE)] == [b"1"]


KILLED = """
import os, sys, strictq
from strictq._store.whole import outbox
point, path, here, there = sys.argv[1:]
q = strictq.open(path, durability="process")
q.send(b"", here)
(d,) = q.receive(1, keys=[here])
def die(*args, **options):
    os._exit(0)
if point == "before forwarding":
    type(q._storage._store).forward = die
elif point == "before it arrives":
    outbox.arrive = die
elif point == "before it is forgotten":
    outbox.forget = die
with q.transaction(d) as tx:
    tx.key_state = b"done"
    for n in range(3):
        tx.send(b"%d" % n, there)
raise SystemExit("it was to die")
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before forwarding", "before it arrives", "before it is forgotten"])
def test_a_process_that_dies_on_the_way_loses_and_repeats_nothing(tmp_path: Path, point: str) -> None:
    path = tmp_path / "queue"
    strictq.open(path, shards=3, durability="process").close()
    for n in range(1, 3):
        run_python(KILLED, point, path, HERE, THERE)
        with strictq.open(path) as q:
            assert waiting(q) == 0
            assert [m.body for m in q.peek(THERE)] == [b"0", b"1", b"2"] * n
            assert q.status(HERE, n).state == "resolved"
            assert q.check() == []


def test_a_repeated_forward_does_nothing(q: Queue, stuck: Callable[[], None]) -> None:
    hand_on(q, [b"1", b"2"])
    stuck()
    origin, destination = shard_of(q, 0), shard_of(q, 1)
    rows = origin.read(lambda db: outbox.waiting(db, 1))
    for _ in range(3):
        destination.run(lambda tx: outbox.arrive(tx, origin.incarnation, rows))
    destination.run(lambda tx: outbox.arrive(tx, origin.incarnation, rows[:1]))
    store_of(q).forward()
    assert [m.body for m in q.peek(THERE)] == [b"1", b"2"]


def test_two_forwarders_at_once_deliver_once(q: Queue, disk: Opener, stuck: Callable[[], None]) -> None:
    """Both read the outbox before either has forgotten anything."""
    other = disk()
    for n in range(5):
        hand_on(q, [b"%d" % n])
    stuck()
    origin = shard_of(q, 0)
    rows = origin.read(lambda db: outbox.waiting(db, 1))
    store_of(other).forward()
    hand_on(q, [b"5"])
    shard_of(q, 1).run(lambda tx: outbox.arrive(tx, origin.incarnation, rows))
    origin.run(lambda tx: outbox.forget(tx, 1, rows[-1][0]))
    assert [m.body for m in q.peek(THERE)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert waiting(q) == 0


@pytest.mark.parametrize("count", [3, 1200])
def test_forwarding_is_first_in_first_out(q: Queue, stuck: Callable[[], None], count: int) -> None:
    """The order holds over several steps."""
    sent: dict[str, list[bytes]] = {THERE: [], ELSEWHERE: []}
    for n in range(0, count, 200):
        for to, got in sent.items():
            bodies = [b"%d" % i for i in range(n, min(n + 200, count))]
            hand_on(q, bodies, to)
            got += bodies
    stuck()
    store_of(q).forward()
    for to, got in sent.items():
        assert [m.body for m in q.peek(to, 5000)] == got
    assert waiting(q) == 0
    assert q.check() == []


def test_a_later_transaction_does_not_overtake_what_waits(q: Queue, stuck: Callable[[], None]) -> None:
    hand_on(q, [b"1"])
    stuck()
    hand_on(q, [b"2"])
    assert [m.body for m in q.peek(THERE)] == [b"1", b"2"]


def test_times_count_from_the_transaction(q: Queue, clock: FakeClock, stuck: Callable[[], None]) -> None:
    sent_at = store_of(q).now()
    hand_on(q, [b"delayed"], THERE, delay=50.0)
    hand_on(q, [b"mortal"], ELSEWHERE, ttl=50.0)
    clock.advance(40.0)
    stuck()
    store_of(q).forward()
    assert q.peek(THERE)[0].enqueued_at == pytest.approx(sent_at / 1e6, abs=0.001)
    clock.advance(11.0)
    assert [d.body for d in q.receive()] == [b"delayed"]


def test_everything_about_a_message_is_forwarded(q: Queue) -> None:
    q.send(b"", HERE)
    (d,) = q.receive()
    with q.transaction(d) as tx:
        tx.send(b"x" * 5000, THERE, dedup_id="d", headers={"h": "1"}, size_hint=1.5, prepare_seconds=2.5, process_seconds=3.5)
        tx.send(b"again", THERE, dedup_id="d")
    (d,) = q.receive()
    assert (d.body, d.headers) == (b"x" * 5000, {"h": "1"})
    assert (d.size_hint, d.prepare_seconds, d.process_seconds) == (1.5, 2.5, 3.5)


def test_the_high_water_mark_outlives_purges_and_dedup_windows(q: Queue, clock: FakeClock, stuck: Callable[[], None]) -> None:
    hand_on(q, [b"1"], dedup_id="d")
    origin = shard_of(q, 0)
    rows = origin.read(lambda db: outbox.waiting(db, 1))
    stuck()
    store_of(q).forward()
    drain(q)
    q.purge(dead=True)
    clock.advance(100_000.0)
    q.send(b"", THERE, dedup_id="another")
    q.purge()
    shard_of(q, 1).run(lambda tx: outbox.arrive(tx, origin.incarnation, rows))
    assert q.peek(THERE) == []
    hand_on(q, [b"2"], dedup_id="d")
    assert [m.body for m in q.peek(THERE)] == [b"2"]


def test_marks_are_kept_for_each_origin(q: Queue) -> None:
    hand_on(q, [b"from here"])
    q.send(b"", ELSEWHERE)
    (d,) = q.receive(1, keys=[ELSEWHERE])
    with q.transaction(d) as tx:
        tx.send(b"from elsewhere", THERE)
    assert [m.body for m in q.peek(THERE)] == [b"from here", b"from elsewhere"]


def test_a_destination_that_fails_leaves_it_pending_and_the_transaction_done(
    q: Queue, disk: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = shard_of(q, 1)

    def busy(operation: Any) -> Any:
        raise StoreBusy("not now", shard=1)

    with monkeypatch.context() as m:
        m.setattr(destination, "drain", busy)
        with pytest.raises(ForwardPending) as caught:
            hand_on(q, [b"1"])
    assert "do not repeat" in caught.value.hint
    assert q.status(HERE, 1).state == "resolved"
    assert waiting(q) == 1
    hand_on(q, [b"2"])
    assert [m.body for m in q.peek(THERE)] == [b"1", b"2"]
    assert waiting(q) == 0


def test_a_destination_that_is_gone_does_not_hold_up_the_others(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk(shards=3)
    q.close()
    tamper(shard_file(disk.path, 1), "UPDATE meta SET value = 'other' WHERE name = 'queue_id'")
    q = disk()
    for n in range(3):
        q.send(b"", HERE)
        (d,) = q.receive(1, keys=[HERE])
        with pytest.raises(ForwardPending), q.transaction(d) as tx:
            tx.send(b"%d" % n, THERE)
            tx.send(b"%d" % n, ELSEWHERE)
    assert [m.body for m in q.peek(ELSEWHERE)] == [b"0", b"1", b"2"]
    assert waiting(q) == 3
    q.close()
    tamper(shard_file(disk.path, 1), f"UPDATE meta SET value = '{q.queue_id}' WHERE name = 'queue_id'")
    q = disk()
    assert [m.body for m in q.peek(THERE)] == [b"0", b"1", b"2"]


def test_an_origin_that_fails_does_not_hold_up_the_others(disk: Opener, stuck: Callable[[], None]) -> None:
    q = disk(shards=3)
    hand_on(q, [b"lost for now"], ELSEWHERE)
    q.send(b"", THERE)
    (d,) = q.receive(1, keys=[THERE])
    with q.transaction(d) as tx:
        tx.send(b"from there", ELSEWHERE)
    q.close()
    stuck()
    tamper(shard_file(disk.path, 0), "UPDATE meta SET value = 'other' WHERE name = 'queue_id'")
    q = disk()
    assert [m.body for m in q.peek(ELSEWHERE)] == [b"from there"]
    with pytest.raises(StoreCorrupt):
        q.send(b"", HERE)


def test_an_outbox_that_names_no_shard_does_not_keep_the_queue_from_opening(disk: Opener) -> None:
    q = disk(shards=3)
    fill(q, HERE, 1)
    q.close()
    tamper(
        shard_file(disk.path, 0),
        "INSERT INTO outbox (destination, id, key, sent_at, body) VALUES (77, 1, x'7361', 1, x'')",
        "INSERT OR REPLACE INTO meta VALUES ('last_outbox', 1)",
    )
    q = disk()
    assert labels(q.receive()) == [(HERE, 1)]
    assert [p.rule for p in q.check()] != [], "nobody will ever forward it, and check() says so"


def test_the_origins_wal_is_synced_before_it_forwards(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could take the ack and leave the send, at durability "process", too."""
    steps: list[str] = []
    sync_wal = layout.sync_wal
    monkeypatch.setattr(layout, "sync_wal", lambda path: (steps.append(f"sync {path.name}"), sync_wal(path)))
    arrive, forget = outbox.arrive, outbox.forget
    monkeypatch.setattr(outbox, "arrive", lambda *a: (steps.append("arrive"), arrive(*a))[1])
    monkeypatch.setattr(outbox, "forget", lambda *a: (steps.append("forget"), forget(*a))[1])
    hand_on(q, [b"1"])
    assert steps == ["sync shard-0000.db", "arrive", "sync shard-0001.db", "forget"]


def test_a_failed_sync_of_the_origin_forwards_nothing(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as m:
        m.setattr(layout, "sync_wal", broken)
        with pytest.raises(ForwardPending):
            hand_on(q, [b"1"])
        with suppress(StrictqError):
            store_of(q).tidy()  # the engine's own thread must survive it
    assert q.peek(THERE) == []
    store_of(q).forward()
    assert [m.body for m in q.peek(THERE)] == [b"1"]


def test_a_transaction_whose_answer_was_lost_forwards_when_it_is_repeated(q: Queue) -> None:
    q.send(b"", HERE)
    (d,) = q.receive()

    def attempt() -> None:
        with q.transaction(d) as tx:
            tx.send(b"1", THERE)
            tx.send(b"2", HERE)

    with failing(q, "COMMIT", apsw.IOError("no answer"), after=True), pytest.raises(strictq.OutcomeUnknown):
        attempt()
    attempt()
    assert [m.body for m in q.peek(THERE)] == [b"1"]
    assert [m.body for m in q.peek(HERE)] == [b"2"]
    assert q.check() == []


def test_max_depth_does_not_stop_what_arrives(disk: Opener, stuck: Callable[[], None]) -> None:
    q = disk(shards=3, max_depth=1)
    hand_on(q, [b"1", b"2", b"3"])
    stuck()
    store_of(q).forward()
    assert seqs(q.peek(THERE)) == [1, 2, 3]


def test_a_check_beside_forwarding_finds_nothing(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A send between two reads of the check must not look like an arrival that was never sent."""
    q = disk(shards=2)
    here, there = keys_by_shard(2).values()
    look = Shard.look

    def look_and_send(self: Shard, what: Any, **options: Any) -> Any:
        found = look(self, what, **options)
        for origin, destination in ((here, there), (there, here)):
            with q.transaction(key=origin) as tx:
                tx.send(b"", destination)
        return found

    monkeypatch.setattr(Shard, "look", look_and_send)
    assert q.check() == []
