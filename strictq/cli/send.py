"""`strictq send`: lines of a file or of stdin into a queue."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq import Message
from strictq.cli._arguments import (
    PATH,
    Durability,
    KeyType,
    Seconds,
    durability_option,
    json_option,
    key_of,
    place_argument,
    quiet_option,
)
from strictq.cli._command import OK, USAGE, WRONG, Failure, Stopping, command, many, tell
from strictq.cli._delivering import GaveUp, Sender
from strictq.cli._lines import Damaged, Lines
from strictq.cli._render import is_screen
from strictq.cli._rows import BadLine, FieldType, LineReader
from strictq.cli._words import emit

EXAMPLES: Final = """
strictq send orders.strictq orders.jsonl --key-field customer
tail -F orders.log | strictq send orders.strictq --key-field customer --on-error skip
strictq send orders.strictq orders.jsonl.gz --key-field customer --dedup-field order
seq 10 | strictq send numbers.strictq --raw --key all --create
strictq send sqs+http://10.0.0.5:9324/queue/orders.fifo orders.jsonl --key-field customer
"""
BATCH: Final = 20_000


class OnError(StrEnum):
    """What to do at an invalid line."""

    stop = "stop"
    skip = "skip"


@command(EXAMPLES)
@place_argument
@click.argument(
    "file", type=PATH, required=False, metavar="[FILE]", help="The file to read, plain or gzip. - (the default) is stdin."
)
@click.option("--key-field", "-k", metavar="FIELD", help="The JSON field that contains the key. Required, unless --key is given.")
@click.option("--key", metavar="KEY", help="Send all lines with this key.")
@click.option(
    "--key-type",
    type=click.Choice(FieldType),
    default=FieldType.auto,
    help="The type of the key. auto: str for a JSON string and for --key, int for a whole number. bytes: the text in UTF-8. "
    "hex, base64: the decoded bytes.",
)
@click.option("--raw", is_flag=True, help="Send lines as raw bytes; they need not be JSON.")
@click.option(
    "--on-error", type=click.Choice(OnError), default=OnError.stop, help="At an invalid line: stop before it, or skip it."
)
@click.option(
    "--dedup-field",
    metavar="FIELD",
    help="The JSON field that contains the line's dedup id. Within the queue's dedup_window_seconds (default 300), "
    "a line that repeats the id of an earlier one with the same key is not sent.",
)
@click.option(
    "--size-field",
    metavar="FIELD",
    help="The JSON field with the size_hint, a number from which a worker estimates how long a message takes.",
)
@click.option("--prepare-seconds", type=Seconds(min=0.0), help="Estimated duration of a worker's prepare stage, per message.")
@click.option("--process-seconds", type=Seconds(min=0.0), help="Estimated duration of a worker's process stage, per message.")
@click.option("--delay", type=Seconds(min=0.0), default=0.0, help="Delay delivery by this many seconds.")
@click.option("--ttl", type=Seconds(min=0.001), help="Expire a message if it is not received within this many seconds.")
@click.option("--header", "-H", multiple=True, metavar="NAME=VALUE", help="Add this header to every message. Repeatable.")
@click.option(
    "--wait",
    type=Seconds(min=0.0),
    default=0.0,
    help="Keep retrying for this many seconds while the queue or disk is full or busy, or a tenant is throttled.",
)
@click.option("--batch", type=click.IntRange(min=1, max=100_000), default=BATCH, help="Send at most this many lines per commit.")
@click.option("--create", is_flag=True, help="Create the queue if it does not exist.")
@click.option("--shards", type=click.IntRange(min=1, max=256), help="With --create: number of shard files.")
@durability_option("With --create: what a completed send survives. full: a power cut. process: kill -9.")
@quiet_option
@json_option
def send(
    queue: Path | str,
    file: Path | None,
    key_field: str | None,
    key: str | None,
    key_type: FieldType,
    raw: bool,
    on_error: OnError,
    dedup_field: str | None,
    size_field: str | None,
    prepare_seconds: float | None,
    process_seconds: float | None,
    delay: float,
    ttl: float | None,
    header: tuple[str, ...],
    wait: float,
    batch: int,
    create: bool,
    shards: int | None,
    durability: Durability | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Send each line of a file or stdin as a message, in order.

    The body is the line; the key is one of its JSON fields, or the value of --key.

    Sending stops before the first invalid line, and reports it on stderr with its number. With --on-error skip, invalid lines
    are reported and skipped. Lines from a pipe are sent as they arrive. To a URL, use strictq forward for what must not be lost.

    Exit code 0: every line was sent, or was a duplicate. 1: some were neither; stderr says which. 2: invalid usage.
    """
    if raw and (key_field is not None or dedup_field is not None or size_field is not None):
        raise Failure("--raw lines have no fields; use --key KEY", USAGE)
    if key_field is not None and key is not None:
        raise Failure("use either --key-field or --key, not both", USAGE)
    if not create and (shards is not None or durability is not None):
        raise Failure("--shards and --durability require --create", USAGE)
    constant = None if key is None else key_of(key, KeyType.str if key_type is FieldType.auto else KeyType(key_type))
    options = _options(delay, ttl, header)
    estimates = {"prepare_seconds": prepare_seconds, "process_seconds": process_seconds}
    options |= {name: seconds for name, seconds in estimates.items() if seconds is not None}
    with Stopping() as stopping, _opened(queue, create, shards, durability) as q:
        if key_field is None and constant is None and not _takes_keyless(q):
            raise Failure("give the key: --key-field FIELD, or --key KEY for all lines", USAGE)
        _check(q, Message(b"", key="any", **options))  # report invalid options here, not as an invalid line
        reader = LineReader(
            raw=raw, key=constant, key_field=key_field, key_type=key_type, dedup_field=dedup_field, size_field=size_field,
            longest=q.config.max_body_bytes, options=options,
        )  # fmt: skip
        path = None if file is None or str(file) == "-" else file
        lines = Lines(path, q.config.max_body_bytes, stopping.at_once)
        if lines.is_terminal and not quiet:
            tell("reading lines from the terminal; end with Ctrl-D")
        raw_would_do = not raw and key_field is None and dedup_field is None and size_field is None
        sender = Sender(q, wait, stopping, repeatable=dedup_field is not None)
        window = None if dedup_field is None or isinstance(q, strictq.RemoteQueue) else q.config.dedup_window_seconds
        run = Run(lines, reader, sender, stopping, skip=on_error is OnError.skip, raw_would_do=raw_would_do, window=window)
        try:
            code = run.all(batch, quiet=quiet)
        finally:
            lines.close()
            run.report(quiet=quiet, as_json=as_json)
    return code


