"""One shard of format 3: what it refuses, and what it costs to catch up."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from strictq._store.commit import connection
from strictq._store.lane import entries as kinds
from strictq._store.lane.live_lane import LiveLane
from strictq._store.lane.memory import BODY_BYTES_KEPT, EFFECTS, FOREIGN_BODY_BYTES, M_BODY, StoreLimits
from strictq._store.shard import expiring, operating, sending, settling
from strictq._store.shard.failures import AttemptFailure
from strictq._store.shard.leases import BODY, Settlement
from strictq._store.shard.shard_lanes import NEWS_MAX, Tx
from strictq._store.tables import mark
from strictq._values.config import QueueConfig
from strictq._values.errors import LeaseLost, QueueFull, SchemaMismatch, StoreCorrupt
from tests.support.lane_file import CONFIG, LaneFile, batches, groups_of, item, new_file, request, rows_of

SECOND = 1_000_000
KEY = b"sa"
SMALL = StoreLimits(window=2, slice=4, head=2, chunk=4, loaded_max=20, tails_max=10)
KEYLESS = CONFIG.evolve(keyless="random")


class Opened:
    """A file, and any number of openers of it, on one clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1_000 * SECOND
        new_file(path)
        self.db = connection.connect(str(path), durability="process")

    def open(self, limits: StoreLimits | None = None, config: QueueConfig = CONFIG) -> LaneFile:
        return LaneFile(self.path, lambda: self.now, limits=limits, config=config)

    def run(self, sql: str, *values: object) -> Any:
        return self.db.execute(sql, values).fetchall()


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "a.db")


def send(shard: LaneFile, n: int, key: bytes = KEY) -> None:
    shard.send([item(key, b"%d" % i) for i in range(n)])


def claim(shard: LaneFile, room: int = 10) -> tuple[int, list[tuple[bytes, list[int]]]]:
    claimed = shard.claim(request(room))
    return claimed.token, groups_of(claimed)


def ack(shard: LaneFile, token: int, groups: list[tuple[bytes, list[int]]]) -> None:
    assert not any(shard.ack(batches(token, groups)))


def nack(shard: LaneFile, token: int, groups: list[tuple[bytes, list[int]]], delay: int | None = None) -> None:
    shard.transact(lambda tx: settling.nack(tx, batches(token, groups), delay, AttemptFailure("failed")))


def test_numbers_of_kinds_are_those_of_the_format() -> None:
    names = (
        "CLAIM MORE ACK ACK_FIRST NACK DEFER REJECT DROP PURGE EXPIRE START EXTEND RELEASE HOLD RELEASE_HOLD REDRIVE RANGE PARK "
        "MOVE_OUT MOVE_IN RANGES FORGET NOTE VOID FOLD"
    )
    assert [getattr(kinds, name) for name in names.split()] == list(range(1, 26))


@pytest.mark.parametrize("kind", [0, kinds.MOVE_OUT, kinds.MOVE_IN, kinds.RANGES, 26])
def test_an_unknown_kind_of_entry_is_refused(opened: Opened, kind: int) -> None:
    assert kind not in EFFECTS
    shard = opened.open()
    send(shard, 1)
    opened.run("INSERT INTO journal VALUES (1, ?, 0, 1, 0, 0, NULL, x'0100000000000000')", kind)
    with pytest.raises(SchemaMismatch, match=f"row 1 of its journal has the unknown kind {kind}"):
        opened.open()
    with pytest.raises(SchemaMismatch):
        send(shard, 1)


def test_a_feature_of_a_later_version_is_refused(opened: Opened) -> None:
    opened.run("UPDATE mark SET features = 1024")
    with pytest.raises(SchemaMismatch, match="bits 0x400"):
        opened.open()


