"""Values of rows, as tasks check and stage them; without Spark's session."""

from __future__ import annotations

from typing import Any

import pytest

import strictq

pa = pytest.importorskip("pyarrow")

from strictq.spark._sink_rows import OPTIONS, Layout, staged  # noqa: E402 - needs pyarrow

LAYOUT = Layout("s", OPTIONS, None, False, 100)
EMPTY: dict[str, Any] = dict.fromkeys(OPTIONS)
TYPES = {
    "key": pa.string(),
    "body": pa.binary(),
    "dedup_id": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    **dict.fromkeys(("delay", "ttl", "size_hint", "prepare_seconds", "process_seconds"), pa.float64()),
}


def rows(*given: dict[str, Any]) -> Any:
    whole = [{"key": "k", "body": b"", **EMPTY, **row} for row in given]
    return pa.RecordBatch.from_pylist(whole, schema=pa.schema(list(TYPES.items())))


def test_values_come_in_stored_form() -> None:
    given = rows({"key": "ä", "body": b"1", "delay": 1.5, "ttl": 0.001, "headers": [("a", "b")], "dedup_id": "d"}, {})
    assert staged(given, LAYOUT).to_pylist() == [
        {
            "key": "sä".encode(),
            "body": b"1",
            "dedup_id": "d",
            "delay": 1_500_000,
            "ttl": 1_000,
            "headers": '{"a": "b"}',
            **dict.fromkeys(("size_hint", "prepare_seconds", "process_seconds")),
        },
        {"key": b"sk", "body": b"", **EMPTY},
    ]


def test_the_staged_columns_are_the_same_for_every_record_batch() -> None:
    assert staged(rows({}), LAYOUT).schema == staged(rows({"delay": 1.0, "headers": [("a", "b")]}), LAYOUT).schema


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"delay": -1.0}, r"column delay, key 'bad': delay must be 0 to .* seconds, not -1"),
        ({"delay": float("nan")}, "column delay, key 'bad'"),
        ({"delay": float("inf")}, "column delay, key 'bad'"),
        ({"ttl": 0.0}, r"column ttl, key 'bad': ttl must be 0\.001 to"),
        ({"size_hint": -0.5}, "column size_hint, key 'bad'"),
        ({"process_seconds": float("nan")}, "column process_seconds, key 'bad'"),
        ({"dedup_id": ""}, "column dedup_id, key 'bad'"),
        ({"dedup_id": "a\0b"}, "column dedup_id, key 'bad'"),
        ({"headers": [("a", None)]}, "column headers, key 'bad': headers must map str to str"),
        ({"headers": [("a", "x" * 70_000)]}, "column headers, key 'bad': headers must be at most"),
        ({"body": b"x" * 101}, "column body, key 'bad': a body may have 100 bytes, this one has 101"),
    ],
)
def test_a_value_that_can_not_be_sent_names_its_column_and_key(row: dict[str, Any], match: str) -> None:
    with pytest.raises(strictq.InvalidArgument, match=match):
        staged(rows({}, {"key": "bad", **row}, {}), LAYOUT)
