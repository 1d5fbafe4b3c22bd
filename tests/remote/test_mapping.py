"""Keys, bodies and headers as SQS takes them, and back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strictq._values.keys import Key, encode_key, keyless_lane
from strictq.remote import mapping
from strictq.remote.mapping import Decoded, SourcePosition, Undecodable, encode, group_of, received
from strictq.server.sqs import rules

KEYS: list[Key] = [
    "customer-42", "a", "x" * 128, "x" * 129, "~a", "~.", "~#", "é", "a b", "\n", "\0", "\ud7ff", "1", "-1", 1, -1, 0, 10**300,
    b"1", b"\0", bytes(range(256)), b"\xff" * 1024, "x" * 1024, "日本" * 100,
]  # fmt: skip
POSITION = SourcePosition("queue-1", 17, 1_732_650_000_000_001)


def returned(entry: dict[str, Any], *, sent: str = "1732650000000") -> dict[str, Any]:
    """A message as a receive answers what was sent."""
    system = {"SentTimestamp": sent}
    if "MessageGroupId" in entry:
        system["MessageGroupId"] = entry["MessageGroupId"]
    return {"Body": entry["MessageBody"], "Attributes": system, "MessageAttributes": entry.get("MessageAttributes")}


def there_and_back(
    raw: bytes, body: bytes = b"x", headers: dict[str, str] | None = None, *, fifo: bool = True, **more: Any
) -> Decoded:
    made = encode(raw, body, headers, "once", fifo=fifo, **more)
    entry = made.entry(fifo=fifo)
    queue = rules.DEFAULTS | (rules.FIFO_DEFAULTS if fifo else {})
    content = rules.content(entry, queue, fifo=fifo)  # as strict as SQS
    counted = made.entry(fifo=fifo, maybe_duplicate="position" in more)
    attributes = rules._check_attributes(counted["MessageAttributes"]) if "MessageAttributes" in counted else 0
    assert made.size == len(content.body) + attributes
    return received(returned(entry))


@pytest.mark.parametrize("fifo", [True, False])
def test_keys_of_all_types_come_back(fifo: bool) -> None:
    groups = set()
    for key in KEYS:
        raw = encode_key(key)
        got = there_and_back(raw, fifo=fifo).key
        assert (got, type(got)) == (key, type(key))
        groups.add(group_of(raw))
    assert len(groups) == len(KEYS)


def test_a_text_that_is_the_group_of_another_key_has_one_of_its_own() -> None:
    groups = [*(group_of(encode_key(key)) for key in KEYS), group_of(keyless_lane(3), "once")]
    made = [group for group in groups if group.startswith("~")]
    assert {group[:2] for group in made} >= {"~#", "~."}
    assert not {group_of(encode_key(group)) for group in made} & set(groups)


def test_a_plain_key_is_its_group_without_an_attribute() -> None:
    made = encode(encode_key("customer-42"), b"x", None, "once", fifo=True)
    assert (made.group, made.body, made.attributes) == ("customer-42", "x", {})


def test_a_keyless_message_has_a_group_of_its_own() -> None:
    first, second = (encode(keyless_lane(3), b"x", None, once, fifo=True) for once in ("a", "b"))
    assert first.group != second.group
    assert there_and_back(keyless_lane(3)).key is None
    assert there_and_back(b"n3!7", fifo=False).key is None  # one that was parked


def test_every_byte_as_a_body() -> None:
    for value in range(256):
        for body in (bytes([value]), b"a%cb" % value):
            assert there_and_back(b"sk", body).body == body
    for body in (b"", b"-", b"=", b"\r\n", bytes(range(256)), "é😀".encode(), b"\xef\xbf\xbe", "\ufffd".encode()):
        assert there_and_back(b"sk", body).body == body
    assert encode(b"sk", '{"a": "é"}'.encode(), None, "", fifo=True).attributes == {}


def test_headers_and_the_place_in_the_source_come_back() -> None:
    headers = {"a": "1", "ü\0": "\n\ud7ff", "strictq-seq": "no", "": ""}
    got = there_and_back(b"sk", b"x", headers, position=POSITION, ttl=1.5)
    assert got == Decoded("k", b"x", headers, "queue-1", 17, "1732650000.000001", 1732650001.5, False)
    entry = encode(b"sk", b"x", None, "o", fifo=True, position=POSITION).entry(fifo=True, maybe_duplicate=True)
    assert received(returned(entry)).maybe_duplicate


def test_another_programs_message_is_taken_as_it_is() -> None:
    message = {
        "Body": "hello", "Attributes": {"MessageGroupId": "~g"},
        "MessageAttributes": {
            "trace": {"DataType": "String", "StringValue": "t"}, "n": {"DataType": "Number", "StringValue": "1"},
            "b": {"DataType": "Binary", "BinaryValue": b"\0"},
        },
    }  # fmt: skip
    assert received(message) == Decoded("~g", b"hello", {"trace": "t", "n": "1"})
    assert received({"Body": "x"}) == Decoded(None, b"x", {})


KEY = mapping._packed(encode_key("a b"))
HOSTILE = [
    ({"strictq-key": "?"}, "base64"),
    ({"strictq-key": "é"}, "base64"),
    ({"strictq-key": ""}, "not a key"),
    ({"strictq-key": mapping._packed(b"i01")}, "not a key"),
    ({"strictq-key": mapping._packed(b"s\xff")}, "not a key"),
    ({"strictq-key": mapping._packed(b"zx")}, "not a key"),
    ({"strictq-key": mapping._packed(b"s")}, "not a key"),
    ({"strictq-key": KEY}, "not the key of the message's group"),
    ({"strictq-key": mapping._packed(b"n0")}, "that of a key"),
    ({"strictq-encoding": "gzip"}, "no known encoding"),
    ({"strictq-encoding": "base64"}, "not base64"),
    ({"strictq-headers": "["}, "JSON object"),
    ({"strictq-headers": "[" * 100_000}, "JSON object"),
    ({"strictq-headers": "[]"}, "JSON object"),
    ({"strictq-headers": '{"a": 1}'}, "JSON object"),
    ({"strictq-headers": '{"a": "\\ud800"}'}, "surrogate"),
    ({"strictq-seq": "NaN"}, "not a number"),
    ({"strictq-seq": "9" * 5000}, "not a number"),
    ({"strictq-sent-at": "x"}, "not a number"),
    ({"strictq-ttl": "1e999"}, "not a number"),
]


@pytest.mark.parametrize(("attributes", "why"), HOSTILE)
def test_hostile_attributes_are_refused(attributes: dict[str, str], why: str) -> None:
    given = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    message = {"Body": "x?", "Attributes": {"MessageGroupId": "g", "SentTimestamp": "1"}, "MessageAttributes": given}
    with pytest.raises(Undecodable, match=re.escape(why)):
        received(message)


def test_the_dedup_id_names_the_content() -> None:
    """A queue that lost its newest commits issues a position again, for another message."""
    first = mapping.content_id(b"sk", POSITION, b"x")
    assert first == mapping.content_id(b"sk", POSITION, b"x")
    others = [
        mapping.content_id(b"sk", POSITION, b"y"),
        mapping.content_id(b"bk", POSITION, b"x"),
        *(
            mapping.content_id(b"sk", POSITION._replace(**change), b"x")  # type: ignore[arg-type]
            for change in ({"source": "queue-2"}, {"seq": 18}, {"sent_at": POSITION.sent_at + 1})
        ),
    ]
    assert len({first, *others}) == 6
    # Parking a keyless message gives it a lane of its own, and the message stays the same.
    assert mapping.content_id(b"n3", POSITION, b"x") == mapping.content_id(b"n3!17", POSITION, b"x")


def test_a_programs_dedup_id_is_accepted_by_sqs() -> None:
    given = ["a", "x" * 128, "x" * 129, "a b", "é", "~#a", "~a", mapping.dedup_id_of("a b")]
    made = [mapping.dedup_id_of(text) for text in given]
    assert made[:2] == given[:2]
    assert len(set(made)) == len(given)
    for each in made:
        rules.valid_id(each, "MessageDeduplicationId")
