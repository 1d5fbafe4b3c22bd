"""What queue.db says of a queue, and whether it suits what a program gives to `open`."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from ..._platform.clock import Clock
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import ConfigError
from ..commit.connection import Durability
from ..disk import formats as migrate
from ..disk.topology import ShardList


class Replication(NamedTuple):
    """The history that a queue belongs to, and the target its changes are shipped to.

    Attributes:
        history_id: names one line of changes. A restored queue has another one than its original.
        mode: "off", "async" or "confirmed". "fenced": its replica was promoted. "waiting": restored, and not yet put in service.
        target: "" if the queue is not shipped.
        settings: the shipper's settings, as JSON.
        floor_time: queue time of the cut that this queue was restored from. Its time continues after it.
    """

    history_id: str
    term: int = 1
    mode: str = "off"
    target: str = ""
    settings: str = "{}"
    floor_time: int = 0

    @property
    def ships(self) -> bool:
        """Whether the queue is shipped to a target."""
        return self.mode in ("async", "confirmed")

    @property
    def timeout_seconds(self) -> float:
        """How long a call waits for a confirmation, in confirmed mode."""
        return float(json.loads(self.settings).get("timeout_seconds", 0.0))


class Fork(NamedTuple):
    """The point at which a queue left the history that it continues.

    Attributes:
        history_id, term: of that history.
        at: queue time of the cut.
        shards: for each shard, the last arrival number and the last outbox number that both histories have.
    """

    history_id: str
    term: int
    at: int
    shards: tuple[tuple[int, int], ...]


class Catalog(NamedTuple):
    """The contents of queue.db."""

    queue_id: str
    durability: Durability
    config: QueueConfig
    config_version: int
    epoch: int
    boot_id: str
    time_offset: int
    topology: ShardList
    replication: Replication | None = None
    """None: the queue was never replicated."""
    format: int = migrate.FORMAT


def new(shards: int, durability: Durability, config: QueueConfig, clock: Clock) -> Catalog:
    """Return the catalog of a queue that is to be created. Its time starts at the wall clock's.

    Raises:
        ConfigError: the settings do not suit the number of shards.
    """
    require_scope(config, shards)
    return Catalog(
        os.urandom(16).hex(), durability, config, 1, 1, clock.boot_id(), clock.wall() - clock.boot(), ShardList.even(shards),
    )  # fmt: skip


def require_scope(config: QueueConfig, shards: int) -> None:
    """Refuse a queue-wide dedup scope in a queue of several shards: no transaction spans the shards that it would have to search.

    Raises:
        ConfigError: the scope does not suit the number of shards; nothing was changed.
    """
    if config.dedup_scope == "queue" and shards > 1:
        raise ConfigError(
            f"dedup_scope='queue' needs a queue of one shard, and this one has {shards}; nothing was changed",
            hint=hints.ONE_SHARD_OR_KEY,
        )


def differences(stored: QueueConfig, given: QueueConfig) -> dict[str, Any]:
    """Return the given settings that differ from the stored ones, with the values given.

    Settings not given are not compared.
    """
    return {name: getattr(given, name) for name in sorted(given.given) if getattr(given, name) != getattr(stored, name)}


def in_words(stored: QueueConfig, different: dict[str, Any]) -> str:
    """Return differences as text: "max_attempts 7 stored and 3 given"."""
    return ", ".join(f"{name} {getattr(stored, name)!r} stored and {value!r} given" for name, value in different.items())


def agree(catalog: Catalog, shards: int | None, durability: Durability | None, config: QueueConfig | None) -> Durability:
    """Verify that what `open` was given agrees with what is stored. Return the durability to use, which may be a stronger one.

    Raises:
        ConfigError: it does not agree; nothing changed.
    """
    created, now = catalog.topology.created, len(catalog.topology)
    if shards is not None and shards not in (created, now):
        before = "" if created == now else f"; it was created with {created}"
        raise ConfigError(f"the queue's number of shards is {now}, not {shards}{before}", hint=hints.LEAVE_SHARDS_OUT)
    if config is not None and (different := differences(catalog.config, config)):
        raise ConfigError(
            f"the queue is configured otherwise: {in_words(catalog.config, different)}; nothing was changed",
            hint=hints.LEAVE_SETTINGS_OUT,
        )
    if durability == "process" and catalog.durability == "full":
        raise ConfigError(
            "the queue is stored with durability 'full' and can't be opened at the weaker 'process'",
            hint=hints.LEAVE_DURABILITY_OUT,
        )
    return durability or catalog.durability