@pytest.mark.parametrize("damage", [
    ("DELETE FROM journal WHERE id = 2", "row 1 of its journal is missing"),
    ("UPDATE journal SET data = x'01' WHERE id = 2", "row 2 of its journal has invalid data"),
    ("UPDATE journal SET data = NULL WHERE id = 2", "row 2 of its journal has invalid data: it names no message"),
    ("UPDATE journal SET data = x'ffffffffffffffff' WHERE id = 2", "row 2 of its journal has invalid data: a message is of no"),
    ("UPDATE journal SET data = x'0300000000000000' WHERE id = 1", "row 3 of its journal does not fit to its lanes"),
    ("UPDATE journal SET holder = NULL WHERE id = 1", "row 1 of its journal does not fit to its lanes: no holder"),
    ("UPDATE message SET seq = 9 WHERE id = 3", "row 3 of its messages has seq 9 after 2"),
    ("DELETE FROM mark", "the row of `mark` is missing"),
])  # fmt: skip
def test_damaged_logs_are_corruption(opened: Opened, damage: tuple[str, str]) -> None:
    shard = opened.open()
    send(shard, 3)
    token, groups = claim(shard, 1)
    ack(shard, token, groups)
    claim(shard, 1)
    opened.run(damage[0])
    with pytest.raises(StoreCorrupt, match=damage[1]):
        opened.open()


@pytest.mark.parametrize("damage", [
    ("UPDATE lane SET first = 99 WHERE key = x'7361'", "has first 99 and tail"),
    ("UPDATE lane SET opts = '{' WHERE key = x'7361'", "the row of lane b'sa' is invalid"),
    ("UPDATE lane SET ids = x'00' WHERE key = x'7361'", "the ids of lane b'sa' are invalid"),
    ("UPDATE lane SET ids = x'' WHERE key = x'7361'", "the ids of lane b'sa' are invalid"),
    ("DELETE FROM pending WHERE first = 5", "`pending` lacks seq 5 of lane b'sa'"),
])  # fmt: skip
def test_damaged_rows_at_rest_are_corruption(opened: Opened, damage: tuple[str, str]) -> None:
    shard = opened.open(SMALL)
    for _ in range(12):
        send(shard, 3)
    for n in range(12):
        send(shard, 1, b"sb%d" % n)  # folds
    assert opened.run("SELECT count(*) FROM pending WHERE key = ?", KEY) > [(2,)]
    opened.run(damage[0])
    with pytest.raises(StoreCorrupt, match=damage[1]):
        opened.open(SMALL).lane(KEY)


def test_a_memory_that_is_behind_does_not_refuse(opened: Opened) -> None:
    first, second = opened.open(), opened.open()
    send(first, 3)
    second.lane(KEY)
    token, groups = claim(first)
    ack(second, token, groups)  # second has not seen the claim
    claim(second)
    (lost,) = first.ack(batches(token + 1, groups))  # and first has not seen the ack
    assert set(lost) == {1, 2, 3}
    assert first.totals().acks == 3


def test_a_worker_that_died_without_a_lease_leaves_nothing_to_end(opened: Opened) -> None:
    shard = opened.open()
    send(shard, 1)
    claim(shard)
    shard.transact(lambda tx: expiring.end_claims(tx, {}, single=True))
    assert not shard.claim(request(1)).messages


def test_a_refusal_changes_nothing_and_costs_no_rebuild(opened: Opened) -> None:
    shard = opened.open(config=CONFIG.evolve(max_depth=3))
    send(shard, 3)
    before = shard.memory.rebuilds, opened.run("SELECT * FROM journal"), opened.run("SELECT id FROM message")
    with pytest.raises(QueueFull):
        send(shard, 1)
    with pytest.raises(LeaseLost):
        shard.transact(lambda tx: settling.ack_lane(tx, Settlement(KEY, 7, [1])))
    assert shard.lane(KEY)[0] == 3
    assert (shard.memory.rebuilds, opened.run("SELECT * FROM journal"), opened.run("SELECT id FROM message")) == before


