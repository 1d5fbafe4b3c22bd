"""Options, and messages as Arrow batches: a session is needed for texts of schemas alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strictq
from strictq import InvalidArgument, Queue, StoreCorrupt
from strictq._store.api import ListedColumns, PackedColumns
from strictq._values.keys import Key, encode_key
from strictq.spark._arrow import Builder, arrow_schema, encoder, pack, unpack
from strictq.spark._options import BatchOptions, StreamOptions
from strictq.spark._recorded_batches import Holder, read_block
from strictq.spark._table_columns import key_type, read_schema
from strictq.testing import FakeClock
from tests.support.scans import small_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def builder(kind: str = "string") -> Builder:
    return Builder(arrow_schema(read_schema(key_type(kind))), kind)


def listed(key: bytes, bodies: list[bytes], headers: str | None = None, attempts: int = 0, *, shard: int = 4) -> ListedColumns:
    """Messages of one key, the first with these headers and attempts, as a queue gives them."""
    n = len(bodies)
    seqs = list(range(1, n + 1))
    return ListedColumns(
        shard, True, [key], [n], seqs, [100 + seq for seq in seqs], [1_000_000 * seq for seq in seqs],
        [attempts, *[0] * (n - 1)], [headers, *[None] * (n - 1)], bodies, [],
    )  # fmt: skip


@pytest.fixture(scope="module")
def ddl(spark: SparkSession) -> Callable[[str], StructType]:
    """A schema from its text, which Spark's own parser reads."""
    from pyspark.sql.types import StructType

    assert spark  # it has the parser
    return StructType.fromDDL


