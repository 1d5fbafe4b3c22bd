"""One shard of format 3: what it refuses, and what it costs to catch up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from strictq._errors import LeaseLost, QueueFull, SchemaMismatch, StoreCorrupt
from strictq._store.commit import connection
from strictq._store.lane import entries as kinds
from strictq._store.lane.memory import EFFECTS, StoreLimits
from strictq._store.onelane.claiming import ClaimRequest
from strictq._store.onelane.shard_file import NewMessage, ShardFile

SECOND = 1_000_000
KEY = b"sa"
SMALL = StoreLimits(window=2, slice=4, head=2, chunk=4, loaded_max=20, tails_max=10)


class Opened:
    """A file, and any number of openers of it, on one clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1_000 * SECOND
        path.touch()
        self.db = connection.connect(str(path), durability="process", fresh=True)
        ShardFile.create(self.db)

    def open(self, limits: StoreLimits | None = None, **options: Any) -> ShardFile:
        db = connection.connect(str(self.path), durability="process")
        return ShardFile(db, 0, lambda: self.now, limits=limits, **options)

    def run(self, sql: str, *values: object) -> Any:
        return self.db.execute(sql, values).fetchall()


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "a.db")


def send(shard: ShardFile, n: int, key: bytes = KEY) -> None:
    shard.send_many([NewMessage(key, b"%d" % i) for i in range(n)])


def claim(shard: ShardFile, room: int = 10) -> tuple[int, list[tuple[bytes, list[int]]]]:
    claimed = shard.claim(ClaimRequest(room), 30 * SECOND)
    return claimed.token, claimed.groups


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
    opened.run("UPDATE mark SET features = 4")
    with pytest.raises(SchemaMismatch, match="bits 0x4"):
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
    shard.ack(token, groups)
    claim(shard, 1)
    opened.run(damage[0])
    with pytest.raises(StoreCorrupt, match=damage[1]):
        opened.open()