def test_a_refusal_after_a_send_of_the_same_operation_takes_both_back(opened: Opened) -> None:
    shard = opened.open()

    def sends_and_is_refused(tx: Tx) -> None:
        sending.send(tx, [item(KEY)])
        settling.ack_lane(tx, Settlement(KEY, 7, [1]))

    refused, _ = shard.group([sends_and_is_refused, lambda tx: sending.send(tx, [item(b"sb")])])
    assert isinstance(refused, LeaseLost)
    assert opened.run("SELECT id, key, seq FROM message WHERE id > 0") == [(1, b"sb", 1)]
    assert shard.lane(KEY)[0] == 0


def test_the_rollback_of_an_operation_keeps_the_epoch_that_its_transaction_began(opened: Opened) -> None:
    shard = opened.open()
    shard.epoch = shard.version = 3

    def fails(tx: Tx) -> None:
        raise KeyError

    shard.group([fails, lambda tx: sending.send(tx, [item(KEY)])])
    assert opened.run("SELECT epoch, config_version FROM mark") == [(3, 3)]


def test_a_transaction_is_atomic_with_the_programs_own_table(opened: Opened) -> None:
    opened.run("CREATE TABLE app (x INTEGER)")
    shard = opened.open()
    send(shard, 2)
    token, groups = claim(shard)

    def work(tx: Tx, fails: bool) -> None:
        for batch in batches(token, groups):
            settling.ack_lane(tx, batch)
        tx.run("INSERT INTO app VALUES (1)")
        sending.send(tx, [item(b"sb")])
        if fails:
            raise KeyError

    with pytest.raises(KeyError):
        shard.transact(lambda tx: work(tx, True))
    assert opened.run("SELECT * FROM app") == []
    assert (shard.lane(KEY)[0], shard.totals().pending) == (2, 2)
    shard.transact(lambda tx: work(tx, False))
    assert opened.run("SELECT * FROM app") == [(1,)]
    assert shard.totals().pending == 1


def test_a_repeated_ack_is_recognised_also_after_a_fold(opened: Opened) -> None:
    shard = opened.open(SMALL)
    send(shard, 2)
    token, groups = claim(shard)
    ack(shard, token, groups)

    def was_done(seqs: list[int]) -> bool:
        return shard.look(lambda lanes: settling.was_done(lanes, KEY, token, kinds.ACK, seqs))

    assert was_done([1, 2])
    assert not was_done([3])
    for n in range(40):
        send(shard, 1, b"sb%d" % n)
    assert KEY not in shard.memory.lanes
    for _ in range(2):
        assert was_done([1, 2])
        send(shard, 1)  # the row is written again by a lane that does not know its last resolution
        for at in range(40):
            send(shard, 1, b"sc%d" % at)


def test_a_parked_dead_letter_goes_back_to_its_own_lane_in_each_memory(opened: Opened) -> None:
    first, second = opened.open(config=KEYLESS), opened.open(config=KEYLESS)
    first.send([item(b"n1"), item(b"n1", delay=SECOND)])
    opened.now += SECOND
    token, _ = claim(first)
    second.lane(b"n1!s2")
    first.transact(lambda tx: settling.reject(tx, batches(token, [(b"n1!s2", [2])]), AttemptFailure("bad")))
    first.transact(lambda tx: operating.redrive(tx, b"n1!s2", None))
    for shard in (first, second, opened.open()):
        assert [shard.lane(key)[1] + shard.lane(key)[5] for key in (b"n1", b"n1!s2")] == [[(1, 1)], [(2, 2)]]


def test_a_memory_that_is_behind_finds_a_message_in_the_lane_that_it_was_parked_from(opened: Opened) -> None:
    """The rows of both lanes are ahead of a memory that slept since before the message was leased."""
    limits = StoreLimits(window=100, slice=1, head=8, chunk=4, loaded_max=20, tails_max=10)
    shard, sleeper = opened.open(limits, KEYLESS), opened.open(config=KEYLESS)
    shard.send([item(key) for key in (b"n1", b"n1", b"n1", b"s1", b"s2", b"s3")])
    sleeper.lane(b"n1")
    rebuilds = sleeper.memory.rebuilds
    token, _ = claim(shard)
    nack(shard, token, [(b"n1", [2])], SECOND)
    limits.window = 0
    while not opened.run("SELECT 1 FROM lane WHERE key = ?", b"n1!s2"):
        send(shard, 1, b"s1")  # a slice of the fold, which has not come to its end and cut the journal
    assert sleeper.lane(b"n1") == shard.lane(b"n1")
    assert sleeper.lane(b"n1!s2") == shard.lane(b"n1!s2")
    assert sleeper.memory.rebuilds == rebuilds


