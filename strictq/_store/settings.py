"""What all shards and processes of a queue share besides messages: its settings, the program's tables and learned durations.

They are stored in queue.db. An in-memory queue keeps them here.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

from .. import _files as files
from .._config import QueueConfig
from .._errors import StoreError
from .._observe import logger
from . import catalog
from .catalog import Catalog, Replication
from .disk import layout
from .shard import Shard
from .shipping.confirming import Confirming

OnMismatch = Literal["warn", "error", "update"]


class Settings:
    """The part of Store that keeps the settings."""

    shards: list[Shard]
    confirming: Confirming

    def __init__(self, directory: Path | None, known: Catalog, *, read_only: bool) -> None:
        self.directory = directory
        self.read_only = read_only
        self.settings = (known.config, known.config_version)
        """The configuration and its version, in one attribute so that every thread reads a consistent pair."""
        self.app_schema: list[tuple[int, str]] = []
        self._memory_schema: list[str] = []
        self._memory_estimates: dict[str, str] = {}
        self._stored_estimates: dict[str, str] = {}
        self._estimates_at: int | None = None
        self._lock = threading.Lock()
        self.replication = known.replication
        """Where the queue ships to, as this process last saw it. None: it was never replicated."""
        self._replication_seen = known.config_version

    def healthy(self) -> list[Shard]:
        """Return the shards that are in service."""
        return [s for s in self.shards if s.failed is None]

    # ---- configuration

    @property
    def config(self) -> QueueConfig:
        """The configuration, as this process last saw it."""
        return self.settings[0]

    def adopt_config(self, text: str, version: int) -> None:
        self.settings = (QueueConfig.from_json(text), version)
        self.confirming.active = True  # provisional: `look` decides after this commit

    def refresh_config(self) -> bool:
        """Read the newest configuration from queue.db. Return whether it changed."""
        if self.directory is None:
            return False
        known = catalog.read(self.directory, read_only=self.read_only)
        if known.config_version == self.settings[1]:
            return False
        self.settings = (known.config, known.config_version)
        return True

    def compare(self, given: QueueConfig, on_mismatch: OnMismatch) -> None:
        """Store the settings that were given to `open` ("update"), or log which of them differ from the stored ones ("warn").

        Raises:
            ConfigError: the given settings contradict the stored ones; nothing changed.
        """
        different = catalog.differences(self.config, given)
        if not different:
            return
        if on_mismatch == "update":
            try:
                self.configure(different)
            except StoreError:
                if catalog.differences(self.config, given):
                    raise
                # It is stored. An unreachable shard gets its copy with this process's next write to it.
            return
        logger().warning(
            "the queue %s has %s: what is stored applies (open it with on_config_mismatch='update' to store what is given)",
            self.directory, catalog.in_words(self.config, different),
        )  # fmt: skip

    def configure(self, changes: dict[str, Any]) -> QueueConfig:
        """Store changed settings and give every shard its copy. Concurrent changes of other settings are kept.

        Raises:
            ConfigError: the settings do not suit the number of shards; nothing changed.
            InvalidArgument: this thread is inside a transaction of the queue; nothing changed.
            StoreError: the change is stored, but a shard could not be reached. Its copy comes with this process's next write
                to it.
        """
        for shard in self.shards:
            shard.require_outside()
        with self._lock:
            while True:
                self.refresh_config()
                old, number = self.settings
                config = old.evolve(**changes)
                catalog.require_scope(config, len(self.shards))
                if config == old:
                    return config
                version: int | None = number + 1
                if self.directory is not None:
                    version = catalog.set_config(self.directory, config, number)
                if version is not None:
                    break
            self.settings = (config, version)
        self._tell_shards()
        return config

    def _tell_shards(self) -> None:
        """Give every shard its copy of the settings.

        Raises:
            StoreError: a shard could not be reached; the others have their copies.
        """
        failed: StoreError | None = None
        with self.confirming.later():
            for shard in self.healthy():
                try:
                    shard.run(lambda _tx: None)  # every write begins by updating the shard's copy
                except StoreError as e:
                    failed = e
        if failed is not None:
            raise failed

    # ---- replication

    def set_replication(self, replication: Replication) -> None:
        """Store where the queue ships to. Every process sees it at its next write.

        Raises:
            InvalidArgument: this thread is inside a transaction of the queue; nothing changed.
            StoreError: the change is stored, but a shard could not be reached. Its copy comes with this process's next write
                to it.
        """
        assert self.directory is not None
        for shard in self.shards:
            shard.require_outside()
        with self._lock:
            self.refresh_config()
            version = catalog.set_replication(self.directory, replication)
            self.settings = (self.settings[0], version)
            self.replication, self._replication_seen = replication, version
        self.confirming.look()
        self._tell_shards()

    @property
    def replication_is_seen(self) -> bool:
        """Whether `replication` was read since this process noticed the last change of the settings."""
        return self._replication_seen == self.settings[1]

    def refresh_replication(self, *, surely: bool = False) -> None:
        """Update where the queue ships to. Costs nothing unless this process noticed that the settings changed.

        Args:
            surely: read it even if no change was noticed.
        """
        if self.directory is not None and (surely or not self.replication_is_seen):
            known = catalog.read(self.directory, read_only=self.read_only)
            self.replication, self._replication_seen = known.replication, self.settings[1]

    def define_app_schema(self, sql: str) -> None:
        """Create the program's own tables in every shard, including future ones."""
        if self.directory is not None:
            self.app_schema = catalog.app_schema(self.directory, 0)
        if sql not in (known for _, known in self.app_schema):
            for shard in self.healthy():
                shard.try_schema(sql)  # SQL that is wrong, or does not fit the rows of a shard, must not be recorded
        if self.directory is None:
            if sql not in self._memory_schema:
                self._memory_schema.append(sql)
            schema = list(enumerate(self._memory_schema, 1))
        else:
            catalog.add_app_schema(self.directory, sql)
            schema = catalog.app_schema(self.directory, 0)
        self.app_schema = schema
        for shard in self.healthy():
            shard.define()

    # ---- learned durations

    def estimates(self) -> dict[str, str]:
        """Return the models of durations that workers learned, by stage."""
        if self.directory is None:
            return dict(self._memory_estimates)
        # Opening queue.db costs three times as much as the rest of stats().
        changed = files.changed_at(self.directory / layout.CATALOG)
        if changed is None or changed != self._estimates_at:
            self._stored_estimates = catalog.estimates(self.directory, read_only=self.read_only)
            self._estimates_at = changed
        return dict(self._stored_estimates)

    def set_estimates(self, models: dict[str, str] | None) -> None:
        """Store the models of these stages. None deletes the models of all stages."""
        if self.directory is not None:
            catalog.set_estimates(self.directory, models)
        elif models is None:
            self._memory_estimates.clear()
        else:
            self._memory_estimates.update(models)