@pytest.mark.parametrize("damage", [
    ("UPDATE lane SET first = 99", "has first 99 and tail"),
    ("UPDATE lane SET opts = '{'", "the row of lane b'sa' is invalid"),
    ("UPDATE lane SET ids = x'00'", "the ids of lane b'sa' are invalid"),
    ("UPDATE lane SET ids = x''", "the ids of lane b'sa' are invalid"),
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
    second.ack(token, groups)  # second has not seen the claim
    with pytest.raises(LeaseLost):
        first.ack(token, groups)  # and first has not seen the ack
    assert first.totals().acks == 3


def test_a_refusal_changes_nothing_and_costs_no_rebuild(opened: Opened) -> None:
    shard = opened.open(depth_max=3)
    send(shard, 3)
    before = shard.memory.rebuilds, opened.run("SELECT * FROM journal"), opened.run("SELECT id FROM message")
    with pytest.raises(QueueFull):
        send(shard, 1)
    with pytest.raises(LeaseLost):
        shard.ack(7, [(KEY, [1])])
    assert (shard.memory.rebuilds, opened.run("SELECT * FROM journal"), opened.run("SELECT id FROM message")) == before


def test_a_transaction_is_atomic_with_the_programs_own_table(opened: Opened) -> None:
    opened.run("CREATE TABLE app (x INTEGER)")
    shard = opened.open()
    send(shard, 2)
    token, groups = claim(shard)

    def work(fails: bool) -> None:
        shard.ack(token, groups)
        shard._db.execute("INSERT INTO app VALUES (1)")
        shard.send(NewMessage(b"sb", b""))
        if fails:
            raise KeyError

    with pytest.raises(KeyError):
        shard.transact(lambda: work(True))
    assert opened.run("SELECT * FROM app") == []
    assert (shard.lane(KEY)[0], shard.totals().pending) == (2, 2)
    shard.transact(lambda: work(False))
    assert opened.run("SELECT * FROM app") == [(1,)]
    assert shard.totals().pending == 1
    with pytest.raises(LeaseLost):
        shard.transact(lambda: work(False))
    assert opened.run("SELECT * FROM app") == [(1,)]


def test_a_repeated_ack_is_recognised_also_after_a_fold(opened: Opened) -> None:
    shard = opened.open(SMALL)
    send(shard, 2)
    token, groups = claim(shard)
    shard.ack(token, groups)
    assert shard.settling.was_done(KEY, token, kinds.ACK, [1, 2])
    assert not shard.settling.was_done(KEY, token, kinds.ACK, [3])
    for n in range(40):
        send(shard, 1, b"sb%d" % n)
    assert KEY not in shard.memory.lanes
    for n in range(2):
        assert shard.look(lambda: shard.settling.was_done(KEY, token, kinds.ACK, [1, 2])), n
        send(shard, 1)  # the row is written again by a lane that does not know its last resolution
        for at in range(40):
            send(shard, 1, b"sc%d" % at)


def test_arrival_numbers_and_seqs_never_restart(opened: Opened) -> None:
    shard = opened.open(SMALL)
    seqs = []
    for _ in range(300):
        seqs.append(shard.send(NewMessage(KEY, b"")))
        token, groups = claim(shard)
        shard.ack(token, groups)
    assert seqs == list(range(1, 301))
    ((rows, newest),) = opened.run("SELECT count(*), max(id) FROM message WHERE id > 0")
    assert newest == 300
    assert rows < 150
    ((first, last),) = opened.run("SELECT min(id), max(id) FROM journal")
    assert last - first < 60 < last


def test_a_check_finds_nothing_wrong_in_a_sound_file(opened: Opened) -> None:
    assert checked(opened).check() == []


@pytest.mark.parametrize("damage", [
    ("DELETE FROM message WHERE id = 3", "message 3 of lane b'sa' has no row 3 in `message`"),
    ("UPDATE message SET seq = 7 WHERE id = 3", "message 3 of lane b'sa' has no row 3 in `message`"),
    ("DELETE FROM dead", "row 1 of `message`, seq 1 of lane b'sa', is in 0 of"),
    ("DELETE FROM gone", "row 2 of `message`, seq 2 of lane b'sa', is in 0 of"),
    ("UPDATE gone SET bits = x'0e000000000000000000000000000000' WHERE bucket = 0", "seq 3 of lane b'sa', is in 2 of"),
    ("UPDATE mark SET pending = pending + 1", "messages are unresolved, and the totals say"),
])  # fmt: skip
def test_a_check_finds_seeded_damage(opened: Opened, damage: tuple[str, str]) -> None:
    shard = checked(opened)
    opened.run(damage[0])
    assert any(damage[1] in problem for problem in shard.check()), shard.check()


def checked(opened: Opened) -> ShardFile:
    """Return a shard that has one dead, one resolved and several unresolved messages, all at rest."""
    shard = opened.open(SMALL)
    send(shard, 6)
    token, _ = claim(shard)
    shard.reject(token, [(KEY, [1])], "bad")
    shard.ack(token, [(KEY, [2])])
    for n in range(24):
        send(shard, 1, b"sb%d" % n)
    return shard


def test_a_lane_that_is_retried_does_not_keep_others_waiting(opened: Opened) -> None:
    shard = opened.open()
    for n in range(3):
        send(shard, 1, b"s%d" % n)
    order = []
    for _ in range(6):
        token, groups = claim(shard, 1)
        order.append(groups[0][0])
        shard.nack(token, groups)
    assert order == [b"s0", b"s1", b"s2"] * 2


def test_no_statement_reads_more_than_its_slice(opened: Opened) -> None:
    """The upper bound of a deleted range is found by the index, not by a scan: see the comment of `delete_range`."""
    from strictq._sql import LANE_LOG, LANE_TABLES

    for statements in (LANE_LOG, LANE_TABLES):
        for name in statements.names():
            if name == "schema":
                continue
            text = statements.__dict__[name].replace("{{", "").replace("}}", "")
            plan = " | ".join(str(row[-1]) for row in explained(opened.db, text))
            assert "SCAN" not in plan.replace("SCAN CONSTANT ROW", "").replace("SCAN mark", ""), (name, plan)


def explained(db: apsw.Connection, text: str) -> Any:
    values = [None] * 40
    n = max([text.count("?"), *(int(part[0]) for part in text.split("?")[1:] if part[:1].isdigit())])
    while True:
        try:
            return db.execute("EXPLAIN QUERY PLAN " + text, values[:n]).fetchall()
        except apsw.BindingsError:
            n -= 1
            assert n >= 0, text
