"""Keys as bytes: encoding is reversible, different keys stay different, and hashes never change."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strictq import InvalidArgument
from strictq._values.hashing import hash_key
from strictq._values.keys import KEY_BYTES_MAX, KEYLESS, decode_key, encode_key

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
keys = st.one_of(texts, st.binary(min_size=1, max_size=KEY_BYTES_MAX), st.integers(-(10**300), 10**300))


@given(keys)
def test_a_key_comes_back_as_it_was(key: str | bytes | int) -> None:
    back = decode_key(encode_key(key))
    assert back == key
    assert type(back) is type(key)


@given(keys, keys)
def test_different_keys_are_stored_differently(one: str | bytes | int, two: str | bytes | int) -> None:
    same = type(one) is type(two) and one == two
    assert (encode_key(one) == encode_key(two)) is same


@given(keys)
def test_no_key_reaches_a_keyless_lane(key: str | bytes | int) -> None:
    assert not encode_key(key).startswith(KEYLESS)
    assert decode_key(KEYLESS + b"7") is None


@pytest.mark.slow
@given(st.text(min_size=1, max_size=400))
def test_a_text_is_a_key_or_refused(text: str) -> None:
    try:
        raw = encode_key(text)
    except InvalidArgument:
        assert any(0xD800 <= ord(c) < 0xE000 for c in text) or len(text.encode(errors="surrogatepass")) > KEY_BYTES_MAX
    else:
        assert raw == b"s" + text.encode()


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [
        ("x" * KEY_BYTES_MAX, "x" * (KEY_BYTES_MAX + 1)),
        ("é" * (KEY_BYTES_MAX // 2), "é" * (KEY_BYTES_MAX // 2) + "x"),
        (b"x" * KEY_BYTES_MAX, b"x" * (KEY_BYTES_MAX + 1)),
        (10**KEY_BYTES_MAX - 1, 10**KEY_BYTES_MAX),
        (-(10 ** (KEY_BYTES_MAX - 1)) + 1, -(10 ** (KEY_BYTES_MAX - 1))),
    ],
    ids=["str", "two bytes each", "bytes", "int", "negative int"],
)
def test_the_longest_key(longest: str | bytes | int, too_long: str | bytes | int) -> None:
    assert decode_key(encode_key(longest)) == longest
    with pytest.raises(InvalidArgument):
        encode_key(too_long)


def test_a_huge_int_is_refused_before_it_is_written_out() -> None:
    with pytest.raises(InvalidArgument):
        encode_key(1 << 10_000_000)


def test_the_interpreters_limit_on_digits_does_not_show() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        for key in (10**600, -(10**600), 10**639):
            assert decode_key(encode_key(key)) == key
    finally:
        sys.set_int_max_str_digits(before)


@given(st.binary(max_size=100))
def test_a_hash_has_64_bits(raw: bytes) -> None:
    assert 0 <= hash_key(raw) < 1 << 64