TABLE = {"path": "q"}
GIVEN = TABLE | {"consumer": "etl"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger must be a whole number from 1 to 1,000,000, not '0'"),
        ({"maxMessagesPerTrigger": "abc"}, "maxMessagesPerTrigger must be a whole number from 1 to 1,000,000, not 'abc'"),
        ({"maxMessagesPerTrigger": "1.5"}, "not '1.5'"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be"),
        ({"keepBatches": "0"}, "keepBatches must be a whole number from 1"),
        ({"messagesPerPartition": "-1"}, "messagesPerPartition must be"),
        ({"consumerWaitSeconds": "x"}, "consumerWaitSeconds must be a whole number from 0"),
        ({"keyType": "uuid"}, "keyType must be one of"),
        ({"consumer": ""}, "the option consumer is missing"),
        ({"consumer": "x" * 257}, "the option consumer must have 1 to 256 characters"),
        ({"path": ""}, "the option path is missing"),
        ({"path": "a\0b"}, "the option path has a NUL character"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        StreamOptions.of(GIVEN | options, read_schema(key_type("string")))


def test_options_have_defaults() -> None:
    options = StreamOptions.of(GIVEN, read_schema(key_type("string")))
    assert (options.messages_max, options.keep, options.key_type) == (100_000, 100, "string")
    assert options.path.startswith("/")


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("n BIGINT", {}, "of its own, and n is none of them: key, seq, body, headers, enqueued_at, attempt, shard, id .*omit"),
        ("KEY STRING", {}, "KEY is none of them"),
        ("key STRING, kind STRING", {}, "kind is none of them: key"),
        ("", {}, "the schema has no columns .*omit .schema"),
        ("key STRING, key STRING", {}, "the column key twice"),
        ("seq INT", {}, "seq is BIGINT, not INT .*CAST it"),
        ("key INT", {}, "key is STRING, not INT .*STRING, BINARY or BIGINT"),
        ("key BIGINT", {"keyType": "string"}, "key is STRING, not BIGINT"),
        ("key STRING", {"keyType": "stored"}, "key is BINARY, not STRING"),
        ("key STRING COLLATE UTF8_LCASE", {}, "not STRING COLLATE UTF8_LCASE"),
        ("body STRING COLLATE UTF8_LCASE", {}, "body is BINARY, not STRING COLLATE"),
        ("headers STRING", {}, "headers is MAP<STRING,STRING>, not STRING"),
        ("enqueued_at TIMESTAMP_NTZ", {}, "enqueued_at is TIMESTAMP, not TIMESTAMP_NTZ"),
        ("key STRING NOT NULL", {}, "the column key may be NULL"),
    ],
)  # fmt: skip
def test_a_schema_that_is_no_choice_of_columns_is_refused(
    schema: str, options: dict[str, str], message: str, ddl: Callable[[str], StructType]
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        StreamOptions.of(GIVEN | options, ddl(schema))
    with pytest.raises(InvalidArgument, match=message):
        BatchOptions.of(TABLE | options, ddl(schema))


@pytest.mark.parametrize(
    ("schema", "options", "kind"),
    [
        ("body BINARY, key STRING", {}, "string"), ("key BINARY", {}, "binary"), ("key BIGINT, seq BIGINT", {}, "int"),
        ("key BINARY", {"keyType": "stored"}, "stored"), ("key BINARY", {"keyType": "binary"}, "binary"),
        ("seq BIGINT", {"keyType": "int"}, "int"), ("seq BIGINT NOT NULL, headers MAP<STRING,STRING>", {"keyType": "int"}, "int"),
    ],
)  # fmt: skip
def test_a_schema_says_what_the_keys_are(
    schema: str, options: dict[str, str], kind: str, ddl: Callable[[str], StructType]
) -> None:
    assert StreamOptions.of(GIVEN | options, ddl(schema)).key_type == kind
    assert BatchOptions.of(TABLE | options, ddl(schema)).key_type == kind


def test_keys_that_a_table_does_not_read_may_be_any_and_a_stream_records_them(ddl: Callable[[str], StructType]) -> None:
    assert BatchOptions.of(TABLE, ddl("body STRING")).key_type == "stored"
    assert StreamOptions.of(GIVEN, ddl("body STRING")).key_type == "string"


def test_columns_of_dead_letters_and_of_the_history(ddl: Callable[[str], StructType]) -> None:
    BatchOptions.of(TABLE | {"state": "dead"}, ddl("kind STRING, died_at TIMESTAMP, body STRING"))
    BatchOptions.of(TABLE | {"state": "history"}, ddl("key STRING, key_type STRING, outcome STRING, attempts INT, body STRING"))
    for asked, message in [
        ("key BINARY", "key is STRING, not BINARY"),
        ("attempt INT", "attempt is none of them: shard, n, key"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            BatchOptions.of(TABLE | {"state": "history"}, ddl(asked))


@pytest.mark.parametrize(
    ("kind", "key", "shown"),
    [
        ("string", "ü", "ü"), ("binary", b"\x00\xff", b"\x00\xff"), ("int", -7, -7), ("int", 2**63 - 1, 2**63 - 1),
        ("stored", "a", b"sa"), ("stored", -7, b"i-7"), ("stored", b"a", b"ba"),
    ],
)  # fmt: skip
def test_key_types(kind: str, key: Key, shown: object) -> None:
    assert builder(kind).key(encode_key(key)) == shown
    assert builder(kind).key(b"n3") is None


@pytest.mark.parametrize(("kind", "key"), [("string", 7), ("string", b"a"), ("binary", "a"), ("int", "7"), ("int", 2**63)])
def test_a_key_that_does_not_fit_says_what_does(kind: str, key: Key) -> None:
    with pytest.raises(InvalidArgument, match=f"does not fit keyType={kind}.*or to stored"):
        builder(kind).key(encode_key(key))


def test_a_batch_comes_back_as_it_was_packed() -> None:
    batch = builder().listed(listed(b"sk", [b"a", b"", b"\xff"], '{"h": "1"}', 2), 500)
    back = unpack(pack(batch), arrow_schema(read_schema(key_type("string"))), [102])
    assert back.to_pydict() | {"enqueued_at": back.column("enqueued_at").cast("int64").to_pylist()} == {
        "key": ["k", "k"], "seq": [1, 3], "body": [b"a", b"\xff"], "headers": [[("h", "1")], None], "attempt": [3, 1],
        "enqueued_at": [1_000_500, 3_000_500], "shard": [4, 4], "id": [101, 103],
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match="another keyType"):
        unpack(pack(batch), arrow_schema(read_schema(key_type("int"))), [])


def test_a_query_takes_what_it_wants_of_a_block(ddl: Callable[[str], StructType]) -> None:
    batch = builder().listed(listed(b"sk", [b"a", b"", "ü".encode()], '{"h": "1"}', 2), 500)
    for schema in ("body STRING, key STRING", "headers MAP<STRING, STRING>, body STRING NOT NULL", "seq BIGINT"):
        wanted = arrow_schema(ddl(schema))
        taken = unpack(pack(batch), wanted, [102])
        taken.validate(full=True)
        assert taken.schema.equals(wanted)
        assert taken.num_rows == 2
    assert unpack(pack(batch), arrow_schema(ddl("body STRING, seq BIGINT")), []).to_pydict() == {
        "body": ["a", "", "ü"], "seq": [1, 2, 3],
    }  # fmt: skip
    batch = builder("int").listed(listed(b"i7", [b"\xff"]), 500)
    assert unpack(pack(batch), arrow_schema(ddl("seq BIGINT")), []).to_pydict() == {"seq": [1]}, "whatever the keys are"
    with pytest.raises(InvalidArgument, match="a body is not UTF-8"):
        unpack(pack(batch), arrow_schema(ddl("body STRING")), [])


def handed(q: Queue, *, packed: bool) -> pa.Table:
    """What a recorded batch of everything has recorded, in order."""
    b = builder()
    h = Holder(q, "packed" if packed else "rows", encoder(b, lambda: q._storage.skew), packed=packed)
    h.attach()
    assert h.take(0) == 1
    blocks = [read_block(q, h.name, 1, part.shard, part.part) for part in h.parts(1)]
    assert [unpack(block, b.schema, ()).num_rows for block in blocks] == [part.messages for part in h.parts(1)]
    h.close()
    q.release_consumer(h.name)
    return pa.Table.from_batches([unpack(block, b.schema, ()) for block in blocks])


def test_a_recorded_batch_is_the_same_from_columns_and_from_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 5)
    with strictq.open(":memory:", clock=FakeClock()) as q:
        for n in range(60):
            q.send(bytes([n]) * (n % 4), f"k{n % 3}" if n % 5 else f"single-{n}")
        q.send(b"\xff\0", "with headers", headers={"h": "1"})
        packed, rows = handed(q, packed=True), handed(q, packed=False)
    assert packed.num_rows == 61
    order = [("key", "ascending"), ("seq", "ascending")]
    assert packed.sort_by(order) == rows.sort_by(order)
    for key in ("k0", "k1", "k2"):
        seqs = packed.filter(pc.equal(packed.column("key"), key)).column("seq").to_pylist()
        assert seqs == sorted(seqs)


@pytest.mark.parametrize(
    "torn",
    [
        {"seqs": "2,1,3"}, {"seqs": "1,1,3"}, {"depths": [4]}, {"bodies": b"abcd"}, {"bodies": b"ab"},
    ],
)  # fmt: skip
def test_columns_of_a_lane_that_do_not_belong_together_are_damage(torn: dict[str, Any]) -> None:
    whole = PackedColumns(0, 3, [encode_key("a")], [3], "1,2,3", "101,102,103", "1,2,3", "1,1,1", b"abc")
    b = builder()
    assert b.packed(whole, 0, b.schema).column("body").to_pylist() == [b"a", b"b", b"c"]
    with pytest.raises(StoreCorrupt, match="do not belong together"):
        b.packed(whole._replace(**torn), 0, b.schema)