def test_a_memory_that_is_behind_and_read_a_newer_row_puts_the_lane_to_rest(opened: Opened) -> None:
    """The row says that the lane is empty. An entry that it includes follows the fold that puts the lane to rest."""
    limits = StoreLimits(window=1_000, slice=1, head=1, chunk=2, loaded_max=20, tails_max=10)
    shard, sleeper = opened.open(limits, KEYLESS), opened.open(limits, KEYLESS)

    def fold() -> None:
        shard.transact(lambda tx: shard.lanes.folder.slice(shard.now()))

    send(shard, 3, b"sk")
    fold()
    send(shard, 1, b"sa")
    send(shard, 1, b"sk")
    fold()  # writes sa
    sleeper.lane(b"sa")
    assert b"sk" in sleeper.memory.dirty
    rebuilds = sleeper.memory.rebuilds
    send(shard, 1, b"sz")
    token, groups = claim(shard, 4)
    assert groups == [(b"sk", [1, 2, 3, 4])]
    fold()  # writes sk, which is leased
    ack(shard, token, groups)
    fold()  # writes sk, which is empty
    assert opened.run("SELECT tail, first FROM lane WHERE key = ?", b"sk") == [(4, 5)]
    assert sleeper.lane(b"sk") == shard.lane(b"sk")
    assert sleeper.memory.rebuilds == rebuilds


def test_a_lane_whose_head_is_not_known_is_written_with_its_place(opened: Opened) -> None:
    """A fold may follow in the transaction that resolved the messages before a delayed one."""
    shard = opened.open(StoreLimits(window=1, slice=1, head=1, chunk=2, loaded_max=1, tails_max=10))
    shard.send([item(KEY), item(KEY), item(KEY, delay=SECOND), item(KEY)])
    opened.now += SECOND
    order = []
    while claimed := claim(shard, 1)[1]:
        token = shard.memory.last_token
        order += claimed[0][1]
        send(shard, 2, b"sz")
        ack(shard, token, claimed)
        if len(order) > 4:
            break
    assert [seq for seq in order if seq < 5]


def test_a_message_that_takes_the_place_of_one_given_up_is_not_delivered_after_its_ttl(opened: Opened) -> None:
    shard = opened.open(config=QueueConfig(max_attempts=1, retry_delay_seconds=0.0, on_poison="drop"))
    send(shard, 1)
    shard.send([item(KEY, ttl=60 * SECOND)])
    shard.claim(request(1, charge=True))
    opened.now += 100 * SECOND
    assert groups_of(shard.claim(request(1))) == []
    assert (shard.totals().dropped, shard.totals().expired) == (1, 1)


def test_arrival_numbers_and_seqs_never_restart(opened: Opened) -> None:
    shard = opened.open(SMALL)
    seqs = []
    for _ in range(300):
        seqs.append(shard.send([item(KEY)])[0][0])
        ack(shard, *claim(shard))
    assert seqs == list(range(1, 301))
    ((rows, newest),) = opened.run("SELECT count(*), max(id) FROM message WHERE id > 0")
    assert newest == 300
    assert rows < 150
    ((first, last),) = opened.run("SELECT min(id), max(id) FROM journal")
    assert last - first < 60 < last