def _opened(
    queue: Path | str, create: bool, shards: int | None, durability: Durability | None
) -> strictq.Queue | strictq.RemoteQueue:
    if isinstance(queue, str):
        if create:
            raise Failure("--create is for a local queue", USAGE)
        return strictq.connect(queue)
    return strictq.open(queue, create=create, shards=shards, durability=None if durability is None else durability.value)


def _takes_keyless(q: strictq.Queue | strictq.RemoteQueue) -> bool:
    return not q.is_fifo if isinstance(q, strictq.RemoteQueue) else q.config.keyless != "refuse"


def _check(q: strictq.Queue | strictq.RemoteQueue, message: Message) -> None:
    """Refuse invalid options.

    Raises:
        InvalidArgument: the queue would not accept the message.
    """
    if isinstance(q, strictq.RemoteQueue):
        from strictq.remote.sending import check

        check(q._endpoint, message)
    else:
        q._client.sending.item(message)


def _options(delay: float, ttl: float | None, headers: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given, for all messages."""
    options: dict[str, Any] = {}
    if delay:
        options["delay"] = delay
    if ttl is not None:
        options["ttl"] = ttl
    if headers:
        pairs = [text.partition("=") for text in headers]
        if bad := [text for text, (name, is_pair, _) in zip(headers, pairs, strict=True) if not is_pair or not name]:
            raise Failure(f"--header {bad[0]!r} is not NAME=VALUE", USAGE)
        options["headers"] = {name: value for name, _, value in pairs}
    return options


class Run:
    """One run of the command and its result."""

    def __init__(
        self, lines: Lines, reader: LineReader, sender: Sender, stopping: Stopping, *, skip: bool, raw_would_do: bool,
        window: float | None,
    ) -> None:  # fmt: skip
        self._lines = lines
        self._window = window
        self._raw_would_do = raw_would_do
        self._reader = reader
        self._sender = sender
        self._stopping = stopping
        self._skip = skip
        self._started = time.monotonic()
        self.lines = 0
        """Lines read so far, including invalid and blank ones."""
        self.bad = 0
        self.stopped_at: int | None = None
        """The first line that was not sent, if the run ended early."""

    def all(self, batch: int, *, quiet: bool) -> int:
        """Send every line. Return the exit code."""
        with _progress(self._lines, quiet=quiet) as shown, _without_rounds():
            try:
                for piece in self._lines.pieces(batch):
                    if not self._piece(piece):
                        return WRONG
                    if shown is not None:
                        shown(self._lines, self._sender.sent)
                    self._stopping.check()
                    gc.collect(0)
            except Damaged as e:
                self._tell(f"line {self.lines + 1}: {e}")
                self.stopped_at = self.lines + 1
                return WRONG
            except GaveUp as e:
                self.stopped_at = e.first
                self._tell(str(e), e.hint)
                return WRONG
            except BaseException:
                self.stopped_at = self._sender.stuck_at or self.lines + 1
                if self._sender.doubt:
                    self._tell(self._sender.doubt)
                raise
        return WRONG if self.bad else OK

    def _piece(self, piece: list[Any]) -> bool:
        """Send some lines. Return False if the run ends here."""
        first = self.lines + 1
        for run, bad in self._reader.read(piece, first):
            for refused in self._sender.send(run):
                if not self._bad(refused):
                    return False
            self.lines = bad.number if bad is not None else first + len(piece) - 1
            if bad is not None and not self._bad(bad):
                return False
        return True

    def _bad(self, line: BadLine) -> bool:
        """Report an invalid line. Return False if the run ends here."""
        self.bad += 1
        packed = line.number == 1 and self._lines.is_packed
        self._tell(
            f"line {line.number}: {line.why}",
            "this is gzip data, which is unpacked only from a file: strictq send QUEUE FILE.gz" if packed else "",
        )
        if not self._skip:
            self.stopped_at = line.number
        return self._skip

    def _tell(self, text: str, hint: str = "") -> None:
        tell(f"strictq: {self._lines.name}: {text}")
        if hint:
            tell(f"  hint: {hint}")

    def report(self, *, quiet: bool, as_json: bool) -> None:
        """Print the summary."""
        seconds = time.monotonic() - self._started
        values = self.as_values(seconds)
        if as_json:
            emit(values)
        elif not quiet:
            tell(self.summary(seconds))
            if self.bad and self._raw_would_do and not self._lines.is_packed:
                tell("  hint: use --raw for lines that are not JSON")
            if len(self._reader.kinds) > 1:
                tell('  hint: keys are both strings and numbers; 7 and "7" are different keys. --key-type str makes them equal')
        # Print this with --quiet and --json too: scripts use those, and scripts repeat runs.
        if self._window is not None and seconds > self._window and (self._sender.sent or self._sender.unknown):
            self._tell(
                f"the run took {seconds:,.0f} s, longer than dedup_window_seconds ({self._window:,.10g}): "
                "repeating it now would send its first lines twice",
                "raise the window first: strictq config QUEUE dedup_window_seconds=SECONDS",
            )

    def as_values(self, seconds: float) -> dict[str, Any]:
        """Return the result as JSON values."""
        sent = self._sender.sent
        return {
            "lines": self.lines, "sent": sent, "duplicates": self._sender.duplicates, "bad": self.bad,
            "blank": self._reader.blank, "unknown": self._sender.unknown, "stopped_at": self.stopped_at,
            "key_types": sorted(self._reader.kinds), "seconds": round(seconds, 6),
            "lines_per_second": round(sent / seconds, 1) if seconds > 0 else 0.0,
        }  # fmt: skip

    def summary(self, seconds: float) -> str:
        """Return the result as one line of text."""
        sent = self._sender.sent
        text = f"sent {many(sent, 'line')} in {seconds:.1f} s"
        if seconds >= 0.1:
            text += f" ({sent / seconds:,.0f} per second)"
        for count, what in (
            (self._sender.duplicates, "duplicates"), (self.bad, "invalid"), (self._reader.blank, "blank"),
            (self._sender.unknown, "possibly sent"),
        ):  # fmt: skip
            if count:
                text += f", {count:,} {what}"
        return text if self.stopped_at is None else f"{text}; stopped at line {self.stopped_at:,}"


@contextmanager
def _without_rounds() -> Iterator[None]:
    """Disable automatic garbage collection, which would traverse every message of a batch repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _progress(lines: Lines, *, quiet: bool) -> AbstractContextManager[Any]:
    """Return a context manager that shows a bar and yields its step function; None without a terminal."""
    if quiet or lines.is_terminal or not is_screen(sys.stderr):
        return nullcontext()
    from strictq.cli._progress import bar

    return bar()
