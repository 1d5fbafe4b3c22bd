"""Convert lines to messages: a fast path for valid lines, and explanations for invalid ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn

import orjson

from strictq import InvalidArgument, Message
from strictq._client.validate import name as short_name
from strictq._client.validate import number as finite_number
from strictq._values.keys import Key, encode_key
from strictq.cli._arguments import KeyType, converted
from strictq.cli._lines import Line, TooLong

KNOWN_KEYS_MAX: Final = 200_000
"""Number of validated keys that are cached."""
BOM: Final = b"\xef\xbb\xbf"


class FieldType(StrEnum):
    """The conversion of a key field's value to a key."""

    auto = "auto"
    str = "str"
    int = "int"
    bytes = "bytes"
    hex = "hex"
    base64 = "base64"


Plain = tuple[Key, bytes]
"""A message without options. Building a Message would take a fifth of a line's time."""
Numbered = tuple[int, Message | Plain]


class BadLine(NamedTuple):
    """A line that cannot be sent, and the reason."""

    number: int
    why: str


class LineReader:
    """Converts lines to messages.

    Attributes:
        blank: number of empty lines, which are skipped.
        kinds: the types of the keys so far.
    """

    def __init__(
        self,
        *,
        raw: bool,
        key: Key | None,
        key_field: str | None,
        key_type: FieldType,
        dedup_field: str | None,
        size_field: str | None,
        longest: int,
        options: dict[str, Any],
    ) -> None:
        self._raw = raw
        self._key = key
        self._field = key_field
        self._type = key_type
        self._dedup = dedup_field
        self._size = size_field
        self._longest = longest
        self._options = options
        self._known: dict[str | int, Key] = {}
        self.blank = 0
        self.kinds: set[str] = set()

    def read(self, lines: Sequence[Line], first: int) -> Iterator[tuple[list[Numbered], BadLine | None]]:
        """Yield runs of numbered messages. Each ends at an invalid line, the last one at the end of the lines.

        They are plain ones, or Message objects if there are options.

        Args:
            first: the number of the first line.
        """
        if self._field is not None and not self._options and self._dedup is None and self._size is None:
            yield from self._read_plain(lines, first)
            return
        run: list[Numbered] = []
        for number, line in enumerate(lines, first):
            try:
                message = self._message(line, number)
            except BadInput as e:
                yield run, BadLine(number, str(e))
                run = []
                continue
            if message is not None:
                run.append((number, message))
        yield run, None

    def _read_plain(self, lines: Sequence[Line], first: int) -> Iterator[tuple[list[Numbered], BadLine | None]]:
        """Convert lines without options, with as little work per line as possible."""
        loads, field, known, longest = orjson.loads, self._field, self._known, self._longest
        run: list[Numbered] = []
        append = run.append
        for number, line in enumerate(lines, first):
            try:
                value = loads(line)[field]  # type: ignore[arg-type]
                # True and 1.0 are found as 1, so the value's type is checked first, and only fully validated keys are cached.
                if (type(value) is str or type(value) is int) and len(line) <= longest and line[-1] != 13:  # type: ignore[arg-type,index]
                    append((number, (known[value], line)))  # type: ignore[arg-type]
                    continue
            except (ValueError, KeyError, TypeError, IndexError):
                pass
            try:
                message = self._message(line, number)
            except BadInput as e:
                yield run, BadLine(number, str(e))
                run = []
                append = run.append
                continue
            if message is not None:
                append((number, (message.key, message.body)))  # type: ignore[arg-type]
        yield run, None

    def _message(self, line: Line, number: int) -> Message | None:
        """Return the message of one line; None for a blank line.

        Raises:
            BadInput: the line cannot be sent.
        """
        if isinstance(line, TooLong):
            raise too_long(line.size, self._longest)
        if self._raw:
            if len(line) > self._longest:
                raise too_long(len(line), self._longest)
            return Message(line, key=self._key, **self._options)
        body = line.removesuffix(b"\r")
        if number == 1:
            body = body.removeprefix(BOM)
        if not body.strip():
            self.blank += 1
            return None
        row = self._row(body)
        key = self._key if self._field is None else self._key_in(row)
        own: dict[str, Any] = {}
        if self._dedup is not None:
            own["dedup_id"] = self._dedup_id(row)
        if self._size is not None:
            own["size_hint"] = size_in(row, self._size)
        return Message(body, key=key, **own, **self._options)

    def _row(self, line: bytes) -> dict[str, Any]:
        if len(line) <= self._longest:
            try:
                row = orjson.loads(line)
            except ValueError:
                pass
            else:
                # orjson returns integers of more than 64 bits as floats; the other parser keeps them.
                if type(row) is dict and type(row.get(self._field)) is not float and type(row.get(self._dedup)) is not float:
                    return row
        return row_of(line, self._longest)

    def _key_in(self, row: dict[str, Any]) -> Key:
        assert self._field is not None
        value = value_in(row, self._field)
        key = self._known.get(value)
        if key is None:
            key = self._convert(value)
            if len(self._known) >= KNOWN_KEYS_MAX:
                self._known.clear()
            self._known[value] = key
            self.kinds.add(type(key).__name__)
        return key

    def _convert(self, value: str | int) -> Key:
        """Convert a field's value to a key.

        Raises:
            BadInput: it is not a valid key.
        """
        try:
            key: Key = value
            if self._type is not FieldType.auto:
                if type(value) is int and self._type not in (FieldType.int, FieldType.str):
                    raise ValueError("the field holds a number")
                key = value if type(value) is int and self._type is FieldType.int else converted(str(value), KeyType(self._type))
            encode_key(key)
        except (InvalidArgument, ValueError) as e:
            why = e.args[0] if isinstance(e, InvalidArgument) else f"--key-type {self._type.value}: {e}"
            raise BadInput(f"key field {self._field!r}: {why}") from None
        return key

    def _dedup_id(self, row: dict[str, Any]) -> str:
        assert self._dedup is not None
        value = str(value_in(row, self._dedup, "dedup field"))
        try:
            return short_name("its value", value)
        except InvalidArgument as e:
            raise BadInput(f"dedup field {self._dedup!r}: {e}") from None


# ---------------------------------------------------------------- explanations of invalid lines


class BadInput(ValueError):
    """A line cannot be sent; the message says why."""


def row_of(raw: bytes, longest: int) -> dict[str, Any]:
    """Parse the JSON object of a line.

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
    """Return the error for a line of this size."""
    return BadInput(f"the line has {size:,} bytes; the maximum is {longest:,}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def value_in(row: Mapping[str, Any], field: str, what: str = "key field") -> str | int:
    """Return a field that must be a string or a whole number.

    Raises:
        BadInput: it is missing, or has another type.
    """
    if field not in row:
        raise _no_field(row, what, field)
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadInput(f"{what} {field!r} must be a string or a whole number, not {kind_of(value)}")
    return value


def size_in(row: Mapping[str, Any], field: str) -> float:
    """Return a field that must be a non-negative number.

    Raises:
        BadInput: it is missing, or has another type.
    """
    if field not in row:
        raise _no_field(row, "size field", field)
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"size field {field!r} must be a number, not {kind_of(value)}")
    try:
        return finite_number("its value", value) or 0.0
    except InvalidArgument as e:
        raise BadInput(f"size field {field!r}: {e}") from None


def _no_field(row: Mapping[str, Any], what: str, field: str) -> BadInput:
    fields = ", ".join(map(repr, list(row)[:8])) or "none"
    return BadInput(f"there is no {what} {field!r}; the row's fields: {fields}")


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, in words."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
