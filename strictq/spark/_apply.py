"""Write a staged batch into the queue, in the process in which Spark commits. Imported late, with pyarrow."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from .._platform.files import open_regular, typed
from .._platform.parallel import AT_ONCE, run_all
from .._store.api import Applied, Bulk, PlainRows, Size, Staging, StreamBatch, Token
from .._values import hints
from .._values.errors import ConfigError, QueueFull, StoreBusy, StrictqError, Throttled
from ..queue import Queue
from ._staged import Cut, StagedPart, StagedRows

PAUSE_SECONDS: Final = 0.003
"""Seconds between two parts of a batch. Other writers that wait for the write lock try it every millisecond."""
LOOK_SECONDS: Final = 5.0
"""The longest pause of a batch that waits for room: consumers may be faster, and a limit may be raised."""
CACHE_KIB: Final = 4096
"""SQLite's cache of a shard while its parts are written. Most pages of appended messages are not read again."""
CACHE_DONE_KIB: Final = 256
"""The cache after the shard's last part, so that the caches of many shards do not add up."""
READ_BYTES: Final = 1 << 20
"""The bytes of a staged file that are read at a time for its checksum."""


class StagedFile(NamedTuple):
    name: str
    rows: int


def apply(
    queue: Queue,
    token: Token,
    files: Sequence[StagedFile],
    *,
    skip_others: bool,
    origin: StreamBatch | None = None,
    wait: float = 0.0,
) -> None:
    """Write the rows of these files as messages, exactly once, even if other processes try the same.

    Args:
        files: the files in the order of their rows. If an earlier try has decided on files, those are used instead.
        skip_others: accept a batch that was written with another number of rows.
        origin: the batch of a stream that writes it; None: it is not written in `foreachBatch`.
        wait: seconds to wait for room while a limit of the queue or a tenant refuses the batch.
    Raises:
        ConfigError: the batch was written with another number of rows, or is not a repeated one; nothing was changed.
        QueueFull, Throttled: a limit refused the batch for `wait` seconds; nothing was changed.
        MessageTooLarge, InvalidArgument: the settings do not allow it; nothing was changed.
        StoreError: run the batch again. Parts that were written are not written twice.
    """
    queue._storage.require_open()
    bulk = queue._storage.bulk
    rows = sum(file.rows for file in files)
    known = bulk.known(token)
    if known is None and not rows and origin is None:
        return
    place = bulk.staging(token.writer)
    until = time.monotonic() + wait
    while known is None or not known.whole:
        try:
            with place.locked() as held:
                if not held:
                    raise StoreBusy(f"another process is writing {token}", shard=bulk.home(token))
                known = _write(bulk, _cut(queue), place, token, files, origin, skip_others=skip_others)
            break
        except (QueueFull, Throttled) as e:
            # The lock is free, ranges move, and nothing is decided while the batch waits.
            left = until - time.monotonic()
            if left <= 0 or e.retry_after == math.inf:  # a batch larger than the limit waits for nothing
                raise
            time.sleep(min(e.retry_after, left, LOOK_SECONDS))
    if known is not None and origin is not None:
        bulk.require_repeat(token, origin, unknown=_may_be_older(bulk, token, origin))
    place.drop_up_to(token.number)
    if known is not None and known.rows != rows and not skip_others:
        raise ConfigError(
            f"{token} was written with {known.rows:,} messages, and is now repeated with {rows:,}; nothing more was written",
            hint=hints.BATCH_DIFFERS,
        )


def _may_be_older(bulk: Bulk, token: Token, origin: StreamBatch) -> bool:
    """Return whether a batch without a stored origin may be this one, written by a version that did not store it.

    Spark repeats only the newest batch. So a job id with the number of a batch is accepted if the one with the next number is not
    known. The first batch is not accepted, because every query with a new checkpoint begins with its number.
    """
    if not token.is_job:
        return True
    name = token.writer.removesuffix(str(origin.batch))
    if origin.batch == 0 or name == token.writer or name[-1].isdigit():
        return False
    return bulk.known(Token(f"{name}{origin.batch + 1}", token.number)) is None


