"""strictq.open and strictq.open_async, and operations on a queue's directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ._client import validate
from ._platform import files
from ._platform.clock import Clock, SystemClock
from ._platform.declared_once import same_arguments
from ._store import api
from ._store.api import MEMORY, SHARDS_MAX, Storage
from ._values import hints
from ._values.config import QueueConfig
from ._values.errors import ConfigError, InvalidArgument, QueueNotFound, StoreBusy
from ._values.types import Event
from .queue import Queue

if TYPE_CHECKING:
    from ._values.findings import Migration, Salvaged
    from .aio import AsyncQueue


def open(
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    durability: Literal["full", "process"] | None = None,
    config: QueueConfig | None = None,
    on_config_mismatch: Literal["warn", "error", "update"] = "warn",
    create: bool = True,
    read_only: bool = False,
    migrate: bool = False,
    clock: Clock | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Queue:
    """Open a queue. Create it if it does not exist.

    Args:
        path: a directory, with ~ for the user's home; or ":memory:" for a queue with nothing on disk, private to the object.
        shards: number of shard files, 1..256; default 1. Fixed when the queue is created.
        durability: "full" (default): a send that returned survives a power cut. "process": it survives kill -9; a power cut
            may lose the newest commits. Stored; a queue stored as "process" may be opened at "full", never the reverse.
        config: settings of a new queue. For an existing queue, only the settings passed here are compared with the stored
            ones: QueueConfig(max_attempts=3) compares max_attempts only.
        on_config_mismatch: what to do if they differ. "warn": the stored settings apply, and the log "strictq" gets a warning
            with both values. "error": raise ConfigError. "update": store the passed settings, as `configure` does.
        create: False: raise QueueNotFound if the queue does not exist.
        read_only: do not change the queue; raise QueueNotFound if it does not exist.
        migrate: first migrate a queue of an older format, see `strictq.migrate`. Otherwise an older format raises
            SchemaMismatch.
        clock: the clock, for tests; default: the machine's.
        on_event: called for dead letters, poison, lost leases, shards that were quarantined or repaired, and workers'
            breakers; see Event.
    Raises:
        QueueNotFound, ConfigError, InvalidArgument, StoreCorrupt, SchemaMismatch: nothing was changed.
        StoreFull: the disk has no space for a new queue; no file is left behind.
        StoreError: a file is not regular or has hard links; or no file descriptor is free, which is transient.

    Examples:
        >>> with strictq.open("orders.strictq", config=strictq.QueueConfig(lease_seconds=60.0)) as q:
        ...     q.config.lease_seconds
        60.0
    """
    if migrate:
        _migrate(path, clock, read_only=read_only)
    return Queue(_storage(path, shards, durability, config, on_config_mismatch, create, read_only, clock, on_event))


@same_arguments(open)
def open_async(*args: Any, **options: Any) -> AsyncQueue:
    """Open a queue for asyncio or trio: `async with strictq.open_async(...) as q`. Every method is awaited.

    Arguments and errors are those of `open`. The queue is opened on entry. Hooks are called in worker threads.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with strictq.open_async(":memory:") as q:
        ...         await q.send(b"paid", key="order-1")
        ...         async with await q.receive() as batch:
        ...             for d in batch:
        ...                 async with d:
        ...                     print(d.key, d.seq)
        >>> asyncio.run(main())
        order-1 1
    """
    from .aio import AsyncQueue  # importing asyncio and anyio takes as long as importing all of strictq

    return AsyncQueue(lambda: open(*args, **options))


def salvage(path: str | os.PathLike[str], out: str | os.PathLike[str], *, clock: Clock | None = None) -> Salvaged:
    """Save the readable messages of a damaged queue in a new queue. The damaged files are not changed.

    The new queue has every message that could be read and verified, with its key, seq, attempts and headers. The result
    reports what could not be read or verified. Leases have ended, and tokens continue above those of the damaged queue.

    Args:
        path: the damaged queue. No process may have it open.
        out: the new queue's directory, which must not exist.
    Raises:
        QueueNotFound, InvalidArgument, StoreBusy, StoreFull: nothing was created.
        SchemaMismatch: another version of strictq wrote it; nothing was created.
    Source: docs/howto/damage.md
    """
    return api.salvage(Path(validate.path_text(path)), Path(validate.path_text(out)), clock or SystemClock())


def migrate(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _files: None,
    on_messages: Callable[[int, int], None] = lambda _done, _messages: None,
    clock: Clock | None = None,
) -> Migration:
    """Upgrade the files of a queue to the format of this version. This cannot be undone.

    No process may have the queue open. A shard of format 2 or older is copied within its file, so it takes time and space. If it
    is interrupted, or the power fails, run it again: the shard that it was working on begins anew. Until then, shards that were
    not migrated cannot be used.

    Args:
        dry_run: report what would be done; change nothing.
        on_progress: called after each file with the number of finished files and the total.
        on_messages: called meanwhile with the number of copied messages of a shard and its total.
    Raises:
        QueueNotFound, StoreBusy, StoreFull, SchemaMismatch: nothing was changed. SchemaMismatch: it is of a newer format.
        StoreCorrupt: queue.db is damaged, and nothing was changed; or a shard is, which kept its format.
    Source: docs/howto/upgrade.md
    """
    return api.migrate(
        Path(validate.path_text(path)), clock or SystemClock(), dry_run=dry_run, on_progress=on_progress, on_messages=on_messages
    )


def _migrate(path: str | os.PathLike[str], clock: Clock | None, *, read_only: bool) -> None:
    """Migrate a queue that is opened with migrate=True. Do nothing if it does not exist or is open elsewhere."""
    if read_only:
        raise InvalidArgument("migrate=True can't change a queue that is opened with read_only=True")
    if validate.path_text(path) != MEMORY:
        with suppress(QueueNotFound, StoreBusy):
            # The queue may not exist yet. A queue that is open elsewhere has this format, or opening it raises SchemaMismatch.
            migrate(path, clock=clock)


def _storage(
    path: str | os.PathLike[str],
    shards: int | None,
    durability: Any,
    config: QueueConfig | None,
    on_mismatch: Any,
    create: bool,
    read_only: bool,
    clock: Clock | None,
    on_event: Callable[[Event], None] | None,
) -> Storage:
    text = validate.path_text(path)
    if shards is not None:
        validate.whole("shards", shards, 1, SHARDS_MAX)
    if durability not in (None, "full", "process"):
        raise InvalidArgument(f"durability must be 'full' or 'process', not {durability!r}")
    if config is not None and not isinstance(config, QueueConfig):
        raise InvalidArgument(f"config must be a QueueConfig, not {type(config).__name__}", hint=hints.MAKE_CONFIG)
    if on_mismatch not in ("warn", "error", "update"):
        raise InvalidArgument(f"on_config_mismatch must be 'warn', 'error' or 'update', not {on_mismatch!r}")
    if on_mismatch == "update" and read_only:
        raise InvalidArgument("on_config_mismatch='update' can't change a queue that is opened with read_only=True")
    validate.hook("on_event", on_event)
    if clock is not None and not isinstance(clock, Clock):
        raise InvalidArgument("clock must have wall(), boot() and boot_id()")
    clock = clock or SystemClock()
    if text == MEMORY:
        if read_only:
            raise ConfigError("an in-memory queue cannot be read-only: it would always be empty")
        if not create:
            raise QueueNotFound("a queue in memory is always new")
        return Storage.in_memory(shards=shards, durability=durability, config=config, clock=clock, hook=on_event)
    opened = partial(
        Storage.open, shards=shards, durability=durability, config=config, create=create, read_only=read_only, clock=clock,
        hook=on_event, on_mismatch=on_mismatch,
    )  # fmt: skip
    with files.typed(f"{text} can't be opened"):
        try:
            return opened(Path(text))
        except QueueNotFound:
            from .replication.replica_home import at_replica  # only where it may be one

            found = at_replica(Path(text), clock, read_only=read_only)
            if found is None:
                raise
        place, look = found
        try:
            return opened(place, look=look)
        except BaseException:
            if look is not None:
                look.leave()
            raise
