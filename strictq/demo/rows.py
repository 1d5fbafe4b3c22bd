"""A line of JSON and the key in it; what is wrong with one is said in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from strictq._errors import InvalidArgument
from strictq._keys import encode_key


class BadInput(ValueError):
    """An event cannot be used; the message says why."""


def row_of(raw: bytes, longest: int) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        BadInput: it is longer than `longest` bytes, or not a JSON object in UTF-8.
    """
    if len(raw) > longest:
        raise too_long(len(raw), longest)
    try:
        row = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as e:
        raise BadInput(f"not UTF-8 at byte {e.start + 1}") from None
    except json.JSONDecodeError as e:
        raise BadInput(f"not JSON: {e.msg} at column {e.colno}") from None
    except (ValueError, RecursionError) as e:
        raise BadInput(f"not usable JSON: {e}") from None
    if not isinstance(row, dict):
        raise BadInput(f"not a JSON object but {kind_of(row)}")
    return row


def too_long(size: int, longest: int) -> BadInput:
    """A line of so many bytes is too many."""
    return BadInput(f"{size:,} bytes are too many; a message may have {longest:,}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def value_in(row: Mapping[str, Any], field: str, what: str = "key field") -> str | int:
    """A field that must be a string or a whole number.

    Raises:
        BadInput: it is missing, or something else.
    """
    if field not in row:
        fields = ", ".join(map(repr, list(row)[:8])) or "none"
        raise BadInput(f"there is no {what} {field!r}; the row's fields: {fields}")
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadInput(f"{what} {field!r} must be a string or a whole number, not {kind_of(value)}")
    return value


def key_in(row: Mapping[str, Any], field: str) -> str | int:
    """The key of a row.

    Raises:
        BadInput: the field is missing, or cannot be a key.
    """
    key = value_in(row, field)
    try:
        encode_key(key)
    except InvalidArgument as e:
        raise BadInput(f"key field {field!r}: {e}") from None
    return key


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