def finish_others(queue: Queue) -> None:
    """Finish batches whose writers died, and delete their leftover files. Failures are ignored."""
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
    """Return the limits of a part, so that the parts written at a time have at most the rows and bytes of one transaction."""
    whole = Cut(queue.config.keyless_lanes)
    at_once = min(queue.shards, AT_ONCE)
    return whole._replace(rows=max(whole.rows // at_once, 1), bytes=max(whole.bytes // at_once, 1))


def _write(
    bulk: Bulk, cut: Cut, place: Staging, token: Token, files: Sequence[StagedFile], origin: StreamBatch | None = None,
    *, skip_others: bool = False,
) -> Applied | None:  # fmt: skip
    """Write the batch. Return its earlier state, or None if it is written for the first time."""
    known = bulk.known(token)
    if known is not None and known.files is not None:
        decided, cut, content = _decode(known.files)
        if all(place.path(file.name).exists() for file in decided):
            files = decided
        elif [file.rows for file in files] == [file.rows for file in decided] and _content(place, files) == content:
            place.sync([file.name for file in files])
            known = bulk.use(token, known.files, _encode(files, cut, content))
        elif skip_others:
            bulk.finish(token, ())
            known = bulk.known(token)
        else:
            raise ConfigError(
                f"{token} is half written, its staged files are gone, as in a copy of a queue, and it is now repeated with other "
                "rows; nothing more was written",
                hint=hints.BATCH_LOST,
            )
    if known is not None and known.whole:
        return known
    batch = StagedRows([(place.path(file.name), file.rows) for file in files])
    separator = bulk.tenant_separator if known is None else None
    size = Size(batch.rows, batch.body_bytes_max, batch.keyless, {} if separator is None else batch.tenants(separator))
    home = bulk.home(token)
    with bulk.still():  # the shard of a key must be the same one in every attempt
        parts = batch.parts(bulk.shard_of, cut)
        if known is None:
            if not parts:
                return bulk.put_whole(token, size, PlainRows([], [], [], []), origin)
            if len(parts) == 1 and len(parts.get(home, ())) == 1:
                return bulk.put_whole(token, size, parts[home][0].rows(), origin)
            place.sync([file.name for file in files])
            ours = _encode(files, cut, _content(place, files))
            if bulk.decide(token, size, ours, origin).files != ours:
                return _write(bulk, cut, place, token, files, origin)  # another process was faster, so continue with its decision
    _put_all(bulk, token, parts)
    bulk.finish(token, parts)
    return known


def _put_all(bulk: Bulk, token: Token, parts: dict[int, list[StagedPart]]) -> None:
    """Write every part to its shard, several shards in parallel."""

    def put(shard: int) -> None:
        bulk.bound_cache(shard, CACHE_KIB)
        for number, part in enumerate(parts[shard]):
            bulk.put(token, shard, number, part.rows())
            time.sleep(PAUSE_SECONDS)
        bulk.bound_cache(shard, CACHE_DONE_KIB)

    # The first error is raised. The other shards' parts stay, and are not repeated.
    run_all([partial(put, shard) for shard in sorted(parts)])


def _content(place: Staging, files: Sequence[StagedFile]) -> list[int]:
    """Return the checksums of files, in their order.

    Raises:
        StoreError: one can't be read.
    """
    found = []
    for file in files:
        crc = 0
        with typed("a staging file can't be read"), os.fdopen(open_regular(place.path(file.name), os.O_RDONLY), "rb") as opened:
            while data := opened.read(READ_BYTES):
                crc = zlib.crc32(data, crc)
        found.append(crc)
    return found


def _encode(files: Sequence[StagedFile], cut: Cut, content: list[int]) -> str:
    return json.dumps({"files": [list(file) for file in files], "cut": list(cut), "content": content})


def _decode(text: str) -> tuple[list[StagedFile], Cut, list[int] | None]:
    """Return the files of a decision, the limits of their parts, and their checksums, which older versions did not store."""
    stored = json.loads(text)
    files = [StagedFile(str(name), int(rows)) for name, rows in stored["files"]]
    return files, Cut(*map(int, stored["cut"])), stored.get("content")