@pytest.mark.parametrize("run", [1, 20])
def test_each_row_of_a_resolved_message_is_deleted_sometime(opened: Opened, run: int) -> None:
    """Also the last ones of a bucket of `gone`, and those beside a run of rows that was deleted at once."""
    shard = opened.open(StoreLimits(window=20, slice=10))
    random = Random(1)
    for _ in range(10):
        shard.send([item(b"s%d" % n) for n in range(60) for _ in range(run if n % 20 == 0 else 1)])
        held = [lease.all() for lease in shard.claim(request(1_000)).leases]
        random.shuffle(held)
        for batch in held:
            shard.ack([batch])
    last = opened.run("SELECT max(id) FROM message")[0][0]
    for _ in range(300):
        send(shard, 1)
        ack(shard, *claim(shard))
    assert opened.run("SELECT id FROM message WHERE id BETWEEN 1 AND ?", last - 128) == []


def test_a_check_finds_nothing_wrong_in_a_sound_file(opened: Opened) -> None:
    assert checked(opened).check() == []


@pytest.mark.parametrize("damage", [
    ("DELETE FROM message WHERE id = 3", "message 3 of lane b'sa' has no row 3 in `message`"),
    ("UPDATE message SET seq = 7 WHERE id = 3", "message 3 of lane b'sa' has no row 3 in `message`"),
    ("DELETE FROM dead", "row 1 of `message`, seq 1 of key b'sa', is resolved, but its row is not noted for deletion"),
    ("DELETE FROM gone", "row 2 of `message`, seq 2 of key b'sa', is resolved, but its row is not noted for deletion"),
    ("UPDATE gone SET bits = x'0e000000000000000000000000000000' WHERE bucket = 0", "seq 3 of key b'sa', is not resolved, but"),
    ("UPDATE mark SET pending = pending + 1", "counter: pending is"),
])  # fmt: skip
def test_a_check_finds_seeded_damage(opened: Opened, damage: tuple[str, str]) -> None:
    shard = checked(opened)
    opened.run(damage[0])
    assert any(damage[1] in problem for problem in shard.check()), shard.check()


def checked(opened: Opened) -> LaneFile:
    """Return a shard that has one dead, one resolved and several unresolved messages, all at rest."""
    shard = opened.open(SMALL)
    send(shard, 6)
    token, _ = claim(shard)
    shard.transact(lambda tx: settling.reject(tx, batches(token, [(KEY, [1])]), AttemptFailure("bad")))
    ack(shard, token, [(KEY, [2])])
    for n in range(24):
        send(shard, 1, b"sb%d" % n)
    return shard


def test_the_first_unresolved_message_does_not_depend_on_how_much_of_a_lane_is_loaded() -> None:
    """Otherwise a process would write a row that begins at parts of its ids that another one has deleted."""
    whole, windowed, joining = (LiveLane(KEY, 6) for _ in range(3))
    for lane in (whole, windowed, joining):
        lane.first = 1
    whole.ids = [1, 0, 0, 4, 5, 6]
    windowed.ids, windowed.deep, windowed.split, windowed.holes = [1], 5, True, {2, 3}
    joining.ids, joining.deep, joining.split, joining.holes, joining.new = [1], 2, True, {2, 3}, [4, 5, 6]
    assert [lane.resolve([1]) for lane in (whole, windowed, joining)] == [3, 1, 1 - 3]
    assert [(lane.first, lane.deep, lane.split) for lane in (whole, windowed, joining)] == [
        (4, 0, False),
        (4, 3, True),
        (4, 0, False),
    ]
    assert whole.ids == joining.ids == [4, 5, 6]


