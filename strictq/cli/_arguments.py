"""Arguments shared by many commands, and helpers that open the queue."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq import StrictqError
from strictq._values import hints
from strictq._values.config import FOREVER_SECONDS
from strictq._values.keys import Key, encode_key
from strictq.cli._command import USAGE, Failure, tell
from strictq.cli._words import shown_key
from strictq.remote.url import is_url

WHOLE: Final = re.compile(r"[+-]?[0-9]+")


class KeyType(StrEnum):
    """The type as which the text of a key is read."""

    str = "str"
    int = "int"
    bytes = "bytes"
    hex = "hex"
    base64 = "base64"


class Durability(StrEnum):
    """The failures that a completed send survives."""

    full = "full"
    process = "process"


class Seconds(click.FloatRange):
    """A finite duration in seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert as click does, and also refuse values that are not finite or too large."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        if seconds > FOREVER_SECONDS:
            self.fail(f"{value} seconds are more than {FOREVER_SECONDS:,.10g}.", param, ctx)
        return seconds


class StoredText(click.types.StringParamType):
    """A text to store. It must be valid UTF-8, because the library would replace invalid characters."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Convert as click does, and refuse a text that is not valid UTF-8."""
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("the text is not valid UTF-8.", param, ctx)
        return text


class LocalPath(click.Path):
    """A path of this machine, as a Path."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, and refuse a URL, whose queue would be looked for in this directory."""
        if is_url(value):
            # The URL is not in the message, because it may contain a password.
            why = "a path is needed, not a URL: this command uses files of this machine."
            why += " URLs are for send, stats, work, run and forward --to."
            self.fail(why, param, ctx)
        return super().convert(value, param, ctx)


class Place(click.ParamType[Path | str]):
    """The directory of a queue, as a Path; or the URL of one behind an endpoint, as text."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Leave a URL as it is."""
        return value if is_url(value) else Path(PATH.convert(value, param, ctx))


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH: Final = LocalPath(path_type=Path)
PLACE: Final = Place()
KEY_HELP: Final = "The key. If it starts with a dash, write it after --."

queue_argument: Final[Decorator] = click.argument("queue", type=PATH, metavar="QUEUE", help="The queue's directory.")
place_argument: Final[Decorator] = click.argument(
    "queue",
    type=PLACE,
    metavar="QUEUE",
    help="The queue's directory, or the URL of a queue behind an SQS-compatible endpoint: sqs+http://HOST:PORT/queue/NAME.",
)
key_argument: Final[Decorator] = click.argument("key", metavar="KEY", help=KEY_HELP)
optional_key_argument: Final[Decorator] = click.argument("key", required=False, metavar="[KEY]", help=KEY_HELP)
key_type_option: Final[Decorator] = click.option(
    "--key-type",
    type=click.Choice(KeyType),
    default=KeyType.str,
    help='The type of KEY: 1, "1" and b"1" are three different keys. hex and base64 decode to bytes.',
)


consumer_option: Final[Decorator] = click.option("--consumer", metavar="NAME", help="The consumer name, shown by explain.")
drain_option: Final[Decorator] = click.option(
    "--drain", is_flag=True, help="Exit when no message is ready. Delayed and deferred messages remain."
)


def grace_option(running: str) -> Decorator:
    text = f"On Ctrl-C or SIGTERM: wait at most this many seconds for running {running}. Default: no limit."
    return click.option("--grace", type=Seconds(min=0.0), help=text)


def no_breaker_option(failing: str) -> Decorator:
    """Return a --no-breaker option for a worker of these."""
    text = f"Turn off the circuit breaker, which pauses the worker while most {failing} fail. Implied by --drain."
    return click.option("--no-breaker", is_flag=True, help=text)


def open_place(place: Path | str) -> AbstractContextManager[strictq.Queue | strictq.RemoteQueue]:
    """Open a queue that exists, in a directory or behind an endpoint.

    Raises:
        StrictqError: it does not exist, or can't be opened.
    """
    return strictq.open(place, create=False) if isinstance(place, Path) else strictq.connect(place)


