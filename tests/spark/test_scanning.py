"""Tables, read column by column and row by row, beside what was sent and what lies in the files. No session is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strictq
from strictq import InvalidArgument, Message, Queue, QueueConfig, StoreCorrupt
from strictq._store.api import ListedColumns, PackedColumns
from strictq._values.keys import Key, encode_key
from strictq.spark._arrow import SIZE, Builder, arrow_schema
from strictq.spark._scanning import Scan
from strictq.spark._table_columns import key_type, read_schema
from strictq.testing import FakeClock
from tests.support.running import PATIENCE_SECONDS
from tests.support.scans import small_steps, stored

EVERYTHING = {"key", "id", "sent_at", "attempts", "headers", "body"}

KEYS: st.SearchStrategy[Key | None] = st.one_of(
    st.none(), st.sampled_from(["a", "b", "\0", "ü", "1", b"1", b"\x00\xff", 1, -(2**63)]), st.integers(0, 40)
)
BODIES = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"", b"\0", b"\0" * 7, b",\n'", b"\xff\xfe", b"x" * 800, b"\0" * 801])
)
HEADERS = st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=2))
SENT = st.tuples(KEYS, BODIES, HEADERS, st.sampled_from([0.0, 0.0, 0.0, 50.0]))
PLAIN = st.tuples(KEYS, BODIES.filter(lambda b: len(b) <= 800), st.none(), st.just(0.0))


def read(
    q: Queue,
    *,
    dead: bool = False,
    kind: str = "stored",
    per_task: int = 10,
    wanted: Sequence[str] | None = None,
    text: bool = False,
) -> list[pa.RecordBatch]:
    """A table, as the tasks of a job read it: all columns, or those that are wanted, with bodies as text or not."""
    schema = arrow_schema(read_schema(key_type(kind), dead=dead))
    if wanted is not None:
        schema = pa.schema([schema.field(name) for name in wanted])
    if text:
        schema = schema.set(schema.get_field_index("body"), pa.field("body", pa.string()))
    batches: list[pa.RecordBatch] = []
    for part in q._storage.bulk.plan(dead=dead, messages=per_task):
        batches += Scan(part.shard, part.dead, key_type(kind), part.place).batches(q, schema)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return batches


def shown(batches: list[pa.RecordBatch]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """By shard and arrival: every other column, times in microseconds."""
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    for batch in batches:
        columns = {n: batch.column(n).cast("int64") if n.endswith("_at") else batch.column(n) for n in batch.schema.names}
        for row in pa.table(columns).to_pylist():
            place = row.pop("shard"), row.pop("id")
            assert place not in found
            found[place] = tuple(row.values())
    return found


def steps(q: Queue, wanted: Collection[str] = EVERYTHING) -> list[PackedColumns | ListedColumns]:
    """What the queue gives of its only shard, in one task."""
    (part,) = q._storage.bulk.plan(dead=False, messages=1000)
    return list(q._storage.bulk.read(part, wanted, SIZE))


def in_the_files(q: Queue, *, dead: bool) -> dict[tuple[int, int], tuple[Any, ...]]:
    return {(shard, arrival): columns for shard, arrival, columns in stored(q, dead=dead)}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(SENT, PLAIN), max_size=40), st.lists(PLAIN, max_size=40), st.integers(1, 9), st.integers(1, 30),
    st.lists(st.sampled_from(["ack", "nack", "reject", "hold", "leave"]), max_size=12),
)  # fmt: skip
def test_columns_have_what_the_files_have(first: list[Any], second: list[Any], step: int, per_task: int, ends: list[str]) -> None:
    config = QueueConfig(keyless="round_robin", keyless_lanes=3, max_attempts=None)
    with pytest.MonkeyPatch.context() as patch, strictq.open(":memory:", shards=2, clock=FakeClock(), config=config) as q:
        small_steps(patch, step)
        sent: dict[tuple[Key | None, type, int, int], tuple[bytes, Any]] = {}
        for key, body, headers, delay in [*first, *second]:
            receipt = q.send(body, key, headers=headers, delay=delay)
            sent[receipt.key, type(receipt.key), receipt.seq, receipt.id] = body, headers
        for end in ends:
            for d in q.receive(1):
                if end == "ack":
                    d.ack()
                elif end == "nack":
                    d.nack(delay=7.0)
                elif end == "reject":
                    d.reject("no: \0 ü")
                elif end == "hold" and d.key is not None:
                    q.hold(d.key, "why")
        pending, dead = shown(read(q, per_task=per_task)), shown(read(q, dead=True, per_task=per_task))
        assert pending == in_the_files(q, dead=False)
        assert dead == in_the_files(q, dead=True)
        told = {(None if k is None else encode_key(k), s, i): v for (k, _, s, i), v in sent.items() if k is not None}
        for (_, arrival), (key, seq, body, headers, *_) in [*pending.items(), *dead.items()]:
            if key is not None:
                assert (body, dict(headers) if headers else None) == told[key, seq, arrival]


@pytest.mark.parametrize(
    ("kind", "keys"), [("string", ["a", "ü", "\0"]), ("binary", [b"\0", b"\xff"]), ("int", [0, -7, 2**63 - 1])]
)
def test_plain_messages_are_packed_by_sqlite(kind: str, keys: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    small_steps(monkeypatch, 3)
    with strictq.open(":memory:") as q:
        receipts = q.send_many([Message(b"\0%d" % n, key=keys[n % len(keys)]) for n in range(30)])
        assert all(isinstance(s, PackedColumns) for s in steps(q))
        rows = [row for batch in read(q, kind=kind) for row in batch.to_pylist()]
        for key in keys:
            sent = [(r.seq, b"\0%d" % n, r.id) for n, r in enumerate(receipts) if r.key == key]
            assert [(row["seq"], row["body"], row["id"]) for row in rows if row["key"] == key] == sent
        assert len(rows) == len(receipts)


def test_rows_come_where_columns_do_not_fit_and_columns_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    small_steps(monkeypatch, 3)
    with strictq.open(":memory:") as q:
        for n in range(40):
            q.send(b"%d" % n, "k", headers={"h": "1"} if n < 5 else None)
        q.send(b"x" * (15 << 20), "large")
        kinds = [isinstance(s, PackedColumns) for s in steps(q)]
        assert kinds[0] is False
        assert kinds[-1] is True
        assert [len(row[2]) for row in shown(read(q)).values()][-1] == 15 << 20


@pytest.mark.parametrize(
    "change",
    [
        {"depths": [2, 2]}, {"seqs": "2,1,1"}, {"seqs": "1,1,1"}, {"sizes": "1,1,2"}, {"bodies": b"ab"}, {"keys": [b"sa"]},
    ],
)  # fmt: skip
def test_columns_that_do_not_belong_together_are_refused(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "shard": 3, "messages": 3, "keys": [b"sa", b"sb"], "depths": [2, 1], "seqs": f"1,{2**62},1",
        "ids": f"5,{2**62 + 1},7", "sent_at": "1,2,3", "sizes": "1,0,2", "bodies": b"abc",
    }  # fmt: skip
    schema = arrow_schema(read_schema(key_type(None)))
    builder = Builder(schema, "string", started=0)
    good = builder.packed(PackedColumns(**given), 10, schema)
    good.validate(full=True)
    assert (good.column("key").to_pylist(), good.column("seq").to_pylist()) == (["a", "a", "b"], [1, 2**62, 1])
    assert (good.column("body").to_pylist(), good.column("id").to_pylist()) == ([b"a", b"", b"bc"], [5, 2**62 + 1, 7])
    assert good.column("enqueued_at").cast("int64").to_pylist() == [11, 12, 13]
    with pytest.raises(StoreCorrupt, match="do not belong together"):
        builder.packed(PackedColumns(**given | change), 10, schema)


# ---- some columns


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(SENT, PLAIN), max_size=40), st.integers(1, 9), st.integers(1, 30),
    st.lists(st.sampled_from(read_schema("stored").names), min_size=1, unique=True), st.booleans(),
)  # fmt: skip
def test_some_columns_are_those_of_all(sent: list[Any], step: int, per_task: int, wanted: list[str], dead: bool) -> None:
    config = QueueConfig(keyless="round_robin", keyless_lanes=3, max_attempts=None)
    with pytest.MonkeyPatch.context() as patch, strictq.open(":memory:", shards=2, clock=FakeClock(), config=config) as q:
        small_steps(patch, step)
        for key, body, headers, delay in sent:
            q.send(body, key, headers=headers, delay=delay)
        for number in range(12):
            for d in q.receive(1):
                if number % 2:
                    d.nack(delay=7.0)
                else:
                    d.reject("no")
        every, some = read(q, dead=dead, per_task=per_task), read(q, dead=dead, per_task=per_task, wanted=wanted)
        assert sum(b.num_rows for b in every) == sum(b.num_rows for b in some)
        if every:
            assert pa.Table.from_batches(every).select(wanted).equals(pa.Table.from_batches(some))


def test_what_is_not_wanted_is_not_read() -> None:
    with strictq.open(":memory:") as q:
        q.send(b"x" * 5000, "apart", headers={"a": "b"})
        q.receive()[0].nack()

        def step(*wanted: str) -> PackedColumns | ListedColumns:
            (found,) = steps(q, wanted)
            return found

        for name in ("headers", "attempts"):
            assert not isinstance(step(name), PackedColumns), "it does not fit, and is wanted"
        found = step("id", "key")
        assert isinstance(found, PackedColumns)
        assert (found.messages, found.keys, found.ids, found.seqs) == (1, [b"sapart"], "1", "1")
        assert (found.sent_at, found.sizes, found.bodies) == ("", "", b"")
        found = step("sent_at")
        assert isinstance(found, PackedColumns)
        assert (found.keys, found.ids) == ([], "")


@pytest.mark.parametrize("headers", [None, {"as": "rows"}])
def test_bodies_as_text(headers: dict[str, str] | None) -> None:
    with strictq.open(":memory:") as q:
        for body in ("", "ü\0", "x" * 5000, "c"):
            q.send(body.encode(), "k", headers=headers)
        texts = [body for batch in read(q, wanted=["body", "headers"], text=True) for body in batch.column("body").to_pylist()]
        assert texts == ["", "ü\0", "x" * 5000, "c"]
        q.send(b"ok \xff", "k", headers=headers)
        with pytest.raises(InvalidArgument, match=r"a body is not UTF-8: b'ok \\xff'.*BINARY"):
            read(q, wanted=["body"], text=True)
        q.reject("k", 5, "no text")
        with pytest.raises(InvalidArgument, match="a body is not UTF-8"):
            read(q, dead=True, wanted=["body"], text=True)


@pytest.mark.parametrize(("kind", "keys"), [("string", ["a", "ü\0"]), ("binary", [b"\0", b"\xff"]), ("int", [0, -7, -(2**63)])])
def test_keys_come_with_those_that_are_none(kind: str, keys: list[Any]) -> None:
    n = len(keys) + 1
    schema = arrow_schema(read_schema(key_type(kind))).field("key")
    packed = PackedColumns(
        0, n, [*map(encode_key, keys), b"n1!2"], [1] * n, ",".join(["1"] * n), "", "", "", b""
    )  # fmt: skip
    found = Builder(pa.schema([schema]), key_type(kind)).packed(packed, 0, pa.schema([schema]))
    found.validate(full=True)
    assert found.column("key").to_pylist() == [*keys, None]


ALONE = """
import sys
import strictq
from strictq.spark._table_columns import read_schema
from strictq.spark.batch import BatchReader
path = sys.argv[1]
with strictq.open(path) as q:
    q.send(b"body", "k")
reader = BatchReader({"path": path}, read_schema("string"))
print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)), "pandas" in sys.modules)
"""


def test_reading_columns_does_not_import_pandas(queue_path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, queue_path], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout.split() == ["1", "False"], "it would take each of Spark's processes 0.2 s"
