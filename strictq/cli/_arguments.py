"""Arguments that many commands take, and the queue they are about."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

import strictq
from strictq._keys import Key, encode_key
from strictq.cli._command import USAGE, Failure

WHOLE: Final = re.compile(r"[+-]?[0-9]+")


class KeyType(StrEnum):
    """How the text of a key is to be read."""

    str = "str"
    int = "int"
    bytes = "bytes"
    hex = "hex"
    base64 = "base64"


class Durability(StrEnum):
    """What a send that returned survives."""

    full = "full"
    process = "process"


QueuePath = Annotated[Path, typer.Argument(metavar="QUEUE", help="The queue's directory.")]
KeyText = Annotated[str, typer.Argument(metavar="KEY", help="The key; after -- if it begins with a dash.")]
OptionalKeyText = Annotated[str | None, typer.Argument(metavar="KEY", help="The key; after -- if it begins with a dash.")]
KeyTypeOption = Annotated[
    KeyType, typer.Option(help='How KEY is meant: 1, "1" and b"1" are three keys. hex and base64 are bytes, too.')
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; docs/reference/cli.md has the fields.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]


def key_of(text: str, kind: KeyType) -> Key:
    """The key that a text stands for.

    Raises:
        Failure: it cannot be read as that type.
        InvalidArgument: no message can have it.
    """
    try:
        key = converted(text, kind)
    except ValueError as e:
        raise Failure(f"--key-type {kind.value}: {e}", USAGE) from None
    encode_key(key)
    return key


def converted(text: str, kind: KeyType) -> Key:
    """The key that a text stands for.

    Raises:
        ValueError: it cannot be read as that type.
    """
    if kind is KeyType.str:
        return text
    if kind is KeyType.int:
        if not WHOLE.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is not a whole number")
        return int(text)
    if kind is KeyType.bytes:
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text) if kind is KeyType.hex else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"{text[:40]!r} is not {kind.value}") from None


@contextmanager
def looking(path: Path) -> Iterator[strictq.Queue]:
    """The queue, to look at: nothing is changed, and no writer waits."""
    with strictq.open(path, read_only=True) as q:
        yield q


@contextmanager
def operating(path: Path) -> Iterator[strictq.Queue]:
    """The queue, to change: it must be there."""
    with strictq.open(path, create=False) as q:
        yield q
