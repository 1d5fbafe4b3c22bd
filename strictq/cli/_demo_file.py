"""The events of `strictq demo --input`: lines of a file, read as `strictq send` reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from strictq._config import QueueConfig
from strictq._keys import Key
from strictq.cli._command import USAGE, Failure
from strictq.cli._lines import Damaged, Lines
from strictq.cli._rows import FieldType, LineReader
from strictq.demo.events import Chain, DemoEvent, Source

CHAIN: Final = Chain("old", "new")
PIECE_LINES: Final = 1000


def file_events(path: Path, key_field: str) -> Source:
    """Return the rows of a file of JSON objects, one per line, plain or gzip. Rows that are added later are not included.

    Args:
        key_field: the field with the key, a string or a whole number.
    Raises:
        Failure: the file or one of its rows cannot be used; nothing was sent.
    """
    if not path.is_file():
        raise Failure(f"{path}: {'not a regular file; the demo reads it twice' if path.exists() else 'no such file'}", USAGE)
    events = partial(_events, path, key_field)
    keys = Counter(event.key for event in events())
    count = keys.total()
    if not count:
        raise Failure(f"{path}: the file contains no events", USAGE)
    chain = CHAIN if _is_chained(events()) else None
    return Source(name=path.name, count=count, keys=len(keys), chain=chain, read=lambda: islice(events(), count))


def _events(path: Path, key_field: str) -> Iterator[DemoEvent]:
    longest = QueueConfig().max_body_bytes
    reader = LineReader(
        raw=False, key=None, key_field=key_field, key_type=FieldType.auto, dedup_field=None, size_field=None, longest=longest,
        options={},
    )  # fmt: skip
    line = 0
    with closing(Lines(path, longest)) as lines:
        try:
            for piece in lines.pieces(PIECE_LINES):
                for run, bad in reader.read(piece, line + 1):
                    for number, message in run:
                        assert isinstance(message, tuple)  # without options, a key and a body
                        yield DemoEvent(number, *message)
                    if bad is not None:
                        raise Failure(f"{path}: line {bad.number}: {bad.why}", USAGE)
                line += len(piece)
        except Damaged as e:
            raise Failure(f"{path}: line {line + 1}: {e}", USAGE) from None


def _is_chained(events: Iterable[DemoEvent]) -> bool:
    """Return whether every event has `old` and `new`, and its `old` equals the `new` of its key's previous event."""
    last: dict[Key, str] = {}
    for event in events:
        try:
            old, new = CHAIN.links(json.loads(event.body))
        except KeyError:
            return False
        if last.get(event.key, old) != old:
            return False
        last[event.key] = new
    return True
