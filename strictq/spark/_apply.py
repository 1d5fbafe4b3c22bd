"""Bringing a staged batch into the queue: in the process where Spark commits. Imported late, with pyarrow."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from .. import _hints as hints
from .._errors import ConfigError, StoreBusy, StrictqError
from .._parallel import AT_ONCE, run_all
from .._store.api import Applied, Bulk, Size, Staging, Token
from ..queue import Queue
from ._staged import Cut, StagedPart, StagedRows

PAUSE_SECONDS: Final = 0.003
"""Between two parts of a batch: those who wait for the write lock look for it every millisecond."""


class StagedFile(NamedTuple):
    """A staged file of a batch."""

    name: str
    rows: int


def apply(queue: Queue, token: Token, files: Sequence[StagedFile], *, skip_others: bool) -> None:
    """Make the rows of these files messages, once, whoever else tries the same.

    Args:
        files: in the order of their rows; what an earlier try has decided takes their place.
        skip_others: where the batch was written with another number of rows, leave it at that.
    Raises:
        ConfigError: the batch was written with another number of rows; nothing changed.
        QueueFull, MessageTooLarge, InvalidArgument: the settings do not allow it; nothing changed.
        StoreError: run the batch again; what part of it is written is not written twice.
    """
    queue._storage.require_open()
    bulk = queue._storage.bulk
    rows = sum(file.rows for file in files)
    known = bulk.known(token)
    if known is None and not rows:
        return
    place = bulk.staging(token.writer)
    if known is None or not known.whole:
        with place.locked() as held:
            if not held:
                raise StoreBusy(f"another process is writing {token}", shard=bulk.home(token))
            known = _write(bulk, _cut(queue), place, token, files)
    place.drop_up_to(token.number)
    if known is not None and known.rows != rows and not skip_others:
        raise ConfigError(
            f"{token} was written with {known.rows:,} messages, and is now repeated with {rows:,}; nothing more was written",
            hint=hints.BATCH_DIFFERS,
        )


def finish_others(queue: Queue) -> None:
    """Go on with batches whose writers died on the way, and delete what they left behind. What fails here is left alone."""
    bulk = queue._storage.bulk
    left = bulk.unfinished()
    for token in left:
        place = bulk.staging(token.writer)
        with suppress(StrictqError), place.locked(wait=False) as held:
            if held:
                _write(bulk, _cut(queue), place, token, [])
                place.drop_up_to(token.number)
    bulk.sweep_staging(bulk.unfinished() if left else ())


def _cut(queue: Queue) -> Cut:
    """Parts of which as many as are written at a time have the rows and bytes of one transaction at most."""
    whole = Cut(queue.config.keyless_lanes)
    at_once = min(queue.shards, AT_ONCE)
    return whole._replace(rows=max(whole.rows // at_once, 1), bytes=max(whole.bytes // at_once, 1))


def _write(bulk: Bulk, cut: Cut, place: Staging, token: Token, files: Sequence[StagedFile]) -> Applied | None:
    """Write the batch; what was known of it before, or None if it is written for the first time."""
    known = bulk.known(token)
    if known is not None and known.whole:
        return known
    if known is not None:
        files, cut = _decode(known.files)
    batch = StagedRows([(place.path(file.name), file.rows) for file in files])
    size = Size(batch.rows, batch.body_bytes_max, batch.keyless)
    parts = batch.parts(bulk.shard_of, cut)
    home = bulk.home(token)
    if known is None:
        if len(parts) == 1 and len(parts.get(home, ())) == 1:
            return bulk.put_whole(token, size, parts[home][0].rows())
        place.sync([file.name for file in files])
        decided = bulk.decide(token, size, _encode(files, cut))
        if decided.files != _encode(files, cut):
            return _write(bulk, cut, place, token, files)  # another process was faster: go on with what it decided
    _put_all(bulk, token, parts)
    bulk.finish(token, parts)
    return known


def _put_all(bulk: Bulk, token: Token, parts: dict[int, list[StagedPart]]) -> None:
    """Every part into its shard, the shards side by side."""

    def put(shard: int) -> None:
        for number, part in enumerate(parts[shard]):
            bulk.put(token, shard, number, part.rows())
            time.sleep(PAUSE_SECONDS)

    # What the first of them raises is raised: its neighbours' parts stay, and are not repeated.
    run_all([partial(put, shard) for shard in sorted(parts)])


def _encode(files: Sequence[StagedFile], cut: Cut) -> str:
    return json.dumps({"files": [list(file) for file in files], "cut": list(cut)})


def _decode(text: str | None) -> tuple[list[StagedFile], Cut]:
    stored = json.loads(text or "{}")
    return [StagedFile(str(name), int(rows)) for name, rows in stored["files"]], Cut(*map(int, stored["cut"]))