def test_a_whole_claim_is_acked_by_one_statement(opened: Opened) -> None:
    shard, other = opened.open(), opened.open()
    send(shard, 3, b"sa")
    send(shard, 1, b"sb")
    claimed = shard.claim(request(3))
    before = shard.lanes.commits
    shard.lanes.wake = False  # as before every call
    assert settling.ack_claimed_alone(shard.lanes, opened.now, (claimed, shard.config))
    assert not shard.lanes.wake, "sb waits since it was sent"
    assert shard.lanes.commits == before + 1
    assert settling.ack_claimed_alone(shard.lanes, opened.now, (claimed, shard.config)) is None, "it is not leased any more"
    part = shard.claim(request(1))
    send(shard, 1, b"sb")
    assert settling.ack_claimed_alone(shard.lanes, opened.now, (part, shard.config))
    assert shard.lanes.wake, "the rest of sb is ready"
    again = shard.claim(request(1))
    send(other, 1, b"sc")
    assert settling.ack_claimed_alone(shard.lanes, opened.now, (again, shard.config)) is None, "memory is behind"
    assert not any(shard.ack(batches(again.token, groups_of(again))))
    assert shard.totals().pending == other.totals().pending == 1


def test_the_lanes_of_a_settled_claim_are_not_kept_until_its_deadline(opened: Opened) -> None:
    shard = opened.open()
    send(shard, 1, b"sa")
    send(shard, 1, b"sb")
    token, groups = claim(shard)
    (grant,) = [end[2] for end in shard.memory.order.ends]
    ack(shard, token, groups[:1])
    assert len(grant.lanes) == 2, "one is still leased"
    nack(shard, token, groups[1:])
    assert not grant.lanes


def test_a_lane_that_is_retried_does_not_keep_others_waiting(opened: Opened) -> None:
    shard = opened.open()
    for n in range(3):
        send(shard, 1, b"s%d" % n)
    order = []
    for _ in range(6):
        token, groups = claim(shard, 1)
        order.append(groups[0][0])
        nack(shard, token, groups)
    assert order == [b"s0", b"s1", b"s2"] * 2


def test_no_statement_reads_more_than_its_slice(opened: Opened) -> None:
    """The upper bound of a deleted range is found by the index, not by a scan: see the comment of `delete_range`."""
    from strictq._sql import LOG, TABLES
    from strictq._store.tables.log_rows import PAIRS

    opened.db.execute(PAIRS)
    for statements in (LOG, TABLES):
        for name in statements.names():
            if name in ("schema", "pairs"):
                continue
            text = statements.__dict__[name].replace("{{", "").replace("}}", "")
            if "ORDER BY id DESC LIMIT 1" in text or text.lstrip().startswith("SELECT EXISTS (SELECT 1 FROM trouble)"):
                continue  # SQLite calls it a scan, and it ends at the first row
            if name == "some_gone":
                continue  # only on a full disk
            plan = " | ".join(str(row[-1]) for row in explained(opened.db, text))
            assert "SCAN" not in re.sub("SCAN (CONSTANT ROW|mark|. VIRTUAL TABLE)", "", plan), (name, plan)


def explained(db: apsw.Connection, text: str) -> Any:
    values = [None] * 40
    n = max([text.count("?"), *(int(part[0]) for part in text.split("?")[1:] if part[:1].isdigit())])
    while True:
        try:
            return db.execute("EXPLAIN QUERY PLAN " + text, values[:n]).fetchall()
        except apsw.BindingsError:
            n -= 1
            assert n >= 0, text


def test_little_that_another_process_wrote_is_read_without_a_transaction(opened: Opened) -> None:
    first, second = opened.open(), opened.open()
    send(first, 2)
    send(first, 2, b"sb")
    token, groups = claim(second, 2)
    send(first, 1, b"sb")
    other = claim(first, 1)
    statements: list[str] = []
    second.db.set_exec_trace(lambda _cursor, sql, _bindings: statements.append(sql) or True)
    ack(second, token, groups)
    assert not second.lanes.is_current
    assert [sql.split()[0] for sql in statements] == ["SELECT", "INSERT"]
    assert (second.memory.seen, second.memory.top) == (3, 5)
    statements.clear()
    second.db.set_exec_trace(None)
    ack(first, *other)
    assert claim(second, 9)[1] == [(b"sb", [2, 3])]


