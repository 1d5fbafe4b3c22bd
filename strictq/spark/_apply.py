"""Bringing a staged batch into the queue: in the process where Spark commits. Imported late, with pyarrow."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from .._errors import ConfigError, StoreBusy, StrictqError
from .._parallel import run_all
from .._store import Store, applied, bulk, staging
from .._store.applied import Size, Token
from .._store.frame import Tx
from .._store.staging import Staging
from ..queue import Queue
from ._staged import Cut, Part, Staged

PAUSE_SECONDS: Final = 0.003
"""Between two parts of a batch: those who wait for the write lock look for it every millisecond."""


class File(NamedTuple):
    """A staged file of a batch."""

    name: str
    rows: int


def apply(queue: Queue, token: Token, files: Sequence[File], *, skip_others: bool) -> None:
    """Make the rows of these files messages, once, whoever else tries the same.

    Args:
        files: in the order of their rows; what an earlier try has decided takes their place.
        skip_others: where the batch was written with another number of rows, leave it at that.
    Raises:
        ConfigError: the batch was written with another number of rows; nothing changed.
        QueueFull, MessageTooLarge, InvalidArgument: the settings do not allow it; nothing changed.
        StoreError: run the batch again; what part of it is written is not written twice.
    """
    store = queue._store
    store.require_open()
    rows = sum(file.rows for file in files)
    known = applied.look(store, token)
    if known is None and not rows:
        return
    place = _staging(store, token)
    if known is None or not known.whole:
        with place.locked() as held:
            if not held:
                raise StoreBusy(f"another process is at {token}", shard=applied.home(store, token).number)
            known = _write(store, place, token, files)
    place.drop_up_to(token.number)
    if known is not None and known.rows != rows and not skip_others:
        raise ConfigError(
            f"{token} was written with {known.rows:,} messages, and comes again with {rows:,}; nothing more was written",
            hint="if its checkpoint has lost its newest files, start a new query where this one has got to; "
            "if the rows are the same messages computed anew, set option onMismatch to 'skip'",
        )


def finish_others(queue: Queue) -> None:
    """Go on with batches whose writers died on the way, and delete what they left behind. What fails here is left alone."""
    store = queue._store
    left = applied.open_batches(store)
    for writer, number in left:
        token = Token(writer, number)
        place = _staging(store, token)
        with suppress(StrictqError), place.locked(wait=False) as held:
            if held:
                _write(store, place, token, [])
                place.drop_up_to(number)
    assert store.directory is not None
    staging.sweep(store.directory, applied.open_batches(store) if left else ())


def _staging(store: Store, token: Token) -> Staging:
    assert store.directory is not None
    return Staging(store.directory, token.writer)


def _write(store: Store, place: Staging, token: Token, files: Sequence[File]) -> applied.Applied | None:
    """Write the batch; what was known of it before, or None if it is written for the first time."""
    known = applied.look(store, token)
    if known is not None and known.whole:
        return known
    cut = Cut(store.config.keyless_lanes)
    if known is not None:
        files, cut = _decode(known.files)
    batch = Staged([(place.path(file.name), file.rows) for file in files])
    size = Size(batch.rows, batch.body_bytes_max, batch.keyless)
    parts = batch.parts(lambda key: store.shard_of(key).number, cut)
    home = applied.home(store, token)
    if known is None:
        if len(parts) == 1 and len(parts.get(home.number, ())) == 1:
            only = parts[home.number][0]
            return applied.put_whole(store, token, size, lambda tx: _send(tx, only))
        place.sync([file.name for file in files])
        decided = applied.decide(store, token, size, _encode(files, cut))
        if decided.files != _encode(files, cut):
            return _write(store, place, token, files)  # another process was faster: go on with what it decided
    _put_all(store, token, parts)
    applied.finish(store, token, [store.shards[number] for number in parts])
    return known


def _put_all(store: Store, token: Token, parts: dict[int, list[Part]]) -> None:
    """Every part into its shard, the shards side by side."""

    def put(number: int) -> None:
        for part, piece in enumerate(parts[number]):
            applied.put(store, store.shards[number], token, part, partial(_send, part=piece))
            time.sleep(PAUSE_SECONDS)

    # What the first of them raises is raised: its neighbours' parts stay, and are not repeated.
    run_all([partial(put, number) for number in sorted(parts)])


def _send(tx: Tx, part: Part) -> None:
    if part.plain:
        bulk.append(tx, part)
    else:
        bulk.append_items(tx, part.items())


def _encode(files: Sequence[File], cut: Cut) -> str:
    return json.dumps({"files": [list(file) for file in files], "cut": list(cut)})


def _decode(text: str | None) -> tuple[list[File], Cut]:
    stored = json.loads(text or "{}")
    return [File(str(name), int(rows)) for name, rows in stored["files"]], Cut(*map(int, stored["cut"]))
