"""What all shards and processes of a queue share besides messages: its settings, the program's tables and learned durations.

They are stored in queue.db. An in-memory queue keeps them here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from .. import _files as files
from .._config import QueueConfig
from .._errors import OutcomeUnknown, StoreError
from .._log import log
from . import catalog
from .catalog import Catalog, Replication
from .disk import layout
from .shard_file import Shard
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
        self._adopting = threading.Lock()
        self.replication = known.replication
        """Where the queue ships to, as this process last saw it: that of `settings`. None: it was never replicated."""

    def healthy(self) -> list[Shard]:
        """Return the shards that are in service."""
        return [s for s in self.shards if s.failed is None]

    # ---- configuration

    @property
    def config(self) -> QueueConfig:
        """The configuration, as this process last saw it."""
        return self.settings[0]

    def adopt_config(self, text: str, version: int) -> None:
        """Adopt the settings that a shard has a newer version of. Called inside its write transaction, before anything changed.

        Everything that the version stands for is read now, so that nothing must be read after the COMMIT.

        Args:
            text: the shard's copy of the configuration.
        """
        assert self.directory is not None
        known = catalog.read(self.directory, read_only=self.read_only)
        if known.config_version < version:  # queue.db is an older copy
            known = known._replace(config=catalog.config_of(text), config_version=version)
        self._adopt(known)

    def refresh_settings(self) -> bool:
        """Read the newest settings and replication from queue.db. Return whether they changed."""
        return self.directory is not None and self._adopt(catalog.read(self.directory, read_only=self.read_only))

    def _adopt(self, known: Catalog) -> bool:
        """Adopt what was read from queue.db, unless this process knows as much. Return whether anything changed.

        Raises:
            StoreError: a file of confirmed mode can't be opened; nothing was adopted.
        """
        rounds = self.confirming.prepare(known.replication)
        with self._adopting:
            if known.config_version <= self.settings[1]:
                return False
            self.replication = known.replication
            self.confirming.adopt(known.replication, rounds)
            self.settings = (known.config, known.config_version)  # the last one, because its version tells that all are known
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
        log.warning(
            "the queue %s has %s: what is stored applies (open it with on_config_mismatch='update' to store what is given)",
            self.directory, catalog.in_words(self.config, different),
        )  # fmt: skip

    def configure(self, changes: dict[str, Any]) -> QueueConfig:
        """Store changed settings and give every shard its copy. Concurrent changes of other settings are kept.

        Raises:
            ConfigError: the settings do not suit the number of shards; nothing changed.
            InvalidArgument: this thread is inside a transaction of the queue; nothing changed.
            OutcomeUnknown: the change may be stored, or a shard could not be reached. A repetition completes it.
        """
        for shard in self.shards:
            shard.require_outside()
        with self._lock:
            while True:
                self.refresh_settings()
                old, number = self.settings
                config = old.evolve(**changes)
                catalog.require_scope(config, len(self.shards))
                version: int | None = number + 1
                if config == old:
                    version = number
                elif self.directory is not None:
                    version = catalog.set_config(self.directory, config, number)
                if version is not None:
                    break
            with self._adopting:
                if version > self.settings[1]:
                    self.settings = (config, version)
        self._tell_shards()
        return config

    def _tell_shards(self) -> None:
        """Give every shard its copy of the settings, which are stored.

        Raises:
            OutcomeUnknown: a shard could not be reached; the others have their copies.
        """
        with self.confirming.later():
            self._in_all_shards(lambda shard: shard.run(lambda _tx: None))  # every write begins by updating the shard's copy

    def _in_all_shards(self, act: Callable[[Shard], object]) -> None:
        """Apply to every shard what is stored in queue.db.

        Raises:
            OutcomeUnknown: it failed in one of them; the others have it.
        """
        failed: StoreError | None = None
        for shard in self.healthy():
            try:
                act(shard)
            except StoreError as e:
                failed = e
        if failed is not None:
            raise OutcomeUnknown(
                f"it is stored, but did not reach the shard: {failed}", shard=failed.shard, cause=failed.cause or failed
            ) from failed

    # ---- replication

    def set_replication(self, replication: Replication) -> None:
        """Store where the queue ships to. Every process sees it at its next write.

        Raises:
            InvalidArgument: this thread is inside a transaction of the queue; nothing changed.
            OutcomeUnknown: the change may be stored, or a shard could not be reached. A repetition completes it.
        """
        assert self.directory is not None
        for shard in self.shards:
            shard.require_outside()
        with self._lock:
            self.refresh_settings()
            rounds = self.confirming.prepare(replication)
            version = catalog.set_replication(self.directory, replication)
            with self._adopting:
                self.replication = replication
                self.confirming.adopt(replication, rounds)
                self.settings = (self.settings[0], version)
        self._tell_shards()

    def define_app_schema(self, sql: str) -> None:
        """Create the program's own tables in every shard, including future ones.

        Raises:
            OutcomeUnknown: they may be recorded, or a shard could not be reached. A repetition completes it.
        """
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
            schema = catalog.add_app_schema(self.directory, sql)
        self.app_schema = schema
        self._in_all_shards(Shard.define)

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