@pytest.mark.parametrize("what", ["many", "note", "unknown lane"])
def test_what_a_single_statement_does_not_read_is_read_by_a_transaction(opened: Opened, what: str) -> None:
    first, second = opened.open(), opened.open()
    send(first, 1)
    token, groups = claim(second, 1)
    send(first, 1)
    if what == "many":
        send(first, NEWS_MAX, b"sb")
    elif what == "note":
        first.transact(lambda tx: setattr(tx.totals, "config_version", 0))
    else:
        send(first, 1, b"sc")
    assert not second.lanes.follow_alone()
    ack(second, token, groups)
    assert (second.memory.seen, second.memory.top) == (first.memory.seen + 1, first.memory.top)


def test_short_bodies_are_read_with_the_messages_of_another_process(opened: Opened) -> None:
    first, second = opened.open(), opened.open()
    bodies = [b"short", b"x" * FOREIGN_BODY_BYTES, b"y" * (FOREIGN_BODY_BYTES + 1), b""]
    first.send([item(b"s%d" % n, body) for n, body in enumerate(bodies)])
    second.look(lambda _: None)
    assert [row[M_BODY] for row in second.memory.rows.values()] == [*bodies[:2], None, b""]
    assert second.memory.bytes_kept == len(bodies[0]) + len(bodies[1])
    assert [row[BODY] for (row,) in rows_of(second.claim(request(4, per_key=1)))] == bodies


def test_bodies_of_another_process_do_not_fill_memory(opened: Opened) -> None:
    first, second = opened.open(), opened.open()
    second.memory.bytes_kept = BODY_BYTES_KEPT
    send(first, 1)
    second.look(lambda _: None)
    assert second.memory.rows[1][M_BODY] is None
    second.memory.bytes_kept = BODY_BYTES_KEPT - 1
    send(first, 2)
    second.look(lambda _: None)
    assert [row[M_BODY] for row in second.memory.rows.values()] == [None, None, None]
    assert len(claim(second)[1][0][1]) == 3


def test_resolved_messages_are_deleted_in_steps_and_the_journal_is_cut_with_them(opened: Opened) -> None:
    """Each step may be another process's, also of one that has just begun."""
    limits = StoreLimits(window=1_000, deleted=16)
    first, second = opened.open(limits), opened.open(limits)
    send(first, 49)
    for _ in range(3):
        ack(first, *claim(first, 16))
    second.look(lambda _: None)
    rebuilds = second.memory.rebuilds
    found = []
    for shard in (first, second, opened.open(limits)):
        shard.transact(lambda tx: tx.lanes.folder.slice(tx.now))
        found.append((
            opened.run("SELECT count(*) FROM message WHERE id > 0")[0][0],
            opened.run("SELECT min(id) - 1, cut FROM journal, mark")[0],
            bool(shard.memory.fold_to),
        ))  # fmt: skip
    assert found == [(33, (3, 3), True), (17, (5, 5), True), (1, (8, 8), False)]
    for shard in (first, second, opened.open()):
        assert shard.lane(KEY) == first.lane(KEY)
        assert not shard.memory.gone
    assert second.memory.rebuilds == rebuilds


def test_a_failed_operation_takes_back_no_feature_that_its_group_began_with(opened: Opened) -> None:
    send(opened.open(), 1)
    shard = opened.open(config=CONFIG.evolve(tenant_separator="/"))

    def fails(tx: Tx) -> None:
        sending.send(tx, [item(b"sa/1")], elsewhere=sending.NOTHING_ELSEWHERE)
        raise ValueError

    def sends(tx: Tx) -> None:
        sending.send(tx, [item(b"sa/2")], elsewhere=sending.NOTHING_ELSEWHERE)

    assert [type(one) for one in shard.group([fails, sends])] == [ValueError, type(None)]
    assert opened.run("SELECT features FROM mark") == [(mark.TURNS | mark.TENANT_DEPTHS,)]
    again = opened.open(config=CONFIG.evolve(tenant_separator=":"))
    assert [key for key, _ in claim(again)[1]] == [KEY, b"sa/2"]
    assert not again.check()
