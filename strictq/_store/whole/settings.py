"""What all shards and processes of a queue share besides messages: its settings, the program's tables and learned durations.

They are stored in queue.db. An in-memory queue keeps them here.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ..._platform import files
from ..._platform.log import log
from ..._values.config import QueueConfig
from ..._values.errors import InvalidArgument, OutcomeUnknown, StoreError
from ..catalog import contents, queue_db
from ..catalog.contents import Catalog, Replication
from ..disk import layout
from ..disk.topology import ShardList
from ..shard.shard_file import Shard
from ..shard.shard_lanes import Tx
from ..shipping.confirming import Confirming
from ..tables import app_rows

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
        self._memory_estimates: dict[str, str] = {}
        self._stored_estimates: dict[str, str] = {}
        self._estimates_at: int | None = None
        self._lock = threading.Lock()
        self._adopting = threading.Lock()
        self.replication = known.replication
        """Where the queue ships to, as this process last saw it: that of `settings`. None: it was never replicated."""

    @abstractmethod
    def learn_shards(self, topology: ShardList | None = None) -> None:
        """See Routing."""

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
        known = queue_db.read(self.directory, read_only=self.read_only)
        if known.config_version < version:  # queue.db is an older copy
            known = known._replace(config=queue_db.config_of(text), config_version=version)
        self._adopt(known)

    def refresh_settings(self) -> bool:
        """Read the newest settings and replication from queue.db. Return whether they changed."""
        return self.directory is not None and self._adopt(queue_db.read(self.directory, read_only=self.read_only))

    def _adopt(self, known: Catalog) -> bool:
        """Adopt what was read from queue.db, unless this process knows as much. Return whether anything changed.

        Raises:
            StoreError: a file of confirmed mode can't be opened; nothing was adopted.
        """
        rounds = self.confirming.prepare(known.replication)
        if len(known.topology) > len(self.shards):
            self.learn_shards(known.topology)
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
        different = contents.differences(self.config, given)
        if not different:
            return
        if on_mismatch == "update":
            try:
                self.configure(different)
            except StoreError:
                if contents.differences(self.config, given):
                    raise
                # It is stored. An unreachable shard gets its copy with this process's next write to it.
            return
        log.warning(
            "the queue %s has %s: what is stored applies (open it with on_config_mismatch='update' to store what is given)",
            self.directory, contents.in_words(self.config, different),
        )  # fmt: skip

    def configure(self, changes: dict[str, Any]) -> QueueConfig:
        """Store changed settings and give every shard its copy. See `change`."""
        return self.change(lambda _: changes)[1]

    def change(self, changes: Callable[[QueueConfig], dict[str, Any]]) -> tuple[QueueConfig, QueueConfig]:
        """Store changed settings and give every shard its copy. Concurrent changes of other settings are kept.

        Args:
            changes: returns the changes from the present settings. It is called again if these were changed meanwhile.
        Returns:
            The settings before, and the new ones.
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
                config = old.evolve(**changes(old))
                contents.require_scope(config, len(self.shards))
                version: int | None = number + 1
                if config == old:
                    version = number
                elif self.directory is not None:
                    version = queue_db.set_config(self.directory, config, number)
                if version is not None:
                    break
            with self._adopting:
                if version > self.settings[1]:
                    self.settings = (config, version)
        self._tell_shards(wake=(old.paused and not config.paused) or old.limits != config.limits)
        return old, config

    def keep_up(self, version: int) -> QueueConfig:
        """Return the settings, of which a shard has this version."""
        if version > self.settings[1]:
            self.refresh_settings()
        return self.config

    def _tell_shards(self, *, wake: bool = False) -> None:
        """Give every shard its copy of the settings, which are stored.

        Args:
            wake: consumers that wait may find messages.
        Raises:
            OutcomeUnknown: a shard could not be reached; the others have their copies.
        """

        def tell(tx: Tx) -> None:  # every write begins by updating the shard's copy
            tx.wake = wake

        with self.confirming.later():
            self._in_all_shards(lambda shard: shard.run(tell))

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
            version = queue_db.set_replication(self.directory, replication)
            with self._adopting:
                self.replication = replication
                self.confirming.adopt(replication, rounds)
                self.settings = (self.settings[0], version)
        self._tell_shards()

    def define_app_schema(self, sql: str, key_columns: Mapping[str, str]) -> None:
        """Create the program's own tables in every shard, including future ones. A repetition of the same text does nothing.

        Args:
            key_columns: the column of each table that has the keys that its rows belong to.
        Raises:
            InvalidArgument: the SQL is wrong, touches anything else than app_* tables, or does not suit the columns; nothing
                changed.
            OutcomeUnknown: they may be recorded, or a shard could not be reached. A repetition completes it.
        """
        self._read_app_schema()
        known = app_rows.all_columns(self.app_schema)
        for table, column in key_columns.items():
            if known.get(table, column) != column:
                raise InvalidArgument(f"key_columns: the keys of {table} are in {known[table]} already; nothing was changed")
        columns = {table: column for table, column in key_columns.items() if table not in known}
        recorded = {text for _, text in self.app_schema}
        texts = [text for text in (sql, *([app_rows.recorded(columns)] if columns else ())) if text not in recorded]
        for shard in self.healthy() if texts else ():
            # What is wrong, or does not fit the rows of a shard, must not be recorded.
            shard.try_schema(sql if sql in texts else "", columns)
        if self.directory is None:
            self.app_schema = [*self.app_schema, *enumerate(texts, len(self.app_schema) + 1)]
        elif texts:
            self.app_schema = queue_db.add_app_schema(self.directory, texts)
        self._in_all_shards(Shard.define)

    def refresh_app_schema(self) -> None:
        """Bring every shard up to what any process has given to `define_app_schema`."""
        self._read_app_schema()
        columns = app_rows.all_columns(self.app_schema)
        for shard in self.healthy():
            shard.define()
            if shard.read(lambda db, shard=shard: app_rows.stored(db, shard.number)) != columns:  # type: ignore[misc]
                shard.run(lambda tx: app_rows.store(tx.db, tx.shard, columns))  # an older version ran the text as a comment

    def _read_app_schema(self) -> None:
        if self.directory is not None:
            self.app_schema = queue_db.app_schema(self.directory, 0)

    # ---- learned durations

    def estimates(self) -> dict[str, str]:
        """Return the models of durations that workers learned, by stage."""
        if self.directory is None:
            return dict(self._memory_estimates)
        # Opening queue.db costs three times as much as the rest of stats().
        changed = files.changed_at(self.directory / layout.CATALOG)
        if changed is None or changed != self._estimates_at:
            self._stored_estimates = queue_db.estimates(self.directory, read_only=self.read_only)
            self._estimates_at = changed
        return dict(self._stored_estimates)

    def set_estimates(self, models: dict[str, str] | None) -> None:
        """Store the models of these stages. None deletes the models of all stages."""
        if self.directory is not None:
            queue_db.set_estimates(self.directory, models)
        elif models is None:
            self._memory_estimates.clear()
        else:
            self._memory_estimates.update(models)
