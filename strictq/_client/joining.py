"""Live consumers: let one appear, and list all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, cast, get_args

from .._platform import files
from .._store.api import NAME_MAX, Affinity, Description, LiveConsumer, OnlyConsumer, Storage
from .._values import hints
from .._values.errors import ConsumerBusy, InvalidArgument
from . import validate

if TYPE_CHECKING:
    from typing import Literal

AFFINITIES: Final = get_args(Affinity)


def affinity(value: str | None, storage: Storage) -> Affinity:
    """Return a checked affinity; None: "prefer", or "none" for a single shard."""
    if value is None:
        return "prefer" if storage.shards > 1 else "none"
    if value not in AFFINITIES:
        raise InvalidArgument(f"affinity must be 'prefer', 'own' or 'none', not {value!r}")
    return cast("Affinity", value)


def join(
    storage: Storage, kind: Literal["worker", "loop"], name: str | None, wanted: str | None, *, concurrency: int = 1
) -> LiveConsumer | OnlyConsumer:
    """Let a consumer appear among the live ones.

    Args:
        name: None: host, process id, and a number.
        wanted: the affinity; see `affinity`.
    Raises:
        InvalidArgument: an argument is invalid.
        ConsumerBusy: another joined loop has this name.
        StoreError: the consumer's file can't be written.
    """
    with files.late():
        import socket
        from importlib.metadata import PackageNotFoundError, version

    # Nobody else uses a queue in memory.
    agreed = "none" if storage.directory is None else affinity(wanted, storage)
    try:
        installed = version("strictq")
    except PackageNotFoundError:  # it runs from a checkout or an archive
        installed = ""
    host = socket.gethostname()
    who = f"{host}:{os.getpid()}" if name is None else validate.name("name", name)
    described = Description(kind, who, host, os.getpid(), installed, agreed, storage.clock.wall() / 1e6, concurrency)
    live = storage.join(described)
    if kind == "worker" or name is None:
        return live
    # It appears first and looks then, so that two never have one name. Both may be refused if they come at the same time.
    if any(seen.described[:2] == (kind, name[:NAME_MAX]) for seen in storage.live() if seen.id != live.id):
        live.end()
        raise ConsumerBusy(f"a live consumer of this queue is named {name!r}", hint=hints.CONSUMER_NAME_TAKEN)
    return live