def limit_option(default: int) -> Decorator:
    return click.option("--limit", "-n", type=click.IntRange(1, 100_000), default=default, help="Show at most this many.")


def durability_option(what: str, default: Durability | None = None) -> Decorator:
    """Return a --durability option."""
    return click.option("--durability", type=click.Choice(Durability), default=default, help=what)


full_option: Final = durability_option("What a completed send survives. full: a power cut. process: kill -9.", Durability.full)


def id_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --id and --shard, which identify a keyless message by its receipt."""
    shard = click.option("--shard", type=click.IntRange(min=0), metavar="N", help="With --id: the receipt's shard.")
    number = click.option(
        "--id", "arrival", type=click.IntRange(min=1), help="Instead of KEY: a keyless message, by its receipt's id."
    )
    return number(shard(function))


def receipt_of(q: strictq.Queue, arrival: int, shard: int | None) -> strictq.Receipt:
    """Return the receipt of a keyless message, with the fields that the queue needs.

    Raises:
        Failure: its shard is missing or does not exist.
    """
    if shard is None and q.shards > 1:
        raise Failure("ids are per shard; give the shard with --shard", USAGE, "the receipt has the shard's number")
    if shard is not None and shard >= q.shards:
        raise Failure(f"there is no shard {shard}; the last one is {q.shards - 1}", USAGE)
    return strictq.Receipt(None, 0, arrival, shard=shard or 0)


json_option: Final[Decorator] = click.option(
    "as_json", "--json", is_flag=True, help="Print JSON. docs/reference/cli.md lists the fields."
)
quiet_option: Final[Decorator] = click.option("--quiet", "-q", is_flag=True, help="Print no progress and no summary.")


def key_of(text: str, kind: KeyType) -> Key:
    """Parse a key.

    Raises:
        Failure: the text cannot be read as this type.
        InvalidArgument: the key is invalid.
    """
    try:
        key = converted(text, kind)
        if isinstance(key, str):
            key.encode()
    except UnicodeEncodeError:
        raise Failure("KEY is not valid UTF-8", USAGE, "--key-type bytes accepts any bytes") from None
    except ValueError as e:
        raise Failure(f"--key-type {kind.value}: {e}", USAGE) from None
    encode_key(key)
    return key


def converted(text: str, kind: KeyType) -> Key:
    """Convert a text to a key, without validating the key.

    Raises:
        ValueError: the text cannot be read as this type.
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


def hint_of_type(q: strictq.Queue, key: Key | None) -> None:
    """Print a hint to stderr if a key was never used, and the queue has one of another type that is written the same."""
    if key is None:
        return
    with suppress(StrictqError):  # the command itself reports what is wrong with the queue
        if not _never_sent(q, key):
            return
        for other in _same_text(key):
            if not _never_sent(q, other):
                kind = type(other).__name__
                what = f"{kind} {shown_key(other)}"
                tell(f"strictq: nothing was ever sent to the {type(key).__name__} key {shown_key(key)}; there is a key {what}")
                tell(f"  hint: use --key-type {kind}")
                return


def _never_sent(q: strictq.Queue, key: Key) -> bool:
    return getattr(q.explain(key).text, "code", None) == hints.NEVER_SENT.code


def _same_text(key: Key) -> Iterator[Key]:
    """Yield the keys of other types that are written the same."""
    try:
        text = key.decode() if isinstance(key, bytes) else str(key)
    except UnicodeDecodeError:
        return
    for other in (KeyType.str, KeyType.int, KeyType.bytes):
        with suppress(ValueError):
            found = converted(text, other)
            if type(found) is not type(key):
                yield found


def looking(path: Path) -> strictq.Queue:
    """Open a queue read-only. Nothing is changed, and no writer waits."""
    return strictq.open(path, read_only=True)


def operating(path: Path, on_event: Callable[[strictq.Event], None] | None = None) -> strictq.Queue:
    """Open an existing queue for writing."""
    return strictq.open(path, create=False, on_event=on_event)
