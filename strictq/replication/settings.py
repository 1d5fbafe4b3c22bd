"""What a shipper is told, and how a queue is told to ship or not to."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import attrs

from .. import _hints as hints
from .._errors import ConfigError, InvalidArgument, StoreCorrupt
from .._store.api import Replication, ShipStatus, Storage
from .target import DirectoryTarget, parse

INTERVAL_SECONDS: Final = 1.0
MAX_LAG_BYTES: Final = 1 << 30
KEEP_SECONDS: Final = 86_400.0


@attrs.frozen
class ShipSettings:
    """How a queue is shipped: see `Queue.configure_replication`."""

    interval_seconds: float = INTERVAL_SECONDS
    max_lag_bytes: int = MAX_LAG_BYTES
    keep_seconds: float = KEEP_SECONDS

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShipSettings:
        """
        Raises:
            StoreCorrupt: no strictq stored it.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            known = {field.name for field in attrs.fields(cls)}
            return cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            raise StoreCorrupt(f"its replication settings can't be read: {e}", shard=-1, cause=e) from e


def configure(storage: Storage, target: str | os.PathLike[str], mode: Any, settings: ShipSettings) -> None:
    """Ship the queue to a target from now on. See `Queue.configure_replication`."""
    if mode != "async":
        detail = "this version has no confirmed mode" if mode == "confirmed" else f"not {mode!r}"
        raise InvalidArgument(f"mode must be 'async': {detail}; nothing was changed")
    place = DirectoryTarget(parse(target))
    if storage.directory is None:
        raise ConfigError("a queue in memory has no files that could be shipped")
    place.create(storage.directory)
    known = storage.replication
    history_id = os.urandom(16).hex() if known is None else known.history_id
    place.claim({"format": 1, "queue_id": storage.queue_id, "history_id": history_id})
    before = known or Replication(history_id)
    storage.stop_shipping(flush=False)
    if before.target != str(place):
        ShipStatus(history_id).write(storage.directory)
    else:
        attrs.evolve(ShipStatus.read(storage.directory, history_id), stopped=False, error="").write(storage.directory)
    storage.set_replication(before._replace(mode="async", target=str(place), settings=settings.to_json()))
    storage.ship()


def detach(storage: Storage) -> bool:
    """Ship the queue no longer. Returns whether it was shipped. See `Queue.detach`."""
    known = storage.replication
    if storage.directory is None or known is None or known.mode != "async":
        return False
    storage.stop_shipping(flush=True)
    storage.set_replication(known._replace(mode="off", target=""))
    ShipStatus(known.history_id).write(storage.directory)
    return True


def require_replicated(storage: Storage) -> Replication:
    """
    Raises:
        ConfigError: the queue is not shipped anywhere.
    """
    known = storage.replication
    if known is None or known.mode != "async":
        raise ConfigError("the queue has no replica", hint=hints.CONFIGURE_AGAIN)
    return known
